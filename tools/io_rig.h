/* `zero io`: a file in a directory, and what moves bytes to and from it: the library's queue, and
 * fio on the same file. Functions that can fail return 1 after bench_fail. */
#ifndef TOOLS_IO_RIG_H
#define TOOLS_IO_RIG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum io_mix { IO_MIX_READ = 0, IO_MIX_WRITE = 1, IO_MIX_BOTH = 2 } io_mix;
#define IO_MIXES 3

typedef struct io_setting {
    uint64_t piece_bytes;
    uint32_t depth;
} io_setting;

#define IO_PIECE_SIZES 4
#define IO_DEPTHS 3
#define IO_SETTINGS (IO_PIECE_SIZES * IO_DEPTHS)

/* What was moved in a while; a GB is 1e9 bytes. seconds_per_gb 0: not measured. */
typedef struct io_sample {
    double seconds_per_gb;
    double cpu_ms_per_gb;
} io_sample;

typedef struct io_rig io_rig;

/* What is to be said of the directory and the way to it; texts are the rig's. */
typedef struct io_facts {
    const char *rung;
    const char *flags;
    const char *refusals; /* "": none */
    const char *note;     /* of the directory; "": none */
    bool direct;
    bool in_memory;
    uint64_t bytes; /* of the file that are used */
} io_facts;

/* A file of `bytes` in the directory. rung: NULL for the best, or its name. */
int io_rig_open(const char *directory, uint64_t bytes, const char *rung, io_rig **rig);

/* Accepts NULL. */
void io_rig_close(io_rig *rig);

/* Random bytes all over the file, so that no read is one of nothing. After `seconds` the rest of
 * the file is left out of use. */
int io_rig_fill(io_rig *rig, double seconds);

void io_rig_facts(const io_rig *rig, io_facts *facts);

/* For others of this machine: a path that opens the rig's file while it is open. */
void io_rig_path(const io_rig *rig, char *path, uint32_t path_bytes);

/* Move bytes one after the other for so many seconds. */
int io_measure(io_rig *rig, io_mix mix, const io_setting *setting, double seconds,
               io_sample *sample);

/* The same by fio, in a process of its own. NULL, or why it failed; says nothing itself. */
const char *io_measure_fio(const io_rig *rig, io_mix mix, const io_setting *setting, double seconds,
                           io_sample *sample);

/* Why fio cannot be measured here, NULL when it can. */
const char *io_fio_missing(void);

/* Measurements of all settings: [mix][setting]. */
typedef struct io_grid {
    io_setting settings[IO_SETTINGS];
    io_sample ours[IO_MIXES][IO_SETTINGS];
    io_sample fio[IO_MIXES][IO_SETTINGS];
    uint32_t recommended; /* setting */
} io_grid;

void io_grid_init(io_grid *grid);

/* Settles grid->recommended: of the settings within a few percent of the fastest over all mixes,
 * the one with the fewest bytes in flight. */
void io_grid_recommend(io_grid *grid);

const char *io_mix_name(io_mix mix);

/* "read, 512 KiB x 8" */
void io_case_name(io_mix mix, const io_setting *setting, char *text, uint32_t text_bytes);

#endif
