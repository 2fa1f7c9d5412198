/* Owns the tests of saves and loads of small states: a run goes on with its bits however it is
 * split and wherever its state lies, values go from each kind into each other as fp32, and what is
 * damaged is found. */
#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "reads.h"
#include "sanitizer.h"
#include "small_runs.h"

#include "core/sizes.h"
#include "kernels/cpu/cpu_kernels.h"
#include "optimizer/optimizer.h"

#define DEV ZERO_TIER_DEVICE
#define DISK ZERO_TIER_DISK

static const small_mix mixes[] = {
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_BF16, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_F16, ZERO_DTYPE_F32, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8, ZERO_OPTIMIZER_LION},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8, ZERO_OPTIMIZER_SGD},
};
#define MIXES (sizeof mixes / sizeof mixes[0])

typedef struct course {
    toy_run run;
    toy_state state; /* that was saved, or is wanted */
    zero_load_options options;
    const char *file; /* that is damaged */
} course;

static zero_status train_and_keep(toy_trainer *trainer)
{
    course *c = trainer->user;
    for (uint32_t step = 0; step < RUN_STEPS; step++) {
        TOY_TRY(small_step(trainer));
    }
    return toy_collect_first(trainer, &c->state);
}

static zero_status train_and_save(toy_trainer *trainer)
{
    course *c = trainer->user;
    const zero_save_options options = run_save_options("one");
    for (uint32_t step = 0; step < RUN_HALF; step++) {
        TOY_TRY(small_step(trainer));
    }
    if (c != NULL) {
        TOY_TRY(toy_collect_first(trainer, &c->state));
    }
    return zero_save(trainer->engine, &options);
}

static course saved_course(const small_mix *mix, uint32_t ranks)
{
    course c = {.run = small_run(mix), .options = run_load_options("one")};
    CHECK_OK(toy_on_ranks(ranks, &c.run, train_and_save, &c));
    return c;
}

/* ---- a run goes on ---- */

/* Places of PARAM and of the states. */
static const zero_tier places[][2] = {{DEV, DEV}, {DEV, DISK}, {DISK, DISK}, {DISK, DEV}};
#define PLACES (sizeof places / sizeof places[0])

static toy_run run_in(const small_mix *mix, size_t place, uint32_t stage)
{
    toy_run run = small_run(mix);
    toy_run_tiers(&run, ZERO_ROLE_PARAM, places[place][0]);
    toy_run_tiers(&run, ZERO_ROLE_MASTER, places[place][1]);
    if (place != 0) {
        toy_run_disk(&run, rig_paths, 2);
    }
    run.options.stage = (zero_stage)(ZERO_STAGE_0 + stage);
    return run;
}

static zero_status load_and_go_on(toy_trainer *trainer)
{
    const course *c = trainer->user;
    TOY_TRY(zero_load(trainer->engine, &c->options, NULL));
    trainer->step = RUN_HALF;
    for (uint32_t step = RUN_HALF; step < RUN_STEPS; step++) {
        TOY_TRY(small_step(trainer));
    }
    return toy_collect_same(trainer, &c->state, "a run that was not saved");
}

static void go_on_anywhere(const small_mix *mix)
{
    static const uint32_t ranks[] = {1, 2, 4, 3};
    course c = {.run = small_run(mix), .options = run_load_options("one")};
    CHECK_OK(toy_on_ranks(1, &c.run, train_and_keep, &c));
    for (uint32_t i = 0; i < 4; i++) {
        const toy_run saved = run_in(mix, i % PLACES, i);
        CHECK_OK(toy_on_ranks(ranks[i], &saved, train_and_save, NULL));
        for (uint32_t j = i % 2; j < 4; j += 2) {
            const toy_run loaded = run_in(mix, (i + j) % PLACES, (i / 2 + j) % 4);
            if (IN_SAMPLE(i + j / 2)) {
                CHECK_OK(toy_on_ranks(ranks[j], &loaded, load_and_go_on, &c));
            }
        }
    }
    toy_state_free(&c.state);
}

TEST(a_run_goes_on_with_its_bits)
{
    run_directory_make();
    rig_folders(2, 0);
    for (size_t m = 0; m < MIXES; m++) {
        go_on_anywhere(&mixes[m]);
    }
}

/* ---- other kinds ---- */

/* The kinds of a tensor's roles, as the options say. */
static zero_dtype kind_of(const toy_run *run, uint32_t tensor, zero_role role)
{
    const zero_tensor_desc *desc = &run->model->tensors[tensor].desc;
    const zero_dtype moments = run->options.moment_dtype;
    if (role == ZERO_ROLE_PARAM) {
        return desc->dtype;
    }
    if ((desc->flags & ZERO_TENSOR_FROZEN) != 0 || role == ZERO_ROLE_GRAD) {
        return ZERO_DTYPE_NONE;
    }
    if (role == ZERO_ROLE_MASTER) {
        return desc->dtype == ZERO_DTYPE_F32 ? ZERO_DTYPE_NONE : run->options.master_dtype;
    }
    if (zi_role_is_scales(role)) {
        return moments == ZERO_DTYPE_I8 ? ZERO_DTYPE_BF16 : ZERO_DTYPE_NONE;
    }
    return moments == ZERO_DTYPE_I8
               ? zi_optimizer_code(run->options.optimizer, role - ZERO_ROLE_MOMENT1)
               : moments;
}

enum { ELEMENTS_MAX = 1024 };

/* A tensor's bits of one role, as it keeps them. */
typedef struct kept_bits {
    union {
        float f32[ELEMENTS_MAX];
        uint16_t u16[ELEMENTS_MAX];
        uint8_t u8[ELEMENTS_MAX];
    } is;
} kept_bits;

static void take_bits(const course *c, uint32_t tensor, zero_role role, kept_bits *bits)
{
    const toy_tensor *t = &c->run.model->tensors[tensor];
    const zero_dtype kind = kind_of(&c->run, tensor, role);
    CHECK(t->count <= ELEMENTS_MAX);
    for (uint64_t e = 0; e < t->count; e++) {
        toy_store(&bits->is, e, kind, c->state.bits[role][t->base + e]);
    }
}

/* The saved fp32 values of a tensor in a role. */
static void saved_values(const course *c, uint32_t tensor, zero_role role, float *values)
{
    const uint64_t count = c->run.model->tensors[tensor].count;
    const zero_dtype kind = kind_of(&c->run, tensor, role);
    kept_bits bits;
    kept_bits with;
    take_bits(c, tensor, role, &bits);
    if (zi_dtype_is_remainder(kind)) {
        take_bits(c, tensor, ZERO_ROLE_PARAM, &with);
        zi_cpu_join(values, with.is.u16, &bits.is, kind, count);
    } else if (zi_dtype_is_code(kind)) {
        take_bits(c, tensor, zi_role_scales(role), &with);
        zi_cpu_decode(values, bits.is.u8, with.is.u16, kind, count);
    } else {
        zi_cpu_cast(values, ZERO_DTYPE_F32, &bits.is, kind, count);
    }
}

/* The bits that a role of another run keeps of values. */
static void keep_values(const toy_run *run, uint32_t tensor, zero_role role, const float *values,
                        kept_bits *bits)
{
    const uint64_t count = run->model->tensors[tensor].count;
    const zero_dtype master = kind_of(run, tensor, ZERO_ROLE_MASTER);
    const bool scales = zi_role_is_scales(role);
    const zero_role moment = scales ? zi_role_of_scales(role) : role;
    const zero_dtype kind = kind_of(run, tensor, moment);
    kept_bits other;
    if (zi_role_is_moment(role) && zi_dtype_is_code(kind)) {
        zi_cpu_encode(scales ? &other.is : &bits->is, scales ? bits->is.u16 : other.is.u16, kind,
                      values, count);
    } else if (zi_dtype_is_remainder(master) && !zi_role_is_moment(role)) {
        const bool param = role == ZERO_ROLE_PARAM;
        zi_cpu_split(param ? bits->is.u16 : other.is.u16, param ? &other.is : &bits->is, master,
                     values, count);
    } else {
        zi_cpu_cast(&bits->is, kind, values, ZERO_DTYPE_F32, count);
    }
}

/* The bits that a load leaves of a role: those that were saved where kinds are equal, of a
 * remainder and its parameter both; else what it keeps of their values. */
static void expected_bits(const course *c, const toy_run *run, uint32_t tensor, zero_role role,
                          kept_bits *bits)
{
    const zero_role moment = zi_role_is_scales(role) ? zi_role_of_scales(role) : role;
    const zero_dtype here = kind_of(run, tensor, moment);
    const zero_dtype masters[] = {kind_of(&c->run, tensor, ZERO_ROLE_MASTER),
                                  kind_of(run, tensor, ZERO_ROLE_MASTER)};
    const bool small = zi_dtype_is_remainder(masters[0]) || zi_dtype_is_remainder(masters[1]);
    const bool alike = here == kind_of(&c->run, tensor, moment) &&
                       (role != ZERO_ROLE_PARAM || !small || masters[0] == masters[1]);
    float values[ELEMENTS_MAX];
    if (alike) {
        take_bits(c, tensor, role, bits);
        return;
    }
    zero_role source = moment;
    if (!zi_role_is_moment(role)) {
        source = masters[0] != ZERO_DTYPE_NONE ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
    }
    saved_values(c, tensor, source, values);
    keep_values(run, tensor, role, values, bits);
}

/* Greatest error of a value of a moment that was saved in fp32, in a block of this greatest one. */
static float bound_of(zero_dtype kind, float most, float value)
{
    if (kind == ZERO_DTYPE_I8) {
        return 1.01f * most / 254.0f;
    }
    if (kind == ZERO_DTYPE_COMPANDED8) {
        /* Half of the 32nd part of a power of two, of levels from 2 to 31.5. */
        const float level = 2.0f + 29.5f * fabsf(value) / most;
        return 1.01f * most * ldexpf(1.0f / 64.0f, ilogbf(level)) / 29.5f;
    }
    /* Half a step of the root, on either side; codes that are not 0 begin at 1. */
    const float root = sqrtf(1.01f * most) / 255.0f;
    return 1.01f * (sqrtf(fabsf(value)) * root + root * root);
}

static void check_errors(const course *c, const course *loaded, uint32_t tensor, zero_role moment)
{
    const uint64_t count = c->run.model->tensors[tensor].count;
    const zero_dtype kind = kind_of(&loaded->run, tensor, moment);
    float there[ELEMENTS_MAX];
    float here[ELEMENTS_MAX];
    saved_values(c, tensor, moment, there);
    saved_values(loaded, tensor, moment, here);
    for (uint64_t block = 0; block < count; block += ZERO_CODE_BLOCK) {
        const uint64_t end = zi_min_u64(block + ZERO_CODE_BLOCK, count);
        float most = 0;
        for (uint64_t e = block; e < end; e++) {
            most = fmaxf(most, fabsf(there[e]));
        }
        for (uint64_t e = block; e < end; e++) {
            CHECK(fabsf(here[e] - there[e]) <= bound_of(kind, most, there[e]));
        }
    }
}

static void check_tensor(const course *c, const course *loaded, uint32_t tensor)
{
    const toy_tensor *t = &c->run.model->tensors[tensor];
    for (zero_role role = 0; role < TOY_ROLES; role++) {
        const zero_dtype kind = kind_of(&loaded->run, tensor, role);
        const uint64_t values =
            zi_role_is_scales(role) ? zi_div_up(t->count, ZERO_CODE_BLOCK) : t->count;
        kept_bits expected;
        if (kind == ZERO_DTYPE_NONE) {
            continue;
        }
        expected_bits(c, &loaded->run, tensor, role, &expected);
        for (uint64_t e = 0; e < values; e++) {
            const uint32_t wanted = toy_load(&expected.is, e, kind);
            const uint32_t found = loaded->state.bits[role][t->base + e];
            if (found != wanted) {
                TEST_FAIL("%s (%s) of %s[%" PRIu64 "]: %08x, expected %08x", zero_role_name(role),
                          zero_dtype_name(kind), t->name, e, found, wanted);
            }
        }
        if (zi_dtype_is_code(kind) && kind_of(&c->run, tensor, role) == ZERO_DTYPE_F32) {
            check_errors(c, loaded, tensor, role);
        }
    }
}

static zero_status load_kinds(toy_trainer *trainer)
{
    const course *c = trainer->user;
    course loaded = {.run = *trainer->run};
    TOY_TRY(zero_load(trainer->engine, &c->options, NULL));
    TOY_TRY(toy_collect(trainer, &loaded.state));
    for (uint32_t t = 0; t < c->run.model->tensor_count; t++) {
        check_tensor(c, &loaded, t);
    }
    toy_state_free(&loaded.state);
    trainer->step = RUN_HALF;
    return small_step(trainer);
}

static const small_mix kinds[] = {
    {ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_F32, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_BF16, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_F32, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_F16, ZERO_DTYPE_F32, ZERO_DTYPE_I8, ADAMW},
    {ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_I8, ADAMW},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

TEST(each_kind_is_loaded_into_each_other)
{
    run_directory_make();
    rig_folders(2, 0);
    for (uint32_t from = 0; from < KINDS; from++) {
        course c = saved_course(&kinds[from], 1 + from % 3);
        for (uint32_t to = 0; to < KINDS; to++) {
            const toy_run run = run_in(&kinds[to], (from + to) % PLACES, to % 4);
            if (IN_SAMPLE(from + to)) {
                CHECK_OK(toy_on_ranks(1 + to % 4, &run, load_kinds, &c));
            }
        }
        toy_state_free(&c.state);
    }
}

/* No bit of a master is lost on the way to a remainder and back. */
TEST(masters_come_back_from_remainders)
{
    small_mix plain = {ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, ADAMW};
    const small_mix small = {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_F32, ADAMW};
    run_directory_make();
    course c = saved_course(&small, 2);
    course first = {.run = small_run(&plain), .options = c.options};
    CHECK_OK(toy_on_ranks(3, &first.run, load_kinds, &c));
    toy_state_free(&c.state);
}

/* ---- a new run ---- */

static zero_status load_params(toy_trainer *trainer)
{
    const course *c = trainer->user;
    toy_state loaded;
    TOY_TRY(zero_load(trainer->engine, &c->options, NULL));
    TOY_TRY(toy_collect(trainer, &loaded));
    const size_t bytes = loaded.element_count * sizeof *loaded.bits[0];
    CHECK_BYTES(loaded.bits[ZERO_ROLE_PARAM], c->state.bits[ZERO_ROLE_PARAM], bytes);
    CHECK_BYTES(loaded.bits[ZERO_ROLE_MASTER], c->state.bits[ZERO_ROLE_MASTER], bytes);
    for (zero_role role = ZERO_ROLE_MOMENT1; role < TOY_ROLES; role++) {
        for (uint64_t i = 0; i < loaded.element_count; i++) {
            CHECK_EQ(loaded.bits[role][i], 0);
        }
    }
    toy_state_free(&loaded);
    return ZERO_OK;
}

TEST(a_new_run_begins_with_saved_parameters)
{
    run_directory_make();
    course c = saved_course(&mixes[1], 2);
    c.options.params_only = 1;
    CHECK_OK(toy_on_ranks(3, &c.run, load_params, &c));
    toy_state_free(&c.state);
}

/* ---- damage ---- */

static zero_status load_damaged(toy_trainer *trainer)
{
    const course *c = trainer->user;
    CHECK_EQ(zero_load(trainer->engine, &c->options, NULL), ZERO_ERR_CORRUPT);
    if (strstr(zero_last_error()->message, c->file) == NULL) {
        TEST_FAIL("%s: %s", c->file, zero_last_error()->message);
    }
    return ZERO_OK;
}

/* Flip a bit of the file's tensors. */
static void flip(const char *file, uint64_t turn)
{
    const char *path = test_text("%s/one/%s", run_directory, file);
    struct stat info;
    unsigned char byte = 0;
    const int opened = open(path, O_RDWR | O_CLOEXEC);
    CHECK(opened >= 0 && fstat(opened, &info) == 0 && info.st_size > 4096);
    const off_t at = 4096 + (off_t)test_chance(turn, (uint32_t)info.st_size - 4096);
    CHECK(pread(opened, &byte, 1, at) == 1);
    byte ^= 4;
    CHECK(pwrite(opened, &byte, 1, at) == 1 && close(opened) == 0);
}

TEST(what_is_damaged_is_found)
{
    static const char *const files[] = {"param.safetensors",   "master.safetensors",
                                        "moment1.safetensors", "moment2.safetensors",
                                        "scale1.safetensors",  "scale2.safetensors"};
    run_directory_make();
    course c = saved_course(&mixes[2], 2);
    for (uint32_t i = 0; i < 18; i++) {
        const toy_run run = small_run(i / 6 == 1 ? &kinds[1] : &mixes[2]);
        c.file = files[i % 6];
        flip(c.file, i);
        CHECK_EQ(toy_on_ranks(1 + i / 6, &run, load_damaged, &c), ZERO_ERR_CORRUPT);
        flip(c.file, i);
    }
    for (uint32_t i = 0; i < 6; i++) {
        struct stat info;
        const char *path = test_text("%s/one/%s", run_directory, files[i]);
        CHECK(stat(path, &info) == 0 && truncate(path, info.st_size - 1) == 0);
        c.file = files[i];
        CHECK_OK(toy_on_ranks(2, &c.run, load_damaged, &c));
        CHECK(truncate(path, info.st_size) == 0);
    }
    toy_state_free(&c.state);
}
