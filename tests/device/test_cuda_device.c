/* device: the CUDA device's contract, direct and queued, over the fake CUDA runtime: whatever the
 * GPU runs first, work that is in order gives the same bytes. */
#include "cuda_rig.h"
#include "memory_policy.h"

#include <pthread.h>
#include <time.h>

#include "core/clock.h"

/* Holds up a stream's thread: a task that returns when the gate is opened. */
typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    bool open;
    pthread_t opener;
} gate;

static zero_status pass(void *argument)
{
    gate *const *held = argument;
    gate *g = *held;
    (void)pthread_mutex_lock(&g->mutex);
    while (!g->open) {
        (void)pthread_cond_wait(&g->moved, &g->mutex);
    }
    (void)pthread_mutex_unlock(&g->mutex);
    return ZERO_OK;
}

static bool is_open(gate *g)
{
    (void)pthread_mutex_lock(&g->mutex);
    const bool open = g->open;
    (void)pthread_mutex_unlock(&g->mutex);
    return open;
}

static void *open_gate(void *argument)
{
    gate *g = argument;
    (void)pthread_mutex_lock(&g->mutex);
    g->open = true;
    (void)pthread_cond_broadcast(&g->moved);
    (void)pthread_mutex_unlock(&g->mutex);
    return NULL;
}

static void *open_later(void *argument)
{
    (void)usleep(2000); /* long enough that who did not wait is found out */
    return open_gate(argument);
}

/* On a direct device there is no thread to hold up: the gate is open. */
static void hold(const rig *r, zi_stream *stream, gate *g)
{
    *g = (gate){.open = !r->queued};
    (void)pthread_mutex_init(&g->mutex, NULL);
    (void)pthread_cond_init(&g->moved, NULL);
    CHECK_OK(OPS->task(SELF, stream, pass, &g, sizeof(gate *)));
}

/* ---- order ---- */

TEST(the_fake_stands_for_the_runtime)
{
    rig r = open_rig(true);
    CHECK_EQ(fake_cuda_calls("cudaGetDeviceCount"), 1);
    CHECK_EQ(fake_cuda_calls("cudaStreamCreateWithFlags"), 3);
    CHECK(fake_cuda_live() > 0);
    close_rig(&r);
}

TEST(a_stream_that_goes_first)
{
    rig room = open_rig(true);
    rig *r = &room;
    zi_stream *first = NULL;
    int priority = 0;
    CHECK_OK(zi_device_stream_first(&r->device, "first", &first));
    CHECK_EQ(cudaStreamGetPriority(zi_cuda_stream_native(first), &priority), cudaSuccess);
    CHECK(priority < 0);
    CHECK_EQ(cudaStreamGetPriority(zi_cuda_stream_native(r->a), &priority), cudaSuccess);
    CHECK(priority == 0);
    OPS->stream_destroy(SELF, first);
    fake_cuda_fail("cudaStreamCreateWithPriority", 1, cudaErrorMemoryAllocation);
    CHECK_FAILS(zi_device_stream_first(&r->device, "first", &first), ZERO_ERR_OUT_OF_MEMORY,
                "cudaStreamCreateWithPriority");
    close_rig(r);
}

static void body_order(rig *r)
{
    check_byte(r->x, 0); /* memory comes zeroed */
    fill(r, r->a, r->x, 1);
    copy(r, r->a, r->y, r->x);
    fill(r, r->a, r->x, 2);
    finish(r, r->a);
    check_byte(r->y, 1);
    check_byte(r->x, 2);
}

static void body_wait(rig *r)
{
    fill(r, r->a, r->x, 3);
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    copy(r, r->b, r->y, r->x);
    finish(r, r->b);
    check_byte(r->y, 3);
}

TEST(a_stream_runs_in_order)
{
    on_both(body_order);
}

TEST(a_stream_waits_for_another)
{
    on_both(body_wait);
}

static void body_no_wait(rig *r)
{
    fill(r, r->a, r->x, 3);
    copy(r, r->b, r->y, r->x);
    finish(r, r->a);
    finish(r, r->b);
    CHECK_EQ(fake_cuda_races(), 1);
    fake_cuda_start(FAKE_CUDA_AT_SYNC, 1); /* forget it */
}

TEST(a_wait_left_out_is_seen)
{
    on_both(body_no_wait);
}

TEST(streams_are_independent)
{
    for (int queued = 0; queued < 2; queued++) {
        fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
        rig room = open_rig(queued == 1);
        rig *r = &room;
        fill(r, r->a, r->x, 1);
        CHECK_OK(OPS->event_record(SELF, r->event, r->a));
        CHECK_OK(OPS->issue_wait(SELF, r->event, NULL));
        fill(r, r->b, r->y, 2);
        finish(r, r->b);
        check_byte(r->y, 2);
        CHECK_EQ(fake_cuda_pending(), 2); /* all of stream a */
        close_rig(r);                     /* waits for it */
        CHECK_EQ(fake_cuda_pending(), 0);
        CHECK(fake_cuda_check());
    }
}

/* The wait was put before the second record: it must not become a wait for that one. */
TEST(a_record_does_not_move_an_earlier_wait)
{
    for (int queued = 0; queued < 2; queued++) {
        fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
        rig room = open_rig(queued == 1);
        rig *r = &room;
        gate g;
        hold(r, r->b, &g);
        CHECK_OK(OPS->event_record(SELF, r->event, r->a));
        CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
        fill(r, r->a, r->x, 1);
        CHECK_OK(OPS->event_record(SELF, r->event, r->a));
        CHECK_OK(OPS->issue_wait(SELF, r->event, NULL));
        (void)open_gate(&g);
        finish(r, r->b);
        CHECK_EQ(fake_cuda_pending(), 2); /* the fill and the second record */
        close_rig(r);
        CHECK(fake_cuda_check());
    }
}

/* A third record goes where the first was, so it is made when the waits for that one are issued. */
static void body_third_record(rig *r)
{
    gate g;
    hold(r, r->b, &g);
    CHECK_EQ(pthread_create(&g.opener, NULL, open_later, &g), 0);
    fill(r, r->a, r->x, 1);
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    copy(r, r->b, r->y, r->x);
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK(is_open(&g));
    finish(r, r->b);
    check_byte(r->y, 1);
    CHECK_EQ(pthread_join(g.opener, NULL), 0);
}

TEST(a_third_record_waits_for_the_waits_of_the_first)
{
    on_both(body_third_record);
}

static void body_never_recorded(rig *r)
{
    zi_stream *host = NULL;
    uint64_t waited_ns = 0;
    CHECK_OK(OPS->stream_wrap(SELF, zero_stream_host(), &host));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    CHECK_OK(OPS->stream_wait(SELF, host, r->event, &waited_ns));
    CHECK_OK(OPS->event_wait(SELF, r->event, &waited_ns));
    CHECK_OK(OPS->issue_wait(SELF, r->event, &waited_ns));
    CHECK_EQ(waited_ns, 0);
    finish(r, r->b);
    CHECK_EQ(fake_cuda_operations(FAKE_CUDA_WAIT), 0);
}

TEST(an_event_never_recorded_is_no_wait)
{
    on_both(body_never_recorded);
}

/* ---- any program ---- */

#define PROGRAM_STREAMS 3
#define PROGRAM_PIECES 4

/* The program's own view: what each piece holds, and who used it last. */
typedef struct program {
    rig *r;
    uint64_t random;
    zi_stream *streams[PROGRAM_STREAMS];
    zi_event *events[PROGRAM_STREAMS][PROGRAM_STREAMS]; /* of the first, for the second */
    unsigned char *pieces[PROGRAM_PIECES];
    unsigned char bytes[PROGRAM_PIECES];
    bool used[PROGRAM_PIECES][PROGRAM_STREAMS];
} program;

static uint64_t draw(program *p, uint64_t bound)
{
    p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (p->random >> 33) % bound;
}

/* Stream `to` goes on after all that used the piece on other streams. */
static void follow_users(program *p, uint64_t piece, uint64_t to)
{
    const rig *r = p->r;
    for (uint64_t from = 0; from < PROGRAM_STREAMS; from++) {
        if (from != to && p->used[piece][from]) {
            zi_event *event = p->events[from][to];
            CHECK_OK(OPS->event_record(SELF, event, p->streams[from]));
            CHECK_OK(OPS->stream_wait(SELF, p->streams[to], event, NULL));
        }
        p->used[piece][from] = from == to;
    }
}

static void step(program *p)
{
    const uint64_t on = draw(p, PROGRAM_STREAMS);
    const uint64_t target = draw(p, PROGRAM_PIECES);
    const uint64_t source = draw(p, PROGRAM_PIECES);
    follow_users(p, target, on);
    if (source == target) {
        p->bytes[target] = (unsigned char)draw(p, 256);
        fill(p->r, p->streams[on], p->pieces[target], p->bytes[target]);
    } else {
        follow_users(p, source, on);
        p->bytes[target] = p->bytes[source];
        copy(p->r, p->streams[on], p->pieces[target], p->pieces[source]);
    }
}

static void open_program(program *p, rig *r)
{
    p->streams[0] = r->a;
    p->streams[1] = r->b;
    CHECK_OK(OPS->stream_create(SELF, "c", &p->streams[2]));
    for (int i = 0; i < PROGRAM_STREAMS * PROGRAM_STREAMS; i++) {
        CHECK_OK(OPS->event_create(SELF, &p->events[i / PROGRAM_STREAMS][i % PROGRAM_STREAMS]));
    }
    for (int i = 0; i < PROGRAM_PIECES; i++) {
        p->pieces[i] = alloc(r);
    }
}

static void close_program(program *p, rig *r)
{
    OPS->stream_destroy(SELF, p->streams[2]);
    for (int i = 0; i < PROGRAM_STREAMS * PROGRAM_STREAMS; i++) {
        OPS->event_destroy(SELF, p->events[i / PROGRAM_STREAMS][i % PROGRAM_STREAMS]);
    }
    for (int i = 0; i < PROGRAM_PIECES; i++) {
        OPS->memory_free(SELF, p->pieces[i], BYTES);
    }
}

static void body_program(rig *r)
{
    static uint64_t programs;
    program p = {.r = r, .random = test_seed * 1000 + ++programs};
    open_program(&p, r);
    const uint64_t syncs = fake_cuda_syncs();
    for (int i = 0; i < 200; i++) {
        step(&p);
    }
    CHECK_EQ(fake_cuda_syncs(), syncs);
    for (int i = 0; i < PROGRAM_STREAMS; i++) {
        finish(r, p.streams[i]);
    }
    for (int i = 0; i < PROGRAM_PIECES; i++) {
        check_byte(p.pieces[i], p.bytes[i]);
    }
    close_program(&p, r);
}

TEST(any_program_in_order_gives_its_bytes)
{
    on_both(body_program);
}

/* ---- the host and the caller ---- */

static void body_host(rig *r)
{
    zi_stream *host = NULL;
    bool ran = false;
    bool *flag = &ran;
    CHECK_OK(OPS->stream_wrap(SELF, zero_stream_host(), &host));
    fill(r, host, r->x, 5);
    check_byte(r->x, 5);
    unsigned char plain[BYTES];
    copy(r, host, plain, r->x);
    CHECK_EQ(plain[BYTES - 1], 5);
    memset(plain, 6, BYTES);
    copy(r, host, r->y, plain);
    check_byte(r->y, 6);
    CHECK_OK(OPS->task(SELF, host, set_flag, &flag, sizeof flag));
    CHECK(ran);
    CHECK_FAILS(OPS->task(SELF, host, fail, &(int){1}, sizeof(int)), ZERO_ERR_COMM, "task 1");
    /* Both ways between the host stream and another. */
    fill(r, r->a, r->x, 7);
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, host, r->event, NULL));
    check_byte(r->x, 7);
    fill(r, host, r->x, 8);
    CHECK_OK(OPS->event_record(SELF, r->event, host));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    copy(r, r->b, r->y, r->x);
    finish(r, r->b);
    check_byte(r->y, 8);
}

TEST(the_host_stream_is_the_caller)
{
    on_both(body_host);
}

static void body_pinned(rig *r)
{
    void *memory = NULL;
    CHECK_OK(OPS->host_alloc(SELF, BYTES, &memory));
    unsigned char *pinned = memory;
    CHECK_EQ(pinned[0] + pinned[BYTES - 1], 0);
    fill(r, r->a, r->x, 9);
    copy(r, r->a, pinned, r->x);
    copy(r, r->a, r->y, pinned);
    finish(r, r->a);
    fake_cuda_host_read(pinned, BYTES);
    CHECK_EQ(pinned[BYTES - 1], 9);
    check_byte(r->y, 9);
    fill(r, r->a, pinned, 4);
    finish(r, r->a);
    CHECK_EQ(pinned[17], 4);
    OPS->host_free(SELF, memory, BYTES);
    OPS->host_free(SELF, NULL, 0);
    CHECK_OK(OPS->host_alloc(SELF, 0, &memory));
    CHECK(memory == NULL);
    CHECK_OK(OPS->memory_alloc(SELF, 0, &memory));
    OPS->memory_free(SELF, memory, 0);
}

TEST(host_memory_is_within_the_devices_reach)
{
    on_both(body_pinned);
}

/* The node that host memory of a device made now is bound to. */
static int node_of_pinned(void)
{
    rig room = open_rig(false);
    rig *r = &room;
    void *pinned = NULL;
    CHECK_OK(OPS->host_alloc(SELF, BYTES, &pinned));
    CHECK_EQ(page_node(pinned) >= 0, 1); /* faulted in */
    const int node = policy_node(pinned);
    OPS->host_free(SELF, pinned, BYTES);
    close_rig(r);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    return node;
}

TEST(host_memory_lies_next_to_the_gpu)
{
    if (!policy_known()) {
        SKIP("the kernel does not say where memory lies");
    }
    const int near = page_node(&test_seed); /* a node that there is */
    fake_cuda_start(FAKE_CUDA_AT_SYNC, test_seed);
    CHECK_EQ(node_of_pinned(), -1);
    CHECK_EQ(fake_cuda_calls("cudaDeviceGetAttribute"), 2);
    CHECK_EQ(fake_cuda_calls("cudaHostRegister"), 1);
    fake_cuda_host_node(near);
#ifdef ZI_WITH_NUMA
    CHECK_EQ(node_of_pinned(), near);
#endif
    /* As a driver that does not know the attribute. */
    fake_cuda_fail("cudaDeviceGetAttribute", 2, cudaErrorInvalidValue);
    CHECK_EQ(node_of_pinned(), -1);
    CHECK(fake_cuda_check());
}

/* A GPU that has other addresses for registered memory than the host would read anything. */
TEST(a_gpu_without_the_hosts_addresses_is_refused)
{
    zi_device device;
    fake_cuda_start(FAKE_CUDA_AT_SYNC, test_seed);
    fake_cuda_other_addresses();
    CHECK_EQ(zi_cuda_device_create(&device), ZERO_ERR_UNSUPPORTED);
    CHECK(strstr(zero_last_error()->message, "cudaDevAttrCanUseHostPointerForRegisteredMem") !=
          NULL);
    CHECK(fake_cuda_check());
}

static zero_status note_gpu(void *argument)
{
    int *const *gpu = argument;
    return cudaGetDevice(*gpu) == cudaSuccess ? ZERO_OK : ZERO_ERR_DEVICE;
}

/* The caller's thread has chosen another GPU since: what is issued is for the device's own, and the
 * caller's choice stays. */
static void body_other_gpu_is_current(rig *r)
{
    cudaStream_t native = NULL;
    int gpus[] = {-1, -1};
    int *places[] = {&gpus[0], &gpus[1]};
    int current = -1;
    zi_stream *caller = NULL;
    CHECK_EQ(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_OK(OPS->stream_wrap(SELF, (zero_stream){native}, &caller));
    CHECK_OK(OPS->task(SELF, r->a, note_gpu, &places[0], sizeof places[0]));
    CHECK_OK(OPS->task(SELF, caller, note_gpu, &places[1], sizeof places[1]));
    finish(r, r->a);
    CHECK_EQ(gpus[0], 0);
    CHECK_EQ(gpus[1], 0);
    CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
    CHECK_EQ(current, 1);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(native), cudaSuccess);
}

TEST(work_is_issued_for_the_devices_own_gpu)
{
    fake_cuda_devices(2);
    on_both(body_other_gpu_is_current);
}

static void body_wrapped(rig *r)
{
    cudaStream_t native = NULL;
    CHECK_EQ(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), cudaSuccess);
    zi_stream *caller = NULL;
    CHECK_OK(OPS->stream_wrap(SELF, (zero_stream){native}, &caller));
    const uint64_t syncs = fake_cuda_syncs();
    fill(r, r->a, r->x, 1);
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, caller, r->event, NULL));
    copy(r, caller, r->y, r->x);
    /* Work that the caller itself puts there is in order too. */
    CHECK_EQ(cudaMemsetAsync(r->x, 2, BYTES, native), cudaSuccess);
    CHECK_OK(OPS->event_record(SELF, r->event, caller));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    fill(r, r->b, r->y, 3);
    CHECK_EQ(fake_cuda_syncs(), syncs);
    CHECK_EQ(fake_cuda_stream_operations(native, FAKE_CUDA_WAIT), 1);
    CHECK_EQ(fake_cuda_stream_operations(native, FAKE_CUDA_COPY), 1);
    finish(r, r->b);
    check_byte(r->x, 2);
    check_byte(r->y, 3);
    CHECK_EQ(cudaStreamSynchronize(native), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(native), cudaSuccess);
}

TEST(the_callers_streams_are_in_order_with_ours)
{
    on_both(body_wrapped);
}

/* ---- tasks ---- */

typedef struct nest {
    rig *r;
    zi_stream *stream;
    int byte;
} nest;

/* Work put within a task: it comes before what was put behind the task. */
static zero_status fill_within(void *argument)
{
    const nest *n = argument;
    const rig *r = n->r;
    ZI_TRY(OPS->fill(SELF, n->stream, r->x, n->byte, BYTES));
    ZI_TRY(OPS->copy(SELF, n->stream, r->y, r->x, BYTES));
    return OPS->fill(SELF, n->stream, r->x, n->byte + 1, BYTES);
}

static void body_nested(rig *r)
{
    const nest within = {r, r->a, 40};
    fill(r, r->a, r->y, 1);
    CHECK_OK(OPS->task(SELF, r->a, fill_within, &within, sizeof within));
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    copy(r, r->b, r->y, r->x);
    finish(r, r->b);
    check_byte(r->y, 41);
    fill(r, r->a, r->y, 2);
    CHECK_OK(OPS->task(SELF, r->a, fill_within, &within, sizeof within));
    finish(r, r->a);
    check_byte(r->y, 40);
    check_byte(r->x, 41);
}

TEST(work_within_a_task_is_in_the_tasks_place)
{
    on_both(body_nested);
}

typedef struct append_argument {
    uint64_t *log;
    uint64_t digit;
} append_argument;

static zero_status append(void *argument)
{
    const append_argument *a = argument;
    *a->log = *a->log * 10 + a->digit;
    return ZERO_OK;
}

static void body_tasks(rig *r)
{
    uint64_t log = 0;
    gate g;
    hold(r, r->a, &g);
    for (uint64_t digit = 1; digit <= 9; digit++) {
        const append_argument a = {&log, digit};
        CHECK_OK(OPS->task(SELF, r->a, append, &a, sizeof a));
    }
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_EQ(pthread_create(&g.opener, NULL, open_later, &g), 0);
    uint64_t waited_ns = 0;
    CHECK_OK(OPS->issue_wait(SELF, r->event, &waited_ns));
    CHECK(is_open(&g));
    CHECK_EQ(log, 123456789);
    /* The gate may have been open by then, but only a queue is ever waited for. */
    CHECK(r->queued || waited_ns == 0);
    CHECK_EQ(pthread_join(g.opener, NULL), 0);
    finish(r, r->a);
}

TEST(tasks_run_in_order_and_issue_wait_sees_them_through)
{
    on_both(body_tasks);
}

/* ---- times ---- */

static void CUDART_CB sleep_on_stream(void *user)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    (void)user;
    (void)nanosleep(&pause, NULL);
}

/* Times are of the stream, not of the call: a function of 2 ms lies between two of them. */
static void body_times(rig *r)
{
    uint64_t ns[3] = {0};
    zi_stream *host = NULL;
    const uint64_t start_ns = zi_clock_ns();
    CHECK_OK(OPS->stream_wrap(SELF, zero_stream_host(), &host));
    CHECK_OK(OPS->timestamp(SELF, host, &ns[2]));
    CHECK(ns[2] >= start_ns && ns[2] <= zi_clock_ns());
    CHECK_OK(OPS->timestamp(SELF, r->a, &ns[0]));
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->issue_wait(SELF, r->event, NULL));
    CHECK_EQ(cudaLaunchHostFunc(zi_cuda_stream_native(r->a), sleep_on_stream, NULL), cudaSuccess);
    CHECK_OK(OPS->timestamp(SELF, r->a, &ns[1]));
    finish(r, r->a);
    CHECK_OK(OPS->timestamps_flush(SELF));
    /* The clocks are tied within some microseconds, but within a slice of time on a busy machine.
     */
    CHECK(ns[0] + 2000000 <= ns[1] + 1000);
    CHECK(ns[0] + 1000000000 > start_ns && ns[1] < zi_clock_ns() + 1000000000);
}

TEST(times_are_of_the_stream)
{
    on_both(body_times);
}

/* Until the stream has come there nothing is set, and nobody waits for it. */
TEST(times_that_are_pending_stay_so)
{
    for (int queued = 0; queued < 2; queued++) {
        fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
        rig room = open_rig(queued == 1);
        rig *r = &room;
        uint64_t first = 0;
        uint64_t *ns = calloc(8192, sizeof *ns); /* more than there are events */
        CHECK(ns != NULL);
        CHECK_OK(OPS->timestamp(SELF, r->b, &first));
        finish(r, r->b); /* objects that the first call makes are not counted below */
        const uint64_t syncs = fake_cuda_syncs();
        fake_cuda_latch latch = {.expected = 1};
        const bool given_up = false;
        CHECK_EQ(fake_cuda_latch_wait(zi_cuda_stream_native(r->a), &latch, &given_up), cudaSuccess);
        for (uint32_t i = 0; i < 8192; i++) {
            CHECK_OK(OPS->timestamp(SELF, r->a, &ns[i]));
        }
        CHECK_OK(OPS->event_record(SELF, r->event, r->a));
        CHECK_OK(OPS->issue_wait(SELF, r->event, NULL));
        CHECK_EQ(ns[0], 0);
        CHECK_EQ(ns[8191], ZI_NO_TIME);
        CHECK_EQ(fake_cuda_syncs(), syncs);
        CHECK_EQ(fake_cuda_latch_come(zi_cuda_stream_native(r->b), &latch), cudaSuccess);
        finish(r, r->a);
        CHECK_OK(OPS->timestamps_flush(SELF));
        CHECK(ns[0] != 0 && ns[0] != ZI_NO_TIME);
        CHECK(first != 0 && first <= ns[0] + 1000000000);
        uint64_t again = 0;
        CHECK_OK(OPS->timestamp(SELF, r->a, &again));
        finish(r, r->a);
        CHECK_OK(OPS->timestamps_flush(SELF));
        CHECK(again != 0 && again != ZI_NO_TIME);
        free(ns);
        close_rig(r);
        CHECK(fake_cuda_check());
    }
}

TEST(a_captured_stream_has_no_times)
{
    fake_cuda_start(FAKE_CUDA_EAGER, test_seed);
    rig room = open_rig(false);
    rig *r = &room;
    uint64_t ns[2] = {0};
    cudaGraph_t graph = NULL;
    const cudaStream_t native = zi_cuda_stream_native(r->a);
    CHECK_OK(OPS->timestamp(SELF, r->a, &ns[0]));
    CHECK_EQ(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_OK(OPS->timestamp(SELF, r->a, &ns[1]));
    CHECK_EQ(cudaStreamEndCapture(native, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_OK(OPS->timestamps_flush(SELF));
    CHECK(ns[0] != 0 && ns[0] != ZI_NO_TIME);
    CHECK_EQ(ns[1], ZI_NO_TIME);
    close_rig(r);
    CHECK(fake_cuda_check());
}
