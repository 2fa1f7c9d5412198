/* Owns the test of the line through the times of transfers. */
#include "harness.h"
#include "tools/calibrate_fit.h"

static calibrate_points points_of(double latency_s, double bytes_per_s)
{
    calibrate_points points = {.count = 8};
    for (uint32_t i = 0; i < points.count; i++) {
        points.bytes[i] = (double)(UINT64_C(4096) << (2 * i));
        points.seconds[i] = latency_s + points.bytes[i] / bytes_per_s;
    }
    return points;
}

TEST(a_line_is_found_again)
{
    static const double latencies[] = {2e-7, 3e-5, 1e-3};
    static const double rates[] = {1e8, 2e10, 9e11};
    for (int i = 0; i < 9; i++) {
        const double latency = latencies[i / 3];
        const double rate = rates[i % 3];
        const calibrate_points points = points_of(latency, rate);
        double found = 0.0;
        double found_rate = 0.0;
        calibrate_fit(&points, &found, &found_rate);
        CHECK_NEAR(found / latency, 1.0, 1e-6);
        CHECK_NEAR(found_rate / rate, 1.0, 1e-6);
    }
}

/* Times that are off by a tenth, up and down: were errors in seconds, those of the longest transfer
 * would be thousands of latencies. */
TEST(errors_are_relative)
{
    calibrate_points points = points_of(2e-5, 1e10);
    double latency = 0.0;
    double rate = 0.0;
    for (uint32_t i = 0; i < points.count; i++) {
        points.seconds[i] *= i % 2 == 0 ? 1.1 : 0.9;
    }
    calibrate_fit(&points, &latency, &rate);
    CHECK_NEAR(latency / 2e-5, 1.0, 0.15);
    CHECK_NEAR(rate / 1e10, 1.0, 0.15);
}

TEST(a_disturbed_line_has_no_negative_part)
{
    calibrate_points falling = {.count = 2, .bytes = {4096, 65536}, .seconds = {2e-3, 1e-3}};
    calibrate_points steep = {.count = 2, .bytes = {4096, 65536}, .seconds = {1e-6, 1e-3}};
    double latency = 0.0;
    double rate = 0.0;
    calibrate_fit(&falling, &latency, &rate);
    CHECK_SAME(latency, 2e-3);
    CHECK_SAME(rate, 65536 / 1e-3);
    calibrate_fit(&steep, &latency, &rate);
    CHECK_SAME(latency, 1e-6);
    CHECK_SAME(rate, 65536 / 1e-3);
}
