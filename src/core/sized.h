/* Public structs that grow. Each begins with `size_t struct_bytes`, the caller's sizeof, and the
 * library reads and writes no more of it than that, whichever of the two is newer. */
#ifndef ZI_CORE_SIZED_H
#define ZI_CORE_SIZED_H

#include <stddef.h>

#include "zero/status.h"

/* Copy the caller's struct over *known, which holds the defaults and whose size stays its own.
 * Errors: INVALID_ARGUMENT for NULL and for a size that is none; UNSUPPORTED where the caller's
 * struct is longer and sets a byte that this library does not know. */
zero_status zi_sized_in(const char *type, const void *given, void *known, size_t known_bytes);

/* Copy *known to the caller's struct as far as that goes. What it has beyond becomes 0, and its
 * size stays its own. Errors: as above. */
zero_status zi_sized_out(const char *type, void *given, const void *known, size_t known_bytes);

/* Fill the caller's struct of so many bytes from *known as far as that goes, with 0 beyond. Nothing
 * for NULL, and for fewer bytes than the size itself has. */
void zi_sized_init(void *given, size_t bytes, const void *known, size_t known_bytes);

#define ZI_SIZED_IN(type, given, known) zi_sized_in(#type, (given), (known), sizeof(type))
#define ZI_SIZED_OUT(type, given, known) zi_sized_out(#type, (given), (known), sizeof(type))

#endif
