/* Owns the tests of a load from a source that is no file: what is saved is held in memory, and the
 * engine takes it from there. It ends as a load of the files does, also where a value is damaged.
 */
#include "saved_runs.h"

#include "checkpoint/checkpoint_reader.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/load.h"

/* All that a checkpoint's files have, and the manifest and map of what they were read by. */
typedef struct memory_source {
    zi_source source;
    zi_source *files;                       /* read while the memory is filled, and then no more */
    unsigned char **values[ZI_SHARD_ROLES]; /* by tensor */
    uint64_t *sums;
    uint32_t reads; /* with the mutex */
} memory_source;

static zero_status memory_read(zi_source *source, const zi_source_range *range, void *values)
{
    memory_source *memory = (memory_source *)source;
    const zi_checkpoint_tensor *t = &source->map->tensors[range->tensor];
    const uint64_t bytes = zi_saved_bytes(t, range->role, range->count);
    memcpy(values,
           memory->values[range->role][range->tensor] +
               zi_saved_bytes(t, range->role, range->first),
           bytes);
    (void)pthread_mutex_lock(&source->mutex);
    memory->reads++;
    source->counts.read_bytes += bytes;
    (void)pthread_mutex_unlock(&source->mutex);
    return ZERO_OK;
}

static zero_status memory_read_sums(zi_source *source, uint64_t first, uint64_t count,
                                    uint64_t *sums)
{
    const memory_source *memory = (const memory_source *)source;
    memcpy(sums, memory->sums + first, count * sizeof *sums);
    return ZERO_OK;
}

static void memory_close(zi_source *source)
{
    memory_source *memory = (memory_source *)source;
    for (uint32_t role = 0; role < ZI_SHARD_ROLES; role++) {
        for (uint32_t t = 0; t < source->map->tensor_count; t++) {
            free(memory->values[role][t]);
        }
        free(memory->values[role]);
    }
    free(memory->sums);
    zi_source_close(memory->files);
    free(memory);
}

static const zi_source_ops memory_ops = {
    .read = memory_read, .read_sums = memory_read_sums, .close = memory_close};

static unsigned char *take_tensor(zi_source *files, uint32_t tensor, zero_role role)
{
    const zi_checkpoint_tensor *t = &files->map->tensors[tensor];
    const uint64_t width = zero_dtype_bytes(t->role[role].dtype);
    unsigned char *values = calloc(t->count + 1, 4);
    const zi_source_range range = {.tensor = tensor, .role = role, .count = t->count};
    CHECK(values != NULL && t->count * width <= ZI_SOURCE_READ_BYTES_MAX);
    if (width != 0 && role != ZERO_ROLE_GRAD) {
        CHECK_OK(files->ops->read(files, &range, values));
    }
    return values;
}

/* Take what the run has saved as "one". */
static memory_source *take_saved(void)
{
    char folder[128];
    memory_source *memory = calloc(1, sizeof *memory);
    CHECK(memory != NULL);
    (void)snprintf(folder, sizeof folder, "%s/one", run_directory);
    CHECK_OK(zi_checkpoint_reader_open(folder, &memory->files));
    zi_source *files = memory->files;
    memory->source = (zi_source){.ops = &memory_ops,
                                 .name = "memory",
                                 .manifest = files->manifest,
                                 .map = files->map,
                                 .align = 1};
    memory->sums = calloc(files->map->piece_count + 1, sizeof *memory->sums);
    CHECK(memory->sums != NULL);
    CHECK_OK(files->ops->read_sums(files, 0, files->map->piece_count, memory->sums));
    for (uint32_t role = 0; role < ZI_SHARD_ROLES; role++) {
        memory->values[role] = calloc(files->map->tensor_count, sizeof **memory->values);
        CHECK(memory->values[role] != NULL);
        for (uint32_t t = 0; t < files->map->tensor_count; t++) {
            memory->values[role][t] = take_tensor(files, t, (zero_role)role);
        }
    }
    CHECK_OK(zi_source_open(&memory->source));
    return memory;
}

typedef struct course {
    toy_run run;
    toy_state state; /* that was saved */
} course;

static zero_status train_and_save(toy_trainer *trainer)
{
    course *c = trainer->user;
    const zero_save_options options = run_save_options("one");
    for (uint32_t s = 0; s < c->run.steps; s++) {
        TOY_TRY(run_step(trainer));
    }
    TOY_TRY(toy_collect_first(trainer, &c->state));
    return zero_save(trainer->engine, &options);
}

static course saved_course(zero_dtype dtype, zero_stage stage, bool small)
{
    const toy_run run = run_of(run_model(dtype), small ? ZERO_DTYPE_REMAINDER16 : ZERO_DTYPE_F32,
                               small ? ZERO_DTYPE_I8 : ZERO_DTYPE_F32);
    course c = {.run = run};
    c.run.steps = RUN_HALF;
    c.run.options.stage = stage;
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &c.run, train_and_save, &c));
    return c;
}

static zero_status load_memory(toy_trainer *trainer)
{
    const course *c = trainer->user;
    zero_load_options options = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    memory_source *memory = take_saved();
    options.reflink = 1; /* there is no file to share with */
    TOY_TRY(zi_engine_load(trainer->engine, &memory->source, &options, &report));
    CHECK_EQ(report.step, c->run.steps);
    CHECK(strcmp(report.folder, "memory") == 0);
    CHECK_EQ(report.shared_bytes, 0);
    CHECK(report.read_bytes != 0);
    return toy_collect_same(trainer, &c->state, "a load from memory");
}

static void load_on_any_ranks(zero_dtype dtype, zero_stage stage, bool small)
{
    course c = saved_course(dtype, stage, small);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        CHECK_OK(toy_on_ranks(ranks, &c.run, load_memory, &c));
    }
    toy_state_free(&c.state);
}

TEST(a_load_from_memory_is_one_from_files)
{
    load_on_any_ranks(ZERO_DTYPE_F32, ZERO_STAGE_3, false);
}

TEST(a_load_from_memory_has_masters)
{
    load_on_any_ranks(ZERO_DTYPE_BF16, ZERO_STAGE_1, false);
}

TEST(a_load_from_memory_has_small_states)
{
    load_on_any_ranks(ZERO_DTYPE_BF16, ZERO_STAGE_2, true);
}

/* In the first tensor's first moment. */
static zero_status load_damaged(toy_trainer *trainer)
{
    const zero_load_options options = zero_load_options_init();
    memory_source *memory = take_saved();
    memory->values[ZERO_ROLE_MOMENT1][0][5] ^= 4;
    const zero_status status = zi_engine_load(trainer->engine, &memory->source, &options, NULL);
    CHECK_FAILS(status, ZERO_ERR_CORRUPT, "moment1.safetensors, tensor ");
    return ZERO_OK;
}

TEST(a_damaged_value_in_memory_is_found)
{
    course c = saved_course(ZERO_DTYPE_F32, ZERO_STAGE_2, false);
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        CHECK_EQ(toy_on_ranks(ranks, &c.run, load_damaged, &c), ZERO_ERR_CORRUPT);
    }
    toy_state_free(&c.state);
}
