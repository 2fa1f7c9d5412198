/* Groups of ranks and their collectives. A collective is a value; a batch of them is submitted
 * to a stream and runs as one, with one barrier and one comparison of terms.
 *
 * Contract of every backend:
 *  - All members of a group submit the same batches in the same order; only the pointers, NULL
 *    among them, may differ. Any other difference (kind, dtype, count, tag) is MISMATCH, naming the
 *    rank and both values, never a hang.
 *  - A member that does not arrive within the deadline is TIMEOUT, naming it and the collective. A
 *    member that aborted is COMM with its message, or MISMATCH where that is its error. After any
 *    failure the group is dead: later submits return the first error.
 *  - `count` is elements per rank: sent by each (ALL_GATHER), received by each (REDUCE_SCATTER),
 *    in all (ALL_REDUCE).
 *  - Group rank i's part is the i-th: of recv in ALL_GATHER, of send in REDUCE_SCATTER.
 *  - Sums are in fp32, start from +0, add the ranks in ascending order of world rank, and round
 *    once to recv_dtype. With ZI_COLLECTIVE_ACCUMULATE recv is an addend: recv = round(recv +
 *    sum), the sum being complete before recv is added. Without ZI_COLLECTIVE_EXACT members on
 *    several hosts may add in two levels (grid.h): the sum of each host, rounded once to
 *    sum_dtype, then the sum of these. A sum of f16 is divided by zi_sum_headroom before it is
 *    rounded, and the sum of such sums multiplied. With ZI_COLLECTIVE_NATIVE the transport's
 * library may add, in its own order and rounding as it does.
 *  - In packed types (core/block_codec.h) are send buffers and sums of hosts, of whole granules, of
 *    which `count` then is a multiple, as it is of all parts.
 *  - send == NULL contributes zeros to a reduction (REDUCE_SCATTER, ALL_REDUCE): the same bits
 *    as a buffer of zeros. Not with ZI_COLLECTIVE_NATIVE.
 *  - squares, of a reduction: once recv is complete, the squares of all of it are added to
 *    *squares, with the bits of a square_sum of recv (kernels.h). It is not one of the terms: each
 *    member decides for itself. Batches that add to the same sum are on one stream.
 *  - In place: ALL_GATHER with send at part `rank` of recv; REDUCE_SCATTER with recv at part
 *    `rank` of send and equal dtypes; ALL_REDUCE with send == recv and equal dtypes. No other
 *    overlap.
 *  - Peers read buffers from zi_comm_ops.memory_alloc directly where the backend can. Any other
 *    buffer works and may be staged.
 *  - After a batch has run on the stream its send buffers may be overwritten: no member reads them
 *    any more.
 *
 * A transport with a library of its own may differ; its header says where. */
#ifndef ZI_COMM_COMM_H
#define ZI_COMM_COMM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/call.h"
#include "comm/recorder.h"
#include "control/silence.h"
#include "core/capabilities.h"
#include "core/codec.h"
#include "core/failure.h"
#include "core/fork.h"
#include "core/private_api.h"
#include "device/device.h"
#include "device/stream_span.h"
#include "kernels/kernels.h"
#include "zero/dtype.h"
#include "zero/options.h"
#include "zero/path.h"
#include "zero/status.h"
#include "zero/world.h"

typedef enum zi_collective_kind {
    ZI_ALL_GATHER = 1,
    ZI_REDUCE_SCATTER = 2,
    ZI_ALL_REDUCE = 3
} zi_collective_kind;

typedef enum zi_collective_flags {
    ZI_COLLECTIVE_ACCUMULATE = 1, /* REDUCE_SCATTER only */
    ZI_COLLECTIVE_EXACT = 2,
    ZI_COLLECTIVE_LAST = 4,   /* of a step's last micro-step; only compared */
    ZI_COLLECTIVE_NATIVE = 8, /* not with EXACT */
    ZI_COLLECTIVE_SINGLE =
        16 /* of a step of one micro-step, where its type says so; only compared */
} zi_collective_flags;

/* Tags of what is about a whole step: its decision, and its norm ahead of that. */
#define ZI_TAG_STEP UINT32_MAX
#define ZI_TAG_NORM (UINT32_MAX - 1)
/* From here on tags are of the world itself: its gather of so many bytes, or its barrier (0). */
#define ZI_TAG_WORLD (UINT32_C(1) << 31)
/* From here on they are of exchanges that are part of a public call: its number (call.h) above as
 * many bits of bytes. */
#define ZI_TAG_CALL (UINT32_C(3) << 30)
#define ZI_TAG_CALL_BITS 22

_Static_assert(ZI_PUBLIC_CALL_COUNT < 1 << (30 - ZI_TAG_CALL_BITS),
               "the last number of that size is of ZI_TAG_STEP and ZI_TAG_NORM");

typedef struct zi_collective {
    zi_collective_kind kind;
    uint32_t flags;
    zero_dtype send_dtype;
    zero_dtype recv_dtype; /* == send_dtype for ALL_GATHER */
    uint32_t tag;          /* the unit it is about, or one of the tags above; named in errors */
    size_t count;
    const void *send;
    void *recv;
    zi_norm_sum *squares; /* memory of the group's device; NULL: not wanted, as for ALL_GATHER */
    zero_dtype sum_dtype; /* that hosts send their sums in: F32, send_dtype or packed; DEFAULT:
                             send_dtype. Not one of the terms, nor is the key: they follow from
                             options that ranks compare */
    float scale;          /* divisor of what members send, a power of two; 0: 1 */
    uint64_t key;         /* of packed sums of hosts: zi_collective_host_key */
} zi_collective;

/* The terms of a collective that all members must agree on; sent, hashed and compared as bytes. */
typedef struct zi_collective_terms {
    uint8_t kind;
    uint8_t flags;
    uint8_t send_dtype;
    uint8_t recv_dtype;
    uint32_t tag;
    uint64_t count;
} zi_collective_terms;

_Static_assert(sizeof(zi_collective_terms) == 16, "no padding: compared as bytes");

typedef struct zi_group zi_group;

typedef struct zi_group_ops {
    size_t struct_bytes;
    /* Enqueue a batch. `batch` must stay in place until it is issued. On the host stream it runs
     * before the call returns. The group's recorder has it as the last one; what runs it says there
     * when it begins and ends. */
    zero_status (*submit)(zi_group *group, zi_stream *stream, const zi_collective *batch,
                          size_t batch_count);
    /* Connect ahead what submit would connect in the first batch of these terms, when it waits on
     * the host for the other members. Submit does not wait so for such a batch afterwards. The
     * call may put the batch on the stream, or leave it. Collective over the members. NULL: submit
     * never waits so. */
    zero_status (*connect)(zi_group *group, zi_stream *stream, const zi_collective *batch,
                           size_t batch_count);
    /* Local; no batch may be under way. */
    void (*destroy)(zi_group *group);
    /* OK, or what the group has failed with so far. Never blocks; any thread. NULL where streams
     * carry every failure to whoever waits for them. */
    zero_status (*check)(zi_group *group);
    /* Fill *path, but its text, for a group of several. NULL: it follows from the memory of the
     * group's device (zi_world_group_path). */
    void (*path)(const zi_group *group, zero_path *path);
} zi_group_ops;

/* The begin of every backend's group. */
struct zi_group {
    const zi_group_ops *ops;
    const zi_kernels *kernels; /* what folds; their device's streams carry the batches */
    uint32_t rank;             /* this rank in the group */
    uint32_t size;
    bool submit_waits; /* of a transport's: issuing a batch waits on the host for other members */
    /* Members are on several hosts and exchange at once: one each, or unequal numbers. So there are
     * no sums of hosts, and all that is sent may cross from one to another. */
    bool hosts_at_once;
    char name[24];     /* for errors: "gather", "reduce", ... */
    uint32_t leader;   /* for timelines: the lowest world rank of the members */
    uint32_t *members; /* of an engine's group: their ranks; the engine's. NULL: another group */
    zi_recorder recorder;
};

typedef struct zi_comm zi_comm;

typedef struct zi_comm_ops {
    size_t struct_bytes;
    const char *name;
    /* A group of `size` members (world ranks, in the order of group ranks), of which this rank is
     * one. Collective over the members; all ranks of the world make their groups in the same order.
     * Groups share nothing: batches of different groups may run at the same time. */
    zero_status (*group_create)(zi_comm *comm, const zi_kernels *kernels, const uint32_t *members,
                                uint32_t size, const char *name, zi_group **out);
    /* Zeroed host memory that peers can read directly; multiples of ZI_PAGE_BYTES, the same on all
     * ranks. Collective over the world. */
    zero_status (*memory_alloc)(zi_comm *comm, size_t bytes, void **out);
    void (*memory_free)(zi_comm *comm, void *pointer,
                        size_t bytes); /* local; after the last collective */
    /* Make all waiting peers return zi_abort_status and `error`. Any thread. */
    void (*abort)(zi_comm *comm, const zero_error *error);
    void (*destroy)(zi_comm *comm);
    /* OK, or COMM: with the error that a rank has aborted with, this one or another, or naming one
     * whose process died. Called again and again by whoever waits for other ranks outside a group.
     * Never blocks; any thread. NULL: one rank. */
    zero_status (*check)(zi_comm *comm);
} zi_comm_ops;

/* The begin of every backend's world. */
struct zi_comm {
    const zi_comm_ops *ops;
    uint32_t rank;
    uint32_t size;
    uint32_t local_size; /* ranks on this host */
    uint64_t host;       /* equal on the ranks of one host; 0: not known yet (zi_world_create) */
    uint32_t cpus;       /* this rank's share of what it may run on, at least 1; 0: not known yet */
    bool crowded;        /* more ranks than CPUs: waits sleep instead of spinning */
    uint32_t deadline_ms;
    bool submit_waits; /* issuing a batch waits for the other members to arrive */
    bool one_process;  /* ranks are threads, or there is one */
    /* Who is silent among the ranks; NULL: nobody knows. The backend's; threads: any. */
    zi_silence *silence;
    /* The communicator that a transport splits the world's groups off; NULL until the first is
     * made, and for transports that split none. Destroyed after them. Written by the rank's thread,
     * read by any. */
    zi_group *_Atomic parent;
    /* The call that this rank began last; the backend's, where others can read it, else own_call
     * (zi_world_create). */
    zi_call_note *call;
    zi_call_note own_call;
};

/* One rank's membership: the public zero_world. `coordination` is a group of all ranks for small
 * host-side exchanges, on the host stream of `device`. */
struct zero_world {
    zi_comm *comm;
    zi_device device;
    zi_kernels kernels; /* of `device`, on the stream's own thread */
    zi_group *coordination;
    uint32_t born; /* zi_fork_generation then */
    uint32_t gate; /* the same; 0 once the handle is destroyed, while engines still use the world */
    pid_t pid;     /* of the process it was made in */
    atomic_uint users; /* the handle and its engines; the last one frees the world */
};

/* STATE: the world is destroyed, or another process's. (world.c) */
zero_status zi_world_refuse(const zero_world *world);

/* OK where the world can be used: not destroyed, and made in this very process. */
static inline zero_status zi_world_check_open(const zero_world *world)
{
    return world->gate == zi_fork_generation ? ZERO_OK : zi_world_refuse(world);
}

/* The same, and INVALID_ARGUMENT for NULL. (world.c) */
zero_status zi_world_check(const zero_world *world);

/* True in a child that was forked since the world was made: nothing of it may be touched there. */
static inline bool zi_world_inherited(const zero_world *world)
{
    return world->born != zi_fork_generation;
}

/* Begin and end the use of the world by an engine. The last user to release it frees it. (world.c)
 */
void zi_world_retain(zero_world *world);
void zi_world_release(zero_world *world);

/* Enqueue a batch: it is recorded, and a span of the timeline of the group's device, where there is
 * one. (collective.c) */
zero_status zi_group_submit(zi_group *group, zi_stream *stream, const zi_collective *batch,
                            size_t batch_count);

static inline bool zi_group_connects(const zi_group *group)
{
    return group->size > 1 && group->ops->connect != NULL;
}

/* zero_world_gather and zero_world_barrier as part of the public call that this rank is in: a rank
 * in another one is MISMATCH, which names both. (world.c) */
zero_status zi_world_gather(zero_world *world, const void *send, void *recv, uint32_t bytes);
zero_status zi_world_barrier(zero_world *world);

/* Gather `bytes` bytes of every member, a multiple of 4, to `all`, in the order of group ranks.
 * - group: over memory of the host; the gather is on the host stream and blocks.
 * - Collective over the members. */
zero_status zi_group_gather(zi_group *group, uint32_t tag, const void *mine, void *all,
                            size_t bytes);

/* Does nothing unless zi_group_connects. */
static inline zero_status zi_group_connect(zi_group *group, zi_stream *stream,
                                           const zi_collective *batch, size_t batch_count)
{
    return zi_group_connects(group) ? group->ops->connect(group, stream, batch, batch_count)
                                    : ZERO_OK;
}

/* Device memory that a group's batches read and write. */
typedef struct zi_group_memory {
    void *pointer;
    size_t bytes;   /* the same on all members */
    bool symmetric; /* each collective uses it on all members at equal offsets, or in place */
} zi_group_memory;

/* Arenas that are registered with a group, at most. */
#define ZI_GROUP_MEMORIES 6

/* How a group is made. */
typedef struct zi_group_desc {
    const zi_kernels *kernels;
    const uint32_t *members;  /* as zi_comm_ops.group_create */
    uint32_t size;            /* of members */
    bool gathers_only;        /* no reduction is put on it: it needs no memory for sums */
    zero_reduction reduction; /* how those on it are added, unless it gathers only */
    const char *name;
    bool registered; /* `memory` is registered: it is all that the batches read and write */
    bool copy_engines;
    zi_transport_hints hints;
    const zi_group_memory *memory; /* at most ZI_GROUP_MEMORIES, none empty; read in create */
    uint32_t memory_count;
    /* Zeroed memory of the caller's for the transport's reductions, where it needs some
     * (zi_capabilities.lent_scratch). Groups whose batches are on one stream may share it. */
    void *scratch;
    size_t scratch_bytes;
} zi_group_desc;

/* The transport of an engine's collectives: a const table. */
typedef struct zi_transport {
    size_t struct_bytes;
    const char *name; /* for messages */
    /* For messages: the option by which memory is not registered. NULL where none can be. */
    const char *unregistered;
    /* UNSUPPORTED where what is asked for cannot be had. Local. NULL: there are no options. */
    zero_status (*check)(const zi_capabilities *asked);
    /* Zeroed memory of the calling thread's current device, which is `device`, that can be
     * registered with groups. Local. OUT_OF_MEMORY, DEVICE, or as check. NULL where check refuses
     * it. */
    zero_status (*memory_alloc)(const zi_device *device, size_t bytes, void **out);
    /* Called after the groups that have registered it are destroyed. Accepts NULL. */
    void (*memory_free)(void *pointer);
    /* As zi_comm_ops.group_create. Where groups are split off a parent it is collective over the
     * world: all its ranks make a group of this name and of more than one rank, or none does.
     * UNSUPPORTED when this transport cannot be had: no other is chosen in its place. */
    zero_status (*group_create)(zero_world *world, const zi_group_desc *desc, zi_group **out);
} zi_transport;

/* The world's own backend: over host memory, or over peers' GPUs where ranks are threads. (world.c)
 */
extern const zi_transport zi_world_transport;

/* The transport for a device that has its own memory.
 * - asked: as the options say.
 * - Errors: UNSUPPORTED where this world's ranks cannot have it.
 * - Local. (world.c) */
zero_status zi_transport_choose(const zero_world *world, zero_transport asked,
                                const zi_transport **out);

/* Fill *path, with its text, for the group's batches. in_levels: those that go in two levels where
 * the group has them. (world.c) */
void zi_world_group_path(const zero_world *world, const zi_group *group, bool in_levels,
                         zero_path *path);

/* OK, or what the group has failed with. To be called after a wait for a stream that carries its
 * batches, which may return OK although they failed. Never blocks. Accepts NULL. */
static inline zero_status zi_group_check(zi_group *group)
{
    return group != NULL && group->ops->check != NULL ? group->ops->check(group) : ZERO_OK;
}

/* Accepts NULL. */
static inline void zi_group_destroy(zi_group *group)
{
    if (group != NULL) {
        group->ops->destroy(group);
    }
}

/* Called after all groups that were split off it are destroyed. (world.c) */
void zi_comm_destroy_parent(zi_comm *comm);

/* ---- what backends share (collective.c) ---- */

/* The longest batch. */
#define ZI_BATCH_MAX 1024

/* The group rank of world rank `world_rank`, which is one of the members.
 * - order: out; group ranks in ascending world rank, `size` of them. */
uint32_t zi_group_index(const uint32_t *members, uint32_t size, uint32_t world_rank,
                        uint32_t *order);

/* UNSUPPORTED when kernels cannot add up what `size` members of the group send. remedy: what to do
 * beside making the group smaller. */
zero_status zi_group_check_sources(const zi_kernels *kernels, uint32_t size, const char *name,
                                   const char *remedy);

/* Zeros in lent scratch memory, at most: a rank without a gradient sends them, so no message that
 * goes through that memory is longer. */
#define ZI_ZEROS_MAX ((size_t)4 << 20)

/* The part of an ALL_REDUCE that group rank `rank` adds up: elements [*begin, *begin + result).
 * Parts begin at multiples of ZI_SHARE_COUNT. The first is the longest; none is empty from
 * ZI_SHARE_COUNT elements a rank on. */
#define ZI_SHARE_COUNT 256
_Static_assert(ZI_SHARE_COUNT % ZI_GRANULE == 0, "parts of packed types are whole granules");
uint64_t zi_collective_share(uint64_t count, uint32_t size, uint32_t rank, uint64_t *begin);

/* True if members on several hosts exchange in two levels (grid.h). An array that is too short for
 * all to have a part of it would only take longer, so it goes at once where kernels can add up as
 * many. */
ZI_PRIVATE_API bool zi_collective_in_levels(const zi_group *group, const zi_collective *collective);

/* The type of what hosts send one another of a sum in two levels. */
static inline zero_dtype zi_collective_sum_dtype(const zi_collective *collective)
{
    return collective->sum_dtype != ZERO_DTYPE_DEFAULT ? collective->sum_dtype
                                                       : collective->send_dtype;
}

/* The key of the rounding of the sums that the host of row `row` sends in a packed type. */
static inline uint64_t zi_collective_host_key(const zi_collective *collective, uint32_t row)
{
    return zi_packed_key_next(collective->key, row);
}

/* A power of two: the sum of `addends` values of the type, divided by it, is in the type's range. 1
 * but for F16; the others have the range of the fp32 that sums are made in. */
float zi_sum_headroom(zero_dtype dtype, uint64_t addends);

/* The fold of `count` elements from every source into those of recv from `first` on. Its squares
 * are not set. */
zi_fold zi_collective_fold(const zi_collective *collective, uint64_t first,
                           const void *const *sources, uint32_t source_count, uint64_t count);

/* Add the squares of a collective's complete recv where no fold has done so. */
zero_status zi_collective_square_sum(const zi_kernels *kernels, zi_stream *stream,
                                     const zi_collective *collective);

/* "all_gather", ... */
const char *zi_collective_kind_name(zi_collective_kind kind);

/* Bytes of the longest text of a collective. */
#define ZI_COLLECTIVE_TEXT_BYTES 112

/* A short line for errors and logs: "all_gather of unit 3, 4096 x bf16". Returns text. */
const char *zi_collective_text(const zi_collective *collective, char *text, size_t text_bytes);

/* The terms of a collective, which must be one that the contract allows. */
zi_collective_terms zi_collective_terms_of(const zi_collective *collective);

/* MISMATCH: the terms of member `rank` of a group for its collective `index` and those of the first
 * member differ. World ranks. */
zero_status zi_collective_mismatch(const char *group, uint32_t index, uint32_t rank,
                                   const zi_collective_terms *terms, uint32_t first,
                                   const zi_collective_terms *first_terms);

/* MISMATCH: `rank` has a batch of `count` collectives, the first member one of another length.
 * World ranks. */
zero_status zi_batch_mismatch(const char *group, uint32_t rank, uint64_t count, uint32_t first,
                              uint64_t first_count);

/* Write "rank 3", or "ranks 3, 5 and 2 more": the first six of `count` ranks. Returns text. */
const char *zi_ranks_text(const uint32_t *ranks, uint32_t count, char *text, size_t text_bytes);

/* Memory that no other rank reads: zi_comm_ops.memory_free, and the alloc of a world of one rank.
 */
zero_status zi_comm_pages_alloc(zi_comm *comm, size_t bytes, void **out);
void zi_comm_pages_free(zi_comm *comm, void *pointer, size_t bytes);

/* As zi_collective_text, of the terms that a member has sent. */
const char *zi_collective_terms_text(const zi_collective_terms *terms, char *text,
                                     size_t text_bytes);

#endif
