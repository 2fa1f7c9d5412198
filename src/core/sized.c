/* Owns how structs of callers are read and written whose size is not this library's, and the
 * initial values of each but the options (src/layout/sharding.c). */
#include "core/sized.h"

#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "zero/zero.h"

/* More is no size but a variable that nobody has set. */
#define STRUCT_BYTES_MAX 4096

static zero_status check_size(const char *type, const void *given)
{
    size_t bytes = 0;
    if (given == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "the %s is NULL; pass one that %s_init() has filled",
                type, type);
    }
    memcpy(&bytes, given, sizeof bytes);
    if (bytes < sizeof bytes || bytes > STRUCT_BYTES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "struct_bytes of the %s is %zu; fill it with %s_init()",
                type, bytes, type);
    }
    return ZERO_OK;
}

static size_t size_of(const void *given)
{
    size_t bytes = 0;
    memcpy(&bytes, given, sizeof bytes);
    return bytes;
}

/* Of a struct of so many bytes. */
static zero_status sized_take(const char *type, const void *given, size_t given_bytes, void *known,
                              size_t known_bytes)
{
    const unsigned char *bytes = (const unsigned char *)given;
    for (size_t i = known_bytes; i < given_bytes; i++) {
        if (bytes[i] != 0) {
            ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                    "the %s has %zu bytes and sets one beyond the %zu that this library knows; "
                    "link a newer library",
                    type, given_bytes, known_bytes);
        }
    }
    memcpy(known, given, given_bytes < known_bytes ? given_bytes : known_bytes);
    memcpy(known, &known_bytes, sizeof known_bytes);
    return ZERO_OK;
}

zero_status zi_sized_in(const char *type, const void *given, void *known, size_t known_bytes)
{
    ZI_TRY(check_size(type, given));
    return sized_take(type, given, size_of(given), known, known_bytes);
}

zero_status zi_options_in(const char *type, const void *given, void *known, size_t known_bytes,
                          size_t first_bytes)
{
    zi_assert_cmp(first_bytes, <=, known_bytes);
    if (given != NULL && size_of(given) == 0) {
        return sized_take(type, given, first_bytes, known, known_bytes);
    }
    return zi_sized_in(type, given, known, known_bytes);
}

/* `bytes` is the caller's size. */
static void write_sized(void *given, size_t bytes, const void *known, size_t known_bytes)
{
    memset(given, 0, bytes);
    memcpy(given, known, bytes < known_bytes ? bytes : known_bytes);
    memcpy(given, &bytes, sizeof bytes);
}

zero_status zi_sized_out(const char *type, void *given, const void *known, size_t known_bytes)
{
    ZI_TRY(check_size(type, given));
    write_sized(given, size_of(given), known, known_bytes);
    return ZERO_OK;
}

void zi_sized_init(void *given, size_t bytes, const void *known, size_t known_bytes)
{
    if (given != NULL && bytes >= sizeof bytes) {
        write_sized(given, bytes, known, known_bytes);
    }
}

/* Defines TYPE_init_sized; the rest are the designated initialisers of its values that are not 0.
 */
#define INIT_SIZED(type, ...)                                     \
    void type##_init_sized(type *given, size_t struct_bytes)      \
    {                                                             \
        static const type known = {__VA_ARGS__};                  \
        zi_sized_init(given, struct_bytes, &known, sizeof known); \
    }

INIT_SIZED(zero_tuning, 0)
INIT_SIZED(zero_memory, 0)
INIT_SIZED(zero_sharding, 0)
INIT_SIZED(zero_stats, 0)
INIT_SIZED(zero_path, .text = "none")
INIT_SIZED(zero_disk_path, .text = "none (nothing on disk)")
INIT_SIZED(zero_bottleneck_report, 0)
INIT_SIZED(zero_step_result, 0)
INIT_SIZED(zero_step_params,
           .hyper.adamw = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f})

/* Before the first update. */
void zero_step_state_init_sized(zero_step_state *given, size_t struct_bytes)
{
    zero_step_state known = {.loss_scale = 1.0f};
    for (int group = 0; group < ZERO_STEP_GROUPS; group++) {
        for (int i = 0; i < ZERO_STEP_CARRIED; i++) {
            known.carried[group][i] = 1.0;
        }
    }
    zi_sized_init(given, struct_bytes, &known, sizeof known);
}
