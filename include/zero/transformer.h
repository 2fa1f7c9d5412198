/** @file
 *  Transformers by their dimensions: what to plan before a trainer exists.
 *
 *  A zero_transformer describes a decoder of the kinds that are published: GPT-2 and GPT-3, Llama
 *  and Mistral, Qwen, Mixtral, DeepSeek-V3, Gemma, Phi, gpt-oss, GPT-NeoX, OPT, Falcon, GLM. It
 * comes from a preset, from a config.json or the weights as model hubs have them, or from a caller
 * who sets its fields, and becomes a zero_model with a unit for the embedding, one for each block,
 * and one for the head.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of libzero-plan. */
#ifndef ZERO_TRANSFORMER_H
#define ZERO_TRANSFORMER_H

#include "zero/dtype.h"
#include "zero/export.h"
#include "zero/model.h"
#include "zero/status.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** Properties of a transformer, combined with |. */
typedef enum zero_transformer_flags {
    ZERO_TRANSFORMER_PLAIN = 0,     /**< none of these: norms and matrices without biases */
    ZERO_TRANSFORMER_TIED_HEAD = 1, /**< the head is the matrix of the token embedding */
    ZERO_TRANSFORMER_BIASES = 2,    /**< every matrix of a block and every norm has a bias */
    ZERO_TRANSFORMER_QKV_BIASES =
        4,                      /**< the query, key and value matrices have, no other (Qwen 2) */
    ZERO_TRANSFORMER_GATED = 8, /**< feed-forward layers have a third matrix, the gate: SwiGLU
                                     (Shazeer, "GLU variants improve transformer", 2020) */
    ZERO_TRANSFORMER_HEAD_NORMS = 16, /**< a norm over each head of queries, one of keys (Qwen 3) */
    ZERO_TRANSFORMER_NORM_BIASES = 32,   /**< every norm of the residual stream has a bias */
    ZERO_TRANSFORMER_OUTPUT_BIASES = 64, /**< the matrix that follows attention has a bias */
    ZERO_TRANSFORMER_FFN_BIASES =
        128, /**< the matrices of feed-forward layers have, of each expert too */
    ZERO_TRANSFORMER_ROUTER_BIASES = 256, /**< the router has a bias (gpt-oss) */
    ZERO_TRANSFORMER_SINKS = 512, /**< each query head has a learned logit that its softmax counts
                                       (gpt-oss) */
    ZERO_TRANSFORMER_POST_NORMS =
        1024, /**< a norm behind attention and one behind the feed-forward layer too (Gemma 2) */
    ZERO_TRANSFORMER_PARALLEL =
        2048, /**< attention and the feed-forward layer both read the block's input (GPT-NeoX) */
    ZERO_TRANSFORMER_ONE_NORM = 4096, /**< of which there is one norm; with PARALLEL (Falcon) */
    ZERO_TRANSFORMER_CHUNKED = 8192,  /**< a window begins at each multiple of its length: tokens
                                         attend within such a chunk (Llama 4) */
    ZERO_TRANSFORMER_ALL = 16383      /**< all of these bits */
} zero_transformer_flags;

/** Parts of the model in a config.json that a zero_transformer is without, combined with |. */
typedef enum zero_transformer_parts {
    ZERO_TRANSFORMER_PART_TOWERS = 1, /**< towers of images or sound, with what joins them to the
                                           text model */
    ZERO_TRANSFORMER_PART_PREDICTORS = 2, /**< blocks that predict further tokens (MTP) */
    ZERO_TRANSFORMER_PART_QUANTIZED = 4   /**< the quantised form of weights: parameters are planned
                                               in `dtype` */
} zero_transformer_parts;

/** The part of a block that is a unit, and so is gathered at once. Smaller units need smaller
 * slots, and more collectives. */
typedef enum zero_transformer_units {
    ZERO_TRANSFORMER_UNITS_BLOCK = 0,  /**< all of it */
    ZERO_TRANSFORMER_UNITS_LAYER = 1,  /**< its attention, and its feed-forward layer */
    ZERO_TRANSFORMER_UNITS_MATRIX = 2, /**< each matrix, with what comes before the next one */
    ZERO_TRANSFORMER_UNITS_COUNT = 3   /**< how many values there are */
} zero_transformer_units;

/** Dimensions of a transformer. Grows at its end. */
typedef struct zero_transformer {
    size_t struct_bytes; /**< set by zero_transformer_init() */
    uint64_t layers;     /**< blocks, in [1, 65536] */
    uint64_t width;      /**< elements of a token in the residual stream, in [1, 2^20] */
    uint64_t heads;      /**< query heads, in [1, 65536] */
    uint64_t kv_heads;   /**< key and value heads; divides heads. 0: as many as heads */
    uint64_t head_width; /**< elements of a head. 0: width / heads, which must then divide */
    uint64_t ffn_width;  /**< inner elements of a feed-forward layer, of each expert where there
                              are experts, in [1, 2^24]. 0: 4 x width */
    uint64_t vocab;      /**< rows of the token embedding, in [1, 2^24] */
    uint64_t positions;  /**< rows of a learned position embedding, at most 2^24. 0: there is none
                              (rotary positions) */
    uint64_t sequence;   /**< tokens of the longest sample, in [1, 2^24] */
    uint64_t experts;    /**< feed-forward layers of a block that a router chooses from, at most
                              65536. 0: one, without a router */
    uint64_t
        experts_used; /**< that each token passes through, in [1, experts]; 0 without experts */
    uint32_t flags;   /**< zero_transformer_flags */
    zero_dtype dtype; /**< of the parameters. Default: F32 */
    zero_transformer_units units; /**< default: blocks */
    uint64_t tensor_parallel;     /**< ranks that split every matrix between them (Shoeybi et al.,
                                       "Megatron-LM", 2019); divides heads and the widths of
                                       feed-forward layers, and one of it and kv_heads divides
                                       the other. 0: 1 */
    uint64_t pipeline_parallel;   /**< stages that the blocks are split over, in [1, layers]. Where
                                       it does not divide them, some have one block less, the
                                       last one among them. 0: 1 */
    uint64_t dense_layers; /**< blocks at the start that have one feed-forward layer instead of
                                experts (DeepSeek-V3), at most 65536; 0 without experts */
    uint64_t expert_every; /**< of the blocks behind those, experts are in each whose number, from
                                1, this divides; the others have one feed-forward layer (Llama 4).
                                At most 65536. 0: 1, and 0 without experts */
    uint64_t dense_ffn_width;  /**< inner elements of the feed-forward layer of a block without
                                    experts where others have, at most 2^24. 0: ffn_width */
    uint64_t shared_ffn_width; /**< inner elements of a feed-forward layer that every token passes
                                    through beside the experts: of all shared experts together, at
                                    most 2^24. 0: there is none */
    uint64_t kv_rank;          /**< elements of a token's latent, of which keys and values are made:
                                    multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024),
                                    at most 2^20. kv_heads is then 0 or heads. 0: there is none */
    uint64_t query_rank;       /**< likewise of queries, with kv_rank. 0: one matrix makes them */
    uint64_t rope_width;  /**< with kv_rank: elements of a head, of head_width, that have rotary
                               positions; all heads' keys share them. In [1, head_width - 1] */
    uint64_t value_width; /**< elements of a head's values, at most 2^20. 0: head_width */
    uint64_t window;      /**< tokens, its own among them, that a token attends to in blocks with a
                               sliding window, at most 2^24. 0: to all before it */
    uint64_t full_every;  /**< with a window: tokens attend to all in each block whose number, from
                               1, this divides, at most 65536. 0: in none */
    uint64_t left_out;    /**< zero_transformer_parts that zero_transformer_read found and this is
                               without */
    uint64_t expert_parallel; /**< ranks that share the experts of each block, and send tokens to
                                   one another (Lepikhin et al., "GShard", 2020); divides experts.
                                   0: 1 */
} zero_transformer;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_transformer_init_sized(zero_transformer *transformer, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_transformer zero_transformer_init(void)
{
    zero_transformer transformer;
    zero_transformer_init_sized(&transformer, sizeof transformer);
    return transformer;
}

/** A name of a part, for example "multi-token prediction blocks"; NULL for an unknown one.
 *  - part: one of zero_transformer_parts. */
ZERO_API const char *zero_transformer_part_name(uint64_t part);

/** The name of preset `index`, 0-based; NULL behind the last one. They are in order of size within
 *  each family: gpt2, llama, gpt3, mixtral, qwen3, and "1t", the trillion of Narayanan et al.,
 *  "Efficient large-scale language model training on GPU clusters", 2021; deepseek, kimi, llama-4,
 *  gpt-oss, gemma, phi. `sequence` is a length that they were trained with, where they have been
 *  extended to a longer one that of before. */
ZERO_API const char *zero_transformer_preset_name(uint32_t index);

/** The dimensions of a published model, in bf16.
 *  - name: of zero_transformer_preset_name.
 *  - transformer: in: struct_bytes, of zero_transformer_init(); out: the rest, as far as the struct
 *    goes.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT, for an unknown name with all that there are.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_transformer_preset(const char *name,
                                                             zero_transformer *transformer);

/** The dimensions in a file of a model hub's, of the model types gpt2, llama, mistral, mixtral,
 *  qwen2, qwen3, qwen3_moe, gemma2, gemma3_text, phi3, gpt_neox and opt, and, by a config.json
 *  alone, deepseek_v3, kimi_k2, llama4, llama4_text, gemma3, gpt_oss, falcon and glm4_moe. Of a
 *  model with towers for images it is the text model (`left_out` says so). What the file holds
 *  decides how it is read:
 *
 *  - a config.json, of at most 1 MiB;
 *  - weights in safetensors, of which only the header is read, so the first bytes of a download do;
 *  - an index of several such files (NAME.index.json), which lie beside it.
 *
 *  Names and shapes of tensors tell all dimensions but these: the number of heads, the longest
 *  sample, windows, how many experts a token passes through, and whether the halves of a block of
 *  GPT-NeoX read the same stream. They come from the config.json beside the
 *  weights, which must agree with the tensors in everything else. Without one, weights of GPT-2 are
 *  read with heads of 64 elements, as all of them have, and others are refused. Each parameter of
 *  the transformer is then one in the file, and the reverse. Masks and rotary frequencies that old
 *  files carry are no parameters, and neither is a head where the config.json says that it is tied.
 *  - path: of the file.
 *  - transformer: as in zero_transformer_preset.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT naming the file and the key or tensor: it is missing, of another type
 *    or shape, overlaps with another, or is of a model type or a feature that a zero_transformer
 *    cannot describe; those of zero_transformer_check; IO.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_transformer_read(const char *path,
                                                           zero_transformer *transformer);

/** OK when the dimensions describe a model.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT naming the field, its value and its bounds; UNSUPPORTED when
 *    struct_bytes is larger than this library knows and the tail is not zero.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_transformer_check(const zero_transformer *transformer);

/** Describe it: the unit "embedding", the units "block.0" and on (where they are smaller than
 * blocks, "block.0.0" and on), and "head", with the tensors that the published weights have. A
 * block's experts are one tensor for each matrix, by expert.
 *
 *  With tensor_parallel or pipeline_parallel it is the part that the engines of one column hold
 *  (docs/mesh.md): each matrix the first box of the global one, and with stages the embedding and
 *  the blocks of the stage whose blocks have the most parameters, without a head. Where blocks are
 *  alike that is the first stage; where they differ, no stage has more: an embedding has as many
 *  parameters as a head.
 *  With expert_parallel it has no experts, which are another model: zero_transformer_experts.
 *  - model: out.
 *  - Local call.
 *  - Ownership: the caller destroys the model.
 *  - Errors: those of zero_transformer_check; OUT_OF_MEMORY.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_transformer_model(const zero_transformer *transformer,
                                                            zero_model **model);

/** Describe the experts that a rank of expert_parallel holds of the same blocks: the first of each
 *  tensor, as boxes of all experts'. They are an engine of their own, in a world of the ranks that
 *  hold the same ones.
 *  - model: out; NULL: no block has experts, or zero_transformer_model has them.
 *  - The rest as in zero_transformer_model. */
ZERO_API ZERO_MUST_CHECK zero_status zero_transformer_experts(const zero_transformer *transformer,
                                                              zero_model **model);

/** How many parameters it has, whole, and how many of them a token passes through: all but those of
 *  the experts that the router has not chosen.
 *  - total, used: out; either may be NULL.
 *  - Local call.
 *  - Errors: those of zero_transformer_check.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status
zero_transformer_parameters(const zero_transformer *transformer, uint64_t *total, uint64_t *used);

ZERO_END

#endif
