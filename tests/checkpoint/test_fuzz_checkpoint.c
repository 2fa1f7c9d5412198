/* Damaged manifests, headers and indices: each is either accepted and then holds together, or
 * refused with a message. Most damaged manifests get a right hash, as an adversary would give them.
 * The same seed gives the same files. A reader that hangs is ended by the harness's deadline, and
 * one that leaks is seen by what the process holds. The files lie in a folder in memory.
 *
 * For libFuzzer: scripts/fuzz checkpoint SECONDS. The first byte of an input chooses the reader. */
#include "checkpoint_case.h"
#include "folders.h"
#include "fuzz_damage.h"

#include "checkpoint/checkpoint_reader.h"
#include "core/check.h"

typedef enum fuzz_reader {
    FUZZ_MANIFEST,
    FUZZ_HEADER, /* of weights, with their bytes */
    FUZZ_INDEX,  /* with the files that it names */
    FUZZ_READERS
} fuzz_reader;

static const char *const names[FUZZ_READERS] = {ZI_MANIFEST_NAME, "weights.safetensors",
                                                "model.safetensors.index.json"};
static char *home;

static void put(const char *name, const void *data, size_t bytes)
{
    const int file = case_open(home, name);
    CHECK(ftruncate(file, 0) == 0);
    case_put(file, data, bytes, 0);
    CHECK(close(file) == 0);
}

/* ---- valid files ---- */

/* Models whose cuts are those of 1 to 4 ranks. */
static void make_model(case_model *c, uint64_t turn)
{
    case_make(c, 1 + test_chance(turn, 8), 600, 1 + test_chance(turn + 1, 4), turn % 16);
}

static void valid_manifest(uint64_t turn, fuzz_input *input)
{
    case_model c;
    char *text = NULL;
    size_t bytes = 0;
    make_model(&c, turn);
    if (turn % 3 == 2) {
        case_split(&c, 2 + (uint32_t)(turn % 2));
    }
    if (turn % 4 == 3) {
        case_shrink(&c);
    }
    zi_manifest m = case_manifest(&c, turn % 100);
    CHECK_OK(zi_manifest_write(&m, &text, &bytes));
    fuzz_set(input, text, bytes);
    zi_free(text);
    free(m.header_hash);
    case_free(&c);
}

/* A file of parameters, without what its header is filled up with. */
static void valid_header(uint64_t turn, fuzz_input *input)
{
    case_model c;
    char *header = NULL;
    make_model(&c, turn);
    const zi_checkpoint_file *file = &c.map.files[0];
    CHECK_OK(zi_checkpoint_header(&c.map, 0, &header));
    fuzz_set(input, header, (size_t)file->data_at);
    while (input->data[input->bytes - 1] == ' ') {
        input->bytes--;
    }
    const size_t length = input->bytes - 8;
    for (int i = 0; i < 8; i++) {
        input->data[i] = (unsigned char)(length >> (8 * i));
    }
    memset(input->data + input->bytes, 1, (size_t)(file->bytes - file->data_at));
    input->bytes += (size_t)(file->bytes - file->data_at);
    zi_free(header);
    case_free(&c);
}

#define INDEX_FILES 2

static void valid_index(uint64_t turn, fuzz_input *input)
{
    const unsigned first = (unsigned)(turn % 2);
    const char *text = test_text("{\"metadata\": {}, \"weight_map\": {\"t%u\": "
                                 "\"m-%u.safetensors\", \"t%u\": \"m-%u.safetensors\"}}",
                                 first, first, 1 - first, 1 - first);
    fuzz_set(input, text, strlen(text));
}

static void fuzz_valid(fuzz_reader reader, uint64_t turn, fuzz_input *input)
{
    if (reader == FUZZ_MANIFEST) {
        valid_manifest(turn, input);
    } else if (reader == FUZZ_HEADER) {
        valid_header(turn, input);
    } else {
        valid_index(turn, input);
    }
}

/* ---- what must hold ---- */

static void remove_home(void)
{
    case_remove(home, true);
    free(home);
}

static void make_home(void)
{
    home = rig_folder(true);
    CHECK(atexit(remove_home) == 0);
    for (uint32_t i = 0; i < INDEX_FILES; i++) {
        const char *json =
            test_text("{\"t%u\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", i);
        char text[128] = {(char)strlen(json)};
        (void)snprintf(text + 8, sizeof text - 8, "%sdata", json);
        put(test_text("m-%u.safetensors", i), text, 12 + strlen(json));
    }
}

static bool refused(zero_status status)
{
    const char *said = zero_last_error()->message;
    if (status == ZERO_OK) {
        return false;
    }
    zi_assert(status == ZERO_ERR_INVALID_ARGUMENT || status == ZERO_ERR_CORRUPT ||
              status == ZERO_ERR_IO || status == ZERO_ERR_UNSUPPORTED);
    zi_assert(strlen(said) > 10 && strlen(said) < 256);
    return true;
}

/* Boxes of one name are sound. */
static void check_boxes(const zi_checkpoint_map *map)
{
    zi_box_index index;
    zi_box_conflict conflict;
    CHECK_OK(zi_box_index_make(&index, map, &conflict));
    zi_assert(conflict.fault == ZI_BOX_SOUND);
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_box box = zi_box_of(&map->tensors[i]);
        const uint32_t head = zi_box_index_find(&index, map->tensors[i].name);
        zi_assert_cmp(head, <=, i);
        for (uint32_t t = head; t != UINT32_MAX; t = index.next[t]) {
            const zi_box other = zi_box_of(&map->tensors[t]);
            const zi_box_cut cut = zi_box_meet(&box, &other);
            zi_assert(cut.ranges * cut.range_count == (t == i ? map->tensors[i].count : 0));
        }
    }
    zi_box_index_free(&index);
}

/* Every element has one place in one piece. */
static void check_map(const zi_checkpoint_map *map)
{
    check_boxes(map);
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_checkpoint_tensor *t = &map->tensors[i];
        for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
            const zi_checkpoint_place *place = &t->role[role];
            const uint64_t bytes = zi_saved_bytes(t, role, t->count);
            if (case_has(t, role)) {
                zi_assert_cmp(place->file, <, map->file_count);
                zi_assert_cmp(place->at, >=, map->files[place->file].data_at);
                zi_assert_cmp(bytes, <=, map->files[place->file].bytes - place->at);
                zi_assert_cmp(place->first_piece + zi_checkpoint_piece_count(t), <=,
                              map->piece_count);
            }
        }
        if (t->cut_every != 0 && t->count != 0) {
            const zi_checkpoint_piece last = zi_checkpoint_piece_at(t, t->count - 1);
            zi_assert_cmp(last.index + 1, ==, zi_checkpoint_piece_count(t));
            zi_assert_cmp(last.first + last.count, ==, t->count);
        }
    }
}

static bool read_manifest(void)
{
    zi_manifest read;
    zi_manifest again;
    char *text = NULL;
    size_t bytes = 0;
    const bool accepted = !refused(zi_manifest_read(&read, home));
    if (accepted) {
        check_map(&read.map);
        zi_assert_cmp(read.model_hash, ==, zi_manifest_model_hash(&read.map));
        /* A written copy of it says the same. */
        CHECK_OK(zi_manifest_write(&read, &text, &bytes));
        put(ZI_MANIFEST_NAME, text, bytes);
        CHECK_OK(zi_manifest_read(&again, home));
        zi_assert(memcmp(&read.state, &again.state, sizeof read.state) == 0);
        zi_assert_cmp(read.map.piece_count, ==, again.map.piece_count);
        zi_manifest_free(&again);
        zi_free(text);
    }
    zi_manifest_free(&read);
    return accepted;
}

static bool read_weights(const char *name)
{
    zi_source *reader = NULL;
    unsigned char values[256];
    if (refused(zi_checkpoint_reader_open(test_text("%s/%s", home, name), &reader))) {
        return false;
    }
    const zi_checkpoint_map *map = reader->map;
    check_map(map);
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const uint64_t count = zi_min_u64(map->tensors[i].count, 64);
        const zi_source_range end = {i,     ZERO_ROLE_PARAM, map->tensors[i].count - count,
                                     count, false,           false};
        if (case_has(&map->tensors[i], ZERO_ROLE_PARAM)) {
            CHECK_OK(zi_source_read(reader, &end, values));
        }
    }
    zi_source_close(reader);
    return true;
}

static bool fuzz_read(fuzz_reader reader, const void *data, size_t bytes)
{
    if (home == NULL) {
        make_home();
    }
    put(names[reader], data, bytes);
    const bool accepted = reader == FUZZ_MANIFEST ? read_manifest() : read_weights(names[reader]);
    CHECK(unlink(test_text("%s/%s", home, names[reader])) == 0);
    return accepted;
}

/* ---- damage ---- */

static void fuzz_damage(fuzz_reader reader, uint64_t turn, fuzz_input *input)
{
    static fuzz_input another;
    fuzz_valid(reader, turn + 1, &another);
    for (uint32_t i = 0; i <= test_chance(turn, 3); i++) {
        fuzz_damage_once(turn * 4 + i, input, &another);
    }
    /* A right hash or length, in most: else nothing would be read beyond it. */
    if (test_chance(turn + 7, 8) == 0 || input->bytes <= CASE_TAIL_BYTES) {
        return;
    }
    if (reader == FUZZ_MANIFEST) {
        case_seal((char *)input->data, input->bytes);
    } else if (reader == FUZZ_HEADER) {
        const unsigned char *end = memchr(input->data + 8, 1, input->bytes - 8);
        const size_t length = (end != NULL ? (size_t)(end - input->data) : input->bytes) - 8;
        for (int i = 0; i < 8; i++) {
            input->data[i] = (unsigned char)(length >> (8 * i));
        }
    }
}

#include "fuzz_run.h"

#ifndef FUZZ_LIBFUZZER

TEST_CALL(damaged_manifests, fuzz(FUZZ_MANIFEST, FUZZ_CASES / 100));
TEST_CALL(damaged_headers, fuzz(FUZZ_HEADER, FUZZ_CASES / 1000));
TEST_CALL(damaged_indices, fuzz(FUZZ_INDEX, FUZZ_CASES / 1000));
TEST_CALL(corpus, fuzz_replay("checkpoint", fuzz_one));

#endif
