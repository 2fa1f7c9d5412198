/* The files of a checkpoint, or safetensors files, as a source of elements. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_READER_H
#define ZI_CHECKPOINT_CHECKPOINT_READER_H

#include "checkpoint/source.h"

/* path: the folder of a checkpoint, a safetensors file, an index of several ("weight_map"), or a
 * folder that has either as "model.safetensors" or "model.safetensors.index.json". Without a
 * manifest there are only parameters, and no sums; a tensor of a type that no parameter has here
 * has no role at all. Errors: those of zi_manifest_read; the same for headers. */
zero_status zi_checkpoint_reader_open(const char *path, zi_source **out);

#endif
