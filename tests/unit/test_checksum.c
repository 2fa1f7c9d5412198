/* Owns the tests of checksums: every set of instructions and number of threads makes the same ones,
 * those of XXH3, and any bit that differs is found in its block. */
#include "harness.h"

#include "core/checksum.h"

#define BLOCK ZI_CHECKSUM_BYTES
#define BYTES_MAX (40 * BLOCK)

static unsigned char *some_bytes(uint64_t bytes)
{
    unsigned char *memory = malloc(bytes);
    CHECK(memory != NULL);
    for (uint64_t i = 0; i < bytes; i++) {
        memory[i] = (unsigned char)(i * UINT64_C(2654435761) >> 11);
    }
    return memory;
}

/* From xxhash's own list: XXH3_64bits of nothing, and of one to many bytes of its test buffer. */
TEST(they_are_those_of_xxh3)
{
    zi_checksum_fn ways[ZI_CHECKSUM_WAYS_MAX];
    const uint32_t count = zi_checksum_ways(ways);
    unsigned char buffer[2367];
    uint64_t byte = UINT64_C(2654435761);
    for (size_t i = 0; i < sizeof buffer; i++) {
        buffer[i] = (unsigned char)(byte >> 56);
        byte *= UINT64_C(11400714785074694797);
    }
    static const struct {
        size_t bytes;
        uint64_t sum;
    } known[] = {{0, UINT64_C(0x2D06800538D394C2)},    {1, UINT64_C(0xC44BDFF4074EECDB)},
                 {6, UINT64_C(0x27B56A84CD2D7325)},    {403, UINT64_C(0xCDEB804D65C6DEA4)},
                 {2048, UINT64_C(0xDD59E2C3A5F038E0)}, {2367, UINT64_C(0xCB37AEB9E5D361ED)}};
    printf("  %u ways\n", count);
    for (uint32_t way = 0; way < count; way++) {
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            CHECK_EQ(ways[way](buffer, known[i].bytes), known[i].sum);
        }
    }
}

TEST(all_ways_make_the_same)
{
    zi_checksum_fn ways[ZI_CHECKSUM_WAYS_MAX];
    const uint32_t count = zi_checksum_ways(ways);
    unsigned char *memory = some_bytes(2 * BLOCK);
    for (uint64_t bytes = 1; bytes <= BLOCK; bytes += 1 + bytes / 7) {
        for (uint32_t way = 1; way < count; way++) {
            CHECK_EQ(ways[way](memory + bytes % 64, bytes), ways[0](memory + bytes % 64, bytes));
        }
    }
    free(memory);
}

/* Wherever an extent lies, its checksums are those of its parts of the blocks there. */
TEST(extents_are_cut_at_blocks)
{
    static const uint64_t starts[] = {0, 4096, BLOCK - 4096, BLOCK, 7 * BLOCK + 8192};
    static const uint64_t sizes[] = {4096, 8192, BLOCK - 4096, BLOCK, 3 * BLOCK, 33 * BLOCK + 4096};
    unsigned char *memory = some_bytes(BYTES_MAX);
    zi_checksum_fn ways[ZI_CHECKSUM_WAYS_MAX];
    zi_pool *pool = NULL;
    CHECK(zi_checksum_ways(ways) >= 1);
    CHECK_OK(zi_pool_create(3, &pool));
    for (size_t a = 0; a < sizeof starts / sizeof starts[0]; a++) {
        for (size_t b = 0; b < sizeof sizes / sizeof sizes[0]; b++) {
            const zi_checksum_span extent = {memory, starts[a], sizes[b]};
            uint64_t sums[2][64];
            memset(sums, 0xEE, sizeof sums);
            zi_checksum_make(NULL, &extent, sums[0]);
            zi_checksum_make(pool, &extent, sums[1]);
            CHECK_BYTES(sums[0], sums[1], sizeof sums[0]);
            uint64_t at = extent.at;
            uint64_t i = 0;
            while (at < extent.at + extent.bytes) {
                uint64_t end = (at / BLOCK + 1) * BLOCK;
                end = end < extent.at + extent.bytes ? end : extent.at + extent.bytes;
                CHECK_EQ(sums[0][i++], ways[0](memory + (at - extent.at), end - at));
                at = end;
            }
            CHECK(i <= zi_checksum_count(extent.bytes));
            CHECK_EQ(sums[0][i], UINT64_C(0xEEEEEEEEEEEEEEEE)); /* and no more */
        }
    }
    zi_pool_destroy(pool);
    free(memory);
}

TEST(any_bit_is_found)
{
    unsigned char *memory = some_bytes(BYTES_MAX);
    const zi_checksum_span extent = {memory, 5 * BLOCK + 4096, 35 * BLOCK};
    uint64_t sums[64];
    zi_checksum_span bad;
    zi_pool *pool = NULL;
    CHECK_OK(zi_pool_create(2, &pool));
    zi_checksum_make(pool, &extent, sums);
    CHECK(!zi_checksum_differs(pool, &extent, sums, &bad));
    CHECK(!zi_checksum_differs(NULL, &extent, sums, &bad));
    for (uint64_t turn = 0; turn < 200; turn++) {
        const uint64_t at = turn == 0   ? 0
                            : turn == 1 ? extent.bytes - 1
                                        : turn * UINT64_C(0x9E3779B97F4A7C15) % extent.bytes;
        memory[at] ^= (unsigned char)(1u << turn % 8);
        CHECK(zi_checksum_differs(turn % 2 == 0 ? pool : NULL, &extent, sums, &bad));
        CHECK(bad.at <= extent.at + at && extent.at + at < bad.at + bad.bytes);
        CHECK_EQ(bad.at / BLOCK, (bad.at + bad.bytes - 1) / BLOCK);
        CHECK(bad.memory == memory + (bad.at - extent.at));
        memory[at] ^= (unsigned char)(1u << turn % 8);
    }
    /* Of several blocks the first. */
    memory[20 * BLOCK] ^= 1;
    memory[9 * BLOCK] ^= 1;
    CHECK(zi_checksum_differs(pool, &extent, sums, &bad));
    CHECK_EQ(bad.at, 14 * BLOCK);
    zi_pool_destroy(pool);
    free(memory);
}

TEST(of_nothing_there_are_none)
{
    const zi_checksum_span extent = {NULL, 3 * BLOCK, 0};
    zi_checksum_span bad;
    CHECK_EQ(zi_checksum_count(0), 0);
    zi_checksum_make(NULL, &extent, NULL);
    CHECK(!zi_checksum_differs(NULL, &extent, NULL, &bad));
}
