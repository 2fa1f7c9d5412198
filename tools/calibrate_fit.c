/* Owns the line through the times of transfers. */
#include "calibrate_fit.h"

void calibrate_fit(const calibrate_points *points, double *latency_s, double *bytes_per_s)
{
    double w = 0.0;
    double wx = 0.0;
    double wy = 0.0;
    double wxx = 0.0;
    double wxy = 0.0;
    for (uint32_t i = 0; i < points->count; i++) {
        const double x = points->bytes[i];
        const double y = points->seconds[i];
        const double weight = 1.0 / (y * y);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    const double slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
    const uint32_t last = points->count - 1;
    *bytes_per_s = 1.0 / slope;
    *latency_s = (wy - slope * wx) / w;
    if (!(*bytes_per_s > 0.0 && *latency_s > 0.0)) {
        *bytes_per_s = points->bytes[last] / points->seconds[last];
        *latency_s = points->seconds[0];
    }
}
