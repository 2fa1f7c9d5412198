/* Writing a rank's bytes of a checkpoint: whoever stages them hands over blocks, in a ring of
 * memory or where they are. Some threads write them to the files, others add them to the sums.
 *
 * Bytes of whole pages go past the page cache where the file system grants it; where it does not, a
 * warning says so, once for a writer. The first and the last page of a rank's run have bytes of its
 * neighbours too, so these bytes go through the page cache: nobody writes a byte that is another's.
 *
 * After a failure the rest is dropped, so that whoever stages never waits for a disk that does not
 * answer any more, and the failure is kept for zi_checkpoint_writer_result.
 *
 * Threads: reserve, submit, seal and finish are one thread's, the stager's; all else is any one's.
 */
#ifndef ZI_CHECKPOINT_CHECKPOINT_WRITER_H
#define ZI_CHECKPOINT_CHECKPOINT_WRITER_H

#include <stdbool.h>

#include "checkpoint/checkpoint_map.h"
#include "checkpoint/checkpoint_sums.h"
#include "zero/status.h"

/* Bytes of one block at most. A small state has smaller ones, so that little memory is touched. */
#define ZI_WRITER_BLOCK_BYTES ((uint64_t)4 << 20)
#define ZI_WRITER_BLOCK_BYTES_MIN ((uint64_t)64 << 10)
/* Blocks in a ring that is taken for one save: copying and writing overlap. */
#define ZI_WRITER_RING_BLOCKS 8

typedef struct zi_checkpoint_writer zi_checkpoint_writer;

/* Elements of one role that are one run of a file. */
typedef struct zi_checkpoint_block {
    uint32_t file;
    uint64_t at; /* bytes of the file before it */
    uint64_t bytes;
    const unsigned char *data; /* reserved, or the stager's own until the writer is over */
    zero_role role;            /* the next three are the stager's: where its first element is */
    uint32_t tensor;
    uint64_t done;
    bool shared; /* zi_checkpoint_writer_share */
} zi_checkpoint_block;

typedef struct zi_checkpoint_writer_desc {
    const char *folder;           /* copied */
    const zi_checkpoint_map *map; /* borrowed. File map->file_count is that of the sums */
    zi_checkpoint_sums *sums;     /* borrowed; written once all blocks have been added */
    /* Add a block to the sums, before, while or after it is written. On the writer's threads,
     * several at once. */
    void (*add)(void *user, const zi_checkpoint_block *block);
    void *user;
    unsigned char *ring;  /* whole pages; borrowed */
    uint64_t ring_bytes;  /* at least zi_checkpoint_writer_ring_bytes of 2 blocks */
    uint64_t block_bytes; /* of a block at most: whole pages, in [ZI_WRITER_BLOCK_BYTES_MIN,
                             ZI_WRITER_BLOCK_BYTES] */
    const zi_checkpoint_map *made; /* of the files that this rank has made, which it puts on the
                                      disk; borrowed. NULL: it has made none */
} zi_checkpoint_writer_desc;

/* Bytes of a ring of so many blocks. */
uint64_t zi_checkpoint_writer_ring_bytes(uint64_t block_bytes, uint64_t blocks);

/* Errors: OUT_OF_MEMORY; DEVICE where a thread cannot be started. */
zero_status zi_checkpoint_writer_create(const zi_checkpoint_writer_desc *desc,
                                        zi_checkpoint_writer **out);
/* Drop what is not written yet. Accepts NULL. The stager is gone. */
void zi_checkpoint_writer_destroy(zi_checkpoint_writer *writer);

/* Wait for memory of a block that begins at byte `at` of a file. The block may be so long that it
 * ends block_bytes after the beginning of its first page. 1024 bytes ahead of it may be
 * used too. NULL: the writer has failed or was stopped, and nothing more is wanted. */
unsigned char *zi_checkpoint_writer_reserve(zi_checkpoint_writer *writer, uint64_t at);
/* The modulus of direct access: memory must lie as the file does modulo this. Blocks that are not
 * reserved lie so. A power of two, at most ZI_CHECKPOINT_ALIGN. */
uint64_t zi_checkpoint_writer_align(zi_checkpoint_writer *writer);
/* Let the block's whole pages share blocks of the file system with another file, which has the same
 * bytes from `at` on and keeps them during the call. They are not written then. Where the file
 * system refuses, a warning says so, once for a writer, and all is written. */
void zi_checkpoint_writer_share(zi_checkpoint_writer *writer, zi_checkpoint_block *block,
                                int source, uint64_t at);
/* Hand over a block, which is the reserved one where its data is. Blocks are written in any order.
 */
void zi_checkpoint_writer_submit(zi_checkpoint_writer *writer, const zi_checkpoint_block *block);
/* No more comes for a file: once all of it is written it is put on the disk and closed. */
void zi_checkpoint_writer_seal(zi_checkpoint_writer *writer, uint32_t file);
/* No more comes. */
void zi_checkpoint_writer_finish(zi_checkpoint_writer *writer);

/* A failure of whoever stages; the first one stays. NULL: drop all the rest, nobody wants it. */
void zi_checkpoint_writer_stop(zi_checkpoint_writer *writer, const zero_error *error);
/* True if it has neither failed nor been stopped. */
bool zi_checkpoint_writer_wants(zi_checkpoint_writer *writer);
/* Block until it is finished and all is on the disk, or has failed, for so long at most. Returns
 * whether it is. */
bool zi_checkpoint_writer_wait(zi_checkpoint_writer *writer, uint64_t ns);
/* How it ended. Errors: the first failure, IO with the path. */
zero_status zi_checkpoint_writer_result(zi_checkpoint_writer *writer);

typedef struct zi_checkpoint_writer_counts {
    uint64_t staged_bytes;  /* of tensors, as the next */
    uint64_t written_bytes; /* with those that are shared */
    uint64_t shared_bytes;
    bool over;          /* as zi_checkpoint_writer_wait returns */
    zero_status result; /* of the first failure so far */
} zi_checkpoint_writer_counts;

zi_checkpoint_writer_counts zi_checkpoint_writer_count(zi_checkpoint_writer *writer);

#endif
