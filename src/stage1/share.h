/* A step's units, shared between the GPU, which takes them from the first on, and the CPU, which
 * takes them from the last on. Each takes another when it is done with the one before, so where
 * they meet follows from how fast they are, in this step and for these units. */
#ifndef ZI_STAGE1_SHARE_H
#define ZI_STAGE1_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "zero/status.h"

typedef struct zi_share zi_share;

/* count: units of a step. */
zero_status zi_share_create(uint32_t count, zi_share **out);
void zi_share_destroy(zi_share *share); /* accepts NULL; nobody is in a call */

/* The GPU's side, one thread. */

/* Step `step`, from 1 up, begins: its units can be taken. */
void zi_share_open(zi_share *share, uint64_t step);
/* Take unit `index`, after all before it. false: the CPU has it. */
bool zi_share_claim(zi_share *share, uint32_t index);
/* Block until the CPU is done with a unit that it has; returns what it failed with. */
zero_status zi_share_await(zi_share *share, uint32_t index);
/* Steps up to this one are over, or will never begin: nobody waits for them any longer. */
void zi_share_close(zi_share *share, uint64_t step);

/* The CPU's side, one thread. */

/* Take the last unit that is left of the step; blocks until the step begins or is closed. false:
 * there is none. */
bool zi_share_take(zi_share *share, uint64_t step, uint32_t *index);
/* The unit taken last is updated, or failed with the thread's last error. */
void zi_share_done(zi_share *share, zero_status status);

#endif
