/* Owns the tests of the time of a step: what moves is what an engine moves, times are worked out by
 * hand, and what cannot be timed is refused. */
#include "folders.h"
#include "harness.h"
#include "reads.h"

#include "layout/layout.h"
#include "plan/estimate_traffic.h"
#include "toy.h"
#include "zero/planner.h"

#define MICRO_STEPS 3

/* ---- against an engine that runs ---- */

static zero_status compare_step(toy_trainer *trainer)
{
    const zi_layout *layout = zero_engine_plan(trainer->engine)->layout;
    const zi_traffic t = zi_traffic_of(layout, trainer->run->micro_steps);
    const double gathers = t.hops[ZI_HOP_GATHER].bytes + t.hops[ZI_HOP_UPDATED].bytes;
    const double reductions =
        t.hops[ZI_HOP_SCATTER].bytes + t.hops[ZI_HOP_BOUNDARY].bytes + t.hops[ZI_HOP_REPLICA].bytes;
    for (uint32_t warm = 0; warm < 4; warm++) {
        TOY_TRY(toy_step(trainer));
    }
    const zero_stats before = engine_stats(trainer->engine);
    TOY_TRY(toy_step(trainer));
    const zero_stats after = engine_stats(trainer->engine);
    const double gathered = (double)(after.gather_bytes - before.gather_bytes);
    const double reduced = (double)(after.reduce_bytes - before.reduce_bytes);
    if (gathers != gathered || reductions != reduced) {
        TEST_FAIL("param %u, grad %u, optimizer %u: %.0f gathered (%.0f), %.0f reduced (%.0f)",
                  layout->shardings[0].param, layout->shardings[0].grad,
                  layout->shardings[0].optimizer, gathered, gathers, reduced, reductions);
    }
    return ZERO_OK;
}

/* Every stage and every hybrid, with fewer slots than units and with more. */
static void compare_all(zero_dtype dtype, zero_dtype wire, uint32_t micro_steps)
{
    static const uint32_t slots[] = {1, 2, 3, 20};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        toy_run run = toy_run_equal(9, 700, dtype);
        run.micro_steps = micro_steps;
        run.tuning.wire_dtype = wire;
        run.tuning.gather_dtype = wire;
        run.tuning.param_slots = slots[i];
        run.tuning.no_prefetch = slots[i] == 1;
        CHECK_OK(toy_on_ways(4, &run, compare_step, NULL));
        run.tuning.accumulation = ZERO_ACCUMULATION_LOCAL;
        CHECK_OK(toy_on_stages(4, &run, compare_step, NULL));
    }
}

TEST(an_engine_moves_as_many_bytes)
{
    compare_all(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, 1);
    compare_all(ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT, MICRO_STEPS);
    compare_all(ZERO_DTYPE_BF16, ZERO_DTYPE_INT8_BLOCK, 1);
    compare_all(ZERO_DTYPE_BF16, ZERO_DTYPE_INT8_BLOCK, MICRO_STEPS);
}

#define DISK_STEPS 8

/* Not everything that is read or written again has left the window since; and a step's last writes
 * may be counted with the next one's. */
static zero_status compare_disk(toy_trainer *trainer)
{
    const zi_layout *layout = zero_engine_plan(trainer->engine)->layout;
    const zi_traffic t = zi_traffic_of(layout, trainer->run->micro_steps);
    for (uint32_t warm = 0; warm < 4; warm++) {
        TOY_TRY(toy_step(trainer));
    }
    const zero_stats before = engine_stats(trainer->engine);
    for (uint32_t step = 0; step < DISK_STEPS; step++) {
        TOY_TRY(toy_step(trainer));
    }
    const zero_stats after = engine_stats(trainer->engine);
    const double read =
        (double)(after.disk_read_bytes - before.disk_read_bytes) / DISK_STEPS / t.disk_read;
    const double written =
        (double)(after.disk_write_bytes - before.disk_write_bytes) / DISK_STEPS / t.disk_write;
    if (written > 1.05 || written < 0.85 || read > 1.05 || read < 0.85) {
        TEST_FAIL("of what is planned %.3f was read and %.3f written", read, written);
    }
    return ZERO_OK;
}

TEST(a_disk_moves_about_as_many_bytes)
{
    rig_folders(1, 0);
    toy_run run = toy_run_equal(12, 80000, ZERO_DTYPE_BF16);
    run.micro_steps = 2;
    toy_run_disk(&run, rig_paths, 1);
    run.tuning.extent_bytes = 32768; /* no padding to speak of */
    toy_run_tiers(&run, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    CHECK_OK(toy_on_ranks(2, &run, compare_disk, NULL));
    toy_run_tiers(&run, ZERO_ROLE_PARAM, ZERO_TIER_DISK);
    CHECK_OK(toy_on_ranks(2, &run, compare_disk, NULL));
}

/* ---- by hand ---- */

typedef struct machine {
    zero_transformer transformer;
    zero_cluster cluster;
    zero_engine_options options;
    zero_batch batch;
} machine;

/* Round rates, two nodes of eight. */
static machine machine_of(const char *model)
{
    machine m = {zero_transformer_init(), zero_cluster_init(), zero_engine_options_init(),
                 zero_batch_init()};
    CHECK_OK(zero_transformer_preset(model, &m.transformer));
    CHECK_OK(zero_cluster_preset("dgx-a100", &m.cluster));
    m.cluster.nodes = 2;
    m.cluster.device_flops = UINT64_C(100000000000000);
    m.cluster.device_permille = 500;
    m.cluster.attention_permille = 250;
    m.cluster.device_bytes_per_s = UINT64_C(1000000000000);
    m.cluster.local_bytes_per_s = UINT64_C(100000000000);
    m.cluster.local_latency_ns = 0;
    m.cluster.local_permille = 0; /* all of it */
    m.cluster.fabric_bytes_per_s = UINT64_C(80000000000);
    m.cluster.fabric_permille = 500;
    m.cluster.fabric_latency_ns = 0;
    m.options.device = ZERO_DEVICE_CUDA;
    return m;
}

static zero_estimate estimate_of(const machine *m)
{
    zero_estimate e = zero_estimate_init();
    CHECK_OK(zero_estimate_of(&m->transformer, &m->cluster, &m->options, &m->batch, &e));
    return e;
}

static double term(const zero_estimate *e, zero_estimate_term which)
{
    return (double)e->term_ns[which] / 1e9;
}

/* Matrices at 50 TFLOP/s, attention at 25, whose backward is two and a half times its forward. What
 * is recomputed is forward without the last of a block's matrices, a third of it in GPT. */
TEST(products_take_their_operations)
{
    machine m = machine_of("gpt3-175b");
    const double blocks = 2048.0 * 96 * 2 * 12 * 12288.0 * 12288;
    const double head = 2048.0 * 2 * 50257.0 * 12288;
    const double attention = 2048.0 * 96 * 4 * 2048 * 12288.0;
    zero_estimate e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS),
               3 * (blocks + head) / 50e12 + 3.5 * attention / 25e12, 1e-6);
    CHECK_NEAR(e.flops, 3 * (blocks + head + attention), 1e-9 * e.flops);
    m.batch.recompute = 1;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS),
               (3 * (blocks + head) + blocks * 2 / 3) / 50e12 + 4.5 * attention / 25e12, 1e-6);
    m.cluster.attention_permille = 0; /* as matrices */
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS),
               (3 * (blocks + head) + blocks * 2 / 3 + 4.5 * attention) / 50e12, 1e-6);
}

/* Two bytes a parameter, gathered twice and reduced once, but for the few units that stay in their
 * slots. Between nodes go sums, in four bytes. A node receives half of them from the other at 40
 * GB/s, and each of its GPUs an eighth. */
TEST(links_carry_what_is_split_over_them)
{
    machine m = machine_of("gpt3-175b");
    const double bytes = 2 * 174604259328.0;
    zero_estimate e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_GATHERS), 2 * bytes / 2 / 40e9, 0.4);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_REDUCTIONS), 2 * bytes / 2 / 40e9, 0.05);
    CHECK_NEAR((double)e.fabric_bytes, 4 * bytes / 2 / 8, 0.03 * bytes);
    CHECK_NEAR((double)e.local_bytes, 3 * bytes * 15 / 16, 0.1 * bytes);
    m.batch.micro_steps = 4;
    const zero_estimate four = estimate_of(&m);
    CHECK_NEAR(term(&four, ZERO_ESTIMATE_REDUCTIONS), 4 * term(&e, ZERO_ESTIMATE_REDUCTIONS), 1e-6);
    CHECK_EQ(four.term_ns[ZERO_ESTIMATE_UPDATE], e.term_ns[ZERO_ESTIMATE_UPDATE]);
    CHECK_EQ(four.tokens, 4 * e.tokens);
    CHECK_EQ(e.tokens, 16 * 2048);
    /* In a node: gathers stay there, and only an eighth of the sums leaves it, in fp32, once. */
    m.options.shard_group = 8;
    m.batch.micro_steps = 1;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_GATHERS), 2 * bytes * 7 / 8 / 100e9, 0.2);
    CHECK_NEAR((double)e.fabric_bytes, 2 * 2 * bytes / 8 / 2, 0.001 * bytes);
}

/* Optimizers with rates by tensor read all that they measure once more, LAMB the moments too: of
 * bf16 parameters and gradients with fp32 masters and moments. No engine takes them with a model in
 * several parts. */
TEST(rates_by_tensor_read_twice)
{
    machine m = machine_of("llama-13b");
    const double part = 13015864320.0 / 16;
    zero_estimate e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_UPDATE), part * 30 / 1e12, 1e-4);
    m.options.optimizer = ZERO_OPTIMIZER_LAMB;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_UPDATE), part * (30 + 16) / 1e12, 1e-4);
    m.options.optimizer = ZERO_OPTIMIZER_LARS;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_UPDATE), part * (22 + 8) / 1e12, 1e-4);
    m.transformer.tensor_parallel = 2;
    CHECK_FAILS(
        zero_estimate_of(&m.transformer, &m.cluster, &m.options, &m.batch, &e),
        ZERO_ERR_UNSUPPORTED,
        "tensor_parallel 2, pipeline_parallel 1, and an optimizer that needs the norm of each");
}

/* Bytes from a GPU to the host and back: of each element the gradient's sum and the parameter, and
 * fp32 master and moments both ways where the GPU updates them over the bus. */
TEST(offloaded_state_goes_over_the_host_link)
{
    machine m = machine_of("llama-13b");
    zero_tuning tuning = zero_tuning_init();
    const double part = 13015864320.0 / 16;
    CHECK_EQ(estimate_of(&m).host_link_bytes, 0);
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        m.options.tier[role] = ZERO_TIER_HOST;
    }
    zero_estimate e = estimate_of(&m);
    CHECK_NEAR((double)e.host_link_bytes, part * 24, part * 0.01);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_UPDATE), part * 30 / 1e12, 1e-3);
    tuning.updater = ZERO_UPDATER_CPU;
    m.options.tuning = &tuning;
    e = estimate_of(&m);
    CHECK_NEAR((double)e.host_link_bytes, part * 6, part * 0.01);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_UPDATE), part * 30 * 8 / 410e9, 1e-2);
    tuning.updater = ZERO_UPDATER_DEFAULT;
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        m.options.tier[role] = ZERO_TIER_DISK;
    }
    e = estimate_of(&m);
    CHECK_NEAR((double)e.disk_write_bytes, part * 12, part * 0.01);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_DISK_WRITES), part * 12 * 8 / 25e9, 0.02);
}

/* Ten times what forward keeps where kernels are fused, but for the loss in fp32, and four times
 * again where it is computed twice; fused ones move half of it. */
TEST(elements_take_the_bytes_that_are_kept)
{
    machine m = machine_of("llama-7b");
    uint64_t kept = 0;
    m.batch.fused = 1;
    CHECK_OK(zero_activation_bytes(&m.transformer, &m.batch, &kept));
    const double moved = ((double)kept - 4096.0 * 32000 * 8) / 1e12;
    m.batch.logit_rows = 1; /* all of them are computed */
    zero_estimate e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ELEMENTS), 5 * moved, 1e-6);
    m.batch.fused = 0;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ELEMENTS), 10 * moved, 1e-6);
    m.batch.recompute = 1;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ELEMENTS), 14 * moved, 1e-6);
    m.batch.recompute = 2; /* every second block */
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ELEMENTS), 12 * moved, 1e-6);
}

/* Half of what recomputing all adds to products. */
TEST(every_second_block_may_be_computed_again)
{
    machine m = machine_of("gpt3-175b");
    double products[3];
    for (uint32_t i = 0; i < 3; i++) {
        m.batch.recompute = i;
        const zero_estimate e = estimate_of(&m);
        products[i] = term(&e, ZERO_ESTIMATE_PRODUCTS);
    }
    CHECK(products[1] > products[0]);
    CHECK_NEAR(products[2] - products[0], (products[1] - products[0]) / 2, 1e-6);
}

/* 96 heads' scores of 2048 keys, 16 bits of each, ten times; backward does not compute them again.
 */
TEST(stored_scores_are_moved)
{
    machine m = machine_of("gpt3-175b");
    const double attention = 2048.0 * 96 * 4 * 2048 * 12288.0;
    const zero_estimate flash = estimate_of(&m);
    m.batch.stored_attention = 1;
    const zero_estimate stored = estimate_of(&m);
    CHECK_NEAR(term(&flash, ZERO_ESTIMATE_PRODUCTS) - term(&stored, ZERO_ESTIMATE_PRODUCTS),
               attention / 2 / 25e12, 1e-6);
    CHECK_NEAR(term(&stored, ZERO_ESTIMATE_ELEMENTS) - term(&flash, ZERO_ESTIMATE_ELEMENTS),
               10 * 2 * 96.0 * 96 * 2048 * 2048 / 1e12, 1e-6);
}

/* ---- what to reckon with ---- */

/* Gathers and reductions of stage 3 lie within compute: two fifths of them are spared. On links
 * that are a thousand times slower compute has no room for more of them than it lasts. */
TEST(collectives_hide_behind_compute)
{
    machine m = machine_of("gpt3-175b");
    zero_estimate e = estimate_of(&m);
    const double links = term(&e, ZERO_ESTIMATE_GATHERS) + term(&e, ZERO_ESTIMATE_REDUCTIONS);
    const double compute = term(&e, ZERO_ESTIMATE_PRODUCTS) + term(&e, ZERO_ESTIMATE_ELEMENTS);
    CHECK(links < compute);
    CHECK_NEAR((double)e.expected_ns / 1e9, (double)e.high_ns / 1e9 - 0.4 * links, 1e-6);
    m.cluster.fabric_bytes_per_s /= 1000;
    e = estimate_of(&m);
    CHECK_NEAR((double)e.expected_ns / 1e9, (double)e.high_ns / 1e9 - 0.4 * compute, 1e-6);
}

/* Stage 1 sends once a step, and has one micro-step to hide in, however many there are. */
TEST(what_is_sent_once_hides_in_one_micro_step)
{
    machine m = machine_of("llama-7b");
    m.options.stage = ZERO_STAGE_1;
    m.cluster.fabric_bytes_per_s /= 100;
    m.batch.micro_steps = 8;
    const zero_estimate e = estimate_of(&m);
    const double compute =
        (term(&e, ZERO_ESTIMATE_PRODUCTS) + term(&e, ZERO_ESTIMATE_ELEMENTS)) / 8;
    CHECK(term(&e, ZERO_ESTIMATE_REDUCTIONS) > compute);
    CHECK_NEAR((double)(e.high_ns - e.expected_ns) / 1e9, 0.4 * compute, 1e-6);
}

/* Parameters on the host are copied while blocks are computed, and state is not. */
TEST(copies_of_passes_hide_behind_compute)
{
    machine m = machine_of("llama-7b");
    m.options.stage = ZERO_STAGE_3;
    m.cluster.nodes = 1;
    m.cluster.ranks_per_node = 1;
    m.cluster.host_link_latency_ns = 0;
    for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
        m.options.tier[role] = ZERO_TIER_HOST;
    }
    const zero_estimate state = estimate_of(&m);
    CHECK_EQ(state.expected_ns, state.high_ns);
    m.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_HOST;
    const zero_estimate all = estimate_of(&m);
    CHECK(all.high_ns > state.high_ns && all.expected_ns < all.high_ns);
    m.cluster.host_link_bytes_per_s /= 1000;
    const zero_estimate slow = estimate_of(&m);
    const double compute =
        term(&slow, ZERO_ESTIMATE_PRODUCTS) + term(&slow, ZERO_ESTIMATE_ELEMENTS);
    CHECK_NEAR((double)(slow.high_ns - slow.expected_ns) / 1e9, compute, 1e-6);
}

/* 96 blocks in three slots are gathered 189 times, embedding and head once each: over a ring of two
 * nodes of eight. 97 buckets, because the head is a norm, which shares that of the last block. */
TEST(a_collective_waits_at_each_hop)
{
    machine m = machine_of("gpt3-175b");
    const zero_estimate before = estimate_of(&m);
    m.cluster.fabric_latency_ns = 20000;
    m.cluster.local_latency_ns = 1000;
    const zero_estimate after = estimate_of(&m);
    const double hops = 1 * 20000 + 7 * 1000;
    CHECK_NEAR(
        (double)(after.term_ns[ZERO_ESTIMATE_GATHERS] - before.term_ns[ZERO_ESTIMATE_GATHERS]),
        191 * hops, 2);
    CHECK_NEAR((double)(after.term_ns[ZERO_ESTIMATE_REDUCTIONS] -
                        before.term_ns[ZERO_ESTIMATE_REDUCTIONS]),
               97 * hops, 2);
    CHECK_EQ(after.low_ns, before.low_ns);
}

TEST(terms_add_up_to_the_upper_end)
{
    const char *model = NULL;
    for (uint32_t i = 0; (model = zero_transformer_preset_name(i)) != NULL; i++) {
        const machine m = machine_of(model);
        const zero_estimate e = estimate_of(&m);
        uint64_t sum = 0;
        for (int k = 0; k < ZERO_ESTIMATE_TERMS; k++) {
            sum += e.term_ns[k];
            CHECK(e.term_ns[k] <= e.term_ns[e.bound]);
            CHECK(zero_estimate_term_name((zero_estimate_term)k) != NULL);
        }
        CHECK_EQ(sum, e.high_ns);
        CHECK(e.low_ns > 0 && e.low_ns < e.high_ns);
        CHECK(e.low_ns <= e.expected_ns && e.expected_ns <= e.high_ns);
    }
}

/* The interval is one of shares of what is expected, of three kinds of runs, each wider than the
 * one before; no end of it is below the lower end. */
TEST(likely_ends_are_further_apart_where_runs_differ_more)
{
    machine m = machine_of("llama-13b");
    double shares[3][2];
    for (int kind = 0; kind < 3; kind++) {
        m.batch.fused = kind == 0;
        m.options.tier[ZERO_ROLE_MOMENT1] = kind == 2 ? ZERO_TIER_HOST : ZERO_TIER_DEVICE;
        const zero_estimate e = estimate_of(&m);
        shares[kind][0] = (double)e.likely_low_ns / (double)e.expected_ns;
        shares[kind][1] = (double)e.likely_high_ns / (double)e.expected_ns;
        CHECK(e.low_ns <= e.likely_low_ns && e.likely_low_ns < e.expected_ns);
        CHECK(shares[kind][1] > 1);
        for (int i = 0; i < 2 && kind > 0; i++) {
            CHECK(i == 0 ? shares[kind][i] < shares[kind - 1][i]
                         : shares[kind][i] > shares[kind - 1][i]);
        }
    }
    m.batch.micro_steps = 64;
    m.batch.samples = 16;
    const zero_estimate longer = estimate_of(&m);
    CHECK_NEAR((double)longer.likely_high_ns / (double)longer.expected_ns, shares[2][1], 1e-6);
}

/* At full rates the links carry the same bytes sooner. */
TEST(the_lower_end_is_the_busiest_resource)
{
    machine m = machine_of("gpt3-175b");
    m.cluster.fabric_bytes_per_s = 8000000000; /* 4 x 2 bytes a parameter, half of them */
    zero_estimate e = estimate_of(&m);
    CHECK_NEAR((double)e.low_ns / 1e9, 4 * 174604259328.0 / 8e9, 1.5);
    m.cluster.fabric_bytes_per_s = UINT64_C(8000000000000);
    e = estimate_of(&m);
    CHECK((double)e.low_ns / 1e9 < 2 * e.flops / 100e12);
    CHECK((double)e.low_ns / 1e9 > 0.9 * e.flops / 100e12);
}

/* ---- a mesh around the engine ---- */

/* 96 ranks of one node's GPUs and twelve stages, each of eight blocks. */
static machine mesh_of_175b(void)
{
    machine m = machine_of("gpt3-175b");
    m.cluster.nodes = 12;
    m.transformer.tensor_parallel = 8;
    m.transformer.pipeline_parallel = 12;
    m.batch.micro_steps = 24;
    m.batch.interleave = 2;
    return m;
}

/* Seconds of a block's passes on one of eight ranks: products; ten times what forward keeps, of
 * which 4 of 4 + 4 + 8 elements a width's are split; and four sums over seven eighths of a ring. */
static double block_of_175b(void)
{
    const double stream = 2048 * 12288.0;
    const double products = 3 * 2 * 12 * stream * 12288 / 50e12;
    const double attention = 3.5 * 4 * stream * 2048 / 25e12;
    const double kept = 2 * stream * (4 + 12.0 / 8) + 2048 * 4.0 * (4 + 12);
    return (products + attention) / 8 + 10 * kept / 1e12 + 4 * 2 * 7.0 / 8 * 2 * stream / 100e9;
}

TEST(a_mesh_takes_what_its_equations_say)
{
    const machine m = mesh_of_175b();
    const zero_estimate e = estimate_of(&m);
    const double stream = 2048 * 12288.0;
    const double head = 2 * stream * 50257;
    const double products = 3 * 2 * 12 * stream * 12288 * 8 / 50e12 + 3 * head / 50e12 +
                            3.5 * 4 * stream * 2048 * 8 / 25e12;
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS), 24 * products / 8, 1e-6);
    /* 34 sums a micro-step; two groups pass an eighth of the stream on, both ways, at 5 GB/s. */
    const double sums = 24 * 34 * 2 * 7.0 / 8 * 2 * stream / 100e9;
    const double passed = 24 * 2 * 2 * 2 * stream / 8 / 5e9;
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ACTIVATIONS), sums + passed, 1e-6);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_BUBBLE), 88 * block_of_175b() / 2, 1e-6);
    CHECK_EQ(e.tokens, 24 * 2048);
    CHECK_EQ(term(&e, ZERO_ESTIMATE_REDUCTIONS) == 0, 1); /* one sample at a time: nobody to add */
    CHECK_NEAR(e.flops * 96 /
                   (24 * (3 * 96 * (2 * 12 * stream * 12288 + 4 * stream * 2048) + 3 * head)),
               1.0, 1e-9);
}

/* 126 blocks in 16 stages: 14 stages of eight, and seven at each end, the last with the head, which
 * is less than a block. */
TEST(uneven_stages_wait_for_the_fullest)
{
    machine m = machine_of("llama-405b");
    m.cluster.nodes = 16;
    m.transformer.tensor_parallel = 8;
    m.transformer.pipeline_parallel = 16;
    const double tokens = 8192;
    const double matrices =
        2 * tokens * 16384 * (2 * 16384.0 + 2 * 8 * 128 + 3 * 53248.0); /* of a block */
    const double attention = 4 * tokens * 8192 * 16384;
    const zero_estimate e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS),
               8 * (3 * matrices / 50e12 + 3.5 * attention / 25e12) / 8, 1e-6);
}

/* Of 61 blocks over 16 stages the first has three without experts and the last three and the head;
 * those between have four with experts, and take longest. */
TEST(stages_that_differ_wait_for_the_slowest)
{
    machine m = machine_of("deepseek-v3");
    m.transformer.pipeline_parallel = 16;
    const double tokens = 4096;
    const double attention =
        7168 * 1536.0 + 1536.0 * 128 * 192 + 7168 * 576.0 + 512.0 * 128 * 256 + 128 * 128 * 7168.0;
    const double block = attention + 9 * 3 * 7168 * 2048.0 + 256 * 7168.0;
    const double pairs = 4096 * 128 * 320.0;
    const zero_estimate e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS),
               2 * tokens * 4 * (3 * block / 50e12 + 3.5 * pairs / 25e12), 1e-6);
}

/* Blocks whose halves read the same add up partial sums once in each pass. */
TEST(parallel_halves_add_up_once)
{
    machine m = machine_of("llama-7b");
    m.transformer.tensor_parallel = 8;
    m.batch.recompute = 1;
    zero_estimate e = estimate_of(&m);
    const double sum = 2 * 7.0 / 8 * 2 * 4096 * 4096 / 100e9;
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ACTIVATIONS), (32 * 5 + 2) * sum, 1e-6);
    m.transformer.flags |= ZERO_TRANSFORMER_PARALLEL;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ACTIVATIONS), (32 * 2 + 2) * sum, 1e-6);
    m.transformer.flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_POST_NORMS;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ACTIVATIONS), (32 * 6 + 2) * sum, 1e-6);
}

/* Ranks of tensor parallelism make all latents, each of them. */
TEST(latents_are_made_by_each_rank)
{
    machine m = machine_of("deepseek-v3");
    const zero_estimate one = estimate_of(&m);
    m.transformer.tensor_parallel = 8;
    const zero_estimate eight = estimate_of(&m);
    const double latents = 2 * 4096.0 * 61 * 7168 * (1536 + 576);
    CHECK_NEAR(8 * term(&eight, ZERO_ESTIMATE_PRODUCTS) - term(&one, ZERO_ESTIMATE_PRODUCTS),
               7 * 3 * latents / 50e12, 1e-6);
    CHECK_NEAR(eight.flops * 8 / one.flops, 1.0, 1e-9);
}

TEST(groups_of_blocks_that_differ_are_refused)
{
    machine m = machine_of("gpt-oss-20b");
    zero_estimate e = zero_estimate_init();
    m.transformer.pipeline_parallel = 4;
    m.batch.interleave = 2;
    CHECK_FAILS(zero_estimate_of(&m.transformer, &m.cluster, &m.options, &m.batch, &e),
                ZERO_ERR_INVALID_ARGUMENT, "differ in experts or windows");
}

/* Eight ranks share the experts, of which two nodes have four each: of what a token's two experts
 * are sent in forward and give back, and of the gradients of both, half crosses nodes, each rank's
 * over its own part of the fabric. Halves of matrices add up besides. */
TEST(tokens_go_to_their_experts_and_back)
{
    machine m = machine_of("mixtral-8x7b");
    zero_estimate e[2];
    m.transformer.tensor_parallel = 2;
    m.batch.sequence = 1024;
    e[0] = estimate_of(&m);
    m.transformer.expert_parallel = 8;
    e[1] = estimate_of(&m);
    const double sent = 32 * 2.0 * 1024 * 4096 * 2 / 2; /* half of a call's in each block */
    CHECK_NEAR(term(&e[1], ZERO_ESTIMATE_ACTIVATIONS) - term(&e[0], ZERO_ESTIMATE_ACTIVATIONS),
               4 * sent / 5e9, 1e-6);
    CHECK_NEAR(e[1].flops, e[0].flops, 1);
    CHECK_EQ(e[1].term_ns[ZERO_ESTIMATE_PRODUCTS], e[0].term_ns[ZERO_ESTIMATE_PRODUCTS]);
    CHECK(e[1].term_ns[ZERO_ESTIMATE_REDUCTIONS] < e[0].term_ns[ZERO_ESTIMATE_REDUCTIONS]);
    m.batch.recompute = 1;
    const zero_estimate again = estimate_of(&m);
    m.transformer.expert_parallel = 1;
    const zero_estimate alone = estimate_of(&m);
    CHECK_NEAR(term(&again, ZERO_ESTIMATE_ACTIVATIONS) - term(&alone, ZERO_ESTIMATE_ACTIVATIONS),
               5 * sent / 5e9, 1e-6);
    m.transformer.expert_parallel = 8;
    m.batch.wire = ZERO_WIRE_ZEROPP;
    CHECK_FAILS(zero_estimate_of(&m.transformer, &m.cluster, &m.options, &m.batch, &e[0]),
                ZERO_ERR_INVALID_ARGUMENT, "not planned with expert_parallel 8");
}

/* Sixteen ranks have a sixteenth of the tokens, which attend to all; they gather what others have
 * of keys and values twice and scatter once, over two nodes of one rank of each part. */
TEST(ranks_share_the_tokens_of_a_sample)
{
    machine m = machine_of("llama-405b");
    zero_estimate e[2];
    m.cluster.nodes = 16;
    m.transformer.tensor_parallel = 8;
    e[0] = estimate_of(&m);
    m.batch.context_parallel = 16;
    e[1] = estimate_of(&m);
    CHECK_EQ(16 * e[1].tokens, e[0].tokens);
    CHECK_NEAR(16 * e[1].flops / e[0].flops, 1.0, 1e-9);
    const double keys = 2.0 * 128 * 8192 * 2; /* one head of a rank, 16 bits */
    const double gathered = 126 * 3 * keys * 15 / 16 / 5e9;
    const double sums = (126 * 4 + 2) * 2 * 7.0 / 8 * 2 * 8192 / 16 * 16384 / 100e9;
    CHECK_NEAR(term(&e[1], ZERO_ESTIMATE_ACTIVATIONS), gathered + sums, 1e-6);
}

/* A 0 of the mesh is 1, bit for bit; whatever the mesh, all ranks together compute a token alike.
 */
TEST(a_mesh_of_one_is_none)
{
    static const char *const names[] = {"gpt2", "llama-70b", "mixtral-8x7b", "1t"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        machine m = machine_of(names[i]);
        m.batch.micro_steps = MICRO_STEPS;
        const zero_estimate none = estimate_of(&m);
        m.transformer.tensor_parallel = 1;
        m.transformer.pipeline_parallel = 1;
        m.transformer.expert_parallel = 1;
        m.batch.interleave = 1;
        m.batch.context_parallel = 1;
        m.batch.sequence_parallel = 1;
        const zero_estimate one = estimate_of(&m);
        CHECK_BYTES(&none, &one, sizeof none);
        CHECK_EQ(one.term_ns[ZERO_ESTIMATE_ACTIVATIONS] + one.term_ns[ZERO_ESTIMATE_BUBBLE], 0);
        m.transformer.tensor_parallel = 2;
        m.transformer.pipeline_parallel = 4;
        m.batch.context_parallel = 2;
        const zero_estimate mesh = estimate_of(&m);
        CHECK_NEAR(16 * mesh.flops / (double)mesh.tokens / (16 * one.flops / (double)one.tokens),
                   1.0, 1e-9);
    }
}

/* Whatever the mesh: terms add up, and stages that are fewer, or that interleave more, wait less.
 */
TEST(meshes_of_every_size_add_up)
{
    for (uint64_t t = 1; t <= 16; t *= 2) {
        for (uint64_t p = 1; p <= 48; p++) {
            machine m = machine_of("gpt3-175b");
            m.transformer.layers = 48;
            m.transformer.tensor_parallel = t;
            m.transformer.pipeline_parallel = p;
            m.cluster.nodes = 2 * p; /* t = 16 leaves the node */
            m.batch.micro_steps = 3;
            m.batch.recompute = (uint32_t)(p % 2);
            const zero_estimate plain = estimate_of(&m);
            uint64_t sum = 0;
            for (int k = 0; k < ZERO_ESTIMATE_TERMS; k++) {
                sum += plain.term_ns[k];
            }
            CHECK_EQ(sum, plain.high_ns);
            CHECK(plain.low_ns > 0 && plain.low_ns < plain.high_ns);
            CHECK_EQ(plain.term_ns[ZERO_ESTIMATE_BUBBLE] != 0, p > 1);
            CHECK_EQ(plain.term_ns[ZERO_ESTIMATE_ACTIVATIONS] != 0, p > 1 || t > 1);
            if (p > 1 && p < 48) {
                m.batch.interleave = 2;
                const zero_estimate two = estimate_of(&m);
                CHECK_NEAR(2.0 * (double)two.term_ns[ZERO_ESTIMATE_BUBBLE],
                           (double)plain.term_ns[ZERO_ESTIMATE_BUBBLE], 2);
            }
        }
    }
}

/* ---- what peers do ---- */

/* Wang et al., "ZeRO++", 2023, table 1: 3 M over the fabric, with sums in 16 bits, become 0.75 M.
 */
TEST(zeropp_sends_a_quarter)
{
    machine m = machine_of("gpt3-175b");
    const double bytes = 2 * 174604259328.0;
    const zero_estimate plain = estimate_of(&m);
    m.batch.wire = ZERO_WIRE_ZEROPP;
    const zero_estimate e = estimate_of(&m);
    CHECK_NEAR((double)e.fabric_bytes, 0.75 * bytes / 2 / 8, 0.01 * bytes / 8);
    CHECK_NEAR((double)plain.fabric_bytes, 4 * bytes / 2 / 8, 0.03 * bytes / 8);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_REDUCTIONS), term(&plain, ZERO_ESTIMATE_REDUCTIONS) / 8,
               1e-6);
    /* Kernels that quantise: 3 bytes of an element that forward gathers, 5 of one that is reduced.
     */
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ELEMENTS) - term(&plain, ZERO_ESTIMATE_ELEMENTS),
               8 * 174604259328.0 / 1e12, 0.02);
}

TEST(matrices_of_blocks_may_be_in_fp8)
{
    machine m = machine_of("gpt3-175b");
    zero_estimate e = zero_estimate_init();
    const double blocks = 2048.0 * 96 * 2 * 12 * 12288.0 * 12288;
    const double head = 2048.0 * 2 * 50257.0 * 12288;
    const double attention = 2048.0 * 96 * 4 * 2048 * 12288.0;
    m.batch.fp8 = 1;
    CHECK_FAILS(zero_estimate_of(&m.transformer, &m.cluster, &m.options, &m.batch, &e),
                ZERO_ERR_INVALID_ARGUMENT, "device_fp8_flops of the cluster is 0");
    m.cluster.device_fp8_flops = UINT64_C(200000000000000);
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS),
               3 * blocks / 100e12 + 3 * head / 50e12 + 3.5 * attention / 25e12, 1e-6);
    m.cluster.device_fp8_permille = 250;
    e = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_PRODUCTS),
               3 * blocks / 50e12 + 3 * head / 50e12 + 3.5 * attention / 25e12, 1e-6);
    /* Products read 7 widths of a block and have 9 of gradients, each cast with 4 bytes. */
    m.batch.fp8 = 0;
    const zero_estimate wide = estimate_of(&m);
    CHECK_NEAR(term(&e, ZERO_ESTIMATE_ELEMENTS) - term(&wide, ZERO_ESTIMATE_ELEMENTS),
               4 * (7 + 9) * 12288.0 * 96 * 2048 / 1e12, 1e-6);
}

/* Seven tenths of them, as far as they are sums of tensor parallelism. */
TEST(sums_may_overlap_with_their_products)
{
    machine m = machine_of("gpt3-175b");
    m.transformer.tensor_parallel = 8;
    const zero_estimate apart = estimate_of(&m);
    m.batch.mesh_overlap = 1;
    const zero_estimate e = estimate_of(&m);
    CHECK_EQ(e.high_ns, apart.high_ns);
    CHECK_NEAR((double)(apart.expected_ns - e.expected_ns) / 1e9,
               0.7 * term(&e, ZERO_ESTIMATE_ACTIVATIONS), 1e-6);
}

/* ---- refusals ---- */

TEST(a_rate_that_is_needed_is_named)
{
    static const char *const names[] = {"device_flops",           "device_permille",
                                        "device_bytes_per_s",     "local_bytes_per_s",
                                        "fabric_bytes_per_s",     "fabric_permille",
                                        "host_link_bytes_per_s",  "disk_read_bytes_per_s",
                                        "disk_write_bytes_per_s", "host_bytes_per_s"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        machine m = machine_of("gpt2");
        zero_estimate e = zero_estimate_init();
        const zero_cluster_field *field = zero_cluster_field_at(0);
        for (uint32_t k = 0; strcmp(field->name, names[i]) != 0; k++) {
            field = zero_cluster_field_at(k);
        }
        memset((unsigned char *)&m.cluster + field->offset, 0, sizeof(uint64_t));
        for (int role = ZERO_ROLE_MASTER; role <= ZERO_ROLE_MOMENT2; role++) {
            m.options.tier[role] = ZERO_TIER_DISK;
        }
        CHECK_FAILS(zero_estimate_of(&m.transformer, &m.cluster, &m.options, NULL, &e),
                    ZERO_ERR_INVALID_ARGUMENT, names[i]);
    }
}

TEST(a_rate_that_nothing_needs_may_be_missing)
{
    machine m = machine_of("gpt2");
    m.cluster.nodes = 1;
    m.cluster.fabric_bytes_per_s = 0;
    m.cluster.disk_read_bytes_per_s = 0;
    m.cluster.host_link_bytes_per_s = 0;
    CHECK(estimate_of(&m).high_ns > 0);
}

TEST(batches_of_too_many_micro_steps_are_refused)
{
    machine m = machine_of("gpt2");
    zero_estimate e = zero_estimate_init();
    m.batch.micro_steps = 65537;
    CHECK_FAILS(zero_estimate_of(&m.transformer, &m.cluster, &m.options, &m.batch, &e),
                ZERO_ERR_INVALID_ARGUMENT, "micro_steps of the batch is 65537");
}

TEST(steps_that_cannot_be_counted_are_refused)
{
    machine m = machine_of("1t");
    zero_estimate e = zero_estimate_init();
    m.batch.micro_steps = 65536;
    m.cluster.device_flops = 1;
    CHECK_FAILS(zero_estimate_of(&m.transformer, &m.cluster, &m.options, &m.batch, &e),
                ZERO_ERR_INVALID_ARGUMENT, "more than can be counted");
}
