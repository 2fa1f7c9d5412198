/* A file that a run writes line by line, and that holds together whenever the run ends.
 *
 * What closes a document (JSON's brackets) is written behind every addition, and overwritten by the
 * next one. So the file is a whole document after each call, whoever kills the program. */
#ifndef GPT2_FILE_H
#define GPT2_FILE_H

#include "gpt2_error.h"
#include <stddef.h>
#include <stdint.h>

/* Zeroed and with file -1: there is none, and all calls do nothing. */
typedef struct gpt2_file {
    const char *path;
    int file;
    bool rewinds; /* a file on disk; others take additions, and what closes them at the end only */
    uint64_t bytes;      /* without what closes it */
    const char *closing; /* what is or will be behind them */
} gpt2_file;

/* Empties `path` or creates it; NULL: there is no file. A pipe that nobody reads is refused, and so
 * is what cannot be written; nothing waits. What is standard output already is shared with it. */
bool gpt2_file_open(gpt2_file *file, const char *path, gpt2_error *error);

/* Adds the text. closing: static; what makes a document of all up to here; "" for none. False: not
 * all of it could be written, and the file is as it was before. */
bool gpt2_file_add(gpt2_file *file, const char *text, size_t bytes, const char *closing,
                   gpt2_error *error);

/* False when the system had kept back that something could not be written. */
bool gpt2_file_close(gpt2_file *file, gpt2_error *error);

#endif
