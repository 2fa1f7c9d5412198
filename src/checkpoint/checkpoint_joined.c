/* Owns how elements of a wanted box are read from saved boxes: long runs go from the file to the
 * caller's memory, short ones through staging, several in one read. Invariant: of counted reads,
 * each granule of a saved box is counted by the read that has its first element, from all of it. */
#include "checkpoint/checkpoint_joined.h"

#include <string.h>

#include "core/error.h"
#include "core/sizes.h"

#define GRANULE_COUNT 256
/* Between two runs, at most: a disk reads whole pages anyway. */
#define GAP_BYTES ((uint64_t)4096)
/* Of a run, at least, to be read by itself. */
#define LONG_BYTES ((uint64_t)65536)
/* Of a run that goes through staging, at most. */
#define STAGED_BYTES (ZI_JOINED_STAGING_BYTES / 2)

/* A read of one saved box. */
typedef struct box_read {
    const zi_joined *joined;
    uint32_t tensor;
    zero_role role;
    zi_box_cut cut;
    uint64_t first; /* elements of the wanted box */
    uint64_t end;
    bool counted;
    uint64_t width; /* bytes of an element */
    uint64_t saved; /* elements of the saved box */
    unsigned char *values;
} box_read;

/* The position of a walk over its runs. */
typedef struct run_walk {
    uint64_t run;
    uint64_t at; /* elements of the wanted box before this one are behind it */
} run_walk;

/* Runs of a read that are read at once, with what is between them. */
typedef struct run_span {
    uint64_t first; /* elements of the saved box */
    uint64_t end;
} run_span;

/* ---- runs ---- */

static uint64_t up(uint64_t element)
{
    return zi_align_up(element, GRANULE_COUNT);
}

/* The next run of the read, of at most `most` bytes; false: there are no more. A run that is cut is
 * cut at a granule. */
static bool checkpoint_joined_next_run(const box_read *read, run_walk *walk, uint64_t most,
                                       zi_box_run *run)
{
    for (; walk->run < read->cut.runs; walk->run++) {
        const zi_box_run all = zi_box_run_at(&read->cut, walk->run);
        const uint64_t first = zi_max_u64(all.wanted, walk->at);
        const uint64_t end = zi_min_u64(all.wanted + all.count, read->end);
        if (all.wanted >= read->end) {
            return false;
        }
        if (first < end) {
            *run = (zi_box_run){first, all.saved + (first - all.wanted), end - first};
            if (run->count > most / read->width) {
                const uint64_t cut = run->saved + most / read->width;
                run->count = cut - cut % GRANULE_COUNT - run->saved;
            }
            walk->at = first + run->count;
            return true;
        }
    }
    return false;
}

/* The end of the elements that have to be read for a run: those of the last granule that it counts
 * too. */
static uint64_t needed_end(const box_read *read, const zi_box_run *run)
{
    const uint64_t end = run->saved + run->count;
    return read->counted && up(run->saved) < end ? zi_min_u64(up(end), read->saved) : end;
}

/* ---- reading ---- */

static zi_source_range range_of(const box_read *read, uint64_t first, uint64_t end, bool counted)
{
    return (zi_source_range){.tensor = read->tensor,
                             .role = read->role,
                             .first = first,
                             .count = end - first,
                             .counted = counted};
}

static unsigned char *checkpoint_joined_target_of(const box_read *read, const zi_box_run *run)
{
    return read->values + (run->wanted - read->first) * read->width;
}

/* True if a run is worth a read of its own, and counts just what it has. */
static bool stands_alone(const box_read *read, const zi_box_run *run)
{
    const bool is_long =
        run->count * read->width >= LONG_BYTES || run->count == read->end - read->first;
    return is_long && (!read->counted || (run->saved % GRANULE_COUNT == 0 &&
                                          needed_end(read, run) == run->saved + run->count));
}

/* As many runs from the walk's next one on as fit into staging and lie close. */
static run_span find_span(const box_read *read, run_walk walk)
{
    const uint64_t room = ZI_JOINED_STAGING_BYTES / read->width;
    zi_box_run run = {0};
    (void)checkpoint_joined_next_run(read, &walk, STAGED_BYTES, &run); /* there is one */
    run_span span = {run.saved, needed_end(read, &run)};
    while (checkpoint_joined_next_run(read, &walk, STAGED_BYTES, &run)) {
        const uint64_t end = zi_max_u64(span.end, needed_end(read, &run));
        if (end - span.first > room ||
            (run.saved > span.end && (run.saved - span.end) * read->width > GAP_BYTES)) {
            break;
        }
        span.end = end;
    }
    return span;
}

/* Hand out the runs of a span that was read, and count their granules. */
static zero_status take_span(const box_read *read, run_walk *walk, const run_span *span)
{
    const unsigned char *staging = read->joined->staging;
    run_walk next = *walk;
    zi_box_run run;
    while (checkpoint_joined_next_run(read, &next, STAGED_BYTES, &run) &&
           needed_end(read, &run) <= span->end) {
        const uint64_t end = needed_end(read, &run);
        const uint64_t granules = up(run.saved);
        memcpy(checkpoint_joined_target_of(read, &run),
               staging + (run.saved - span->first) * read->width, run.count * read->width);
        if (read->counted && granules < end) {
            const zi_source_range range = range_of(read, granules, end, true);
            ZI_TRY(zi_source_add_range(read->joined->source, &range,
                                       staging + (granules - span->first) * read->width));
        }
        *walk = next;
    }
    return ZERO_OK;
}

static zero_status checkpoint_joined_read_box(const box_read *read)
{
    zi_source *source = read->joined->source;
    run_walk walk = {zi_box_first_run(&read->cut, read->first), read->first};
    run_walk next = walk;
    zi_box_run run;
    while (checkpoint_joined_next_run(read, &next, ZI_SOURCE_READ_BYTES_MAX, &run)) {
        if (stands_alone(read, &run)) {
            zi_source_range range = range_of(read, run.saved, run.saved + run.count, read->counted);
            range.direct = read->joined->direct;
            ZI_TRY(zi_source_read(source, &range, checkpoint_joined_target_of(read, &run)));
            walk = next;
        } else {
            const run_span span = find_span(read, walk);
            const zi_source_range range = range_of(read, span.first, span.end, false);
            ZI_TRY(zi_source_read(source, &range, read->joined->staging));
            ZI_TRY(take_span(read, &walk, &span));
        }
        next = walk;
    }
    return ZERO_OK;
}

/* ---- saved boxes ---- */

static const zi_checkpoint_tensor *saved_at(const zi_joined *joined, uint32_t tensor)
{
    return &joined->source->map->tensors[tensor];
}

static zi_box_cut cut_of(const zi_joined *joined, uint32_t tensor)
{
    const zi_box saved = zi_box_of(saved_at(joined, tensor));
    return zi_box_meet(&joined->wanted, &saved);
}

uint64_t zi_joined_covers(const zi_joined *joined)
{
    uint64_t count = 0;
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
        const zi_box_cut cut = cut_of(joined, t);
        count += cut.runs * cut.run_count;
    }
    return count;
}

/* The run of a saved box that has an element; count 0: it is in another box. */
static zi_box_run run_with(const zi_joined *joined, uint32_t tensor, uint64_t element)
{
    const zi_box_cut cut = cut_of(joined, tensor);
    const uint64_t first = zi_box_first_run(&cut, element);
    const zi_box_run run = first < cut.runs ? zi_box_run_at(&cut, first) : (zi_box_run){0};
    return run.wanted <= element ? run : (zi_box_run){0};
}

uint64_t zi_joined_alike(const zi_joined *joined, uint64_t first, uint64_t end, zero_dtype *dtype)
{
    bool alike = true;
    zero_dtype before = ZERO_DTYPE_NONE;
    zi_box_run here = {0};
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
        const zi_checkpoint_tensor *saved = saved_at(joined, t);
        const zero_dtype type = saved->role[joined->role_of(saved, joined->user)].dtype;
        const zi_box_run run = run_with(joined, t, first);
        if (cut_of(joined, t).runs != 0) {
            alike = alike && (before == ZERO_DTYPE_NONE || before == type);
            before = type;
        }
        if (run.count != 0) {
            *dtype = type;
            here = run;
        }
    }
    return (alike ? end : zi_min_u64(end, here.wanted + here.count)) - first;
}

zi_source_range zi_joined_find(const zi_joined *joined, uint64_t element)
{
    zi_source_range range = {.tensor = joined->head};
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
        const zi_box_run run = run_with(joined, t, element);
        if (run.count != 0) {
            range.tensor = t;
            range.first = run.saved + (element - run.wanted);
            range.count = run.count - (element - run.wanted);
        }
    }
    range.role = joined->role_of(saved_at(joined, range.tensor), joined->user);
    return range;
}

uint64_t zi_joined_page_offset(const zi_joined *joined, uint64_t element)
{
    const zi_source_range range = zi_joined_find(joined, element);
    return zi_source_page_offset(joined->source, &range);
}

zero_status zi_joined_read(const zi_joined *joined, uint64_t first, uint64_t count, bool counted,
                           void *values)
{
    for (uint32_t t = joined->head; t != UINT32_MAX && count != 0;
         t = zi_source_next(joined->source, t)) {
        const zi_checkpoint_tensor *saved = saved_at(joined, t);
        box_read read = {.joined = joined,
                         .tensor = t,
                         .role = joined->role_of(saved, joined->user),
                         .cut = cut_of(joined, t),
                         .first = first,
                         .end = first + count,
                         .counted = counted,
                         .saved = saved->count,
                         .values = values};
        read.width = zero_dtype_bytes(saved->role[read.role].dtype);
        if (read.cut.runs != 0) {
            ZI_TRY(checkpoint_joined_read_box(&read));
        }
    }
    return ZERO_OK;
}

zero_status zi_joined_check(const zi_joined *joined, uint64_t first, uint64_t count)
{
    for (uint32_t t = joined->head; t != UINT32_MAX && count != 0;
         t = zi_source_next(joined->source, t)) {
        const zi_checkpoint_tensor *saved = saved_at(joined, t);
        const zi_box_cut cut = cut_of(joined, t);
        const uint64_t from = zi_box_first_run(&cut, first);
        const uint64_t to = zi_box_first_run(&cut, first + count - 1);
        zi_source_range range = {.tensor = t, .role = joined->role_of(saved, joined->user)};
        if (from == cut.runs || zi_box_run_at(&cut, from).wanted >= first + count) {
            continue;
        }
        const zi_box_run begin = zi_box_run_at(&cut, from);
        const zi_box_run last = zi_box_run_at(&cut, to < cut.runs ? to : cut.runs - 1);
        range.first = begin.saved + (first > begin.wanted ? first - begin.wanted : 0);
        range.count =
            last.saved +
            zi_min_u64(last.count, first + count > last.wanted ? first + count - last.wanted : 0) -
            range.first;
        ZI_TRY(zi_source_check_range(joined->source, &range, NULL, NULL));
    }
    return ZERO_OK;
}
