/* Elements that an update leaves as they are, of masters that are not compared where they are
 * written: their bits before and after it. For lanes.c only: what is inlined here is compiled for
 * its instruction set. */
#ifndef ZI_KERNELS_CPU_STALLED_H
#define ZI_KERNELS_CPU_STALLED_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/update_form.h"

/* Elements looked at before and after: few enough to stay in the first-level cache between. */
#define STALLED_COUNT 1024

/* Masters, or parameters that are their own, as they were. */
typedef struct kept_masters {
    _Alignas(64) uint32_t bits[STALLED_COUNT];
} kept_masters;

static void keep_masters(kept_masters *kept, const zi_lanes_update *all, size_t begin, size_t end)
{
    const update_form form = form_of(all);
    const update_arrays arrays = arrays_at(all, form, begin);
    if (form.master == ZERO_DTYPE_F32) {
        memcpy(kept->bits, arrays.master, (end - begin) * sizeof(uint32_t));
    } else {
        memcpy(kept->bits, arrays.param, (end - begin) * sizeof(uint16_t));
    }
}

/* Those of elements [begin, end) whose gradient is not 0 and whose bits are those that were kept.
 */
static uint32_t count_stalled(const kept_masters *kept, const zi_lanes_update *all, size_t begin,
                              size_t end)
{
    _Alignas(64) float grad[STALLED_COUNT];
    const update_form form = form_of(all);
    const update_arrays arrays = arrays_at(all, form, begin);
    const size_t count = end - begin;
    uint32_t stalled = 0;
    load_values(grad, arrays.grad, form.grad, count);
    if (form.master == ZERO_DTYPE_F32) {
        const uint32_t *restrict before = kept->bits;
        const uint32_t *restrict after = arrays.master;
        for (size_t i = 0; i < count; i++) {
            stalled +=
                (uint32_t)(before[i] == after[i]) & (uint32_t)(grad[i] * all->grad_scale != 0.0f);
        }
        return stalled;
    }
    const uint16_t *restrict before = (const uint16_t *)(const void *)kept->bits;
    const uint16_t *restrict after = arrays.param;
    for (size_t i = 0; i < count; i++) {
        stalled +=
            (uint32_t)(before[i] == after[i]) & (uint32_t)(grad[i] * all->grad_scale != 0.0f);
    }
    return stalled;
}

#endif
