/* Reading a box of a tensor from whatever boxes of it a checkpoint has, range by range, as they
 * were saved or as fp32. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_JOINED_H
#define ZI_CHECKPOINT_CHECKPOINT_JOINED_H

#include "checkpoint/source.h"

/* Half of it is for short ranges, which are read together with what is between them, if that is
 * less than a page; the other half for what is widened. */
#define ZI_JOINED_STAGING_BYTES ((uint64_t)2 << 20)

/* The source of values in a saved box. */
typedef struct zi_joined_from {
    zero_role role;
    bool widened; /* to fp32: a remainder with its parameter, codes with their scales. Else they are
                     as they lie; codes and scales only if the wanted box is the saved one, since
                     blocks of another begin elsewhere */
} zi_joined_from;

typedef zi_joined_from (*zi_joined_from_fn)(const zi_checkpoint_tensor *saved, const void *user);

typedef struct zi_joined {
    zi_source *source;
    uint32_t head; /* the first of the tensor's saved boxes: zi_source_find */
    zi_box wanted; /* of the same global shape */
    zi_joined_from_fn from;
    const void *user;       /* for that */
    unsigned char *staging; /* ZI_JOINED_STAGING_BYTES; needed by zi_joined_read alone */
    bool direct;            /* of long ranges: as zi_source_range's */
} zi_joined;

/* Elements of the wanted box that saved ones have. */
uint64_t zi_joined_covers(const zi_joined *joined);

/* How many elements of the wanted box, from `first` on and before `end`, lie alike when they are
 * read, and how: all of them unless boxes differ in it. They are covered. */
uint64_t zi_joined_alike(const zi_joined *joined, uint64_t first, uint64_t end, zi_codec *codec);

/* The place where an element of the wanted box is saved, and how many of those behind it follow it
 * there. It is covered. */
zi_source_range zi_joined_find(const zi_joined *joined, uint64_t element);

/* As zi_source_page_offset, of an element of the wanted box, which is covered. */
uint64_t zi_joined_page_offset(const zi_joined *joined, uint64_t element);

/* Values := so many elements of the wanted box, as zi_joined_alike says of all of them. They are
 * covered, and at most 8 MiB. counted: add each granule of a saved box whose first element is among
 * them to the source's balance; it has sums. Errors: those of zi_source_read.
 */
zero_status zi_joined_read(const zi_joined *joined, uint64_t first, uint64_t count, bool counted,
                           void *values);

/* Read again all pieces that have one of these elements, and compare each with its sum. Errors:
 * those of zi_source_check_range. */
zero_status zi_joined_check(const zi_joined *joined, uint64_t first, uint64_t count);

#endif
