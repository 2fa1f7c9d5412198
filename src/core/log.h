/* Messages to the caller's log callback. */
#ifndef ZI_CORE_LOG_H
#define ZI_CORE_LOG_H

#include "zero/log.h"

/* One message; dropped when no callback is set or its level is above ZERO_LOG's. */
void zi_log(zero_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
