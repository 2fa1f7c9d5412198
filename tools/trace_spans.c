/* Owns the arithmetic of sets of times. */
#include "trace_spans.h"

#include <stdlib.h>
#include <string.h>

bool trace_is_hook(const trace_rank *rank, const trace_span *span)
{
    return span->track == rank->hooks;
}

static bool is_exchange(const trace_rank *rank, const trace_span *span)
{
    (void)rank;
    return span->group != NULL;
}

static bool is_transfer(const trace_rank *rank, const trace_span *span)
{
    (void)rank;
    return strcmp(span->category, "read") == 0 || strcmp(span->category, "write") == 0;
}

static bool is_wait(const trace_rank *rank, const trace_span *span)
{
    (void)rank;
    return strcmp(span->category, "disk wait") == 0;
}

static bool is_update(const trace_rank *rank, const trace_span *span)
{
    (void)rank;
    return strcmp(span->category, "update") == 0;
}

static int compare(const void *left, const void *right)
{
    const trace_times *a = left;
    const trace_times *b = right;
    return a->begin_ns < b->begin_ns ? -1 : a->begin_ns > b->begin_ns;
}

static void unite(trace_set *set)
{
    size_t count = 0;
    if (set->count != 0) {
        qsort(set->at, set->count, sizeof *set->at, compare);
    }
    for (size_t i = 0; i < set->count; i++) {
        trace_times *last = count != 0 ? &set->at[count - 1] : NULL;
        if (last == NULL || set->at[i].begin_ns > last->end_ns) {
            set->at[count++] = set->at[i];
        } else if (set->at[i].end_ns > last->end_ns) {
            last->end_ns = set->at[i].end_ns;
        }
    }
    set->count = count;
}

static bool make_room(trace_set *set, size_t count)
{
    *set = (trace_set){.at = calloc(count + 1, sizeof *set->at)};
    return set->at != NULL;
}

static bool select_spans(const trace_rank *rank,
                         bool (*is)(const trace_rank *rank, const trace_span *span), trace_set *set)
{
    if (!make_room(set, rank->span_count)) {
        return false;
    }
    for (size_t i = 0; i < rank->span_count; i++) {
        const trace_span *span = &rank->spans[i];
        if (is(rank, span)) {
            set->at[set->count++] =
                (trace_times){span->begin_ns - rank->offset_ns, span->end_ns - rank->offset_ns};
        }
    }
    unite(set);
    return true;
}

/* Between the first time of `within` and the last, what the set does not cover. */
static bool invert(const trace_set *set, const trace_set *within, trace_set *out)
{
    if (!make_room(out, set->count + 1)) {
        return false;
    }
    if (within->count == 0) {
        return true;
    }
    int64_t at = within->at[0].begin_ns;
    const int64_t end = within->at[within->count - 1].end_ns;
    for (size_t i = 0; i < set->count && at < end; i++) {
        const int64_t until = set->at[i].begin_ns < end ? set->at[i].begin_ns : end;
        if (until > at) {
            out->at[out->count++] = (trace_times){at, until};
        }
        at = set->at[i].end_ns > at ? set->at[i].end_ns : at;
    }
    if (at < end) {
        out->at[out->count++] = (trace_times){at, end};
    }
    return true;
}

static bool intersect(const trace_set *a, const trace_set *b, trace_set *out)
{
    size_t i = 0;
    size_t k = 0;
    if (!make_room(out, a->count + b->count)) {
        return false;
    }
    while (i < a->count && k < b->count) {
        const trace_times *x = &a->at[i];
        const trace_times *y = &b->at[k];
        const int64_t begin = x->begin_ns > y->begin_ns ? x->begin_ns : y->begin_ns;
        const int64_t end = x->end_ns < y->end_ns ? x->end_ns : y->end_ns;
        if (begin < end) {
            out->at[out->count++] = (trace_times){begin, end};
        }
        if (x->end_ns < y->end_ns) {
            i++;
        } else {
            k++;
        }
    }
    return true;
}

/* The caller's compute, and updates while nothing waits for a disk. */
static bool make_busy(const trace_set *compute, const trace_set *updates, const trace_set *waits,
                      trace_set *out)
{
    trace_set running = {0};
    trace_set not_waiting = {0};
    const bool good = invert(waits, updates, &not_waiting) &&
                      intersect(updates, &not_waiting, &running) &&
                      make_room(out, running.count + compute->count);
    if (good) {
        memcpy(out->at, running.at, running.count * sizeof *out->at);
        memcpy(out->at + running.count, compute->at, compute->count * sizeof *out->at);
        out->count = running.count + compute->count;
        unite(out);
    }
    free(running.at);
    free(not_waiting.at);
    return good;
}

bool trace_sets_make(const trace_rank *rank, trace_sets *sets)
{
    trace_set updates = {0};
    trace_set waits = {0};
    memset(sets, 0, sizeof *sets);
    const bool good = select_spans(rank, trace_is_hook, &sets->waiting) &&
                      select_spans(rank, is_exchange, &sets->exchanges) &&
                      select_spans(rank, is_transfer, &sets->transfers) &&
                      select_spans(rank, is_update, &updates) &&
                      select_spans(rank, is_wait, &waits) &&
                      invert(&sets->waiting, &sets->waiting, &sets->compute) &&
                      make_busy(&sets->compute, &updates, &waits, &sets->busy);
    free(updates.at);
    free(waits.at);
    return good;
}

void trace_sets_free(trace_sets *sets)
{
    free(sets->waiting.at);
    free(sets->compute.at);
    free(sets->busy.at);
    free(sets->exchanges.at);
    free(sets->transfers.at);
}

/* The first times of the set that end after `ns`. */
static size_t seek(const trace_set *set, int64_t ns)
{
    size_t low = 0;
    size_t high = set->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (set->at[middle].end_ns <= ns) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int64_t trace_covered(const trace_set *set, const trace_set *other, trace_times during)
{
    int64_t covered = 0;
    for (size_t i = seek(set, during.begin_ns);
         i < set->count && set->at[i].begin_ns < during.end_ns; i++) {
        const trace_times *times = &set->at[i];
        const trace_times part = {times->begin_ns > during.begin_ns ? times->begin_ns
                                                                    : during.begin_ns,
                                  times->end_ns < during.end_ns ? times->end_ns : during.end_ns};
        covered += other != NULL ? trace_covered(other, NULL, part) : part.end_ns - part.begin_ns;
    }
    return covered;
}
