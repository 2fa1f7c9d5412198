/* A model of several groups, and refusals of a step's numbers: of the files that test groups. */
#ifndef TESTS_ENGINE_GROUPED_H
#define TESTS_ENGINE_GROUPED_H

#include "harness.h"

#include "toy.h"

/* Groups 0, 1, 2 and the last one, in each of three units. */
static inline void toy_grouped_model(toy_model *model)
{
    toy_model_open(model);
    for (uint32_t u = 0; u < 3; u++) {
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_grouped(model, 170, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN, 0);
        (void)toy_model_grouped(model, 31, ZERO_DTYPE_F32, ZERO_TENSOR_NO_DECAY, 1);
        (void)toy_model_grouped(model, 65, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN, 2);
        (void)toy_model_grouped(model, 9, ZERO_DTYPE_F32, ZERO_TENSOR_NO_DECAY, 63);
    }
}

/* `change` is made to `params`, which `trainer` then steps with. */
#define REFUSE_PARAMS(change, text)                                                               \
    do {                                                                                          \
        zero_step_params params = zero_step_params_init();                                        \
        change;                                                                                   \
        CHECK_FAILS(zero_step(trainer->engine, &params, toy_stream()), ZERO_ERR_INVALID_ARGUMENT, \
                    text);                                                                        \
    } while (0)

#endif
