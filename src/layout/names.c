/* Owns the names of roles and tiers, and copies of those that callers give. Invariant: a copy lies
 * in one block and never moves. */
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/role.h"
#include "layout/model.h"
#include "zero/plan.h"

#define BLOCK_BYTES (64 * 1024)

struct zi_name_block {
    struct zi_name_block *older;
    size_t used;
    char text[BLOCK_BYTES];
};

zero_status zi_names_add(zi_names *names, const char *name, const char **copy)
{
    const size_t bytes = strlen(name) + 1;
    struct zi_name_block *block = names->blocks;
    if (block == NULL || BLOCK_BYTES - block->used < bytes) {
        ZI_TRY(zi_calloc(1, sizeof *block, (void **)&block));
        block->older = names->blocks;
        names->blocks = block;
    }
    memcpy(block->text + block->used, name, bytes);
    *copy = block->text + block->used;
    block->used += bytes;
    return ZERO_OK;
}

void zi_names_free(zi_names *names)
{
    while (names->blocks != NULL) {
        struct zi_name_block *older = names->blocks->older;
        zi_free(names->blocks);
        names->blocks = older;
    }
}

int32_t zero_role_is_shard(zero_role role)
{
    return (uint32_t)role < ZI_SHARD_ROLES ? 1 : 0;
}

const char *zero_role_name(zero_role role)
{
    static const char *const names[ZERO_ROLE_COUNT] = {
        "param",      "grad", "master",  "moment1",   "moment2",     "param slots",
        "grad slots", "step", "scratch", "io window", "save staging"};
    return (unsigned)role < ZERO_ROLE_COUNT ? names[role] : "unknown";
}

const char *zero_tier_name(zero_tier tier)
{
    static const char *const names[ZERO_TIER_COUNT] = {"default", "device", "host", "disk"};
    return (unsigned)tier < ZERO_TIER_COUNT ? names[tier] : "unknown";
}
