/* Owns the copy of what a rank saves out of the engine: one task of the step stream, which walks
 * over the rank's slices and hands them to the writer block by block. Each role has a walk of its
 * own, and the one that is furthest behind comes next: state on disk has all its roles in the same
 * extents, which are so read once.
 *
 * Invariant: a block is one run of one file, and the sum of a piece is made of what was copied. */
#include <endian.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/save.h"
#include "layout/codec.h"

/* Runs of a block at most, and sums that are kept: those of a block fit behind a quarter of them,
 * since all but one of a run's pieces that end in it have ZI_PIECE_COUNT elements. */
#define RUNS 512
#define SUMS (2 * RUNS)

/* Where a role's walk is. */
typedef struct walk_position {
    uint32_t tensor; /* of the map */
    uint64_t done;   /* elements of this rank's part of it */
} walk_position;

/* A run of one file. */
typedef struct stage_block {
    uint32_t file;
    uint64_t at;
    uint64_t bytes;
    unsigned char *data;
} stage_block;

/* Elements of one tensor in a block. */
typedef struct stage_run {
    uint32_t tensor;
    uint64_t first;
    uint64_t count;
    uint64_t at; /* bytes of the block before them */
    bool ends;   /* this rank has no more of the tensor */
} stage_run;

typedef struct role_walk {
    zero_role role;
    walk_position position;
    uint32_t file; /* of the last block; ZI_NO_INDEX: there was none */
    uint64_t sum;  /* of the piece under way */
    /* Sums that are not written yet, of neighbouring pieces from first_sum on. */
    uint64_t first_sum;
    uint32_t sum_count;
    uint64_t sums[SUMS];
} role_walk;

/* ---- walking ---- */

/* Find the next elements of the role; false: there are no more. */
static bool find_next(const engine_save *save, zero_role role, walk_position *position,
                      engine_part *part)
{
    const zi_checkpoint_map *map = &save->manifest.map;
    for (; position->tensor < map->tensor_count; position->tensor++, position->done = 0) {
        if (map->tensors[position->tensor].role[role].dtype != ZERO_DTYPE_NONE) {
            *part = zi_save_own_part(save, position->tensor);
            if (position->done < part->count) {
                return true;
            }
        }
    }
    return false;
}

/* Add the next run to the block; false: it is full, or what comes next lies elsewhere. */
static bool next_run(const engine_save *save, zero_role role, walk_position *position,
                     stage_block *block, stage_run *run)
{
    const uint64_t end =
        (block->at + save->block_bytes) / ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN;
    engine_part part;
    if (!find_next(save, role, position, &part)) {
        return false;
    }
    const zi_checkpoint_place *place = &save->manifest.map.tensors[position->tensor].role[role];
    const size_t size = zero_dtype_bytes(place->dtype);
    const uint64_t first = part.first + position->done;
    const uint64_t at = place->at + first * size;
    if (place->file != block->file || at != block->at + block->bytes || at >= end) {
        return false;
    }
    const uint64_t count = zi_min_u64(part.count - position->done, (end - at) / size);
    *run = (stage_run){.tensor = position->tensor,
                       .first = first,
                       .count = count,
                       .at = block->bytes,
                       .ends = position->done + count == part.count};
    block->bytes += count * size;
    position->done += count;
    return true;
}

/* ---- sums ---- */

/* Hand the sums over to the writer. */
static void flush_sums(const engine_save *save, role_walk *walk)
{
    const uint64_t at = walk->first_sum * sizeof walk->sums[0];
    const uint64_t bytes = walk->sum_count * sizeof walk->sums[0];
    unsigned char *data = bytes != 0 ? zi_checkpoint_writer_reserve(save->writer, at) : NULL;
    if (data != NULL) {
        memcpy(data, walk->sums, bytes);
        zi_checkpoint_writer_submit(save->writer, save->manifest.map.file_count, bytes);
    }
    walk->sum_count = 0;
}

/* The pieces of a block are neighbours, since its bytes are. */
static void add_sum(role_walk *walk, uint64_t piece)
{
    walk->first_sum = walk->sum_count == 0 ? piece : walk->first_sum;
    zi_assert_cmp(piece, ==, walk->first_sum + walk->sum_count);
    zi_assert_cmp(walk->sum_count, <, SUMS);
    walk->sums[walk->sum_count++] = htole64(walk->sum);
    walk->sum = 0;
}

/* Elements of a run's first granule that the block before has: they are copied again ahead of it,
 * since a granule's sum is made of all of it. */
static uint64_t lead_of(const stage_run *run)
{
    return run->first % ZI_GRANULE;
}

static void sum_run(const engine_save *save, role_walk *walk, const stage_block *block,
                    const stage_run *run)
{
    const zi_checkpoint_tensor *tensor = &save->manifest.map.tensors[run->tensor];
    const zi_checkpoint_place *place = &tensor->role[walk->role];
    const size_t size = zero_dtype_bytes(place->dtype);
    const uint64_t begin = run->first - lead_of(run);
    const uint64_t last = run->first + run->count;
    const uint64_t end = run->ends ? last : last - last % ZI_GRANULE;
    const unsigned char *data = block->data + run->at - lead_of(run) * size;
    for (uint64_t at = begin; at < end;) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(tensor, at);
        const uint64_t piece_end = piece.first + piece.count;
        const uint64_t next = zi_min_u64(end, piece_end);
        walk->sum += zi_piece_sum(data + (at - begin) * size, at, next - at, size);
        if (next == piece_end) {
            add_sum(walk, place->first_piece + piece.index);
        }
        at = next;
    }
}

/* ---- copying ---- */

static zero_status copy_run(const engine_save *save, zero_role role, const stage_block *block,
                            const stage_run *run)
{
    const uint32_t tensor = save->tensors[run->tensor];
    const engine_shard shard = zi_engine_shard(save->engine, tensor, role);
    const uint64_t lead = lead_of(run);
    return zi_engine_shard_stage(save->engine, &shard, run->first - lead - shard.tensor_first,
                                 run->count + lead,
                                 block->data + run->at - lead * zero_dtype_bytes(shard.dtype));
}

/* Begin the walk's next block: where it is, and what of the walk has to be handed over before. */
static stage_block begin_block(const engine_save *save, role_walk *walk)
{
    engine_part part = {0};
    (void)find_next(save, walk->role, &walk->position, &part);
    const zi_checkpoint_tensor *tensor = &save->manifest.map.tensors[walk->position.tensor];
    const zi_checkpoint_place *place = &tensor->role[walk->role];
    const uint64_t first = part.first + walk->position.done;
    const uint64_t piece = place->first_piece + zi_checkpoint_piece_at(tensor, first).index;
    if (piece != walk->first_sum + walk->sum_count || walk->sum_count > SUMS / 4) {
        flush_sums(save, walk);
    }
    if (walk->file != place->file && walk->file != ZI_NO_INDEX) {
        zi_checkpoint_writer_seal(save->writer, walk->file);
    }
    walk->file = place->file;
    return (stage_block){.file = place->file,
                         .at = place->at + first * zero_dtype_bytes(place->dtype)};
}

/* Copy the walk's next block and hand it over. */
static zero_status stage_next(const engine_save *save, role_walk *walk)
{
    const zi_device *device = save->engine->device;
    stage_block block = begin_block(save, walk);
    walk_position position = walk->position;
    stage_run run;
    block.data = zi_checkpoint_writer_reserve(save->writer, block.at);
    if (block.data == NULL) {
        return ZERO_OK;
    }
    for (uint32_t i = 0; i < RUNS && next_run(save, walk->role, &position, &block, &run); i++) {
        ZI_TRY(copy_run(save, walk->role, &block, &run));
    }
    ZI_TRY(device->ops->drain(device->self, save->engine->step_stream));
    block.bytes = 0;
    for (uint32_t i = 0; i < RUNS && next_run(save, walk->role, &walk->position, &block, &run);
         i++) {
        sum_run(save, walk, &block, &run);
    }
    zi_checkpoint_writer_submit(save->writer, block.file, block.bytes);
    return ZERO_OK;
}

/* ---- the tasks ---- */

static const zero_role saved_roles[] = {ZERO_ROLE_PARAM, ZERO_ROLE_MASTER, ZERO_ROLE_MOMENT1,
                                        ZERO_ROLE_MOMENT2};
#define ROLES (sizeof saved_roles / sizeof saved_roles[0])

/* The walk that is furthest behind; NULL: all are at their end, or nobody wants the rest. */
static role_walk *choose(const engine_save *save, role_walk *walks)
{
    role_walk *chosen = NULL;
    for (size_t i = 0; i < ROLES; i++) {
        walk_position *position = &walks[i].position;
        engine_part part;
        if (find_next(save, walks[i].role, position, &part) &&
            (chosen == NULL || position->tensor < chosen->position.tensor ||
             (position->tensor == chosen->position.tensor &&
              position->done < chosen->position.done))) {
            chosen = &walks[i];
        }
    }
    return chosen;
}

static zero_status stage_all(const engine_save *save, role_walk *walks)
{
    for (size_t i = 0; i < ROLES; i++) {
        walks[i].role = saved_roles[i];
        walks[i].file = ZI_NO_INDEX;
    }
    for (role_walk *walk = choose(save, walks);
         walk != NULL && zi_checkpoint_writer_wants(save->writer); walk = choose(save, walks)) {
        ZI_TRY(stage_next(save, walk));
    }
    for (size_t i = 0; i < ROLES; i++) {
        flush_sums(save, &walks[i]);
        if (walks[i].file != ZI_NO_INDEX) {
            zi_checkpoint_writer_seal(save->writer, walks[i].file);
        }
    }
    zi_checkpoint_writer_seal(save->writer, save->manifest.map.file_count);
    return ZERO_OK;
}

static zero_status stage(void *argument)
{
    engine_save *save = *(engine_save **)argument;
    const uint64_t begun = zi_clock_ns();
    role_walk walks[ROLES] = {0};
    const zero_status status = stage_all(save, walks);
    if (status != ZERO_OK) {
        zi_checkpoint_writer_stop(save->writer, zero_last_error());
    }
    save->staged = true;
    __atomic_store_n(&save->staged_ns, zi_clock_ns() - begun, __ATOMIC_RELAXED);
    return status;
}

/* Also where the stream has failed, so that nobody waits for blocks that never come. */
static zero_status end_stage(void *argument)
{
    engine_save *save = *(engine_save **)argument;
    if (!save->staged) {
        const zero_error error = {
            .status = ZERO_IO,
            .message = "the engine has failed before its state was copied; its own error says why"};
        zi_checkpoint_writer_stop(save->writer, &error);
    }
    zi_checkpoint_writer_finish(save->writer);
    return ZERO_OK;
}

zero_status zi_save_stage(engine_save *save)
{
    const zero_engine *engine = save->engine;
    const zi_device *device = engine->device;
    ZI_TRY(device->ops->task(device->self, engine->step_stream, stage, &save, sizeof save));
    ZI_TRY(
        device->ops->task_always(device->self, engine->step_stream, end_stage, &save, sizeof save));
    ZI_TRY(device->ops->event_record(device->self, save->copied, engine->step_stream));
    /* Whoever touches shards waits for this event, so it is behind the copy. */
    return device->ops->event_record(device->self, engine->stepped, engine->step_stream);
}
