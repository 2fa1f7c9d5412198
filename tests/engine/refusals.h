/* Creates that are refused, by all ranks or by one, each followed by one that succeeds: a case for
 * every backend. A check that fails ends the process. */
#ifndef TESTS_ENGINE_REFUSALS_H
#define TESTS_ENGINE_REFUSALS_H

#include "folders.h"
#include "zero/zero.h"

/* Ways in which a create is refused on a rank. */
typedef enum refusal {
    REFUSE_OPTION,    /* one that is out of range */
    REFUSE_DIRECTORY, /* one that does not exist */
    REFUSE_MODEL,     /* NULL */
    REFUSE_PLACE,     /* the engine has nowhere to go */
    REFUSALS
} refusal;

static inline zero_model *refusal_model(void)
{
    zero_model *model = NULL;
    uint32_t index = 0;
    const zero_tensor_desc desc = {.name = "weight", .dims = 1, .shape = {1000}};
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "layer"}, &index, NULL));
    CHECK_OK(zero_tensor_add(model, 0, &desc, &index));
    return model;
}

/* A create that succeeds, and a step. */
static inline zero_status refusal_train(zero_world *world)
{
    zero_model *model = refusal_model();
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    options.threads = 1;
    zero_status status = zero_engine_create(world, model, &options, &engine);
    for (int i = 0; i < 2 && status == ZERO_OK; i++) {
        zero_step_result result = zero_step_result_init();
        CHECK_OK(zero_micro_begin(engine, ZERO_MICRO_LAST));
        CHECK_OK(zero_unit_acquire(engine, 0, ZERO_PASS_BACKWARD, zero_stream_host(), NULL));
        CHECK_OK(zero_unit_release(engine, 0, zero_stream_host()));
        CHECK_OK(zero_micro_end(engine));
        CHECK_OK(zero_step(engine, NULL, zero_stream_host()));
        CHECK_OK(zero_step_wait(engine, &result));
    }
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return status;
}

/* This rank's create is refused in this way if it is `odd`, else because another's is. */
static inline void refuse_once(zero_world *world, refusal how, bool odd)
{
    static const char *const nowhere[] = {"/nonexistent/zero"};
    static const char *const words[REFUSALS] = {"param_slots", "nonexistent", "model is NULL",
                                                "engine is NULL"};
    zero_model *model = refusal_model();
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    char *folder = rig_folder(false); /* this rank's alone */
    const char *const here[] = {folder};
    options.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_DISK;
    options.disk_directories = odd && how == REFUSE_DIRECTORY ? nowhere : here;
    options.disk_directory_count = 1;
    options.tuning = &tuning;
    tuning.param_slots = odd && how == REFUSE_OPTION ? 65 : 0;
    const zero_status status =
        zero_engine_create(world, odd && how == REFUSE_MODEL ? NULL : model, &options,
                           odd && how == REFUSE_PLACE ? NULL : &engine);
    const char *said = zero_last_error()->message;
    CHECK(engine == NULL);
    CHECK(status == ZERO_ERR_INVALID_ARGUMENT ||
          (status == ZERO_ERR_IO && how == REFUSE_DIRECTORY));
    CHECK(strstr(said, words[how]) != NULL);
    CHECK_EQ(strncmp(said, "rank 1: ", 8) == 0, !odd);
    zero_model_destroy(model);
    rig_remove(folder);
}

/* The case itself; user is ignored. */
static inline zero_status case_refusals(zero_world *world, void *user)
{
    (void)user;
    const uint32_t rank = zero_world_rank(world);
    for (int how = 0; how < REFUSALS; how++) {
        refuse_once(world, (refusal)how, true);
        CHECK_OK(refusal_train(world));
        if (zero_world_size(world) > 1) {
            refuse_once(world, (refusal)how, rank == 1);
            CHECK_OK(refusal_train(world));
        }
    }
    return zero_world_barrier(world);
}

#endif
