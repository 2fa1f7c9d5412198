/* Owns how the members of a group find their block in the memory that the ranks of a host share,
 * and when it is freed.
 *
 * The first member allocates the block and writes its place into an entry of the header, under the
 * hash of the member list. The others find the entry and count themselves in. When all have, the
 * first member frees the entry, and only then the others go on: so a later group of the same
 * members cannot be taken for this one. The last member that uses a block frees its memory. */
#include <stdio.h>
#include <string.h>

#include "comm/host/shared_state.h"
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

/* A member's stage takes at least one element of each slice. Threads read all memory in place. */
static uint64_t stage_bytes(const zi_shared *shared, uint32_t size)
{
    if (shared->space.one_address_space) {
        return 0;
    }
    const uint64_t share = zi_min_u64(STAGE_ALL_BYTES / size, STAGE_BYTES);
    return zi_align_up(zi_max_u64(share, size * sizeof(float)), ZI_PAGE_BYTES);
}

static uint64_t block_bytes(const zi_shared *shared, uint32_t size)
{
    return zi_peer_block_bytes(size, stage_bytes(shared, size));
}

static zi_peer_block *shared_group_block_of(const zi_shared_block *row)
{
    void *block = row->base;
    return block;
}

/* Unmap, and free the memory when no other member uses it. */
static void release_block(const zi_shared *shared, const zi_shared_block *row)
{
    const bool last = zi_peer_block_done(shared_group_block_of(row));
    zi_shared_unmap(shared, row->base, row->bytes);
    if (last) {
        zi_shared_drop(shared, row->offset, row->bytes);
    }
}

static zero_status map_block(const zi_shared *shared, uint32_t size, uint64_t offset,
                             zi_shared_block *row)
{
    row->offset = offset;
    row->bytes = block_bytes(shared, size);
    return zi_shared_map(shared, offset, row->bytes, &row->base);
}

/* Allocate a block. */
static zero_status make_block(const zi_shared *shared, uint32_t size, zi_shared_block *row)
{
    const uint64_t bytes = block_bytes(shared, size);
    uint64_t offset = 0;
    ZI_TRY(zi_shared_take(shared, bytes, &offset));
    const zero_status status = map_block(shared, size, offset, row);
    if (status != ZERO_OK) {
        zi_shared_drop(shared, offset, bytes);
        return status;
    }
    zi_peer_block_init(shared_group_block_of(row), size, stage_bytes(shared, size),
                       shared->space.one_address_space ? ZI_FUTEX_PROCESS : ZI_FUTEX_SHARED);
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

/* First member: write the entry and wait for the others. */
static zero_status create_entry(zi_shared *shared, const zi_shared_block *row, uint64_t key,
                                const uint32_t *members, uint32_t size, const char *name)
{
    zi_shared_wait wait = zi_shared_wait_begin(shared->deadline_ms, shared->size);
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
        const uint32_t leaver = zi_shared_leaver(shared, members, size);
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
    zi_shared_wait wait = zi_shared_wait_begin(shared->deadline_ms, shared->size);
    char who[64];
    zi_shared_entry *entry = find_entry(shared, key);
    for (; entry == NULL; entry = find_entry(shared, key)) {
        ZI_TRY(zi_shared_poll(shared, name));
        const uint32_t leaver = zi_shared_leaver(shared, members, size);
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
    ZI_TRY(map_block(shared, size, entry->offset, row));
    const uint32_t serial = atomic_load(&entry->serial);
    atomic_fetch_add(&entry->arrived, 1);
    while (!row_freed(entry, serial, key)) {
        ZI_TRY(zi_shared_poll(shared, name));
        const uint32_t leaver = zi_shared_leaver(shared, members, size);
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

/* Remember a block so that an abort reaches it. */
static void keep_block(zi_shared *shared, zi_shared_block *row)
{
    (void)pthread_mutex_lock(&shared->mutex);
    row->next = shared->blocks;
    shared->blocks = row;
    (void)pthread_mutex_unlock(&shared->mutex);
}

static void shared_group_block_free(void *owner, zi_peer_block *block)
{
    zi_shared *shared = owner;
    (void)pthread_mutex_lock(&shared->mutex);
    zi_shared_block **link = &shared->blocks;
    while (shared_group_block_of(*link) != block) {
        link = &(*link)->next;
    }
    zi_shared_block *row = *link;
    *link = row->next;
    (void)pthread_mutex_unlock(&shared->mutex);
    release_block(shared, row);
    zi_free(row);
}

/* This rank cannot use its block: fail it, since the others may already wait in it. */
static zero_status shared_group_fail_block(zi_shared *shared, zi_peer_block *block,
                                           zero_status status)
{
    const zi_failure failure = zi_failure_of_abort(shared->space.world_rank, zero_last_error());
    zi_peer_block_fail(block, &failure);
    shared_group_block_free(shared, block);
    return status;
}

zero_status zi_shared_group_create(zi_shared *shared, const zi_comm *comm,
                                   const zi_kernels *kernels, const uint32_t *members,
                                   uint32_t size, const char *name, zi_group **out)
{
    zi_peer_group_desc desc = {
        .kernels = kernels,
        .space = &shared->space,
        .members = members,
        .size = size,
        .deadline_ms = comm->deadline_ms,
        .crowded = &comm->crowded,
        .name = name,
    };
    *out = NULL;
    ZI_TRY(zi_shared_check(shared));
    if (size == 1) {
        return zi_peer_group_create(&desc, out);
    }
    const uint64_t key = members_key(members, size);
    const bool leader = members[0] == shared->space.world_rank;
    zi_shared_block *row = NULL;
    zero_status status = zi_calloc(1, sizeof *row, (void **)&row);
    if (status == ZERO_OK && leader) {
        status = make_block(shared, size, row);
    }
    if (status == ZERO_OK) {
        status = leader ? create_entry(shared, row, key, members, size, name)
                        : join_entry(shared, row, key, members, size, name);
    }
    if (status != ZERO_OK) {
        if (row != NULL && row->base != NULL) {
            release_block(shared, row);
        }
        zi_free(row);
        /* The others wait for this rank, here or in the group's first batch. */
        return zi_shared_fail(shared);
    }
    keep_block(shared, row);
    /* An abort that came before the block could be found by it. */
    status = zi_shared_check(shared);
    if (status != ZERO_OK) {
        return shared_group_fail_block(shared, shared_group_block_of(row), status);
    }
    desc.block = shared_group_block_of(row);
    desc.block_free = shared_group_block_free;
    desc.owner = shared;
    status = zi_peer_group_create(&desc, out);
    return status == ZERO_OK ? ZERO_OK
                             : shared_group_fail_block(shared, shared_group_block_of(row), status);
}
