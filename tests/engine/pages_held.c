/* Owns the table of memory that is held: what was asked for, by address. */
#include "pages_held.h"

#include <pthread.h>
#include <stdbool.h>

#include "comm/peer/peer.h"
#include "core/memory.h"
#include "toy.h"

#define HELD_MAX 4096

typedef struct held {
    const void *pointer; /* NULL: the entry is free */
    uint64_t bytes;
    bool discarded;
    bool block; /* of a group of ranks */
} held;

static struct {
    pthread_mutex_t mutex; /* guards the entries */
    held entries[HELD_MAX];
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool watched; /* set while there is one thread */

/* The entry of an address, or of NULL a free one; NULL: there is none. */
static held *find(const void *pointer)
{
    for (size_t i = 0; i < HELD_MAX; i++) {
        if (table.entries[i].pointer == pointer) {
            return &table.entries[i];
        }
    }
    return NULL;
}

void pages_watch(void)
{
    watched = true;
}

static void change(const void *pointer, held value)
{
    if (!watched) {
        return;
    }
    (void)pthread_mutex_lock(&table.mutex);
    held *entry = find(pointer);
    TOY_CHECK(entry != NULL, "pages at %p are in no entry of %d", pointer, HELD_MAX);
    *entry = value;
    (void)pthread_mutex_unlock(&table.mutex);
}

static held entry_of(const void *pointer)
{
    (void)pthread_mutex_lock(&table.mutex);
    const held *entry = pointer != NULL ? find(pointer) : NULL;
    const held value = entry != NULL ? *entry : (held){0};
    (void)pthread_mutex_unlock(&table.mutex);
    return value;
}

uint64_t pages_of(const void *pointer)
{
    const held entry = entry_of(pointer);
    return entry.discarded ? 0 : entry.bytes;
}

uint64_t pages_held(void)
{
    uint64_t bytes = 0;
    (void)pthread_mutex_lock(&table.mutex);
    for (size_t i = 0; i < HELD_MAX; i++) {
        const held *entry = &table.entries[i];
        bytes += entry->discarded || entry->block ? 0 : entry->bytes;
    }
    (void)pthread_mutex_unlock(&table.mutex);
    return bytes;
}

zero_status __real_zi_pages_alloc(size_t bytes, void **out);
zero_status __real_zi_pages_alloc_on(size_t bytes, int node, void **out);
void __real_zi_pages_free(void *pointer, size_t bytes);
zero_status __real_zi_pages_discard(void *pointer, size_t bytes);
zero_status __real_zi_pages_restore(void *pointer, size_t bytes);
void __real_zi_peer_block_init(zi_peer_block *block, uint32_t size, size_t stage_bytes,
                               zi_futex_scope scope);

zero_status __wrap_zi_pages_alloc(size_t bytes, void **out);
zero_status __wrap_zi_pages_alloc_on(size_t bytes, int node, void **out);
void __wrap_zi_pages_free(void *pointer, size_t bytes);
zero_status __wrap_zi_pages_discard(void *pointer, size_t bytes);
zero_status __wrap_zi_pages_restore(void *pointer, size_t bytes);
void __wrap_zi_peer_block_init(zi_peer_block *block, uint32_t size, size_t stage_bytes,
                               zi_futex_scope scope);

zero_status __wrap_zi_pages_alloc(size_t bytes, void **out)
{
    const zero_status status = __real_zi_pages_alloc(bytes, out);
    if (*out != NULL) {
        change(NULL, (held){.pointer = *out, .bytes = bytes});
    }
    return status;
}

/* Of calls from other files; the one above makes its own within the allocator's. */
zero_status __wrap_zi_pages_alloc_on(size_t bytes, int node, void **out)
{
    const zero_status status = __real_zi_pages_alloc_on(bytes, node, out);
    if (*out != NULL) {
        change(NULL, (held){.pointer = *out, .bytes = bytes});
    }
    return status;
}

void __wrap_zi_pages_free(void *pointer, size_t bytes)
{
    if (pointer != NULL && watched) {
        TOY_CHECK(entry_of(pointer).bytes == bytes, "%zu bytes are freed at %p", bytes, pointer);
        change(pointer, (held){0}); /* before the system may give the address to another thread */
    }
    __real_zi_pages_free(pointer, bytes);
}

zero_status __wrap_zi_pages_discard(void *pointer, size_t bytes)
{
    const zero_status status = __real_zi_pages_discard(pointer, bytes);
    if (status == ZERO_OK) {
        change(pointer, (held){.pointer = pointer, .bytes = bytes, .discarded = true});
    }
    return status;
}

zero_status __wrap_zi_pages_restore(void *pointer, size_t bytes)
{
    const zero_status status = __real_zi_pages_restore(pointer, bytes);
    if (status == ZERO_OK) {
        change(pointer, (held){.pointer = pointer, .bytes = bytes});
    }
    return status;
}

void __wrap_zi_peer_block_init(zi_peer_block *block, uint32_t size, size_t stage_bytes,
                               zi_futex_scope scope)
{
    const uint64_t bytes = entry_of(block).bytes;
    change(block, (held){.pointer = block, .bytes = bytes, .block = true});
    __real_zi_peer_block_init(block, size, stage_bytes, scope);
}

#ifdef TOY_CUDA

#include "zero/cuda.h"

cudaError_t __real_cudaMalloc(void **out, size_t bytes);
cudaError_t __real_cudaFree(void *pointer);
cudaError_t __wrap_cudaMalloc(void **out, size_t bytes);
cudaError_t __wrap_cudaFree(void *pointer);

cudaError_t __wrap_cudaMalloc(void **out, size_t bytes)
{
    const cudaError_t code = __real_cudaMalloc(out, bytes);
    if (code == cudaSuccess) {
        change(NULL, (held){.pointer = *out, .bytes = bytes});
    }
    return code;
}

cudaError_t __wrap_cudaFree(void *pointer)
{
    if (pointer != NULL) {
        change(pointer, (held){0});
    }
    return __real_cudaFree(pointer);
}

#endif
