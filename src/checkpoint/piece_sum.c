/* Owns the choice of instructions for sums of pieces. Invariant: the sum is the same on every
 * machine. */
#include "checkpoint/checkpoint_map.h"

#include "core/check.h"

typedef uint64_t granules_fn(const unsigned char *data, size_t bytes, uint64_t number,
                             size_t granule_bytes);
granules_fn zi_piece_granules_generic;
#if defined(__x86_64__)
granules_fn zi_piece_granules_avx2;
granules_fn zi_piece_granules_avx512;
#endif

static granules_fn *best_granules(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return zi_piece_granules_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return zi_piece_granules_avx2;
    }
#endif
    return zi_piece_granules_generic;
}

uint64_t zi_piece_sum(const void *elements, uint64_t first, uint64_t count, zi_codec codec)
{
    zi_assert_cmp(first % ZI_GRANULE, ==, 0);
    return best_granules()(elements, (size_t)zi_codec_bytes(codec, count), first / ZI_GRANULE,
                           (size_t)zi_codec_bytes(codec, ZI_GRANULE));
}
