/* Owns the tests of descriptions: units and layers in one call, strides and boxes, what they are
 * when asked for, and what is refused, after which a model is as it was. */
#include "harness.h"

#include "layout/layout.h"
#include "zero/zero.h"

#define LAYERS 3
#define WIDTH 8

static float weights[LAYERS][3 * WIDTH][WIDTH];
static float norms[LAYERS][2][WIDTH]; /* gain and bias of a layer are neighbours */

static const zero_tensor_desc block[] = {
    {.name = "attn.qkv", .shape = {3 * WIDTH, WIDTH}, .dims = 2, .initial = {.data = weights}},
    {.name = "norm.gain",
     .shape = {WIDTH},
     .dims = 1,
     .flags = ZERO_TENSOR_NO_DECAY,
     .initial = {.data = norms},
     .layer_stride = sizeof norms[0] / sizeof(float)},
    {.name = "norm.bias",
     .shape = {WIDTH},
     .dims = 1,
     .flags = ZERO_TENSOR_NO_DECAY,
     .initial = {.data = norms[0][1], .strides = {1}},
     .layer_stride = sizeof norms[0] / sizeof(float)},
    {.name = "scale", .dtype = ZERO_DTYPE_BF16},
};
#define BLOCK (sizeof block / sizeof block[0])

static zero_model *new_model(void)
{
    zero_model *model = NULL;
    uint32_t tensor = 0;
    CHECK_OK(zero_model_create(&model));
    const zero_tensor_desc embedding = {.name = "wte", .shape = {16, WIDTH}, .dims = 2};
    CHECK_OK(zero_unit_add(
        model, &(zero_unit_desc){.name = "embedding", .tensors = &embedding, .tensor_count = 1},
        NULL, &tensor));
    CHECK_EQ(tensor, 0);
    return model;
}

static zero_tensor_desc desc_of(const zero_model *model, uint32_t tensor)
{
    zero_tensor_desc desc;
    CHECK_OK(zero_model_tensor_desc(model, tensor, &desc));
    return desc;
}

TEST(layers_are_units_with_numbers)
{
    static const char *const names[] = {"attn.qkv", "norm.gain", "norm.bias", "scale"};
    zero_model *model = new_model();
    uint32_t unit = 9;
    uint32_t tensor = 9;
    CHECK_OK(zero_unit_add(
        model,
        &(zero_unit_desc){.name = "h", .layers = LAYERS, .tensors = block, .tensor_count = BLOCK},
        &unit, &tensor));
    CHECK_EQ(unit, 1);
    CHECK_EQ(tensor, 1);
    CHECK_EQ(zero_model_unit_count(model), 1 + LAYERS);
    CHECK_EQ(zero_model_tensor_count(model), 1 + LAYERS * BLOCK);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const void *const places[] = {weights[l], norms[l][0], norms[l][1], NULL};
        for (uint32_t t = 0; t < BLOCK; t++) {
            const zero_tensor_desc desc = desc_of(model, tensor + l * (uint32_t)BLOCK + t);
            CHECK(strcmp(desc.name, test_text("h.%u.%s", l, names[t])) == 0);
            CHECK(desc.initial.data == places[t]);
            CHECK_EQ(desc.flags, block[t].flags);
            CHECK_EQ(model->tensors[tensor + l * BLOCK + t].unit, 1 + l);
        }
    }
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "alone"}, &unit, &tensor));
    CHECK_EQ(unit, 1 + LAYERS);
    CHECK_EQ(tensor, 1 + LAYERS * BLOCK);
    CHECK_EQ(zero_model_unit_count(model), 2 + LAYERS);
    zero_model_destroy(model);
}

/* Layers of another element type step by elements of the array, not of the tensor. */
TEST(a_layer_stride_counts_the_arrays_elements)
{
    zero_model *model = new_model();
    const zero_tensor_desc desc = {.name = "w",
                                   .shape = {WIDTH},
                                   .dims = 1,
                                   .dtype = ZERO_DTYPE_BF16,
                                   .initial = {.data = norms, .dtype = ZERO_DTYPE_F32}};
    CHECK_OK(zero_unit_add(
        model, &(zero_unit_desc){.name = "h", .layers = 2, .tensors = &desc, .tensor_count = 1},
        NULL, NULL));
    CHECK(desc_of(model, 2).initial.data == norms[0][1]);
    CHECK_EQ(desc_of(model, 2).dtype, ZERO_DTYPE_BF16);
    zero_model_destroy(model);
}

TEST(defaults_are_told)
{
    zero_model *model = new_model();
    const zero_tensor_desc desc = desc_of(model, 0);
    CHECK_EQ(desc.dtype, ZERO_DTYPE_F32);
    CHECK_EQ(desc.initial.dtype, ZERO_DTYPE_F32);
    CHECK_EQ(desc.initial.strides[0], WIDTH);
    CHECK_EQ(desc.initial.strides[1], 1);
    CHECK_EQ(desc.global_shape[0], 16);
    CHECK_EQ(desc.global_shape[1], WIDTH);
    CHECK_EQ(desc.box_first[0], 0);
    CHECK_EQ(model->extra_count, 0); /* defaults take no memory */
    zero_tensor_desc out;
    CHECK_FAILS(zero_model_tensor_desc(model, 1, &out), ZERO_ERR_INVALID_ARGUMENT,
                "tensor 1 is not");
    zero_model_destroy(model);
}

TEST(boxes_are_kept)
{
    zero_model *model = new_model();
    zi_layout *layout = NULL;
    const zero_tensor_desc descs[] = {{.name = "columns",
                                       .shape = {WIDTH, 4},
                                       .dims = 2,
                                       .initial = {.data = weights, .strides = {16, 1}},
                                       .global_shape = {WIDTH, 16},
                                       .box_first = {0, 12}},
                                      {.name = "norm", .shape = {WIDTH}, .dims = 1, .replica = 3},
                                      {.name = "whole",
                                       .shape = {WIDTH},
                                       .dims = 1,
                                       .initial = {.data = norms, .strides = {1}},
                                       .global_shape = {WIDTH}}};
    CHECK_OK(zero_unit_add(
        model, &(zero_unit_desc){.name = "u", .tensors = descs, .tensor_count = 3}, NULL, NULL));
    CHECK_EQ(model->extra_count, 1);
    CHECK_OK(zi_layout_create(model, NULL, 2, true, NULL, &layout));
    zero_tensor_desc copy;
    zi_tensor_describe(&layout->tensor_infos[1], layout->tensor_extras, &copy);
    const zero_tensor_desc desc = desc_of(model, 1);
    CHECK_BYTES(copy.box_first, desc.box_first, sizeof desc.box_first);
    CHECK_BYTES(copy.initial.strides, desc.initial.strides, sizeof desc.initial.strides);
    CHECK_EQ(copy.box_first[1], 12);
    CHECK_EQ(copy.global_shape[1], 16);
    CHECK_EQ(copy.initial.strides[0], 16);
    CHECK_EQ(desc_of(model, 2).replica, 3);
    CHECK_EQ(layout->tensor_infos[2].replica, 3);
    zi_layout_destroy(layout);
    zero_model_destroy(model);
}

/* Ranks compare the box and who counts, however they are said, but not where values are. */
TEST(a_plans_hash_has_the_box)
{
    const zero_tensor_desc plain = {.name = "w", .shape = {4, 4}, .dims = 2};
    zero_tensor_desc descs[7];
    uint64_t hashes[7];
    for (int i = 0; i < 7; i++) {
        descs[i] = plain;
    }
    descs[1].global_shape[0] = descs[1].global_shape[1] = 4;
    descs[2].initial = (zero_array){.data = weights, .strides = {1, 4}};
    descs[3].global_shape[0] = 8, descs[3].global_shape[1] = 4;
    descs[4] = descs[3];
    descs[4].box_first[0] = 4;
    descs[5].replica = 1;
    descs[6].replica = 2;
    for (int i = 0; i < 7; i++) {
        zero_model *model = NULL;
        zero_plan *plan = NULL;
        CHECK_OK(zero_model_create(&model));
        CHECK_OK(zero_unit_add(
            model, &(zero_unit_desc){.name = "u", .tensors = &descs[i], .tensor_count = 1}, NULL,
            NULL));
        CHECK_OK(zero_plan_create(model, NULL, 2, &plan));
        hashes[i] = zero_plan_hash(plan);
        zero_plan_destroy(plan);
        zero_model_destroy(model);
        for (int j = 0; j < i; j++) {
            CHECK_EQ(hashes[i] == hashes[j], i < 3);
        }
    }
}

/* ---- what is refused ---- */

typedef struct refusal {
    zero_tensor_desc desc;
    const char *text;
} refusal;

#define TWO .name = "w", .dims = 2, .shape = {4, 6}

static const refusal refusals[] = {
    {{.name = "w", .shape = {10, 20}}, "dims is 0, but shape[1] is 20; set dims to 2"},
    {{.name = "w", .dims = 1, .shape = {4, 6}}, "dims is 1, but shape[1] is 6; set dims to 2"},
    {{TWO, .initial = {.strides = {5, 1}}}, "strides[0] is 5"},
    {{TWO, .initial = {.strides = {1, 3}}}, "strides[1] is 3"},
    {{TWO, .initial = {.strides = {6, 0}}}, "strides[1] is 0"},
    {{TWO, .initial = {.strides = {6, 1, 1}}}, "a stride beyond its 2 dims"},
    {{TWO, .initial = {.strides = {UINT64_MAX / 2, 1}}}, "longer than 2^56"},
    {{TWO, .initial = {.dtype = ZERO_DTYPE_NONE}}, "dtype of its array 4"},
    {{TWO, .initial = {.dtype = ZERO_DTYPE_INT8_BLOCK}}, "dtype of its array 11 (int8)"},
    {{TWO, .dtype = ZERO_DTYPE_MXFP8}, "dtype 10 (mxfp8) is not F32, BF16 or F16"},
    {{TWO, .dtype = ZERO_DTYPE_REMAINDER8}, "dtype 6 (remainder8)"},
    {{TWO, .initial = {.reserved = 1}}, "reserved"},
    {{TWO, .reserved = {[14] = 1}}, "reserved is not 0"},
    {{TWO, .global_shape = {4}}, "shape[1] 6 are not inside global_shape[1] 0"},
    {{TWO, .global_shape = {8, 6}, .box_first = {5, 0}}, "box_first[0] 5 and shape[0] 4"},
    {{TWO, .global_shape = {8, 6}, .box_first = {UINT64_MAX, 0}}, "box_first[0] 18446744073709"},
    {{TWO, .box_first = {1}}, "box_first[0] 1 and shape[0] 4 are not inside global_shape[0] 4"},
    {{TWO, .global_shape = {4, 6, 1}}, "beyond its 2 dims"},
    {{TWO, .global_shape = {UINT64_C(1) << 40, UINT64_C(1) << 40}}, "of global_shape passes 2^46"},
};
#define REFUSALS (sizeof refusals / sizeof refusals[0])

/* The hash of a model, which must not change. */
static uint64_t model_hash(const zero_model *model)
{
    zero_plan *plan = NULL;
    CHECK_OK(zero_plan_create(model, NULL, 4, &plan));
    const uint64_t hash = zero_plan_hash(plan);
    zero_plan_destroy(plan);
    return hash;
}

TEST(refusals_name_the_field)
{
    zero_model *model = new_model();
    const uint64_t before = model_hash(model);
    uint32_t tensor = 0;
    for (size_t i = 0; i < REFUSALS; i++) {
        const zero_tensor_desc both[] = {{.name = "good"}, refusals[i].desc};
        CHECK_FAILS(zero_tensor_add(model, 0, &refusals[i].desc, &tensor),
                    ZERO_ERR_INVALID_ARGUMENT, refusals[i].text);
        CHECK_FAILS(
            zero_unit_add(model, &(zero_unit_desc){.name = "u", .tensors = both, .tensor_count = 2},
                          NULL, NULL),
            ZERO_ERR_INVALID_ARGUMENT, refusals[i].text);
        CHECK_FAILS(zero_unit_add(model,
                                  &(zero_unit_desc){
                                      .name = "h", .layers = 2, .tensors = both, .tensor_count = 2},
                                  NULL, NULL),
                    ZERO_ERR_INVALID_ARGUMENT, refusals[i].text);
        CHECK_SAID("tensor \"h.0.w\"");
        CHECK_EQ(model_hash(model), before);
    }
    zero_model_destroy(model);
}

/* Refused where they are added, not hours later where they are saved. */
TEST(names_that_no_checkpoint_can_have)
{
    static const struct {
        const char *name;
        const char *text;
    } rows[] = {{"w\xff", "name \"w\" goes on with byte 0xff, which is not UTF-8"},
                {"a\xc0\x80", "name \"a\" goes on with byte 0xc0"},
                {"\xed\xa0\x80", "byte 0xed, which is not UTF-8"},
                {"\xe2\x82", "byte 0xe2, which is not UTF-8"},
                {"a\nb", "name \"a\" goes on with byte 0x0a, which is a control character"},
                {"\x1b[1m", "byte 0x1b, which is a control character"},
                {"x\x7f", "byte 0x7f, which is a control character"},
                {"__metadata__", "is safetensors' own"}};
    zero_model *model = new_model();
    const uint64_t before = model_hash(model);
    uint32_t index = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const zero_tensor_desc desc = {.name = rows[i].name};
        CHECK_FAILS(zero_tensor_add(model, 0, &desc, &index), ZERO_ERR_INVALID_ARGUMENT,
                    rows[i].text);
        CHECK_SAID("tensor name");
        CHECK_FAILS(
            zero_unit_add(
                model,
                &(zero_unit_desc){.name = "h", .layers = 1, .tensors = &desc, .tensor_count = 1},
                NULL, NULL),
            ZERO_ERR_INVALID_ARGUMENT, rows[i].text);
        CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = rows[i].name}, &index, NULL),
                    ZERO_ERR_INVALID_ARGUMENT, rows[i].text);
        CHECK_SAID("unit name");
    }
    CHECK_EQ(model_hash(model), before);
    CHECK_OK(
        zero_tensor_add(model, 0, &(zero_tensor_desc){.name = "w\xc3\xa9 \"q\" \\ x"}, &index));
    zero_model_destroy(model);
}

/* A failure in the middle of the last layer leaves nothing behind, not a name either. */
TEST(what_fails_adds_nothing)
{
    char name[128];
    memset(name, 'n', sizeof name);
    name[125] = 0; /* fits with ".9", not with ".10" */
    zero_model *model = new_model();
    const uint64_t before = model_hash(model);
    uint32_t tensor = 0;
    const zero_tensor_desc twice[] = {{.name = "a"}, {.name = "b"}, {.name = "a"}};
    CHECK_FAILS(zero_unit_add(model,
                              &(zero_unit_desc){.name = "u", .tensors = twice, .tensor_count = 3},
                              NULL, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "tensor name \"a\" is taken");
    CHECK_OK(zero_tensor_add(model, 0, &(zero_tensor_desc){.name = "h.2.b"}, &tensor));
    CHECK_FAILS(
        zero_unit_add(
            model, &(zero_unit_desc){.name = "h", .layers = 4, .tensors = twice, .tensor_count = 2},
            NULL, NULL),
        ZERO_ERR_INVALID_ARGUMENT, "tensor name \"h.2.b\" is taken");
    CHECK_EQ(zero_model_tensor_count(model), 2);
    CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = name, .layers = 11}, NULL, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "layer 10 of");
    CHECK_FAILS(zero_unit_add(model,
                              &(zero_unit_desc){.name = "h",
                                                .layers = 2,
                                                .tensors = &(zero_tensor_desc){.dims = 0},
                                                .tensor_count = 1},
                              NULL, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "tensor name \"(null)\"");
    zero_tensor_desc strided = block[2];
    strided.layer_stride = 0;
    CHECK_FAILS(zero_unit_add(model,
                              &(zero_unit_desc){
                                  .name = "g", .layers = 2, .tensors = &strided, .tensor_count = 1},
                              NULL, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "\"norm.bias\" of the layers \"g\": layer_stride is 0");
    strided.layer_stride = UINT64_C(1) << 41;
    CHECK_FAILS(zero_unit_add(model,
                              &(zero_unit_desc){
                                  .name = "g", .layers = 2, .tensors = &strided, .tensor_count = 1},
                              NULL, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "layer_stride 2199023255552");
    CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = "u", .tensor_count = 1}, NULL, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "tensors is NULL");
    CHECK_EQ(zero_model_unit_count(model), 1);
    CHECK_EQ(zero_model_element_count(model), 16 * WIDTH + 1);
    /* All names are free again, and those that were there are taken still. */
    CHECK_OK(zero_unit_add(
        model, &(zero_unit_desc){.name = "u", .tensors = twice, .tensor_count = 2}, NULL, NULL));
    CHECK_OK(zero_unit_add(
        model, &(zero_unit_desc){.name = "g", .layers = 4, .tensors = twice, .tensor_count = 2},
        NULL, NULL));
    CHECK_FAILS(zero_unit_add(model, &(zero_unit_desc){.name = "embedding"}, &tensor, NULL),
                ZERO_ERR_INVALID_ARGUMENT, "taken");
    CHECK(model_hash(model) != before);
    zero_model_destroy(model);
}

/* ---- what is warned of ---- */

typedef struct warnings {
    int count;
    char last[512];
} warnings;

static void keep_warning(void *user, zero_log_level level, const char *message)
{
    warnings *kept = user;
    CHECK_EQ(level, ZERO_LOG_WARN);
    kept->count++;
    (void)snprintf(kept->last, sizeof kept->last, "%s", message);
}

/* Floats beside a 16-bit tensor whose array's type was forgotten: said once a model, and not where
 * the type was given or there is no doubt. */
TEST(initial_array_without_a_type)
{
    float values[8] = {0};
    zero_tensor_desc desc = {.name = "clear", .dims = 1, .shape = {8}, .initial.data = values};
    warnings kept = {0};
    uint32_t tensor = 0;
    zero_log_set(keep_warning, &kept);
    for (int m = 1; m <= 2; m++) {
        zero_model *model = NULL;
        CHECK_OK(zero_model_create(&model));
        desc.name = "floats";
        desc.dtype = ZERO_DTYPE_DEFAULT;
        CHECK_OK(zero_unit_add(model,
                               &(zero_unit_desc){.name = "u", .tensors = &desc, .tensor_count = 1},
                               NULL, NULL));
        desc.name = "said";
        desc.dtype = ZERO_DTYPE_BF16;
        desc.initial.dtype = ZERO_DTYPE_F32;
        CHECK_OK(zero_tensor_add(model, 0, &desc, &tensor));
        CHECK_EQ(kept.count, m - 1);
        desc.name = "forgotten";
        desc.initial.dtype = ZERO_DTYPE_DEFAULT;
        CHECK_OK(zero_tensor_add(model, 0, &desc, &tensor));
        CHECK_EQ(kept.count, m);
        CHECK(strstr(kept.last, "\"forgotten\"") != NULL);
        CHECK(strstr(kept.last, "initial.dtype") != NULL);
        desc.name = "again";
        CHECK_OK(zero_tensor_add(model, 0, &desc, &tensor));
        CHECK_EQ(kept.count, m);
        zero_model_destroy(model);
    }
    zero_log_set(NULL, NULL);
}
