/* A backend that runs segments through the posix one and lies about, delays or breaks some of them.
 */
#ifndef TESTS_STORAGE_FAULTY_BACKEND_H
#define TESTS_STORAGE_FAULTY_BACKEND_H

#include "storage/io_backend.h"

typedef enum faulty_kind {
    FAULTY_NONE = 0,
    FAULTY_SHORT,  /* moves half, in whole blocks where it can */
    FAULTY_TORN,   /* moves some bytes that end inside a block */
    FAULTY_NOTHING /* says 0: the end of the file */
    /* Greater values: the segment is not run and fails with faulty.code. */
} faulty_kind;
#define FAULTY_ERRNO 100 /* + errno */

#define FAULTY_PIECES_MAX 1024

typedef struct faulty {
    zi_io_backend inner;
    int nth;          /* this segment, from 1, and no other; 0: by chance */
    int kind;         /* of its fault */
    uint32_t percent; /* by chance: of segments that meet a fault that can be mended */
    bool always;      /* every segment meets `kind` */
    bool shuffle;     /* complete in any order, some late */
    int hold_file;    /* segments of this file do not come back; -1: none */
    bool late;        /* segments come back to who waits for them only, never to who looks */
    int broken;       /* reap fails with this errno; 0: it does not */
    uint64_t seed;
    /* Counts. */
    int segments;
    int faults;
    uint32_t out;
    uint32_t out_max;
    uint32_t file_out[ZI_STORE_DIRECTORIES_MAX];
    uint32_t file_out_max;
    /* The segments that are out: each one's length as asked, and whether it is complete here. */
    zi_io_segment *segment[FAULTY_PIECES_MAX];
    uint32_t bytes[FAULTY_PIECES_MAX];
    bool complete[FAULTY_PIECES_MAX];
} faulty;

/* Zeroed but for what the test asks; *backend is for zi_io_options. */
void faulty_open(faulty *self, const zi_store *store, zi_io_backend *backend);

#endif
