/* Owns the reading of a load: which ranges of the files this rank needs, in their order, and the
 * threads that read them ahead, each a range at a time, and compare them with the sums. A range is
 * read to its place in the engine where that is host memory and of the type that is read, else
 * into a buffer. Invariants: each element of a role is counted by one rank, the one whose slice has
 * it; ranges are taken in their order, whatever the order in which they are read; nothing is read
 * before the first is asked for, since the engine must not change until all ranks can load. */
#include <pthread.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"
#include "engine/load.h"
#include "layout/sharding.h"

/* Reads under way: what keeps a disk busy without the page cache, which reads ahead by itself. */
#define THREADS 4
/* So that threads need not wait while ranges are taken. */
#define BUFFERS (THREADS + 2)
_Static_assert(THREADS <= ZI_SOURCE_READS_MAX, "reads of one source");

/* The position of the reader. */
typedef struct feed_position {
    uint32_t tensor;
    uint64_t at;   /* first element of the stride */
    uint32_t role; /* index of a saved role */
    uint64_t next; /* elements of the stride before this one have been read in the role */
} feed_position;

typedef struct load_feed {
    engine_load *load;
    pthread_t threads[THREADS];
    uint32_t thread_count;
    unsigned char *memory;  /* a page more than the buffers; NULL: all ranges are read in place */
    unsigned char *buffers; /* BUFFERS, end to end, from a page on */
    uint64_t buffer_bytes;  /* of one */
    unsigned char *staging; /* of short ranges: ZI_JOINED_STAGING_BYTES for each thread */
    pthread_mutex_t mutex;  /* guards what follows */
    /* A thread that sleeps is slow to wake up, above all in a virtual machine, so only those that
     * can go on are woken. */
    pthread_cond_t room;    /* a buffer is free, or no more ranges begin: for the threads */
    pthread_cond_t arrived; /* the next range is there, or none comes: for zi_load_next */
    feed_position position;
    load_range ranges[BUFFERS];
    bool read[BUFFERS]; /* the range is there */
    uint64_t begun;     /* ranges that threads have begun to read */
    uint64_t taken;     /* of these, given to zi_load_next's caller */
    uint64_t done;      /* of these, not needed any more */
    uint32_t readers;   /* threads that run, or did */
    bool wanted;        /* zi_load_next was called */
    bool over;          /* no more begin */
    zero_error error;   /* the first */
} load_feed;

/* True if this rank alone reads what is saved in a role, and for one role. What ranks of a host
 * read in turn comes from the disk once if it comes through the page cache. */
static bool reads_alone(const engine_load *load, uint32_t tensor, const load_source *source)
{
    const zi_layout *layout = load->engine->layout;
    const zi_checkpoint_map *map = load->source->map;
    const zi_checkpoint_tensor *saved = &map->tensors[load->found[tensor]];
    const zi_joined_from from = zi_load_from(saved, source);
    bool alone = !from.widened && zi_engine_degree(layout, tensor, source->role) == layout->world;
    for (uint32_t i = 0; i < ZI_SAVED_ROLES; i++) {
        load_source other = *source;
        other.role = zi_saved_role(i);
        alone = alone && (other.role == source->role ||
                          zi_load_dtype(load, tensor, other.role) == ZERO_DTYPE_NONE ||
                          zi_load_from(saved, &other).role != from.role);
    }
    return alone;
}

/* The elements of the stride that are to be read next in a role; false: none. They are all in this
 * rank's slice, or none of them is, and all are read alike. *counted: they are. */
static bool find_in_role(const engine_load *load, feed_position *p, load_range *range,
                         bool *counted)
{
    const zero_role role = zi_saved_role(p->role);
    const engine_shard shard = zi_engine_shard(load->engine, p->tensor, role);
    const engine_range slice = zi_engine_slice(load->engine, p->tensor);
    const uint64_t slice_end = slice.first + slice.count;
    const uint64_t first = zi_max_u64(zi_max_u64(p->at, p->next), shard.tensor_first);
    uint64_t end = zi_min_u64(p->at + LOAD_STRIDE, shard.tensor_first + shard.count);
    const bool inside = slice.first <= first && first < slice_end;
    load_source source;
    if (first >= end) {
        return false;
    }
    if (inside || first < slice.first) {
        end = zi_min_u64(end, inside ? slice_end : slice.first);
    }
    const zi_joined joined = zi_load_joined(load, p->tensor, load->found[p->tensor], role, &source);
    *range = (load_range){.tensor = p->tensor, .role = role, .first = first};
    range->count = zi_joined_alike(&joined, first, end, &range->codec);
    *counted = inside && load->source->manifest != NULL;
    p->next = first + range->count;
    return true;
}

/* True if the tensor has elements left from p->at on that are to be loaded. */
static bool has_stride(const engine_load *load, const feed_position *p)
{
    return load->found[p->tensor] != ZI_NO_INDEX &&
           p->at < load->engine->layout->tensor_infos[p->tensor].count;
}

/* Find the next run to read; false: there is none. */
static bool load_feed_find_next(const engine_load *load, feed_position *p, load_range *range,
                                bool *counted)
{
    for (; p->tensor < load->engine->layout->tensor_count; p->tensor++, p->at = 0) {
        for (; has_stride(load, p); p->at += LOAD_STRIDE, p->role = 0) {
            for (; p->role < ZI_SAVED_ROLES; p->role++, p->next = 0) {
                if (zi_load_dtype(load, p->tensor, zi_saved_role(p->role)) != ZERO_DTYPE_NONE &&
                    find_in_role(load, p, range, counted)) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* The saved boxes that a range is read from. source: kept by the caller. */
static zi_joined joined_of(const engine_load *load, const load_range *range, load_source *source)
{
    zi_joined joined =
        zi_load_joined(load, range->tensor, load->found[range->tensor], range->role, source);
    joined.direct = reads_alone(load, range->tensor, source);
    return joined;
}

/* A range's place in the engine; NULL: it is read into a buffer. Past the page cache it is read
 * only to memory that lies as the file does. page_offset: out; where in a page the range begins. */
static void *load_feed_in_place(const engine_load *load, const load_range *range,
                                uint64_t *page_offset)
{
    const engine_shard shard = zi_engine_shard(load->engine, range->tensor, range->role);
    void *place = zi_engine_shard_in_place(load->engine, &shard, range->first - shard.tensor_first);
    load_source source;
    const zi_joined joined = joined_of(load, range, &source);
    const uint64_t align = load->source->align;
    *page_offset = zi_joined_page_offset(&joined, range->first);
    const bool fits = !joined.direct || (uintptr_t)place % align == *page_offset % align;
    return zi_codec_same(range->codec, shard.codec) && fits ? place : NULL;
}

static void *load_feed_place_of(const load_feed *feed, const load_range *range, uint64_t buffer)
{
    uint64_t offset = 0;
    void *place = load_feed_in_place(feed->load, range, &offset);
    const bool whole =
        offset % zero_dtype_bytes(range->codec.dtype) == 0; /* not in all files of others */
    return place != NULL ? place
                         : feed->buffers + buffer * feed->buffer_bytes + (whole ? offset : 0);
}

/* With the mutex: no more ranges begin. */
static void end_feed(load_feed *feed)
{
    feed->over = true;
    (void)pthread_cond_broadcast(&feed->room);
    (void)pthread_cond_signal(&feed->arrived);
}

/* With the mutex: wait for a buffer, and what is to be read into it; false: there is no more, or
 * nobody wants it. */
static bool begin_range(load_feed *feed, bool *counted, uint64_t *buffer)
{
    load_range range;
    while ((!feed->wanted || feed->begun - feed->done == BUFFERS) && !feed->over) {
        (void)pthread_cond_wait(&feed->room, &feed->mutex);
    }
    if (feed->over || !load_feed_find_next(feed->load, &feed->position, &range, counted)) {
        end_feed(feed);
        return false;
    }
    *buffer = feed->begun++ % BUFFERS;
    range.values = load_feed_place_of(feed, &range, *buffer);
    feed->ranges[*buffer] = range;
    feed->read[*buffer] = false;
    return true;
}

static zero_status read_range(const engine_load *load, const load_range *range, bool counted,
                              unsigned char *staging)
{
    load_source source;
    zi_joined joined = joined_of(load, range, &source);
    joined.staging = staging;
    return zi_joined_read(&joined, range->first, range->count, counted, range->values);
}

static void *read_ahead(void *argument)
{
    load_feed *feed = argument;
    bool counted = false;
    uint64_t buffer = 0;
    (void)pthread_mutex_lock(&feed->mutex);
    unsigned char *staging = feed->staging + feed->readers++ * ZI_JOINED_STAGING_BYTES;
    while (begin_range(feed, &counted, &buffer)) {
        const load_range range = feed->ranges[buffer];
        (void)pthread_mutex_unlock(&feed->mutex);
        const zero_status status = read_range(feed->load, &range, counted, staging);
        (void)pthread_mutex_lock(&feed->mutex);
        feed->read[buffer] = status == ZERO_OK;
        if (status != ZERO_OK && feed->error.status == ZERO_OK) {
            feed->error = *zero_last_error();
            end_feed(feed);
        } else if (buffer == feed->taken % BUFFERS) {
            (void)pthread_cond_signal(&feed->arrived);
        }
    }
    (void)pthread_mutex_unlock(&feed->mutex);
    return NULL;
}

/* Bytes of the longest read and the page that it begins in, in whole pages: of a small state little
 * memory is touched. */
static uint64_t longest_read(const engine_load *load)
{
    uint64_t most = 1;
    for (uint32_t t = 0; t < load->engine->layout->tensor_count; t++) {
        for (uint32_t i = 0; i < ZI_SAVED_ROLES; i++) {
            most = zi_max_u64(most, zi_engine_shard(load->engine, t, zi_saved_role(i)).count);
        }
    }
    return zi_align_up(zi_min_u64(most, LOAD_STRIDE) * sizeof(float), ZI_CHECKPOINT_ALIGN) +
           ZI_CHECKPOINT_ALIGN;
}

/* True if any range is read into a buffer. Of state in host memory, saved as it is kept, none is.
 */
static bool needs_buffers(const engine_load *load)
{
    feed_position position = {0};
    load_range range;
    bool counted = false;
    uint64_t offset = 0;
    while (load_feed_find_next(load, &position, &range, &counted)) {
        if (load_feed_in_place(load, &range, &offset) == NULL) {
            return true;
        }
    }
    return false;
}

static uint64_t memory_bytes(const load_feed *feed)
{
    return BUFFERS * feed->buffer_bytes + ZI_CHECKPOINT_ALIGN;
}

zero_status zi_load_open_feed(engine_load *load)
{
    const zi_device *device = load->engine->device;
    load_feed *feed = NULL;
    ZI_TRY(zi_calloc(1, sizeof *feed, (void **)&feed));
    load->feed = feed;
    feed->load = load;
    (void)pthread_mutex_init(&feed->mutex, NULL);
    (void)pthread_cond_init(&feed->room, NULL);
    (void)pthread_cond_init(&feed->arrived, NULL);
    feed->buffer_bytes = longest_read(load);
    if (needs_buffers(load)) {
        ZI_TRY(device->ops->host_alloc(device->self, memory_bytes(feed), (void **)&feed->memory));
    }
    ZI_TRY(zi_calloc(THREADS, ZI_JOINED_STAGING_BYTES, (void **)&feed->staging));
    if (feed->memory != NULL) {
        feed->buffers = feed->memory + zi_align_up((uintptr_t)feed->memory, ZI_CHECKPOINT_ALIGN) -
                        (uintptr_t)feed->memory;
    }
    for (; feed->thread_count < THREADS; feed->thread_count++) {
        ZI_TRY(zi_thread_start(&feed->threads[feed->thread_count], read_ahead, feed));
    }
    return ZERO_OK;
}

zero_status zi_load_next(engine_load *load, const load_range **range)
{
    load_feed *feed = load->feed;
    (void)pthread_mutex_lock(&feed->mutex);
    feed->done = feed->taken;
    (void)(feed->wanted ? pthread_cond_signal(&feed->room) : pthread_cond_broadcast(&feed->room));
    feed->wanted = true;
    while (feed->error.status == ZERO_OK &&
           (feed->taken < feed->begun ? !feed->read[feed->taken % BUFFERS] : !feed->over)) {
        (void)pthread_cond_wait(&feed->arrived, &feed->mutex);
    }
    const zero_error error = feed->error;
    const bool found = error.status == ZERO_OK && feed->taken < feed->begun;
    *range = found ? &feed->ranges[feed->taken++ % BUFFERS] : NULL;
    (void)pthread_mutex_unlock(&feed->mutex);
    return error.status != ZERO_OK ? zi_error_adopt(&error) : ZERO_OK;
}

void zi_load_close_feed(engine_load *load)
{
    const zi_device *device = load->engine->device;
    load_feed *feed = load->feed;
    if (feed == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&feed->mutex);
    end_feed(feed);
    (void)pthread_mutex_unlock(&feed->mutex);
    for (uint32_t i = 0; i < feed->thread_count; i++) {
        (void)pthread_join(feed->threads[i], NULL);
    }
    if (feed->memory != NULL) {
        device->ops->host_free(device->self, feed->memory, memory_bytes(feed));
    }
    (void)pthread_cond_destroy(&feed->arrived);
    (void)pthread_cond_destroy(&feed->room);
    (void)pthread_mutex_destroy(&feed->mutex);
    zi_free(feed->staging);
    zi_free(feed);
    load->feed = NULL;
}
