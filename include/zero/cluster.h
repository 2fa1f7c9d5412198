/** @file
 *  Machines by what they hold: what to plan for before they are at hand.
 *
 *  A zero_cluster describes nodes that are alike: how many, and how much memory each tier has. It
 *  comes from a preset, from a file of JSON whose keys are the fields' names, or from a caller who
 *  sets the fields. */
#ifndef ZERO_CLUSTER_H
#define ZERO_CLUSTER_H

#include "zero/export.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** Nodes that are alike, and the ranks on them. Grows at its end. */
typedef struct zero_cluster {
    size_t struct_bytes;           /**< set by zero_cluster_init() */
    uint64_t nodes;                /**< in [1, 65536] */
    uint64_t ranks_per_node;       /**< a GPU each, in [1, 256]; nodes x ranks_per_node is at most
                                        65536 */
    uint64_t device_bytes;         /**< memory of a GPU */
    uint64_t host_bytes;           /**< memory of a node */
    uint64_t disk_bytes;           /**< local disks of a node. 0: none */
    uint64_t device_reserve_bytes; /**< of a GPU's memory, what CUDA, NCCL and cuBLAS take */
    uint64_t host_reserve_bytes;   /**< of a node's memory, what the system and processes take */
} zero_cluster;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_cluster_init_sized(zero_cluster *cluster, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_cluster zero_cluster_init(void)
{
    zero_cluster cluster;
    zero_cluster_init_sized(&cluster, sizeof cluster);
    return cluster;
}

/** The name of preset `index`, 0-based; NULL behind the last one. */
ZERO_API const char *zero_cluster_preset_name(uint32_t index);

/** One node of a kind that can be bought. Its reserves are estimates: measure yours and set them.
 *  Set `nodes` for more nodes.
 *  - name: of zero_cluster_preset_name.
 *  - cluster: in: struct_bytes, of zero_cluster_init(); out: the rest, as far as the struct goes.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT, for an unknown name with all that there are.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_cluster_preset(const char *name, zero_cluster *cluster);

/** A cluster in a file: one JSON object whose keys are the names of the fields; "preset" begins
 * with a preset, and other keys replace its values.
 *  - path: of the file, at most 1 MiB.
 *  - cluster: as in zero_cluster_preset.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT naming the file and the key: unknown, no whole number, or out of
 * bounds; those of zero_cluster_check; IO; UNSUPPORTED where the library was built without jansson.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_cluster_read(const char *path, zero_cluster *cluster);

/** OK when the fields describe a cluster.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT naming the field, its value and its bounds; UNSUPPORTED when
 *    struct_bytes is larger than this library knows and the tail is not zero.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_cluster_check(const zero_cluster *cluster);

/** One field of a cluster, a uint64_t: for who prints or sets them by name. */
typedef struct zero_cluster_field {
    const char *name; /**< the field's, and the JSON key */
    uint64_t low;     /**< bounds */
    uint64_t high;    /**< bounds */
    size_t offset;    /**< in zero_cluster */
} zero_cluster_field;

/** Field `index`, 0-based; NULL behind the last one. In the struct's order; static memory. */
ZERO_API const zero_cluster_field *zero_cluster_field_at(uint32_t index);

ZERO_END

#endif
