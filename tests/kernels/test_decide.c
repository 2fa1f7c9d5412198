/* The decision of a step: clipping, bias correction, the loss scale and what a skipped step leaves.
 */
#include "harness.h"

#include "kernels/math/step.h"

static zi_loss_scaler fixed_scale(float scale)
{
    return (zi_loss_scaler){.scale = scale, .min = 1.0f, .window = 1, .hysteresis = 1};
}

/* Of a training whose loss scale is fixed. */
static zi_step_state fresh_state(float scale)
{
    zi_step_state state;
    zi_step_state_init(&state, fixed_scale(scale));
    return state;
}

static zi_step_input plain_input(void)
{
    zi_step_input input;
    memset(&input, 0, sizeof input);
    input.divisor = 1.0;
    input.group_count = 1;
    input.groups[0] =
        (zi_hyper){.kind = ZERO_OPTIMIZER_ADAMW, .adamw = zero_step_params_init().hyper.adamw};
    return input;
}

static zi_norm_sum sum_of(double total)
{
    zi_norm_sum sum = {{0}, 0, 0};
    zi_norm_add(&sum, total);
    return sum;
}

TEST(clipping_multiplies_by_limit_over_norm)
{
    zi_step_input input = plain_input();
    zi_step_decision decision;
    zi_step_state state = fresh_state(1.0f);
    const zi_norm_sum sum = sum_of(4.3 * 4.3);
    input.max_norm = 1.0;
    zi_step_decide(&input, input.divisor, &sum, &state, &decision);
    CHECK_SAME(decision.norm, 4.3);
    CHECK_SAME(decision.clip, 1.0 / 4.3);
    CHECK_SAME((double)decision.grad_scale, (double)(float)(1.0 / 4.3));
    input.max_norm = 4.3;
    zi_step_decide(&input, input.divisor, &sum, &state, &decision);
    CHECK_SAME(decision.clip, 1.0);
    input.max_norm = 0.0;
    zi_step_decide(&input, input.divisor, &sum, &state, &decision);
    CHECK_SAME(decision.clip, 1.0);
    CHECK_EQ(decision.skip, 0);
    CHECK_EQ(decision.update, 3);
}

TEST(divisor_and_loss_scale_are_taken_out)
{
    zi_step_input input = plain_input();
    zi_step_decision decision;
    zi_step_state state = fresh_state(1024.0f);
    input.divisor = 6.0;
    input.max_norm = 1.0;
    const double raw = 4.3 * 6.0 * 1024.0;
    const zi_norm_sum sum = sum_of(raw * raw);
    zi_step_decide(&input, input.divisor, &sum, &state, &decision);
    CHECK_NEAR(decision.norm, 4.3, 1e-15);
    CHECK_SAME(decision.clip, 1.0 / decision.norm);
    CHECK_SAME((double)decision.grad_scale, (double)(float)(decision.clip / 6144.0));
    CHECK_SAME((double)decision.loss_scale, 1024.0);
}

TEST(zero_gradients_are_a_step)
{
    zi_step_input input = plain_input();
    zi_step_decision decision;
    zi_step_state state = fresh_state(1.0f);
    input.max_norm = 1.0;
    const zi_norm_sum sum = {{0}, 0, 0};
    zi_step_decide(&input, input.divisor, &sum, &state, &decision);
    CHECK_SAME(decision.norm, 0.0);
    CHECK_SAME(decision.clip, 1.0);
    CHECK_EQ(decision.skip, 0);
}

TEST(coefficients_follow_the_products_of_each_group)
{
    zi_step_input input = plain_input();
    zi_step_decision decision;
    zi_step_state state = fresh_state(1.0f);
    const zi_norm_sum sum = sum_of(1.0);
    input.group_count = 3;
    input.groups[1] =
        (zi_hyper){.kind = ZERO_OPTIMIZER_ADAMW, .adamw = {0.5f, 0.0f, 0.25f, 1e-6f, 0.125f}};
    input.groups[2] =
        (zi_hyper){.kind = ZERO_OPTIMIZER_ADAMW, .adamw = {1e-2f, 0.8f, 0.95f, 1e-8f, 0.1f}};
    double product1 = 1.0;
    double product2 = 1.0;
    for (int step = 0; step < 5; step++) {
        input.groups[2].adamw.beta1 = 0.8f + 0.01f * (float)step;
        product1 *= (double)input.groups[2].adamw.beta1;
        product2 *= (double)input.groups[2].adamw.beta2;
        zi_step_decide(&input, input.divisor, &sum, &state, &decision);
        CHECK_SAME((double)decision.groups[2].adamw.step_size,
                   (double)(float)((double)1e-2f / (1.0 - product1)));
        CHECK_SAME((double)decision.groups[2].adamw.c2_scale,
                   (double)(float)(1.0 / sqrt(1.0 - product2)));
    }
    CHECK_EQ(decision.group_count, 3);
    CHECK_EQ(decision.update, 5);
    CHECK_SAME((double)decision.groups[1].adamw.step_size, 0.5);
    CHECK_SAME((double)decision.groups[1].adamw.decay, 0.9375);
    CHECK_SAME((double)decision.groups[1].adamw.one_minus_beta1, 1.0);
    CHECK_SAME((double)decision.groups[1].adamw.one_minus_beta2, 0.75);
    CHECK_SAME((double)decision.groups[1].adamw.c2_scale,
               (double)(float)(1.0 / sqrt(1.0 - 0x1p-10)));
    CHECK_SAME((double)decision.groups[0].adamw.decay, 1.0);
    CHECK_SAME((double)decision.groups[0].adamw.eps, (double)1e-8f);
}

TEST(a_skipped_step_leaves_everything_but_the_scale)
{
    zi_step_input input = plain_input();
    zi_step_decision decision;
    zi_step_state state;
    zi_step_state_init(
        &state,
        (zi_loss_scaler){.scale = 8.0f, .min = 1.0f, .window = 100, .hysteresis = 1, .dynamic = 1});
    input.max_norm = 1.0;
    const zi_norm_sum good = sum_of(1.0);
    zi_step_decide(&input, input.divisor, &good, &state, &decision);
    const zi_step_state before = state;
    zi_norm_sum bad = good;
    bad.infinite_chunks = 2;
    zi_step_decide(&input, input.divisor, &bad, &state, &decision);
    CHECK_EQ(decision.skip, 1);
    CHECK_SAME(decision.norm, (double)INFINITY);
    CHECK_SAME(decision.clip, 1.0);
    CHECK_EQ(decision.update, 1);
    CHECK_SAME((double)decision.loss_scale, 4.0);
    CHECK_EQ(state.updates, before.updates);
    CHECK_BYTES(state.carried, before.carried, sizeof before.carried);
    bad.nan_chunks = 1;
    zi_step_decide(&input, input.divisor, &bad, &state, &decision);
    CHECK(isnan(decision.norm));
    CHECK_EQ(decision.skip, 1);
    CHECK_SAME((double)state.scaler.scale, 2.0);
    zi_step_decide(&input, input.divisor, &good, &state, &decision);
    CHECK_EQ(decision.update, 2);
    CHECK_SAME(state.carried[0][0], (double)0.9f * (double)0.9f);
}

/* As the kernel does where the model is in one part. */
static void decide(const zi_step_input *input, const zi_step_messages *messages,
                   zi_step_state *state, zi_step_decision *decision)
{
    zi_step_part part;
    zi_step_collect(input, messages, zi_step_compare(messages), state, &part);
    zi_step_conclude(input, &part, 1, state, decision);
}

/* Numbers of AdamW, of one group. */
#define GIVEN 5

/* Two replicas of a model that is split over two ranks each. */
static zi_step_messages split_over_two(const zi_step_message *messages, uint32_t replica)
{
    return (zi_step_messages){.first = (const unsigned char *)messages,
                              .count = 4,
                              .bytes = sizeof *messages,
                              .peer_first = replica,
                              .peer_stride = 2,
                              .number_count = ZI_GIVEN_HYPER + GIVEN};
}

TEST(squares_of_one_replica_are_added)
{
    static zi_step_message messages[4];
    const zi_step_input input = plain_input();
    for (uint32_t replica = 0; replica < 2; replica++) {
        zi_step_decision decision = {0};
        zi_step_state state = fresh_state(1.0f);
        memset(messages, 0, sizeof messages);
        messages[replica].squares = sum_of(9.0);
        messages[2 + replica].squares = sum_of(16.0);
        messages[1 - replica].squares = sum_of(1e6);
        const zi_step_messages all = split_over_two(messages, replica);
        decide(&input, &all, &state, &decision);
        CHECK_SAME(decision.norm, 5.0);
        CHECK_EQ(decision.update, 1);
    }
}

TEST(ranks_that_differ_change_nothing_from_then_on)
{
    static zi_step_message messages[4];
    const zi_step_input input = plain_input();
    const zi_step_messages all = split_over_two(messages, 0);
    zi_step_decision decision = {0};
    zi_step_state state = fresh_state(8.0f);
    CHECK_EQ(zi_step_compare(&all), ZI_STEP_ALIKE);
    messages[0].given.hyper[GIVEN] = 1.0f; /* is not sent */
    CHECK_EQ(zi_step_compare(&all), ZI_STEP_ALIKE);
    decide(&input, &all, &state, &decision);
    CHECK_EQ(decision.update, 1);
    const zi_step_state before = state;
    for (uint32_t i = 0; i < 4; i++) {
        messages[i].given.rank = 10 + i;
    }
    messages[2].given.hyper[3] = 0.5f;
    messages[3].given.max_norm = 1.0f; /* of a later rank */
    decide(&input, &all, &state, &decision);
    messages[2] = messages[0];
    messages[3] = messages[0];
    for (int step = 0; step < 2; step++) {
        CHECK_EQ(decision.refusal.kind, ZI_REFUSAL_RANKS);
        CHECK_EQ(decision.refusal.part, 0);
        CHECK_EQ(decision.refusal.first_rank, 10);
        CHECK_EQ(decision.refusal.other_rank, 12);
        CHECK_EQ(decision.refusal.number, ZI_GIVEN_HYPER + 3);
        CHECK_SAME(decision.refusal.first, 0.0);
        CHECK_SAME(decision.refusal.other, 0.5);
        CHECK_EQ(decision.skip, 1);
        CHECK_BYTES(&state, &before, sizeof state);
        /* The next step is given alike. */
        decide(&input, &all, &state, &decision);
    }
}

/* ---- weights ---- */

static void give_weights(zi_step_message messages[4], const float weights[4])
{
    memset(messages, 0, 4 * sizeof *messages);
    for (uint32_t i = 0; i < 4; i++) {
        messages[i].given.rank = 10 + i;
        messages[i].given.grad_weight = weights[i];
    }
}

TEST(weights_are_added_exactly_in_any_order)
{
    static zi_step_message messages[4];
    /* In double, from the left, this is 0: the small one is lost beside the large ones. */
    const float weights[4] = {0x1p80f, 0x1p-20f, 0x1p80f, 0x1p-149f};
    const zi_step_messages all = split_over_two(messages, 0);
    zi_step_input input = plain_input();
    input.divisor = 0.0;
    for (uint32_t turn = 0; turn < 4; turn++) {
        const float turned[4] = {weights[turn], weights[(turn + 1) % 4], weights[(turn + 2) % 4],
                                 weights[(turn + 3) % 4]};
        zi_step_decision decision = {0};
        zi_step_state state = fresh_state(1.0f);
        give_weights(messages, turned);
        messages[0].squares = sum_of(0x1p200);
        decide(&input, &all, &state, &decision);
        CHECK_EQ(decision.refused, 0);
        CHECK_SAME(decision.norm, 0x1p100 / 0x1p81);
    }
    const float small[4] = {0x1p-30f, 1.0f, 0x1p-30f, 0x1p-52f};
    zi_step_refusal refusal = {0};
    give_weights(messages, small);
    const zi_step_weights added = zi_step_add_weights(&all);
    CHECK_SAME(zi_step_weigh(&all, &added, &refusal), 1.0 + 0x1p-29 + 0x1p-52);
    CHECK_EQ(refusal.kind, ZI_REFUSAL_NONE);
}

TEST(weights_that_cannot_divide_refuse_one_step)
{
    static const float bad[] = {-1.0f, INFINITY, NAN, 0.0f};
    static zi_step_message messages[4];
    const zi_step_messages all = split_over_two(messages, 0);
    zi_step_input input = plain_input();
    zi_step_decision decision = {0};
    zi_step_state state;
    input.divisor = 0.0;
    zi_step_state_init(&state, (zi_loss_scaler){.scale = 8.0f, .window = 9, .dynamic = 1});
    for (uint32_t i = 0; i < 4; i++) {
        const float weights[4] = {0, 0, 0, bad[i]};
        const zi_step_state before = state;
        give_weights(messages, weights);
        decide(&input, &all, &state, &decision);
        CHECK_EQ(decision.skip, 1);
        CHECK_EQ(decision.refused, i + 1);
        CHECK_EQ(decision.refusal.kind, ZI_REFUSAL_WEIGHT);
        CHECK_EQ(decision.refusal.other_rank, bad[i] == 0.0f ? 0 : 13);
        CHECK_BYTES(&state, &before, sizeof state);
        give_weights(messages, (const float[4]){0, 2, 0, 1});
        decide(&input, &all, &state, &decision);
        CHECK_EQ(decision.skip, 0);
        CHECK_EQ(decision.update, i + 1);
        CHECK_SAME((double)decision.grad_scale, (double)(float)(1.0 / 24.0));
    }
}

/* ---- parts of the model ---- */

static zi_step_part part_of(const zi_step_state *state, double square)
{
    static zi_step_message message;
    const zi_step_messages alone = {.first = (const unsigned char *)&message,
                                    .count = 1,
                                    .bytes = sizeof message,
                                    .peer_stride = 1};
    const zi_step_input input = plain_input();
    zi_step_part part;
    message.squares = sum_of(square);
    zi_step_collect(&input, &alone, ZI_STEP_ALIKE, state, &part);
    return part;
}

TEST(parts_decide_from_all_their_squares)
{
    const zi_step_input input = plain_input();
    zi_step_decision decision = {0};
    zi_step_state state = fresh_state(1.0f);
    zi_step_part parts[2] = {part_of(&state, 9.0), part_of(&state, 16.0)};
    zi_step_conclude(&input, parts, 2, &state, &decision);
    CHECK_SAME(decision.norm, 5.0);
    CHECK_EQ(decision.update, 1);
    parts[0] = part_of(&state, 1.0);
    parts[1] = part_of(&state, 1.0);
    parts[1].squares.nan_chunks = 1;
    zi_step_conclude(&input, parts, 2, &state, &decision);
    CHECK_EQ(decision.skip, 1);
    CHECK_EQ(state.skipped, 1);
}

/* Each number by which parts could decide differently, and what ranks of one part have found. */
TEST(parts_that_differ_change_nothing_from_then_on)
{
    const zi_step_input input = plain_input();
    for (uint32_t number = 0; number <= ZI_PART_NUMBERS; number++) {
        zi_step_decision decision = {0};
        zi_step_state state = fresh_state(2.0f);
        const zi_step_state before = state;
        const zi_step_part same = part_of(&state, 1.0);
        zi_step_part parts[3] = {same, same, same};
        zi_step_part *odd = &parts[2];
        odd->updates += number == ZI_PART_UPDATES;
        odd->skipped += number == ZI_PART_SKIPPED;
        odd->loss_scale += number == ZI_PART_LOSS_SCALE ? 1.0f : 0.0f;
        odd->max_norm += number == ZI_PART_MAX_NORM ? 1.0f : 0.0f;
        odd->divisor += number == ZI_PART_DIVISOR ? 1.0 : 0.0;
        odd->refusal.kind = number == ZI_PART_NUMBERS ? ZI_REFUSAL_RANKS : ZI_REFUSAL_NONE;
        for (int step = 0; step < 2; step++) {
            zi_step_conclude(&input, parts, 3, &state, &decision);
            CHECK_EQ(decision.skip, 1);
            CHECK_BYTES(&state, &before, sizeof state);
            if (number < ZI_PART_NUMBERS) {
                CHECK_EQ(decision.refusal.kind, ZI_REFUSAL_PARTS);
                CHECK_EQ(decision.refusal.other_rank, 2);
                CHECK_EQ(decision.refusal.number, number);
                CHECK_SAME(decision.refusal.other, decision.refusal.first + 1.0);
            } else {
                CHECK_EQ(decision.refusal.kind, ZI_REFUSAL_RANKS);
                CHECK_EQ(decision.refusal.part, 2);
            }
            *odd = same; /* the next step is given alike */
        }
    }
}

TEST(skipped_steps_in_a_row_are_counted)
{
    const zi_step_input input = plain_input();
    const zi_norm_sum good = sum_of(1.0);
    zi_norm_sum bad = good;
    zi_step_decision decision = {0};
    zi_step_state state;
    bad.nan_chunks = 1;
    zi_step_state_init(&state, fixed_scale(1.0f)); /* counted where the scale is fixed too */
    static const uint32_t expected[] = {0, 1, 2, 3, 0, 1, 0};
    for (int step = 0; step < 7; step++) {
        zi_step_decide(&input, input.divisor, expected[step] == 0 ? &good : &bad, &state,
                       &decision);
        CHECK_EQ(decision.skipped_in_a_row, expected[step]);
    }
}

/* Runs steps written as text, '.' good and 'x' overflow, and returns the scale after each. */
static void run_scaler(zi_loss_scaler scaler, const char *steps, const float *expected)
{
    for (size_t i = 0; steps[i] != '\0'; i++) {
        scaler = zi_loss_scaler_next(scaler, steps[i] == 'x');
        if (scaler.scale != expected[i]) {
            TEST_FAIL("step %zu of %s: scale %g instead of %g", i, steps, (double)scaler.scale,
                      (double)expected[i]);
        }
    }
}

TEST(loss_scale_doubles_after_the_window)
{
    const zi_loss_scaler scaler = {
        .scale = 16.0f, .min = 1.0f, .window = 3, .hysteresis = 1, .dynamic = 1};
    run_scaler(scaler, "......", (const float[]){16, 16, 32, 32, 32, 64});
    /* An overflow starts the window anew. */
    run_scaler(scaler, "..x...", (const float[]){16, 16, 8, 8, 8, 16});
}

TEST(loss_scale_halves_after_the_hysteresis)
{
    const zi_loss_scaler scaler = {
        .scale = 16.0f, .min = 1.0f, .window = 2, .hysteresis = 2, .dynamic = 1};
    run_scaler(scaler, "xxx", (const float[]){16, 8, 4});
    run_scaler(scaler, "x.x.xx", (const float[]){16, 16, 16, 16, 16, 8});
    run_scaler(scaler, "x..xx", (const float[]){16, 16, 32, 32, 16});
}

TEST(loss_scale_stops_at_the_floor_and_stays_finite)
{
    zi_loss_scaler scaler = {
        .scale = 8.0f, .min = 3.0f, .window = 1, .hysteresis = 1, .dynamic = 1};
    run_scaler(scaler, "xxx.", (const float[]){4, 3, 3, 6});
    scaler.scale = 2.0f; /* chosen below the floor: stays */
    run_scaler(scaler, "xx", (const float[]){2, 2});
    for (int i = 0; i < 300; i++) {
        scaler = zi_loss_scaler_next(scaler, 0);
    }
    CHECK(isfinite(scaler.scale));
    CHECK(scaler.scale >= 0x1p100f);
    scaler = fixed_scale(64.0f);
    run_scaler(scaler, "xx...x", (const float[]){64, 64, 64, 64, 64, 64});
}
