/* Owns the tests of places and sums: tensors cover their files without overlap, wherever cuts are;
 * pieces cover tensors; sums add over any cut and see every bit and every change of places. */
#include <time.h>

#include "checkpoint_case.h"
#include "folders.h"
#include "sanitizer.h"

#include "core/memory.h"

static zi_codec codec_of(uint64_t width)
{
    return (zi_codec){.dtype = width == 4   ? ZERO_DTYPE_F32
                               : width == 2 ? ZERO_DTYPE_BF16
                                            : ZERO_DTYPE_I8};
}

/* ---- places ---- */

typedef struct span {
    uint64_t begin;
    uint64_t end;
} span;

static int compare_spans(const void *left, const void *right)
{
    const span *a = left;
    const span *b = right;
    return a->begin != b->begin ? (a->begin > b->begin) - (a->begin < b->begin)
                                : (a->end > b->end) - (a->end < b->end);
}

/* The file's tensors lie end to end from data_at to its end, each aligned to its elements. */
static uint32_t check_file(const zi_checkpoint_map *map, uint32_t index)
{
    const zi_checkpoint_file *file = &map->files[index];
    span *spans = calloc(map->tensor_count + 1, sizeof *spans);
    uint32_t count = 0;
    CHECK(spans != NULL);
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_checkpoint_tensor *t = &map->tensors[i];
        const zi_checkpoint_place *place = &t->role[file->role];
        const uint64_t width = zero_dtype_bytes(place->dtype);
        if (width != 0 && place->file == index) {
            CHECK_EQ(place->at % width, 0);
            CHECK(i >= file->first_tensor && i < file->tensor_end);
            spans[count++] = (span){place->at, place->at + zi_saved_bytes(t, file->role, t->count)};
        }
    }
    qsort(spans, count, sizeof *spans, compare_spans);
    uint64_t at = file->data_at;
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(spans[i].begin, at);
        at = spans[i].end;
    }
    CHECK_EQ(at, file->bytes);
    CHECK_EQ(file->data_at % ZI_CHECKPOINT_ALIGN, 0);
    CHECK(count > 0 && count <= ZI_CHECKPOINT_FILE_TENSORS);
    CHECK(count == 1 || file->bytes - file->data_at <= ZI_CHECKPOINT_FILE_BYTES);
    free(spans);
    return count;
}

TEST(places_cover_files_without_overlap)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        case_model c;
        uint32_t placed = 0;
        uint32_t have = 0;
        case_make(&c, test_chance(seed, 60), 5000, 1 + test_chance(seed, 9), seed + test_seed);
        if (seed % 2 == 0) {
            case_shrink(&c);
        }
        for (uint32_t i = 0; i < c.map.file_count; i++) {
            placed += check_file(&c.map, i);
        }
        for (uint32_t i = 0; i < c.map.tensor_count; i++) {
            for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
                have += case_has(&c.map.tensors[i], role);
            }
        }
        CHECK_EQ(placed, have);
        case_free(&c);
    }
}

TEST(places_are_the_same_for_any_world)
{
    case_model one;
    case_make(&one, 50, 700000, 1, test_seed);
    for (uint32_t world = 2; world <= 64; world *= 2) {
        case_model c;
        case_make(&c, 50, 700000, world, test_seed);
        CHECK_EQ(c.map.file_count, one.map.file_count);
        for (uint32_t i = 0; i < c.map.file_count; i++) {
            CHECK_BYTES(&c.map.files[i], &one.map.files[i], sizeof c.map.files[i]);
        }
        for (uint32_t i = 0; i < 50; i++) {
            for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
                CHECK_EQ(c.map.tensors[i].role[role].file, one.map.tensors[i].role[role].file);
                CHECK_EQ(c.map.tensors[i].role[role].at, one.map.tensors[i].role[role].at);
            }
        }
        CHECK(c.map.piece_count > one.map.piece_count);
        case_free(&c);
    }
    case_free(&one);
}

/* Tensors of one shape in fp32, without moments. */
static void make_alike(case_model *c, uint32_t tensors, uint64_t elements)
{
    *c = (case_model){.map.tensor_count = tensors};
    c->names = calloc(tensors, sizeof *c->names);
    c->map.tensors = calloc(tensors, sizeof *c->map.tensors);
    CHECK(c->names != NULL && c->map.tensors != NULL);
    for (uint32_t i = 0; i < tensors; i++) {
        zi_checkpoint_tensor *t = &c->map.tensors[i];
        (void)snprintf(c->names[i], CASE_NAME_BYTES, "t%u", i);
        *t = (zi_checkpoint_tensor){.name = c->names[i],
                                    .dims = 1,
                                    .shape = {elements},
                                    .count = elements,
                                    .cut_first = 256,
                                    .cut_every = (uint64_t)1 << 30};
        t->role[ZERO_ROLE_PARAM].dtype = ZERO_DTYPE_F32;
    }
}

TEST(long_models_have_several_files)
{
    case_model c;
    make_alike(&c, 7, ZI_CHECKPOINT_FILE_BYTES / 12);
    CHECK_OK(zi_checkpoint_map_make(&c.map));
    CHECK_EQ(c.map.file_count, 3);
    CHECK(strcmp(c.map.files[1].name, "param-00002-of-00003.safetensors") == 0);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(check_file(&c.map, i), i < 2 ? 3 : 1);
    }
    zi_checkpoint_map_free(&c.map);
    /* A tensor that is longer than a file has one of its own. */
    c.map.tensors[3].count *= 100;
    CHECK_OK(zi_checkpoint_map_make(&c.map));
    CHECK_EQ(c.map.file_count, 3);
    CHECK_EQ(check_file(&c.map, 1), 1);
    case_free(&c);
    make_alike(&c, ZI_CHECKPOINT_FILE_TENSORS + 1, 1);
    CHECK_OK(zi_checkpoint_map_make(&c.map));
    CHECK_EQ(c.map.file_count, 2);
    CHECK_EQ(c.map.files[1].bytes, c.map.files[1].data_at + 4);
    case_free(&c);
}

static double seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

TEST(four_million_tensors)
{
    case_model c;
    make_alike(&c, UNDER_SANITIZER ? 1u << 18 : 1u << 22, 300);
    for (uint32_t i = 0; i < c.map.tensor_count; i++) {
        c.map.tensors[i].role[ZERO_ROLE_MOMENT1].dtype = ZERO_DTYPE_F32;
        c.map.tensors[i].role[ZERO_ROLE_MOMENT2].dtype = ZERO_DTYPE_F32;
    }
    const double began = seconds();
    CHECK_OK(zi_checkpoint_map_make(&c.map));
    const double took = seconds() - began;
    printf("  %u tensors in 3 roles: %.2f s\n", c.map.tensor_count, took);
    CHECK(took < 60); /* 23 on a slow core */
    CHECK_EQ(c.map.piece_count, (uint64_t)c.map.tensor_count * 3 * 2);
    case_free(&c);
}

TEST(names_that_no_file_can_have)
{
    char longest[129] = {0};
    memset(longest, 'x', sizeof longest - 1);
    const char *const names[] = {"",         "__metadata__", "\xff", "a\xc0\x80", "\xed\xa0\x80",
                                 "\xe2\x82", longest};
    case_model c;
    case_make(&c, 3, 100, 1, 1);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        zi_checkpoint_map_free(&c.map);
        c.map.tensors[2].name = names[i];
        CHECK_FAILS(zi_checkpoint_map_make(&c.map), ZERO_ERR_INVALID_ARGUMENT, "UTF-8");
    }
    case_free(&c);
}

/* ---- pieces ---- */

static void check_pieces(const zi_checkpoint_tensor *t)
{
    uint64_t index = 0;
    for (uint64_t at = 0; at < t->count; index++) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(t, at);
        const zi_checkpoint_piece same = zi_checkpoint_piece_at(t, at + piece.count - 1);
        const uint64_t end = at + piece.count;
        CHECK_EQ(piece.index, index);
        CHECK_EQ(piece.first, at);
        CHECK_EQ(same.index, index);
        CHECK(piece.count > 0 && piece.count <= ZI_PIECE_COUNT);
        /* It ends at a cut, after ZI_PIECE_COUNT elements, or with the tensor; and has no cut. */
        const bool cut = end >= t->cut_first && (end - t->cut_first) % t->cut_every == 0;
        CHECK(cut || piece.count == ZI_PIECE_COUNT || end == t->count);
        if (at < t->cut_first) {
            CHECK(end <= t->cut_first);
        } else {
            CHECK_EQ((at - t->cut_first) / t->cut_every, (end - 1 - t->cut_first) / t->cut_every);
        }
        at = end;
    }
    CHECK_EQ(zi_checkpoint_piece_count(t), index);
}

TEST(pieces_cover_tensors)
{
    for (uint64_t turn = 0; turn < 3000; turn++) {
        const uint64_t every = 256 * (1 + (uint64_t)test_chance(turn, 6000));
        check_pieces(&(zi_checkpoint_tensor){
            .count = test_chance(turn + 7, 3000000),
            .cut_every = every,
            .cut_first = 256 * (1 + test_chance(turn + 3, (uint32_t)(every / 256)))});
    }
    /* Nothing is cut where the numbers are larger than any tensor. */
    check_pieces(&(zi_checkpoint_tensor){
        .count = 1000000, .cut_first = UINT64_MAX - 255, .cut_every = UINT64_MAX - 255});
    CHECK_EQ(zi_checkpoint_piece_count(&(zi_checkpoint_tensor){.count = 5}), 0);
}

/* ---- sums ---- */

static unsigned char *random_bytes(size_t bytes)
{
    unsigned char *data = calloc(1, bytes);
    CHECK(data != NULL);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (unsigned char)case_random(test_seed, i);
    }
    return data;
}

TEST(sums_add_over_any_cut)
{
    enum { COUNT = 256 * 40 + 17 };
    static const zi_codec codecs[] = {{ZERO_DTYPE_F32, false},
                                      {ZERO_DTYPE_BF16, false},
                                      {ZERO_DTYPE_I8, false},
                                      {ZERO_DTYPE_BF16, true}};
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        const zi_codec codec = codecs[i];
        unsigned char *data = random_bytes(zi_codec_bytes(codec, COUNT));
        const uint64_t whole = zi_piece_sum(data, 256, COUNT, codec);
        for (uint64_t turn = 0; turn < 200; turn++) {
            uint64_t sum = 0;
            for (uint64_t at = 0, count = 0; at < COUNT; at += count) {
                count = 256 * (1 + (uint64_t)test_chance(turn * 64 + at, 12));
                count = zi_min_u64(count, COUNT - at);
                sum += zi_piece_sum(data + zi_codec_bytes(codec, at), 256 + at, count, codec);
            }
            CHECK_EQ(sum, whole);
        }
        CHECK_EQ(zi_piece_sum(data, 0, 0, codec), 0);
        free(data);
    }
}

TEST(sums_see_every_bit_and_place)
{
    enum { COUNT = 256 * 3 + 5, WIDTH = 4 };
    unsigned char *data = random_bytes(COUNT * WIDTH);
    const uint64_t sum = zi_piece_sum(data, 0, COUNT, codec_of(WIDTH));
    for (size_t bit = 0; bit < (size_t)COUNT * WIDTH * 8; bit++) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        CHECK(zi_piece_sum(data, 0, COUNT, codec_of(WIDTH)) != sum);
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    /* Other elements of the tensor, granules that changed places, and all zeros in their stead. */
    unsigned char other[1024];
    CHECK(zi_piece_sum(data, 256, COUNT, codec_of(WIDTH)) != sum);
    memcpy(other, data, sizeof other);
    memmove(data, data + sizeof other, sizeof other);
    memcpy(data + sizeof other, other, sizeof other);
    CHECK(zi_piece_sum(data, 0, COUNT, codec_of(WIDTH)) != sum);
    memset(data, 0, sizeof other);
    const uint64_t zeros = zi_piece_sum(data, 0, 256, codec_of(WIDTH));
    CHECK(zeros != 0 && zeros != zi_piece_sum(data, 256, 256, codec_of(WIDTH)));
    free(data);
}

typedef uint64_t granules_fn(const unsigned char *data, size_t bytes, uint64_t number,
                             size_t granule_bytes);
granules_fn zi_piece_granules_generic;
#if defined(__x86_64__)
granules_fn zi_piece_granules_avx2;
#endif

/* Sums that files of today have. */
TEST(sums_stay_as_they_are)
{
    unsigned char data[2560];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 7 + i / 256);
    }
    CHECK_EQ(zi_piece_sum(data, 0, 640, codec_of(4)), UINT64_C(2875796221108478966));
    CHECK_EQ(zi_piece_sum(data, 512, 1280, codec_of(2)), UINT64_C(2184528873217410546));
    CHECK_EQ(zi_piece_granules_generic(data, 2560, 2, 512),
             zi_piece_sum(data, 512, 1280, codec_of(2)));
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        CHECK_EQ(zi_piece_granules_avx2(data, 2560, 0, 1024),
                 zi_piece_sum(data, 0, 640, codec_of(4)));
    }
#endif
}

TEST(sums_are_fast)
{
    enum { COUNT = 1 << 17, TIMES = 2000 };
    unsigned char *data = random_bytes(COUNT * 4);
    for (size_t width = 2; width <= 4; width += 2) {
        uint64_t sum = 0;
        double best = 0;
        for (int turn = 0; turn < (UNDER_SANITIZER ? 2 : TIMES); turn++) {
            const double began = seconds();
            sum += zi_piece_sum(data, 0, COUNT, codec_of(width));
            best = fmax(best, (double)COUNT * (double)width / (seconds() - began));
        }
        printf("  %zu bytes an element: %.1f GB/s (%" PRIx64 ")\n", width, best / 1e9, sum);
    }
    free(data);
}
