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
#define GIB (UINT64_C(1) << 30)

typedef struct preset {
    const char *name;
    uint64_t ranks;
    uint64_t device_bytes;
    uint64_t host_bytes;
    uint64_t disk_bytes;
    uint64_t device_reserve_bytes;
    uint64_t host_reserve_bytes;
} preset;

/* A node of 16 V100 is the DGX-2. */
static const preset presets[] = {
    {"workstation", 1, 24 * GIB, 128 * GIB, 2000 * GB, 2 * GIB, 8 * GIB},
    {"dgx-v100", 16, 32 * GIB, 1536 * GIB, 30000 * GB, 2 * GIB, 64 * GIB},
    {"dgx-a100", 8, 80 * GIB, 2048 * GIB, 30000 * GB, 2 * GIB, 64 * GIB},
    {"dgx-h100", 8, 80 * GIB, 2048 * GIB, 30000 * GB, 3 * GIB, 64 * GIB},
    {"dgx-h200", 8, 141 * GB, 2048 * GIB, 30000 * GB, 3 * GIB, 64 * GIB},
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
            const preset *of = &presets[i];
            const zero_cluster found = {.struct_bytes = sizeof found,
                                        .nodes = 1,
                                        .ranks_per_node = of->ranks,
                                        .device_bytes = of->device_bytes,
                                        .host_bytes = of->host_bytes,
                                        .disk_bytes = of->disk_bytes,
                                        .device_reserve_bytes = of->device_reserve_bytes,
                                        .host_reserve_bytes = of->host_reserve_bytes};
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

zero_status zi_cluster_resolve(const zero_cluster *given, zero_cluster *c)
{
    *c = (zero_cluster){.struct_bytes = sizeof *c};
    ZI_TRY(ZI_SIZED_IN(zero_cluster, given, c));
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        uint64_t value = 0;
        memcpy(&value, (const unsigned char *)c + fields[i].offset, sizeof value);
        if (value < fields[i].low || value > fields[i].high) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT,
                    "%s of the cluster is %" PRIu64 "; it is in [%" PRIu64 ", %" PRIu64 "]",
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
    return ZERO_OK;
}

zero_status zero_cluster_check(const zero_cluster *cluster)
{
    zero_cluster resolved;
    return zi_cluster_resolve(cluster, &resolved);
}
