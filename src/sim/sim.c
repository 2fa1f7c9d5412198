/* Owns the public simulation: it checks what is asked, turns a transformer's operations into time
 * and a trainer's counts into rates. */
#include "zero/sim.h"

#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "layout/layout.h"
#include "layout/model.h"
#include "plan/batch.h"
#include "plan/cluster.h"
#include "plan/flops.h"
#include "plan/transformer.h"
#include "sim/sim_trainer.h"

#define STEPS_MAX 1024
#define TRACE_EVENTS (1 << 20)
#define LARGEST_NS (UINT64_C(1) << 40) /* about 18 minutes */

void zero_sim_options_init_sized(zero_sim_options *options, size_t struct_bytes)
{
    const zero_sim_options known = {.struct_bytes = sizeof known};
    zi_sized_init(options, struct_bytes, &known, sizeof known);
}

void zero_sim_report_init_sized(zero_sim_report *report, size_t struct_bytes)
{
    const zero_sim_report known = {.struct_bytes = sizeof known};
    zi_sized_init(report, struct_bytes, &known, sizeof known);
}

static zero_status check_number(const char *name, uint64_t value, uint64_t high)
{
    if (value > high) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s of the simulation is %" PRIu64 "; it is at most %" PRIu64, name, value, high);
    }
    return ZERO_OK;
}

static zero_status resolve(const zero_sim_options *given, zero_sim_options *sim)
{
    *sim = (zero_sim_options){.struct_bytes = sizeof *sim};
    if (given != NULL) {
        ZI_TRY(ZI_OPTIONS_IN(zero_sim_options, given, sim));
    }
    sim->steps = sim->steps != 0 ? sim->steps : 2;
    ZI_TRY(check_number("steps", sim->steps, STEPS_MAX));
    ZI_TRY(check_number("forward_ns", sim->forward_ns, LARGEST_NS));
    return check_number("jitter_ns", sim->jitter_ns, LARGEST_NS);
}

/* Refuse what only real time, real values or another rank could decide. */
static zero_status sim_check_options(const zero_engine_options *options, const zero_tuning *tuning)
{
    if (tuning->updater == ZERO_UPDATER_BOTH) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tuning.updater is ZERO_UPDATER_BOTH, and which units the CPU "
                "takes is not simulated; use ZERO_UPDATER_GPU or "
                "ZERO_UPDATER_CPU");
    }
    if (tuning->speculative_step != 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tuning.speculative_step is 1, and the simulated trainer predicts "
                "no steps; leave it at 0");
    }
    if (options->optimizer == ZERO_OPTIMIZER_CALLBACK || options->update != NULL) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "ZERO_OPTIMIZER_CALLBACK is code whose time is not known; use "
                "ZERO_OPTIMIZER_ADAMW");
    }
    if (options->model_parallel != NULL) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "options.model_parallel is not NULL, and the simulated world holds "
                "the whole model; leave it out");
    }
    return ZERO_OK;
}

static zero_status check_cluster(const zero_cluster *cluster, const zero_sim_options *sim,
                                 const zi_sim_machine *machine, const zero_engine_options *options)
{
    bool disk = false;
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        disk = disk || options->tier[role] == ZERO_TIER_DISK;
    }
    if (sim->forward_ns == 0 && (cluster->device_flops == 0 || cluster->device_permille == 0)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s of the cluster is 0; set it, or how long a unit's forward takes (forward_ns)",
                cluster->device_flops == 0 ? "device_flops" : "device_permille");
    }
    if (sim->forward_ns == 0) {
        ZI_TRY(zi_sim_check_link(machine, ZERO_SIM_DEVICE_MEMORY));
    }
    if (disk) {
        ZI_TRY(zi_sim_check_link(machine, ZERO_SIM_DISK_READ));
        ZI_TRY(zi_sim_check_link(machine, ZERO_SIM_DISK_WRITE));
        ZI_TRY(zi_sim_check_link(machine, ZERO_SIM_HOST_MEMORY));
    }
    return ZERO_OK;
}

/* The request of a simulation, with its defaults replaced. */
typedef struct sim_request {
    zero_transformer transformer;
    zero_cluster cluster;
    zero_batch batch;
    zi_micro_elements elements;
    zero_sim_options sim;
} sim_request;

/* Of a mesh only the engine's part is one rank's own doing. */
static zero_status sim_check_whole(const sim_request *r)
{
    const struct {
        const char *name;
        uint64_t value;
        uint64_t whole;
    } fields[] = {{"tensor_parallel of the transformer", r->transformer.tensor_parallel, 1},
                  {"pipeline_parallel of the transformer", r->transformer.pipeline_parallel, 1},
                  {"expert_parallel of the transformer", r->transformer.expert_parallel, 1},
                  {"context_parallel of the batch", r->batch.context_parallel, 1},
                  {"fp8 of the batch", r->batch.fp8, 0},
                  {"wire of the batch", (uint64_t)r->batch.wire, ZERO_WIRE_ENGINE}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].value != fields[i].whole) {
            ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                    "%s is %" PRIu64 ", and a simulated rank has the whole model in the engine's "
                    "types; leave it at 0, or estimate the step by zero_estimate_of",
                    fields[i].name, fields[i].value);
        }
    }
    return ZERO_OK;
}

/* A transformer's units in time. */
typedef struct sim_units {
    zero_model *model;
    uint64_t *forward_ns; /* behind them as many of backward */
    double flops;         /* of a micro-step, without recomputation */
} sim_units;

/* Operations of a unit's forward: those of matrices, and attention's, whose rate may be another. */
typedef struct unit_flops {
    double products;
    double attention;
} unit_flops;

static zero_status count_flops(const sim_request *r, uint32_t unit, unit_flops *flops)
{
    const zero_transformer *t = &r->transformer;
    const double tokens = (double)r->batch.samples * (double)r->batch.sequence;
    zi_transformer_products products;
    uint64_t all = 0;
    ZI_TRY(zi_transformer_flops(t, &r->batch, unit, &all));
    ZI_TRY(zi_transformer_unit(t, unit, &products));
    flops->attention =
        2.0 * (double)products.pair * zi_keys_of(t, &r->batch, products.windowed) * tokens;
    flops->products = (double)all - flops->attention;
    return ZERO_OK;
}

static double time_of(const sim_request *r, double products, double attention)
{
    const zero_cluster *c = &r->cluster;
    const uint64_t attends =
        c->attention_permille != 0 ? c->attention_permille : c->device_permille;
    const double busy = products / (double)c->device_permille + attention / (double)attends;
    return busy * 1e12 / (double)c->device_flops;
}

/* Operations that a block's recomputation leaves out, for each of its units: those of its last
 * product (zi_micro_flops_of says why). */
static double left_out(const sim_request *r, uint32_t unit_count)
{
    const zero_transformer *t = &r->transformer;
    const double tokens = (double)r->batch.samples * (double)r->batch.sequence;
    const zi_stage all = zi_transformer_all(t);
    double last = 0;
    for (int kind = 0; kind < ZI_BLOCK_KINDS; kind++) {
        last += (double)zi_transformer_last(t, (zi_block_kind)kind) *
                (double)zi_stage_count(&all, (zi_block_kind)kind);
    }
    return 2 * tokens * last / (unit_count - 2);
}

/* A unit's part of what kernels between products move: blocks have all but the loss, and an even
 * share each. */
static double element_ns(const sim_request *r, uint32_t unit, uint32_t unit_count, double bytes)
{
    const bool block = unit != 0 && unit + 1 != unit_count;
    const double share = block ? bytes / (unit_count - 2) : 0;
    return share * 1e9 / (double)r->cluster.device_bytes_per_s;
}

/* A pass over a unit: products, then what kernels between them move. */
static zero_status round_time(const sim_request *r, uint32_t unit, double products_ns,
                              double elements_ns, uint64_t *ns)
{
    if (products_ns + elements_ns >= (double)ZI_SIM_END_NS) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a pass over unit %" PRIu32
                " takes %.3g s, and at most 73 years are simulated; raise %s of the cluster, "
                "%" PRIu64 ", or make the batch smaller",
                unit, (products_ns + elements_ns) / 1e9,
                products_ns > elements_ns ? "device_flops" : "device_bytes_per_s",
                products_ns > elements_ns ? r->cluster.device_flops
                                          : r->cluster.device_bytes_per_s);
    }
    *ns = (uint64_t)(products_ns + 0.5) + (uint64_t)elements_ns;
    return ZERO_OK;
}

static zero_status time_unit(const sim_request *r, uint32_t unit, sim_units *units)
{
    const uint32_t count = units->model->unit_count;
    const bool block = unit != 0 && unit + 1 != count;
    const double again = block ? zi_batch_again(&r->batch) : 0;
    const double scores = r->batch.stored_attention != 0 ? 2 : 2.5;
    uint64_t *forward_ns = &units->forward_ns[unit];
    uint64_t *backward_ns = forward_ns + count;
    unit_flops flops;
    ZI_TRY(count_flops(r, unit, &flops));
    if (r->sim.forward_ns != 0) {
        *forward_ns = r->sim.forward_ns;
        *backward_ns = (uint64_t)((2 + again) * (double)r->sim.forward_ns);
        return ZERO_OK;
    }
    const double products = again * (flops.products - left_out(r, count));
    units->flops += 3 * (flops.products + flops.attention);
    ZI_TRY(round_time(r, unit, time_of(r, flops.products, flops.attention),
                      element_ns(r, unit, count, r->elements.forward), forward_ns));
    return round_time(r, unit,
                      time_of(r, 2 * flops.products + products, (scores + again) * flops.attention),
                      element_ns(r, unit, count, r->elements.backward), backward_ns);
}

static zero_status fill_units(const sim_request *r, sim_units *units)
{
    const uint32_t count = units->model->unit_count;
    ZI_TRY(zi_calloc(count, 2 * sizeof *units->forward_ns, (void **)&units->forward_ns));
    for (uint32_t unit = 0; unit < count; unit++) {
        ZI_TRY(time_unit(r, unit, units));
    }
    return ZERO_OK;
}

static void add_rates(const sim_request *r, double flops, zero_sim_report *report)
{
    const double ranks = (double)r->cluster.nodes * (double)r->cluster.ranks_per_node;
    const double tokens = (double)r->batch.samples * (double)r->batch.sequence;
    const double steps_per_s = report->step_ns != 0 ? 1e9 / (double)report->step_ns : 0.0;
    report->tokens_per_s = tokens * (double)r->batch.micro_steps * ranks * steps_per_s;
    report->flops_per_s = flops * (double)r->batch.micro_steps * steps_per_s;
}

/* The engine's options as the simulation runs them. */
typedef struct sim_choice {
    zero_engine_options options;
    zero_tuning tuning;
} sim_choice;

static const char *const no_directories[] = {"simulated"};

static zero_status sim_choose(const zero_engine_options *given, bool traced, sim_choice *choice)
{
    ZI_TRY(zi_options_take(given, &choice->options, &choice->tuning));
    ZI_TRY(sim_check_options(&choice->options, &choice->tuning));
    choice->options.tuning = &choice->tuning;
    choice->options.threads = 1;
    choice->options.disk_directories = no_directories;
    choice->options.disk_directory_count = 1;
    choice->tuning.disk_weights = NULL;
    choice->tuning.hang_directory = NULL;
    choice->tuning.disk_unchecked = 1;
    if (traced && choice->tuning.trace_events == 0) {
        choice->tuning.trace_events = TRACE_EVENTS;
    }
    return ZERO_OK;
}

static zero_status simulate(const sim_request *r, const sim_choice *choice, sim_units *units,
                            zero_sim_report *report)
{
    zi_sim *rank = NULL;
    ZI_TRY(zero_transformer_model(&r->transformer, &units->model));
    ZI_TRY(zi_sim_create(&r->cluster, choice->options.device != ZERO_DEVICE_CUDA, &rank));
    rank->machine.jitter_ns = r->sim.jitter_ns;
    rank->machine.seed = r->sim.seed;
    zero_status status = check_cluster(&r->cluster, &r->sim, &rank->machine, &choice->options);
    if (status == ZERO_OK) {
        status = fill_units(r, units);
    }
    if (status == ZERO_OK) {
        const zi_sim_job job = {.model = units->model,
                                .options = &choice->options,
                                .forward_ns = units->forward_ns,
                                .backward_ns = units->forward_ns + units->model->unit_count,
                                .micro_steps = r->batch.micro_steps,
                                .steps = r->sim.steps,
                                .trace_path = r->sim.trace_path};
        status = zi_sim_train(rank, &job, report);
    }
    if (status == ZERO_OK) {
        add_rates(r, units->flops, report);
    }
    zi_sim_destroy(rank);
    return status;
}

zero_status zero_sim_run(const zero_transformer *transformer, const zero_cluster *cluster,
                         const zero_engine_options *options, const zero_batch *batch,
                         const zero_sim_options *sim, zero_sim_report *report)
{
    sim_request request;
    zi_transformer_counts counts;
    zero_sim_report made = {.struct_bytes = sizeof made};
    sim_units units = {0};
    sim_choice choice;
    ZI_TRY(zi_transformer_resolve(transformer, &request.transformer, &counts));
    ZI_TRY(zi_batch_resolve(batch, &request.transformer, &request.batch));
    ZI_TRY(zi_cluster_resolve(cluster, &request.cluster));
    ZI_TRY(sim_check_whole(&request));
    ZI_TRY(zi_micro_elements_of(&request.transformer, &request.batch,
                                zi_transformer_all(&request.transformer), &request.elements));
    ZI_TRY(resolve(sim, &request.sim));
    ZI_TRY(sim_choose(options, request.sim.trace_path != NULL, &choice));
    const zero_status status = simulate(&request, &choice, &units, &made);
    zero_model_destroy(units.model);
    zi_free(units.forward_ns);
    ZI_TRY(status);
    return ZI_SIZED_OUT(zero_sim_report, report, &made);
}
