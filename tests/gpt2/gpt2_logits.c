/* gpt2_logits PATH RANKS LAYERS HEADS WIDTH SEQ VOCAB TOKEN...
 *
 * Loads weights or a checkpoint as gpt2_train --init-from does, on ranks as threads at stage 3 in
 * f32, and prints the logits after each token, a line each. */
#include "gpt2_net.h"
#include "gpt2_weights.h"

#include <stdlib.h>

enum { TOKENS_MAX = 64 };

typedef struct task {
    gpt2_config config;
    const char *path;
    int32_t tokens[TOKENS_MAX];
    uint32_t count;
    gpt2_error error;
} task;

static zero_status print_logits(gpt2_net *net, zero_world *world, const task *all, float *logits)
{
    for (uint32_t n = 1; n <= all->count; n++) {
        const gpt2_batch batch = {all->tokens, NULL, 1, n};
        TRY(gpt2_net_logits(net, &batch, logits));
        for (uint32_t i = 0; i < all->config.vocab && zero_world_rank(world) == 0; i++) {
            printf("%.9g%c", (double)logits[i], i + 1 == all->config.vocab ? '\n' : ' ');
        }
    }
    return ZERO_OK;
}

static zero_status run_rank(zero_world *world, void *user)
{
    task *all = user;
    gpt2_net net;
    gpt2_error error = {""};
    zero_engine_options options = zero_engine_options_init();
    options.stage = ZERO_STAGE_3;
    const gpt2_net_setup setup = {.config = all->config,
                                  .options = options,
                                  .tuning = zero_tuning_init(),
                                  .dtype = ZERO_DTYPE_F32,
                                  .samples = 1,
                                  .seed = 1};
    float *logits = malloc(all->config.vocab * sizeof *logits);
    zero_status status =
        logits != NULL ? gpt2_net_create(&net, world, &setup) : ZERO_ERR_OUT_OF_MEMORY;
    status = status == ZERO_OK ? gpt2_weights_load(&net, world, all->path, &error) : status;
    status = status == ZERO_OK ? print_logits(&net, world, all, logits) : status;
    if (status != ZERO_OK && zero_world_rank(world) == 0) {
        all->error = error;
    }
    if (logits != NULL) {
        gpt2_net_destroy(&net);
    }
    free(logits);
    return status;
}

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
    static task all;
    if (argc < 9 || argc - 8 > TOKENS_MAX) {
        (void)fprintf(stderr, "usage: see the program's head\n");
        return 2;
    }
    all.path = argv[1];
    all.config = (gpt2_config){number(argv[3]), number(argv[4]), number(argv[5]), number(argv[6]),
                               number(argv[7])};
    for (int i = 8; i < argc; i++) {
        all.tokens[all.count++] = (int32_t)number(argv[i]);
    }
    const zero_status status = zero_world_run(number(argv[2]), 60000, run_rank, &all);
    if (status != ZERO_OK) {
        (void)fprintf(stderr, "gpt2_logits: %s\n",
                      all.error.text[0] != '\0' ? all.error.text : zero_last_error()->message);
    }
    return status == ZERO_OK ? 0 : 1;
}
