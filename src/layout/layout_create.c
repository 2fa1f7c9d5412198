/* Owns the making of a layout: flats from tensors, then the offsets of everything in the arenas.
 * Invariant: nothing in an arena overlaps, and memory.bytes adds up to what the arenas hold. */
#include "layout/layout.h"

#include <inttypes.h>
#include <string.h>

#include "core/arena.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/sharding.h"
#include "optimizer/optimizer_table.h"
#include "zero/world.h"

static const zero_dtype flat_dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
/* The least that is chosen for a budget: one extent is read while one is updated and one written;
 * smaller accesses cost a disk its bandwidth. */
#define IO_WINDOW_MIN 3
#define EXTENT_BYTES_MIN (UINT64_C(256) << 10)

static bool same_sharding(const zero_sharding *a, const zero_sharding *b)
{
    return a->param == b->param && a->grad == b->grad && a->optimizer == b->optimizer;
}

/* The unit's way to be split: one that there is, or another. */
static zero_status choose_sharding(zi_layout *layout, const zi_unit_info *info, uint32_t *index)
{
    zero_sharding own;
    *index = 0;
    if (info->shard_group == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_sharding_resolve(&layout->options, layout->world, info->shard_group, &own));
    while (*index < layout->sharding_count && !same_sharding(&layout->shardings[*index], &own)) {
        (*index)++;
    }
    if (*index == ZI_SHARDINGS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit \"%.60s\": shard_group %" PRIu32
                " is one more than the %d ways to split units "
                "that a model may have",
                info->name, info->shard_group, ZI_SHARDINGS_MAX);
    }
    if (*index == layout->sharding_count) {
        layout->shardings[layout->sharding_count++] = own;
    }
    return ZERO_OK;
}

static zero_status copy_model(zi_layout *layout, const zero_model *model)
{
    layout->unit_count = model->unit_count;
    layout->tensor_count = model->tensor_count;
    ZI_TRY(zi_calloc(model->unit_count, sizeof *layout->unit_infos, (void **)&layout->unit_infos));
    ZI_TRY(zi_calloc(model->unit_count, sizeof *layout->units, (void **)&layout->units));
    ZI_TRY(zi_calloc(model->tensor_count, sizeof *layout->tensor_infos,
                     (void **)&layout->tensor_infos));
    ZI_TRY(zi_calloc(model->extra_count, sizeof *layout->tensor_extras,
                     (void **)&layout->tensor_extras));
    ZI_TRY(zi_calloc(model->tensor_count, sizeof *layout->tensors, (void **)&layout->tensors));
    /* Each has a tensor, or more. */
    ZI_TRY(zi_calloc(model->tensor_count, sizeof *layout->flats, (void **)&layout->flats));
    ZI_TRY(zi_calloc(model->tie_count, sizeof *layout->ties, (void **)&layout->ties));
    ZI_TRY(zi_calloc(model->tie_count, sizeof *layout->owners, (void **)&layout->owners));
    for (uint32_t u = 0; u < model->unit_count; u++) {
        zi_unit_info *info = &layout->unit_infos[u];
        *info = model->units[u];
        ZI_TRY(choose_sharding(layout, info, &layout->units[u].sharding));
        ZI_TRY(zi_names_add(&layout->names, info->name, &info->name));
    }
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        zi_tensor_info *info = &layout->tensor_infos[t];
        *info = model->tensors[t];
        ZI_TRY(zi_names_add(&layout->names, info->name, &info->name));
    }
    for (uint32_t i = 0; i < model->extra_count; i++) {
        layout->tensor_extras[i] = model->extras[i];
    }
    return ZERO_OK;
}

/* The unit's owners, each once, in the order of its ties. seen: by owner, 1 + the last unit that
 * was found to tie to it. */
static void find_owners(zi_layout *layout, uint32_t unit, uint32_t *seen)
{
    zi_unit_place *place = &layout->units[unit];
    for (uint32_t i = 0; i < place->tie_count; i++) {
        const uint32_t owner = layout->tensor_infos[layout->ties[place->tie_first + i]].unit;
        if (seen[owner] != unit + 1) {
            seen[owner] = unit + 1;
            layout->owners[place->owner_first + place->owner_count++] = owner;
            layout->units[owner].tied_by++;
        }
    }
}

/* Ties sorted by the unit that uses the tensor, in the order they were made. */
static zero_status copy_ties(zi_layout *layout, const zero_model *model)
{
    for (uint32_t i = 0; i < model->tie_count; i++) {
        layout->units[model->ties[i].unit].tie_count++;
    }
    uint32_t next = 0;
    for (uint32_t unit = 0; unit < layout->unit_count; unit++) {
        zi_unit_place *place = &layout->units[unit];
        place->tie_first = next;
        place->owner_first = next;
        next += place->tie_count;
        place->tie_count = 0; /* counted again as they are put there */
    }
    for (uint32_t i = 0; i < model->tie_count; i++) {
        zi_unit_place *place = &layout->units[model->ties[i].unit];
        layout->ties[place->tie_first + place->tie_count++] = model->ties[i].tensor;
    }
    uint32_t *seen = NULL;
    ZI_TRY(zi_calloc(layout->unit_count, sizeof *seen, (void **)&seen));
    for (uint32_t unit = 0; unit < layout->unit_count; unit++) {
        find_owners(layout, unit, seen);
    }
    zi_free(seen);
    return ZERO_OK;
}

/* The kind of a flat. The tensors of a flat are of one kind, dtype and optimizer; trained flats
 * come first. */
typedef enum flat_kind { FLAT_TRAINED = 0, FLAT_REPLICA = 1, FLAT_FROZEN = 2 } flat_kind;

static flat_kind layout_create_kind_of(const zi_tensor_info *info)
{
    if ((info->flags & ZERO_TENSOR_FROZEN) != 0) {
        return FLAT_FROZEN;
    }
    return info->replica != 0 ? FLAT_REPLICA : FLAT_TRAINED;
}

static void choose_moments(const zi_layout *layout, zi_flat *flat)
{
    const zero_dtype dtype = layout->options.moment_dtype;
    const uint32_t moments = flat->optimizer == ZERO_OPTIMIZER_CALLBACK
                                 ? layout->options.update_states
                                 : zi_optimizer_moments(flat->optimizer);
    for (uint32_t i = 0; i < moments; i++) {
        zi_codec *kept = &flat->kept[ZERO_ROLE_MOMENT1 + i];
        kept->dtype = dtype;
        if (dtype == ZERO_DTYPE_I8) {
            kept->dtype = zi_optimizer_code(flat->optimizer, i);
            flat->kept[ZERO_ROLE_SCALE1 + i] = (zi_codec){ZERO_DTYPE_BF16, true};
        }
    }
}

static void choose_codecs(const zi_layout *layout, zi_flat *flat)
{
    const zi_codec param = {.dtype = flat->dtype};
    const zero_dtype grad = layout->options.grad_dtype;
    const zero_dtype wire = layout->tuning.wire_dtype;
    const zero_dtype gather = layout->tuning.gather_dtype;
    flat->kept[ZERO_ROLE_PARAM] = param;
    flat->slot[ZERO_ROLE_PARAM] = param;
    flat->wire[ZERO_ROLE_PARAM] = param;
    if (gather != ZERO_DTYPE_DEFAULT &&
        (flat->dtype == ZERO_DTYPE_F32 || zi_dtype_is_block(gather))) {
        flat->wire[ZERO_ROLE_PARAM].dtype = gather;
    }
    if (layout->tuning.encoded_views) {
        flat->slot[ZERO_ROLE_PARAM] = flat->wire[ZERO_ROLE_PARAM];
    }
    flat->wire_updated = param;
    if (!flat->trained) {
        return;
    }
    flat->kept[ZERO_ROLE_GRAD].dtype = layout->tuning.accum_dtype;
    flat->slot[ZERO_ROLE_GRAD].dtype = grad != ZERO_DTYPE_DEFAULT ? grad : flat->dtype;
    flat->wire[ZERO_ROLE_GRAD] = flat->slot[ZERO_ROLE_GRAD];
    flat->wire_sum = flat->kept[ZERO_ROLE_GRAD];
    if (wire != ZERO_DTYPE_DEFAULT) {
        flat->wire[ZERO_ROLE_GRAD].dtype = wire;
        flat->wire_sum.dtype = wire;
    } else if (layout->tuning.reduction == ZERO_REDUCTION_NATIVE) { /* it adds in that type */
        flat->wire[ZERO_ROLE_GRAD].dtype =
            zi_common_dtype(flat->slot[ZERO_ROLE_GRAD].dtype, layout->tuning.accum_dtype);
    }
    flat->has_master =
        flat->dtype != ZERO_DTYPE_F32 && layout->options.master_dtype != ZERO_DTYPE_NONE;
    if (flat->has_master) {
        flat->kept[ZERO_ROLE_MASTER].dtype = layout->options.master_dtype;
    }
    if (!zi_flat_reads_param(flat)) { /* else the next update needs all bits */
        flat->wire_updated = flat->wire[ZERO_ROLE_PARAM];
    }
    choose_moments(layout, flat);
}

/* The optimizer of a tensor; DEFAULT: nothing updates it. */
static zero_optimizer optimizer_of(const zi_layout *layout, const zi_tensor_info *info)
{
    return layout_create_kind_of(info) == FLAT_FROZEN
               ? ZERO_OPTIMIZER_DEFAULT
               : layout->options.group_optimizer[info->group];
}

/* Lay the unit's tensors of one kind end to end; no flat when there are none. */
static void add_flat(zi_layout *layout, uint32_t unit, zero_dtype dtype, flat_kind kind,
                     zero_optimizer optimizer, const uint32_t *members, uint32_t member_count)
{
    zi_flat *flat = &layout->flats[layout->flat_count];
    uint64_t offset = 0;
    bool any = false;
    for (uint32_t i = 0; i < member_count; i++) {
        const zi_tensor_info *info = &layout->tensor_infos[members[i]];
        if (info->dtype != dtype || layout_create_kind_of(info) != kind ||
            optimizer_of(layout, info) != optimizer) {
            continue;
        }
        offset = zi_align_up(offset, ZI_GRANULE);
        layout->tensors[members[i]] =
            (zi_tensor_place){.flat = layout->flat_count, .offset = offset};
        offset += info->count;
        any = true;
    }
    if (!any) {
        return;
    }
    const uint32_t world = layout->world;
    *flat = (zi_flat){.unit = unit,
                      .sharding = (uint8_t)layout->units[unit].sharding,
                      .bucket = ZI_NO_INDEX,
                      .dtype = dtype,
                      .optimizer = (uint8_t)optimizer,
                      .trained = kind != FLAT_FROZEN,
                      .replica = kind == FLAT_REPLICA};
    choose_codecs(layout, flat);
    flat->slice_count = zi_align_up(zi_div_up(offset, world), ZI_GRANULE);
    flat->count = flat->slice_count * world;
    layout->replicates = layout->replicates || flat->replica || layout->sharding_count > 1;
    layout->units[unit].flat_count++;
    layout->flat_count++;
}

/* By optimizer, then by dtype. */
static void add_flats(zi_layout *layout, uint32_t unit, flat_kind kind, const uint32_t *members,
                      uint32_t member_count)
{
    uint32_t optimizers = kind == FLAT_FROZEN ? 1U << ZERO_OPTIMIZER_DEFAULT : 0;
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS && kind != FLAT_FROZEN; g++) {
        optimizers |= 1U << layout->options.group_optimizer[g];
    }
    for (uint32_t optimizer = 0; optimizers >> optimizer != 0; optimizer++) {
        for (size_t i = 0; i < sizeof flat_dtypes / sizeof flat_dtypes[0]; i++) {
            if ((optimizers >> optimizer & 1) != 0) {
                add_flat(layout, unit, flat_dtypes[i], kind, (zero_optimizer)optimizer, members,
                         member_count);
            }
        }
    }
}

static zero_status make_flats(zi_layout *layout)
{
    /* Tensors sorted by unit, keeping their order: counting sort over the units. */
    uint32_t *sorted = NULL;
    uint32_t *start = NULL;
    zero_status status = zi_calloc(layout->tensor_count, sizeof *sorted, (void **)&sorted);
    if (status == ZERO_OK) {
        status = zi_calloc((size_t)layout->unit_count + 2, sizeof *start, (void **)&start);
    }
    if (status == ZERO_OK) {
        for (uint32_t t = 0; t < layout->tensor_count; t++) {
            start[layout->tensor_infos[t].unit + 2]++;
        }
        for (uint32_t u = 0; u < layout->unit_count; u++) {
            start[u + 2] += start[u + 1];
        }
        for (uint32_t t = 0; t < layout->tensor_count; t++) {
            sorted[start[layout->tensor_infos[t].unit + 1]++] = t;
        }
        for (uint32_t u = 0; u < layout->unit_count; u++) {
            layout->units[u].flat_first = layout->flat_count;
            for (int kind = FLAT_TRAINED; kind <= FLAT_FROZEN; kind++) {
                add_flats(layout, u, (flat_kind)kind, sorted + start[u], start[u + 1] - start[u]);
            }
        }
    }
    zi_free(sorted);
    zi_free(start);
    return status;
}

/* The type of all trained tensors; DEFAULT ("the tensor's own") when they differ. */
static zero_dtype common_dtype(const zi_layout *layout)
{
    zero_dtype common = ZERO_DTYPE_DEFAULT;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const zi_tensor_info *info = &layout->tensor_infos[t];
        if ((info->flags & ZERO_TENSOR_FROZEN) != 0) {
            continue;
        }
        if (common != ZERO_DTYPE_DEFAULT && common != info->dtype) {
            return ZERO_DTYPE_DEFAULT;
        }
        common = info->dtype;
    }
    return common;
}

static uint32_t layout_create_first_set(uint32_t value, uint32_t fallback)
{
    return value != 0 ? value : fallback;
}

/* A remainder is what bfloat16 leaves of fp32. */
static zero_status check_masters(const zi_layout *layout)
{
    const zero_dtype master = layout->options.master_dtype;
    for (uint32_t t = 0; t < layout->tensor_count && zi_dtype_is_remainder(master); t++) {
        const zi_tensor_info *info = &layout->tensor_infos[t];
        if (info->dtype == ZERO_DTYPE_F16 && (info->flags & ZERO_TENSOR_FROZEN) == 0) {
            ZI_FAIL(
                ZERO_ERR_INVALID_ARGUMENT,
                "options.master_dtype is %s, and tensor \"%.60s\" is f16; a remainder is one of "
                "bf16: make the tensor bf16, or use f32 masters",
                zero_dtype_name(master), info->name);
        }
    }
    return ZERO_OK;
}

/* Parameters that an update reads cannot be rounded after it. Single ones in fp32, each its own
 * master, go as they are; what the options ask of a whole model is done to some of it. */
static zero_status check_gather_dtype(const zi_layout *layout)
{
    const zero_dtype gather = layout->tuning.gather_dtype;
    bool crosses = false;
    bool coded = false;
    for (uint32_t f = 0; f < layout->flat_count && zi_dtype_is_block(gather); f++) {
        const zi_flat *flat = &layout->flats[f];
        const zi_hop *hops = layout->routes[flat->sharding];
        const bool updated = flat->trained && zi_hop_crosses(&hops[ZI_HOP_UPDATED]);
        if (updated && flat->dtype != ZERO_DTYPE_F32 && zi_flat_reads_param(flat)) {
            ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                    "tuning.gather_dtype is %s and options.master_dtype %s: ranks gather the "
                    "updated parameters of unit \"%.60s\", which the next update reads, so they "
                    "cannot be rounded; use f32 masters, or leave gather_dtype at its default",
                    zero_dtype_name(gather), zero_dtype_name(layout->options.master_dtype),
                    layout->unit_infos[flat->unit].name);
        }
        crosses = crosses || updated;
        coded =
            coded || zi_flat_updated_wired(layout, flat) || zi_hop_crosses(&hops[ZI_HOP_GATHER]);
    }
    if (crosses && !coded) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tuning.gather_dtype is %s, and all parameters that ranks gather are trained in "
                "f32: each is its own master, so it cannot be rounded after its update; make them "
                "bf16 or f16 with f32 masters, use stage 3, or leave gather_dtype at its default",
                zero_dtype_name(gather));
    }
    return ZERO_OK;
}

static zero_status check_encoded_views(const zi_layout *layout)
{
    const zero_dtype gather = layout->tuning.gather_dtype;
    if (layout->tuning.encoded_views && !zi_dtype_is_block(gather)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tuning.encoded_views is 1 and gather_dtype %s; views have the type that gathers "
                "bring: set gather_dtype to mxfp8 or int8, or leave encoded_views 0",
                zero_dtype_name(gather));
    }
    if (layout->tuning.encoded_views && zi_role_offloaded(layout, ZERO_ROLE_PARAM)) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tuning.encoded_views is 1 and options.tier of param is %s; ranks encode shards "
                "where the device has them: leave param on the device, or encoded_views 0",
                zero_tier_name(zi_role_tier(layout, ZERO_ROLE_PARAM)));
    }
    return ZERO_OK;
}

/* Options whose defaults depend on the model or the world. */
static void resolve_options(zi_layout *layout)
{
    zero_engine_options *options = &layout->options;
    zero_tuning *tuning = &layout->tuning;
    bool any_f16 = false;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const zi_tensor_info *info = &layout->tensor_infos[t];
        any_f16 =
            any_f16 || (info->dtype == ZERO_DTYPE_F16 && (info->flags & ZERO_TENSOR_FROZEN) == 0);
    }
    any_f16 = any_f16 || options->grad_dtype == ZERO_DTYPE_F16;
    if (options->loss_scale == 0.0f) {
        options->loss_scale = any_f16 ? 65536.0f : 1.0f;
        tuning->loss_scale_static = tuning->loss_scale_static || !any_f16;
    }
    const zero_sharding *sharding = &layout->shardings[0];
    options->shard_group = layout_create_first_set(options->shard_group, sharding->param);
    tuning->grad_group = layout_create_first_set(tuning->grad_group, sharding->grad);
    tuning->optimizer_group = layout_create_first_set(tuning->optimizer_group, sharding->optimizer);
    if (options->grad_dtype == ZERO_DTYPE_DEFAULT) {
        options->grad_dtype = common_dtype(layout);
    }
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        zero_optimizer *optimizer = &options->group_optimizer[g];
        *optimizer = *optimizer == ZERO_OPTIMIZER_DEFAULT ? options->optimizer : *optimizer;
    }
}

/* One arena per role: a tier is a property of a role. */
typedef struct role_arenas {
    uint64_t used_bytes[ZERO_ROLE_COUNT_MAX];
} role_arenas;

/* Take bytes of a role's arena; returns their offset. */
static uint64_t layout_create_take(role_arenas *roles, zero_role role, uint64_t bytes)
{
    const uint64_t at = roles->used_bytes[role];
    roles->used_bytes[role] += zi_align_up(bytes, ZI_ARENA_ALIGN);
    return at;
}

/* The flat's shards that are not on disk. */
static void place_flat(const zi_layout *layout, zi_flat *flat, role_arenas *roles)
{
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        if (!zi_codec_is_none(flat->kept[role]) &&
            zi_role_tier(layout, (zero_role)role) != ZERO_TIER_DISK) {
            const uint64_t count = zi_role_count(layout, flat, (zero_role)role);
            flat->at[role] =
                layout_create_take(roles, (zero_role)role, zi_codec_bytes(flat->kept[role], count));
        }
    }
}

/* The hyper-parameters that ranks compare: those of a group that has nothing to train are not
 * used, and what a callback takes for its own is not known. */
static void size_message(zi_layout *layout)
{
    layout->groups = 0;
    layout->hyper_count = 0;
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        const zi_tensor_info *info = &layout->tensor_infos[i];
        const uint64_t used = zi_optimizer_of(optimizer_of(layout, info))->number_count != 0;
        layout->groups |= layout_create_kind_of(info) != FLAT_FROZEN ? used << info->group : 0;
    }
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        const zi_optimizer *optimizer = zi_optimizer_of(layout->options.group_optimizer[g]);
        layout->hyper_count += (layout->groups >> g & 1) != 0 ? optimizer->number_count : 0;
    }
    layout->message_bytes = (uint32_t)zi_align_up(
        ZI_MESSAGE_BYTES + layout->hyper_count * sizeof(float), ZI_ARENA_ALIGN);
}

/* Norms of tensors, and what ranks send one another for them. */
static void place_layers(zi_layout *layout, role_arenas *roles)
{
    uint64_t layers = 0;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        layers += zi_tensor_has_layer(layout, t) ? 1 : 0;
    }
    layout->layer_count = (uint32_t)layers;
    layout->layer_message_bytes = zi_align_up(layers * ZI_LAYER_MESSAGE_BYTES, ZI_ARENA_ALIGN);
    layout->layer_sums_at = layout_create_take(roles, ZERO_ROLE_STEP, layers * ZI_LAYER_SUMS_BYTES);
    layout->layer_norms_at =
        layout_create_take(roles, ZERO_ROLE_STEP, layers * ZI_LAYER_NORMS_BYTES);
    layout->layer_message_at =
        layout_create_take(roles, ZERO_ROLE_STEP, layout->layer_message_bytes);
    layout->layer_messages_at =
        layout_create_take(roles, ZERO_ROLE_STEP, layout->world * layout->layer_message_bytes);
}

static void place_step(zi_layout *layout, role_arenas *roles)
{
    size_message(layout);
    layout->message_at = layout_create_take(roles, ZERO_ROLE_STEP, layout->message_bytes);
    layout->messages_at =
        layout_create_take(roles, ZERO_ROLE_STEP, (uint64_t)layout->world * layout->message_bytes);
    layout->parts_at = layout_create_take(
        roles, ZERO_ROLE_STEP,
        layout->part_count > 1 ? (uint64_t)layout->part_count * ZI_PART_BYTES : 0);
    layout->step_at = layout_create_take(roles, ZERO_ROLE_STEP, ZI_STEP_BYTES);
    layout->aside_at = layout_create_take(roles, ZERO_ROLE_STEP, ZI_STEP_BYTES);
    layout->segments_at =
        layout_create_take(roles, ZERO_ROLE_STEP, layout->segment_count * ZI_SEGMENT_BYTES);
    place_layers(layout, roles);
    layout->state_staging_at =
        layout_create_take(roles, ZERO_ROLE_STEP, ZI_STATE_STAGING * layout->state_staging_bytes);
}

/* Speculative copies of this rank's shard of all parameters that are trained. */
static void place_speculative(const zi_layout *layout, role_arenas *roles)
{
    for (uint32_t f = 0; f < layout->flat_count && layout->speculative_at != 0; f++) {
        zi_flat *flat = &layout->flats[f];
        const uint64_t count = flat->trained ? zi_optimizer_shard_count(layout, flat) : 0;
        flat->speculative_at = layout_create_take(
            roles, ZERO_ROLE_IO_WINDOW, zi_codec_bytes(flat->kept[ZERO_ROLE_PARAM], count));
    }
}

/* Place the buffers that offloaded shards pass through. */
static void place_offload(zi_layout *layout, role_arenas *roles)
{
    layout->param_staging_at =
        layout_create_take(roles, ZERO_ROLE_PARAM_SLOT, layout->param_staging_bytes);
    layout->grad_staging_at =
        layout_create_take(roles, ZERO_ROLE_GRAD_SLOT, layout->grad_staging_bytes);
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        zi_offload_place *place = &layout->offload[role];
        place->window_at = layout_create_take(roles, ZERO_ROLE_IO_WINDOW,
                                              place->window_buffers * place->extent_bytes_max);
    }
}

/* A role on disk has no arena, but bytes in extents; where several roles share these, what pads
 * them to whole pages counts in the tier only. */
static uint64_t disk_share(const zi_layout *layout, zero_role role)
{
    uint64_t bytes = 0;
    if (role < ZI_OFFLOAD_ROLES) {
        return layout->offload[role].bytes;
    }
    for (uint32_t i = 0; i < layout->chunk_range_count; i++) {
        const zi_chunk_range *range = &layout->chunk_ranges[i];
        const zi_codec codec = layout->flats[range->flat].kept[role];
        bytes += range->chunks * zi_codec_padded_bytes(codec, range->count);
    }
    return layout->speculative_at != 0 ? 2 * bytes : bytes;
}

static void layout_create_add_up(zi_layout *layout, const role_arenas *roles)
{
    zero_memory *memory = &layout->memory;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = zi_role_tier(layout, (zero_role)role);
        const uint64_t used =
            tier == ZERO_TIER_DISK ? disk_share(layout, (zero_role)role) : roles->used_bytes[role];
        memory->bytes[role] = zi_align_up(used, ZI_PAGE_BYTES) +
                              (role == ZERO_ROLE_IO_WINDOW ? layout->sums_bytes : 0);
        memory->tier_bytes[tier] += tier == ZERO_TIER_DISK ? 0 : memory->bytes[role];
    }
    memory->tier_bytes[ZERO_TIER_DISK] = layout->disk_bytes;
    for (int tier = 0; tier < ZERO_TIER_COUNT; tier++) {
        memory->total_bytes += memory->tier_bytes[tier];
    }
}

static void layout_create_place(zi_layout *layout)
{
    role_arenas roles = {0};
    for (uint32_t i = 0; i < layout->flat_count; i++) {
        place_flat(layout, &layout->flats[i], &roles);
    }
    for (uint32_t i = 0; i < layout->param_class_count; i++) {
        zi_slot_class *class = &layout->param_classes[i];
        class->slots_at =
            layout_create_take(&roles, ZERO_ROLE_PARAM_SLOT, class->slot_bytes * class->slot_count);
    }
    for (uint32_t u = 0; u < layout->unit_count && layout->tuning.poison_released; u++) {
        layout->units[u].view_at =
            layout_create_take(&roles, ZERO_ROLE_PARAM_SLOT, 2 * layout->units[u].slot_bytes);
    }
    for (uint32_t i = 0; i < layout->grad_class_count; i++) {
        zi_slot_class *class = &layout->grad_classes[i];
        class->slots_at =
            layout_create_take(&roles, ZERO_ROLE_GRAD_SLOT, class->slot_bytes * class->slot_count);
    }
    layout->param_wire_at =
        layout_create_take(&roles, ZERO_ROLE_PARAM_SLOT, layout->param_wire_bytes);
    layout->updated_wire_at =
        layout_create_take(&roles, ZERO_ROLE_PARAM_SLOT, layout->updated_wire_bytes);
    layout->grad_wire_at = layout_create_take(&roles, ZERO_ROLE_GRAD_SLOT, layout->grad_wire_bytes);
    place_step(layout, &roles);
    (void)layout_create_take(&roles, ZERO_ROLE_SCRATCH, zi_layout_scratch_bytes(layout));
    (void)layout_create_take(&roles, ZERO_ROLE_IO_WINDOW,
                             layout->state.window_buffers * layout->state.extent_bytes_max);
    (void)layout_create_take(&roles, ZERO_ROLE_SAVE_STAGING, layout->tuning.save_staging_bytes);
    layout->bounce_at = layout_create_take(&roles, ZERO_ROLE_IO_WINDOW, 2 * layout->bounce_bytes);
    place_offload(layout, &roles);
    place_speculative(layout, &roles); /* behind what is whole pages */
    layout_create_add_up(layout, &roles);
}

static zero_status check_budget(const zi_layout *layout, zero_tier tier, uint64_t budget,
                                const char *remedy)
{
    const uint64_t need = layout->memory.tier_bytes[tier];
    if (budget != 0 && need > budget) {
        ZI_FAIL(ZERO_ERR_OUT_OF_MEMORY,
                "the plan needs %" PRIu64 " bytes of %s per rank, %s_budget_bytes is %" PRIu64
                ": short by %" PRIu64 "; %s",
                need, zero_tier_name(tier), zero_tier_name(tier), budget, need - budget, remedy);
    }
    return ZERO_OK;
}

/* Take the next smaller I/O window, of fewer extents, then of smaller ones, if the caller left it
 * open and it is too large for the budget of host memory. false: there is none, or no need. */
static bool shrink_window(const zero_tuning *given, zi_layout *layout)
{
    zero_tuning *tuning = &layout->tuning;
    const uint64_t budget = layout->options.host_budget_bytes;
    if (budget == 0 || layout->memory.tier_bytes[ZERO_TIER_HOST] <= budget) {
        return false;
    }
    if (given->io_window == 0 && tuning->io_window > IO_WINDOW_MIN) {
        tuning->io_window--;
        return true;
    }
    if (given->extent_bytes == 0 && tuning->extent_bytes > EXTENT_BYTES_MIN) {
        tuning->extent_bytes /= 2;
        return true;
    }
    return false;
}

static void free_places(zi_layout *layout)
{
    zi_free(layout->chunk_ranges);
    zi_free(layout->state_ranges);
    zi_free(layout->chunks);
    zi_free(layout->state.extents);
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        zi_free(layout->offload[role].extents);
    }
}

static zero_status cut_and_place(zi_layout *layout)
{
    ZI_TRY(zi_layout_make_chunks(layout));
    ZI_TRY(zi_layout_make_extents(layout));
    zi_layout_place_sums(layout);
    layout_create_place(layout);
    return ZERO_OK;
}

/* Cut and place all there is, with an I/O window that fits in the budget if there is one. */
static zero_status layout_create_fit(const zero_tuning *given, zi_layout *layout)
{
    const zi_layout uncut = *layout;
    ZI_TRY(cut_and_place(layout));
    while (shrink_window(given, layout)) {
        const zero_tuning smaller = layout->tuning;
        free_places(layout);
        *layout = uncut;
        layout->tuning = smaller;
        ZI_TRY(cut_and_place(layout));
    }
    return ZERO_OK;
}

static zero_status check_budgets(const zi_layout *layout)
{
    const zero_engine_options *o = &layout->options;
    ZI_TRY(check_budget(layout, ZERO_TIER_DEVICE, o->device_budget_bytes,
                        "use a higher stage, more ranks or fewer slots, or put roles on another "
                        "tier"));
    ZI_TRY(check_budget(layout, ZERO_TIER_HOST, o->host_budget_bytes,
                        "use more ranks, put fewer roles on the host, or lower io_window or "
                        "extent_bytes"));
    return check_budget(layout, ZERO_TIER_DISK, o->disk_budget_bytes,
                        "use more ranks, bf16 moments, or put fewer roles on disk");
}

static zero_status layout_create_build(zi_layout *layout, const zero_model *model,
                                       const zero_engine_options *options, uint32_t world,
                                       bool threads, const zi_capabilities *can)
{
    if (model == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "model is NULL; make one with zero_model_create");
    }
    if (world < 1 || world > 65536) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "a world of %" PRIu32 " ranks is not in [1, 65536]",
                world);
    }
    zero_engine_options given;
    zero_tuning given_tuning;
    ZI_TRY(zi_options_take(options, &given, &given_tuning));
    ZI_TRY(zi_options_resolve(options, &layout->options, &layout->tuning));
    layout->options.disk_directories = NULL; /* the caller's, and no plan needs them */
    layout->tuning.disk_weights = NULL;
    layout->tuning.hang_directory = NULL;
    layout->options.disk_directory_count = 0;
    layout->options.disk_path = NULL;
    layout->part_count = (uint32_t)zi_max_u64(1, zero_world_size(layout->options.model_parallel));
    layout->world = world;
    layout->sharding_count = 1;
    ZI_TRY(zi_sharding_resolve(&layout->options, world, 0, &layout->shardings[0]));
    ZI_TRY(zi_layout_resolve_backend(layout, threads, can));
    ZI_TRY(copy_model(layout, model));
    for (uint32_t i = 0; i < layout->sharding_count; i++) {
        zi_route_make(&layout->shardings[i], layout->routes[i]);
    }
    ZI_TRY(copy_ties(layout, model));
    ZI_TRY(check_masters(layout));
    ZI_TRY(check_encoded_views(layout));
    resolve_options(layout);
    ZI_TRY(zi_layout_check_layers(layout));
    ZI_TRY(make_flats(layout));
    ZI_TRY(check_gather_dtype(layout));
    ZI_TRY(zi_layout_make_buckets(layout));
    ZI_TRY(zi_layout_make_classes(layout));
    ZI_TRY(layout_create_fit(&given_tuning, layout));
    return check_budgets(layout);
}

zero_status zi_layout_create(const zero_model *model, const zero_engine_options *options,
                             uint32_t world, bool threads, const zi_capabilities *can,
                             zi_layout **out)
{
    *out = NULL;
    zi_layout *layout = NULL;
    ZI_TRY(zi_calloc(1, sizeof *layout, (void **)&layout));
    const zero_status status = layout_create_build(layout, model, options, world, threads, can);
    if (status != ZERO_OK) {
        zi_layout_destroy(layout);
        return status;
    }
    *out = layout;
    return ZERO_OK;
}

void zi_layout_destroy(zi_layout *layout)
{
    if (layout == NULL) {
        return;
    }
    zi_names_free(&layout->names);
    zi_free(layout->unit_infos);
    zi_free(layout->units);
    zi_free(layout->tensor_infos);
    zi_free(layout->tensor_extras);
    zi_free(layout->tensors);
    zi_free(layout->flats);
    zi_free(layout->buckets);
    zi_free(layout->bucket_flats);
    zi_free(layout->ties);
    zi_free(layout->owners);
    free_places(layout);
    zi_free(layout->param_classes);
    zi_free(layout->grad_classes);
    zi_free(layout);
}
