/* Owns the tests of large descriptions: as many tensors as a model may have, elements by the
 * trillion, and ties without end are described and planned in seconds, right to the byte. What
 * grows with the square of a number does not end before the harness's deadline. */
#include "layout/layout.h"
#include "reads.h"
#include "sanitizer.h"
#include "stage3/schedule.h"

/* Sanitizers are slow, and need no large numbers to find a fault. */
#define SCALE (UNDER_SANITIZER ? 64 : 1)
#define TENSORS ((UINT32_C(1) << 22) / SCALE)
#define UNITS ((UINT32_C(1) << 20) / SCALE)

static uint32_t add_unit(zero_model *model, const char *kind, uint32_t number)
{
    uint32_t unit = 0;
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = test_text("model.%s.%u", kind, number)},
                           &unit, NULL));
    return unit;
}

static uint32_t add_tensor(zero_model *model, uint32_t unit, uint32_t number, uint64_t count)
{
    uint32_t tensor = 0;
    const char *name = test_text("model.layers.%u.weight.%u", unit, number);
    const zero_tensor_desc desc = {.name = name, .shape = {count}, .dims = 1};
    CHECK_OK(zero_tensor_add(model, unit, &desc, &tensor));
    return tensor;
}

TEST(four_million_tensors)
{
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    uint32_t index = 0;
    CHECK_OK(zero_model_create(&model));
    for (uint32_t u = 0; u < UNITS; u++) {
        CHECK_EQ(add_unit(model, "layers", u), u);
        for (uint32_t t = 0; t < TENSORS / UNITS; t++) {
            CHECK_EQ(add_tensor(model, u, t, 512), u * (TENSORS / UNITS) + t);
        }
    }
    CHECK_EQ(zero_model_tensor_count(model), TENSORS);
    CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = "model.layers.17"}, &index, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "is taken by unit 17");
    const zero_tensor_desc again = {.name = "model.layers.17.weight.3", .dims = 0};
    CHECK_FAILS(zero_tensor_add(model, 18, &again, &index), ZERO_ERR_INVALID_ARGUMENT,
                "is taken by tensor 71");
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    options.tuning = &tuning;
    tuning.bucket_bytes = 1;
    CHECK_OK(zero_plan_create(model, &options, 4, &plan));
    zero_model_destroy(model);
    const zero_memory memory = plan_memory(plan);
    CHECK_EQ(memory.bytes[ZERO_ROLE_PARAM], (uint64_t)TENSORS * 512 * 4 / 4);
    CHECK_EQ(memory.bytes[ZERO_ROLE_MOMENT2], (uint64_t)TENSORS * 512 * 4 / 4);
    CHECK(zero_plan_hash(plan) != 0);
    zero_plan_destroy(plan);
}

/* One unit ties to all others, and every second one to it would be a chain. */
TEST(many_ties)
{
    zero_model *model = NULL;
    zi_layout *layout = NULL;
    const uint32_t owners = UNITS / 8;
    CHECK_OK(zero_model_create(&model));
    for (uint32_t u = 0; u < owners; u++) {
        (void)add_unit(model, "owner", u);
        CHECK_EQ(add_tensor(model, u, 0, 1), 2 * u);
        CHECK_EQ(add_tensor(model, u, 1, 1), 2 * u + 1);
    }
    const uint32_t first = add_unit(model, "user", 0);
    const uint32_t second = add_unit(model, "user", 1);
    for (uint32_t u = owners; u-- > 0;) {
        CHECK_OK(zero_tensor_tie(model, first, 2 * u));
        CHECK_OK(zero_tensor_tie(model, first, 2 * u)); /* has no effect */
        CHECK_OK(zero_tensor_tie(model, second, 2 * u + 1));
    }
    for (uint32_t u = 0; u < owners; u++) { /* no new owners */
        CHECK_OK(zero_tensor_tie(model, first, 2 * u + 1));
    }
    const uint32_t held = add_tensor(model, first, 0, 1);
    CHECK_FAILS(zero_tensor_tie(model, second, held), ZERO_ERR_INVALID_ARGUMENT, "do not chain");
    CHECK_FAILS(zero_tensor_tie(model, 5, held), ZERO_ERR_INVALID_ARGUMENT, "do not chain");
    CHECK_OK(zi_layout_create(model, NULL, 2, true, NULL, &layout));
    zero_model_destroy(model);
    CHECK_EQ(layout->units[first].owner_count, owners);
    CHECK_EQ(layout->units[second].owner_count, owners);
    CHECK_EQ(layout->units[7].owner_count, 0);
    CHECK_EQ(layout->units[7].tied_by, 2);
    for (uint32_t i = 0; i < owners; i++) { /* in the order of the ties */
        CHECK_EQ(layout->owners[layout->units[first].owner_first + i], owners - 1 - i);
        CHECK_EQ(layout->owners[layout->units[second].owner_first + i], owners - 1 - i);
        CHECK_EQ(layout->ties[layout->units[first].tie_first + i], 2 * (owners - 1 - i));
        CHECK_EQ(layout->ties[layout->units[first].tie_first + owners + i], 2 * i + 1);
    }
    CHECK_EQ(layout->units[first].tie_count, 2 * owners);
    CHECK_EQ(layout->units[second].tie_count, owners);
    zi_layout_destroy(layout);
}

/* All roles on disk, in the smallest ranges that so many can be counted in. */
static void check_huge(const zero_model *model, uint64_t elements, uint32_t world)
{
    zero_engine_options options = zero_engine_options_init();
    zero_plan *plan = NULL;
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        options.tier[role] = ZERO_TIER_DISK;
    }
    CHECK_OK(zero_plan_create(model, &options, world, &plan));
    const zero_memory memory = plan_memory(plan);
    const uint64_t share = elements / world * 4;
    CHECK_EQ(memory.bytes[ZERO_ROLE_PARAM], share);
    CHECK_EQ(memory.bytes[ZERO_ROLE_GRAD], share);
    CHECK(memory.bytes[ZERO_ROLE_MOMENT1] >= share);
    CHECK(memory.bytes[ZERO_ROLE_MOMENT1] < share + share / 1024);
    CHECK(memory.tier_bytes[ZERO_TIER_DISK] >= 4 * share);
    CHECK(memory.tier_bytes[ZERO_TIER_DISK] < 4 * share + share / 128);
    zero_plan_destroy(plan);
}

TEST(trillions_of_elements)
{
    for (int units = 1; units <= 1024; units *= 32) {
        zero_model *model = NULL;
        CHECK_OK(zero_model_create(&model));
        for (uint32_t u = 0; u < (uint32_t)units; u++) {
            (void)add_tensor(model, add_unit(model, "layer", u), 0,
                             (UINT64_C(1) << 46) / (uint32_t)units);
        }
        check_huge(model, UINT64_C(1) << 46, 1);
        check_huge(model, UINT64_C(1) << 46, 512);
        zero_model_destroy(model);
    }
}

/* An order in which nothing was used as declared, and everything elsewhere. */
TEST(pruning_a_long_order)
{
    static const zero_pass passes[] = {ZERO_PASS_FORWARD, ZERO_PASS_BACKWARD, (zero_pass)0};
    zero_model *model = NULL;
    zi_layout *layout = NULL;
    zi_schedule schedule;
    const uint32_t units = UNITS / 4;
    CHECK_OK(zero_model_create(&model));
    for (uint32_t u = 0; u < units; u++) {
        (void)add_tensor(model, add_unit(model, "layer", u), 0, 1);
    }
    CHECK_OK(zi_layout_create(model, NULL, 2, true, NULL, &layout));
    CHECK_OK(zi_schedule_create(layout, passes, &schedule));
    CHECK_EQ(schedule.count, 2 * units);
    schedule.position = schedule.count;
    for (uint32_t u = 0; u < units; u++) {
        const zi_schedule_entry entry = {
            .unit = u, .via = u, .pass = ZERO_PASS_BACKWARD, .used = 1};
        CHECK(zi_schedule_insert(&schedule, entry));
        schedule.position = schedule.count;
    }
    zi_schedule_prune(&schedule);
    /* Forward was not used at all, so it stays; backward is where it was used. */
    CHECK_EQ(schedule.count, 2 * units);
    for (uint32_t u = 0; u < units; u++) {
        CHECK_EQ(schedule.entries[u].unit, u);
        CHECK_EQ(schedule.entries[u].pass, ZERO_PASS_FORWARD);
        CHECK_EQ(schedule.entries[units + u].unit, u);
        CHECK_EQ(schedule.entries[units + u].pass, ZERO_PASS_BACKWARD);
    }
    zi_schedule_destroy(&schedule);
    zi_layout_destroy(layout);
    zero_model_destroy(model);
}
