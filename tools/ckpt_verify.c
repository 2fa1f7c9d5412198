/* Owns `zero ckpt verify`: threads that read all of a checkpoint, each a run of pieces at a time.
 * Invariant: every piece of every tensor is in one run. */
#include "ckpt.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "core/host.h"
#include "live_line.h"

#define RUN_BYTES ((uint64_t)32 << 20)
/* Fewer leave a disk idle: they read past the page cache, so that nothing else is put out of it. */
enum { THREADS_MIN = 4, THREADS_MAX = 8, BAR_WIDTH = 24, LISTED_MAX = 100 };
#define DRAW_SECONDS 0.1

typedef struct verify {
    const char *folder;
    const zi_checkpoint_map *map;
    uint64_t bytes; /* of all tensors */
    double began;
    live_line *live;
    pthread_mutex_t lock; /* guards all below */
    int role;             /* of the next run's begin, as the next two */
    uint32_t tensor;
    uint64_t element;
    uint64_t done;   /* bytes */
    double drawn;    /* when */
    json_t *damaged; /* the first LISTED_MAX, as the library says it */
    uint64_t damaged_count;
} verify;

/* A thread, with a reader of its own. */
typedef struct verify_thread {
    verify *all;
    zi_source *reader;
    pthread_t thread;
} verify_thread;

/* ---- runs of pieces ---- */

/* With the lock: the next run, in the order of the files. */
static bool take_run(verify *v, zi_source_range *run)
{
    for (; v->role < ZI_SHARD_ROLES; v->role++, v->tensor = 0) {
        for (; v->tensor < v->map->tensor_count; v->tensor++, v->element = 0) {
            const zi_checkpoint_tensor *tensor = &v->map->tensors[v->tensor];
            if (!ckpt_has_role(tensor, v->role) || v->element == tensor->count) {
                continue;
            }
            const uint64_t most =
                zi_codec_elements(zi_saved_codec(tensor, (zero_role)v->role), RUN_BYTES);
            const uint64_t left = tensor->count - v->element;
            const zi_checkpoint_piece last =
                zi_checkpoint_piece_at(tensor, v->element + (left < most ? left : most) - 1);
            *run = (zi_source_range){.tensor = v->tensor,
                                     .role = (zero_role)v->role,
                                     .first = v->element,
                                     .count = last.first + last.count - v->element,
                                     .direct = true};
            v->element += run->count;
            return true;
        }
    }
    return false;
}

static bool next_run(verify *v, zi_source_range *run)
{
    (void)pthread_mutex_lock(&v->lock);
    const bool found = take_run(v, run);
    (void)pthread_mutex_unlock(&v->lock);
    return found;
}

/* With the lock. */
static void draw(verify *v, double now)
{
    char amount[CKPT_TEXT_BYTES];
    const double share = (double)v->done / (double)v->bytes;
    const double speed = (double)v->done / (now - v->began);
    const int filled = (int)(share * BAR_WIDTH);
    live_field fields[4] = {{.drop = 1}, {.drop = 0}, {.drop = 2}, {.drop = 3}};
    (void)snprintf(fields[0].text, LIVE_FIELD_BYTES, "[%.*s%.*s]", filled,
                   "########################", BAR_WIDTH - filled, "........................");
    (void)snprintf(fields[1].text, LIVE_FIELD_BYTES, "%3.0f %%", share * 100);
    (void)snprintf(fields[2].text, LIVE_FIELD_BYTES, "%s/s", ckpt_amount((uint64_t)speed, amount));
    (void)snprintf(fields[3].text, LIVE_FIELD_BYTES, "%.0f s left",
                   (double)(v->bytes - v->done) / speed);
    live_line_show(v->live, fields, 4);
    v->drawn = now;
}

static void count_bytes(void *user, uint64_t bytes)
{
    verify *v = user;
    (void)pthread_mutex_lock(&v->lock);
    v->done += bytes;
    const double now = bench_now();
    if (v->live != NULL && now - v->drawn >= DRAW_SECONDS) {
        draw(v, now);
    }
    (void)pthread_mutex_unlock(&v->lock);
}

static void note_damage(verify *v, const char *text)
{
    (void)pthread_mutex_lock(&v->lock);
    if (v->damaged_count++ < LISTED_MAX) {
        (void)json_array_append_new(v->damaged, json_string_nocheck(text));
    }
    (void)pthread_mutex_unlock(&v->lock);
}

static void *check_runs(void *user)
{
    verify_thread *self = user;
    zi_source_range run;
    while (next_run(self->all, &run)) {
        if (zi_source_check_range(self->reader, &run, count_bytes, self->all) != ZERO_OK) {
            note_damage(self->all, zero_last_error()->message);
        }
    }
    return NULL;
}

/* ---- all of it ---- */

/* The calling thread is one of `count`; those that cannot be had are done without. */
static void check_all(verify *v, zi_source *reader, uint32_t count)
{
    verify_thread threads[THREADS_MAX] = {{.all = v, .reader = reader}};
    uint32_t started = 1;
    for (; started < count; started++) {
        verify_thread *next = &threads[started];
        next->all = v;
        if (zi_checkpoint_reader_open(v->folder, &next->reader) != ZERO_OK ||
            pthread_create(&next->thread, NULL, check_runs, next) != 0) {
            zi_source_close(next->reader);
            break;
        }
    }
    (void)check_runs(&threads[0]);
    for (uint32_t i = 1; i < started; i++) {
        (void)pthread_join(threads[i].thread, NULL);
        zi_source_close(threads[i].reader);
    }
}

static void say_damage(const verify *v)
{
    size_t i;
    const json_t *damage;
    char text[CKPT_NAME_BYTES];
    json_array_foreach(v->damaged, i, damage)
    {
        (void)bench_fail("%s", ckpt_name(json_string_value(damage), text));
    }
    if (v->damaged_count > LISTED_MAX) {
        (void)bench_fail("and %" PRIu64 " more", v->damaged_count - LISTED_MAX);
    }
}

static int report(const ckpt_line *line, const verify *v, double seconds)
{
    char amount[CKPT_TEXT_BYTES];
    char speed[CKPT_TEXT_BYTES];
    const double rate = seconds > 0 ? (double)v->done / seconds : 0;
    say_damage(v);
    if (ckpt_has_text(line)) {
        printf("%s: %s\n%s of %" PRIu32 " tensors in %" PRIu32 " files, %.1f s, %s/s\n", v->folder,
               v->damaged_count == 0 ? "whole" : "DAMAGED", ckpt_amount(v->done, amount),
               v->map->tensor_count, v->map->file_count, seconds,
               ckpt_amount((uint64_t)rate, speed));
    }
    const int failed =
        ckpt_put_json(line, json_pack("{s:s, s:b, s:O, s:I, s:I, s:f}", "folder", v->folder,
                                      "whole", v->damaged_count == 0, "damaged", v->damaged,
                                      "damaged_ranges", (json_int_t)v->damaged_count, "bytes",
                                      (json_int_t)v->done, "seconds", seconds));
    return ckpt_flush() || failed || v->damaged_count != 0;
}

static int verify_reader(const ckpt_line *line, const char *folder, zi_source *reader)
{
    verify v = {.folder = folder,
                .map = reader->map,
                .began = bench_now(),
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .damaged = json_array()};
    for (uint32_t i = 0; i < v.map->tensor_count; i++) {
        for (int r = 0; r < ZI_SHARD_ROLES; r++) {
            v.bytes += ckpt_tensor_bytes(&v.map->tensors[i], r);
        }
    }
    const uint64_t runs = v.bytes / RUN_BYTES + 1;
    const uint64_t cpus = zi_cpu_count();
    const uint64_t most = cpus < THREADS_MAX ? cpus : THREADS_MAX;
    const uint64_t threads = most > THREADS_MIN ? most : THREADS_MIN;
    /* Sums that are damaged say nothing about tensors. */
    if (zi_source_check_files(reader) != ZERO_OK) {
        note_damage(&v, zero_last_error()->message);
    } else {
        v.live = live_line_open(stderr);
        check_all(&v, reader, (uint32_t)(threads < runs ? threads : runs));
        live_line_close(v.live);
    }
    const int failed = report(line, &v, bench_now() - v.began);
    json_decref(v.damaged);
    return failed;
}

int ckpt_verify(const ckpt_line *line)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    zi_source *reader = NULL;
    int failed = ckpt_open(line->words[0], folder, &reader);
    if (failed == 0 && reader->manifest == NULL) {
        failed = bench_fail("%s has weights alone, without sums to compare with; `zero ckpt "
                            "import` makes a checkpoint of them",
                            folder);
    } else if (failed == 0) {
        failed = verify_reader(line, folder, reader);
    }
    zi_source_close(reader);
    return failed;
}
