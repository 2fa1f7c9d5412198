/* Owns the injected backends. Each is the CPU's tables with some entries replaced, so that all else
 * is what the engine runs on otherwise. */
#include "injected.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/memory.h"
#include "engine/backend.h"
#include "storage/io_backend.h"
#include "toy.h"

injected_counts injected_counted;

static _Atomic injected in_use; /* ranks are threads */
static zi_device cpu;           /* for its table */
static zi_kernels cpu_kernels;

void injected_use(injected backend)
{
    in_use = backend;
}

injected injected_in_use(void)
{
    return in_use;
}

/* A program's tests as they are, on another backend. */
__attribute__((constructor)) static void read_environment(void)
{
    const char *backend = getenv("INJECTED");
    if (backend != NULL) {
        in_use = strcmp(backend, "counted") == 0 ? INJECTED_COUNTED : INJECTED_OWN_MEMORY;
    }
}

/* ---- devices ---- */

static zero_status count_alloc(atomic_uint_fast64_t *count, void *self, size_t bytes, void **out)
{
    TOY_TRY(cpu.ops->memory_alloc(self, bytes, out));
    atomic_fetch_add(count, bytes);
    return ZERO_OK;
}

static void count_free(atomic_uint_fast64_t *count, void *self, void *pointer, size_t bytes)
{
    if (pointer != NULL) {
        atomic_fetch_sub(count, bytes);
        cpu.ops->memory_free(self, pointer, bytes);
    }
}

static zero_status counted_alloc(void *self, size_t bytes, void **out)
{
    return count_alloc(&injected_counted.device_bytes, self, bytes, out);
}

static void counted_free(void *self, void *pointer, size_t bytes)
{
    count_free(&injected_counted.device_bytes, self, pointer, bytes);
}

static zero_status counted_host_alloc(void *self, size_t bytes, void **out)
{
    return count_alloc(&injected_counted.host_bytes, self, bytes, out);
}

static void counted_host_free(void *self, void *pointer, size_t bytes)
{
    count_free(&injected_counted.host_bytes, self, pointer, bytes);
}

/* Whoever reads or writes simulated memory of the device ends the process; what the host reads of
 * its own is zeros, and takes pages only then. */
static zero_status reserve(atomic_uint_fast64_t *count, int access, size_t bytes, void **out)
{
    *out = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TOY_CHECK(*out != MAP_FAILED, "no room for %zu bytes", bytes);
    atomic_fetch_add(count, bytes);
    return ZERO_OK;
}

static zero_status simulated_alloc(void *self, size_t bytes, void **out)
{
    (void)self;
    return reserve(&injected_counted.device_bytes, PROT_NONE, bytes, out);
}

static zero_status simulated_host_alloc(void *self, size_t bytes, void **out)
{
    (void)self;
    return reserve(&injected_counted.host_bytes, PROT_READ | PROT_WRITE, bytes, out);
}

static void unreserve(atomic_uint_fast64_t *count, void *pointer, size_t bytes)
{
    if (pointer != NULL) {
        atomic_fetch_sub(count, bytes);
        TOY_CHECK(munmap(pointer, bytes) == 0, "not ours: %p", pointer);
    }
}

static void simulated_free(void *self, void *pointer, size_t bytes)
{
    (void)self;
    unreserve(&injected_counted.device_bytes, pointer, bytes);
}

static void simulated_host_free(void *self, void *pointer, size_t bytes)
{
    (void)self;
    unreserve(&injected_counted.host_bytes, pointer, bytes);
}

static zero_status fill_nothing(void *self, zi_stream *stream, void *target, int byte, size_t bytes)
{
    (void)self;
    (void)stream;
    (void)target;
    (void)byte;
    (void)bytes;
    return ZERO_OK;
}

static zero_status copy_nothing(void *self, zi_stream *stream, void *target, const void *source,
                                size_t bytes)
{
    (void)self;
    (void)stream;
    (void)target;
    (void)source;
    (void)bytes;
    return ZERO_OK;
}

/* ---- kernels ---- */

static zero_status counted_update(void *self, zi_stream *stream, const zi_update_job *job)
{
    atomic_fetch_add(&injected_counted.updates, 1);
    return cpu_kernels.ops->update(self, stream, job);
}

static zero_status counted_host_update(void *self, zi_stream *stream, const zi_update_job *job)
{
    atomic_fetch_add(&injected_counted.host_updates, 1);
    return cpu_kernels.ops->update(self, stream, job);
}

static zero_status simulated_update(void *self, zi_stream *stream, const zi_update_job *job)
{
    (void)self;
    (void)stream;
    (void)job;
    atomic_fetch_add(&injected_counted.updates, 1);
    return ZERO_OK;
}

static zero_status simulated_host_update(void *self, zi_stream *stream, const zi_update_job *job)
{
    (void)self;
    (void)stream;
    (void)job;
    atomic_fetch_add(&injected_counted.host_updates, 1);
    return ZERO_OK;
}

static zero_status no_square_sum(void *self, zi_stream *stream, const void *source,
                                 zero_dtype dtype, size_t count, zi_norm_sum *sum)
{
    (void)self;
    (void)stream;
    (void)source;
    (void)dtype;
    (void)count;
    (void)sum;
    return ZERO_OK;
}

static zero_status no_decide(void *self, zi_stream *stream, const zi_decide_job *job)
{
    (void)self;
    (void)stream;
    (void)job;
    return ZERO_OK;
}

static zero_status no_fold(void *self, zi_stream *stream, const zi_fold *fold)
{
    (void)self;
    (void)stream;
    (void)fold;
    return ZERO_OK;
}

static zero_status no_cast(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                           const void *source, zero_dtype source_dtype, size_t count)
{
    (void)self;
    (void)stream;
    (void)target;
    (void)target_dtype;
    (void)source;
    (void)source_dtype;
    (void)count;
    return ZERO_OK;
}

/* ---- storage ---- */

/* The bytes that were written to a store. */
typedef struct kept_store {
    const zi_store *store;
    struct kept_store *next;
    unsigned char bytes[];
} kept_store;

static struct {
    pthread_mutex_t mutex; /* guards the list and its links */
    kept_store *first;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* One queue's accesses: they are done when it comes for them. */
typedef struct memory_queue {
    unsigned char *bytes; /* NULL: nothing is moved */
    zi_io_segment *first;
    zi_io_segment **last;
} memory_queue;

static unsigned char *bytes_of(const zi_store *store)
{
    (void)pthread_mutex_lock(&kept.mutex);
    kept_store *found = kept.first;
    while (found != NULL && found->store != store) {
        found = found->next;
    }
    if (found == NULL) {
        found = calloc(1, sizeof *found + zi_store_bytes(store));
        TOY_CHECK(found != NULL, "no memory");
        found->store = store;
        found->next = kept.first;
        kept.first = found;
    }
    (void)pthread_mutex_unlock(&kept.mutex);
    return found->bytes;
}

static void destroy_kept(void *self, const zi_store *store)
{
    (void)self;
    (void)pthread_mutex_lock(&kept.mutex);
    kept_store **link = &kept.first;
    while (*link != NULL && (*link)->store != store) {
        link = &(*link)->next;
    }
    kept_store *gone = *link; /* NULL: no queue was made */
    *link = gone != NULL ? gone->next : NULL;
    (void)pthread_mutex_unlock(&kept.mutex);
    free(gone);
}

static void queue_put(void *self, zi_io_segment *segment)
{
    memory_queue *queue = self;
    TOY_CHECK(segment->fd == -1, "there are no files");
    segment->link = NULL;
    *queue->last = segment;
    queue->last = &segment->link;
}

static void queue_flush(void *self)
{
    (void)self;
}

static void run_segment(const memory_queue *queue, zi_io_segment *segment)
{
    const bool write = segment->kind == ZI_IO_WRITE;
    unsigned char *there = queue->bytes + segment->op_offset;
    if (queue->bytes != NULL) {
        memcpy(write ? there : segment->memory, write ? segment->memory : there, segment->bytes);
    }
    atomic_fetch_add(write ? &injected_counted.write_bytes : &injected_counted.read_bytes,
                     segment->bytes);
    segment->result = (int32_t)segment->bytes;
}

static int queue_reap(void *self, zi_io_segment **done, uint32_t room, uint32_t want,
                      uint64_t timeout_ns)
{
    memory_queue *queue = self;
    int count = 0;
    (void)want;
    (void)timeout_ns;
    while (queue->first != NULL && (uint32_t)count < room) {
        zi_io_segment *segment = queue->first;
        queue->first = segment->link;
        queue->last = queue->first != NULL ? queue->last : &queue->first;
        run_segment(queue, segment);
        done[count++] = segment;
    }
    return count;
}

static const zi_io_backend_ops memory_ops = {
    .struct_bytes = sizeof(zi_io_backend_ops),
    .name = "memory",
    .put = queue_put,
    .flush = queue_flush,
    .reap = queue_reap,
    .destroy = free,
};

static zero_status open_queue(unsigned char *bytes, zi_io_backend *backend)
{
    memory_queue *queue = calloc(1, sizeof *queue);
    TOY_CHECK(queue != NULL, "no memory");
    *queue = (memory_queue){.bytes = bytes, .last = &queue->first};
    *backend = (zi_io_backend){&memory_ops, queue};
    return ZERO_OK;
}

static zero_status create_kept(void *self, const zi_io_setup *setup, zi_io_backend *backend,
                               zi_io_report *report)
{
    (void)self;
    (void)report;
    return open_queue(bytes_of(setup->store), backend);
}

static zero_status create_simulated(void *self, const zi_io_setup *setup, zi_io_backend *backend,
                                    zi_io_report *report)
{
    (void)self;
    (void)setup;
    (void)report;
    return open_queue(NULL, backend);
}

/* ---- the bundles ---- */

static zero_status counted_group(zero_world *world, const zi_group_desc *desc, zi_group **out)
{
    atomic_fetch_add(&injected_counted.groups, 1);
    return zi_world_transport.group_create(world, desc, out);
}

static zi_device_ops device_ops[INJECTED_SIMULATED + 1];
static zi_kernels_ops kernels_ops[INJECTED_SIMULATED + 1];
static zi_kernels_ops host_ops[INJECTED_SIMULATED + 1];
static zi_transport transport;
static const zi_storage kept_storage = {.struct_bytes = sizeof(zi_storage),
                                        .name = "memory",
                                        .backend_create = create_kept,
                                        .store_destroy = destroy_kept};
static const zi_storage simulated_storage = {
    .struct_bytes = sizeof(zi_storage), .name = "nothing", .backend_create = create_simulated};

static void make_tables(void)
{
    TOY_CHECK(zi_cpu_device_create(&cpu) == ZERO_OK &&
                  zi_cpu_kernels_create(&cpu, NULL, &cpu_kernels) == ZERO_OK,
              "no CPU");
    for (int i = INJECTED_COUNTED; i <= INJECTED_SIMULATED; i++) {
        device_ops[i] = *cpu.ops;
        device_ops[i].host_memory = i == INJECTED_COUNTED;
        device_ops[i].memory_alloc = counted_alloc;
        device_ops[i].memory_free = counted_free;
        device_ops[i].host_alloc = counted_host_alloc;
        device_ops[i].host_free = counted_host_free;
        kernels_ops[i] = *cpu_kernels.ops;
        kernels_ops[i].update = counted_update;
        host_ops[i] = *cpu_kernels.ops;
        host_ops[i].update = counted_host_update;
    }
    zi_device_ops *device = &device_ops[INJECTED_SIMULATED];
    device->memory_alloc = simulated_alloc;
    device->memory_free = simulated_free;
    device->host_alloc = simulated_host_alloc;
    device->host_free = simulated_host_free;
    device->fill = fill_nothing;
    device->copy = copy_nothing;
    zi_kernels_ops *kernels = &kernels_ops[INJECTED_SIMULATED];
    kernels->update = simulated_update;
    kernels->square_sum = no_square_sum;
    kernels->decide = no_decide;
    kernels->fold = no_fold;
    kernels->cast = no_cast;
    host_ops[INJECTED_SIMULATED] = *kernels;
    host_ops[INJECTED_SIMULATED].update = simulated_host_update;
    transport = zi_world_transport;
    transport.group_create = counted_group;
}

/* self: which backend it is. */
static zero_status create_device(void *self, zi_device *device)
{
    TOY_TRY(zi_cpu_device_create(device));
    device->ops = &device_ops[*(const injected *)self];
    return ZERO_OK;
}

static zero_status create_kernels(void *self, const zi_device *device, zi_pool *pool,
                                  zi_kernels *kernels)
{
    TOY_TRY(zi_cpu_kernels_create(device, pool, kernels));
    kernels->ops = &kernels_ops[*(const injected *)self];
    return ZERO_OK;
}

static zero_status create_host_kernels(void *self, const zi_device *device, zi_pool *pool,
                                       zi_kernels *kernels)
{
    TOY_TRY(zi_cpu_kernels_create(device, pool, kernels));
    kernels->ops = &host_ops[*(const injected *)self];
    return ZERO_OK;
}

zero_status __wrap_zero_engine_create(zero_world *world, const zero_model *model,
                                      const zero_engine_options *options, zero_engine **engine);

zero_status __wrap_zero_engine_create(zero_world *world, const zero_model *model,
                                      const zero_engine_options *options, zero_engine **engine)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static injected kinds[] = {INJECTED_NONE, INJECTED_COUNTED, INJECTED_OWN_MEMORY,
                               INJECTED_SIMULATED};
    (void)pthread_once(&once, make_tables);
    const bool simulated = in_use == INJECTED_SIMULATED;
    const zi_backend backend = {.can = {.host_memory = in_use == INJECTED_COUNTED},
                                .self = &kinds[in_use],
                                .device_create = create_device,
                                .kernels_create = create_kernels,
                                .host_kernels_create = create_host_kernels,
                                .transport = &transport,
                                .mesh_transport = &transport,
                                .storage = simulated ? &simulated_storage : &kept_storage};
    return zi_engine_create_with(world, model, options, in_use != INJECTED_NONE ? &backend : NULL,
                                 engine);
}
