/* Owns what ranks exchange outside the collectives of a step: that they describe the same model,
 * that they have allocated their resources, which gathers no rank needs any more; and the messages
 * for steps that ranks were given differently. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/failure.h"
#include "core/hash.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "optimizer/optimizer_table.h"

/* Words exchanged at a time. */
#define ROUND_WORDS 39
/* Schedule entries in one exchange, behind the word of the hash. */
#define ENTRIES_PER_ROUND ((ROUND_WORDS - 1) * 64)

static zero_status agree_exchange(zero_world *world, const uint64_t *words, uint64_t *all)
{
    return zi_world_gather(world, words, all, ROUND_WORDS * sizeof *words);
}

/* Hashes of items [first, first + ROUND_WORDS), 0 beyond the end. */
static void item_hashes(const zi_layout *layout, uint32_t first, uint64_t *words)
{
    const uint32_t count = zi_layout_item_count(layout);
    for (uint32_t i = 0; i < ROUND_WORDS; i++) {
        words[i] = first + i < count ? zi_layout_item_hash(layout, first + i) : 0;
    }
}

static zero_status agree_mismatch(const zero_world *world, const zi_layout *layout, uint32_t peer,
                                  uint32_t item)
{
    char text[96];
    zi_layout_item_text(layout, item, text, sizeof text);
    ZI_FAIL(ZERO_ERR_MISMATCH,
            "ranks %" PRIu32 " and %" PRIu32 " differ first in %s; describe the same model "
            "with the same options on every rank",
            zero_world_rank(world), peer, text);
}

/* All ranks make as many rounds as the one with the most items.
 */
static zero_status name_difference(zero_world *world, const zi_layout *layout, uint64_t most,
                                   uint64_t *all)
{
    const uint32_t size = zero_world_size(world);
    uint64_t words[ROUND_WORDS];
    for (uint32_t first = 0; first < most; first += ROUND_WORDS) {
        item_hashes(layout, first, words);
        ZI_TRY(agree_exchange(world, words, all));
        for (uint32_t i = 0; i < ROUND_WORDS; i++) {
            /* Against rank 0; rank 0 itself names the first rank that differs from it. */
            for (uint32_t r = 0; r < size; r++) {
                if (all[(size_t)r * ROUND_WORDS + i] != all[i]) {
                    return agree_mismatch(world, layout, words[i] != all[i] ? 0 : r, first + i);
                }
            }
        }
    }
    ZI_FAIL(ZERO_ERR_MISMATCH,
            "ranks describe different models, though every item is equal; the plan's "
            "hash is %016" PRIx64 " here",
            zi_layout_hash(layout));
}

/* The first rank whose word `word` is not `expected`; the world's size when there is none. */
static uint32_t agree_first_unlike(const uint64_t *all, uint32_t size, uint32_t word,
                                   uint64_t expected)
{
    uint32_t rank = 0;
    while (rank < size && all[(size_t)rank * ROUND_WORDS + word] == expected) {
        rank++;
    }
    return rank;
}

/* A rank's message of itself in an exchange: how something ended on it, and terms that all ranks
 * are to have alike. */
typedef struct rank_word {
    zi_failure told;
    uint64_t terms[2];
} rank_word;

_Static_assert(sizeof(rank_word) == ROUND_WORDS * sizeof(uint64_t), "as exchanged");

/* Exchange how something ended, and the terms. mine: this rank's status, whose error it keeps.
 * Where it is OK: the error of the rank that has the cause, in that rank's words. */
static zero_status exchange_words(zero_engine *engine, zero_world *world, zero_status mine,
                                  const uint64_t terms[2])
{
    const zero_error own = *zero_last_error();
    const uint32_t size = zero_world_size(world);
    const rank_word word = {zi_failure_tell(mine), {terms[0], terms[1]}};
    const rank_word *all = (const void *)engine->agreement;
    uint64_t words[ROUND_WORDS];
    memcpy(words, &word, sizeof word);
    const zero_status exchanged = agree_exchange(world, words, engine->agreement);
    if (mine != ZERO_OK) {
        return zi_error_adopt(&own);
    }
    ZI_TRY(exchanged);
    const uint32_t rank = zi_failure_first_cause(&all->told, sizeof *all, size);
    const char *kind = world == engine->mesh ? "model-parallel " : "";
    return rank < size ? zi_failure_hear(&all[rank].told, kind, rank) : ZERO_OK;
}

#define TERMS_AT (offsetof(rank_word, terms) / sizeof(uint64_t))

zero_status zi_engine_agree_layout(zero_engine *engine, zero_status planned)
{
    zero_world *world = engine->world;
    const zi_layout *layout = engine->layout;
    const uint64_t *all = engine->agreement;
    const uint32_t size = zero_world_size(world);
    uint64_t terms[2] = {0};
    uint64_t most = 0;
    if (planned == ZERO_OK) {
        terms[0] = zi_layout_hash(layout);
        terms[1] = zi_layout_item_count(layout);
    }
    ZI_TRY(exchange_words(engine, world, planned, terms));
    if (agree_first_unlike(all, size, TERMS_AT, terms[0]) == size) {
        return ZERO_OK;
    }
    for (uint32_t r = 0; r < size; r++) {
        most = zi_max_u64(most, all[(size_t)r * ROUND_WORDS + TERMS_AT + 1]);
    }
    return name_difference(world, layout, most, engine->agreement);
}

size_t zi_engine_agreement_words(uint32_t world_size)
{
    return (size_t)world_size * ROUND_WORDS;
}

/* The name of a number that ranks give to a step. layout: NULL for numbers of another part of the
 * model, whose groups are unknown here. */
static const char *number_text(const zi_layout *layout, uint32_t number, char *text,
                               size_t text_bytes)
{
    static const char *const steps[ZI_GIVEN_HYPER] = {
        "the number of micro-steps in this step", "the number of micro-steps so far", "max_norm",
        "what gradients are divided by (0: the sum of grad_weight)"};
    uint32_t before = ZI_GIVEN_HYPER; /* numbers of the groups before */
    if (number < ZI_GIVEN_HYPER) {
        return steps[number];
    }
    for (uint32_t g = 0; layout != NULL && g < ZI_GROUPS_MAX; g++) {
        const zi_optimizer *optimizer = zi_optimizer_of(layout->options.group_optimizer[g]);
        const uint32_t count = (layout->groups >> g & 1) != 0 ? optimizer->number_count : 0;
        if (number - before < count) {
            (void)snprintf(text, text_bytes, "%s of group %" PRIu32,
                           optimizer->numbers[number - before].name, g);
            return text;
        }
        before += count;
    }
    return "a hyper-parameter of a group";
}

static zero_status refuse_weight(const zi_step_refusal *refusal)
{
    if (refusal->other == 0.0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "grad_weight adds up to 0 over the ranks, so there is nothing to divide by; that "
                "step has changed nothing on any rank: leave such steps out with "
                "zero_step_discard, or go on");
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "grad_weight is %.9g on rank %" PRIu32 " and has to be finite and >= 0; that step has "
            "changed nothing on any rank",
            refusal->other, refusal->other_rank);
}

zero_status zi_engine_check_refusal(const zero_engine *engine, const zi_step_refusal *refusal)
{
    static const char *const of_parts[ZI_PART_NUMBERS] = {
        "the number of updates so far", "the number of skipped steps so far", "the loss scale",
        "max_norm", "what gradients are divided by"};
    char text[40];
    char part[48] = "";
    switch ((zi_refusal_kind)refusal->kind) {
    case ZI_REFUSAL_NONE:
        return ZERO_OK;
    case ZI_REFUSAL_WEIGHT:
        return refuse_weight(refusal);
    case ZI_REFUSAL_PARTS:
        ZI_FAIL(ZERO_ERR_MISMATCH,
                "%s is %.9g on model-parallel rank %" PRIu32 " and %.9g on %" PRIu32
                "; the step has changed nothing on any rank: all parts of the model decide a step "
                "from the same numbers",
                of_parts[refusal->number], refusal->first, refusal->first_rank, refusal->other,
                refusal->other_rank);
    case ZI_REFUSAL_RANKS:
        break;
    }
    const bool own = refusal->part == zero_world_rank(engine->mesh);
    if (!own) {
        (void)snprintf(part, sizeof part, " with model-parallel rank %" PRIu32, refusal->part);
    }
    ZI_FAIL(ZERO_ERR_MISMATCH,
            "%s is %.9g on rank %" PRIu32 " and %.9g on rank %" PRIu32
            "%s; the step has changed nothing on any rank: make the same micro-steps and give "
            "zero_step the same parameters on all ranks",
            number_text(own ? engine->layout : NULL, (uint32_t)refusal->number, text, sizeof text),
            refusal->first, refusal->first_rank, refusal->other, refusal->other_rank, part);
}

zero_status zi_engine_agree_given(zero_engine *engine, zero_world *world, zero_status checked,
                                  uint64_t hash, const char *what)
{
    const uint64_t *all = engine->agreement;
    const uint64_t terms[2] = {hash};
    if (world == NULL) {
        return checked;
    }
    ZI_TRY(exchange_words(engine, world, checked, terms));
    const uint32_t size = zero_world_size(world);
    const uint32_t unlike = agree_first_unlike(all, size, TERMS_AT, all[TERMS_AT]);
    if (unlike < size) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "ranks 0 and %" PRIu32 " were given a different %s; give every rank the same",
                unlike, what);
    }
    return ZERO_OK;
}

zero_status zi_engine_agree_ready(zero_engine *engine, zero_world *world, zero_status mine)
{
    const uint64_t none[2] = {0};
    return world != NULL ? exchange_words(engine, world, mine, none) : mine;
}

zero_status zi_engine_agree_done(zero_engine *engine, zero_status mine)
{
    const zero_status own = zi_engine_agree_ready(engine, engine->world, mine);
    return zi_engine_agree_ready(engine, engine->mesh, own);
}

zero_status zi_engine_add_up(zero_engine *engine, uint64_t *words, uint32_t count)
{
    zero_world *const worlds[] = {engine->world, engine->mesh};
    zi_assert_cmp(count, <=, ROUND_WORDS);
    for (size_t i = 0; i < 2 && worlds[i] != NULL; i++) {
        ZI_TRY(
            zi_world_gather(worlds[i], words, engine->agreement, count * (uint32_t)sizeof *words));
        memset(words, 0, count * sizeof *words);
        for (uint32_t at = 0; at < count * zero_world_size(worlds[i]); at++) {
            words[at % count] += engine->agreement[at];
        }
    }
    return ZERO_OK;
}

zero_status zi_engine_agree_parts(zero_engine *engine)
{
    static const char *const names[] = {"the number of ranks of its world",
                                        "their ranks in it",
                                        "options.loss_scale",
                                        "tuning.loss_scale_static",
                                        "tuning.loss_scale_window",
                                        "tuning.loss_scale_hysteresis",
                                        "tuning.loss_scale_min",
                                        "options.device"};
    enum { NUMBERS = sizeof names / sizeof names[0] };
    const zero_engine_options *o = &engine->layout->options;
    const zero_tuning *t = &engine->layout->tuning;
    if (engine->mesh == NULL) {
        return ZERO_OK;
    }
    const double own[NUMBERS] = {zero_world_size(engine->world), zero_world_rank(engine->world),
                                 (double)o->loss_scale,          t->loss_scale_static,
                                 t->loss_scale_window,           t->loss_scale_hysteresis,
                                 (double)t->loss_scale_min,      o->device};
    uint64_t words[ROUND_WORDS] = {0};
    memcpy(words, own, sizeof own);
    ZI_TRY(agree_exchange(engine->mesh, words, engine->agreement));
    for (uint32_t place = 0; place < NUMBERS * zero_world_size(engine->mesh); place++) {
        const uint32_t rank = place / NUMBERS;
        double first[NUMBERS];
        double other[NUMBERS];
        memcpy(first, engine->agreement, sizeof first);
        memcpy(other, engine->agreement + (size_t)rank * ROUND_WORDS, sizeof other);
        if (first[place % NUMBERS] != other[place % NUMBERS]) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "ranks 0 and %" PRIu32 " of options.model_parallel differ in %s, %.9g and "
                    "%.9g; they hold the parts of one model and have the same place in worlds of "
                    "one size, with the same loss scaling and device",
                    rank, names[place % NUMBERS], first[place % NUMBERS], other[place % NUMBERS]);
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

/* Neighbouring ranks that have to gather in one order. Where units are split in several ways the
 * groups of one meet in those of another, so all ranks have. */
static uint32_t gathering_ranks(const zi_layout *layout)
{
    return layout->sharding_count > 1 && zi_params_in_slots(layout) ? layout->world
                                                                    : layout->shardings[0].param;
}

/* One round: the hash of the order, then one bit an entry from `first` on. The bits of the ranks
 * this one gathers with are added to its own. *same false: one of them has another order. */
static zero_status agree_round(zero_engine *engine, zi_schedule *schedule, uint64_t hash,
                               uint32_t first, bool *same)
{
    const uint32_t degree = gathering_ranks(engine->layout);
    const uint32_t group = zero_world_rank(engine->world) / degree;
    uint64_t words[ROUND_WORDS] = {hash};
    const uint32_t end = (uint32_t)zi_min_u64(first + ENTRIES_PER_ROUND, schedule->count);
    for (uint32_t i = first; i < end; i++) {
        words[1 + (i - first) / 64] |= (uint64_t)schedule->entries[i].used << ((i - first) % 64);
    }
    ZI_TRY(agree_exchange(engine->world, words, engine->agreement));
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
    if (gathering_ranks(engine->layout) == 1) {
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
