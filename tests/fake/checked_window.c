/* Tells the checker what the windows of src/offload order on the host (the linker's --wrap):
 * whoever acquires a place in a window's memory goes on after whoever released it last. */
#include "checked_stream.h"
#include "offload/window.h"

/* A place in a window's memory. */
typedef struct window_place {
    struct window_place *next;
    const unsigned char *memory;
    const zi_window *holder; /* NULL: nobody has acquired it */
    uint32_t range;
    race_clock released;
} window_place;

static window_place *places; /* under the checker's lock */

/* The linker's names. */
extern __typeof__(zi_window_acquire) __real_zi_window_acquire, __wrap_zi_window_acquire;
extern __typeof__(zi_window_acquire_before) __real_zi_window_acquire_before,
    __wrap_zi_window_acquire_before;
extern __typeof__(zi_window_release) __real_zi_window_release, __wrap_zi_window_release;

static zero_status acquired(zero_status status, const zi_window *window, uint32_t range,
                            const unsigned char *memory)
{
    if (status != ZERO_OK) {
        return status;
    }
    race_line *line = checked_lock();
    window_place *place = places;
    while (place != NULL && place->memory != memory) {
        place = place->next;
    }
    if (place == NULL) {
        place = race_allocate(sizeof *place);
        place->memory = memory;
        place->next = places;
        places = place;
    }
    place->holder = window;
    place->range = range;
    race_clock_join(&line->clock, &place->released);
    checked_unlock();
    return ZERO_OK;
}

zero_status __wrap_zi_window_acquire(zi_window *window, uint32_t range, zi_window_access access,
                                     unsigned char **memory)
{
    const zero_status status = __real_zi_window_acquire(window, range, access, memory);
    return acquired(status, window, range, *memory);
}

zero_status __wrap_zi_window_acquire_before(zi_window *window, uint32_t range,
                                            zi_window_access access, const zi_window_range *next,
                                            uint32_t count, unsigned char **memory)
{
    const zero_status status =
        __real_zi_window_acquire_before(window, range, access, next, count, memory);
    return acquired(status, window, range, *memory);
}

zero_status __wrap_zi_window_release(zi_window *window, uint32_t range, bool dirty)
{
    const race_line *line = checked_lock();
    for (window_place *place = places; place != NULL; place = place->next) {
        if (place->holder == window && place->range == range) {
            place->holder = NULL;
            race_clock_copy(&place->released, &line->clock);
        }
    }
    checked_unlock();
    return __real_zi_window_release(window, range, dirty);
}
