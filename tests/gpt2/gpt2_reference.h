/* The record that make_reference.py wrote of a small training by PyTorch, to the file that the
 * build names in GPT2_REFERENCE. */
#ifndef TESTS_GPT2_REFERENCE_H
#define TESTS_GPT2_REFERENCE_H

#include "gpt2_case.h"

/* As in make_reference.py. */
static const gpt2_config reference_shape = {
    .layers = 2, .heads = 4, .width = 32, .seq = 48, .vocab = 64};
enum { SAMPLES = 4, STEPS = 12 };

typedef struct reference {
    double loss[STEPS];
    double norm[STEPS];
} reference;

static inline reference read_reference(void)
{
    reference expected;
    FILE *file = fopen(GPT2_REFERENCE, "r");
    CHECK(file != NULL);
    char line[256];
    int rows = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#') {
            continue;
        }
        char *next = line;
        CHECK(rows < STEPS);
        CHECK_EQ(strtol(next, &next, 10), rows);
        expected.loss[rows] = strtod(next, &next);
        expected.norm[rows] = strtod(next, &next);
        CHECK(expected.loss[rows] > 0 && expected.norm[rows] > 0);
        rows++;
    }
    CHECK_EQ(rows, STEPS);
    fclose(file);
    return expected;
}

#endif
