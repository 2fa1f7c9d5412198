/* Owns clusters: one list of fields for bounds and files; presets. */
#include "zero/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "plan/cluster.h"

#define RANKS_MAX 65536
#define BYTES_MAX UINT64_C(1000000000000000000)
#define LATENCY_MAX UINT64_C(1000000000)
#define FIELD(name, low, high)                         \
    {                                                  \
#name, low, high, offsetof(zero_cluster, name) \
    }

static const zero_cluster_field fields[] = {
    FIELD(nodes, 1, RANKS_MAX),
    FIELD(ranks_per_node, 1, 256),
    FIELD(device_bytes, 1, BYTES_MAX),
    FIELD(host_bytes, 1, BYTES_MAX),
    FIELD(disk_bytes, 0, BYTES_MAX),
    FIELD(device_reserve_bytes, 0, BYTES_MAX),
    FIELD(host_reserve_bytes, 0, BYTES_MAX),
    FIELD(device_flops, 0, BYTES_MAX),
    FIELD(device_permille, 0, 1000),
    FIELD(device_bytes_per_s, 0, BYTES_MAX),
    FIELD(host_bytes_per_s, 0, BYTES_MAX),
    FIELD(host_link_bytes_per_s, 0, BYTES_MAX),
    FIELD(host_link_latency_ns, 0, LATENCY_MAX),
    FIELD(local_bytes_per_s, 0, BYTES_MAX),
    FIELD(local_latency_ns, 0, LATENCY_MAX),
    FIELD(fabric_bytes_per_s, 0, BYTES_MAX),
    FIELD(fabric_permille, 0, 1000),
    FIELD(fabric_latency_ns, 0, LATENCY_MAX),
    FIELD(disk_read_bytes_per_s, 0, BYTES_MAX),
    FIELD(disk_write_bytes_per_s, 0, BYTES_MAX),
    FIELD(disk_latency_ns, 0, LATENCY_MAX),
    FIELD(attention_permille, 0, 1000),
    FIELD(device_fp8_flops, 0, BYTES_MAX),
    FIELD(device_fp8_permille, 0, 1000),
    FIELD(local_permille, 0, 1000),
};
#define FIELD_COUNT (sizeof fields / sizeof fields[0])

const zero_cluster_field *zero_cluster_field_at(uint32_t index)
{
    return index < FIELD_COUNT ? &fields[index] : NULL;
}

void zero_cluster_init_sized(zero_cluster *cluster, size_t struct_bytes)
{
    const zero_cluster known = {.struct_bytes = sizeof known};
    zi_sized_init(cluster, struct_bytes, &known, sizeof known);
}

/* ---- presets ---- */

#define GB UINT64_C(1000000000)
#define TERA UINT64_C(1000000000000)
#define GIB (UINT64_C(1) << 30)

typedef struct preset {
    const char *name;
    zero_cluster cluster;
} preset;

/* Guesses that are the same for all. */
#define ESTIMATES                                                                     \
    .host_link_latency_ns = 10000, .local_latency_ns = 10000, .fabric_permille = 700, \
    .fabric_latency_ns = 20000, .disk_latency_ns = 100000, .local_permille = 750

/* Of a GPU, with the shares that published trainers reach. An H200 differs in its memory alone. */
#define A100                                                                             \
    .device_reserve_bytes = 2 * GIB, .device_flops = 312 * TERA, .device_permille = 760, \
    .host_link_bytes_per_s = 12 * GB, .local_bytes_per_s = 300 * GB, .attention_permille = 800
#define H100                                                                                    \
    .device_reserve_bytes = 3 * GIB, .device_flops = 989 * TERA, .device_permille = 640,        \
    .host_link_bytes_per_s = 50 * GB, .local_bytes_per_s = 450 * GB, .attention_permille = 600, \
    .device_fp8_flops = 1979 * TERA, .device_fp8_permille = 540

/* A node of 16 V100 is the DGX-2. What products, attention and collectives reach is about what
 * trainers do that others have measured (docs/feasibility.md); of the RTX 3090 none was, and it is
 * taken for the RTX 4090. Consumer GPUs run faster than the clock of their data sheets. */
static const preset presets[] = {
    {"workstation",
     {.nodes = 1,
      .ranks_per_node = 1,
      .device_bytes = 24 * GIB,
      .host_bytes = 128 * GIB,
      .disk_bytes = 2000 * GB,
      .device_reserve_bytes = 2 * GIB,
      .host_reserve_bytes = 8 * GIB,
      .device_flops = 165 * TERA,
      .device_permille = 700,
      .device_bytes_per_s = 1008 * GB,
      .host_bytes_per_s = 60 * GB,
      .host_link_bytes_per_s = 25 * GB,
      .local_bytes_per_s = 25 * GB,
      .fabric_bytes_per_s = 3 * GB,
      .disk_read_bytes_per_s = 7 * GB,
      .disk_write_bytes_per_s = 5 * GB,
      .attention_permille = 500,
      ESTIMATES}},
    {"rtx-3090",
     {.nodes = 1,
      .ranks_per_node = 1,
      .device_bytes = 24 * GIB,
      .host_bytes = 128 * GIB,
      .disk_bytes = 2000 * GB,
      .device_reserve_bytes = 1 * GIB,
      .host_reserve_bytes = 8 * GIB,
      .device_flops = 71 * TERA,
      .device_permille = 1000,
      .device_bytes_per_s = 936 * GB,
      .host_bytes_per_s = 60 * GB,
      .host_link_bytes_per_s = 25 * GB,
      .local_bytes_per_s = 25 * GB,
      .fabric_bytes_per_s = 3 * GB,
      .disk_read_bytes_per_s = 7 * GB,
      .disk_write_bytes_per_s = 5 * GB,
      .attention_permille = 1000,
      ESTIMATES}},
    {"rtx-4090",
     {.nodes = 1,
      .ranks_per_node = 1,
      .device_bytes = 24 * GIB,
      .host_bytes = 128 * GIB,
      .disk_bytes = 2000 * GB,
      .device_reserve_bytes = 1 * GIB,
      .host_reserve_bytes = 8 * GIB,
      .device_flops = 165 * TERA,
      .device_permille = 1000,
      .device_bytes_per_s = 1008 * GB,
      .host_bytes_per_s = 60 * GB,
      .host_link_bytes_per_s = 25 * GB,
      .local_bytes_per_s = 25 * GB,
      .fabric_bytes_per_s = 3 * GB,
      .disk_read_bytes_per_s = 7 * GB,
      .disk_write_bytes_per_s = 5 * GB,
      .attention_permille = 1000,
      .device_fp8_flops = 330 * TERA,
      .device_fp8_permille = 950,
      ESTIMATES}},
    {"rtx-5090",
     {.nodes = 1,
      .ranks_per_node = 1,
      .device_bytes = 32 * GIB,
      .host_bytes = 128 * GIB,
      .disk_bytes = 2000 * GB,
      .device_reserve_bytes = 1 * GIB,
      .host_reserve_bytes = 8 * GIB,
      .device_flops = 209 * TERA,
      .device_permille = 1000,
      .device_bytes_per_s = 1792 * GB,
      .host_bytes_per_s = 60 * GB,
      .host_link_bytes_per_s = 50 * GB,
      .local_bytes_per_s = 50 * GB,
      .fabric_bytes_per_s = 3 * GB,
      .disk_read_bytes_per_s = 7 * GB,
      .disk_write_bytes_per_s = 5 * GB,
      .attention_permille = 1000,
      .device_fp8_flops = 419 * TERA,
      .device_fp8_permille = 950,
      ESTIMATES}},
    {"dgx-v100",
     {.nodes = 1,
      .ranks_per_node = 16,
      .device_bytes = 32 * GIB,
      .host_bytes = 1536 * GIB,
      .disk_bytes = 30000 * GB,
      .device_reserve_bytes = 2 * GIB,
      .host_reserve_bytes = 64 * GIB,
      .device_flops = 125 * TERA,
      .device_permille = 700,
      .device_bytes_per_s = 900 * GB,
      .host_bytes_per_s = 256 * GB,
      .host_link_bytes_per_s = 3 * GB,
      .local_bytes_per_s = 150 * GB,
      .fabric_bytes_per_s = 100 * GB,
      .disk_read_bytes_per_s = 25 * GB,
      .disk_write_bytes_per_s = 20 * GB,
      .attention_permille = 500,
      ESTIMATES}},
    {"dgx-a100",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 80 * GIB,
      .host_bytes = 2048 * GIB,
      .disk_bytes = 30000 * GB,
      .host_reserve_bytes = 64 * GIB,
      .device_bytes_per_s = 2039 * GB,
      .host_bytes_per_s = 410 * GB,
      .fabric_bytes_per_s = 200 * GB,
      .disk_read_bytes_per_s = 50 * GB,
      .disk_write_bytes_per_s = 25 * GB,
      A100,
      ESTIMATES}},
    {"dgx-h100",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 80 * GIB,
      .host_bytes = 2048 * GIB,
      .disk_bytes = 30000 * GB,
      .host_reserve_bytes = 64 * GIB,
      .device_bytes_per_s = 3350 * GB,
      .host_bytes_per_s = 614 * GB,
      .fabric_bytes_per_s = 400 * GB,
      .disk_read_bytes_per_s = 50 * GB,
      .disk_write_bytes_per_s = 25 * GB,
      H100,
      ESTIMATES}},
    {"dgx-h200",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 141 * GB,
      .host_bytes = 2048 * GIB,
      .disk_bytes = 30000 * GB,
      .host_reserve_bytes = 64 * GIB,
      .device_bytes_per_s = 4800 * GB,
      .host_bytes_per_s = 614 * GB,
      .fabric_bytes_per_s = 400 * GB,
      .disk_read_bytes_per_s = 50 * GB,
      .disk_write_bytes_per_s = 25 * GB,
      H100,
      ESTIMATES}},
    {"aws-p4d",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 40 * GIB,
      .host_bytes = 1152 * GIB,
      .disk_bytes = 8000 * GB,
      .host_reserve_bytes = 64 * GIB,
      .device_bytes_per_s = 1555 * GB,
      .host_bytes_per_s = 410 * GB,
      .fabric_bytes_per_s = 50 * GB,
      .disk_read_bytes_per_s = 16 * GB,
      .disk_write_bytes_per_s = 8 * GB,
      A100,
      ESTIMATES}},
    {"aws-p4de",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 80 * GIB,
      .host_bytes = 1152 * GIB,
      .disk_bytes = 8000 * GB,
      .host_reserve_bytes = 64 * GIB,
      .device_bytes_per_s = 2039 * GB,
      .host_bytes_per_s = 410 * GB,
      .fabric_bytes_per_s = 50 * GB,
      .disk_read_bytes_per_s = 16 * GB,
      .disk_write_bytes_per_s = 8 * GB,
      A100,
      ESTIMATES}},
    {"aws-p5.4xlarge",
     {.nodes = 1,
      .ranks_per_node = 1,
      .device_bytes = 80 * GIB,
      .host_bytes = 256 * GIB,
      .disk_bytes = 3840 * GB,
      .host_reserve_bytes = 16 * GIB,
      .device_bytes_per_s = 3350 * GB,
      .host_bytes_per_s = 77 * GB,
      .fabric_bytes_per_s = UINT64_C(12500000000),
      .disk_read_bytes_per_s = 6 * GB,
      .disk_write_bytes_per_s = 3 * GB,
      H100,
      ESTIMATES}},
};
#define PRESET_COUNT (sizeof presets / sizeof presets[0])

const char *zero_cluster_preset_name(uint32_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

zero_status zero_cluster_preset(const char *name, zero_cluster *cluster)
{
    char names[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        if (name != NULL && strcmp(presets[i].name, name) == 0) {
            zero_cluster found = presets[i].cluster;
            found.struct_bytes = sizeof found;
            return ZI_SIZED_OUT(zero_cluster, cluster, &found);
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ",
                                 presets[i].name);
    }
    if (name == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "name is NULL; there are %s", names);
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "no cluster is called \"%.64s\"; there are %s", name, names);
}

/* ---- bounds ---- */

zero_status zi_cluster_resolve(const zero_cluster *given, zero_cluster *c)
{
    *c = (zero_cluster){.struct_bytes = sizeof *c};
    ZI_TRY(ZI_SIZED_IN(zero_cluster, given, c));
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        uint64_t value = 0;
        memcpy(&value, (const unsigned char *)c + fields[i].offset, sizeof value);
        if (value < fields[i].low || value > fields[i].high) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s of the cluster is %" PRIu64 "; it is in [%" PRIu64 ", %" PRIu64 "]",
                    fields[i].name, value, fields[i].low, fields[i].high);
        }
    }
    if (c->device_reserve_bytes >= c->device_bytes || c->host_reserve_bytes >= c->host_bytes) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a reserve of the cluster, %" PRIu64 " bytes of a GPU and %" PRIu64
                " of a node, leaves none of %" PRIu64 " or %" PRIu64,
                c->device_reserve_bytes, c->host_reserve_bytes, c->device_bytes, c->host_bytes);
    }
    if (c->nodes * c->ranks_per_node > RANKS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the cluster has %" PRIu64 " nodes of %" PRIu64 " ranks; a world has at most %d",
                c->nodes, c->ranks_per_node, RANKS_MAX);
    }
    return ZERO_OK;
}

zero_status zero_cluster_check(const zero_cluster *cluster)
{
    zero_cluster resolved;
    return zi_cluster_resolve(cluster, &resolved);
}
