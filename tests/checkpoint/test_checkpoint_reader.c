/* Owns the tests of reading: every range has the values that were written, whoever reads it; every
 * damage is found and named; and weights of other programs are read, or refused. */
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "checkpoint_case.h"
#include "damage_said.h"
#include "folders.h"
#include "sanitizer.h"

#include "checkpoint/checkpoint_reader.h"
#include "core/fault.h"

static char *home;
static case_model model;
static char folder[256];

static void make_home(uint32_t tensors, uint64_t elements_max, uint32_t world)
{
    home = rig_folder(true);
    case_make(&model, tensors, elements_max, world, test_seed);
    case_write(&model, home, "a", 7);
    (void)snprintf(folder, sizeof folder, "%s/a", home);
}

static void remove_home(void)
{
    case_free(&model);
    case_remove(home, true);
    free(home);
}

static uint64_t width_of(const zi_checkpoint_tensor *t, zero_role role)
{
    return zero_dtype_bytes(t->role[role].dtype);
}

/* ---- ranges ---- */

/* Read a range and compare it with what was written. */
static void read_range(zi_source *reader, const zi_source_range *range)
{
    const zi_checkpoint_tensor *t = &reader->map->tensors[range->tensor];
    const uint64_t width = width_of(t, range->role);
    unsigned char *read = calloc(range->count + 1, width);
    unsigned char *written = calloc(range->count + 1, width);
    CHECK(read != NULL && written != NULL);
    case_values(t, range->role, model.seed, range->first, range->count, written);
    CHECK_OK(zi_source_read(reader, range, read));
    CHECK_BYTES(read, written, range->count * width);
    free(read);
    free(written);
}

TEST(any_range_is_read)
{
    zi_source *reader = NULL;
    make_home(20, 3000, 4);
    CHECK_OK(zi_checkpoint_reader_open(folder, &reader));
    CHECK_EQ(reader->manifest->world, 4);
    CHECK_OK(zi_source_check_files(reader));
    for (uint32_t i = 0; i < 20; i++) {
        const zi_checkpoint_tensor *t = &reader->map->tensors[i];
        CHECK_EQ(zi_source_find(reader, model.map.tensors[i].name), i);
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            for (uint64_t turn = 0; case_has(t, role) && turn < 10; turn++) {
                const uint64_t first = test_chance(turn * 7 + i, (uint32_t)t->count + 1);
                const uint64_t count = test_chance(turn * 7 + 3, (uint32_t)(t->count - first) + 1);
                read_range(reader, &(zi_source_range){i, role, first, count, false, false});
            }
        }
    }
    CHECK_EQ(zi_source_find(reader, "none"), UINT32_MAX);
    CHECK_EQ(zi_source_count(reader).balance, 0);
    zi_source_close(reader);
    zi_source_close(NULL);
    remove_home();
}

/* Ranks of another world read their slices; returns the sum of their balances. */
static uint64_t read_in_slices(uint32_t world, uint64_t *read_bytes)
{
    uint64_t balance = 0;
    case_model c;
    case_make(&c, model.map.tensor_count, 700000, world, model.seed);
    *read_bytes = 0;
    for (uint32_t rank = 0; rank < world; rank++) {
        zi_source *reader = NULL;
        CHECK_OK(zi_checkpoint_reader_open(folder, &reader));
        for (uint32_t i = 0; i < c.map.tensor_count; i++) {
            const zi_checkpoint_tensor *t = &c.map.tensors[i];
            uint64_t at = 0;
            for (uint32_t cut = 0; at < t->count; cut++) {
                const uint64_t left = t->count - at;
                const uint64_t count = zi_min_u64(cut == 0 ? t->cut_first : t->cut_every, left);
                for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
                    if (case_has(t, role) && (cut + i) % world == rank) {
                        read_range(reader, &(zi_source_range){i, role, at, count, true, false});
                    }
                }
                at += count;
            }
        }
        balance += zi_source_count(reader).balance;
        *read_bytes += zi_source_count(reader).read_bytes;
        zi_source_close(reader);
    }
    case_free(&c);
    return balance;
}

static uint64_t needed_bytes(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model.map.file_count; i++) {
        bytes += model.map.files[i].bytes - model.map.files[i].data_at;
    }
    return bytes;
}

TEST(any_world_reads_what_it_needs_and_no_more)
{
    make_home(UNDER_SANITIZER ? 10 : 30, 700000, 3);
    struct stat manifest;
    CHECK(stat(test_text("%s/" ZI_MANIFEST_NAME, folder), &manifest) == 0);
    for (uint32_t world = 1; world <= 8; world++) {
        uint64_t bytes = 0;
        CHECK_EQ(read_in_slices(world, &bytes), 0);
        bytes -= world * (uint64_t)manifest.st_size;
        CHECK(bytes <= needed_bytes() + needed_bytes() / 1000);
        CHECK(bytes >= needed_bytes());
    }
    remove_home();
}

static void flip(const char *name, uint64_t at)
{
    const int file = case_open(folder, name);
    unsigned char byte = 0;
    CHECK(pread(file, &byte, 1, (off_t)at) == 1);
    byte ^= (unsigned char)(1u << case_random(test_seed, at) % 8);
    case_put(file, &byte, 1, at);
    CHECK(close(file) == 0);
}

static uint64_t located; /* damaged bytes of tensors */

/* Of a file of tensors, the one that has a byte must be named; headers and other files have none.
 */
static void check_place(const char *message, const char *name, uint64_t at)
{
    for (uint32_t i = 0; i < model.map.tensor_count; i++) {
        const zi_checkpoint_tensor *t = &model.map.tensors[i];
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            const zi_checkpoint_place *place = &t->role[role];
            const uint64_t bytes = t->count * width_of(t, role);
            if (case_has(t, role) && strcmp(model.map.files[place->file].name, name) == 0 &&
                at >= place->at && at < place->at + bytes) {
                said_tensor tensor = {.at = place->at, .bytes = bytes};
                (void)snprintf(tensor.name, sizeof tensor.name, "%s", t->name);
                said_check(message, name, &tensor, width_of(t, role), at);
                located++;
            }
        }
    }
}

TEST(damage_in_pieces_that_nobody_reads_whole)
{
    make_home(30, 700000, 3);
    uint32_t i = 0;
    for (uint32_t other = 1; other < model.map.tensor_count; other++) {
        i = model.map.tensors[other].count > model.map.tensors[i].count ? other : i;
    }
    const zi_checkpoint_tensor *t = &model.map.tensors[i];
    const uint64_t damaged_at = t->role[ZERO_ROLE_PARAM].at + t->count;
    flip("param.safetensors", damaged_at);
    zi_source *reader = NULL;
    unsigned char *values = calloc(t->count, 4);
    CHECK(values != NULL);
    CHECK_OK(zi_checkpoint_reader_open(folder, &reader));
    for (uint64_t at = 0; at < t->count; at += 25600) {
        const zi_source_range part = {
            i, ZERO_ROLE_PARAM, at, zi_min_u64(25600, t->count - at), true, false};
        CHECK_OK(zi_source_read(reader, &part, values));
    }
    CHECK(zi_source_count(reader).balance != 0);
    const zi_source_range whole = {i, ZERO_ROLE_PARAM, 0, t->count, false, false};
    CHECK_FAILS(zi_source_check_range(reader, &whole, NULL, NULL), ZERO_ERR_CORRUPT, t->name);
    check_place(zero_last_error()->message, "param.safetensors", damaged_at);
    CHECK_EQ(located, 1);
    zi_source_close(reader);
    free(values);
    remove_home();
}

/* The same granule of two tensors, each for the other's: sums alone would not tell. */
TEST(damage_that_makes_up_for_damage)
{
    zi_source *reader = NULL;
    unsigned char granule[2][1024];
    unsigned char values[4096];
    home = rig_folder(true);
    case_make(&model, 2, 10, 1, 1);
    zi_checkpoint_map_free(&model.map);
    for (uint32_t i = 0; i < 2; i++) {
        case_roles(&model.map.tensors[i], 0);
        model.map.tensors[i].dims = 1;
        model.map.tensors[i].shape[0] = model.map.tensors[i].count = 512;
    }
    case_cut(&model.map, 0, 2, 1);
    CHECK_OK(zi_checkpoint_map_make(&model.map));
    case_write(&model, home, "a", 7);
    (void)snprintf(folder, sizeof folder, "%s/a", home);
    const int file = case_open(folder, "param.safetensors");
    for (uint32_t i = 0; i < 2; i++) {
        const off_t at = (off_t)model.map.tensors[i].role[ZERO_ROLE_PARAM].at;
        CHECK(pread(file, granule[i], 1024, at) == 1024);
    }
    for (uint32_t i = 0; i < 2; i++) {
        case_put(file, granule[1 - i], 1024, model.map.tensors[i].role[ZERO_ROLE_PARAM].at);
    }
    CHECK(close(file) == 0);
    CHECK_OK(zi_checkpoint_reader_open(folder, &reader));
    for (uint32_t i = 0; i < 4; i++) {
        const zi_source_range half = {i / 2, ZERO_ROLE_PARAM, i % 2 * 256, 256, true, false};
        CHECK_OK(zi_source_read(reader, &half, values));
    }
    CHECK(zi_source_count(reader).balance != 0);
    zi_source_close(reader);
    remove_home();
}

TEST(reads_that_are_too_long)
{
    zi_source *reader = NULL;
    home = rig_folder(true);
    case_make(&model, 1, 10, 1, 1);
    zi_checkpoint_map_free(&model.map);
    case_roles(&model.map.tensors[0], 0);
    model.map.tensors[0].dims = 1;
    model.map.tensors[0].shape[0] = model.map.tensors[0].count = (1 << 21) + 1;
    CHECK_OK(zi_checkpoint_map_make(&model.map));
    case_write(&model, home, "a", 7);
    CHECK_OK(zi_checkpoint_reader_open(test_text("%s/a", home), &reader));
    CHECK_FAILS(
        zi_source_read(
            reader, &(zi_source_range){0, ZERO_ROLE_PARAM, 0, (1 << 21) + 1, false, false}, &model),
        ZERO_ERR_INVALID_ARGUMENT, "8 MiB");
    read_range(reader, &(zi_source_range){0, ZERO_ROLE_PARAM, 1, 1 << 21, false, false});
    zi_source_close(reader);
    remove_home();
}

/* ---- damage ---- */

static uint64_t progressed;

static void progress(void *user, uint64_t bytes)
{
    CHECK(user == &progressed);
    progressed += bytes;
}

/* All of a checkpoint, as `zero ckpt verify` does. */
static zero_status verify(void)
{
    zi_source *reader = NULL;
    zero_status status = zi_checkpoint_reader_open(folder, &reader);
    if (status != ZERO_OK) {
        return status;
    }
    progressed = 0;
    status = zi_source_check_files(reader);
    const zi_checkpoint_map *map = reader->map;
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            const zi_source_range whole = {i, role, 0, map->tensors[i].count, false, false};
            if (case_has(&map->tensors[i], role) && status == ZERO_OK) {
                status = zi_source_check_range(reader, &whole, progress, &progressed);
            }
        }
    }
    zi_source_close(reader);
    return status;
}

static void check_damage(const char *name, uint64_t at)
{
    const zero_status status = verify();
    if ((status != ZERO_ERR_CORRUPT && status != ZERO_ERR_INVALID_ARGUMENT) ||
        strstr(zero_last_error()->message, name) == NULL) {
        TEST_FAIL("%s, byte %" PRIu64 ": %s %s", name, at, zero_status_name(status),
                  status == ZERO_OK ? "" : zero_last_error()->message);
    }
    check_place(zero_last_error()->message, name, at);
}

/* Each byte of a file is flipped in one bit, its length changed, and the file gone. */
static void damage_file(const char *name)
{
    const int file = case_open(folder, name);
    struct stat status;
    CHECK(fstat(file, &status) == 0);
    const uint64_t bytes = (uint64_t)status.st_size;
    for (uint64_t at = 0; at < bytes; at += UNDER_SANITIZER ? 37 : 1) {
        flip(name, at);
        check_damage(name, at);
        flip(name, at);
    }
    CHECK_OK(verify());
    CHECK_EQ(progressed, needed_bytes());
    CHECK(ftruncate(file, status.st_size + 1) == 0);
    check_damage(name, bytes);
    CHECK(ftruncate(file, status.st_size - 1) == 0);
    check_damage(name, bytes);
    CHECK(close(file) == 0);
    const char *path = test_text("%s/%s", folder, name);
    const char *away = test_text("%s/away", folder);
    CHECK(rename(path, away) == 0);
    check_damage(name, 0);
    CHECK(symlink("away", path) == 0);
    check_damage(name, 0);
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    check_damage(name, 0);
    CHECK(unlink(path) == 0 && rename(away, path) == 0);
}

TEST(every_damage_is_found_and_named)
{
    make_home(6, 120, 2);
    for (uint32_t i = 0; i < model.map.file_count; i++) {
        damage_file(model.map.files[i].name);
        case_write(&model, home, "a", 7);
    }
    CHECK(located != 0);
    damage_file(ZI_SUMS_NAME);
    case_write(&model, home, "a", 7);
    damage_file(ZI_MANIFEST_NAME);
    remove_home();
}

TEST(any_allocation_may_fail)
{
    zero_status status = ZERO_ERR_OUT_OF_MEMORY;
    make_home(12, 2000, 2);
    for (uint64_t nth = 1; status != ZERO_OK; nth++) {
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
        status = verify();
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        CHECK(status == ZERO_OK || status == ZERO_ERR_OUT_OF_MEMORY);
    }
    CHECK_OK(verify());
    status = ZERO_ERR_OUT_OF_MEMORY;
    for (uint64_t nth = 1; status != ZERO_OK; nth++) {
        zi_source *reader = NULL;
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
        status = zi_checkpoint_reader_open(test_text("%s/param.safetensors", folder), &reader);
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        CHECK(status == ZERO_OK || status == ZERO_ERR_OUT_OF_MEMORY);
        zi_source_close(reader);
    }
    remove_home();
}

/* ---- weights of other programs ---- */

static void put_file(const char *name, const void *text, size_t bytes)
{
    const int file = case_open(home, name);
    CHECK(ftruncate(file, 0) == 0);
    case_put(file, text, bytes, 0);
    CHECK(close(file) == 0);
}

/* A header, and as many bytes of tensors, 0, 1, 2 and so on. */
static void put_weights(const char *name, const char *json, size_t data)
{
    unsigned char text[4096] = {0};
    const size_t bytes = strlen(json);
    CHECK(bytes < 256 * 255 && bytes + data + 8 < sizeof text);
    text[0] = (unsigned char)(bytes & 255);
    text[1] = (unsigned char)(bytes >> 8);
    memcpy(text + 8, json, bytes);
    for (size_t i = 0; i < data; i++) {
        text[8 + bytes + i] = (unsigned char)i;
    }
    put_file(name, text, 8 + bytes + data);
}

#define A "{\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}, "
#define B "\"b\": {\"dtype\": \"BF16\", \"shape\": [5], \"data_offsets\": [24, 34]}, "
#define I "\"i\": {\"dtype\": \"I64\", \"shape\": [], \"data_offsets\": [34, 42]}}"

static void check_weights(const char *path, uint32_t tensors)
{
    zi_source *reader = NULL;
    unsigned char values[24];
    CHECK_OK(zi_checkpoint_reader_open(path, &reader));
    CHECK(reader->manifest == NULL);
    CHECK_OK(zi_source_check_files(reader));
    const zi_checkpoint_map *map = reader->map;
    CHECK_EQ(map->tensor_count, tensors);
    const uint32_t a = zi_source_find(reader, "a");
    const uint32_t b = zi_source_find(reader, "b");
    const uint32_t i = zi_source_find(reader, "i");
    CHECK(a < tensors && b < tensors && i < tensors);
    CHECK(map->tensors[a].dims == 2 && map->tensors[a].shape[1] == 3);
    CHECK_EQ(map->tensors[b].role[ZERO_ROLE_PARAM].dtype, ZERO_DTYPE_BF16);
    CHECK(!case_has(&map->tensors[i], ZERO_ROLE_PARAM));
    CHECK(!case_has(&map->tensors[a], ZERO_ROLE_MASTER));
    CHECK_EQ(zi_checkpoint_piece_count(&map->tensors[a]), 0);
    const zi_source_range range = {b, ZERO_ROLE_PARAM, 1, 4, true, false};
    CHECK_OK(zi_source_read(reader, &range, values));
    CHECK(values[0] == (map->file_count == 1 ? 26 : 2) && values[7] == values[0] + 7);
    CHECK_FAILS(zi_source_check_range(reader, &range, NULL, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "no sums");
    zi_source_close(reader);
}

TEST(weights_of_other_programs)
{
    home = rig_folder(true);
    char path[128];
    put_weights("any name.safetensors", A B I, 42);
    (void)snprintf(path, sizeof path, "%s/any name.safetensors", home);
    check_weights(path, 3);
    CHECK(rename(path, test_text("%s/model.safetensors", home)) == 0);
    check_weights(home, 3);
    CHECK(unlink(test_text("%s/model.safetensors", home)) == 0);
    /* In two files, one of them a link, as a hub's cache has them. */
    put_weights("1.safetensors",
                "{\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}}", 24);
    put_weights("blob",
                "{\"b\": {\"dtype\": \"BF16\", \"shape\": [5], \"data_offsets\": [0, 10]},"
                " \"i\": {\"dtype\": \"I64\", \"shape\": [], \"data_offsets\": [10, 18]}}",
                18);
    CHECK(symlink("blob", test_text("%s/2.safetensors", home)) == 0);
    static const char index[] = "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": "
                                "\"2.safetensors\", \"i\": \"2.safetensors\"}}";
    put_file("model.safetensors.index.json", index, sizeof index - 1);
    check_weights(home, 3);
    case_remove(home, true);
    free(home);
}

/* The text of an index or a header, and the refusal. */
typedef struct refusal {
    const char *name;
    const char *text;
    size_t data;
    zero_status status;
    const char *words;
} refusal;

#define INDEX "model.safetensors.index.json"
#define ONE "1.safetensors"

static const refusal refusals[] = {
    {INDEX, "{\"weight_map\": {\"a\": \"../1.safetensors\"}}", 0, ZERO_ERR_INVALID_ARGUMENT,
     "no name of a file"},
    {INDEX, "{\"weight_map\": {\"a\": \"..\"}}", 0, ZERO_ERR_INVALID_ARGUMENT, "no name of a file"},
    {INDEX, "{\"weight_map\": {\"a\": \"/1.safetensors\"}}", 0, ZERO_ERR_INVALID_ARGUMENT,
     "no name of a file"},
    {INDEX, "{\"weight_map\": {\"a\": 1}}", 0, ZERO_ERR_INVALID_ARGUMENT, "no name of a file"},
    {INDEX, "{\"weight_map\": []}", 0, ZERO_ERR_INVALID_ARGUMENT, "weight_map"},
    {INDEX, "{\"weight_map\": {\"a\": \"none\"}}", 0, ZERO_ERR_IO, "none"},
    {INDEX, "{\"weight_map\": {\"a\": \"1.safetensors\", \"a\": \"1.safetensors\"}}", 0,
     ZERO_ERR_INVALID_ARGUMENT, "duplicate"},
    {INDEX, "{\"weight_map\": {\"z\": \"1.safetensors\"}}", 0, ZERO_ERR_INVALID_ARGUMENT,
     "not list"},
    {INDEX, "{\"weight_map\": {\"a\": \"1.safetensors\", \"z\": \"1.safetensors\"}}", 0,
     ZERO_ERR_INVALID_ARGUMENT, "lists 2 tensors"},
    {INDEX, "{", 0, ZERO_ERR_INVALID_ARGUMENT, "line 1"},
    {ONE, A B I, 41, ZERO_ERR_CORRUPT, "speaks of"},
    {ONE, A B I, 43, ZERO_ERR_CORRUPT, "speaks of"},
    {ONE, "{\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 25]}}", 25,
     ZERO_ERR_INVALID_ARGUMENT, "\"a\""},
    {ONE,
     "{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904, 4], \"data_offsets\": [0, 0]}}",
     0, ZERO_ERR_INVALID_ARGUMENT, "\"a\""},
    {ONE,
     "{\"a\": {\"dtype\": \"F32\", \"shape\": [2305843009213693951], \"data_offsets\": [0, "
     "9223372036854775804]}}",
     0, ZERO_ERR_CORRUPT, "speaks of"},
};

TEST(hostile_weights_are_refused)
{
    home = rig_folder(true);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        zi_source *reader = NULL;
        put_weights(ONE, "{\"a\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]}}",
                    4);
        if (strcmp(r->name, INDEX) == 0) {
            put_file(INDEX, r->text, strlen(r->text));
        } else {
            put_weights(r->name, r->text, r->data);
        }
        const char *path = test_text("%s/%s", home, r->name);
        const zero_status status = zi_checkpoint_reader_open(path, &reader);
        if (status != r->status || strstr(zero_last_error()->message, r->words) == NULL) {
            TEST_FAIL("%s: %s (%s)", r->text, zero_status_name(status), zero_last_error()->message);
        }
        CHECK(reader == NULL);
    }
    zi_source *reader = NULL;
    CHECK_FAILS(zi_checkpoint_reader_open("/nowhere", &reader), ZERO_ERR_IO, "/nowhere");
    case_remove(home, false);
    CHECK_FAILS(zi_checkpoint_reader_open(home, &reader), ZERO_ERR_INVALID_ARGUMENT, home);
    case_remove(home, true);
    free(home);
}

/* ---- speed ---- */

static double seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Out of the page cache, as far as the system lets us. */
static void drop(const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    (void)fsync(file);
    (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    CHECK(close(file) == 0);
}

/* Bytes a second of all of a file by direct access, 8 MiB at a time; 0: it is refused. */
static double direct_rate(const char *path, uint64_t bytes)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    void *block = NULL;
    if (file < 0) {
        return 0;
    }
    CHECK(posix_memalign(&block, 4096, 8 << 20) == 0);
    const double began = seconds();
    for (uint64_t at = 0; at < bytes; at += 8 << 20) {
        CHECK(pread(file, block, 8 << 20, (off_t)at) > 0);
    }
    const double took = seconds() - began;
    free(block);
    CHECK(close(file) == 0);
    return (double)bytes / took;
}

static double reader_rate(uint64_t bytes)
{
    enum { COUNT = 1 << 21 };
    zi_source *reader = NULL;
    void *block = calloc(COUNT, 4);
    CHECK(block != NULL);
    const double began = seconds();
    CHECK_OK(zi_checkpoint_reader_open(folder, &reader));
    for (uint64_t at = 0; at < model.map.tensors[0].count; at += COUNT) {
        const uint64_t count = zi_min_u64(COUNT, model.map.tensors[0].count - at);
        CHECK_OK(zi_source_read(
            reader, &(zi_source_range){0, ZERO_ROLE_PARAM, at, count, true, false}, block));
    }
    const double took = seconds() - began;
    CHECK_EQ(zi_source_count(reader).balance, 0);
    zi_source_close(reader);
    free(block);
    return (double)bytes / took;
}

/* Figures only: what else the machine does decides them too. */
TEST(reading_beside_direct_access)
{
    home = rig_folder(false);
    case_make(&model, 1, 10, 1, 1);
    zi_checkpoint_map_free(&model.map);
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        model.map.tensors[0].role[role].dtype =
            role == ZERO_ROLE_PARAM ? ZERO_DTYPE_F32 : ZERO_DTYPE_NONE;
    }
    model.map.tensors[0].dims = 1;
    model.map.tensors[0].count = UNDER_SANITIZER ? 1 << 21 : 1 << 25;
    model.map.tensors[0].shape[0] = model.map.tensors[0].count;
    CHECK_OK(zi_checkpoint_map_make(&model.map));
    case_write(&model, home, "a", 7);
    (void)snprintf(folder, sizeof folder, "%s/a", home);
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, model.map.files[0].name);
    double best[2] = {0};
    for (int turn = 0; turn < 3; turn++) {
        drop(path);
        best[0] = fmax(best[0], direct_rate(path, model.map.files[0].bytes));
        drop(path);
        best[1] = fmax(best[1], reader_rate(model.map.files[0].bytes));
    }
    printf("  direct access %.0f MB/s, reader %.0f MB/s\n", best[0] / 1e6, best[1] / 1e6);
    remove_home();
}
