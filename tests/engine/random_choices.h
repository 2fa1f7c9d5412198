/* The choices of a random case as the command line gives and tells them, for shrink.py: a choice
 * has a number, and a value below how many there are.
 *
 * `--choices 3:1,66:4` gives choice 3 the value 1, choice 66 the value 4 or the largest that there
 * is, and all others 0; without it chance decides. `--chosen FILE` appends to FILE, as choices are
 * made, "choice NUMBER VALUE CHOICES", and for each of several alike things "item NUMBER SIZE
 * COUNT": its choices are NUMBER to NUMBER + SIZE, the next one's those behind, and choice COUNT
 * says how many there are. */
#ifndef TESTS_ENGINE_RANDOM_CHOICES_H
#define TESTS_ENGINE_RANDOM_CHOICES_H

#include "harness.h"

/* The value that the list gives to a choice; 0 where it does not name it. */
static uint32_t given_choice(const char *list, uint64_t number)
{
    uint64_t at = 0;
    uint32_t value = 0;
    int length = 0;
    for (; *list != '\0'; list += length) {
        if (sscanf(list, "%" SCNu64 ":%" SCNu32 "%n", &at, &value, &length) != 2) {
            TEST_FAIL("--choices: NUMBER:VALUE,..., not \"%s\"", list);
        }
        if (at == number) {
            return value;
        }
        length += list[length] == ',';
    }
    return 0;
}

__attribute__((format(printf, 1, 2))) static void tell_choice(const char *format, ...)
{
    if (test_asked.chosen == NULL) {
        return;
    }
    FILE *file = fopen(test_asked.chosen, "a"); /* closed at once: the case may kill the process */
    CHECK(file != NULL);
    va_list parts;
    va_start(parts, format);
    (void)vfprintf(file, format, parts);
    va_end(parts);
    CHECK_EQ(fclose(file), 0);
}

/* Make a choice: `chance`, unless the command line gives choices. */
static uint32_t random_choice(uint64_t number, uint32_t chance, uint32_t choices)
{
    uint32_t value = chance;
    if (test_asked.choices != NULL) {
        value = given_choice(test_asked.choices, number);
        value = value < choices ? value : choices - 1;
    }
    tell_choice("choice %" PRIu64 " %u %u\n", number, value, choices);
    return value;
}

/* One of several alike things follows. */
static void random_choices_item(uint64_t number, uint32_t size, uint64_t count)
{
    tell_choice("item %" PRIu64 " %u %" PRIu64 "\n", number, size, count);
}

#endif
