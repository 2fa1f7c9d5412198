/* Fold, cast and scale: against plain loops, for every instruction set and pair of types. */
#include "update_case.h"

static const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
static const size_t counts[] = {0, 1, 63, 64, 65, 511, 512, 513, 5000};
#define COUNTS (sizeof counts / sizeof counts[0])
#define SOURCES 4
#define ROOM 5120

/* Room for one array with a margin that must survive. */
typedef struct guarded {
    unsigned char bytes[ROOM * 4];
} guarded;

static void fill(void *base, zero_dtype dtype, size_t count, uint64_t stream)
{
    memset(base, 0x5a, sizeof(guarded));
    case_fill(base, dtype, count, stream + 10, true);
}

/* The meaning of zi_fold, element by element; dst holds the addend and receives the result. */
static void plain_fold(const zi_fold *fold, void *dst)
{
    for (size_t i = 0; i < fold->count; i++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < fold->source_count; k++) {
            sum +=
                fold->sources[k] == NULL ? 0.0f : case_get(fold->sources[k], fold->source_dtype, i);
        }
        if (fold->accumulate) {
            sum = case_get(dst, fold->dst_dtype, i) + sum;
        }
        case_put(dst, fold->dst_dtype, i, sum);
    }
}

/* Whole, without squares. */
static void run_fold(uint32_t set, const zi_fold *fold)
{
    zi_cpu_lanes_at(set)->fold(fold, 0, fold->count, NULL);
}

/* Whole and in pieces from the last to the first, which have the bits of a sum of squares that
 * reads what was stored. */
static void check_squares(zi_fold fold, uint32_t set, const guarded *before,
                          const guarded *expected)
{
    static guarded got;
    static const size_t pieces[] = {64, 192, 1024, ROOM};
    zi_norm_sum first = {{0}, 0, 0};
    zi_norm_add(&first, 0x1.23456789p-5);
    zi_norm_sum squares = first;
    zi_cpu_square_sum(expected, fold.dst_dtype, fold.count, &squares);
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        zi_norm_sum sum = first;
        got = *before;
        fold.dst = &got;
        for (size_t end = (fold.count + pieces[p] - 1) / pieces[p] * pieces[p]; end > 0;
             end -= pieces[p]) {
            const size_t stop = end < fold.count ? end : fold.count;
            zi_cpu_lanes_at(set)->fold(&fold, end - pieces[p], stop, &sum);
        }
        CHECK_BYTES(&got, expected, sizeof got);
        CHECK_BYTES(&sum, &squares, sizeof sum);
    }
}

static void check_fold(zi_fold fold, const guarded *before)
{
    static guarded expected;
    static guarded got;
    expected = *before;
    plain_fold(&fold, &expected);
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        got = *before;
        fold.dst = &got;
        run_fold(set, &fold);
        CHECK_BYTES(&got, &expected, sizeof got);
        check_squares(fold, set, before, &expected);
    }
}

TEST(fold_adds_in_order_for_every_pair_of_types)
{
    static guarded sources[SOURCES];
    static guarded before;
    for (size_t d = 0; d < 9; d++) {
        for (size_t c = 0; c < COUNTS; c++) {
            const void *list[SOURCES];
            for (size_t k = 0; k < SOURCES; k++) {
                fill(&sources[k], dtypes[d % 3], counts[c], k);
                list[k] = &sources[k];
            }
            fill(&before, dtypes[d / 3], counts[c], SOURCES);
            zi_fold fold = case_fold(NULL, dtypes[d / 3], list, dtypes[d % 3], 0, counts[c]);
            for (fold.source_count = 0; fold.source_count <= SOURCES; fold.source_count++) {
                fold.accumulate = 0;
                check_fold(fold, &before);
                fold.accumulate = 1;
                check_fold(fold, &before);
            }
            list[1] = NULL;
            fold.source_count = SOURCES;
            check_fold(fold, &before);
        }
    }
}

TEST(fold_of_an_absent_source_has_the_bits_of_zeros)
{
    static guarded zeros;
    static guarded source;
    static guarded absent;
    static guarded present;
    enum { COUNT = 700 };
    memset(&zeros, 0, sizeof zeros);
    case_fill(&source, ZERO_DTYPE_F32, COUNT, 20, true);
    const void *with_null[] = {NULL, &source, NULL};
    const void *with_zeros[] = {&zeros, &source, &zeros};
    zi_fold fold = case_fold(&absent, ZERO_DTYPE_F32, with_null, ZERO_DTYPE_F32, 3, COUNT);
    zi_cpu_fold(&fold);
    fold.dst = &present;
    fold.sources = with_zeros;
    zi_cpu_fold(&fold);
    CHECK_BYTES(&absent, &present, COUNT * sizeof(float));
}

TEST(fold_starts_from_plus_zero)
{
    const float minus[3] = {-0.0f, -0.0f, -0.0f};
    const void *sources[] = {minus, NULL, minus};
    float dst[3] = {-0.0f, 5.0f, -0.0f};
    zi_fold fold = case_fold(dst, ZERO_DTYPE_F32, sources, ZERO_DTYPE_F32, 3, 3);
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        dst[0] = -0.0f;
        run_fold(set, &fold);
        for (size_t i = 0; i < 3; i++) {
            CHECK_EQ(zi_f32_bits(dst[i]), 0);
        }
    }
}

/* The sum is complete before dst is added: 2^24 + (1 + 1) is not (2^24 + 1) + 1. */
TEST(fold_adds_dst_last)
{
    const float one = 1.0f;
    const void *sources[] = {&one, &one};
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        float dst = 0x1p24f;
        zi_fold fold = case_fold(&dst, ZERO_DTYPE_F32, sources, ZERO_DTYPE_F32, 2, 1);
        fold.accumulate = 1;
        run_fold(set, &fold);
        CHECK_SAME(dst, 0x1p24 + 2.0);
    }
}

TEST(fold_into_one_of_its_sources)
{
    static guarded first;
    static guarded second;
    static guarded expected;
    static guarded got;
    const size_t count = 5000;
    for (size_t d = 0; d < 3; d++) {
        fill(&first, dtypes[d], count, 1);
        fill(&second, dtypes[d], count, 2);
        const void *apart[] = {&first, &second};
        zi_fold fold = case_fold(NULL, dtypes[d], apart, dtypes[d], 2, count);
        expected = second;
        plain_fold(&fold, &expected);
        for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
            got = second;
            const void *within[] = {&first, &got};
            fold.sources = within;
            fold.dst = &got;
            run_fold(set, &fold);
            CHECK_BYTES(&got, &expected, sizeof got);
        }
    }
}

/* A sum that overflows its type is counted as the infinity that is stored, and NaN as NaN. */
TEST(fold_counts_what_is_not_finite_once_rounded)
{
    float source[200] = {0};
    uint16_t dst[200];
    const void *sources[] = {source};
    source[3] = 65519.0f; /* the largest value below the half way to 2^16 */
    source[64] = 65520.0f;
    source[130] = -(float)INFINITY;
    source[199] = (float)NAN;
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        zi_norm_sum sum = {{0}, 0, 0};
        const zi_fold fold = case_fold(dst, ZERO_DTYPE_F16, sources, ZERO_DTYPE_F32, 1, 200);
        zi_cpu_lanes_at(set)->fold(&fold, 0, 200, &sum);
        CHECK_EQ(sum.infinite_chunks, 2);
        CHECK_EQ(sum.nan_chunks, 1);
        sum.infinite_chunks = 0;
        sum.nan_chunks = 0;
        CHECK_SAME(zi_norm_value(&sum), 65504.0 * 65504.0);
    }
}

/* So many elements that stores go past the caches, apart and in place. */
TEST(fold_of_long_arrays)
{
    enum { COUNT = 300007 };
    for (size_t d = 0; d < 9; d++) {
        const zero_dtype dst_dtype = dtypes[d / 3];
        const zero_dtype source_dtype = dtypes[d % 3];
        void *memory[4];
        for (size_t k = 0; k < 4; k++) {
            CHECK_OK(zi_pages_alloc((size_t)512 * ZI_PAGE_BYTES, &memory[k]));
            case_fill(memory[k], k < 2 ? source_dtype : dst_dtype, COUNT, k + 20, false);
        }
        const void *sources[] = {memory[0], memory[1]};
        zi_fold fold = case_fold(memory[2], dst_dtype, sources, source_dtype, 2, COUNT);
        plain_fold(&fold, memory[3]);
        zi_norm_sum squares = {{0}, 0, 0};
        zi_cpu_square_sum(memory[3], dst_dtype, COUNT, &squares);
        for (uint32_t form = 0; form < 2 * zi_cpu_lanes_count(); form++) {
            zi_norm_sum sum = {{0}, 0, 0};
            const bool adds = form % 2 != 0;
            memset(memory[2], 0, COUNT * zero_dtype_bytes(dst_dtype));
            zi_cpu_lanes_at(form / 2)->fold(&fold, 0, COUNT, adds ? &sum : NULL);
            CHECK_BYTES(memory[2], memory[3], COUNT * zero_dtype_bytes(dst_dtype));
            CHECK(!adds || memcmp(&sum, &squares, sizeof sum) == 0);
        }
        if (dst_dtype == source_dtype) {
            fold.dst = memory[0];
            zi_cpu_fold(&fold);
            CHECK_BYTES(memory[0], memory[3], COUNT * zero_dtype_bytes(dst_dtype));
        }
        for (size_t k = 0; k < 4; k++) {
            zi_pages_free(memory[k], (size_t)512 * ZI_PAGE_BYTES);
        }
    }
}

TEST(cast_and_scale_equal_plain_loops)
{
    static guarded source;
    static guarded before;
    static guarded expected[2];
    static guarded got;
    for (size_t d = 0; d < 9; d++) {
        const zero_dtype to = dtypes[d / 3];
        const zero_dtype from = dtypes[d % 3];
        for (size_t c = 0; c < COUNTS; c++) {
            fill(&source, from, counts[c], 1);
            fill(&before, to, counts[c], 2);
            expected[0] = expected[1] = before;
            for (size_t i = 0; i < counts[c]; i++) {
                const float value = case_get(&source, from, i);
                case_put(&expected[0], to, i, value);
                if (to == ZERO_DTYPE_F32) {
                    case_put(&expected[1], to, i, value * 0.3f);
                }
            }
            for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
                const zi_cpu_lanes *lanes = zi_cpu_lanes_at(set);
                got = before;
                lanes->cast(&got, to, &source, from, counts[c]);
                CHECK_BYTES(&got, &expected[0], sizeof got);
                got = before;
                if (to == ZERO_DTYPE_F32) {
                    lanes->scale((float *)(void *)&got, &source, from, 0.3f, counts[c]);
                }
                CHECK_BYTES(&got, &expected[1], sizeof got);
            }
        }
    }
}

/* Minus zero survives what is not a sum. */
TEST(cast_keeps_minus_zero)
{
    const float minus = -0.0f;
    for (uint32_t set = 0; set < zi_cpu_lanes_count(); set++) {
        uint16_t narrow = 1;
        zi_cpu_lanes_at(set)->cast(&narrow, ZERO_DTYPE_F16, &minus, ZERO_DTYPE_F32, 1);
        CHECK_EQ(narrow, 0x8000);
    }
}
