/* Owns the tests of boxes: what two boxes have in common is what their elements say one by one, any
 * box is read from any others, as it lies or as fp32, everything that is wanted once is counted
 * once, and damage is found by whoever wants the damaged element. */
#include "checkpoint_case.h"
#include "folders.h"
#include "sanitizer.h"

#include "checkpoint/checkpoint_joined.h"
#include "checkpoint/checkpoint_reader.h"
#include "kernels/math/code.h"
#include "kernels/math/remainder.h"

static char *home;
static case_model model; /* in parts */
static char folder[256];

/* A model of random tensors, cut for `world` ranks of each of `parts` parts; with small states. */
static void make_home(uint32_t tensors, uint64_t elements_max, uint32_t world, uint32_t parts,
                      bool small)
{
    home = rig_folder(true);
    case_make(&model, tensors, elements_max, world, test_seed);
    case_split(&model, parts);
    if (small) {
        case_shrink(&model);
    }
    case_write(&model, home, "a", 7);
    (void)snprintf(folder, sizeof folder, "%s/a", home);
}

static void remove_home(void)
{
    case_free(&model);
    case_remove(home, true);
    free(home);
}

/* ---- arithmetic ---- */

static zi_box random_box(uint64_t turn, uint32_t dims, const uint64_t *global)
{
    zi_box box = {.dims = dims};
    for (uint32_t d = 0; d < dims; d++) {
        box.global[d] = global[d];
        box.first[d] =
            test_chance(turn + 2 * d, 3) == 0 ? 0 : test_chance(turn + d, (uint32_t)global[d]);
        box.shape[d] = global[d] - box.first[d];
        if (test_chance(turn + 3 * d, 2) == 0) {
            box.shape[d] = test_chance(turn + 5 * d, (uint32_t)box.shape[d] + 1);
        }
    }
    return box;
}

static uint64_t count_of(const zi_box *box)
{
    uint64_t count = 1;
    for (uint32_t d = 0; d < box->dims; d++) {
        count *= box->shape[d];
    }
    return count;
}

/* The index in another box of an element; false: it is not there. */
static bool find_in(const zi_box *from, uint64_t element, const zi_box *to, uint64_t *index)
{
    uint64_t stride = 1;
    *index = 0;
    for (uint32_t d = from->dims; d-- > 0; element /= from->shape[d]) {
        const uint64_t at = from->first[d] + element % from->shape[d];
        if (at < to->first[d] || at >= to->first[d] + to->shape[d]) {
            return false;
        }
        *index += (at - to->first[d]) * stride;
        stride *= to->shape[d];
    }
    return true;
}

static void check_cut(const zi_box *wanted, const zi_box *saved)
{
    const zi_box_cut cut = zi_box_meet(wanted, saved);
    uint64_t range = 0;
    uint64_t at = 0; /* in the range */
    for (uint64_t element = 0; element < count_of(wanted); element++) {
        uint64_t index = 0;
        CHECK_EQ(zi_box_first_range(&cut, element), range);
        if (find_in(wanted, element, saved, &index)) {
            CHECK(range < cut.ranges);
            const zi_box_range found = zi_box_range_at(&cut, range);
            CHECK_EQ(found.wanted + at, element);
            CHECK_EQ(found.saved + at, index);
            at++;
            range += at == found.count;
            at = at == found.count ? 0 : at;
        }
    }
    CHECK_EQ(range, cut.ranges);
    CHECK_EQ(at, 0);
}

TEST(what_boxes_have_in_common)
{
    for (uint64_t turn = 0; turn < 4000; turn++) {
        uint64_t global[ZERO_TENSOR_DIMS_MAX];
        const uint32_t dims = test_chance(turn, 5);
        for (uint32_t d = 0; d < dims; d++) {
            global[d] = 1 + test_chance(turn * 31 + d, 6);
        }
        const zi_box wanted = random_box(turn * 97, dims, global);
        const zi_box saved = random_box(turn * 89 + 11, dims, global);
        check_cut(&wanted, &saved);
    }
}

TEST(boxes_as_text)
{
    const zi_box box = {2, {8, 12}, {0, 3}, {8, 3}};
    const uint64_t shape[] = {5};
    const zi_box line = zi_box_whole(1, shape);
    const zi_box scalar = {0};
    char text[64];
    CHECK(strcmp(zi_box_text(&box, text, sizeof text), "[8, 3] at [0, 3] of [8, 12]") == 0);
    CHECK(strcmp(zi_box_text(&line, text, sizeof text), "[5]") == 0);
    CHECK(strcmp(zi_box_text(&scalar, text, sizeof text), "[]") == 0);
    CHECK(strcmp(zi_box_text(&box, text, 12), "[8, 3] at [") == 0);
}

/* ---- reading ---- */

/* Of all reads. */
static bool widened;

static zi_joined_from from(const zi_checkpoint_tensor *saved, const void *user)
{
    (void)saved;
    return (zi_joined_from){*(const zero_role *)user, widened};
}

/* The value of a saved box's element in one role, as its formula says. */
static float saved_value(const zi_checkpoint_tensor *t, zero_role role, uint64_t element)
{
    const zero_dtype dtype = t->role[role].dtype;
    uint32_t held = 0;
    uint32_t with = 0;
    float value = 0;
    case_values(t, role, model.seed, element, 1, &held);
    if (zi_dtype_is_remainder(dtype)) {
        case_values(t, ZERO_ROLE_PARAM, model.seed, element, 1, &with);
        return dtype == ZERO_DTYPE_REMAINDER16 ? zi_join16((uint16_t)with, (uint16_t)held)
                                               : zi_join8((uint16_t)with, (uint8_t)held);
    }
    if (zi_dtype_is_code(dtype)) {
        case_values(t, zi_role_scales(role), model.seed,
                    element / ZERO_CODE_BLOCK * ZERO_CODE_BLOCK, 1, &with);
        return zi_code_value(dtype, (uint8_t)held, zi_code_step(dtype, (uint16_t)with));
    }
    memcpy(&value, &held, sizeof value);
    return dtype == ZERO_DTYPE_F32    ? value
           : dtype == ZERO_DTYPE_BF16 ? zi_f32_from_bf16((uint16_t)held)
                                      : zi_f32_from_f16((uint16_t)held);
}

static bool find_in(const zi_box *from, uint64_t element, const zi_box *to, uint64_t *index);

/* Values that were read as fp32 are those of the saved boxes. */
static void check_widened(const zi_joined *joined, uint64_t first, uint64_t count,
                          const float *values)
{
    const zero_role role = *(const zero_role *)joined->user;
    for (uint64_t i = 0; i < count; i++) {
        for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
            const zi_checkpoint_tensor *saved = &joined->source->map->tensors[t];
            const zi_box box = zi_box_of(saved);
            uint64_t index = 0;
            if (find_in(&joined->wanted, first + i, &box, &index)) {
                const float wanted = saved_value(saved, role, index);
                CHECK_BYTES(&values[i], &wanted, sizeof wanted);
            }
        }
    }
}

/* True if the wanted box is one that was saved. */
static bool is_saved(const zi_joined *joined)
{
    bool found = false;
    for (uint32_t t = joined->head; t != UINT32_MAX; t = zi_source_next(joined->source, t)) {
        const zi_box box = zi_box_of(&joined->source->map->tensors[t]);
        found = found || zi_box_same(&box, &joined->wanted);
    }
    return found;
}

static unsigned char staging[ZI_JOINED_STAGING_BYTES];

/* How ranks of another mesh cut the tensors, and what they saw. */
typedef struct reading {
    uint32_t parts;
    uint32_t world;
    uint64_t most;      /* elements of a read */
    uint32_t dimension; /* that is cut, or else the next that is long enough */
    bool blind;         /* values are not compared */
    uint64_t balance;   /* of all ranks; so are the next */
    uint64_t coverage;
    uint64_t read_bytes;
    uint64_t needed_bytes;
} reading;

/* Read elements [first, end) of a wanted box, and compare them with what was written. */
static zero_status read_wanted(const reading *r, const zi_joined *joined, uint64_t first,
                               uint64_t end)
{
    zi_checkpoint_tensor of = joined->source->map->tensors[joined->head];
    const zero_role role = *(const zero_role *)joined->user;
    of.is_box = true;
    memcpy(of.global_shape, joined->wanted.global, sizeof of.global_shape);
    memcpy(of.box_first, joined->wanted.first, sizeof of.box_first);
    memcpy(of.shape, joined->wanted.shape, sizeof of.shape);
    const uint64_t most = zi_role_is_scales(role) ? zi_align_up(r->most, ZI_GRANULE) : r->most;
    unsigned char *read = calloc(most + 1, 4);
    unsigned char *written = calloc(most + 1, 4);
    zero_status status = ZERO_OK;
    CHECK(read != NULL && written != NULL);
    while (first < end && status == ZERO_OK) {
        zi_codec codec = {0};
        const uint64_t count =
            zi_joined_alike(joined, first, zi_min_u64(end, first + most), &codec);
        CHECK_EQ(codec.dtype, widened ? ZERO_DTYPE_F32 : of.role[role].dtype);
        status = zi_joined_read(joined, first, count, true, read);
        if (status == ZERO_OK && !r->blind && widened) {
            check_widened(joined, first, count, (const float *)read);
        } else if (status == ZERO_OK && !r->blind) {
            case_values(&of, role, model.seed, first, count, written);
            CHECK_BYTES(read, written, zi_codec_bytes(codec, count));
        }
        first += count;
    }
    free(read);
    free(written);
    return status;
}

/* The box that a part has of a tensor, or all of it. */
static zi_box part_box(const zi_box *saved, const reading *r, uint32_t part)
{
    zi_box box = zi_box_whole(saved->dims, saved->global);
    for (uint32_t i = 0; i < box.dims; i++) {
        const uint32_t d = (r->dimension + i) % box.dims;
        if (box.global[d] >= r->parts) {
            box.first[d] = box.global[d] * part / r->parts;
            box.shape[d] = box.global[d] * (part + 1) / r->parts - box.first[d];
            break;
        }
    }
    return box;
}

/* A rank's slice of one tensor in one role. Slices begin at granules of the wanted box, as those of
 * an engine do. */
static zero_status read_slice(reading *r, const zi_joined *joined, uint32_t rank)
{
    const zi_checkpoint_tensor *t = &joined->source->map->tensors[joined->head];
    const zero_role role = *(const zero_role *)joined->user;
    const uint64_t count = count_of(&joined->wanted);
    const uint64_t slice = zi_align_up(zi_div_up(count, r->world), 256);
    const uint64_t first = zi_min_u64(count, slice * rank);
    const uint64_t end = zi_min_u64(count, first + slice);
    const bool blocks = zi_role_is_scales(role) || zi_dtype_is_code(t->role[role].dtype);
    if (!case_has(t, role) || (widened ? zi_role_is_scales(role) : blocks && !is_saved(joined))) {
        return ZERO_OK;
    }
    CHECK_EQ(zi_joined_covers(joined), count);
    r->needed_bytes += zi_saved_bytes(t, role, end - first);
    return read_wanted(r, joined, first, end);
}

static zero_status read_as(reading *r, uint32_t part, uint32_t rank)
{
    zi_source *reader = NULL;
    zero_status status = ZERO_OK;
    CHECK_OK(zi_checkpoint_reader_open(folder, &reader));
    const zi_checkpoint_map *map = reader->map;
    const uint64_t opened = zi_source_count(reader).read_bytes;
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        const zi_box saved = zi_box_of(&map->tensors[i]);
        /* The first box of a tensor stands for it. */
        const bool is_head = zi_source_find(reader, map->tensors[i].name) == i;
        for (zero_role role = 0; role < ZI_SHARD_ROLES && is_head && status == ZERO_OK; role++) {
            const zi_joined joined = {.source = reader,
                                      .head = i,
                                      .wanted = part_box(&saved, r, part),
                                      .from = from,
                                      .user = &role,
                                      .staging = staging};
            status = read_slice(r, &joined, rank);
        }
    }
    const zi_source_counts counts = zi_source_count(reader);
    r->balance += counts.balance;
    r->coverage += counts.coverage;
    r->read_bytes += counts.read_bytes - opened;
    zi_source_close(reader);
    return status;
}

static zero_status read_all(reading *r)
{
    zero_status status = ZERO_OK;
    for (uint32_t part = 0; part < r->parts; part++) {
        for (uint32_t rank = 0; rank < r->world && status == ZERO_OK; rank++) {
            status = read_as(r, part, rank);
        }
    }
    return status;
}

static void read_any_boxes(bool small)
{
    static const uint32_t saved[] = {2, 3, 5};
    for (size_t from = 0; from < sizeof saved / sizeof saved[0]; from++) {
        make_home(24, 9000, 1 + (uint32_t)from, saved[from], small);
        for (uint32_t turn = 0; turn < 18; turn++) {
            reading r = {.parts = 1 + turn % 6,
                         .world = 1 + turn / 6,
                         .dimension = turn % 3,
                         .most = turn % 2 != 0 ? 1 << 20 : 300 + 100 * turn};
            if (IN_SMALL_SAMPLE(from + turn + turn / 6)) {
                CHECK_OK(read_all(&r));
            }
            CHECK_EQ(r.coverage, 0);
            CHECK_EQ(r.balance, 0);
        }
        remove_home();
    }
}

TEST_CALL(any_mesh_reads_the_boxes_of_any, read_any_boxes(false));
TEST_CALL(any_mesh_reads_remainders_and_codes_of_its_own_boxes, read_any_boxes(true));

TEST(any_mesh_reads_the_boxes_of_any_as_fp32)
{
    widened = true;
    read_any_boxes(false);
    read_any_boxes(true);
    widened = false;
}

/* A read of many elements is widened in pieces. */
TEST(long_tensors_are_read_as_fp32)
{
    widened = true;
    make_home(6, 1500000, 3, 2, true);
    for (uint32_t parts = 1; parts <= 3; parts++) {
        reading r = {.parts = parts, .world = 2, .most = 1 << 20};
        CHECK_OK(read_all(&r));
        CHECK_EQ(r.coverage | r.balance, 0);
    }
    remove_home();
    widened = false;
}

/* One matrix of `rows` rows in two parts, which hold half of the rows each; or of the columns. */
static void make_matrix(uint64_t rows, uint64_t columns)
{
    home = rig_folder(true);
    case_make(&model, 1, 1000, 2, test_seed);
    zi_checkpoint_tensor *t = &model.map.tensors[0];
    t->dims = 2;
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->count = rows * columns;
    case_roles(t, 1); /* bf16 with masters */
    case_split(&model, 2);
    case_write(&model, home, "a", 7);
    (void)snprintf(folder, sizeof folder, "%s/a", home);
}

/* How often a byte is read that is needed once. */
static double times_read(uint32_t parts, uint32_t dimension)
{
    reading r = {
        .parts = parts, .world = 2, .dimension = dimension, .most = 1 << 20, .blind = true};
    CHECK_OK(read_all(&r));
    CHECK_EQ(r.coverage | r.balance, 0);
    return (double)r.read_bytes / (double)r.needed_bytes;
}

TEST(few_bytes_are_read_that_are_not_needed)
{
    make_matrix(3000, 1000); /* rows that begin at no granule */
    printf("  boxes of whole rows: %.5f bytes read for one needed\n", times_read(4, 0));
    CHECK(times_read(4, 0) < 1.001);
    CHECK(times_read(1, 0) < 1.001);
    CHECK(times_read(2, 0) < 1.001); /* as they were saved */
    printf("  quarters of columns, 250 elements: %.3f\n", times_read(4, 1));
    CHECK(times_read(4, 1) < 4.5); /* all is read by each of them: less than a page is between */
    remove_home();
    make_matrix(2200, 2048);
    printf("  quarters of columns, 512 elements at granules: %.5f\n", times_read(4, 1));
    remove_home();
    make_matrix(32, 65536);
    printf("  quarters of columns, 16384 elements at granules: %.5f\n", times_read(4, 1));
    CHECK(times_read(4, 1) < 1.001);
    remove_home();
}

/* ---- what is not wanted once ---- */

TEST(what_nobody_wants_is_seen_in_the_coverage)
{
    make_home(12, 9000, 2, 3, false);
    reading r = {.parts = 4, .world = 2, .most = 1 << 20};
    for (uint32_t part = 0; part < 3; part++) {
        CHECK_OK(read_as(&r, part, 0));
        CHECK_OK(read_as(&r, part, 1));
    }
    CHECK(r.coverage != 0);
    remove_home();
}

/* Every wanted element that is damaged is seen, by the balance or at once. */
static bool reads_well(uint32_t parts, uint32_t dimension)
{
    reading r = {
        .parts = parts, .world = 2, .dimension = dimension, .most = 1 << 20, .blind = true};
    const zero_status status = read_all(&r);
    CHECK(status != ZERO_OK || r.coverage == 0);
    return status == ZERO_OK && r.balance == 0;
}

static void see_damage(bool small)
{
    make_home(12, 9000, 2, 3, small);
    for (uint32_t turn = 0; turn < 40; turn++) {
        const uint32_t index = test_chance(turn, model.map.file_count);
        const zi_checkpoint_file *file = &model.map.files[index];
        const uint64_t data = file->bytes - file->data_at;
        unsigned char byte = 0;
        if (data == 0) {
            continue;
        }
        const uint64_t at = file->data_at + test_chance(turn + 5, (uint32_t)data);
        const int opened = case_open(folder, file->name);
        CHECK(pread(opened, &byte, 1, (off_t)at) == 1);
        byte ^= 1;
        case_put(opened, &byte, 1, at);
        CHECK(!reads_well(1 + turn % 5, turn % 3));
        byte ^= 1;
        case_put(opened, &byte, 1, at);
        CHECK(close(opened) == 0);
        CHECK(reads_well(1 + turn % 5, turn % 3));
    }
    remove_home();
}

TEST_CALL(damage_is_seen_by_who_wants_it, see_damage(false));

TEST(damage_is_seen_by_who_wants_it_as_fp32)
{
    widened = true;
    see_damage(true);
    widened = false;
}
