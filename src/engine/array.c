/* Owns whole tensors between shards and the caller's arrays or functions: initial values, import
 * and export. Invariant: values pass through a staging buffer of fixed size, whatever a tensor's
 * size. */
#include <inttypes.h>
#include <string.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "engine/array.h"
#include "engine/given.h"
#include "engine/guard.h"
#include "engine/overflow.h"
#include "engine/replicas.h"
#include "engine/shard.h"
#include "engine/state_values.h"
#include "kernels/math/convert.h"
#include "layout/sharding.h"
#include "zero/evict.h"
#include "zero/shard.h"

/* Elements that pass through the staging buffer at a time, and its bytes. */
#define STAGED_COUNT ((uint64_t)65536)
#define STAGED_BYTES (STAGED_COUNT * sizeof(float))

/* ---- strides ---- */

/* An array of a tensor. Neighbouring dimensions whose elements are contiguous are merged. */
typedef struct array_walk {
    unsigned char *data;
    size_t size; /* of an element */
    uint32_t dims;
    uint64_t extents[ZERO_TENSOR_DIMS_MAX];
    uint64_t strides[ZERO_TENSOR_DIMS_MAX]; /* elements */
} array_walk;

static array_walk walk_over(const zero_tensor_desc *desc, const zero_array *array)
{
    array_walk walk = {.data = array->data,
                       .size = zero_dtype_bytes(array->dtype),
                       .extents = {1},
                       .strides = {1}};
    for (uint32_t i = 0; i < desc->dims; i++) {
        uint32_t last = walk.dims - 1;
        if (desc->shape[i] == 1) {
            continue;
        }
        if (walk.dims != 0 && walk.strides[last] == array->strides[i] * desc->shape[i]) {
            walk.extents[last] *= desc->shape[i];
        } else {
            last = walk.dims++;
            walk.extents[last] = desc->shape[i];
        }
        walk.strides[last] = array->strides[i];
    }
    walk.dims = walk.dims != 0 ? walk.dims : 1; /* one element */
    return walk;
}

static void copy_strided(unsigned char *to, size_t to_step, const unsigned char *from,
                         size_t from_step, uint64_t count, size_t size)
{
    if (to_step == size && from_step == size) {
        memcpy(to, from, count * size);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        memcpy(to + i * to_step, from + i * from_step, size);
    }
}

/* Elements [first, first + count) of the tensor between the array and a staging buffer. */
static void walk_copy(const array_walk *walk, uint64_t first, uint64_t count, void *staging,
                      bool into_array)
{
    const uint32_t inner = walk->dims - 1;
    const size_t step = walk->strides[inner] * walk->size;
    unsigned char *buffer = staging;
    while (count > 0) {
        uint64_t left = first;
        uint64_t at = 0;
        for (uint32_t i = walk->dims; i-- > 0;) {
            at += left % walk->extents[i] * walk->strides[i];
            left /= walk->extents[i];
        }
        const uint64_t row = zi_min_u64(count, walk->extents[inner] - first % walk->extents[inner]);
        unsigned char *place = walk->data + at * walk->size;
        if (into_array) {
            copy_strided(place, step, buffer, walk->size, row, walk->size);
        } else {
            copy_strided(buffer, walk->size, place, step, row, walk->size);
        }
        buffer += row * walk->size;
        first += row;
        count -= row;
    }
}

/* ---- in ---- */

/* The source of values for shards: an array, or a function where fn is not NULL. */
typedef struct value_source {
    array_walk walk;
    zero_dtype dtype;
    zero_fill_fn fn;
    void *user;
} value_source;

/* Elements [first, first + count) of a tensor, of the source's type. */
static void take_values(const value_source *source, uint32_t tensor, uint64_t first, uint64_t count,
                        void *staging)
{
    if (source->fn != NULL) {
        source->fn(source->user, tensor, first, count, staging);
    } else {
        walk_copy(&source->walk, first, count, staging, false);
    }
}

/* A running fill or import. */
typedef struct fill_job {
    zero_engine *engine;
    float *staging; /* STAGED_BYTES of host memory that the device reaches */
    bool by_slice;  /* all ranks take part: each counts the elements of its slice */
    engine_overflow overflow;
} fill_job;

/* This rank's elements of the tensor in a role := those of values that are among them. */
static zero_status put_values(fill_job *job, zero_role role, const engine_values *given)
{
    zero_engine *engine = job->engine;
    const engine_shard shard = zi_engine_shard(engine, given->tensor, role);
    const uint64_t first = zi_max_u64(given->first, shard.tensor_first);
    const uint64_t end = zi_min_u64(given->first + given->count, shard.tensor_first + shard.count);
    if (first >= end) {
        return ZERO_OK;
    }
    unsigned char *values =
        (unsigned char *)job->staging + (first - given->first) * zero_dtype_bytes(given->from);
    const engine_values own = {.values = values,
                               .from = given->from,
                               .to = shard.dtype,
                               .tensor = given->tensor,
                               .first = first,
                               .count = end - first};
    zi_engine_count_overflow(engine, &job->overflow, &own, job->by_slice);
    return zi_values_fill(engine, &shard, first - shard.tensor_first, end - first, values,
                          given->from);
}

/* Values := themselves in fp32, which has every value of the other types. The staging buffer has
 * room for them. */
static void widen(float *values, zero_dtype dtype, uint64_t count)
{
    const uint16_t *halves = (const uint16_t *)(const void *)values;
    for (uint64_t i = count; i-- > 0 && dtype != ZERO_DTYPE_F32;) {
        values[i] =
            dtype == ZERO_DTYPE_BF16 ? zi_f32_from_bf16(halves[i]) : zi_f32_from_f16(halves[i]);
    }
}

/* This rank's shard of a tensor := the source's values. Scales are made of fp32, so that bf16 are
 * not taken for scales. */
static zero_status fill_shard(fill_job *job, uint32_t tensor, zero_role role,
                              const value_source *source)
{
    const engine_shard shard = zi_engine_shard(job->engine, tensor, role);
    for (uint64_t done = 0; done < shard.count; done += STAGED_COUNT) {
        engine_values values = {.from = source->dtype,
                                .tensor = tensor,
                                .first = shard.tensor_first + done,
                                .count = zi_min_u64(STAGED_COUNT, shard.count - done)};
        take_values(source, tensor, values.first, values.count, job->staging);
        if (zi_role_is_scales(role)) {
            widen(job->staging, source->dtype, values.count);
            values.from = ZERO_DTYPE_F32;
        }
        ZI_TRY(put_values(job, role, &values));
    }
    return ZERO_OK;
}

/* A hash of the source's values of a tensor, never 0. */
static uint64_t hash_source(const zero_engine *engine, uint32_t tensor, const value_source *source)
{
    const uint64_t count = engine->layout->tensor_infos[tensor].count;
    float values[SAMPLE_RANGE];
    uint64_t hash = ZI_HASH_START;
    engine_sample sample = zi_engine_sample_at(count, 0);
    for (uint64_t i = 1; sample.count != 0; i++) {
        take_values(source, tensor, sample.first, sample.count, values);
        widen(values, source->dtype, sample.count);
        hash = zi_engine_hash_values(hash, values, sample.count);
        sample = zi_engine_sample_at(count, i);
    }
    return hash | 1;
}

static void array_describe(const zero_engine *engine, uint32_t tensor, zero_tensor_desc *desc)
{
    const zi_layout *layout = engine->layout;
    zi_tensor_describe(&layout->tensor_infos[tensor], layout->tensor_extras, desc);
}

/* Find the source of a tensor's initial values: the function, or where fn is NULL its `initial`
 * array. False: there is none. */
static bool find_source(const zero_engine *engine, uint32_t tensor, zero_fill_fn fn, void *user,
                        value_source *source)
{
    zero_tensor_desc desc;
    array_describe(engine, tensor, &desc);
    *source = (value_source){.dtype = ZERO_DTYPE_F32, .fn = fn, .user = user};
    if (fn == NULL && desc.initial.data != NULL) {
        source->walk = walk_over(&desc, &desc.initial);
        source->dtype = desc.initial.dtype;
    }
    return fn != NULL || desc.initial.data != NULL;
}

/* This rank's elements of a tensor's parameter and its master := the source's values, each of which
 * is asked for once: the ranges of both begin or end alike, or one is within the other. */
static zero_status fill_tensor(fill_job *job, uint32_t tensor, const value_source *source)
{
    static const zero_role roles[] = {ZERO_ROLE_PARAM, ZERO_ROLE_MASTER};
    uint64_t first = UINT64_MAX;
    uint64_t end = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const engine_shard shard = zi_engine_shard(job->engine, tensor, roles[i]);
        if (shard.count != 0) {
            first = zi_min_u64(first, shard.tensor_first);
            end = zi_max_u64(end, shard.tensor_first + shard.count);
        }
    }
    for (engine_values values = {.from = source->dtype, .tensor = tensor}; first < end;
         first += values.count) {
        values.first = first;
        values.count = zi_min_u64(STAGED_COUNT, end - first);
        take_values(source, tensor, first, values.count, job->staging);
        ZI_TRY(put_values(job, ZERO_ROLE_PARAM, &values));
        ZI_TRY(put_values(job, ZERO_ROLE_MASTER, &values));
    }
    return ZERO_OK;
}

/* Fill parameters and masters of all tensors, each rank from its own source. */
static zero_status fill_tensors(fill_job *job, zero_fill_fn fn, void *user)
{
    for (uint32_t t = 0; t < job->engine->layout->tensor_count; t++) {
        value_source source;
        if (find_source(job->engine, t, fn, user, &source)) {
            ZI_TRY(fill_tensor(job, t, &source));
        }
    }
    return ZERO_OK;
}

/* hashes: by tensor, of what this rank fills from; 0: nothing. */
static void hash_sources(const zero_engine *engine, zero_fill_fn fn, void *user, uint64_t *hashes)
{
    for (uint32_t t = 0; t < engine->layout->tensor_count; t++) {
        value_source source;
        const bool found = find_source(engine, t, fn, user, &source);
        hashes[t] = found ? hash_source(engine, t, &source) : 0;
    }
}

/* ---- rank 0's values on all ranks ---- */

/* Of a tensor's values so many at a time: two floats for each take the other half of the staging
 * buffer. */
#define BROADCAST_COUNT (STAGED_COUNT / 4)
/* Tensors whose bits ranks exchange at a time. */
#define BROADCAST_WORDS 32
#define BROADCAST_TENSORS (BROADCAST_WORDS * 64)

/* Values := rank 0's, with their bits: 16 bits at a time are whole numbers, to which the other
 * ranks add zeros. halves: room for twice as many. */
static zero_status broadcast_values(zero_engine *engine, uint32_t tensor, float *values,
                                    float *halves, uint64_t count)
{
    zero_world *world = engine->world;
    const bool is_root = zero_world_rank(world) == 0;
    zi_stream *host = NULL;
    ZI_TRY(world->device.ops->stream_wrap(world->device.self, zero_stream_host(), &host));
    for (uint64_t i = 0; i < count && is_root; i++) {
        const uint32_t bits = zi_f32_bits(values[i]);
        halves[2 * i] = (float)(bits >> 16);
        halves[2 * i + 1] = (float)(bits & UINT32_C(0xffff));
    }
    const zi_collective sum = {.kind = ZI_ALL_REDUCE,
                               .flags = ZI_COLLECTIVE_EXACT,
                               .send_dtype = ZERO_DTYPE_F32,
                               .recv_dtype = ZERO_DTYPE_F32,
                               .tag = engine->layout->tensor_infos[tensor].unit,
                               .count = 2 * count,
                               .send = is_root ? halves : NULL,
                               .recv = halves};
    ZI_TRY(zi_group_submit(world->coordination, host, &sum, 1));
    for (uint64_t i = 0; i < count; i++) {
        values[i] = zi_f32_from_bits((uint32_t)halves[2 * i] << 16 | (uint32_t)halves[2 * i + 1]);
    }
    return ZERO_OK;
}

/* source: rank 0's; the others read none. */
static zero_status broadcast_tensor(fill_job *job, uint32_t tensor, const value_source *source)
{
    zero_engine *engine = job->engine;
    const uint64_t all = engine->layout->tensor_infos[tensor].count;
    for (uint64_t first = 0; first < all; first += BROADCAST_COUNT) {
        const engine_values values = {.from = ZERO_DTYPE_F32,
                                      .tensor = tensor,
                                      .first = first,
                                      .count = zi_min_u64(BROADCAST_COUNT, all - first)};
        if (zero_world_rank(engine->world) == 0) {
            take_values(source, tensor, first, values.count, job->staging);
            widen(job->staging, source->dtype, values.count);
        }
        ZI_TRY(broadcast_values(engine, tensor, job->staging, job->staging + STAGED_COUNT / 2,
                                values.count));
        ZI_TRY(put_values(job, ZERO_ROLE_PARAM, &values));
        ZI_TRY(put_values(job, ZERO_ROLE_MASTER, &values));
    }
    return ZERO_OK;
}

/* Fill the tensors that rank 0 has values of. */
static zero_status broadcast_tensors(fill_job *job, zero_fill_fn fn, void *user)
{
    zero_engine *engine = job->engine;
    const uint32_t count = engine->layout->tensor_count;
    for (uint32_t first = 0; first < count; first += BROADCAST_TENSORS) {
        const uint32_t end = (uint32_t)zi_min_u64(count, (uint64_t)first + BROADCAST_TENSORS);
        uint64_t words[BROADCAST_WORDS] = {0};
        value_source source;
        for (uint32_t t = first; t < end; t++) {
            const uint64_t found = find_source(engine, t, fn, user, &source);
            words[(t - first) / 64] |= found << (t - first) % 64;
        }
        ZI_TRY(zi_world_gather(engine->world, words, engine->agreement, sizeof words));
        memcpy(words, engine->agreement, sizeof words);
        for (uint32_t t = first; t < end; t++) {
            if ((words[(t - first) / 64] >> (t - first) % 64 & 1) != 0) {
                (void)find_source(engine, t, fn, user, &source);
                ZI_TRY(broadcast_tensor(job, t, &source));
            }
        }
    }
    return ZERO_OK;
}

/* ---- fills ---- */

static bool broadcasts(const zero_engine *engine)
{
    return engine->layout->tuning.broadcast_initial != 0 && zero_world_size(engine->world) > 1;
}

void zi_engine_close_fill(zero_engine *engine)
{
    if (engine->fill_staging != NULL) {
        engine->device->ops->host_free(engine->device->self, engine->fill_staging, STAGED_BYTES);
        engine->fill_staging = NULL;
    }
    zi_free(engine->fill_hashes);
    engine->fill_hashes = NULL;
}

/* name: of the call, for warnings. */
static zero_status fill_all(zero_engine *engine, zero_fill_fn fn, void *user, const char *name)
{
    const zi_device *device = engine->device;
    fill_job job = {.engine = engine, .by_slice = true};
    ZI_TRY(device->ops->host_alloc(device->self, STAGED_BYTES, &engine->fill_staging));
    job.staging = engine->fill_staging;
    const zero_status status =
        broadcasts(engine) ? broadcast_tensors(&job, fn, user) : fill_tensors(&job, fn, user);
    zi_engine_close_fill(engine);
    ZI_TRY(status);
    ZI_TRY(zi_engine_flush_shards(engine));
    ZI_TRY(zi_engine_join_overflow(engine, &job.overflow));
    if (zero_world_rank(engine->world) == 0) {
        zi_engine_warn_overflow(engine, &job.overflow, name);
    }
    return ZERO_OK;
}

static bool has_initial(const zero_engine *engine)
{
    bool found = false;
    for (uint32_t t = 0; t < engine->layout->tensor_count && !found; t++) {
        found = engine->layout->tensor_infos[t].initial != NULL;
    }
    return found;
}

#define FILLED (ZERO_ROLE_BIT(ZERO_ROLE_PARAM) | ZERO_ROLE_BIT(ZERO_ROLE_MASTER))

zero_status zi_engine_compare_initial(zero_engine *engine)
{
    if (engine->given == NULL || broadcasts(engine)) {
        return ZERO_OK;
    }
    hash_sources(engine, NULL, NULL, engine->given);
    ZI_TRY(zi_engine_compare_given(engine, engine->given, ZERO_ERR_MISMATCH));
    memset(engine->given, 0, engine->layout->tensor_count * sizeof *engine->given);
    return ZERO_OK;
}

zero_status zi_engine_take_initial(zero_engine *engine)
{
    zi_engine_touch(engine, has_initial(engine) ? FILLED : 0);
    return fill_all(engine, NULL, NULL, "zero_engine_create");
}

/* Ranks compare what they fill from, before anything is filled. */
static zero_status compare_sources(zero_engine *engine, zero_fill_fn fn, void *user)
{
    if (zero_world_size(engine->world) == 1 || broadcasts(engine)) {
        return ZERO_OK;
    }
    uint64_t **hashes = &engine->fill_hashes;
    ZI_TRY(zi_calloc(engine->layout->tensor_count, sizeof **hashes, (void **)hashes));
    hash_sources(engine, fn, user, *hashes);
    return zi_engine_compare_given(engine, *hashes, ZERO_ERR_INVALID_ARGUMENT);
}

static zero_status array_fill(zero_engine *engine, zero_fill_fn fn, void *user)
{
    if (fn == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "fn is NULL; pass a function that gives initial values");
    }
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_FILL, "zero_engine_fill"));
    ZI_TRY(compare_sources(engine, fn, user));
    ZI_TRY(zi_engine_await(engine, engine->stepped));
    /* Units that were gathered ahead hold old values, so they are invalidated. No rank gathers
     * again before all ranks have filled. */
    ZI_TRY(zi_params_refill_begin(engine->params));
    ZI_TRY(zi_world_barrier(engine->world));
    zi_engine_touch(engine, FILLED);
    ZI_TRY(fill_all(engine, fn, user, "zero_engine_fill"));
    return zi_world_barrier(engine->world);
}

zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fn, void *user)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_ENGINE_FILL);
    engine->filling = true;
    const zero_status status = array_fill(engine, fn, user);
    engine->filling = false;
    zi_engine_close_fill(engine);
    return zi_engine_finish(engine, status);
}

/* ---- the caller's arrays ---- */

/* The role that holds what the caller asks for. INVALID_ARGUMENT where the tensor has no such role.
 */
static zero_status resolve_role(const zero_engine *engine, uint32_t tensor, zero_role *role)
{
    const zi_layout *layout = engine->layout;
    const zi_flat *flat = &layout->flats[layout->tensors[tensor].flat];
    ZI_TRY(zi_engine_check_role(*role));
    if (*role == ZERO_ROLE_MASTER && !flat->has_master) {
        *role = ZERO_ROLE_PARAM;
    }
    if (zi_role_is_scales(*role)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor %" PRIu32
                " \"%.60s\": %s are no array of its shape; %s has its values with "
                "them, and zero_shard_read the scales themselves",
                tensor, layout->tensor_infos[tensor].name, zero_role_name(*role),
                zero_role_name(zi_role_of_scales(*role)));
    }
    if (zi_codec_is_none(flat->kept[*role])) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor %" PRIu32 " \"%.60s\" has no %s", tensor,
                layout->tensor_infos[tensor].name, zero_role_name(*role));
    }
    return ZERO_OK;
}

/* A tensor, a role of it and the caller's array. */
typedef struct array_job {
    uint32_t tensor;
    zero_role role;
    bool wanted; /* there is an array */
    zero_dtype dtype;
    array_walk walk;
} array_job;

static zero_status array_make_job(const zero_engine *engine, uint32_t tensor, zero_role role,
                                  const zero_array *array, array_job *job)
{
    zero_tensor_desc desc;
    zero_array full;
    ZI_TRY(zi_engine_check_tensor(engine, tensor));
    *job = (array_job){.tensor = tensor, .role = role, .wanted = array != NULL};
    ZI_TRY(resolve_role(engine, tensor, &job->role));
    if (array == NULL) {
        return ZERO_OK;
    }
    array_describe(engine, tensor, &desc);
    ZI_TRY(zi_array_resolve(&desc, array, &full));
    if (full.data == NULL && engine->layout->tensor_infos[tensor].count != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor %" PRIu32 " \"%.60s\": array->data is NULL",
                tensor, desc.name);
    }
    job->dtype = full.dtype;
    job->walk = walk_over(&desc, &full);
    return ZERO_OK;
}

/* The role that has the rest of a role's values: a remainder's parameter and the other way round, a
 * moment's scales. The role itself: there is none. */
static zero_role role_with_rest(const zero_engine *engine, uint32_t tensor, zero_role role)
{
    const zi_layout *layout = engine->layout;
    const zi_codec *kept = layout->flats[layout->tensors[tensor].flat].kept;
    const bool remainder = zi_dtype_is_remainder(kept[ZERO_ROLE_MASTER].dtype);
    if (role == ZERO_ROLE_PARAM || role == ZERO_ROLE_MASTER) {
        const zero_role other = role == ZERO_ROLE_PARAM ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
        return remainder ? other : role;
    }
    return zi_dtype_is_code(kept[role].dtype) ? zi_role_scales(role) : role;
}

static zero_status admit_import(zero_engine *engine, uint32_t tensor, zero_role role)
{
    ZI_TRY(zi_engine_admit_role(engine, ZI_CALL_SHARD_WRITE, "zero_tensor_import", role));
    ZI_TRY(zi_engine_begin_transfer(engine, role, true));
    zi_engine_note_given(engine, tensor, role, 0);
    return ZERO_OK;
}

static zero_status import(zero_engine *engine, uint32_t tensor, zero_role role,
                          const zero_array *array)
{
    const zi_device *device = engine->device;
    array_job job;
    if (array == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "array is NULL; pass the one that holds the values");
    }
    ZI_TRY(array_make_job(engine, tensor, role, array, &job));
    const zero_role companion = role_with_rest(engine, tensor, job.role);
    ZI_TRY(admit_import(engine, tensor, job.role));
    if (companion != job.role) {
        ZI_TRY(admit_import(engine, tensor, companion));
    }
    const value_source source = {.walk = job.walk, .dtype = job.dtype};
    fill_job fill = {.engine = engine};
    zi_engine_note_given(engine, tensor, job.role, hash_source(engine, tensor, &source));
    ZI_TRY(device->ops->host_alloc(device->self, STAGED_BYTES, (void **)&fill.staging));
    zero_status status = fill_shard(&fill, tensor, job.role, &source);
    if (status == ZERO_OK && companion != job.role) {
        status = fill_shard(&fill, tensor, companion, &source);
    }
    device->ops->host_free(device->self, fill.staging, STAGED_BYTES);
    ZI_TRY(status);
    zi_engine_warn_overflow(engine, &fill.overflow, "zero_tensor_import");
    return zi_engine_flush_shards(engine);
}

zero_status zero_tensor_import(zero_engine *engine, uint32_t tensor, zero_role role,
                               const zero_array *array)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_TENSOR_IMPORT);
    return zi_engine_finish(engine, import(engine, tensor, role, array));
}

/* ---- out ---- */

/* Elements of all ranks in a round; of each rank at least one cache line. */
#define ROUND_COUNT ((uint64_t)262144)
#define SHARD_ELEMENTS_MIN ((uint64_t)16)

/* A running export: each round gathers the next elements of every rank's shard of the tensor. */
typedef struct export_rounds {
    zero_engine *engine;
    const array_job *job;
    engine_shard shard;      /* this rank's */
    zero_dtype dtype;        /* of the elements that ranks exchange */
    uint32_t degree;         /* shards */
    uint64_t longest;        /* elements of the largest */
    uint64_t shard_elements; /* elements of each in a round */
    uint32_t *members;       /* world ranks that hold the shards */
    unsigned char *own;      /* this rank's elements of a round */
    unsigned char *all; /* the elements of all ranks of the world; own, where nothing is split */
    unsigned char *rounded; /* elements of a shard in the array's type */
    engine_overflow overflow;
} export_rounds;

static void close_rounds(export_rounds *rounds)
{
    if (rounds->all != rounds->own) {
        zi_free(rounds->all);
    }
    zi_free(rounds->own);
    zi_free(rounds->members);
    zi_free(rounds->rounded);
}

static zero_status open_rounds(export_rounds *rounds)
{
    const zi_layout *layout = rounds->engine->layout;
    const uint32_t size = layout->world;
    rounds->dtype = zi_values_are_joined(&rounds->shard) ? ZERO_DTYPE_F32 : rounds->shard.dtype;
    const size_t bytes = zero_dtype_bytes(rounds->dtype);
    rounds->degree = zi_engine_degree(layout, rounds->job->tensor, rounds->job->role);
    for (uint32_t i = 0; i < rounds->degree; i++) {
        const engine_range range = zi_engine_range(layout, rounds->job->tensor, rounds->degree, i);
        rounds->longest = zi_max_u64(rounds->longest, range.count);
    }
    rounds->shard_elements =
        rounds->degree == 1 ? ROUND_COUNT : zi_max_u64(ROUND_COUNT / size, SHARD_ELEMENTS_MIN);
    rounds->shard_elements = zi_min_u64(rounds->shard_elements, rounds->longest);
    ZI_TRY(zi_calloc(rounds->shard_elements, bytes, (void **)&rounds->own));
    ZI_TRY(zi_calloc(rounds->shard_elements, sizeof(float), (void **)&rounds->rounded));
    ZI_TRY(zi_calloc(rounds->degree, sizeof *rounds->members, (void **)&rounds->members));
    zi_shard_members(zi_engine_sharding(layout, rounds->job->tensor),
                     zero_world_rank(rounds->engine->world), 1, rounds->degree, rounds->members);
    if (rounds->degree == 1) {
        rounds->all = rounds->own;
        return ZERO_OK;
    }
    return zi_calloc(rounds->shard_elements * size, bytes, (void **)&rounds->all);
}

/* Gather elements [done, done + shard_elements) of every rank's shard on all ranks. */
static zero_status gather_round(export_rounds *rounds, uint64_t done)
{
    zero_world *world = rounds->engine->world;
    const engine_shard *shard = &rounds->shard;
    zi_stream *host = NULL;
    if (done < shard->count) {
        const uint64_t count = zi_min_u64(rounds->shard_elements, shard->count - done);
        float *values = (float *)(void *)rounds->own;
        ZI_TRY(zi_values_are_joined(shard)
                   ? zi_values_read(rounds->engine, rounds->job->tensor, shard->role, done, count,
                                    values)
                   : zi_engine_shard_read(rounds->engine, shard, done, count, rounds->own));
    }
    if (rounds->degree == 1) {
        return ZERO_OK;
    }
    ZI_TRY(world->device.ops->stream_wrap(world->device.self, zero_stream_host(), &host));
    const zi_collective gather = {
        .kind = ZI_ALL_GATHER,
        .send_dtype = rounds->dtype,
        .recv_dtype = rounds->dtype,
        .tag = rounds->engine->layout->tensor_infos[rounds->job->tensor].unit,
        .count = rounds->shard_elements,
        .send = rounds->own,
        .recv = rounds->all};
    return zi_group_submit(world->coordination, host, &gather, 1);
}

/* Copy the round's elements of shard `index` into the caller's array. */
static zero_status write_shard(export_rounds *rounds, uint32_t index, uint64_t done)
{
    const zi_kernels *kernels = &rounds->engine->world->kernels; /* both are in host memory */
    const array_job *job = rounds->job;
    const engine_range range =
        zi_engine_range(rounds->engine->layout, job->tensor, rounds->degree, index);
    zi_stream *host = NULL;
    if (done >= range.count) {
        return ZERO_OK;
    }
    const uint64_t count = zi_min_u64(rounds->shard_elements, range.count - done);
    const uint64_t at = rounds->degree == 1 ? 0 : rounds->members[index] * rounds->shard_elements;
    const engine_values values = {.values = rounds->all + at * zero_dtype_bytes(rounds->dtype),
                                  .from = rounds->dtype,
                                  .to = job->dtype,
                                  .tensor = job->tensor,
                                  .first = range.first + done,
                                  .count = count};
    zi_engine_count_overflow(rounds->engine, &rounds->overflow, &values, false);
    ZI_TRY(kernels->device->ops->stream_wrap(kernels->device->self, zero_stream_host(), &host));
    ZI_TRY(kernels->ops->cast(kernels->self, host, rounds->rounded, job->dtype, values.values,
                              values.from, count));
    walk_copy(&job->walk, range.first + done, count, rounds->rounded, true);
    return ZERO_OK;
}

static zero_status export_rounds_run(export_rounds *rounds)
{
    for (uint64_t done = 0; done < rounds->longest; done += rounds->shard_elements) {
        ZI_TRY(gather_round(rounds, done));
        for (uint32_t i = 0; i < rounds->degree && rounds->job->wanted; i++) {
            ZI_TRY(write_shard(rounds, i, done));
        }
    }
    return ZERO_OK;
}

static zero_status export(zero_engine *engine, uint32_t tensor, zero_role role,
                          const zero_array *array)
{
    array_job job = {0};
    zero_status status = array_make_job(engine, tensor, role, array, &job);
    if (status == ZERO_OK) {
        status = zi_engine_admit_role(engine, ZI_CALL_SHARD_READ, "zero_tensor_export", job.role);
    }
    export_rounds rounds = {.engine = engine, .job = &job};
    if (status == ZERO_OK) {
        rounds.shard = zi_engine_shard(engine, tensor, job.role);
        status = open_rounds(&rounds);
    }
    const uint64_t hash = zi_hash_u64(zi_hash_u64(ZI_HASH_START, tensor), (uint64_t)job.role);
    status = zi_engine_agree_given(engine, engine->world, status, hash, "tensor or role to export");
    if (status == ZERO_OK) {
        status = zi_engine_begin_transfer(engine, job.role, false);
    }
    if (status == ZERO_OK) {
        status = export_rounds_run(&rounds);
        zi_engine_warn_overflow(engine, &rounds.overflow, "zero_tensor_export");
    }
    close_rounds(&rounds);
    return status;
}

zero_status zero_tensor_export(zero_engine *engine, uint32_t tensor, zero_role role,
                               const zero_array *array)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_TENSOR_EXPORT);
    return zi_engine_finish(engine, export(engine, tensor, role, array));
}
