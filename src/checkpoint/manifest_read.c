/* Owns reading manifests. Anything may be in the text, since anybody can write one with a right
 * hash: so every member is checked before it is used, memory stays in proportion to the text, and
 * every place is compared with the one that follows from the tensors. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "checkpoint/checkpoint_boxes.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_text.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "format/json.h"
#include "layout/model.h"
#include "optimizer/optimizer_table.h"

#define CUT_MAX ((uint64_t)1 << 62)
#define PARTS_MAX 65536

struct zi_manifest_memory {
    zi_names names;
    zi_checkpoint_tensor *tensors;
    unsigned char *user;
};

/* ---- members ---- */

static zero_status get_number(const zi_json *json, const char *name, uint64_t low, uint64_t high,
                              uint64_t *number)
{
    return zi_json_number(json, (zi_json_key){name, true, low, high}, number);
}

static zero_status get_u32(const zi_json *json, const char *name, uint32_t high, uint32_t *number)
{
    uint64_t wide = 0;
    ZI_TRY(get_number(json, name, 0, high, &wide));
    *number = (uint32_t)wide;
    return ZERO_OK;
}

static zero_status get_text(const zi_json *json, const char *name, const char **text)
{
    return zi_json_text(json, (zi_json_key){.name = name, .required = true}, text);
}

/* A number of 64 bits, as decimal digits in quotes. */
static zero_status get_quoted(const zi_json *json, const char *name, uint64_t *number)
{
    const char *text = NULL;
    ZI_TRY(get_text(json, name, &text));
    *number = 0;
    bool good = text[0] != '\0';
    for (const char *at = text; *at != '\0' && good; at++) {
        good = *at >= '0' && *at <= '9' && zi_mul_u64(*number, 10, number) &&
               zi_add_u64(*number, (uint64_t)(*at - '0'), number);
    }
    if (!good) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "\"%s\" of %s is not a whole number below 2^64 in quotes", name, json->path);
    }
    return ZERO_OK;
}

/* Of a lower-case digit; 16: it is none. */
static unsigned hex_digit(char digit)
{
    return digit >= '0' && digit <= '9'   ? (unsigned)(digit - '0')
           : digit >= 'a' && digit <= 'f' ? (unsigned)(digit - 'a') + 10
                                          : 16;
}

static zero_status get_hash(const zi_json *json, const char *name, uint64_t *hash)
{
    const char *text = NULL;
    ZI_TRY(get_text(json, name, &text));
    *hash = 0;
    bool good = strlen(text) == 16;
    for (int i = 0; i < 16 && good; i++) {
        good = hex_digit(text[i]) < 16;
        *hash = *hash << 4 | (hex_digit(text[i]) & 15);
    }
    if (!good) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s is not 16 hexadecimal digits", name,
                json->path);
    }
    return ZERO_OK;
}

static zero_status get_float(const zi_json *json, const char *name, float *value)
{
    const json_t *found = json_object_get(json->root, name);
    *value = (float)json_number_value(found);
    if (!json_is_number(found) || !isfinite(*value)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s is no number that a float has", name,
                json->path);
    }
    return ZERO_OK;
}

static zero_status get_array(const zi_json *json, const char *name, size_t least, size_t most,
                             json_t **array)
{
    *array = json_object_get(json->root, name);
    if (!json_is_array(*array) || json_array_size(*array) < least ||
        json_array_size(*array) > most) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s is no array of %zu to %zu", name,
                json->path, least, most);
    }
    return ZERO_OK;
}

/* An entry of an array, to be asked for its members. */
static zero_status get_object(const zi_json *json, const char *name, json_t *value, zi_json *object)
{
    *object = (zi_json){.path = json->path, .root = value};
    if (!json_is_object(value)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s has what is no object", name, json->path);
    }
    return ZERO_OK;
}

/* ---- the run's state ---- */

static zero_status read_state(const zi_json *json, zero_step_state *state)
{
    *state = zero_step_state_init();
    ZI_TRY(get_quoted(json, "updates", &state->updates));
    ZI_TRY(get_quoted(json, "skipped", &state->skipped));
    ZI_TRY(get_float(json, "loss_scale", &state->loss_scale));
    ZI_TRY(get_u32(json, "good_steps", UINT32_MAX, &state->good_steps));
    return get_u32(json, "overflows", UINT32_MAX, &state->overflows);
}

static zero_status read_carried(const zi_json *json, double *carried)
{
    json_t *array = NULL;
    ZI_TRY(get_array(json, "carried", ZI_CARRIED, ZI_CARRIED, &array));
    for (size_t i = 0; i < ZERO_STEP_CARRIED; i++) {
        const json_t *value = json_array_get(array, i);
        carried[i] = i < ZI_CARRIED ? json_number_value(value) : 1.0;
        if (i < ZI_CARRIED &&
            (!json_is_number(value) || !(carried[i] >= 0.0 && carried[i] <= 1.0))) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "\"carried\" of a group of %s has no number in [0, 1] at %zu", json->path, i);
        }
    }
    return ZERO_OK;
}

static zero_status read_optimizer(const zi_json *json, zi_hyper *hyper)
{
    const char *name = json_string_value(json_object_get(json->root, "optimizer"));
    const zero_optimizer kind = name != NULL ? zi_optimizer_named(name) : ZERO_OPTIMIZER_DEFAULT;
    if (kind == ZERO_OPTIMIZER_DEFAULT) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "\"optimizer\" of a group of %s is %.40s, none that this library knows", json->path,
                name != NULL ? name : "no text");
    }
    hyper->kind = kind;
    return ZERO_OK;
}

/* Numbers are there for the first groups, or for none. */
static zero_status read_group(const zi_json *json, zi_manifest_part *part, uint32_t group)
{
    zi_hyper *hyper = &part->groups[group];
    ZI_TRY(read_optimizer(json, hyper));
    ZI_TRY(read_carried(json, part->carried[group]));
    const zi_optimizer *optimizer = zi_optimizer_of(hyper->kind);
    if (part->group_count != group || optimizer->number_count == 0 ||
        json_object_get(json->root, optimizer->numbers[0].name) == NULL) {
        return ZERO_OK;
    }
    part->group_count++;
    for (uint32_t i = 0; i < optimizer->number_count; i++) {
        ZI_TRY(get_float(json, optimizer->numbers[i].name, &hyper->number[i]));
    }
    return ZERO_OK;
}

static zero_status read_part(const zi_json *json, zi_manifest_part *part)
{
    json_t *array = NULL;
    ZI_TRY(get_array(json, "groups", ZERO_STEP_GROUPS, ZERO_STEP_GROUPS, &array));
    for (uint32_t i = 0; i < ZERO_STEP_GROUPS; i++) {
        zi_json entry;
        ZI_TRY(get_object(json, "groups", json_array_get(array, i), &entry));
        ZI_TRY(read_group(&entry, part, i));
    }
    return ZERO_OK;
}

/* The parts of a model in several. */
static zero_status read_parts(const zi_json *json, zi_manifest *manifest)
{
    json_t *array = NULL;
    ZI_TRY(get_array(json, "parts", 2, PARTS_MAX, &array));
    const uint32_t count = (uint32_t)json_array_size(array);
    manifest->map.part_count = count;
    ZI_TRY(zi_calloc(count, sizeof *manifest->parts, (void **)&manifest->parts));
    for (uint32_t i = 0; i < count; i++) {
        zi_json entry;
        uint64_t number = 0;
        ZI_TRY(get_object(json, "parts", json_array_get(array, i), &entry));
        ZI_TRY(get_number(&entry, "part", i, i, &number));
        ZI_TRY(read_part(&entry, &manifest->parts[i]));
    }
    return ZERO_OK;
}

/* Read the numbers of a step of a model in one part, or of the first of several parts. */
static zero_status read_numbers(const zi_json *json, zi_manifest *manifest)
{
    zi_manifest_part part = {0};
    zero_step_state *state = &manifest->state;
    ZI_TRY(read_part(json, &part));
    memcpy(state->carried, part.carried, sizeof state->carried);
    manifest->group_count = part.group_count;
    memcpy(manifest->groups, part.groups, sizeof manifest->groups);
    return ZERO_OK;
}

static zero_status read_user(const zi_json *json, zi_manifest *manifest)
{
    const char *text = NULL;
    ZI_TRY(get_text(json, "user", &text));
    const size_t length = strlen(text);
    if (length % 2 != 0 || length / 2 > ZI_MANIFEST_USER_BYTES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"user\" of %s has %zu digits; at most 1 MiB in pairs",
                json->path, length);
    }
    unsigned char *bytes = NULL;
    ZI_TRY(zi_calloc(length / 2, 1, (void **)&bytes));
    manifest->memory->user = bytes;
    manifest->user = bytes;
    manifest->user_bytes = length / 2;
    for (size_t i = 0; i < length; i += 2) {
        const unsigned high = hex_digit(text[i]);
        const unsigned low = hex_digit(text[i + 1]);
        if (high > 15 || low > 15) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"user\" of %s has what is no hexadecimal digit",
                    json->path);
        }
        bytes[i / 2] = (unsigned char)(high << 4 | low);
    }
    return ZERO_OK;
}

/* ---- tensors ---- */

static zero_status refuse_tensor(const zi_json *json, const zi_checkpoint_tensor *tensor,
                                 const char *what)
{
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor \"%.80s\" of %.120s: %s",
            tensor->name != NULL ? tensor->name : "", json->path, what);
}

static bool manifest_read_take_number(const json_t *value, uint64_t high, uint64_t *number)
{
    const json_int_t found = json_integer_value(value);
    *number = (uint64_t)found;
    return json_is_integer(value) && found >= 0 && (uint64_t)found <= high;
}

/* So many extents; their product. */
static bool take_extents(const json_t *array, uint32_t dims, uint64_t *extents, uint64_t *product)
{
    bool good = json_is_array(array) && json_array_size(array) == dims;
    *product = 1;
    for (uint32_t d = 0; d < dims && good; d++) {
        good = manifest_read_take_number(json_array_get(array, d), INT64_MAX, &extents[d]) &&
               zi_mul_u64(*product, extents[d], product);
    }
    return good;
}

static zero_status manifest_read_read_shape(const zi_json *json, zi_checkpoint_tensor *tensor)
{
    const json_t *shape = json_object_get(json->root, "shape");
    tensor->dims = (uint32_t)zi_min_u64(json_array_size(shape), ZERO_TENSOR_DIMS_MAX);
    return take_extents(shape, tensor->dims, tensor->shape, &tensor->count)
               ? ZERO_OK
               : refuse_tensor(json, tensor,
                               "\"shape\" is no array of at most 8 whole numbers whose product is "
                               "below 2^64");
}

/* Of a tensor that several parts may have boxes of. */
static zero_status manifest_read_read_box(const zi_json *json, const zi_manifest *manifest,
                                          zi_checkpoint_tensor *tensor)
{
    const json_t *global = json_object_get(json->root, "global_shape");
    const zi_checkpoint_tensor *before =
        tensor != manifest->map.tensors ? tensor - 1 : manifest->map.tensors;
    uint64_t elements = 0;
    uint64_t unused = 0;
    ZI_TRY(get_u32(json, "part", manifest->map.part_count - 1, &tensor->part));
    if (tensor->part < before->part) {
        return refuse_tensor(json, tensor, "its \"part\" is below that of the tensor before");
    }
    tensor->is_box = global != NULL;
    bool good =
        !tensor->is_box || (take_extents(global, tensor->dims, tensor->global_shape, &elements) &&
                            take_extents(json_object_get(json->root, "box_first"), tensor->dims,
                                         tensor->box_first, &unused));
    for (uint32_t d = 0; d < tensor->dims && good && tensor->is_box; d++) {
        good = tensor->box_first[d] <= tensor->global_shape[d] &&
               tensor->shape[d] <= tensor->global_shape[d] - tensor->box_first[d];
    }
    return good ? ZERO_OK
                : refuse_tensor(json, tensor,
                                "\"global_shape\" and \"box_first\" are no box around its shape");
}

static zero_status read_cuts(const zi_json *json, zi_checkpoint_tensor *tensor)
{
    const json_t *cuts = json_object_get(json->root, "cuts");
    if (json_array_size(cuts) != 2 ||
        !manifest_read_take_number(json_array_get(cuts, 1), CUT_MAX, &tensor->cut_every) ||
        !manifest_read_take_number(json_array_get(cuts, 0), tensor->cut_every,
                                   &tensor->cut_first) ||
        tensor->cut_first == 0 || tensor->cut_first % ZI_GRANULE != 0 ||
        tensor->cut_every % ZI_GRANULE != 0) {
        return refuse_tensor(json, tensor,
                             "\"cuts\" are not two multiples of 256 above 0, the first not above "
                             "the second, which is at most 2^62");
    }
    return ZERO_OK;
}

static zero_dtype dtype_named(const char *name)
{
    for (zero_dtype dtype = ZERO_DTYPE_F32; name != NULL && dtype <= ZERO_DTYPE_U8_ROOT; dtype++) {
        if (zero_dtype_bytes(dtype) != 0 && strcmp(zero_dtype_name(dtype), name) == 0) {
            return dtype;
        }
    }
    return ZERO_DTYPE_NONE;
}

/* True if a role can be of a kind: masters are remainders of parameters in bf16, moments are codes
 * of which there are scales, and only of those. */
static bool is_kind_of(const zi_checkpoint_tensor *tensor, zero_role role)
{
    const zero_dtype dtype = tensor->role[role].dtype;
    if (zi_role_is_scales(role)) {
        const zero_dtype codes = tensor->role[zi_role_of_scales(role)].dtype;
        return dtype == (zi_dtype_is_code(codes) ? ZERO_DTYPE_BF16 : ZERO_DTYPE_NONE);
    }
    if (zi_dtype_is_remainder(dtype)) {
        return role == ZERO_ROLE_MASTER && tensor->role[ZERO_ROLE_PARAM].dtype == ZERO_DTYPE_BF16;
    }
    return !zi_dtype_is_code(dtype) || (zi_role_is_moment(role));
}

/* The kinds that the roles of a tensor have go together, and with the version. */
static zero_status check_kinds(const zi_json *json, const zi_checkpoint_tensor *tensor,
                               uint64_t version)
{
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        if (!is_kind_of(tensor, role) ||
            (version < ZI_MANIFEST_VERSION_SMALL && zi_dtype_is_small(tensor->role[role].dtype))) {
            return refuse_tensor(json, tensor,
                                 "its places are of kinds that do not go together, or not with "
                                 "this version");
        }
    }
    return ZERO_OK;
}

/* The dtypes; the rest of a place is compared later. */
static zero_status read_dtypes(const zi_json *json, zi_checkpoint_tensor *tensor)
{
    const json_t *places = json_object_get(json->root, "places");
    size_t known = 0;
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        tensor->role[role].dtype = ZERO_DTYPE_NONE;
    }
    for (uint32_t i = 0; i < ZI_SAVED_ROLES; i++) {
        const zero_role role = zi_saved_role(i);
        const json_t *place = json_object_get(places, zero_role_name(role));
        if (place == NULL) {
            continue;
        }
        known++;
        tensor->role[role].dtype = dtype_named(json_string_value(json_array_get(place, 0)));
        if (json_array_size(place) != 4 || tensor->role[role].dtype == ZERO_DTYPE_NONE) {
            return refuse_tensor(json, tensor,
                                 "a place is not a dtype's name, file, offset and first piece");
        }
    }
    if (!json_is_object(places) || json_object_size(places) != known) {
        return refuse_tensor(json, tensor,
                             "\"places\" is no object of param and states of optimizers");
    }
    return ZERO_OK;
}

static zero_status manifest_read_read_tensor(const zi_json *json, zi_manifest *manifest,
                                             uint64_t version, zi_checkpoint_tensor *tensor)
{
    const char *name = NULL;
    ZI_TRY(get_text(json, "name", &name));
    ZI_TRY(zi_checkpoint_check_tensor_name(name));
    ZI_TRY(zi_names_add(&manifest->memory->names, name, &tensor->name));
    ZI_TRY(manifest_read_read_shape(json, tensor));
    ZI_TRY(manifest->map.part_count > 1 ? manifest_read_read_box(json, manifest, tensor) : ZERO_OK);
    ZI_TRY(get_u32(json, "flags", ZERO_TENSOR_NO_DECAY | ZERO_TENSOR_FROZEN, &tensor->flags));
    ZI_TRY(get_u32(json, "group", ZERO_STEP_GROUPS - 1, &tensor->group));
    ZI_TRY(read_cuts(json, tensor));
    ZI_TRY(read_dtypes(json, tensor));
    return check_kinds(json, tensor, version);
}

/* No two tensors of a part have one name, and those of several are boxes of one tensor. */
static zero_status check_names(const zi_json *json, const zi_checkpoint_map *map)
{
    zi_box_index index;
    zi_box_conflict conflict;
    const zero_status status = zi_box_index_make(&index, map, &conflict);
    zi_box_index_free(&index);
    return status == ZERO_OK ? zi_box_refuse(map, &conflict, json->path) : status;
}

static zero_status read_tensors(const zi_json *json, json_t *array, uint64_t version,
                                zi_manifest *manifest)
{
    zi_checkpoint_map *map = &manifest->map;
    ZI_TRY(zi_calloc(json_array_size(array), sizeof *map->tensors, (void **)&map->tensors));
    manifest->memory->tensors = map->tensors;
    map->tensor_count = (uint32_t)json_array_size(array);
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        zi_json entry;
        ZI_TRY(get_object(json, "tensors", json_array_get(array, i), &entry));
        ZI_TRY(manifest_read_read_tensor(&entry, manifest, version, &map->tensors[i]));
    }
    ZI_TRY(check_names(json, map));
    return zi_checkpoint_map_make(map);
}

/* ---- what follows from the tensors ---- */

static zero_status manifest_read_check_places(const zi_json *json, const json_t *entry,
                                              const zi_checkpoint_tensor *tensor)
{
    const json_t *places = json_object_get(entry, "places");
    for (uint32_t i = 0; i < ZI_SAVED_ROLES; i++) {
        const zi_checkpoint_place *place = &tensor->role[zi_saved_role(i)];
        const json_t *said = json_object_get(places, zero_role_name(zi_saved_role(i)));
        uint64_t file = 0;
        uint64_t at = 0;
        uint64_t piece = 0;
        if (said != NULL &&
            (!manifest_read_take_number(json_array_get(said, 1), UINT32_MAX, &file) ||
             !manifest_read_take_number(json_array_get(said, 2), INT64_MAX, &at) ||
             !manifest_read_take_number(json_array_get(said, 3), INT64_MAX, &piece) ||
             file != place->file || at != place->at || piece != place->first_piece)) {
            return refuse_tensor(json, tensor,
                                 "a place is not the one that follows from the "
                                 "tensors' dtypes, shapes and order");
        }
    }
    return ZERO_OK;
}

static zero_status manifest_read_read_file(const zi_json *json, const zi_checkpoint_file *file,
                                           uint64_t *hash)
{
    const char *name = NULL;
    const char *role = NULL;
    uint64_t data_at = 0;
    uint64_t bytes = 0;
    ZI_TRY(get_text(json, "name", &name));
    ZI_TRY(get_text(json, "role", &role));
    ZI_TRY(get_number(json, "data_at", 0, INT64_MAX, &data_at));
    ZI_TRY(get_number(json, "bytes", 0, INT64_MAX, &bytes));
    ZI_TRY(get_hash(json, "header_xxh3", hash));
    if (strcmp(name, file->name) != 0 || strcmp(role, zero_role_name(file->role)) != 0 ||
        data_at != file->data_at || bytes != file->bytes) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%.150s: what it says of the file \"%.40s\" does not follow from the tensors",
                json->path, name);
    }
    return ZERO_OK;
}

static zero_status read_files(const zi_json *json, zi_manifest *manifest)
{
    const uint32_t count = manifest->map.file_count;
    json_t *array = NULL;
    ZI_TRY(get_array(json, "files", count, count, &array));
    ZI_TRY(zi_calloc(count, sizeof *manifest->header_hash, (void **)&manifest->header_hash));
    for (uint32_t i = 0; i < count; i++) {
        zi_json entry;
        ZI_TRY(get_object(json, "files", json_array_get(array, i), &entry));
        ZI_TRY(manifest_read_read_file(&entry, &manifest->map.files[i], &manifest->header_hash[i]));
    }
    return ZERO_OK;
}

static zero_status read_sums(const zi_json *json, zi_manifest *manifest)
{
    const char *name = NULL;
    zi_json sums;
    uint64_t number = 0;
    const uint64_t pieces = manifest->map.piece_count;
    ZI_TRY(get_object(json, "sums", json_object_get(json->root, "sums"), &sums));
    ZI_TRY(get_text(&sums, "name", &name));
    ZI_TRY(get_number(&sums, "piece_elements", ZI_PIECE_COUNT, ZI_PIECE_COUNT, &number));
    ZI_TRY(get_number(&sums, "pieces", pieces, pieces, &number));
    if (strcmp(name, ZI_SUMS_NAME) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%.150s: its sums are in \"%.40s\" instead of " ZI_SUMS_NAME, json->path, name);
    }
    return get_hash(&sums, "xxh3", &manifest->sums_hash);
}

/* ---- all ---- */

static zero_status check_byte_order(const zi_json *json)
{
    const char *order = NULL;
    ZI_TRY(get_text(json, "byte_order", &order));
    if (strcmp(order, "little") != 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "%.150s has the byte order \"%.20s\"; only \"little\" is read", json->path, order);
    }
    return ZERO_OK;
}

static zero_status read_members(const zi_json *json, uint64_t version, zi_manifest *manifest)
{
    json_t *tensors = NULL;
    uint64_t model_hash = 0;
    ZI_TRY(check_byte_order(json));
    ZI_TRY(get_u32(json, "world", UINT32_MAX, &manifest->world));
    ZI_TRY(get_quoted(json, "seed", &manifest->seed));
    ZI_TRY(get_hash(json, "model_hash", &model_hash));
    ZI_TRY(read_state(json, &manifest->state));
    ZI_TRY(zi_json_flag(json, (zi_json_key){.name = "loss_scale_dynamic", .required = true},
                        &manifest->scale_dynamic));
    ZI_TRY(read_numbers(json, manifest));
    const bool parts =
        version == ZI_MANIFEST_VERSION_PARTS ||
        (version == ZI_MANIFEST_VERSION_SMALL && json_object_get(json->root, "parts") != NULL);
    ZI_TRY(parts ? read_parts(json, manifest) : ZERO_OK);
    ZI_TRY(get_quoted(json, "data_position", &manifest->data_position));
    ZI_TRY(get_quoted(json, "random_seed", &manifest->random_seed));
    ZI_TRY(get_quoted(json, "random_position", &manifest->random_position));
    ZI_TRY(read_user(json, manifest));
    ZI_TRY(get_array(json, "tensors", 0, (size_t)1 << 28, &tensors));
    ZI_TRY(read_tensors(json, tensors, version, manifest));
    ZI_TRY(read_files(json, manifest));
    ZI_TRY(read_sums(json, manifest));
    for (uint32_t i = 0; i < manifest->map.tensor_count; i++) {
        ZI_TRY(manifest_read_check_places(json, json_array_get(tensors, i),
                                          &manifest->map.tensors[i]));
    }
    manifest->model_hash = zi_manifest_model_hash(&manifest->map);
    if (manifest->model_hash != model_hash) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%.150s: \"model_hash\" is not that of its tensors",
                json->path);
    }
    return ZERO_OK;
}

zero_status zi_manifest_read(zi_manifest *manifest, const char *folder)
{
    zi_manifest_text text;
    zi_json json = {0};
    *manifest = (zi_manifest){0};
    zero_status status = zi_calloc(1, sizeof *manifest->memory, (void **)&manifest->memory);
    if (status != ZERO_OK) {
        return status;
    }
    status = zi_manifest_text_load(&text, folder);
    if (status == ZERO_OK) {
        status = zi_json_parse(&json, text.path, text.text, text.bytes);
    }
    zi_free(text.text);
    if (status == ZERO_OK) {
        manifest->commit = text.head.commit;
        manifest->weights = text.head.weights;
        status = read_members(&json, text.version, manifest);
    }
    zi_json_close(&json);
    return status;
}

void zi_manifest_free(zi_manifest *manifest)
{
    if (manifest->memory != NULL) {
        zi_names_free(&manifest->memory->names);
        zi_free(manifest->memory->tensors);
        zi_free(manifest->memory->user);
        zi_free(manifest->memory);
        zi_free(manifest->header_hash);
        zi_free(manifest->parts);
        zi_checkpoint_map_free(&manifest->map);
    }
    *manifest = (zi_manifest){0};
}
