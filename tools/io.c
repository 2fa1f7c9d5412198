/* Owns `zero io`: reads its line, shares out the time, prints the table and the recommendation. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench_report.h"
#include "command_line.h"
#include "commands.h"
#include "io_rig.h"
#include "line_table.h"
#include "script.h"

#define SECONDS_DEFAULT 55
#define SECONDS_MIN 1
#define SECONDS_MAX 3600
#define SIZE_DEFAULT ((uint64_t)4 << 30)
#define SIZE_MIN ((uint64_t)1 << 20)
#define SIZE_MAX_BYTES ((uint64_t)1 << 50)
#define ALIGN 4096
/* Shares of the time: filling the file at most, then the settings; the rest goes to the recommended
 * one against fio's best, and to finding that. */
#define SHARE_FILL 0.4
#define SHARE_GRID 0.45
#define SAMPLE_MIN_S 0.01
/* An engine's I/O window, by default. */
#define WINDOW_EXTENTS 4
/* Of the fastest: what is given up at most for fewer bytes in flight. */
#define GIVEN_UP 0.05
#define IO_SEGMENT_SIZES 4
#define IO_DEPTHS 3
#define IO_SETTINGS (IO_SEGMENT_SIZES * IO_DEPTHS)

#define METRIC_SPEED "storage_ms_per_gb"
#define METRIC_RECOMMENDED "storage_recommended_ms_per_gb"
#define METRIC_DISK "storage_directory_ms_per_gb"

typedef struct io_line {
    const char *directories[IO_DIRECTORIES_MAX];
    uint32_t directory_count;
    uint64_t bytes;
    uint32_t seconds;
    const char *backend;
    const char *json_path;
} io_line;

static int print_help(void)
{
    printf(
        "usage: zero io DIRECTORY... [OPTIONS]\n\n"
        "Measures how fast a directory takes and gives bytes, as state on disk would use it:\n"
        "one file, read, written and both in turn, in segments of several sizes with several of\n"
        "them in flight; beside fio on the same file where fio is installed. Recommends a\n"
        "setting. The file has no name and is gone when the program ends.\n"
        "Several directories are measured one by one as an engine does, which gives the\n"
        "disk_weights that they amount to, then all together, striped by these, without fio.\n\n"
        "options:\n"
        "  --size BYTES   of the file, also with K, M, G behind it; default 4G\n"
        "  --io-backend NAME\n"
        "                 fixed, uring or posix; default: the best that works\n"
        "  --seconds N    to take, about; in [%d, %d], default %d\n"
        "  --json FILE    write a report as `zero bench --json` does; - for stdout, without\n"
        "                 the table\n"
        "  -h, --help     this text\n\n"
        "A GB is 1e9 bytes. A ratio above 1 means faster than fio. Disks that others use, or\n"
        "that are throttled, give figures that differ from run to run: the ratios are what\n"
        "lasts. Exit status: 0 when all was measured, else 1.\n",
        SECONDS_MIN, SECONDS_MAX, SECONDS_DEFAULT);
    return fflush(stdout) == 0 ? 0 : 1;
}

static int read_size(void *line, const char *name, const char *value)
{
    uint64_t *bytes = &((io_line *)line)->bytes;
    return command_line_bytes(value, bytes) && *bytes >= SIZE_MIN && *bytes <= SIZE_MAX_BYTES &&
                   *bytes % ALIGN == 0
               ? 0
               : bench_fail("--%s %s: expected bytes, a multiple of %d in [1M, 1048576G]", name,
                            value, ALIGN);
}

static int read_directory(void *words, const char *value)
{
    io_line *line = words;
    if (line->directory_count == IO_DIRECTORIES_MAX) {
        return bench_fail("%s: more than %d directories", value, IO_DIRECTORIES_MAX);
    }
    line->directories[line->directory_count++] = value;
    return 0;
}

static const line_row line_rows[] = {
    LINE_BY("size", read_size),
    LINE_NUMBER("seconds", LINE_U32, offsetof(io_line, seconds), SECONDS_MIN, SECONDS_MAX),
    LINE_VALUE("io-backend", LINE_TEXT, offsetof(io_line, backend)),
    LINE_VALUE("json", LINE_TEXT, offsetof(io_line, json_path)),
};

/* As line_read. */
static int read_line(int argc, char **argv, io_line *line)
{
    static const line_table table = {line_rows, sizeof line_rows / sizeof line_rows[0],
                                     read_directory};
    const int status = line_read(&table, argc, argv, line, NULL);
    return status == 0 && line->directory_count == 0
               ? bench_fail("which directory? see `zero io --help`")
               : status;
}

/* Measurements of all settings: [mix][setting]. */
typedef struct io_grid {
    io_setting settings[IO_SETTINGS];
    io_sample ours[IO_MIXES][IO_SETTINGS];
    io_sample fio[IO_MIXES][IO_SETTINGS];
    double best[IO_MIXES]; /* least seconds a GB */
    uint32_t recommended;  /* setting */
} io_grid;

/* A run: what is measured with, and how long it may take. */
typedef struct io_run {
    io_rig *rig;
    io_grid grid;
    io_rates rates;          /* of several directories */
    const char *fio_missing; /* NULL: fio is measured too */
    double end;              /* bench_now() when the time is over */
    double fio_extra;        /* seconds that a run of fio takes beyond its sample */
} io_run;

static void init_grid(io_grid *grid)
{
    static const uint64_t sizes[IO_SEGMENT_SIZES] = {256 << 10, 512 << 10, 1 << 20, 2 << 20};
    static const uint32_t depths[IO_DEPTHS] = {4, 8, 16};
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        grid->settings[i] = (io_setting){sizes[i / IO_DEPTHS], depths[i % IO_DEPTHS]};
    }
}

/* Mean over the mixes of the speed relative to the fastest; 0 for a setting that no engine can
 * have: it chooses how many accesses are in flight, not how long they are. */
static double score(const io_grid *grid, uint32_t setting)
{
    double sum = 0.0;
    for (uint32_t mix = 0; mix < IO_MIXES; mix++) {
        sum += grid->best[mix] / grid->ours[mix][setting].seconds_per_gb;
    }
    return grid->settings[setting].segment_bytes == IO_ACCESS_BYTES ? sum / IO_MIXES : 0.0;
}

/* Of the settings that are within a few percent of the fastest over all mixes, the one with the
 * fewest accesses in flight. */
static void recommend(io_grid *grid)
{
    for (uint32_t mix = 0; mix < IO_MIXES; mix++) {
        grid->best[mix] = grid->ours[mix][0].seconds_per_gb;
        for (uint32_t i = 1; i < IO_SETTINGS; i++) {
            const double own = grid->ours[mix][i].seconds_per_gb;
            grid->best[mix] = own < grid->best[mix] ? own : grid->best[mix];
        }
    }
    double best = 0.0;
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        best = score(grid, i) > best ? score(grid, i) : best;
    }
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        if (grid->settings[i].depth < least && score(grid, i) >= best * (1.0 - GIVEN_UP)) {
            least = grid->settings[i].depth;
            grid->recommended = i;
        }
    }
}

static int measure_fio(io_run *run, io_mix mix, const io_setting *setting, double seconds,
                       io_sample *sample)
{
    const io_fio_setting fio = io_fio_alike(setting);
    const char *reason = io_measure_fio(run->rig, mix, &fio, seconds, sample);
    return reason == NULL ? 0 : bench_fail("%s", reason);
}

static double at_least(double value, double least)
{
    return value > least ? value : least;
}

/* Every setting once, all mixes of a setting together, and fio right behind each unless starting it
 * takes more time than there is. */
static int measure_grid(io_run *run)
{
    const double share = run->fio_missing == NULL ? SHARE_GRID : 1.0;
    const double slot = (run->end - bench_now()) * share / (IO_SETTINGS * IO_MIXES);
    const bool with_fio = run->fio_missing == NULL && slot > run->fio_extra + 2 * SAMPLE_MIN_S;
    const double seconds = at_least(with_fio ? (slot - run->fio_extra) / 2 : slot, SAMPLE_MIN_S);
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        for (uint32_t mix = 0; mix < IO_MIXES; mix++) {
            const io_setting *setting = &run->grid.settings[i];
            if (io_measure(run->rig, (io_mix)mix, setting, seconds, &run->grid.ours[mix][i]) != 0 ||
                (with_fio &&
                 measure_fio(run, (io_mix)mix, setting, seconds, &run->grid.fio[mix][i]) != 0)) {
                return 1;
            }
        }
    }
    recommend(&run->grid);
    return 0;
}

/* fio's fastest setting of the grid, where that was measured; else the recommended one. */
static io_fio_setting first_of_fio(const io_grid *grid, uint32_t mix)
{
    uint32_t first = grid->recommended;
    for (uint32_t i = 0; i < IO_SETTINGS; i++) {
        if (grid->fio[mix][i].seconds_per_gb < grid->fio[mix][first].seconds_per_gb) {
            first = i;
        }
    }
    return io_fio_alike(&grid->settings[first]);
}

static int measure_finals(io_run *run, bench_report *report)
{
    if (run->fio_missing != NULL) {
        return bench_skip(report, IO_METRIC_FIO, NULL, run->fio_missing) ||
               bench_skip(report, IO_METRIC_CPU, NULL, run->fio_missing);
    }
    const io_setting *setting = &run->grid.settings[run->grid.recommended];
    for (uint32_t mix = 0; mix < IO_MIXES; mix++) {
        const double budget = (run->end - bench_now()) / (IO_MIXES - mix);
        const io_fio_setting first = first_of_fio(&run->grid, mix);
        if (io_measure_rounds(run->rig, (io_mix)mix, setting, &first, budget, report) != 0) {
            return 1;
        }
    }
    return 0;
}

/* Every setting's time as a row; its reference is the fastest setting of the mix. */
static int add_grid(const io_grid *grid, bench_report *report)
{
    for (uint32_t mix = 0; mix < IO_MIXES; mix++) {
        const double best_ms = grid->best[mix] * 1e3;
        for (uint32_t i = 0; i < IO_SETTINGS; i++) {
            char name[64];
            const double ms = grid->ours[mix][i].seconds_per_gb * 1e3;
            const bench_stat stat = {ms, ms, ms, 1};
            io_case_name((io_mix)mix, &grid->settings[i], name, sizeof name);
            if (bench_add(report, METRIC_SPEED, name, "ms/GB", &stat, best_ms) != 0 ||
                (i == grid->recommended &&
                 bench_add(report, METRIC_RECOMMENDED, name, "ms/GB", &stat, best_ms) != 0)) {
                return 1;
            }
        }
    }
    return 0;
}

/* Of several directories: each one's time as a row; its reference is the fastest one's. */
static int add_rates(const io_rates *rates, const io_line *line, bench_report *report)
{
    uint32_t fastest = 0;
    for (uint32_t i = 0; i < line->directory_count; i++) {
        fastest = rates->rate[i] > fastest ? rates->rate[i] : fastest;
    }
    for (uint32_t i = 0; i < line->directory_count && rates->measured; i++) {
        const double ms = 1e6 / rates->rate[i];
        const bench_stat stat = {ms, ms, ms, 1};
        if (bench_add(report, METRIC_DISK, line->directories[i], "ms/GB", &stat, 1e6 / fastest) !=
            0) {
            return 1;
        }
    }
    return 0;
}

/* Of an engine that keeps as much in flight: while one of the I/O window's extents is updated, the
 * others are on their way. */
static uint64_t extent_bytes(const io_setting *setting, uint32_t directory_count)
{
    const uint64_t flying = setting->segment_bytes * setting->depth;
    uint64_t bytes = IO_ACCESS_BYTES;
    while (bytes * (WINDOW_EXTENTS - 1) < flying * directory_count) {
        bytes *= 2;
    }
    return bytes;
}

static json_t *directories_json(const io_rates *rates, const io_facts *facts, const io_line *line)
{
    json_t *directories = json_array();
    for (uint32_t i = 0; i < line->directory_count; i++) {
        (void)json_array_append_new(
            directories,
            json_pack("{s:o, s:o, s:i, s:o}", "name", json_string_nocheck(line->directories[i]),
                      "mb_per_s", rates->measured ? json_integer(rates->rate[i]) : json_null(),
                      "sharers", (int)rates->sharers[i], "note",
                      json_string_nocheck(facts->notes[i])));
    }
    return directories;
}

/* Seconds and CPU time for a GB; null: not measured. */
static json_t *sample_json(const io_sample *sample)
{
    return sample->seconds_per_gb > 0.0 ? json_pack("{s:f, s:f}", "seconds", sample->seconds_per_gb,
                                                    "cpu_ms", sample->cpu_ms_per_gb)
                                        : json_null();
}

static json_t *grid_json(const io_grid *grid)
{
    json_t *rows = json_array();
    for (uint32_t mix = 0; mix < IO_MIXES; mix++) {
        for (uint32_t i = 0; i < IO_SETTINGS; i++) {
            (void)json_array_append_new(rows, json_pack("{s:s, s:I, s:i, s:o, s:o}", "mix",
                                                        io_mix_name((io_mix)mix), "segment_bytes",
                                                        (json_int_t)grid->settings[i].segment_bytes,
                                                        "depth", (int)grid->settings[i].depth,
                                                        "ours", sample_json(&grid->ours[mix][i]),
                                                        "fio", sample_json(&grid->fio[mix][i])));
        }
    }
    return rows;
}

/* The figures that the table shows beside rows. */
static json_t *run_json(const io_run *run, const io_line *line)
{
    io_facts facts;
    const io_setting *setting = &run->grid.settings[run->grid.recommended];
    io_rig_facts(run->rig, &facts);
    return json_pack(
        "{s:o, s:I, s:b, s:s, s:s, s:o, s:b, s:b, s:o, s:{s:I, s:i, s:I, s:i}}", "directories",
        directories_json(&run->rates, &facts, line), "bytes", (json_int_t)facts.bytes, "filled",
        facts.bytes >= line->bytes, "backend", facts.backend, "flags", facts.flags, "refusals",
        json_string_nocheck(facts.refusals), "direct", (int)facts.direct, "in_memory",
        (int)facts.in_memory, "grid", grid_json(&run->grid), "recommended", "segment_bytes",
        (json_int_t)setting->segment_bytes, "depth", (int)setting->depth, "extent_bytes",
        (json_int_t)extent_bytes(setting, line->directory_count), "io_window", WINDOW_EXTENTS);
}

static int report_run(const io_run *run, const io_line *line, bench_report *report)
{
    return bench_report_more(report, "io", run_json(run, line)) ||
           (bench_report_has_table(report) && bench_report_print(report, "io_table") != 0);
}

static int measure_all(io_run *run, const io_line *line, bench_report *report)
{
    const double start = bench_now();
    run->end = start + line->seconds;
    init_grid(&run->grid);
    const bool several = line->directory_count > 1;
    if (several && io_find_rates(line->directories, line->directory_count, 0, &run->rates) != 0) {
        return 1;
    }
    const io_rig_desc desc = {.directories = line->directories,
                              .directory_count = line->directory_count,
                              .rates = several ? run->rates.rate : NULL,
                              .bytes = line->bytes,
                              .backend = line->backend};
    if (io_rig_open(&desc, &run->rig) != 0 ||
        io_rig_fill(run->rig, line->seconds * SHARE_FILL) != 0) {
        return 1;
    }
    run->fio_missing = io_fio_unusable(run->rig, &run->fio_extra);
    return measure_grid(run) || measure_finals(run, report) || add_grid(&run->grid, report) ||
           add_rates(&run->rates, line, report);
}

int command_io(int argc, char **argv)
{
    io_line line = {.bytes = SIZE_DEFAULT, .seconds = SECONDS_DEFAULT};
    bench_speak_as("zero io");
    const int read = read_line(argc, argv, &line);
    if (read != 0) {
        return read == LINE_HELP ? print_help() : 1;
    }
    bench_report report;
    const bench_scale scale = line.seconds >= SECONDS_DEFAULT ? BENCH_FULL : BENCH_QUICK;
    if (bench_report_open(&report, line.json_path, scale) != 0 ||
        (bench_report_has_table(&report) && script_check() != 0)) {
        return 1;
    }
    io_run run = {0};
    int failed = measure_all(&run, &line, &report);
    if (failed) {
        report.json_path = NULL; /* but for what a file on disk has by now */
    }
    report.unfinished = false;
    failed = failed || report_run(&run, &line, &report) != 0;
    io_rig_close(run.rig);
    return bench_report_close(&report) || failed;
}
