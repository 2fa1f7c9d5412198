/* The command line of gpt2_train. */
#ifndef GPT2_OPTIONS_H
#define GPT2_OPTIONS_H

#include "gpt2_backend.h"
#include "gpt2_error.h"
#include "zero/options.h"
#include <stdint.h>

/* Directories that optimizer state on disk is striped over. */
enum { GPT2_DISKS_MAX = 16 };

typedef struct gpt2_options {
    const char *data;
    const char *val;
    const char *csv;
    const char *json;
    const char *trace; /* see gpt2_trace_path */
    const char *hang_directory;
    const char *prompt;
    const char *preset;
    const char *save;
    const char *resume; /* DIR or DIR:NAME */
    const char *resume_if_any;
    const char *init_from;
    const char *export_to;
    uint32_t save_every; /* 0: at the end alone */
    uint32_t keep;       /* 0: all */
    uint32_t reflink;
    uint32_t data_changed;
    uint32_t vocab; /* 0: by kind of file */
    uint32_t ranks; /* 0: not given */
    uint32_t deadline;
    uint32_t skips_max;         /* 0: any number */
    zero_engine_options engine; /* fields that this struct has too are not read */
    zero_tuning tuning;
    zero_dtype dtype;
    zero_tier evict;                   /* DEVICE: nothing is */
    const char *disks[GPT2_DISKS_MAX]; /* as many as are not NULL */
    uint32_t threads;                  /* 0: cores / ranks on this host */
    uint32_t layers;
    uint32_t heads;
    uint32_t width;
    uint32_t seq;
    uint32_t recompute;
    uint32_t tf32;
    gpt2_library products;
    double peak_tflops; /* of one GPU; 0: not given */
    uint32_t batch;
    uint32_t micro_steps;
    uint32_t steps;
    uint32_t warmup; /* default: 50, at most a tenth of steps */
    double lr;
    double min_lr; /* negative: lr / 10 */
    double weight_decay;
    double beta1;
    double beta2;
    double trust; /* LARS' */
    uint32_t adapt_undecayed;
    double clip;
    uint64_t seed;
    uint32_t val_every; /* 0: never */
    uint32_t val_batches;
    uint32_t log_every;
    uint32_t sample;
    double temperature;
    uint32_t top_k;
    uint32_t losses_exact;
    uint32_t plan;
    uint32_t memory;
    uint32_t help;
    uint32_t version;
} gpt2_options;

/* Ranks of this process by default. */
enum { GPT2_RANKS_DEFAULT = 4 };

/* Defaults, then the preset, then what the command line gives by name. False: `error` says what is
 * wrong with which option. */
bool gpt2_options_parse(gpt2_options *options, int argc, char **argv, gpt2_error *error);

/* Checks that need the number of ranks: is the batch divisible? A plan has no batch. */
bool gpt2_options_check_ranks(const gpt2_options *options, uint32_t ranks, gpt2_error *error);

/* Directories given. */
uint32_t gpt2_options_disks(const gpt2_options *options);

/* The file of a rank's timeline: --trace with the rank ahead of ".json", or at its end. False where
 * it is too long. */
bool gpt2_trace_path(const gpt2_options *options, uint32_t rank, char *path, size_t bytes);

/* False if a file that a run would write is also one of its other files. */
bool gpt2_options_check_files(const gpt2_options *options, gpt2_error *error);

/* One line an option, with its default. */
void gpt2_options_usage(FILE *file);

/* The settings as the members of a JSON object, without the braces. False: there is no memory for
 * all of them. */
bool gpt2_options_json(const gpt2_options *options, FILE *file);

#endif
