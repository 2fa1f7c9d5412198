/* A file that is locked by whoever owns the directory it is in. The kernel drops the lock with the
 * process, so a killed owner never blocks the next one, and neither does a child that it has
 * forked; the text in the file names the owner.
 *
 * The file may have been put there by anybody: links are not followed, and what is no regular file
 * or has a second name is refused. */
#ifndef ZI_STORAGE_FILE_LOCK_H
#define ZI_STORAGE_FILE_LOCK_H

#include <stdbool.h>
#include <stddef.h>

#include "zero/status.h"

#define ZI_FILE_LOCK_TEXT_BYTES 512

/* Which file. */
typedef struct zi_file_lock_target {
    int directory;    /* an open descriptor */
    const char *path; /* of the directory, for messages */
    const char *name; /* of the file */
    bool shared;      /* other users may own the directory in turn; else a file of another user is
                         refused, and the mode is 0600 */
} zi_file_lock_target;

typedef enum zi_file_lock_result {
    ZI_FILE_LOCK_TAKEN,
    ZI_FILE_LOCK_HELD,   /* by somebody who lives: what the text says */
    ZI_FILE_LOCK_UNKNOWN /* the file system has no locks */
} zi_file_lock_result;

/* Open the file, or make it, and lock it; nobody waits. file: out, open unless an error is
 * returned, and -1 then; zi_file_lock_close gives the lock up. Errors: STATE where something else
 * has the name; IO; OUT_OF_MEMORY. */
zero_status zi_file_lock_take(const zi_file_lock_target *target, int *file,
                              zi_file_lock_result *result);
void zi_file_lock_close(int file); /* accepts -1 */
/* True if the name still stands for the open file. */
bool zi_file_lock_named(const zi_file_lock_target *target, int file);
/* The text; "" where there is none. false: the file system lets nobody read what another one has
 * locked. */
bool zi_file_lock_read(int file, char text[ZI_FILE_LOCK_TEXT_BYTES]);
/* Cut a text to its first line. Bytes that are not printable become '?', since it goes to terminals
 * and logs whoever wrote it. */
void zi_file_lock_line(char *text);
/* Replace the text. Errors: IO. */
zero_status zi_file_lock_sign(const zi_file_lock_target *target, int file, const char *text);

#endif
