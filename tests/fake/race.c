/* Owns the history of every byte that is watched.
 * Invariant: a region's intervals cover it without gaps, and accesses are noted in an order that
 * the lines allow, so an earlier one is ordered before a later one or they race. */
#include "race.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 48
#define TEXT_BYTES 400

typedef struct line_record {
    char name[NAME_BYTES];
    uint64_t before; /* number of the last operation of lines that had it before */
    uint64_t last;   /* of a closed one: number of the last operation */
    bool closed;
} line_record;

static race_region *regions;
static uint32_t regions_made;
static line_record *timelines;
static uint32_t timeline_count;
static uint64_t fault_count;
static uint64_t race_count;
static char fault_texts[RACE_TEXTS][TEXT_BYTES];

void *race_resize(void *pointer, size_t bytes)
{
    void *moved = realloc(pointer, bytes);
    if (moved == NULL) {
        (void)fprintf(stderr, "race detector: no memory for %zu bytes\n", bytes);
        abort();
    }
    return moved;
}

void *race_allocate(size_t bytes)
{
    return memset(race_resize(NULL, bytes), 0, bytes);
}

/* ---- faults ---- */

void race_fault(race_kind kind, const char *format, ...)
{
    static const char *const words[] = {[RACE_UNORDERED] = "race",
                                        [RACE_UNSET] = "unset",
                                        [RACE_CHANGED] = "changed",
                                        [RACE_MISUSE] = "misuse"};
    race_count += kind == RACE_UNORDERED;
    if (fault_count < RACE_TEXTS) {
        char *text = fault_texts[fault_count];
        const int head = snprintf(text, TEXT_BYTES, "%s: ", words[kind]);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(text + head, TEXT_BYTES - (size_t)head, format, arguments);
        va_end(arguments);
    }
    fault_count++;
}

void race_faults_clear(void)
{
    fault_count = 0;
    race_count = 0;
}

uint64_t race_faults(void)
{
    return fault_count;
}

uint64_t race_races(void)
{
    return race_count;
}

const char *race_fault_text(uint64_t index)
{
    return index < fault_count && index < RACE_TEXTS ? fault_texts[index] : "";
}

bool race_check(void)
{
    for (uint64_t i = 0; i < fault_count && i < RACE_TEXTS; i++) {
        (void)fprintf(stderr, "  %s\n", fault_texts[i]);
    }
    if (fault_count > RACE_TEXTS) {
        (void)fprintf(stderr, "  and %llu more\n", (unsigned long long)(fault_count - RACE_TEXTS));
    }
    return fault_count == 0;
}

/* ---- lines and clocks ---- */

static uint32_t timeline_new(void)
{
    timelines = race_resize(timelines, (timeline_count + 1) * sizeof timelines[0]);
    timelines[timeline_count] = (line_record){.closed = false};
    return timeline_count++;
}

void race_line_open(race_line *line, const char *name)
{
    uint32_t t = 0;
    while (t < timeline_count && !timelines[t].closed) {
        t++;
    }
    line->timeline = t < timeline_count ? t : timeline_new();
    line_record *own = &timelines[line->timeline];
    own->closed = false;
    own->before = own->last;
    line->number = own->last;
    race_line_rename(line, name);
}

void race_line_close(race_line *line)
{
    timelines[line->timeline].closed = true;
    timelines[line->timeline].last = line->number;
    free(line->clock.seen);
    line->clock = (race_clock){0};
}

void race_line_rename(const race_line *line, const char *name)
{
    (void)snprintf(timelines[line->timeline].name, NAME_BYTES, "%s", name);
}

race_access race_line_next(race_line *line, const char *what)
{
    race_clock_set(&line->clock, line->timeline, ++line->number);
    return (race_access){what, line->timeline, line->number};
}

bool race_line_settled(const race_line *line, const race_clock *clock)
{
    return race_clock_has(clock, line->timeline, line->number);
}

const char *race_line_name(uint32_t timeline)
{
    return timelines[timeline].name;
}

/* Room for a few texts at a time. */
static char *next_text(void)
{
    static char texts[4][TEXT_BYTES];
    static unsigned turn;
    return texts[turn++ % 4];
}

const char *race_access_text(race_access access)
{
    const line_record *own = &timelines[access.timeline];
    char *text = next_text();
    (void)snprintf(text, TEXT_BYTES, "%s #%llu of %s", access.what,
                   (unsigned long long)(access.number - own->before), own->name);
    return text;
}

bool race_clock_has(const race_clock *clock, uint32_t timeline, uint64_t number)
{
    return number == 0 || (timeline < clock->count && clock->seen[timeline] >= number);
}

static void clock_grow(race_clock *clock, uint32_t count)
{
    if (clock->count < count) {
        clock->seen = race_resize(clock->seen, count * sizeof clock->seen[0]);
        memset(clock->seen + clock->count, 0, (count - clock->count) * sizeof clock->seen[0]);
        clock->count = count;
    }
}

void race_clock_set(race_clock *clock, uint32_t timeline, uint64_t number)
{
    clock_grow(clock, timeline + 1);
    clock->seen[timeline] = number;
}

void race_clock_join(race_clock *clock, const race_clock *other)
{
    clock_grow(clock, other->count);
    for (uint32_t i = 0; i < other->count; i++) {
        if (clock->seen[i] < other->seen[i]) {
            clock->seen[i] = other->seen[i];
        }
    }
}

void race_clock_copy(race_clock *clock, const race_clock *other)
{
    if (clock->count > 0) {
        memset(clock->seen, 0, clock->count * sizeof clock->seen[0]);
    }
    race_clock_join(clock, other);
}

static bool ordered(const race_clock *clock, const race_access *access)
{
    return race_clock_has(clock, access->timeline, access->number);
}

/* ---- regions ---- */

race_region *race_region_add(void *base, size_t bytes, int device, const race_access *set_by)
{
    race_region *region = race_allocate(sizeof *region);
    region->base = base;
    region->bytes = bytes;
    region->device = device;
    region->number = ++regions_made;
    region->interval_count = 1;
    region->interval_room = 1;
    region->intervals = race_allocate(sizeof region->intervals[0]);
    region->intervals[0].end = bytes;
    if (set_by != NULL) {
        region->intervals[0].write = *set_by;
    }
    region->next = regions;
    regions = region;
    return region;
}

void race_region_remove(race_region *region)
{
    race_region **link = &regions;
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

race_region *race_region_of(const void *pointer)
{
    const uintptr_t address = (uintptr_t)pointer;
    for (race_region *region = regions; region != NULL; region = region->next) {
        const uintptr_t base = (uintptr_t)region->base;
        if (address >= base && address - base < region->bytes) {
            return region;
        }
    }
    return NULL;
}

const char *race_region_text(const race_region *region)
{
    char *text = next_text();
    (void)snprintf(text, TEXT_BYTES, "%s %u",
                   region->device == RACE_HOST ? "host range" : "allocation", region->number);
    return text;
}

static size_t offset_of(const race_region *region, const void *pointer)
{
    return (size_t)((uintptr_t)pointer - (uintptr_t)region->base);
}

race_region *race_region_of_range(const void *pointer, size_t bytes)
{
    race_region *region = race_region_of(pointer);
    const bool fits = region != NULL && bytes <= region->bytes - offset_of(region, pointer);
    return fits ? region : NULL;
}

uint64_t race_region_bytes(int device)
{
    uint64_t bytes = 0;
    for (const race_region *region = regions; region != NULL; region = region->next) {
        bytes += region->device == device ? region->bytes : 0;
    }
    return bytes;
}

uint64_t race_region_count(void)
{
    uint64_t count = 0;
    for (const race_region *region = regions; region != NULL; region = region->next) {
        count++;
    }
    return count;
}

/* ---- intervals ---- */

/* Index of the interval that holds the byte at `offset`. */
static size_t interval_at(const race_region *region, size_t offset)
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
static size_t split(race_region *region, size_t offset)
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
            race_resize(region->intervals, region->interval_room * sizeof region->intervals[0]);
    }
    race_interval *left = &region->intervals[at];
    memmove(left + 1, left, (region->interval_count - at) * sizeof *left);
    region->interval_count++;
    left->end = offset;
    left[1].first = offset;
    if (left->read_count > 0) {
        const size_t bytes = left->read_count * sizeof left->reads[0];
        left[1].reads = memcpy(race_allocate(bytes), left->reads, bytes);
    }
    return at + 1;
}

static void note_read(race_interval *interval, const race_clock *clock, race_access who)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < interval->read_count; i++) {
        /* A write that is ordered after `who` is ordered after what is ordered before `who`. */
        if (!ordered(clock, &interval->reads[i])) {
            interval->reads[kept++] = interval->reads[i];
        }
    }
    interval->reads = race_resize(interval->reads, (kept + 1) * sizeof interval->reads[0]);
    interval->reads[kept] = who;
    interval->read_count = kept + 1;
}

/* Intervals [begin, end) become one that `who` wrote. */
static void note_write(race_region *region, size_t begin, size_t end, race_access who)
{
    race_interval *first = &region->intervals[begin];
    for (size_t i = begin; i < end; i++) {
        free(region->intervals[i].reads);
    }
    *first = (race_interval){.first = first->first, .end = region->intervals[end - 1].end};
    first->write = who;
    memmove(first + 1, &region->intervals[end], (region->interval_count - end) * sizeof *first);
    region->interval_count -= end - begin - 1;
}

static void note(race_region *region, const race_clock *clock, race_access who,
                 const race_range *range)
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
    const race_region *region;
    race_access who;
    const race_range *range;
    race_access last; /* reported last: many intervals of one conflict are one race */
} finding;

static void report(finding *f, const race_interval *interval, const race_access *other,
                   bool other_writes)
{
    if (f->last.timeline == other->timeline && f->last.number == other->number) {
        return;
    }
    f->last = *other;
    const size_t offset = offset_of(f->region, f->range->pointer);
    const size_t end = offset + f->range->bytes;
    race_fault(RACE_UNORDERED,
               "%s %s bytes [%zu, %zu) of %s, which %s %s, and nothing orders the two",
               race_access_text(f->who), f->range->write ? "writes" : "reads",
               offset > interval->first ? offset : interval->first,
               end < interval->end ? end : interval->end, race_region_text(f->region),
               race_access_text(*other), other_writes ? "writes" : "reads");
}

static void check_interval(finding *f, const race_clock *clock, const race_interval *interval)
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

static void check(const race_region *region, const race_clock *clock, race_access who,
                  const race_range *range)
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
        race_fault(RACE_UNSET, "%s reads bytes [%zu, %zu) of %s, not all of which were ever set",
                   race_access_text(who), offset, offset + range->bytes, race_region_text(region));
    }
}

bool race_region_settled(const race_region *region, const race_range *range,
                         const race_clock *clock, bool reads, race_access *which)
{
    const size_t offset = offset_of(region, range->pointer);
    for (size_t i = interval_at(region, offset);
         i < region->interval_count && region->intervals[i].first < offset + range->bytes; i++) {
        const race_interval *interval = &region->intervals[i];
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

void race_note(const race_clock *clock, race_access who, const race_range *ranges,
               size_t range_count)
{
    /* All checks first: an operation that reads what it writes must find what was before. */
    for (int noting = 0; noting < 2; noting++) {
        for (size_t i = 0; i < range_count; i++) {
            race_region *region = ranges[i].bytes == 0
                                      ? NULL
                                      : race_region_of_range(ranges[i].pointer, ranges[i].bytes);
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
