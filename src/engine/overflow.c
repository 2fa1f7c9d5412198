/* Owns the counting of finite values that become infinite where they are rounded to a narrower
 * type, and the one warning that a call gives of them. Infinities and NaN that come so stay what
 * they are, and are not counted. */
#include "engine/overflow.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/sizes.h"
#include "engine/shard.h"
#include "kernels/math/convert.h"

/* The first stays the first, in the order of tensors and of elements. */
static void overflow_add(engine_overflow *overflow, const engine_overflow *other)
{
    const bool earlier = other->tensor < overflow->tensor ||
                         (other->tensor == overflow->tensor && other->index < overflow->index);
    if (other->count != 0 && (overflow->count == 0 || earlier)) {
        overflow->tensor = other->tensor;
        overflow->index = other->index;
    }
    overflow->count += other->count;
}

/* The least magnitude that overflows; 0: none does. */
static uint32_t limit_of(zero_dtype from, zero_dtype to)
{
    if (to == ZERO_DTYPE_F16 && from != ZERO_DTYPE_F16) {
        return ZI_F16_OVERFLOW;
    }
    return to == ZERO_DTYPE_BF16 && from == ZERO_DTYPE_F32 ? ZI_BF16_OVERFLOW : 0;
}

/* Values are of fp32 or bf16: no other type is wider than what it is rounded to. */
static float value_at(const engine_values *values, uint64_t i)
{
    return values->from == ZERO_DTYPE_F32 ? ((const float *)values->values)[i]
                                          : zi_f32_from_bf16(((const uint16_t *)values->values)[i]);
}

/* The first of the values that a rank counts, and behind the last of them. */
static void counted_range(const zero_engine *engine, const engine_values *values, bool by_slice,
                          uint64_t range[2])
{
    range[0] = 0;
    range[1] = values->count;
    if (by_slice) {
        const engine_range slice = zi_engine_slice(engine, values->tensor);
        const uint64_t first = zi_max_u64(slice.first, values->first);
        const uint64_t end = zi_min_u64(slice.first + slice.count, values->first + values->count);
        range[0] = first - values->first;
        range[1] = first < end ? end - values->first : range[0];
    }
}

void zi_engine_count_overflow(zero_engine *engine, engine_overflow *overflow,
                              const engine_values *values, bool by_slice)
{
    const uint32_t limit = limit_of(values->from, values->to);
    uint64_t range[2];
    uint64_t count = 0;
    if (limit == 0) {
        return;
    }
    counted_range(engine, values, by_slice, range);
    for (uint64_t i = range[0]; i < range[1]; i++) {
        count += zi_f32_overflows(value_at(values, i), limit);
    }
    if (count == 0) {
        return;
    }
    uint64_t at = range[0];
    while (zi_f32_overflows(value_at(values, at), limit) == 0) {
        at++;
    }
    const engine_overflow found = {count, values->tensor, values->first + at};
    overflow_add(overflow, &found);
    engine->stats.values_overflowed += count;
}

zero_status zi_engine_join_overflow(zero_engine *engine, engine_overflow *overflow)
{
    const uint32_t size = zero_world_size(engine->world);
    const engine_overflow own = *overflow;
    ZI_TRY(zi_world_gather(engine->world, &own, engine->agreement, sizeof own));
    *overflow = (engine_overflow){0};
    for (uint32_t r = 0; r < size; r++) {
        engine_overflow other;
        memcpy(&other, engine->agreement + (size_t)r * (sizeof other / sizeof *engine->agreement),
               sizeof other);
        overflow_add(overflow, &other);
    }
    return ZERO_OK;
}

void zi_engine_warn_overflow(const zero_engine *engine, const engine_overflow *overflow,
                             const char *name)
{
    if (overflow->count != 0) {
        zi_log(ZERO_LOG_WARN,
               "%s: %" PRIu64 " finite values are beyond the range of the type that they were "
               "rounded to and have become infinite, first element %" PRIu64 " of tensor %" PRIu64
               " \"%.80s\"; scale them, or use bf16 or f32",
               name, overflow->count, overflow->index, overflow->tensor,
               engine->layout->tensor_infos[overflow->tensor].name);
    }
}
