/* Owns the map of weights alone. Anybody may have written these files: what their headers say has
 * been checked by format/safetensors.c, and is held against the files' lengths here. */
#include "checkpoint/checkpoint_weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "format/safetensors_set.h"

#define NAME_BYTES_MAX 1023

/* All bytes that the header speaks of are there, and no others. */
static zero_status checkpoint_weights_check_length(const zi_safetensors *header, uint64_t bytes)
{
    const uint64_t data = header->count == 0 ? 0 : header->tensors[header->count - 1].end;
    if (data > INT64_MAX - header->data_at || header->data_at + data != bytes) {
        ZI_FAIL(ZERO_ERR_CORRUPT,
                "%s has %" PRIu64 " bytes; its header speaks of %" PRIu64 " and %" PRIu64
                " of tensors",
                header->json.path, bytes, header->data_at, data);
    }
    return ZERO_OK;
}

static zero_status checkpoint_weights_add_tensor(zi_checkpoint_weights *weights,
                                                 const zi_safetensors *header,
                                                 const zi_safetensor *from)
{
    zi_checkpoint_map *map = &weights->map;
    zi_checkpoint_tensor *tensor = &map->tensors[map->tensor_count];
    if (strlen(from->name) > NAME_BYTES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: tensor \"%.80s...\": its name has more than %d bytes", header->json.path,
                from->name, NAME_BYTES_MAX);
    }
    ZI_TRY(zi_names_add(&weights->names, from->name, &tensor->name));
    tensor->dims = from->dims;
    tensor->count = from->count;
    memcpy(tensor->shape, from->shape, sizeof tensor->shape);
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        tensor->role[role].dtype = ZERO_DTYPE_NONE;
    }
    tensor->role[ZERO_ROLE_PARAM] = (zi_checkpoint_place){
        .dtype = from->dtype, .file = map->file_count, .at = header->data_at + from->begin};
    map->tensor_count++;
    return ZERO_OK;
}

static zero_status add_file(zi_checkpoint_weights *weights, const zi_safetensors *header)
{
    zi_checkpoint_map *map = &weights->map;
    zi_checkpoint_file *file = &map->files[map->file_count];
    zi_regular_file opened;
    zero_status status = zi_regular_file_open(&opened, header->json.path);
    const uint64_t bytes = opened.bytes;
    zi_regular_file_close(&opened);
    ZI_TRY(status);
    ZI_TRY(checkpoint_weights_check_length(header, bytes));
    ZI_TRY(zi_names_add(&weights->names, header->json.path, &weights->paths[map->file_count]));
    const char *slash = strrchr(header->json.path, '/');
    *file = (zi_checkpoint_file){.role = ZERO_ROLE_PARAM,
                                 .first_tensor = map->tensor_count,
                                 .data_at = header->data_at,
                                 .bytes = bytes};
    (void)snprintf(file->name, sizeof file->name, "%.63s",
                   slash != NULL ? slash + 1 : header->json.path);
    for (uint32_t i = 0; i < header->count; i++) {
        ZI_TRY(checkpoint_weights_add_tensor(weights, header, &header->tensors[i]));
    }
    file->tensor_end = map->tensor_count;
    weights->read_bytes += header->data_at;
    map->file_count++;
    return ZERO_OK;
}

static zero_status add_files(zi_checkpoint_weights *weights, const zi_safetensors *headers,
                             uint32_t count)
{
    size_t tensors = 0;
    for (uint32_t i = 0; i < count; i++) {
        tensors += headers[i].count;
    }
    ZI_TRY(zi_calloc(tensors, sizeof *weights->map.tensors, (void **)&weights->map.tensors));
    ZI_TRY(zi_calloc(count, sizeof *weights->map.files, (void **)&weights->map.files));
    ZI_TRY(zi_calloc(count, sizeof *weights->paths, (void **)&weights->paths));
    for (uint32_t i = 0; i < count; i++) {
        ZI_TRY(add_file(weights, &headers[i]));
    }
    return ZERO_OK;
}

static zero_status checkpoint_weights_read_one(zi_checkpoint_weights *weights,
                                               const zi_regular_file *file)
{
    zi_safetensors header;
    zero_status status = zi_safetensors_read(&header, file);
    if (status == ZERO_OK) {
        status = add_files(weights, &header, 1);
    }
    zi_safetensors_close(&header);
    return status;
}

static zero_status read_set(zi_checkpoint_weights *weights, const zi_regular_file *file)
{
    zi_json json = {0};
    zi_safetensors_set *set = NULL;
    ZI_TRY(zi_calloc(1, sizeof *set, (void **)&set));
    zero_status status = zi_json_read(&json, file, ZI_SAFETENSORS_INDEX_BYTES_MAX);
    if (status == ZERO_OK) {
        status = zi_safetensors_set_read(set, &json);
    }
    if (status == ZERO_OK) {
        weights->read_bytes += file->bytes;
        status = add_files(weights, set->headers, set->count);
    }
    zi_safetensors_set_close(set);
    zi_json_close(&json);
    zi_free(set);
    return status;
}

zero_status zi_checkpoint_weights_read(zi_checkpoint_weights *weights, const char *path)
{
    zi_regular_file file;
    bool found = false;
    *weights = (zi_checkpoint_weights){0};
    zero_status status = zi_regular_file_open(&file, path);
    if (status == ZERO_OK) {
        status = zi_safetensors_found(&file, &found);
    }
    if (status == ZERO_OK) {
        status = found ? checkpoint_weights_read_one(weights, &file) : read_set(weights, &file);
    }
    zi_regular_file_close(&file);
    return status;
}

void zi_checkpoint_weights_free(zi_checkpoint_weights *weights)
{
    zi_free(weights->map.tensors);
    zi_free(weights->map.files);
    zi_free(weights->paths);
    zi_names_free(&weights->names);
    *weights = (zi_checkpoint_weights){0};
}
