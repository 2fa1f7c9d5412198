/* The GPU's decision of a step, on the CPU: the block and lanes of the CUDA kernel's launch,
 * against the CPU's kernel and plain additions, bit by bit. */
#include <stdlib.h>

#include "harness.h"

#include "core/rng.h"
#include "kernels/cuda/decide_body.h"
#include "launch_now.h"

/* Of all magnitudes; neighbours in a run have one. */
static float wide_value(uint64_t index, uint64_t run)
{
    const zi_philox_words words = zi_philox(test_seed, index, 0);
    const uint32_t exponent = zi_philox(test_seed, index / run, 1).word[0] % 255;
    return zi_f32_from_bits((words.word[0] & 0x807fffffu) | exponent << 23);
}

/* Sums of squares as ranks hand them in: of all magnitudes, and of every seventh step not finite.
 */
static void fill_messages(zi_step_message *messages, uint32_t count, uint64_t step)
{
    for (uint32_t i = 0; i < count; i++) {
        memset(&messages[i].squares, 0, sizeof messages[i].squares);
        for (uint64_t k = 0; k < 100; k++) {
            const double value = (double)wide_value(step * 1000 + i * 100 + k, k % 2 == 0 ? 1 : 64);
            zi_norm_add(&messages[i].squares, value * value);
        }
    }
    if (step % 7 == 6) {
        zi_norm_add(&messages[step % count].squares,
                    step % 2 == 0 ? (double)NAN : (double)INFINITY);
    }
}

static zi_step_input many_groups(void)
{
    zi_step_input input = {.divisor = 12.0, .group_count = ZI_GROUPS_MAX};
    for (uint32_t i = 0; i < ZI_GROUPS_MAX; i++) {
        const float share = (float)i / (float)ZI_GROUPS_MAX;
        input.groups[i] = (zi_hyper){
            .kind = ZERO_OPTIMIZER_ADAMW,
            .adamw = {1e-3f * share, 0.8f + 0.19f * share, 0.999f - 0.1f * share, 1e-8f, share}};
    }
    return input;
}

/* As many as there may be. */
#define NUMBERS (ZI_GIVEN_HYPER + ZI_HYPER_NUMBERS_MAX * ZI_GROUPS_MAX)

static zi_step_messages all_of(const zi_step_message *messages, uint32_t count)
{
    return (zi_step_messages){.first = (const unsigned char *)messages,
                              .count = count,
                              .bytes = sizeof *messages,
                              .peer_stride = 1,
                              .number_count = NUMBERS};
}

/* Both phases, where the model is in one part. */
static void run_decide(const zi_step_input *input, const zi_step_message *messages, uint32_t count,
                       zi_step_state *state, zi_step_decision *decision)
{
    zi_step_part part = {0};
    launch_decide_now(&(zi_decide_job){.input = input,
                                       .messages = all_of(messages, count),
                                       .part = &part,
                                       .parts = &part,
                                       .part_count = 1,
                                       .phases = ZI_DECIDE_COLLECT | ZI_DECIDE_CONCLUDE,
                                       .state = state,
                                       .decision = decision});
}

/* Ranks that gave different numbers, at every place: what is said of it is what the CPU says. */
TEST(decide_finds_the_first_number_that_differs)
{
    enum { RANKS = 7 };
    static zi_step_message messages[RANKS];
    const zi_step_input input = many_groups();
    static zi_step_state state;
    for (uint32_t number = 0; number < NUMBERS; number++) {
        const uint32_t member = 1 + number % (RANKS - 1);
        zi_step_decision decision = {0};
        memset(messages, 0, sizeof messages);
        zi_step_state_init(&state, (zi_loss_scaler){.scale = 1.0f});
        for (uint32_t later = member; later < RANKS; later++) {
            zi_step_given *given = &messages[later].given;
            given->rank = later;
            if (number == ZI_GIVEN_MICRO_STEPS) {
                given->micro_steps = 3;
            } else if (number == ZI_GIVEN_MICRO_TOTAL) {
                given->micro_total = 3;
            } else if (number == ZI_GIVEN_MAX_NORM) {
                given->max_norm = 3.0f;
            } else if (number == ZI_GIVEN_DIVISOR) {
                given->divisor = 3.0;
            } else {
                given->hyper[number - ZI_GIVEN_HYPER] = 3.0f;
            }
            given->hyper[NUMBERS - ZI_GIVEN_HYPER - 1] = 3.0f; /* the very last number */
        }
        run_decide(&input, messages, RANKS, &state, &decision);
        CHECK_EQ(decision.refusal.kind, ZI_REFUSAL_RANKS);
        CHECK_EQ(decision.refusal.other_rank, member);
        CHECK_EQ(decision.refusal.number, number);
        CHECK_SAME(decision.refusal.first, 0.0);
        CHECK_SAME(decision.refusal.other, 3.0);
        CHECK_EQ(decision.skip, 1);
        CHECK_EQ(state.updates + state.skipped, 0);
    }
}

/* In two phases, as where the model is in parts, and divided by weights. */
TEST(parts_have_the_cpus_bits_step_after_step)
{
    enum { RANKS = 3, PARTS = 2, STEPS = 30 };
    static zi_step_message messages[PARTS][RANKS];
    zi_step_input input = many_groups();
    const zi_loss_scaler scaler = {
        .scale = 65536.0f, .min = 1.0f, .window = 3, .hysteresis = 2, .dynamic = 1};
    static zi_step_state expected_state, state;
    static zi_step_decision expected, decision;
    zi_step_state_init(&expected_state, scaler);
    state = expected_state;
    input.divisor = 0.0;
    for (uint64_t step = 0; step < STEPS; step++) {
        zi_step_part parts[PARTS] = {{{{0}, 0, 0}, 0, 0, 0, 0, 0, {0}}};
        zi_step_part wanted[PARTS] = {{{{0}, 0, 0}, 0, 0, 0, 0, 0, {0}}};
        for (uint32_t p = 0; p < PARTS; p++) {
            fill_messages(messages[p], RANKS, step * PARTS + p);
            for (uint32_t r = 0; r < RANKS; r++) {
                messages[p][r].given.rank = r;
                messages[p][r].given.grad_weight = step % 5 == 4 ? -1.0f : (float)(step + r) * 0.1f;
            }
            messages[p][1].replica_nan = step % 11 == 10;
            zi_decide_job job = {.input = &input,
                                 .messages = all_of(messages[p], RANKS),
                                 .part = &parts[p],
                                 .phases = ZI_DECIDE_COLLECT,
                                 .state = &state};
            launch_decide_now(&job);
            zi_step_collect(&input, &job.messages, ZI_STEP_ALIKE, &expected_state, &wanted[p]);
            CHECK_BYTES(&parts[p], &wanted[p], sizeof parts[p]);
        }
        launch_decide_now(&(zi_decide_job){.input = &input,
                                           .parts = parts,
                                           .part_count = PARTS,
                                           .phases = ZI_DECIDE_CONCLUDE,
                                           .state = &state,
                                           .decision = &decision});
        zi_step_conclude(&input, wanted, PARTS, &expected_state, &expected);
        CHECK_EQ(decision.refused, (step + 1) / 5);
        CHECK(isnan(decision.norm) == isnan(expected.norm));
        decision.norm = expected.norm; /* which NaN it is stays open */
        CHECK_BYTES(&decision, &expected, sizeof decision);
        CHECK_BYTES(&state, &expected_state, sizeof state);
    }
}

TEST(decide_has_the_cpus_bits_step_after_step)
{
    enum { RANKS = 5, STEPS = 30 };
    static zi_step_message messages[RANKS];
    zi_step_input input = many_groups();
    const zi_loss_scaler scaler = {
        .scale = 65536.0f, .min = 1.0f, .window = 3, .hysteresis = 2, .dynamic = 1};
    static zi_step_state expected_state, state;
    static zi_step_decision expected, decision;
    zi_step_state_init(&expected_state, scaler);
    state = expected_state;
    for (uint64_t step = 0; step < STEPS; step++) {
        fill_messages(messages, RANKS, step);
        input.max_norm = step % 3 == 0 ? 0.0 : 1.0;
        zi_norm_sum total = {{0}, 0, 0};
        for (uint32_t i = 0; i < RANKS; i++) {
            zi_norm_merge(&total, &messages[i].squares);
        }
        zi_step_decide(&input, input.divisor, &total, &expected_state, &expected);
        run_decide(&input, messages, RANKS, &state, &decision);
        CHECK_EQ(decision.skip, step % 7 == 6);
        CHECK_SAME(decision.norm, expected.norm);
        decision.norm = expected.norm; /* which NaN it is stays open */
        CHECK_BYTES(&decision, &expected, sizeof decision);
        CHECK_BYTES(&state, &expected_state, sizeof state);
    }
}

/* ---- many ranks ---- */

/* Words as no sum of squares has them, but a limb may: full, and with every carry waiting. */
static uint64_t extreme_word(uint64_t place)
{
    static const uint64_t extremes[] = {UINT64_MAX,
                                        UINT32_MAX,
                                        0,
                                        (uint64_t)UINT32_MAX << 32,
                                        1,
                                        UINT64_C(1) << 63,
                                        UINT64_C(0x9e3779b97f4a7c15)};
    const uint64_t mixed = place * UINT64_C(0x9e3779b97f4a7c15);
    return place % 3 == 0 ? UINT64_MAX : extremes[(mixed >> 40) % 7] ^ (mixed % 5 == 0 ? mixed : 0);
}

static void fill_extremes(zi_step_message *messages, uint32_t count, bool all_full)
{
    memset(messages, 0, count * sizeof *messages);
    for (uint64_t i = 0; i < count; i++) {
        zi_norm_sum *squares = &messages[i].squares;
        for (uint64_t k = 0; k < ZI_NORM_LIMBS; k++) {
            squares->limb[k] = all_full ? UINT64_MAX : extreme_word(i * ZI_NORM_LIMBS + k);
        }
        squares->infinite_chunks = i % 5 << 33;
        squares->nan_chunks = i % 7 << 31;
        messages[i].replica_infinite = i * i << 20;
        messages[i].replica_nan = i + 1;
        messages[i].given.rank = (uint32_t)i;
    }
}

/* Message after message, limb after limb. */
static zi_norm_sum merged(const zi_step_messages *messages)
{
    zi_norm_sum sum = {{0}, 0, 0};
    for (uint32_t i = messages->peer_first; i < messages->count; i += messages->peer_stride) {
        const zi_step_message *message = zi_step_message_at(messages, i);
        zi_norm_merge(&sum, &message->squares);
        sum.infinite_chunks += message->replica_infinite;
        sum.nan_chunks += message->replica_nan;
    }
    return sum;
}

static void check_collected(const zi_step_messages *messages)
{
    static zi_step_state state;
    const zi_step_input input = many_groups();
    const zi_norm_sum expected = merged(messages);
    zi_step_part part = {.updates = 1};
    zi_step_part whole = {.updates = 1};
    zi_step_state_init(&state, (zi_loss_scaler){.scale = 1.0f});
    const zi_decide_job job = {.input = &input,
                               .messages = *messages,
                               .part = &part,
                               .phases = ZI_DECIDE_COLLECT,
                               .state = &state};
    launch_decide_now(&job);
    CHECK_BYTES(&part.squares, &expected, sizeof expected);
    zi_step_collect(&input, messages, ZI_STEP_ALIKE, &state, &whole);
    CHECK_BYTES(&whole, &part, sizeof whole);
}

/* No lane adds more than its column of every ZI_BLOCK_WARPS-th message. */
TEST(a_lane_adds_one_column_of_its_warps_messages)
{
    enum { RANKS = 1024, FIRST = 3, STRIDE = 2 };
    static zi_decide_columns columns;
    zi_step_message *messages = malloc(RANKS * sizeof *messages);
    CHECK(messages != NULL);
    fill_extremes(messages, RANKS, false);
    zi_step_messages all = all_of(messages, RANKS);
    all.peer_first = FIRST;
    all.peer_stride = STRIDE;
    for (uint32_t thread = 0; thread < ZI_BLOCK_THREADS; thread++) {
        const uint32_t warp = thread / ZI_WARP_LANES;
        const uint32_t lane = thread % ZI_WARP_LANES;
        zi_step_column expected = {0, 0};
        zi_decide_add(&all, warp, lane, &columns);
        if (lane >= ZI_STEP_COLUMNS) {
            continue;
        }
        for (uint32_t i = FIRST + STRIDE * warp; i < RANKS; i += STRIDE * ZI_BLOCK_WARPS) {
            const uint64_t words[] = {messages[i].squares.infinite_chunks,
                                      messages[i].squares.nan_chunks, messages[i].replica_infinite,
                                      messages[i].replica_nan};
            const uint64_t word =
                lane < ZI_NORM_LIMBS ? messages[i].squares.limb[lane] : words[lane - ZI_NORM_LIMBS];
            expected.low += word % ((uint64_t)1 << 32);
            expected.high += word / ((uint64_t)1 << 32);
        }
        CHECK_EQ(columns.of_warp[warp][lane].low, expected.low);
        CHECK_EQ(columns.of_warp[warp][lane].high, expected.high);
    }
    free(messages);
}

/* Every split of ranks over warps, of all and of one replica's. */
TEST(squares_of_many_ranks_are_added_exactly)
{
    static const uint32_t ranks[] = {1, 2, 7, 8, 9, 255, 256, 1024, 4096};
    zi_step_message *messages = malloc(4096 * sizeof *messages);
    CHECK(messages != NULL);
    for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
        for (uint32_t stride = 1; stride <= 64; stride *= 4) {
            fill_extremes(messages, ranks[r], stride == 4);
            zi_step_messages all = all_of(messages, ranks[r]);
            all.number_count = 0;
            all.peer_stride = stride;
            all.peer_first = stride / 2;
            check_collected(&all);
        }
    }
    free(messages);
}

/* Of all magnitudes, subnormal, 0 and the largest; or all 0. */
static void fill_weights(zi_step_message *messages, uint32_t count, bool all_zero)
{
    static const float extremes[] = {0x1.fffffep127f, 0x1p-149f, 0.0f, 1.0f, 0x1.fffffep-126f};
    for (uint32_t i = 0; i < count; i++) {
        const float mixed = fabsf(wide_value(i, 1));
        messages[i].given.rank = i;
        messages[i].given.grad_weight = i % 2 == 0 ? extremes[i / 2 % 5] : mixed;
        messages[i].given.grad_weight *= all_zero ? 0.0f : 1.0f;
    }
}

/* The kernel's outcome is the CPU's, which is returned. */
static zi_step_part check_weighed(const zi_step_message *messages, uint32_t count)
{
    static zi_step_state state;
    zi_step_input input = many_groups();
    zi_step_part part = {.updates = 1};
    zi_step_part whole = {.updates = 1};
    input.divisor = 0.0;
    zi_step_state_init(&state, (zi_loss_scaler){.scale = 1.0f});
    zi_decide_job job = {.input = &input,
                         .messages = all_of(messages, count),
                         .part = &part,
                         .phases = ZI_DECIDE_COLLECT,
                         .state = &state};
    job.messages.number_count = 0;
    launch_decide_now(&job);
    zi_step_collect(&input, &job.messages, ZI_STEP_ALIKE, &state, &whole);
    if (isnan(whole.refusal.other) && isnan(part.refusal.other)) {
        part.refusal.other = whole.refusal.other; /* which NaN it is stays open */
    }
    CHECK_BYTES(&whole, &part, sizeof whole);
    return whole;
}

/* Exactly, and with the first rank whose weight is none. */
TEST(weights_of_many_ranks_are_added)
{
    static const float none[] = {-1.0f, INFINITY, NAN};
    static const uint32_t ranks[] = {1, 2, 7, 8, 9, 255, 256, 1024, 4096};
    zi_step_message *messages = calloc(4096, sizeof *messages);
    CHECK(messages != NULL);
    for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
        fill_weights(messages, ranks[r], true);
        CHECK_EQ(check_weighed(messages, ranks[r]).refusal.kind, ZI_REFUSAL_WEIGHT);
        fill_weights(messages, ranks[r], false);
        const zi_step_part good = check_weighed(messages, ranks[r]);
        CHECK_EQ(good.refusal.kind, ZI_REFUSAL_NONE);
        CHECK(good.divisor > 0x1p127);
        for (uint32_t n = 0; n < 3; n++) {
            for (uint32_t i = ranks[r] / 2; i < ranks[r]; i += 5) {
                messages[i].given.grad_weight = none[n];
            }
            const zi_step_part bad = check_weighed(messages, ranks[r]);
            CHECK_EQ(bad.refusal.kind, ZI_REFUSAL_WEIGHT);
            CHECK_EQ(bad.refusal.other_rank, ranks[r] / 2);
        }
    }
    free(messages);
}
