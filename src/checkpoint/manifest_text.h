/* The text of a manifest, as it lies in a folder. */
#ifndef ZI_CHECKPOINT_MANIFEST_TEXT_H
#define ZI_CHECKPOINT_MANIFEST_TEXT_H

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/manifest.h"

#define ZI_MANIFEST_FORMAT "libzero checkpoint"
/* Of a model in one part, and in several: a reader of the first would take a box for a tensor. Of
 * states in remainders or codes, in any number of parts: a reader of those before would not know
 * what they are. */
#define ZI_MANIFEST_VERSION 1
#define ZI_MANIFEST_VERSION_PARTS 2
#define ZI_MANIFEST_VERSION_SMALL 3

typedef struct zi_manifest_text {
    char path[ZI_CHECKPOINT_PATH_BYTES];
    char *text; /* with a NUL; zi_free gives it back, whatever load returned */
    size_t bytes;
    uint64_t version;
    zi_manifest_head head;
} zi_manifest_text;

/* Read the text, and compare it with its hash and this version. Errors: those of
 * zi_manifest_read_head. */
zero_status zi_manifest_text_load(zi_manifest_text *text, const char *folder);

#endif
