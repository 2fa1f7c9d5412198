/* Owns the fake's lock, its count of calls, the failures that tests arm, and what tests read. */
#include <stdio.h>
#include <string.h>

#include "fake_stream.h"

#define CALL_NAMES_MAX 64
#define CALL_NAME_BYTES 48

/* Calls of one name. */
typedef struct call_count {
    char name[CALL_NAME_BYTES];
    uint64_t calls;
    uint64_t fail_at; /* 0: never */
    cudaError_t code;
} call_count;

static _Thread_local cudaError_t last_error;
static call_count call_counts[CALL_NAMES_MAX];

/* ---- the lock, the count of calls, armed failures ---- */

void fake_lock(void)
{
    (void)pthread_mutex_lock(&fake.mutex);
    if (fake.host.number == 0) {
        race_line_open(&fake.host, "the host");
        (void)race_line_next(&fake.host, "the first lock");
    }
}

void fake_unlock(void)
{
    (void)pthread_mutex_unlock(&fake.mutex);
}

static call_count *count_of(const char *name)
{
    for (size_t i = 0; i < CALL_NAMES_MAX; i++) {
        call_count *count = &call_counts[i];
        if (count->name[0] == '\0') {
            (void)snprintf(count->name, CALL_NAME_BYTES, "%s", name);
        }
        if (strncmp(count->name, name, CALL_NAME_BYTES - 1) == 0) {
            return count;
        }
    }
    fake_give_up("more names of calls than there is room for");
}

cudaError_t fake_enter(const char *call)
{
    fake_lock();
    call_count *count = count_of(call);
    count->calls++;
    if (fake_in_host_function) {
        race_fault(RACE_MISUSE, "%s is called from a function that cudaLaunchHostFunc runs", call);
        return cudaErrorNotPermitted;
    }
    if (count->calls == count->fail_at) {
        return count->code;
    }
    return fake.sticky;
}

cudaError_t fake_leave(cudaError_t code)
{
    fake_run_by_mode();
    const cudaError_t result = code == cudaSuccess ? fake.sticky : code;
    if (result != cudaSuccess) {
        last_error = result;
    }
    fake_unlock();
    return result;
}

bool fake_may_release(cudaError_t entered)
{
    return entered == cudaSuccess || entered == fake.sticky;
}

cudaError_t cudaGetLastError(void)
{
    fake_lock();
    const cudaError_t code = fake.sticky != cudaSuccess ? fake.sticky : last_error;
    last_error = cudaSuccess;
    fake_unlock();
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    fake_lock();
    const cudaError_t code = fake.sticky != cudaSuccess ? fake.sticky : last_error;
    fake_unlock();
    return code;
}

/* ---- what tests control and count ---- */

/* Seeds of which one guards memory. */
#define GUARDED_OF 4

void fake_cuda_start(fake_cuda_mode mode, uint64_t seed)
{
    fake_lock();
    fake.mode = mode;
    fake.random = seed;
    fake.guards = seed % GUARDED_OF == 1;
    fake.syncs = 0;
    fake.ran = 0;
    fake.fail_at = 0;
    memset(call_counts, 0, sizeof call_counts);
    memset(fake.retired_operations, 0, sizeof fake.retired_operations);
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        memset(stream->operations, 0, sizeof stream->operations);
    }
    race_faults_clear();
    fake_unlock();
}

void fake_cuda_devices(int count)
{
    if (count > FAKE_CUDA_DEVICES_MAX) {
        fake_give_up("more devices than there is room for");
    }
    fake_lock();
    fake.devices = count;
    fake_unlock();
}

void fake_cuda_host_node(int node)
{
    fake_lock();
    fake.host_node = node;
    fake_unlock();
}

void fake_cuda_other_addresses(void)
{
    fake_lock();
    fake.other_addresses = true;
    fake_unlock();
}

void fake_cuda_peers(bool possible)
{
    fake_lock();
    fake.no_peers = !possible;
    fake_unlock();
}

void fake_cuda_connections(uint32_t count)
{
    fake_lock();
    fake.connections = count;
    fake_unlock();
}

void fake_cuda_fail(const char *name, uint64_t nth, cudaError_t code)
{
    fake_lock();
    call_count *count = count_of(name);
    count->fail_at = count->calls + nth;
    count->code = code;
    fake_unlock();
}

void fake_cuda_fail_operation(uint64_t nth)
{
    fake_lock();
    fake.fail_at = fake.ran + nth;
    fake_unlock();
}

uint64_t fake_cuda_calls(const char *name)
{
    fake_lock();
    const uint64_t calls = count_of(name)->calls;
    fake_unlock();
    return calls;
}

uint64_t fake_cuda_syncs(void)
{
    fake_lock();
    const uint64_t syncs = fake.syncs;
    fake_unlock();
    return syncs;
}

uint64_t fake_cuda_operations(fake_cuda_kind kind)
{
    fake_lock();
    uint64_t count = fake.retired_operations[kind];
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        count += stream->operations[kind];
    }
    fake_unlock();
    return count;
}

uint64_t fake_cuda_stream_operations(cudaStream_t stream, fake_cuda_kind kind)
{
    fake_lock();
    const uint64_t count = stream->operations[kind];
    fake_unlock();
    return count;
}

uint64_t fake_cuda_pending(void)
{
    uint64_t count = 0;
    fake_lock();
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        count += stream->line.number - stream->done;
    }
    fake_unlock();
    return count;
}

uint64_t fake_cuda_live(void)
{
    fake_lock();
    uint64_t count = race_region_count();
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        count += stream->alive && !stream->legacy;
    }
    for (cudaEvent_t event = fake.events; event != NULL; event = event->next) {
        count += event->alive;
    }
    fake_unlock();
    return count;
}

void fake_cuda_name_stream(cudaStream_t stream, const char *name)
{
    fake_lock();
    race_line_rename(&stream->line, name);
    fake_unlock();
}

void fake_cuda_drain(void)
{
    fake_lock();
    for (int device = 0; device < FAKE_CUDA_DEVICES_MAX; device++) {
        fake_run_device(device);
    }
    fake_unlock();
}
