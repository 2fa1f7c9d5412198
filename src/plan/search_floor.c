/* Owns the lower bounds of a search. Invariant: none is larger than what the plan of the same
 * combination holds and moves, by estimate_traffic.c and the layout. */
#include "plan/search_floor.h"

#include "core/error.h"
#include "core/memory.h"
#include "layout/layout.h"
#include "plan/estimate.h"
#include "plan/estimate_traffic.h"
#include "plan/transformer.h"

#define ROLES (ZERO_ROLE_MOMENT2 + 1)

/* ---- bytes ---- */

static double above(double value, double floor)
{
    return value > floor ? value : floor;
}

/* Bytes of an element as the role is kept, without scales. */
static double width_of(const zi_format *format, zero_role role)
{
    const zero_dtype dtype = role == ZERO_ROLE_MASTER ? format->master : format->moments;
    const uint64_t bytes = zero_dtype_bytes(dtype);
    return bytes != 0 || dtype == ZERO_DTYPE_NONE ? (double)bytes : sizeof(float);
}

/* A role's shard in a format. Arenas are whole pages. */
static double shard_bytes(const zi_space *space, const zi_base *base, const zi_format *format,
                          zero_role role)
{
    const double bytes = above((double)base->memory.bytes[role] - (double)ZI_PAGE_BYTES, 0);
    const double planned = width_of(&space->formats[0], role);
    if (role < ZERO_ROLE_MASTER || planned <= 0) {
        return bytes;
    }
    return bytes * above(width_of(format, role), 0) / planned;
}

void zi_base_bytes(const zi_space *space, const zi_base *base, const zi_mix *mix,
                   const zi_format *format, double bytes[ZERO_TIER_COUNT])
{
    static const zero_role others[] = {ZERO_ROLE_PARAM_SLOT, ZERO_ROLE_GRAD_SLOT,
                                       ZERO_ROLE_SCRATCH};
    for (int tier = 0; tier < ZERO_TIER_COUNT; tier++) {
        bytes[tier] = 0;
    }
    for (int role = 0; role < ROLES; role++) {
        const zero_tier tier =
            mix->tier[role] != ZERO_TIER_DEFAULT ? mix->tier[role] : ZERO_TIER_DEVICE;
        bytes[tier] += shard_bytes(space, base, format, (zero_role)role);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        bytes[ZERO_TIER_DEVICE] += (double)base->memory.bytes[others[i]];
    }
}

/* ---- time ---- */

static double floor_seconds(double bytes, uint64_t rate, uint64_t ranks)
{
    return rate != 0 ? bytes * (double)ranks / (double)rate : 0;
}

/* Of 2 x micro-steps passes over a class's units, the turns find as many in their slots as there
 * are slots (estimate_traffic.c). The smallest classes are those of blocks. */
static double gathers_at_least(const zi_base *base, uint32_t micro_steps)
{
    const double passes = 2.0 * micro_steps;
    return above(1, passes * base->gathered);
}

/* Bytes of a role that an update reads and writes. */
typedef struct role_moves {
    double read;
    double written;
} role_moves;

static role_moves moves_of(const zi_base *base, zero_role role, double bytes)
{
    if (role == ZERO_ROLE_PARAM) {
        return (role_moves){.written = bytes * base->update_shares};
    }
    if (role == ZERO_ROLE_GRAD) {
        return (role_moves){.read = bytes * base->grad_shares};
    }
    return (role_moves){bytes, bytes};
}

/* Bytes over each link in a step. */
typedef struct tier_moves {
    double link;
    double read;
    double written;
    double update;
} tier_moves;

static void add_update(const zi_base *base, zero_role role, double bytes, bool on_host,
                       zero_tier tier, tier_moves *sum)
{
    const role_moves moves = moves_of(base, role, bytes);
    sum->update += moves.read + moves.written;
    sum->link += on_host != (tier > ZERO_TIER_DEVICE) ? moves.read + moves.written : 0;
    if (tier == ZERO_TIER_DISK && role >= ZERO_ROLE_MASTER) {
        sum->written += bytes;
        sum->read += bytes;
    }
}

/* Passes move offloaded parameters and gradients too, besides the update. */
static void add_passes(const zi_base *base, zero_role role, double bytes, uint32_t micro_steps,
                       zero_tier tier, tier_moves *sum)
{
    const double again = micro_steps - 1.0;
    if (role == ZERO_ROLE_PARAM) {
        const double times = gathers_at_least(base, micro_steps);
        sum->link += times * bytes;
        sum->read += tier == ZERO_TIER_DISK ? times * bytes : 0;
        sum->written += tier == ZERO_TIER_DISK ? bytes : 0;
    } else {
        sum->link += (2.0 * micro_steps - 1.0) * bytes;
        sum->read += tier == ZERO_TIER_DISK ? again * bytes : 0;
        sum->written += tier == ZERO_TIER_DISK ? micro_steps * bytes : 0;
    }
}

double zi_base_tiers_ns(const zi_space *space, const zi_base *base, const zi_mix *mix,
                        const zi_format *format, const zi_shape *shape)
{
    const zero_cluster *c = &space->cluster;
    const bool on_device = space->options.device == ZERO_DEVICE_CUDA;
    tier_moves sum = {0};
    bool on_host = mix->updater >= ZERO_UPDATER_CPU;
    for (int role = ZERO_ROLE_MASTER; role < ROLES; role++) {
        on_host = on_host || (mix->tier[role] == ZERO_TIER_DISK && base->memory.bytes[role] != 0);
    }
    for (int role = 0; role < ROLES && on_device; role++) {
        const zero_tier tier = mix->tier[role];
        const double bytes = shard_bytes(space, base, format, (zero_role)role);
        add_update(base, (zero_role)role, bytes, on_host, tier, &sum);
        if (role < ZERO_ROLE_MASTER && tier > ZERO_TIER_DEVICE) {
            add_passes(base, (zero_role)role, bytes, shape->batch.micro_steps, tier, &sum);
        }
    }
    sum.read = above(sum.read - (double)base->window_bytes, 0);
    const double update = on_host
                              ? floor_seconds(sum.update, c->host_bytes_per_s, c->ranks_per_node)
                              : floor_seconds(sum.update, c->device_bytes_per_s, 1);
    const double copies = floor_seconds(sum.link, c->host_link_bytes_per_s, 1) +
                          floor_seconds(sum.read, c->disk_read_bytes_per_s, c->ranks_per_node) +
                          floor_seconds(sum.written, c->disk_write_bytes_per_s, c->ranks_per_node);
    return 1e9 * update + above(1e9 * copies - shape->passes_ns, 0);
}

/* ---- the plan ---- */

/* Units that stay in slots are at most so many of each class: a block has one member in it, and
 * blocks of another kind have classes of their own. */
static double gathered_share(const zi_space *space, const zi_mesh *mesh)
{
    zero_transformer t;
    zi_transformer_counts counts;
    if (zi_transformer_resolve(&mesh->transformer, &t, &counts) != ZERO_OK) {
        return 0;
    }
    const zi_stage stage = zi_transformer_fullest(&t);
    const double slots = space->tuning.param_slots != 0 ? space->tuning.param_slots : 3;
    double inner = 0;
    double kept = 0;
    for (int kind = 0; kind < ZI_BLOCK_KINDS; kind++) {
        const double blocks = (double)zi_stage_count(&stage, (zi_block_kind)kind);
        const double block = (double)counts.block[kind];
        inner += blocks * block;
        kept += blocks > 0 ? (slots + 1) * block : 0;
    }
    return above(0, inner - kept) / (inner + (double)(counts.embedding + counts.head));
}

zero_status zi_base_measure(const zi_space *space, const zi_mesh *mesh, zi_base *base)
{
    const zi_layout *layout = base->plan->layout;
    const zero_sharding *s = &layout->shardings[0];
    base->memory = zero_memory_init();
    ZI_TRY(zero_plan_memory(base->plan, &base->memory));
    base->update_shares = (double)s->param / s->optimizer;
    base->grad_shares = (double)s->grad / s->optimizer;
    base->gathered = gathered_share(space, mesh);
    base->window_bytes = (uint64_t)layout->tuning.io_window * layout->tuning.extent_bytes;
    return ZERO_OK;
}

zero_status zi_base_links(const zi_space *space, const zi_shape *shape, zi_base *base,
                          double *links_ns)
{
    const uint32_t micro_steps = shape->batch.micro_steps;
    zero_estimate e;
    uint32_t at = 0;
    while (at < base->count && base->micro_steps[at] != micro_steps) {
        at++;
    }
    if (at < base->count) {
        *links_ns = base->links_ns[at];
        return ZERO_OK;
    }
    ZI_TRY(zi_estimate_of_plan(&space->meshes[shape->mesh].transformer, &space->cluster, base->plan,
                               &shape->batch, &e));
    *links_ns = ZI_BESIDE_COMPUTE *
                (double)(e.term_ns[ZERO_ESTIMATE_GATHERS] + e.term_ns[ZERO_ESTIMATE_REDUCTIONS]);
    if (base->count < ZI_FLOOR_COUNTS) {
        base->micro_steps[base->count] = micro_steps;
        base->links_ns[base->count++] = *links_ns;
    }
    return ZERO_OK;
}
