/* Checks, comparisons and prints by the table of options (zero/option.h). */
#ifndef ZI_LAYOUT_OPTION_TABLE_H
#define ZI_LAYOUT_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zero/option.h"

/* "options" or "tuning": where messages say that the field is. */
const char *zi_option_struct(const zero_option *option);

/* The option's field, in the struct that has it. */
void *zi_option_field(const zero_option *option, zero_engine_options *options, zero_tuning *tuning);

/* The names that the option can have: "default, f32, bf16". */
void zi_option_choices(const zero_option *option, char *text, size_t text_bytes);

/* A FLAG, COUNT, BYTES, NUMBER or CHOICE, wherever its field is. */
uint64_t zi_option_whole(const zero_option *option, const void *field);
void zi_option_put(const zero_option *option, void *field, uint64_t value);

/* True if a FLAG, COUNT, BYTES or NUMBER may have the value; 0 is the default. */
static inline bool zi_option_in_bounds(const zero_option *option, uint64_t value)
{
    return value == 0 || (value >= option->low && value <= option->high);
}

#endif
