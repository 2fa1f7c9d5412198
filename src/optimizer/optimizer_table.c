/* Owns the table of optimizers: one row of the list for each, made from what its header says. */
#include "optimizer/optimizer_table.h"

#include <math.h>
#include <string.h>

#include "zero/step.h"

#define NUMBER(name, bounds, fallback) {#name, ZI_BOUNDS_##bounds, fallback},
#define NUMBERS(KIND, name) \
    static const zi_hyper_number name##_numbers[] = {ZI_##KIND##_NUMBERS(NUMBER)};
#define CHECK_NUMBERS(KIND, name)                                                     \
    _Static_assert(sizeof(zero_##name) / sizeof(float) ==                             \
                       sizeof name##_numbers / sizeof name##_numbers[0],              \
                   "the list names each float of the struct");                        \
    _Static_assert(sizeof(zero_##name) <= ZI_HYPER_NUMBERS_MAX * sizeof(float),       \
                   "a message has room for them");                                    \
    _Static_assert(sizeof(zi_##name##_coeffs) <= ZI_COEFFS_MAX * sizeof(float),       \
                   "a decision has room for them");                                   \
    _Static_assert(ZI_##KIND##_MOMENTS >= 1 && ZI_##KIND##_MOMENTS <= ZI_MOMENTS_MAX, \
                   "there is a role for each moment");
#define ROW(KIND, name) \
    [ZERO_OPTIMIZER_##  \
        KIND] = {#name, name##_numbers, sizeof name##_numbers / sizeof name##_numbers[0]},

ZI_OPTIMIZERS(NUMBERS)
ZI_OPTIMIZERS(CHECK_NUMBERS)

static const zi_optimizer table[] = {
    ZI_OPTIMIZERS(ROW)[ZERO_OPTIMIZER_CALLBACK] = {"callback", NULL, 0},
};

#define TABLE_COUNT (sizeof table / sizeof table[0])

const zi_optimizer *zi_optimizer_of(uint32_t kind)
{
    static const zi_optimizer none = {NULL, NULL, 0};
    if (kind == ZERO_OPTIMIZER_DEFAULT) {
        kind = ZERO_OPTIMIZER_ADAMW;
    }
    return kind < TABLE_COUNT ? &table[kind] : &none;
}

zero_optimizer zi_optimizer_named(const char *name)
{
    for (uint32_t kind = 0; kind < TABLE_COUNT; kind++) {
        if (table[kind].name != NULL && strcmp(table[kind].name, name) == 0) {
            return (zero_optimizer)kind;
        }
    }
    return ZERO_OPTIMIZER_DEFAULT;
}

zi_hyper zi_hyper_default(uint32_t kind)
{
    const zi_optimizer *optimizer = zi_optimizer_of(kind);
    zi_hyper hyper = {.kind = kind == ZERO_OPTIMIZER_DEFAULT ? ZERO_OPTIMIZER_ADAMW : kind};
    for (uint32_t i = 0; i < optimizer->number_count; i++) {
        hyper.number[i] = optimizer->numbers[i].fallback;
    }
    return hyper;
}

const char *zi_bounds_text(zi_bounds bounds)
{
    static const char *const texts[] = {
        [ZI_BOUNDS_NOT_NEGATIVE] = "finite and >= 0",
        [ZI_BOUNDS_BELOW_ONE] = "in [0, 1)",
        [ZI_BOUNDS_POSITIVE] = "finite and > 0",
        [ZI_BOUNDS_FLAG] = "0 or 1",
    };
    return texts[bounds];
}

bool zi_bounds_hold(zi_bounds bounds, float value)
{
    switch (bounds) {
    case ZI_BOUNDS_NOT_NEGATIVE:
        return isfinite(value) && value >= 0.0f;
    case ZI_BOUNDS_BELOW_ONE:
        return value >= 0.0f && value < 1.0f;
    case ZI_BOUNDS_POSITIVE:
        return isfinite(value) && value > 0.0f;
    case ZI_BOUNDS_FLAG:
        return value == 0.0f || value == 1.0f;
    }
    return false;
}

void zero_hyper_set_defaults(zero_hyper *hyper, zero_optimizer kind)
{
    if (hyper != NULL) {
        const zi_hyper known = zi_hyper_default((uint32_t)kind);
        *hyper = (zero_hyper){.kind = (zero_optimizer)known.kind};
        memcpy(&hyper->adamw, known.number, sizeof known.number);
    }
}
