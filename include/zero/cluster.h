/** @file
 *  Machines by what they hold and move: what to plan for before they are at hand.
 *
 *  A zero_cluster describes nodes that are alike: how many, how much memory each tier has, and how
 *  many bytes a second each link carries. It comes from a preset, from a file of JSON whose
 *  keys are the names of the fields, or from a caller who sets the fields.
 *
 *  Bytes that fit are counted without rates. What estimates time needs them, and refuses a cluster
 *  in which one that it needs is 0. Rates are those of one direction.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of libzero-plan. */
#ifndef ZERO_CLUSTER_H
#define ZERO_CLUSTER_H

#include "zero/export.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** Nodes that are alike, and the ranks on them. Grows at its end. */
typedef struct zero_cluster {
    size_t struct_bytes;             /**< set by zero_cluster_init() */
    uint64_t nodes;                  /**< in [1, 65536] */
    uint64_t ranks_per_node;         /**< a GPU each, in [1, 256]; nodes x ranks_per_node is at most
                                          65536 */
    uint64_t device_bytes;           /**< memory of a GPU */
    uint64_t host_bytes;             /**< memory of a node */
    uint64_t disk_bytes;             /**< local disks of a node. 0: none */
    uint64_t device_reserve_bytes;   /**< of a GPU's memory, what CUDA, NCCL and cuBLAS take */
    uint64_t host_reserve_bytes;     /**< of a node's memory, what the system and processes take */
    uint64_t device_flops;           /**< operations a second of a GPU's dense products of 16-bit
                                          matrices, by its data sheet; a multiply-add is two */
    uint64_t device_permille;        /**< of device_flops, what a trainer's products reach, at
                                          most 1000 */
    uint64_t device_bytes_per_s;     /**< memory of a GPU, bytes read and written */
    uint64_t host_bytes_per_s;       /**< memory of a node, bytes read and written */
    uint64_t host_link_bytes_per_s;  /**< of a GPU to or from host memory, while all GPUs of the
                                          node copy */
    uint64_t host_link_latency_ns;   /**< of a copy */
    uint64_t local_bytes_per_s;      /**< of a GPU to the others of its node */
    uint64_t local_latency_ns;       /**< of a collective's step within a node */
    uint64_t fabric_bytes_per_s;     /**< of a node to others, all its network cards */
    uint64_t fabric_permille;        /**< of fabric_bytes_per_s, what collectives reach, at
                                          most 1000 */
    uint64_t fabric_latency_ns;      /**< of a collective's step between nodes */
    uint64_t disk_read_bytes_per_s;  /**< all local disks of a node */
    uint64_t disk_write_bytes_per_s; /**< likewise */
    uint64_t disk_latency_ns;        /**< of an access */
    uint64_t attention_permille;     /**< of device_flops, what attention's products reach, counted
                                          as if there were no causal mask, at most 1000. 0: as
                                          device_permille */
    uint64_t device_fp8_flops;       /**< as device_flops, of matrices in fp8. 0: the GPU has no
                                          such products */
    uint64_t device_fp8_permille;    /**< of device_fp8_flops, what a trainer's products reach, at
                                          most 1000. 0: as device_permille */
    uint64_t local_permille;         /**< of local_bytes_per_s, what collectives reach, at most
                                          1000. 0: all of it */
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

/** One node of a kind that can be bought. What it holds, device_flops and the rates of GPUs, NVLink
 *  and network cards are those of data sheets; reserves, permilles, latencies, host links and disks
 *  are estimates. Measure yours and set them. Set `nodes` for more nodes.
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
 * bounds; those of zero_cluster_check; IO.
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
