/* Owns the history of every byte that operations of the fake declare.
 * Invariant: a region's intervals cover it without gaps, and accesses are noted in the order in
 * which they were enqueued, so an earlier one is ordered before a later one or they race. */
#include "fake_shadow.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 48
#define TEXT_BYTES 400

typedef struct fake_timeline {
    char name[NAME_BYTES];
    uint64_t before; /* number of the last operation of streams that had it before */
} fake_timeline;

static fake_region *regions;
static uint32_t regions_made;
static fake_timeline *timelines;
static uint32_t timeline_count;
static uint64_t fault_count;
static uint64_t race_count;
static char fault_texts[FAKE_CUDA_TEXTS][TEXT_BYTES];

void *fake_resize(void *pointer, size_t bytes)
{
    void *moved = realloc(pointer, bytes);
    if (moved == NULL) {
        (void)fprintf(stderr, "fake CUDA: no memory for %zu bytes of its own\n", bytes);
        abort();
    }
    return moved;
}

void *fake_allocate(size_t bytes)
{
    return memset(fake_resize(NULL, bytes), 0, bytes);
}

/* ---- faults ---- */

void fake_fault(fake_fault_kind kind, const char *format, ...)
{
    static const char *const words[] = {[FAKE_RACE] = "race",
                                        [FAKE_UNSET] = "unset",
                                        [FAKE_CHANGED] = "changed",
                                        [FAKE_MISUSE] = "misuse"};
    race_count += kind == FAKE_RACE;
    if (fault_count < FAKE_CUDA_TEXTS) {
        char *text = fault_texts[fault_count];
        const int head = snprintf(text, TEXT_BYTES, "%s: ", words[kind]);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(text + head, TEXT_BYTES - (size_t)head, format, arguments);
        va_end(arguments);
    }
    fault_count++;
}

void fake_faults_clear(void)
{
    fault_count = 0;
    race_count = 0;
}

uint64_t fake_cuda_faults(void)
{
    return fault_count;
}

uint64_t fake_cuda_races(void)
{
    return race_count;
}

const char *fake_cuda_fault_text(uint64_t index)
{
    return index < fault_count && index < FAKE_CUDA_TEXTS ? fault_texts[index] : "";
}

bool fake_cuda_check(void)
{
    for (uint64_t i = 0; i < fault_count && i < FAKE_CUDA_TEXTS; i++) {
        (void)fprintf(stderr, "  %s\n", fault_texts[i]);
    }
    if (fault_count > FAKE_CUDA_TEXTS) {
        (void)fprintf(stderr, "  and %llu more\n",
                      (unsigned long long)(fault_count - FAKE_CUDA_TEXTS));
    }
    return fault_count == 0;
}

/* ---- timelines and clocks ---- */

void fake_timelines_open(void)
{
    if (timeline_count == 0) {
        (void)fake_timeline_add("the host");
    }
}

uint32_t fake_timeline_add(const char *name)
{
    timelines = fake_resize(timelines, (timeline_count + 1) * sizeof timelines[0]);
    fake_timeline_go_on(timeline_count, 0, name);
    return timeline_count++;
}

void fake_timeline_rename(uint32_t timeline, const char *name)
{
    (void)snprintf(timelines[timeline].name, NAME_BYTES, "%s", name);
}

void fake_timeline_go_on(uint32_t timeline, uint64_t before, const char *name)
{
    timelines[timeline].before = before;
    fake_timeline_rename(timeline, name);
}

const char *fake_timeline_name(uint32_t timeline)
{
    return timelines[timeline].name;
}

unsigned long long fake_timeline_number(uint32_t timeline, uint64_t number)
{
    return number - timelines[timeline].before;
}

bool fake_clock_has(const fake_clock *clock, uint32_t timeline, uint64_t number)
{
    return number == 0 || (timeline < clock->count && clock->seen[timeline] >= number);
}

static void clock_grow(fake_clock *clock, uint32_t count)
{
    if (clock->count < count) {
        clock->seen = fake_resize(clock->seen, count * sizeof clock->seen[0]);
        memset(clock->seen + clock->count, 0, (count - clock->count) * sizeof clock->seen[0]);
        clock->count = count;
    }
}

void fake_clock_set(fake_clock *clock, uint32_t timeline, uint64_t number)
{
    clock_grow(clock, timeline + 1);
    clock->seen[timeline] = number;
}

void fake_clock_join(fake_clock *clock, const fake_clock *other)
{
    clock_grow(clock, other->count);
    for (uint32_t i = 0; i < other->count; i++) {
        if (clock->seen[i] < other->seen[i]) {
            clock->seen[i] = other->seen[i];
        }
    }
}

void fake_clock_clear(fake_clock *clock)
{
    if (clock->count > 0) {
        memset(clock->seen, 0, clock->count * sizeof clock->seen[0]);
    }
}

static bool ordered(const fake_clock *clock, const fake_access *access)
{
    return fake_clock_has(clock, access->timeline, access->number);
}

/* ---- regions ---- */

fake_region *fake_region_add(void *base, size_t bytes, int device, const fake_access *set_by)
{
    fake_region *region = fake_allocate(sizeof *region);
    region->base = base;
    region->bytes = bytes;
    region->device = device;
    region->number = ++regions_made;
    region->interval_count = 1;
    region->interval_room = 1;
    region->intervals = fake_allocate(sizeof region->intervals[0]);
    region->intervals[0].end = bytes;
    if (set_by != NULL) {
        region->intervals[0].write = *set_by;
    }
    region->next = regions;
    regions = region;
    return region;
}

void fake_region_remove(fake_region *region)
{
    fake_region **link = &regions;
    while (*link != region) {
        link = &(*link)->next;
    }
    *link = region->next;
    for (size_t i = 0; i < region->interval_count; i++) {
        free(region->intervals[i].reads);
    }
    free(region->intervals);
    free(region);
}

fake_region *fake_region_of(const void *pointer)
{
    const uintptr_t address = (uintptr_t)pointer;
    for (fake_region *region = regions; region != NULL; region = region->next) {
        const uintptr_t base = (uintptr_t)region->base;
        if (address >= base && address - base < region->bytes) {
            return region;
        }
    }
    return NULL;
}

static size_t offset_of(const fake_region *region, const void *pointer)
{
    return (size_t)((uintptr_t)pointer - (uintptr_t)region->base);
}

fake_region *fake_region_of_range(const void *pointer, size_t bytes)
{
    fake_region *region = fake_region_of(pointer);
    const bool fits = region != NULL && bytes <= region->bytes - offset_of(region, pointer);
    return fits ? region : NULL;
}

uint64_t fake_region_bytes(int device)
{
    uint64_t bytes = 0;
    for (const fake_region *region = regions; region != NULL; region = region->next) {
        bytes += region->device == device ? region->bytes : 0;
    }
    return bytes;
}

uint64_t fake_region_count(void)
{
    uint64_t count = 0;
    for (const fake_region *region = regions; region != NULL; region = region->next) {
        count++;
    }
    return count;
}

/* ---- intervals ---- */

/* Index of the interval that holds the byte at `offset`. */
static size_t interval_at(const fake_region *region, size_t offset)
{
    size_t low = 0;
    size_t high = region->interval_count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (region->intervals[middle].first <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Index of the interval that begins at `offset`, made if there is none; the count at the end. */
static size_t split(fake_region *region, size_t offset)
{
    if (offset == region->bytes) {
        return region->interval_count;
    }
    const size_t at = interval_at(region, offset);
    if (region->intervals[at].first == offset) {
        return at;
    }
    if (region->interval_count == region->interval_room) {
        region->interval_room *= 2;
        region->intervals =
            fake_resize(region->intervals, region->interval_room * sizeof region->intervals[0]);
    }
    fake_interval *left = &region->intervals[at];
    memmove(left + 1, left, (region->interval_count - at) * sizeof *left);
    region->interval_count++;
    left->end = offset;
    left[1].first = offset;
    if (left->read_count > 0) {
        const size_t bytes = left->read_count * sizeof left->reads[0];
        left[1].reads = memcpy(fake_allocate(bytes), left->reads, bytes);
    }
    return at + 1;
}

static void note_read(fake_interval *interval, const fake_clock *clock, fake_access who)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < interval->read_count; i++) {
        /* A write that is ordered after `who` is ordered after what is ordered before `who`. */
        if (!ordered(clock, &interval->reads[i])) {
            interval->reads[kept++] = interval->reads[i];
        }
    }
    interval->reads = fake_resize(interval->reads, (kept + 1) * sizeof interval->reads[0]);
    interval->reads[kept] = who;
    interval->read_count = kept + 1;
}

/* Intervals [begin, end) become one that `who` wrote. */
static void note_write(fake_region *region, size_t begin, size_t end, fake_access who)
{
    fake_interval *first = &region->intervals[begin];
    for (size_t i = begin; i < end; i++) {
        free(region->intervals[i].reads);
    }
    *first = (fake_interval){.first = first->first, .end = region->intervals[end - 1].end};
    first->write = who;
    memmove(first + 1, &region->intervals[end], (region->interval_count - end) * sizeof *first);
    region->interval_count -= end - begin - 1;
}

static void note(fake_region *region, const fake_clock *clock, fake_access who,
                 const fake_cuda_range *range)
{
    const size_t offset = offset_of(region, range->pointer);
    const size_t begin = split(region, offset);
    const size_t end = split(region, offset + range->bytes);
    if (range->write) {
        note_write(region, begin, end, who);
        return;
    }
    for (size_t i = begin; i < end; i++) {
        note_read(&region->intervals[i], clock, who);
    }
}

/* ---- checks ---- */

/* One operation against a region; where it was found. */
typedef struct finding {
    const fake_region *region;
    fake_access who;
    const fake_cuda_range *range;
    fake_access last; /* reported last: many intervals of one conflict are one race */
} finding;

static void report(finding *f, const fake_interval *interval, const fake_access *other,
                   bool other_writes)
{
    if (f->last.timeline == other->timeline && f->last.number == other->number) {
        return;
    }
    f->last = *other;
    const size_t offset = offset_of(f->region, f->range->pointer);
    const size_t end = offset + f->range->bytes;
    fake_fault(FAKE_RACE,
               "%s #%llu of %s %s bytes [%zu, %zu) of %s %u, which %s #%llu of %s %s, and nothing "
               "orders the two",
               f->who.what, fake_timeline_number(f->who.timeline, f->who.number),
               fake_timeline_name(f->who.timeline), f->range->write ? "writes" : "reads",
               offset > interval->first ? offset : interval->first,
               end < interval->end ? end : interval->end,
               f->region->device == FAKE_DEVICE_NONE ? "host range" : "allocation",
               f->region->number, other->what, fake_timeline_number(other->timeline, other->number),
               fake_timeline_name(other->timeline), other_writes ? "writes" : "reads");
}

static void check_interval(finding *f, const fake_clock *clock, const fake_interval *interval)
{
    if (interval->write.number != 0 && !ordered(clock, &interval->write)) {
        report(f, interval, &interval->write, true);
    }
    for (uint32_t i = 0; f->range->write && i < interval->read_count; i++) {
        if (!ordered(clock, &interval->reads[i])) {
            report(f, interval, &interval->reads[i], false);
        }
    }
}

static void check(const fake_region *region, const fake_clock *clock, fake_access who,
                  const fake_cuda_range *range)
{
    finding f = {.region = region, .who = who, .range = range};
    const size_t offset = offset_of(region, range->pointer);
    bool unset = false;
    for (size_t i = interval_at(region, offset);
         i < region->interval_count && region->intervals[i].first < offset + range->bytes; i++) {
        check_interval(&f, clock, &region->intervals[i]);
        unset = unset || region->intervals[i].write.number == 0;
    }
    if (unset && !range->write) {
        fake_fault(FAKE_UNSET,
                   "%s #%llu of %s reads bytes [%zu, %zu) of allocation %u, not all of "
                   "which were ever set",
                   who.what, fake_timeline_number(who.timeline, who.number),
                   fake_timeline_name(who.timeline), offset, offset + range->bytes, region->number);
    }
}

bool fake_region_settled(const fake_region *region, const fake_cuda_range *range,
                         const fake_clock *clock, bool reads, fake_access *which)
{
    const size_t offset = offset_of(region, range->pointer);
    for (size_t i = interval_at(region, offset);
         i < region->interval_count && region->intervals[i].first < offset + range->bytes; i++) {
        const fake_interval *interval = &region->intervals[i];
        *which = interval->write;
        bool settled = ordered(clock, which);
        for (uint32_t r = 0; settled && reads && r < interval->read_count; r++) {
            *which = interval->reads[r];
            settled = ordered(clock, which);
        }
        if (!settled) {
            return false;
        }
    }
    return true;
}

void fake_shadow_access(const fake_clock *clock, fake_access who, const fake_cuda_range *ranges,
                        size_t range_count)
{
    /* All checks first: an operation that reads what it writes must find what was before. */
    for (int noting = 0; noting < 2; noting++) {
        for (size_t i = 0; i < range_count; i++) {
            fake_region *region = ranges[i].bytes == 0
                                      ? NULL
                                      : fake_region_of_range(ranges[i].pointer, ranges[i].bytes);
            if (region == NULL) {
                continue;
            }
            if (noting) {
                note(region, clock, who, &ranges[i]);
            } else {
                check(region, clock, who, &ranges[i]);
            }
        }
    }
}
