/* Owns the names of links and causes. */
#include "zero/sim.h"

const char *zero_sim_link_name(zero_sim_link link)
{
    static const char *const names[ZERO_SIM_LINK_COUNT] = {
        "device memory", "host memory", "host to device", "device to host",
        "local",         "fabric",      "disk read",      "disk write"};
    return (unsigned)link < ZERO_SIM_LINK_COUNT ? names[link] : "unknown";
}

const char *zero_sim_cause_name(zero_sim_cause cause)
{
    static const char *const names[ZERO_SIM_CAUSE_COUNT] = {"gather", "reduction",   "copy", "disk",
                                                            "update", "other ranks", "other"};
    return (unsigned)cause < ZERO_SIM_CAUSE_COUNT ? names[cause] : "unknown";
}
