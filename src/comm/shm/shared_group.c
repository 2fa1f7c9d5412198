/* Owns how the members of a group find their block in the shared file, and when its memory is
 * freed.
 *
 * The first member allocates the block and writes its place into an entry of the header, under the
 * hash of the member list. The others find the entry and count themselves in. When all have, the
 * first member frees the entry, and only then the others go on: so a later group of the same
 * members cannot be taken for this one. The page before a block counts the members that still use
 * it; the last one frees the memory. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/shm/shared_file.h"
#include "core/check.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"

#define KEY_FREE UINT64_C(0)
#define KEY_WRITING UINT64_C(1)
/* Staging memory of a member for buffers that lie in no window: half of a usual second-level cache,
 * less where many members share a host. */
#define STAGE_BYTES ((size_t)256 << 10)
#define STAGE_ALL_BYTES ((size_t)16 << 20)

static uint64_t members_key(const uint32_t *members, uint32_t size)
{
    uint64_t key = zi_hash_u64(ZI_HASH_START, size);
    for (uint32_t i = 0; i < size; i++) {
        key = zi_hash_u64(key, members[i]);
    }
    return key > KEY_WRITING ? key : key + 2;
}

/* A member's stage takes at least one element of each slice. */
static uint64_t stage_bytes(uint32_t size)
{
    const uint64_t share = zi_min_u64(STAGE_ALL_BYTES / size, STAGE_BYTES);
    return zi_align_up(zi_max_u64(share, size * sizeof(float)), ZI_PAGE_BYTES);
}

static uint64_t block_bytes(uint32_t size)
{
    return ZI_PAGE_BYTES + zi_peer_block_bytes(size, stage_bytes(size));
}

static _Atomic uint32_t *users_of(const zi_shared_block *row)
{
    void *page = row->base;
    return page;
}

static zi_peer_block *shared_group_block_of(const zi_shared_block *row)
{
    void *block = row->base + ZI_PAGE_BYTES;
    return block;
}

static zero_status map_block(const zi_shared *shared, uint64_t offset, uint64_t bytes,
                             zi_shared_block *row)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, (off_t)offset);
    if (map == MAP_FAILED) {
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, errno, "cannot map %llu bytes of a group: %s",
                       (unsigned long long)bytes, strerror(errno));
    }
    *row = (zi_shared_block){.base = map, .bytes = bytes, .offset = offset};
    return ZERO_OK;
}

/* Unmap, and free the memory when no other member uses it. */
static void release_block(const zi_shared *shared, const zi_shared_block *row)
{
    const bool last = atomic_fetch_sub(users_of(row), 1) == 1;
    (void)munmap(row->base, row->bytes);
    if (last) {
        zi_shared_drop(shared, row->offset, row->bytes);
    }
}

/* Allocate a block in the file. All members count as users from the start. */
static zero_status make_block(const zi_shared *shared, uint32_t size, zi_shared_block *row)
{
    const uint64_t bytes = block_bytes(size);
    const uint64_t offset = atomic_fetch_add(&shared->header->end, bytes);
    ZI_TRY(zi_shared_back(shared, offset, bytes));
    const zero_status status = map_block(shared, offset, bytes, row);
    if (status != ZERO_OK) {
        zi_shared_drop(shared, offset, bytes);
        return status;
    }
    atomic_store(users_of(row), size);
    zi_peer_block_init(shared_group_block_of(row), size, stage_bytes(size));
    return ZERO_OK;
}

static zero_status shared_group_fail_late(const zi_shared *shared, const char *name,
                                          const char *who)
{
    char silent[ZI_SILENCE_TEXT_BYTES];
    (void)zi_silence_text(shared->space.silence, silent, sizeof silent);
    ZI_FAIL(ZERO_ERR_TIMEOUT, "group '%s': %s did not come within %u ms%s", name, who,
            shared->deadline_ms,
            silent[0] != '\0' ? silent
                              : "; all ranks of a world make their groups in the same order");
}

/* Place of a member that makes no more calls; shared->size when there is none. */
static uint32_t find_leaver(const zi_shared *shared, const uint32_t *members, uint32_t size)
{
    for (uint32_t index = 0; index < shared->size; index++) {
        for (uint32_t i = 0; i < size && zi_shared_has_left(shared, index); i++) {
            if (members[i] == shared->world_ranks[index]) {
                return index;
            }
        }
    }
    return shared->size;
}

/* First member: write the entry and wait for the others. */
static zero_status create_entry(zi_shared *shared, const zi_shared_block *row, uint64_t key,
                                const uint32_t *members, uint32_t size, const char *name)
{
    zi_shared_wait wait = zi_shared_wait_begin(shared->deadline_ms);
    zi_shared_entry *entry = NULL;
    for (uint32_t i = 0; entry == NULL; i = (i + 1) % ZI_SHARED_ENTRIES) {
        uint64_t expected = KEY_FREE;
        if (atomic_compare_exchange_strong(&shared->header->entries[i].key, &expected,
                                           KEY_WRITING)) {
            entry = &shared->header->entries[i];
        } else if (i + 1 == ZI_SHARED_ENTRIES) {
            ZI_TRY(zi_shared_poll(shared, name));
            if (!zi_shared_wait_more(&wait)) {
                return shared_group_fail_late(shared, name, "a free place for one more group");
            }
        }
    }
    entry->offset = row->offset;
    (void)snprintf(entry->name, sizeof entry->name, "%s", name);
    atomic_store(&entry->arrived, 1);
    atomic_fetch_add(&entry->serial, 1);
    atomic_store_explicit(&entry->key, key, memory_order_release);
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && atomic_load(&entry->arrived) != size) {
        status = zi_shared_poll(shared, name);
        const uint32_t leaver = find_leaver(shared, members, size);
        if (status == ZERO_OK && leaver != shared->size && atomic_load(&entry->arrived) != size) {
            status = zi_shared_fail_left(shared, leaver, name);
        }
        if (status == ZERO_OK && !zi_shared_wait_more(&wait)) {
            char who[64];
            (void)snprintf(who, sizeof who, "%u of %u members", size - atomic_load(&entry->arrived),
                           size);
            status = shared_group_fail_late(shared, name, who);
        }
    }
    if (status == ZERO_OK) {
        atomic_store(&entry->key, KEY_FREE);
    }
    return status;
}

static zi_shared_entry *find_entry(const zi_shared *shared, uint64_t key)
{
    for (uint32_t i = 0; i < ZI_SHARED_ENTRIES; i++) {
        zi_shared_entry *entry = &shared->header->entries[i];
        if (atomic_load_explicit(&entry->key, memory_order_acquire) == key) {
            return entry;
        }
    }
    return NULL;
}

/* True if the first member has freed the entry. */
static bool row_freed(zi_shared_entry *entry, uint32_t serial, uint64_t key)
{
    return atomic_load(&entry->serial) != serial || atomic_load(&entry->key) != key;
}

/* Another member: find the block, map it, and wait until all are there. */
static zero_status join_entry(zi_shared *shared, zi_shared_block *row, uint64_t key,
                              const uint32_t *members, uint32_t size, const char *name)
{
    zi_shared_wait wait = zi_shared_wait_begin(shared->deadline_ms);
    char who[64];
    zi_shared_entry *entry = find_entry(shared, key);
    for (; entry == NULL; entry = find_entry(shared, key)) {
        ZI_TRY(zi_shared_poll(shared, name));
        const uint32_t leaver = find_leaver(shared, members, size);
        if (leaver != shared->size) {
            return zi_shared_fail_left(shared, leaver, name);
        }
        if (!zi_shared_wait_more(&wait)) {
            (void)snprintf(who, sizeof who, "rank %u", members[0]);
            return shared_group_fail_late(shared, name, who);
        }
    }
    if (strncmp(entry->name, name, sizeof entry->name - 1) != 0) {
        ZI_FAIL(ZERO_ERR_MISMATCH,
                "rank %u makes group '%.23s', this rank '%s' of the same %u members; all ranks of "
                "a world make their groups in the same order",
                members[0], entry->name, name, size);
    }
    ZI_TRY(map_block(shared, entry->offset, block_bytes(size), row));
    const uint32_t serial = atomic_load(&entry->serial);
    atomic_fetch_add(&entry->arrived, 1);
    while (!row_freed(entry, serial, key)) {
        ZI_TRY(zi_shared_poll(shared, name));
        const uint32_t leaver = find_leaver(shared, members, size);
        if (leaver != shared->size && !row_freed(entry, serial, key)) {
            return zi_shared_fail_left(shared, leaver, name);
        }
        if (!zi_shared_wait_more(&wait)) {
            (void)snprintf(who, sizeof who, "some of %u members", size);
            return shared_group_fail_late(shared, name, who);
        }
    }
    return ZERO_OK;
}

static void shared_group_block_free(void *owner, zi_peer_block *block)
{
    zi_shared *shared = owner;
    (void)pthread_mutex_lock(&shared->mutex);
    for (uint32_t i = 0; i < ZI_SHARED_BLOCKS; i++) {
        zi_shared_block *row = &shared->blocks[i];
        if (row->base != NULL && shared_group_block_of(row) == block) {
            release_block(shared, row);
            row->base = NULL;
            break;
        }
    }
    (void)pthread_mutex_unlock(&shared->mutex);
}

/* Remember a block so that an abort reaches it. */
static zero_status keep_block(zi_shared *shared, const zi_shared_block *made)
{
    zero_status status = ZERO_ERR_UNSUPPORTED;
    (void)pthread_mutex_lock(&shared->mutex);
    for (uint32_t i = 0; i < ZI_SHARED_BLOCKS && status != ZERO_OK; i++) {
        if (shared->blocks[i].base == NULL) {
            shared->blocks[i] = *made;
            status = ZERO_OK;
        }
    }
    (void)pthread_mutex_unlock(&shared->mutex);
    if (status != ZERO_OK) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "this rank is a member of %d groups already; destroy an engine", ZI_SHARED_BLOCKS);
    }
    return ZERO_OK;
}

/* This rank cannot use its block: fail it, since the others may already wait in it. */
static zero_status shared_group_fail_block(zi_shared *shared, zi_peer_block *block,
                                           zero_status status)
{
    zi_peer_block_abort(block, shared->space.world_rank, zero_last_error());
    shared_group_block_free(shared, block);
    return status;
}

zero_status zi_shared_group_create(zi_shared *shared, const zi_kernels *kernels,
                                   const uint32_t *members, uint32_t size, const char *name,
                                   zi_group **out)
{
    *out = NULL;
    ZI_TRY(zi_shared_check(shared));
    const uint64_t key = members_key(members, size);
    const bool leader = members[0] == shared->space.world_rank;
    zi_shared_block row = {.base = NULL};
    zero_status status = leader ? make_block(shared, size, &row) : ZERO_OK;
    if (status == ZERO_OK) {
        status = leader ? create_entry(shared, &row, key, members, size, name)
                        : join_entry(shared, &row, key, members, size, name);
    }
    if (status == ZERO_OK) {
        status = keep_block(shared, &row);
    }
    if (status != ZERO_OK) {
        if (row.base != NULL) {
            release_block(shared, &row);
        }
        /* The others wait for this rank, here or in the group's first batch. */
        return zi_shared_fail(shared);
    }
    /* An abort that came before the block could be found by it. */
    status = zi_shared_check(shared);
    if (status != ZERO_OK) {
        return shared_group_fail_block(shared, shared_group_block_of(&row), status);
    }
    const zi_peer_group_desc desc = {
        .kernels = kernels,
        .block = shared_group_block_of(&row),
        .space = &shared->space,
        .members = members,
        .size = size,
        .deadline_ms = shared->deadline_ms,
        .crowded = shared->crowded,
        .name = name,
        .block_free = shared_group_block_free,
        .owner = shared,
    };
    status = zi_peer_group_create(&desc, out);
    return status == ZERO_OK ? ZERO_OK
                             : shared_group_fail_block(shared, shared_group_block_of(&row), status);
}
