/* The reports of a run: a live line on a terminal, plain lines elsewhere, CSV and JSON files. Only
 * rank 0 has one. */
#ifndef GPT2_LOG_H
#define GPT2_LOG_H

#include "gpt2_file.h"
#include "gpt2_options.h"
#include "tools/live_line.h"
#include "zero/bottleneck.h"
#include "zero/plan.h"

typedef struct gpt2_step_row {
    uint32_t step;   /* from 1 */
    double loss;     /* mean over ranks and micro-steps, nats a token */
    double val_loss; /* NaN where there was no validation after this step */
    double norm;
    double lr;
    double loss_scale;
    bool skipped;
    double seconds;             /* of this step, validation not included */
    uint64_t tokens;            /* of this step, all ranks */
    uint64_t memory_bytes;      /* device memory of the library on this rank */
    uint64_t disk_bytes;        /* read and written on this rank since the step before */
    double waited_seconds;      /* of this step, by this rank, for the library */
    zero_bottleneck bottleneck; /* of this rank since the step before */
} gpt2_step_row;

typedef struct gpt2_log {
    const gpt2_options *options;
    gpt2_file csv;
    gpt2_file json;
    live_line *live; /* the caller's; NULL: standard output is no terminal */
    double started;
    double shown;          /* when the live line was last drawn */
    double seconds_a_step; /* smoothed */
    double waited_a_step;  /* seconds, smoothed alike */
    double disk_a_step;    /* bytes of this rank, smoothed alike */
    double val_loss;       /* the last one */
    uint32_t val_step;     /* in which it was measured */
    double flops_a_token;  /* of the model */
    double peak_flops;     /* a second, of all GPUs; 0: not known */
    uint32_t rows;         /* of this run */
    uint32_t json_rows;    /* in the file, those of runs before included */
    uint32_t resumed;      /* ranks of this run, if it goes on from a checkpoint */
} gpt2_log;

/* About the run as a whole. */
typedef struct gpt2_run_facts {
    uint32_t ranks;
    uint32_t local_ranks;
    uint32_t threads;
    const char *backend;
    const char *gather; /* path of parameters, and of gradients */
    const char *reduce;
    const char *disk;     /* how state on disk is reached; NULL: there is none */
    const char *isa;      /* instructions that compute */
    const char *products; /* code that multiplies matrices */
    uint32_t gpus;        /* of all hosts; 0: none */
    uint64_t parameters;
    uint32_t vocab;
    uint64_t train_tokens;
    uint64_t val_tokens;
    double bigram;           /* NaN: none */
    const char *resumed;     /* the checkpoint that it goes on from; NULL: none */
    const char *passed_over; /* why that is not the one that was saved last; empty: it is */
    uint32_t steps_done;     /* by then */
    uint32_t saved_ranks;    /* that saved it */
} gpt2_run_facts;

/* Prints the settings and opens the files. A run that goes on continues those of the run before:
 * lines up to the checkpoint's step stay, the others are made again. A call that returns false says
 * what could not be written where; CSV and JSON files are complete after each call. */
bool gpt2_log_open(gpt2_log *log, const gpt2_options *options, const gpt2_run_facts *facts,
                   gpt2_error *error);
/* A log that was not opened, which can be closed. live: the line that shows what the program is
 * doing; NULL: none. */
gpt2_log gpt2_log_none(const gpt2_options *options, live_line *live);
bool gpt2_log_step(gpt2_log *log, const gpt2_step_row *row, gpt2_error *error);
/* One line of text, above the live line. */
__attribute__((format(printf, 2, 3))) void gpt2_log_line(gpt2_log *log, const char *format, ...);
/* A warning of any rank's, whose log is NULL on all but one; text: NULL for none. */
void gpt2_log_warning(gpt2_log *log, uint32_t rank, const char *text);
/* The table that --memory prints, and its JSON. own_bytes: memory that is not the library's. */
bool gpt2_log_memory(gpt2_log *log, const zero_memory *planned, const zero_memory *measured,
                     uint64_t own_bytes, gpt2_error *error);
/* Ends the files. ended_by: "steps", the signal that stopped it, or "error". */
bool gpt2_log_close(gpt2_log *log, const char *ended_by, gpt2_error *error);

/* The line that describes the model, and one if the data's vocabulary is not the preset's.
 * columns: see live_line_wrap. */
void gpt2_print_model(const gpt2_options *options, unsigned columns, uint32_t vocab,
                      uint64_t parameters);

/* False: standard output could not be written, and why. */
bool gpt2_flush_output(gpt2_error *error);

/* Seconds of a monotonic clock. */
double gpt2_seconds(void);

/* `bytes` as "12.3 MiB". */
typedef struct gpt2_size_text {
    char text[24];
} gpt2_size_text;
gpt2_size_text gpt2_size(uint64_t bytes);

#endif
