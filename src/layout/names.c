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

/* By number; NULL: no role has it. */
static const char *const role_names[ZERO_ROLE_COUNT_MAX] = {
    [ZERO_ROLE_PARAM] = "param",
    [ZERO_ROLE_GRAD] = "grad",
    [ZERO_ROLE_MASTER] = "master",
    [ZERO_ROLE_MOMENT1] = "moment1",
    [ZERO_ROLE_MOMENT2] = "moment2",
    [ZERO_ROLE_SCALE1] = "scale1",
    [ZERO_ROLE_SCALE2] = "scale2",
    [ZERO_ROLE_PARAM_SLOT] = "param slots",
    [ZERO_ROLE_GRAD_SLOT] = "grad slots",
    [ZERO_ROLE_STEP] = "step",
    [ZERO_ROLE_SCRATCH] = "scratch",
    [ZERO_ROLE_IO_WINDOW] = "io window",
    [ZERO_ROLE_SAVE_STAGING] = "save staging",
};
_Static_assert(ZI_SHARD_ROLES <= ZERO_ROLE_SHARDS_MAX, "numbers of roles with shards");

int32_t zero_role_exists(zero_role role)
{
    return (uint32_t)role < ZERO_ROLE_COUNT_MAX && role_names[role] != NULL ? 1 : 0;
}

const char *zero_role_name(zero_role role)
{
    return zero_role_exists(role) != 0 ? role_names[role] : "unknown";
}

const char *zero_tier_name(zero_tier tier)
{
    static const char *const names[ZERO_TIER_COUNT] = {"default", "device", "host", "disk"};
    return (unsigned)tier < ZERO_TIER_COUNT ? names[tier] : "unknown";
}
