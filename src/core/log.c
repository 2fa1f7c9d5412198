/* Owns the log callback and the one reading of ZERO_LOG. `lock` guards the callback and its user
 * pointer, and keeps its calls one at a time. */
#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static zero_log_fn callback;
static void *callback_user;
static zero_log_level highest = ZERO_LOG_INFO;

static zero_log_level level_from_environment(void)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *text = getenv("ZERO_LOG");
    for (int i = 0; text != NULL && i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            return (zero_log_level)(i + 1);
        }
    }
    return ZERO_LOG_INFO;
}

void zero_log_set(zero_log_fn fn, void *user)
{
    (void)pthread_mutex_lock(&lock);
    callback = fn;
    callback_user = user;
    highest = level_from_environment();
    (void)pthread_mutex_unlock(&lock);
}

void zi_log(zero_log_level level, const char *format, ...)
{
    (void)pthread_mutex_lock(&lock);
    if (callback != NULL && level <= highest) {
        char message[512];
        va_list args;
        va_start(args, format);
        (void)vsnprintf(message, sizeof message, format, args);
        va_end(args);
        callback(callback_user, level, message);
    }
    (void)pthread_mutex_unlock(&lock);
}
