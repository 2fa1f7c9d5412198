/* Owns the tests of the public simulation: its figures, its limits, and what it refuses. */
#include "harness.h"

#include <sys/resource.h>
#include <time.h>

#include "core/role.h"
#include "sanitizer.h"
#include "zero/planner.h"
#include "zero/zero.h"

typedef struct request {
    zero_transformer transformer;
    zero_cluster cluster;
    zero_engine_options options;
    zero_tuning tuning;
    zero_batch batch;
    zero_sim_options sim;
    zero_sim_report report;
} request;

static void describe(request *r, const char *model, const char *cluster, uint64_t nodes)
{
    *r = (request){.transformer = zero_transformer_init(),
                   .cluster = zero_cluster_init(),
                   .options = zero_engine_options_init(),
                   .tuning = zero_tuning_init(),
                   .batch = zero_batch_init(),
                   .sim = zero_sim_options_init(),
                   .report = zero_sim_report_init()};
    CHECK_OK(zero_transformer_preset(model, &r->transformer));
    CHECK_OK(zero_cluster_preset(cluster, &r->cluster));
    r->cluster.nodes = nodes;
    r->options.device = ZERO_DEVICE_CUDA;
    r->options.tuning = &r->tuning;
}

static zero_status try(request *r)
{
    return zero_sim_run(&r->transformer, &r->cluster, &r->options, &r->batch, &r->sim, &r->report);
}

static void put_on(request *r, zero_role first, zero_tier tier)
{
    for (int role = (int)first; role < ZI_SHARD_ROLES; role++) {
        r->options.tier[role] = tier;
    }
}

/* ---- figures ---- */

TEST(a_step_is_its_compute_and_its_waits)
{
    request r;
    describe(&r, "llama-7b", "dgx-h100", 4);
    r.batch.micro_steps = 2;
    CHECK_OK(try(&r));
    uint64_t sum = r.report.compute_ns;
    for (int i = 0; i < ZERO_SIM_CAUSE_COUNT_MAX; i++) {
        sum += r.report.wait_ns[i];
    }
    CHECK_EQ(r.report.step_ns, sum);
    const double seconds = (double)r.report.step_ns / 1e9;
    CHECK_NEAR(r.report.tokens_per_s * seconds, 2.0 * 32 * 4096, 1e-3);
    for (int i = 0; i < ZERO_SIM_LINK_COUNT; i++) {
        CHECK(r.report.link_busy_ns[i] <= r.report.step_ns);
    }
}

/* Products, and what kernels between them move. */
TEST(compute_is_that_of_the_estimate)
{
    request r;
    zero_estimate estimate = zero_estimate_init();
    for (uint32_t recompute = 0; recompute < 2; recompute++) {
        describe(&r, "gpt3-175b", "dgx-h100", 16);
        r.batch.recompute = recompute;
        CHECK_OK(try(&r));
        CHECK_OK(zero_estimate_of(&r.transformer, &r.cluster, &r.options, &r.batch, &estimate));
        const double expected = (double)(estimate.term_ns[ZERO_ESTIMATE_PRODUCTS] +
                                         estimate.term_ns[ZERO_ESTIMATE_ELEMENTS]);
        CHECK_NEAR((double)r.report.compute_ns, expected, expected * 1e-6);
    }
}

static void check_within(uint64_t found, uint64_t expected, unsigned percent)
{
    CHECK_NEAR((double)found, (double)expected, (double)expected * percent / 100);
}

TEST(traffic_is_that_of_the_estimate)
{
    request r;
    zero_estimate estimate = zero_estimate_init();
    describe(&r, "gpt3-175b", "dgx-a100", 8);
    put_on(&r, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    r.batch.micro_steps = 2;
    CHECK_OK(try(&r));
    CHECK_OK(zero_estimate_of(&r.transformer, &r.cluster, &r.options, &r.batch, &estimate));
    const uint64_t *bytes = r.report.link_bytes;
    /* The estimate has all that a rank receives pass through links of its node. Half of what
     * crosses the fabric are sums, which are twice as long there. */
    check_within(bytes[ZERO_SIM_LOCAL] + bytes[ZERO_SIM_FABRIC],
                 estimate.local_bytes + estimate.fabric_bytes / 4, 1);
    check_within(bytes[ZERO_SIM_FABRIC], estimate.fabric_bytes, 1);
    check_within(bytes[ZERO_SIM_DISK_WRITE], estimate.disk_write_bytes, 1);
}

/* Offloaded bytes cross the host link once each way as estimated, and a step that waits for them is
 * as long as the estimate says: ten billion parameters on one V100, as ZeRO-Offload (Ren et al.,
 * 2021) has them. */
TEST(offloaded_steps_lie_within_the_estimate)
{
    static const zero_updater updaters[] = {ZERO_UPDATER_GPU, ZERO_UPDATER_CPU};
    for (uint32_t i = 0; i < 8; i++) {
        request r;
        zero_estimate e = zero_estimate_init();
        describe(&r, "gpt2", "dgx-v100", 1);
        r.cluster.ranks_per_node = 1;
        r.transformer.layers = 50;
        r.transformer.width = 4096;
        r.transformer.heads = 32;
        r.transformer.ffn_width = 4 * 4096;
        r.transformer.head_width = 128;
        r.transformer.kv_heads = 32;
        r.batch.recompute = 1;
        r.batch.micro_steps = i / 4 == 0 ? 1 : 4;
        put_on(&r, ZERO_ROLE_MASTER, ZERO_TIER_HOST);
        r.options.tier[ZERO_ROLE_GRAD] = i / 2 % 2 == 0 ? ZERO_TIER_HOST : ZERO_TIER_DEVICE;
        r.tuning.updater = updaters[i % 2];
        CHECK_OK(try(&r));
        CHECK_OK(zero_estimate_of(&r.transformer, &r.cluster, &r.options, &r.batch, &e));
        check_within(r.report.link_bytes[ZERO_SIM_HOST_TO_DEVICE] +
                         r.report.link_bytes[ZERO_SIM_DEVICE_TO_HOST],
                     e.host_link_bytes, 1);
        if (r.report.step_ns < e.low_ns || (double)r.report.step_ns > 1.01 * (double)e.high_ns) {
            TEST_FAIL("case %u: %llu ns simulated, estimated are %llu to %llu", i,
                      (unsigned long long)r.report.step_ns, (unsigned long long)e.low_ns,
                      (unsigned long long)e.high_ns);
        }
    }
}

TEST(everything_has_a_name)
{
    for (int i = 0; i < ZERO_SIM_LINK_COUNT; i++) {
        CHECK(strcmp(zero_sim_link_name((zero_sim_link)i), "unknown") != 0);
    }
    for (int i = 0; i < ZERO_SIM_CAUSE_COUNT; i++) {
        CHECK(strcmp(zero_sim_cause_name((zero_sim_cause)i), "unknown") != 0);
    }
    CHECK(strcmp(zero_sim_link_name(ZERO_SIM_LINK_COUNT), "unknown") == 0);
    CHECK(strcmp(zero_sim_cause_name(ZERO_SIM_CAUSE_COUNT), "unknown") == 0);
}

/* ---- limits ---- */

/* A trillion parameters, all state on disk, under a minute and 2 GiB. */
static void check_trillion(uint64_t nodes)
{
    request r;
    struct timespec before;
    struct timespec after;
    struct rusage usage;
    describe(&r, "1t", "dgx-h100", nodes);
    put_on(&r, ZERO_ROLE_PARAM, ZERO_TIER_DISK);
    r.batch.recompute = 1;
    (void)clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK_OK(try(&r));
    (void)clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    CHECK(after.tv_sec - before.tv_sec < 60 * (UNDER_SANITIZER ? 10 : 1));
    CHECK(UNDER_SANITIZER || usage.ru_maxrss < 2 * 1024 * 1024); /* KiB */
    CHECK_EQ(r.report.peak_bytes[ZERO_TIER_DISK], r.report.planned_bytes[ZERO_TIER_DISK]);
    CHECK(r.report.wait_ns[ZERO_SIM_DISK] > 0);
    CHECK(r.report.link_bytes[ZERO_SIM_DISK_READ] > r.report.link_bytes[ZERO_SIM_DISK_WRITE]);
}

TEST_CALL(a_trillion_parameters_on_1024_ranks_take_seconds, check_trillion(128));
/* Its ranks have 60000 extents of each role: no work on one may look at all others. */
TEST_CALL(a_trillion_parameters_on_16_ranks_take_seconds, check_trillion(2));

/* Tens of thousands of accesses to disks pass through host memory, which is idle most of the time:
 * a copy finds its gaps. */
TEST(accesses_of_disks_hold_no_copy_up)
{
    request r;
    describe(&r, "llama-405b", "dgx-h200", 4);
    put_on(&r, ZERO_ROLE_PARAM, ZERO_TIER_HOST);
    put_on(&r, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    CHECK_OK(try(&r));
    CHECK(r.report.link_busy_ns[ZERO_SIM_HOST_MEMORY] < r.report.step_ns / 4);
    CHECK(r.report.wait_ns[ZERO_SIM_COPY] < r.report.step_ns / 100);
    CHECK(r.report.wait_ns[ZERO_SIM_DISK] > r.report.step_ns / 4);
}

/* ---- slow clusters ---- */

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Each field is what it may be at least or at most, or any power of two between. */
static void draw_cluster(zero_cluster *cluster, uint64_t *state)
{
    for (uint32_t i = 0; zero_cluster_field_at(i) != NULL; i++) {
        const zero_cluster_field *field = zero_cluster_field_at(i);
        const uint64_t low = field->low != 0 || draw(state) % 16 == 0 ? field->low : 1;
        uint64_t value = UINT64_C(1) << draw(state) % 60;
        value = draw(state) % 4 == 0 ? low : draw(state) % 4 == 0 ? field->high : value;
        value = value < low ? low : value > field->high ? field->high : value;
        memcpy((unsigned char *)cluster + field->offset, &value, sizeof value);
    }
    cluster->ranks_per_node = UINT64_C(1) << draw(state) % 5;
    cluster->nodes = UINT64_C(1) << draw(state) % 12;
    cluster->device_reserve_bytes = cluster->device_bytes - 1;
    cluster->host_reserve_bytes = cluster->host_bytes - 1;
}

/* A link was as long at work as its bytes take: less is a time that wrapped. */
static void check_link(const request *r, zero_sim_link link, uint64_t rate, double share)
{
    const double ns = (double)r->report.link_bytes[link] * 1e9 / ((double)rate * share);
    const double busy = (double)r->report.link_busy_ns[link];
    CHECK(r->report.link_bytes[link] == 0 ||
          (busy >= ns * 0.999 - 1e4 && busy <= ns * 1.001 + 1e4));
}

static void check_times(const request *r, const zero_estimate *estimate)
{
    const zero_sim_report *report = &r->report;
    const double ranks = (double)r->cluster.ranks_per_node;
    uint64_t sum = report->compute_ns;
    for (int i = 0; i < ZERO_SIM_CAUSE_COUNT; i++) {
        CHECK(report->wait_ns[i] <= report->step_ns);
        sum += report->wait_ns[i];
    }
    CHECK_EQ(report->step_ns, sum);
    CHECK(report->step_ns < INT64_MAX);
    check_link(r, ZERO_SIM_FABRIC, r->cluster.fabric_bytes_per_s,
               (double)r->cluster.fabric_permille / 1e3 / ranks);
    const uint64_t local_permille = r->cluster.local_permille;
    check_link(r, ZERO_SIM_LOCAL, r->cluster.local_bytes_per_s,
               local_permille != 0 ? (double)local_permille / 1e3 : 1);
    check_link(r, ZERO_SIM_DEVICE_MEMORY, r->cluster.device_bytes_per_s, 1);
    check_link(r, ZERO_SIM_DISK_READ, r->cluster.disk_read_bytes_per_s, 1 / ranks);
    if (estimate->high_ns != 0) {
        const double compute = (double)(estimate->term_ns[ZERO_ESTIMATE_PRODUCTS] +
                                        estimate->term_ns[ZERO_ESTIMATE_ELEMENTS]);
        CHECK_NEAR((double)report->compute_ns, compute, compute * 1e-3 + 1e4);
        CHECK(estimate->low_ns <= estimate->high_ns && estimate->high_ns < INT64_MAX);
    }
}

/* Any legal cluster has times that are right, or is refused. */
TEST(no_time_wraps)
{
    uint64_t state = 88172645463325252u;
    uint32_t simulated = 0;
    uint32_t late = 0;
    for (uint32_t i = 0; i < 200; i++) {
        request r;
        zero_estimate estimate = zero_estimate_init();
        describe(&r, "gpt2", "dgx-h100", 1);
        draw_cluster(&r.cluster, &state);
        put_on(&r, ZERO_ROLE_MASTER, i % 3 == 0 ? ZERO_TIER_DISK : ZERO_TIER_DEVICE);
        if (zero_cluster_check(&r.cluster) != ZERO_OK) {
            TEST_FAIL("cluster %u: %s", i, zero_last_error()->message);
        }
        const zero_status estimated =
            zero_estimate_of(&r.transformer, &r.cluster, &r.options, &r.batch, &estimate);
        CHECK(estimated == ZERO_OK || estimated == ZERO_ERR_INVALID_ARGUMENT);
        const zero_status status = try(&r);
        if (status == ZERO_OK) {
            check_times(&r, &estimate);
            simulated++;
        } else {
            CHECK_EQ(status, ZERO_ERR_INVALID_ARGUMENT);
            late += strstr(zero_last_error()->message, "73 years") != NULL;
        }
    }
    CHECK(simulated > 20 && late > 20);
}

TEST(a_cluster_that_is_too_slow_is_named)
{
    request r;
    describe(&r, "gpt2", "dgx-h100", 2);
    r.cluster.device_flops = 1;
    CHECK_FAILS(try(&r), ZERO_ERR_INVALID_ARGUMENT, "device_flops");
    describe(&r, "gpt2", "dgx-h100", 2);
    r.cluster.fabric_bytes_per_s = 1;
    r.cluster.fabric_permille = 1;
    CHECK_FAILS(try(&r), ZERO_ERR_INVALID_ARGUMENT, "\"fabric\"");
    describe(&r, "gpt2", "dgx-h100", 2);
    r.cluster.device_flops = 200; /* each pass ends in time, but a step of them does not */
    CHECK_FAILS(try(&r), ZERO_ERR_INVALID_ARGUMENT, "fewer steps");
}

/* ---- refusals ---- */

#define REFUSED(change, status, text)           \
    do {                                        \
        request r;                              \
        describe(&r, "gpt2", "dgx-h100", 2);    \
        CHECK_OK(try(&r));                      \
        change;                                 \
        CHECK_FAILS(try(&r), (status), (text)); \
    } while (0)

TEST(a_rate_that_is_needed_is_not_0)
{
    REFUSED(r.cluster.device_flops = 0, ZERO_ERR_INVALID_ARGUMENT, "device_flops");
    REFUSED(r.cluster.device_permille = 0, ZERO_ERR_INVALID_ARGUMENT, "device_permille");
    REFUSED(r.cluster.device_bytes_per_s = 0, ZERO_ERR_INVALID_ARGUMENT, "device_bytes_per_s");
    REFUSED(r.cluster.local_bytes_per_s = 0, ZERO_ERR_INVALID_ARGUMENT, "local_bytes_per_s");
    REFUSED(r.cluster.fabric_bytes_per_s = 0, ZERO_ERR_INVALID_ARGUMENT, "fabric_bytes_per_s");
    REFUSED(r.cluster.fabric_permille = 0, ZERO_ERR_INVALID_ARGUMENT, "fabric_permille");
}

TEST(a_rate_of_a_tier_that_is_used_is_not_0)
{
    REFUSED((put_on(&r, ZERO_ROLE_MASTER, ZERO_TIER_HOST), r.cluster.host_link_bytes_per_s = 0),
            ZERO_ERR_INVALID_ARGUMENT, "host_link_bytes_per_s");
    REFUSED((put_on(&r, ZERO_ROLE_MASTER, ZERO_TIER_DISK), r.cluster.disk_read_bytes_per_s = 0),
            ZERO_ERR_INVALID_ARGUMENT, "disk_read_bytes_per_s");
    REFUSED((put_on(&r, ZERO_ROLE_MASTER, ZERO_TIER_DISK), r.cluster.disk_write_bytes_per_s = 0),
            ZERO_ERR_INVALID_ARGUMENT, "disk_write_bytes_per_s");
    REFUSED((put_on(&r, ZERO_ROLE_MASTER, ZERO_TIER_DISK), r.cluster.host_bytes_per_s = 0),
            ZERO_ERR_INVALID_ARGUMENT, "host_bytes_per_s");
}

/* A rate that is not used may be 0. */
TEST(a_rate_that_is_not_needed_may_be_0)
{
    request r;
    describe(&r, "gpt2", "dgx-h100", 1);
    r.cluster.fabric_bytes_per_s = 0;
    r.cluster.disk_read_bytes_per_s = 0;
    r.cluster.disk_write_bytes_per_s = 0;
    CHECK_OK(try(&r));
    r.cluster.device_flops = 0;
    r.sim.forward_ns = 1000;
    CHECK_OK(try(&r));
    CHECK(r.report.flops_per_s == 0.0);
}

TEST(what_cannot_be_simulated_is_refused)
{
    REFUSED(r.tuning.updater = ZERO_UPDATER_BOTH, ZERO_ERR_UNSUPPORTED, "ZERO_UPDATER_BOTH");
    REFUSED(r.tuning.speculative_step = 1, ZERO_ERR_UNSUPPORTED, "speculative_step");
    REFUSED(r.options.optimizer = ZERO_OPTIMIZER_CALLBACK, ZERO_ERR_UNSUPPORTED,
            "ZERO_OPTIMIZER_CALLBACK");
    REFUSED(r.transformer.tensor_parallel = 2, ZERO_ERR_UNSUPPORTED,
            "tensor_parallel of the transformer is 2");
    REFUSED(r.transformer.pipeline_parallel = 3, ZERO_ERR_UNSUPPORTED,
            "pipeline_parallel of the transformer is 3");
    REFUSED(r.batch.context_parallel = 4, ZERO_ERR_UNSUPPORTED,
            "context_parallel of the batch is 4");
    REFUSED(r.batch.wire = ZERO_WIRE_ZEROPP, ZERO_ERR_UNSUPPORTED, "wire of the batch is 1");
}

TEST(numbers_out_of_bounds_are_named)
{
    REFUSED(r.sim.steps = 1025, ZERO_ERR_INVALID_ARGUMENT, "steps");
    REFUSED(r.sim.forward_ns = UINT64_MAX, ZERO_ERR_INVALID_ARGUMENT, "forward_ns");
    REFUSED(r.sim.jitter_ns = UINT64_MAX, ZERO_ERR_INVALID_ARGUMENT, "jitter_ns");
    REFUSED(r.cluster.nodes = 0, ZERO_ERR_INVALID_ARGUMENT, "nodes");
    REFUSED(r.transformer.layers = 0, ZERO_ERR_INVALID_ARGUMENT, "layers");
    REFUSED(r.batch.sequence = 1 << 20, ZERO_ERR_INVALID_ARGUMENT, "batch");
}

TEST(ranks_that_do_not_divide_are_refused_by_the_engine)
{
    REFUSED(r.options.shard_group = 3, ZERO_ERR_INVALID_ARGUMENT, "shard_group");
}

/* The engine's budget holds for a simulated one too. */
TEST(a_budget_that_is_too_small_is_refused)
{
    REFUSED(r.options.device_budget_bytes = 1 << 20, ZERO_ERR_OUT_OF_MEMORY, "budget");
}
