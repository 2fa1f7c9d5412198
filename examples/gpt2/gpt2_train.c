/* Training on one rank: its model, its steps, its checkpoints, and what it prints. */
#include "gpt2_hang.h"
#include "gpt2_job.h"
#include "gpt2_log.h"
#include "gpt2_net.h"
#include "gpt2_sample.h"
#include "gpt2_save.h"
#include "gpt2_schedule.h"
#include "gpt2_stop.h"
#include "gpt2_weights.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* The message that ranks exchange about a step. */
typedef struct rank_word {
    double value;
    int32_t stop;    /* the signal that this rank got; 0: none */
    int32_t written; /* 1: this rank has written its part of the save under way */
} rank_word;

/* One rank's training. */
typedef struct trainer {
    gpt2_job *job;
    zero_world *world;
    uint32_t rank;
    uint32_t ranks;
    uint32_t samples; /* of a micro-batch on this rank */
    gpt2_net net;
    int32_t *tokens;
    int32_t *targets;
    rank_word *gathered; /* one a rank */
    int stop;            /* the signal that all ranks stop for; 0: none */
    bool written;        /* all ranks have written the save under way */
    gpt2_start start;    /* of this run: at 0, or at a checkpoint */
    uint64_t samples_done;
    zero_step_params params; /* the last step's; zeroed before the first one */
    gpt2_saver saver;
    uint32_t skips;   /* skipped steps since the last one that was not */
    zero_stats stats; /* when the last step ended */
    gpt2_log *log;    /* rank 0 only */
    gpt2_hang_engine asked;
} trainer;

static zero_status own_failure(gpt2_job *job, const gpt2_error *error, zero_status status)
{
    if (error->text[0] != '\0') {
        (void)pthread_mutex_lock(&job->lock);
        if (job->error.text[0] == '\0') {
            job->error = *error;
        }
        (void)pthread_mutex_unlock(&job->lock);
    }
    return status;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* The engine's calls write what they failed in; the world's leave that to the caller. */
static zero_status report_hang(const trainer *self, zero_status status)
{
    gpt2_error error = {""};
    if (self->job->options.hang_directory == NULL ||
        (status != ZERO_ERR_TIMEOUT && status != ZERO_ERR_COMM && status != ZERO_ERR_MISMATCH)) {
        return status;
    }
    (void)gpt2_fail(&error, "%s", zero_last_error()->message);
    if (zero_engine_collectives_write(self->net.engine, NULL) != ZERO_OK) {
        (void)fprintf(stderr, "gpt2_train: %s\n", zero_last_error()->message);
    }
    return own_failure(self->job, &error, status);
}

/* Mean of every rank's value, added in rank order. The ranks also exchange whether one got a
 * signal, so that all of them stop after the same step, and whether a save is written. */
static zero_status mean_over_ranks(trainer *self, double value, double *mean)
{
    const rank_word own = {
        .value = value, .stop = gpt2_stop_asked(), .written = gpt2_saver_written(&self->saver)};
    TRY(report_hang(self, zero_world_gather(self->world, &own, self->gathered, sizeof own)));
    double total = 0;
    self->written = true;
    for (uint32_t r = 0; r < self->ranks; r++) {
        total += self->gathered[r].value;
        self->stop = self->stop != 0 ? self->stop : self->gathered[r].stop;
        self->written = self->written && self->gathered[r].written != 0;
    }
    *mean = total / self->ranks;
    return ZERO_OK;
}

/* This rank's batch of a micro-step: samples are numbered over steps, micro-steps and ranks. */
static zero_status training_batch(trainer *self, uint32_t micro, gpt2_batch *batch)
{
    const gpt2_options *o = &self->job->options;
    const uint64_t first =
        self->samples_done + ((uint64_t)micro * self->ranks + self->rank) * self->samples;
    gpt2_error error = {""};
    for (uint32_t s = 0; s < self->samples; s++) {
        if (!gpt2_data_sample(&self->job->data, o->seed, first + s, o->seq,
                              self->tokens + (size_t)s * o->seq, self->targets + (size_t)s * o->seq,
                              &error)) {
            return own_failure(self->job, &error, ZERO_ERR_IO);
        }
    }
    *batch = (gpt2_batch){self->tokens, self->targets, self->samples, o->seq};
    return ZERO_OK;
}

static zero_status micro_step(trainer *self, uint32_t micro, double *loss, float *scale)
{
    gpt2_batch batch;
    zero_engine *engine = self->net.engine;
    TRY(training_batch(self, micro, &batch));
    const bool last = micro + 1 == self->job->options.micro_steps;
    TRY(zero_micro_begin(engine, last ? ZERO_MICRO_LAST : ZERO_MICRO_EARLIER));
    TRY(gpt2_net_forward(&self->net, &batch, ZERO_PASS_FORWARD));
    TRY(zero_loss_scale(engine, scale));
    TRY(gpt2_net_backward(&self->net, *scale));
    TRY(zero_micro_end(engine));
    return gpt2_net_loss(&self->net, loss);
}

/* Time that this rank's thread waited in the library. */
static uint64_t waited_ns(const zero_stats *stats)
{
    return stats->acquire_wait_ns + stats->grad_wait_ns + stats->step_wait_ns;
}

static zero_status train_step(trainer *self, uint32_t step, gpt2_step_row *row)
{
    const gpt2_options *o = &self->job->options;
    const double started = gpt2_seconds();
    zero_stats begun = zero_stats_init();
    zero_stats stats = zero_stats_init();
    zero_bottleneck_report report = zero_bottleneck_report_init();
    zero_step_result result = zero_step_result_init();
    double own = 0;
    float scale = 1;
    TRY(zero_engine_stats(self->net.engine, &begun));
    row->lr = gpt2_learning_rate(o, step);
    self->params = gpt2_step_params(o, row->lr);
    if (o->tuning.speculative_step != 0) {
        TRY(zero_step_predict(self->net.engine, &self->params));
    }
    for (uint32_t micro = 0; micro < o->micro_steps; micro++) {
        double loss = 0;
        TRY(micro_step(self, micro, &loss, &scale));
        own += loss / o->micro_steps;
    }
    TRY(zero_step(self->net.engine, &self->params, self->net.stream));
    TRY(mean_over_ranks(self, own, &row->loss));
    TRY(zero_step_wait(self->net.engine, &result));
    self->samples_done += o->batch;
    row->step = step + 1;
    row->val_loss = (double)NAN;
    row->norm = result.norm;
    row->skipped = result.skipped != 0;
    self->skips = row->skipped ? self->skips + 1 : 0;
    row->loss_scale = (double)scale;
    row->seconds = gpt2_seconds() - started;
    row->tokens = (uint64_t)o->batch * o->seq;
    TRY(zero_engine_stats(self->net.engine, &stats));
    TRY(zero_stats_bottleneck(&self->stats, &stats, &report));
    row->memory_bytes = stats.device_bytes;
    row->disk_bytes = stats.disk_read_bytes + stats.disk_write_bytes - self->stats.disk_read_bytes -
                      self->stats.disk_write_bytes;
    row->waited_seconds = 1e-9 * (double)(waited_ns(&stats) - waited_ns(&begun));
    row->bottleneck = report.bottleneck;
    self->stats = stats;
    return ZERO_OK;
}

static zero_status validate(trainer *self, double *loss)
{
    const gpt2_options *o = &self->job->options;
    const uint64_t global = (uint64_t)self->samples * self->ranks;
    double own = 0;
    for (uint32_t b = 0; b < o->val_batches; b++) {
        for (uint32_t s = 0; s < self->samples; s++) {
            const uint64_t index = b * global + (uint64_t)self->rank * self->samples + s;
            gpt2_error error = {""};
            if (!gpt2_data_validation(&self->job->data, index, o->val_batches * global, o->seq,
                                      self->tokens + (size_t)s * o->seq,
                                      self->targets + (size_t)s * o->seq, &error)) {
                return own_failure(self->job, &error, ZERO_ERR_IO);
            }
        }
        const gpt2_batch batch = {self->tokens, self->targets, self->samples, o->seq};
        double part = 0;
        TRY(gpt2_net_forward(&self->net, &batch, ZERO_PASS_EVAL));
        TRY(gpt2_net_loss(&self->net, &part));
        own += part / o->val_batches;
    }
    return mean_over_ranks(self, own, loss);
}

/* Validation reads parameters only, so all other roles can be evicted meanwhile. */
static zero_status validate_between_steps(trainer *self, double *loss)
{
    zero_engine *engine = self->net.engine;
    const zero_tier tier = self->job->options.evict;
    if (tier == ZERO_TIER_DEVICE) {
        return validate(self, loss);
    }
    TRY(zero_engine_evict(engine, ZERO_EVICT_ALL, tier));
    TRY(validate(self, loss));
    return zero_engine_restore(engine);
}

/* Rank 0's, NULL elsewhere. */
static live_line *live_of(const trainer *self)
{
    return self->log != NULL ? self->log->live : NULL;
}

static const char *stop_name(int stop)
{
    return stop == SIGINT ? "SIGINT" : "SIGTERM";
}

/* Gradients that stay non-finite for so many steps will not recover: weights or data are at fault.
 */
static zero_status check_skips(const trainer *self, uint32_t step)
{
    const uint32_t most = self->job->options.skips_max;
    gpt2_error error = {""};
    if (most == 0 || self->skips < most) {
        return ZERO_OK;
    }
    (void)gpt2_fail(&error,
                    "steps %u to %u were skipped, their gradients not finite, and nothing was "
                    "learned in them; lower --lr or take another --dtype (--skips-max 0 goes on)",
                    step + 2 - self->skips, step + 1);
    return own_failure(self->job, &error, ZERO_ERR_STATE);
}

/* --- checkpoints ------------------------------------------------------------------------------ */

/* A save that cannot be written, for example because the disk is full, does not end the run: the
 * checkpoints before it are there. */
static zero_status survive(trainer *self, zero_status status)
{
    if (status != ZERO_ERR_IO) {
        return status;
    }
    if (self->log != NULL) {
        gpt2_log_line(self->log, "warning: not saved, training goes on: %s",
                      zero_last_error()->message);
    }
    return ZERO_OK;
}

/* The save under way, if there is one. */
static zero_status end_save(trainer *self)
{
    const uint32_t steps = self->saver.begun;
    TRY(gpt2_saver_end(&self->saver));
    if (steps != 0 && self->log != NULL) {
        gpt2_log_line(self->log, "saved step %u in %s", steps, self->job->options.save);
    }
    return ZERO_OK;
}

static zero_status begin_save(trainer *self, uint32_t steps)
{
    const bool stepped = self->params.struct_bytes != 0;
    const gpt2_progress progress = {steps, self->samples_done, stepped ? &self->params : NULL};
    return gpt2_saver_begin(&self->saver, &progress);
}

/* After each step: ends the save that all ranks have written, and begins the one that is due. */
static zero_status save_between_steps(trainer *self, uint32_t done)
{
    const gpt2_options *o = &self->job->options;
    const bool due = o->save_every != 0 && done % o->save_every == 0 && done < o->steps;
    if (self->written || due) {
        TRY(survive(self, end_save(self)));
    }
    return due && self->stop == 0 ? survive(self, begin_save(self, done)) : ZERO_OK;
}

/* The end of a run, by a signal too. */
static zero_status save_last(trainer *self, uint32_t done)
{
    TRY(survive(self, end_save(self)));
    if (self->job->options.save == NULL || self->saver.newest == done) {
        return ZERO_OK;
    }
    live_line_say(live_of(self), "step %4u/%u  saving", done, self->job->options.steps);
    TRY(begin_save(self, done));
    return end_save(self);
}

/* --- all steps -------------------------------------------------------------------------------- */

static zero_status train(trainer *self)
{
    const gpt2_options *o = &self->job->options;
    uint32_t done = self->start.steps;
    while (done < o->steps && self->stop == 0) {
        gpt2_step_row row;
        gpt2_error error = {""};
        const uint32_t step = done++;
        TRY(train_step(self, step, &row));
        const bool due = o->val_every != 0 && (done % o->val_every == 0 || done == o->steps);
        if (due && self->stop == 0) {
            live_line_say(live_of(self), "step %4u/%u  validating", done, o->steps);
            TRY(validate_between_steps(self, &row.val_loss));
        }
        if (self->log != NULL && !gpt2_log_step(self->log, &row, &error)) {
            return own_failure(self->job, &error, ZERO_ERR_IO);
        }
        TRY(check_skips(self, step));
        TRY(save_between_steps(self, done));
    }
    TRY(save_last(self, done));
    TRY(zero_engine_stats(self->net.engine, &self->stats));
    if (self->log != NULL && o->tuning.speculative_step != 0) {
        gpt2_log_line(self->log, "updated during backward: %llu steps, and %llu once more, clipped",
                      (unsigned long long)self->stats.steps_speculative,
                      (unsigned long long)self->stats.steps_redone);
    }
    if (self->log != NULL && self->stop != 0) {
        gpt2_log_line(self->log, "stopped by %s after step %u of %u", stop_name(self->stop), done,
                      o->steps);
    }
    return ZERO_OK;
}

/* --- a rank ----------------------------------------------------------------------------------- */

static zero_status start_log(trainer *self)
{
    const gpt2_job *job = self->job;
    zero_path gather = zero_path_init();
    zero_path reduce = zero_path_init();
    zero_disk_path disk = zero_disk_path_init();
    TRY(zero_engine_path(self->net.engine, ZERO_TRAFFIC_GATHER, &gather));
    TRY(zero_engine_path(self->net.engine, ZERO_TRAFFIC_REDUCE, &reduce));
    TRY(zero_engine_disk_path(self->net.engine, &disk));
    gpt2_run_facts facts = {
        .ranks = self->ranks,
        .local_ranks = zero_world_local_size(self->world),
        .threads = job->threads,
        .backend = zero_world_backend(self->world),
        .gather = gather.text,
        .reduce = reduce.text,
        .disk = disk.backend != ZERO_IO_BACKEND_NONE ? disk.text : NULL,
        .isa = job->backend->machine(self->net.space),
        .products = job->backend->products(self->net.space),
        .parameters = gpt2_parameter_count(&job->config),
        .vocab = job->config.vocab,
        .train_tokens = job->data.train.count,
        .val_tokens = job->data.validation.count,
        .bigram = job->bigram,
        .resumed = self->start.ranks != 0 ? self->start.folder : NULL,
        .passed_over = self->start.passed_over,
        .steps_done = self->start.steps,
        .saved_ranks = self->start.ranks,
    };
    const uint32_t local_ranks = facts.local_ranks;
    const uint32_t devices = job->backend->devices();
    facts.gpus = self->ranks / local_ranks * (devices < local_ranks ? devices : local_ranks);
    gpt2_error error = {""};
    if (!gpt2_log_open(self->log, &job->options, &facts, &error)) {
        return own_failure(self->job, &error, ZERO_ERR_IO);
    }
    return ZERO_OK;
}

/* Set where the run begins: at its initial values, at weights from a file, or at a checkpoint. */
static zero_status set_start(trainer *self)
{
    const gpt2_options *o = &self->job->options;
    gpt2_error error = {""};
    const zero_status status =
        gpt2_start_from(&self->net, self->world, o, &self->job->data, &self->start, &error);
    self->samples_done = self->start.samples;
    self->saver = (gpt2_saver){.options = o, .net = &self->net, .data = &self->job->data};
    return own_failure(self->job, &error, status);
}

static zero_status create_trainer(trainer *self)
{
    gpt2_job *job = self->job;
    const gpt2_options *o = &job->options;
    const gpt2_net_setup setup = {.config = job->config,
                                  .options = gpt2_job_engine(job),
                                  .tuning = gpt2_job_tuning(job),
                                  .backend = job->backend,
                                  .dtype = o->dtype,
                                  .samples = self->samples,
                                  .recompute = o->recompute != 0,
                                  .tf32 = o->tf32 != 0,
                                  .products = o->products,
                                  .seed = o->seed};
    TRY(gpt2_net_create(&self->net, self->world, &setup));
    gpt2_log_warning(self->log, self->rank, job->backend->warning(self->net.space));
    if (o->hang_directory != NULL) {
        self->asked.engine = self->net.engine;
        gpt2_hang_add(&self->asked);
    }
    const size_t tokens = (size_t)self->samples * o->seq;
    self->tokens = malloc(tokens * sizeof *self->tokens);
    self->targets = malloc(tokens * sizeof *self->targets);
    self->gathered = malloc(self->ranks * sizeof *self->gathered);
    if (self->tokens == NULL || self->targets == NULL || self->gathered == NULL) {
        gpt2_error error = {""};
        (void)gpt2_fail(&error, "no memory for a batch of %zu tokens", tokens);
        return own_failure(job, &error, ZERO_ERR_OUT_OF_MEMORY);
    }
    TRY(set_start(self));
    return self->log != NULL ? start_log(self) : ZERO_OK;
}

/* Between two tokens; see gpt2_sampling. */
static zero_status is_sampling_over(void *user, bool *over)
{
    trainer *self = user;
    double unused = 0;
    TRY(mean_over_ranks(self, 0, &unused));
    *over = self->stop != 0;
    return ZERO_OK;
}

static zero_status sample(trainer *self)
{
    const gpt2_options *o = &self->job->options;
    const gpt2_sampling how = {.prompt = o->prompt,
                               .count = o->sample,
                               .temperature = o->temperature,
                               .top_k = o->top_k,
                               .seed = o->seed,
                               .text = self->job->data.text,
                               .is_over = is_sampling_over,
                               .user = self,
                               .file = self->log != NULL ? stdout : NULL};
    gpt2_error error = {""};
    live_line_clear(live_of(self));
    if (self->log != NULL) {
        printf("\n--- %u tokens generated at temperature %g ---\n", o->sample, o->temperature);
    }
    const zero_status status = gpt2_sample(&self->net, &how, &error);
    if (self->log != NULL) {
        printf("\n---\n");
    }
    return own_failure(self->job, &error, status);
}

static zero_status finish(trainer *self)
{
    if (self->job->options.export_to != NULL && self->stop == 0) {
        gpt2_error error = {""};
        const zero_status status =
            gpt2_weights_export(&self->net, self->world, self->job->options.export_to, &error);
        TRY(own_failure(self->job, &error, status));
    }
    if (self->job->options.sample > 0 && self->stop == 0) {
        TRY(sample(self));
    }
    if (self->log != NULL) {
        zero_memory planned = zero_memory_init();
        zero_memory measured = zero_memory_init();
        TRY(zero_plan_memory(zero_engine_plan(self->net.engine), &planned));
        TRY(zero_engine_memory(self->net.engine, &measured));
        gpt2_error error = {""};
        if (!gpt2_log_memory(self->log, &planned, &measured, self->net.bytes, &error)) {
            return own_failure(self->job, &error, ZERO_ERR_IO);
        }
    }
    return ZERO_OK;
}

/* The files are complete before any rank ends, since launchers kill the others once one ends with
 * an exit status other than 0. */
static zero_status close_log(trainer *self, gpt2_log *log, zero_status status)
{
    gpt2_job *job = self->job;
    gpt2_error error = {""};
    const char *by = status != ZERO_OK ? "error"
                     : self->stop != 0 ? stop_name(self->stop)
                                       : "steps";
    if (!gpt2_log_close(log, by, &error) && status == ZERO_OK) {
        status = own_failure(job, &error, ZERO_ERR_IO);
    }
    if (status == ZERO_OK && self->stop != 0) {
        (void)pthread_mutex_lock(&job->lock);
        job->stop = self->stop;
        (void)pthread_mutex_unlock(&job->lock);
        status = zero_world_barrier(self->world);
    }
    return status;
}

static zero_status write_trace(trainer *self)
{
    char path[4096];
    gpt2_error error = {""};
    if (self->job->options.trace == NULL) {
        return ZERO_OK;
    }
    if (!gpt2_trace_path(&self->job->options, self->rank, path, sizeof path)) {
        (void)gpt2_fail(&error, "--trace is longer than a path may be; give a shorter one");
        return own_failure(self->job, &error, ZERO_ERR_INVALID_ARGUMENT);
    }
    return zero_engine_trace(self->net.engine, path);
}

zero_status gpt2_train_rank(zero_world *world, void *user)
{
    gpt2_job *job = user;
    /* mpirun gives its ranks a terminal of its own, wherever its own output goes. */
    if (job->launched && zero_world_rank(world) == 0 &&
        strcmp(zero_world_backend(world), "mpi") != 0) {
        job->live = live_line_open(stdout);
    }
    gpt2_log log = gpt2_log_none(&job->options, job->live);
    trainer self = {.job = job,
                    .stats = zero_stats_init(),
                    .world = world,
                    .rank = zero_world_rank(world),
                    .ranks = zero_world_size(world)};
    self.samples = job->options.batch / (job->options.micro_steps * self.ranks);
    self.log = self.rank == 0 ? &log : NULL;
    live_line_say(live_of(&self), "initial values");
    zero_status status = create_trainer(&self);
    if (status == ZERO_OK) {
        status = train(&self);
    }
    if (status == ZERO_OK) {
        status = finish(&self);
    }
    if (status != ZERO_OK) {
        status = own_failure(job, &self.net.error, status);
    }
    status = status == ZERO_OK ? write_trace(&self) : status;
    status = close_log(&self, &log, status);
    gpt2_hang_remove(&self.asked);
    gpt2_net_destroy(&self.net);
    free(self.tokens);
    free(self.targets);
    free(self.gathered);
    return status;
}
