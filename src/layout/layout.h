/* The place of every element and every byte: tensors -> units -> flats -> slices, slots, buckets
 * and arenas.
 *
 * Pure arithmetic; the plan and the engine share it, so what is planned is what is taken. Offsets
 * `*_at` are bytes from the start of the role's arena; there is one arena per role.
 *
 *   flat     One unit's tensors of one dtype and one trainability, trained replicas of tensors that
 *            other ranks of the model-parallel world count apart, each at a granule (codec.h), the
 *            end padded so that it is `world` slices of equal size, each of whole granules. Element
 *            offsets do not depend on dtypes or stage.
 *   class    Units (or buckets) of similar size that share slots: none is smaller than half of the
 *            largest.
 *   bucket   Neighbouring units whose gradients are reduced together; in the order of backward.
 *   chunk    A range of a rank's optimizer shard of one flat that is updated at once: all of it, or
 *            what lies in one extent.
 *   extent   What is moved at once of a role on disk, in whole pages; extents lie end to end.
 *            Of a parameter or gradient shard: in each optimizer shard the elements of one chunk;
 *            frozen flats are cut evenly. Of the state: neighbouring chunks, chunk by chunk the
 *            masters and moments that are on disk, each at a multiple of ZI_ARENA_ALIGN. */
#ifndef ZI_LAYOUT_LAYOUT_H
#define ZI_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/capabilities.h"
#include "core/codec.h"
#include "core/private_api.h"
#include "core/role.h"
#include "layout/model.h"
#include "layout/route.h"
#include "layout/sharding.h"
#include "zero/options.h"
#include "zero/plan.h"

#define ZI_NO_INDEX UINT32_MAX
/* Ways to split units over the ranks. */
#define ZI_SHARDINGS_MAX 4
/* Room for what kernels/ and stage1/ keep in the step arena; they check that it is enough. */
#define ZI_MESSAGE_BYTES 224
#define ZI_PART_BYTES 248
#define ZI_STEP_BYTES 5120
#define ZI_SEGMENT_BYTES 48
#define ZI_LAYER_SUMS_BYTES 352
#define ZI_LAYER_NORMS_BYTES 16
#define ZI_LAYER_MESSAGE_BYTES 176
/* Scratch memory for sums that reductions borrow: so much for each rank that is summed, within
 * these bounds; they cut up what needs more. Half of it is exchanged at once where ranks are on
 * several hosts, in a message of each rank: 256 KiB (docs/decisions/092). */
#define ZI_SCRATCH_RANK_BYTES ((uint64_t)512 << 10)
#define ZI_SCRATCH_SUMS_FEW ((uint64_t)32 << 20)
#define ZI_SCRATCH_SUMS_MANY ((uint64_t)512 << 20)
/* Beside it zeros, at most: more than the longest message (comm's ZI_ZEROS_MAX). */
#define ZI_SCRATCH_ZEROS_MAX ((uint64_t)4 << 20)
/* One rank's share of a sum is a multiple of so many elements. */
#define ZI_SCRATCH_PART_COUNT 256
/* Flats reduced in one batch, at most. */
#define ZI_BUCKET_FLATS_MAX 192

/* Chunks of state in host memory that are in a GPU's memory at once: one comes, one is updated, one
 * goes back. */
#define ZI_STATE_STAGING 3

/* Roles whose shards are used where they are not, if they are offloaded: PARAM and GRAD. */
#define ZI_OFFLOAD_ROLES 2

typedef struct zi_flat {
    uint32_t unit;
    uint32_t bucket;   /* ZI_NO_INDEX when frozen */
    zero_dtype dtype;  /* of its tensors */
    uint8_t sharding;  /* in layout->shardings */
    uint8_t optimizer; /* a zero_optimizer, which updates them; DEFAULT: they are frozen */
    bool trained : 1;
    bool has_master : 1;
    bool replica : 1;     /* its squares are counted by another model-parallel rank */
    uint64_t slice_count; /* elements of a slice */
    uint64_t count;       /* slice_count * world */
    /* How its elements are kept in shards, by role, where the flat has that role. */
    zi_codec kept[ZI_SHARD_ROLES];
    /* PARAM and GRAD: how callers read and write them, and what ranks send one another. */
    zi_codec slot[ZI_OFFLOAD_ROLES];
    zi_codec wire[ZI_OFFLOAD_ROLES];
    zi_codec wire_sum;           /* GRAD: the same of sums, of several micro-steps or ranks;
                                    zi_hop_wire says which a hop has */
    zi_codec wire_updated;       /* PARAM: the same after an update */
    uint64_t at[ZI_SHARD_ROLES]; /* its shards in their arenas, where those are not on disk */
    uint32_t chunk_first;        /* of its part of degree optimizer */
    uint32_t chunk_count;
    uint64_t slot_at;        /* within the unit's parameter slot */
    uint64_t grad_slot_at;   /* within the bucket's gradient slot */
    uint64_t speculative_at; /* I/O window's arena: the speculative copy of this rank's shard of its
                                parameters */
    uint64_t grad_staging_at; /* within the bucket's staging buffer, where it has a place there */
    uint32_t extent_first[ZI_OFFLOAD_ROLES]; /* of its shards on disk */
} zi_flat;

/* Neighbouring chunks of one flat, all of one size. Where their state is on disk and there are
 * several, each fills an extent alone. */
typedef struct zi_chunk_range {
    uint32_t flat;
    uint64_t chunks; /* their number, at least 1 */
    uint64_t first;  /* elements from the start of a rank's optimizer shard to the first chunk */
    uint64_t count;  /* elements of a chunk */
    uint64_t extent; /* of the first chunk's state; UINT64_MAX: none of it is on disk */
    uint64_t at;     /* bytes of the extent before the chunk */
} zi_chunk_range;

/* Neighbouring extents of the state that have the same size. */
typedef struct zi_extent_range {
    uint64_t extents;
    uint64_t bytes; /* of each */
} zi_extent_range;

typedef struct zi_chunk {
    uint32_t flat;
    uint32_t extent; /* of its state; ZI_NO_INDEX: none of it is on disk */
    uint64_t first;  /* elements from the start of a rank's optimizer shard; whole granules */
    uint64_t count;  /* likewise */
    /* Bytes of master and moments from the start of the role's arena or, on disk, of the extent. */
    uint64_t at[ZI_STATES];
} zi_chunk;

typedef struct zi_extent {
    uint64_t at; /* bytes in the store */
    uint64_t bytes;
} zi_extent;

/* A role on disk, or the state, as extents in the order of flats; all zero where it is not. */
typedef struct zi_offload_place {
    zi_extent *extents; /* in the store; NULL before zi_layout_expand */
    uint32_t extent_count;
    uint32_t
        window_buffers; /* extents in memory at once; one more for roles, which two streams use */
    uint64_t extent_bytes_max;
    uint64_t bytes;     /* of all extents */
    uint64_t at;        /* in the store */
    uint64_t window_at; /* in the I/O window's arena */
    uint64_t sums_at;   /* in the checksums: which is its first */
    uint64_t sum_count;
} zi_offload_place;

/* The extent that holds an element of a flat's shard, and the neighbouring elements that it holds.
 */
typedef struct zi_extent_place {
    uint32_t index; /* of the role's extents, or of the states' */
    uint64_t first;
    uint64_t count;
    uint64_t at; /* bytes of the extent before them: of a state, those of other states and chunks */
} zi_extent_place;

typedef struct zi_tensor_place {
    uint32_t flat;
    uint64_t offset; /* elements from the flat's start */
} zi_tensor_place;

typedef struct zi_unit_place {
    uint32_t sharding; /* in layout->shardings */
    uint32_t flat_first;
    uint32_t flat_count;
    uint32_t tie_first; /* in layout->ties: tensors of other units that it uses */
    uint32_t tie_count;
    uint32_t owner_first; /* in layout->owners: these units, each once */
    uint32_t owner_count;
    uint32_t tied_by;     /* units that tie to this one */
    uint32_t bucket;      /* ZI_NO_INDEX: no trained tensor */
    uint32_t param_class; /* ZI_NO_INDEX when parameters are neither split nor offloaded */
    uint64_t slot_bytes;  /* all its flats, in a parameter slot */
    uint64_t wire_bytes;  /* all its flats, as a gather assembles them */
    uint64_t view_at;     /* in the slots' arena: its two copies where releases are checked */
} zi_unit_place;

typedef struct zi_bucket {
    uint32_t flat_first; /* in layout->bucket_flats; all of one sharding */
    uint32_t flat_count;
    uint32_t sharding;
    uint32_t unit_count;
    uint32_t grad_class; /* ZI_NO_INDEX when gradients are written straight into the shard */
    bool tied;           /* holds a unit that others tie to: its slot is held long */
    uint64_t slot_bytes;
    uint64_t wire_bytes; /* its flats as ranks send them */
} zi_bucket;

typedef struct zi_slot_class {
    uint64_t slot_bytes;
    uint64_t slots_at;
    uint32_t slot_count;
    uint32_t slot_first; /* of all classes' slots, end to end */
    uint32_t member_count;
} zi_slot_class;

typedef struct zi_layout {
    zero_engine_options options; /* resolved; its tuning is the next */
    zero_tuning tuning;
    uint32_t world; /* ranks */
    /* The options' first, then those of shard groups that units have of their own. */
    uint32_t sharding_count;
    zero_sharding shardings[ZI_SHARDINGS_MAX];
    zi_hop routes[ZI_SHARDINGS_MAX][ZI_HOPS]; /* theirs, by kind */
    zi_capabilities can;                      /* of the backend */
    uint32_t unit_count;
    uint32_t tensor_count;
    uint32_t flat_count;
    uint32_t bucket_count;
    uint32_t param_class_count;
    uint32_t grad_class_count;
    uint32_t chunk_count;
    uint32_t chunk_range_count;
    uint32_t state_range_count;
    zi_names names; /* of units and tensors */
    zi_unit_info *unit_infos;
    zi_unit_place *units;
    zi_tensor_info *tensor_infos;
    zi_tensor_extra *tensor_extras;
    zi_tensor_place *tensors;
    zi_flat *flats;
    zi_bucket *buckets;
    uint32_t *bucket_flats;
    uint32_t *ties;
    uint32_t *owners;
    zi_chunk_range *chunk_ranges;  /* in the order of flats */
    zi_extent_range *state_ranges; /* in the order of their chunks */
    zi_chunk *chunks;              /* likewise, one by one; NULL before zi_layout_expand */
    zi_slot_class *param_classes;
    zi_slot_class *grad_classes;
    uint64_t groups;        /* groups whose hyper-parameters ranks compare, bits by group */
    uint32_t hyper_count;   /* of these */
    uint32_t message_bytes; /* of what a rank sends to all before a step is decided: the squares of
                               its part, and what its caller gave */
    uint64_t message_at;    /* step arena: this rank's message, which peers read */
    uint64_t messages_at;   /* step arena: those of all ranks, gathered */
    uint32_t part_count;    /* ranks of options.model_parallel; 1: the model is in one part */
    uint64_t parts_at;      /* step arena: ZI_PART_BYTES of each, gathered; none for one */
    uint64_t step_at;       /* step arena: ZI_STEP_BYTES for the state and the decision */
    uint64_t aside_at;      /* the same, for decisions that are asked for or predicted */
    bool replicates;        /* squares of some flats are counted by other ranks */
    uint64_t segments_at;   /* step arena: ZI_SEGMENT_BYTES for each of */
    uint64_t segment_count; /* ranges of trained tensors in chunks, at most */
    uint32_t layer_count;   /* trained tensors whose optimizer has layer-wise rates; step arena, for
                               each of them: */
    uint64_t layer_sums_at; /* ZI_LAYER_SUMS_BYTES */
    uint64_t layer_norms_at;      /* ZI_LAYER_NORMS_BYTES */
    uint64_t layer_message_at;    /* ZI_LAYER_MESSAGE_BYTES, which this rank sends to all, */
    uint64_t layer_messages_at;   /* and those of all ranks, gathered, */
    uint64_t layer_message_bytes; /* so many of each */
    uint64_t state_staging_at;    /* step arena: ZI_STATE_STAGING buffers, each for a chunk's */
    uint64_t state_staging_bytes; /* state in host memory, which a GPU updates there; 0: none */
    uint64_t param_wire_at;    /* param slot arena: one unit as ranks send it, as far as that is not
                                  how it lies in its slot */
    uint64_t param_wire_bytes; /* 0: all gathers land in slots */
    uint64_t updated_wire_at;  /* the same arena: of a unit or chunk, what was updated, likewise */
    uint64_t updated_wire_bytes;
    uint64_t grad_wire_at; /* grad slot arena: one bucket as ranks send it, likewise */
    uint64_t grad_wire_bytes;
    uint64_t speculative_at; /* bytes in the store from an extent of the state to its speculative
                                copy; 0: there are none */
    uint64_t bounce_at;    /* I/O window's arena: two bounce buffers of bounce_bytes each, behind */
    uint64_t bounce_bytes; /* the extents, for what the CPU updates of a GPU's memory; 0: nothing */
    zi_offload_place offload[ZI_OFFLOAD_ROLES]; /* by role */
    zi_offload_place state; /* master and moments as far as they are on disk; first in the store */
    /* Buffers of the device in the arenas of slots, where offloaded shards are while ranks exchange
     * them; 0 bytes: none do. */
    uint64_t param_staging_at;    /* one chunk of every optimizer shard, to be gathered after its */
    uint64_t param_staging_bytes; /* update */
    uint64_t grad_staging_at;     /* the shards of one bucket, to be reduced into */
    uint64_t grad_staging_bytes;
    uint64_t step_read_bytes;  /* that a step moves from disk, at most, and to it */
    uint64_t step_write_bytes; /* 0 where nothing is on disk */
    uint64_t pass_read_bytes;  /* of PARAM that a pass over all units reads from disk, at most */
    uint64_t micro_bytes; /* of GRAD that a micro-step writes; all but the first read as many */
    uint64_t disk_bytes;  /* of the store: extents of the state, then of the roles */
    uint64_t sums_bytes;  /* of the checksums of all that is there: part of the role IO_WINDOW, but
                             not of its arena, which may be evicted */
    zero_memory memory;   /* bytes of each role's arena, a multiple of pages */
} zi_layout;

/* Options as the caller gave them; NULL: all defaults. out->tuning becomes `tuning`. */
ZI_PRIVATE_API zero_status zi_options_take(const zero_engine_options *in, zero_engine_options *out,
                                           zero_tuning *tuning);
/* Options with defaults replaced and bounds checked; those that depend on the model follow in
 * zi_layout_create. */
zero_status zi_options_resolve(const zero_engine_options *in, zero_engine_options *out,
                               zero_tuning *tuning);

/* Check the options of device and transport: a step of zi_options_resolve. (capabilities.c) */
zero_status zi_options_check_backend(const zero_engine_options *options);

/* A step of zi_layout_create: replace the default transport, put into layout->can what the backend
 * can do, and refuse what such a backend cannot. (capabilities.c) */
zero_status zi_layout_resolve_backend(zi_layout *layout, bool threads,
                                      const zi_capabilities *given);

/* options: as the caller gave them, or NULL. threads: the ranks are threads of one process; a plan
 * without ranks takes them for processes. can: of a backend that is injected; NULL: of the one that
 * the options name. */
ZI_PRIVATE_API zero_status zi_layout_create(const zero_model *model,
                                            const zero_engine_options *options, uint32_t world,
                                            bool threads, const zi_capabilities *can,
                                            zi_layout **out);
ZI_PRIVATE_API void zi_layout_destroy(zi_layout *layout); /* accepts NULL */

/* Write chunks and extents down one by one, as an engine needs them; a plan does without, since it
 * may be of a model that no machine holds. OUT_OF_MEMORY (chunks.c). */
zero_status zi_layout_expand(zi_layout *layout);

/* Group units into buckets and buckets and units into classes; steps of zi_layout_create (slots.c).
 */
zero_status zi_layout_make_buckets(zi_layout *layout);
zero_status zi_layout_make_classes(zi_layout *layout);

/* Bytes of ZERO_ROLE_SCRATCH, once flats and buckets are made (scratch.c). */
uint64_t zi_layout_scratch_bytes(const zi_layout *layout);
/* Cut optimizer shards into ranges of chunks, and their state into extents; a step of
 * zi_layout_create (chunks.c). */
zero_status zi_layout_make_chunks(zi_layout *layout);
/* Cut shards on disk into extents, and size what offloaded ones pass through; a step of
 * zi_layout_create (extents.c). */
zero_status zi_layout_make_extents(zi_layout *layout);
/* Add so many extents of `bytes` each, in whole pages, to a place; returns their bytes (extents.c).
 */
uint64_t zi_offload_add_extents(zi_offload_place *place, uint64_t extents, uint64_t bytes);
/* Write the extents down; a step of zi_layout_expand, once there are chunks (extents.c). */
zero_status zi_layout_expand_extents(zi_layout *layout);
/* Extents of a flat's shard in a role on disk: neighbours, from its extent_first on. */
uint32_t zi_flat_extent_count(const zi_layout *layout, const zi_flat *flat, zero_role role);
/* After zi_layout_expand. */
zi_extent_place zi_layout_find_extent(const zi_layout *layout, zero_role role, uint32_t flat,
                                      uint64_t element);
/* Which chunk holds an element of a trained flat's optimizer shard. After zi_layout_expand. */
uint32_t zi_layout_find_chunk(const zi_layout *layout, uint32_t flat, uint64_t element);
/* Elements of a chunk of the flat, at most, for its extents to be no longer than extent_bytes. */
uint64_t zi_extent_count_max(const zi_layout *layout, const zi_flat *flat);
/* Give the checksums of what is on disk their places; a step of zi_layout_create (checks.c). */
void zi_layout_place_sums(zi_layout *layout);
/* Checksums of so many extents, of one place on disk each. */
uint64_t zi_extent_sum_count(const zi_extent *extents, uint32_t extent_count);
/* Which roles and units bytes are of: "moment1 of unit 3 \"block 3\"". role: PARAM or GRAD for
 * those of an extent, IO_WINDOW for an extent of the state, else one whose arena they are of
 * (checks.c). */
void zi_layout_name_bytes(const zi_layout *layout, zero_role role, uint32_t index, uint64_t at,
                          uint64_t bytes, char *text, size_t text_bytes);
/* True if the tensor's norms are measured in a step. (layers.c) */
bool zi_tensor_has_layer(const zi_layout *layout, uint32_t tensor);
/* True if the measurement of a flat reads its shard of a role. (layers.c) */
ZI_PRIVATE_API bool zi_flat_measures(const zi_flat *flat, zero_role role);
/* UNSUPPORTED where some are, and the options have what does not go with that; a step of
 * zi_layout_create. (layers.c) */
zero_status zi_layout_check_layers(const zi_layout *layout);
/* Trained flats of a unit: its first ones. */
uint32_t zi_unit_trained_count(const zi_layout *layout, uint32_t unit);
/* Pieces of a unit: those of its flats, which lie together from *first on. */
uint32_t zi_unit_chunks(const zi_layout *layout, uint32_t unit, uint32_t *first);
/* True if an update of the unit reads its parameters: one of them is its own master. */
bool zi_unit_updates_in_place(const zi_layout *layout, uint32_t unit);
/* True if gradients that are offloaded cross ranks only once the last micro-step is over: backward
 * writes them in place, so it waits for their loads, and may not so wait for other ranks. */
bool zi_grads_end_late(const zi_layout *layout);

/* True if a rank without a gradient sends zeros from the wire buffer: the transport adds up. */
bool zi_grads_sends_zeros(const zi_layout *layout);

/* How a flat's elements lie where a hop takes them from, and how they cross ranks. single: what is
 * sent is a single gradient, not the sum of several micro-steps. (route.c) */
zi_codec zi_hop_source(const zi_flat *flat, zi_hop_kind kind);
ZI_PRIVATE_API zi_codec zi_hop_wire(const zi_flat *flat, const zi_hop *hop, zi_hop_kind kind,
                                    bool single);

/* The items that ranks must agree on: units, then tensors, then options. */
uint32_t zi_layout_item_count(const zi_layout *layout);
uint64_t zi_layout_item_hash(const zi_layout *layout, uint32_t item);
void zi_layout_item_text(const zi_layout *layout, uint32_t item, char *text, size_t text_bytes);
uint64_t zi_layout_hash(const zi_layout *layout);

/* Elements of a flat's shard of this degree. */
static inline uint64_t zi_shard_count(const zi_layout *layout, const zi_flat *flat, uint32_t degree)
{
    return flat->slice_count * (layout->world / degree);
}

/* Over how many ranks a flat's states are split. */
static inline const zero_sharding *zi_flat_sharding(const zi_layout *layout, const zi_flat *flat)
{
    return &layout->shardings[flat->sharding];
}

/* Elements of a rank's optimizer shard of a flat. */
static inline uint64_t zi_optimizer_shard_count(const zi_layout *layout, const zi_flat *flat)
{
    return zi_shard_count(layout, flat, zi_flat_sharding(layout, flat)->optimizer);
}

/* Elements of a flat's shard in a role that it has. */
static inline uint64_t zi_role_count(const zi_layout *layout, const zi_flat *flat, zero_role role)
{
    return zi_shard_count(layout, flat, zi_role_degree(zi_flat_sharding(layout, flat), role));
}

/* Slots of so many classes. */
static inline uint32_t zi_slot_count(const zi_slot_class *classes, uint32_t class_count)
{
    return class_count != 0
               ? classes[class_count - 1].slot_first + classes[class_count - 1].slot_count
               : 0;
}

/* The tier of a role. */
static inline zero_tier zi_role_tier(const zi_layout *layout, zero_role role)
{
    if (role == ZERO_ROLE_IO_WINDOW || role == ZERO_ROLE_SAVE_STAGING) {
        return ZERO_TIER_HOST;
    }
    return (uint32_t)role < ZI_SHARD_ROLES ? layout->options.tier[role] : ZERO_TIER_DEVICE;
}

/* Bytes of a role's arena. */
static inline uint64_t zi_role_arena_bytes(const zi_layout *layout, zero_role role)
{
    return layout->memory.bytes[role] - (role == ZERO_ROLE_IO_WINDOW ? layout->sums_bytes : 0);
}

/* True if a shard is not where the device computes: what is needed of it is loaded, and stored
 * again. */
static inline bool zi_role_offloaded(const zi_layout *layout, zero_role role)
{
    const zero_tier tier = zi_role_tier(layout, role);
    return tier == ZERO_TIER_DISK || (tier == ZERO_TIER_HOST && !layout->can.host_memory);
}

/* True if a hop crosses ranks for some units. */
static inline bool zi_layout_crosses(const zi_layout *layout, zi_hop_kind kind)
{
    bool crosses = false;
    for (uint32_t i = 0; i < layout->sharding_count; i++) {
        crosses = crosses || zi_hop_crosses(&layout->routes[i][kind]);
    }
    return crosses;
}

/* True if units are gathered, loaded, encoded or, where they are not split and others are, copied
 * into slots. */
static inline bool zi_params_in_slots(const zi_layout *layout)
{
    return zi_role_offloaded(layout, ZERO_ROLE_PARAM) || layout->tuning.encoded_views ||
           zi_layout_crosses(layout, ZI_HOP_GATHER);
}

/* True if callers have the flat's parameters as codes and scales. */
static inline bool zi_flat_shown_encoded(const zi_flat *flat)
{
    return zi_dtype_is_block(flat->slot[ZERO_ROLE_PARAM].dtype);
}

/* True if a gather goes from shards straight into slots: what ranks hold of the flat's parameters
 * and compute with are the same bytes, and nothing crosses ranks or what they send is the same too.
 */
static inline bool zi_flat_gathered_in_place(const zi_layout *layout, const zi_flat *flat)
{
    return zi_codec_same(flat->slot[ZERO_ROLE_PARAM], flat->kept[ZERO_ROLE_PARAM]) &&
           (!zi_hop_crosses(&layout->routes[flat->sharding][ZI_HOP_GATHER]) ||
            zi_codec_same(flat->wire[ZERO_ROLE_PARAM], flat->kept[ZERO_ROLE_PARAM]));
}

/* True if it goes through the wire buffer. Else each rank encodes its shard in the slot. */
static inline bool zi_flat_gathered_by_wire(const zi_layout *layout, const zi_flat *flat)
{
    return !zi_flat_gathered_in_place(layout, flat) &&
           !zi_codec_same(flat->wire[ZERO_ROLE_PARAM], flat->slot[ZERO_ROLE_PARAM]);
}

/* True if an update of the flat reads its parameters: they are their own masters, or part of them.
 */
static inline bool zi_flat_reads_param(const zi_flat *flat)
{
    return !flat->has_master || zi_dtype_is_remainder(flat->kept[ZERO_ROLE_MASTER].dtype);
}

/* True if updated parameters of the flat cross ranks in another codec than shards have. */
static inline bool zi_flat_updated_wired(const zi_layout *layout, const zi_flat *flat)
{
    return flat->trained && zi_hop_crosses(&layout->routes[flat->sharding][ZI_HOP_UPDATED]) &&
           !zi_codec_same(flat->wire_updated, flat->kept[ZERO_ROLE_PARAM]);
}

/* Their bytes, of `count` elements of each rank; 0: they go as they are. */
static inline uint64_t zi_flat_updated_wire_bytes(const zi_layout *layout, const zi_flat *flat,
                                                  uint64_t count)
{
    const uint32_t ranks = zi_hop_size(&layout->routes[flat->sharding][ZI_HOP_UPDATED]);
    return zi_flat_updated_wired(layout, flat)
               ? zi_codec_padded_bytes(flat->wire_updated, ranks * count)
               : 0;
}

/* A type that rounds no value of either. */
static inline zero_dtype zi_common_dtype(zero_dtype a, zero_dtype b)
{
    return a == b ? a : ZERO_DTYPE_F32;
}

/* The type in which hosts send one another sums of what their ranks send in `dtype`. */
static inline zero_dtype zi_flat_host_dtype(const zi_layout *layout, const zi_flat *flat,
                                            zero_dtype dtype)
{
    const zero_dtype hosts = layout->tuning.host_wire_dtype;
    return hosts != ZERO_DTYPE_DEFAULT ? hosts : zi_common_dtype(dtype, flat->wire_sum.dtype);
}

/* True if the user's gradients of this flat are added to the sum itself: in the shard or, where
 * that is offloaded, in a slot that holds it meanwhile. */
static inline bool zi_flat_grad_in_place(const zi_layout *layout, const zi_flat *flat)
{
    return zi_flat_sharding(layout, flat)->grad == 1 &&
           zi_codec_same(flat->slot[ZERO_ROLE_GRAD], flat->kept[ZERO_ROLE_GRAD]);
}

/* True if the flat has a place in its bucket's gradient slot. */
static inline bool zi_flat_grad_in_slot(const zi_layout *layout, const zi_flat *flat)
{
    return !zi_flat_grad_in_place(layout, flat) || zi_role_offloaded(layout, ZERO_ROLE_GRAD);
}

struct zero_plan {
    zi_layout *layout;
};

#endif
