/* Options from anybody's text, NAME=VALUE: each is refused with a message and nothing is written,
 * or is printed as a text that sets the same. The same seed gives the same texts.
 *
 * For libFuzzer: scripts/fuzz option SECONDS. */
#include "fuzz_corpus.h"

#include "core/check.h"
#include "zero/option.h"
#include "zero/options.h"
#include "zero/status.h"
#include "zero/tuning.h"

#define TEXT_MAX ((size_t)1024)

typedef struct option_pair {
    zero_engine_options options;
    zero_tuning tuning;
} option_pair;

static option_pair defaults(void)
{
    option_pair pair;
    memset(&pair, 0, sizeof pair);
    pair.options = zero_engine_options_init();
    pair.tuning = zero_tuning_init();
    return pair;
}

static void check_refusal(const option_pair *got)
{
    const option_pair before = defaults();
    const zero_error *said = zero_last_error();
    zi_assert(said->status == ZERO_ERR_INVALID_ARGUMENT);
    zi_assert(strlen(said->message) > 10 && strlen(said->message) < 256);
    zi_assert(memcmp(got, &before, sizeof before) == 0);
}

/* A text points into the caller's bytes, so it is compared as text. */
static void check_printed(const zero_option *option, const option_pair *got)
{
    char printed[2 * TEXT_MAX];
    char again[2 * TEXT_MAX];
    option_pair other = defaults();
    const size_t bytes =
        zero_option_print(option, &got->options, &got->tuning, printed, sizeof printed);
    zi_assert_cmp(bytes, <, sizeof printed);
    zi_assert_cmp(bytes, ==, strlen(printed));
    if (option->kind == ZERO_OPTION_TEXT && bytes == 0) {
        return;
    }
    CHECK_OK(zero_option_set(&other.options, &other.tuning, option->name, printed));
    (void)zero_option_print(option, &other.options, &other.tuning, again, sizeof again);
    zi_assert(strcmp(printed, again) == 0);
    if (option->kind != ZERO_OPTION_TEXT) {
        zi_assert(memcmp(&other, got, sizeof other) == 0);
    }
}

static bool fuzz_one(const unsigned char *data, size_t bytes)
{
    char text[TEXT_MAX + 1] = "";
    option_pair pair = defaults();
    memcpy(text, data, bytes < TEXT_MAX ? bytes : TEXT_MAX);
    char *value = strchr(text, '=');
    if (value != NULL) {
        *value++ = '\0';
    }
    if (zero_option_set(&pair.options, &pair.tuning, text, value != NULL ? value : "") != ZERO_OK) {
        check_refusal(&pair);
        return false;
    }
    const zero_option *option = zero_option_find(text);
    zi_assert(option != NULL);
    check_printed(option, &pair);
    return true;
}

#ifdef FUZZ_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    (void)fuzz_one(data, bytes);
    return 0;
}

#else

#define CASES 40000

/* A text that an option takes, or nearly. */
static void make_text(uint64_t turn, fuzz_input *input)
{
    static const char *const values[] = {"0", "1", "7", "16", "4K", "1G", "0.5", "default", "on"};
    const zero_option *option = zero_option_at(test_chance(turn * 8, zero_option_count()));
    const char *value = values[test_chance(turn * 8 + 1, sizeof values / sizeof values[0])];
    if (option->choice_count != 0 && test_chance(turn * 8 + 2, 4) != 0) {
        const char *choice = option->choices[test_chance(turn * 8 + 3, option->choice_count)];
        value = choice != NULL ? choice : value;
    }
    if (option->kind == ZERO_OPTION_TIERS) {
        value = test_text("moment1=%s,master=%s", value, value);
    } else if (option->kind == ZERO_OPTION_GROUPS) {
        value = test_text("%u=%s", test_chance(turn * 8 + 4, 65), value);
    }
    const char *text = test_text("%s=%s", option->name, value);
    fuzz_set(input, text, strlen(text));
}

TEST(texts_that_are_damaged)
{
    static fuzz_input input;
    static fuzz_input another;
    unsigned accepted = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        const uint64_t turn = test_seed * CASES * 4 + i;
        make_text(turn, &input);
        make_text(turn + 1, &another);
        for (uint32_t k = 0; k < test_chance(turn, 3); k++) {
            fuzz_damage_once(turn * 4 + k, &input, &another);
        }
        accepted += fuzz_one(input.data, input.bytes);
    }
    printf("  %u of %u texts were accepted\n", accepted, CASES);
    CHECK(accepted > CASES / 10 && accepted < CASES / 10 * 9);
}

TEST_CALL(corpus, fuzz_replay("option", fuzz_one));

#endif
