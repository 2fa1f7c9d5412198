/* A trainer on a simulated machine: its calls are those of any trainer, its products take their
 * time. */
#ifndef ZI_SIM_SIM_TRAINER_H
#define ZI_SIM_SIM_TRAINER_H

#include "sim/sim_backend.h"
#include "zero/model.h"

typedef struct zi_sim_job {
    const zero_model *model;
    const zero_engine_options *options;
    const uint64_t *forward_ns; /* by unit, as next */
    const uint64_t *backward_ns;
    uint64_t micro_steps;
    uint64_t steps;         /* that are reported */
    const char *trace_path; /* NULL: no timeline is written */
} zi_sim_job;

/* Steps that come before those reported: state on disk is read from the second on, and the order of
 * gathers is known. */
#define ZI_SIM_WARM_STEPS 2

/* Train on a simulated rank and fill the report but for its rates. Errors: as zero_sim_run. */
zero_status zi_sim_train(zi_sim *sim, const zi_sim_job *job, zero_sim_report *report);

#endif
