/* Descriptions of a transformer in files: a config.json, or the tensors of its weights. */
#ifndef ZI_PLAN_TRANSFORMER_FILES_H
#define ZI_PLAN_TRANSFORMER_FILES_H

#include "format/json.h"
#include "format/safetensors.h"
#include "zero/transformer.h"

/* Of a config.json. Errors: INVALID_ARGUMENT naming the key; those of zero_transformer_check. */
zero_status zi_transformer_of_config(const zi_json *json, zero_transformer *t);

/* The weights of a model, in one file or several. */
typedef struct zi_weights {
    const char *path; /* for messages: what the caller named */
    zi_safetensors *files;
    uint32_t file_count;
} zi_weights;

/* Of all of a model's tensors.
 * - config: what its config.json says, for what no shape tells; NULL: there is none.
 * - Errors: INVALID_ARGUMENT naming the tensor that fits no transformer, the dimension in which
 *   config differs, or what is not known without one; those of zero_transformer_check. */
zero_status zi_transformer_of_weights(const zi_weights *weights, const zero_transformer *config,
                                      zero_transformer *t);

#endif
