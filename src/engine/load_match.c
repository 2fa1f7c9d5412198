/* Owns the comparison of an engine's tensors with those of a checkpoint, and what callers read of
 * it. Invariant: a tensor that is not loaded in all its roles is in a list. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "engine/load.h"
#include "optimizer/optimizer_table.h"

static bool is_there(zero_dtype dtype)
{
    return zero_dtype_bytes(dtype) != 0;
}

zero_dtype zi_load_dtype(const engine_load *load, uint32_t tensor, zero_role role)
{
    const zi_layout *layout = load->engine->layout;
    const zi_codec kept = layout->flats[layout->tensors[tensor].flat].kept[role];
    const bool moment = zi_role_is_moment(role);
    return role == ZERO_ROLE_GRAD || zi_codec_is_none(kept) ||
                   (moment && load->options.params_only != 0)
               ? ZERO_DTYPE_NONE
               : kept.dtype;
}

/* Add a line to the list, if it fits. */
static void add_line(zero_load_report *report, const char *what, const char *prefix,
                     const char *name)
{
    const size_t used = strlen(report->list);
    const size_t room = sizeof report->list - used;
    const int wrote = snprintf(report->list + used, room, "%s %s%s\n", what, prefix, name);
    if (wrote < 0 || (size_t)wrote >= room) {
        report->list[used] = '\0';
    }
}

static bool has_all_roles(const engine_load *load, uint32_t tensor, uint32_t saved)
{
    const zi_checkpoint_tensor *there = &load->source->map->tensors[saved];
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        load_source source;
        (void)zi_load_joined(load, tensor, saved, role, &source);
        if (is_there(zi_load_dtype(load, tensor, role)) &&
            !is_there(there->role[zi_load_from(there, &source).role].dtype)) {
            return false;
        }
    }
    return true;
}

static void add_mismatch(zero_load_report *report, const char *name, const zi_box *wanted,
                         const zi_box *saved)
{
    char line[2 * ZI_NAME_BYTES + 400];
    char here[180];
    char there[180];
    (void)snprintf(line, sizeof line, "%s: %s here, %s there", name,
                   zi_box_text(wanted, here, sizeof here), zi_box_text(saved, there, sizeof there));
    report->mismatching++;
    add_line(report, "mismatching", "", line);
}

/* True if each saved box that has elements of the tensor has them in all roles. */
static bool boxes_have_roles(const engine_load *load, uint32_t tensor, const zi_joined *joined)
{
    const zi_checkpoint_map *map = load->source->map;
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(load->source, t)) {
        const zi_box saved = zi_box_of(&map->tensors[t]);
        if (zi_box_meet(&joined->wanted, &saved).ranges != 0 && !has_all_roles(load, tensor, t)) {
            return false;
        }
    }
    return true;
}

/* Find one of the engine's tensors: the first of its boxes, or ZI_NO_INDEX. */
static zero_status match(engine_load *load, uint32_t tensor)
{
    const zi_tensor_info *info = &load->engine->layout->tensor_infos[tensor];
    const zi_checkpoint_map *map = load->source->map;
    const char *prefix = load->options.prefix != NULL ? load->options.prefix : "";
    zero_load_report *report = &load->report;
    char name[2 * ZI_NAME_BYTES];
    load->found[tensor] = ZI_NO_INDEX;
    if (snprintf(name, sizeof name, "%s%s", prefix, info->name) >= (int)sizeof name) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "prefix \"%.40s\" has more than %d bytes", prefix,
                ZI_NAME_BYTES);
    }
    const uint32_t head = zi_source_find(load->source, name);
    if (head == UINT32_MAX) {
        report->missing++;
        add_line(report, "missing", "", name);
        return ZERO_OK;
    }
    const zi_joined joined = zi_load_joined(load, tensor, head, ZERO_ROLE_PARAM, NULL);
    const zi_box saved = zi_box_of(&map->tensors[head]);
    load->expected[head / 64] |= UINT64_C(1) << head % 64;
    if (!zi_box_same_global(&joined.wanted, &saved)) {
        add_mismatch(report, name, &joined.wanted, &saved);
    } else if (zi_joined_covers(&joined) != info->count) {
        report->missing++;
        add_line(report, "missing", "elements of ", name);
    } else if (!boxes_have_roles(load, tensor, &joined)) {
        report->missing++;
        add_line(report, "missing", "masters or moments of ", name);
    } else {
        report->loaded++;
        load->found[tensor] = head;
    }
    return ZERO_OK;
}

/* ---- what optimizers carry on ---- */

/* The numbers that a group's optimizer carries on, such as the products of betas that bias
 * correction divides by, and a tensor with these moments. */
typedef struct load_carried {
    const double *carried;
    uint32_t tensor; /* ZI_NO_INDEX: none so far */
} load_carried;

static zero_status refuse_carried(const engine_load *load, const load_carried *first,
                                  const load_carried *other)
{
    const zi_tensor_info *infos = load->engine->layout->tensor_infos;
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "group %" PRIu32 ": the moments of \"%.60s\" and \"%.60s\" are not of the same updates "
            "and betas (products %.6g and %.6g of beta1), and a group has one bias correction; "
            "give the two tensors different groups (zero_tensor_desc.group), or set params_only",
            infos[other->tensor].group, infos[first->tensor].name, infos[other->tensor].name,
            first->carried[0], other->carried[0]);
}

/* A group goes on with what the optimizer of its tensors' moments carried on. */
static zero_status join_carried(engine_load *load, load_carried *groups,
                                const load_carried *carried)
{
    const uint32_t group = load->engine->layout->tensor_infos[carried->tensor].group;
    load_carried *first = &groups[group];
    const size_t bytes = sizeof load->state.carried[group];
    if (first->tensor == ZI_NO_INDEX) {
        *first = *carried;
        memcpy(load->state.carried[group], carried->carried, bytes);
    }
    return memcmp(first->carried, carried->carried, bytes) == 0
               ? ZERO_OK
               : refuse_carried(load, first, carried);
}

/* Moments mean what the optimizer says that made them. */
static zero_status load_match_check_optimizer(const engine_load *load, uint32_t tensor,
                                              uint32_t saved)
{
    const zi_tensor_info *info = &load->engine->layout->tensor_infos[tensor];
    const uint32_t own = load->engine->layout->options.group_optimizer[info->group];
    if (own != saved) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "\"%.60s\" has moments of %s in the checkpoint and is updated by %s here; set "
                "params_only, or options.group_optimizer of group %" PRIu32 " to %s",
                info->name, zi_optimizer_of(saved)->name, zi_optimizer_of(own)->name, info->group,
                zi_optimizer_of(saved)->name);
    }
    return ZERO_OK;
}

/* Of the saved boxes that have elements of the tensor: those of their part and group. */
static zero_status join_saved(engine_load *load, load_carried *groups, uint32_t tensor)
{
    const zi_manifest *manifest = load->source->manifest;
    const zi_checkpoint_map *map = load->source->map;
    const zi_joined joined =
        zi_load_joined(load, tensor, load->found[tensor], ZERO_ROLE_PARAM, NULL);
    for (uint32_t t = joined.head; t != UINT32_MAX; t = zi_source_next(load->source, t)) {
        const zi_checkpoint_tensor *saved = &map->tensors[t];
        const zi_box box = zi_box_of(saved);
        const zi_manifest_part *part =
            manifest->parts != NULL ? &manifest->parts[saved->part] : NULL;
        const double *carried =
            part != NULL ? part->carried[saved->group] : manifest->state.carried[saved->group];
        const zi_hyper *hyper =
            part != NULL ? &part->groups[saved->group] : &manifest->groups[saved->group];
        if (zi_box_meet(&joined.wanted, &box).ranges != 0) {
            ZI_TRY(load_match_check_optimizer(load, tensor, hyper->kind));
            ZI_TRY(join_carried(load, groups, &(load_carried){carried, tensor}));
        }
    }
    return ZERO_OK;
}

/* Groups without a trained tensor have no moments: theirs are the saved group's, of the first part.
 */
static void begin_carried(engine_load *load, const zi_manifest *manifest)
{
    load->state = manifest->state;
    load->state.struct_bytes = sizeof load->state;
    if (manifest->parts != NULL) {
        memcpy(load->state.carried, manifest->parts[0].carried, sizeof load->state.carried);
    }
}

static bool has_moments(const engine_load *load, uint32_t tensor)
{
    bool found = false;
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        const zero_role role = zi_state_role(state);
        found = found || (zi_role_is_moment(role) && is_there(zi_load_dtype(load, tensor, role)));
    }
    return found;
}

/* The moments of a tensor that is not found stay the engine's own, and so does what goes with
 * them. */
static zero_status choose_carried(engine_load *load)
{
    const zi_manifest *manifest = load->source->manifest;
    const zi_layout *layout = load->engine->layout;
    load_carried groups[ZERO_STEP_GROUPS];
    uint32_t trained = 0;
    if (manifest == NULL || load->options.params_only != 0) {
        return ZERO_OK;
    }
    begin_carried(load, manifest);
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        groups[g].tensor = ZI_NO_INDEX;
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const zi_tensor_info *info = &layout->tensor_infos[t];
        if ((info->flags & ZERO_TENSOR_FROZEN) != 0) {
            continue;
        }
        const load_carried own = {load->own.carried[info->group], t};
        const bool found = load->found[t] != ZI_NO_INDEX;
        trained++;
        load->resumes = load->resumes || found;
        if (has_moments(load, t)) {
            ZI_TRY(found ? join_saved(load, groups, t) : join_carried(load, groups, &own));
        }
    }
    load->resumes = load->resumes || trained == 0;
    return ZERO_OK;
}

/* ---- stochastic rounding ---- */

/* True if updates of a tensor with these types are rounded stochastically: its moments are not F32,
 * or its parameter is not and has no master, or one of few bits. A frozen tensor is never updated.
 */
static bool is_rounded(const zero_dtype *dtypes, bool is_frozen)
{
    bool rounded = dtypes[ZERO_ROLE_PARAM] != ZERO_DTYPE_F32 && !is_there(dtypes[ZERO_ROLE_MASTER]);
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        const zero_dtype dtype = dtypes[zi_state_role(state)];
        rounded = rounded ||
                  (is_there(dtype) && dtype != ZERO_DTYPE_F32 && dtype != ZERO_DTYPE_REMAINDER16);
    }
    return !is_frozen && rounded;
}

static bool is_rounded_here(const engine_load *load)
{
    const zi_layout *layout = load->engine->layout;
    bool found = false;
    for (uint32_t t = 0; t < layout->tensor_count && !found; t++) {
        zero_dtype dtypes[ZI_SHARD_ROLES];
        for (int role = 0; role < ZI_SHARD_ROLES; role++) {
            dtypes[role] = zi_load_dtype(load, t, (zero_role)role);
        }
        found = is_rounded(dtypes, (layout->tensor_infos[t].flags & ZERO_TENSOR_FROZEN) != 0);
    }
    return found;
}

static bool is_rounded_there(const zi_checkpoint_map *map)
{
    bool found = false;
    for (uint32_t t = 0; t < map->tensor_count && !found; t++) {
        zero_dtype dtypes[ZI_SHARD_ROLES];
        for (int role = 0; role < ZI_SHARD_ROLES; role++) {
            dtypes[role] = map->tensors[t].role[role].dtype;
        }
        found = is_rounded(dtypes, (map->tensors[t].flags & ZERO_TENSOR_FROZEN) != 0);
    }
    return found;
}

/* With another seed stochastic rounding gives other bits, so the run would not be the saved one. Of
 * several parts the manifest has the first one's seed, so only the first part compares. */
static zero_status check_seed(const engine_load *load)
{
    const zi_manifest *manifest = load->source->manifest;
    const uint64_t seed = load->engine->layout->options.seed;
    zero_world *mesh = load->engine->mesh;
    if (load->options.params_only != 0 || load->options.partial != 0 || manifest->seed == seed ||
        (mesh != NULL && zero_world_rank(mesh) != 0) || !is_rounded_here(load) ||
        !is_rounded_there(load->source->map)) {
        return ZERO_OK;
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "options.seed is %" PRIu64 ", but the saved run has been rounded with %" PRIu64
            "; create the engine with that seed, or set `partial` to go on with another one",
            seed, manifest->seed);
}

/* ---- all tensors ---- */

/* Words of load->expected that parts exchange at a time. */
#define WORDS_AT_ONCE 32

static uint32_t expected_words(const engine_load *load)
{
    return load->source->map->tensor_count / 64 + 1;
}

/* Expected is what any part of the model has. */
static zero_status join_expected(engine_load *load)
{
    zero_world *mesh = load->engine->mesh;
    const uint64_t *all = load->engine->agreement;
    const uint32_t words = expected_words(load);
    for (uint32_t first = 0; first < words && mesh != NULL; first += WORDS_AT_ONCE) {
        const uint32_t count = (uint32_t)zi_min_u64(words - first, WORDS_AT_ONCE);
        ZI_TRY(zi_world_gather(mesh, load->expected + first, load->engine->agreement,
                               count * (uint32_t)sizeof *all));
        for (uint32_t i = 0; i < count * zero_world_size(mesh); i++) {
            load->expected[first + i % count] |= all[i];
        }
    }
    return ZERO_OK;
}

static zero_status match_own(engine_load *load)
{
    for (uint32_t t = 0; t < load->engine->layout->tensor_count; t++) {
        ZI_TRY(match(load, t));
    }
    return choose_carried(load);
}

static void list_unexpected(engine_load *load)
{
    const zi_checkpoint_map *map = load->source->map;
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const bool is_head = zi_source_find(load->source, map->tensors[i].name) == i;
        if (is_head && (load->expected[i / 64] >> i % 64 & 1) == 0) {
            load->report.unexpected++;
            add_line(&load->report, "unexpected", "", map->tensors[i].name);
        }
    }
}

/* The lists on one line, as far as messages go. */
static zero_status load_match_refuse(const zero_load_report *report)
{
    char list[200];
    (void)snprintf(list, sizeof list, "%.199s", report->list);
    for (char *end = strchr(list, '\n'); end != NULL; end = strchr(list, '\n')) {
        *end = ';';
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "tensors: %" PRIu32 " missing, %" PRIu32 " unexpected, %" PRIu32
            " mismatching; `partial` loads the others: %s",
            report->missing, report->unexpected, report->mismatching, list);
}

zero_status zi_load_match_open(engine_load *load)
{
    ZI_TRY(
        zi_calloc(load->engine->layout->tensor_count, sizeof *load->found, (void **)&load->found));
    return zi_calloc(expected_words(load), sizeof *load->expected, (void **)&load->expected);
}

zero_status zi_load_match(engine_load *load)
{
    const zero_load_report *report = &load->report;
    const zero_status matched = match_own(load);
    const zero_error error = *zero_last_error();
    ZI_TRY(join_expected(load));
    if (matched != ZERO_OK) {
        return zi_error_adopt(&error);
    }
    list_unexpected(load);
    if (load->options.partial == 0 &&
        report->missing + report->unexpected + report->mismatching != 0) {
        return load_match_refuse(report);
    }
    return check_seed(load);
}
