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

/* Take a record that another thread left (a worker's, a peer's) as the calling thread's own. */
ZI_PRIVATE_API zero_status zi_error_adopt(const zero_error *error);

#endif
