/* Owns the note of what a rank was given by local calls, until ranks have compared it. */
#include "engine/given.h"

#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "zero/evict.h"

zero_status zi_engine_open_given(zero_engine *engine)
{
    if (engine->layout->world == 1) {
        return ZERO_OK;
    }
    return zi_calloc(engine->layout->tensor_count, sizeof *engine->given, (void **)&engine->given);
}

void zi_engine_close_given(zero_engine *engine)
{
    zi_free(engine->given);
    engine->given = NULL;
}

void zi_engine_touch(zero_engine *engine, uint32_t roles)
{
    engine->touched |= roles & ~(uint32_t)ZERO_ROLE_BIT(ZERO_ROLE_GRAD);
}

void zi_engine_note_given(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t hash)
{
    zi_engine_touch(engine, ZERO_ROLE_BIT(role));
    if (engine->given == NULL || role == ZERO_ROLE_GRAD) {
        return;
    }
    uint64_t *word = &engine->given[tensor];
    const uint64_t sum = hash != 0 ? zi_hash_u64(hash, (uint64_t)role) << GIVEN_ROLE_BITS : 0;
    *word = ((*word & ~GIVEN_ROLES) + sum) | (*word & GIVEN_ROLES) | ZERO_ROLE_BIT(role);
}
