/* The bottleneck of a step follows from two readings alone. */
#include "../harness.h"

#include "zero/zero.h"

/* Counters that moved between two readings, and what is to be concluded. */
typedef struct bound_case {
    zero_bottleneck bound;
    uint64_t update, read_wait, write_wait, acquire, grad, step;
    uint64_t gather_bytes, reduce_bytes;
    uint64_t link;
} bound_case;

static const bound_case cases[] = {
    {.bound = ZERO_BOTTLENECK_NONE},
    {.bound = ZERO_BOTTLENECK_CPU, .update = 1},
    {.bound = ZERO_BOTTLENECK_CPU, .update = 9, .read_wait = 8, .write_wait = 7},
    {.bound = ZERO_BOTTLENECK_DISK_READ, .update = 8, .read_wait = 9, .write_wait = 8},
    {.bound = ZERO_BOTTLENECK_DISK_WRITE, .update = 7, .read_wait = 8, .write_wait = 9},
    /* Of equal ones the first. */
    {.bound = ZERO_BOTTLENECK_CPU, .update = 9, .read_wait = 9, .write_wait = 9},
    {.bound = ZERO_BOTTLENECK_DISK_READ, .read_wait = 9, .write_wait = 9},
    /* Nothing went between ranks, so no wait was for that. */
    {.bound = ZERO_BOTTLENECK_NONE, .acquire = 100, .grad = 100, .step = 100},
    {.bound = ZERO_BOTTLENECK_CPU, .update = 5, .acquire = 100},
    /* The caller's waits less what the update and its disk may account for. */
    {.bound = ZERO_BOTTLENECK_LINK,
     .update = 5,
     .acquire = 4,
     .grad = 4,
     .step = 4,
     .gather_bytes = 1,
     .link = 7},
    {.bound = ZERO_BOTTLENECK_LINK, .acquire = 1, .reduce_bytes = 1, .link = 1},
    {.bound = ZERO_BOTTLENECK_CPU, .update = 5, .acquire = 10, .reduce_bytes = 1, .link = 5},
    {.bound = ZERO_BOTTLENECK_DISK_READ,
     .update = 5,
     .read_wait = 6,
     .acquire = 11,
     .gather_bytes = 1},
    {.bound = ZERO_BOTTLENECK_DISK_WRITE,
     .update = 2,
     .read_wait = 3,
     .write_wait = 40,
     .acquire = 60,
     .gather_bytes = 1,
     .link = 15},
};

static zero_stats started(void)
{
    return (zero_stats){.struct_bytes = sizeof(zero_stats),
                        .taken_ns = 1000,
                        .update_ns = 10,
                        .disk_read_wait_ns = 20,
                        .disk_write_wait_ns = 30,
                        .acquire_wait_ns = 40,
                        .grad_wait_ns = 50,
                        .step_wait_ns = 60,
                        .disk_read_bytes = 70,
                        .disk_write_bytes = 80,
                        .gather_bytes = 90,
                        .reduce_bytes = 100};
}

TEST(the_largest_time_bounds)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bound_case *c = &cases[i];
        const zero_stats before = started();
        zero_stats after = started();
        after.taken_ns += 500;
        after.update_ns += c->update;
        after.disk_read_wait_ns += c->read_wait;
        after.disk_write_wait_ns += c->write_wait;
        after.acquire_wait_ns += c->acquire;
        after.grad_wait_ns += c->grad;
        after.step_wait_ns += c->step;
        after.gather_bytes += c->gather_bytes;
        after.reduce_bytes += c->reduce_bytes;
        zero_bottleneck_report report = zero_bottleneck_report_init();
        CHECK_OK(zero_stats_bottleneck(&before, &after, &report));
        if (report.bottleneck != c->bound) {
            TEST_FAIL("case %zu: %s", i, zero_bottleneck_name(report.bottleneck));
        }
        CHECK_EQ(report.interval_ns, 500);
        CHECK_EQ(report.cpu_ns, c->update);
        CHECK_EQ(report.disk_read_ns, c->read_wait);
        CHECK_EQ(report.disk_write_ns, c->write_wait);
        CHECK_EQ(report.link_ns, c->link);
    }
}

TEST(rates_are_bytes_over_the_interval)
{
    const zero_stats before = started();
    zero_stats after = started();
    zero_bottleneck_report report = zero_bottleneck_report_init();
    after.taken_ns += 2000;
    after.disk_read_bytes += 3000;
    after.disk_write_bytes += 5000;
    after.gather_bytes += 600;
    after.reduce_bytes += 400;
    CHECK_OK(zero_stats_bottleneck(&before, &after, &report));
    CHECK_NEAR(report.disk_read_gb_s, 1.5, 1e-12);
    CHECK_NEAR(report.disk_write_gb_s, 2.5, 1e-12);
    CHECK_NEAR(report.link_gb_s, 0.5, 1e-12);
    after.taken_ns = before.taken_ns; /* no time: no rate, and nothing is divided by 0 */
    CHECK_OK(zero_stats_bottleneck(&before, &after, &report));
    CHECK_NEAR(report.disk_read_gb_s + report.disk_write_gb_s + report.link_gb_s, 0.0, 0.0);
}

TEST(readings_that_do_not_fit_are_refused)
{
    const zero_stats first = started();
    zero_stats second = started();
    zero_bottleneck_report report = zero_bottleneck_report_init();
    CHECK_FAILS(zero_stats_bottleneck(NULL, &second, &report), ZERO_ERR_INVALID_ARGUMENT, "before");
    CHECK_FAILS(zero_stats_bottleneck(&first, NULL, &report), ZERO_ERR_INVALID_ARGUMENT, "after");
    CHECK_FAILS(zero_stats_bottleneck(&first, &second, NULL), ZERO_ERR_INVALID_ARGUMENT, "report");
    second.taken_ns--;
    CHECK_FAILS(zero_stats_bottleneck(&first, &second, &report), ZERO_ERR_INVALID_ARGUMENT,
                "taken_ns is 1000 before and 999 after");
    second = started();
    second.reduce_bytes = 0;
    CHECK_FAILS(zero_stats_bottleneck(&first, &second, &report), ZERO_ERR_INVALID_ARGUMENT,
                "reduce_bytes");
}

TEST(bounds_have_names)
{
    CHECK_EQ(strcmp(zero_bottleneck_name(ZERO_BOTTLENECK_NONE), "none"), 0);
    CHECK_EQ(strcmp(zero_bottleneck_name(ZERO_BOTTLENECK_CPU), "CPU"), 0);
    CHECK_EQ(strcmp(zero_bottleneck_name(ZERO_BOTTLENECK_DISK_READ), "disk read"), 0);
    CHECK_EQ(strcmp(zero_bottleneck_name(ZERO_BOTTLENECK_DISK_WRITE), "disk write"), 0);
    CHECK_EQ(strcmp(zero_bottleneck_name(ZERO_BOTTLENECK_LINK), "link"), 0);
    CHECK_EQ(strcmp(zero_bottleneck_name((zero_bottleneck)5), "unknown"), 0);
    CHECK_EQ(strcmp(zero_bottleneck_name((zero_bottleneck)-1), "unknown"), 0);
}
