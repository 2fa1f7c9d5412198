/* Owns the description of a model. Invariant: whatever is in it has passed the checks, so nobody
 * checks it again. */
#include "layout/model.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"

#define UNITS_MAX (UINT32_C(1) << 20)
#define TENSORS_MAX (UINT32_C(1) << 22)
#define TENSOR_ELEMENTS_MAX (UINT64_C(1) << 46)
#define MODEL_ELEMENTS_MAX (UINT64_C(1) << 50)
#define TENSOR_GROUPS_MAX 64

zero_status zero_model_create(zero_model **model)
{
    if (model == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "model is NULL; pass the address of a zero_model pointer");
    }
    return zi_calloc(1, sizeof **model, (void **)model);
}

void zero_model_destroy(zero_model *model)
{
    if (model != NULL) {
        zi_free(model->units);
        zi_free(model->tensors);
        zi_free(model->ties);
        zi_names_free(&model->names);
        zi_table_free(&model->units_by_name);
        zi_table_free(&model->tensors_by_name);
        zi_table_free(&model->ties_by_pair);
        zi_free(model);
    }
}

/* Room for one more element in an array that doubles. */
static zero_status grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes)
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
    const uint32_t full = table->slot_count / 2;
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
    return tie->unit == other->unit && tie->owner == other->owner;
}

static zero_status check_name(const char *what, const char *name)
{
    if (name == NULL || name[0] == '\0' || strlen(name) >= ZI_NAME_BYTES) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s name \"%.40s\" must have 1 to %d bytes", what,
                name == NULL ? "(null)" : name, ZI_NAME_BYTES - 1);
    }
    return ZERO_OK;
}

static zero_status check_model(const zero_model *model)
{
    if (model == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "model is NULL; make one with zero_model_create");
    }
    return ZERO_OK;
}

static zero_status check_unit(const zero_model *model, uint32_t unit)
{
    if (unit >= model->unit_count) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "unit %" PRIu32 " is not one of the model's %" PRIu32, unit,
                model->unit_count);
    }
    return ZERO_OK;
}

zero_status zero_unit_add(zero_model *model, const char *name, uint32_t *unit)
{
    ZI_TRY(check_model(model));
    ZI_TRY(check_name("unit", name));
    if (unit == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "unit \"%s\": the index pointer is NULL", name);
    }
    const uint64_t hash = zi_hash_text(ZI_HASH_START, name);
    const uint32_t taken =
        zi_table_find(&model->units_by_name, hash, is_named_unit, model->units, name);
    if (taken != ZI_TABLE_NONE) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "unit name \"%.60s\" is taken by unit %" PRIu32, name,
                taken);
    }
    if (model->unit_count == UNITS_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "unit \"%.60s\" would be one more than the %" PRIu32 " a "
                "model may have",
                name, UNITS_MAX);
    }
    ZI_TRY(grow((void **)&model->units, model->unit_count, &model->unit_capacity,
                sizeof *model->units));
    ZI_TRY(reserve_one(&model->units_by_name));
    ZI_TRY(zi_names_add(&model->names, name, &model->units[model->unit_count].name));
    zi_table_add(&model->units_by_name, hash, model->unit_count);
    *unit = model->unit_count++;
    return ZERO_OK;
}

/* The product of the extents, or INVALID_ARGUMENT. A zero extent anywhere makes it 0, whatever the
 * others are. */
static zero_status count_elements(const zero_tensor_desc *desc, uint64_t *count)
{
    *count = 1;
    bool empty = false;
    for (uint32_t i = 0; i < desc->dims; i++) {
        empty = empty || desc->shape[i] == 0;
    }
    for (uint32_t i = 0; i < desc->dims && !empty; i++) {
        if (!zi_mul_u64(*count, desc->shape[i], count) || *count > TENSOR_ELEMENTS_MAX) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT,
                    "tensor \"%.60s\": the product of its extents passes 2^46 elements at extent "
                    "%" PRIu32 " (%" PRIu64 ")",
                    desc->name, i, desc->shape[i]);
        }
    }
    *count = empty ? 0 : *count;
    return ZERO_OK;
}

static zero_status check_desc(const zero_tensor_desc *desc)
{
    if (desc->dims > ZERO_TENSOR_DIMS_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor \"%.60s\": dims %" PRIu32 " is more than %d",
                desc->name, desc->dims, ZERO_TENSOR_DIMS_MAX);
    }
    if (desc->dtype != ZERO_DTYPE_DEFAULT && zero_dtype_bytes(desc->dtype) == 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor \"%.60s\": dtype %d is not F32, BF16 or F16",
                desc->name, (int)desc->dtype);
    }
    if ((desc->flags & ~(uint32_t)(ZERO_TENSOR_NO_DECAY | ZERO_TENSOR_FROZEN)) != 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor \"%.60s\": flags 0x%" PRIx32 " has unknown bits",
                desc->name, desc->flags);
    }
    for (size_t i = 0; i < sizeof desc->reserved / sizeof desc->reserved[0]; i++) {
        if (desc->reserved[i] != 0) {
            ZI_FAIL(
                ZERO_UNSUPPORTED,
                "tensor \"%.60s\": reserved[%zu] is set, which this library does not know; zero "
                "the description first, or link a newer library",
                desc->name, i);
        }
    }
    if (desc->group >= TENSOR_GROUPS_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor \"%.60s\": group %" PRIu32 " is not below %d",
                desc->name, desc->group, TENSOR_GROUPS_MAX);
    }
    return ZERO_OK;
}

zero_status zero_tensor_add(zero_model *model, uint32_t unit, const zero_tensor_desc *desc,
                            uint32_t *tensor)
{
    ZI_TRY(check_model(model));
    ZI_TRY(check_unit(model, unit));
    if (desc == NULL || tensor == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "the tensor's description or index pointer is NULL");
    }
    ZI_TRY(check_name("tensor", desc->name));
    ZI_TRY(check_desc(desc));
    uint64_t count = 0;
    ZI_TRY(count_elements(desc, &count));
    const uint64_t hash = zi_hash_text(ZI_HASH_START, desc->name);
    const uint32_t taken =
        zi_table_find(&model->tensors_by_name, hash, is_named_tensor, model->tensors, desc->name);
    if (taken != ZI_TABLE_NONE) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor name \"%.60s\" is taken by tensor %" PRIu32,
                desc->name, taken);
    }
    if (model->tensor_count == TENSORS_MAX || count > MODEL_ELEMENTS_MAX - model->element_count) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "tensor \"%.60s\" makes the model too large: at most "
                "%" PRIu32 " tensors and 2^50 elements",
                desc->name, TENSORS_MAX);
    }
    ZI_TRY(grow((void **)&model->tensors, model->tensor_count, &model->tensor_capacity,
                sizeof *model->tensors));
    ZI_TRY(reserve_one(&model->tensors_by_name));
    const char *name = NULL;
    ZI_TRY(zi_names_add(&model->names, desc->name, &name));
    zi_tensor_info *info = &model->tensors[model->tensor_count];
    *info =
        (zi_tensor_info){.name = name,
                         .dims = desc->dims,
                         .unit = unit,
                         .flags = desc->flags,
                         .group = desc->group,
                         .count = count,
                         .initial = desc->initial,
                         .dtype = desc->dtype == ZERO_DTYPE_DEFAULT ? ZERO_DTYPE_F32 : desc->dtype};
    zi_table_add(&model->tensors_by_name, hash, model->tensor_count);
    memcpy(info->shape, desc->shape, desc->dims * sizeof info->shape[0]);
    model->element_count += count;
    *tensor = model->tensor_count++;
    return ZERO_OK;
}

zero_status zero_tensor_tie(zero_model *model, uint32_t unit, uint32_t tensor)
{
    ZI_TRY(check_model(model));
    ZI_TRY(check_unit(model, unit));
    if (tensor >= model->tensor_count) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor %" PRIu32 " is not one of the model's %" PRIu32,
                tensor, model->tensor_count);
    }
    const uint32_t owner = model->tensors[tensor].unit;
    if (owner == unit) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor \"%.60s\" already belongs to unit \"%.60s\"",
                model->tensors[tensor].name, model->units[unit].name);
    }
    const zi_tie tie = {.unit = unit, .owner = owner};
    const uint64_t hash = zi_hash_bytes(ZI_HASH_START, &tie, sizeof tie);
    if (zi_table_find(&model->ties_by_pair, hash, is_tie, model->ties, &tie) != ZI_TABLE_NONE) {
        return ZERO_OK; /* another tensor of the same owner: the units are tied already */
    }
    if (model->units[unit].tied || model->units[owner].ties) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "unit \"%.60s\" cannot tie to unit \"%.60s\": ties do "
                "not chain; tie both to the unit that holds the tensor",
                model->units[unit].name, model->units[owner].name);
    }
    ZI_TRY(
        grow((void **)&model->ties, model->tie_count, &model->tie_capacity, sizeof *model->ties));
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
