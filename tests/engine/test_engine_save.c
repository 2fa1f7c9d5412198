/* Owns the tests of what a save writes and which of several a load takes. That a run goes on from a
 * checkpoint as if it had never ended random programs show. */
#include "saved_runs.h"

#include "reads.h"
#include "waits.h"

/* ---- in place or copied ---- */

static char *read_file(const char *name, const char *file, size_t *bytes)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s/%s.safetensors", run_directory, name, file);
    FILE *opened = fopen(path, "r");
    CHECK(opened != NULL && fseek(opened, 0, SEEK_END) == 0);
    *bytes = (size_t)ftell(opened);
    char *data = malloc(*bytes);
    CHECK(data != NULL && fseek(opened, 0, SEEK_SET) == 0);
    CHECK_EQ(fread(data, 1, *bytes, opened), *bytes);
    CHECK_EQ(fclose(opened), 0);
    return data;
}

static void check_same_files(bool small)
{
    static const char *const files[] = {"param",   "master", "moment1",
                                        "moment2", "scale1", "scale2"};
    for (int i = 0; i < (small ? 6 : 4); i++) {
        size_t bytes[2];
        char *waited_for = read_file("waited-for", files[i], &bytes[0]);
        char *staged = read_file("staged", files[i], &bytes[1]);
        CHECK_EQ(bytes[0], bytes[1]);
        CHECK_BYTES(waited_for, staged, bytes[0]);
        free(waited_for);
        free(staged);
    }
}

/* zero_save writes large tensors from where they are, zero_save_begin copies all; a load compares
 * both with their sums. */
static zero_status save_both_ways(toy_trainer *trainer)
{
    static const char *const names[] = {"waited-for", "staged"};
    const zero_save_options waited_for = run_save_options(names[0]);
    const zero_save_options staged = run_save_options(names[1]);
    toy_state state;
    TOY_TRY(run_step(trainer));
    TOY_TRY(toy_collect(trainer, &state));
    TOY_TRY(zero_save(trainer->engine, &waited_for));
    TOY_TRY(zero_save_begin(trainer->engine, &staged));
    TOY_TRY(zero_save_end(trainer->engine));
    if (trainer->rank == 0) {
        check_same_files(trainer->run->options.moment_dtype == ZERO_DTYPE_I8);
    }
    for (int i = 0; i < 2; i++) {
        const zero_load_options options = run_load_options(names[i]);
        TOY_TRY(zero_load(trainer->engine, &options, NULL));
        TOY_TRY(toy_collect_same(trainer, &state, names[i]));
    }
    toy_state_free(&state);
    return ZERO_OK;
}

/* Tensors of several blocks, behind one that ends within a granule and a page, of one block, and of
 * less than is written in place. */
TEST(in_place_or_copied)
{
    toy_model *model = toy_model_new();
    run_directory_make();
    (void)toy_model_layer(model, "unit", 0);
    (void)toy_model_tensor(model, 1, 128, ZERO_DTYPE_BF16, 0);
    (void)toy_model_tensor(model, 300, 2001, ZERO_DTYPE_BF16, 0);
    (void)toy_model_tensor(model, 7, 11, ZERO_DTYPE_BF16, 0);
    (void)toy_model_layer(model, "unit", 1);
    (void)toy_model_tensor(model, 100, 1500, ZERO_DTYPE_BF16, 0);
    for (uint32_t ranks = 1; ranks < 4; ranks += 2) {
        toy_run run = run_of(model, ZERO_DTYPE_F32, ZERO_DTYPE_F32);
        run.options.stage = ZERO_STAGE_3;
        CHECK_OK(toy_on_ranks(ranks, &run, save_both_ways, NULL));
        run.options.master_dtype = ZERO_DTYPE_REMAINDER8;
        run.options.moment_dtype = ZERO_DTYPE_I8;
        CHECK_OK(toy_on_ranks(ranks, &run, save_both_ways, NULL));
    }
}

/* ---- kinds of saves ---- */

/* Weights count neither for `keep` nor as what a run goes on from. */
static zero_status save_kinds(toy_trainer *trainer)
{
    zero_save_options full = run_save_options(NULL);
    zero_save_options weights = run_save_options("weights-1");
    const zero_load_options newest = run_load_options(NULL);
    zero_load_report report = zero_load_report_init();
    full.keep = 2;
    weights.keep = 1;
    weights.params_only = 1;
    for (int s = 0; s < 3; s++) {
        TOY_TRY(run_step(trainer));
        TOY_TRY(zero_save(trainer->engine, &full));
    }
    TOY_TRY(zero_save(trainer->engine, &weights));
    weights.name = "weights-2";
    TOY_TRY(zero_save(trainer->engine, &weights));
    TOY_TRY(zero_load(trainer->engine, &newest, &report));
    CHECK_EQ(report.step, 3);
    CHECK(strstr(report.folder, "step-00000003") != NULL && report.passed_over[0] == '\0');
    /* One that lacks a file is passed over, and the report says why. */
    TOY_TRY(zero_world_barrier(trainer->world));
    if (trainer->rank == 0) {
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/step-00000003/moment1.safetensors", run_directory);
        CHECK(unlink(path) == 0);
    }
    TOY_TRY(zero_world_barrier(trainer->world));
    TOY_TRY(zero_load(trainer->engine, &newest, &report));
    CHECK_EQ(report.step, 2);
    CHECK(strstr(report.passed_over, "moment1.safetensors is not there") != NULL);
    zero_load_options named = run_load_options("weights-2");
    named.params_only = 1;
    return zero_load(trainer->engine, &named, NULL);
}

TEST(kinds_do_not_count_for_one_another)
{
    const toy_run run = run_of(run_model(ZERO_DTYPE_BF16), ZERO_DTYPE_F32, ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &run, save_kinds, NULL));
    CHECK_EQ(rig_entries(run_directory), 4); /* steps 2 and 3, the second weights, latest */
}

/* ---- who writes what ---- */

#define WRITERS 4

/* Bytes of tensors: all of a file but its header, as the file itself has it. */
static uint64_t tensor_bytes(const char *name, const char *file)
{
    size_t bytes = 0;
    uint64_t header = 0;
    char *data = read_file(name, file, &bytes);
    memcpy(&header, data, sizeof header);
    free(data);
    CHECK(sizeof header + header < bytes);
    return bytes - sizeof header - header;
}

/* Each rank's share is what it says at the beginning and what it has written at the end. */
static zero_status save_shares(toy_trainer *trainer)
{
    static const char *const files[] = {"param",   "master", "moment1",
                                        "moment2", "scale1", "scale2"};
    const bool small = trainer->run->options.moment_dtype == ZERO_DTYPE_I8;
    const zero_save_options options = run_save_options("shares");
    zero_save_progress progress = zero_save_progress_init();
    uint64_t shares[WRITERS];
    TOY_TRY(run_step(trainer));
    TOY_TRY(zero_save_begin(trainer->engine, &options));
    TOY_TRY(zero_save_poll(trainer->engine, &progress));
    TOY_TRY(zero_world_gather(trainer->world, &progress.bytes, shares, sizeof progress.bytes));
    AWAIT(zero_save_poll(trainer->engine, &progress) != ZERO_OK || progress.written != 0);
    CHECK_EQ(progress.staged_bytes, shares[trainer->rank]);
    CHECK_EQ(progress.written_bytes, shares[trainer->rank]);
    TOY_TRY(zero_save_end(trainer->engine));
    uint64_t whole = 0;
    for (int i = 0; i < (small ? 6 : 4); i++) {
        whole += tensor_bytes("shares", files[i]);
    }
    for (uint32_t r = 0; r < WRITERS; r++) {
        CHECK(shares[r] * WRITERS > whole / 8 * 7 && shares[r] * WRITERS < whole / 8 * 9);
    }
    CHECK_EQ(shares[0] + shares[1] + shares[2] + shares[3], whole);
    return ZERO_OK;
}

/* Also at stage 0, where every rank has all of the state. */
TEST(each_rank_writes_its_share)
{
    toy_model *model = toy_model_new();
    run_directory_make();
    for (uint32_t u = 0; u < 3; u++) {
        (void)toy_model_layer(model, "unit", u);
        (void)toy_model_tensor(model, 501, 101, ZERO_DTYPE_BF16, 0);
        (void)toy_model_tensor(model, 20000, 0, ZERO_DTYPE_F32, 0);
    }
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        toy_run run = run_of(model, ZERO_DTYPE_F32, ZERO_DTYPE_F32);
        run.options.stage = (zero_stage)stage;
        CHECK_OK(toy_on_ranks(WRITERS, &run, save_shares, NULL));
        run.options.master_dtype = ZERO_DTYPE_REMAINDER16;
        run.options.moment_dtype = ZERO_DTYPE_I8;
        CHECK_OK(toy_on_ranks(WRITERS, &run, save_shares, NULL));
    }
}

static zero_status load_if_any(toy_trainer *trainer)
{
    zero_load_options options = run_load_options(NULL);
    zero_load_report report = zero_load_report_init();
    CHECK_FAILS(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "no whole checkpoint");
    options.if_any = 1;
    CHECK_OK(zero_load(trainer->engine, &options, &report));
    CHECK(report.folder[0] == '\0');
    CHECK_EQ(report.loaded + report.world, 0);
    /* One that was asked for by its name is missed. */
    options.name = "one";
    CHECK(zero_load(trainer->engine, &options, NULL) != ZERO_OK);
    options.name = NULL;
    const zero_save_options saves = run_save_options("one");
    TOY_TRY(toy_train(trainer));
    TOY_TRY(zero_save(trainer->engine, &saves));
    CHECK_OK(zero_load(trainer->engine, &options, &report));
    CHECK(report.folder[0] != '\0');
    CHECK_EQ(report.world, 2);
    CHECK_EQ(report.missing, 0);
    return ZERO_OK;
}

TEST(a_run_begins_where_there_is_nothing_to_load)
{
    run_directory_make();
    const toy_run run = run_of(run_model(ZERO_DTYPE_F32), ZERO_DTYPE_DEFAULT, ZERO_DTYPE_DEFAULT);
    CHECK_OK(toy_on_ranks(2, &run, load_if_any, NULL));
}

/* ---- what is not given, or cannot be kept ---- */

static void refuse_save(toy_trainer *trainer, const zero_save_options *options, zero_status status,
                        const char *said)
{
    const unsigned before = rig_entries(run_directory);
    CHECK_FAILS(zero_save(trainer->engine, options), status, said);
    CHECK_FAILS(zero_save_begin(trainer->engine, options), status, said);
    CHECK_EQ(rig_entries(run_directory), before);
}

/* Each is told by one rank, before anything is written or read, and the engine goes on. */
static zero_status refuse_all(toy_trainer *trainer)
{
    zero_save_options saves = run_save_options("one");
    zero_load_options loads = zero_load_options_init();
    TOY_TRY(toy_step_or_skip(trainer, false));
    saves.directory = NULL;
    refuse_save(trainer, &saves, ZERO_ERR_INVALID_ARGUMENT, "directory is NULL");
    saves.directory = "";
    refuse_save(trainer, &saves, ZERO_ERR_INVALID_ARGUMENT, "directory is empty");
    saves = run_save_options("one");
    saves.user.bytes_count = 3;
    refuse_save(trainer, &saves, ZERO_ERR_INVALID_ARGUMENT, "user.bytes is NULL and bytes_count 3");
    saves = run_save_options("one");
    saves.user.reserved[1] = 7;
    refuse_save(trainer, &saves, ZERO_ERR_UNSUPPORTED, "user.reserved[1] is 7");
    CHECK_FAILS(zero_load(trainer->engine, &loads, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "path is NULL");
    loads.path = "";
    CHECK_FAILS(zero_load(trainer->engine, &loads, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "path is empty");
    saves = run_save_options("one");
    TOY_TRY(zero_save(trainer->engine, &saves));
    return toy_step_or_skip(trainer, false);
}

TEST(what_saves_and_loads_are_not_given)
{
    run_directory_make();
    const toy_run run = run_of(run_model(ZERO_DTYPE_F32), ZERO_DTYPE_DEFAULT, ZERO_DTYPE_DEFAULT);
    CHECK_OK(toy_on_ranks(1, &run, refuse_all, NULL));
    zero_engine_destroy(NULL);
    CHECK(zero_engine_plan(NULL) == NULL);
}
