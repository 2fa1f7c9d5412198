/* Weights in one safetensors file or in several that an index lists: the headers of all. A file of
 * an index is one of its folder; where somebody else's tools made links of them, as a hub's cache
 * does, these are followed. */
#ifndef ZI_FORMAT_SAFETENSORS_SET_H
#define ZI_FORMAT_SAFETENSORS_SET_H

#include "core/private_api.h"
#include "format/safetensors.h"

/* A model's files at most. */
#define ZI_SAFETENSORS_FILES_MAX 1024
/* An index has a line for each tensor of a model: 36945 and 3 MB for 235 billion parameters. */
#define ZI_SAFETENSORS_INDEX_BYTES_MAX ((uint64_t)128 << 20)
#define ZI_SAFETENSORS_PATH_BYTES 4096

/* Filled in file by file; all zero: there are none. */
typedef struct zi_safetensors_set {
    uint32_t count;
    const char *names[ZI_SAFETENSORS_FILES_MAX]; /* the index's */
    char paths[ZI_SAFETENSORS_FILES_MAX][ZI_SAFETENSORS_PATH_BYTES];
    zi_safetensors headers[ZI_SAFETENSORS_FILES_MAX];
} zi_safetensors_set;

/* `name` in the folder of `path`. INVALID_ARGUMENT where that is too long. */
ZI_PRIVATE_API zero_status zi_path_beside(const char *path, const char *name,
                                          char beside[ZI_SAFETENSORS_PATH_BYTES]);

/* The headers of all files that an index lists; its JSON stays open for as long as the set. Errors:
 * INVALID_ARGUMENT for a file that is none of its folder, for a tensor that is not in the file that
 * the index says, or is not listed; those of zi_safetensors_read. */
ZI_PRIVATE_API zero_status zi_safetensors_set_read(zi_safetensors_set *set, const zi_json *index);

/* After zi_safetensors_set_read, whatever it returned. */
ZI_PRIVATE_API void zi_safetensors_set_close(zi_safetensors_set *set);

#endif
