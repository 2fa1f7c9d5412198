/* Owns the time of a step: what moves and is computed, by the rates of a cluster. Invariant: the
 * terms add up to the interval's upper end. */
#include "zero/estimate.h"

#include <inttypes.h>
#include <stdbool.h>

#include "core/error.h"
#include "core/sized.h"
#include "plan/batch.h"
#include "plan/cluster.h"
#include "plan/estimate.h"
#include "plan/estimate_traffic.h"
#include "plan/flops.h"
#include "plan/part_plans.h"
#include "plan/spread.h"
#include "plan/transformer.h"

#define NS 1e9

void zero_estimate_init_sized(zero_estimate *estimate, size_t struct_bytes)
{
    const zero_estimate known = {.struct_bytes = sizeof known};
    zi_sized_init(estimate, struct_bytes, &known, sizeof known);
}

const char *zero_estimate_term_name(zero_estimate_term term)
{
    static const char *const names[ZERO_ESTIMATE_TERMS] = {
        "products",   "elements",    "gathers", "reductions",  "host link",
        "disk reads", "disk writes", "update",  "activations", "bubble"};
    return (uint32_t)term < ZERO_ESTIMATE_TERMS ? names[term] : NULL;
}

/* ---- what there is to do, and on what ---- */

typedef struct work {
    zero_transformer transformer;
    zero_cluster cluster;
    zero_batch batch;
    uint32_t column;              /* ranks that hold one part of the model: the engine's world */
    zi_stage stage;               /* the slowest of the pipeline */
    zi_micro_flops flops;         /* of a micro-step of it */
    zi_micro_elements elements;   /* likewise, that kernels between products move */
    double model_flops;           /* of a micro-step in all stages */
    zi_traffic traffic;           /* of a step; collectives without the experts' engine's */
    zi_exchange experts[ZI_HOPS]; /* of the experts' engine; of size 0 where there is none */
    double local_ns;              /* of links, without latencies, at full rates */
    double fabric_ns;             /* likewise */
    double local_bytes;           /* that a rank receives */
    double fabric_bytes;          /* likewise */
    double term_ns[ZERO_ESTIMATE_TERMS];
    double forward_ns;       /* compute of a micro-step's passes */
    double backward_ns;      /* likewise */
    double forward_free_ns;  /* of a micro-step's forward, in which no collective runs yet */
    double backward_free_ns; /* likewise */
    double hidden_ns;        /* of the terms' sum, what overlap saves */
} work;

static zero_status need(uint64_t rate, const char *name, double used)
{
    if (rate == 0 && used > 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s of the cluster is 0, and a step needs it: measure it, or begin with a preset",
                name);
    }
    return ZERO_OK;
}

/* A rank's share of what its node has. */
static double estimate_share(const work *w, uint64_t rate)
{
    return (double)rate / (double)w->cluster.ranks_per_node;
}

static double seconds(double amount, double rate)
{
    return amount > 0 ? amount / rate : 0;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The part of a link's rate within a node that collectives reach. */
static double local_share(const zero_cluster *c)
{
    return c->local_permille != 0 ? (double)c->local_permille / 1000 : 1;
}

/* ---- collectives ---- */

/* Add what a rank receives over both kinds of links. The slower one is what it takes, since bytes
 * are on their way in both at the same time. */
static zero_status add_links(work *w, double local, double fabric, double latency_ns,
                             zero_estimate_term term)
{
    const zero_cluster *c = &w->cluster;
    ZI_TRY(need(c->local_bytes_per_s, "local_bytes_per_s", local));
    ZI_TRY(need(c->fabric_bytes_per_s, "fabric_bytes_per_s", fabric));
    ZI_TRY(need(c->fabric_permille, "fabric_permille", fabric));
    const double local_ns = NS * seconds(local, (double)c->local_bytes_per_s);
    const double fabric_ns = NS * seconds(fabric, estimate_share(w, c->fabric_bytes_per_s));
    w->local_ns += local_ns;
    w->fabric_ns += fabric_ns;
    w->local_bytes += local;
    w->fabric_bytes += fabric;
    w->term_ns[term] += larger(seconds(local_ns, local_share(c)),
                               seconds(fabric_ns, (double)c->fabric_permille / 1000)) +
                        latency_ns;
    return ZERO_OK;
}

/* Groups that are alike exchange at once. Every member receives what others have: rings carry it
 * through each node once, and through each GPU of the node. passes: 2 for an all-reduce, which
 * scatters sums and gathers them. */
static zero_status estimate_exchange(work *w, const zi_exchange *e, double passes,
                                     zero_estimate_term term)
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
    const bool sums = (near > 1 || e->alone_too) && e->sum_bytes > 0;
    const double far = sums ? e->sum_bytes : e->bytes;
    const double fabric = passes * far * (nodes - 1) / nodes / (double)near;
    const double latency_ns = passes * e->calls *
                              ((double)(near - 1) * (double)c->local_latency_ns +
                               (nodes - 1) * (double)c->fabric_latency_ns);
    return add_links(w, local, fabric, latency_ns, term);
}

/* ---- overlap ---- */

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* A collective of the engine overlaps with the passes that it is issued in: gathers with forward
 * and backward by halves, reductions with backward. What comes once a step overlaps with one
 * micro-step alone, and a gather of what was updated with the next forward. */
static void hide_exchange(work *w, const zi_exchange *e, double ns, zero_estimate_term term)
{
    const double times = e->once ? 1 : w->batch.micro_steps;
    const double forward = term != ZERO_ESTIMATE_GATHERS ? 0 : e->once ? 1 : 0.5;
    const double in_forward = smaller(forward * ns / times, w->forward_free_ns);
    const double in_backward = smaller((1 - forward) * ns / times, w->backward_free_ns);
    w->forward_free_ns -= in_forward;
    w->backward_free_ns -= in_backward;
    w->hidden_ns += times * (1 - ZI_BESIDE_COMPUTE) * (in_forward + in_backward);
}

/* A group of the engine's world. Its ranks lie one mesh of tensor parallelism apart. */
static zero_status exchange_column(work *w, const zi_exchange *e, double passes,
                                   zero_estimate_term term)
{
    const double before = w->term_ns[term];
    zi_exchange apart = *e;
    apart.stride *= (uint32_t)w->transformer.tensor_parallel;
    ZI_TRY(estimate_exchange(w, &apart, passes, term));
    hide_exchange(w, e, w->term_ns[term] - before, term);
    return ZERO_OK;
}

/* ZeRO++ (Wang et al., 2023), table 1: of the bytes of a parameter in 16 bits forward gathers half,
 * and a reduction sends a quarter; backward gathers within a node. Kernels that quantise read and
 * write: int8 and 16 bits in a gather; 16 bits, int4 and, between the two steps of an all-to-all,
 * both once more in a reduction. Scales of blocks are not counted. */
static zero_status exchange_zeropp(work *w)
{
    const double element = (double)zero_dtype_bytes(w->transformer.dtype);
    const uint64_t near = zi_max_u64(1, w->cluster.ranks_per_node / w->transformer.tensor_parallel);
    zi_exchange forward = w->traffic.hops[ZI_HOP_GATHER];
    zi_exchange backward = w->traffic.hops[ZI_HOP_GATHER];
    zi_exchange scatter = w->traffic.hops[ZI_HOP_SCATTER];
    const double gathered = forward.bytes / 2 / element; /* elements, in forward */
    const double reduced = scatter.bytes / element;
    forward.calls /= 2;
    forward.bytes = gathered;
    backward.calls /= 2;
    backward.bytes /= 2;
    backward.size = (uint32_t)zi_min_u64(backward.size, near);
    scatter.bytes = reduced / 2;
    scatter.sum_bytes = 0; /* a quarter too */
    w->term_ns[ZERO_ESTIMATE_ELEMENTS] += NS *
                                          (gathered * (1 + element) + reduced * (2 * element + 1)) /
                                          (double)w->cluster.device_bytes_per_s;
    ZI_TRY(exchange_column(w, &forward, 1, ZERO_ESTIMATE_GATHERS));
    ZI_TRY(exchange_column(w, &backward, 1, ZERO_ESTIMATE_GATHERS));
    return exchange_column(w, &scatter, 1, ZERO_ESTIMATE_REDUCTIONS);
}

/* Parameters in both passes, gradients of each micro-step. */
static zero_status exchange_passes(work *w, const zi_exchange hops[ZI_HOPS])
{
    ZI_TRY(exchange_column(w, &hops[ZI_HOP_GATHER], 1, ZERO_ESTIMATE_GATHERS));
    return exchange_column(w, &hops[ZI_HOP_SCATTER], 1, ZERO_ESTIMATE_REDUCTIONS);
}

/* Once a step. */
static zero_status exchange_update(work *w, const zi_exchange hops[ZI_HOPS])
{
    ZI_TRY(exchange_column(w, &hops[ZI_HOP_UPDATED], 1, ZERO_ESTIMATE_GATHERS));
    ZI_TRY(exchange_column(w, &hops[ZI_HOP_BOUNDARY], 1, ZERO_ESTIMATE_REDUCTIONS));
    return exchange_column(w, &hops[ZI_HOP_REPLICA], 2, ZERO_ESTIMATE_REDUCTIONS);
}

static zero_status time_links(work *w)
{
    ZI_TRY(w->batch.wire == ZERO_WIRE_ZEROPP ? exchange_zeropp(w)
                                             : exchange_passes(w, w->traffic.hops));
    ZI_TRY(exchange_update(w, w->traffic.hops));
    if (w->experts[0].size != 0) {
        ZI_TRY(exchange_passes(w, w->experts));
        ZI_TRY(exchange_update(w, w->experts));
    }
    return ZERO_OK;
}

/* ---- activations ---- */

/* Ranks of tensor parallelism add up what each block's two halves give, in forward, in backward,
 * and again where they are recomputed, without the last half (Shoeybi et al., 2019, section 3); at
 * the ends what the embedding gives and the head's gradient. Halves that read the same are added up
 * at once, and then recomputation needs no sum; a norm behind the last half needs that one too. A
 * reduce-scatter and a gather of tokens move as many bytes. */
static zero_status add_partial_sums(work *w, zi_stage stage, double micro_steps)
{
    const bool parallel = (w->transformer.flags & ZERO_TRANSFORMER_PARALLEL) != 0;
    const bool normed = (w->transformer.flags & ZERO_TRANSFORMER_POST_NORMS) != 0;
    const double again = zi_batch_again(&w->batch) * (normed ? 2 : 1);
    const double sums = (double)stage.layers * (parallel ? 2 : 4 + again) + (stage.head ? 2 : 0);
    const double bytes = (double)(zi_batch_tokens(&w->batch) * w->transformer.width *
                                  zero_dtype_bytes(w->batch.dtype));
    const zi_exchange e = {.stride = 1,
                           .size = (uint32_t)w->transformer.tensor_parallel,
                           .calls = micro_steps * sums,
                           .bytes = micro_steps * sums * bytes};
    return estimate_exchange(w, &e, 2, ZERO_ESTIMATE_ACTIVATIONS);
}

/* Ranks of context parallelism gather keys and values of their samples, in forward, in backward,
 * and again where they are recomputed, and scatter sums of their gradients (Llama Team, "The Llama
 * 3 herd of models", 2024, section 3.3.2). */
static zero_status gather_keys(work *w, zi_stage stage, double micro_steps)
{
    const zero_transformer *t = &w->transformer;
    const double calls = micro_steps * (double)stage.layers * (3 + zi_batch_again(&w->batch));
    const double bytes = (double)(zi_tensor_kv_heads(t) * (t->head_width + t->value_width)) *
                         (double)(w->batch.samples * w->batch.sequence) *
                         (double)zero_dtype_bytes(w->batch.dtype);
    const zi_exchange e = {.stride = (uint32_t)t->tensor_parallel,
                           .size = (uint32_t)w->batch.context_parallel,
                           .calls = calls,
                           .bytes = calls * bytes};
    return estimate_exchange(w, &e, 1, ZERO_ESTIMATE_ACTIVATIONS);
}

/* Ranks that share experts send each token to those of its experts and what they make of it back,
 * in forward and in backward, and to them again where activations are recomputed. Experts are taken
 * as equally busy. Each rank has a part of its own from each other one, so that no link carries for
 * others: what comes from other nodes comes to the rank itself. Ranks of tensor parallelism each
 * send all, or where they split the stream their part, which they then gather. */
static zero_status send_tokens(work *w, zi_stage stage, double micro_steps)
{
    const zero_transformer *t = &w->transformer;
    const zero_cluster *c = &w->cluster;
    const uint64_t size = t->expert_parallel;
    const uint64_t near = t->tensor_parallel < c->ranks_per_node
                              ? zi_min_u64(size, zi_div_up(c->ranks_per_node, t->tensor_parallel))
                              : 1; /* members on a node */
    const double calls = size > 1 ? micro_steps * (double)zi_stage_count(&stage, ZI_BLOCK_MAIN) *
                                        (4 + zi_batch_again(&w->batch))
                                  : 0;
    const double split = w->batch.sequence_parallel != 0 ? (double)t->tensor_parallel : 1;
    const double bytes = calls * (double)(zi_batch_tokens(&w->batch) * t->experts_used * t->width) *
                         (double)zero_dtype_bytes(w->batch.dtype) / split;
    const double local = bytes * (double)(near - 1) / (double)size;
    const double fabric = bytes * (double)(size - near) / (double)size;
    const double latency_ns =
        calls * (double)(size > near ? c->fabric_latency_ns : c->local_latency_ns);
    return add_links(w, local, fabric, latency_ns, ZERO_ESTIMATE_ACTIVATIONS);
}

/* A stage receives the residual stream from the one before, and its gradient from the one behind,
 * for each of its groups of blocks. Ranks of tensor parallelism send a part each, and gather within
 * the node (Narayanan et al., 2021, section 4.1). A pair is a gather over two, whose members
 * receive half of what they assemble. */
static zero_status pass_on(work *w)
{
    const zero_transformer *t = &w->transformer;
    const uint64_t world = w->cluster.nodes * w->cluster.ranks_per_node;
    const double calls =
        t->pipeline_parallel > 1 ? 2.0 * (double)w->batch.interleave * w->batch.micro_steps : 0;
    const double bytes = (double)(zi_batch_tokens(&w->batch) * zi_tensor_part(t, t->width)) *
                         (double)zero_dtype_bytes(w->batch.dtype);
    const zi_exchange e = {.stride = (uint32_t)(world / t->pipeline_parallel),
                           .size = 2,
                           .calls = calls,
                           .bytes = 2 * calls * bytes};
    return estimate_exchange(w, &e, 1, ZERO_ESTIMATE_ACTIVATIONS);
}

static zero_status exchange_in_stage(work *w, zi_stage stage, double micro_steps)
{
    ZI_TRY(add_partial_sums(w, stage, micro_steps));
    ZI_TRY(send_tokens(w, stage, micro_steps));
    return gather_keys(w, stage, micro_steps);
}

static zero_status time_mesh(work *w)
{
    ZI_TRY(exchange_in_stage(w, w->stage, w->batch.micro_steps));
    ZI_TRY(pass_on(w));
    w->hidden_ns += w->batch.mesh_overlap != 0
                        ? (1 - ZI_BESIDE_PRODUCTS) * w->term_ns[ZERO_ESTIMATE_ACTIVATIONS]
                        : 0;
    return ZERO_OK;
}

/* ---- everything else ---- */

static double products_s(const work *w, const zi_pass_flops *flops)
{
    const zero_cluster *c = &w->cluster;
    const uint64_t attends =
        c->attention_permille != 0 ? c->attention_permille : c->device_permille;
    const uint64_t narrow =
        c->device_fp8_permille != 0 ? c->device_fp8_permille : c->device_permille;
    const double rate = (double)c->device_flops / 1000;
    const double fp8_rate = (double)c->device_fp8_flops / 1000;
    const double fp8 = w->batch.fp8 != 0 ? flops->products - flops->head : 0;
    return (flops->products - fp8) / (rate * (double)c->device_permille) +
           flops->attention / (rate * (double)attends) + seconds(fp8, fp8_rate * (double)narrow);
}

static double elements_s(const work *w, const zi_micro_elements *elements)
{
    return (elements->forward + elements->backward) / (double)w->cluster.device_bytes_per_s;
}

static zero_status need_compute(const work *w)
{
    const zero_cluster *c = &w->cluster;
    ZI_TRY(need(c->device_flops, "device_flops", 1));
    ZI_TRY(need(c->device_permille, "device_permille", 1));
    ZI_TRY(need(c->device_bytes_per_s, "device_bytes_per_s", 1));
    return need(c->device_fp8_flops, "device_fp8_flops", w->batch.fp8);
}

static void time_compute(work *w)
{
    const double micro = w->batch.micro_steps;
    const double forward = products_s(w, &w->flops.forward);
    const double backward = products_s(w, &w->flops.backward);
    const double bandwidth = (double)w->cluster.device_bytes_per_s;
    w->term_ns[ZERO_ESTIMATE_PRODUCTS] = NS * micro * (forward + backward);
    w->term_ns[ZERO_ESTIMATE_ELEMENTS] = NS * micro * elements_s(w, &w->elements);
    w->forward_ns = NS * (forward + w->elements.forward / bandwidth);
    w->backward_ns = NS * (backward + w->elements.backward / bandwidth);
    w->forward_free_ns = w->forward_ns;
    w->backward_free_ns = w->backward_ns;
}

/* ---- the pipeline ---- */

/* How long a micro-step is in the blocks of a stage, at both passes. */
static zero_status pass_ns(const work *w, zi_stage stage, double *ns)
{
    const zi_micro_flops flops = zi_micro_flops_of(&w->transformer, &w->batch, stage);
    zi_micro_elements elements;
    work links = *w;
    links.term_ns[ZERO_ESTIMATE_ACTIVATIONS] = 0;
    ZI_TRY(zi_micro_elements_of(&w->transformer, &w->batch, stage, &elements));
    ZI_TRY(exchange_in_stage(&links, stage, 1));
    *ns = NS * (products_s(w, &flops.forward) + products_s(w, &flops.backward) +
                elements_s(w, &elements)) +
          links.term_ns[ZERO_ESTIMATE_ACTIVATIONS];
    return ZERO_OK;
}

/* The last stage has the head, and where stages do not divide the blocks one block less; blocks
 * that differ may make any stage the slowest. */
static zero_status find_slowest(work *w)
{
    const zero_transformer *t = &w->transformer;
    const bool alike = zi_transformer_alike(t) && t->layers % t->pipeline_parallel == 0;
    double most_ns = 0;
    w->stage = zi_transformer_stage(t, t->pipeline_parallel - 1);
    for (uint64_t i = t->pipeline_parallel; i > 0 && !alike; i--) {
        const zi_stage stage = zi_transformer_stage(t, i - 1);
        double ns = 0;
        ZI_TRY(pass_ns(w, stage, &ns));
        w->stage = ns > most_ns ? stage : w->stage;
        most_ns = larger(ns, most_ns);
    }
    return ZERO_OK;
}

static zero_status count_compute(work *w)
{
    const zi_stage all = zi_transformer_all(&w->transformer);
    ZI_TRY(find_slowest(w));
    ZI_TRY(zi_micro_elements_of(&w->transformer, &w->batch, w->stage, &w->elements));
    w->flops = zi_micro_flops_of(&w->transformer, &w->batch, w->stage);
    w->model_flops = zi_micro_flops_of(&w->transformer, &w->batch, all).model;
    return ZERO_OK;
}

/* Until the slowest stage has its first micro-step, and after its last one, the others are at work:
 * for a group of their blocks each (Narayanan et al., 2021, section 2.2.2: (p - 1) / v micro-steps
 * of a stage where all are alike). */
static zero_status time_bubble(work *w)
{
    double all = 0;
    double slowest = 0;
    if (w->transformer.pipeline_parallel > 1) {
        ZI_TRY(pass_ns(w, zi_transformer_all(&w->transformer), &all));
        ZI_TRY(pass_ns(w, w->stage, &slowest));
        w->term_ns[ZERO_ESTIMATE_BUBBLE] = (all - slowest) / (double)w->batch.interleave;
    }
    return ZERO_OK;
}

/* Copies and files of passes take other processors than compute, and come before they are needed.
 * Those of the update come after the last backward. */
static void hide_copies(work *w)
{
    const zero_cluster *c = &w->cluster;
    const zi_traffic *t = &w->traffic;
    const double passes = w->batch.micro_steps * (w->forward_ns + w->backward_ns);
    const double link = NS * seconds(t->pass_link, (double)c->host_link_bytes_per_s);
    const double disk =
        NS * (seconds(t->pass_disk_read, estimate_share(w, c->disk_read_bytes_per_s)) +
              seconds(t->pass_disk_write, estimate_share(w, c->disk_write_bytes_per_s)));
    w->hidden_ns += smaller(link + disk, passes);
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
        NS * seconds(t->disk_read, estimate_share(w, c->disk_read_bytes_per_s)) +
        (t->disk_read > 0 ? (double)c->disk_latency_ns : 0);
    w->term_ns[ZERO_ESTIMATE_DISK_WRITES] =
        NS * seconds(t->disk_write, estimate_share(w, c->disk_write_bytes_per_s)) +
        (t->disk_write > 0 ? (double)c->disk_latency_ns : 0);
    w->term_ns[ZERO_ESTIMATE_UPDATE] =
        NS * (seconds(t->update_host, estimate_share(w, c->host_bytes_per_s)) +
              seconds(t->update_device, (double)c->device_bytes_per_s));
    hide_copies(w);
    return ZERO_OK;
}

/* The busiest resource, at full rates: a link carries gathers and reductions, the host link both
 * ways at once, and the GPU's memory serves the update too. */
static double busiest_ns(const work *w)
{
    const zero_cluster *c = &w->cluster;
    const zi_traffic *t = &w->traffic;
    const double micro = w->batch.micro_steps;
    /* A causal mask may spare half of attention. */
    const zi_pass_flops *f = &w->flops.forward;
    const zi_pass_flops *b = &w->flops.backward;
    const double products = f->products + b->products;
    const double fp8 = w->batch.fp8 != 0 ? products - f->head - b->head : 0;
    double most =
        micro * (products - fp8 + (f->attention + b->attention) / 2) / (double)c->device_flops +
        seconds(micro * fp8, (double)c->device_fp8_flops);
    most = larger(most, micro * elements_s(w, &w->elements) +
                            t->update_device / (double)c->device_bytes_per_s);
    most = larger(most, seconds(larger(t->link_in, t->link_out), (double)c->host_link_bytes_per_s));
    most = larger(most, seconds(t->disk_read, estimate_share(w, c->disk_read_bytes_per_s)));
    most = larger(most, seconds(t->disk_write, estimate_share(w, c->disk_write_bytes_per_s)));
    most = larger(most, seconds(t->update_host, estimate_share(w, c->host_bytes_per_s)));
    return larger(NS * most, larger(w->local_ns, w->fabric_ns));
}

/* Refuses what 63 bits do not count. */
static zero_status check_sizes(const work *w, double tokens)
{
    const zi_traffic *t = &w->traffic;
    double sum = 0;
    double most = tokens;
    int slowest = 0;
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        sum += w->term_ns[term];
        slowest = w->term_ns[term] > w->term_ns[slowest] ? term : slowest;
    }
    const double moved =
        larger(larger(w->local_bytes, w->fabric_bytes),
               larger(t->link_in + t->link_out, larger(t->disk_read, t->disk_write)));
    most = larger(most, larger(sum, moved));
    if (most >= (double)INT64_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a step of %" PRIu32 " micro-steps takes %.3g s (%.3g s: %s), has %.3g tokens and "
                "moves %.3g bytes, more than can be counted; make the batch or the model smaller, "
                "or the cluster faster",
                w->batch.micro_steps, sum / NS, w->term_ns[slowest] / NS,
                zero_estimate_term_name((zero_estimate_term)slowest), tokens, moved);
    }
    return ZERO_OK;
}

static bool is_offloaded(const zi_traffic *t)
{
    return t->link_in + t->link_out + t->update_host + t->disk_read + t->disk_write > 0;
}

static zero_status estimate_finish(const work *w, zero_estimate *made)
{
    const double tokens = (double)zi_batch_tokens(&w->batch) * w->batch.micro_steps * w->column;
    ZI_TRY(check_sizes(w, tokens));
    for (int term = 0; term < ZERO_ESTIMATE_TERMS; term++) {
        made->term_ns[term] = (uint64_t)w->term_ns[term];
        made->high_ns += made->term_ns[term];
        made->bound = made->term_ns[term] > made->term_ns[made->bound] ? (zero_estimate_term)term
                                                                       : made->bound;
    }
    made->low_ns = zi_min_u64((uint64_t)busiest_ns(w), made->high_ns);
    made->expected_ns = made->high_ns - zi_min_u64((uint64_t)w->hidden_ns, made->high_ns);
    made->expected_ns = zi_max_u64(made->expected_ns, made->low_ns);
    const zi_spread spread = zi_spread_of_time(w->batch.fused != 0, is_offloaded(&w->traffic));
    made->likely_low_ns = zi_max_u64(zi_spread_low(spread, made->expected_ns), made->low_ns);
    made->likely_high_ns = zi_spread_high(spread, made->expected_ns);
    made->local_bytes = (uint64_t)w->local_bytes;
    made->fabric_bytes = (uint64_t)w->fabric_bytes;
    made->host_link_bytes = (uint64_t)(w->traffic.link_in + w->traffic.link_out);
    made->disk_read_bytes = (uint64_t)w->traffic.disk_read;
    made->disk_write_bytes = (uint64_t)w->traffic.disk_write;
    made->tokens = (uint64_t)tokens;
    made->flops = w->model_flops * w->batch.micro_steps / (double)w->transformer.pipeline_parallel;
    return ZERO_OK;
}

/* Everything but what a plan moves. */
static zero_status begin_work(const zero_transformer *transformer, const zero_cluster *cluster,
                              const zero_batch *batch, work *w)
{
    zi_transformer_counts counts;
    ZI_TRY(zi_transformer_resolve(transformer, &w->transformer, &counts));
    ZI_TRY(zi_batch_resolve(batch, &w->transformer, &w->batch));
    ZI_TRY(zi_cluster_resolve(cluster, &w->cluster));
    ZI_TRY(zi_mesh_columns(&w->transformer, &w->batch, w->cluster.nodes * w->cluster.ranks_per_node,
                           &w->column));
    ZI_TRY(need_compute(w));
    return count_compute(w);
}

static zero_status finish_work(work *w, zero_estimate *made)
{
    time_compute(w);
    ZI_TRY(time_links(w));
    ZI_TRY(time_mesh(w));
    ZI_TRY(time_bubble(w));
    ZI_TRY(time_tiers(w));
    return estimate_finish(w, made);
}

zero_status zi_estimate_of_plan(const zero_transformer *transformer, const zero_cluster *cluster,
                                const zero_plan *plan, const zero_batch *batch, zero_estimate *made)
{
    work w = {0};
    *made = (zero_estimate){.struct_bytes = sizeof *made};
    ZI_TRY(begin_work(transformer, cluster, batch, &w));
    if (plan != NULL) {
        w.traffic = zi_traffic_of(plan->layout, w.batch.micro_steps);
    } else {
        for (int hop = 0; hop < ZI_HOPS; hop++) {
            w.traffic.hops[hop] = (zi_exchange){.stride = 1, .size = 1};
        }
    }
    return finish_work(&w, made);
}

/* Bytes of no collective move one after the other. */
static void add_traffic(zi_traffic *all, const zi_traffic *more)
{
    all->link_in += more->link_in;
    all->link_out += more->link_out;
    all->link_copies += more->link_copies;
    all->update_device += more->update_device;
    all->update_host += more->update_host;
    all->disk_read += more->disk_read;
    all->disk_write += more->disk_write;
}

/* The plans' traffic. */
static zero_status count_traffic(const zero_transformer *transformer,
                                 const zero_engine_options *options, work *w)
{
    zi_part_plans plans;
    const zero_status status = zi_part_plans_make(transformer, options, w->column, &plans);
    if (status == ZERO_OK) {
        w->traffic = zi_traffic_of(plans.main->layout, w->batch.micro_steps);
    }
    if (status == ZERO_OK && plans.experts != NULL) {
        const zi_traffic experts = zi_traffic_of(plans.experts->layout, w->batch.micro_steps);
        add_traffic(&w->traffic, &experts);
        for (int i = 0; i < ZI_HOPS;
             i++) { /* ranks of its world lie all that share experts apart */
            w->experts[i] = experts.hops[i];
            w->experts[i].stride *= (uint32_t)w->transformer.expert_parallel;
        }
    }
    zi_part_plans_destroy(&plans);
    return status;
}

zero_status zero_estimate_of(const zero_transformer *transformer, const zero_cluster *cluster,
                             const zero_engine_options *options, const zero_batch *batch,
                             zero_estimate *estimate)
{
    work w = {0};
    zero_estimate made = {.struct_bytes = sizeof made};
    ZI_TRY(begin_work(transformer, cluster, batch, &w));
    ZI_TRY(count_traffic(transformer, options, &w));
    ZI_TRY(finish_work(&w, &made));
    return ZI_SIZED_OUT(zero_estimate, estimate, &made);
}
