/* `zero ckpt`: what its subcommands share. Each prints on stdout, says what is wrong by bench_fail,
 * and returns the program's exit status. */
#ifndef TOOLS_CKPT_H
#define TOOLS_CKPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "bench.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_joined.h"
#include "checkpoint/checkpoint_reader.h"

/* The requests of a command line. */
typedef struct ckpt_line {
    const char *words[2];
    const char *json_path; /* NULL: none; "-": stdout, without the text */
    bool tensors;
    bool dry_run;
    bool skip_others; /* tensors that are no parameters */
    bool strict;      /* values beyond the range of the type are an error */
    bool best;        /* of a tensor's parameter and master the more exact */
    zero_role role;   /* if best is false */
    zero_dtype type;  /* DEFAULT: as it is saved */
    uint64_t shard_bytes;
    uint64_t keep; /* 0: not given; so is world */
    uint64_t world;
} ckpt_line;

int ckpt_list(const ckpt_line *line); /* ckpt_list.c, with prune */
int ckpt_prune(const ckpt_line *line);
int ckpt_show(const ckpt_line *line);   /* ckpt_show.c */
int ckpt_verify(const ckpt_line *line); /* ckpt_verify.c */
int ckpt_diff(const ckpt_line *line);   /* ckpt_diff.c; 0: the same, 1: not, 2: an error */
int ckpt_export(const ckpt_line *line); /* ckpt_export.c */
int ckpt_import(const ckpt_line *line); /* ckpt_write.c, with reshard */
int ckpt_reshard(const ckpt_line *line);

/* ---- ckpt_whole.c ---- */

/* The source of a tensor's values. */
typedef struct ckpt_source {
    zero_role role;
    bool best;    /* of boxes that have a master, that */
    bool widened; /* remainders and codes as fp32; else as they lie */
} ckpt_source;

/* All of a tensor, of whose boxes `head` is the first. source: the caller keeps it. */
zi_joined ckpt_joined(zi_source *reader, uint32_t head, const ckpt_source *source);
/* After a balance that does not add up: bench_fail with what is damaged. Returns 1. */
int ckpt_find_damage(const zi_joined *joined, uint64_t count);

/* The tensors of a checkpoint, of which parts may have boxes, as whole ones in one part. */
typedef struct ckpt_whole {
    zi_checkpoint_tensor *tensors; /* types are those of all boxes, and fp32 where they differ, or
                                      where codes are of several; places are not set, and cuts are
                                      those of the first box */
    uint32_t *heads;               /* by tensor, the reader's first box of it */
    uint32_t count;
} ckpt_whole;

/* 1 after bench_fail, also for elements that no part has; so for what follows. Free it in any case.
 */
int ckpt_whole_make(zi_source *reader, ckpt_whole *whole);
void ckpt_whole_free(ckpt_whole *whole);
/* The sum of a tensor as if it had been saved whole, and as fp32 if widened: of several boxes, or
 * of what is widened, all elements are read. */
int ckpt_whole_sum(zi_source *reader, const ckpt_whole *whole, uint32_t tensor, zero_role role,
                   bool widened, uint64_t *sum);

/* ---- ckpt_copy.c ---- */

/* A file that is being made. */
typedef struct ckpt_file {
    int descriptor; /* -1: none is open */
    char path[ZI_CHECKPOINT_PATH_BYTES];
} ckpt_file;

/* A new file; what is there already is an error. 1 after bench_fail, with the path; so for all that
 * follows. */
int ckpt_file_create(ckpt_file *file, const char *folder, const char *name);
int ckpt_file_write(const ckpt_file *file, uint64_t at, const void *data, uint64_t bytes);
/* All of another file, by reference where the file system can. */
int ckpt_file_copy(const ckpt_file *file, const char *folder, const char *name);
/* On the disk; none may be open. */
int ckpt_file_close(ckpt_file *file);
void ckpt_file_drop(ckpt_file *file); /* after an error */

/* Finite values that became infinite in a narrower type. */
typedef struct ckpt_overflow {
    uint64_t count;
    const char *tensor; /* of the first of them */
    uint64_t index;     /* of that in its tensor */
} ckpt_overflow;

/* A tensor in one role, and what becomes of it. */
typedef struct ckpt_copy {
    zi_source *reader;
    uint32_t tensor; /* the reader's; the first of its boxes */
    ckpt_source from;
    const zi_checkpoint_tensor *target; /* of the same elements: its type, place and cuts count */
    zero_role to;
    const ckpt_file *file;   /* NULL: it is read and compared only */
    uint64_t *sums;          /* of all pieces of the target's map; NULL: not wanted */
    ckpt_overflow *overflow; /* added to; NULL: types do not differ */
} ckpt_copy;

/* Read it piece by piece from all its boxes, compare it with the reader's sums, round it to nearest
 * even where types differ, write it and make its sums. */
int ckpt_copy_tensor(const ckpt_copy *copy);

/* ---- ckpt_common.c ---- */

/* 1 after bench_fail with the library's message. */
#define CKPT_TRY(call) ((call) == ZERO_OK ? 0 : ckpt_fail())
int ckpt_fail(void);

/* Find where a line's word points: the newest checkpoint of a run's directory, a checkpoint's own
 * folder, or weights alone. 1 after bench_fail; so for what follows. */
int ckpt_find(const char *word, char folder[ZI_CHECKPOINT_PATH_BYTES]);
/* The reader of that, to be closed. folder: out. */
int ckpt_open(const char *word, char folder[ZI_CHECKPOINT_PATH_BYTES], zi_source **reader);

/* Of all files, the sums' included. */
uint64_t ckpt_bytes(const zi_checkpoint_map *map, const zi_manifest *manifest);
/* That saved it, of all parts of the model. */
uint32_t ckpt_ranks(const zi_manifest *manifest);
/* Elements of all parameters. */
uint64_t ckpt_parameters(const zi_checkpoint_map *map);
bool ckpt_has_role(const zi_checkpoint_tensor *tensor, int role);
uint64_t ckpt_tensor_bytes(const zi_checkpoint_tensor *tensor, int role);

enum { CKPT_NAME_BYTES = 512, CKPT_SHAPE_BYTES = 192, CKPT_TEXT_BYTES = 32 };

/* A name or a message as a terminal may have it: control characters are '?', and what is too long
 * ends in "..". */
const char *ckpt_name(const char *name, char text[CKPT_NAME_BYTES]);
/* "50257x768"; "scalar". */
const char *ckpt_shape(const zi_checkpoint_tensor *tensor, char text[CKPT_SHAPE_BYTES]);
/* "1.50 GB", in powers of 1000. */
const char *ckpt_amount(uint64_t bytes, char text[CKPT_TEXT_BYTES]);
/* "0123456789abcdef" */
const char *ckpt_hash(uint64_t hash, char text[CKPT_TEXT_BYTES]);

/* True when text goes to stdout. */
bool ckpt_has_text(const ckpt_line *line);
/* Writes `json` where the line wants it, and gives it back; NULL: memory was out. */
int ckpt_put_json(const ckpt_line *line, json_t *json);
/* The same, and where text goes to stdout that which a script makes of it. 1 after bench_fail. */
int ckpt_report(const ckpt_line *line, const char *module, json_t *json);
/* 1 after bench_fail where stdout did not take all. */
int ckpt_flush(void);

#endif
