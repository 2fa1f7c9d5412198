/* A small model on a small cluster, whose times are easy to add up: a byte over a link takes a
 * nanosecond, and nothing else takes time but what a test sets. */
#ifndef TESTS_SIM_RIG_H
#define TESTS_SIM_RIG_H

#include "harness.h"

#include "sim/sim_trainer.h"
#include "zero/planner.h"
#include "zero/zero.h"

#define RIG_UNITS_MAX 16
#define RIG_RATE UINT64_C(1000000000)
/* So fast that it takes no time. */
#define RIG_INSTANT (UINT64_C(1) << 60)

typedef struct sim_rig {
    zero_cluster cluster;
    zero_engine_options options;
    zero_tuning tuning;
    zero_model *model;
    uint64_t forward_ns[RIG_UNITS_MAX];
    uint64_t backward_ns[RIG_UNITS_MAX];
    zi_sim_job job;
    zero_sim_report report;
} sim_rig;

/* Units of one tensor of so many F32 elements each; every pass over one takes `ns`. */
static inline void rig_open(sim_rig *rig, uint64_t nodes, uint64_t ranks_per_node, uint32_t units,
                            uint64_t elements, uint64_t ns)
{
    uint32_t index = 0;
    *rig = (sim_rig){.cluster = zero_cluster_init(),
                     .options = zero_engine_options_init(),
                     .tuning = zero_tuning_init(),
                     .report = zero_sim_report_init()};
    rig->cluster.nodes = nodes;
    rig->cluster.ranks_per_node = ranks_per_node;
    rig->cluster.device_bytes_per_s = RIG_INSTANT;
    rig->cluster.host_bytes_per_s = RIG_INSTANT;
    rig->cluster.host_link_bytes_per_s = RIG_INSTANT;
    rig->cluster.local_bytes_per_s = RIG_RATE;
    rig->cluster.fabric_bytes_per_s = RIG_RATE * ranks_per_node; /* of a rank: RIG_RATE */
    rig->cluster.fabric_permille = 1000;
    rig->cluster.disk_read_bytes_per_s = RIG_RATE * ranks_per_node;
    rig->cluster.disk_write_bytes_per_s = RIG_RATE * ranks_per_node;
    rig->options.device = ZERO_DEVICE_CUDA;
    rig->options.tuning = &rig->tuning;
    rig->options.threads = 1;
    rig->tuning.disk_unchecked = 1;
    rig->tuning.bucket_bytes = 1;
    CHECK_OK(zero_model_create(&rig->model));
    for (uint32_t u = 0; u < units; u++) {
        char name[16];
        const zero_tensor_desc desc = {.name = name, .shape = {elements}, .dims = 1};
        (void)snprintf(name, sizeof name, "unit %u", u);
        CHECK_OK(zero_unit_add(rig->model, &(zero_unit_desc){.name = name}, &index, NULL));
        CHECK_OK(zero_tensor_add(rig->model, index, &desc, &index));
        rig->forward_ns[u] = ns;
        rig->backward_ns[u] = ns;
    }
    rig->job = (zi_sim_job){.model = rig->model,
                            .options = &rig->options,
                            .forward_ns = rig->forward_ns,
                            .backward_ns = rig->backward_ns,
                            .micro_steps = 1,
                            .steps = 2};
}

static inline zero_status rig_try(sim_rig *rig)
{
    zi_sim *sim = NULL;
    const zero_status made =
        zi_sim_create(&rig->cluster, rig->options.device != ZERO_DEVICE_CUDA, &sim);
    const zero_status status = made == ZERO_OK ? zi_sim_train(sim, &rig->job, &rig->report) : made;
    zi_sim_destroy(sim);
    return status;
}

static inline const zero_sim_report *rig_run(sim_rig *rig)
{
    CHECK_OK(rig_try(rig));
    return &rig->report;
}

static inline void rig_close(sim_rig *rig)
{
    zero_model_destroy(rig->model);
}

/* The roles of shards from `first` on are on the tier. */
static inline void rig_tiers(sim_rig *rig, zero_role first, zero_tier tier)
{
    static const char *const directories[] = {"simulated"};
    for (int role = (int)first; role < ZI_SHARD_ROLES; role++) {
        rig->options.tier[role] = tier;
    }
    rig->options.disk_directories = directories;
    rig->options.disk_directory_count = 1;
}

#endif
