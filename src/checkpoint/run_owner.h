/* The owner of a run's directory: one at a time saves there, prunes and cleans up, so nobody
 * removes what another one has made durable. Readers need no owner.
 *
 *     RUN/zero-run.lock    locked and signed by the owner; removed when it leaves
 *
 * A killed owner of this host is known to be gone at once: the kernel has dropped its lock. Network
 * file systems may keep locks on each host alone, or have none. So an owner touches the file every
 * beat, and who finds one of another host there, or no locks, watches it for some beats before it
 * takes the directory over. The text has the number of its own file: a copy owns nothing. */
#ifndef ZI_CHECKPOINT_RUN_OWNER_H
#define ZI_CHECKPOINT_RUN_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#include "zero/status.h"

#define ZI_RUN_LOCK_NAME "zero-run.lock"
/* For how many beats nobody may see an owner of another host touch the file. */
#define ZI_RUN_BEATS 4

/* How often an owner touches the file: 5 s, but in tests, which set it ahead of all else. */
extern uint64_t zi_run_beat_ns;

typedef struct zi_run_owner zi_run_owner;

/* Begin to own a directory, which is there. Errors: IO; OUT_OF_MEMORY. */
zero_status zi_run_owner_begin(const char *run, zi_run_owner **owner);
/* *owned := true if it is owned by now. false: an owner of another host may live; ask again, some
 * times in a beat. Errors: STATE naming the owner, which process, on which host, since when; STATE
 * where something else has the lock's name; IO; DEVICE where no thread can be started. */
zero_status zi_run_owner_poll(zi_run_owner *owner, bool *owned);
/* Both, for who has the time to wait. */
zero_status zi_run_owner_take(const char *run, zi_run_owner **owner);

/* Check that it still is the owner, before anything of the directory is changed: somebody may have
 * removed the lock, or taken the directory over from a process that stood still. Errors: STATE
 * naming whoever owns it now. */
zero_status zi_run_owner_check(const zi_run_owner *owner);
/* True if it is, or is about to be, the owner of this very directory, whatever its name. */
bool zi_run_owner_has(const zi_run_owner *owner, const char *run);
/* Give the directory up. Accepts NULL. */
void zi_run_owner_release(zi_run_owner *owner);

#endif
