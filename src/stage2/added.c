/* Owns the check that a trainer adds to gradients and does not assign them (tuning.check_added).
 * While a gradient is acquired in the engine's first micro-step, the first element of each of its
 * tensors is a mark: a number so large that what backward adds leaves it large. Whoever assigns, or
 * clears the gradient first, overwrites it. When the gradient is closed the mark is read and
 * becomes 0, so that element counts as 0 in this micro-step. Invariant: a unit is marked only while
 * its gradient is acquired. */
#include "core/error.h"
#include "core/memory.h"
#include "stage2/grad_internal.h"

/* Every byte of a mark: 5.0e33 as F32 and BF16, 30576 as F16. Its last byte has the sign and the
 * exponent's upper bits, which stay at LARGE or above, infinities and NaNs included. */
#define MARK 0x77
#define LARGE 0x70
#define NOT_SIGN 0x7f

static size_t marks_bytes(const zi_grads *grads)
{
    const size_t pages = (grads->layout->tensor_count + ZI_PAGE_BYTES - 1) / ZI_PAGE_BYTES;
    return pages * ZI_PAGE_BYTES;
}

static size_t element_bytes(const zi_grads *grads, uint32_t tensor)
{
    const zi_flat *flat = &grads->layout->flats[grads->layout->tensors[tensor].flat];
    return zero_dtype_bytes(flat->slot[ZERO_ROLE_GRAD].dtype);
}

/* The unit's next tensor that has gradient elements, from `tensor` on; the number of tensors: none
 * is left. */
static uint32_t marked_from(const zi_grads *grads, uint32_t unit, uint32_t tensor)
{
    const zi_layout *layout = grads->layout;
    while (tensor < layout->tensor_count &&
           (layout->tensor_infos[tensor].unit != unit || layout->tensor_infos[tensor].count == 0 ||
            !layout->flats[layout->tensors[tensor].flat].trained)) {
        tensor++;
    }
    return tensor;
}

static zero_status fill_marks(zi_grads *grads, uint32_t unit, int byte, zi_stream *stream)
{
    const uint32_t count = grads->layout->tensor_count;
    for (uint32_t t = marked_from(grads, unit, 0); t < count; t = marked_from(grads, unit, t + 1)) {
        ZI_TRY(grad_ops_of(grads)->fill(grad_self_of(grads), stream, zi_grads_tensor_at(grads, t),
                                        byte, element_bytes(grads, t)));
    }
    return ZERO_OK;
}

zero_status zi_grads_mark(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    if (!grads->marking || grads->units[unit].marked ||
        grads->layout->units[unit].bucket == ZI_NO_INDEX) {
        return ZERO_OK;
    }
    if (grads->marks == NULL) {
        ZI_TRY(grad_ops_of(grads)->event_create(grad_self_of(grads), &grads->marks_read));
        ZI_TRY(grad_ops_of(grads)->host_alloc(grad_self_of(grads), marks_bytes(grads),
                                              (void **)&grads->marks));
    }
    grads->units[unit].marked = true;
    return fill_marks(grads, unit, MARK, stream);
}

/* The last byte of each mark, in the host's memory. */
static zero_status read_marks(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const uint32_t count = grads->layout->tensor_count;
    for (uint32_t t = marked_from(grads, unit, 0); t < count; t = marked_from(grads, unit, t + 1)) {
        const unsigned char *first = zi_grads_tensor_at(grads, t);
        ZI_TRY(grad_ops_of(grads)->copy(grad_self_of(grads), stream, &grads->marks[t],
                                        first + element_bytes(grads, t) - 1, 1));
    }
    ZI_TRY(grad_ops_of(grads)->event_record(grad_self_of(grads), grads->marks_read, stream));
    return grad_ops_of(grads)->event_wait(grad_self_of(grads), grads->marks_read, NULL);
}

zero_status zi_grads_unmark(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const uint32_t count = grads->layout->tensor_count;
    if (!grads->units[unit].marked) {
        return ZERO_OK;
    }
    ZI_TRY(read_marks(grads, unit, stream));
    for (uint32_t t = marked_from(grads, unit, 0); t < count; t = marked_from(grads, unit, t + 1)) {
        if ((grads->marks[t] & NOT_SIGN) < LARGE) {
            grads->assigned = t < grads->assigned ? t : grads->assigned;
        }
    }
    grads->units[unit].marked = false;
    return fill_marks(grads, unit, 0, stream);
}

void zi_grads_marks_end(zi_grads *grads)
{
    grads->marking = false;
    if (grads->marks != NULL) {
        grad_ops_of(grads)->host_free(grad_self_of(grads), grads->marks, marks_bytes(grads));
        grads->marks = NULL;
    }
    grad_ops_of(grads)->event_destroy(grad_self_of(grads), grads->marks_read);
    grads->marks_read = NULL;
}

uint32_t zi_grads_take_assigned(zi_grads *grads)
{
    const uint32_t tensor = grads->assigned;
    grads->assigned = ZI_NO_INDEX;
    return tensor;
}
