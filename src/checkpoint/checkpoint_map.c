/* Owns the places of tensors in a checkpoint. Invariant: a place depends on the tensors of the map
 * alone, and neither on ranks nor on anything of the machine; the tensors of a file lie end to end.
 */
#include "checkpoint/checkpoint_map.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/utf8.h"
#include "format/json.h"

#define NAME_BYTES_MAX 127
#define SCALES_SUFFIX ".scale"
/* Of all tensors. So sizes of files, and pieces over all roles, stay far below 2^63. */
#define ELEMENTS_MAX ((uint64_t)1 << 57)

/* ---- tensors ---- */

static bool has_role(const zi_checkpoint_tensor *tensor, zero_role role)
{
    return role != ZERO_ROLE_GRAD && zero_dtype_bytes(tensor->role[role].dtype) != 0;
}

static uint64_t role_bytes(const zi_checkpoint_tensor *tensor, zero_role role)
{
    return zi_saved_bytes(tensor, role, tensor->count);
}

zero_status zi_checkpoint_check_tensor_name(const char *name)
{
    const size_t length = strlen(name);
    if (length == 0 || length > NAME_BYTES_MAX || !zi_text_is_utf8(name) ||
        strcmp(name, ZI_NAME_OF_METADATA) == 0) {
        ZI_FAIL(
            ZERO_ERR_INVALID_ARGUMENT,
            "a checkpoint cannot have the tensor \"%.127s\"; its name must be UTF-8 of 1 to 127 "
            "bytes and not __metadata__",
            name);
    }
    return ZERO_OK;
}

static zero_status check_tensors(const zi_checkpoint_map *map)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_checkpoint_tensor *tensor = &map->tensors[i];
        ZI_TRY(zi_checkpoint_check_tensor_name(tensor->name));
        if (!zi_add_u64(elements, tensor->count, &elements) || elements > ELEMENTS_MAX) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "the tensors up to \"%.127s\" have more than 2^57 elements, more than a "
                    "checkpoint can hold",
                    tensor->name);
        }
    }
    return ZERO_OK;
}

/* ---- files ---- */

/* A part's tensors. */
typedef struct part_tensors {
    uint32_t first;
    uint32_t end;
} part_tensors;

/* The part that begins with tensor `first`, which is there. */
static part_tensors part_at(const zi_checkpoint_map *map, uint32_t first)
{
    part_tensors part = {first, first + 1};
    while (part.end < map->tensor_count &&
           map->tensors[part.end].part == map->tensors[first].part) {
        part.end++;
    }
    return part;
}

/* Give each tensor of a part in a role its file. *files counts those of the whole checkpoint.
 * map->files is NULL: count alone. */
static void assign_files(zi_checkpoint_map *map, part_tensors part, zero_role role, uint32_t *files)
{
    uint64_t bytes = 0;
    uint32_t tensors = 0;
    zi_checkpoint_file *file = NULL;
    for (uint32_t i = part.first; i < part.end; i++) {
        zi_checkpoint_tensor *tensor = &map->tensors[i];
        if (!has_role(tensor, role)) {
            continue;
        }
        const uint64_t more = role_bytes(tensor, role);
        if (tensors == 0 || tensors == ZI_CHECKPOINT_FILE_TENSORS ||
            bytes + more > ZI_CHECKPOINT_FILE_BYTES) {
            if (map->files != NULL) {
                file = &map->files[*files];
                *file = (zi_checkpoint_file){.role = role, .first_tensor = i};
            }
            *files += 1;
            bytes = 0;
            tensors = 0;
        }
        tensor->role[role].file = *files - 1;
        bytes += more;
        tensors++;
        if (file != NULL) {
            file->tensor_end = i + 1;
        }
    }
}

static uint32_t count_files(zi_checkpoint_map *map)
{
    uint32_t files = 0;
    part_tensors part = {0, 0};
    while (part.end < map->tensor_count) {
        part = part_at(map, part.end);
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            assign_files(map, part, role, &files);
        }
    }
    return files;
}

/* Call `each` for the tensors of a file in the order of their bytes. */
typedef void (*tensor_fn)(void *user, zi_checkpoint_tensor *tensor);

static void for_each_of_width(const zi_checkpoint_map *map, const zi_checkpoint_file *file,
                              size_t width, tensor_fn each, void *user)
{
    for (uint32_t i = file->first_tensor; i < file->tensor_end; i++) {
        zi_checkpoint_tensor *tensor = &map->tensors[i];
        if (has_role(tensor, file->role) &&
            zero_dtype_bytes(tensor->role[file->role].dtype) == width) {
            each(user, tensor);
        }
    }
}

static void for_each(const zi_checkpoint_map *map, const zi_checkpoint_file *file, tensor_fn each,
                     void *user)
{
    for_each_of_width(map, file, 4, each, user);
    for_each_of_width(map, file, 2, each, user);
    for_each_of_width(map, file, 1, each, user);
}

/* ---- headers ---- */

/* A header while it is written. */
typedef struct header_writer {
    zi_json_writer json;
    zero_role role;
    uint64_t at; /* of the next tensor, behind the header */
} header_writer;

/* Of the format, which knows widths and signs alone. */
static const char *type_name(zero_dtype dtype)
{
    static const char *const names[] = {
        [ZERO_DTYPE_F32] = "F32",         [ZERO_DTYPE_BF16] = "BF16",     [ZERO_DTYPE_F16] = "F16",
        [ZERO_DTYPE_REMAINDER16] = "U16", [ZERO_DTYPE_REMAINDER8] = "U8", [ZERO_DTYPE_I8] = "I8",
        [ZERO_DTYPE_COMPANDED8] = "U8",   [ZERO_DTYPE_U8_ROOT] = "U8",
    };
    return names[dtype];
}

/* Scales are a line of values, and named apart from the codes that they are of. */
static void put_key(zi_json_writer *json, const zi_checkpoint_tensor *tensor, zero_role role)
{
    char name[NAME_BYTES_MAX + sizeof SCALES_SUFFIX];
    (void)snprintf(name, sizeof name, "%s%s", tensor->name,
                   zi_role_is_scales(role) ? SCALES_SUFFIX : "");
    zi_json_put(json, json_string(name));
}

static void put_shape(zi_json_writer *json, const zi_checkpoint_tensor *tensor, zero_role role)
{
    const uint64_t scales = zi_codec_values(zi_saved_codec(tensor, role), tensor->count);
    zi_json_put(json, zi_role_is_scales(role) ? zi_json_of_numbers(&scales, 1)
                                              : zi_json_of_numbers(tensor->shape, tensor->dims));
}

static void put_entry(void *user, zi_checkpoint_tensor *tensor)
{
    header_writer *header = user;
    zi_json_writer *json = &header->json;
    const uint64_t offsets[] = {header->at, header->at + role_bytes(tensor, header->role)};
    zi_json_raw(json, ",");
    put_key(json, tensor, header->role);
    zi_json_raw(json, ":{\"dtype\":\"");
    zi_json_raw(json, type_name(tensor->role[header->role].dtype));
    zi_json_raw(json, "\",\"shape\":");
    put_shape(json, tensor, header->role);
    zi_json_raw(json, ",\"data_offsets\":");
    zi_json_put(json, zi_json_of_numbers(offsets, 2));
    zi_json_raw(json, "}");
    header->at = offsets[1];
}

/* *data_at: what the header has; tensor_bytes: out, of all tensors. */
static zero_status make_header(const zi_checkpoint_map *map, const zi_checkpoint_file *file,
                               char **header, size_t *data_at, uint64_t *tensor_bytes)
{
    header_writer writer = {.role = file->role};
    zi_json_begin(&writer.json, JSON_COMPACT);
    zi_json_raw(&writer.json, "        {\"__metadata__\":{\"format\":\"pt\"}");
    for_each(map, file, put_entry, &writer);
    zi_json_raw(&writer.json, "}");
    while (writer.json.bytes % ZI_CHECKPOINT_ALIGN != 0 && !writer.json.lost) {
        zi_json_raw(&writer.json, " ");
    }
    *tensor_bytes = writer.at;
    ZI_TRY(zi_json_end(&writer.json, header, data_at));
    for (int i = 0; i < 8; i++) {
        (*header)[i] = (char)((*data_at - 8) >> (8 * i) & 0xff);
    }
    return ZERO_OK;
}

zero_status zi_checkpoint_header(const zi_checkpoint_map *map, uint32_t file, char **header)
{
    size_t data_at = 0;
    uint64_t unused = 0;
    ZI_TRY(make_header(map, &map->files[file], header, &data_at, &unused));
    zi_assert_cmp(data_at, ==, map->files[file].data_at);
    return ZERO_OK;
}

/* ---- places ---- */

typedef struct placer {
    zero_role role;
    uint64_t at;
} placer;

static void checkpoint_map_place(void *user, zi_checkpoint_tensor *tensor)
{
    placer *next = user;
    tensor->role[next->role].at = next->at;
    next->at += role_bytes(tensor, next->role);
}

static zero_status place_file(const zi_checkpoint_map *map, zi_checkpoint_file *file)
{
    char *header = NULL;
    size_t data_at = 0;
    uint64_t tensor_bytes = 0;
    ZI_TRY(make_header(map, file, &header, &data_at, &tensor_bytes));
    zi_free(header);
    file->data_at = data_at;
    file->bytes = data_at + tensor_bytes;
    for_each(map, file, checkpoint_map_place, &(placer){file->role, file->data_at});
    return ZERO_OK;
}

/* A part's files of one role. */
static void name_files(zi_checkpoint_map *map, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        zi_checkpoint_file *file = &map->files[i];
        const char *role = zero_role_name(file->role);
        int used = 0;
        if (map->part_count > 1) {
            used = snprintf(file->name, sizeof file->name, "part-%05u.",
                            map->tensors[file->first_tensor].part + 1);
        }
        char *rest = file->name + used;
        const size_t room = sizeof file->name - (size_t)used;
        if (end - first == 1) {
            (void)snprintf(rest, room, "%s.safetensors", role);
        } else {
            (void)snprintf(rest, room, "%s-%05u-of-%05u.safetensors", role, i - first + 1,
                           end - first);
        }
    }
}

static void number_pieces(zi_checkpoint_map *map, part_tensors part)
{
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        for (uint32_t i = part.first; i < part.end; i++) {
            zi_checkpoint_tensor *tensor = &map->tensors[i];
            if (has_role(tensor, role)) {
                tensor->role[role].first_piece = map->piece_count;
                map->piece_count += zi_checkpoint_piece_count(tensor);
            }
        }
    }
}

zero_status zi_checkpoint_map_make(zi_checkpoint_map *map)
{
    map->files = NULL;
    map->file_count = 0;
    ZI_TRY(check_tensors(map));
    const uint32_t files = count_files(map);
    if (files > ZI_CHECKPOINT_FILES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a checkpoint of %u tensors would have %u files; at most %d", map->tensor_count,
                files, ZI_CHECKPOINT_FILES_MAX);
    }
    ZI_TRY(zi_calloc(files, sizeof *map->files, (void **)&map->files));
    part_tensors part = {0, 0};
    map->piece_count = 0;
    while (part.end < map->tensor_count) {
        part = part_at(map, part.end);
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            const uint32_t first = map->file_count;
            assign_files(map, part, role, &map->file_count);
            name_files(map, first, map->file_count);
        }
        number_pieces(map, part);
    }
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < files && status == ZERO_OK; i++) {
        status = place_file(map, &map->files[i]);
    }
    if (status != ZERO_OK) {
        zi_checkpoint_map_free(map);
    }
    return status;
}

void zi_checkpoint_map_move_pieces(zi_checkpoint_map *map, uint64_t before)
{
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            map->tensors[i].role[role].first_piece += before;
        }
    }
}

void zi_checkpoint_map_free(zi_checkpoint_map *map)
{
    zi_free(map->files);
    map->files = NULL;
    map->file_count = 0;
}

/* ---- pieces ---- */

static uint64_t checkpoint_map_pieces_of(uint64_t count)
{
    return zi_div_up(count, ZI_PIECE_COUNT);
}

uint64_t zi_checkpoint_piece_count(const zi_checkpoint_tensor *tensor)
{
    if (tensor->cut_every == 0) {
        return 0;
    }
    const uint64_t first = zi_min_u64(tensor->cut_first, tensor->count);
    const uint64_t rest = tensor->count - first;
    return checkpoint_map_pieces_of(first) +
           rest / tensor->cut_every * checkpoint_map_pieces_of(tensor->cut_every) +
           checkpoint_map_pieces_of(rest % tensor->cut_every);
}

zi_checkpoint_piece zi_checkpoint_piece_at(const zi_checkpoint_tensor *tensor, uint64_t element)
{
    uint64_t begin = 0; /* of the cut, with its pieces before and its elements */
    uint64_t before = 0;
    uint64_t count = zi_min_u64(tensor->cut_first, tensor->count);
    zi_assert_cmp(element, <, tensor->count);
    if (element >= tensor->cut_first) {
        const uint64_t cut = (element - tensor->cut_first) / tensor->cut_every;
        begin = tensor->cut_first + cut * tensor->cut_every;
        before = checkpoint_map_pieces_of(tensor->cut_first) +
                 cut * checkpoint_map_pieces_of(tensor->cut_every);
        count = zi_min_u64(tensor->cut_every, tensor->count - begin);
    }
    const uint64_t piece = (element - begin) / ZI_PIECE_COUNT;
    return (zi_checkpoint_piece){
        .index = before + piece,
        .first = begin + piece * ZI_PIECE_COUNT,
        .count = zi_min_u64(ZI_PIECE_COUNT, count - piece * ZI_PIECE_COUNT),
    };
}
