/* Weights as the public GPT-2 has them: in from safetensors files, and out with a config.json, for
 * transformers and whatever else reads them. */
#ifndef GPT2_WEIGHTS_H
#define GPT2_WEIGHTS_H

#include "gpt2_net.h"

#include "zero/checkpoint.h"

enum { GPT2_SIZES_TEXT = 192 };

/* The sizes as "layers 2 heads 2 ...", which a checkpoint has: shapes do not tell the heads, and a
 * reader of the manifest sees what the model is. */
void gpt2_sizes_print(const gpt2_config *config, char text[GPT2_SIZES_TEXT]);

/* zero_load of a checkpoint of a run, which refuses other sizes by name. sizes: out, the text that
 * it has of them, and what else stands there; the report's user bytes are taken. Collective. */
zero_status gpt2_checkpoint_load(gpt2_net *net, const zero_load_options *load,
                                 zero_load_report *report, char sizes[GPT2_SIZES_TEXT],
                                 gpt2_error *error);

/* Load parameters alone from safetensors: a file, its index, or a folder with either; or from a
 * checkpoint of a run. Names are the public ones, with or without "transformer.". Masks of causal
 * attention that old files carry are left out, and so is a head that equals the token embedding.
 * All else must be there, and nothing more. Collective. */
zero_status gpt2_weights_load(gpt2_net *net, zero_world *world, const char *path,
                              gpt2_error *error);

/* Write parameters to model.safetensors, or several such files and their index, and config.json in
 * `folder`, which exists. Each rank writes its own part. Collective. */
zero_status gpt2_weights_export(gpt2_net *net, zero_world *world, const char *folder,
                                gpt2_error *error);

/* Write model.safetensors.index.json: which tensor is in which of so many files. */
bool gpt2_weights_index(const gpt2_config *config, const char *folder, uint32_t files,
                        gpt2_error *error);

#endif
