/* Owns the comparison of an engine's tensors with those of a checkpoint, and what callers read of
 * it. Invariant: a tensor that is not loaded in all its roles is in a list. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "engine/load.h"

static bool is_there(zero_dtype dtype)
{
    return zero_dtype_bytes(dtype) != 0;
}

zero_role zi_load_source(const zi_checkpoint_tensor *saved, zero_role role, zero_dtype dtype)
{
    const bool has_master = is_there(saved->role[ZERO_ROLE_MASTER].dtype);
    if (role == ZERO_ROLE_MASTER) {
        return has_master ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
    }
    if (role == ZERO_ROLE_PARAM && has_master && saved->role[ZERO_ROLE_PARAM].dtype != dtype) {
        return ZERO_ROLE_MASTER;
    }
    return role;
}

zero_dtype zi_load_dtype(const engine_load *load, uint32_t tensor, zero_role role)
{
    const zi_layout *layout = load->engine->layout;
    const zi_codec kept = layout->flats[layout->tensors[tensor].flat].kept[role];
    const bool moment = role == ZERO_ROLE_MOMENT1 || role == ZERO_ROLE_MOMENT2;
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

/* The text of a shape: "[2, 3]". */
static void print_shape(uint32_t dims, const uint64_t *shape, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (uint32_t i = 0; i < dims && used < bytes; i++) {
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%" PRIu64, i != 0 ? ", " : "", shape[i]);
    }
    if (used < bytes) {
        (void)snprintf(text + used, bytes - used, "]");
    }
}

static bool has_all_roles(const engine_load *load, uint32_t tensor,
                          const zi_checkpoint_tensor *saved)
{
    for (int role = 0; role < ZERO_SHARD_ROLES; role++) {
        const zero_dtype dtype = zi_load_dtype(load, tensor, (zero_role)role);
        if (is_there(dtype) &&
            !is_there(saved->role[zi_load_source(saved, (zero_role)role, dtype)].dtype)) {
            return false;
        }
    }
    return true;
}

/* Find one of the engine's tensors: its number in the map, or ZI_NO_INDEX. */
static zero_status match(engine_load *load, uint32_t tensor, bool *expected)
{
    const zi_tensor_info *info = &load->engine->layout->tensor_infos[tensor];
    const zi_checkpoint_map *map = zi_checkpoint_reader_map(load->reader);
    const char *prefix = load->options.prefix != NULL ? load->options.prefix : "";
    zero_load_report *report = &load->report;
    char name[2 * ZI_NAME_BYTES];
    load->found[tensor] = ZI_NO_INDEX;
    if (snprintf(name, sizeof name, "%s%s", prefix, info->name) >= (int)sizeof name) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "prefix \"%.40s\" has more than %d bytes", prefix,
                ZI_NAME_BYTES);
    }
    const uint32_t found = zi_checkpoint_reader_find(load->reader, name);
    if (found == UINT32_MAX) {
        report->missing++;
        add_line(report, "missing", "", name);
        return ZERO_OK;
    }
    const zi_checkpoint_tensor *saved = &map->tensors[found];
    expected[found] = true;
    if (saved->dims != info->dims ||
        memcmp(saved->shape, info->shape, info->dims * sizeof info->shape[0]) != 0) {
        char line[2 * ZI_NAME_BYTES + 400];
        char here[180];
        char there[180];
        print_shape(info->dims, info->shape, here, sizeof here);
        print_shape(saved->dims, saved->shape, there, sizeof there);
        (void)snprintf(line, sizeof line, "%s: %s here, %s there", name, here, there);
        report->mismatching++;
        add_line(report, "mismatching", "", line);
    } else if (!has_all_roles(load, tensor, saved)) {
        report->missing++;
        add_line(report, "missing", "masters or moments of ", name);
    } else {
        report->loaded++;
        load->found[tensor] = found;
    }
    return ZERO_OK;
}

static zero_status match_all(engine_load *load, bool *expected)
{
    const zi_checkpoint_map *map = zi_checkpoint_reader_map(load->reader);
    for (uint32_t t = 0; t < load->engine->layout->tensor_count; t++) {
        ZI_TRY(match(load, t, expected));
    }
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        if (!expected[i]) {
            load->report.unexpected++;
            add_line(&load->report, "unexpected", "", map->tensors[i].name);
        }
    }
    return ZERO_OK;
}

/* The lists on one line, as far as messages go. */
static zero_status refuse(const zero_load_report *report)
{
    char list[200];
    (void)snprintf(list, sizeof list, "%.199s", report->list);
    for (char *end = strchr(list, '\n'); end != NULL; end = strchr(list, '\n')) {
        *end = ';';
    }
    ZI_FAIL(ZERO_INVALID_ARGUMENT,
            "tensors: %" PRIu32 " missing, %" PRIu32 " unexpected, %" PRIu32
            " mismatching; `partial` loads the others: %s",
            report->missing, report->unexpected, report->mismatching, list);
}

zero_status zi_load_match(engine_load *load)
{
    const zi_checkpoint_map *map = zi_checkpoint_reader_map(load->reader);
    const zero_load_report *report = &load->report;
    bool *expected = NULL;
    ZI_TRY(
        zi_calloc(load->engine->layout->tensor_count, sizeof *load->found, (void **)&load->found));
    ZI_TRY(zi_calloc(map->tensor_count, sizeof *expected, (void **)&expected));
    const zero_status status = match_all(load, expected);
    zi_free(expected);
    ZI_TRY(status);
    if (load->options.partial == 0 &&
        report->missing + report->unexpected + report->mismatching != 0) {
        return refuse(report);
    }
    return ZERO_OK;
}
