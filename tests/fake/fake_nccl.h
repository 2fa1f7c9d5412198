/* A test double of NCCL over the fake CUDA runtime (fake_cuda.h): the table that libzero would load
 * from libnccl. Ranks are threads of one process; each has communicators of its own.
 *
 * A group of calls is issued when its ncclGroupEnd comes: what is sent is copied away in stream
 * order, so every access is a declared one of the rank's own stream; what is received comes behind
 * a latch (fake_cuda.h) that opens when all ranks have issued theirs. As NCCL does, a communicator
 * connects late: for a kind of collective, of few bytes or of many, when the first such call comes,
 * and for a pair of ranks when they first exchange. It issues nothing until all whom that concerns
 * have come to it: a blocking communicator waits for them in ncclGroupEnd, another says
 * ncclInProgress, for some looks at least.
 *
 * On a stream that is captured a group of calls is kept, and issued at each launch of the graph.
 *
 * Destroying waits until all ranks do it. An abort ends the calls under way; within a group of
 * calls it frees the communicator at the group's end, when no call may be under way any more. There
 * it waits until what other communicators of its process have issued is with all its ranks, or has
 * been aborted. Both wait for graphs to be destroyed that hold calls of the communicator.
 *
 * A split says success when it has begun, and writes the child's handle when its parent is found to
 * be ready again, as NCCL does.
 *
 * Two ranks on one GPU cannot connect (fake_nccl_ranks.h). Wrong use is counted: calls that do not
 * match those of other ranks, calls on a communicator that is in progress, groups of calls of more
 * than one communicator, buffers that overlap but are not in place, groups left open, sums of other
 * types than floats. */
#ifndef TESTS_FAKE_FAKE_NCCL_H
#define TESTS_FAKE_FAKE_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/nccl/nccl_api.h"

typedef enum fake_nccl_call {
    FAKE_NCCL_INIT = 0,
    FAKE_NCCL_ABORT = 1,
    FAKE_NCCL_DESTROY = 2,
    FAKE_NCCL_GROUP = 3, /* those with calls in them */
    FAKE_NCCL_ALL_GATHER = 4,
    FAKE_NCCL_REDUCE_SCATTER = 5,
    FAKE_NCCL_ALL_REDUCE = 6,
    FAKE_NCCL_SEND = 7,
    FAKE_NCCL_RECV = 8,
    FAKE_NCCL_SPLIT = 9
} fake_nccl_call;
#define FAKE_NCCL_CALLS 10

const zi_nccl_api *fake_nccl_api(void);

/* Calls so far, of all ranks. */
uint64_t fake_nccl_calls(fake_nccl_call call);
/* From now on GPUs of as many neighbouring ordinals are on one host; 0, at first: all are. Nothing
 * is counted as sent so far. */
void fake_nccl_hosts(uint32_t gpus_per_host);
/* Bytes that the GPU of an ordinal has sent to other hosts. Of a collective that is its share,
 * among the GPUs of its host in the communicator, of what leaves the host in a ring through all
 * hosts: a ring passes each part on to every rank but one. */
uint64_t fake_nccl_crossed(uint32_t ordinal);
/* Communicators that were made and not given back. */
uint64_t fake_nccl_live(void);
/* True when nothing was used wrongly; prints what was. */
bool fake_nccl_check(void);

/* Set what ncclGetVersion says from now on. */
void fake_nccl_set_version(int version);
/* Ranks never finish connecting from now on. */
void fake_nccl_hold_init(bool hold);
/* Splits never finish from now on. */
void fake_nccl_hold_split(bool hold);
/* The next split on this rank of a parent fails and leaves a child that can only be aborted; it
 * does not finish on the others. -1: none. */
void fake_nccl_fail_split(int rank);
/* A communicator as the program that embeds the library has one: rank `rank` of `size` of those of
 * this name, connected once all have asked for theirs. Given back by fake_nccl_take_back, when it
 * must be as good as new, or by fake_nccl_abort. */
ncclComm_t fake_nccl_lend(const char *name, int size, int rank, bool blocking);
void fake_nccl_take_back(ncclComm_t comm);
ncclResult_t fake_nccl_abort(ncclComm_t comm);
/* Let every communicator of this group rank report `error` from now on. */
void fake_nccl_break(int rank, ncclResult_t error);
/* Groups of calls issued from now on never finish, until one of their communicators is aborted. */
void fake_nccl_stall(void);
/* Ends what stall has begun; something must have been aborted. */
void fake_nccl_unstall(void);

#endif
