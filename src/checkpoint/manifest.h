/* The manifest of a checkpoint: manifest.json says all that the files' own headers do not. It is
 * written last, so a folder without one is no checkpoint. Its last member is the XXH3 of the text
 * before it, so a flipped bit is found before anything is believed.
 *
 * docs/checkpoint-format.md describes every member. */
#ifndef ZI_CHECKPOINT_MANIFEST_H
#define ZI_CHECKPOINT_MANIFEST_H

#include <stdbool.h>

#include "checkpoint/checkpoint_map.h"
#include "optimizer/optimizer.h"
#include "zero/status.h"
#include "zero/step.h"

#define ZI_MANIFEST_NAME "manifest.json"
#define ZI_SUMS_NAME "sums.bin"
#define ZI_MANIFEST_BYTES_MAX ((uint64_t)4 << 30)
/* Of the caller's own bytes. */
#define ZI_MANIFEST_USER_BYTES_MAX ((uint64_t)1 << 20)

/* The numbers of a step that each part of a model has. */
typedef struct zi_manifest_part {
    uint32_t group_count; /* groups whose hyper-parameters were given; the others have kinds */
    zi_hyper groups[ZERO_STEP_GROUPS];
    double carried[ZERO_STEP_GROUPS][ZERO_STEP_CARRIED]; /* as in zero_step_state */
} zi_manifest_part;

typedef struct zi_manifest {
    uint64_t commit; /* as zi_manifest_head has it, and the next */
    bool weights;
    uint32_t world;      /* ranks that wrote it; of several parts those of one */
    uint64_t seed;       /* options.seed: key of stochastic rounding */
    uint64_t model_hash; /* of names and shapes: zi_manifest_model_hash */
    zero_step_state state;
    bool scale_dynamic;   /* false: the run's loss scale never changes */
    uint32_t group_count; /* groups whose hyper-parameters were given; the others have kinds */
    zi_hyper groups[ZERO_STEP_GROUPS];
    uint64_t data_position; /* the caller's, as given to zero_save; likewise */
    uint64_t random_seed;
    uint64_t random_position;
    const void *user;
    uint64_t user_bytes;
    zi_checkpoint_map map;
    zi_manifest_part *parts; /* map.part_count; the first has what `state` and `groups` have. NULL:
                                the model is in one part */
    uint64_t sums_hash;      /* XXH3 of sums.bin */
    uint64_t *header_hash;   /* by file: XXH3 of its first data_at bytes */
    struct zi_manifest_memory *memory; /* of a manifest that was read; NULL: it was not */
} zi_manifest;

/* Whatever the order of the tensors, which depends on their dtypes, and however they are cut into
 * boxes: of each global tensor the box that has its first element counts. */
uint64_t zi_manifest_model_hash(const zi_checkpoint_map *map);

/* The text. *text: zi_free gives it back. Errors: OUT_OF_MEMORY. */
zero_status zi_manifest_write(const zi_manifest *manifest, char **text, size_t *bytes);

/* The facts of a checkpoint that are known without reading all of its manifest. */
typedef struct zi_manifest_head {
    uint64_t step;   /* updates and skipped */
    uint64_t commit; /* one more than those that were committed before it in its directory */
    bool weights;    /* parameters alone: no run goes on from it */
} zi_manifest_head;

/* Of the checkpoint in a folder whose manifest is as it was written. files:
 * whether the files that it names are there, in their length, too. Errors: CORRUPT for a text that
 * is not as it was written, and for such a file; UNSUPPORTED for another version; INVALID_ARGUMENT
 * for a folder that has no manifest, because its save did not end, and for what is none; IO;
 * OUT_OF_MEMORY. */
zero_status zi_manifest_read_head(const char *folder, bool files, zi_manifest_head *head);
/* Its number alone, which is not compared with any hash; 0 where there is none. */
uint64_t zi_manifest_commit(const char *folder);

/* Read the manifest in a folder, and check all of it: places are compared with those that
 * zi_checkpoint_map_make gives, and nothing outside the folder can be named. Neither sums nor
 * tensors are read. Errors: as above, INVALID_ARGUMENT naming the member also for a text that
 * somebody else wrote. */
zero_status zi_manifest_read(zi_manifest *manifest, const char *folder);
/* After zi_manifest_read, whatever it returned. */
void zi_manifest_free(zi_manifest *manifest);

#endif
