/* Files are mapped, never copied; a token is decoded where it is read. */
#include "gpt2_data.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 1024, MAGIC = 20240520, BIGRAM_VOCAB_MAX = 1024 };

static uint32_t read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static int32_t token_at(const gpt2_tokens *tokens, uint64_t index)
{
    const unsigned char *at = tokens->at + index * tokens->bytes;
    return tokens->bytes == 1 ? at[0] : at[0] | at[1] << 8;
}

/* --- files ------------------------------------------------------------------------------------ */

static bool map_file(gpt2_mapping *mapping, const char *path, gpt2_error *error)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return gpt2_fail(error, "cannot open %s: %s; give --data or --val a readable file", path,
                         strerror(errno));
    }
    struct stat about;
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size == 0) {
        (void)close(file);
        return gpt2_fail(error, "%s is empty or no regular file; give a file of text or tokens",
                         path);
    }
    mapping->bytes = (size_t)about.st_size;
    void *at = mmap(NULL, mapping->bytes, PROT_READ, MAP_PRIVATE, file, 0);
    const int why = errno;
    (void)close(file);
    if (at == MAP_FAILED) {
        return gpt2_fail(error, "cannot map %s: %s", path, strerror(why));
    }
    mapping->at = at;
    return true;
}

static bool ends_in_bin(const char *path)
{
    const size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".bin") == 0;
}

/* Finds the tokens of a mapped file. */
static bool parse_file(const gpt2_mapping *file, const char *path, gpt2_tokens *tokens,
                       gpt2_error *error)
{
    const unsigned char *bytes = file->at;
    if (file->bytes < 4 || read_u32(bytes) != MAGIC) {
        if (ends_in_bin(path)) {
            return gpt2_fail(error,
                             "%s ends in .bin but does not start with the magic number %d of a "
                             "token file; rename it to train on its bytes",
                             path, MAGIC);
        }
        *tokens = (gpt2_tokens){bytes, file->bytes, 1};
        return true;
    }
    if (file->bytes < HEADER_BYTES) {
        return gpt2_fail(error, "%s is cut short: %zu bytes, but a token file's header has %d",
                         path, file->bytes, HEADER_BYTES);
    }
    const uint32_t version = read_u32(bytes + 4);
    const uint64_t count = read_u32(bytes + 8);
    if (version != 1) {
        return gpt2_fail(error, "%s has token file version %u; only version 1 (uint16) is known",
                         path, version);
    }
    if ((file->bytes - HEADER_BYTES) / 2 < count) {
        return gpt2_fail(error,
                         "%s is cut short: its header promises %llu tokens, its %zu bytes hold "
                         "%zu",
                         path, (unsigned long long)count, file->bytes,
                         (file->bytes - HEADER_BYTES) / 2);
    }
    *tokens = (gpt2_tokens){bytes + HEADER_BYTES, count, 2};
    return true;
}

static bool check_vocab(const gpt2_tokens *tokens, const char *path, uint32_t vocab,
                        gpt2_error *error)
{
    for (uint64_t i = 0; i < tokens->count; i++) {
        const uint32_t token = (uint32_t)token_at(tokens, i);
        if (token >= vocab) {
            return gpt2_fail(error,
                             "%s: token %u at index %llu is not below the vocabulary of %u; "
                             "raise --vocab",
                             path, token, (unsigned long long)i, vocab);
        }
    }
    return true;
}

static bool open_one(gpt2_data *data, int which, const char *path, gpt2_error *error)
{
    gpt2_tokens *tokens = which == 0 ? &data->train : &data->validation;
    if (!map_file(&data->files[which], path, error) ||
        !parse_file(&data->files[which], path, tokens, error)) {
        return false;
    }
    if (which == 0) {
        data->text = tokens->bytes == 1;
        if (data->vocab == 0) {
            data->vocab = data->text ? 256 : 50257;
        }
    } else if (data->text != (tokens->bytes == 1)) {
        return gpt2_fail(error, "%s is of another kind (text or tokens) than the training file",
                         path);
    }
    return check_vocab(tokens, path, data->vocab, error);
}

bool gpt2_data_open(gpt2_data *data, const char *path, const char *val_path, uint32_t vocab,
                    gpt2_error *error)
{
    memset(data, 0, sizeof *data);
    data->vocab = vocab;
    bool good = open_one(data, 0, path, error);
    if (good && val_path != NULL) {
        good = open_one(data, 1, val_path, error);
    } else if (good) {
        const uint64_t kept = data->train.count / 10;
        data->train.count -= kept;
        data->validation = data->train;
        data->validation.at += data->train.count * data->train.bytes;
        data->validation.count = kept;
    }
    if (!good) {
        gpt2_data_close(data);
    }
    return good;
}

void gpt2_data_close(gpt2_data *data)
{
    for (int i = 0; i < 2; i++) {
        if (data->files[i].at != NULL) {
            (void)munmap(data->files[i].at, data->files[i].bytes);
            data->files[i].at = NULL;
        }
    }
}

bool gpt2_data_check(const gpt2_data *data, uint32_t positions, gpt2_error *error)
{
    const uint64_t train_least = 2 * (uint64_t)positions;
    const uint64_t validation_least = (uint64_t)positions + 1;
    if (data->train.count < train_least) {
        return gpt2_fail(error,
                         "the training part has %llu tokens, --seq %u needs at least %llu; give "
                         "more text or a smaller --seq",
                         (unsigned long long)data->train.count, positions,
                         (unsigned long long)train_least);
    }
    if (data->validation.count < validation_least) {
        return gpt2_fail(error,
                         "the validation part has %llu tokens, --seq %u needs at least %llu; give "
                         "more text, a --val file or a smaller --seq",
                         (unsigned long long)data->validation.count, positions,
                         (unsigned long long)validation_least);
    }
    return true;
}

/* --- order ------------------------------------------------------------------------------------ */

/* A 64-bit finaliser (splitmix64). */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* A permutation of [0, count) by a 4-round Feistel network on an even number of bits; values beyond
 * count go round again, which ends because the network is itself a permutation. */
static uint64_t permute(uint64_t index, uint64_t count, uint64_t key)
{
    uint32_t half = 1;
    while (half < 31 && (uint64_t)1 << (2 * half) < count) {
        half++;
    }
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = index >> half;
        uint64_t right = index & mask;
        for (uint64_t round = 0; round < 4; round++) {
            const uint64_t swapped = left ^ (mix(key ^ mix(right * 4 + round)) & mask);
            left = right;
            right = swapped;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

static void copy_window(const gpt2_tokens *from, uint64_t first, uint32_t positions,
                        int32_t *tokens, int32_t *targets)
{
    for (uint32_t i = 0; i < positions; i++) {
        tokens[i] = token_at(from, first + i);
        targets[i] = token_at(from, first + i + 1);
    }
}

/* One phase is lost to the shift and one token to the last target. */
uint64_t gpt2_data_epoch(const gpt2_data *data, uint32_t positions)
{
    return (data->train.count - positions) / positions;
}

void gpt2_data_sample(const gpt2_data *data, uint64_t seed, uint64_t sample, uint32_t positions,
                      int32_t *tokens, int32_t *targets)
{
    const uint64_t pieces = gpt2_data_epoch(data, positions);
    const uint64_t key = mix(mix(seed) ^ sample / pieces);
    const uint64_t phase = key % positions;
    const uint64_t piece = permute(sample % pieces, pieces, key);
    copy_window(&data->train, phase + piece * positions, positions, tokens, targets);
}

void gpt2_data_validation(const gpt2_data *data, uint64_t index, uint64_t count, uint32_t positions,
                          int32_t *tokens, int32_t *targets)
{
    const uint64_t room = data->validation.count - positions - 1;
    const uint64_t first = count > 1 ? index * room / (count - 1) : 0;
    copy_window(&data->validation, first, positions, tokens, targets);
}

/* --- bigram ----------------------------------------------------------------------------------- */

/* p(b | a) = (n(a, b) + p(b)) / (n(a) + 1), with p(b) = (n(b) + 1) / (n + vocab): one imagined
 * occurrence of `a`, followed by whatever is frequent. */
double gpt2_data_bigram(const gpt2_data *data)
{
    const uint32_t vocab = data->vocab;
    const gpt2_tokens *train = &data->train;
    const gpt2_tokens *validation = &data->validation;
    if (vocab > BIGRAM_VOCAB_MAX || train->count < 2 || validation->count < 2) {
        return (double)NAN;
    }
    uint64_t *pairs = calloc((size_t)vocab * vocab, sizeof *pairs);
    uint64_t *starts = calloc(vocab, sizeof *starts);
    double total = (double)NAN;
    if (pairs != NULL && starts != NULL) {
        for (uint64_t i = 0; i + 1 < train->count; i++) {
            const uint32_t from = (uint32_t)token_at(train, i);
            pairs[(size_t)from * vocab + (uint32_t)token_at(train, i + 1)]++;
            starts[from]++;
        }
        total = 0;
        for (uint64_t i = 0; i + 1 < validation->count; i++) {
            const uint32_t from = (uint32_t)token_at(validation, i);
            const uint32_t to = (uint32_t)token_at(validation, i + 1);
            const double alone =
                ((double)starts[to] + 1) / ((double)train->count - 1 + (double)vocab);
            const double seen = (double)pairs[(size_t)from * vocab + to];
            total -= log((seen + alone) / ((double)starts[from] + 1));
        }
        total /= (double)(validation->count - 1);
    }
    free(pairs);
    free(starts);
    return total;
}
