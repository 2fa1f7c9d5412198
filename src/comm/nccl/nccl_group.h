/* Groups of processes with one GPU each, over NCCL: their collectives move from GPU to GPU, and no
 * host thread waits for another rank but while NCCL first connects the members.
 *
 * What comm.h says of every backend holds, with these differences:
 *  - NCCL does not see what members say about a batch, so a batch that differs between them is not
 *    MISMATCH; it ends by the deadline as TIMEOUT, or moves wrong data. The engine compares models,
 *    options and orders of gathers when it is made and later.
 *  - The deadline of a batch counts from when the GPU has come to it. A batch that does not finish
 *    fails its group and all groups of the world: their communicators are aborted, which frees the
 *    GPU, and zi_group_check tells. Until then the stream holds what the batch left behind.
 *  - Batches of a group go on one stream at a time: they share its scratch memory. Groups may share
 *    one where their batches are on one stream.
 *  - Where memory is registered, all that a batch reads and writes lies in it, on every member.
 *  - Sums go one of two ways. NCCL adds only fp32 without ZI_COLLECTIVE_EXACT. All else, 16-bit
 *    types among them because NCCL would round them at every hop, is exchanged part by part and
 *    added by kernels->fold in the order of world ranks: the same bytes on the wire as a reduction,
 *    and one rounding.
 *  - send == NULL sends zeros, from zeroed scratch memory. */
#ifndef ZI_COMM_NCCL_NCCL_GROUP_H
#define ZI_COMM_NCCL_NCCL_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

typedef struct zi_nccl_group_desc {
    zi_comm *comm;             /* of the world: tells and hears of failures */
    zi_group *host;            /* of the same members, on the CPU; used within create only */
    const zi_kernels *kernels; /* of a CUDA device that is the calling thread's current one */
    const uint32_t *members;   /* world ranks, in the order of group ranks; copied */
    uint32_t size;
    uint32_t deadline_ms;
    const char *name;
    bool gathers_only; /* ALL_GATHER is all that is put on it; then there is no scratch memory */
    bool zero_cta;     /* NCCL_CTA_POLICY_ZERO; with ZERO_NCCL_MEMORY_SYMMETRIC */
    zero_nccl_memory memory_kind;
    const zi_group_memory *memory; /* what is registered: at most ZI_NCCL_MEMORIES, none empty */
    uint32_t memory_count;
    /* Zeroed device memory for sums under way: half of it stays zeros, half is what other ranks
     * sent. The caller's; given back after the group. With memory_kind it is in `memory` too. */
    void *scratch;
    size_t scratch_bytes;
} zi_nccl_group_desc;

/* Arenas that a group registers. */
#define ZI_NCCL_MEMORIES 4

/* Collective over the members. Errors: UNSUPPORTED without NCCL, when it is too old, or when it
 * does not register the memory; TIMEOUT when
 * NCCL does not connect the members within the deadline; MISMATCH when they load different versions
 * of it; COMM with NCCL's words. Unless all fail alike the caller then aborts the comm: the
 * others may wait for this rank. */
zero_status zi_nccl_group_create(const zi_nccl_group_desc *desc, zi_group **out);

#endif
