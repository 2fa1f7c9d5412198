/* Owns the tests of codecs: how elements lie in bytes, that everything begins at a granule, and
 * that a gather needs a buffer only where ranks send something else than they compute with; and
 * what cannot be sent so. */
#include "harness.h"

#include "layout/layout.h"
#include "zero/zero.h"

#define UNITS 3

/* Tensors of odd sizes and all types, some frozen. */
static zi_layout *make_layout(zero_stage stage, uint32_t world, zero_dtype gather)
{
    static const uint64_t sizes[] = {1, 255, 256, 257, 100003};
    zero_model *model = NULL;
    zi_layout *layout = NULL;
    CHECK_OK(zero_model_create(&model));
    for (uint32_t u = 0; u < UNITS; u++) {
        char name[16];
        uint32_t index = 0;
        (void)snprintf(name, sizeof name, "unit%u", u);
        CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = name}, &index, NULL));
        for (uint32_t t = 0; t < 30; t++) {
            char tensor[24];
            (void)snprintf(tensor, sizeof tensor, "tensor%u.%u", u, t);
            const zero_tensor_desc desc = {.name = tensor,
                                           .dims = 1,
                                           .shape = {sizes[t % 5]},
                                           .dtype = (zero_dtype)(1 + t % 3),
                                           .flags =
                                               t % 2 == 0 ? ZERO_TENSOR_FROZEN : ZERO_TENSOR_PLAIN};
            CHECK_OK(zero_tensor_add(model, u, &desc, &index));
        }
    }
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    tuning.gather_dtype = gather;
    options.tuning = &tuning;
    options.stage = stage;
    CHECK_OK(zi_layout_create(model, &options, world, false, NULL, &layout));
    CHECK_OK(zi_layout_expand(layout));
    zero_model_destroy(model);
    return layout;
}

TEST(bytes_of_elements)
{
    const zi_codec none = {.dtype = ZERO_DTYPE_DEFAULT};
    const zi_codec half = {.dtype = ZERO_DTYPE_BF16};
    const zi_codec full = {.dtype = ZERO_DTYPE_F32};
    CHECK(zi_codec_is_none(none) && !zi_codec_is_none(half));
    CHECK(zi_codec_same(half, half) && !zi_codec_same(half, full));
    CHECK_EQ(zi_codec_bytes(none, 1000), 0);
    CHECK_EQ(zi_codec_bytes(half, 1000), 2000);
    CHECK_EQ(zi_codec_bytes(full, 1000), 4000);
    CHECK_EQ(zi_codec_offset(full, 512), 2048);
    CHECK_EQ(zi_codec_padded_bytes(half, 129), 512);
    CHECK_EQ(zi_codec_padded_bytes(none, 129), 0);
    CHECK_EQ(zi_codec_count_within(full, 1023), 0);
    CHECK_EQ(zi_codec_count_within(full, 4095), 768);
    CHECK_EQ(zi_codec_count_within(half, 4096), 2048);
}

/* With their blocks' scales. */
TEST(bytes_of_blocks)
{
    const zi_codec mxfp8 = {.dtype = ZERO_DTYPE_MXFP8};
    const zi_codec int8 = {.dtype = ZERO_DTYPE_INT8_BLOCK};
    CHECK_EQ(zi_codec_bytes(mxfp8, 256), 256 + 8);
    CHECK_EQ(zi_codec_bytes(mxfp8, 33), 33 + 2);
    CHECK_EQ(zi_codec_bytes(int8, 256), 256 + 4);
    CHECK_EQ(zi_codec_bytes(int8, 129), 129 + 4);
    CHECK_EQ(zi_codec_padded_bytes(mxfp8, 1024), 1280);
}

TEST(everything_begins_at_a_granule)
{
    static const uint32_t worlds[] = {1, 2, 3, 8};
    for (uint32_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        zi_layout *layout = make_layout(ZERO_STAGE_3, worlds[w], ZERO_DTYPE_DEFAULT);
        for (uint32_t t = 0; t < layout->tensor_count; t++) {
            CHECK_EQ(layout->tensors[t].offset % ZI_GRANULE, 0);
        }
        for (uint32_t f = 0; f < layout->flat_count; f++) {
            CHECK_EQ(layout->flats[f].slice_count % ZI_GRANULE, 0);
        }
        for (uint32_t p = 0; p < layout->chunk_count; p++) {
            CHECK_EQ(layout->chunks[p].first % ZI_GRANULE, 0);
            CHECK_EQ(layout->chunks[p].count % ZI_GRANULE, 0);
        }
        zi_layout_destroy(layout);
    }
}

TEST(every_role_has_its_codec)
{
    zi_layout *layout = make_layout(ZERO_STAGE_3, 2, ZERO_DTYPE_DEFAULT);
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const zi_flat *flat = &layout->flats[f];
        CHECK_EQ(flat->kept[ZERO_ROLE_PARAM].dtype, flat->dtype);
        for (int role = ZERO_ROLE_GRAD; role < ZI_SHARD_ROLES; role++) {
            const bool has = flat->trained && !zi_role_is_scales((zero_role)role) &&
                             (role != ZERO_ROLE_MASTER || flat->has_master);
            CHECK_EQ(zi_codec_is_none(flat->kept[role]), !has);
        }
        CHECK_EQ(flat->has_master, flat->trained && flat->dtype != ZERO_DTYPE_F32);
    }
    zi_layout_destroy(layout);
}

/* Ranks send the fp32 flats of a unit in half of their bytes, where they send them at all. */
TEST(gathers_land_in_slots_unless_the_wire_differs)
{
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        zi_layout *plain = make_layout((zero_stage)stage, 4, ZERO_DTYPE_DEFAULT);
        zi_layout *layout = make_layout((zero_stage)stage, 4, ZERO_DTYPE_BF16);
        const bool wired = stage == ZERO_STAGE_3;
        const zi_unit_place *unit = &layout->units[0];
        uint64_t saved = 0;
        for (uint32_t f = unit->flat_first; f < unit->flat_first + unit->flat_count; f++) {
            const zi_flat *flat = &layout->flats[f];
            const bool f32 = flat->dtype == ZERO_DTYPE_F32;
            CHECK_EQ(zi_flat_gathered_in_place(layout, flat), !wired || !f32);
            saved += f32 ? flat->count * 2 : 0;
        }
        CHECK(saved != 0);
        CHECK_EQ(plain->param_wire_bytes, 0);
        CHECK_EQ(layout->param_wire_bytes, wired ? saved : 0); /* all units are alike */
        CHECK_EQ(unit->wire_bytes, plain->units[0].wire_bytes - saved);
        CHECK_EQ(layout->memory.bytes[ZERO_ROLE_PARAM_SLOT],
                 plain->memory.bytes[ZERO_ROLE_PARAM_SLOT] +
                     (wired ? zi_align_up(saved, 4096) : 0));
        zi_layout_destroy(plain);
        zi_layout_destroy(layout);
    }
}

/* Blocks are of all types, and always go through the wire buffer. */
TEST(gathers_in_blocks_are_of_all_types)
{
    zi_layout *layout = make_layout(ZERO_STAGE_3, 4, ZERO_DTYPE_MXFP8);
    const zi_unit_place *unit = &layout->units[0];
    uint64_t bytes = 0;
    for (uint32_t f = unit->flat_first; f < unit->flat_first + unit->flat_count; f++) {
        const zi_flat *flat = &layout->flats[f];
        CHECK(!zi_flat_gathered_in_place(layout, flat));
        bytes += flat->count + flat->count / 32;
    }
    CHECK_EQ(unit->wire_bytes, bytes);
    CHECK(layout->param_wire_bytes >= bytes);
    zi_layout_destroy(layout);
}

/* So do updated parameters of types that have masters, where ranks gather them. */
TEST(updated_parameters_go_in_blocks)
{
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        zi_layout *plain = make_layout((zero_stage)stage, 4, ZERO_DTYPE_DEFAULT);
        zi_layout *layout = make_layout((zero_stage)stage, 4, ZERO_DTYPE_INT8_BLOCK);
        const bool crosses = stage == ZERO_STAGE_1 || stage == ZERO_STAGE_2;
        const zi_unit_place *unit = &layout->units[0];
        uint64_t bytes = 0;
        for (uint32_t f = unit->flat_first; f < unit->flat_first + unit->flat_count; f++) {
            const zi_flat *flat = &layout->flats[f];
            const bool wired = crosses && flat->has_master;
            CHECK_EQ(zi_flat_updated_wired(layout, flat), wired);
            bytes += wired ? zi_align_up(flat->count + flat->count / 128 * 2, ZI_ARENA_ALIGN) : 0;
        }
        CHECK_EQ(bytes != 0, crosses);
        CHECK_EQ(layout->updated_wire_bytes, bytes); /* all units are alike */
        if (stage < ZERO_STAGE_3) {
            CHECK_EQ(layout->memory.bytes[ZERO_ROLE_PARAM_SLOT],
                     plain->memory.bytes[ZERO_ROLE_PARAM_SLOT] + zi_align_up(bytes, 4096));
        }
        zi_layout_destroy(plain);
        zi_layout_destroy(layout);
    }
}

/* A model of one tensor, with masters of a type, in a world. */
static zero_status lay_out(zero_dtype dtype, zero_dtype master, zero_stage stage, uint32_t world)
{
    zero_model *model = NULL;
    zi_layout *layout = NULL;
    uint32_t index = 0;
    const zero_tensor_desc desc = {.name = "w", .dims = 1, .shape = {1000}, .dtype = dtype};
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    tuning.gather_dtype = ZERO_DTYPE_MXFP8;
    options.tuning = &tuning;
    options.stage = stage;
    options.master_dtype = master;
    options.shard_group = stage == ZERO_STAGE_3 ? 2 : 0;
    tuning.optimizer_group = stage == ZERO_STAGE_3 ? world : 0;
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "block"}, &index, NULL));
    CHECK_OK(zero_tensor_add(model, index, &desc, &index));
    const zero_status status = zi_layout_create(model, &options, world, false, NULL, &layout);
    zi_layout_destroy(layout);
    zero_model_destroy(model);
    return status;
}

TEST(what_an_update_reads_cannot_be_rounded)
{
    static const zero_dtype masters[] = {ZERO_DTYPE_NONE, ZERO_DTYPE_REMAINDER16,
                                         ZERO_DTYPE_REMAINDER8};
    for (size_t i = 0; i < sizeof masters / sizeof masters[0]; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "mxfp8 and options.master_dtype %s",
                       zero_dtype_name(masters[i]));
        CHECK_FAILS(lay_out(ZERO_DTYPE_BF16, masters[i], ZERO_STAGE_1, 4), ZERO_ERR_UNSUPPORTED,
                    text);
        CHECK_FAILS(lay_out(ZERO_DTYPE_BF16, masters[i], ZERO_STAGE_3, 4), ZERO_ERR_UNSUPPORTED,
                    "unit \"block\"");
        CHECK_OK(lay_out(ZERO_DTYPE_BF16, masters[i], ZERO_STAGE_3, 2)); /* nothing after it */
        CHECK_OK(lay_out(ZERO_DTYPE_BF16, masters[i], ZERO_STAGE_2, 1));
    }
    CHECK_OK(lay_out(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_STAGE_1, 4));
    CHECK_FAILS(lay_out(ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_STAGE_2, 4), ZERO_ERR_UNSUPPORTED,
                "mxfp8, and all parameters");
    CHECK_OK(lay_out(ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_STAGE_3, 4)); /* a hybrid */
    CHECK_OK(lay_out(ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_STAGE_0, 4));
    CHECK_OK(lay_out(ZERO_DTYPE_F32, ZERO_DTYPE_F32, ZERO_STAGE_2, 1));
}
