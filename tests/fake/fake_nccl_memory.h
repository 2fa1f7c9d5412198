/* The half of the fake NCCL that knows memory: its allocator, registrations with communicators,
 * windows, and the policy that a communicator was made with.
 *
 * Where a communicator has registered buffers its ranks tell one another which they use: a group
 * of calls with a collective in it is in progress until all have come to theirs.
 *
 * Windows are collective: the call returns when all ranks of the communicator have registered as
 * many of the same bytes and flags; where it is not blocking it says success when it has begun, and
 * the communicator is in progress until then. Only then the handle is there; it is device memory.
 * Where a communicator has any registration, every buffer of a call must lie in one. What all ranks
 * use in a symmetric window must lie at equal offsets, or be one's own part of the other buffer (in
 * place); and all ranks must use windows of one kind. Memory that is still registered may not be
 * freed, and a communicator may be destroyed only without registrations; an abort forgets them. */
#ifndef TESTS_FAKE_FAKE_NCCL_MEMORY_H
#define TESTS_FAKE_FAKE_NCCL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake_nccl.h"

/* Allocations of ncclMemAlloc and registrations that nobody has given back. */
uint64_t fake_nccl_memory_live(void);
/* Registrations so far: buffers, windows, and the symmetric ones among these. */
typedef enum fake_nccl_memory_kind {
    FAKE_NCCL_BUFFER = 0,
    FAKE_NCCL_WINDOW = 1,
    FAKE_NCCL_SYMMETRIC = 2
} fake_nccl_memory_kind;
uint64_t fake_nccl_registered(fake_nccl_memory_kind kind);
/* Communicators that were made with NCCL_CTA_POLICY_ZERO so far. */
uint64_t fake_nccl_zero_cta(void);
/* The configuration of the last communicator; its texts are good until that is gone. */
ncclConfig_t fake_nccl_last_config(void);
/* Let the nth registration (1-based) of this rank from now on fail with `error`. */
void fake_nccl_fail_register(int rank, uint64_t nth, ncclResult_t error);
/* Registrations succeed without a handle from now on, as NCCL's do where it cannot make them. */
void fake_nccl_refuse_register(bool refuse);
/* GPUs cannot map one another's memory from now on: 2.28 makes a plain registration in place of a
 * window, later versions nothing. */
void fake_nccl_without_windows(bool without);
/* This rank alone gets no window from now on. Its call meets those of the others, which get theirs;
 * or it does not, and they wait for ever. -1: none. */
void fake_nccl_refuse_window(int rank, bool meets);

/* ---- NCCL's own ---- */

ncclResult_t fake_nccl_mem_alloc(void **out, size_t bytes);
ncclResult_t fake_nccl_mem_free(void *pointer);
ncclResult_t fake_nccl_comm_register(ncclComm_t comm, void *pointer, size_t bytes, void **handle);
ncclResult_t fake_nccl_comm_deregister(ncclComm_t comm, void *handle);
ncclResult_t fake_nccl_window_register(ncclComm_t comm, void *pointer, size_t bytes, void **window,
                                       int flags);

/* Its places in the table. */
#define FAKE_NCCL_MEMORY_CALLS                                                              \
    .mem_alloc = fake_nccl_mem_alloc, .mem_free = fake_nccl_mem_free,                       \
    .comm_register = fake_nccl_comm_register, .comm_deregister = fake_nccl_comm_deregister, \
    .comm_window_register = fake_nccl_window_register,                                      \
    .comm_window_deregister = fake_nccl_comm_deregister

#endif
