/* gpt2_train: trains a GPT-2 whose parameters, gradients and optimizer state are sharded by
 * libzero.
 *
 * Ranks are threads of this process (--ranks) or the processes a launcher started; each runs
 * gpt2_train_rank with its own world. Whatever fails prints one line and ends every rank with
 * status 1; SIGINT and SIGTERM end every rank after the same step, with status 128 + signal. */
#include "gpt2_hang.h"
#include "gpt2_job.h"
#include "gpt2_log.h"
#include "gpt2_net.h"
#include "gpt2_plan.h"
#include "gpt2_save.h"
#include "gpt2_stop.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Spans of a timeline where --trace-events does not say how many: 16 MiB a rank. */
enum { TRACE_EVENTS = 1 << 18 };

zero_engine_options gpt2_job_engine(const gpt2_job *job)
{
    const gpt2_options *o = &job->options;
    zero_engine_options options = o->engine;
    options.disk_directories = o->disks;
    options.disk_directory_count = gpt2_options_disks(o);
    options.seed = o->seed;
    options.threads = job->threads;
    return options;
}

zero_tuning gpt2_job_tuning(const gpt2_job *job)
{
    zero_tuning tuning = job->options.tuning;
    if (job->options.engine.device == ZERO_DEVICE_CUDA && !job->launched &&
        tuning.transport == ZERO_TRANSPORT_DEFAULT) {
        tuning.transport = ZERO_TRANSPORT_PEER; /* also what --plan is to count */
    }
    tuning.hang_directory = job->options.hang_directory;
    if (job->options.trace != NULL && tuning.trace_events == 0) {
        tuning.trace_events = TRACE_EVENTS;
    }
    return tuning;
}

static int complain(const char *text)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "gpt2_train: %s\n", text);
    return 1;
}

/* The job's own failure if there was one, else the library's. */
static int complain_status(const gpt2_job *job)
{
    return complain(job->error.text[0] != '\0' ? job->error.text : zero_last_error()->message);
}

/* cpus: what a rank may use by default. */
static void set_threads(gpt2_job *job, uint32_t cpus)
{
    job->threads = job->options.threads;
    if (job->threads == 0) {
        job->threads = cpus < 1 ? 1 : cpus > 256 ? 256 : cpus;
    }
    if (job->backend != NULL) { /* a plan needs none */
        job->backend->use_threads(job->threads);
    }
}

static int print_plan(gpt2_job *job, uint32_t ranks)
{
    const zero_tuning tuning = gpt2_job_tuning(job);
    zero_engine_options options = gpt2_job_engine(job);
    options.tuning = &tuning;
    zero_model *model = NULL;
    zero_plan *plan = NULL;
    zero_status status = gpt2_net_describe(&job->config, job->options.dtype, &model);
    if (status == ZERO_OK) {
        status = zero_plan_create(model, &options, ranks, &plan);
    }
    zero_model_destroy(model);
    if (status != ZERO_OK) {
        return complain_status(job);
    }
    const bool good = gpt2_plan_report(&job->options, &job->config, plan, &job->error);
    zero_plan_destroy(plan);
    return good ? 0 : complain(job->error.text);
}

static int run_here(gpt2_job *job)
{
    const uint32_t ranks = job->options.ranks != 0 ? job->options.ranks : GPT2_RANKS_DEFAULT;
    if (!gpt2_options_check_ranks(&job->options, ranks, &job->error)) {
        return complain(job->error.text);
    }
    set_threads(job, zero_world_cpus(NULL) / ranks);
    if (job->options.plan != 0) {
        return print_plan(job, ranks);
    }
    return zero_world_run(ranks, 1000 * job->options.deadline, gpt2_train_rank, job) == ZERO_OK
               ? 0
               : complain_status(job);
}

static int run_launched(gpt2_job *job)
{
    const char *local_rank = getenv("LOCAL_RANK"); /* torchrun's */
    zero_world *world = NULL;
    /* On several hosts the world itself uses the GPU that is current. */
    if (local_rank != NULL && job->backend != NULL &&
        job->backend->prepare((uint32_t)strtoul(local_rank, NULL, 10), &job->error) != ZERO_OK) {
        return complain(job->error.text);
    }
    if (zero_world_create_launched(1000 * job->options.deadline, &world) != ZERO_OK) {
        return complain_status(job);
    }
    const bool first = zero_world_rank(world) == 0;
    int code = 0;
    set_threads(job, zero_world_cpus(world));
    if (!gpt2_options_check_ranks(&job->options, zero_world_size(world), &job->error)) {
        code = first ? complain(job->error.text) : 1;
    } else if (job->options.plan != 0) {
        code = first ? print_plan(job, zero_world_size(world)) : 0;
    } else if (gpt2_train_rank(world, job) != ZERO_OK) {
        code = complain_status(job);
        zero_world_abort(world);
    }
    zero_world_destroy(world);
    return code;
}

static int run_job(gpt2_job *job)
{
    const bool launched = zero_world_is_launched() != 0;
    job->launched = launched;
    if (launched && job->options.ranks != 0) {
        return complain("--ranks is for ranks in one process, but a launcher started this one; "
                        "leave --ranks out");
    }
    return launched ? run_launched(job) : run_here(job);
}

/* Print what --help and --version ask for; -1: the line asks for neither. */
static int answer(const gpt2_options *o, gpt2_error *error)
{
    if (o->help != 0) {
        gpt2_options_usage(stdout);
    } else if (o->version != 0) {
        printf("gpt2_train of libzero %s\n", zero_version());
    } else {
        return -1;
    }
    return gpt2_flush_output(error) ? 0 : complain(error->text);
}

/* Opens the data and chooses the vocabulary: that of --vocab, else the data's, else that of the
 * public models for a preset. */
static bool open_data(gpt2_job *job)
{
    const gpt2_options *o = &job->options;
    uint32_t vocab = o->vocab != 0 ? o->vocab : o->preset != NULL ? (uint32_t)GPT2_VOCAB : 256;
    if (o->data != NULL) {
        if (!gpt2_data_open(&job->data, o->data, o->val, o->vocab, &job->error)) {
            return false;
        }
        vocab = job->data.vocab;
        if (o->plan == 0 && (!gpt2_data_check(&job->data, o->seq, &job->error) ||
                             !gpt2_data_bigram(&job->data, &job->bigram, &job->error))) {
            return false;
        }
    }
    job->config = (gpt2_config){o->layers, o->heads, o->width, o->seq, vocab};
    return true;
}

int main(int argc, char **argv)
{
    static gpt2_job job = {.lock = PTHREAD_MUTEX_INITIALIZER, .data.files = {-1, -1}};
    const gpt2_options *o = &job.options;
    if (!gpt2_options_parse(&job.options, argc, argv, &job.error)) {
        return complain(job.error.text);
    }
    const int answered = answer(o, &job.error);
    if (answered >= 0) {
        return answered;
    }
    if (!gpt2_options_check_files(o, &job.error) || !gpt2_save_prepare(o, &job.error)) {
        return complain(job.error.text);
    }
    if (o->plan == 0) {
        job.backend = o->engine.device == ZERO_DEVICE_CUDA ? gpt2_cuda_backend(&job.error)
                                                           : gpt2_cpu_backend(&job.error);
        if (job.backend == NULL) {
            return complain(job.error.text);
        }
        if (job.backend->start != NULL) {
            job.backend->start(argv);
        }
        if (!zero_world_is_launched()) {
            job.live = live_line_open(stdout);
        }
    }
    gpt2_stop_install();
    if (o->hang_directory != NULL && !gpt2_hang_begin(&job.error)) {
        return complain(job.error.text);
    }
    live_line_say(job.live, "reading the data");
    const bool opened = open_data(&job);
    live_line_clear(job.live);
    int code = opened ? run_job(&job) : complain(job.error.text);
    live_line_close(job.live);
    gpt2_hang_end();
    gpt2_data_close(&job.data);
    if (code == 0 && job.stop != 0) {
        code = 128 + job.stop;
    }
    return code;
}
