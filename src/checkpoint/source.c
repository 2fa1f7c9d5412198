/* Owns what is known of elements that a source gives: which sum they must have. Invariant: nothing
 * is given to a caller that differs from a sum which the call could compare. */
#include "checkpoint/source.h"

#include <errno.h>
#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

#define SUMS_AT_ONCE 512
/* Of checking: at least the longest piece. */
#define CHECK_BYTES ZI_SOURCE_READ_BYTES_MAX

/* Sums that were read last. */
typedef struct sum_window {
    uint64_t first;
    uint64_t count;
    uint64_t sum[SUMS_AT_ONCE];
} sum_window;

/* ---- open ---- */

zero_status zi_source_open(zi_source *source)
{
    zi_box_conflict conflict;
    (void)pthread_mutex_init(&source->mutex, NULL);
    ZI_TRY(zi_box_index_make(&source->by_name, source->map, &conflict));
    if (source->manifest == NULL && conflict.fault != ZI_BOX_SOUND) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "two files have the tensor \"%.127s\"",
                source->map->tensors[conflict.other].name);
    }
    return zi_box_refuse(source->map, &conflict, source->name);
}

void zi_source_close(zi_source *source)
{
    if (source == NULL) {
        return;
    }
    zi_box_index_free(&source->by_name);
    zi_pages_free(source->check_buffer, CHECK_BYTES + ZI_CHECKPOINT_ALIGN);
    (void)pthread_mutex_destroy(&source->mutex);
    source->ops->close(source);
}

uint32_t zi_source_find(const zi_source *source, const char *name)
{
    return zi_box_index_find(&source->by_name, name);
}

uint32_t zi_source_next(const zi_source *source, uint32_t tensor)
{
    return source->by_name.next[tensor];
}

zi_source_counts zi_source_count(const zi_source *source)
{
    return source->counts;
}

zero_status zi_source_check_files(zi_source *source)
{
    return source->ops->check_files != NULL ? source->ops->check_files(source) : ZERO_OK;
}

/* ---- sums ---- */

/* The sum of a piece; up to `end` they will be asked for in turn, with the same window. */
static zero_status source_sum_of(zi_source *source, sum_window *window, uint64_t piece,
                                 uint64_t end, uint64_t *sum)
{
    if (piece < window->first || piece >= window->first + window->count) {
        const uint64_t count = zi_min_u64(end - piece, SUMS_AT_ONCE);
        window->count = 0;
        ZI_TRY(source->ops->read_sums(source, piece, count, window->sum));
        window->first = piece;
        window->count = count;
    }
    *sum = window->sum[piece - window->first];
    return ZERO_OK;
}

/* So that what one piece has too much does not make up for what another lacks. */
static uint64_t weight_of(uint64_t piece)
{
    uint64_t z = (piece + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return (z ^ z >> 27) | 1;
}

static zero_status refuse_piece(const zi_source *source, const zi_checkpoint_tensor *t,
                                zero_role role, zi_checkpoint_piece piece)
{
    const zi_checkpoint_place *place = &t->role[role];
    ZI_FAIL(ZERO_ERR_CORRUPT,
            "%s, tensor \"%.60s\": elements [%" PRIu64 ", %" PRIu64 ") at byte %" PRIu64
            " differ from their sum; in %.60s",
            source->map->files[place->file].name, t->name, piece.first, piece.first + piece.count,
            place->at + zi_saved_bytes(t, role, piece.first), source->name);
}

/* The sums that a read compares with, up to `end`. */
typedef struct range_sums {
    uint64_t end;
    sum_window window;
} range_sums;

/* Compare or count elements [first, first + count) of one piece. */
static zero_status add_piece(zi_source *source, const zi_source_range *range,
                             zi_checkpoint_piece piece, range_sums *sums,
                             const unsigned char *values)
{
    const zi_checkpoint_tensor *t = &source->map->tensors[range->tensor];
    const zi_checkpoint_place *place = &t->role[range->role];
    const uint64_t first = zi_max_u64(range->first, piece.first);
    const uint64_t count =
        zi_min_u64(range->first + range->count, piece.first + piece.count) - first;
    const bool whole = count == piece.count;
    uint64_t expected = 0;
    if (!whole && !range->counted) {
        return ZERO_OK;
    }
    if (first == piece.first) {
        ZI_TRY(source_sum_of(source, &sums->window, place->first_piece + piece.index, sums->end,
                             &expected));
    }
    const uint64_t found = zi_piece_sum(values, first, count, zi_saved_codec(t, range->role));
    if (whole && found != expected) {
        return refuse_piece(source, t, range->role, piece);
    }
    const uint64_t weight = weight_of(place->first_piece + piece.index);
    (void)pthread_mutex_lock(&source->mutex);
    source->counts.balance += (found - expected) * weight;
    source->counts.coverage += (count - (first == piece.first ? piece.count : 0)) * weight;
    (void)pthread_mutex_unlock(&source->mutex);
    return ZERO_OK;
}

static zero_status add_pieces(zi_source *source, const zi_source_range *range,
                              const unsigned char *values)
{
    const zi_checkpoint_tensor *t = &source->map->tensors[range->tensor];
    const uint64_t end = range->first + range->count;
    range_sums sums = {.end = t->role[range->role].first_piece +
                              zi_checkpoint_piece_at(t, end - 1).index + 1};
    for (uint64_t at = range->first; at < end;) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(t, at);
        ZI_TRY(add_piece(source, range, piece, &sums,
                         values + zi_saved_bytes(t, range->role, at - range->first)));
        at = piece.first + piece.count;
    }
    return ZERO_OK;
}

/* ---- ranges ---- */

static void assert_range(const zi_source *source, const zi_source_range *range)
{
    zi_assert_cmp(range->tensor, <, source->map->tensor_count);
    zi_assert_cmp(range->role, <, ZI_SHARD_ROLES);
    const zi_checkpoint_tensor *t = &source->map->tensors[range->tensor];
    zi_assert_cmp(zero_dtype_bytes(t->role[range->role].dtype), >, 0);
    zi_assert_cmp(range->first, <=, t->count);
    zi_assert_cmp(range->count, <=, t->count - range->first);
    const uint64_t end = range->first + range->count;
    const bool counted = range->counted && source->manifest != NULL;
    const uint64_t whole = counted                          ? ZI_GRANULE
                           : zi_role_is_scales(range->role) ? ZERO_CODE_BLOCK
                                                            : 1;
    zi_assert_cmp(range->first % whole, ==, 0);
    zi_assert(end % whole == 0 || end == t->count);
}

uint64_t zi_source_page_offset(const zi_source *source, const zi_source_range *range)
{
    return source->ops->page_offset != NULL ? source->ops->page_offset(source, range) : 0;
}

zero_status zi_source_read(zi_source *source, const zi_source_range *range, void *values)
{
    assert_range(source, range);
    const zi_checkpoint_tensor *t = &source->map->tensors[range->tensor];
    if (zi_saved_bytes(t, range->role, range->count) > ZI_SOURCE_READ_BYTES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%" PRIu64 " elements are more than the 8 MiB of one read", range->count);
    }
    if (range->count == 0) {
        return ZERO_OK;
    }
    ZI_TRY(source->ops->read(source, range, values));
    return source->manifest != NULL ? add_pieces(source, range, values) : ZERO_OK;
}

bool zi_source_share(zi_source *source, const zi_source_range *range, int file, uint64_t at)
{
    assert_range(source, range);
    if (source->ops->share == NULL) {
        errno = EOPNOTSUPP;
        return false;
    }
    return source->ops->share(source, range, file, at);
}

zero_status zi_source_add_range(zi_source *source, const zi_source_range *range, const void *values)
{
    assert_range(source, range);
    zi_assert(source->manifest != NULL && range->counted);
    return add_pieces(source, range, values);
}

/* Pieces from the one that has `element` on, as many as fit into the buffer. */
static uint64_t count_to_check(const zi_checkpoint_tensor *t, zero_role role, uint64_t first,
                               uint64_t end)
{
    uint64_t at = first;
    while (at < end) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(t, at);
        if (zi_saved_bytes(t, role, piece.first + piece.count - first) > CHECK_BYTES) {
            break;
        }
        at = piece.first + piece.count;
    }
    return at - first;
}

zero_status zi_source_check_range(zi_source *source, const zi_source_range *range,
                                  void (*progress)(void *user, uint64_t bytes), void *user)
{
    assert_range(source, range);
    const zi_checkpoint_tensor *t = &source->map->tensors[range->tensor];
    const uint64_t end = range->first + range->count;
    if (source->manifest == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s has no sums to compare with",
                source->map->files[t->role[range->role].file].name);
    }
    if (source->check_buffer == NULL) {
        ZI_TRY(zi_pages_alloc(CHECK_BYTES + ZI_CHECKPOINT_ALIGN, &source->check_buffer));
    }
    zi_source_range checked = {
        .tensor = range->tensor, .role = range->role, .direct = range->direct};
    for (uint64_t at = range->first; at < end; at = checked.first + checked.count) {
        checked.first = zi_checkpoint_piece_at(t, at).first;
        checked.count = count_to_check(t, range->role, checked.first, end);
        ZI_TRY(zi_source_read(source, &checked,
                              (unsigned char *)source->check_buffer +
                                  zi_source_page_offset(source, &checked)));
        if (progress != NULL) {
            progress(user, zi_saved_bytes(t, range->role, checked.count));
        }
    }
    return ZERO_OK;
}

zero_status zi_source_tensor_sum(zi_source *source, uint32_t tensor, zero_role role, uint64_t *sum)
{
    const zi_checkpoint_tensor *t = &source->map->tensors[tensor];
    const uint64_t first = t->role[role].first_piece;
    const uint64_t end = first + zi_checkpoint_piece_count(t);
    sum_window window = {.count = 0};
    *sum = 0;
    for (uint64_t piece = first; piece < end; piece++) {
        uint64_t one = 0;
        ZI_TRY(source_sum_of(source, &window, piece, end, &one));
        *sum += one;
    }
    return ZERO_OK;
}
