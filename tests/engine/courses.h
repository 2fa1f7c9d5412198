/* Ways through a micro-step, and what random programs and those that they are printed as have in
 * common besides (course_passes.h has the calls). */
#ifndef TESTS_ENGINE_COURSES_H
#define TESTS_ENGINE_COURSES_H

#include <stdbool.h>
#include <stdint.h>

#include <zero/zero.h>

typedef enum course {
    IN_ORDER,
    THREE_TIMES,        /* each unit three times in a row */
    COMES_BACK,         /* every other unit again after all others: a shared layer */
    HELD_OVER_TWO_USES, /* all of them again, in backward too, with one gradient for both uses */
    NESTED,             /* a unit is acquired twice, and released when the next one is there */
    FIRST_IS_HELD,      /* unit 0, through forward and backward */
    RECOMPUTED,         /* two units' forward again, then their backward */
    ROTATED,            /* begins with another unit in each step */
    BACKWARD_AHEAD,     /* backward in the order of forward */
    COURSE_COUNT
} course;

/* The work on a unit that a rank leaves out in a micro-step. */
typedef enum omission { ALL_DONE, NO_GRADIENT, NO_BACKWARD, NOT_AT_ALL } omission;

/* By chance, the same for a sample whichever rank has it. seed 0: nothing is left out. */
__attribute__((unused)) static omission omission_of(uint64_t seed, uint64_t step, uint64_t sample,
                                                    uint32_t unit)
{
    uint64_t word = seed + unit + 64 * sample + 65536 * step;
    word = (word ^ (word >> 31)) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94D049BB133111EB);
    const uint64_t kind = word >> 40 & 7;
    return seed != 0 && kind <= NOT_AT_ALL ? (omission)kind : ALL_DONE;
}

/* How many calls into a micro-step that is abandoned a rank is when it gives up. */
__attribute__((unused)) static uint32_t course_calls(uint64_t step, uint32_t rank)
{
    return (uint32_t)(step * 5 + rank * 3) % 14;
}

/* An optimizer of the caller's, with as many moments as there are. */
__attribute__((unused)) static void update_by_momentum(void *user, const zero_update_range *range)
{
    (void)user;
    for (size_t i = 0; i < range->count; i++) {
        float way = range->grad[i];
        if (range->moment1 != NULL) {
            range->moment1[i] = 0.5F * range->moment1[i] + way;
            way = range->moment1[i];
        }
        if (range->moment2 != NULL) {
            range->moment2[i] += 1.0F;
            way = way / range->moment2[i];
        }
        range->param[i] -= 0.01F * way;
    }
}

/* True if no rank may leave out units while others are evicted: one is held while others are
 * gathered, or units come again after others, or in an order that is new (zero/unit.h, Ranks). */
__attribute__((unused)) static bool course_is_whole(course way)
{
    return way != IN_ORDER && way != THREE_TIMES;
}

/* The slots without which a course would wait for itself. */
__attribute__((unused)) static uint32_t course_param_slots(course way)
{
    return way == NESTED ? 4 : way == FIRST_IS_HELD ? 3 : 2;
}

/* A unit's gradient counts as left out when backward has passed it by so many buckets. */
__attribute__((unused)) static uint32_t course_grad_slots(course way, uint32_t units)
{
    const bool reorders = way == HELD_OVER_TWO_USES || way == ROTATED || way == BACKWARD_AHEAD;
    return reorders ? units : way == RECOMPUTED ? 2 : 1;
}

#endif
