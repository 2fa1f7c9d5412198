/* The striping of blocks: every byte has one place, no two share one, and files fill without gaps.
 */
#include "harness.h"

#include "storage/stripe.h"

#define UNIT UINT64_C(8)

/* Every byte of a small range against a map of what is taken. */
static void check_bijective(uint64_t bytes, const uint32_t *rates, uint32_t files)
{
    zi_stripe_map map;
    CHECK_OK(zi_stripe_init(&map, bytes, UNIT, rates, files));
    unsigned char *taken[ZI_STRIPE_FILES_MAX] = {NULL};
    uint64_t sum = 0;
    for (uint32_t file = 0; file < files; file++) {
        const uint64_t file_bytes = zi_stripe_file_bytes(&map, file);
        sum += file_bytes;
        taken[file] = calloc(1, file_bytes + 1);
        CHECK(taken[file] != NULL);
    }
    CHECK_EQ(sum, bytes);
    for (uint64_t offset = 0; offset < bytes; offset++) {
        const zi_stripe_place place = zi_stripe_find(&map, offset);
        CHECK(place.file < files);
        CHECK(place.offset < zi_stripe_file_bytes(&map, place.file));
        CHECK_EQ(taken[place.file][place.offset], 0);
        taken[place.file][place.offset] = 1;
        CHECK(place.bytes >= 1 && place.bytes <= bytes - offset);
        /* Bytes that it says lie together do. */
        const zi_stripe_place last = zi_stripe_find(&map, offset + place.bytes - 1);
        CHECK_EQ(last.file, place.file);
        CHECK_EQ(last.offset, place.offset + place.bytes - 1);
    }
    for (uint32_t file = 0; file < files; file++) {
        free(taken[file]);
    }
}

TEST(every_byte_has_one_place)
{
    static const uint32_t rates[][4] = {
        {1, 1, 1, 1},
        {1, 2, 3, 4},
        {4, 3, 2, 1},
        {10, 10, 5, 5},
        {64, 1, 1, 1},
        {1, 64, 63, 1},
        {7000, 3500, 200, 6999},
    };
    for (size_t row = 0; row < sizeof rates / sizeof rates[0]; row++) {
        for (uint32_t files = 1; files <= 4; files++) {
            for (uint64_t bytes = 1; bytes <= 20 * UNIT; bytes++) {
                check_bijective(bytes, rates[row], files);
            }
            check_bijective(301 * UNIT + 5, rates[row], files);
        }
    }
}

TEST(equal_files_take_turns)
{
    zi_stripe_map map;
    CHECK_OK(zi_stripe_init(&map, 160 * UNIT, UNIT, NULL, 16));
    for (uint64_t block = 0; block < 160; block++) {
        const zi_stripe_place place = zi_stripe_find(&map, block * UNIT + 3);
        CHECK_EQ(place.file, block % 16);
        CHECK_EQ(place.offset, block / 16 * UNIT + 3);
        CHECK_EQ(place.bytes, UNIT - 3);
    }
}

TEST(files_hold_what_their_rates_say)
{
    static const uint32_t rates[3] = {300, 200, 100};
    zi_stripe_map map;
    CHECK_OK(zi_stripe_init(&map, 6000 * UNIT, UNIT, rates, 3));
    CHECK_EQ(zi_stripe_file_bytes(&map, 0), 3000 * UNIT);
    CHECK_EQ(zi_stripe_file_bytes(&map, 1), 2000 * UNIT);
    CHECK_EQ(zi_stripe_file_bytes(&map, 2), 1000 * UNIT);
    /* Spread: no window of a cycle gives the fastest more than its share and one block. */
    for (uint64_t start = 0; start < 12; start++) {
        uint32_t count = 0;
        for (uint64_t block = start; block < start + 6; block++) {
            count += zi_stripe_find(&map, block * UNIT).file == 0;
        }
        CHECK(count >= 2 && count <= 4);
    }
}

TEST(measured_rates_are_met_within_a_percent)
{
    static const uint32_t rates[2] = {6997, 3163};
    const uint64_t blocks = 1000003;
    zi_stripe_map map;
    CHECK_OK(zi_stripe_init(&map, blocks * UNIT, UNIT, rates, 2));
    const double share = (double)zi_stripe_file_bytes(&map, 0) / (double)(blocks * UNIT);
    CHECK_NEAR(share, 6997.0 / (6997.0 + 3163.0), 0.01);
}

TEST(one_file_is_one_run)
{
    zi_stripe_map map;
    CHECK_OK(zi_stripe_init(&map, 1000, UNIT, NULL, 1));
    CHECK_EQ(zi_stripe_find(&map, 100).bytes, 900);
    CHECK_EQ(zi_stripe_find(&map, 100).offset, 100);
    CHECK_EQ(zi_stripe_file_bytes(&map, 0), 1000);
}

TEST(large_offsets_do_not_wrap)
{
    static const uint32_t rates[3] = {5, 3, 1};
    const uint64_t bytes = (UINT64_C(1) << 52) + 12345;
    zi_stripe_map map;
    CHECK_OK(zi_stripe_init(&map, bytes, UINT64_C(1) << 20, rates, 3));
    uint64_t sum = 0;
    for (uint32_t file = 0; file < 3; file++) {
        sum += zi_stripe_file_bytes(&map, file);
    }
    CHECK_EQ(sum, bytes);
    const zi_stripe_place last = zi_stripe_find(&map, bytes - 1);
    CHECK_EQ(last.offset, zi_stripe_file_bytes(&map, last.file) - 1);
}

TEST(hopeless_rates_are_refused)
{
    static const uint32_t none[2] = {100, 0};
    static const uint32_t slow[2] = {10001, 7};
    zi_stripe_map map;
    CHECK_FAILS(zi_stripe_init(&map, 80, UNIT, none, 2), ZERO_ERR_INVALID_ARGUMENT,
                "directory 1 has the rate 0");
    CHECK_FAILS(zi_stripe_init(&map, 80, UNIT, slow, 2), ZERO_ERR_INVALID_ARGUMENT, "leave it out");
}
