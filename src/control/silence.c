/* Owns which ranks of a world are silent, and every text about ranks that are silent or died.
 * Invariant: each change is logged once. `mutex` guards the rows. */
#include "control/silence.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"

#define NS_PER_S UINT64_C(1000000000)

typedef struct silence_row {
    uint64_t since_ns; /* 0: the rank is heard */
    char host[40];
    char why[24];
} silence_row;

struct zi_silence {
    pthread_mutex_t mutex;
    uint32_t size;
    uint32_t count; /* of silent ranks */
    silence_row rows[];
};

zero_status zi_silence_create(uint32_t size, zi_silence **out)
{
    *out = NULL;
    zi_silence *silence = NULL;
    ZI_TRY(zi_calloc(1, sizeof *silence + size * sizeof silence->rows[0], (void **)&silence));
    (void)pthread_mutex_init(&silence->mutex, NULL);
    silence->size = size;
    *out = silence;
    return ZERO_OK;
}

void zi_silence_destroy(zi_silence *silence)
{
    if (silence != NULL) {
        (void)pthread_mutex_destroy(&silence->mutex);
        zi_free(silence);
    }
}

void zi_silence_set(zi_silence *silence, uint32_t rank, uint64_t since_ns, const char *host,
                    const char *why)
{
    if (silence == NULL) {
        return;
    }
    zi_assert_cmp(rank, <, silence->size);
    silence_row *row = &silence->rows[rank];
    (void)pthread_mutex_lock(&silence->mutex);
    const uint64_t before_ns = row->since_ns;
    const bool changed = (before_ns != 0) != (since_ns != 0);
    if (changed) {
        silence->count += since_ns != 0 ? 1 : UINT32_MAX;
        row->since_ns = since_ns;
    }
    if (changed && since_ns != 0) {
        (void)snprintf(row->host, sizeof row->host, "%s", host);
        (void)snprintf(row->why, sizeof row->why, "%s", why);
    }
    const silence_row now = *row;
    (void)pthread_mutex_unlock(&silence->mutex);
    const uint64_t now_ns = zi_clock_ns();
    if (changed && since_ns != 0) {
        zi_log(ZERO_LOG_WARN,
               "rank %u on %s is silent: %s for %.1f s; others wait for it until the deadline",
               rank, now.host, now.why, (double)(now_ns - since_ns) / (double)NS_PER_S);
    } else if (changed) {
        zi_log(ZERO_LOG_WARN, "rank %u on %s is heard again, after %.1f s", rank, now.host,
               (double)(now_ns - before_ns) / (double)NS_PER_S);
    }
}

const char *zi_silence_text(zi_silence *silence, char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (silence == NULL) {
        return text;
    }
    (void)pthread_mutex_lock(&silence->mutex);
    const silence_row *row = silence->rows;
    while (silence->count != 0 && row->since_ns == 0) {
        row++;
    }
    if (silence->count != 0) {
        char more[24] = "";
        if (silence->count > 1) {
            (void)snprintf(more, sizeof more, ", and %u more", silence->count - 1);
        }
        (void)snprintf(text, text_bytes, "; rank %u on %s is silent: %s for %llu s%s",
                       (uint32_t)(row - silence->rows), row->host, row->why,
                       (unsigned long long)((zi_clock_ns() - row->since_ns) / NS_PER_S), more);
    }
    (void)pthread_mutex_unlock(&silence->mutex);
    return text;
}

zero_status zi_silence_died(uint64_t pid, const char *host, const char *how)
{
    ZI_FAIL(ZERO_ERR_COMM,
            "process %llu on %.40s died%.140s: it was killed, crashed, or ended without "
            "zero_world_destroy",
            (unsigned long long)pid, host, how);
}
