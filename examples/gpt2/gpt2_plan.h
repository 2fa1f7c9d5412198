/* What --plan prints: the model and the plan of a rank's memory, as a table and as JSON. */
#ifndef GPT2_PLAN_H
#define GPT2_PLAN_H

#include "gpt2_model.h"
#include "gpt2_options.h"
#include "zero/plan.h"

/* The table to standard output, and to options->json, where it is given, the same as JSON: in place
 * of the table where that is "-". */
bool gpt2_plan_report(const gpt2_options *options, const gpt2_config *config, const zero_plan *plan,
                      gpt2_error *error);

#endif
