/* Groups of processes with one GPU each, over NCCL: their collectives move from GPU to GPU, and no
 * host thread waits for another rank but while NCCL connects the members for a batch: see
 * `connect`. The communicators of a world's groups are all split off one base (docs/decisions/013).
 *
 * What comm.h says of every backend holds, with these differences:
 *  - NCCL does not see what members say about a batch, so a batch that differs between them is not
 *    MISMATCH; it ends by the deadline as TIMEOUT, or moves wrong data. The engine compares models,
 *    options and orders of gathers when it is made and later.
 *  - The deadline of a batch counts from when the GPU has come to it. A batch that does not finish
 *    fails its group and all groups of the world: their communicators are aborted, which frees the
 *    GPU, and zi_group_check tells. Until then the stream holds what the batch left behind.
 *  - A graph that has captured a batch is destroyed before the group. NCCL would wait for it: the
 *    group's destroy does so until the deadline, then leaves the communicator to NCCL.
 *  - Batches of a group go on one stream at a time: they share its scratch memory. Groups may share
 *    one where their batches are on one stream.
 *  - Where memory is registered, all that a batch reads and writes lies in it, on every member.
 *  - Sums go one of two ways. NCCL adds only fp32 without ZI_COLLECTIVE_EXACT. All else, 16-bit
 *    types among them because NCCL would round them at every hop, is exchanged part by part and
 *    added by kernels->fold in the order of world ranks: the same bytes on the wire as a reduction,
 *    and one rounding.
 *  - send == NULL sends zeros, from zeroed scratch memory.
 *  - What a rank gives up with is always COMM to the others. */
#ifndef ZI_COMM_NCCL_NCCL_GROUP_H
#define ZI_COMM_NCCL_NCCL_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

extern const zi_transport zi_nccl_transport; /* nccl_transport.c */

typedef struct zi_nccl_group_desc {
    zi_comm *comm; /* of the world: has the base, tells and hears of failures */
    zi_group
        *control; /* of all ranks, on the CPU; used within create only. NULL: nothing is told */
    const zi_kernels *kernels; /* of a CUDA device that is the calling thread's current one */
    const uint32_t *members;   /* world ranks, in the order of group ranks; copied */
    uint32_t size;
    uint32_t deadline_ms;
    const char *name;
    bool gathers_only; /* ALL_GATHER is all that is put on it; then there is no scratch memory */
    bool folds;        /* as zi_group_desc */
    bool zero_cta;     /* NCCL_CTA_POLICY_ZERO; with ZERO_NCCL_MEMORY_SYMMETRIC */
    zero_nccl_memory memory_kind;
    const zi_group_memory *memory; /* what is registered: at most ZI_GROUP_MEMORIES, none empty */
    uint32_t memory_count;
    /* Zeroed device memory for sums under way: half of it stays zeros, half is what other ranks
     * sent. The caller's; given back after the group. With memory_kind it is in `memory` too. */
    void *scratch;
    size_t scratch_bytes;
} zi_nccl_group_desc;

/* Make comm->parent, the base, unless it is there: one communicator over all ranks of the world, on
 * the calling thread's current GPU. Collective over the world. Errors: UNSUPPORTED without NCCL or
 * when it is too old; TIMEOUT when NCCL does not connect the ranks within the deadline; MISMATCH
 * when they load different versions of it; COMM with NCCL's words. (nccl_base.c) */
zero_status zi_nccl_base_get(zi_comm *comm, zi_group *control, uint32_t deadline_ms);

/* Needs comm->parent. Collective over the world, not the members alone: each rank is a member of
 * the one group of this name that it makes. Errors: INVALID_ARGUMENT when the current GPU is not
 * the base's; UNSUPPORTED when NCCL does not register the memory; MISMATCH when members or names do
 * not fit together; TIMEOUT when NCCL does not connect them within the deadline; COMM with NCCL's
 * words. Unless all fail alike the caller then aborts the comm: the others may wait for this rank.
 */
zero_status zi_nccl_group_create(const zi_nccl_group_desc *desc, zi_group **out);

#endif
