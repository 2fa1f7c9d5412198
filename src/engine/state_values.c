/* Owns the way between fp32 values and small states outside steps. Invariant: what is read has the
 * value that the next update begins with, and what is made of values is what an update that rounds
 * to nearest would leave of them. */
#include "engine/state_values.h"

#include <string.h>

#include "core/codec.h"
#include "core/error.h"
#include "core/memory.h"
#include "kernels/cpu/cpu_kernels.h"

/* Elements that are made or read at a time, whole blocks. */
#define PIECE ((uint64_t)65536)

/* Room for a piece, in any of its forms. */
typedef struct value_piece {
    float values[PIECE];
    uint16_t param[PIECE];
    uint8_t kept[2 * PIECE]; /* rests or codes */
    uint16_t scales[PIECE / ZERO_CODE_BLOCK];
} value_piece;

static const zi_flat *flat_of(const zero_engine *engine, const engine_shard *shard)
{
    return &engine->layout->flats[shard->flat];
}

bool zi_values_are_joined(const engine_shard *shard)
{
    return zi_dtype_is_remainder(shard->dtype) || zi_dtype_is_code(shard->dtype);
}

/* True if values of `dtype` are not written to the role as they are, nor cast: with the parameter
 * of a remainder, which its own rule rounds, and where the role keeps remainders, codes or scales.
 */
static bool is_made(const zero_engine *engine, const engine_shard *shard, zero_dtype dtype)
{
    const zi_flat *flat = flat_of(engine, shard);
    return dtype != shard->dtype &&
           (zi_values_are_joined(shard) || zi_role_is_scales(shard->role) ||
            (shard->role == ZERO_ROLE_PARAM &&
             zi_dtype_is_remainder(flat->kept[ZERO_ROLE_MASTER].dtype)));
}

/* Make of the piece's values what the role keeps of them. */
static void *make_kept(const zero_engine *engine, const engine_shard *shard, value_piece *piece,
                       uint64_t count)
{
    const zi_codec *kept = flat_of(engine, shard)->kept;
    if (shard->role == ZERO_ROLE_PARAM || shard->role == ZERO_ROLE_MASTER) {
        zi_cpu_split(piece->param, piece->kept, kept[ZERO_ROLE_MASTER].dtype, piece->values, count);
        return shard->role == ZERO_ROLE_PARAM ? (void *)piece->param : piece->kept;
    }
    const bool scales = zi_role_is_scales(shard->role);
    const zero_role moment = scales ? zi_role_of_scales(shard->role) : shard->role;
    zi_cpu_encode(piece->kept, piece->scales, kept[moment].dtype, piece->values, count);
    return scales ? (void *)piece->scales : piece->kept;
}

static zero_status make_pieces(zero_engine *engine, const engine_shard *shard, uint64_t first,
                               uint64_t count, const void *values, zero_dtype dtype)
{
    value_piece *piece = NULL;
    zero_status status = zi_calloc(1, sizeof *piece, (void **)&piece);
    for (uint64_t done = 0; done < count && status == ZERO_OK; done += PIECE) {
        const uint64_t now = zi_min_u64(PIECE, count - done);
        zi_cpu_cast(piece->values, ZERO_DTYPE_F32,
                    (const unsigned char *)values + done * zero_dtype_bytes(dtype), dtype, now);
        status = zi_engine_shard_fill(engine, shard, first + done, now,
                                      make_kept(engine, shard, piece, now), shard->dtype);
    }
    zi_free(piece);
    return status;
}

zero_status zi_values_fill(zero_engine *engine, const engine_shard *shard, uint64_t first,
                           uint64_t count, void *values, zero_dtype dtype)
{
    return is_made(engine, shard, dtype)
               ? make_pieces(engine, shard, first, count, values, dtype)
               : zi_engine_shard_fill(engine, shard, first, count, values, dtype);
}

/* The piece's values, from what the role and its companion keep. `first` is at a block. */
static zero_status join_piece(zero_engine *engine, uint32_t tensor, const engine_shard *shard,
                              uint64_t first, uint64_t count, value_piece *piece)
{
    const bool master = shard->role == ZERO_ROLE_MASTER;
    const engine_shard other =
        zi_engine_shard(engine, tensor, master ? ZERO_ROLE_PARAM : zi_role_scales(shard->role));
    const uint64_t before = shard->tensor_first - other.tensor_first;
    ZI_TRY(zi_engine_shard_read(engine, shard, first, count, piece->kept));
    ZI_TRY(zi_engine_shard_read(engine, &other, before + first, count,
                                master ? piece->param : piece->scales));
    if (master) {
        zi_cpu_join(piece->values, piece->param, piece->kept, shard->dtype, count);
    } else {
        zi_cpu_decode(piece->values, piece->kept, piece->scales, shard->dtype, count);
    }
    return ZERO_OK;
}

zero_status zi_values_read(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t first,
                           uint64_t count, float *values)
{
    const engine_shard shard = zi_engine_shard(engine, tensor, role);
    value_piece *piece = NULL;
    zero_status status = zi_calloc(1, sizeof *piece, (void **)&piece);
    for (uint64_t done = 0; done < count && status == ZERO_OK;) {
        const uint64_t lead = (first + done) % ZERO_CODE_BLOCK;
        const uint64_t now = zi_min_u64(PIECE - lead, count - done);
        status = join_piece(engine, tensor, &shard, first + done - lead, lead + now, piece);
        memcpy(values + done, piece->values + lead, now * sizeof *values);
        done += now;
    }
    zi_free(piece);
    return status;
}
