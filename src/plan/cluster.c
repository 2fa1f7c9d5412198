/* Owns clusters: one list of fields for bounds, files and print-outs; presets. */
#include "zero/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "plan/cluster.h"

#define RANKS_MAX 65536
#define BYTES_MAX 1e18
#define RATE_MAX 1e9

#define COUNT(field, text, low, high)                                 \
    {                                                                 \
#field, text, "", 0, low, high, offsetof(zero_cluster, field) \
    }
#define BYTES(field, text, low)                                                 \
    {                                                                           \
#field, text, "bytes", 0, low, BYTES_MAX, offsetof(zero_cluster, field) \
    }
#define REAL(field, text, unit, low, high)                              \
    {                                                                   \
#field, text, unit, 1, low, high, offsetof(zero_cluster, field) \
    }

static const zero_cluster_field fields[] = {
    COUNT(nodes, "nodes", 1, RANKS_MAX),
    COUNT(ranks_per_node, "ranks of a node, a GPU each", 1, 256),
    BYTES(device_bytes, "memory of a GPU", 1),
    BYTES(host_bytes, "memory of a node", 1),
    BYTES(disk_bytes, "local disks of a node", 0),
    BYTES(device_reserve_bytes, "of a GPU's memory, CUDA, NCCL and cuBLAS", 0),
    BYTES(host_reserve_bytes, "of a node's memory, system and processes", 0),
    REAL(device_tflops, "dense 16-bit products of a GPU", "TFLOP/s", 1e-6, RATE_MAX),
    REAL(device_efficiency, "part of them that trainers reach", "", 1e-6, 1),
    REAL(device_gb_per_s, "memory of a GPU", "GB/s", 1e-6, RATE_MAX),
    REAL(local_gb_per_s, "a GPU to those of its node", "GB/s", 1e-6, RATE_MAX),
    REAL(local_latency_us, "a collective's step within a node", "us", 0, RATE_MAX),
    REAL(fabric_gb_per_s, "a node to others", "GB/s", 0, RATE_MAX),
    REAL(fabric_efficiency, "part of it that collectives reach", "", 1e-6, 1),
    REAL(fabric_latency_us, "a collective's step between nodes", "us", 0, RATE_MAX),
    REAL(host_link_gb_per_s, "a GPU to host memory, all at once", "GB/s", 1e-6, RATE_MAX),
    REAL(host_gb_per_s, "memory of a node", "GB/s", 1e-6, RATE_MAX),
    REAL(disk_read_gb_per_s, "reads of a node's disks", "GB/s", 0, RATE_MAX),
    REAL(disk_write_gb_per_s, "writes to a node's disks", "GB/s", 0, RATE_MAX),
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

typedef struct preset {
    const char *name;
    zero_cluster cluster;
} preset;

#define GB UINT64_C(1000000000)
#define GIB (UINT64_C(1) << 30)

/* By the data sheets; a node of 16 V100 is the DGX-2, whose GPUs share four PCIe links. */
static const preset presets[] = {
    {"workstation",
     {.nodes = 1,
      .ranks_per_node = 1,
      .device_bytes = 24 * GIB,
      .host_bytes = 128 * GIB,
      .disk_bytes = 2000 * GB,
      .device_reserve_bytes = 2 * GIB,
      .host_reserve_bytes = 8 * GIB,
      .device_tflops = 165,
      .device_efficiency = 0.5,
      .device_gb_per_s = 1008,
      .local_gb_per_s = 25,
      .local_latency_us = 10,
      .fabric_efficiency = 1,
      .host_link_gb_per_s = 25,
      .host_gb_per_s = 60,
      .disk_read_gb_per_s = 7,
      .disk_write_gb_per_s = 5}},
    {"dgx-v100",
     {.nodes = 1,
      .ranks_per_node = 16,
      .device_bytes = 32 * GIB,
      .host_bytes = 1536 * GIB,
      .disk_bytes = 30000 * GB,
      .device_reserve_bytes = 2 * GIB,
      .host_reserve_bytes = 64 * GIB,
      .device_tflops = 125,
      .device_efficiency = 0.5,
      .device_gb_per_s = 900,
      .local_gb_per_s = 150,
      .local_latency_us = 10,
      .fabric_gb_per_s = 100,
      .fabric_efficiency = 0.7,
      .fabric_latency_us = 20,
      .host_link_gb_per_s = 3,
      .host_gb_per_s = 256,
      .disk_read_gb_per_s = 25,
      .disk_write_gb_per_s = 20}},
    {"dgx-a100",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 80 * GIB,
      .host_bytes = 2048 * GIB,
      .disk_bytes = 30000 * GB,
      .device_reserve_bytes = 2 * GIB,
      .host_reserve_bytes = 64 * GIB,
      .device_tflops = 312,
      .device_efficiency = 0.55,
      .device_gb_per_s = 2039,
      .local_gb_per_s = 300,
      .local_latency_us = 10,
      .fabric_gb_per_s = 200,
      .fabric_efficiency = 0.7,
      .fabric_latency_us = 20,
      .host_link_gb_per_s = 12,
      .host_gb_per_s = 410,
      .disk_read_gb_per_s = 50,
      .disk_write_gb_per_s = 25}},
    {"dgx-h100",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 80 * GIB,
      .host_bytes = 2048 * GIB,
      .disk_bytes = 30000 * GB,
      .device_reserve_bytes = 3 * GIB,
      .host_reserve_bytes = 64 * GIB,
      .device_tflops = 989,
      .device_efficiency = 0.5,
      .device_gb_per_s = 3350,
      .local_gb_per_s = 450,
      .local_latency_us = 10,
      .fabric_gb_per_s = 400,
      .fabric_efficiency = 0.7,
      .fabric_latency_us = 20,
      .host_link_gb_per_s = 50,
      .host_gb_per_s = 614,
      .disk_read_gb_per_s = 50,
      .disk_write_gb_per_s = 25}},
    {"dgx-h200",
     {.nodes = 1,
      .ranks_per_node = 8,
      .device_bytes = 141 * GB,
      .host_bytes = 2048 * GIB,
      .disk_bytes = 30000 * GB,
      .device_reserve_bytes = 3 * GIB,
      .host_reserve_bytes = 64 * GIB,
      .device_tflops = 989,
      .device_efficiency = 0.5,
      .device_gb_per_s = 4800,
      .local_gb_per_s = 450,
      .local_latency_us = 10,
      .fabric_gb_per_s = 400,
      .fabric_efficiency = 0.7,
      .fabric_latency_us = 20,
      .host_link_gb_per_s = 50,
      .host_gb_per_s = 614,
      .disk_read_gb_per_s = 50,
      .disk_write_gb_per_s = 25}},
};
#define PRESET_COUNT (sizeof presets / sizeof presets[0])

const char *zero_cluster_preset_name(uint32_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

zero_status zero_cluster_preset(const char *name, zero_cluster *cluster)
{
    char names[128] = "";
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
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "name is NULL; there are %s", names);
    }
    ZI_FAIL(ZERO_INVALID_ARGUMENT, "no cluster is called \"%.64s\"; there are %s", name, names);
}

/* ---- bounds ---- */

static double value_of(const zero_cluster *cluster, const zero_cluster_field *field)
{
    const void *at = (const unsigned char *)cluster + field->offset;
    return field->is_real != 0 ? *(const double *)at : (double)*(const uint64_t *)at;
}

void zi_cluster_set(zero_cluster *cluster, const zero_cluster_field *field, double value)
{
    void *at = (unsigned char *)cluster + field->offset;
    if (field->is_real != 0) {
        *(double *)at = value;
    } else {
        *(uint64_t *)at = (uint64_t)value;
    }
}

zero_status zi_cluster_resolve(const zero_cluster *given, zero_cluster *c)
{
    *c = (zero_cluster){.struct_bytes = sizeof *c};
    ZI_TRY(ZI_SIZED_IN(zero_cluster, given, c));
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const double value = value_of(c, &fields[i]);
        if (!(value >= fields[i].low && value <= fields[i].high)) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s of the cluster is %g; it is in [%g, %g]",
                    fields[i].name, value, fields[i].low, fields[i].high);
        }
    }
    if (c->device_reserve_bytes >= c->device_bytes || c->host_reserve_bytes >= c->host_bytes) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "a reserve of the cluster, %" PRIu64 " bytes of a GPU and %" PRIu64
                " of a node, leaves none of %" PRIu64 " or %" PRIu64,
                c->device_reserve_bytes, c->host_reserve_bytes, c->device_bytes, c->host_bytes);
    }
    if (c->nodes * c->ranks_per_node > RANKS_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "the cluster has %" PRIu64 " nodes of %" PRIu64 " ranks; a world has at most %d",
                c->nodes, c->ranks_per_node, RANKS_MAX);
    }
    if (c->nodes > 1 && !(c->fabric_gb_per_s > 0)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "fabric_gb_per_s of the cluster is 0, and it has %" PRIu64 " nodes; set the rate "
                "between them",
                c->nodes);
    }
    if (c->disk_bytes != 0 && !(c->disk_read_gb_per_s > 0 && c->disk_write_gb_per_s > 0)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "the cluster has disks and no disk_read_gb_per_s or "
                                       "disk_write_gb_per_s; set both, or disk_bytes to 0");
    }
    return ZERO_OK;
}

zero_status zero_cluster_check(const zero_cluster *cluster)
{
    zero_cluster resolved;
    return zi_cluster_resolve(cluster, &resolved);
}
