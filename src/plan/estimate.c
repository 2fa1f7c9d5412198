/* Owns the time of a step: what moves and is computed, by the rates of a cluster. Invariant: the
 * terms add up to the interval's upper end. */
#include "zero/estimate.h"

#include <inttypes.h>

#include "core/error.h"
#include "core/sized.h"
#include "plan/batch.h"
#include "plan/cluster.h"
#include "plan/estimate_traffic.h"
#include "plan/flops.h"
#include "plan/transformer.h"

#define NS 1e9

void zero_estimate_init_sized(zero_estimate *estimate, size_t struct_bytes)
{
    const zero_estimate known = {.struct_bytes = sizeof known};
    zi_sized_init(estimate, struct_bytes, &known, sizeof known);
}

const char *zero_estimate_term_name(zero_estimate_term term)
{
    static const char *const names[ZERO_ESTIMATE_TERMS] = {"products",    "elements",  "gathers",
                                                           "reductions",  "host link", "disk reads",
                                                           "disk writes", "update"};
    return (uint32_t)term < ZERO_ESTIMATE_TERMS ? names[term] : NULL;
}

/* ---- what there is to do, and on what ---- */

typedef struct work {
    zero_cluster cluster;
    zero_batch batch;
    zi_micro_flops flops; /* of a micro-step */
    double element_bytes; /* likewise, that kernels between products move */
    zi_traffic traffic;   /* of a step */
    double local_ns;      /* of links, without latencies, at full rates */
    double fabric_ns;     /* likewise */
    double local_bytes;   /* that a rank receives */
    double fabric_bytes;  /* likewise */
    double term_ns[ZERO_ESTIMATE_TERMS];
} work;

static zero_status need(uint64_t rate, const char *name, double used)
{
    if (rate == 0 && used > 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "%s of the cluster is 0, and a step needs it: measure it, or begin with a preset",
                name);
    }
    return ZERO_OK;
}

/* A rank's part of what its node has. */
static double share(const work *w, uint64_t rate)
{
    return (double)rate / (double)w->cluster.ranks_per_node;
}

static double seconds(double amount, double rate)
{
    return amount > 0 ? amount / rate : 0;
}

/* ---- collectives ---- */

/* Groups that are alike exchange at once. Every member receives what others have: rings carry it
 * through each node once, and through each GPU of the node. The slower of both is what it takes,
 * since bytes are on their way in both at the same time. passes: 2 for an all-reduce, which
 * scatters sums and gathers them. */
static zero_status exchange(work *w, const zi_exchange *e, double passes, zero_estimate_term term)
{
    const zero_cluster *c = &w->cluster;
    const uint64_t near = e->stride < c->ranks_per_node
                              ? zi_min_u64(e->size, zi_div_up(c->ranks_per_node, e->stride))
                              : 1; /* members on a node */
    const double nodes = (double)zi_div_up(e->size, near);
    if (e->size == 1 || e->bytes <= 0) {
        return ZERO_OK;
    }
    const double local = near > 1 ? passes * e->bytes * (e->size - 1.0) / e->size : 0;
    const double fabric = passes * e->bytes * (nodes - 1) / nodes / (double)near;
    ZI_TRY(need(c->local_bytes_per_s, "local_bytes_per_s", local));
    ZI_TRY(need(c->fabric_bytes_per_s, "fabric_bytes_per_s", fabric));
    ZI_TRY(need(c->fabric_permille, "fabric_permille", fabric));
    const double local_ns = NS * seconds(local, (double)c->local_bytes_per_s);
    const double fabric_ns = NS * seconds(fabric, share(w, c->fabric_bytes_per_s));
    const double reached_ns = seconds(fabric_ns, (double)c->fabric_permille / 1000);
    w->local_ns += local_ns;
    w->fabric_ns += fabric_ns;
    w->local_bytes += local;
    w->fabric_bytes += fabric;
    w->term_ns[term] += (local_ns > reached_ns ? local_ns : reached_ns) +
                        passes * e->calls *
                            ((double)(near - 1) * (double)c->local_latency_ns +
                             (nodes - 1) * (double)c->fabric_latency_ns);
    return ZERO_OK;
}

static zero_status time_links(work *w)
{
    const zi_traffic *t = &w->traffic;
    ZI_TRY(exchange(w, &t->gathers, 1, ZERO_ESTIMATE_GATHERS));
    ZI_TRY(exchange(w, &t->param_gathers, 1, ZERO_ESTIMATE_GATHERS));
    ZI_TRY(exchange(w, &t->scatter, 1, ZERO_ESTIMATE_REDUCTIONS));
    ZI_TRY(exchange(w, &t->boundary, 1, ZERO_ESTIMATE_REDUCTIONS));
    return exchange(w, &t->replicas, 2, ZERO_ESTIMATE_REDUCTIONS);
}

/* ---- everything else ---- */

static zero_status time_compute(work *w)
{
    const zero_cluster *c = &w->cluster;
    const double micro = w->batch.micro_steps;
    ZI_TRY(need(c->device_flops, "device_flops", 1));
    ZI_TRY(need(c->device_permille, "device_permille", 1));
    ZI_TRY(need(c->device_bytes_per_s, "device_bytes_per_s", 1));
    const uint64_t attends =
        c->attention_permille != 0 ? c->attention_permille : c->device_permille;
    const double rate = (double)c->device_flops / 1000;
    w->term_ns[ZERO_ESTIMATE_PRODUCTS] = NS * micro *
                                         (w->flops.products / (rate * (double)c->device_permille) +
                                          w->flops.attention / (rate * (double)attends));
    w->term_ns[ZERO_ESTIMATE_ELEMENTS] =
        NS * micro * w->element_bytes / (double)c->device_bytes_per_s;
    return ZERO_OK;
}

static zero_status time_tiers(work *w)
{
    const zero_cluster *c = &w->cluster;
    const zi_traffic *t = &w->traffic;
    const double link = t->link_in + t->link_out;
    ZI_TRY(need(c->host_link_bytes_per_s, "host_link_bytes_per_s", link));
    ZI_TRY(need(c->disk_read_bytes_per_s, "disk_read_bytes_per_s", t->disk_read));
    ZI_TRY(need(c->disk_write_bytes_per_s, "disk_write_bytes_per_s", t->disk_write));
    ZI_TRY(need(c->host_bytes_per_s, "host_bytes_per_s", t->update_host));
    w->term_ns[ZERO_ESTIMATE_HOST_LINK] = NS * seconds(link, (double)c->host_link_bytes_per_s) +
                                          t->link_copies * (double)c->host_link_latency_ns;
    w->term_ns[ZERO_ESTIMATE_DISK_READS] =
        NS * seconds(t->disk_read, share(w, c->disk_read_bytes_per_s)) +
        (t->disk_read > 0 ? (double)c->disk_latency_ns : 0);
    w->term_ns[ZERO_ESTIMATE_DISK_WRITES] =
        NS * seconds(t->disk_write, share(w, c->disk_write_bytes_per_s)) +
        (t->disk_write > 0 ? (double)c->disk_latency_ns : 0);
    w->term_ns[ZERO_ESTIMATE_UPDATE] =
        NS * (seconds(t->update_host, share(w, c->host_bytes_per_s)) +
              seconds(t->update_device, (double)c->device_bytes_per_s));
    return ZERO_OK;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The busiest resource, at full rates: a link carries gathers and reductions, the host link both
 * ways at once, and the GPU's memory serves the update too. */
static double busiest_ns(const work *w)
{
    const zero_cluster *c = &w->cluster;
    const zi_traffic *t = &w->traffic;
    const double micro = w->batch.micro_steps;
    /* A causal mask may spare half of attention. */
    double most = micro * (w->flops.products + w->flops.attention / 2) / (double)c->device_flops;
    most =
        larger(most, (micro * w->element_bytes + t->update_device) / (double)c->device_bytes_per_s);
    most = larger(most, seconds(larger(t->link_in, t->link_out), (double)c->host_link_bytes_per_s));
    most = larger(most, seconds(t->disk_read, share(w, c->disk_read_bytes_per_s)));
    most = larger(most, seconds(t->disk_write, share(w, c->disk_write_bytes_per_s)));
    most = larger(most, seconds(t->update_host, share(w, c->host_bytes_per_s)));
    return larger(NS * most, larger(w->local_ns, w->fabric_ns));
}

/* Refuses what 63 bits do not count. */
static zero_status check_sizes(const work *w, double tokens)
{
    const zi_traffic *t = &w->traffic;
    double sum = 0;
    double most = tokens;
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        sum += w->term_ns[term];
    }
    most = larger(most, larger(sum, larger(w->local_bytes, w->fabric_bytes)));
    most = larger(most, larger(t->link_in + t->link_out, larger(t->disk_read, t->disk_write)));
    if (most >= (double)INT64_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "a step of %" PRIu32 " micro-steps takes %.3g s and %.3g tokens, and moves more "
                "than can be counted; make the batch or the model smaller",
                w->batch.micro_steps, sum / NS, tokens);
    }
    return ZERO_OK;
}

static zero_status finish(const work *w, zero_estimate *made)
{
    const double tokens = (double)(w->batch.samples * w->batch.sequence) * w->batch.micro_steps *
                          (double)(w->cluster.nodes * w->cluster.ranks_per_node);
    ZI_TRY(check_sizes(w, tokens));
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        made->term_ns[term] = (uint64_t)w->term_ns[term];
        made->high_ns += made->term_ns[term];
        made->bound = made->term_ns[term] > made->term_ns[made->bound] ? (zero_estimate_term)term
                                                                       : made->bound;
    }
    made->low_ns = zi_min_u64((uint64_t)busiest_ns(w), made->high_ns);
    made->local_bytes = (uint64_t)w->local_bytes;
    made->fabric_bytes = (uint64_t)w->fabric_bytes;
    made->host_link_bytes = (uint64_t)(w->traffic.link_in + w->traffic.link_out);
    made->disk_read_bytes = (uint64_t)w->traffic.disk_read;
    made->disk_write_bytes = (uint64_t)w->traffic.disk_write;
    made->tokens = (uint64_t)tokens;
    made->flops = w->flops.model * w->batch.micro_steps;
    return ZERO_OK;
}

/* The plan's traffic. */
static zero_status count_traffic(const zero_transformer *transformer,
                                 const zero_engine_options *options, work *w)
{
    const uint64_t world = w->cluster.nodes * w->cluster.ranks_per_node;
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    ZI_TRY(zero_transformer_model(transformer, &model));
    const zero_status status = zero_plan_create(model, options, (uint32_t)world, &plan);
    zero_model_destroy(model);
    if (status == ZERO_OK) {
        w->traffic = zi_traffic_of(plan->layout, w->batch.micro_steps);
        zero_plan_destroy(plan);
    }
    return status;
}

zero_status zero_estimate_of(const zero_transformer *transformer, const zero_cluster *cluster,
                             const zero_engine_options *options, const zero_batch *batch,
                             zero_estimate *estimate)
{
    work w = {0};
    zero_transformer t;
    zi_transformer_counts counts;
    zero_estimate made = {.struct_bytes = sizeof made};
    zi_micro_elements elements;
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    ZI_TRY(zi_batch_resolve(batch, &t, &w.batch));
    ZI_TRY(zi_cluster_resolve(cluster, &w.cluster));
    ZI_TRY(zi_micro_elements_of(&t, &w.batch, &elements));
    w.element_bytes = elements.forward + elements.backward;
    w.flops = zi_micro_flops_of(&t, &w.batch);
    ZI_TRY(count_traffic(transformer, options, &w));
    ZI_TRY(time_compute(&w));
    ZI_TRY(time_links(&w));
    ZI_TRY(time_tiers(&w));
    ZI_TRY(finish(&w, &made));
    return ZI_SIZED_OUT(zero_estimate, estimate, &made);
}
