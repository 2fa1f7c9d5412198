/* The traffic of a step, counted over a layout. */
#ifndef ZI_PLAN_ESTIMATE_TRAFFIC_H
#define ZI_PLAN_ESTIMATE_TRAFFIC_H

#include <stdbool.h>

#include "layout/layout.h"

/* Collectives of groups that are alike. Numbers are too large for integers in the largest models.
 */
typedef struct zi_exchange {
    uint32_t stride; /* in ranks, from one member of a group to the next */
    uint32_t size;   /* members */
    double calls;
    double bytes;     /* assembled by gathers or given to reductions: zero_stats' gather_bytes and
                         reduce_bytes */
    double sum_bytes; /* of reductions: as nodes send them that have added up; 0: as `bytes` */
    bool alone_too;   /* members that are alone on their nodes send so, too */
    bool once;        /* of a step, after its last backward; else of each micro-step */
} zi_exchange;

typedef struct zi_traffic {
    zi_exchange hops[ZI_HOPS];
    double link_in; /* host memory to the device */
    double link_out;
    double link_copies;
    double update_device; /* bytes that the update reads and writes */
    double update_host;   /* likewise, by the CPU */
    double disk_read;
    double disk_write;
    /* Of these, what passes over the model wait for, and the update does not. */
    double pass_link;
    double pass_disk_read;
    double pass_disk_write;
} zi_traffic;

zi_traffic zi_traffic_of(const zi_layout *layout, uint32_t micro_steps);

#endif
