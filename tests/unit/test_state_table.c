/* engine: the table of an engine's states cell by cell, against one that was written down here.
 * tests/engine/test_engine_states.c makes the calls themselves. */
#include "harness.h"

#include "engine/engine_state.h"

/* By state and call, in the order of the lists: '.' is refused, '=' leaves the state as it is, and
 * a letter is the state that follows. Blanks part the calls into groups: units; the step; what
 * waits or changes values; eviction; captures and launches. */
static const char letters[] = "IMALDEPimaldCRX";
static const char *const expected[] = {
    "ML..==. ....= ======= E. P..R..", /* I idle */
    "..A=.== ..I.= =...... .. ......", /* M micro-step */
    "ML..==. ..I.= =.=..== .. ......", /* A accumulating */
    "..D=.== ..I.. =...... .. ......", /* L last micro-step */
    "....==. III=. =...... .. ......", /* D step due */
    "....==. ....= ==...== .I ......", /* E evicted */
    "....... ..... ....... .. .iI...", /* P capture prepared */
    "ml..==. ..... ....... .. ......", /* i capturing */
    "..a=.== ..... ....... .. ......", /* m, a, l, d: the same in a capture */
    "ml..==. ..... ....... .. ......", /* a */
    "..d=.== ..... ....... .. ......", /* l */
    "....==. C.... ....... .. ......", /* d */
    "....... ..... ....... .. ..I...", /* C step captured */
    "....... ..... ....... .. ....=I", /* R replaying */
    "....... ..... ....... .. ......", /* X poisoned */
};

TEST(cell_by_cell)
{
    CHECK_EQ(sizeof expected / sizeof expected[0], ZI_ENGINE_STATE_COUNT);
    CHECK_EQ(strlen(letters), ZI_ENGINE_STATE_COUNT);
    for (zi_engine_state s = ZI_ENGINE_IDLE; s < ZI_ENGINE_STATE_COUNT; s++) {
        int call = 0;
        for (const char *at = expected[s]; *at != '\0'; at++) {
            if (*at == ' ') {
                continue;
            }
            const zi_engine_cell cell = zi_engine_on(s, (zi_engine_call)call++);
            const char got = !cell.legal ? '.' : cell.next == s ? '=' : letters[cell.next];
            if (got != *at) {
                TEST_FAIL("%s, call %d: '%c' instead of '%c'", zi_engine_state_name(s), call - 1,
                          got, *at);
            }
            CHECK(cell.legal || (cell.next == s && cell.remedy != NULL));
        }
        CHECK_EQ(call, ZI_ENGINE_CALL_COUNT);
    }
}

/* No state is a trap: calls lead from each to idle, and from idle to each, but for a failure's. */
TEST(every_state_is_reached_and_left)
{
    bool reached[ZI_ENGINE_STATE_COUNT] = {[ZI_ENGINE_IDLE] = true};
    bool left[ZI_ENGINE_STATE_COUNT] = {[ZI_ENGINE_IDLE] = true};
    for (int round = 0; round < ZI_ENGINE_STATE_COUNT; round++) {
        for (int s = 0; s < ZI_ENGINE_STATE_COUNT; s++) {
            for (int c = 0; c < ZI_ENGINE_CALL_COUNT; c++) {
                const zi_engine_cell cell = zi_engine_on((zi_engine_state)s, (zi_engine_call)c);
                reached[cell.next] = reached[cell.next] || reached[s];
                left[s] = left[s] || left[cell.next];
            }
        }
    }
    for (int s = 0; s < ZI_ENGINE_STATE_COUNT; s++) {
        CHECK_EQ(reached[s], s != ZI_ENGINE_POISONED);
        CHECK_EQ(left[s], s != ZI_ENGINE_POISONED);
    }
}

TEST(what_goes_with_a_state)
{
    CHECK(strcmp(zi_engine_state_name(ZI_ENGINE_STEP_DUE), "step due") == 0);
    CHECK_EQ(zi_engine_state_streams(ZI_ENGINE_EVICTED), ZI_STREAMS_ANY);
    CHECK_EQ(zi_engine_state_streams(ZI_ENGINE_PREPARED), ZI_STREAMS_NATIVE);
    CHECK_EQ(zi_engine_state_streams(ZI_ENGINE_CAPTURED), ZI_STREAMS_CAPTURED);
    CHECK_EQ(zi_engine_state_streams(ZI_ENGINE_REPLAYING), ZI_STREAMS_NATIVE);
    for (int s = 0; s < ZI_ENGINE_STATE_COUNT; s++) {
        CHECK_EQ(zi_engine_state_owes((zi_engine_state)s), strchr("MLDmld", letters[s]) != NULL);
    }
    CHECK_EQ(zi_engine_call_needs(ZI_CALL_GRADS), 0);
    CHECK_EQ(zi_engine_call_needs(ZI_CALL_SHARD_WRITE), ZI_NEEDS_ROLE | ZI_NEEDS_NO_UNIT);
}
