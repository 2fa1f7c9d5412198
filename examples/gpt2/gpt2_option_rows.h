/* The program's own options, a row each; for gpt2_options.c only. */
#ifndef GPT2_OPTION_ROWS_H
#define GPT2_OPTION_ROWS_H

#include "gpt2_options.h"

#include <stddef.h>

/* How an option's value is read and where it goes. */
typedef enum kind {
    KIND_TEXT,
    KIND_FLAG,  /* uint32_t, no value */
    KIND_COUNT, /* uint32_t in [low, high] */
    KIND_SEED,  /* uint64_t */
    KIND_REAL,  /* double in [low, high] */
    KIND_TIER,
    KIND_DISK,   /* a text; may be given again */
    KIND_PRESET, /* a text, and the sizes it stands for */
    KIND_DTYPE,  /* of parameters */
    KIND_LIBRARY,
    KIND_ENGINE /* an option of the library's, of that name or by `aliases` */
} kind;

typedef struct gpt2_option {
    const char *name; /* without its dashes */
    kind kind;
    size_t at; /* offset in gpt2_options */
    double low;
    double high;
    const char *help;
} gpt2_option;

#define AT(field) offsetof(gpt2_options, field)
static const gpt2_option own_rows[] = {
    {"data", KIND_TEXT, AT(data), 0, 0, "FILE: text, or llm.c's tokens (required)"},
    {"val", KIND_TEXT, AT(val), 0, 0, "FILE: validation data (else the last tenth of --data)"},
    {"vocab", KIND_COUNT, AT(vocab), 1, 65536,
     "N: size of the vocabulary (else 256 for text, 50257 for .bin; of a plan 50257 with "
     "--preset)"},
    {"ranks", KIND_COUNT, AT(ranks), 1, 256, "N: ranks as threads of this process (4)"},
    {"deadline", KIND_COUNT, AT(deadline), 1, 4294967,
     "SECONDS: how long a rank waits for the others before it gives up"},
    {"device", KIND_ENGINE, 0, 0, 0, "cpu|cuda: where ranks compute, one GPU a rank"},
    {"nccl-memory", KIND_ENGINE, 0, 0, 0, "none|registered: what NCCL knows of memory"},
    {"zero-cta", KIND_ENGINE, 0, 0, 0,
     "let NCCL gather by copy engines; with --nccl-memory registered"},
    {"stage", KIND_ENGINE, 0, 0, 0, "0..3: what is split over the ranks"},
    {"shard-group", KIND_ENGINE, 0, 0, 0, "N: ranks that parameters are split over"},
    {"dtype", KIND_DTYPE, AT(dtype), 0, 0, "f32|bf16|f16: parameters"},
    {"grad-dtype", KIND_ENGINE, 0, 0, 0, "gradients (as --dtype)"},
    {"accum", KIND_ENGINE, 0, 0, 0, "f32|bf16: sums of gradients (f32)"},
    {"wire-dtype", KIND_ENGINE, 0, 0, 0, "f32|bf16|f16|int8: gradients that ranks exchange"},
    {"host-wire-dtype", KIND_ENGINE, 0, 0, 0, "int8|int4: sums that hosts exchange"},
    {"gather-dtype", KIND_ENGINE, 0, 0, 0, "bf16|f16|mxfp8|int8: parameters that ranks exchange"},
    {"master", KIND_ENGINE, 0, 0, 0, "f32|remainder16|remainder8|none: masters"},
    {"moments", KIND_ENGINE, 0, 0, 0, "f32|bf16|i8: the optimizer's moments"},
    {"param-tier", KIND_ENGINE, 0, 0, 0, "device|host|disk: where parameters live"},
    {"grad-tier", KIND_ENGINE, 0, 0, 0, "device|host|disk: where gradients live"},
    {"master-tier", KIND_ENGINE, 0, 0, 0, "device|host|disk: where the copy lives"},
    {"moment-tier", KIND_ENGINE, 0, 0, 0, "device|host|disk: where the moments live"},
    {"evict", KIND_TIER, AT(evict), 0, 0,
     "device|host|disk: tier that all but parameters is evicted to while validating; device: none"},
    {"disk", KIND_DISK, AT(disks), 0, 0, "DIR: for what lives on disk; again for more disks"},
    {"extent-bytes", KIND_ENGINE, 0, 0, 0, "BYTES[K|M|G]: moved to disk at once (8M)"},
    {"speculative", KIND_ENGINE, 0, 0, 0,
     "update during backward; with --master-tier and --moment-tier disk"},
    {"budget", KIND_ENGINE, 0, 0, 0, "BYTES[K|M|G]: refuse to use more a rank"},
    {"threads", KIND_COUNT, AT(threads), 1, 256, "N: threads a rank (cores / ranks)"},
    {"preset", KIND_PRESET, AT(preset), 0, 0,
     "gpt2-124m|gpt2-355m|gpt2-774m|gpt2-1558m: the public model's layers, heads, width, seq"},
    {"layers", KIND_COUNT, AT(layers), 1, 1000, "N: blocks"},
    {"heads", KIND_COUNT, AT(heads), 1, 1024, "N: attention heads; divides --width"},
    {"width", KIND_COUNT, AT(width), 1, 65536, "N: of the residual stream"},
    {"seq", KIND_COUNT, AT(seq), 1, 65536, "N: tokens of a sample"},
    {"recompute", KIND_FLAG, AT(recompute), 0, 0, "keep block inputs only; backward recomputes"},
    {"products", KIND_LIBRARY, AT(products), 0, 0,
     "auto|blas|dnnl: CPU: products of bf16 parameters; auto: oneDNN where the CPU multiplies "
     "bf16"},
    {"tf32", KIND_FLAG, AT(tf32), 0, 0, "CUDA: f32 products may round their factors to TF32"},
    {"batch", KIND_COUNT, AT(batch), 1, 1 << 20, "N: samples a step, over all ranks"},
    {"micro-steps", KIND_COUNT, AT(micro_steps), 1, 1 << 16, "N: parts a step is done in"},
    {"steps", KIND_COUNT, AT(steps), 1, 1e9, "N: optimizer steps"},
    {"warmup", KIND_COUNT, AT(warmup), 0, 1e9,
     "N: steps to the full learning rate (50, at most a tenth)"},
    {"lr", KIND_REAL, AT(lr), 0, 10, "X: largest learning rate"},
    {"min-lr", KIND_REAL, AT(min_lr), 0, 10, "X: last learning rate of the cosine (lr / 10)"},
    {"weight-decay", KIND_REAL, AT(weight_decay), 0, 10, "X: of matrices and embeddings"},
    {"beta1", KIND_REAL, AT(beta1), 0, 0.999999,
     "X: AdamW, LAMB and Lion; of SGD and LARS the momentum"},
    {"beta2", KIND_REAL, AT(beta2), 0, 0.999999, "X: AdamW, LAMB and Lion"},
    {"trust", KIND_REAL, AT(trust), 1e-9, 1e3,
     "X: LARS: what a tensor's norm over its gradient's is multiplied by (0.001)"},
    {"adapt-undecayed", KIND_FLAG, AT(adapt_undecayed), 0, 0,
     "LAMB, LARS: rates of biases and of what norms are scaled by go by their norms too"},
    {"clip", KIND_REAL, AT(clip), 0, 1e9, "X: largest gradient norm; 0: any"},
    {"skips-max", KIND_COUNT, AT(skips_max), 0, 1e9,
     "N: stop with an error after N skipped steps in a row; 0: never"},
    {"seed", KIND_SEED, AT(seed), 0, 0, "N: of weights, data order and sampling"},
    {"val-every", KIND_COUNT, AT(val_every), 0, 1e9, "N: steps between validations; 0: never"},
    {"val-batches", KIND_COUNT, AT(val_batches), 1, 1e6, "N: micro-batches of a validation"},
    {"log-every", KIND_COUNT, AT(log_every), 1, 1e9, "N: steps between lines of a plain log"},
    {"sample", KIND_COUNT, AT(sample), 0, 1e6, "N: tokens to generate after training"},
    {"temperature", KIND_REAL, AT(temperature), 0, 100, "X: of sampling; 0: the likeliest"},
    {"top-k", KIND_COUNT, AT(top_k), 0, 65536, "N: sample from the N likeliest; 0: from all"},
    {"prompt", KIND_TEXT, AT(prompt), 0, 0, "TEXT: beginning of the sample"},
    {"csv", KIND_TEXT, AT(csv), 0, 0, "FILE: one line a step"},
    {"json", KIND_TEXT, AT(json), 0, 0,
     "FILE: settings, steps and memory; with --plan the plan, - for standard output"},
    {"trace", KIND_TEXT, AT(trace), 0, 0,
     "FILE: timeline of each rank, with the rank ahead of .json; see docs/timeline.md"},
    {"hang-directory", KIND_TEXT, AT(hang_directory), 0, 0,
     "DIR: last collectives of each rank, when one fails and at SIGUSR1; see docs/hang.md"},
    {"save", KIND_TEXT, AT(save), 0, 0,
     "DIR: checkpoints of the run, one at its end or when it is stopped"},
    {"save-every", KIND_COUNT, AT(save_every), 0, 1e9,
     "N: steps between checkpoints, written while training goes on; 0: at the end alone"},
    {"keep", KIND_COUNT, AT(keep), 0, 1e9, "N: newest checkpoints that are kept; 0: all"},
    {"reflink", KIND_FLAG, AT(reflink), 0, 0,
     "checkpoints and state on disk share blocks of the file system (XFS, Btrfs)"},
    {"resume", KIND_TEXT, AT(resume), 0, 0,
     "DIR[:NAME]: go on from its newest checkpoint, or from that one; any --ranks, --stage, types, "
     "tiers"},
    {"resume-if-any", KIND_TEXT, AT(resume_if_any), 0, 0,
     "DIR: likewise; begin anew where there is none yet"},
    {"data-changed", KIND_FLAG, AT(data_changed), 0, 0,
     "go on although --data is not what the checkpoint was trained on"},
    {"init-from", KIND_TEXT, AT(init_from), 0, 0,
     "FILE|DIR: begin with these weights (safetensors, or a checkpoint's)"},
    {"export", KIND_TEXT, AT(export_to), 0, 0,
     "DIR: weights at the end, as transformers reads them"},
    {"peak-tflops", KIND_REAL, AT(peak_tflops), 0, 1e6,
     "X: of one GPU at --dtype, from its data sheet; prints MFU"},
    {"losses-exact", KIND_FLAG, AT(losses_exact), 0, 0, "print losses and norms as hex floats"},
    {"plan", KIND_FLAG, AT(plan), 0, 0, "print the memory plan of a rank and exit"},
    {"memory", KIND_FLAG, AT(memory), 0, 0, "print planned and measured bytes at the end"},
    {"version", KIND_FLAG, AT(version), 0, 0, "print the library's version and exit"},
    {"help", KIND_FLAG, AT(help), 0, 0, "print this and exit; also -h"},
};

#endif
