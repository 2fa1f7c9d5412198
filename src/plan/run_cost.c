/* Owns the costs of a run: steps, money, energy, and failures. Invariant: without failures the run
 * takes what its steps take. */
#include "zero/run.h"

#include <math.h>

#include "core/error.h"
#include "core/sized.h"
#include "layout/layout.h"
#include "plan/batch.h"
#include "plan/cluster.h"
#include "plan/part_plans.h"
#include "plan/transformer.h"
#include "zero/estimate.h"

#define HOUR 3600.0
/* More of anything is a mistake. */
#define LARGEST 1e18

void zero_run_init_sized(zero_run *run, size_t struct_bytes)
{
    const zero_run known = {.struct_bytes = sizeof known};
    zi_sized_init(run, struct_bytes, &known, sizeof known);
}

void zero_run_cost_init_sized(zero_run_cost *cost, size_t struct_bytes)
{
    const zero_run_cost known = {.struct_bytes = sizeof known};
    zi_sized_init(cost, struct_bytes, &known, sizeof known);
}

/* Refuses NaN too. */
static zero_status check_amount(const char *name, double value, const char *low)
{
    if (!(value >= 0 && value <= LARGEST) || (low[0] == '(' && !(value > 0))) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s of the run is %g; it is in %s0, 1e18]", name, value,
                low);
    }
    return ZERO_OK;
}

static zero_status check_run(const zero_run *run)
{
    ZI_TRY(check_amount("tokens", run->tokens, "("));
    ZI_TRY(check_amount("gpu_hour_price", run->gpu_hour_price, "["));
    ZI_TRY(check_amount("gpu_watts", run->gpu_watts, "["));
    ZI_TRY(check_amount("node_mtbf_hours", run->node_mtbf_hours, "["));
    ZI_TRY(check_amount("save_seconds", run->save_seconds, "["));
    return check_amount("restart_seconds", run->restart_seconds, "[");
}

/* ---- checkpoints ---- */

/* Everything but gradients, once: parameters, and the states of the optimizer. */
static uint64_t rank_checkpoint_bytes(const zi_layout *layout)
{
    double bytes = 0;
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const zi_flat *flat = &layout->flats[f];
        for (int role = 0; role < ZI_SHARD_ROLES; role++) {
            if (role != ZERO_ROLE_GRAD && !zi_codec_is_none(flat->kept[role])) {
                bytes += (double)zi_codec_bytes(flat->kept[role], flat->count) / layout->world;
            }
        }
    }
    return (uint64_t)bytes;
}

/* Ranks of a node write at once. */
static zero_status time_save(const zero_run *run, const zero_cluster *c, uint64_t rank_bytes,
                             double *save_s)
{
    *save_s = run->save_seconds;
    if (*save_s > 0) {
        return ZERO_OK;
    }
    if (c->disk_write_bytes_per_s == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "disk_write_bytes_per_s of the cluster is 0, so a checkpoint's time is not known; "
                "set it, or save_seconds of the run");
    }
    *save_s = (double)rank_bytes * (double)c->ranks_per_node / (double)c->disk_write_bytes_per_s;
    return ZERO_OK;
}

/* ---- failures ---- */

static double best_interval(double save_s, double mtbf_s)
{
    const double ratio = save_s / (2 * mtbf_s);
    return ratio < 1 ? sqrt(2 * save_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_s
                     : mtbf_s;
}

static zero_status count_failures(const zero_run *run, const zero_cluster *c, zero_run_cost *cost)
{
    const double mtbf_s = run->node_mtbf_hours * HOUR / (double)c->nodes;
    const double restart_s =
        run->restart_seconds > 0 ? run->restart_seconds : ZERO_RUN_RESTART_SECONDS;
    const double interval_s = best_interval(cost->save_seconds, mtbf_s);
    const double stretch = exp(restart_s / mtbf_s) *
                           expm1((interval_s + cost->save_seconds) / mtbf_s) * mtbf_s / interval_s;
    if (!isfinite(stretch * cost->train_seconds)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a node fails every %g hours, one of the %g every %.3g s, and a save and a restart "
                "take %.3g s, so the run does not end; save faster, or use fewer nodes",
                run->node_mtbf_hours, (double)c->nodes, mtbf_s, cost->save_seconds + restart_s);
    }
    cost->restart_seconds = restart_s;
    cost->mtbf_seconds = mtbf_s;
    cost->save_interval_seconds = interval_s;
    cost->wall_seconds = stretch * cost->train_seconds;
    cost->failures = cost->wall_seconds / mtbf_s;
    return ZERO_OK;
}

/* ---- the run ---- */

static zero_status count_run(const zero_run *run, const zero_cluster *c, const zero_estimate *step,
                             uint64_t rank_bytes, zero_run_cost *cost)
{
    cost->steps = ceil(run->tokens / (double)step->tokens);
    cost->low_seconds = cost->steps * (double)step->low_ns / 1e9;
    cost->train_seconds = cost->steps * (double)step->expected_ns / 1e9;
    cost->wall_seconds = cost->train_seconds;
    if (run->node_mtbf_hours > 0) {
        ZI_TRY(time_save(run, c, rank_bytes, &cost->save_seconds));
        ZI_TRY(count_failures(run, c, cost));
    }
    cost->goodput = cost->train_seconds / cost->wall_seconds;
    cost->gpu_hours = cost->wall_seconds / HOUR * (double)c->nodes * (double)c->ranks_per_node;
    cost->price = cost->gpu_hours * run->gpu_hour_price;
    cost->mwh = cost->gpu_hours * run->gpu_watts / 1e6;
    return ZERO_OK;
}

/* The bytes that a rank writes of a checkpoint. */
static zero_status plan_checkpoint(const zero_transformer *transformer, const zero_cluster *c,
                                   const zero_engine_options *options, const zero_batch *batch,
                                   uint64_t *rank_bytes)
{
    zero_transformer t;
    zero_batch b;
    zi_transformer_counts counts;
    zi_part_plans plans;
    uint32_t column = 0;
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    ZI_TRY(zi_batch_resolve(batch, &t, &b));
    ZI_TRY(zi_mesh_columns(&t, &b, c->nodes * c->ranks_per_node, &column));
    const zero_status status = zi_part_plans_make(transformer, options, column, &plans);
    if (status == ZERO_OK) {
        *rank_bytes = rank_checkpoint_bytes(plans.main->layout) +
                      (plans.experts != NULL ? rank_checkpoint_bytes(plans.experts->layout) : 0);
    }
    zi_part_plans_destroy(&plans);
    return status;
}

zero_status zero_run_cost_of(const zero_run *run, const zero_transformer *transformer,
                             const zero_cluster *cluster, const zero_engine_options *options,
                             const zero_batch *batch, zero_run_cost *cost)
{
    zero_run r = {.struct_bytes = sizeof r};
    zero_run_cost made = {.struct_bytes = sizeof made};
    zero_cluster c;
    zero_estimate step = zero_estimate_init();
    uint64_t rank_bytes = 0;
    ZI_TRY(ZI_SIZED_IN(zero_run, run, &r));
    ZI_TRY(check_run(&r));
    ZI_TRY(zero_estimate_of(transformer, cluster, options, batch, &step));
    ZI_TRY(zi_cluster_resolve(cluster, &c));
    ZI_TRY(plan_checkpoint(transformer, &c, options, batch, &rank_bytes));
    made.checkpoint_bytes = rank_bytes * c.nodes * c.ranks_per_node;
    ZI_TRY(count_run(&r, &c, &step, rank_bytes, &made));
    return ZI_SIZED_OUT(zero_run_cost, cost, &made);
}
