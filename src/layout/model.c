/* Owns the description of a model. Invariant: whatever is in it has passed the checks, so nobody
 * checks it again. */
#include "layout/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "core/utf8.h"

#define UNITS_MAX (UINT32_C(1) << 20)
#define TENSORS_MAX (UINT32_C(1) << 22)
#define MODEL_ELEMENTS_MAX (UINT64_C(1) << 50)
/* With fewer than 2^20 layers no offset overflows. */
#define LAYER_STRIDE_MAX (UINT64_C(1) << 40)

zero_status zero_model_create(zero_model **model)
{
    if (model == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "model is NULL; pass the address of a zero_model pointer");
    }
    return zi_calloc(1, sizeof **model, (void **)model);
}

void zero_model_destroy(zero_model *model)
{
    if (model != NULL) {
        zi_free(model->units);
        zi_free(model->tensors);
        zi_free(model->extras);
        zi_free(model->ties);
        zi_names_free(&model->names);
        zi_table_free(&model->units_by_name);
        zi_table_free(&model->tensors_by_name);
        zi_table_free(&model->ties_by_pair);
        zi_free(model);
    }
}

/* Room for one more element in an array that doubles. */
static zero_status model_grow(void **array, uint32_t count, uint32_t *capacity,
                              size_t element_bytes)
{
    if (count < *capacity) {
        return ZERO_OK;
    }
    const uint32_t larger = *capacity == 0 ? 16 : *capacity * 2;
    void *moved = NULL;
    ZI_TRY(zi_calloc(larger, element_bytes, &moved));
    if (count != 0) {
        memcpy(moved, *array, (size_t)count * element_bytes);
    }
    zi_free(*array);
    *array = moved;
    *capacity = larger;
    return ZERO_OK;
}

/* Room in a table for one more item. */
static zero_status reserve_one(zi_table *table)
{
    const uint32_t full = table->capacity / 2;
    return table->item_count < full ? ZERO_OK : zi_table_reserve(table, full + 1);
}

static bool is_named_unit(const void *units, uint32_t unit, const void *name)
{
    return strcmp(((const zi_unit_info *)units)[unit].name, name) == 0;
}

static bool is_named_tensor(const void *tensors, uint32_t tensor, const void *name)
{
    return strcmp(((const zi_tensor_info *)tensors)[tensor].name, name) == 0;
}

static bool is_tie(const void *ties, uint32_t index, const void *wanted)
{
    const zi_tie *tie = &((const zi_tie *)ties)[index];
    const zi_tie *other = wanted;
    return tie->unit == other->unit && tie->tensor == other->tensor;
}

/* As zi_checkpoint_check_tensor_name, and no control characters: so no save refuses a model that
 * was described, and no name tears a message or a list. */
static zero_status check_text(const char *what, const char *name)
{
    const char *good = zi_text_good_end(name);
    if (*good != '\0') {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s name \"%.*s\" goes on with byte 0x%02x, which is %s; no checkpoint can have it",
                what, (int)(good - name), name, (unsigned)(unsigned char)*good,
                zi_utf8_bytes((const unsigned char *)good) != 0 ? "a control character"
                                                                : "not UTF-8");
    }
    if (strcmp(name, ZI_NAME_OF_METADATA) == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s name \"%s\" is safetensors' own; no checkpoint can have it", what, name);
    }
    return ZERO_OK;
}

static zero_status model_check_name(const char *what, const char *name)
{
    if (name == NULL || name[0] == '\0' || strlen(name) >= ZI_NAME_BYTES) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s name \"%.40s\" must have 1 to %d bytes", what,
                name == NULL ? "(null)" : name, ZI_NAME_BYTES - 1);
    }
    return check_text(what, name);
}

static zero_status check_model(const zero_model *model)
{
    if (model == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "model is NULL; make one with zero_model_create");
    }
    return ZERO_OK;
}

static zero_status model_check_unit(const zero_model *model, uint32_t unit)
{
    if (unit >= model->unit_count) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "unit %" PRIu32 " is not one of the model's %" PRIu32,
                unit, model->unit_count);
    }
    return ZERO_OK;
}

static zero_status check_tensor(const zero_model *model, uint32_t tensor)
{
    if (tensor >= model->tensor_count) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor %" PRIu32 " is not one of the model's %" PRIu32,
                tensor, model->tensor_count);
    }
    return ZERO_OK;
}

static zero_status add_empty_unit(zero_model *model, const char *name, uint32_t shard_group,
                                  uint32_t *unit)
{
    ZI_TRY(model_check_name("unit", name));
    const uint64_t hash = zi_hash_text(ZI_HASH_START, name);
    const uint32_t taken =
        zi_table_find(&model->units_by_name, hash, is_named_unit, model->units, name);
    if (taken != ZI_TABLE_NONE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit name \"%.60s\" is taken by unit %" PRIu32 "; names of units are unique", name,
                taken);
    }
    if (model->unit_count == UNITS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit \"%.60s\" would be one more than the %" PRIu32 " a "
                "model may have",
                name, UNITS_MAX);
    }
    ZI_TRY(model_grow((void **)&model->units, model->unit_count, &model->unit_capacity,
                      sizeof *model->units));
    ZI_TRY(reserve_one(&model->units_by_name));
    ZI_TRY(zi_names_add(&model->names, name, &model->units[model->unit_count].name));
    zi_table_add(&model->units_by_name, hash, model->unit_count);
    model->units[model->unit_count].shard_group = shard_group;
    *unit = model->unit_count++;
    return ZERO_OK;
}

/* Keep what few tensors have; the index of it, or ZI_NO_EXTRA. */
static zero_status add_extra(zero_model *model, const zero_tensor_desc *desc, uint32_t *index)
{
    zi_tensor_extra extra;
    *index = ZI_NO_EXTRA;
    if (!zi_tensor_extra_make(desc, &extra)) {
        return ZERO_OK;
    }
    ZI_TRY(model_grow((void **)&model->extras, model->extra_count, &model->extra_capacity,
                      sizeof *model->extras));
    model->extras[model->extra_count] = extra;
    *index = model->extra_count++;
    return ZERO_OK;
}

static zero_status check_room(const zero_model *model, const char *name, uint64_t count)
{
    if (model->tensor_count == TENSORS_MAX || count > MODEL_ELEMENTS_MAX - model->element_count) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor \"%.60s\" makes the model too large: at most "
                "%" PRIu32 " tensors and 2^50 elements",
                name, TENSORS_MAX);
    }
    return ZERO_OK;
}

/* An array of fp32 values beside a 16-bit tensor reads as noise where its type was forgotten. Once
 * a model. */
static void warn_of_dtype(zero_model *model, const zero_tensor_desc *given, zero_dtype dtype)
{
    if (given->initial.data == NULL || given->initial.dtype != ZERO_DTYPE_DEFAULT ||
        dtype == ZERO_DTYPE_F32 || model->dtype_warned) {
        return;
    }
    model->dtype_warned = true;
    zi_log(ZERO_LOG_WARN,
           "tensor \"%.60s\": its initial array has no dtype, so it is read as the tensor's, %s; "
           "set initial.dtype, to ZERO_DTYPE_F32 if it holds floats (said once a model)",
           given->name, zero_dtype_name(dtype));
}

zero_status zero_tensor_add(zero_model *model, uint32_t unit, const zero_tensor_desc *desc,
                            uint32_t *tensor)
{
    ZI_TRY(check_model(model));
    ZI_TRY(model_check_unit(model, unit));
    if (desc == NULL || tensor == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "the tensor's description or index pointer is NULL");
    }
    ZI_TRY(model_check_name("tensor", desc->name));
    zero_tensor_desc full;
    uint64_t count = 0;
    ZI_TRY(zi_tensor_desc_resolve(desc, &full, &count));
    const uint64_t hash = zi_hash_text(ZI_HASH_START, desc->name);
    const uint32_t taken =
        zi_table_find(&model->tensors_by_name, hash, is_named_tensor, model->tensors, desc->name);
    if (taken != ZI_TABLE_NONE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor name \"%.60s\" is taken by tensor %" PRIu32
                "; names of tensors are unique in the model",
                desc->name, taken);
    }
    ZI_TRY(check_room(model, desc->name, count));
    ZI_TRY(model_grow((void **)&model->tensors, model->tensor_count, &model->tensor_capacity,
                      sizeof *model->tensors));
    ZI_TRY(reserve_one(&model->tensors_by_name));
    zi_tensor_info info = {.dims = full.dims,
                           .unit = unit,
                           .flags = full.flags,
                           .group = full.group,
                           .replica = full.replica,
                           .count = count,
                           .initial = full.initial.data,
                           .initial_dtype = full.initial.dtype,
                           .dtype = full.dtype};
    memcpy(info.shape, full.shape, sizeof info.shape);
    ZI_TRY(zi_names_add(&model->names, desc->name, &info.name));
    ZI_TRY(add_extra(model, &full, &info.extra));
    zi_table_add(&model->tensors_by_name, hash, model->tensor_count);
    model->tensors[model->tensor_count] = info;
    model->element_count += count;
    warn_of_dtype(model, desc, full.dtype);
    *tensor = model->tensor_count++;
    return ZERO_OK;
}

/* The sizes of a model, which a call that adds much restores when it fails. */
typedef struct model_mark {
    uint32_t units;
    uint32_t tensors;
    uint32_t extras;
    uint64_t elements;
} model_mark;

static model_mark model_mark_of(const zero_model *model)
{
    return (model_mark){.units = model->unit_count,
                        .tensors = model->tensor_count,
                        .extras = model->extra_count,
                        .elements = model->element_count};
}

/* Forget what was added since; only the names' memory stays. */
static void model_take_back(zero_model *model, const model_mark *to)
{
    model->unit_count = to->units;
    model->tensor_count = to->tensors;
    model->extra_count = to->extras;
    model->element_count = to->elements;
    zi_table_clear(&model->units_by_name);
    zi_table_clear(&model->tensors_by_name);
    for (uint32_t i = 0; i < to->units; i++) {
        zi_table_add(&model->units_by_name, zi_hash_text(ZI_HASH_START, model->units[i].name), i);
    }
    for (uint32_t i = 0; i < to->tensors; i++) {
        zi_table_add(&model->tensors_by_name, zi_hash_text(ZI_HASH_START, model->tensors[i].name),
                     i);
    }
}

static zero_status add_unit(zero_model *model, const zero_unit_desc *desc)
{
    uint32_t unit = 0;
    uint32_t tensor = 0;
    ZI_TRY(add_empty_unit(model, desc->name, desc->shard_group, &unit));
    for (uint32_t i = 0; i < desc->tensor_count; i++) {
        ZI_TRY(zero_tensor_add(model, unit, &desc->tensors[i], &tensor));
    }
    return ZERO_OK;
}

/* Check that the name of a layer's unit (tensor NULL) or tensor is short enough. */
static zero_status check_name_room(const char *name, uint32_t layer, const char *tensor,
                                   size_t bytes)
{
    if (bytes >= ZI_NAME_BYTES) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "layer %" PRIu32 " of \"%.40s\": the name of its %s \"%.40s\" would have %zu "
                "bytes, and at most %d are possible",
                layer, name, tensor == NULL ? "unit" : "tensor", tensor == NULL ? name : tensor,
                bytes, ZI_NAME_BYTES - 1);
    }
    return ZERO_OK;
}

/* "name.layer" */
static zero_status layer_name(const char *name, uint32_t layer, char *text)
{
    const int bytes = snprintf(text, ZI_NAME_BYTES, "%s.%" PRIu32, name, layer);
    return check_name_room(name, layer, NULL, (size_t)bytes);
}

/* "name.layer.tensor", where unit is "name.layer". A deep model has 10^5 of these. */
static zero_status layer_tensor_name(const char *name, uint32_t layer, const char *unit,
                                     const char *tensor, char *text)
{
    const size_t unit_bytes = strlen(unit);
    const size_t tensor_bytes = strlen(tensor);
    ZI_TRY(check_name_room(name, layer, tensor, unit_bytes + 1 + tensor_bytes));
    memcpy(text, unit, unit_bytes);
    text[unit_bytes] = '.';
    memcpy(text + unit_bytes + 1, tensor, tensor_bytes + 1);
    return ZERO_OK;
}

/* Elements from a layer's array to the next layer's. */
static zero_status layer_stride(const char *name, const zero_tensor_desc *desc, uint64_t *stride)
{
    *stride = desc->layer_stride;
    if (*stride != 0 || desc->initial.data == NULL) {
        return ZERO_OK;
    }
    *stride = 1;
    for (uint32_t i = 0; i < desc->dims; i++) {
        if (desc->initial.strides[i] != 0) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\" of the layers \"%.40s\": layer_stride is 0, but initial has "
                    "strides; say how many elements a layer's array lies behind the last one's",
                    desc->name, name);
        }
        *stride *= desc->shape[i]; /* its elements, which were counted in its first layer */
    }
    return ZERO_OK;
}

static zero_status add_layer_tensor(zero_model *model, uint32_t unit, const char *name,
                                    uint32_t layer, const zero_tensor_desc *given)
{
    char text[ZI_NAME_BYTES];
    zero_tensor_desc desc = *given;
    uint32_t tensor = 0;
    ZI_TRY(model_check_name("tensor", given->name));
    ZI_TRY(layer_tensor_name(name, layer, model->units[unit].name, given->name, text));
    desc.name = text;
    if (layer > 0) {
        uint64_t stride = 0;
        ZI_TRY(layer_stride(name, given, &stride));
        const zero_dtype dtype =
            desc.initial.dtype != ZERO_DTYPE_DEFAULT ? desc.initial.dtype : desc.dtype;
        const size_t size = zero_dtype_bytes(dtype != ZERO_DTYPE_DEFAULT ? dtype : ZERO_DTYPE_F32);
        if (stride > LAYER_STRIDE_MAX) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\" of the layers \"%.40s\": layer_stride %" PRIu64
                    " is more than 2^40",
                    given->name, name, stride);
        }
        if (desc.initial.data != NULL) {
            desc.initial.data = (unsigned char *)desc.initial.data + stride * layer * size;
        }
    }
    return zero_tensor_add(model, unit, &desc, &tensor);
}

static zero_status add_layers(zero_model *model, const zero_unit_desc *desc)
{
    for (uint32_t layer = 0; layer < desc->layers; layer++) {
        char text[ZI_NAME_BYTES];
        uint32_t unit = 0;
        ZI_TRY(layer_name(desc->name, layer, text));
        ZI_TRY(add_empty_unit(model, text, desc->shard_group, &unit));
        for (uint32_t i = 0; i < desc->tensor_count; i++) {
            ZI_TRY(add_layer_tensor(model, unit, desc->name, layer, &desc->tensors[i]));
        }
    }
    return ZERO_OK;
}

zero_status zero_unit_add(zero_model *model, const zero_unit_desc *given, uint32_t *unit,
                          uint32_t *tensor)
{
    zero_unit_desc desc = {.struct_bytes = sizeof desc};
    ZI_TRY(check_model(model));
    ZI_TRY(ZI_OPTIONS_IN(zero_unit_desc, given, &desc));
    ZI_TRY(model_check_name("unit", desc.name));
    if (desc.tensors == NULL && desc.tensor_count != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit \"%.60s\": tensors is NULL; pass its %" PRIu32 " tensors' descriptions",
                desc.name, desc.tensor_count);
    }
    if (desc.reserved0 != 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "unit \"%.60s\": reserved0 is %" PRIu32 "; this library knows nothing but 0 there",
                desc.name, desc.reserved0);
    }
    const model_mark begin = model_mark_of(model);
    const zero_status status = desc.layers == 0 ? add_unit(model, &desc) : add_layers(model, &desc);
    if (status != ZERO_OK) {
        model_take_back(model, &begin);
        return status;
    }
    if (unit != NULL) {
        *unit = begin.units;
    }
    if (tensor != NULL) {
        *tensor = begin.tensors;
    }
    return ZERO_OK;
}

zero_status zero_tensor_tie(zero_model *model, uint32_t unit, uint32_t tensor)
{
    ZI_TRY(check_model(model));
    ZI_TRY(model_check_unit(model, unit));
    ZI_TRY(check_tensor(model, tensor));
    const uint32_t owner = model->tensors[tensor].unit;
    if (owner == unit) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor \"%.60s\" already belongs to unit \"%.60s\"",
                model->tensors[tensor].name, model->units[unit].name);
    }
    const zi_tie tie = {.unit = unit, .tensor = tensor};
    const uint64_t hash = zi_hash_bytes(ZI_HASH_START, &tie, sizeof tie);
    if (zi_table_find(&model->ties_by_pair, hash, is_tie, model->ties, &tie) != ZI_TABLE_NONE) {
        return ZERO_OK; /* tied already */
    }
    if (model->units[unit].tied || model->units[owner].ties) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit \"%.60s\" cannot tie to unit \"%.60s\": ties do "
                "not chain; tie both to the unit that holds the tensor",
                model->units[unit].name, model->units[owner].name);
    }
    ZI_TRY(model_grow((void **)&model->ties, model->tie_count, &model->tie_capacity,
                      sizeof *model->ties));
    ZI_TRY(reserve_one(&model->ties_by_pair));
    zi_table_add(&model->ties_by_pair, hash, model->tie_count);
    model->ties[model->tie_count++] = tie;
    model->units[unit].ties = true;
    model->units[owner].tied = true;
    return ZERO_OK;
}

uint32_t zero_model_unit_count(const zero_model *model)
{
    return model != NULL ? model->unit_count : 0;
}

uint32_t zero_model_tensor_count(const zero_model *model)
{
    return model != NULL ? model->tensor_count : 0;
}

uint64_t zero_model_element_count(const zero_model *model)
{
    return model != NULL ? model->element_count : 0;
}

const char *zero_model_tensor_name(const zero_model *model, uint32_t tensor)
{
    return tensor < zero_model_tensor_count(model) ? model->tensors[tensor].name : NULL;
}

uint64_t zero_model_tensor_count_of(const zero_model *model, uint32_t tensor)
{
    return tensor < zero_model_tensor_count(model) ? model->tensors[tensor].count : 0;
}

zero_status zero_model_tensor_desc(const zero_model *model, uint32_t tensor, zero_tensor_desc *desc)
{
    ZI_TRY(check_model(model));
    if (desc == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "desc is NULL; pass the address of a zero_tensor_desc");
    }
    ZI_TRY(check_tensor(model, tensor));
    zi_tensor_describe(&model->tensors[tensor], model->extras, desc);
    return ZERO_OK;
}
