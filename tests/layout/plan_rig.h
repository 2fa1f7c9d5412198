/* The common parts of the tests of plans: small models, options with their tuning, and chance. */
#ifndef TESTS_LAYOUT_PLAN_RIG_H
#define TESTS_LAYOUT_PLAN_RIG_H

#include "reads.h"

#define PAGE 4096u

static uint64_t random_state;

static inline uint64_t random_below(uint64_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 16) % bound;
}

static inline void seed_random(uint64_t salt)
{
    random_state = (test_seed * UINT64_C(0x9E3779B97F4A7C15)) ^ (salt + 1);
    (void)random_below(2);
}

static inline uint64_t up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* The tuning of all options here. */
static zero_tuning tuning;

static inline zero_engine_options fresh_options(void)
{
    zero_engine_options o = zero_engine_options_init();
    tuning = zero_tuning_init();
    o.tuning = &tuning;
    return o;
}

/* Of what both random models and random tiers are tried with. */
static inline zero_engine_options random_types(void)
{
    zero_engine_options o = fresh_options();
    o.stage = (zero_stage)random_below(4);
    o.master_dtype = random_below(2) == 0 ? ZERO_DTYPE_NONE : ZERO_DTYPE_DEFAULT;
    o.moment_dtype = (zero_dtype)random_below(3);
    return o;
}

/* The caller destroys what these make. */
static inline zero_model *empty_model(void)
{
    zero_model *model = NULL;
    CHECK_OK(zero_model_create(&model));
    return model;
}

/* A unit of one tensor, both of this name. */
static inline void add_unit(zero_model *model, const char *name, uint64_t count, zero_dtype dtype)
{
    const zero_tensor_desc desc = {.name = name, .shape = {count}, .dims = 1, .dtype = dtype};
    CHECK_OK(zero_unit_add(
        model, &(zero_unit_desc){.name = name, .tensors = &desc, .tensor_count = 1}, NULL, NULL));
}

static inline zero_model *model_of(uint64_t count, zero_dtype dtype)
{
    zero_model *model = empty_model();
    add_unit(model, "layer", count, dtype);
    return model;
}

static inline zero_plan *plan_of(const zero_model *model, const zero_engine_options *options,
                                 uint32_t world)
{
    zero_plan *plan = NULL;
    CHECK_OK(zero_plan_create(model, options, world, &plan));
    return plan;
}

/* No plan is made of these. */
static inline void refuse_plan(const zero_model *model, const zero_engine_options *options,
                               uint32_t world, zero_status status, const char *text)
{
    zero_plan *plan = NULL;
    CHECK_FAILS(zero_plan_create(model, options, world, &plan), status, text);
    CHECK(plan == NULL);
}

#endif
