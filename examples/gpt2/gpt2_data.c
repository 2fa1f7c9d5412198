/* Files are read where tokens are wanted, never mapped: of a mapping whose file gets shorter the
 * system says so by ending the program. */
#define XXH_INLINE_ALL
#include "gpt2_data.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    HEADER_BYTES = 1024,
    MAGIC = 20240520,
    MAGIC_WIDE = 20240801, /* of llm.c's tokens for llama 3 */
    BIGRAM_VOCAB_MAX = 1024,
    CHUNK_TOKENS = 2048 /* read at once */
};

static uint32_t read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Up to `bytes` at `offset`; fewer at the file's end. Negative: errno says why. */
static ssize_t read_at(int file, unsigned char *to, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t count = pread(file, to + done, bytes - done, (off_t)(offset + done));
        if (count == 0) {
            break;
        }
        if (count < 0 && errno != EINTR) {
            return -1;
        }
        done += count < 0 ? 0 : (size_t)count;
    }
    return (ssize_t)done;
}

static bool read_chunk(const gpt2_tokens *from, uint64_t first, uint32_t count, int32_t *tokens,
                       gpt2_error *error)
{
    unsigned char raw[2 * CHUNK_TOKENS];
    const size_t bytes = (size_t)count * from->bytes;
    const ssize_t got = read_at(from->file, raw, bytes, from->offset + first * from->bytes);
    if (got < 0) {
        return gpt2_fail(error, "cannot read %s: %s", from->path, strerror(errno));
    }
    if ((size_t)got < bytes) {
        return gpt2_fail(error,
                         "%s became shorter while it was used: token %llu is gone; leave the file "
                         "alone while training, and start again",
                         from->path, (unsigned long long)(first + (size_t)got / from->bytes));
    }
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = from->bytes == 1 ? raw[i] : raw[2 * i] | raw[2 * i + 1] << 8;
        if ((uint32_t)tokens[i] >= from->vocab) {
            return gpt2_fail(error,
                             "%s: token %u at index %llu is not below the vocabulary of %u; raise "
                             "--vocab",
                             from->path, (uint32_t)tokens[i], (unsigned long long)(first + i),
                             from->vocab);
        }
    }
    return true;
}

static bool read_tokens(const gpt2_tokens *from, uint64_t first, uint32_t count, int32_t *tokens,
                        gpt2_error *error)
{
    for (uint32_t done = 0; done < count; done += CHUNK_TOKENS) {
        const uint32_t part = count - done < CHUNK_TOKENS ? count - done : CHUNK_TOKENS;
        if (!read_chunk(from, first + done, part, tokens + done, error)) {
            return false;
        }
    }
    return true;
}

/* --- files ------------------------------------------------------------------------------------ */

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISCHR(mode)  ? "a device"
           : S_ISBLK(mode)  ? "a device"
                            : "something else";
}

/* The descriptor goes to *file, also on failure. O_NONBLOCK: a pipe is opened without its writer.
 */
static bool open_file(int *file, const char *path, uint64_t *bytes, gpt2_error *error)
{
    struct stat about;
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*file < 0 || fstat(*file, &about) != 0) {
        return gpt2_fail(error, "cannot open %s: %s; give --data or --val a readable file", path,
                         strerror(errno));
    }
    if (!S_ISREG(about.st_mode)) {
        return gpt2_fail(error,
                         "%s is no regular file but %s; give a file of text or tokens on disk",
                         path, kind_of(about.st_mode));
    }
    *bytes = (uint64_t)about.st_size;
    return *bytes > 0 || gpt2_fail(error, "%s is empty; give a file of text or tokens", path);
}

static bool ends_in_bin(const char *path)
{
    const size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".bin") == 0;
}

/* Finds the tokens of an open file of `bytes`. */
static bool parse_file(int file, const char *path, uint64_t bytes, gpt2_tokens *tokens,
                       gpt2_error *error)
{
    unsigned char header[12] = {0};
    if (read_at(file, header, sizeof header, 0) < 0) {
        return gpt2_fail(error, "cannot read %s: %s", path, strerror(errno));
    }
    *tokens = (gpt2_tokens){.file = file, .path = path, .count = bytes, .bytes = 1};
    if (bytes >= 4 && read_u32(header) == MAGIC_WIDE) {
        return gpt2_fail(error,
                         "%s has tokens of 32 bits (magic number %d), of another tokenizer; only "
                         "GPT-2's of 16 bits (%d) are known",
                         path, MAGIC_WIDE, MAGIC);
    }
    if (bytes < 4 || read_u32(header) != MAGIC) {
        return !ends_in_bin(path) ||
               gpt2_fail(error,
                         "%s ends in .bin but does not start with the magic number %d of a token "
                         "file; rename it to train on its bytes",
                         path, MAGIC);
    }
    if (bytes < HEADER_BYTES) {
        return gpt2_fail(error, "%s is cut short: %llu bytes, but a token file's header has %d",
                         path, (unsigned long long)bytes, HEADER_BYTES);
    }
    const uint32_t version = read_u32(header + 4);
    const uint64_t count = read_u32(header + 8);
    if (version != 1) {
        return gpt2_fail(error, "%s has token file version %u; only version 1 (uint16) is known",
                         path, version);
    }
    if ((bytes - HEADER_BYTES) / 2 < count) {
        return gpt2_fail(error,
                         "%s is cut short: its header promises %llu tokens, its %llu bytes hold "
                         "%llu",
                         path, (unsigned long long)count, (unsigned long long)bytes,
                         (unsigned long long)((bytes - HEADER_BYTES) / 2));
    }
    tokens->offset = HEADER_BYTES;
    tokens->count = count;
    tokens->bytes = 2;
    return true;
}

/* Reads all tokens, which checks them. hash: out. */
static bool scan(const gpt2_tokens *tokens, uint64_t *hash, gpt2_error *error)
{
    int32_t chunk[CHUNK_TOKENS];
    XXH3_state_t state;
    (void)XXH3_64bits_reset(&state);
    for (uint64_t first = 0; first < tokens->count; first += CHUNK_TOKENS) {
        const uint64_t left = tokens->count - first;
        const uint32_t count = left < CHUNK_TOKENS ? (uint32_t)left : CHUNK_TOKENS;
        if (!read_chunk(tokens, first, count, chunk, error)) {
            return false;
        }
        (void)XXH3_64bits_update(&state, chunk, count * sizeof *chunk);
    }
    *hash = XXH3_64bits_digest(&state);
    return true;
}

/* Validation tokens are read unless no value of their bytes can be wrong. */
static bool check_tokens(gpt2_data *data, gpt2_error *error)
{
    const gpt2_tokens *validation = &data->validation;
    uint64_t unused = 0;
    return scan(&data->train, &data->train_hash, error) &&
           (validation->vocab >= (uint32_t)1 << (8 * validation->bytes) ||
            scan(validation, &unused, error));
}

static bool open_one(gpt2_data *data, int which, const char *path, gpt2_error *error)
{
    gpt2_tokens *tokens = which == 0 ? &data->train : &data->validation;
    uint64_t bytes = 0;
    if (!open_file(&data->files[which], path, &bytes, error) ||
        !parse_file(data->files[which], path, bytes, tokens, error)) {
        return false;
    }
    if (which == 0) {
        data->text = tokens->bytes == 1;
        if (data->vocab == 0) {
            data->vocab = data->text ? 256 : GPT2_VOCAB;
        }
    } else if (data->text != (tokens->bytes == 1)) {
        return gpt2_fail(error, "%s is of another kind (text or tokens) than the training file",
                         path);
    }
    tokens->vocab = data->vocab;
    return true;
}

bool gpt2_data_open(gpt2_data *data, const char *path, const char *val_path, uint32_t vocab,
                    gpt2_error *error)
{
    *data = (gpt2_data){.vocab = vocab, .files = {-1, -1}};
    bool good = open_one(data, 0, path, error);
    if (good && val_path != NULL) {
        good = open_one(data, 1, val_path, error);
    } else if (good) {
        const uint64_t kept = data->train.count / 10;
        data->train.count -= kept;
        data->validation = data->train;
        data->validation.offset += data->train.count * data->train.bytes;
        data->validation.count = kept;
    }
    good = good && check_tokens(data, error);
    if (!good) {
        gpt2_data_close(data);
    }
    return good;
}

void gpt2_data_close(gpt2_data *data)
{
    for (int i = 0; i < 2; i++) {
        if (data->files[i] >= 0) {
            (void)close(data->files[i]);
            data->files[i] = -1;
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

static bool read_window(const gpt2_tokens *from, uint64_t first, uint32_t positions,
                        int32_t *tokens, int32_t *targets, gpt2_error *error)
{
    if (!read_tokens(from, first, 1, tokens, error) ||
        !read_tokens(from, first + 1, positions, targets, error)) {
        return false;
    }
    memcpy(tokens + 1, targets, (positions - 1) * sizeof *tokens);
    return true;
}

/* One phase is lost to the shift and one token to the last target. */
uint64_t gpt2_data_epoch(const gpt2_data *data, uint32_t positions)
{
    return (data->train.count - positions) / positions;
}

bool gpt2_data_sample(const gpt2_data *data, uint64_t seed, uint64_t sample, uint32_t positions,
                      int32_t *tokens, int32_t *targets, gpt2_error *error)
{
    const uint64_t pieces = gpt2_data_epoch(data, positions);
    const uint64_t key = mix(mix(seed) ^ sample / pieces);
    const uint64_t phase = key % positions;
    const uint64_t piece = permute(sample % pieces, pieces, key);
    return read_window(&data->train, phase + piece * positions, positions, tokens, targets, error);
}

bool gpt2_data_validation(const gpt2_data *data, uint64_t index, uint64_t count, uint32_t positions,
                          int32_t *tokens, int32_t *targets, gpt2_error *error)
{
    const uint64_t room = data->validation.count - positions - 1;
    const uint64_t first = count > 1 ? index * room / (count - 1) : 0;
    return read_window(&data->validation, first, positions, tokens, targets, error);
}

/* --- bigram ----------------------------------------------------------------------------------- */

typedef struct bigram {
    uint32_t vocab;
    uint64_t train_pairs;
    uint64_t *pairs;  /* vocab x vocab */
    uint64_t *starts; /* vocab */
    double total;     /* of -log p */
} bigram;

static void count_pair(bigram *self, uint32_t from, uint32_t to)
{
    self->pairs[(size_t)from * self->vocab + to]++;
    self->starts[from]++;
}

/* p(b | a) = (n(a, b) + p(b)) / (n(a) + 1), with p(b) = (n(b) + 1) / (n + vocab): one imagined
 * occurrence of `a`, followed by whatever is frequent. */
static void judge_pair(bigram *self, uint32_t from, uint32_t to)
{
    const double alone =
        ((double)self->starts[to] + 1) / ((double)self->train_pairs + (double)self->vocab);
    const double seen = (double)self->pairs[(size_t)from * self->vocab + to];
    self->total -= log((seen + alone) / ((double)self->starts[from] + 1));
}

static bool each_pair(bigram *self, const gpt2_tokens *tokens,
                      void (*take)(bigram *self, uint32_t from, uint32_t to), gpt2_error *error)
{
    int32_t chunk[CHUNK_TOKENS];
    uint32_t before = 0;
    for (uint64_t first = 0; first < tokens->count; first += CHUNK_TOKENS) {
        const uint64_t left = tokens->count - first;
        const uint32_t count = left < CHUNK_TOKENS ? (uint32_t)left : CHUNK_TOKENS;
        if (!read_chunk(tokens, first, count, chunk, error)) {
            return false;
        }
        for (uint32_t i = 0; i < count; i++) {
            if (first + i > 0) {
                take(self, before, (uint32_t)chunk[i]);
            }
            before = (uint32_t)chunk[i];
        }
    }
    return true;
}

bool gpt2_data_bigram(const gpt2_data *data, double *nats, gpt2_error *error)
{
    const size_t vocab = data->vocab;
    *nats = (double)NAN;
    if (vocab > BIGRAM_VOCAB_MAX || data->train.count < 2 || data->validation.count < 2) {
        return true;
    }
    bigram self = {.vocab = data->vocab,
                   .train_pairs = data->train.count - 1,
                   .pairs = calloc(vocab * vocab, sizeof(uint64_t)),
                   .starts = calloc(vocab, sizeof(uint64_t))};
    bool good = true;
    if (self.pairs != NULL && self.starts != NULL) {
        good = each_pair(&self, &data->train, count_pair, error) &&
               each_pair(&self, &data->validation, judge_pair, error);
        *nats = good ? self.total / (double)(data->validation.count - 1) : (double)NAN;
    }
    free(self.pairs);
    free(self.starts);
    return good;
}
