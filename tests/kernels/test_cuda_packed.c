/* The GPU's folds of packed granules, on the CPU: every block and lane of their launches, against
 * the CPU's folds, bit by bit. */
#include <string.h>

#include "core/codec.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/geometry.h"
#include "kernels/math/packed.h"
#include "launch_now.h"
#include "update_case.h"

static const zero_dtype types[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16,
                                   ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
#define TYPES (sizeof types / sizeof types[0])
#define SOURCES 9
#define COUNT_MOST ((size_t)12544)

/* Room for one array with a margin that must survive. */
typedef struct packed_room {
    _Alignas(64) unsigned char bytes[COUNT_MOST * sizeof(float) + 1024];
} packed_room;

/* Numbers with granules of all magnitudes, of zeros, and with one value that is NaN. */
static void fill_values(packed_room *array, zero_dtype dtype, size_t count, uint64_t stream)
{
    memset(array, 0x5a, sizeof *array);
    case_fill(array, dtype, count, stream + 10, true);
    for (size_t i = 0; i < count; i++) {
        const zi_philox_words words = zi_philox(test_seed, i, stream);
        const uint32_t bits = (words.word[0] & 0x807fffffu) | words.word[1] % 255 << 23;
        if (i / ZI_GRANULE % 5 == 1) {
            case_put(array, dtype, i, zi_f32_from_bits(bits));
        } else if (i / ZI_GRANULE % 5 == 2 || i == 1280 + stream) {
            case_put(array, dtype, i, i == 1280 + stream ? (float)NAN : -0.0f);
        }
    }
}

/* Of any type. What is packed was made by the CPU's fold. */
static void fill_room(packed_room *array, zero_dtype dtype, size_t count, uint64_t stream)
{
    static packed_room values;
    const void *const list[] = {&values};
    if (!zi_dtype_is_packed(dtype)) {
        fill_values(array, dtype, count, stream);
        return;
    }
    memset(array, 0x5a, sizeof *array);
    fill_values(&values, ZERO_DTYPE_F32, count, stream);
    zi_fold fold = case_fold(array, dtype, list, ZERO_DTYPE_F32, 1, count);
    fold.key = stream;
    zi_cpu_fold(&fold);
}

/* The launch against the CPU's function. shift: bytes from where dst is aligned. */
static void check_launch(zi_fold fold, const packed_room *before, size_t shift)
{
    static packed_room expected;
    static packed_room got;
    const bool numbers = !zi_dtype_is_packed(fold.dst_dtype);
    zi_norm_sum squares[2] = {{{0}, 0, 0}, {{0}, 0, 0}};
    const size_t bytes = sizeof got - 64;
    expected = *before;
    memcpy(got.bytes + shift, before, bytes);
    fold.dst = &expected;
    fold.squares = numbers ? &squares[0] : NULL;
    zi_cpu_fold(&fold);
    fold.dst = got.bytes + shift;
    fold.squares = numbers ? &squares[1] : NULL;
    launch_fold_now(&fold);
    if (numbers) {
        case_same(got.bytes + shift, &expected, fold.dst_dtype,
                  bytes / zero_dtype_bytes(fold.dst_dtype));
    } else {
        CHECK_BYTES(got.bytes + shift, &expected, bytes);
    }
    zi_norm_normalise(&squares[0]);
    zi_norm_normalise(&squares[1]);
    CHECK_BYTES(&squares[1], &squares[0], sizeof squares[0]);
}

/* Of several numbers of sources, with absent ones among them. shift: bytes from where the sources
 * are aligned. */
static void check_types(zero_dtype to, zero_dtype from, size_t count, size_t shift)
{
    static packed_room sources[SOURCES];
    static packed_room before;
    const uint32_t source_counts[] = {0, 1, 2, 4, 5, SOURCES};
    const void *list[SOURCES];
    for (size_t k = 0; k < SOURCES; k++) {
        fill_room(&sources[k], from, count, k);
        list[k] = k % 4 == 2 ? NULL : sources[k].bytes + shift;
    }
    fill_room(&before, zi_dtype_is_packed(to) ? ZERO_DTYPE_F32 : to, count, SOURCES);
    zi_fold fold = case_fold(NULL, to, list, from, 0, count);
    fold.key = test_seed;
    fold.first = 9 * ZI_GRANULE;
    for (size_t k = 0; k < sizeof source_counts / sizeof source_counts[0]; k++) {
        fold.source_count = source_counts[k];
        fold.accumulate = k % 2 == 0 && !zi_dtype_is_packed(to);
        fold.scale = k % 3 == 0 ? 0.25f : 0.0f;
        check_launch(fold, &before, 0);
        check_launch(fold, &before, 4);
    }
}

/* Also of numbers that are not aligned to a lane's access. */
TEST(folds_have_the_cpus_bits_for_every_pair_of_types)
{
    const size_t counts[] = {0, 256, 768, COUNT_MOST};
    size_t pairs = 0;
    for (size_t i = 0; i < TYPES * TYPES; i++) {
        const zero_dtype to = types[i / TYPES];
        const zero_dtype from = types[i % TYPES];
        if (!zi_packed_fold_is_known(to, from)) {
            continue;
        }
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            check_types(to, from, counts[c], 0);
        }
        if (!zi_dtype_is_packed(from)) {
            check_types(to, from, 768, zero_dtype_bytes(from));
        }
        pairs++;
    }
    CHECK_EQ(pairs, 14);
}

TEST(a_fold_of_granules_takes_as_many_sources_as_a_world_has_ranks)
{
    static packed_room source;
    static packed_room before;
    const void *list[ZI_CUDA_SOURCES_MAX];
    fill_room(&source, ZERO_DTYPE_INT8_BLOCK, 16 * ZI_GRANULE, 1);
    fill_room(&before, ZERO_DTYPE_F32, ZI_GRANULE, 2);
    for (size_t k = 0; k < ZI_CUDA_SOURCES_MAX; k++) {
        list[k] = source.bytes + k % 7 * 260;
    }
    check_launch(case_fold(NULL, ZERO_DTYPE_F32, list, ZERO_DTYPE_INT8_BLOCK, ZI_CUDA_SOURCES_MAX,
                           ZI_GRANULE),
                 &before, 0);
}
