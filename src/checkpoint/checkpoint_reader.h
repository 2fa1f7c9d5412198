/* Reading tensors of a checkpoint or of safetensors files, range by range.
 *
 * A checkpoint's elements are compared with its sums. A piece that is read whole in one call is
 * compared at once. Of one that is read in part, zi_checkpoint_read adds what it saw to the balance
 * of zi_checkpoint_reader_counts, and subtracts the piece's sum when it sees its first element.
 * Once every element of a tensor has been read exactly once, by whichever ranks, the balances of
 * all of them add up to 0. So nobody reads more than it needs. What is read once more is read with
 * `counted` false. Where the balances do not add up, zi_checkpoint_check_range finds what is
 * damaged. checkpoint_joined.h reads what does not begin and end at granules.
 *
 * Threads: calls of zi_checkpoint_read and zi_checkpoint_share may overlap,
 * ZI_CHECKPOINT_READERS_MAX at once; no others may. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_READER_H
#define ZI_CHECKPOINT_CHECKPOINT_READER_H

#include "checkpoint/checkpoint_boxes.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"

/* A read of more elements is refused. */
#define ZI_CHECKPOINT_READ_BYTES_MAX ((uint64_t)8 << 20)
#define ZI_CHECKPOINT_READERS_MAX 8

typedef struct zi_checkpoint_reader zi_checkpoint_reader;

/* Since open. */
typedef struct zi_checkpoint_reader_counts {
    uint64_t read_bytes; /* from the files, headers and sums included; what the system reads ahead
                            of that is not in it */
    uint64_t balance;    /* see above; modulo 2^64 */
    uint64_t coverage;   /* the same of numbers of elements: what all ranks saw adds up to 0 if they
                            have counted each element of a piece as often as its first one. Else
                            their balances say nothing */
} zi_checkpoint_reader_counts;

/* path: the folder of a checkpoint, a safetensors file, an index of several ("weight_map"), or a
 * folder that has either as "model.safetensors" or "model.safetensors.index.json". Without a
 * manifest there are only parameters, and no sums; a tensor of a type that no parameter has here
 * has no role at all. Errors: those of zi_manifest_read; the same for headers. */
zero_status zi_checkpoint_reader_open(const char *path, zi_checkpoint_reader **out);
void zi_checkpoint_reader_close(zi_checkpoint_reader *reader); /* accepts NULL */

/* NULL: there is no manifest. */
const zi_manifest *zi_checkpoint_reader_manifest(const zi_checkpoint_reader *reader);
/* The reader's; of weights alone no cuts, and no pieces. */
const zi_checkpoint_map *zi_checkpoint_reader_map(const zi_checkpoint_reader *reader);
/* A tensor by its name: its number in the map, or UINT32_MAX. Of several boxes the first. */
uint32_t zi_checkpoint_reader_find(const zi_checkpoint_reader *reader, const char *name);
/* The next box of the same tensor, or UINT32_MAX. */
uint32_t zi_checkpoint_reader_next(const zi_checkpoint_reader *reader, uint32_t tensor);

/* Compare headers of all files with the manifest, and the sums with their hash. One rank does.
 * Errors: CORRUPT naming the file. */
zero_status zi_checkpoint_reader_check_files(zi_checkpoint_reader *reader);

typedef struct zi_checkpoint_range {
    uint32_t tensor;
    zero_role role; /* the tensor has it */
    uint64_t first; /* elements; a multiple of 256 where the reader has sums and `counted` */
    uint64_t count; /* likewise, or up to the tensor's end */
    bool counted;
    bool direct; /* past the page cache, if memory lies as zi_checkpoint_read wants it: for what
                    nobody of this host reads again, several ranges at once. The page cache reads
                    ahead, direct access does not */
} zi_checkpoint_range;

/* Bytes from a page's beginning to a range's first element in its file. */
uint64_t zi_checkpoint_page_offset(const zi_checkpoint_reader *reader,
                                   const zi_checkpoint_range *range);

/* Where memory must lie for direct reads: as the file does modulo this, which is a page, or less
 * where the file system says so. */
uint64_t zi_checkpoint_reader_align(const zi_checkpoint_reader *reader);

/* Elements, as they are in the file, in values. Where range->direct, and values lies as
 * zi_checkpoint_page_offset modulo zi_checkpoint_reader_align, whole pages are not in the page
 * cache afterwards; where the file system refuses, they are. Errors: CORRUPT naming file, tensor
 * and offset; IO. */
zero_status zi_checkpoint_read(zi_checkpoint_reader *reader, const zi_checkpoint_range *range,
                               void *values);
/* Let whole pages of a file, from byte `at` on, share blocks of the file system with the range,
 * which begins and ends at pages of its own file. false: they are as they were, and errno says why.
 */
bool zi_checkpoint_share(zi_checkpoint_reader *reader, const zi_checkpoint_range *range, int file,
                         uint64_t at);
/* Add elements that were read without being counted to the balance; `counted` is set, and the
 * reader has sums. Errors: as above. */
zero_status zi_checkpoint_count(zi_checkpoint_reader *reader, const zi_checkpoint_range *range,
                                const void *values);
/* Read all pieces that have an element of the range, whole, and compare each. progress: NULL, or
 * called with the bytes of each. Errors: as above. */
zero_status zi_checkpoint_check_range(zi_checkpoint_reader *reader,
                                      const zi_checkpoint_range *range,
                                      void (*progress)(void *user, uint64_t bytes), void *user);
/* The sum of a whole tensor in one role, from the sums alone. Errors: IO. */
zero_status zi_checkpoint_tensor_sum(zi_checkpoint_reader *reader, uint32_t tensor, zero_role role,
                                     uint64_t *sum);

zi_checkpoint_reader_counts zi_checkpoint_reader_count(const zi_checkpoint_reader *reader);

#endif
