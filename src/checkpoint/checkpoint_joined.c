/* Owns how elements of a wanted box are read from saved boxes: long ranges go from the file to the
 * caller's memory, short ones through staging, several in one read. Invariant: of counted reads,
 * each granule of a saved box is counted by the read that has its first element, from all of it. */
#include "checkpoint/checkpoint_joined.h"

#include <string.h>

#include "core/error.h"
#include "core/sizes.h"

#define GRANULE_COUNT 256
/* Between two ranges, at most: a disk reads whole pages anyway. */
#define GAP_BYTES ((uint64_t)4096)
/* Of a range, at least, to be read by itself. */
#define LONG_BYTES ((uint64_t)65536)
/* Of a range that goes through staging, at most. */
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

/* The position of a walk over its ranges. */
typedef struct range_walk {
    uint64_t range;
    uint64_t at; /* elements of the wanted box before this one are behind it */
} range_walk;

/* Runs of a read that are read at once, with what is between them. */
typedef struct range_span {
    uint64_t first; /* elements of the saved box */
    uint64_t end;
} range_span;

/* ---- ranges ---- */

static uint64_t up(uint64_t element)
{
    return zi_align_up(element, GRANULE_COUNT);
}

/* The next range of the read, of at most `most` bytes; false: there are no more. A range that is
 * cut is cut at a granule. */
static bool checkpoint_joined_next_range(const box_read *read, range_walk *walk, uint64_t most,
                                         zi_box_range *common)
{
    for (; walk->range < read->cut.ranges; walk->range++) {
        const zi_box_range all = zi_box_range_at(&read->cut, walk->range);
        const uint64_t first = zi_max_u64(all.wanted, walk->at);
        const uint64_t end = zi_min_u64(all.wanted + all.count, read->end);
        if (all.wanted >= read->end) {
            return false;
        }
        if (first < end) {
            *common = (zi_box_range){first, all.saved + (first - all.wanted), end - first};
            if (common->count > most / read->width) {
                const uint64_t cut = common->saved + most / read->width;
                common->count = cut - cut % GRANULE_COUNT - common->saved;
            }
            walk->at = first + common->count;
            return true;
        }
    }
    return false;
}

/* The end of the elements that have to be read for a range: those of the last granule that it
 * counts too. */
static uint64_t needed_end(const box_read *read, const zi_box_range *common)
{
    const uint64_t end = common->saved + common->count;
    return read->counted && up(common->saved) < end ? zi_min_u64(up(end), read->saved) : end;
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

static unsigned char *checkpoint_joined_target_of(const box_read *read, const zi_box_range *common)
{
    return read->values + (common->wanted - read->first) * read->width;
}

/* True if a range is worth a read of its own, and counts just what it has. */
static bool stands_alone(const box_read *read, const zi_box_range *common)
{
    const bool is_long =
        common->count * read->width >= LONG_BYTES || common->count == read->end - read->first;
    return is_long &&
           (!read->counted || (common->saved % GRANULE_COUNT == 0 &&
                               needed_end(read, common) == common->saved + common->count));
}

/* As many ranges from the walk's next one on as fit into staging and lie close. */
static range_span find_span(const box_read *read, range_walk walk)
{
    const uint64_t room = ZI_JOINED_STAGING_BYTES / read->width;
    zi_box_range common = {0};
    (void)checkpoint_joined_next_range(read, &walk, STAGED_BYTES, &common); /* there is one */
    range_span span = {common.saved, needed_end(read, &common)};
    while (checkpoint_joined_next_range(read, &walk, STAGED_BYTES, &common)) {
        const uint64_t end = zi_max_u64(span.end, needed_end(read, &common));
        if (end - span.first > room ||
            (common.saved > span.end && (common.saved - span.end) * read->width > GAP_BYTES)) {
            break;
        }
        span.end = end;
    }
    return span;
}

/* Hand out the ranges of a span that was read, and count their granules. */
static zero_status take_span(const box_read *read, range_walk *walk, const range_span *span)
{
    const unsigned char *staging = read->joined->staging;
    range_walk next = *walk;
    zi_box_range common;
    while (checkpoint_joined_next_range(read, &next, STAGED_BYTES, &common) &&
           needed_end(read, &common) <= span->end) {
        const uint64_t end = needed_end(read, &common);
        const uint64_t granules = up(common.saved);
        memcpy(checkpoint_joined_target_of(read, &common),
               staging + (common.saved - span->first) * read->width, common.count * read->width);
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
    range_walk walk = {zi_box_first_range(&read->cut, read->first), read->first};
    range_walk next = walk;
    zi_box_range common;
    while (checkpoint_joined_next_range(read, &next, ZI_SOURCE_READ_BYTES_MAX, &common)) {
        if (stands_alone(read, &common)) {
            zi_source_range range =
                range_of(read, common.saved, common.saved + common.count, read->counted);
            range.direct = read->joined->direct;
            ZI_TRY(zi_source_read(source, &range, checkpoint_joined_target_of(read, &common)));
            walk = next;
        } else {
            const range_span span = find_span(read, walk);
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
        count += cut.ranges * cut.range_count;
    }
    return count;
}

/* The range of a saved box that has an element; count 0: it is in another box. */
static zi_box_range common_with(const zi_joined *joined, uint32_t tensor, uint64_t element)
{
    const zi_box_cut cut = cut_of(joined, tensor);
    const uint64_t first = zi_box_first_range(&cut, element);
    const zi_box_range common =
        first < cut.ranges ? zi_box_range_at(&cut, first) : (zi_box_range){0};
    return common.wanted <= element ? common : (zi_box_range){0};
}

uint64_t zi_joined_alike(const zi_joined *joined, uint64_t first, uint64_t end, zero_dtype *dtype)
{
    bool alike = true;
    zero_dtype before = ZERO_DTYPE_NONE;
    zi_box_range here = {0};
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
        const zi_checkpoint_tensor *saved = saved_at(joined, t);
        const zero_dtype type = saved->role[joined->role_of(saved, joined->user)].dtype;
        const zi_box_range common = common_with(joined, t, first);
        if (cut_of(joined, t).ranges != 0) {
            alike = alike && (before == ZERO_DTYPE_NONE || before == type);
            before = type;
        }
        if (common.count != 0) {
            *dtype = type;
            here = common;
        }
    }
    return (alike ? end : zi_min_u64(end, here.wanted + here.count)) - first;
}

zi_source_range zi_joined_find(const zi_joined *joined, uint64_t element)
{
    zi_source_range range = {.tensor = joined->head};
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
        const zi_box_range common = common_with(joined, t, element);
        if (common.count != 0) {
            range.tensor = t;
            range.first = common.saved + (element - common.wanted);
            range.count = common.count - (element - common.wanted);
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
        if (read.cut.ranges != 0) {
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
        const uint64_t from = zi_box_first_range(&cut, first);
        const uint64_t to = zi_box_first_range(&cut, first + count - 1);
        zi_source_range range = {.tensor = t, .role = joined->role_of(saved, joined->user)};
        if (from == cut.ranges || zi_box_range_at(&cut, from).wanted >= first + count) {
            continue;
        }
        const zi_box_range begin = zi_box_range_at(&cut, from);
        const zi_box_range last = zi_box_range_at(&cut, to < cut.ranges ? to : cut.ranges - 1);
        range.first = begin.saved + (first > begin.wanted ? first - begin.wanted : 0);
        range.count =
            last.saved +
            zi_min_u64(last.count, first + count > last.wanted ? first + count - last.wanted : 0) -
            range.first;
        ZI_TRY(zi_source_check_range(joined->source, &range, NULL, NULL));
    }
    return ZERO_OK;
}
