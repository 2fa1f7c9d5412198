/* Owns the checks of a tensor's description and the values of its defaults. Invariant: what is
 * resolved here is inside its bounds, so that no later sum of extents, strides or offsets
 * overflows. */
#include <inttypes.h>
#include <string.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/sizes.h"
#include "layout/model.h"

#define TENSOR_ELEMENTS_MAX (UINT64_C(1) << 46)
/* Elements from an array's first to behind its last. */
#define ARRAY_ELEMENTS_MAX (UINT64_C(1) << 56)
#define TENSOR_GROUPS_MAX 64

static bool all_zero(const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) {
        if (at[i] != 0) {
            return false;
        }
    }
    return true;
}

/* The product of extents, or INVALID_ARGUMENT. A zero extent anywhere makes it 0, whatever the
 * others are. `of`: " of global_shape" or nothing. */
static zero_status count_elements(const char *name, const char *of, const uint64_t *shape,
                                  uint32_t dims, uint64_t *count)
{
    *count = 1;
    bool empty = false;
    for (uint32_t i = 0; i < dims; i++) {
        empty = empty || shape[i] == 0;
    }
    for (uint32_t i = 0; i < dims && !empty; i++) {
        if (!zi_mul_u64(*count, shape[i], count) || *count > TENSOR_ELEMENTS_MAX) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\": the product of its extents%s passes 2^46 elements at extent "
                    "%" PRIu32 " (%" PRIu64 ")",
                    name, of, i, shape[i]);
        }
    }
    *count = empty ? 0 : *count;
    return ZERO_OK;
}

static zero_status check_dtype(const char *name, const char *field, zero_dtype dtype)
{
    if (dtype != ZERO_DTYPE_DEFAULT && !zi_dtype_is_number(dtype)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor \"%.60s\": %s %d (%s) is not F32, BF16 or F16",
                name, field, (int)dtype, zero_dtype_name(dtype));
    }
    return ZERO_OK;
}

/* From the smallest stride up, each must lead behind all that the smaller ones reach; then no two
 * elements share a place. */
static zero_status check_strides(const zero_tensor_desc *tensor, const uint64_t *strides)
{
    bool seen[ZERO_TENSOR_DIMS_MAX] = {false};
    uint64_t reach = 0; /* the last place that the dimensions so far lead to */
    for (uint32_t round = 0; round < tensor->dims; round++) {
        uint32_t next = ZERO_TENSOR_DIMS_MAX;
        for (uint32_t i = 0; i < tensor->dims; i++) {
            if (!seen[i] && tensor->shape[i] > 1 &&
                (next == ZERO_TENSOR_DIMS_MAX || strides[i] < strides[next])) {
                next = i;
            }
        }
        if (next == ZERO_TENSOR_DIMS_MAX) {
            break;
        }
        seen[next] = true;
        uint64_t more = 0;
        if (strides[next] <= reach) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\": strides[%" PRIu32 "] is %" PRIu64 ", and smaller strides "
                    "lead %" PRIu64 " elements far: elements would share places; give %s",
                    tensor->name, next, strides[next], reach,
                    strides[next] == 0 ? "every dimension its stride, or none" : "a larger one");
        }
        if (!zi_mul_u64(tensor->shape[next] - 1, strides[next], &more) ||
            !zi_add_u64(reach, more, &reach) || reach >= ARRAY_ELEMENTS_MAX) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\": strides[%" PRIu32 "] is %" PRIu64 ", which makes the array "
                    "longer than 2^56 elements",
                    tensor->name, next, strides[next]);
        }
    }
    return ZERO_OK;
}

/* Of elements that lie end to end. */
static void contiguous_strides(const zero_tensor_desc *tensor, uint64_t *strides)
{
    uint64_t stride = 1;
    for (uint32_t i = tensor->dims; i-- > 0;) {
        strides[i] = stride;
        stride *= tensor->shape[i] != 0 ? tensor->shape[i] : 1;
    }
}

zero_status zi_array_resolve(const zero_tensor_desc *tensor, const zero_array *given,
                             zero_array *array)
{
    const size_t used = tensor->dims * sizeof given->strides[0];
    ZI_TRY(check_dtype(tensor->name, "dtype of its array", given->dtype));
    if (given->reserved != 0 ||
        !all_zero(given->strides + tensor->dims, sizeof given->strides - used)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor \"%.60s\": its array has a stride beyond its %" PRIu32 " dims, or reserved "
                "is not 0",
                tensor->name, tensor->dims);
    }
    *array = *given;
    array->dtype = given->dtype != ZERO_DTYPE_DEFAULT ? given->dtype : tensor->dtype;
    if (all_zero(given->strides, used)) {
        contiguous_strides(tensor, array->strides);
        return ZERO_OK;
    }
    return check_strides(tensor, given->strides);
}

/* The box is inside the global tensor. */
static zero_status resolve_box(const zero_tensor_desc *given, zero_tensor_desc *desc)
{
    uint64_t count = 0;
    const size_t used = given->dims * sizeof given->shape[0];
    if (!all_zero(given->global_shape + given->dims, sizeof given->global_shape - used) ||
        !all_zero(given->box_first + given->dims, sizeof given->box_first - used)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor \"%.60s\": global_shape or box_first is not 0 beyond its %" PRIu32 " dims",
                given->name, given->dims);
    }
    if (all_zero(given->global_shape, used)) {
        memcpy(desc->global_shape, given->shape, used);
    }
    for (uint32_t i = 0; i < given->dims; i++) {
        const uint64_t global = desc->global_shape[i];
        if (given->box_first[i] > global || given->shape[i] > global - given->box_first[i]) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\": box_first[%" PRIu32 "] %" PRIu64 " and shape[%" PRIu32
                    "] %" PRIu64 " are not inside global_shape[%" PRIu32 "] %" PRIu64,
                    given->name, i, given->box_first[i], i, given->shape[i], i, global);
        }
    }
    return count_elements(given->name, " of global_shape", desc->global_shape, given->dims, &count);
}

/* Extents that dims does not count: it was forgotten, or is too small. */
static zero_status check_extents(const zero_tensor_desc *desc)
{
    for (uint32_t i = ZERO_TENSOR_DIMS_MAX; i-- > desc->dims;) {
        if (desc->shape[i] != 0) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "tensor \"%.60s\": dims is %" PRIu32 ", but shape[%" PRIu32 "] is %" PRIu64
                    "; set dims to %" PRIu32 ", or what is behind the shape to 0",
                    desc->name, desc->dims, i, desc->shape[i], i + 1);
        }
    }
    return ZERO_OK;
}

static zero_status check_fields(const zero_tensor_desc *desc)
{
    if (desc->dims > ZERO_TENSOR_DIMS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor \"%.60s\": dims %" PRIu32 " is more than %d",
                desc->name, desc->dims, ZERO_TENSOR_DIMS_MAX);
    }
    ZI_TRY(check_extents(desc));
    ZI_TRY(check_dtype(desc->name, "dtype", desc->dtype));
    if ((desc->flags & ~(uint32_t)(ZERO_TENSOR_NO_DECAY | ZERO_TENSOR_FROZEN)) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor \"%.60s\": flags 0x%" PRIx32 " has unknown bits",
                desc->name, desc->flags);
    }
    if (desc->group >= TENSOR_GROUPS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "tensor \"%.60s\": group %" PRIu32 " is not below %d",
                desc->name, desc->group, TENSOR_GROUPS_MAX);
    }
    if (!all_zero(desc->reserved, sizeof desc->reserved)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor \"%.60s\": reserved is not 0; zero the description before filling it in",
                desc->name);
    }
    return ZERO_OK;
}

zero_status zi_tensor_desc_resolve(const zero_tensor_desc *given, zero_tensor_desc *desc,
                                   uint64_t *count)
{
    ZI_TRY(check_fields(given));
    ZI_TRY(count_elements(given->name, "", given->shape, given->dims, count));
    *desc = *given;
    desc->dtype = given->dtype != ZERO_DTYPE_DEFAULT ? given->dtype : ZERO_DTYPE_F32;
    ZI_TRY(resolve_box(given, desc));
    return zi_array_resolve(desc, &given->initial, &desc->initial);
}

bool zi_tensor_extra_make(const zero_tensor_desc *desc, zi_tensor_extra *extra)
{
    uint64_t contiguous[ZERO_TENSOR_DIMS_MAX] = {0};
    contiguous_strides(desc, contiguous);
    *extra = (zi_tensor_extra){
        .is_box = memcmp(desc->global_shape, desc->shape, sizeof desc->shape) != 0};
    memcpy(extra->strides, desc->initial.strides, sizeof extra->strides);
    memcpy(extra->global_shape, desc->global_shape, sizeof extra->global_shape);
    memcpy(extra->box_first, desc->box_first, sizeof extra->box_first);
    return extra->is_box || memcmp(contiguous, extra->strides, sizeof contiguous) != 0;
}

void zi_tensor_describe(const zi_tensor_info *info, const zi_tensor_extra *extras,
                        zero_tensor_desc *desc)
{
    *desc = (zero_tensor_desc){.name = info->name,
                               .dims = info->dims,
                               .dtype = info->dtype,
                               .flags = info->flags,
                               .group = info->group,
                               .initial = {.data = info->initial, .dtype = info->initial_dtype},
                               .replica = info->replica};
    memcpy(desc->shape, info->shape, sizeof desc->shape);
    if (info->extra == ZI_NO_EXTRA) {
        memcpy(desc->global_shape, info->shape, sizeof desc->global_shape);
        contiguous_strides(desc, desc->initial.strides);
        return;
    }
    const zi_tensor_extra *extra = &extras[info->extra];
    memcpy(desc->initial.strides, extra->strides, sizeof extra->strides);
    memcpy(desc->global_shape, extra->global_shape, sizeof extra->global_shape);
    memcpy(desc->box_first, extra->box_first, sizeof extra->box_first);
}
