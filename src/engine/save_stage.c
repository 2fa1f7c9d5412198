/* Owns the copy of what a rank saves out of the engine: one task of the step stream, which walks
 * over the rank's slices and hands them to the writer block by block. Each role has a walk of its
 * own, and the one that is furthest behind comes next: state on disk has all its roles in the same
 * extents, which are so read once. Where the caller waits for the save nothing changes meanwhile,
 * and host memory is written from where it is.
 *
 * Invariant: a block is one range of one file, and the sum of a piece is made of what is written.
 */
#include "core/clock.h"
#include "core/codec.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/save.h"

/* Less is copied, so that small tensors share a block. */
#define IN_PLACE_BYTES_MIN ((uint64_t)256 << 10)

/* The position of a walk over a role. */
typedef struct walk_position {
    uint32_t tensor; /* of the map */
    uint64_t done;   /* elements of this rank's slice of it */
} walk_position;

/* Elements of one tensor in a block. */
typedef struct stage_range {
    uint32_t tensor;
    uint64_t first;
    uint64_t count;
    uint64_t at; /* bytes of the block before them */
    bool ends;   /* this rank has no more of the tensor */
} stage_range;

typedef struct role_walk {
    zero_role role;
    walk_position position;
    uint32_t file; /* of the last block; ZI_NO_INDEX: there was none */
} role_walk;

/* ---- walking ---- */

/* Find the next elements of the role; false: there are no more. */
static bool save_stage_find_next(const engine_save *save, zero_role role, walk_position *position,
                                 engine_range *slice)
{
    const zi_checkpoint_map *map = &save->manifest.map;
    for (; position->tensor < map->tensor_count; position->tensor++, position->done = 0) {
        if (map->tensors[position->tensor].role[role].dtype != ZERO_DTYPE_NONE) {
            *slice = zi_save_own_range(save, position->tensor);
            if (position->done < slice->count) {
                return true;
            }
        }
    }
    return false;
}

/* Add the next range to the block, which ends at byte `end` of the file at most; false: it is full,
 * or what comes next lies elsewhere. */
static bool save_stage_next_range(const engine_save *save, walk_position *position, uint64_t end,
                                  zi_checkpoint_block *block, stage_range *range)
{
    engine_range slice;
    if (!save_stage_find_next(save, block->role, position, &slice)) {
        return false;
    }
    const zi_checkpoint_tensor *tensor = &save->manifest.map.tensors[position->tensor];
    const zi_checkpoint_place *place = &tensor->role[block->role];
    const zi_codec codec = zi_saved_codec(tensor, block->role);
    const uint64_t first = slice.first + position->done;
    const uint64_t at = place->at + zi_codec_bytes(codec, first);
    if (place->file != block->file || at != block->at + block->bytes || at >= end) {
        return false;
    }
    const uint64_t count =
        zi_min_u64(slice.count - position->done, zi_codec_elements(codec, end - at));
    *range = (stage_range){.tensor = position->tensor,
                           .first = first,
                           .count = count,
                           .at = block->bytes,
                           .ends = position->done + count == slice.count};
    block->bytes += zi_codec_bytes(codec, count);
    position->done += count;
    return true;
}

/* Elements of a range's first granule that the block before has: where it is copied they are copied
 * again ahead of it, since a granule's sum is made of all of it. */
static uint64_t lead_of(const stage_range *range)
{
    return range->first % ZI_GRANULE;
}

/* ---- sums ---- */

void zi_save_add_block(void *user, const zi_checkpoint_block *block)
{
    const engine_save *save = user;
    const uint64_t block_end = block->at + block->bytes;
    zi_checkpoint_block walked = *block;
    walk_position position = {.tensor = block->tensor, .done = block->done};
    stage_range range;
    walked.bytes = 0;
    while (save_stage_next_range(save, &position, block_end, &walked, &range)) {
        const zi_checkpoint_tensor *tensor = &save->manifest.map.tensors[range.tensor];
        const uint64_t lead = lead_of(&range);
        const uint64_t last = range.first + range.count;
        const uint64_t end = range.ends ? last : last - last % ZI_GRANULE;
        const uint64_t begin = range.first - lead;
        zi_checkpoint_sums_add(save->sums, block->role, range.tensor, begin, end - begin,
                               block->data + range.at - zi_saved_bytes(tensor, block->role, lead));
    }
}

/* ---- copying ---- */

/* The address of the range, if it can be written from there; NULL: it cannot. */
static const unsigned char *save_stage_in_place(const engine_save *save,
                                                const zi_checkpoint_block *block,
                                                const stage_range *range)
{
    if (!save->waited_for || block->bytes < IN_PLACE_BYTES_MIN) {
        return NULL;
    }
    const engine_shard shard =
        zi_engine_shard(save->engine, save->tensors[range->tensor], block->role);
    const unsigned char *data =
        zi_engine_shard_in_place(save->engine, &shard, range->first - shard.tensor_first);
    const uint64_t align = zi_checkpoint_writer_align(save->writer);
    return data != NULL && (uintptr_t)data % align == block->at % align ? data : NULL;
}

static zero_status copy_range(const engine_save *save, const zi_checkpoint_block *block,
                              unsigned char *memory, const stage_range *range)
{
    const uint32_t tensor = save->tensors[range->tensor];
    const engine_shard shard = zi_engine_shard(save->engine, tensor, block->role);
    const zi_checkpoint_tensor *saved = &save->manifest.map.tensors[range->tensor];
    const uint64_t lead = lead_of(range);
    return zi_engine_shard_stage(save->engine, &shard, range->first - lead - shard.tensor_first,
                                 range->count + lead,
                                 memory + range->at - zi_saved_bytes(saved, block->role, lead));
}

/* The place of the range on disk, if its pages can be shared; file -1: they cannot. */
static engine_stored find_shared(const engine_save *save, const zi_checkpoint_block *block,
                                 const stage_range *range)
{
    const engine_shard shard =
        zi_engine_shard(save->engine, save->tensors[range->tensor], block->role);
    engine_stored found = {.file = -1};
    if (save->reflink) {
        found = zi_engine_shard_stored(save->engine, &shard, range->first - shard.tensor_first);
        found.bytes = zi_min_u64(found.bytes, block->bytes);
    }
    if (found.bytes < SHARED_BYTES_MIN ||
        found.at % ZI_CHECKPOINT_ALIGN != block->at % ZI_CHECKPOINT_ALIGN) {
        found.file = -1;
    }
    return found;
}

/* Copy the block's ranges, up to byte `end` of the file, to memory of the writer. Without any the
 * writer wants no more. */
static zero_status copy_block(const engine_save *save, walk_position *position, uint64_t end,
                              zi_checkpoint_block *block)
{
    const zi_device *device = save->engine->device;
    unsigned char *memory = zi_checkpoint_writer_reserve(save->writer, block->at);
    stage_range range;
    block->data = memory;
    block->bytes = 0;
    while (memory != NULL && save_stage_next_range(save, position, end, block, &range)) {
        ZI_TRY(copy_range(save, block, memory, &range));
    }
    return device->ops->drain(device->self, save->engine->step_stream);
}

/* Begin the walk's next block: where it is. */
static zi_checkpoint_block begin_block(const engine_save *save, role_walk *walk)
{
    engine_range slice = {0};
    (void)save_stage_find_next(save, walk->role, &walk->position, &slice);
    const zi_checkpoint_tensor *tensor = &save->manifest.map.tensors[walk->position.tensor];
    const zi_checkpoint_place *place = &tensor->role[walk->role];
    const uint64_t first = slice.first + walk->position.done;
    if (walk->file != place->file && walk->file != ZI_NO_INDEX) {
        zi_checkpoint_writer_seal(save->writer, walk->file);
    }
    walk->file = place->file;
    return (zi_checkpoint_block){.file = place->file,
                                 .at = place->at + zi_saved_bytes(tensor, walk->role, first),
                                 .role = walk->role,
                                 .tensor = walk->position.tensor,
                                 .done = walk->position.done};
}

/* The bytes of a role's block at most. Scales have no more elements in one than codes of a byte
 * each, so that their walk stays beside the others: on disk it reads the same extents. */
static uint64_t block_bytes_of(const engine_save *save, zero_role role)
{
    return zi_role_is_scales(role)
               ? zi_max_u64(save->block_bytes * sizeof(uint16_t) / ZERO_CODE_BLOCK,
                            ZI_WRITER_BLOCK_BYTES_MIN)
               : save->block_bytes;
}

/* Hand the walk's next block over. One that is shared is read all the same, for its sum, and ends
 * where what follows it lies elsewhere on disk. */
static zero_status stage_next(const engine_save *save, role_walk *walk)
{
    zi_checkpoint_block block = begin_block(save, walk);
    const uint64_t bytes = block_bytes_of(save, walk->role);
    uint64_t end = (block.at + bytes) / ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN;
    walk_position position = walk->position;
    stage_range range;
    (void)save_stage_next_range(save, &position, end, &block, &range);
    block.data = save_stage_in_place(save, &block, &range);
    if (block.data == NULL) {
        const engine_stored shared = find_shared(save, &block, &range);
        end = shared.file >= 0 ? block.at + shared.bytes : end;
        position = walk->position;
        ZI_TRY(copy_block(save, &position, end, &block));
        if (block.data != NULL && shared.file >= 0) {
            zi_checkpoint_writer_share(save->writer, &block, shared.file, shared.at);
        }
    }
    walk->position = position;
    if (block.data != NULL) {
        zi_checkpoint_writer_submit(save->writer, &block);
    }
    return ZERO_OK;
}

/* ---- the tasks ---- */

/* The walk that is furthest behind; NULL: all are at their end. */
static role_walk *save_stage_choose(const engine_save *save, role_walk *walks)
{
    role_walk *chosen = NULL;
    for (uint32_t i = 0; i < ZI_SAVED_ROLES; i++) {
        walk_position *position = &walks[i].position;
        engine_range slice;
        if (save_stage_find_next(save, walks[i].role, position, &slice) &&
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
    for (uint32_t i = 0; i < ZI_SAVED_ROLES; i++) {
        walks[i].role = zi_saved_role(i);
        walks[i].file = ZI_NO_INDEX;
    }
    for (role_walk *walk = save_stage_choose(save, walks);
         walk != NULL && zi_checkpoint_writer_wants(save->writer);
         walk = save_stage_choose(save, walks)) {
        ZI_TRY(stage_next(save, walk));
    }
    for (uint32_t i = 0; i < ZI_SAVED_ROLES; i++) {
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
    role_walk walks[ZI_SAVED_ROLES] = {0};
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
            .status = ZERO_ERR_IO,
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
