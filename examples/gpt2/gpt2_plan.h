/* The output of --plan: the model and the plan of a rank's memory, as a table and as JSON. */
#ifndef GPT2_PLAN_H
#define GPT2_PLAN_H

#include "gpt2_model.h"
#include "gpt2_options.h"
#include "zero/plan.h"

/* Print the table to standard output, and the same as JSON to options->json if that is given; if it
 * is
 * "-", the JSON replaces the table. */
bool gpt2_plan_report(const gpt2_options *options, const gpt2_config *config, const zero_plan *plan,
                      gpt2_error *error);

#endif
