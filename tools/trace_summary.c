/* Owns the figures of a summary. A step ends when the call zero_step returns on the caller's
 * stream; what it left to other streams overlaps the next. */
#include "trace_summary.h"

#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* ---- steps ---- */

static bool is_step(const trace_rank *rank, const trace_span *span)
{
    return trace_is_hook(rank, span) && strcmp(span->category, "step") == 0;
}

static size_t count_steps(const trace_rank *rank)
{
    size_t count = 0;
    for (size_t i = 0; i < rank->span_count; i++) {
        count += is_step(rank, &rank->spans[i]);
    }
    return count;
}

/* The times of a rank's last `count` steps, between the ends of calls. */
static void list_steps(const trace_rank *rank, const trace_sets *sets, size_t count,
                       trace_times *steps)
{
    const size_t skipped = count_steps(rank) - count;
    int64_t begin_ns = count != 0 ? sets->waiting.at[0].begin_ns : 0;
    size_t found = 0;
    for (size_t i = 0; i < rank->span_count; i++) {
        if (is_step(rank, &rank->spans[i])) {
            const int64_t end_ns = rank->spans[i].end_ns - rank->offset_ns;
            if (found >= skipped) {
                steps[found - skipped] = (trace_times){begin_ns, end_ns};
            }
            begin_ns = end_ns;
            found++;
        }
    }
}

static void add_step(const trace_sets *sets, trace_times during, trace_step *step)
{
    const int64_t time = during.end_ns - during.begin_ns;
    step->time = time > step->time ? time : step->time;
    step->compute += trace_covered(&sets->compute, NULL, during);
    step->exposed += trace_covered(&sets->waiting, NULL, during);
    step->exchange += trace_covered(&sets->exchanges, NULL, during);
    step->exchange_hidden += trace_covered(&sets->exchanges, &sets->busy, during);
    step->disk += trace_covered(&sets->transfers, NULL, during);
    step->disk_hidden += trace_covered(&sets->transfers, &sets->busy, during);
}

static void divide_step(trace_step *step, int64_t by)
{
    step->compute /= by;
    step->exposed /= by;
    step->exchange /= by;
    step->exchange_hidden /= by;
    step->disk /= by;
    step->disk_hidden /= by;
}

static void take_mean(trace_figures *figures)
{
    trace_step *mean = &figures->mean;
    for (size_t i = 0; i < figures->step_count; i++) {
        const trace_step *step = &figures->steps[i];
        mean->time += step->time;
        mean->compute += step->compute;
        mean->exposed += step->exposed;
        mean->exchange += step->exchange;
        mean->exchange_hidden += step->exchange_hidden;
        mean->disk += step->disk;
        mean->disk_hidden += step->disk_hidden;
    }
    if (figures->step_count != 0) {
        mean->time /= (int64_t)figures->step_count;
        divide_step(mean, (int64_t)figures->step_count);
    }
}

/* ---- units ---- */

/* Units come in about the same order again and again: look behind the one found last first. */
static trace_unit *unit_of(trace_figures *figures, const char *name, size_t *hint)
{
    for (size_t i = 0; i < figures->unit_count; i++) {
        const size_t at = (*hint + i) % figures->unit_count;
        if (strcmp(figures->units[at].name, name) == 0) {
            *hint = at;
            return &figures->units[at];
        }
    }
    figures->units[figures->unit_count] = (trace_unit){.name = name};
    *hint = figures->unit_count;
    return &figures->units[figures->unit_count++];
}

static bool acquires(const trace_span *hook)
{
    return strstr(hook->category, "acquire") != NULL;
}

static bool is_of_unit(const trace_span *span)
{
    return span->of[0] != '\0' && strncmp(span->category, "micro", 5) != 0 &&
           strcmp(span->of, "the step") != 0;
}

static void add_span(trace_unit *unit, const trace_rank *rank, const trace_span *span)
{
    const int64_t time = span->end_ns - span->begin_ns;
    if (trace_is_hook(rank, span)) {
        unit->exposed += time;
    } else if (span->group != NULL && strcmp(span->category, "gather") == 0) {
        unit->gather += time;
    } else if (span->group != NULL) {
        unit->reduce += time;
    } else if (strcmp(span->category, "update") == 0) {
        unit->update += time;
    }
}

/* A rank's spans that begin during its counted steps; they are sorted by track and time. */
static void add_units(trace_figures *figures, const trace_rank *rank, trace_times during)
{
    const trace_span *last = NULL; /* hook; spans within it are skipped */
    size_t hint = 0;
    for (size_t i = 0; i < rank->span_count; i++) {
        const trace_span *span = &rank->spans[i];
        const int64_t begin_ns = span->begin_ns - rank->offset_ns;
        const bool hook = trace_is_hook(rank, span);
        if (begin_ns < during.begin_ns || begin_ns >= during.end_ns ||
            (hook && last != NULL && span->begin_ns < last->end_ns)) {
            continue;
        }
        if (hook && last != NULL && acquires(last) && is_of_unit(last)) {
            unit_of(figures, last->of, &hint)->compute += span->begin_ns - last->end_ns;
        }
        last = hook ? span : last;
        if (is_of_unit(span) && strcmp(span->category, "read") != 0 &&
            strcmp(span->category, "write") != 0 && strcmp(span->category, "disk wait") != 0) {
            add_span(unit_of(figures, span->of, &hint), rank, span);
        }
    }
}

static int compare_units(const void *left, const void *right)
{
    const trace_unit *a = left;
    const trace_unit *b = right;
    return a->exposed > b->exposed ? -1 : a->exposed < b->exposed ? 1 : strcmp(a->name, b->name);
}

static void finish_units(trace_figures *figures)
{
    const int64_t by = (int64_t)(figures->step_count * figures->rank_count);
    for (size_t i = 0; i < figures->unit_count && by != 0; i++) {
        trace_unit *unit = &figures->units[i];
        unit->exposed /= by;
        unit->compute /= by;
        unit->gather /= by;
        unit->reduce /= by;
        unit->update /= by;
    }
    if (figures->unit_count != 0) {
        qsort(figures->units, figures->unit_count, sizeof *figures->units, compare_units);
    }
}

const char *trace_bottleneck(const trace_unit *unit)
{
    const struct {
        const char *name;
        int64_t time;
    } terms[] = {{"compute", unit->compute},
                 {"gather", unit->gather},
                 {"reduce", unit->reduce},
                 {"update", unit->update}};
    size_t longest = 0;
    for (size_t i = 1; i < sizeof terms / sizeof terms[0]; i++) {
        longest = terms[i].time > terms[longest].time ? i : longest;
    }
    return terms[longest].time > 0 ? terms[longest].name : "-";
}

/* ---- collectives ---- */

/* A rank comes to a collective. */
typedef struct coming {
    const trace_span *span;
    uint64_t part; /* of the model; 0 for collectives between the parts */
    size_t rank;
    int64_t at_ns;
} coming;

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* 0: the same collective. */
static int compare_keys(const coming *a, const coming *b)
{
    int order = strcmp(a->span->group, b->span->group);
    order = order != 0 ? order : compare_numbers(a->part, b->part);
    order = order != 0 ? order : compare_numbers(a->span->leader, b->span->leader);
    return order != 0 ? order : compare_numbers(a->span->batch, b->span->batch);
}

static int compare_comings(const void *left, const void *right)
{
    const coming *a = left;
    const coming *b = right;
    const int order = compare_keys(a, b);
    return order != 0             ? order
           : a->at_ns != b->at_ns ? (a->at_ns < b->at_ns ? -1 : 1)
                                  : compare_numbers(a->rank, b->rank);
}

/* All members of a collective, by when they came. */
static void add_collective(trace_figures *figures, const coming *comings, size_t count)
{
    const coming *last = &comings[count - 1];
    int64_t waited = 0;
    for (size_t i = 0; i + 1 < count; i++) {
        waited += last->at_ns - comings[i].at_ns;
    }
    figures->collectives++;
    figures->arrivals[last->rank].last += waited > 0;
    figures->arrivals[last->rank].waited += waited / (int64_t)(count - 1);
}

static size_t list_comings(const trace_figures *figures, coming *comings)
{
    size_t count = 0;
    for (size_t r = 0; r < figures->rank_count; r++) {
        const trace_rank *rank = &figures->ranks[r];
        for (size_t i = 0; i < rank->span_count; i++) {
            const trace_span *span = &rank->spans[i];
            if (span->group != NULL) {
                const bool between = strcmp(span->group, "mesh") == 0;
                comings[count++] =
                    (coming){span, between ? 0 : rank->part, r, span->begin_ns - rank->offset_ns};
            }
        }
    }
    return count;
}

static void compare_arrivals(trace_figures *figures, coming *comings)
{
    const size_t count = list_comings(figures, comings);
    if (count != 0) {
        qsort(comings, count, sizeof *comings, compare_comings);
    }
    for (size_t i = 0; i < count;) {
        size_t end = i + 1;
        while (end < count && compare_keys(&comings[i], &comings[end]) == 0) {
            end++;
        }
        if (end - i > 1 && end - i == comings[i].span->ranks) {
            add_collective(figures, &comings[i], end - i);
        }
        i = end;
    }
}

/* ---- all of it ---- */

/* Steps of ranks are the same from the last one backwards: an earlier one may be overwritten. The
 * first that is left in a ring that has lost some is not whole. */
static size_t common_steps(const trace_rank *ranks, size_t count)
{
    size_t steps = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        size_t whole = count_steps(&ranks[i]);
        whole -= whole != 0 && ranks[i].lost != 0;
        steps = whole < steps ? whole : steps;
    }
    return steps;
}

static bool add_rank(trace_figures *figures, const trace_rank *rank, trace_times *times)
{
    trace_sets sets;
    const bool good = trace_sets_make(rank, &sets);
    if (good && figures->step_count != 0) {
        list_steps(rank, &sets, figures->step_count, times);
        for (size_t i = 0; i < figures->step_count; i++) {
            add_step(&sets, times[i], &figures->steps[i]);
        }
        const trace_times during = {times[0].begin_ns, times[figures->step_count - 1].end_ns};
        add_units(figures, rank, during);
    }
    trace_sets_free(&sets);
    return good;
}

static bool make_figures(trace_figures *figures)
{
    size_t spans = 0;
    for (size_t i = 0; i < figures->rank_count; i++) {
        spans += figures->ranks[i].span_count;
    }
    trace_times *times = calloc(figures->step_count + 1, sizeof *times);
    coming *comings = calloc(spans + 1, sizeof *comings);
    figures->steps = calloc(figures->step_count + 1, sizeof *figures->steps);
    figures->units = calloc(spans + 1, sizeof *figures->units);
    figures->arrivals = calloc(figures->rank_count, sizeof *figures->arrivals);
    bool good = times != NULL && comings != NULL && figures->steps != NULL &&
                figures->units != NULL && figures->arrivals != NULL;
    for (size_t i = 0; i < figures->rank_count && good; i++) {
        good = add_rank(figures, &figures->ranks[i], times);
    }
    if (good) {
        for (size_t i = 0; i < figures->step_count; i++) {
            divide_step(&figures->steps[i], (int64_t)figures->rank_count);
        }
        take_mean(figures);
        finish_units(figures);
        compare_arrivals(figures, comings);
    }
    free(times);
    free(comings);
    return good;
}

int trace_summary(const trace_rank *ranks, size_t count, const char *json_path)
{
    trace_figures figures = {
        .ranks = ranks, .rank_count = count, .step_count = common_steps(ranks, count)};
    int failed = make_figures(&figures) ? 0 : bench_fail("no memory for the summary");
    if (failed == 0 && (json_path == NULL || strcmp(json_path, "-") != 0)) {
        failed = trace_print(&figures);
    }
    if (failed == 0 && json_path != NULL) {
        failed = trace_write_json(&figures, json_path);
    }
    free(figures.steps);
    free(figures.units);
    free(figures.arrivals);
    return failed;
}
