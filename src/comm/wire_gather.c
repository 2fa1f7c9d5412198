/* Owns where parts lie in a wire buffer, and the kernels that fill and read it. */
#include "comm/wire_gather.h"

#include "core/codec.h"
#include "core/error.h"

/* A member's part in the buffer. */
typedef struct wire_part {
    unsigned char *values; /* or codes */
    unsigned char *scales; /* NULL: the type has none */
} wire_part;

static wire_part wire_part_of(const zi_wire_gather *gather, uint32_t member)
{
    const uint64_t first = member * gather->count;
    wire_part part = {.values = gather->buffer + first * zero_dtype_bytes(gather->wire)};
    if (zi_dtype_is_block(gather->wire)) {
        part.scales = gather->buffer + gather->size * gather->count +
                      zi_block_scales_bytes(gather->wire, first);
    }
    return part;
}

/* Begin a conversion of so many elements in the timeline. */
static zero_status wire_begin(const zi_wire_gather *gather, uint64_t count,
                              const zi_kernels *kernels, zi_stream *stream, zi_mark **mark)
{
    return zi_stream_begin(kernels->device, stream, ZI_SPAN_CAST, gather->name,
                           zi_codec_bytes((zi_codec){.dtype = gather->wire}, count), mark);
}

zero_status zi_wire_encode(const zi_wire_gather *gather, const zi_kernels *kernels,
                           zi_stream *stream)
{
    const wire_part to = wire_part_of(gather, gather->rank);
    zi_mark *mark = NULL;
    ZI_TRY(wire_begin(gather, gather->count, kernels, stream, &mark));
    ZI_TRY(to.scales != NULL
               ? kernels->ops->encode(kernels->self, stream, to.values, to.scales, gather->wire,
                                      gather->own, gather->own_dtype, gather->count)
               : kernels->ops->cast(kernels->self, stream, to.values, gather->wire, gather->own,
                                    gather->own_dtype, gather->count));
    return zi_stream_end(kernels->device, stream, mark);
}

zi_collective zi_gather_values(uint32_t tag, zero_dtype dtype, uint64_t count, const void *send,
                               void *recv)
{
    return (zi_collective){.kind = ZI_ALL_GATHER,
                           .send_dtype = dtype,
                           .recv_dtype = dtype,
                           .tag = tag,
                           .count = count,
                           .send = send,
                           .recv = recv};
}

uint32_t zi_wire_batch(const zi_wire_gather *gather, zi_collective *batch)
{
    const wire_part own = wire_part_of(gather, gather->rank);
    const wire_part all = wire_part_of(gather, 0);
    if (own.scales == NULL) {
        batch[0] =
            zi_gather_values(gather->tag, gather->wire, gather->count, own.values, all.values);
        return 1;
    }
    const uint64_t scales = zi_block_scales_bytes(gather->wire, gather->count);
    batch[0] = zi_gather_values(gather->tag, ZERO_DTYPE_I8, gather->count, own.values, all.values);
    batch[1] = zi_gather_values(gather->tag, ZERO_DTYPE_I8, scales, own.scales, all.scales);
    return 2;
}

zero_status zi_wire_decode(const zi_wire_gather *gather, const zi_kernels *kernels,
                           zi_stream *stream)
{
    const wire_part from = wire_part_of(gather, 0);
    const uint64_t count = gather->size * gather->count;
    zi_mark *mark = NULL;
    ZI_TRY(wire_begin(gather, count, kernels, stream, &mark));
    ZI_TRY(from.scales != NULL
               ? kernels->ops->decode(kernels->self, stream, gather->all, gather->all_dtype,
                                      from.values, from.scales, gather->wire, count)
               : kernels->ops->cast(kernels->self, stream, gather->all, gather->all_dtype,
                                    from.values, gather->wire, count));
    return zi_stream_end(kernels->device, stream, mark);
}
