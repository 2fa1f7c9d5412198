/* Owns the tests of a run's costs: what is published, what failures drawn one by one take, and what
 * is no run. */
#include <math.h>
#include <string.h>

#include "harness.h"

#include "zero/planner.h"

typedef struct run_rig {
    zero_transformer transformer;
    zero_cluster cluster;
    zero_engine_options options;
    zero_run run;
} run_rig;

static run_rig make_run(uint64_t nodes)
{
    run_rig r = {.transformer = zero_transformer_init(),
                 .cluster = zero_cluster_init(),
                 .options = zero_engine_options_init(),
                 .run = zero_run_init()};
    CHECK_OK(zero_transformer_preset("gpt2", &r.transformer));
    CHECK_OK(zero_cluster_preset("dgx-h100", &r.cluster));
    r.cluster.nodes = nodes;
    r.options.device = ZERO_DEVICE_CUDA;
    r.run.tokens = 1e12;
    return r;
}

static zero_run_cost cost_of(const run_rig *r)
{
    zero_run_cost cost = zero_run_cost_init();
    CHECK_OK(zero_run_cost_of(&r->run, &r->transformer, &r->cluster, &r->options, NULL, &cost));
    return cost;
}

static void check_near(double value, double expected, double share)
{
    if (!(fabs(value - expected) <= share * fabs(expected))) {
        TEST_FAIL("%.9g, expected %.9g", value, expected);
    }
}

TEST(time_money_and_energy_are_those_of_the_steps)
{
    run_rig r = make_run(2);
    zero_estimate e = zero_estimate_init();
    CHECK_OK(zero_estimate_of(&r.transformer, &r.cluster, &r.options, NULL, &e));
    r.run.gpu_hour_price = 2.5;
    r.run.gpu_watts = 1200;
    const zero_run_cost cost = cost_of(&r);
    CHECK_EQ((uint64_t)cost.steps, (1000000000000 + e.tokens - 1) / e.tokens);
    check_near(cost.train_seconds, cost.steps * (double)e.expected_ns / 1e9, 1e-12);
    check_near(cost.low_seconds, cost.steps * (double)e.low_ns / 1e9, 1e-12);
    check_near(cost.wall_seconds, cost.train_seconds, 0);
    check_near(cost.gpu_hours, 16 * cost.train_seconds / 3600, 1e-12);
    check_near(cost.price, 2.5 * cost.gpu_hours, 1e-12);
    check_near(cost.mwh, cost.gpu_hours * 1200 / 1e6, 1e-12);
    check_near(cost.goodput, 1, 0);
    CHECK_EQ((uint64_t)cost.failures, 0);
}

/* Daly, 2006, figures 3 to 5: five minutes a save, ten a restart. */
TEST(published_intervals_between_saves)
{
    static const double mtbf_minutes[] = {24 * 60, 6 * 60, 15};
    static const double published[] = {117, 57, 9.1};
    for (size_t i = 0; i < 3; i++) {
        run_rig r = make_run(4);
        r.run.node_mtbf_hours = 4 * mtbf_minutes[i] / 60;
        r.run.save_seconds = 300;
        r.run.restart_seconds = 600;
        const zero_run_cost cost = cost_of(&r);
        check_near(cost.mtbf_seconds, 60 * mtbf_minutes[i], 1e-12);
        check_near(cost.save_interval_seconds, 60 * published[i], 0.006);
        check_near(cost.failures, cost.wall_seconds / cost.mtbf_seconds, 1e-12);
    }
}

/* A draw in (0, 1], of a generator of Marsaglia's (xorshift64, 2003). */
static double draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return ((double)(*state >> 11) + 1) / 9007199254740992.0;
}

/* Seconds that pass until `pieces` intervals are trained and saved. */
static double live_through(double interval_s, double save_s, double restart_s, double mtbf_s,
                           uint32_t pieces, uint64_t *seed)
{
    double now_s = 0;
    double fails_s = -mtbf_s * log(draw(seed));
    for (uint32_t done = 0; done < pieces;) {
        const double end_s = now_s + interval_s + save_s;
        if (end_s <= fails_s) {
            now_s = end_s;
            done++;
            continue;
        }
        do { /* restarts fail too */
            now_s = fails_s;
            fails_s = now_s - mtbf_s * log(draw(seed));
        } while (now_s + restart_s > fails_s);
        now_s += restart_s;
    }
    return now_s;
}

TEST(goodput_is_that_of_failures_drawn_one_by_one)
{
    static const double mtbf_s[] = {86400, 7200, 1500};
    for (size_t i = 0; i < 3; i++) {
        const uint32_t pieces = 40000;
        uint64_t seed = 88172645463325252;
        run_rig r = make_run(1);
        r.run.node_mtbf_hours = mtbf_s[i] / 3600;
        r.run.save_seconds = 120;
        r.run.restart_seconds = 300;
        const zero_run_cost cost = cost_of(&r);
        const double interval_s = cost.save_interval_seconds;
        const double drawn_s = live_through(interval_s, 120, 300, mtbf_s[i], pieces, &seed);
        check_near(cost.goodput, interval_s * pieces / drawn_s, 0.02);
        for (double other = 0.5; other < 2.5; other += 1.5) { /* no other interval is better */
            const double worse_s = live_through(other * interval_s, 120, 300, mtbf_s[i],
                                                (uint32_t)(pieces / other), &seed);
            CHECK(worse_s > drawn_s * 1.002);
        }
    }
}

/* A checkpoint has 14 bytes a parameter in bf16, however it is split, and each node writes its
 * part.
 */
TEST(a_checkpoint_takes_its_bytes_at_the_rate_of_the_disks)
{
    for (int stage = 0; stage < 4; stage++) {
        run_rig r = make_run(2);
        uint64_t parameters = 0;
        CHECK_OK(zero_transformer_parameters(&r.transformer, &parameters, NULL));
        r.options.stage = (zero_stage)stage;
        r.run.node_mtbf_hours = 1000;
        zero_run_cost cost = cost_of(&r);
        check_near((double)cost.checkpoint_bytes, 14 * (double)parameters, 0.001);
        check_near(cost.save_seconds,
                   (double)cost.checkpoint_bytes / 2 / (double)r.cluster.disk_write_bytes_per_s,
                   1e-9);
        check_near(cost.restart_seconds, ZERO_RUN_RESTART_SECONDS, 0);
        r.options.master_dtype = ZERO_DTYPE_REMAINDER16;
        r.options.moment_dtype = ZERO_DTYPE_BF16;
        check_near((double)cost_of(&r).checkpoint_bytes, 8 * (double)parameters, 0.001);
    }
}

static void run_refuses(const run_rig *r, const char *said)
{
    zero_run_cost cost = zero_run_cost_init();
    CHECK_FAILS(zero_run_cost_of(&r->run, &r->transformer, &r->cluster, &r->options, NULL, &cost),
                ZERO_ERR_INVALID_ARGUMENT, said);
}

TEST(nonsense_is_no_run)
{
    static const size_t fields[] = {
        offsetof(zero_run, gpu_hour_price),  offsetof(zero_run, gpu_watts),
        offsetof(zero_run, node_mtbf_hours), offsetof(zero_run, save_seconds),
        offsetof(zero_run, restart_seconds), offsetof(zero_run, tokens)};
    static const char *const names[] = {"gpu_hour_price", "gpu_watts",       "node_mtbf_hours",
                                        "save_seconds",   "restart_seconds", "tokens"};
    const double values[] = {-1, (double)NAN, (double)INFINITY, 2e18};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            run_rig r = make_run(1);
            memcpy((unsigned char *)&r.run + fields[i], &values[v], sizeof values[v]);
            run_refuses(&r, names[i]);
        }
    }
    run_rig r = make_run(1);
    r.run.tokens = 0;
    run_refuses(&r, "tokens of the run is 0");
    r = make_run(1024);
    r.run.node_mtbf_hours = 0.1;
    run_refuses(&r, "does not end");
    r = make_run(1);
    r.run.node_mtbf_hours = 1000;
    r.cluster.disk_write_bytes_per_s = 0;
    run_refuses(&r, "disk_write_bytes_per_s");
    r.run.save_seconds = 30;
    CHECK(cost_of(&r).goodput < 1);
}
