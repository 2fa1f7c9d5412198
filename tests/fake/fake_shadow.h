/* What the fake knows of memory: regions, who wrote and read which bytes last, and the clocks that
 * say what is ordered before what. The caller holds the fake's lock. */
#ifndef TESTS_FAKE_FAKE_SHADOW_H
#define TESTS_FAKE_FAKE_SHADOW_H

#include "fake_cuda.h"

/* seen[t]: of timeline t everything up to this number is ordered before. Absent: 0. */
typedef struct fake_clock {
    uint32_t count;
    uint64_t *seen;
} fake_clock;

/* Timeline 0. */
#define FAKE_HOST_TIMELINE 0

/* One operation, or one access of the host. number is 0 for none. */
typedef struct fake_access {
    const char *what; /* static text */
    uint32_t timeline;
    uint64_t number; /* from 1 */
} fake_access;

/* Bytes [first, end) of a region that have the same history. */
typedef struct fake_interval {
    size_t first;
    size_t end;
    fake_access write;  /* none: never set */
    fake_access *reads; /* since then; none ordered before another */
    uint32_t read_count;
} fake_interval;

#define FAKE_DEVICE_NONE (-1)

/* An allocation of a device, or a registered range of the host. */
typedef struct fake_region {
    struct fake_region *next;
    unsigned char *base;
    size_t bytes;
    size_t mapped_bytes; /* of an allocation, the guard page included */
    uint32_t number;
    int device;   /* FAKE_DEVICE_NONE: the host's */
    bool by_copy; /* the host's, registered but not mapped: no kernel reaches it */
    size_t interval_count;
    size_t interval_room;
    fake_interval *intervals; /* ascending, without gaps */
} fake_region;

/* Memory for the fake's own tables; a test cannot go on without. */
void *fake_allocate(size_t bytes);
void *fake_resize(void *pointer, size_t bytes);

/* Makes the host's timeline, once. */
void fake_timelines_open(void);
uint32_t fake_timeline_add(const char *name);
void fake_timeline_rename(uint32_t timeline, const char *name);
/* Another stream goes on in a timeline, after operation `before`. */
void fake_timeline_go_on(uint32_t timeline, uint64_t before, const char *name);
const char *fake_timeline_name(uint32_t timeline);
/* For texts: an operation's number in its stream. */
unsigned long long fake_timeline_number(uint32_t timeline, uint64_t number);

bool fake_clock_has(const fake_clock *clock, uint32_t timeline, uint64_t number);
void fake_clock_set(fake_clock *clock, uint32_t timeline, uint64_t number);
void fake_clock_join(fake_clock *clock, const fake_clock *other);
void fake_clock_clear(fake_clock *clock);

/* set_by: whose write the whole region is at first; NULL: never set. */
fake_region *fake_region_add(void *base, size_t bytes, int device, const fake_access *set_by);
void fake_region_remove(fake_region *region);
/* The region that a pointer points into, or NULL. */
fake_region *fake_region_of(const void *pointer);
/* The same for all of a range; NULL when it reaches beyond. */
fake_region *fake_region_of_range(const void *pointer, size_t bytes);
uint64_t fake_region_count(void);
/* Of all regions of a device. */
uint64_t fake_region_bytes(int device);

/* True when every write to these bytes, and with `reads` every read, is in the clock; else *which
 * is one that is not. */
bool fake_region_settled(const fake_region *region, const fake_cuda_range *range,
                         const fake_clock *clock, bool reads, fake_access *which);

/* Check an operation's ranges against what came before, then note them. clock: of the operation,
 * itself included. Ranges outside any region are passed over. */
void fake_shadow_access(const fake_clock *clock, fake_access who, const fake_cuda_range *ranges,
                        size_t range_count);

typedef enum fake_fault_kind { FAKE_RACE, FAKE_UNSET, FAKE_CHANGED, FAKE_MISUSE } fake_fault_kind;
__attribute__((format(printf, 2, 3))) void fake_fault(fake_fault_kind kind, const char *format,
                                                      ...);
void fake_faults_clear(void);

#endif
