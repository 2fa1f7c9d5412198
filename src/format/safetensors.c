/* Owns headers of safetensors files. Invariant: each tensor has as many bytes as its type and shape
 * say, and their bytes lie one after the other from 0 on, so that no two share any. */
#include "format/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

#define LENGTH_BYTES 8
#define METADATA "__metadata__"

/* A text has no zero byte, and a length without one is of more bytes than any file has. */
zero_status zi_safetensors_found(const zi_regular_file *file, bool *found)
{
    unsigned char length[LENGTH_BYTES];
    size_t bytes = sizeof length;
    ZI_TRY(zi_regular_file_read(file, 0, length, &bytes));
    *found = bytes == sizeof length && memchr(length, 0, bytes) != NULL;
    return ZERO_OK;
}

/* ---- one tensor ---- */

/* A type of the format. Sizes of less than a byte are not known here. */
typedef struct tensor_type {
    const char *name;
    uint64_t bytes;
    zero_dtype dtype;
} tensor_type;

static const tensor_type types[] = {
    {"F32", 4, ZERO_DTYPE_F32},      {"BF16", 2, ZERO_DTYPE_BF16},
    {"F16", 2, ZERO_DTYPE_F16},      {"F64", 8, ZERO_DTYPE_NONE},
    {"F8_E4M3", 1, ZERO_DTYPE_NONE}, {"F8_E5M2", 1, ZERO_DTYPE_NONE},
    {"F8_E8M0", 1, ZERO_DTYPE_NONE}, {"C64", 8, ZERO_DTYPE_NONE},
    {"I64", 8, ZERO_DTYPE_NONE},     {"I32", 4, ZERO_DTYPE_NONE},
    {"I16", 2, ZERO_DTYPE_NONE},     {"I8", 1, ZERO_DTYPE_NONE},
    {"U64", 8, ZERO_DTYPE_NONE},     {"U32", 4, ZERO_DTYPE_NONE},
    {"U16", 2, ZERO_DTYPE_NONE},     {"U8", 1, ZERO_DTYPE_NONE},
    {"BOOL", 1, ZERO_DTYPE_NONE},
};
#define TYPE_COUNT (sizeof types / sizeof types[0])

static zero_status safetensors_refuse(const zi_safetensors *header, const zi_safetensor *tensor,
                                      const char *what)
{
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s: tensor \"%.80s\": %s", header->json.path, tensor->name,
            what);
}

static bool safetensors_read_number(const json_t *json, uint64_t *number)
{
    const json_int_t value = json_integer_value(json);
    *number = value < 0 ? 0 : (uint64_t)value;
    return json_is_integer(json) && value >= 0;
}

static zero_status read_type(const zi_safetensors *header, const json_t *entry,
                             zi_safetensor *tensor, uint64_t *bytes)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (name == NULL) {
        return safetensors_refuse(header, tensor, "its \"dtype\" is missing or no text");
    }
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0) {
            tensor->type = types[i].name;
            tensor->dtype = types[i].dtype;
            *bytes = types[i].bytes;
            return ZERO_OK;
        }
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "%s: tensor \"%.80s\": its \"dtype\" is \"%.16s\", which is not "
            "known",
            header->json.path, tensor->name, name);
}

static zero_status safetensors_read_shape(const zi_safetensors *header, const json_t *entry,
                                          zi_safetensor *tensor)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > ZI_SAFETENSORS_DIMS_MAX) {
        return safetensors_refuse(header, tensor, "its \"shape\" is no array of at most 8 numbers");
    }
    tensor->dims = (uint32_t)json_array_size(shape);
    tensor->count = 1;
    for (uint32_t i = 0; i < tensor->dims; i++) {
        if (!safetensors_read_number(json_array_get(shape, i), &tensor->shape[i])) {
            return safetensors_refuse(header, tensor,
                                      "its \"shape\" has what is no whole number from 0 on");
        }
        if (!zi_mul_u64(tensor->count, tensor->shape[i], &tensor->count)) {
            return safetensors_refuse(header, tensor, "its \"shape\" has more than 2^64 elements");
        }
    }
    return ZERO_OK;
}

static zero_status read_place(const zi_safetensors *header, const json_t *entry,
                              zi_safetensor *tensor, uint64_t type_bytes)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t bytes = 0;
    if (json_array_size(offsets) != 2 ||
        !safetensors_read_number(json_array_get(offsets, 0), &tensor->begin) ||
        !safetensors_read_number(json_array_get(offsets, 1), &tensor->end) ||
        tensor->end < tensor->begin) {
        return safetensors_refuse(header, tensor,
                                  "its \"data_offsets\" are no beginning and no end behind it");
    }
    if (!zi_mul_u64(tensor->count, type_bytes, &bytes) || bytes != tensor->end - tensor->begin) {
        return safetensors_refuse(header, tensor,
                                  "its \"data_offsets\" are not as far apart as its type and "
                                  "shape have bytes");
    }
    return ZERO_OK;
}

static zero_status safetensors_read_tensor(const zi_safetensors *header, const json_t *entry,
                                           zi_safetensor *tensor)
{
    uint64_t type_bytes = 0;
    if (json_object_size(entry) != 3) {
        return safetensors_refuse(header, tensor,
                                  "it is no object of \"dtype\", \"shape\" and \"data_offsets\"");
    }
    ZI_TRY(read_type(header, entry, tensor, &type_bytes));
    ZI_TRY(safetensors_read_shape(header, entry, tensor));
    return read_place(header, entry, tensor, type_bytes);
}

/* ---- all of them ---- */

/* Empty tensors come before what begins where they do. */
static int compare_places(const void *left, const void *right)
{
    const zi_safetensor *a = left;
    const zi_safetensor *b = right;
    return a->begin != b->begin ? (a->begin > b->begin) - (a->begin < b->begin)
                                : (a->end > b->end) - (a->end < b->end);
}

static zero_status safetensors_check_places(const zi_safetensors *header)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < header->count; i++) {
        const zi_safetensor *tensor = &header->tensors[i];
        if (tensor->begin != end) {
            return safetensors_refuse(header, tensor,
                                      tensor->begin < end ? "its bytes are another tensor's as well"
                                                          : "there is a gap before its bytes");
        }
        end = tensor->end;
    }
    return ZERO_OK;
}

static zero_status check_metadata(const zi_safetensors *header, json_t *metadata)
{
    const char *key = NULL;
    json_t *value = NULL;
    bool texts = json_is_object(metadata);
    json_object_foreach(metadata, key, value)
    {
        texts = texts && json_is_string(value);
    }
    if (!texts) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s: \"" METADATA "\" is no object of texts",
                header->json.path);
    }
    return ZERO_OK;
}

static zero_status read_entries(zi_safetensors *header)
{
    const char *key = NULL;
    json_t *entry = NULL;
    ZI_TRY(zi_calloc(json_object_size(header->json.root), sizeof *header->tensors,
                     (void **)&header->tensors));
    json_object_foreach(header->json.root, key, entry)
    {
        if (strcmp(key, METADATA) == 0) {
            ZI_TRY(check_metadata(header, entry));
            continue;
        }
        zi_safetensor *tensor = &header->tensors[header->count++];
        tensor->name = key;
        ZI_TRY(safetensors_read_tensor(header, entry, tensor));
    }
    qsort(header->tensors, header->count, sizeof *header->tensors, compare_places);
    return safetensors_check_places(header);
}

/* The length that the file begins with. */
static zero_status read_length(const zi_regular_file *file, uint64_t *length)
{
    unsigned char text[LENGTH_BYTES];
    size_t bytes = sizeof text;
    ZI_TRY(zi_regular_file_read(file, 0, text, &bytes));
    if (bytes != sizeof text) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s has %zu bytes; a header begins behind the eighth",
                file->path, bytes);
    }
    *length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        *length = *length << 8 | text[i];
    }
    if (*length > ZI_SAFETENSORS_HEADER_MAX || *length + LENGTH_BYTES > file->bytes) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: its header would have %" PRIu64 " bytes; the file has %" PRIu64
                ", and a header at most %" PRIu64,
                file->path, *length, file->bytes, ZI_SAFETENSORS_HEADER_MAX);
    }
    return ZERO_OK;
}

zero_status zi_safetensors_read(zi_safetensors *header, const zi_regular_file *file)
{
    uint64_t length = 0;
    char *text = NULL;
    *header = (zi_safetensors){.json.path = file->path};
    ZI_TRY(read_length(file, &length));
    header->data_at = LENGTH_BYTES + length;
    size_t bytes = (size_t)length;
    ZI_TRY(zi_calloc(1, bytes + 1, (void **)&text));
    zero_status status = zi_regular_file_read(file, LENGTH_BYTES, text, &bytes);
    if (status == ZERO_OK) {
        status = zi_json_parse(&header->json, file->path, text, bytes);
    }
    zi_free(text);
    return status == ZERO_OK ? read_entries(header) : status;
}

void zi_safetensors_close(zi_safetensors *header)
{
    zi_json_close(&header->json);
    zi_free(header->tensors);
    *header = (zi_safetensors){0};
}
