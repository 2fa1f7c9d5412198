/* Owns the tests of virtual time: bookings of a link, and what a track did while another waited. */
#include "harness.h"

#include "sim/sim_calendar.h"
#include "sim/sim_machine.h"
#include "sim/sim_track.h"

static zi_sim_calendar calendar;

TEST(transfers_on_one_link_add_up)
{
    CHECK_EQ(zi_sim_calendar_book(&calendar, 100, 50), 150);
    CHECK_EQ(zi_sim_calendar_book(&calendar, 100, 50), 200);
    CHECK_EQ(zi_sim_calendar_book(&calendar, 120, 10), 210);
    CHECK_EQ(zi_sim_calendar_book(&calendar, 300, 10), 310);
    CHECK_EQ(calendar.count, 2);
}

TEST(a_later_booking_takes_what_is_free)
{
    CHECK_EQ(zi_sim_calendar_book(&calendar, 10, 10), 20);
    CHECK_EQ(zi_sim_calendar_book(&calendar, 30, 10), 40);
    CHECK_EQ(zi_sim_calendar_book(&calendar, 0, 10), 10); /* just before the first */
    CHECK_EQ(zi_sim_calendar_book(&calendar, 0, 15), 45); /* the gap, and behind the last */
    CHECK_EQ(zi_sim_calendar_book(&calendar, 5, 0), 5);
    CHECK_EQ(calendar.count, 1);
    CHECK_EQ(calendar.busy[0].begin_ns, 0);
    CHECK_EQ(calendar.busy[0].end_ns, 45);
}

/* Against a clock that is a list of nanoseconds. */
TEST(bookings_are_those_of_a_list_of_nanoseconds)
{
    enum { NANOSECONDS = 4000, BOOKINGS = 200 };
    static bool busy[NANOSECONDS];
    uint64_t state = test_seed;
    for (int i = 0; i < BOOKINGS; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t from = (state >> 33) % 1000;
        uint64_t left = 1 + (state >> 50) % 12;
        const uint64_t ns = left;
        uint64_t at = from;
        for (; left > 0; at++) {
            left -= !busy[at];
            busy[at] = true;
        }
        CHECK_EQ(zi_sim_calendar_book(&calendar, from, ns), at);
    }
}

/* 10 ns for each booking of 5: the gaps of the first half close when there is no room for one more.
 */
TEST(a_full_calendar_closes_its_older_gaps)
{
    const uint64_t half = ZI_SIM_INTERVALS / 2;
    for (uint64_t i = 0; i <= ZI_SIM_INTERVALS; i++) {
        CHECK_EQ(zi_sim_calendar_book(&calendar, 10 * i, 5), 10 * i + 5);
    }
    CHECK_EQ(calendar.count, half + 1);
    CHECK_EQ(zi_sim_calendar_book(&calendar, 0, 1), 10 * half + 5 + 1);
    CHECK_EQ(zi_sim_calendar_book(&calendar, 10 * (half + 20) + 5, 5), 10 * (half + 20) + 10);
}

static zi_sim_track caller;
static zi_sim_track gather;
static zi_sim_track update;

/* The caller waits for a gather, which waits for an update. */
TEST(a_wait_is_what_the_other_track_did)
{
    uint64_t ns[ZERO_SIM_CAUSE_COUNT] = {0};
    zi_sim_track_work(&update, 30, ZERO_SIM_DISK);
    zi_sim_track_work(&update, 70, ZERO_SIM_UPDATE);
    zi_sim_track_wait(&gather, &update, 70);
    zi_sim_track_work(&gather, 100, ZERO_SIM_GATHER);
    zi_sim_track_work(&caller, 20, ZERO_SIM_OTHER);
    zi_sim_track_wait(&caller, &gather, 100);
    CHECK_EQ(caller.now_ns, 100);
    zi_sim_track_causes(&caller, 20, 100, ns);
    CHECK_EQ(ns[ZERO_SIM_DISK], 10);
    CHECK_EQ(ns[ZERO_SIM_UPDATE], 40);
    CHECK_EQ(ns[ZERO_SIM_GATHER], 30);
    CHECK_EQ(ns[ZERO_SIM_OTHER], 0);
}

TEST(no_track_goes_back)
{
    zi_sim_track_work(&caller, 50, ZERO_SIM_OTHER);
    zi_sim_track_wait(&caller, &gather, 40);
    CHECK_EQ(caller.now_ns, 50);
    CHECK_EQ(caller.count, 1);
}

TEST(what_is_not_remembered_has_no_cause)
{
    uint64_t ns[ZERO_SIM_CAUSE_COUNT] = {0};
    for (uint64_t i = 0; i < 2 * ZI_SIM_SPANS; i++) {
        zi_sim_track_work(&gather, i + 1, i % 2 == 0 ? ZERO_SIM_GATHER : ZERO_SIM_COPY);
    }
    zi_sim_track_causes(&gather, ZI_SIM_SPANS - 10, ZI_SIM_SPANS + 10, ns);
    CHECK_EQ(ns[ZERO_SIM_OTHER], 10);
    CHECK_EQ(ns[ZERO_SIM_GATHER], 5);
    CHECK_EQ(ns[ZERO_SIM_COPY], 5);
}

/* The mean of the last of n exponential distributions is the sum of 1/k, k from 1 to n. */
TEST(a_collective_begins_with_its_last_rank)
{
    enum { DRAWS = 20000 };
    static zi_sim_machine machine;
    machine.jitter_ns = 1000000;
    machine.seed = test_seed;
    for (uint32_t ranks = 1; ranks <= 1024; ranks *= 4) {
        double sum = 0;
        double expected = 0;
        for (int i = 0; i < DRAWS; i++) {
            sum += (double)zi_sim_draw_lateness(&machine, ranks);
        }
        for (uint32_t k = 1; k <= ranks && ranks > 1; k++) {
            expected += 1e6 / k;
        }
        CHECK_NEAR(sum / DRAWS, expected, expected * 0.03);
    }
}
