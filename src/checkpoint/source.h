/* The source of a saved model's elements: what a load and the tools read, range by range. Files
 * implement it (checkpoint_reader.h); whatever else can give elements of tensors by their names
 * may.
 *
 * What has a manifest has sums, and elements are compared with them here. A piece that is read
 * whole in one call is compared at once. Of one that is read in part, zi_source_read adds what it
 * saw to the balance of zi_source_count, and subtracts the piece's sum when it sees its first
 * element. Once every element of a tensor has been read exactly once, by whichever ranks, the
 * balances of all of them add up to 0. So nobody reads more than it needs. What is read once more
 * is read with `counted` false. Where the balances do not add up, zi_source_check_range finds what
 * is damaged. checkpoint_joined.h reads what does not begin and end at granules.
 *
 * Threads: calls of zi_source_read and zi_source_share may overlap, ZI_SOURCE_READS_MAX at once; no
 * others may. */
#ifndef ZI_CHECKPOINT_SOURCE_H
#define ZI_CHECKPOINT_SOURCE_H

#include <pthread.h>

#include "checkpoint/checkpoint_boxes.h"
#include "checkpoint/manifest.h"

/* A read of more elements is refused. */
#define ZI_SOURCE_READ_BYTES_MAX ((uint64_t)8 << 20)
#define ZI_SOURCE_READS_MAX 8

typedef struct zi_source zi_source;

typedef struct zi_source_range {
    uint32_t tensor;
    zero_role role; /* the tensor has it */
    uint64_t first; /* elements; a multiple of 256 where the source has sums and `counted`, else of
                       scales of 32 */
    uint64_t count; /* likewise, or up to the tensor's end */
    bool counted;
    bool direct; /* from files past the page cache, if memory lies as zi_source_read wants it: for
                    what nobody of this host reads again, several ranges at once. The page cache
                    reads ahead, direct access does not */
} zi_source_range;

/* Since open. */
typedef struct zi_source_counts {
    uint64_t read_bytes; /* from the files, headers and sums included; what the system reads ahead
                            of that is not in it */
    uint64_t balance;    /* see above; modulo 2^64 */
    uint64_t coverage;   /* the same of numbers of elements: what all ranks saw adds up to 0 if they
                            have counted each element of a piece as often as its first one. Else
                            their balances say nothing */
} zi_source_counts;

/* The functions of an implementation. */
typedef struct zi_source_ops {
    /* values := the elements of a range, as they were saved. It has some, and at most
     * ZI_SOURCE_READ_BYTES_MAX. Threads: as zi_source_read. */
    zero_status (*read)(zi_source *source, const zi_source_range *range, void *values);
    /* sums := those of pieces [first, first + count). Threads: likewise. NULL: it has no manifest
     */
    zero_status (*read_sums)(zi_source *source, uint64_t first, uint64_t count, uint64_t *sums);
    /* zi_source_check_files. NULL: there is nothing to compare */
    zero_status (*check_files)(zi_source *source);
    /* zi_source_page_offset and zi_source_share. NULL: elements are in no file */
    uint64_t (*page_offset)(const zi_source *source, const zi_source_range *range);
    bool (*share)(zi_source *source, const zi_source_range *range, int file, uint64_t at);
    /* Give back the implementation's memory, which the source is part of. */
    void (*close)(zi_source *source);
} zi_source_ops;

/* An implementation's struct begins with it. */
struct zi_source {
    const zi_source_ops *ops;
    const char *name;             /* of the folder or file, for messages */
    const zi_manifest *manifest;  /* NULL: it has parameters alone, and no sums */
    const zi_checkpoint_map *map; /* of weights alone no cuts, and no pieces */
    uint64_t align; /* of memory for direct reads: it lies as the file does modulo this, which is a
                       page, or less where the file system says so. 1: anywhere */
    zi_box_index by_name;
    void *check_buffer;    /* NULL: nothing was checked yet */
    pthread_mutex_t mutex; /* guards what follows, and what an implementation says */
    zi_source_counts counts;
};

/* After an implementation has set ops, name, manifest, map and align: tensors can be found. Errors:
 * INVALID_ARGUMENT for two that cannot both be there; OUT_OF_MEMORY; zi_source_close in any case.
 */
zero_status zi_source_open(zi_source *source);
void zi_source_close(zi_source *source); /* accepts NULL */

/* A tensor by its name: its number in the map, or UINT32_MAX. Of several boxes the first. */
uint32_t zi_source_find(const zi_source *source, const char *name);
/* The next box of the same tensor, or UINT32_MAX. */
uint32_t zi_source_next(const zi_source *source, uint32_t tensor);

/* Compare headers of all files with the manifest, and the sums with their hash. One rank does.
 * Errors: CORRUPT naming the file. */
zero_status zi_source_check_files(zi_source *source);

/* Bytes from a page's beginning to a range's first element in its file. */
uint64_t zi_source_page_offset(const zi_source *source, const zi_source_range *range);

/* Elements, as they were saved, in values. Where range->direct, and values lies as
 * zi_source_page_offset modulo source->align, whole pages of files are not in the page cache
 * afterwards; where the file system refuses, they are. Errors: CORRUPT naming file, tensor and
 * offset; IO. */
zero_status zi_source_read(zi_source *source, const zi_source_range *range, void *values);
/* Let whole pages of a file, from byte `at` on, share blocks of the file system with the range,
 * which begins and ends at pages of its own file. false: they are as they were, and errno says why.
 */
bool zi_source_share(zi_source *source, const zi_source_range *range, int file, uint64_t at);
/* Add elements that were read without being counted to the balance; `counted` is set, and the
 * source has sums. Errors: as above. */
zero_status zi_source_add_range(zi_source *source, const zi_source_range *range,
                                const void *values);
/* Read all pieces that have an element of the range, whole, and compare each. progress: NULL, or
 * called with the bytes of each. Errors: as above; INVALID_ARGUMENT: there are no sums. */
zero_status zi_source_check_range(zi_source *source, const zi_source_range *range,
                                  void (*progress)(void *user, uint64_t bytes), void *user);
/* The sum of a whole tensor in one role, from the sums alone. Errors: IO. */
zero_status zi_source_tensor_sum(zi_source *source, uint32_t tensor, zero_role role, uint64_t *sum);

zi_source_counts zi_source_count(const zi_source *source);

#endif
