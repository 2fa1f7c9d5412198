/* Owns what ranks tell each other outside the collectives of a step: that they describe the same
 * model and have what an engine needs, and which gathers nobody needs any more; and the words for
 * what they were found to give differently to a step. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/sizes.h"
#include "engine/engine_internal.h"
#include "layout/sharding.h"

/* Words exchanged at a time. */
#define ROUND_WORDS 32
/* Schedule entries in one, after the word that holds the hash. */
#define ENTRIES_PER_ROUND ((ROUND_WORDS - 1) * 64)

static zero_status exchange(zero_world *world, const uint64_t *words, uint64_t *all)
{
    return zero_world_gather(world, words, all, ROUND_WORDS * sizeof *words);
}

/* Hashes of items [first, first + ROUND_WORDS), 0 beyond the end. */
static void item_hashes(const zi_layout *layout, uint32_t first, uint64_t *words)
{
    const uint32_t count = zi_layout_item_count(layout);
    for (uint32_t i = 0; i < ROUND_WORDS; i++) {
        words[i] = first + i < count ? zi_layout_item_hash(layout, first + i) : 0;
    }
}

static zero_status mismatch(const zero_world *world, const zi_layout *layout, uint32_t peer,
                            uint32_t item)
{
    char text[96];
    zi_layout_item_text(layout, item, text, sizeof text);
    ZI_FAIL(ZERO_MISMATCH,
            "ranks %" PRIu32 " and %" PRIu32 " differ first in %s; describe the same model "
            "with the same options on every rank",
            zero_world_rank(world), peer, text);
}

/* Ranks of equal number of items or not, all walk the same number of rounds: the largest count's.
 */
static zero_status name_difference(zero_world *world, const zi_layout *layout, uint64_t most,
                                   uint64_t *all)
{
    const uint32_t size = zero_world_size(world);
    uint64_t words[ROUND_WORDS];
    for (uint32_t first = 0; first < most; first += ROUND_WORDS) {
        item_hashes(layout, first, words);
        ZI_TRY(exchange(world, words, all));
        for (uint32_t i = 0; i < ROUND_WORDS; i++) {
            /* Against rank 0; rank 0 itself names the first rank that differs from it. */
            for (uint32_t r = 0; r < size; r++) {
                if (all[(size_t)r * ROUND_WORDS + i] != all[i]) {
                    return mismatch(world, layout, words[i] != all[i] ? 0 : r, first + i);
                }
            }
        }
    }
    ZI_FAIL(ZERO_MISMATCH,
            "ranks describe different models, though every item is equal; the plan's "
            "hash is %016" PRIx64 " here",
            zi_layout_hash(layout));
}

/* The first rank whose word `word` is not `expected`; the world's size when there is none. */
static uint32_t first_unlike(const uint64_t *all, uint32_t size, uint32_t word, uint64_t expected)
{
    uint32_t rank = 0;
    while (rank < size && all[(size_t)rank * ROUND_WORDS + word] == expected) {
        rank++;
    }
    return rank;
}

static zero_status compare(zero_world *world, const zi_layout *layout, zero_status planned,
                           uint64_t *all)
{
    const uint32_t size = zero_world_size(world);
    uint64_t words[ROUND_WORDS] = {(uint64_t)planned};
    if (planned == ZERO_OK) {
        words[1] = zi_layout_hash(layout);
        words[2] = zi_layout_item_count(layout);
    }
    ZI_TRY(exchange(world, words, all));
    if (planned != ZERO_OK) {
        return planned; /* the caller's last error still says why */
    }
    const uint32_t refused = first_unlike(all, size, 0, ZERO_OK);
    if (refused < size && all[(size_t)refused * ROUND_WORDS] == ZERO_OUT_OF_MEMORY) {
        ZI_FAIL(ZERO_OUT_OF_MEMORY,
                "rank %" PRIu32 " has no memory left, or too small a budget, for "
                "the plan; its own error says how much",
                refused);
    }
    if (refused < size) {
        ZI_FAIL(ZERO_MISMATCH,
                "rank %" PRIu32 " refused its model or options with %s, this rank did "
                "not; describe the same model with the same options on every rank",
                refused, zero_status_name((zero_status)all[(size_t)refused * ROUND_WORDS]));
    }
    if (first_unlike(all, size, 1, words[1]) == size) {
        return ZERO_OK;
    }
    uint64_t most = 0;
    for (uint32_t r = 0; r < size; r++) {
        most = all[(size_t)r * ROUND_WORDS + 2] > most ? all[(size_t)r * ROUND_WORDS + 2] : most;
    }
    return name_difference(world, layout, most, all);
}

size_t zi_engine_agreement_words(uint32_t world_size)
{
    return (size_t)world_size * ROUND_WORDS;
}

/* The world rank of a member of the norm's group. */
static uint32_t rank_of(const zero_sharding *sharding, uint32_t member)
{
    uint32_t rank = 0;
    while (zi_shard_index(sharding, rank, sharding->world) != member) {
        rank++;
    }
    return rank;
}

/* The group of a tensor that has the i-th place in messages. */
static uint32_t group_at(const zi_layout *layout, uint32_t i)
{
    uint64_t left = layout->groups;
    for (; i > 0; i--) {
        left &= left - 1;
    }
    return (uint32_t)__builtin_ctzll(left);
}

/* A number that ranks give to a step. */
static const char *number_text(const zi_layout *layout, uint32_t number, char *text,
                               size_t text_bytes)
{
    static const char *const steps[ZI_GIVEN_GROUPS] = {
        "the number of micro-steps in this step", "the number of micro-steps so far", "max_norm"};
    static const char *const fields[ZI_GIVEN_OF_A_GROUP] = {"lr", "beta1", "beta2", "eps",
                                                            "weight_decay"};
    if (number < ZI_GIVEN_GROUPS) {
        return steps[number];
    }
    const uint32_t at = number - ZI_GIVEN_GROUPS;
    (void)snprintf(text, text_bytes, "%s of group %" PRIu32, fields[at % ZI_GIVEN_OF_A_GROUP],
                   group_at(layout, at / ZI_GIVEN_OF_A_GROUP));
    return text;
}

zero_status zi_engine_check_alike(const zero_engine *engine, const zi_step_decision *outcome)
{
    const zi_step_difference *differs = &outcome->differs;
    char text[40];
    if (differs->found == 0) {
        return ZERO_OK;
    }
    ZI_FAIL(ZERO_MISMATCH,
            "%s is %.9g on rank %" PRIu32 " and %.9g on rank %" PRIu32
            "; the step has changed nothing on any rank: make the same micro-steps and give "
            "zero_step the same parameters on all ranks",
            number_text(engine->layout, (uint32_t)differs->number, text, sizeof text),
            differs->first, rank_of(&engine->layout->sharding, 0), differs->other,
            rank_of(&engine->layout->sharding, differs->member));
}

zero_status zi_engine_agree_given(zero_engine *engine, zero_status checked, uint64_t hash,
                                  const char *what)
{
    const uint32_t size = zero_world_size(engine->world);
    const uint64_t *all = engine->agreement;
    const uint64_t words[ROUND_WORDS] = {(uint64_t)checked, hash};
    const zero_error error = *zero_last_error();
    ZI_TRY(exchange(engine->world, words, engine->agreement));
    if (checked != ZERO_OK) {
        return zi_error_adopt(&error);
    }
    const uint32_t refused = first_unlike(all, size, 0, ZERO_OK);
    if (refused < size) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "rank %" PRIu32 " refused its %s with %s, so no rank takes it; its own error says "
                "why",
                refused, what, zero_status_name((zero_status)all[(size_t)refused * ROUND_WORDS]));
    }
    const uint32_t unlike = first_unlike(all, size, 1, all[1]);
    if (unlike < size) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "ranks 0 and %" PRIu32 " were given a different %s; give every rank the same",
                unlike, what);
    }
    return ZERO_OK;
}

zero_status zi_engine_agree_layout(zero_engine *engine, zero_status planned)
{
    const zero_error error = *zero_last_error();
    const zero_status status = compare(engine->world, engine->layout, planned, engine->agreement);
    return status != ZERO_OK && status == planned ? zi_error_adopt(&error) : status;
}

/* A rank's word before the ranks join. */
typedef struct ready_word {
    int32_t status;
    int32_t native;
    char text[ROUND_WORDS * sizeof(uint64_t) - 2 * sizeof(int32_t)];
} ready_word;

_Static_assert(sizeof(ready_word) == ROUND_WORDS * sizeof(uint64_t), "as exchanged");

zero_status zi_engine_agree_ready(zero_engine *engine, zero_status mine)
{
    const zero_error own = *zero_last_error();
    ready_word word = {.status = (int32_t)mine};
    uint64_t words[ROUND_WORDS];
    if (mine != ZERO_OK) {
        word.native = own.native;
        (void)snprintf(word.text, sizeof word.text, "%.*s", (int)sizeof word.text - 1, own.message);
    }
    memcpy(words, &word, sizeof word);
    const zero_status told = exchange(engine->world, words, engine->agreement);
    if (mine != ZERO_OK) {
        return zi_error_adopt(&own);
    }
    ZI_TRY(told);
    for (uint32_t r = 0; r < zero_world_size(engine->world); r++) {
        memcpy(&word, engine->agreement + (size_t)r * ROUND_WORDS, sizeof word);
        if (word.status != ZERO_OK) {
            ZI_FAIL_NATIVE(ZERO_COMM, word.native, "rank %" PRIu32 ": %.240s", r, word.text);
        }
    }
    return ZERO_OK;
}

static uint64_t schedule_hash(const zi_schedule *schedule)
{
    uint64_t hash = zi_hash_u64(ZI_HASH_START, schedule->count);
    for (uint32_t i = 0; i < schedule->count; i++) {
        hash = zi_hash_u64(hash, schedule->entries[i].unit);
        hash =
            zi_hash_u64(hash, (uint64_t)schedule->entries[i].via << 8 | schedule->entries[i].pass);
    }
    return hash;
}

/* One round: the hash of the order, then one bit an entry from `first` on. The bits of the ranks
 * this one gathers with are added to its own. *same false: one of them has another order. */
static zero_status agree_round(zero_engine *engine, zi_schedule *schedule, uint64_t hash,
                               uint32_t first, bool *same)
{
    const uint32_t degree = engine->layout->sharding.param;
    const uint32_t group = zero_world_rank(engine->world) / degree;
    uint64_t words[ROUND_WORDS] = {hash};
    const uint32_t end = (uint32_t)zi_min_u64(first + ENTRIES_PER_ROUND, schedule->count);
    for (uint32_t i = first; i < end; i++) {
        words[1 + (i - first) / 64] |= (uint64_t)schedule->entries[i].used << ((i - first) % 64);
    }
    ZI_TRY(exchange(engine->world, words, engine->agreement));
    for (uint32_t r = group * degree; r < (group + 1) * degree; r++) {
        const uint64_t *peer = engine->agreement + (size_t)r * ROUND_WORDS;
        *same = *same && peer[0] == hash;
        for (uint32_t i = first; i < end; i++) {
            schedule->entries[i].used |=
                (uint8_t)(peer[1 + (i - first) / 64] >> ((i - first) % 64) & 1);
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_agree_schedules(zero_engine *engine)
{
    if (engine->layout->sharding.param == 1) {
        return ZERO_OK;
    }
    for (int which = 0; which < ZI_SCHEDULES; which++) {
        zi_schedule *schedule = zi_params_schedule(engine->params, which);
        const uint64_t hash = schedule_hash(schedule);
        bool same = true;
        /* The capacity, not the count, so that ranks of all shard groups make as many rounds. */
        for (uint32_t first = 0; first < schedule->capacity; first += ENTRIES_PER_ROUND) {
            ZI_TRY(agree_round(engine, schedule, hash, first, &same));
        }
        if (same) {
            zi_schedule_prune(schedule);
        } else {
            zi_params_reset_schedule(engine->params, which);
        }
    }
    return ZERO_OK;
}
