/* Owns the test that a simulated engine does what a live one does, in the same order. The linker
 * hands zi_engine_create_with to this file (--wrap), which puts a recorder around the bundle: what
 * the first rank's own thread issues is written down, call by call. */
#include "sim_rig.h"

#include <pthread.h>
#include <stdarg.h>

#include "engine/backend.h"
#include "folders.h"

#define LINES_MAX 20000
#define LINE_BYTES 96
#define STREAMS_MAX 8
#define GROUPS_MAX 8

typedef struct order_log {
    uint32_t count;
    char lines[LINES_MAX][LINE_BYTES];
} order_log;

static order_log logs[2]; /* live, simulated */

static struct {
    order_log *log;
    pthread_t thread; /* the first rank's */
    zi_backend real;
    zi_device_ops device_ops;
    const zi_device_ops *real_device;
    zi_kernels_ops kernels_ops;
    const zi_kernels_ops *real_kernels;
    struct {
        const zi_stream *stream;
        const char *name;
    } streams[STREAMS_MAX];
    uint32_t stream_count;
    struct {
        const zi_group *group;
        const zi_group_ops *real;
        zi_group_ops ops;
    } groups[GROUPS_MAX];
    uint32_t group_count;
} recorder;

/* Tasks and other calls that this thread is in: what they put is their own. */
static _Thread_local uint32_t tasks;

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
    if (tasks != 0 || !pthread_equal(pthread_self(), recorder.thread)) {
        return;
    }
    va_list arguments;
    CHECK(recorder.log->count < LINES_MAX);
    va_start(arguments, format);
    (void)vsnprintf(recorder.log->lines[recorder.log->count++], LINE_BYTES, format, arguments);
    va_end(arguments);
}

/* Work that this thread puts from here on is another call's own. */
static void enter(void)
{
    tasks++;
}

static zero_status leave(zero_status status)
{
    tasks--;
    return status;
}

static const char *name_of(const zi_stream *stream)
{
    for (uint32_t i = 0; i < recorder.stream_count; i++) {
        if (recorder.streams[i].stream == stream) {
            return recorder.streams[i].name;
        }
    }
    return "the caller's";
}

static zero_status stream_create(void *self, const char *name, zi_stream **out)
{
    const zero_status status = recorder.real_device->stream_create(self, name, out);
    CHECK(recorder.stream_count < STREAMS_MAX);
    recorder.streams[recorder.stream_count].stream = *out;
    recorder.streams[recorder.stream_count++].name = name;
    return status;
}

static zero_status event_record(void *self, zi_event *event, zi_stream *stream)
{
    note("record on %s", name_of(stream));
    return recorder.real_device->event_record(self, event, stream);
}

static zero_status stream_wait(void *self, zi_stream *stream, zi_event *event, uint64_t *waited_ns)
{
    note("wait on %s", name_of(stream));
    return recorder.real_device->stream_wait(self, stream, event, waited_ns);
}

static zero_status event_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    note("wait of the host");
    return recorder.real_device->event_wait(self, event, waited_ns);
}

static zero_status task(void *self, zi_stream *stream, zi_task_fn fn, const void *argument,
                        size_t bytes)
{
    note("task %" PRIxPTR " on %s", (uintptr_t)fn, name_of(stream));
    enter(); /* a simulated one runs now */
    return leave(recorder.real_device->task(self, stream, fn, argument, bytes));
}

static zero_status fill(void *self, zi_stream *stream, void *target, int byte, size_t bytes)
{
    note("fill of %zu bytes on %s", bytes, name_of(stream));
    return recorder.real_device->fill(self, stream, target, byte, bytes);
}

static zero_status copy(void *self, zi_stream *stream, void *target, const void *source,
                        size_t bytes)
{
    note("copy of %zu bytes on %s", bytes, name_of(stream));
    return recorder.real_device->copy(self, stream, target, source, bytes);
}

static zero_status device_create(void *self, zi_device *device)
{
    const zero_status status = recorder.real.device_create(self, device);
    recorder.real_device = device->ops;
    recorder.device_ops = *device->ops;
    recorder.device_ops.stream_create = stream_create;
    recorder.device_ops.event_record = event_record;
    recorder.device_ops.stream_wait = stream_wait;
    recorder.device_ops.event_wait = event_wait;
    recorder.device_ops.task = task;
    recorder.device_ops.fill = fill;
    recorder.device_ops.copy = copy;
    device->ops = &recorder.device_ops;
    return status;
}

/* ---- kernels ---- */

static zero_status update(void *self, zi_stream *stream, const zi_update_job *job)
{
    note("update of %" PRIu64 " on %s", job->count, name_of(stream));
    enter();
    return leave(recorder.real_kernels->update(self, stream, job));
}

static zero_status square_sum(void *self, zi_stream *stream, const void *source, zero_dtype dtype,
                              size_t count, zi_norm_sum *sum)
{
    note("squares of %zu on %s", count, name_of(stream));
    enter();
    return leave(recorder.real_kernels->square_sum(self, stream, source, dtype, count, sum));
}

static zero_status decide(void *self, zi_stream *stream, const zi_decide_job *job)
{
    note("decision on %s", name_of(stream));
    enter();
    return leave(recorder.real_kernels->decide(self, stream, job));
}

static zero_status fold(void *self, zi_stream *stream, const zi_fold *job)
{
    note("fold of %zu on %s", job->count, name_of(stream));
    enter();
    return leave(recorder.real_kernels->fold(self, stream, job));
}

static zero_status cast(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                        const void *source, zero_dtype source_dtype, size_t count)
{
    note("cast of %zu on %s", count, name_of(stream));
    enter();
    return leave(recorder.real_kernels->cast(self, stream, target, target_dtype, source,
                                             source_dtype, count));
}

static zero_status kernels_create(void *self, const zi_device *device, zi_pool *pool,
                                  zi_kernels *kernels)
{
    const zero_status status = recorder.real.kernels_create(self, device, pool, kernels);
    recorder.real_kernels = kernels->ops;
    recorder.kernels_ops = *kernels->ops;
    recorder.kernels_ops.update = update;
    recorder.kernels_ops.square_sum = square_sum;
    recorder.kernels_ops.decide = decide;
    recorder.kernels_ops.fold = fold;
    recorder.kernels_ops.cast = cast;
    kernels->ops = &recorder.kernels_ops;
    return status;
}

/* ---- groups ---- */

static zero_status submit(zi_group *group, zi_stream *stream, const zi_collective *batch,
                          size_t batch_count)
{
    uint32_t at = 0;
    while (recorder.groups[at].group != group) {
        at++;
    }
    for (size_t i = 0; i < batch_count; i++) {
        char text[ZI_COLLECTIVE_TEXT_BYTES];
        note("%s: %s on %s", group->name, zi_collective_text(&batch[i], text, sizeof text),
             name_of(stream));
    }
    enter();
    return leave(recorder.groups[at].real->submit(group, stream, batch, batch_count));
}

static zero_status group_create(zero_world *world, const zi_group_desc *desc, zi_group **out)
{
    const zero_status status = recorder.real.transport->group_create(world, desc, out);
    if (status == ZERO_OK && zero_world_rank(world) == 0) {
        CHECK(recorder.group_count < GROUPS_MAX);
        const uint32_t at = recorder.group_count++;
        recorder.groups[at].group = *out;
        recorder.groups[at].real = (*out)->ops;
        recorder.groups[at].ops = *(*out)->ops;
        recorder.groups[at].ops.submit = submit;
        (*out)->ops = &recorder.groups[at].ops;
    }
    return status;
}

zero_status __real_zi_engine_create_with(zero_world *world, const zero_model *model,
                                         const zero_engine_options *options,
                                         const zi_backend *backend, zero_engine **engine);
zero_status __wrap_zi_engine_create_with(zero_world *world, const zero_model *model,
                                         const zero_engine_options *options,
                                         const zi_backend *backend, zero_engine **engine);

zero_status __wrap_zi_engine_create_with(zero_world *world, const zero_model *model,
                                         const zero_engine_options *options,
                                         const zi_backend *backend, zero_engine **engine)
{
    static zi_transport transport;
    if (zero_world_rank(world) != 0) {
        return __real_zi_engine_create_with(world, model, options, backend, engine);
    }
    zi_backend recorded = *backend;
    recorder.real = *backend;
    recorder.thread = pthread_self();
    recorder.stream_count = 0;
    recorder.group_count = 0;
    transport = *backend->transport;
    transport.group_create = group_create;
    recorded.transport = &transport;
    recorded.device_create = device_create;
    recorded.kernels_create = kernels_create;
    const zero_status status =
        __real_zi_engine_create_with(world, model, options, &recorded, engine);
    recorder.log->count = 0; /* from the first step on */
    return status;
}

/* ---- a live engine, which trains as the simulated trainer does ---- */

static zero_status open_device(void *self, zi_device *device)
{
    (void)self;
    return zi_cpu_device_create(device);
}

static zero_status open_kernels(void *self, const zi_device *device, zi_pool *pool,
                                zi_kernels *kernels)
{
    (void)self;
    return zi_cpu_kernels_create(device, pool, kernels);
}

static zero_status pass(zero_engine *engine, uint32_t unit, zero_pass what)
{
    const zero_status status = zero_unit_acquire(engine, unit, what, zero_stream_host(), NULL);
    return status == ZERO_OK ? zero_unit_release(engine, unit, zero_stream_host()) : status;
}

static zero_status train(zero_world *world, void *user)
{
    const zi_sim_job *job = user;
    const uint32_t units = zero_model_unit_count(job->model);
    const zi_backend live = {.can = {.host_memory = true},
                             .device_create = open_device,
                             .kernels_create = open_kernels,
                             .host_kernels_create = open_kernels,
                             .transport = &zi_world_transport};
    zero_engine *engine = NULL;
    CHECK_OK(zi_engine_create_with(world, job->model, job->options, &live, &engine));
    for (uint64_t step = 0; step < ZI_SIM_WARM_STEPS + job->steps; step++) {
        for (uint64_t micro = 1; micro <= job->micro_steps; micro++) {
            CHECK_OK(zero_micro_begin(engine, micro == job->micro_steps ? ZERO_MICRO_LAST
                                                                        : ZERO_MICRO_EARLIER));
            for (uint32_t u = 0; u < units; u++) {
                CHECK_OK(pass(engine, u, ZERO_PASS_FORWARD));
            }
            for (uint32_t u = units; u-- > 0;) {
                CHECK_OK(pass(engine, u, ZERO_PASS_BACKWARD));
            }
            CHECK_OK(zero_micro_end(engine));
        }
        CHECK_OK(zero_step(engine, NULL, zero_stream_host()));
    }
    zero_step_result result = zero_step_result_init();
    CHECK_OK(zero_step_wait(engine, &result));
    zero_engine_destroy(engine);
    return ZERO_OK;
}

/* ---- the same order ---- */

static void compare(sim_rig *rig, uint32_t world)
{
    rig->options.device = ZERO_DEVICE_CPU;
    rig->job.micro_steps = 2;
    rig->job.steps = 3;
    recorder.log = &logs[0];
    CHECK_OK(zero_world_run(world, 0, train, &rig->job));
    const uint32_t waits = 1; /* zero_step_wait, at least */
    recorder.log = &logs[1];
    CHECK_OK(rig_try(rig));
    CHECK(logs[0].count > 100);
    CHECK(logs[0].count >= logs[1].count + waits);
    for (uint32_t i = 0; i < logs[1].count; i++) {
        if (strcmp(logs[0].lines[i], logs[1].lines[i]) != 0) {
            TEST_FAIL("call %u: live \"%s\", simulated \"%s\"", i, logs[0].lines[i],
                      logs[1].lines[i]);
        }
    }
    for (uint32_t i = logs[1].count; i < logs[0].count; i++) {
        CHECK(strcmp(logs[0].lines[i], "wait of the host") == 0);
    }
    rig_close(rig);
}

static void compare_stage(zero_stage stage, uint32_t world, uint32_t shard_group)
{
    sim_rig rig;
    rig_open(&rig, 1, world, 9, 5000, 1000);
    rig.options.stage = stage;
    rig.options.shard_group = shard_group;
    compare(&rig, world);
}

TEST_CALL(live_order_at_stage_0, compare_stage(ZERO_STAGE_0, 2, 0));
TEST_CALL(live_order_at_stage_1, compare_stage(ZERO_STAGE_1, 2, 0));
TEST_CALL(live_order_at_stage_2, compare_stage(ZERO_STAGE_2, 2, 0));
TEST_CALL(live_order_at_stage_3, compare_stage(ZERO_STAGE_3, 2, 0));
TEST_CALL(live_order_of_four_ranks, compare_stage(ZERO_STAGE_3, 4, 0));
TEST_CALL(live_order_of_hybrid_sharding, compare_stage(ZERO_STAGE_3, 4, 2));

/* A live engine really reads and writes files. */
static void compare_on_disk(zero_role first)
{
    sim_rig rig;
    rig_folders(1, 0);
    rig_open(&rig, 1, 2, 9, 5000, 1000);
    rig_tiers(&rig, first, ZERO_TIER_DISK);
    rig.options.disk_directories = rig_paths;
    compare(&rig, 2);
}

TEST_CALL(live_order_with_state_on_disk, compare_on_disk(ZERO_ROLE_MASTER));
TEST_CALL(live_order_with_all_on_disk, compare_on_disk(ZERO_ROLE_PARAM));
