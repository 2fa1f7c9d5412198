/* Owns how elements of a wanted box are read from saved boxes: long ranges go from the file to the
 * caller's memory, short ones through staging, several in one read; what is widened is read in
 * pieces and made fp32. Invariant: of counted reads, each granule of a saved box is counted by the
 * read that has its first element, from all of it. */
#include "checkpoint/checkpoint_joined.h"

#include <string.h>

#include "core/error.h"
#include "core/sizes.h"
#include "kernels/cpu/cpu_kernels.h"

/* Between two ranges, at most: a disk reads whole pages anyway. */
#define GAP_BYTES ((uint64_t)4096)
/* Of a range, at least, to be read by itself. */
#define LONG_BYTES ((uint64_t)65536)
/* Of ranges that are read at once, and of one of them, at most. */
#define SPAN_BYTES (ZI_JOINED_STAGING_BYTES / 2)
#define STAGED_BYTES (SPAN_BYTES / 2)
/* Elements that are widened at once, of 2 bytes at most; and bytes of what they are widened with.
 */
#define WIDENED_COUNT ((uint64_t)1 << 18)
#define WIDENED_BYTES (WIDENED_COUNT * 2)
_Static_assert(SPAN_BYTES + 2 * WIDENED_BYTES == ZI_JOINED_STAGING_BYTES, "all of staging");

/* A read of one saved box. */
typedef struct box_read {
    const zi_joined *joined;
    uint32_t tensor;
    zero_role role;
    zi_box_cut cut;
    uint64_t first; /* elements of the wanted box */
    uint64_t end;
    bool counted;
    zi_codec codec; /* of the values */
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
    return zi_align_up(element, ZI_GRANULE);
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
            if (zi_codec_bytes(read->codec, common->count) > most) {
                const uint64_t cut = common->saved + zi_codec_elements(read->codec, most);
                common->count = cut - cut % ZI_GRANULE - common->saved;
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
    return read->values + zi_codec_bytes(read->codec, common->wanted - read->first);
}

/* True if a range is worth a read of its own, and counts just what it has. */
static bool stands_alone(const box_read *read, const zi_box_range *common)
{
    const bool is_long = zi_codec_bytes(read->codec, common->count) >= LONG_BYTES ||
                         common->count == read->end - read->first;
    return is_long &&
           (!read->counted || (common->saved % ZI_GRANULE == 0 &&
                               needed_end(read, common) == common->saved + common->count));
}

/* As many ranges from the walk's next one on as fit into staging and lie close. */
static range_span find_span(const box_read *read, range_walk walk)
{
    const uint64_t room = zi_codec_elements(read->codec, SPAN_BYTES);
    zi_box_range common = {0};
    (void)checkpoint_joined_next_range(read, &walk, STAGED_BYTES, &common); /* there is one */
    range_span span = {common.saved, needed_end(read, &common)};
    while (checkpoint_joined_next_range(read, &walk, STAGED_BYTES, &common)) {
        const uint64_t end = zi_max_u64(span.end, needed_end(read, &common));
        if (end - span.first > room ||
            (common.saved > span.end &&
             zi_codec_bytes(read->codec, common.saved - span.end) > GAP_BYTES)) {
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
               staging + zi_codec_bytes(read->codec, common.saved - span->first),
               zi_codec_bytes(read->codec, common.count));
        if (read->counted && granules < end) {
            const zi_source_range range = range_of(read, granules, end, true);
            ZI_TRY(
                zi_source_add_range(read->joined->source, &range,
                                    staging + zi_codec_bytes(read->codec, granules - span->first)));
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

uint64_t zi_joined_alike(const zi_joined *joined, uint64_t first, uint64_t end, zi_codec *codec)
{
    bool alike = true;
    zi_codec before = {ZERO_DTYPE_DEFAULT, false};
    zi_box_range here = {0};
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
        const zi_checkpoint_tensor *saved = saved_at(joined, t);
        const zi_joined_from from = joined->from(saved, joined->user);
        const zi_codec own =
            from.widened ? (zi_codec){ZERO_DTYPE_F32, false} : zi_saved_codec(saved, from.role);
        const zi_box_range common = common_with(joined, t, first);
        if (cut_of(joined, t).ranges != 0) {
            alike = alike && (zi_codec_is_none(before) || zi_codec_same(before, own));
            before = own;
        }
        if (common.count != 0) {
            *codec = own;
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
    range.role = joined->from(saved_at(joined, range.tensor), joined->user).role;
    return range;
}

uint64_t zi_joined_page_offset(const zi_joined *joined, uint64_t element)
{
    const zi_source_range range = zi_joined_find(joined, element);
    return zi_source_page_offset(joined->source, &range);
}

/* The read of one saved box in one role. */
static box_read read_of(const zi_joined *joined, uint32_t tensor, zero_role role)
{
    const zi_checkpoint_tensor *saved = saved_at(joined, tensor);
    return (box_read){.joined = joined,
                      .tensor = tensor,
                      .role = role,
                      .cut = cut_of(joined, tensor),
                      .saved = saved->count,
                      .codec = zi_saved_codec(saved, role)};
}

/* The elements of a saved box from the first to the last that a read wants; false: none. */
static bool find_saved(const box_read *read, range_span *span)
{
    const zi_box_cut *cut = &read->cut;
    const uint64_t from = zi_box_first_range(cut, read->first);
    const uint64_t to = zi_box_first_range(cut, read->end - 1);
    if (from == cut->ranges || zi_box_range_at(cut, from).wanted >= read->end) {
        return false;
    }
    const zi_box_range begin = zi_box_range_at(cut, from);
    const zi_box_range last = zi_box_range_at(cut, zi_min_u64(to, cut->ranges - 1));
    const uint64_t past = read->end > last.wanted ? read->end - last.wanted : 0;
    span->first = begin.saved + (read->first > begin.wanted ? read->first - begin.wanted : 0);
    span->end = last.saved + zi_min_u64(last.count, past);
    return true;
}

/* ---- fp32 ---- */

/* Elements of a saved box whose scales were read. */
typedef struct scale_window {
    range_span of;
    range_span wanted; /* all that the read wants */
    uint16_t *scales;
} scale_window;

/* The role that values of another are widened with; the same: with none. */
static zero_role joined_with(zero_role role, zero_dtype dtype)
{
    return zi_dtype_is_remainder(dtype) ? ZERO_ROLE_PARAM
           : zi_dtype_is_code(dtype)    ? zi_role_scales(role)
                                        : role;
}

/* Read the scales of a range of codes, and count their granules as those of the codes. */
static zero_status take_scales(const box_read *codes, scale_window *window,
                               const zi_box_range *common)
{
    const uint64_t first = common->saved / ZERO_CODE_BLOCK * ZERO_CODE_BLOCK;
    const uint64_t needed = needed_end(codes, common);
    const uint64_t end = zi_min_u64(zi_align_up(needed, ZERO_CODE_BLOCK), codes->saved);
    box_read scales = *codes;
    scales.role = zi_role_scales(codes->role);
    scales.codec = (zi_codec){ZERO_DTYPE_BF16, true};
    if (first < window->of.first || end > window->of.end) {
        const uint64_t most = first + zi_codec_elements(scales.codec, WIDENED_BYTES);
        window->of.first = first;
        window->of.end =
            zi_max_u64(end, zi_min_u64(zi_min_u64(most, codes->saved), up(window->wanted.end)));
        const zi_source_range range = range_of(&scales, first, window->of.end, false);
        ZI_TRY(zi_source_read(codes->joined->source, &range, window->scales));
    }
    const uint64_t granules = up(common->saved);
    if (codes->counted && granules < needed) {
        const zi_source_range range = range_of(&scales, granules, needed, true);
        ZI_TRY(zi_source_add_range(codes->joined->source, &range,
                                   window->scales +
                                       zi_codec_values(scales.codec, granules - window->of.first)));
    }
    return ZERO_OK;
}

/* saved: the first of them in the saved box. What is left of its block comes first. */
static void widen_codes(float *values, const uint8_t *codes, zero_dtype dtype, uint64_t saved,
                        uint64_t count, const scale_window *window)
{
    const uint64_t at = saved - window->of.first;
    const uint64_t lead = zi_min_u64(count, ZERO_CODE_BLOCK - at % ZERO_CODE_BLOCK);
    zi_cpu_decode(values, codes, window->scales + at / ZERO_CODE_BLOCK, dtype, lead);
    zi_cpu_decode(values + lead, codes + lead, window->scales + (at + lead) / ZERO_CODE_BLOCK,
                  dtype, count - lead);
}

/* Widen the ranges of a read; params: of remainders, from the read's first element on. */
static zero_status widen_ranges(const box_read *read, float *values, const uint16_t *params,
                                scale_window *window)
{
    const zero_dtype dtype = read->codec.dtype;
    range_walk walk = {zi_box_first_range(&read->cut, read->first), read->first};
    zi_box_range common;
    while (checkpoint_joined_next_range(read, &walk, UINT64_MAX, &common)) {
        const uint64_t at = common.wanted - read->first;
        const unsigned char *held = checkpoint_joined_target_of(read, &common);
        if (zi_dtype_is_code(dtype)) {
            ZI_TRY(take_scales(read, window, &common));
            widen_codes(values + at, held, dtype, common.saved, common.count, window);
        } else if (zi_dtype_is_remainder(dtype)) {
            zi_cpu_join(values + at, params + at, held, dtype, common.count);
        } else {
            zi_cpu_cast(values + at, ZERO_DTYPE_F32, held, dtype, common.count);
        }
    }
    return ZERO_OK;
}

/* A read whose values are no fp32 yet. */
static zero_status read_widened(const box_read *all)
{
    unsigned char *held = all->joined->staging + SPAN_BYTES;
    uint16_t *with = (uint16_t *)(void *)(held + WIDENED_BYTES);
    const zero_role companion = joined_with(all->role, all->codec.dtype);
    scale_window window = {.scales = with};
    if (!find_saved(all, &window.wanted)) {
        return ZERO_OK;
    }
    for (uint64_t at = all->first; at < all->end; at += WIDENED_COUNT) {
        box_read read = *all;
        read.first = at;
        read.end = zi_min_u64(at + WIDENED_COUNT, all->end);
        read.values = held;
        ZI_TRY(checkpoint_joined_read_box(&read));
        if (companion == ZERO_ROLE_PARAM && all->role != ZERO_ROLE_PARAM) {
            box_read params = read;
            params.role = companion;
            params.codec = (zi_codec){ZERO_DTYPE_BF16, false};
            params.values = (unsigned char *)with;
            ZI_TRY(checkpoint_joined_read_box(&params));
        }
        float *values = (float *)all->values + (at - all->first);
        ZI_TRY(widen_ranges(&read, values, with, &window));
    }
    return ZERO_OK;
}

/* ---- all boxes ---- */

zero_status zi_joined_read(const zi_joined *joined, uint64_t first, uint64_t count, bool counted,
                           void *values)
{
    for (uint32_t t = joined->head; t != UINT32_MAX && count != 0;
         t = zi_source_next(joined->source, t)) {
        const zi_joined_from from = joined->from(saved_at(joined, t), joined->user);
        box_read read = read_of(joined, t, from.role);
        read.first = first;
        read.end = first + count;
        read.counted = counted;
        read.values = values;
        if (read.cut.ranges != 0) {
            ZI_TRY(from.widened && read.codec.dtype != ZERO_DTYPE_F32
                       ? read_widened(&read)
                       : checkpoint_joined_read_box(&read));
        }
    }
    return ZERO_OK;
}

/* Check what a read wants of a saved box, in whole granules. */
static zero_status check_saved(const box_read *read, zero_role role)
{
    range_span span;
    if (!find_saved(read, &span)) {
        return ZERO_OK;
    }
    span.first -= span.first % ZI_GRANULE;
    const zi_source_range range = {.tensor = read->tensor,
                                   .role = role,
                                   .first = span.first,
                                   .count = zi_min_u64(up(span.end), read->saved) - span.first};
    return zi_source_check_range(read->joined->source, &range, NULL, NULL);
}

zero_status zi_joined_check(const zi_joined *joined, uint64_t first, uint64_t count)
{
    for (uint32_t t = joined->head; t != UINT32_MAX && count != 0;
         t = zi_source_next(joined->source, t)) {
        const zi_joined_from from = joined->from(saved_at(joined, t), joined->user);
        box_read read = read_of(joined, t, from.role);
        read.first = first;
        read.end = first + count;
        const zero_role companion = joined_with(from.role, read.codec.dtype);
        ZI_TRY(check_saved(&read, from.role));
        ZI_TRY(from.widened && companion != from.role ? check_saved(&read, companion) : ZERO_OK);
    }
    return ZERO_OK;
}
