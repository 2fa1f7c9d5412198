/* A save under way: what save.c begins and ends, and save_stage.c copies out of the engine. */
#ifndef ZI_ENGINE_SAVE_H
#define ZI_ENGINE_SAVE_H

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/manifest.h"
#include "engine/engine_internal.h"
#include "engine/shard.h"
#include "zero/checkpoint.h"

typedef struct engine_save {
    zero_engine *engine;
    zi_manifest manifest;      /* its map has the tensors of this part of the model */
    struct saved_parts *parts; /* rank 0 of the mesh, of a model in several parts: see whole */
    zi_manifest *whole;        /* rank 0 of the mesh: of all parts, which is to be written */
    uint32_t *tensors;         /* of the map: their numbers in the engine */
    char *directory;           /* the next are one allocation with it */
    char *name;
    char *user;
    char *part; /* the folder while it is written */
    uint32_t keep;
    uint64_t bytes;         /* that this rank writes */
    bool waited_for;        /* no step is taken before it is over */
    bool reflink;           /* as asked for */
    bool weights;           /* parameters alone: options.params_only */
    struct engine_run *run; /* rank 0 of the mesh: its directory's; NULL: not owned yet */
    zi_checkpoint_sums *sums;
    zi_checkpoint_writer *writer;
    uint64_t block_bytes; /* the writer's */
    unsigned char *ring;  /* of this save alone; NULL: the engine has one */
    uint64_t staged_ns;   /* atomic: how long the step stream worked on copies */
    bool staged;          /* step stream: all of it was handed to the writer */
    zi_event *copied;     /* step stream, after the copy -> host, before its memory is freed */
} engine_save;

/* Describe the engine's tensors in the order of the map, and where they go. params_only: in this
 * role alone. Copies of tensors that another part of the model saves are behind the map's tensors
 * in both lists. tensors: out, their numbers in the engine; zi_free gives both lists back. Errors:
 * OUT_OF_MEMORY. (save_map.c) */
zero_status zi_save_make_map(const zero_engine *engine, bool params_only, zi_checkpoint_map *map,
                             uint32_t **tensors);
/* Bytes of this rank's slices. (save_map.c) */
uint64_t zi_save_own_bytes(const engine_save *save);
/* This rank's slice of a tensor of the map: the same in all roles. (save_map.c) */
engine_range zi_save_own_range(const engine_save *save, uint32_t tensor);
/* Sums of 0 for this rank's slices. Errors: OUT_OF_MEMORY. (save_map.c) */
zero_status zi_save_make_sums(engine_save *save);

/* True if this rank makes the folder and commits it: rank 0 of the first part's world.
 * (save_map.c) */
bool zi_save_leads(const zero_engine *engine);
/* Tell the parts of the model what each has, so that save->whole is made and this part's sums have
 * their place. Nothing to do where there is one part. Collective over the mesh. Errors:
 * OUT_OF_MEMORY; INVALID_ARGUMENT for tensors that are no boxes of one and for copies without copy
 * 0; COMM, TIMEOUT. Only some ranks may get it. (save_parts.c) */
zero_status zi_save_join_parts(engine_save *save);
void zi_save_free_parts(engine_save *save); /* accepts what was not made */

/* Put the copy of all that this rank saves on the step stream. (save_stage.c) */
zero_status zi_save_stage(engine_save *save);
/* Add a block of the save to its sums, for the writer's threads. (save_stage.c) */
void zi_save_add_block(void *save, const zi_checkpoint_block *block);

/* Own the directory: from the first save of all the state on until the engine is destroyed, for a
 * save of weights alone no longer than it takes. Collective over the mesh. Errors: STATE naming
 * whoever owns it, IO, OUT_OF_MEMORY; COMM, TIMEOUT. Only rank 0 of the mesh may get the first
 * ones. (save_owner.c) */
zero_status zi_save_own(engine_save *save);
/* Rank 0 of the mesh: whether it still owns the directory, so that it may change anything there.
 * Errors: STATE. (save_owner.c) */
zero_status zi_save_check_owner(const engine_save *save);
/* Rank 0 of the mesh: the number that this commit of the directory has. (save_owner.c) */
uint64_t zi_save_next_commit(engine_save *save);
/* A save is over: give its directory up where it was owned for it alone. (save_owner.c) */
void zi_save_leave(engine_save *save);
/* Give all up. (save_owner.c) */
void zi_save_leave_all(zero_engine *engine);

/* Begin to remove all but the newest `keep` checkpoints of the save's kind from its directory, and
 * wait until that is over. What cannot be removed is logged, and the next save tries again.
 * (save_prune.c) */
void zi_save_prune(const engine_save *save);
void zi_save_await_prune(zero_engine *engine);

/* When an engine is destroyed: let the save under way, if there is one, hold up no stream any more;
 * and, once the streams are gone, drop it. */
void zi_save_abandon(zero_engine *engine);
void zi_save_close(zero_engine *engine);

#endif
