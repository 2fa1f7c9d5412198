/* The loader: split, order of samples, token files, errors; the bigram reference; and how sampled
 * tokens are chosen. */
#include "gpt2_data.h"
#include "gpt2_sample.h"
#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>

static char folder[64];
static char path[128];
static gpt2_error error; /* of the last call */

/* Writes a file of these bytes into a folder of its own and returns its path. */
static const char *put(const char *name, const void *bytes, size_t count)
{
    snprintf(folder, sizeof folder, "/tmp/gpt2-data-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
    return path;
}

static void drop(void)
{
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(rmdir(folder), 0);
}

/* An llm.c token file of `count` tokens, token i being i % modulus; `promised` goes to the header.
 */
static size_t token_file(unsigned char *bytes, uint32_t version, uint32_t promised, uint32_t count,
                         uint32_t modulus)
{
    const uint32_t header[3] = {20240520, version, promised};
    memset(bytes, 0, 1024);
    memcpy(bytes, header, sizeof header);
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t token = (uint16_t)(i % modulus);
        memcpy(bytes + 1024 + 2 * (size_t)i, &token, sizeof token);
    }
    return 1024 + 2 * (size_t)count;
}

static unsigned char buffer[8192];

/* A file of its own, which is gone once it is open. */
static gpt2_data open_file(const char *name, const void *bytes, size_t count, uint32_t vocab)
{
    gpt2_data data;
    CHECK(gpt2_data_open(&data, put(name, bytes, count), NULL, vocab, &error));
    drop();
    return data;
}

/* 1000 tokens, token i being i. */
static gpt2_data open_counting(void)
{
    return open_file("counting.bin", buffer, token_file(buffer, 1, 1000, 1000, 1000), 1000);
}

TEST(the_last_tenth_is_for_validation)
{
    gpt2_data data = open_counting();
    CHECK(!data.text);
    CHECK_EQ(data.train.count, 900);
    CHECK_EQ(data.validation.count, 100);
    int32_t tokens[7];
    int32_t targets[7];
    CHECK(gpt2_data_validation(&data, 0, 5, 7, tokens, targets, &error));
    CHECK_EQ(tokens[0], 900);
    CHECK_EQ(targets[0], 901);
    CHECK(gpt2_data_validation(&data, 4, 5, 7, tokens, targets, &error));
    CHECK_EQ(targets[6], 999);
    gpt2_data_close(&data);
}

TEST(text_is_bytes)
{
    const unsigned char text[20] = "In the beginning \xff\xfe.";
    gpt2_data data = open_file("text", text, 20, 0);
    CHECK(data.text);
    CHECK_EQ(data.vocab, 256);
    int32_t tokens[8];
    int32_t targets[8];
    CHECK(gpt2_data_check(&data, 1, &error));
    CHECK(gpt2_data_sample(&data, 1, 0, 1, tokens, targets, &error));
    CHECK_EQ(gpt2_data_epoch(&data, 1), 17);
    gpt2_data_close(&data);
}

/* The begin of the window of a sample; checks that it is a run and its targets follow. */
static uint32_t start_of(const gpt2_data *data, uint64_t seed, uint64_t sample)
{
    int32_t tokens[8];
    int32_t targets[8];
    CHECK(gpt2_data_sample(data, seed, sample, 8, tokens, targets, &error));
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(tokens[i], tokens[0] + i);
        CHECK_EQ(targets[i], tokens[0] + i + 1);
    }
    CHECK(targets[7] < 900);
    return (uint32_t)tokens[0];
}

TEST(a_pass_visits_every_piece_once_at_one_phase)
{
    gpt2_data data = open_counting();
    const uint64_t pieces = gpt2_data_epoch(&data, 8);
    CHECK_EQ(pieces, 111);
    for (uint64_t pass = 0; pass < 5; pass++) {
        bool seen[900] = {false};
        const uint32_t phase = start_of(&data, 3, pass * pieces) % 8;
        for (uint64_t s = 0; s < pieces; s++) {
            const uint32_t start = start_of(&data, 3, pass * pieces + s);
            CHECK_EQ(start % 8, phase);
            CHECK(!seen[start]);
            seen[start] = true;
        }
    }
    gpt2_data_close(&data);
}

TEST(order_depends_on_seed_and_pass_only)
{
    gpt2_data data = open_counting();
    uint32_t same_seed = 0;
    uint32_t other_seed = 0;
    uint32_t other_pass = 0;
    uint32_t in_order = 0;
    for (uint64_t s = 0; s < 110; s++) {
        const uint32_t start = start_of(&data, 3, s);
        same_seed += start == start_of(&data, 3, s);
        other_seed += start == start_of(&data, 4, s);
        other_pass += start == start_of(&data, 3, s + 111);
        in_order += start + 8 == start_of(&data, 3, s + 1);
    }
    CHECK_EQ(same_seed, 110);
    CHECK(other_seed < 20);
    CHECK(other_pass < 20);
    CHECK(in_order < 20);
    gpt2_data_close(&data);
}

TEST(a_validation_file_takes_the_place_of_the_split)
{
    unsigned char text[64];
    memset(text, 'a', sizeof text);
    char train[160];
    snprintf(train, sizeof train, "%s", put("train", text, 64));
    char train_folder[64];
    snprintf(train_folder, sizeof train_folder, "%s", folder);
    memset(text, 'b', sizeof text);
    gpt2_data data;
    CHECK(gpt2_data_open(&data, train, put("val", text, 30), 0, &error));
    CHECK_EQ(data.train.count, 64);
    CHECK_EQ(data.validation.count, 30);
    gpt2_data_close(&data);
    const size_t bytes = token_file(buffer, 1, 10, 10, 10);
    drop();
    CHECK(!gpt2_data_open(&data, train, put("val.bin", buffer, bytes), 0, &error));
    CHECK(strstr(error.text, "another kind") != NULL);
    drop();
    CHECK_EQ(unlink(train), 0);
    CHECK_EQ(rmdir(train_folder), 0);
}

/* --- errors ----------------------------------------------------------------------------------- */

static void check_refused(const char *file, uint32_t vocab, const char *text)
{
    gpt2_data data;
    CHECK(!gpt2_data_open(&data, file, NULL, vocab, &error));
    if (strstr(error.text, text) == NULL) {
        TEST_FAIL("message without \"%s\": %s", text, error.text);
    }
}

TEST(files_that_cannot_be_read_are_refused_by_name)
{
    check_refused("/nonexistent/file", 0, "/nonexistent/file: No such file");
    check_refused("/tmp", 0, "no regular file");
    check_refused("/dev/null", 0, "no regular file");
    check_refused(put("pipe", "", 0), 0, "is empty");
    CHECK_EQ(unlink(path) + mkfifo(path, 0600), 0);
    check_refused(path, 0, "no regular file but a pipe"); /* at once, though nobody writes to it */
    drop();
    check_refused(put("empty", "", 0), 0, "is empty");
    drop();
}

TEST(damaged_token_files_are_refused)
{
    size_t bytes = token_file(buffer, 1, 100, 100, 100);
    check_refused(put("t.bin", buffer, bytes), 50, "token 50 at index 50");
    drop();
    check_refused(put("t.bin", buffer, bytes - 2), 0, "cut short");
    drop();
    check_refused(put("t.bin", buffer, 500), 0, "cut short");
    drop();
    bytes = token_file(buffer, 7, 100, 100, 100);
    check_refused(put("t.bin", buffer, bytes), 0, "version 7");
    drop();
    buffer[0] ^= 1;
    check_refused(put("t.bin", buffer, bytes), 0, "magic number 20240520");
    drop();
    memcpy(buffer, "\xa1\xd9\x34\x01", 4);
    check_refused(put("t.bin", buffer, bytes), 0, "tokens of 32 bits (magic number 20240801)");
    drop();
    check_refused(put("text", "ab\xffxyz", 6), 128, "token 255 at index 2");
    drop();
}

/* Windows longer than what is read at once have the tokens that shorter ones have. */
TEST(a_long_window_is_read_in_parts)
{
    static unsigned char text[20000];
    static int32_t tokens[9000];
    static int32_t targets[9000];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (unsigned char)(i * 31 / 7);
    }
    gpt2_data data = open_file("long", text, sizeof text, 0);
    CHECK(gpt2_data_sample(&data, 1, 0, 9000, tokens, targets, &error));
    size_t first = 0;
    while (first < 18000 - 9000 && (text[first] != tokens[0] || text[first + 1] != tokens[1] ||
                                    text[first + 8999] != tokens[8999])) {
        first++;
    }
    for (size_t i = 0; i < 9000; i++) {
        CHECK_EQ(tokens[i], text[first + i]);
        CHECK_EQ(targets[i], text[first + i + 1]);
    }
    gpt2_data_close(&data);
}

/* A file that changes under a run is an error of the read; a mapped one ended the program. */
TEST(files_that_change_are_noticed)
{
    gpt2_data data;
    int32_t tokens[8];
    int32_t targets[8];
    double nats = 0;
    const size_t bytes = token_file(buffer, 1, 1000, 1000, 1000);
    CHECK(gpt2_data_open(&data, put("changing.bin", buffer, bytes), NULL, 1000, &error));
    const int file = open(path, O_WRONLY);
    const uint16_t high = 1000;
    CHECK(file >= 0 && pwrite(file, &high, 2, 1024 + 2 * 901) == 2);
    CHECK(!gpt2_data_validation(&data, 0, 2, 8, tokens, targets, &error));
    CHECK(strstr(error.text, "changing.bin: token 1000 at index 1 is not below") != NULL);
    CHECK(!gpt2_data_bigram(&data, &nats, &error) && isnan(nats));
    CHECK_EQ(ftruncate(file, 1024 + 2 * 904) + close(file), 0);
    CHECK(!gpt2_data_validation(&data, 1, 2, 8, tokens, targets, &error));
    CHECK(strstr(error.text, "changing.bin became shorter while it was used") != NULL);
    CHECK(gpt2_data_sample(&data, 1, 0, 8, tokens, targets, &error));
    CHECK_EQ(truncate(path, 0), 0);
    CHECK(!gpt2_data_sample(&data, 1, 0, 8, tokens, targets, &error));
    drop();
    gpt2_data_close(&data);
}

TEST(too_little_text_is_refused_with_the_need)
{
    gpt2_data data = open_counting();
    CHECK(gpt2_data_check(&data, 99, &error));
    CHECK(!gpt2_data_check(&data, 100, &error));
    CHECK(strstr(error.text, "validation part has 100 tokens, --seq 100 needs at least 101"));
    CHECK(!gpt2_data_check(&data, 451, &error));
    CHECK(strstr(error.text, "training part has 900 tokens, --seq 451 needs at least 902"));
    gpt2_data_close(&data);
}

/* --- bigram ----------------------------------------------------------------------------------- */

/* "abab...": after many, the next byte is certain; the smoothed model must be close to 0 nats, and
 * exactly what its formula says. */
TEST(bigram_of_an_alternating_text)
{
    unsigned char text[2000];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = i % 2 == 0 ? 'a' : 'b';
    }
    gpt2_data data = open_file("ab", text, sizeof text, 0);
    /* 1800 to train on: 900 times ab, 899 times ba; 199 pairs to validate: 100 ab, 99 ba. */
    const double alone_a = (900.0 + 1) / (1799 + 256);
    const double alone_b = (899.0 + 1) / (1799 + 256);
    const double expected =
        -(100 * log((900 + alone_b) / 901) + 99 * log((899 + alone_a) / 900)) / 199;
    double nats = 0;
    CHECK(gpt2_data_bigram(&data, &nats, &error));
    CHECK_NEAR(nats, expected, 1e-12);
    gpt2_data_close(&data);
}

/* --- choice of tokens ------------------------------------------------------------------------- */

TEST(sampling_follows_the_distribution)
{
    const gpt2_sampling all = {.temperature = 1};
    const gpt2_sampling two = {.temperature = 1, .top_k = 2};
    const gpt2_sampling cold = {.temperature = 0};
    const float logits[4] = {logf(1), logf(4), logf(3), logf(2)};
    uint32_t drawn[4] = {0};
    uint32_t drawn_two[4] = {0};
    for (uint32_t i = 0; i < 1000; i++) {
        float copy[4];
        const float uniform = ((float)i + 0.5f) / 1000;
        memcpy(copy, logits, sizeof copy);
        drawn[gpt2_choose(copy, 4, &all, uniform)]++;
        memcpy(copy, logits, sizeof copy);
        drawn_two[gpt2_choose(copy, 4, &two, uniform)]++;
        memcpy(copy, logits, sizeof copy);
        CHECK_EQ(gpt2_choose(copy, 4, &cold, uniform), 1);
    }
    const uint32_t expected[4] = {100, 400, 300, 200};
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(drawn[i], expected[i], 1);
    }
    CHECK_EQ(drawn_two[0] + drawn_two[3], 0);
    CHECK_NEAR(drawn_two[1], 571, 2);
}

/* Of k tokens, equal ones at the border are all let in; k beyond the vocabulary lets all in. */
TEST(sampling_of_k_tokens_counts_equal_ones)
{
    static const struct {
        uint32_t top_k;
        uint32_t drawn;
    } rows[] = {{1, 1}, {2, 3}, {3, 3}, {4, 4}, {9, 4}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const gpt2_sampling how = {.temperature = 1, .top_k = rows[r].top_k};
        bool drawn[4] = {false};
        for (uint32_t i = 0; i < 1000; i++) {
            float logits[4] = {2.0f, 3.0f, 1.0f, 2.0f};
            drawn[gpt2_choose(logits, 4, &how, ((float)i + 0.5f) / 1000)] = true;
        }
        CHECK_EQ(drawn[0] + drawn[1] + drawn[2] + drawn[3], rows[r].drawn);
        CHECK(drawn[1]);
    }
}
