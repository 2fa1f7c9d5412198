/* Owns the count of calls that a trainer with the hooks makes: the linker leads the GPT's calls
 * past counters. */
#include "gpt2_case.h"
#include "gpt2_net.h"

enum { SAMPLES = 1 };

static uint32_t calls;

/* Defines the way past a counter; given: the parameters, then what is handed on of them. */
#define COUNTED(name, parameters, given)  \
    zero_status __real_##name parameters; \
    zero_status __wrap_##name parameters; \
    zero_status __wrap_##name parameters  \
    {                                     \
        calls++;                          \
        return __real_##name given;       \
    }

COUNTED(zero_unit_acquire,
        (zero_engine * engine, uint32_t unit, zero_pass pass, zero_stream stream,
         const zero_unit_view **view),
        (engine, unit, pass, stream, view))
COUNTED(zero_unit_release, (zero_engine * engine, uint32_t unit, zero_stream stream),
        (engine, unit, stream))
COUNTED(zero_unit_params_acquire,
        (zero_engine * engine, uint32_t unit, zero_pass pass, zero_stream stream),
        (engine, unit, pass, stream))
COUNTED(zero_unit_params_release, (zero_engine * engine, uint32_t unit, zero_stream stream),
        (engine, unit, stream))
COUNTED(zero_unit_grads_acquire, (zero_engine * engine, uint32_t unit, zero_stream stream),
        (engine, unit, stream))
COUNTED(zero_unit_grads_ready, (zero_engine * engine, uint32_t unit, zero_stream stream),
        (engine, unit, stream))
COUNTED(zero_tensor_data, (zero_engine * engine, uint32_t tensor, zero_view *view),
        (engine, tensor, view))
COUNTED(zero_tensor_grad, (zero_engine * engine, uint32_t tensor, zero_view *view),
        (engine, tensor, view))

/* Calls of a forward and a backward over so many layers. */
static uint32_t count_calls(uint32_t layers)
{
    const gpt2_config shape = {.layers = layers, .heads = 2, .width = 16, .seq = 16, .vocab = 32};
    gpt2_net_setup setup = {.config = shape,
                            .options = zero_engine_options_init(),
                            .tuning = zero_tuning_init(),
                            .dtype = ZERO_DTYPE_F32,
                            .samples = SAMPLES,
                            .seed = 1};
    zero_world *world = NULL;
    gpt2_net net;
    gpt2_case tokens;
    setup.options.threads = 1;
    case_create(&tokens, &shape, SAMPLES, true);
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(gpt2_net_create(&net, world, &setup));
    const gpt2_batch batch = {tokens.tokens, tokens.targets, SAMPLES, shape.seq};
    CHECK_OK(zero_micro_begin(net.engine, ZERO_MICRO_LAST));
    calls = 0;
    CHECK_OK(gpt2_net_forward(&net, &batch, ZERO_PASS_FORWARD));
    CHECK_OK(gpt2_net_backward(&net, 1));
    const uint32_t counted = calls;
    CHECK_OK(zero_micro_end(net.engine));
    gpt2_net_destroy(&net);
    zero_world_destroy(world);
    case_destroy(&tokens);
    return counted;
}

TEST(a_block_of_twelve_tensors_costs_four_calls)
{
    const uint32_t one = count_calls(1);
    CHECK_EQ(GPT2_BLOCK_TENSORS, 12);
    CHECK_EQ(count_calls(5) - one, 4 * 4);
    CHECK(one <= 4 + 4 + 6); /* the head, and the embedding with gradients of two tensors */
}
