/* Owns what a step moves, of models whose units are all split in one way. Invariant: bytes of
 * collectives are those that an engine of this layout counts in its statistics. */
#include "plan/estimate_traffic.h"

#include "core/check.h"

/* ---- parameters ---- */

/* Sizes of classes fall by half, so there are no more. */
#define CLASSES_MAX 64

/* How often a step gathers a unit: in each forward and backward, unless it is still in its slot at
 * the turn. Forward leaves the last units of a class in its slots, backward the first. */
static double gathers_of(const zi_layout *layout, uint32_t unit, uint32_t before,
                         uint32_t micro_steps)
{
    const zi_slot_class *class = &layout->param_classes[layout->units[unit].param_class];
    const bool stays_forward = before + class->slot_count >= class->member_count;
    const bool stays_backward = before < class->slot_count;
    return 2.0 * micro_steps - (stays_forward ? micro_steps : 0) -
           (stays_backward ? micro_steps - 1.0 : 0);
}

static void count_gathers(const zi_layout *layout, uint32_t micro_steps, zi_traffic *traffic)
{
    const uint32_t degree = layout->shardings[0].param;
    const bool link = zi_role_offloaded(layout, ZERO_ROLE_PARAM) && !layout->can.host_memory;
    uint32_t before[CLASSES_MAX] = {0}; /* members of a class among the units so far */
    double shards = 0;                  /* bytes of all units, and how many of them are gathered */
    double gathered = 0;
    zi_assert_cmp(layout->param_class_count, <=, CLASSES_MAX);
    for (uint32_t u = 0; u < layout->unit_count && zi_params_in_slots(layout); u++) {
        const zi_unit_place *place = &layout->units[u];
        if (place->flat_count == 0) {
            continue;
        }
        const double times = gathers_of(layout, u, before[place->param_class]++, micro_steps);
        if (degree > 1) {
            traffic->hops[ZI_HOP_GATHER].calls += times;
            traffic->hops[ZI_HOP_GATHER].bytes += times * (double)place->wire_bytes;
        }
        for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
            const zi_flat *flat = &layout->flats[f];
            const double bytes = (double)zi_codec_bytes(flat->kept[ZERO_ROLE_PARAM],
                                                        zi_shard_count(layout, flat, degree));
            shards += bytes;
            gathered += times * bytes;
            traffic->link_in += link ? times * bytes : 0;
            traffic->link_copies += link ? times : 0;
        }
    }
    /* With what pads them on disk. */
    traffic->disk_read += shards > 0 ? gathered / shards * (double)layout->pass_read_bytes : 0;
}

/* ---- gradients ---- */

/* Count what a rank gives of a flat to one hop. */
static void count_sum(const zi_layout *layout, const zi_flat *flat, zi_hop_kind kind,
                      uint32_t micro_steps, zi_exchange *exchange)
{
    const zi_hop *hop = &layout->routes[0][kind];
    const uint64_t count = zi_shard_count(layout, flat, zi_hop_given(hop));
    const zi_codec codec = zi_hop_wire(flat, hop, kind, micro_steps == 1);
    const double times = hop->boundary ? 1 : micro_steps;
    const bool levels = layout->tuning.reduction != ZERO_REDUCTION_EXACT;
    const zi_codec sums = {.dtype = zi_flat_host_dtype(layout, flat, codec.dtype)};
    exchange->alone_too = layout->tuning.host_wire_dtype != ZERO_DTYPE_DEFAULT;
    exchange->bytes += times * (double)zi_codec_bytes(codec, count);
    exchange->sum_bytes += times * (double)zi_codec_bytes(levels ? sums : codec, count);
}

/* A flat's gradient on its way; src/stage2/reduce.c. */
static void count_flat(const zi_layout *layout, const zi_flat *flat, uint32_t micro_steps,
                       zi_traffic *traffic)
{
    for (int i = 0; i < ZI_HOPS; i++) {
        const zi_hop *hop = &layout->routes[0][i];
        if (hop->sums && zi_hop_crosses(hop)) {
            count_sum(layout, flat, (zi_hop_kind)i, micro_steps, &traffic->hops[i]);
        }
    }
    if (zi_role_offloaded(layout, ZERO_ROLE_GRAD) && !layout->can.host_memory) {
        const double shard = (double)zi_codec_bytes(
            flat->kept[ZERO_ROLE_GRAD], zi_shard_count(layout, flat, layout->shardings[0].grad));
        traffic->link_out += micro_steps * shard;
        traffic->link_in += (micro_steps - 1.0) * shard; /* the sum so far */
        traffic->link_copies += 2.0 * micro_steps - 1;
    }
}

static void count_reductions(const zi_layout *layout, uint32_t micro_steps, zi_traffic *traffic)
{
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        if (layout->flats[f].trained) {
            count_flat(layout, &layout->flats[f], micro_steps, traffic);
        }
    }
    for (int i = 0; i < ZI_HOPS; i++) {
        const zi_hop *hop = &layout->routes[0][i];
        if (hop->sums && traffic->hops[i].bytes > 0) {
            traffic->hops[i].calls = (hop->boundary ? 1.0 : micro_steps) * layout->bucket_count;
        }
    }
}

/* ---- the update ---- */

/* True if the CPU updates the flat: some of its state is on disk, or options say so. */
static bool host_updates(const zi_layout *layout)
{
    return !layout->can.host_memory &&
           (layout->state.extent_count != 0 || layout->tuning.updater >= ZERO_UPDATER_CPU);
}

/* A role of a flat that the update reads, writes, or both. What is not where the update runs goes
 * over the host link. */
static void count_role(const zi_layout *layout, double read, double written, zero_role role,
                       zi_traffic *traffic)
{
    const bool host = host_updates(layout);
    const bool offloaded = zi_role_offloaded(layout, role);
    *(host ? &traffic->update_host : &traffic->update_device) += read + written;
    if (!layout->can.host_memory && host != offloaded) {
        *(host ? &traffic->link_out : &traffic->link_in) += read;
        *(host ? &traffic->link_in : &traffic->link_out) += written;
        traffic->link_copies++;
    }
}

/* Before the update of a flat whose optimizer goes by norms of tensors: what that measures is read
 * once more. The sums that ranks gather are too few to count. */
static void count_measurement(const zi_layout *layout, const zi_flat *flat, uint64_t count,
                              zi_traffic *traffic)
{
    for (int i = 0; i < ZI_SHARD_ROLES; i++) {
        if (zi_flat_measures(flat, (zero_role)i)) {
            count_role(layout, (double)zi_codec_bytes(flat->kept[i], count), 0, (zero_role)i,
                       traffic);
        }
    }
}

static void count_update(const zi_layout *layout, zi_traffic *traffic)
{
    const zero_sharding *s = &layout->shardings[0];
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const zi_flat *flat = &layout->flats[f];
        const uint64_t count = zi_shard_count(layout, flat, s->optimizer);
        for (int i = 0; i < ZI_SHARD_ROLES && flat->trained; i++) {
            const double bytes = (double)zi_codec_bytes(flat->kept[i], count);
            const bool reads = i != ZERO_ROLE_PARAM || zi_flat_reads_param(flat);
            const bool writes = i != ZERO_ROLE_GRAD;
            if (!zi_codec_is_none(flat->kept[i])) {
                count_role(layout, reads ? bytes : 0, writes ? bytes : 0, (zero_role)i, traffic);
            }
        }
        count_measurement(layout, flat, count, traffic);
        const zi_hop *updated = &layout->routes[0][ZI_HOP_UPDATED];
        if (flat->trained && zi_hop_crosses(updated)) {
            zi_exchange *exchange = &traffic->hops[ZI_HOP_UPDATED];
            exchange->calls++;
            exchange->bytes +=
                (double)zi_codec_bytes(zi_hop_wire(flat, updated, ZI_HOP_UPDATED, true),
                                       zi_shard_count(layout, flat, zi_hop_received(updated)));
        }
    }
}

zi_traffic zi_traffic_of(const zi_layout *layout, uint32_t micro_steps)
{
    const double grads = (double)layout->micro_bytes;
    zi_traffic traffic = {.disk_read = (micro_steps - 1.0) * grads,
                          .disk_write = micro_steps * grads};
    for (int i = 0; i < ZI_HOPS; i++) {
        const zi_hop *hop = &layout->routes[0][i];
        traffic.hops[i].stride = hop->low;
        traffic.hops[i].size = zi_hop_size(hop);
        traffic.hops[i].once = hop->boundary || i == ZI_HOP_UPDATED;
    }
    count_gathers(layout, micro_steps, &traffic);
    count_reductions(layout, micro_steps, &traffic);
    traffic.pass_link = traffic.link_in + traffic.link_out;
    traffic.pass_disk_read = traffic.disk_read;
    traffic.pass_disk_write = traffic.disk_write;
    traffic.disk_read += (double)layout->step_read_bytes;
    traffic.disk_write += (double)layout->step_write_bytes;
    count_update(layout, &traffic);
    return traffic;
}
