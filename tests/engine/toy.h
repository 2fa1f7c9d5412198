/* A toy to train: a model whose gradients are a formula instead of a backward pass.
 *
 * The gradient of an element depends on its tensor, its index, the step, the sample and the
 * parameter's current value, so that a stale parameter, a lost or doubled gradient or a swapped
 * element shows in the result. A sample is what one rank does in one micro-step; samples are
 * numbered micro * ranks + rank, so the same samples can be spread over other numbers of ranks and
 * micro-steps. Every function ends the process with a message when a check of its own fails;
 * statuses of the library are handed up. */
#ifndef TESTS_ENGINE_TOY_H
#define TESTS_ENGINE_TOY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "core/role.h"
#include "sanitizer.h"
#include "toy_bits.h"
#include "toy_device.h"
#include "zero/zero.h"

#define TOY_UNITS_MAX 64
#define TOY_TENSORS_MAX 128
#define TOY_TIES_MAX 4
#define TOY_NAME_BYTES 32
/* No test comes to it unless it fails. */
#define TOY_DEADLINE_MS 60000

#define TOY_CHECK(condition, ...)                             \
    do {                                                      \
        if (!(condition)) {                                   \
            fprintf(stderr, "  %s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__);                     \
            fprintf(stderr, "\n");                            \
            fflush(NULL);                                     \
            _exit(1);                                         \
        }                                                     \
    } while (0)

#define TOY_TRY(call)                    \
    do {                                 \
        const zero_status try_ = (call); \
        if (try_ != ZERO_OK) {           \
            return try_;                 \
        }                                \
    } while (0)

typedef struct toy_tensor {
    char name[TOY_NAME_BYTES];
    zero_tensor_desc desc; /* desc.name is not kept */
    uint32_t unit;
    uint64_t count;
    uint64_t base; /* of its first element in arrays over the whole model */
    /* The key of the formulas of initial values and gradients (toy_element): the tensor's index,
     * unless it is a part of a tensor of another model. Its name has it. */
    uint32_t key;
    uint64_t key_first;
} toy_tensor;

typedef struct toy_unit {
    char name[TOY_NAME_BYTES];
    uint32_t tie_count;
    uint32_t ties[TOY_TIES_MAX]; /* tensors of other units that this one uses */
} toy_unit;

/* A description, kept beside the library's own so that the toy can walk it. */
typedef struct toy_model {
    zero_model *model;
    zero_model *plain;    /* the same without shard groups of units */
    uint32_t shard_group; /* of units that are added; 0: they have none of their own */
    uint32_t unit_count;
    uint32_t tensor_count;
    uint64_t element_count;
    toy_unit units[TOY_UNITS_MAX];
    toy_tensor tensors[TOY_TENSORS_MAX];
} toy_model;

void toy_model_open(toy_model *model);
void toy_model_close(toy_model *model);
uint32_t toy_model_unit(toy_model *model, const char *name);
/* An open one that is closed when the process ends. */
toy_model *toy_model_new(void);
/* A unit of this name and number: "layer3". */
uint32_t toy_model_layer(toy_model *model, const char *kind, uint32_t index);
/* Into the last unit. cols 0: one dimension. */
uint32_t toy_model_tensor(toy_model *model, uint64_t rows, uint64_t cols, zero_dtype dtype,
                          uint32_t flags);
/* As above, in a group. */
uint32_t toy_model_grouped(toy_model *model, uint64_t rows, zero_dtype dtype, uint32_t flags,
                           uint32_t group);
/* The part of another model's tensor `key` that this model holds: a box of it if desc says so, else
 * from element `first` on. */
uint32_t toy_model_part(toy_model *model, const zero_tensor_desc *desc, uint32_t key,
                        uint64_t first);
/* Which element of the tensor `key` an element is. */
uint64_t toy_element(const toy_tensor *tensor, uint64_t element);
void toy_model_tie(toy_model *model, uint32_t unit, uint32_t tensor);

/* `unit_count` units of one tensor of `count` elements. */
void toy_model_equal(toy_model *model, uint32_t unit_count, uint64_t count, zero_dtype dtype);
/* A small model with everything in it: a tied head, frozen, empty and one-element tensors, no-decay
 * tensors, an empty unit, a unit without trained tensors, mixed dtypes (dtype and F32). */
void toy_model_mixed(toy_model *model, zero_dtype dtype);

typedef enum toy_flavour {
    TOY_REAL = 1,   /* any value: the order of additions shows */
    TOY_INTEGER = 2 /* integers of at most 4 in size: sums are exact in every dtype */
} toy_flavour;

/* The model and the options of a training; the same on every rank. */
typedef struct toy_run {
    const toy_model *model;
    zero_engine_options options;
    zero_tuning tuning; /* of the options: see toy_options */
    zero_step_params params;
    toy_flavour flavour;
    uint32_t steps;
    uint32_t micro_steps;
    uint32_t samples;       /* samples numbered from here on contribute nothing; 0: no limit */
    uint32_t fold;          /* neighbouring samples that one micro-step takes at once; 0 is 1 */
    const uint32_t *shares; /* NULL, or samples that each rank takes at once in its micro-step */
    bool predicted;         /* every step is, before its last micro-step */
    bool split;             /* the toy's hooks are the split calls */
    bool plain;             /* units have no shard groups of their own */
} toy_run;

/* 20 steps of one micro-step, real-valued, all options at their default but threads 1. */
toy_run toy_run_init(const toy_model *model);
/* The same over a model as toy_model_new gives it. */
toy_run toy_run_made(void (*make)(toy_model *model));
toy_run toy_run_equal(uint32_t unit_count, uint64_t count, zero_dtype dtype);
toy_run toy_run_mixed(zero_dtype dtype);
/* Mixed, and units large enough for many extents on disk. */
toy_run toy_run_wide(zero_dtype dtype);
/* Roles `first` and those behind it, up to MOMENT2, on a tier. */
void toy_run_tiers(toy_run *run, zero_role first, zero_tier tier);
/* Set the directories of what is on disk, in extents far smaller than it. */
void toy_run_disk(toy_run *run, const char *const *directories, uint32_t count);
/* All optimizer state on disk, in one directory, and every step predicted. */
void toy_run_overlap(toy_run *run, const char *const *directory);
/* The run's options with its tuning, as plans and engines take them. */
zero_engine_options toy_options(const toy_run *run);
#define TOY_OPTIONS(run) ((zero_engine_options[]){toy_options(run)})

/* The model's initial value of one element, before rounding. */
float toy_initial(uint32_t tensor, uint64_t element);
/* zero_fill_fn over toy_initial; user: NULL, or a toy_model with keys. */
void toy_fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values);
/* Gradient of one element for one sample. */
float toy_gradient(toy_flavour flavour, uint32_t tensor, uint64_t element, uint64_t step,
                   uint64_t sample, float param);

/* The memory that an engine of the run takes on one of `ranks` ranks, as planned. */
zero_memory toy_planned(const toy_run *run, uint32_t ranks);

/* One rank at work. */
typedef struct toy_trainer {
    const toy_run *run;
    zero_world *world;
    zero_engine *engine;
    uint32_t rank;
    uint32_t ranks;
    uint64_t step;
    uint32_t micro;
    float loss_scale;
    uint32_t *seen;          /* bits of every parameter as last read in this micro-step */
    bool *seen_set;          /* by tensor */
    zero_step_result result; /* of toy_wait */
    zero_world *alone;       /* NULL, or the world that toy_close destroys */
    void *user;              /* of toy_on_ranks */
} toy_trainer;

/* Create the engine and fill it; world NULL: in a world of this rank alone. On failure there is
 * nothing to close. */
zero_status toy_open(toy_trainer *trainer, const toy_run *run, zero_world *world);
void toy_close(toy_trainer *trainer);

/* Bits of every tensor of a unit, ties included, into trainer->seen; of codes and scales what they
 * stand for. The unit is acquired. Checks count, dtype and alignment, and that a second reading in
 * a micro-step gives the same bits. */
zero_status toy_read(toy_trainer *trainer, uint32_t unit);
/* Add this rank's gradient of the micro-step to every trained tensor of a unit, ties included; the
 * unit and its gradient are acquired. */
zero_status toy_add_gradient(toy_trainer *trainer, uint32_t unit);
/* True if a unit uses a tensor: its own, or by a tie. */
bool toy_unit_uses(const toy_model *model, uint32_t unit, uint32_t tensor);
/* True if a unit has a gradient: it or a unit it ties to has a trained tensor. */
bool toy_unit_trained(const toy_model *model, uint32_t unit);

/* Acquire the unit, in backward with its gradient, by the calls that the run wants, and check the
 * views that are handed out. */
zero_status toy_acquire(toy_trainer *trainer, uint32_t unit, zero_pass pass);
/* The calls that match. */
zero_status toy_release(toy_trainer *trainer, uint32_t unit, zero_pass pass);
/* Every view is what zero_tensor_data and, if `grads`, zero_tensor_grad say of its tensor. */
void toy_check_view(const toy_trainer *trainer, uint32_t unit, const zero_unit_view *view,
                    bool grads);

/* Acquire, read, release. */
zero_status toy_forward(toy_trainer *trainer, uint32_t unit);
/* Acquire, read, add the gradient, release. */
zero_status toy_backward(toy_trainer *trainer, uint32_t unit);
/* The same, adding nothing: an explicit gradient of zero. */
zero_status toy_backward_zero(toy_trainer *trainer, uint32_t unit);
/* zero_micro_begin, and forget what was seen; before the last one predict the step, where that is
 * wanted. */
zero_status toy_micro_begin(toy_trainer *trainer, bool last);
/* zero_micro_end, and count. */
zero_status toy_micro_end(toy_trainer *trainer);
/* zero_step with the run's parameters, and count. */
zero_status toy_update(toy_trainer *trainer);

/* zero_step_wait, into trainer->result. */
zero_status toy_wait(toy_trainer *trainer);

/* Forward over all units, backward over all in reverse. */
zero_status toy_passes(toy_trainer *trainer);
/* A micro-step of them. */
zero_status toy_micro(toy_trainer *trainer, bool last);
/* All micro-steps of a step. */
zero_status toy_micros(toy_trainer *trainer);
/* That and the step, by these parameters instead of the run's. */
zero_status toy_step_with(toy_trainer *trainer, const zero_step_params *params);
/* The loss scale, all micro-steps, and the step. */
zero_status toy_step(toy_trainer *trainer);
/* The same, waited for; `bad`: its gradients are not finite. */
zero_status toy_step_or_skip(toy_trainer *trainer, bool bad);
/* run->steps of toy_step. */
zero_status toy_train(toy_trainer *trainer);
/* Acquire every unit for evaluation and read it. */
zero_status toy_evaluate(toy_trainer *trainer);

/* Roles that a rank holds a shard of: PARAM to MOMENT2. */
#define TOY_ROLES (ZERO_ROLE_SCALE2 + 1)

/* The whole model's state, put together from all ranks' shards. Elements are the raw bits. */
typedef struct toy_state {
    uint64_t element_count;
    uint32_t *bits[TOY_ROLES];
    uint16_t *owners[TOY_ROLES]; /* ranks whose shard has the element */
    uint32_t *gathered;          /* parameters as an acquire shows them */
} toy_state;

/* Collective. Checks that ranks that hold the same element hold the same bits, and that an acquire
 * shows the same bits as the shards. */
zero_status toy_collect(toy_trainer *trainer, toy_state *state);
void toy_state_free(toy_state *state);
/* Ends the process naming role, tensor and element of the first difference. GRAD is left out. */
void toy_state_same(const toy_model *model, const toy_state *left, const toy_state *right,
                    const char *what);
/* toy_collect, for what rank 0 alone keeps. */
zero_status toy_collect_first(toy_trainer *trainer, toy_state *state);
/* toy_collect, and toy_state_same as `expected`. */
zero_status toy_collect_same(toy_trainer *trainer, const toy_state *expected, const char *what);
/* Elements whose parameter differs. */
uint64_t toy_state_moved(const toy_state *left, const toy_state *right);

/* One step of a trainer, in a test's own way. */
typedef zero_status (*toy_step_fn)(toy_trainer *trainer);
/* Open, take run->steps steps, collect, close. */
zero_status toy_train_by(const toy_run *run, zero_world *world, toy_step_fn step, toy_state *state);
/* The same with plain steps. */
zero_status toy_train_collect(const toy_run *run, zero_world *world, toy_state *state);
/* toy_train_by, and toy_state_same as `expected`. */
zero_status toy_train_same(const toy_run *run, zero_world *world, toy_step_fn step,
                           const toy_state *expected, const char *what);
/* A run taken by two kinds of steps comes to the same state. */
zero_status toy_compare(const toy_run *run, zero_world *world, toy_step_fn left, toy_step_fn right,
                        const char *what);

/* Each rank of a world of threads opens a trainer, does `fn` with trainer->user set, closes it. */
zero_status toy_on_ranks(uint32_t ranks, const toy_run *run, toy_step_fn fn, void *user);

/* One way to split a model. */
typedef struct toy_sharding {
    const char *name;
    zero_stage stage;
    uint32_t shard_group;
    uint32_t grad_group;
    uint32_t optimizer_group;
} toy_sharding;

/* The ways that fit `ranks`: stages 0 to 3, then the hybrids. Returns how many; `ways` holds 16. */
uint32_t toy_shardings(uint32_t ranks, bool hybrids, toy_sharding *ways);
void toy_sharding_apply(const toy_sharding *way, toy_run *run);
/* Splits the run in one of the ways, hybrids included; its name, or NULL: there are no more. */
const char *toy_split(toy_run *run, uint32_t ranks, uint32_t way);
/* The work of a rank with a run that is split in one way. */
typedef zero_status (*toy_way_fn)(zero_world *world, const toy_run *run, void *user);
/* True if a world tries every other way to split alone: so it is under a sanitizer and on the
 * double of the CUDA runtime, for the reasons of tests/sanitizer.h. */
extern bool toy_samples_ways;
/* Calls `fn` with the run split in one way after the other, hybrids included. */
zero_status toy_each_way(zero_world *world, const toy_run *run, toy_way_fn fn, void *user);
/* toy_on_ranks with the run split in one way after the other, hybrids included; and, toy_on_stages,
 * by the four stages. */
zero_status toy_on_ways(uint32_t ranks, const toy_run *run, toy_step_fn fn, void *user);
zero_status toy_on_stages(uint32_t ranks, const toy_run *run, toy_step_fn fn, void *user);
/* toy_each_way on every rank of a world of threads. */
zero_status toy_run_ways(uint32_t ranks, uint32_t deadline_ms, const toy_run *run, toy_way_fn fn,
                         void *user);

/* A double-precision AdamW over a model of fp32 parameters, written from the paper; `param` is the
 * whole model. ranks and the run say which samples each step sums. */
void toy_reference(const toy_run *run, uint32_t ranks, float *param);

#endif
