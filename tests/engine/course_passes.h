/* The calls of each course: units that are acquired more than once, held, nested or recomputed,
 * come in other orders, or are left out. Included by random programs and by those that they are
 * printed as, each of which defines before:
 *
 *   course_rank                     what runs, with engine and step
 *   COURSE_TRY(call)                returns its status where that is not ZERO_OK
 *   course_units(r)                 of the model
 *   course_stream()                 on which units are acquired
 *   course_trained(r, u)            whether unit u has a tensor that is trained
 *   course_left_out(r, u)           what of unit u the running micro-step leaves out
 *   course_read(r, u)               reads what has been acquired
 *   course_forward(r, u)            acquires, reads and releases unit u
 *   course_backward(r, u, add)      the same, and its gradient, which it adds, or zero */
#ifndef TESTS_ENGINE_COURSE_PASSES_H
#define TESTS_ENGINE_COURSE_PASSES_H

#include "courses.h"

static zero_status course_hold(course_rank *r, uint32_t unit, zero_pass pass)
{
    return zero_unit_params_acquire(r->engine, unit, pass, course_stream());
}

static zero_status course_let_go(course_rank *r, uint32_t unit)
{
    return zero_unit_params_release(r->engine, unit, course_stream());
}

/* A unit without its gradient. */
static zero_status course_look(course_rank *r, uint32_t unit, zero_pass pass)
{
    COURSE_TRY(course_hold(r, unit, pass));
    COURSE_TRY(course_read(r, unit));
    return course_let_go(r, unit);
}

static zero_status forward_of(course_rank *r, uint32_t unit)
{
    return course_left_out(r, unit) == NOT_AT_ALL ? ZERO_OK : course_forward(r, unit);
}

static zero_status backward_of(course_rank *r, uint32_t unit)
{
    switch (course_left_out(r, unit)) {
    case ALL_DONE:
        return course_backward(r, unit, true);
    case NO_GRADIENT:
        return course_look(r, unit, ZERO_PASS_BACKWARD);
    case NO_BACKWARD:
    case NOT_AT_ALL:
    default:
        return ZERO_OK;
    }
}

static zero_status forward_all(course_rank *r, uint32_t shift)
{
    const uint32_t units = course_units(r);
    for (uint32_t i = 0; i < units; i++) {
        COURSE_TRY(forward_of(r, (i + shift) % units));
    }
    return ZERO_OK;
}

static zero_status backward_all(course_rank *r, uint32_t shift)
{
    const uint32_t units = course_units(r);
    for (uint32_t i = units; i-- > 0;) {
        COURSE_TRY(backward_of(r, (i + shift) % units));
    }
    return ZERO_OK;
}

static zero_status three_times(course_rank *r)
{
    for (uint32_t u = 0; u < course_units(r); u++) {
        for (int i = 0; i < 3; i++) {
            COURSE_TRY(forward_of(r, u));
        }
    }
    for (uint32_t u = course_units(r); u-- > 0;) {
        COURSE_TRY(course_look(r, u, ZERO_PASS_BACKWARD));
        COURSE_TRY(course_look(r, u, ZERO_PASS_BACKWARD));
        COURSE_TRY(backward_of(r, u));
    }
    return ZERO_OK;
}

static zero_status comes_back(course_rank *r)
{
    COURSE_TRY(forward_all(r, 0));
    for (uint32_t u = 1; u < course_units(r); u += 2) {
        COURSE_TRY(forward_of(r, u));
    }
    return backward_all(r, 0);
}

/* Even units add at the first use, odd ones at the second. */
static zero_status held_over_two_uses(course_rank *r)
{
    const zero_stream stream = course_stream();
    COURSE_TRY(forward_all(r, 0));
    COURSE_TRY(forward_all(r, 0));
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t u = course_units(r); u-- > 0;) {
            const bool gives = course_left_out(r, u) == ALL_DONE;
            const bool trained = gives && course_trained(r, u);
            if (trained && turn == 0) {
                COURSE_TRY(zero_unit_grads_acquire(r->engine, u, stream));
            }
            COURSE_TRY(gives ? course_backward(r, u, u % 2 == turn) : ZERO_OK);
            if (trained && turn == 1) {
                COURSE_TRY(zero_unit_grads_ready(r->engine, u, stream));
            }
        }
    }
    return ZERO_OK;
}

static zero_status nested(course_rank *r)
{
    const uint32_t units = course_units(r);
    for (uint32_t u = 0; u < units; u++) {
        COURSE_TRY(course_hold(r, u, ZERO_PASS_FORWARD));
        COURSE_TRY(course_hold(r, u, ZERO_PASS_FORWARD));
        if (u > 0) {
            COURSE_TRY(course_read(r, u - 1));
            COURSE_TRY(course_let_go(r, u - 1));
        }
        COURSE_TRY(course_let_go(r, u));
        COURSE_TRY(course_read(r, u));
    }
    COURSE_TRY(course_let_go(r, units - 1));
    for (uint32_t u = units; u-- > 0;) {
        COURSE_TRY(course_hold(r, u, ZERO_PASS_BACKWARD));
        COURSE_TRY(backward_of(r, u));
        COURSE_TRY(course_read(r, u));
        COURSE_TRY(course_let_go(r, u));
    }
    return ZERO_OK;
}

static zero_status first_is_held(course_rank *r)
{
    COURSE_TRY(course_hold(r, 0, ZERO_PASS_FORWARD));
    COURSE_TRY(forward_all(r, 0));
    COURSE_TRY(backward_all(r, 0));
    COURSE_TRY(course_read(r, 0));
    return course_let_go(r, 0);
}

/* Two units a checkpoint. */
static zero_status recomputed(course_rank *r)
{
    COURSE_TRY(forward_all(r, 0));
    for (uint32_t end = course_units(r); end > 0; end -= end > 1 ? 2 : 1) {
        const uint32_t start = end > 1 ? end - 2 : 0;
        for (uint32_t u = start; u < end; u++) {
            COURSE_TRY(course_look(r, u, ZERO_PASS_BACKWARD));
        }
        for (uint32_t u = end; u-- > start;) {
            COURSE_TRY(backward_of(r, u));
        }
    }
    return ZERO_OK;
}

static zero_status backward_ahead(course_rank *r)
{
    COURSE_TRY(forward_all(r, 0));
    for (uint32_t u = 0; u < course_units(r); u++) {
        COURSE_TRY(backward_of(r, u));
    }
    return ZERO_OK;
}

/* Evaluation that stops half way, leaves out units by rank, and goes backwards. */
__attribute__((unused)) static zero_status odd_sweep(course_rank *r, uint32_t rank, uint32_t ranks)
{
    const uint32_t units = course_units(r);
    for (uint32_t u = 0; u < units / 2; u++) {
        COURSE_TRY(u % ranks != rank ? course_look(r, u, ZERO_PASS_EVAL) : ZERO_OK);
    }
    for (uint32_t u = units; u-- > units / 2;) {
        COURSE_TRY(course_look(r, u, ZERO_PASS_EVAL));
    }
    return ZERO_OK;
}

/* Passes of a micro-step that is dropped: the gradients of some units only. */
static zero_status course_dropped(course_rank *r, uint64_t number)
{
    const uint32_t units = course_units(r);
    for (uint32_t u = 0; u < units; u++) {
        COURSE_TRY(course_forward(r, u));
    }
    for (uint32_t u = units; u-- > number % 4;) {
        COURSE_TRY(course_backward(r, u, true));
    }
    return ZERO_OK;
}

/* Some calls into a micro-step, and what is open then stays open: a unit is held twice, and its
 * gradient beside it. */
static zero_status course_into(course_rank *r, uint32_t calls)
{
    const uint32_t units = course_units(r);
    const zero_stream stream = course_stream();
    for (uint32_t u = 0; u < units && calls > 0; u++, calls--) {
        COURSE_TRY(course_forward(r, u));
    }
    for (uint32_t u = units; u-- > 0 && calls > 0; calls--) {
        COURSE_TRY(course_backward(r, u, true));
        if (calls == 1 && u > 0) {
            const bool trained = course_trained(r, u - 1);
            COURSE_TRY(trained ? zero_unit_grads_acquire(r->engine, u - 1, stream) : ZERO_OK);
            COURSE_TRY(zero_unit_acquire(r->engine, u - 1, ZERO_PASS_BACKWARD, stream, NULL));
            COURSE_TRY(course_hold(r, u - 1, ZERO_PASS_BACKWARD));
        }
    }
    return ZERO_OK;
}

/* All passes of a micro-step. */
static zero_status course_passes(course_rank *r, course way)
{
    const uint32_t shift = way == ROTATED ? (uint32_t)r->step : 0;
    switch (way) {
    case THREE_TIMES:
        return three_times(r);
    case COMES_BACK:
        return comes_back(r);
    case HELD_OVER_TWO_USES:
        return held_over_two_uses(r);
    case NESTED:
        return nested(r);
    case FIRST_IS_HELD:
        return first_is_held(r);
    case RECOMPUTED:
        return recomputed(r);
    case BACKWARD_AHEAD:
        return backward_ahead(r);
    case IN_ORDER:
    case ROTATED:
    case COURSE_COUNT:
    default:
        COURSE_TRY(forward_all(r, shift));
        return backward_all(r, shift);
    }
}

#endif
