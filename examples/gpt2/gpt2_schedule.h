/* The inputs of each step: the learning rate, and the optimizer's numbers. */
#ifndef GPT2_SCHEDULE_H
#define GPT2_SCHEDULE_H

#include "gpt2_options.h"

#include "zero/step.h"

/* Linear warm-up, then half a cosine from lr to min_lr. step from 0. */
double gpt2_learning_rate(const gpt2_options *options, uint32_t step);

zero_step_params gpt2_step_params(const gpt2_options *options, double lr);

#endif
