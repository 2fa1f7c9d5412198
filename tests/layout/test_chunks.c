/* Owns the tests of tiers in the layout: chunks tile every optimizer shard, records on disk hold
 * each chunk's state once and are full, budgets are kept on every tier, and the table says it. */
#include "layout/layout.h"
#include "plan_rig.h"

#define GRANULE 256u

static zero_model *random_model(uint64_t salt)
{
    static const uint64_t sizes[] = {0, 1, 63, 64, 65, 129, 1000, 4369, 32768};
    zero_model *model = empty_model();
    uint32_t index = 0;
    seed_random(salt);
    const uint32_t units = 1 + (uint32_t)random_below(8);
    for (uint32_t u = 0; u < units; u++) {
        CHECK_OK(
            zero_unit_add(model, &(zero_unit_desc){.name = test_text("unit%u", u)}, &index, NULL));
        const uint32_t tensors = (uint32_t)random_below(6);
        for (uint32_t t = 0; t < tensors; t++) {
            const zero_tensor_desc desc = {
                .name = test_text("tensor%u.%u", u, t),
                .dims = 1,
                .shape = {sizes[random_below(sizeof sizes / sizeof sizes[0])]},
                .dtype = (zero_dtype)(1 + random_below(3)),
                .flags = random_below(4) == 0 ? ZERO_TENSOR_FROZEN : ZERO_TENSOR_PLAIN};
            CHECK_OK(zero_tensor_add(model, u, &desc, &index));
        }
    }
    return model;
}

static zero_engine_options random_options(void)
{
    zero_engine_options o = random_types();
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        o.tier[role] = (zero_tier)random_below(ZERO_TIER_COUNT);
    }
    tuning.extent_bytes = random_below(6) * PAGE;
    tuning.io_window = random_below(2) == 0 ? 0 : 3 + (uint32_t)random_below(6);
    tuning.disk_unchecked = random_below(4) == 0;
    return o;
}

/* Bytes of an element of a flat's state, from the documented rules. */
static uint64_t state_bytes(const zi_layout *l, const zi_flat *flat, int role)
{
    if (role != ZERO_ROLE_MASTER) {
        return zero_dtype_bytes(l->options.moment_dtype);
    }
    return flat->dtype != ZERO_DTYPE_F32 && l->options.master_dtype == ZERO_DTYPE_F32 ? 4 : 0;
}

/* The bytes that elements of a flat take in a record. */
static uint64_t in_record(const zi_layout *l, const zi_flat *flat, uint64_t count)
{
    uint64_t bytes = 0;
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        if (l->options.tier[role] == ZERO_TIER_DISK) {
            bytes += up(count * state_bytes(l, flat, role), 256);
        }
    }
    return bytes;
}

static void check_tiling(const zi_layout *l)
{
    uint32_t next = 0;
    for (uint32_t f = 0; f < l->flat_count; f++) {
        const zi_flat *flat = &l->flats[f];
        const uint64_t part = flat->trained ? flat->count / l->shardings[0].optimizer : 0;
        uint64_t first = 0;
        CHECK_EQ(flat->chunk_first, next);
        for (uint32_t i = 0; i < flat->chunk_count; i++, next++) {
            const zi_chunk *chunk = &l->chunks[next];
            CHECK_EQ(chunk->flat, f);
            CHECK_EQ(chunk->first, first);
            CHECK(chunk->count != 0 && chunk->count % GRANULE == 0);
            CHECK_EQ(chunk->extent == ZI_NO_INDEX, in_record(l, flat, GRANULE) == 0);
            first += chunk->count;
        }
        CHECK_EQ(first, part);
        CHECK(flat->chunk_count <= 1 || in_record(l, flat, GRANULE) != 0 ||
              part > zi_extent_count_max(l, flat));
    }
    CHECK_EQ(next, l->chunk_count);
}

/* Extents of a role on disk hold every element of every shard once, in order and in whole pages,
 * from `at` on; a chunk of an optimizer shard is one whole extent. Returns their end. */
static uint64_t check_extents(const zi_layout *l, zero_role role, uint64_t at)
{
    const zi_offload_place *place = &l->offload[role];
    const bool param = role == ZERO_ROLE_PARAM;
    const uint32_t degree = param ? l->shardings[0].param : l->shardings[0].grad;
    uint32_t index = 0;
    uint64_t largest = 0;
    uint64_t sums = 0;
    for (uint32_t f = 0; f < l->flat_count; f++) {
        const zi_flat *flat = &l->flats[f];
        const uint64_t size = zero_dtype_bytes(param ? flat->dtype : l->tuning.accum_dtype);
        const uint64_t all = param || flat->trained ? flat->count / degree : 0;
        const uint64_t part = flat->count / l->shardings[0].optimizer;
        for (uint64_t first = 0; first < all; index++) {
            const zi_extent_place found = zi_layout_find_extent(l, role, f, first);
            const uint64_t last = found.first + found.count - 1;
            CHECK_EQ(found.index, index);
            CHECK_EQ(found.first, first);
            CHECK(found.count % GRANULE == 0 && found.count * size <= l->tuning.extent_bytes);
            CHECK_EQ(zi_layout_find_extent(l, role, f, last).index, index);
            CHECK_EQ(place->extents[index].at, at);
            CHECK_EQ(place->extents[index].bytes, up(found.count * size, PAGE));
            for (uint32_t i = 0; i < flat->chunk_count; i++) {
                const zi_chunk *chunk = &l->chunks[flat->chunk_first + i];
                if (chunk->first == first % part) {
                    CHECK_EQ(found.count, chunk->count);
                }
            }
            largest = place->extents[index].bytes > largest ? place->extents[index].bytes : largest;
            sums += up(place->extents[index].bytes, 65536) / 65536 + 1;
            at += place->extents[index].bytes;
            first += found.count;
        }
    }
    const uint64_t most = l->tuning.io_window + UINT64_C(1); /* two streams use the window */
    const uint64_t buffers = most < index ? most : index;
    CHECK_EQ(place->extent_count, index);
    CHECK_EQ(place->window_buffers, buffers);
    CHECK_EQ(place->extent_bytes_max, largest);
    CHECK_EQ(place->sum_count, sums);
    CHECK(place->window_at % PAGE == 0);
    CHECK(place->window_at + buffers * largest <= l->memory.bytes[ZERO_ROLE_IO_WINDOW]);
    return at;
}

/* Records lie end to end; in each its chunks' states, one behind the other; and none ends while a
 * granule of the next chunk would have fitted, unless a chunk as long as extents may be ends it. */
static void check_records(const zi_layout *l)
{
    uint64_t used = 0;
    uint32_t range = ZI_NO_INDEX;
    uint64_t at = 0;
    for (uint32_t p = 0; p < l->chunk_count; p++) {
        const zi_chunk *chunk = &l->chunks[p];
        const zi_flat *flat = &l->flats[chunk->flat];
        if (chunk->extent == ZI_NO_INDEX) {
            continue;
        }
        if (chunk->extent != range) {
            CHECK_EQ(chunk->extent, range + 1); /* from UINT32_MAX to 0 */
            CHECK(range == ZI_NO_INDEX ||
                  used + in_record(l, flat, GRANULE) > l->tuning.extent_bytes ||
                  l->chunks[p - 1].count ==
                      zi_extent_count_max(l, &l->flats[l->chunks[p - 1].flat]));
            range = chunk->extent;
            used = 0;
            CHECK_EQ(l->state.extents[range].at, at);
            CHECK(l->state.extents[range].bytes % PAGE == 0 && l->state.extents[range].bytes != 0);
            CHECK(l->state.extents[range].bytes <= l->tuning.extent_bytes);
            at += l->state.extents[range].bytes;
        }
        for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
            const uint64_t bytes = chunk->count * state_bytes(l, flat, role);
            if (l->options.tier[role] == ZERO_TIER_DISK && bytes != 0) {
                CHECK_EQ(chunk->at[role - ZERO_ROLE_MASTER], used);
                used += up(bytes, 256);
            }
        }
        CHECK(used <= l->state.extents[range].bytes);
    }
    CHECK_EQ(l->state.extent_count, range + 1);
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        if (l->options.tier[role] == ZERO_TIER_DISK) {
            at = check_extents(l, (zero_role)role, at);
        }
    }
    CHECK_EQ(l->memory.tier_bytes[ZERO_TIER_DISK], at);
}

/* A role with an arena: its chunks lie in order and do not overlap. */
static void check_arenas(const zi_layout *l)
{
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        uint64_t end = 0;
        if (l->options.tier[role] == ZERO_TIER_DISK) {
            continue;
        }
        for (uint32_t p = 0; p < l->chunk_count; p++) {
            const zi_chunk *chunk = &l->chunks[p];
            const uint64_t each = state_bytes(l, &l->flats[chunk->flat], role);
            const uint64_t at = chunk->at[role - ZERO_ROLE_MASTER];
            if (each == 0) {
                continue;
            }
            CHECK(chunk->first != 0 ? at == end : at >= end && at % 256 == 0);
            end = at + chunk->count * each;
        }
        CHECK_EQ(l->memory.bytes[role], up(end, PAGE));
    }
}

/* Of 64 KiB each, wherever a record begins. */
static uint64_t checksums_of(const zi_extent *ranges, uint32_t count)
{
    uint64_t sums = 0;
    for (uint32_t r = 0; r < count; r++) {
        sums += ranges[r].bytes != 0 ? up(ranges[r].bytes, 65536) / 65536 + 1 : 0;
    }
    return sums;
}

/* Of all that is on disk, those of speculative updates too; each ring has its own. */
static void check_checksums(const zi_layout *l)
{
    uint64_t sums =
        checksums_of(l->state.extents, l->state.extent_count) * (l->speculative_at != 0 ? 2 : 1);
    for (int role = 0; role < ZI_OFFLOAD_ROLES && !l->tuning.disk_unchecked; role++) {
        CHECK_EQ(l->offload[role].sums_at, sums);
        sums += l->offload[role].sum_count;
    }
    CHECK_EQ(l->sums_bytes, l->tuning.disk_unchecked ? 0 : up(8 * sums, PAGE));
}

static void check_sums(const zi_layout *l)
{
    uint64_t tiers[ZERO_TIER_COUNT] = {0};
    uint64_t largest = 0;
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = role >= ZERO_ROLE_IO_WINDOW ? ZERO_TIER_HOST
                               : role < ZI_SHARD_ROLES     ? l->options.tier[role]
                                                           : ZERO_TIER_DEVICE;
        tiers[tier] += l->memory.bytes[role];
    }
    for (uint32_t r = 0; r < l->state.extent_count; r++) {
        largest = l->state.extents[r].bytes > largest ? l->state.extents[r].bytes : largest;
    }
    const uint64_t buffers =
        l->tuning.io_window < l->state.extent_count ? l->tuning.io_window : l->state.extent_count;
    uint64_t ring = buffers * largest;
    for (int role = 0; role < ZI_OFFLOAD_ROLES; role++) {
        ring += l->offload[role].window_buffers * l->offload[role].extent_bytes_max;
    }
    check_checksums(l);
    CHECK_EQ(l->memory.bytes[ZERO_ROLE_IO_WINDOW], ring + l->sums_bytes);
    CHECK_EQ(zi_role_arena_bytes(l, ZERO_ROLE_IO_WINDOW), ring);
    CHECK_EQ(l->memory.tier_bytes[ZERO_TIER_DEVICE], tiers[ZERO_TIER_DEVICE]);
    CHECK_EQ(l->memory.tier_bytes[ZERO_TIER_HOST], tiers[ZERO_TIER_HOST]);
    /* Roles on disk are given in whole pages, records as they are. */
    CHECK(l->memory.tier_bytes[ZERO_TIER_DISK] + 3 * (uint64_t)PAGE >= tiers[ZERO_TIER_DISK]);
    CHECK_EQ(l->memory.tier_bytes[ZERO_TIER_DEFAULT], 0);
    CHECK_EQ(l->memory.total_bytes, l->memory.tier_bytes[ZERO_TIER_DEVICE] +
                                        l->memory.tier_bytes[ZERO_TIER_HOST] +
                                        l->memory.tier_bytes[ZERO_TIER_DISK]);
}

TEST(chunks_of_random_models)
{
    static const uint32_t worlds[] = {1, 2, 3, 8, 128};
    uint32_t cut = 0;
    for (uint64_t i = 0; i < 60; i++) {
        zero_model *model = random_model(i);
        for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
            const zero_engine_options o = random_options();
            zi_layout *l = NULL;
            CHECK_OK(zi_layout_create(model, &o, worlds[w], true, NULL, &l));
            CHECK_OK(zi_layout_expand(l));
            check_tiling(l);
            check_records(l);
            check_arenas(l);
            check_sums(l);
            cut += l->chunk_count > l->flat_count;
            zi_layout_destroy(l);
        }
        zero_model_destroy(model);
    }
    CHECK(cut > 20);
}

/* at: of the budget in the options. */
static void keep_budget(const zero_model *model, zero_tier tier, size_t at, const char *text)
{
    zero_engine_options o = fresh_options();
    o.tier[ZERO_ROLE_MASTER] = ZERO_TIER_DISK;
    o.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_HOST;
    tuning.extent_bytes = 65536; /* else there would be a smaller I/O window */
    tuning.io_window = 4;
    zero_plan *plan = plan_of(model, &o, 2);
    const uint64_t need = plan_memory(plan).tier_bytes[tier];
    zero_plan_destroy(plan);
    CHECK(need > 1);
    memcpy((char *)&o + at, &need, sizeof need);
    zero_plan_destroy(plan_of(model, &o, 2));
    const uint64_t less = need - 1;
    memcpy((char *)&o + at, &less, sizeof less);
    refuse_plan(model, &o, 2, ZERO_ERR_OUT_OF_MEMORY, text);
    CHECK_SAID("short by 1;");
}

static zero_model *plain_model(void)
{
    return model_of(200000, ZERO_DTYPE_BF16);
}

TEST(budgets_of_every_tier)
{
    zero_model *model = plain_model();
    keep_budget(model, ZERO_TIER_DEVICE, offsetof(zero_engine_options, device_budget_bytes),
                "device_budget_bytes");
    keep_budget(model, ZERO_TIER_HOST, offsetof(zero_engine_options, host_budget_bytes),
                "host_budget_bytes");
    keep_budget(model, ZERO_TIER_DISK, offsetof(zero_engine_options, disk_budget_bytes),
                "disk_budget_bytes");
    zero_model_destroy(model);
}

/* True if plans of I/O windows are of the I/O window alone, without checksums. */
static bool unchecked = true;

static zero_engine_options disk_options(void)
{
    zero_engine_options o = fresh_options();
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        o.tier[role] = ZERO_TIER_DISK;
    }
    tuning.disk_unchecked = unchecked;
    return o;
}

/* The tuning of the I/O window that a plan makes with this much host memory; what is not 0 is
 * given. */
static zero_tuning ring_of(const zero_model *model, uint64_t budget, uint64_t extent_bytes,
                           uint32_t depth)
{
    zero_engine_options o = disk_options();
    o.host_budget_bytes = budget;
    tuning.extent_bytes = extent_bytes;
    tuning.io_window = depth;
    zero_plan *plan = plan_of(model, &o, 1);
    CHECK(budget == 0 || plan_memory(plan).tier_bytes[ZERO_TIER_HOST] <= budget);
    const zero_tuning used = plan_tuning(plan);
    zero_plan_destroy(plan);
    return used;
}

static void check_ring(zero_tuning used, uint64_t extent_bytes, uint32_t depth)
{
    CHECK_EQ(used.extent_bytes, extent_bytes);
    CHECK_EQ(used.io_window, depth);
}

TEST(the_ring_is_what_the_budget_allows)
{
    const uint64_t mib = UINT64_C(1) << 20;
    zero_model *model = model_of(10000000, ZERO_DTYPE_BF16);
    check_ring(ring_of(model, 0, 0, 0), 8 * mib, 4);
    check_ring(ring_of(model, 32 * mib, 0, 0), 8 * mib, 4);
    check_ring(ring_of(model, 32 * mib - 1, 0, 0), 8 * mib, 3);
    check_ring(ring_of(model, 24 * mib - 1, 0, 0), 4 * mib, 3);
    check_ring(ring_of(model, 3 * mib, 0, 0), mib, 3);
    check_ring(ring_of(model, 3 * mib / 4, 0, 0), mib / 4, 3);
    /* Given values stay. */
    check_ring(ring_of(model, 20 * mib, 0, 4), 4 * mib, 4);
    check_ring(ring_of(model, 12 * mib, 4 * mib, 0), 4 * mib, 3);
    zero_engine_options o = disk_options();
    o.host_budget_bytes = 3 * mib / 4 - 1;
    refuse_plan(model, &o, 1, ZERO_ERR_OUT_OF_MEMORY, "short by 1;");
    tuning.extent_bytes = 8 * mib;
    o.host_budget_bytes = 24 * mib - 1;
    refuse_plan(model, &o, 1, ZERO_ERR_OUT_OF_MEMORY, "short by 1;");
    /* Checksums count too: 15 ranges have 15480 bytes of them, in 4 pages. */
    unchecked = false;
    check_ring(ring_of(model, 32 * mib, 0, 0), 8 * mib, 3);
    check_ring(ring_of(model, 32 * mib + 4 * PAGE - 1, 0, 0), 8 * mib, 3);
    check_ring(ring_of(model, 32 * mib + 4 * PAGE, 0, 0), 8 * mib, 4);
    zero_model_destroy(model);
}

static void check_table(const zero_model *model, const zero_engine_options *o, uint32_t world,
                        const char *text, bool expected)
{
    char table[2048];
    zero_plan *plan = plan_of(model, o, world);
    CHECK(zero_plan_print(plan, table, sizeof table) < sizeof table);
    if ((strstr(table, text) != NULL) != expected) {
        TEST_FAIL("%s \"%s\" in:\n%s", expected ? "no" : "there is", text, table);
    }
    zero_plan_destroy(plan);
}

static void check_text(const zero_model *model, const zero_engine_options *o, const char *expected)
{
    check_table(model, o, 2, expected, true);
}

/* 200000 elements over two ranks in slices of whole granules: 100096 of 12 bytes each; a range of
 * 64 KiB holds 5376 of them. */
TEST(the_table_names_tiers_and_traffic)
{
    zero_model *model = plain_model();
    zero_engine_options o = fresh_options();
    check_text(model, &o, "master       device           2");
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        o.tier[role] = ZERO_TIER_DISK;
    }
    tuning.extent_bytes = 65536;
    check_text(model, &o, "master       disk             2");
    check_text(model, &o, "io window    host             1             266240");
    /* 18 ranges of 65536 bytes and one of 39936, in pages 40960. */
    check_text(model, &o, "sum          disk                          1220608");
    check_text(
        model, &o,
        "disk: a step reads at most 983040 bytes and writes 1220608, in 19 extents of at most "
        "65536, 4 of them in memory\n");
    o.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_HOST;
    check_text(model, &o, "moment1      host             2");
    zero_model_destroy(model);
}

/* 100096 elements of 2 bytes in 49 pages, and of 4 bytes in 98. Gradients are read by the step,
 * parameters written. */
TEST(the_table_counts_passes_and_micro_steps)
{
    zero_model *model = plain_model();
    zero_engine_options o = fresh_options();
    o.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DISK;
    o.tier[ZERO_ROLE_GRAD] = ZERO_TIER_DISK;
    check_text(model, &o, "param        disk             2             200704");
    check_text(model, &o, "grad         disk             2             401408");
    check_text(model, &o, "io window    host             1             606208");
    check_text(model, &o, "disk: a step reads at most 401408 bytes and writes 200704");
    check_text(model, &o, "disk: a pass reads at most 200704 bytes of parameters\n");
    check_text(model, &o, "disk: a micro-step writes 401408 bytes of gradients;");
    o.tier[ZERO_ROLE_GRAD] = ZERO_TIER_HOST;
    o.master_dtype = ZERO_DTYPE_NONE; /* so the update reads parameters */
    check_text(model, &o, "disk: a step reads at most 200704 bytes and writes 200704");
    zero_model_destroy(model);
}

static void refuse(zero_engine_options o, zero_status status, const char *text)
{
    zero_model *model = plain_model();
    refuse_plan(model, &o, 2, status, text);
    zero_model_destroy(model);
}

/* An embedding before layers of 1 MiB each, fp32. */
static zero_model *model_of_layers(uint64_t embedding_mib, uint32_t layers)
{
    zero_model *model = model_of(embedding_mib << 18, ZERO_DTYPE_F32);
    for (uint32_t u = 1; u <= layers; u++) {
        add_unit(model, test_text("layer%u", u), 1 << 18, ZERO_DTYPE_F32);
    }
    return model;
}

/* State on disk passes through memory in extents, whatever a unit's size; slots do not. */
TEST(the_table_says_what_a_large_unit_costs)
{
    zero_engine_options o = fresh_options();
    o.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DISK;
    o.tier[ZERO_ROLE_GRAD] = ZERO_TIER_DISK;
    tuning.extent_bytes = 1 << 20;
    zero_model *model = model_of_layers(12, 4);
    /* With one slot of the embedding's and three of the layers'; gradients have two of these. */
    check_table(model, &o, 1,
                "param: 16.00 MiB are on disk instead of in memory, and take 20.00 MiB of memory "
                "on their way: a window of 5 extents of at most 1.00, and slots of whole units\n"
                "param: on disk it takes more memory than it frees",
                true);
    check_table(model, &o, 1,
                "grad: 16.00 MiB are on disk instead of in memory, and take 19.00 MiB", true);
    /* On two ranks slots are there anyway, and gradients are reduced into a buffer. */
    check_table(model, &o, 2, "param: 8.00 MiB are on disk instead of in memory, and take 5.00 MiB",
                true);
    check_table(model, &o, 2, "grad: 8.00 MiB are on disk instead of in memory, and take 11.00 MiB",
                true);
    zero_model_destroy(model);
    model = model_of_layers(1, 31);
    check_table(model, &o, 1,
                "param: 32.00 MiB are on disk instead of in memory, and take 8.00 MiB", true);
    check_table(model, &o, 1, "more memory than it frees", false);
    zero_model_destroy(model);
}

/* The public GPT-2 124M, with all roles on disk and one rank: slots of its embedding of 50257
 * tokens and of 12 layers are the most of it. */
TEST(gpt2_on_disk_takes_less_than_700_mib)
{
    static const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16};
    for (int d = 0; d < 2; d++) {
        zero_engine_options o = zero_engine_options_init();
        zero_model *model = model_of(51281 * 768, dtypes[d]);
        for (uint32_t u = 1; u <= 12; u++) {
            add_unit(model, test_text("layer%u", u), 12 * 768 * 768, dtypes[d]);
        }
        for (int role = 0; role < ZI_SHARD_ROLES; role++) {
            o.tier[role] = ZERO_TIER_DISK;
        }
        zero_plan *plan = plan_of(model, &o, 1);
        const zero_memory memory = plan_memory(plan);
        CHECK(memory.tier_bytes[ZERO_TIER_DEVICE] + memory.tier_bytes[ZERO_TIER_HOST] <
              UINT64_C(700) << 20);
        zero_plan_destroy(plan);
        zero_model_destroy(model);
    }
}

TEST(tiers_that_cannot_be)
{
    zero_engine_options o = fresh_options();
    o.device = ZERO_DEVICE_CUDA;
    tuning.nccl_memory = ZERO_NCCL_MEMORY_REGISTERED;
    o.tier[ZERO_ROLE_PARAM] = ZERO_TIER_HOST;
    refuse(o, ZERO_ERR_UNSUPPORTED, "options.tier of param is host and nccl_memory 1");
    o.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DEVICE;
    o.tier[ZERO_ROLE_GRAD] = ZERO_TIER_HOST;
    refuse(o, ZERO_ERR_UNSUPPORTED, "options.tier of grad is host and nccl_memory 1");
    o.tier[ZERO_ROLE_GRAD] = ZERO_TIER_DISK;
    refuse(o, ZERO_ERR_UNSUPPORTED, "options.tier of grad is disk");
    o = fresh_options();
    o.tier[ZERO_ROLE_MOMENT2] = (zero_tier)4;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "options.tier of moment2 is 4");
    o.tier[ZERO_ROLE_MOMENT2] = (zero_tier)-1;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "options.tier of moment2 is -1");
    o = fresh_options();
    tuning.extent_bytes = 4097;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "extent_bytes 4097");
    tuning.extent_bytes = UINT64_MAX - 4095;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "extent_bytes");
    o = fresh_options();
    tuning.io_window = 2;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "io_window 2");
    tuning.io_window = 65;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "io_window 65");
    o = fresh_options();
    o.disk_directory_count = 17;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "disk_directory_count 17");
    o = fresh_options();
    tuning.io_depth = 1025;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "io_depth 1025");
    o = fresh_options();
    static const uint32_t weights[] = {3, 0};
    tuning.disk_weights = weights;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "disk_directory_count 0");
    o.disk_directory_count = 2;
    refuse(o, ZERO_ERR_INVALID_ARGUMENT, "disk_weights[1] is 0");
}
