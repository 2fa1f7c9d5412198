/* Owns the simulated training steps, and what they are measured by. Invariant: between two readings
 * of the caller's stream its time is compute or a wait with a cause, so that their sum is the
 * step's time. */
#include "sim/sim_trainer.h"

#include <string.h>

#include "core/error.h"
#include "layout/layout.h"
#include "layout/model.h"
#include "sim/sim_comm.h"
#include "zero/engine.h"
#include "zero/plan.h"
#include "zero/step.h"
#include "zero/trace.h"
#include "zero/unit.h"

typedef struct sim_trainer {
    zi_sim *sim;
    const zi_sim_job *job;
    zero_engine *engine;
    zi_stream *stream;
    uint64_t compute_ns;
    uint64_t wait_ns[ZERO_SIM_CAUSE_COUNT];
    uint64_t read_ns; /* the stream's time when it was read last */
} sim_trainer;

/* Count what the stream has waited for since it was read last. */
static void count_waits(sim_trainer *trainer)
{
    const zi_sim_track *track = zi_sim_stream_track(trainer->stream);
    zi_sim_track_causes(track, trainer->read_ns, track->now_ns, trainer->wait_ns);
    trainer->read_ns = track->now_ns;
}

static void compute(sim_trainer *trainer, uint64_t ns)
{
    count_waits(trainer);
    zi_sim_put_compute(trainer->stream, ns);
    trainer->compute_ns += ns;
    trainer->read_ns = zi_sim_stream_track(trainer->stream)->now_ns;
}

static zero_status pass_unit(sim_trainer *trainer, uint32_t unit, zero_pass pass, uint64_t ns)
{
    const zero_stream stream = zi_sim_stream_native(trainer->stream);
    ZI_TRY(zero_unit_acquire(trainer->engine, unit, pass, stream, NULL));
    compute(trainer, ns);
    ZI_TRY(zero_unit_release(trainer->engine, unit, stream));
    return zi_sim_check_clock(&trainer->sim->machine);
}

static zero_status micro_step(sim_trainer *trainer, bool last)
{
    const zi_sim_job *job = trainer->job;
    const uint32_t units = job->model->unit_count;
    ZI_TRY(zero_micro_begin(trainer->engine, last ? ZERO_MICRO_LAST : ZERO_MICRO_EARLIER));
    for (uint32_t unit = 0; unit < units; unit++) {
        ZI_TRY(pass_unit(trainer, unit, ZERO_PASS_FORWARD, job->forward_ns[unit]));
    }
    for (uint32_t unit = units; unit-- > 0;) {
        ZI_TRY(pass_unit(trainer, unit, ZERO_PASS_BACKWARD, job->backward_ns[unit]));
    }
    return zero_micro_end(trainer->engine);
}

static zero_status step(sim_trainer *trainer)
{
    const zero_stream stream = zi_sim_stream_native(trainer->stream);
    for (uint64_t i = 0; i < trainer->job->micro_steps; i++) {
        ZI_TRY(micro_step(trainer, i + 1 == trainer->job->micro_steps));
    }
    ZI_TRY(zero_step(trainer->engine, NULL, stream));
    count_waits(trainer);
    return zi_sim_check_clock(&trainer->sim->machine);
}

/* Count from here on. */
static void begin_report(sim_trainer *trainer)
{
    trainer->compute_ns = 0;
    memset(trainer->wait_ns, 0, sizeof trainer->wait_ns);
    for (int i = 0; i < ZERO_SIM_LINK_COUNT; i++) {
        trainer->sim->machine.links[i].bytes = 0;
        trainer->sim->machine.links[i].busy_ns = 0;
    }
}

static zero_status end_report(const sim_trainer *trainer, zero_sim_report *report)
{
    const zi_sim_machine *machine = &trainer->sim->machine;
    const uint64_t steps = trainer->job->steps;
    zero_memory planned = zero_memory_init();
    zero_stats stats = zero_stats_init();
    report->compute_ns = trainer->compute_ns / steps;
    report->step_ns = report->compute_ns;
    for (int i = 0; i < ZERO_SIM_CAUSE_COUNT; i++) {
        report->wait_ns[i] = trainer->wait_ns[i] / steps;
        report->step_ns += report->wait_ns[i];
    }
    for (int i = 0; i < ZERO_SIM_LINK_COUNT; i++) {
        report->link_bytes[i] = machine->links[i].bytes / steps;
        report->link_busy_ns[i] = machine->links[i].busy_ns / steps;
    }
    ZI_TRY(zero_plan_memory(zero_engine_plan(trainer->engine), &planned));
    ZI_TRY(zero_engine_stats(trainer->engine, &stats));
    memcpy(report->planned_bytes, planned.tier_bytes, sizeof report->planned_bytes);
    memcpy(report->peak_bytes, machine->peak_bytes, sizeof machine->peak_bytes);
    report->peak_bytes[ZERO_TIER_DISK] = stats.disk_bytes;
    return ZERO_OK;
}

static zero_status sim_trainer_run(sim_trainer *trainer, zero_sim_report *report)
{
    for (uint64_t i = 0; i < ZI_SIM_WARM_STEPS + trainer->job->steps; i++) {
        if (i == ZI_SIM_WARM_STEPS) {
            begin_report(trainer);
        }
        ZI_TRY(step(trainer));
    }
    ZI_TRY(end_report(trainer, report));
    return trainer->job->trace_path != NULL
               ? zero_engine_trace(trainer->engine, trainer->job->trace_path)
               : ZERO_OK;
}

/* The capabilities that the options name, which a layout computes. */
static zero_status take_capabilities(uint32_t world, const zi_sim_job *job, zi_capabilities *can)
{
    zi_layout *layout = NULL;
    ZI_TRY(zi_layout_create(job->model, job->options, world, false, NULL, &layout));
    *can = layout->can;
    zi_layout_destroy(layout);
    return ZERO_OK;
}

zero_status zi_sim_train(zi_sim *sim, const zi_sim_job *job, zero_sim_report *report)
{
    sim_trainer trainer = {.sim = sim, .job = job};
    zero_world *world = NULL;
    zi_capabilities can;
    ZI_TRY(take_capabilities(sim->machine.world, job, &can));
    const zi_backend backend = zi_sim_backend(sim, &can);
    ZI_TRY(zi_sim_world_create(&sim->machine, &world));
    zero_status status = zi_sim_stream_create(&sim->device, &trainer.stream);
    if (status == ZERO_OK) {
        status = zi_engine_create_with(world, job->model, job->options, &backend, &trainer.engine);
    }
    if (status == ZERO_OK) {
        status = sim_trainer_run(&trainer, report);
    }
    const zero_error error = *zero_last_error();
    zero_engine_destroy(trainer.engine);
    zi_sim_stream_destroy(trainer.stream);
    zero_world_destroy(world);
    return status == ZERO_OK ? ZERO_OK : zi_error_adopt(&error);
}
