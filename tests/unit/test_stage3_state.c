/* stage3: the unit's state table cell by cell, and the schedule. */
#include "harness.h"

#include "stage3/schedule.h"
#include "stage3/unit_state.h"
#include "zero/model.h"

typedef struct cell {
    zi_unit_state state;
    zi_unit_event event;
    zi_unit_state next;
    zi_unit_action action;
} cell;

#define ROW(state, event, next, action)                                \
    {                                                                  \
        ZI_UNIT_##state, ZI_ON_##event, ZI_UNIT_##next, ZI_DO_##action \
    }

static const cell cells[] = {
    ROW(ABSENT, FETCH, GATHERING, GATHER),
    ROW(ABSENT, ACQUIRE, IN_USE, GATHER_AWAIT),
    ROW(ABSENT, PASS, ABSENT, REFUSE),
    ROW(ABSENT, RELEASE, ABSENT, REFUSE),
    ROW(ABSENT, RELEASE_LAST, ABSENT, REFUSE),
    ROW(ABSENT, EVICT, ABSENT, REFUSE),
    ROW(ABSENT, INVALIDATE, ABSENT, NOTHING),
    ROW(GATHERING, FETCH, GATHERING, NOTHING),
    ROW(GATHERING, ACQUIRE, IN_USE, AWAIT),
    ROW(GATHERING, PASS, READY, NOTHING),
    ROW(GATHERING, RELEASE, GATHERING, REFUSE),
    ROW(GATHERING, RELEASE_LAST, GATHERING, REFUSE),
    ROW(GATHERING, EVICT, ABSENT, FREE),
    ROW(GATHERING, INVALIDATE, ABSENT, FREE),
    ROW(IN_USE, FETCH, IN_USE, NOTHING),
    ROW(IN_USE, ACQUIRE, IN_USE, AWAIT),
    ROW(IN_USE, PASS, IN_USE, NOTHING),
    ROW(IN_USE, RELEASE, IN_USE, NOTHING),
    ROW(IN_USE, RELEASE_LAST, READY, NOTHING),
    ROW(IN_USE, EVICT, IN_USE, REFUSE),
    ROW(IN_USE, INVALIDATE, IN_USE, REFUSE),
    ROW(READY, FETCH, GATHERING, NOTHING),
    ROW(READY, ACQUIRE, IN_USE, AWAIT),
    ROW(READY, PASS, READY, NOTHING),
    ROW(READY, RELEASE, READY, REFUSE),
    ROW(READY, RELEASE_LAST, READY, REFUSE),
    ROW(READY, EVICT, ABSENT, FREE),
    ROW(READY, INVALIDATE, ABSENT, FREE),
};

TEST(state_table_cell_by_cell)
{
    bool seen[ZI_UNIT_STATE_COUNT][ZI_UNIT_EVENT_COUNT] = {{false}};
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        const zi_unit_step step = zi_unit_on(cells[i].state, cells[i].event);
        CHECK_EQ(step.next, cells[i].next);
        CHECK_EQ(step.action, cells[i].action);
        CHECK(!seen[cells[i].state][cells[i].event]);
        seen[cells[i].state][cells[i].event] = true;
    }
    CHECK_EQ(sizeof cells / sizeof cells[0], ZI_UNIT_STATE_COUNT * ZI_UNIT_EVENT_COUNT);
    CHECK(strcmp(zi_unit_state_name(ZI_UNIT_IN_USE), "in use") == 0);
}

/* A layout of `count` units of one tensor each; unit 0's tensor is tied to the last unit when
 * asked. */
static zi_layout *layout_of(uint32_t count, bool tied)
{
    zero_model *model = NULL;
    zi_layout *layout = NULL;
    CHECK_OK(zero_model_create(&model));
    for (uint32_t i = 0; i < count; i++) {
        const char *name = test_text("u%u", i);
        const zero_tensor_desc desc = {.name = name, .shape = {100}, .dims = 1};
        CHECK_OK(zero_unit_add(model,
                               &(zero_unit_desc){.name = name, .tensors = &desc, .tensor_count = 1},
                               NULL, NULL));
    }
    if (tied) {
        CHECK_OK(zero_tensor_tie(model, count - 1, 0));
    }
    CHECK_OK(zi_layout_create(model, NULL, 4, false, NULL, &layout));
    zero_model_destroy(model);
    return layout;
}

static const zero_pass train[] = {ZERO_PASS_FORWARD, ZERO_PASS_BACKWARD, (zero_pass)0};

static void check_entries(const zi_schedule *schedule, const char *expected)
{
    char text[128] = "";
    for (uint32_t i = 0; i < schedule->count; i++) {
        const size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "%s%c%u", i == 0 ? "" : " ",
                       schedule->entries[i].pass == ZERO_PASS_FORWARD ? 'F' : 'B',
                       schedule->entries[i].unit);
    }
    if (strcmp(text, expected) != 0) {
        TEST_FAIL("the order is \"%s\", not \"%s\"", text, expected);
    }
}

TEST(declared_order)
{
    zi_layout *layout = layout_of(3, false);
    zi_schedule schedule;
    CHECK_OK(zi_schedule_create(layout, train, &schedule));
    check_entries(&schedule, "F0 F1 F2 B2 B1 B0");
    zi_schedule_destroy(&schedule);
    zi_layout_destroy(layout);
    layout = layout_of(3, true);
    CHECK_OK(zi_schedule_create(layout, train, &schedule));
    check_entries(&schedule, "F0 F1 F0 F2 B0 B2 B1 B0");
    zi_schedule_destroy(&schedule);
    zi_layout_destroy(layout);
}

static zi_schedule_entry entry_of(uint32_t unit, zero_pass pass)
{
    return (zi_schedule_entry){.unit = unit, .via = unit, .pass = (uint8_t)pass};
}

TEST(tied_entries_are_told_apart)
{
    zi_layout *layout = layout_of(3, true);
    zi_schedule schedule;
    CHECK_OK(zi_schedule_create(layout, train, &schedule));
    const zi_schedule_entry through_head = {.unit = 0, .via = 2, .pass = ZERO_PASS_FORWARD};
    CHECK_EQ(zi_schedule_find(&schedule, entry_of(0, ZERO_PASS_FORWARD)), 0);
    CHECK_EQ(zi_schedule_find(&schedule, through_head), 2);
    CHECK_EQ(zi_schedule_find(&schedule, entry_of(0, ZERO_PASS_BACKWARD)), 7);
    zi_schedule_prune(&schedule);
    zi_schedule_reset(&schedule, layout, train);
    check_entries(&schedule, "F0 F1 F0 F2 B0 B2 B1 B0");
    zi_schedule_destroy(&schedule);
    zi_layout_destroy(layout);
}

TEST(found_from_the_position_on)
{
    zi_layout *layout = layout_of(3, false);
    zi_schedule schedule;
    CHECK_OK(zi_schedule_create(layout, train, &schedule));
    CHECK_EQ(zi_schedule_find(&schedule, entry_of(1, ZERO_PASS_FORWARD)), 1);
    CHECK_EQ(zi_schedule_find(&schedule, entry_of(1, ZERO_PASS_BACKWARD)), 4);
    schedule.position = 2;
    CHECK_EQ(zi_schedule_find(&schedule, entry_of(1, ZERO_PASS_FORWARD)), ZI_NO_INDEX);
    zi_schedule_destroy(&schedule);
    zi_layout_destroy(layout);
}

TEST(inserted_until_full_then_pruned)
{
    zi_layout *layout = layout_of(2, false);
    zi_schedule schedule;
    CHECK_OK(zi_schedule_create(layout, train, &schedule));
    schedule.position = 1;
    CHECK(zi_schedule_insert(&schedule, entry_of(0, ZERO_PASS_FORWARD)));
    check_entries(&schedule, "F0 F0 F1 B1 B0");
    /* F0 has moved to where it was inserted; nobody used B1, which may come back. */
    for (uint32_t i = 0; i < schedule.count; i++) {
        schedule.entries[i].used = i != 0 && i != 3;
    }
    zi_schedule_prune(&schedule);
    check_entries(&schedule, "F0 F1 B1 B0");
    CHECK_EQ(schedule.position, 0);
    zi_schedule_prune(&schedule); /* no marks: nobody trained, the order is kept */
    check_entries(&schedule, "F0 F1 B1 B0");
    uint32_t room = schedule.capacity - schedule.count;
    while (room-- > 0) {
        CHECK(zi_schedule_insert(&schedule, entry_of(1, ZERO_PASS_BACKWARD)));
    }
    CHECK(!zi_schedule_insert(&schedule, entry_of(1, ZERO_PASS_BACKWARD)));
    CHECK_EQ(schedule.count, schedule.capacity);
    zi_schedule_destroy(&schedule);
    zi_layout_destroy(layout);
}
