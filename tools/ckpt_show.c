/* Owns `zero ckpt show`: a manifest as JSON. */
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

/* In which tensors have a role. */
static json_t *types_json(const zi_checkpoint_map *map, int role)
{
    json_t *types = json_array();
    for (int type = ZERO_DTYPE_F32; type <= ZERO_DTYPE_U8_ROOT; type++) {
        bool there = false;
        for (uint32_t i = 0; i < map->tensor_count; i++) {
            there = there || (ckpt_has_role(&map->tensors[i], role) &&
                              (int)map->tensors[i].role[role].dtype == type);
        }
        if (there) {
            (void)json_array_append_new(types, json_string(zero_dtype_name((zero_dtype)type)));
        }
    }
    return types;
}

static json_t *files_json(const zi_checkpoint_map *map)
{
    json_t *files = json_array();
    for (uint32_t i = 0; i < map->file_count; i++) {
        (void)json_array_append_new(files, json_pack("{s:s, s:s, s:o, s:I, s:I}", "name",
                                                     map->files[i].name, "role",
                                                     zero_role_name(map->files[i].role), "types",
                                                     types_json(map, (int)map->files[i].role),
                                                     "tensors", (json_int_t)tensors_of(map, i),
                                                     "bytes", (json_int_t)map->files[i].bytes));
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
        json_pack("{s:o, s:I, s:I, s:I, s:o, s:o, s:s}", "folder", json_string_nocheck(folder),
                  "tensor_count", (json_int_t)map->tensor_count, "parameters",
                  (json_int_t)ckpt_parameters(map), "bytes", (json_int_t)ckpt_bytes(map, manifest),
                  "files", files_json(map), "sums_bytes",
                  manifest != NULL ? json_integer((json_int_t)(map->piece_count * sizeof(uint64_t)))
                                   : json_null(),
                  "sums_file", ZI_SUMS_NAME);
    int lost = json_object_update(json, rest);
    if (manifest != NULL && manifest->parts != NULL) {
        lost = json_object_set_new(json, "part_world", json_integer(manifest->world)) || lost;
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
        failed =
            ckpt_report(line, "ckpt_show", show_json(line, folder, reader->map, reader->manifest));
    }
    zi_source_close(reader);
    return failed;
}
