/* Models of random tensors as a checkpoint has them: mixed dtypes, frozen and empty tensors,
 * scalars, and cuts as the slices of a number of ranks make them. And whole checkpoints of them,
 * written as simply as the format allows.
 *
 *     case_model c;
 *     case_make(&c, 20, 5000, 4, seed);          // 20 tensors of up to 5000 elements, 4 ranks
 *     case_split(&c, 3);                         // or: of a model in 3 parts
 *     case_shrink(&c);                           // or: with states in remainders and codes
 *     case_write(&c, "run", "step-00000042", 42);
 *     case_values(&c.map.tensors[3], ZERO_ROLE_PARAM, seed, 0, count, values); */
#ifndef TESTS_CHECKPOINT_CASE_H
#define TESTS_CHECKPOINT_CASE_H

#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "checkpoint/checkpoint_boxes.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"

/* Tensors of one flat. */
#define CASE_UNIT 5
#define CASE_NAME_BYTES 48

typedef struct case_model {
    zi_checkpoint_map map;
    char (*names)[CASE_NAME_BYTES];
    zi_manifest_part *parts; /* NULL: the model is in one */
    double own_beta;         /* product of part 1's group 0; 0: as the others' */
    uint64_t seed;
    uint32_t world;
    bool scale_dynamic;
    bool weights; /* it is saved as weights alone; its roles are the caller's */
} case_model;

static inline uint64_t case_random(uint64_t seed, uint64_t index)
{
    uint64_t x = seed * UINT64_C(0xD1342543DE82EF95) + (index + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* One of seven kinds of shape. */
static inline void case_shape(zi_checkpoint_tensor *t, uint64_t chance, uint64_t elements_max)
{
    const uint64_t some = 1 + chance / 7 % elements_max;
    t->dims = 1;
    t->shape[0] = some;
    switch (chance % 7) {
    case 0: /* a scalar */
        t->dims = 0;
        t->shape[0] = 0;
        break;
    case 1: /* empty */
        t->dims = 2;
        t->shape[0] = 3;
        t->shape[1] = 0;
        break;
    case 2:
        t->dims = 3;
        t->shape[0] = 2;
        t->shape[1] = 1 + some / 8;
        t->shape[2] = 3;
        break;
    default:
        break;
    }
    t->count = 1;
    for (uint32_t i = 0; i < t->dims; i++) {
        t->count *= t->shape[i];
    }
}

/* Three kinds: fp32; bf16 with masters; frozen in f16. */
static inline void case_roles(zi_checkpoint_tensor *t, uint64_t chance)
{
    const unsigned kind = (unsigned)(chance % 3);
    const zero_dtype params[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
    for (zero_role role = 0; role < ZI_SHARD_ROLES; role++) {
        t->role[role].dtype = ZERO_DTYPE_NONE;
    }
    t->role[ZERO_ROLE_PARAM].dtype = params[kind];
    t->flags = kind == 2 ? ZERO_TENSOR_FROZEN : (uint32_t)(chance >> 8 & 1);
    if (kind != 2) {
        t->role[ZERO_ROLE_MASTER].dtype = kind == 1 ? ZERO_DTYPE_F32 : ZERO_DTYPE_NONE;
        t->role[ZERO_ROLE_MOMENT1].dtype = chance >> 9 & 1 ? ZERO_DTYPE_BF16 : ZERO_DTYPE_F32;
        t->role[ZERO_ROLE_MOMENT2].dtype = ZERO_DTYPE_F32;
    }
}

/* Cut the tensors [first, end), which make a flat, as the slices of the ranks cut it. */
static inline void case_cut(zi_checkpoint_map *map, uint32_t first, uint32_t end, uint32_t world)
{
    uint64_t elements = 0;
    for (uint32_t i = first; i < end; i++) {
        elements += zi_align_up(map->tensors[i].count, 256);
    }
    const uint64_t slice = zi_align_up(zi_div_up(elements, world) + (elements == 0), 256);
    uint64_t at = 0;
    for (uint32_t i = first; i < end; i++) {
        map->tensors[i].cut_first = slice - at % slice;
        map->tensors[i].cut_every = slice;
        at += zi_align_up(map->tensors[i].count, 256);
    }
}

/* The same model for every world. */
static inline void case_make(case_model *c, uint32_t tensors, uint64_t elements_max, uint32_t world,
                             uint64_t seed)
{
    *c = (case_model){.seed = seed, .world = world, .map.tensor_count = tensors};
    c->names = calloc(tensors + 1, sizeof *c->names);
    c->map.tensors = calloc(tensors + 1, sizeof *c->map.tensors);
    CHECK(c->names != NULL && c->map.tensors != NULL);
    for (uint32_t i = 0; i < tensors; i++) {
        zi_checkpoint_tensor *t = &c->map.tensors[i];
        (void)snprintf(c->names[i], CASE_NAME_BYTES, "h.%u.größe \"%u\"", i / CASE_UNIT, i);
        t->name = c->names[i];
        t->group = i % 3;
        case_shape(t, case_random(seed, 2 * i), elements_max);
        case_roles(t, case_random(seed, 2 * i + 1) % 768);
    }
    for (uint32_t i = 0; i < tensors; i += CASE_UNIT) {
        case_cut(&c->map, i, i + CASE_UNIT < tensors ? i + CASE_UNIT : tensors, world);
    }
    CHECK_OK(zi_checkpoint_map_make(&c->map));
}

static inline void case_free(case_model *c)
{
    zi_checkpoint_map_free(&c->map);
    free(c->map.tensors);
    free(c->names);
    free(c->parts);
}

/* The box that a part has of a tensor: it is cut over its longest dimension, or whole in one part.
 * false: the part has none of it. */
static inline bool case_box(const zi_checkpoint_tensor *t, uint32_t index, uint32_t part,
                            uint32_t parts, zi_checkpoint_tensor *box)
{
    uint32_t d = 0;
    *box = *t;
    box->part = part;
    for (uint32_t i = 1; i < t->dims; i++) {
        d = t->shape[i] > t->shape[d] ? i : d;
    }
    if (t->dims == 0 || t->count == 0 || t->shape[d] < parts || index % 4 == 3) {
        return index % parts == part;
    }
    const uint64_t first = t->shape[d] * part / parts;
    box->is_box = true;
    memcpy(box->global_shape, t->shape, sizeof t->shape);
    box->box_first[d] = first;
    box->shape[d] = t->shape[d] * (part + 1) / parts - first;
    box->count = t->count / t->shape[d] * box->shape[d];
    return true;
}

/* The same model in several parts. */
static inline void case_split(case_model *c, uint32_t parts)
{
    const zi_checkpoint_map whole = c->map;
    zi_checkpoint_map *map = &c->map;
    *map = (zi_checkpoint_map){.part_count = parts};
    map->tensors = calloc((size_t)whole.tensor_count * parts + 1, sizeof *map->tensors);
    c->parts = calloc(parts, sizeof *c->parts);
    CHECK(map->tensors != NULL && c->parts != NULL);
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t first = map->tensor_count;
        for (uint32_t i = 0; i < whole.tensor_count; i++) {
            map->tensor_count +=
                case_box(&whole.tensors[i], i, part, parts, &map->tensors[map->tensor_count]);
        }
        case_cut(map, first, map->tensor_count, c->world);
    }
    free(whole.tensors);
    zi_checkpoint_map_free(&(zi_checkpoint_map){.files = whole.files});
    CHECK_OK(zi_checkpoint_map_make(map));
}

/* The same model with masters in remainders, of 16 and 8 bits, and moments in codes. */
static inline void case_shrink(case_model *c)
{
    static const zero_dtype codes[] = {ZERO_DTYPE_COMPANDED8, ZERO_DTYPE_U8_ROOT, ZERO_DTYPE_I8};
    for (uint32_t i = 0; i < c->map.tensor_count; i++) {
        zi_checkpoint_tensor *t = &c->map.tensors[i];
        const uint64_t chance = zi_hash_text(c->seed, t->name) >> 8; /* of all boxes alike */
        if (t->role[ZERO_ROLE_PARAM].dtype == ZERO_DTYPE_BF16) {
            t->role[ZERO_ROLE_MASTER].dtype =
                chance % 2 == 0 ? ZERO_DTYPE_REMAINDER16 : ZERO_DTYPE_REMAINDER8;
        }
        if ((t->flags & ZERO_TENSOR_FROZEN) == 0) {
            t->role[ZERO_ROLE_MOMENT1].dtype = codes[chance / 2 % 3];
            t->role[ZERO_ROLE_MOMENT2].dtype =
                chance % 5 == 0 ? ZERO_DTYPE_F32 : codes[chance / 6 % 3];
            t->role[ZERO_ROLE_SCALE1].dtype = ZERO_DTYPE_BF16;
            t->role[ZERO_ROLE_SCALE2].dtype = chance % 5 == 0 ? ZERO_DTYPE_NONE : ZERO_DTYPE_BF16;
        }
    }
    zi_checkpoint_map_free(&c->map);
    CHECK_OK(zi_checkpoint_map_make(&c->map));
}

/* ---- checkpoints ---- */

/* The element of the global tensor that one of a box is. */
static inline uint64_t case_element(const zi_checkpoint_tensor *t, uint64_t element)
{
    const zi_box box = zi_box_of(t);
    uint64_t global = 0;
    uint64_t stride = 1;
    for (uint32_t d = box.dims; d-- > 0; element /= box.shape[d]) {
        global += (box.first[d] + element % box.shape[d]) * stride;
        stride *= box.global[d];
    }
    return global;
}

/* One value of some random bits. */
static inline void case_value(zero_dtype dtype, uint64_t random, unsigned char *value)
{
    const float real = (float)((double)(int64_t)random * 0x1p-66);
    uint32_t bits = 0;
    memcpy(&bits, &real, sizeof bits);
    const uint16_t half = dtype == ZERO_DTYPE_BF16  ? (uint16_t)(bits >> 16)
                          : dtype == ZERO_DTYPE_F16 ? (uint16_t)(random & 0xb7ff) /* finite */
                                                    : (uint16_t)random;
    if (dtype == ZERO_DTYPE_F32) {
        memcpy(value, &bits, 4);
    } else if (zero_dtype_bytes(dtype) == 2) {
        memcpy(value, &half, 2);
    } else {
        *value = (uint8_t)(random & 0xff) == 0x80 ? 0 : (uint8_t)random; /* no code has all bits */
    }
}

/* Elements [first, first + count) of a tensor: a function of the tensor's name, role and seed, and
 * of their index in the global tensor, of scales of that of a block's first one. Finite in every
 * dtype. */
static inline void case_values(const zi_checkpoint_tensor *t, zero_role role, uint64_t seed,
                               uint64_t first, uint64_t count, void *values)
{
    const zi_codec codec = zi_saved_codec(t, role);
    const uint64_t each = codec.by_block ? ZERO_CODE_BLOCK : 1;
    uint64_t key = seed + role;
    for (const char *at = t->name; *at != '\0'; at++) {
        key = key * 31 + (unsigned char)*at;
    }
    for (uint64_t i = 0; i < zi_codec_values(codec, count); i++) {
        const uint64_t random = case_random(key, case_element(t, first + i * each));
        case_value(codec.dtype, codec.by_block ? random >> 1 : random, /* no scale is negative */
                   (unsigned char *)values + i * zero_dtype_bytes(codec.dtype));
    }
}

static inline int case_open(const char *folder, const char *name)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    CHECK_OK(zi_checkpoint_path(path, folder, name));
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK(file >= 0);
    return file;
}

static inline void case_put(int file, const void *data, uint64_t bytes, uint64_t at)
{
    CHECK(pwrite(file, data, (size_t)bytes, (off_t)at) == (ssize_t)bytes);
}

/* A tensor's elements in one role, and its sums. */
static inline void case_write_tensor(const case_model *c, const zi_checkpoint_tensor *t,
                                     zero_role role, int file, int sums)
{
    const zi_codec codec = zi_saved_codec(t, role);
    unsigned char *values = calloc(t->count + 1, zero_dtype_bytes(codec.dtype));
    CHECK(values != NULL);
    case_values(t, role, c->seed, 0, t->count, values);
    case_put(file, values, zi_codec_bytes(codec, t->count), t->role[role].at);
    for (uint64_t at = 0; at < t->count;) {
        const zi_checkpoint_piece piece = zi_checkpoint_piece_at(t, at);
        const uint64_t sum =
            zi_piece_sum(values + zi_codec_bytes(codec, at), at, piece.count, codec);
        case_put(sums, &sum, sizeof sum, 8 * (t->role[role].first_piece + piece.index));
        at += piece.count;
    }
    free(values);
}

/* A file and its header's hash. */
static inline uint64_t case_write_file(const case_model *c, uint32_t index, const char *folder,
                                       int sums)
{
    const zi_checkpoint_file *file = &c->map.files[index];
    const int opened = case_open(folder, file->name);
    char *header = NULL;
    CHECK_OK(zi_checkpoint_header(&c->map, index, &header));
    const uint64_t hash = zi_checkpoint_hash(header, (size_t)file->data_at);
    case_put(opened, header, file->data_at, 0);
    zi_free(header);
    for (uint32_t i = file->first_tensor; i < file->tensor_end; i++) {
        const zi_checkpoint_tensor *t = &c->map.tensors[i];
        if (zero_dtype_bytes(t->role[file->role].dtype) != 0 && t->role[file->role].file == index) {
            case_write_tensor(c, t, file->role, opened, sums);
        }
    }
    CHECK(close(opened) == 0);
    return hash;
}

/* A manifest that has something in every member; its header_hash is the caller's to free. */
static inline zi_manifest case_manifest(const case_model *c, uint64_t step)
{
    zi_manifest m = {.commit = 1, .world = c->world, .seed = UINT64_MAX - c->seed, .map = c->map};
    m.model_hash = zi_manifest_model_hash(&c->map);
    m.state = zero_step_state_init();
    m.state.updates = step - step / 8;
    m.state.skipped = step / 8;
    m.state.loss_scale = 65536.0f;
    m.state.good_steps = (uint32_t)step % 7;
    m.scale_dynamic = c->scale_dynamic;
    for (uint32_t i = 0; i < ZERO_STEP_GROUPS; i++) {
        m.groups[i].kind = ZERO_OPTIMIZER_ADAMW;
    }
    for (uint32_t i = 0; i < 3; i++) {
        m.state.carried[i][0] = pow(0.9, (double)(step + i));
        m.state.carried[i][1] = pow(0.95, (double)(step + i));
        m.groups[i] = (zi_hyper){.kind = ZERO_OPTIMIZER_ADAMW,
                                 .adamw = {1e-4f * (float)(i + 1), 0.9f, 0.95f, 1e-8f, 0.1f}};
    }
    m.group_count = 3;
    m.parts = c->parts;
    for (uint32_t p = 0; c->parts != NULL && p < c->map.part_count; p++) {
        c->parts[p].group_count = m.group_count;
        memcpy(c->parts[p].groups, m.groups, sizeof m.groups);
        memcpy(c->parts[p].carried, m.state.carried, sizeof m.state.carried);
        c->parts[p].carried[63 - p % 60][1] /= 1.0 + p; /* no tensor is of such a group */
        if (p == 1 && c->own_beta != 0) {
            c->parts[p].carried[0][0] = c->own_beta;
        }
    }
    m.data_position = UINT64_MAX - step;
    m.random_seed = step;
    m.random_position = (uint64_t)1 << 53 | 1;
    m.user = "any\0thing";
    m.user_bytes = 10;
    m.header_hash = calloc(c->map.file_count + 1, sizeof *m.header_hash);
    CHECK(m.header_hash != NULL);
    return m;
}

/* Of a manifest's last member. */
#define CASE_TAIL_BYTES (sizeof ",\n\"xxh3\": \"0123456789abcdef\"\n}\n" - 1)

/* Give the text of a manifest that was changed a right hash at its end. */
static inline void case_seal(char *text, size_t bytes)
{
    char tail[CASE_TAIL_BYTES + 1];
    const uint64_t hash = zi_checkpoint_hash(text, bytes - CASE_TAIL_BYTES);
    (void)snprintf(tail, sizeof tail, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)hash);
    memcpy(text + bytes - CASE_TAIL_BYTES, tail, CASE_TAIL_BYTES);
}

/* The files of a checkpoint in NAME.part, and its manifest's text, for zi_free. */
static inline char *case_begin(const case_model *c, const char *run, const char *name,
                               uint64_t step, size_t *bytes)
{
    char part[ZI_CHECKPOINT_PATH_BYTES];
    zi_manifest m = case_manifest(c, step);
    char *text = NULL;
    CHECK_OK(zi_checkpoint_begin(run, name, true, part));
    const int sums = case_open(part, ZI_SUMS_NAME);
    CHECK(ftruncate(sums, (off_t)(8 * c->map.piece_count)) == 0);
    for (uint32_t i = 0; i < c->map.file_count; i++) {
        m.header_hash[i] = case_write_file(c, i, part, sums);
    }
    const zi_regular_file hashed = {.path = ZI_SUMS_NAME, .descriptor = sums};
    CHECK_OK(zi_checkpoint_hash_file(&hashed, 8 * c->map.piece_count, &m.sums_hash));
    CHECK(close(sums) == 0);
    CHECK_OK(zi_checkpoint_commits(run, &m.commit));
    m.commit++;
    m.weights = c->weights;
    CHECK_OK(zi_manifest_write(&m, &text, bytes));
    free(m.header_hash);
    return text;
}

/* A whole checkpoint in a run's directory; one that is there is replaced. */
static inline void case_write(const case_model *c, const char *run, const char *name, uint64_t step)
{
    zi_checkpoint_text written = {.weights = c->weights};
    char *text = case_begin(c, run, name, step, &written.bytes);
    written.manifest = text;
    CHECK_OK(zi_checkpoint_commit(run, name, &written));
    zi_free(text);
}

/* Remove a run's directory, or only what is in it. */
static inline void case_remove(const char *path, bool itself)
{
    (void)!system(test_text("chmod -R u+w '%s' && find '%s' -mindepth 1 -delete", path, path));
    CHECK(!itself || rmdir(path) == 0);
}

static inline bool case_has(const zi_checkpoint_tensor *t, zero_role role)
{
    return zero_dtype_bytes(t->role[role].dtype) != 0;
}

#endif
