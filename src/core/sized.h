/* Public structs that grow. Each begins with `size_t struct_bytes`, the caller's sizeof, and the
 * library reads and writes no more of it than that, whichever of the two is newer. */
#ifndef ZI_CORE_SIZED_H
#define ZI_CORE_SIZED_H

#include <stddef.h>

#include "core/private_api.h"
#include "zero/status.h"

/* Copy the caller's struct over *known, which holds the defaults and whose size stays its own.
 * Errors: INVALID_ARGUMENT for NULL and for a size that is none; UNSUPPORTED where the caller's
 * struct is longer and sets a byte that this library does not know. */
ZI_PRIVATE_API zero_status zi_sized_in(const char *type, const void *given, void *known,
                                       size_t known_bytes);

/* The same for options and descriptions, whose defaults are zeros. A struct that is zeroed and then
 * assigned, size left out, is taken too: it has the size of the first release, at least. */
ZI_PRIVATE_API zero_status zi_options_in(const char *type, const void *given, void *known,
                                         size_t known_bytes, size_t first_bytes);

/* Copy *known to the caller's struct as far as that goes. What it has beyond becomes 0, and its
 * size stays its own. Errors: as above. */
ZI_PRIVATE_API zero_status zi_sized_out(const char *type, void *given, const void *known,
                                        size_t known_bytes);

/* Fill the caller's struct of so many bytes from *known as far as that goes, with 0 beyond. Nothing
 * for NULL, and for fewer bytes than the size itself has. */
ZI_PRIVATE_API void zi_sized_init(void *given, size_t bytes, const void *known, size_t known_bytes);

/* Bytes of these in the first release; they never change. */
#define ZI_FIRST_BYTES_zero_engine_options ((size_t)544)
#define ZI_FIRST_BYTES_zero_tuning ((size_t)192)
#define ZI_FIRST_BYTES_zero_save_options ((size_t)128)
#define ZI_FIRST_BYTES_zero_load_options ((size_t)56)
#define ZI_FIRST_BYTES_zero_unit_desc ((size_t)40)
#define ZI_FIRST_BYTES_zero_sim_options ((size_t)48)

#define ZI_SIZED_IN(type, given, known) zi_sized_in(#type, (given), (known), sizeof(type))
#define ZI_OPTIONS_IN(type, given, known) \
    zi_options_in(#type, (given), (known), sizeof(type), ZI_FIRST_BYTES_##type)
#define ZI_SIZED_OUT(type, given, known) zi_sized_out(#type, (given), (known), sizeof(type))

#endif
