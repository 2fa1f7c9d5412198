/* Owns the comparison of the values that a run begins with: those that ranks are given together,
 * those that local calls have written, and the bytes of shards that several ranks hold. Invariant:
 * all ranks draw the same conclusion, since each compares what all of them have sent. */
#include "engine/replicas.h"

#include <inttypes.h>
#include <string.h>

#include "core/checksum.h"
#include "core/codec.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "engine/given.h"
#include "engine/guard.h"
#include "engine/shard.h"
#include "layout/sharding.h"
#include "zero/evict.h"

/* Words that ranks exchange at a time. */
#define WORDS 32
/* Bytes of a shard that are hashed at a time. */
#define HASHED_BYTES ((uint64_t)256 << 10)

/* ---- hashes ---- */

static uint64_t hash_block(const void *data, uint64_t bytes)
{
    zi_checksum_fn ways[ZI_CHECKSUM_WAYS_MAX];
    return ways[zi_checksum_ways(ways) - 1](data, bytes);
}

engine_sample zi_engine_sample_at(uint64_t count, uint64_t index)
{
    const uint64_t ranges = SAMPLE_COUNT / SAMPLE_RANGE;
    const uint64_t all = zi_div_up(count, SAMPLE_RANGE);
    if (index >= zi_min_u64(all, ranges)) {
        return (engine_sample){0};
    }
    const uint64_t range = all <= ranges ? index : index * (all - 1) / (ranges - 1);
    const uint64_t first = range * SAMPLE_RANGE;
    return (engine_sample){first, zi_min_u64(SAMPLE_RANGE, count - first)};
}

uint64_t zi_engine_hash_values(uint64_t hash, const float *values, uint64_t count)
{
    return zi_hash_u64(hash, hash_block(values, count * sizeof *values));
}

/* This rank's shard of a tensor. staging: HASHED_BYTES of host memory that the device reaches. */
static zero_status hash_shard(zero_engine *engine, uint32_t tensor, zero_role role, void *staging,
                              uint64_t *hash)
{
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    *hash = ZI_HASH_START;
    for (uint64_t done = 0; done < shard.count;) {
        const uint64_t count =
            zi_min_u64(zi_codec_count_within(shard.codec, HASHED_BYTES), shard.count - done);
        const void *values = zi_engine_shard_in_place(engine, &shard, done);
        if (values == NULL) {
            ZI_TRY(zi_engine_shard_read(engine, &shard, done, count, staging));
            values = staging;
        }
        *hash = zi_hash_u64(*hash, hash_block(values, zi_codec_bytes(shard.codec, count)));
        done += count;
    }
    return ZERO_OK;
}

/* ---- what was given ---- */

/* Roles of a tensor in which this rank has elements. */
static uint64_t held_roles(const zero_engine *engine, uint32_t tensor)
{
    uint64_t roles = 0;
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        if (zi_engine_shard(engine, tensor, (zero_role)role).count != 0) {
            roles |= ZERO_ROLE_BIT(role);
        }
    }
    return roles;
}

static zero_status refuse_given(const zero_engine *engine, uint32_t tensor, uint32_t rank,
                                zero_status refusal)
{
    ZI_FAIL(refusal,
            "ranks 0 and %" PRIu32 " were given different initial values of tensor %" PRIu32
            " \"%.60s\"; seed every rank alike, or set tuning.broadcast_initial to begin with rank "
            "0's on all",
            rank, tensor, engine->layout->tensor_infos[tensor].name);
}

static uint64_t combine(const uint64_t *words, uint32_t count)
{
    return zi_hash_u64(ZI_HASH_START, hash_block(words, count * sizeof *words));
}

/* The first rank whose word is not rank 0's; the world's size where there is none. */
static uint32_t replicas_first_unlike(const zero_engine *engine, uint32_t words, uint32_t word)
{
    const uint32_t size = zero_world_size(engine->world);
    uint32_t rank = 1;
    while (rank < size &&
           engine->agreement[(size_t)rank * words + word] == engine->agreement[word]) {
        rank++;
    }
    return rank;
}

static zero_status replicas_gather(zero_engine *engine, const uint64_t *words, uint32_t count)
{
    return zi_world_gather(engine->world, words, engine->agreement,
                           count * (uint32_t)sizeof *words);
}

zero_status zi_engine_compare_given(zero_engine *engine, const uint64_t *hashes,
                                    zero_status refusal)
{
    const uint32_t count = engine->layout->tensor_count;
    const uint32_t size = zero_world_size(engine->world);
    const uint64_t combined = combine(hashes, count);
    ZI_TRY(replicas_gather(engine, &combined, 1));
    if (replicas_first_unlike(engine, 1, 0) == size) {
        return ZERO_OK;
    }
    for (uint32_t first = 0; first < count; first += WORDS) {
        const uint32_t words = (uint32_t)zi_min_u64(WORDS, count - first);
        ZI_TRY(replicas_gather(engine, hashes + first, words));
        for (uint32_t i = 0; i < words; i++) {
            const uint32_t rank = replicas_first_unlike(engine, words, i);
            if (rank < size) {
                return refuse_given(engine, first + i, rank, refusal);
            }
        }
    }
    ZI_FAIL(refusal, "ranks were given different initial values of some tensor");
}

/* ---- what local calls have written ---- */

static zero_status refuse_unwritten(const zero_engine *engine, uint32_t tensor, uint64_t roles,
                                    const uint32_t *ranks)
{
    ZI_FAIL(ZERO_ERR_MISMATCH,
            "rank %" PRIu32 " was given %s of tensor %" PRIu32 " \"%.60s\" and rank %" PRIu32
            " was not; call zero_tensor_import or zero_shard_write on every rank that has elements "
            "of the tensor",
            ranks[0], zero_role_name((zero_role)__builtin_ctzll(roles)), tensor,
            engine->layout->tensor_infos[tensor].name, ranks[1]);
}

/* Compare two ranks' words of a tensor, and the roles in which they have elements. */
static zero_status compare_tensor(const zero_engine *engine, uint32_t tensor,
                                  const uint64_t *words[2], const uint32_t ranks[2])
{
    for (int i = 0; i < 2; i++) {
        const uint64_t unwritten = words[i][0] & words[1 - i][1] & ~words[1 - i][0] & GIVEN_ROLES;
        const uint32_t pair[2] = {ranks[i], ranks[1 - i]};
        if (unwritten != 0) {
            return refuse_unwritten(engine, tensor, unwritten, pair);
        }
    }
    const uint64_t sums[2] = {words[0][0] >> GIVEN_ROLE_BITS, words[1][0] >> GIVEN_ROLE_BITS};
    if (sums[0] != 0 && sums[1] != 0 && sums[0] != sums[1]) {
        ZI_FAIL(ZERO_ERR_MISMATCH,
                "ranks %" PRIu32 " and %" PRIu32 " imported different values of tensor %" PRIu32
                " \"%.60s\"; import the same array on every rank",
                ranks[0], ranks[1], tensor, engine->layout->tensor_infos[tensor].name);
    }
    return ZERO_OK;
}

/* The first rank that has written a tensor; 0 where none has. */
static uint32_t first_writer(const zero_engine *engine, uint32_t words, uint32_t word)
{
    const uint32_t size = zero_world_size(engine->world);
    uint32_t rank = 0;
    while (rank < size && engine->agreement[(size_t)rank * words + word] == 0) {
        rank++;
    }
    return rank % size;
}

/* Each rank sends two words of a tensor: what was written, and where it has elements. */
static zero_status compare_written(zero_engine *engine)
{
    const uint32_t count = engine->layout->tensor_count;
    const uint32_t size = zero_world_size(engine->world);
    for (uint32_t first = 0; first < count; first += WORDS / 2) {
        const uint32_t tensors = (uint32_t)zi_min_u64(WORDS / 2, count - first);
        uint64_t own[WORDS];
        for (uint32_t i = 0; i < tensors; i++) {
            own[2 * i] = engine->given[first + i];
            own[2 * i + 1] = held_roles(engine, first + i);
        }
        ZI_TRY(replicas_gather(engine, own, 2 * tensors));
        for (uint32_t i = 0; i < tensors * size; i++) {
            const uint32_t at = 2 * (i % tensors);
            const uint32_t ranks[2] = {first_writer(engine, 2 * tensors, at), i / tensors};
            const uint64_t *words[2] = {engine->agreement + (size_t)ranks[0] * 2 * tensors + at,
                                        engine->agreement + (size_t)ranks[1] * 2 * tensors + at};
            ZI_TRY(compare_tensor(engine, first + i % tensors, words, ranks));
        }
    }
    return ZERO_OK;
}

/* ---- replicas ---- */

/* The ranks whose word is not that of the first rank with the same shard; false: there are none. */
static bool find_unlike(const zero_sharding *sharding, const uint64_t *agreement, uint32_t degree,
                        uint32_t words, uint32_t word, uint32_t ranks[2])
{
    for (uint32_t r = 1; r < sharding->world; r++) {
        const uint32_t index = zi_shard_index(sharding, r, degree);
        uint32_t first = 0;
        while (zi_shard_index(sharding, first, degree) != index) {
            first++;
        }
        if (agreement[(size_t)first * words + word] != agreement[(size_t)r * words + word]) {
            ranks[0] = first;
            ranks[1] = r;
            return true;
        }
    }
    return false;
}

/* Gather hashes of this rank's shards of tensors [first, first + count). */
static zero_status gather_shards(zero_engine *engine, zero_role role, void *staging, uint32_t first,
                                 uint32_t count)
{
    uint64_t own[WORDS];
    for (uint32_t i = 0; i < count; i++) {
        ZI_TRY(hash_shard(engine, first + i, role, staging, &own[i]));
    }
    return replicas_gather(engine, own, count);
}

/* The shards in a role of units that are split this way. */
static zero_status compare_role(zero_engine *engine, const zero_sharding *sharding, zero_role role,
                                void *staging)
{
    const zi_layout *layout = engine->layout;
    const uint32_t count = layout->tensor_count;
    const uint32_t degree = role == ZERO_ROLE_PARAM ? sharding->param : sharding->optimizer;
    uint64_t all = ZI_HASH_START;
    uint32_t ranks[2] = {0};
    for (uint32_t t = 0; t < count; t++) {
        uint64_t hash = 0;
        if (zi_engine_sharding(layout, t) == sharding) {
            ZI_TRY(hash_shard(engine, t, role, staging, &hash));
        }
        all = zi_hash_u64(all, hash);
    }
    ZI_TRY(replicas_gather(engine, &all, 1));
    if (!find_unlike(sharding, engine->agreement, degree, 1, 0, ranks)) {
        return ZERO_OK;
    }
    for (uint32_t first = 0; first < count; first += WORDS) {
        const uint32_t words = (uint32_t)zi_min_u64(WORDS, count - first);
        ZI_TRY(gather_shards(engine, role, staging, first, words));
        for (uint32_t i = 0; i < words; i++) {
            if (zi_engine_sharding(layout, first + i) == sharding &&
                find_unlike(sharding, engine->agreement, degree, words, i, ranks)) {
                ZI_FAIL(ZERO_ERR_MISMATCH,
                        "ranks %" PRIu32 " and %" PRIu32 " hold different %s of tensor %" PRIu32
                        " \"%.60s\", of which each is a replica; give every rank the same values, "
                        "or set tuning.broadcast_initial to begin with rank 0's on all",
                        ranks[0], ranks[1], zero_role_name(role), first + i,
                        layout->tensor_infos[first + i].name);
            }
        }
    }
    ZI_FAIL(ZERO_ERR_MISMATCH, "ranks hold different %s of some tensor", zero_role_name(role));
}

static zero_status compare_roles(zero_engine *engine, uint32_t roles)
{
    const zi_device *device = engine->device;
    zero_status status = ZERO_OK;
    void *staging = NULL;
    ZI_TRY(device->ops->host_alloc(device->self, HASHED_BYTES, &staging));
    for (uint32_t i = 0; i < ZI_SHARD_ROLES * engine->layout->sharding_count; i++) {
        const int role = (int)(i % ZI_SHARD_ROLES);
        const zero_sharding *s = &engine->layout->shardings[i / ZI_SHARD_ROLES];
        const bool split =
            (role == ZERO_ROLE_PARAM ? s->param : s->optimizer) == engine->layout->world;
        if (status == ZERO_OK && (roles & ZERO_ROLE_BIT(role)) != 0 && !split) {
            status = compare_role(engine, s, (zero_role)role, staging);
        }
    }
    device->ops->host_free(device->self, staging, HASHED_BYTES);
    return status;
}

zero_status zi_engine_compare_replicas(zero_engine *engine)
{
    const uint32_t size = zero_world_size(engine->world);
    uint64_t written = 0;
    uint32_t touched = 0;
    if (engine->given == NULL) {
        return ZERO_OK;
    }
    for (uint32_t t = 0; t < engine->layout->tensor_count; t++) {
        written |= engine->given[t];
    }
    const uint64_t own[2] = {engine->touched, written != 0};
    ZI_TRY(replicas_gather(engine, own, 2));
    written = 0;
    for (uint32_t r = 0; r < size; r++) {
        touched |= (uint32_t)engine->agreement[2 * (size_t)r];
        written |= engine->agreement[2 * (size_t)r + 1];
    }
    ZI_TRY(written != 0 ? compare_written(engine) : ZERO_OK);
    ZI_TRY(zi_engine_await(engine, engine->stepped));
    ZI_TRY(compare_roles(engine, touched));
    zi_engine_close_given(engine);
    return ZERO_OK;
}
