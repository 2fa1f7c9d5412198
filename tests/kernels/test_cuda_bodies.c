/* The GPU's computations, on the CPU: every block and lane of the CUDA kernels' launches, against
 * the CPU kernels or the scalar reference, bit by bit. */
#include "update_case.h"

#include <sys/mman.h>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/block_body.h"
#include "kernels/cuda/fold_body.h"
#include "kernels/cuda/norm_body.h"
#include "kernels/cuda/update_body.h"
#include "launch_now.h"

static const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
static const size_t counts[] = {0, 1, 63, 64, 65, 255, 256, 1000, 8192, 100003};
#define COUNTS (sizeof counts / sizeof counts[0])

/* Types of every form: without small states, then with them. */
#define ALL_TYPES (CASE_TYPES + CASE_SMALL_TYPES)

static update_types all_types(size_t index)
{
    return index < CASE_TYPES ? case_types(index) : case_small_types(index - CASE_TYPES);
}

/* Every `plain`-th type without small states, every `small`-th with them; few of the layer-wise
 * optimizers, whose updates differ in their arithmetic alone. */
static size_t next_type(size_t t, size_t plain, size_t small)
{
    const bool layerwise =
        t >= CASE_TYPES + CASE_SMALL_LAYERWISE_FROM || (t >= CASE_LAYERWISE_FROM && t < CASE_TYPES);
    return t + (layerwise ? 13 : t < CASE_TYPES ? plain : small);
}

/* The launch leaves what the scalar reference leaves, in every element of the case and between. */
static void check_update(update_case *one)
{
    const size_t array_bytes = one->bytes / CASE_ARRAYS;
    unsigned char *expected = case_expected(one);
    launch_update_now(&one->job);
    for (size_t k = 0; k < CASE_ARRAYS; k++) {
        const zero_dtype kind = case_codec(one, k).dtype;
        case_same(one->memory + k * array_bytes, expected + k * array_bytes, kind,
                  array_bytes / zero_dtype_bytes(kind));
    }
    free(expected);
}

TEST(update_has_the_references_bits_for_every_type)
{
    const size_t ragged[] = {1, 63, 64, 65, 0, 0, 1000, 3, 12345, 0, 256, 5000};
    for (size_t t = CASE_FIRST_TYPE; t < ALL_TYPES; t += CASE_TYPE_STEP) {
        update_case one;
        case_create(&one, all_types(t), ragged, sizeof ragged / sizeof ragged[0], true);
        if (t % 4 != 0) {
            case_count_stalled(&one);
        }
        check_update(&one);
        case_destroy(&one);
    }
}

TEST(update_of_a_long_segment)
{
    const size_t one_segment[] = {100003};
    for (size_t t = 0; t < ALL_TYPES; t = next_type(t, 7, 1)) {
        update_case one;
        case_create(&one, all_types(t), one_segment, 1, false);
        case_count_stalled(&one);
        check_update(&one);
        case_destroy(&one);
    }
}

/* So many elements that a warp which rounds stochastically takes the larger share. */
TEST(update_of_a_large_shard)
{
    const size_t large[] = {100, ZI_MANY_FROM + 12345, 77};
    const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_I8};
    const uint64_t shares[] = {ZI_WARP_COUNT_LEAST, ZI_WARP_COUNT_MANY, ZI_WARP_COUNT_MOST};
    for (int i = 0; i < 3; i++) {
        const update_types types = {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, moments[i], ZERO_DTYPE_F32,
                                    ZERO_OPTIMIZER_ADAMW};
        update_case one;
        case_create(&one, types, large, 3, false);
        case_count_stalled(&one);
        CHECK_EQ(zi_update_grid_of(&one.job).warp_count, shares[i]);
        check_update(&one);
        case_destroy(&one);
    }
}

/* The launch adds what the scalar reference adds, and changes nothing else. */
static void check_measure(update_types types, const size_t *segment_counts, size_t segment_count)
{
    update_case one;
    case_create(&one, types, segment_counts, segment_count, true);
    unsigned char *before = case_copy(&one);
    launch_measure_now(&one.job);
    CHECK_BYTES(one.memory, before, one.bytes);
    case_check_measured(&one);
    free(before);
    case_destroy(&one);
}

TEST(measure_has_the_references_sums_for_every_type)
{
    const size_t ragged[] = {1, 63, 64, 65, 0, 0, 1000, 3, 12345, 0, 256, 5000};
    for (size_t t = CASE_LAYERWISE_FROM; t < ALL_TYPES; t++) {
        if (t < CASE_TYPES || t - CASE_TYPES >= CASE_SMALL_LAYERWISE_FROM) {
            check_measure(all_types(t), ragged, sizeof ragged / sizeof ragged[0]);
        }
    }
}

/* The sums of several ranks, packed and merged, come to what the CPU makes of them. */
TEST(layers_have_the_cpus_norms)
{
    enum { RANKS = 6, LAYERS = 21 };
    static zi_packed_sums messages[RANKS][LAYERS];
    static float values[RANKS][LAYERS][64];
    zi_layer_norms norms[LAYERS];
    for (uint32_t r = 0; r < RANKS; r++) {
        zi_layer_sums sums[LAYERS] = {0};
        for (uint32_t l = 0; l < LAYERS; l++) {
            zero_random_normal(test_seed, l, 0, 64, 0.0f, 1e-3f, values[r][l]);
            values[r][l][7] = l == 20 ? (float)NAN : 1e18f;
            zi_cpu_square_sum(values[r][l], ZERO_DTYPE_F32, 64, &sums[l].param);
        }
        launch_layers_now(&(zi_layers_job){
            .layers = LAYERS, .phase = ZI_LAYERS_PACK, .sums = sums, .packed = messages[r]});
        CHECK_EQ(sums[20].param.nan_chunks, 0);
    }
    launch_layers_now(&(zi_layers_job){.layers = LAYERS,
                                       .phase = ZI_LAYERS_MERGE,
                                       .messages = (const unsigned char *)messages,
                                       .message_bytes = sizeof messages[0],
                                       .message_count = RANKS,
                                       .peer_first = 1,
                                       .peer_stride = 2,
                                       .norms = norms});
    for (uint32_t l = 0; l < LAYERS; l++) {
        zi_norm_sum whole = {{0}, 0, 0};
        for (uint32_t r = 1; r < RANKS; r += 2) {
            zi_cpu_square_sum(values[r][l], ZERO_DTYPE_F32, 64, &whole);
        }
        CHECK(l == 20 ? isnan(norms[l].param) != 0 : norms[l].param == zi_layer_norm(&whole));
        CHECK_EQ(norms[l].direction, 0.0);
    }
}

/* State in host memory: few blocks, of whole tiles, with the same bits. */
TEST(update_of_state_over_the_bus)
{
    const size_t ragged[] = {1, 63, 64, 65, 0, 1000, 3, 12345, 0, 256, 150000};
    for (size_t t = 0; t < ALL_TYPES; t = next_type(t, 5, 3)) {
        update_case one;
        case_create(&one, all_types(t), ragged, sizeof ragged / sizeof ragged[0], true);
        case_count_stalled(&one);
        one.job.over_bus = 1;
        CHECK(zi_update_grid_of(&one.job).blocks <= ZI_BUS_BLOCKS);
        check_update(&one);
        case_destroy(&one);
    }
}

/* A piece of a tensor may begin anywhere in it, though no layout of ours makes it. */
TEST(update_rounds_by_the_tensors_elements)
{
    const size_t ragged[] = {700, 1, 64, 2000};
    const update_types types[] = {
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_F32, ZERO_DTYPE_F16, ZERO_DTYPE_F32, ZERO_DTYPE_NONE, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_F16, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8,
         ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_I8, ZERO_DTYPE_REMAINDER8,
         ZERO_OPTIMIZER_ADAMW}};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (uint64_t first = 0; first < 18; first++) {
            update_case one;
            case_create(&one, types[t], ragged, 4, false);
            for (size_t k = 0; k < 4; k++) {
                one.segments[k].tensor_first = first + k * 1001 + ((uint64_t)k << 40);
            }
            check_update(&one);
            case_destroy(&one);
        }
    }
}

/* One array of the job moves by an element; false: the job has none there. */
static bool case_shift(update_case *one, size_t array)
{
    zi_update_job *const job = &one->job;
    const size_t bytes = zero_dtype_bytes(case_codec(one, array).dtype);
    if (array == CASE_GRAD) {
        job->grad = (const char *)job->grad + bytes;
    } else if (array == CASE_PARAM) {
        job->param = (char *)job->param + bytes;
    } else {
        void **const state = &job->state[array - CASE_STATES];
        *state = *state != NULL ? (char *)*state + bytes : NULL;
        return *state != NULL;
    }
    return true;
}

/* Each array in turn misses its alignment by one element. Scales are read one by one. */
TEST(update_of_arrays_that_are_not_aligned)
{
    const size_t ragged[] = {700, 1, 64, 2000};
    for (size_t t = CASE_FIRST_TYPE; t < ALL_TYPES; t += CASE_TYPE_STEP) {
        for (size_t k = 0; k < CASE_STALLED; k++) {
            update_case one;
            case_create(&one, all_types(t), ragged, 4, false);
            case_count_stalled(&one);
            if (case_shift(&one, k)) {
                const bool scales = k >= CASE_STATES + ZI_STATE_SCALE1;
                CHECK_EQ(zi_update_args_of(&one.job).aligned, scales);
                check_update(&one);
            }
            case_destroy(&one);
        }
    }
}

/* Tiny segments by the hundred, empty ones and gaps between them. */
TEST(update_of_many_tiny_segments)
{
    enum { SEGMENTS = 700 };
    static zi_segment segments[SEGMENTS];
    const size_t room[] = {SEGMENTS * 320};
    const update_types types[] = {
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_OPTIMIZER_ADAMW},
        {ZERO_DTYPE_BF16, ZERO_DTYPE_BF16, ZERO_DTYPE_I8, ZERO_DTYPE_REMAINDER8,
         ZERO_OPTIMIZER_ADAMW}};
    uint64_t offset = 0;
    for (uint64_t i = 0; i < SEGMENTS; i++) {
        const zi_philox_words random = zi_philox(test_seed, i, 5);
        segments[i] = (zi_segment){.offset = offset,
                                   .count = random.word[0] % 4 == 0 ? 0 : random.word[1] % 150,
                                   .tensor_first = 64 * (random.word[2] % 1000),
                                   .tensor = (uint32_t)i,
                                   .group = random.word[3] % 2,
                                   .flags = random.word[3] % 8 == 1 ? ZERO_TENSOR_NO_DECAY : 0};
        offset += (segments[i].count + 63) / 64 * 64 + random.word[3] % 3 * 64;
    }
    CHECK(offset <= room[0]);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        update_case one;
        case_create(&one, types[t], room, 1, true);
        case_count_stalled(&one);
        one.job.segments = segments;
        for (size_t count = 0; count <= SEGMENTS; count += 350) {
            one.job.segment_count = count;
            one.job.count = count == 0 ? 0 : segments[count - 1].offset + segments[count - 1].count;
            check_update(&one);
        }
        case_destroy(&one);
    }
}

TEST(update_that_is_skipped_touches_nothing)
{
    const size_t ragged[] = {700, 1, 64, 2000};
    for (size_t t = CASE_FIRST_TYPE; t < ALL_TYPES; t += CASE_TYPE_STEP) {
        update_case one;
        case_create(&one, all_types(t), ragged, 4, false);
        case_count_stalled(&one);
        one.decision.skip = 1;
        one.decision.grad_scale = (float)NAN;
        unsigned char *before = case_copy(&one);
        launch_update_now(&one.job);
        CHECK_BYTES(one.memory, before, one.bytes);
        free(before);
        case_destroy(&one);
    }
}

TEST(search_finds_the_segment_behind_a_place)
{
    const zi_segment segments[] = {
        {.offset = 0, .count = 1},   {.offset = 64, .count = 0},
        {.offset = 64, .count = 64}, {.offset = 256, .count = 65},
        {.offset = 384, .count = 0}, {.offset = UINT64_C(1) << 33, .count = 9},
    };
    const uint64_t last = (UINT64_C(1) << 33) + 9;
    const uint64_t places[] = {0, 1, 63, 64, 127, 128, 255, 256, 320, 321, 400, last - 1, last};
    const uint64_t found[] = {0, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 5, 6};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        CHECK_EQ(zi_segment_find(segments, 6, places[i]), found[i]);
    }
    CHECK_EQ(zi_segment_find(segments, 0, 0), 0);
}

TEST(grids_cover_every_element_once)
{
    const uint64_t large[] = {0,
                              1,
                              512,
                              513,
                              ZI_MANY_FROM - 1,
                              ZI_MANY_FROM,
                              1u << 31,
                              (UINT64_C(1) << 33) + 12345,
                              UINT64_C(1) << 43};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        const uint64_t count = large[i];
        const zi_cuda_grid grids[] = {zi_cuda_grid_of(count), zi_cuda_grid_of_bus(count),
                                      zi_cuda_grid_with(count, ZI_WARP_COUNT_LEAST)};
        for (int kind = 0; kind < 3; kind++) {
            const zi_cuda_grid grid = grids[kind];
            const uint64_t warps = grid.blocks * ZI_BLOCK_WARPS;
            CHECK(grid.blocks <= (kind == 1 ? ZI_BUS_BLOCKS : INT32_MAX) || count > UINT64_C(1)
                                                                                        << 41);
            CHECK_EQ(grid.warp_count % ZI_UPDATE_TILE, 0);
            CHECK_EQ(zi_warp_range_of(warps, grid.warp_count, count).begin, count);
            for (uint64_t warp = warps < 9 ? 0 : warps - 9; warp < warps; warp++) {
                const zi_warp_range range = zi_warp_range_of(warp, grid.warp_count, count);
                const zi_warp_range next = zi_warp_range_of(warp + 1, grid.warp_count, count);
                CHECK_EQ(range.end, next.begin);
                CHECK(range.end - range.begin <= grid.warp_count);
            }
        }
        CHECK_EQ(grids[0].warp_count % ZI_FOLD_TILE, 0);
        CHECK_EQ(grids[0].warp_count % ZI_CAST_TILE, 0);
        CHECK_EQ(grids[0].warp_count % ZI_CODE_TILE, 0);
        const zi_norm_grid norm = zi_norm_grid_of(count);
        const uint64_t chunks = count / ZI_NORM_CHUNK + (count % ZI_NORM_CHUNK != 0);
        CHECK(norm.passes <= ZI_NORM_PASSES_MAX && norm.blocks <= INT32_MAX);
        CHECK(zi_norm_chunk_of(norm.blocks, norm.passes, 0, 0) >= chunks);
        CHECK(count == 0 || zi_norm_chunk_of(norm.blocks - 1, norm.passes, 0, 0) < chunks);
    }
}

/* Room for one array, whose margin must survive. */
#define ROOM_BYTES ((size_t)100 * ZI_PAGE_BYTES)

static void *room(zero_dtype dtype, size_t count, uint64_t stream)
{
    void *memory = NULL;
    CHECK_OK(zi_pages_alloc(ROOM_BYTES, &memory));
    memset(memory, 0x5a, ROOM_BYTES);
    case_fill(memory, dtype, count, stream + 10, true);
    return memory;
}

/* Without squares, and with the bits of a sum of squares that reads what was stored. */
static void check_fold(zi_fold fold, const void *before)
{
    static unsigned char expected[ROOM_BYTES];
    static unsigned char got[ROOM_BYTES + 64] __attribute__((aligned(64)));
    memcpy(expected, before, ROOM_BYTES);
    fold.dst = expected;
    zi_cpu_fold(&fold);
    zi_norm_sum first = {{0}, 0, 0};
    zi_norm_add(&first, 0x1.23456789p-5);
    zi_norm_sum squares = first;
    zi_cpu_square_sum(expected, fold.dst_dtype, fold.count, &squares);
    /* Aligned, and not. */
    for (size_t form = 0; form < 4; form++) {
        const size_t shift = form % 2 * 4;
        zi_norm_sum sum = first;
        memcpy(got + shift, before, ROOM_BYTES);
        fold.dst = got + shift;
        fold.squares = form < 2 ? NULL : &sum;
        launch_fold_now(&fold);
        case_same(got + shift, expected, fold.dst_dtype,
                  ROOM_BYTES / zero_dtype_bytes(fold.dst_dtype));
        zi_norm_normalise(&sum);
        CHECK_BYTES(&sum, form < 2 ? &first : &squares, sizeof sum);
    }
}

TEST(fold_has_the_cpus_bits_for_every_pair_of_types)
{
    enum { SOURCES = 9 };
    const uint32_t source_counts[] = {0, 1, 2, 4, 5, SOURCES};
    for (size_t d = 0; d < 9; d++) {
        for (size_t c = 0; c < COUNTS; c++) {
            const void *list[SOURCES];
            void *memory[SOURCES];
            for (size_t k = 0; k < SOURCES; k++) {
                memory[k] = room(dtypes[d % 3], counts[c], k);
                list[k] = k % 4 == 2 ? NULL : memory[k];
            }
            void *before = room(dtypes[d / 3], counts[c], SOURCES);
            zi_fold fold = case_fold(NULL, dtypes[d / 3], list, dtypes[d % 3], 0, counts[c]);
            for (size_t k = 0; k < sizeof source_counts / sizeof source_counts[0]; k++) {
                fold.source_count = source_counts[k];
                fold.accumulate = k % 2 == 0;
                check_fold(fold, before);
            }
            for (size_t k = 0; k < SOURCES; k++) {
                zi_pages_free(memory[k], ROOM_BYTES);
            }
            zi_pages_free(before, ROOM_BYTES);
        }
    }
}

TEST(fold_into_one_of_its_sources_and_of_unaligned_ones)
{
    const size_t count = 5000;
    for (size_t d = 0; d < 3; d++) {
        char *first = room(dtypes[d], count, 1);
        char *second = room(dtypes[d], count, 2);
        void *expected = room(dtypes[d], count, 2);
        const void *apart[] = {first + zero_dtype_bytes(dtypes[d]), second};
        zi_fold fold = case_fold(expected, dtypes[d], apart, dtypes[d], 2, count - 1);
        zi_cpu_fold(&fold);
        fold.dst = second;
        launch_fold_now(&fold);
        CHECK_BYTES(second, expected, ROOM_BYTES);
        apart[0] = first;
        fold.dst = expected;
        zi_cpu_fold(&fold);
        apart[1] = expected;
        fold.dst = expected;
        zi_cpu_fold(&fold);
        apart[1] = second;
        fold.dst = second;
        launch_fold_now(&fold);
        launch_fold_now(&fold);
        CHECK_BYTES(second, expected, ROOM_BYTES);
        zi_pages_free(first, ROOM_BYTES);
        zi_pages_free(second, ROOM_BYTES);
        zi_pages_free(expected, ROOM_BYTES);
    }
}

/* Values of all magnitudes move the windows; long runs of one do not. */
static float wide_value(uint64_t index, uint64_t run)
{
    const zi_philox_words words = zi_philox(test_seed, index, 0);
    const uint32_t exponent = zi_philox(test_seed, index / run, 1).word[0] % 255;
    return zi_f32_from_bits((words.word[0] & 0x807fffffu) | exponent << 23);
}

/* In place, of all magnitudes, not finite here and there, and over several passes of a block. */
TEST(fold_adds_squares_of_any_values)
{
    const size_t count = (size_t)ZI_NORM_BLOCKS * ZI_NORM_PASS_CHUNKS * ZI_NORM_CHUNK + 777;
    CHECK_EQ(zi_norm_grid_of(count).passes, 2);
    float *values = malloc(count * sizeof *values);
    CHECK(values != NULL);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = i / 5000 % 3 == 2 ? 0.0f : wide_value(i, i % 3 == 0 ? 1 : 4096);
    }
    values[70] = (float)NAN;
    values[71] = (float)INFINITY;
    values[9999] = -(float)INFINITY;
    values[count - 1] = 0x1.fffffep127f;
    zi_norm_sum expected = {{0}, 0, 0};
    zi_norm_sum got = expected;
    const void *sources[] = {values};
    zi_cpu_square_sum(values, ZERO_DTYPE_F32, count, &expected);
    zi_fold fold = case_fold(values, ZERO_DTYPE_F32, sources, ZERO_DTYPE_F32, 1, count);
    fold.squares = &got;
    launch_fold_now(&fold);
    zi_norm_normalise(&got);
    CHECK_EQ(got.nan_chunks, 1);
    CHECK(got.infinite_chunks >= 1);
    CHECK_BYTES(&got, &expected, sizeof got);
    free(values);
}

TEST(fold_takes_as_many_sources_as_a_world_has_ranks)
{
    const void *list[ZI_CUDA_SOURCES_MAX];
    void *source = room(ZERO_DTYPE_BF16, 1000, 1);
    void *before = room(ZERO_DTYPE_F32, 1000, 2);
    for (size_t k = 0; k < ZI_CUDA_SOURCES_MAX; k++) {
        list[k] = (const uint16_t *)source + k % 7 * 4;
    }
    zi_fold fold = case_fold(NULL, ZERO_DTYPE_F32, list, ZERO_DTYPE_BF16, ZI_CUDA_SOURCES_MAX, 900);
    fold.accumulate = 1;
    check_fold(fold, before);
    zi_pages_free(source, ROOM_BYTES);
    zi_pages_free(before, ROOM_BYTES);
}

TEST(cast_has_the_cpus_bits_for_every_pair_of_types)
{
    static unsigned char expected[ROOM_BYTES];
    static unsigned char got[ROOM_BYTES + 64] __attribute__((aligned(64)));
    for (size_t d = 0; d < 9; d++) {
        const zero_dtype to = dtypes[d / 3];
        const zero_dtype from = dtypes[d % 3];
        for (size_t c = 0; c < COUNTS; c++) {
            void *source = room(from, counts[c], 1);
            memset(expected, 0x77, sizeof expected);
            zi_cpu_cast(expected, to, source, from, counts[c]);
            for (size_t shift = 0; shift <= 4; shift += 4) {
                memset(got, 0x77, sizeof got);
                launch_cast_now(got + shift, to, source, from, counts[c]);
                case_same(got + shift, expected, to, sizeof expected / zero_dtype_bytes(to));
            }
            zi_pages_free(source, ROOM_BYTES);
        }
    }
}

static const zero_dtype block_types[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};

/* The launches against the CPU's functions. shift: elements from where all arrays are aligned. */
static void check_blocks(zero_dtype kind, zero_dtype type, const void *values, size_t count,
                         size_t shift)
{
    static unsigned char expected[ROOM_BYTES];
    static unsigned char got[ROOM_BYTES] __attribute__((aligned(64)));
    static unsigned char scales[2][ROOM_BYTES];
    static float back[2][ROOM_BYTES / sizeof(float)] __attribute__((aligned(64)));
    const void *source = (const char *)values + shift * zero_dtype_bytes(type);
    const size_t bytes = sizeof expected - shift;
    memset(expected, 0x77, sizeof expected);
    memset(got, 0x77, sizeof got);
    memset(scales, 0x77, sizeof scales);
    memset(back, 0x77, sizeof back);
    zi_cpu_encode_blocks(expected, scales[0], kind, source, type, count);
    launch_encode_now(got + shift, scales[1], kind, source, type, count);
    CHECK_BYTES(got + shift, expected, bytes);
    CHECK_BYTES(scales[1], scales[0], sizeof scales[0]);
    unsigned char *target = (unsigned char *)back[1] + shift * zero_dtype_bytes(type);
    zi_cpu_decode_blocks(back[0], type, expected, scales[0], kind, count);
    launch_decode_now(target, type, got + shift, scales[1], kind, count);
    case_same(target, back[0], type, sizeof back[0] / zero_dtype_bytes(type) - shift);
}

TEST(encode_and_decode_have_the_cpus_bits_for_every_pair_of_types)
{
    const size_t some[] = {0, 1, 3, 31, 32, 33, 127, 128, 129, 511, 513, 8192, 40003};
    for (size_t d = 0; d < 6; d++) {
        for (size_t c = 0; c < sizeof some / sizeof some[0]; c++) {
            void *values = room(dtypes[d / 2], some[c] + 1, 1);
            check_blocks(block_types[d % 2], dtypes[d / 2], values, some[c], 0);
            check_blocks(block_types[d % 2], dtypes[d / 2], values, some[c], 1);
            zi_pages_free(values, ROOM_BYTES);
        }
    }
}

/* All magnitudes, of neighbours or not; not finite here and there; and blocks of zeros. */
TEST(encode_and_decode_of_any_values)
{
    enum { COUNT = 65536 };
    float *values = malloc(COUNT * sizeof *values);
    CHECK(values != NULL);
    for (uint64_t run = 1; run <= 256; run *= 256) {
        for (uint64_t i = 0; i < COUNT; i++) {
            values[i] = i / 256 % 9 == 2 ? -0.0f : wide_value(i, run);
        }
        values[1000] = (float)NAN;
        values[2001] = -(float)INFINITY;
        values[4002] = 0x1.fffffep127f;
        for (size_t k = 0; k < 2; k++) {
            check_blocks(block_types[k], ZERO_DTYPE_F32, values, COUNT, 0);
        }
    }
    free(values);
}

/* Bits of NaN of both signs, quiet and not, and of infinities, one in three elements. */
static void strew_specials(void *base, zero_dtype dtype, size_t count, size_t first)
{
    static const uint32_t f32[] = {0x7fc00000u, 0xffc00000u, 0x7fffffffu, 0x7f800001u,
                                   0xffabcdefu, 0x7f800000u, 0xff800000u};
    static const uint16_t bf16[] = {0x7fc0, 0xffc0, 0x7fff, 0x7f81, 0xffab, 0x7f80, 0xff80};
    static const uint16_t f16[] = {0x7e00, 0xfe00, 0x7fff, 0x7c01, 0xfdab, 0x7c00, 0xfc00};
    for (size_t i = first; i < count; i += 3) {
        if (dtype == ZERO_DTYPE_F32) {
            ((uint32_t *)base)[i] = f32[i % 7];
        } else {
            ((uint16_t *)base)[i] = dtype == ZERO_DTYPE_BF16 ? bf16[i % 7] : f16[i % 7];
        }
    }
}

static size_t count_nan(const void *base, zero_dtype dtype, size_t count)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        found += isnan(case_get(base, dtype, i)) ? 1 : 0;
    }
    return found;
}

TEST(fold_and_cast_of_nan_and_infinities)
{
    enum { COUNT = 5000, SOURCES = 3 };
    for (size_t d = 0; d < 9; d++) {
        const zero_dtype from = dtypes[d % 3];
        const zero_dtype to = dtypes[d / 3];
        void *sources[SOURCES];
        const void *list[SOURCES];
        for (size_t k = 0; k < SOURCES; k++) {
            sources[k] = room(from, COUNT, k);
            strew_specials(sources[k], from, COUNT, k / 2); /* two alike: inf and -inf meet too */
            list[k] = sources[k];
        }
        void *before = room(to, COUNT, SOURCES);
        strew_specials(before, to, COUNT, 2);
        zi_fold fold = case_fold(NULL, to, list, from, SOURCES, COUNT);
        check_fold(fold, before);
        fold.accumulate = 1;
        check_fold(fold, before);
        void *expected = room(to, COUNT, 1);
        zi_cpu_cast(expected, to, sources[0], from, COUNT);
        launch_cast_now(before, to, sources[0], from, COUNT);
        CHECK(count_nan(expected, to, COUNT) > COUNT / 5);
        case_same(before, expected, to, COUNT);
        for (size_t k = 0; k < SOURCES; k++) {
            zi_pages_free(sources[k], ROOM_BYTES);
        }
        zi_pages_free(before, ROOM_BYTES);
        zi_pages_free(expected, ROOM_BYTES);
    }
}

/* Gradients that a step would be skipped for, and second moments below 0, whose root is no number.
 */
TEST(update_of_nan_and_infinities)
{
    const size_t counts_of_segments[] = {5000, 64};
    for (size_t t = CASE_FIRST_TYPE; t < ALL_TYPES; t += CASE_TYPE_STEP) {
        const update_types types = all_types(t);
        const bool coded = zi_dtype_is_code(types.moment);
        update_case one;
        case_create(&one, types, counts_of_segments, 2, false);
        case_count_stalled(&one);
        strew_specials(case_array(&one, CASE_GRAD), types.grad, 5000, 0);
        for (size_t i = 1; i < 5000 && !coded; i += 3) {
            case_put(case_array(&one, CASE_STATES + ZI_STATE_MOMENT2), types.moment, i, -1.0f);
        }
        check_update(&one);
        /* A second moment is AdamW's alone; some gradients are no numbers by themselves. */
        const size_t least = types.optimizer == ZERO_OPTIMIZER_ADAMW && !coded ? 5000 / 3 : 100;
        CHECK(count_nan(one.job.param, types.param, 5000) > least);
        case_destroy(&one);
    }
}

/* The last block of more elements than 32 bits count. Pages that nobody touches are not there. */
TEST(cast_beyond_two_to_the_32_elements)
{
    const uint64_t count = (UINT64_C(1) << 32) + 5000;
    float *source = mmap(NULL, count * sizeof *source, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint16_t *target = mmap(NULL, count * sizeof *target, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (source == MAP_FAILED || target == MAP_FAILED) {
        SKIP("24 GiB of address space are not to be had");
    }
    const zi_cuda_grid grid = zi_cuda_grid_of(count);
    const zi_cast_args args = {target, source, count, grid.warp_count, 1};
    const uint64_t first = count - 3000;
    for (uint64_t i = first; i < count; i++) {
        source[i] = (float)(i - first) + 1.0f;
    }
    for (uint64_t warp = first / grid.warp_count; warp < grid.blocks * ZI_BLOCK_WARPS; warp++) {
        for (uint32_t lane = 0; lane < ZI_WARP_LANES; lane++) {
            zi_cast_lane(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, &args, warp, lane);
        }
    }
    for (uint64_t i = first; i < count; i++) {
        CHECK_EQ(target[i], zi_bf16_from_f32(source[i]));
    }
}

/* Both sums, added to one that is there already, in their one form. */
static void check_norm(const void *source, zero_dtype dtype, size_t count)
{
    zi_norm_sum expected = {{0}, 0, 0};
    zi_norm_add(&expected, 0x1.23456789p-5);
    zi_norm_sum got = expected;
    zi_cpu_square_sum(source, dtype, count, &expected);
    launch_square_sum_now(source, dtype, count, &got);
    zi_norm_normalise(&expected);
    zi_norm_normalise(&got);
    CHECK_BYTES(&got, &expected, sizeof got);
}

TEST(square_sum_equals_the_cpus_for_every_type)
{
    for (size_t d = 0; d < 3; d++) {
        for (size_t c = 0; c < COUNTS; c++) {
            unsigned char *source = room(dtypes[d], counts[c], 1);
            check_norm(source, dtypes[d], counts[c]);
            memmove(source + 2 * d + 4 * (d == 0), source, ROOM_BYTES / 2);
            check_norm(source + 2 * d + 4 * (d == 0), dtypes[d], counts[c] / 2);
            zi_pages_free(source, ROOM_BYTES);
        }
    }
}

TEST(square_sum_of_all_magnitudes)
{
    enum { COUNT = 70001 };
    float *values = malloc(COUNT * sizeof *values);
    CHECK(values != NULL);
    for (uint64_t run = 1; run <= 1 << 16; run *= 16) {
        for (uint64_t i = 0; i < COUNT; i++) {
            values[i] = i / 5000 % 3 == 2 ? 0.0f : wide_value(i, run);
        }
        check_norm(values, ZERO_DTYPE_F32, COUNT);
    }
    free(values);
}

TEST(square_sum_counts_what_is_not_finite)
{
    enum { COUNT = 20000 };
    float *values = calloc(COUNT, sizeof *values);
    CHECK(values != NULL);
    values[5] = (float)INFINITY;
    values[70] = (float)NAN;
    values[71] = (float)INFINITY;
    values[9999] = -(float)INFINITY;
    values[12000] = 0x1.fffffep127f;
    values[13000] = 0x1p-149f;
    values[COUNT - 1] = (float)NAN;
    check_norm(values, ZERO_DTYPE_F32, COUNT);
    for (int i = 0; i < COUNT; i++) {
        values[i] = 0x1.fffffep127f;
    }
    check_norm(values, ZERO_DTYPE_F32, COUNT);
    free(values);
}

/* Several passes of a block. */
TEST(square_sum_of_a_long_array)
{
    const size_t count = (size_t)ZI_NORM_BLOCKS * ZI_NORM_PASS_CHUNKS * ZI_NORM_CHUNK * 2 + 777;
    CHECK_EQ(zi_norm_grid_of(count).passes, 3);
    uint16_t *values = malloc(count * sizeof *values);
    CHECK(values != NULL);
    for (size_t i = 0; i < count; i++) {
        values[i] = (uint16_t)(0x3c00u + (uint32_t)(i * 2654435761u) % 0x300u);
    }
    check_norm(values, ZERO_DTYPE_BF16, count);
    free(values);
}
