/* Owns the state of a save under way, and what a checkpoint has of the run beside the engine's
 * state: how many samples were used of which data, and the seed. */
#include "gpt2_save.h"
#include "gpt2_weights.h"

#include "zero/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- options ---------------------------------------------------------------------------------- */

/* A directory that files can be made in; made where its parent exists. */
static bool make_directory(const char *option, const char *path, gpt2_error *error)
{
    if (path == NULL) {
        return true;
    }
    struct stat about;
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return gpt2_fail(error, "--%s %.300s: cannot make this directory: %s", option, path,
                         strerror(errno));
    }
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        return gpt2_fail(error, "--%s %.300s: it is no directory; give another name", option, path);
    }
    if (access(path, W_OK | X_OK) != 0) {
        return gpt2_fail(error, "--%s %.300s: cannot write there: %s", option, path,
                         strerror(errno));
    }
    return true;
}

bool gpt2_save_prepare(const gpt2_options *o, gpt2_error *error)
{
    if (o->save == NULL && o->save_every != 0) {
        return gpt2_fail(error, "--save-every %u needs a directory: give --save DIR",
                         o->save_every);
    }
    if (o->resume != NULL && o->resume_if_any != NULL) {
        return gpt2_fail(error, "--resume and --resume-if-any are both given; leave one out");
    }
    if (o->resume != NULL && o->init_from != NULL) {
        return gpt2_fail(error, "--resume continues a run, which --init-from begins; leave one "
                                "out, or give --resume-if-any");
    }
    return o->plan != 0 || (make_directory("save", o->save, error) &&
                            make_directory("export", o->export_to, error));
}

/* The text that a checkpoint has of the training data, behind the sizes. */
#define DATA_TEXT " data %llu tokens %016llx"

/* --- saving ----------------------------------------------------------------------------------- */

zero_status gpt2_saver_begin(gpt2_saver *self, const gpt2_progress *progress)
{
    char sizes[GPT2_SIZES_TEXT];
    gpt2_sizes_print(&self->net->config, sizes);
    const size_t used = strlen(sizes);
    (void)snprintf(sizes + used, sizeof sizes - used, DATA_TEXT,
                   (unsigned long long)self->data->train.count,
                   (unsigned long long)self->data->train_hash);
    zero_save_options save = zero_save_options_init();
    save.directory = self->options->save;
    save.keep = self->options->keep;
    save.reflink = self->options->reflink != 0;
    save.replace = 1; /* a run that went on from an older checkpoint comes to its steps again */
    save.params = progress->params;
    save.user = (zero_checkpoint_user){.data_position = progress->samples,
                                       .random_seed = self->options->seed,
                                       .bytes = sizes,
                                       .bytes_count = strlen(sizes)};
    TRY(zero_save_begin(self->net->engine, &save));
    self->begun = progress->steps;
    return ZERO_OK;
}

bool gpt2_saver_written(const gpt2_saver *self)
{
    zero_save_progress progress = zero_save_progress_init();
    return self->begun != 0 && zero_save_poll(self->net->engine, &progress) == ZERO_OK &&
           progress.written != 0;
}

zero_status gpt2_saver_end(gpt2_saver *self)
{
    if (self->begun == 0) {
        return ZERO_OK;
    }
    const uint32_t steps = self->begun;
    self->begun = 0;
    TRY(zero_save_end(self->net->engine));
    self->newest = steps;
    return ZERO_OK;
}

/* --- going on --------------------------------------------------------------------------------- */

static bool check_seed(const gpt2_options *o, const zero_load_report *report, gpt2_error *error)
{
    return report->random_seed == o->seed ||
           gpt2_fail(
               error, "this run has --seed %llu, and the checkpoint %.300s %llu; give --seed %llu",
               (unsigned long long)o->seed, report->folder, (unsigned long long)report->random_seed,
               (unsigned long long)report->random_seed);
}

/* Samples are chosen by the number of training tokens, so other data means other samples. A
 * checkpoint of an older program does not say what it was trained on. */
static bool check_data(const gpt2_options *o, const gpt2_data *data, const char *sizes,
                       const char *folder, gpt2_error *error)
{
    unsigned long long count = 0;
    unsigned long long hash = 0;
    const char *text = strstr(sizes, " data ");
    const bool known = text != NULL && sscanf(text, DATA_TEXT, &count, &hash) == 2;
    const bool same = count == data->train.count && hash == data->train_hash;
    return !known || same || o->data_changed != 0 ||
           gpt2_fail(error,
                     "%.300s has %llu tokens to train on (hash %016llx), and the checkpoint %.300s "
                     "is of %llu (hash %016llx); give the data as they were, or --data-changed",
                     o->data, (unsigned long long)data->train.count,
                     (unsigned long long)data->train_hash, folder, count, hash);
}

/* DIR, or DIR:NAME where there is no such file. */
static void split_name(const char *path, char *copy, size_t bytes, zero_load_options *load)
{
    struct stat about;
    (void)snprintf(copy, bytes, "%s", path);
    load->path = copy;
    char *colon = strrchr(copy, ':');
    if (colon != NULL && stat(copy, &about) != 0) {
        *colon = '\0';
        load->name = colon + 1;
    }
}

static zero_status resume(gpt2_net *net, const gpt2_options *o, const gpt2_data *data,
                          gpt2_start *start, gpt2_error *error)
{
    char path[4096];
    char sizes[GPT2_SIZES_TEXT];
    zero_load_options load = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    split_name(o->resume != NULL ? o->resume : o->resume_if_any, path, sizeof path, &load);
    load.reflink = o->reflink != 0;
    load.if_any = o->resume_if_any != NULL && load.name == NULL;
    TRY(gpt2_checkpoint_load(net, &load, &report, sizes, error));
    if (report.folder[0] == '\0') {
        return ZERO_OK;
    }
    if (!check_seed(o, &report, error) || !check_data(o, data, sizes, report.folder, error)) {
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    if (report.step > UINT32_MAX) {
        (void)gpt2_fail(error, "%.300s is of step %llu; this program counts to 2^32", report.folder,
                        (unsigned long long)report.step);
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    start->steps = (uint32_t)report.step;
    start->samples = report.data_position;
    start->ranks = report.world;
    (void)snprintf(start->folder, sizeof start->folder, "%s", report.folder);
    (void)snprintf(start->passed_over, sizeof start->passed_over, "%s", report.passed_over);
    return ZERO_OK;
}

zero_status gpt2_start_from(gpt2_net *net, zero_world *world, const gpt2_options *o,
                            const gpt2_data *data, gpt2_start *start, gpt2_error *error)
{
    memset(start, 0, sizeof *start);
    if (o->resume != NULL || o->resume_if_any != NULL) {
        TRY(resume(net, o, data, start, error));
    }
    return start->ranks == 0 && o->init_from != NULL
               ? gpt2_weights_load(net, world, o->init_from, error)
               : ZERO_OK;
}
