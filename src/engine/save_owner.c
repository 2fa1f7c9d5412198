/* Owns which directories an engine owns, on the rank that makes folders there. Invariant: nothing
 * in a directory is made, renamed or removed but by its one owner (checkpoint/run_owner.h). */
#include <time.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/run_owner.h"
#include "core/error.h"
#include "core/memory.h"
#include "engine/agree.h"
#include "engine/save.h"

/* Between two looks at an owner that may be dead; other ranks wait meanwhile. */
#define PAUSE_NS 50000000

typedef struct engine_run {
    zi_run_owner *owner;
    bool kept;        /* until the engine is destroyed */
    bool counted;     /* the next is known */
    uint64_t commits; /* the highest number of one in the directory */
    struct engine_run *next;
} engine_run;

/* Give one up. The last error stays. */
static void save_owner_drop(zero_engine *engine, engine_run *run)
{
    const zero_error error = *zero_last_error();
    engine_run **at = &engine->runs;
    while (*at != run) {
        at = &(*at)->next;
    }
    *at = run->next;
    zi_run_owner_release(run->owner);
    zi_free(run);
    (void)zi_error_adopt(&error);
}

/* Those that were owned for one save, whose removal of older weights is over. */
static void drop_unkept(zero_engine *engine)
{
    for (engine_run *run = engine->runs, *next = NULL; run != NULL; run = next) {
        next = run->next;
        if (!run->kept) {
            save_owner_drop(engine, run);
        }
    }
}

/* The directory's, new or not. One that was lost meanwhile is begun anew. */
static zero_status find_run(engine_save *save)
{
    zero_engine *engine = save->engine;
    engine_run *run = NULL;
    zi_save_await_prune(engine);
    drop_unkept(engine);
    ZI_TRY(zi_checkpoint_make_run(save->directory));
    for (run = engine->runs; run != NULL; run = run->next) {
        if (zi_run_owner_has(run->owner, save->directory)) {
            break;
        }
    }
    if (run != NULL && zi_run_owner_check(run->owner) != ZERO_OK) {
        save_owner_drop(engine, run);
        run = NULL;
    }
    if (run == NULL) {
        ZI_TRY(zi_calloc(1, sizeof *run, (void **)&run));
        run->next = engine->runs;
        engine->runs = run;
        const zero_status status = zi_run_owner_begin(save->directory, &run->owner);
        if (status != ZERO_OK) {
            save_owner_drop(engine, run);
            return status;
        }
    }
    save->run = run;
    return ZERO_OK;
}

/* Rank 0 of the mesh. owned: out. */
static zero_status try_to_own(engine_save *save, bool *owned)
{
    *owned = false;
    ZI_TRY(save->run == NULL ? find_run(save) : ZERO_OK);
    zero_status status = zi_run_owner_poll(save->run->owner, owned);
    if (status == ZERO_OK && *owned && !save->run->counted) {
        status = zi_checkpoint_commits(save->directory, &save->run->commits);
        save->run->counted = true;
    }
    if (status != ZERO_OK) {
        save_owner_drop(save->engine, save->run);
        save->run = NULL;
        return status;
    }
    save->run->kept = save->run->kept || !save->weights;
    return ZERO_OK;
}

/* Ranks wait in rounds, so that no deadline passes while rank 0 watches an owner. */
zero_status zi_save_own(engine_save *save)
{
    const bool leads = zi_save_leads(save->engine);
    zero_status status = ZERO_OK;
    uint64_t waits = 0;
    do {
        bool owned = true;
        if (waits != 0 && leads) {
            const struct timespec pause = {.tv_nsec = PAUSE_NS};
            (void)nanosleep(&pause, NULL);
        }
        status = leads ? try_to_own(save, &owned) : ZERO_OK;
        waits = status == ZERO_OK && !owned ? 1 : 0;
        ZI_TRY(zi_engine_add_up(save->engine, &waits, 1));
    } while (waits != 0);
    return status;
}

zero_status zi_save_check_owner(const engine_save *save)
{
    return zi_run_owner_check(save->run->owner);
}

uint64_t zi_save_next_commit(engine_save *save)
{
    return ++save->run->commits;
}

void zi_save_leave(engine_save *save)
{
    if (save->run != NULL && !save->run->kept && save->engine->prune == NULL) {
        save_owner_drop(save->engine, save->run);
    }
    save->run = NULL;
}

void zi_save_leave_all(zero_engine *engine)
{
    while (engine->runs != NULL) {
        save_owner_drop(engine, engine->runs);
    }
}
