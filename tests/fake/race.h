/* A race detector: two accesses to the same bytes, of which one writes, must be ordered. Order is
 * kept by vector clocks, so a verdict depends on what waits for what and not on what ran when.
 *
 * A line is what does things in order: a stream, or a thread of the host. Who waits for a line
 * joins its clock. The detector knows nothing of what runs or why; the CUDA runtime's double
 * (fake_cuda.h) and the checked device (checked_device.h) tell it. It has no lock: they hold one of
 * their own. */
#ifndef TESTS_FAKE_RACE_H
#define TESTS_FAKE_RACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* seen[t]: of timeline t everything up to this number is ordered before. Absent: 0. */
typedef struct race_clock {
    uint32_t count;
    uint64_t *seen;
} race_clock;

/* Zeroed before it is opened. */
typedef struct race_line {
    uint32_t timeline;
    uint64_t number;  /* of its last operation, from 1 */
    race_clock clock; /* of that */
} race_line;

/* One operation of a line. number is 0 for none. */
typedef struct race_access {
    const char *what; /* static text */
    uint32_t timeline;
    uint64_t number;
} race_access;

/* Memory that an operation touches. Bytes that are read and written stand in a list twice. */
typedef struct race_range {
    const void *pointer;
    size_t bytes; /* 0: nothing */
    bool write;
} race_range;

/* Bytes [first, end) of a region that have the same history. */
typedef struct race_interval {
    size_t first;
    size_t end;
    race_access write;  /* none: never set */
    race_access *reads; /* since then; none ordered before another */
    uint32_t read_count;
} race_interval;

#define RACE_HOST (-1)

/* Memory that is watched: a device's, or the host's. */
typedef struct race_region {
    struct race_region *next;
    unsigned char *base;
    size_t bytes;
    size_t mapped_bytes; /* for its owner */
    bool guarded;        /* likewise */
    uint32_t number;
    int device;   /* RACE_HOST: the host's */
    bool by_copy; /* for its owner: the host's, and no kernel reaches it */
    size_t interval_count;
    size_t interval_room;
    race_interval *intervals; /* ascending, without gaps */
} race_region;

/* Zeroed memory for tables; a test cannot go on without. */
void *race_allocate(size_t bytes);
void *race_resize(void *pointer, size_t bytes);

/* A line may go on in the timeline of one that is closed, so that clocks are as long as the lines
 * that a test has at once. name: copied. */
void race_line_open(race_line *line, const char *name);
/* All that it did is known to whoever opens the next. */
void race_line_close(race_line *line);
void race_line_rename(const race_line *line, const char *name);
/* Its next operation. */
race_access race_line_next(race_line *line, const char *what);
/* True if all of a line is ordered before. */
bool race_line_settled(const race_line *line, const race_clock *clock);
const char *race_line_name(uint32_t timeline);
/* "WHAT #NUMBER of LINE", good for the next three calls. */
const char *race_access_text(race_access access);

bool race_clock_has(const race_clock *clock, uint32_t timeline, uint64_t number);
void race_clock_set(race_clock *clock, uint32_t timeline, uint64_t number);
void race_clock_join(race_clock *clock, const race_clock *other);
void race_clock_copy(race_clock *clock, const race_clock *other);

/* set_by: whose write the whole region is at first; NULL: never set. */
race_region *race_region_add(void *base, size_t bytes, int device, const race_access *set_by);
void race_region_remove(race_region *region);
/* The region that a pointer points into, or NULL. */
race_region *race_region_of(const void *pointer);
/* The same for all of a range; NULL when it reaches beyond. */
race_region *race_region_of_range(const void *pointer, size_t bytes);
uint64_t race_region_count(void);
/* Of all regions of a device. */
uint64_t race_region_bytes(int device);
/* "allocation 3", "host range 3": as race_access_text. */
const char *race_region_text(const race_region *region);

/* True when every write to these bytes, and with `reads` every read, is in the clock; else *which
 * is one that is not. */
bool race_region_settled(const race_region *region, const race_range *range,
                         const race_clock *clock, bool reads, race_access *which);

/* Check an operation's ranges against what came before, then note them. clock: of the operation,
 * itself included. Ranges outside any region are passed over. */
void race_note(const race_clock *clock, race_access who, const race_range *ranges,
               size_t range_count);

/* The faults so far: races ("race: ..."), reads of memory never set ("unset: ..."), host memory
 * changed under a pending operation ("changed: ...") and wrong use ("misuse: ..."). Texts are kept
 * for the first RACE_TEXTS. */
typedef enum race_kind { RACE_UNORDERED, RACE_UNSET, RACE_CHANGED, RACE_MISUSE } race_kind;
#define RACE_TEXTS 32
__attribute__((format(printf, 2, 3))) void race_fault(race_kind kind, const char *format, ...);
uint64_t race_faults(void);
uint64_t race_races(void); /* the races among them */
const char *race_fault_text(uint64_t index);
/* True when there are none; prints them. For CHECK at the end of a test. */
bool race_check(void);
void race_faults_clear(void);

#endif
