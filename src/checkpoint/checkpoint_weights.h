/* Weights that came without a manifest: safetensors files as other programs write them. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_WEIGHTS_H
#define ZI_CHECKPOINT_CHECKPOINT_WEIGHTS_H

#include "checkpoint/checkpoint_map.h"
#include "layout/model.h"
#include "zero/status.h"

/* All zero: nothing. */
typedef struct zi_checkpoint_weights {
    zi_checkpoint_map map; /* its tensors have no cuts and at most the role PARAM */
    const char **paths;    /* by file */
    zi_names names;        /* of tensors and paths */
    uint64_t read_bytes;   /* headers and index */
} zi_checkpoint_weights;

/* Read the headers of a safetensors file, or of those that an index of JSON lists. A tensor of a
 * type that no parameter has here is in the map without a role. Errors: those of
 * zi_safetensors_read; INVALID_ARGUMENT for a name that two files have; CORRUPT for a file that is
 * not as long as its header says. */
zero_status zi_checkpoint_weights_read(zi_checkpoint_weights *weights, const char *path);

/* After zi_checkpoint_weights_read, whatever it returned. */
void zi_checkpoint_weights_free(zi_checkpoint_weights *weights);

#endif
