/* A file that a run writes line by line, and that is valid whenever the run ends.
 *
 * The end of a document (JSON's closing brackets) is written behind every addition, and the next
 * addition overwrites it. So the file is a complete document after each call, even if the program
 * is killed. */
#ifndef GPT2_FILE_H
#define GPT2_FILE_H

#include "gpt2_error.h"
#include <stddef.h>
#include <stdint.h>

/* Zeroed and with file -1: no file, and all calls do nothing. */
typedef struct gpt2_file {
    const char *path;
    int file;
    bool rewinds; /* a file on disk; others get the end of the document only when they are closed */
    uint64_t bytes;      /* without the end of the document */
    const char *closing; /* the end of the document, behind them */
} gpt2_file;

/* Opens `path` or creates it, and cuts it off behind `keep` bytes, at most as many as a file on
 * disk has; NULL: there is no file. A pipe without a reader and a file that cannot be written are
 * refused; the call never waits. Standard output, given by name, is shared with it. */
bool gpt2_file_open(gpt2_file *file, const char *path, uint64_t keep, gpt2_error *error);

/* Adds the text. closing: static, the end of the document; "" for none. False: not all of it could
 * be written, and the file is as before. */
bool gpt2_file_add(gpt2_file *file, const char *text, size_t bytes, const char *closing,
                   gpt2_error *error);

/* False if an earlier write failed and the system reports it only now. */
bool gpt2_file_close(gpt2_file *file, gpt2_error *error);

#endif
