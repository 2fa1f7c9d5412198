/* Setting and passing on failures. ZI_FAIL records where the fault is found; ZI_TRY hands a status
 * up untouched. */
#ifndef ZI_CORE_ERROR_H
#define ZI_CORE_ERROR_H

#include <stddef.h>

#include "core/private_api.h"
#include "zero/status.h"

#define ZI_FAIL(status, ...) return zi_error_set((status), 0, __FILE__, __LINE__, __VA_ARGS__)
#define ZI_FAIL_NATIVE(status, native, ...) \
    return zi_error_set((status), (native), __FILE__, __LINE__, __VA_ARGS__)
#define ZI_TRY(expr)                               \
    do {                                           \
        const zero_status zi_try_status_ = (expr); \
        if (zi_try_status_ != ZERO_OK) {           \
            return zi_try_status_;                 \
        }                                          \
    } while (0)

/* Fill the calling thread's record and return `status`. */
ZI_PRIVATE_API zero_status zi_error_set(zero_status status, int native, const char *file, int line,
                                        const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The calling thread's record of an error that rank `rank` has found and told this one. world: ""
 * or what comes before "rank", for ranks of another world. Returns `status`. */
zero_status zi_error_set_other(zero_status status, int native, const char *world, uint32_t rank,
                               const char *message);

/* How something ended on a rank, for the others: what an exchange carries. */
typedef struct zi_error_told {
    int16_t status;
    uint16_t of_other; /* the rank has it from another */
    int32_t native;
    char text[232];
} zi_error_told;

/* status: of this thread; if it is not OK, with its last error. */
zi_error_told zi_error_tell(zero_status status);

/* Take what rank `rank` has told, as zi_error_set_other. */
zero_status zi_error_hear(const zi_error_told *told, const char *world, uint32_t rank);

/* Of `count` ranks, whose words are `stride` bytes apart: the first that has found an error itself,
 * else the first that failed; `count` where none did. */
uint32_t zi_error_first_cause(const zi_error_told *told, size_t stride, uint32_t count);

/* Whose error it is that a rank aborts with: *rank becomes the rank that found it, where the error
 * names one of the same world. Returns the message without that rank's name, inside `error`. */
const char *zi_error_cause(const zero_error *error, uint32_t *rank);

/* Take a record that another thread left (a worker's, a peer's) as the calling thread's own. */
ZI_PRIVATE_API zero_status zi_error_adopt(const zero_error *error);

#endif
