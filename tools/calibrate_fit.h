/* Transfers as a line: time = latency + bytes / rate. */
#ifndef TOOLS_CALIBRATE_FIT_H
#define TOOLS_CALIBRATE_FIT_H

#include <stdint.h>

#define CALIBRATE_POINTS_MAX 16

/* By length: the shortest is the first, the longest the last; at least two lengths. */
typedef struct calibrate_points {
    uint32_t count;
    double bytes[CALIBRATE_POINTS_MAX];
    double seconds[CALIBRATE_POINTS_MAX];
} calibrate_points;

/* Least squares of relative errors: short transfers decide the latency, and long ones the rate.
 * Where a busy machine has disturbed the points so much that either would be negative, the shortest
 * and the longest transfer stand for them. */
void calibrate_fit(const calibrate_points *points, double *latency_s, double *bytes_per_s);

#endif
