/** @file
 *  Where the library's few messages go.
 *
 *  The library prints nothing by itself: without a callback it is silent. Below ZERO_LOG_DEBUG
 *  nothing is logged once per step. The environment variable ZERO_LOG (error, warn, info, debug)
 *  sets the highest level that reaches the callback; its default is info. */
#ifndef ZERO_LOG_H
#define ZERO_LOG_H

#include "zero/export.h"

ZERO_BEGIN

/** How urgent a message is. */
typedef enum zero_log_level {
    ZERO_LOG_ERROR = 1, /**< the job cannot go on */
    ZERO_LOG_WARN = 2,  /**< it goes on in a way the user should know of */
    ZERO_LOG_INFO = 3,  /**< once per engine */
    ZERO_LOG_DEBUG = 4  /**< as often as once per step */
} zero_log_level;

/** Receives one message without a final newline. May be called from any of the library's threads,
 *  one call at a time; it must not call zero_log_set. */
typedef void (*zero_log_fn)(void *user, zero_log_level level, const char *message);

/** Send messages to `fn` (NULL: silence).
 *  - Threads: safe, but meant to be called once, at start. */
ZERO_API void zero_log_set(zero_log_fn fn, void *user);

ZERO_END

#endif
