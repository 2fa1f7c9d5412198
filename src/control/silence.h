/* Ranks that are silent: their processes are there, as far as anybody knows, and do nothing. They
 * may go on, so silence is no error; it is logged, and told with the TIMEOUT that may follow. */
#ifndef ZI_CONTROL_SILENCE_H
#define ZI_CONTROL_SILENCE_H

#include <stddef.h>
#include <stdint.h>

#include "zero/status.h"

/* How long a rank may be unheard before it counts as silent. */
#define ZI_SILENCE_MS 1500

typedef struct zi_silence zi_silence;

/* Of ranks [0, size). */
zero_status zi_silence_create(uint32_t size, zi_silence **out);

/* Accepts NULL. */
void zi_silence_destroy(zi_silence *silence);

/* Rank `rank` has not been heard since since_ns, of zi_clock_ns; 0: it is heard. Logs what changes.
 * - host: where it runs.
 * - why: how that is known: "no heartbeat". Both are ignored where it is heard. A rank is heard of
 *   in one way, or one way would contradict the other.
 * - silence: NULL where nobody wants to know.
 * - Threads: any. */
void zi_silence_set(zi_silence *silence, uint32_t rank, uint64_t since_ns, const char *host,
                    const char *why);

/* Fill `text` with "; rank 3 on HOST is silent: no heartbeat for 12 s", which follows a TIMEOUT's
 * message, or "" where no rank is silent. Accepts NULL. Returns text. Threads: any. */
const char *zi_silence_text(zi_silence *silence, char *text, size_t text_bytes);

/* Bytes of the longest text. */
#define ZI_SILENCE_TEXT_BYTES 144

/* COMM: the error that a rank's process died of, whoever finds it. `how`: what was found where. */
zero_status zi_silence_died(uint64_t pid, const char *host, const char *how);

#endif
