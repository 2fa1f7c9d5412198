/* Checkpoints of a run: which there are to be, how a save goes on beside training, and how a run
 * goes on from one. */
#ifndef GPT2_SAVE_H
#define GPT2_SAVE_H

#include "gpt2_data.h"
#include "gpt2_net.h"
#include "gpt2_options.h"

/* Are the options about checkpoints sound, and can their directories be written? Makes those of
 * --save and --export. */
bool gpt2_save_prepare(const gpt2_options *options, gpt2_error *error);

/* The saves of a run on one rank; all zero but for net, data and options at first. Every rank makes
 * the same calls. */
typedef struct gpt2_saver {
    const gpt2_options *options;
    const gpt2_data *data;
    gpt2_net *net;
    uint32_t newest; /* steps of the last checkpoint that is whole; 0: there is none */
    uint32_t begun;  /* steps of the save under way; 0: there is none */
} gpt2_saver;

/* The progress that is saved beside the engine's state. */
typedef struct gpt2_progress {
    uint32_t steps;
    uint64_t samples;               /* of the training data, over all ranks */
    const zero_step_params *params; /* the last step's; NULL: there was none in this run */
} gpt2_progress;

/* Begin to save; no save may be under way. Collective. */
zero_status gpt2_saver_begin(gpt2_saver *self, const gpt2_progress *progress);
/* Is a save under way, and has this rank written its part? Local. */
bool gpt2_saver_written(const gpt2_saver *self);
/* Wait for the save under way. After IO the run may go on. Collective. */
zero_status gpt2_saver_end(gpt2_saver *self);

/* The point at which a run goes on. */
typedef struct gpt2_start {
    uint32_t steps;
    uint64_t samples;
    uint32_t ranks;        /* that saved; 0: nothing was loaded */
    char folder[4096];     /* of the checkpoint */
    char passed_over[256]; /* why it is not the one that was saved last; empty: it is */
} gpt2_start;

/* Load what --resume, --resume-if-any or --init-from names, the last where the one before finds
 * nothing. A checkpoint of other sizes is refused, and one that was trained on other data unless
 * --data-changed is given. Collective. */
zero_status gpt2_start_from(gpt2_net *net, zero_world *world, const gpt2_options *options,
                            const gpt2_data *data, gpt2_start *start, gpt2_error *error);

#endif
