/* Owns `zero ckpt show`: a manifest, for people and as JSON. */
#include "ckpt.h"
#include "optimizer/optimizer_table.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* When the manifest was put there; 0: not known. */
static uint64_t saved_at(const char *folder)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    struct stat kind;
    return zi_checkpoint_path(path, folder, ZI_MANIFEST_NAME) == ZERO_OK && lstat(path, &kind) == 0
               ? (uint64_t)kind.st_mtime
               : 0;
}

static uint32_t tensors_of(const zi_checkpoint_map *map, uint32_t file)
{
    uint32_t count = 0;
    for (uint32_t i = map->files[file].first_tensor; i < map->files[file].tensor_end; i++) {
        count += ckpt_has_role(&map->tensors[i], (int)map->files[file].role);
    }
    return count;
}

/* "f32"; "bf16 f32" where a role has tensors of several types; "-" where it has none. */
static const char *types_of(const zi_checkpoint_map *map, int role, char text[CKPT_TEXT_BYTES])
{
    bool there[ZERO_DTYPE_NONE + 1] = {false};
    size_t used = 0;
    (void)snprintf(text, CKPT_TEXT_BYTES, "-");
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        there[map->tensors[i].role[role].dtype] = true;
    }
    for (int i = ZERO_DTYPE_F32; i <= ZERO_DTYPE_F16; i++) {
        if (there[i]) {
            used += (size_t)snprintf(text + used, CKPT_TEXT_BYTES - used, "%s%s",
                                     used == 0 ? "" : " ", zero_dtype_name((zero_dtype)i));
        }
    }
    return text;
}

/* ---- text ---- */

static void print_state(const zi_manifest *manifest)
{
    const zero_step_state *state = &manifest->state;
    printf("%-16s%" PRIu64 ", of which %" PRIu64 " skipped\n", "steps",
           state->updates + state->skipped, state->skipped);
    printf("%-16s%.9g", "loss scale", (double)state->loss_scale);
    if (manifest->scale_dynamic) {
        printf(", unchanged for %" PRIu32 " steps\n", state->good_steps);
    } else {
        printf(", which never changes\n");
    }
    printf("%-16sdata position %" PRIu64 "\n", "caller's", manifest->data_position);
    printf("%-16srandom seed %" PRIu64 ", position %" PRIu64 "\n", "", manifest->random_seed,
           manifest->random_position);
    printf("%-16s%" PRIu64 " bytes\n", "", manifest->user_bytes);
    printf("%-16s%" PRIu64 ", of stochastic rounding\n", "seed", manifest->seed);
}

static void print_groups(const zi_hyper *groups, uint32_t group_count)
{
    if (group_count == 0) {
        return;
    }
    printf("\n%-6s  %-9s  %s\n", "group", "optimizer", "numbers");
    for (uint32_t i = 0; i < group_count; i++) {
        const zi_optimizer *optimizer = zi_optimizer_of(groups[i].kind);
        printf("%-6" PRIu32 "  %-9s", i, optimizer->name);
        for (uint32_t k = 0; k < optimizer->number_count; k++) {
            printf("%s%s %.6g", k == 0 ? "  " : ", ", optimizer->numbers[k].name,
                   (double)groups[i].number[k]);
        }
        printf("\n");
    }
}

/* Of each part its own. */
static void print_all_groups(const zi_manifest *manifest)
{
    if (manifest->parts == NULL) {
        print_groups(manifest->groups, manifest->group_count);
        return;
    }
    for (uint32_t i = 0; i < manifest->map.part_count; i++) {
        const zi_manifest_part *part = &manifest->parts[i];
        printf("%spart %" PRIu32 ":", i == 0 ? "\n" : "", i);
        printf(part->group_count == 0 ? " no hyper-parameters\n" : "");
        print_groups(part->groups, part->group_count);
    }
}

static void print_files(const zi_checkpoint_map *map, const zi_manifest *manifest)
{
    char amount[CKPT_TEXT_BYTES];
    char types[CKPT_TEXT_BYTES];
    char name[CKPT_NAME_BYTES];
    printf("\n%-40s  %-12s  %8s  %10s\n", "file", "types", "tensors", "bytes");
    for (uint32_t i = 0; i < map->file_count; i++) {
        printf("%-40s  %-12s  %8" PRIu32 "  %10s\n", ckpt_name(map->files[i].name, name),
               types_of(map, (int)map->files[i].role, types), tensors_of(map, i),
               ckpt_amount(map->files[i].bytes, amount));
    }
    if (manifest != NULL) {
        printf("%-40s  %-12s  %8s  %10s\n", ZI_SUMS_NAME, "-", "-",
               ckpt_amount(map->piece_count * sizeof(uint64_t), amount));
    }
    printf("%-40s  %-12s  %8" PRIu32 "  %10s\n", "all", "", map->tensor_count,
           ckpt_amount(ckpt_bytes(map, manifest), amount));
}

/* A type where the role is there. */
static const char *type_of(const zi_checkpoint_tensor *tensor, int role)
{
    return ckpt_has_role(tensor, role) ? zero_dtype_name(tensor->role[role].dtype) : "-";
}

/* Of a model in several parts: which has it and, if it is a box, which. */
static void print_box(const zi_checkpoint_map *map, const zi_checkpoint_tensor *tensor)
{
    const zi_box box = zi_box_of(tensor);
    char text[CKPT_SHAPE_BYTES];
    if (map->part_count > 1) {
        printf("  part %" PRIu32 "%s%s", tensor->part, tensor->is_box ? ", " : "",
               tensor->is_box ? zi_box_text(&box, text, sizeof text) : "");
    }
    printf("\n");
}

static void print_tensors(const zi_checkpoint_map *map)
{
    char name[CKPT_NAME_BYTES];
    char shape[CKPT_SHAPE_BYTES];
    printf("\n%-30s  %-14s  %-5s  %-6s  %-7s  %s\n", "tensor", "shape", "param", "master",
           "moment1", "moment2");
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_checkpoint_tensor *tensor = &map->tensors[i];
        const bool frozen = (tensor->flags & ZERO_TENSOR_FROZEN) != 0;
        printf("%-30s  %-14s  %-5s  %-6s  %-7s  %s", ckpt_name(tensor->name, name),
               ckpt_shape(tensor, shape), type_of(tensor, ZERO_ROLE_PARAM),
               frozen ? "frozen" : type_of(tensor, ZERO_ROLE_MASTER),
               type_of(tensor, ZERO_ROLE_MOMENT1), type_of(tensor, ZERO_ROLE_MOMENT2));
        print_box(map, tensor);
    }
}

static void print_text(const ckpt_line *line, const char *folder, const zi_checkpoint_map *map,
                       const zi_manifest *manifest)
{
    char text[CKPT_TEXT_BYTES];
    printf("%s\n\n", folder);
    printf("%-16s%" PRIu32 " tensors, %" PRIu64 " parameters\n", "model", map->tensor_count,
           ckpt_parameters(map));
    if (manifest != NULL) {
        printf("%-16shash %s\n", "", ckpt_hash(manifest->model_hash, text));
        printf("%-16s%s, by %" PRIu32 " ranks\n", "saved", ckpt_time(saved_at(folder), text),
               ckpt_ranks(manifest));
        if (manifest->parts != NULL) {
            printf("%-16s%" PRIu32 ", of %" PRIu32 " ranks each\n", "parts", map->part_count,
                   manifest->world);
        }
        print_state(manifest);
        print_all_groups(manifest);
    } else {
        printf("%-16sno checkpoint: these are weights alone, without sums\n", "");
    }
    print_files(map, manifest);
    if (line->tensors) {
        print_tensors(map);
    }
}

/* ---- JSON ---- */

static json_t *files_json(const zi_checkpoint_map *map)
{
    json_t *files = json_array();
    for (uint32_t i = 0; i < map->file_count; i++) {
        (void)json_array_append_new(files,
                                    json_pack("{s:s, s:s, s:I, s:I}", "name", map->files[i].name,
                                              "role", zero_role_name(map->files[i].role), "tensors",
                                              (json_int_t)tensors_of(map, i), "bytes",
                                              (json_int_t)map->files[i].bytes));
    }
    return files;
}

static json_t *extents_json(uint32_t dims, const uint64_t *extents)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < dims; i++) {
        (void)json_array_append_new(array, json_integer((json_int_t)extents[i]));
    }
    return array;
}

static void add_box(const zi_checkpoint_map *map, const zi_checkpoint_tensor *tensor, json_t *entry)
{
    if (map->part_count > 1) {
        (void)json_object_set_new(entry, "part", json_integer((json_int_t)tensor->part));
    }
    if (tensor->is_box) {
        (void)json_object_set_new(entry, "global_shape",
                                  extents_json(tensor->dims, tensor->global_shape));
        (void)json_object_set_new(entry, "box_first",
                                  extents_json(tensor->dims, tensor->box_first));
    }
}

static json_t *tensors_json(const zi_checkpoint_map *map)
{
    json_t *tensors = json_array();
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_checkpoint_tensor *tensor = &map->tensors[i];
        json_t *types = json_object();
        for (int r = 0; r < ZI_SHARD_ROLES; r++) {
            if (ckpt_has_role(tensor, r)) {
                (void)json_object_set_new(types, zero_role_name((zero_role)r),
                                          json_string(zero_dtype_name(tensor->role[r].dtype)));
            }
        }
        json_t *entry = json_pack("{s:s, s:o, s:o, s:b, s:b, s:I}", "name", tensor->name, "shape",
                                  extents_json(tensor->dims, tensor->shape), "types", types,
                                  "frozen", (tensor->flags & ZERO_TENSOR_FROZEN) != 0, "decay",
                                  (tensor->flags & ZERO_TENSOR_NO_DECAY) == 0, "group",
                                  (json_int_t)tensor->group);
        add_box(map, tensor, entry);
        (void)json_array_append_new(tensors, entry);
    }
    return tensors;
}

static json_t *groups_json(const zi_hyper *of, uint32_t group_count)
{
    json_t *groups = json_array();
    for (uint32_t i = 0; i < group_count; i++) {
        const zi_optimizer *optimizer = zi_optimizer_of(of[i].kind);
        json_t *group = json_pack("{s:s}", "optimizer", optimizer->name);
        for (uint32_t k = 0; k < optimizer->number_count; k++) {
            (void)json_object_set_new(group, optimizer->numbers[k].name,
                                      json_real((double)of[i].number[k]));
        }
        (void)json_array_append_new(groups, group);
    }
    return groups;
}

/* As text: most readers of JSON have no whole numbers beyond 2^53. */
static json_t *whole_text(uint64_t number)
{
    return json_sprintf("%" PRIu64, number);
}

static json_t *state_json(const char *folder, const zi_manifest *manifest)
{
    char hash[CKPT_TEXT_BYTES];
    const zero_step_state *state = &manifest->state;
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:s, s:f, s:o, s:I, s:o, s:o, s:o, s:o, s:I, s:o}", "step",
        (json_int_t)(state->updates + state->skipped), "skipped", (json_int_t)state->skipped,
        "seconds", (json_int_t)saved_at(folder), "world", (json_int_t)ckpt_ranks(manifest),
        "model_hash", ckpt_hash(manifest->model_hash, hash), "loss_scale",
        (double)state->loss_scale, "loss_scale_dynamic", json_boolean(manifest->scale_dynamic),
        "good_steps", (json_int_t)state->good_steps, "seed", whole_text(manifest->seed),
        "data_position", whole_text(manifest->data_position), "random_seed",
        whole_text(manifest->random_seed), "random_position", whole_text(manifest->random_position),
        "user_bytes", (json_int_t)manifest->user_bytes, "hyper_parameters",
        groups_json(manifest->groups, manifest->group_count));
}

/* Hyper-parameters by part. */
static json_t *parts_json(const zi_manifest *manifest)
{
    json_t *parts = json_array();
    for (uint32_t i = 0; i < manifest->map.part_count; i++) {
        const zi_manifest_part *part = &manifest->parts[i];
        (void)json_array_append_new(parts, groups_json(part->groups, part->group_count));
    }
    return parts;
}

static json_t *show_json(const ckpt_line *line, const char *folder, const zi_checkpoint_map *map,
                         const zi_manifest *manifest)
{
    json_t *json = manifest != NULL ? state_json(folder, manifest) : json_object();
    json_t *rest =
        json_pack("{s:s, s:I, s:I, s:I, s:o}", "folder", folder, "tensor_count",
                  (json_int_t)map->tensor_count, "parameters", (json_int_t)ckpt_parameters(map),
                  "bytes", (json_int_t)ckpt_bytes(map, manifest), "files", files_json(map));
    int lost = json_object_update(json, rest);
    if (manifest != NULL && manifest->parts != NULL) {
        lost = json_object_set_new(json, "parts", parts_json(manifest)) || lost;
    }
    if (line->tensors) {
        lost = json_object_set_new(json, "tensors", tensors_json(map)) || lost;
    }
    json_decref(rest);
    if (lost) {
        json_decref(json);
    }
    return lost ? NULL : json;
}

int ckpt_show(const ckpt_line *line)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    zi_source *reader = NULL;
    int failed = ckpt_open(line->words[0], folder, &reader);
    if (failed == 0) {
        const zi_checkpoint_map *map = reader->map;
        const zi_manifest *manifest = reader->manifest;
        if (ckpt_has_text(line)) {
            print_text(line, folder, map, manifest);
        }
        if (line->json_path != NULL) {
            failed = ckpt_put_json(line, show_json(line, folder, map, manifest));
        }
    }
    zi_source_close(reader);
    return ckpt_flush() || failed;
}
