/* Groups of processes with one GPU each, over NCCL. Data moves from GPU to GPU. A host thread waits
 * for other ranks only while NCCL connects the members for a batch: see `connect`. The
 * communicators of a world's groups are all split off one base (docs/decisions/013).
 *
 * What comm.h says of every backend holds, with these differences:
 *  - Members do not compare the terms of a batch. One that differs between them is not MISMATCH: it
 *    ends by the deadline as TIMEOUT, or moves wrong data. The engine compares models, options and
 *    orders of gathers when it is made and later.
 *  - The deadline of a batch counts from when the GPU begins to run it. A batch that does not
 * finish fails its group and all groups of the world. Their communicators are aborted, which frees
 * the GPU, and zi_group_check returns the error. What the batch left on the stream may be
 * incomplete.
 *  - A call that connects counts from its begin. When it does not return the group fails as above,
 *    and the abort ends the call before it frees the communicator.
 *  - A graph that has captured a batch must be destroyed before the group. Otherwise the group's
 *    destroy waits for it, as long as for any communicator at most, which is 10 s, and then leaves
 *    the communicator to NCCL.
 *  - Batches of a group go on one stream at a time: they share its scratch memory. Groups may share
 *    one where their batches are on one stream.
 *  - Where memory is registered, all that a batch reads and writes lies in it, on every member.
 *  - NCCL adds only with ZI_COLLECTIVE_NATIVE. In all other sums the members exchange their parts
 *    and kernels->fold adds them, so the order is fixed and 16-bit types are not rounded at every
 *    hop (docs/decisions/070). A sum of NCCL's own that is added to recv, or changes the type,
 * needs scratch memory for all of recv.
 *  - send == NULL sends zeros, from zeroed scratch memory. */
#ifndef ZI_COMM_NCCL_NCCL_GROUP_H
#define ZI_COMM_NCCL_NCCL_GROUP_H

#include "comm/comm.h"

extern const zi_transport zi_nccl_transport; /* nccl_transport.c */

/* Make comm->parent, the base, unless it is there: one communicator over all ranks of the world, on
 * the calling thread's current GPU. (nccl_base.c)
 * - Collective over the world.
 * - Errors: UNSUPPORTED without NCCL or when it is too old; TIMEOUT when NCCL does not connect the
 *   ranks within the deadline; MISMATCH when they load different versions of it; COMM with NCCL's
 *   words. */
zero_status zi_nccl_base_get(zero_world *world);

/* Split a group off comm->parent, which is there.
 * - desc: the kernels are of a CUDA device that is the calling thread's current one. A ninth of the
 *   scratch memory, ZI_ZEROS_MAX at most, stays zeros, the rest receives what other ranks send;
 * where `registered` it is in `memory` too.
 * - Collective over the world, not the members alone: each rank is a member of the one group of
 *   this name that it makes.
 * - Errors: INVALID_ARGUMENT when the current GPU is not the base's; UNSUPPORTED when NCCL does not
 *   register the memory; MISMATCH when members or names do not fit together; TIMEOUT when NCCL does
 *   not connect them within the deadline; COMM with NCCL's words. Unless all fail alike the caller
 *   then aborts the comm: the others may wait for this rank. */
zero_status zi_nccl_group_create(zero_world *world, const zi_group_desc *desc, zi_group **out);

#endif
