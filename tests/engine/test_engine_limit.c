/* Owns the tests of what disks and small states are for: a process that may have a fraction of the
 * memory that parameters, gradients and optimizer state take trains with them on disk, to the same
 * bits, or with states of few bits in memory, and cannot begin with fp32 states in memory.
 *
 * The limit is RLIMIT_DATA, on all private memory that can be written. It needs no privileges and
 * refuses memory when it is asked for; a cgroup would kill, or drop what can be read again.
 * What the engine takes is the plan's; nothing of it is shared or a file's. */
#include "storage/storage_rig.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "reads.h"
#include "toy.h"

#define UNITS 32
#define UNIT_ELEMENTS 250007
#define STEPS 2
/* For the threads' stacks, the layout's lists and the C library. */
#define MARGIN_BYTES (8 * MIB)
#define STACK_BYTES (256 << 10)
#define PORTION 65536

/* The report of a child process. */
typedef struct outcome {
    zero_status status;
    uint64_t hash; /* of all parameters and optimizer state */
    uint64_t limit_bytes;
    uint64_t memory_bytes; /* planned: device and host */
    uint64_t disk_bytes;
    uint64_t peak_bytes; /* of resident memory */
    zero_disk_path path;
    char message[256];
} outcome;

/* The place of the state, and what it is kept in. */
typedef struct way {
    const char *const *folders; /* NULL: in memory */
    bool small;                 /* remainders of 16 bits and codes */
} way;

static zero_engine_options options_of(const way *w, zero_tuning *tuning)
{
    zero_engine_options options = zero_engine_options_init();
    *tuning = zero_tuning_init();
    options.threads = 1;
    options.tuning = tuning;
    tuning->bucket_bytes = 1; /* a unit's gradients alone */
    tuning->extent_bytes = MIB;
    tuning->io_window = 3;
    options.master_dtype = w->small ? ZERO_DTYPE_REMAINDER16 : ZERO_DTYPE_F32;
    options.moment_dtype = w->small ? ZERO_DTYPE_I8 : ZERO_DTYPE_F32;
    if (w->folders != NULL) {
        for (int role = ZERO_ROLE_PARAM; role <= ZERO_ROLE_MOMENT2; role++) {
            options.tier[role] = ZERO_TIER_DISK;
        }
        options.disk_directories = w->folders;
        options.disk_directory_count = 1;
    }
    return options;
}

static float gradient(uint32_t step, uint32_t unit, uint64_t element)
{
    const uint64_t word = rig_word(element * UNITS + unit, step);
    return (float)((int)(word >> 20 & 0xff) - 128) / 64;
}

static zero_status backward(zero_engine *engine, uint32_t unit, uint32_t step)
{
    const zero_stream here = zero_stream_host();
    zero_view view;
    TOY_TRY(zero_unit_acquire(engine, unit, ZERO_PASS_BACKWARD, here, NULL));
    TOY_TRY(zero_tensor_grad(engine, unit, &view));
    for (uint64_t e = 0; e < view.count; e++) {
        const float sum =
            toy_decode(toy_load(view.data, e, view.dtype), view.dtype) + gradient(step, unit, e);
        toy_store(view.data, e, view.dtype, toy_encode(sum, view.dtype));
    }
    return zero_unit_release(engine, unit, here);
}

static zero_status take_step(zero_engine *engine, uint32_t step)
{
    const zero_stream here = zero_stream_host();
    zero_step_params params = zero_step_params_init();
    zero_step_result result = zero_step_result_init();
    params.hyper.adamw.lr = 0.01f;
    params.max_norm = 1;
    TOY_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
    for (uint32_t u = 0; u < UNITS; u++) {
        TOY_TRY(zero_unit_acquire(engine, u, ZERO_PASS_FORWARD, here, NULL));
        TOY_TRY(zero_unit_release(engine, u, here));
    }
    for (uint32_t u = UNITS; u-- > 0;) {
        TOY_TRY(backward(engine, u, step));
    }
    TOY_TRY(zero_micro_end(engine));
    TOY_TRY(zero_step(engine, &params, here));
    return zero_step_wait(engine, &result);
}

static zero_status hash_state(zero_engine *engine, uint64_t *hash)
{
    static uint32_t values[PORTION];
    for (uint32_t t = 0; t < UNITS; t++) {
        for (uint64_t first = 0; first < UNIT_ELEMENTS; first += PORTION) {
            const uint64_t left = UNIT_ELEMENTS - first;
            const uint64_t count = left < PORTION ? left : PORTION;
            for (int role = ZERO_ROLE_PARAM; role <= ZERO_ROLE_MOMENT2; role++) {
                if (role == ZERO_ROLE_GRAD) {
                    continue;
                }
                memset(values, 0, sizeof values);
                TOY_TRY(zero_shard_read(engine, t, (zero_role)role, first, count, values));
                for (uint64_t i = 0; i < count; i++) {
                    *hash = (*hash ^ values[i]) * UINT64_C(0x100000001b3);
                }
            }
        }
    }
    return ZERO_OK;
}

static zero_status train(zero_world *world, const zero_model *model,
                         const zero_engine_options *options, outcome *out)
{
    zero_engine *engine = NULL;
    TOY_TRY(zero_engine_create(world, model, options, &engine));
    out->path = engine_disk_path(engine);
    zero_status status = zero_engine_fill(engine, toy_fill, NULL);
    for (uint32_t s = 0; s < STEPS && status == ZERO_OK; s++) {
        status = take_step(engine, s);
    }
    status = status == ZERO_OK ? hash_state(engine, &out->hash) : status;
    zero_engine_destroy(engine);
    return status;
}

/* Bytes of this process that RLIMIT_DATA counts. */
static uint64_t data_bytes(void)
{
    uint64_t pages[6] = {0};
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    for (int i = 0; i < 6; i++) {
        CHECK(fscanf(file, "%" SCNu64, &pages[i]) == 1);
    }
    CHECK(fclose(file) == 0);
    return pages[5] * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void set_limit(uint64_t bytes)
{
    const struct rlimit limit = {bytes, bytes};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
        SKIP("this kernel's RLIMIT_DATA does not count mappings");
    }
}

/* Under the limit that suits a run of the planned way, whichever this one's is. */
static void train_alone(bool limited, const way *own, const way *planned, outcome *out)
{
    pthread_attr_t stack;
    CHECK(pthread_attr_init(&stack) == 0);
    CHECK(pthread_attr_setstacksize(&stack, STACK_BYTES) == 0);
    CHECK(pthread_setattr_default_np(&stack) == 0);
    toy_model model;
    zero_plan *plan = NULL;
    zero_world *world = NULL;
    toy_model_equal(&model, UNITS, UNIT_ELEMENTS, ZERO_DTYPE_BF16);
    zero_tuning tuning;
    zero_engine_options options = options_of(planned, &tuning);
    CHECK_OK(zero_plan_create(model.model, &options, 1, &plan));
    const zero_memory memory = plan_memory(plan);
    zero_plan_destroy(plan);
    out->memory_bytes = memory.tier_bytes[ZERO_TIER_DEVICE] + memory.tier_bytes[ZERO_TIER_HOST];
    out->disk_bytes = memory.tier_bytes[ZERO_TIER_DISK];
    out->limit_bytes = data_bytes() + out->memory_bytes + MARGIN_BYTES;
    options = options_of(own, &tuning);
    CHECK_OK(zero_world_create_self(&world));
    if (limited) {
        set_limit(out->limit_bytes);
    }
    out->status = train(world, model.model, &options, out);
    memcpy(out->message, zero_last_error()->message, sizeof out->message - 1);
    zero_world_destroy(world);
    toy_model_close(&model);
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    out->peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
}

/* In a process of its own. */
static outcome train_apart(bool limited, const way *own, const way *planned)
{
    outcome out;
    int ends[2];
    int code = 0;
    memset(&out, 0, sizeof out);
    fflush(NULL);
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        train_alone(limited, own, planned, &out);
        CHECK(write(ends[1], &out, sizeof out) == (ssize_t)sizeof out);
        fflush(NULL);
        _exit(0);
    }
    CHECK(close(ends[1]) == 0);
    const bool told = read(ends[0], &out, sizeof out) == (ssize_t)sizeof out;
    CHECK(close(ends[0]) == 0);
    CHECK(waitpid(child, &code, 0) == child);
    if (WIFEXITED(code) && WEXITSTATUS(code) == 77) {
        SKIP("this kernel's RLIMIT_DATA does not count mappings");
    }
    CHECK(told && code == 0);
    return out;
}

REAL_TEST(several_times_the_memory_trains_on_disk)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    SKIP("a sanitizer's own memory is over any limit");
#endif
    char *folder = rig_folder(false);
    const char *const folders[] = {folder};
    const way in_memory = {NULL, false};
    const way on_disk = {folders, false};
    const outcome roomy = train_apart(false, &in_memory, &on_disk);
    const outcome memory = train_apart(true, &in_memory, &on_disk);
    const outcome disk = train_apart(true, &on_disk, &on_disk);
    printf("  state %" PRIu64 " bytes, limit %" PRIu64 ", planned in memory %" PRIu64
           "; resident at most %" PRIu64 ", without a limit or disks %" PRIu64 "\n  %s\n",
           disk.disk_bytes, disk.limit_bytes, disk.memory_bytes, disk.peak_bytes, roomy.peak_bytes,
           disk.path.text);
    CHECK(disk.disk_bytes > 4 * disk.limit_bytes);
    CHECK_EQ(roomy.status, ZERO_OK);
    CHECK_EQ(memory.status, ZERO_ERR_OUT_OF_MEMORY);
    CHECK(strstr(memory.message, "bytes left for an arena") != NULL);
    if (disk.status != ZERO_OK) {
        TEST_FAIL("on disk: %s", disk.message);
    }
    CHECK_EQ(disk.hash, roomy.hash);
    rig_remove(folder);
}

REAL_TEST(small_states_train_where_those_of_fp32_do_not_fit)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    SKIP("a sanitizer's own memory is over any limit");
#endif
    const way plain = {NULL, false};
    const way small = {NULL, true};
    const outcome roomy = train_apart(false, &small, &small);
    const outcome large = train_apart(true, &plain, &small);
    const outcome fits = train_apart(true, &small, &small);
    printf("  planned with small states %" PRIu64 " bytes, limit %" PRIu64 "\n", fits.memory_bytes,
           fits.limit_bytes);
    CHECK_EQ(roomy.status, ZERO_OK);
    CHECK_EQ(large.status, ZERO_ERR_OUT_OF_MEMORY);
    if (fits.status != ZERO_OK) {
        TEST_FAIL("small states: %s", fits.message);
    }
    CHECK_EQ(fits.hash, roomy.hash);
}
