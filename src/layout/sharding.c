/* Owns the meaning of a stage: everything else sees three degrees. */
#include "layout/sharding.h"

#include <inttypes.h>
#include <stdbool.h>

#include "core/check.h"
#include "core/error.h"
#include "core/role.h"
#include "core/sized.h"

typedef struct chain {
    uint32_t degree[5]; /* ascending, each dividing the next; degree[4] is the world */
} chain;

static chain chain_of(const zero_sharding *s)
{
    const uint32_t low = s->param < s->grad ? s->param : s->grad;
    const uint32_t high = s->param < s->grad ? s->grad : s->param;
    return (chain){{1, low, high, s->optimizer, s->world}};
}

void zero_engine_options_init_sized(zero_engine_options *options, size_t struct_bytes)
{
    static const zero_engine_options initial = {.stage = ZERO_STAGE_3};
    zi_sized_init(options, struct_bytes, &initial, sizeof initial);
}

/* The states that a stage splits. */
typedef struct split {
    int param;
    int grad;
    int optimizer;
} split;

static zero_status split_of(zero_stage stage, split *out)
{
    switch (stage) {
    case ZERO_STAGE_0:
        *out = (split){0, 0, 0};
        return ZERO_OK;
    case ZERO_STAGE_1:
        *out = (split){0, 0, 1};
        return ZERO_OK;
    case ZERO_STAGE_2:
        *out = (split){0, 1, 1};
        return ZERO_OK;
    case ZERO_STAGE_3:
        *out = (split){1, 1, 1};
        return ZERO_OK;
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "options.stage %d is not a stage of ZeRO", (int)stage);
}

static zero_status sharding_check_group(const char *field, uint32_t group, int is_split,
                                        uint32_t world)
{
    if (group > 1 && !is_split) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s %" PRIu32 ": this stage does not split that state; leave it 0", field, group);
    }
    if (group != 0 && world % group != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s %" PRIu32 " does not divide the world of %" PRIu32 " ranks", field, group,
                world);
    }
    return ZERO_OK;
}

static uint32_t sharding_first_set(uint32_t a, uint32_t b)
{
    return a != 0 ? a : b;
}

zero_status zi_sharding_resolve(const zero_engine_options *options, uint32_t world,
                                uint32_t unit_group, zero_sharding *sharding)
{
    split splits = {0, 0, 0};
    const bool own = unit_group != 0;
    const uint32_t grad_group = own ? 0 : options->tuning->grad_group;
    const uint32_t optimizer_group = own ? 0 : options->tuning->optimizer_group;
    const uint32_t shard_group = own ? unit_group : options->shard_group;
    ZI_TRY(split_of(options->stage, &splits));
    if (options->tuning->encoded_views && !splits.param) {
        ZI_FAIL(
            ZERO_ERR_UNSUPPORTED,
            "tuning.encoded_views is 1 and options.stage %d, which gathers no parameters before "
            "they are used; use stage 3, or leave encoded_views 0",
            (int)options->stage);
    }
    ZI_TRY(sharding_check_group(own ? "a unit's shard_group" : "shard_group", shard_group,
                                splits.optimizer, world));
    ZI_TRY(sharding_check_group("grad_group", grad_group, splits.grad, world));
    ZI_TRY(sharding_check_group("optimizer_group", optimizer_group, splits.optimizer, world));
    const uint32_t shard = sharding_first_set(shard_group, world);
    const uint32_t grad = sharding_first_set(grad_group, shard);
    *sharding = (zero_sharding){
        .world = world,
        .param = splits.param ? shard : 1,
        .grad = splits.grad && options->tuning->accumulation != ZERO_ACCUMULATION_LOCAL ? grad : 1,
        .optimizer =
            splits.optimizer ? sharding_first_set(optimizer_group, splits.grad ? grad : shard) : 1,
    };
    if (sharding->grad != 1 && sharding->grad % sharding->param != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "grad_group %" PRIu32 " is not a multiple of shard_group "
                "%" PRIu32,
                sharding->grad, sharding->param);
    }
    const uint32_t inner = sharding->grad > sharding->param ? sharding->grad : sharding->param;
    if (sharding->optimizer % inner != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "optimizer_group %" PRIu32 " is not a multiple of %" PRIu32
                ", the ranks that parameters and gradients are split over",
                sharding->optimizer, inner);
    }
    return ZERO_OK;
}

uint32_t zi_role_degree(const zero_sharding *s, zero_role role)
{
    return role == ZERO_ROLE_PARAM  ? s->param
           : role == ZERO_ROLE_GRAD ? s->grad
           : zi_role_is_state(role) ? s->optimizer
                                    : 1;
}

uint32_t zi_shard_index(const zero_sharding *sharding, uint32_t rank, uint32_t degree)
{
    const chain c = chain_of(sharding);
    uint32_t index = 0;
    for (int i = 1; i < 5 && c.degree[i - 1] < degree; i++) {
        const uint32_t radix = c.degree[i] / c.degree[i - 1];
        index = index * radix + rank / c.degree[i - 1] % radix;
    }
    zi_assert_cmp(index, <, degree);
    return index;
}

uint32_t zi_optimizer_shard_index(const zero_sharding *sharding, uint32_t rank, uint32_t degree)
{
    return zi_shard_index(sharding, rank, sharding->optimizer) % (sharding->optimizer / degree);
}

void zi_shard_members(const zero_sharding *sharding, uint32_t rank, uint32_t from, uint32_t to,
                      uint32_t *members)
{
    /* Digits up to `from` and beyond `to` are this rank's own; those between run. */
    for (uint32_t i = 0; i < to / from; i++) {
        const uint32_t peer = rank % from + i * from + rank / to * to;
        members[zi_shard_index(sharding, peer, to) % (to / from)] = peer;
    }
}
