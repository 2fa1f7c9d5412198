/* Owns the whole-model view of a sharded engine: every rank's pieces, put together on every rank.
 * Invariant: an element that several ranks hold has the same bits on all of them, else the process
 * ends. */
#include "toy.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "engine/engine_internal.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/math/convert.h"

/* Elements gathered at once, which bounds the memory that many ranks take. */
#define PART_ELEMENTS 16384

/* A held element's bits, with this flag above them. */
#define HELD (UINT64_C(1) << 32)

static void *array_of(uint64_t count, size_t bytes)
{
    void *array = calloc(count + 1, bytes);
    TOY_CHECK(array != NULL, "no memory");
    return array;
}

/* This rank's pieces of one role. */
static zero_status collect_mine(const toy_trainer *trainer, zero_role role, uint64_t *mine)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        zero_shard shard;
        TOY_TRY(zero_shard_range(trainer->engine, t, role, &shard));
        TOY_CHECK(shard.count == 0 || shard.first + shard.count <= tensor->count,
                  "%s: piece [%llu, +%llu) of %llu", tensor->name, (unsigned long long)shard.first,
                  (unsigned long long)shard.count, (unsigned long long)tensor->count);
        void *values = array_of(shard.count, sizeof(uint32_t));
        const zero_status status =
            zero_shard_read(trainer->engine, t, role, shard.first, shard.count, values);
        for (uint64_t e = 0; e < shard.count && status == ZERO_OK; e++) {
            mine[tensor->base + shard.first + e] = HELD | toy_load(values, e, shard.dtype);
        }
        free(values);
        TOY_TRY(status);
    }
    return ZERO_OK;
}

/* Merge one part of all ranks' pieces. */
UNWATCHED static void merge(const toy_trainer *trainer, const uint64_t *all, uint64_t first,
                            uint64_t count, zero_role role, toy_state *state)
{
    for (uint32_t rank = 0; rank < trainer->ranks; rank++) {
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t word = all[rank * count + i];
            const uint64_t at = first + i;
            if ((word & HELD) == 0) {
                continue;
            }
            TOY_CHECK(state->owners[role][at] == 0 || state->bits[role][at] == (uint32_t)word,
                      "%s: element %llu of the model: rank %u holds %08x, another %08x",
                      zero_role_name(role), (unsigned long long)at, rank, (uint32_t)word,
                      state->bits[role][at]);
            state->bits[role][at] = (uint32_t)word;
            state->owners[role][at]++;
        }
    }
}

/* Every rank's `count` words, in rank order. zero_world_gather is for small things, so this uses
 * the group beneath it. */
static zero_status gather_words(zero_world *world, const uint64_t *mine, uint64_t *all,
                                uint64_t count)
{
    zi_stream *host = NULL;
    TOY_TRY(world->device.ops->stream_wrap(world->device.self, zero_stream_host(), &host));
    const zi_collective gather = {.kind = ZI_ALL_GATHER,
                                  .send_dtype = ZERO_DTYPE_F32,
                                  .recv_dtype = ZERO_DTYPE_F32,
                                  .count = count * 2,
                                  .send = mine,
                                  .recv = all};
    return zi_group_submit(world->coordination, host, &gather, 1);
}

static zero_status collect_role(const toy_trainer *trainer, zero_role role, toy_state *state)
{
    uint64_t *mine = array_of(state->element_count, sizeof *mine);
    const uint64_t part =
        state->element_count < PART_ELEMENTS ? state->element_count : PART_ELEMENTS;
    uint64_t *all = array_of(part * trainer->ranks, sizeof *all);
    zero_status status = collect_mine(trainer, role, mine);
    for (uint64_t first = 0; first < state->element_count && status == ZERO_OK; first += part) {
        const uint64_t left = state->element_count - first;
        const uint64_t count = left < part ? left : part;
        status = gather_words(trainer->world, mine + first, all, count);
        if (status == ZERO_OK) {
            merge(trainer, all, first, count, role, state);
        }
    }
    free(mine);
    free(all);
    return status;
}

/* Round the values of a tensor as a gather in blocks does. */
static void round_in_blocks(float *values, uint64_t count, zero_dtype wire)
{
    unsigned char *codes = array_of(count, 1);
    unsigned char *scales = array_of(zi_block_scales_bytes(wire, count), 1);
    zi_cpu_encode_blocks(codes, scales, wire, values, ZERO_DTYPE_F32, (size_t)count);
    zi_cpu_decode_blocks(values, ZERO_DTYPE_F32, codes, scales, wire, (size_t)count);
    free(codes);
    free(scales);
}

/* Replace bits of a tensor's elements in shards by those in its unit's slot. */
static void expect_in_slot(const toy_trainer *trainer, uint32_t tensor, uint32_t *bits)
{
    const zi_layout *layout = trainer->engine->layout;
    const zi_flat *flat = &layout->flats[layout->tensors[tensor].flat];
    const zero_dtype wire = flat->wire[ZERO_ROLE_PARAM].dtype;
    const uint64_t count = layout->tensor_infos[tensor].count;
    if (zi_flat_gathered_in_place(layout, flat)) {
        return;
    }
    float *values = array_of(count, sizeof *values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = toy_decode(bits[i], flat->dtype);
    }
    if (zi_dtype_is_block(wire)) {
        round_in_blocks(values, count, wire);
    }
    for (uint64_t i = 0; i < count; i++) {
        const float value = wire == ZERO_DTYPE_BF16  ? zi_f32_from_bf16(zi_bf16_from_f32(values[i]))
                            : wire == ZERO_DTYPE_F16 ? zi_f32_from_f16(zi_f16_from_f32(values[i]))
                                                     : values[i];
        bits[i] = toy_encode(value, flat->dtype);
    }
    free(values);
}

static void compare_gathered(const toy_trainer *trainer, const toy_state *state)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        const uint32_t *kept = state->bits[ZERO_ROLE_PARAM] + tensor->base;
        uint32_t *expected = array_of(tensor->count, sizeof *expected);
        memcpy(expected, kept, tensor->count * sizeof *expected);
        expect_in_slot(trainer, t, expected);
        for (uint64_t i = 0; i < tensor->count; i++) {
            TOY_CHECK(state->owners[ZERO_ROLE_PARAM][tensor->base + i] != 0,
                      "nobody holds element %llu", (unsigned long long)(tensor->base + i));
            TOY_CHECK(state->gathered[tensor->base + i] == expected[i],
                      "element %llu: acquired %08x, in the shard %08x",
                      (unsigned long long)(tensor->base + i), state->gathered[tensor->base + i],
                      kept[i]);
        }
        free(expected);
    }
}

zero_status toy_collect(toy_trainer *trainer, toy_state *state)
{
    const uint64_t count = trainer->run->model->element_count;
    memset(state, 0, sizeof *state);
    state->element_count = count;
    state->gathered = array_of(count, sizeof *state->gathered);
    for (int role = 0; role < TOY_ROLES; role++) {
        state->bits[role] = array_of(count, sizeof *state->bits[role]);
        state->owners[role] = array_of(count, sizeof *state->owners[role]);
        TOY_TRY(collect_role(trainer, (zero_role)role, state));
    }
    TOY_TRY(toy_evaluate(trainer));
    memcpy(state->gathered, trainer->seen, count * sizeof *state->gathered);
    compare_gathered(trainer, state);
    return ZERO_OK;
}

void toy_state_free(toy_state *state)
{
    for (int role = 0; role < TOY_ROLES; role++) {
        free(state->bits[role]);
        free(state->owners[role]);
    }
    free(state->gathered);
    memset(state, 0, sizeof *state);
}

static const toy_tensor *tensor_at(const toy_model *model, uint64_t at)
{
    uint32_t t = 0;
    while (at >= model->tensors[t].base + model->tensors[t].count) {
        t++;
    }
    return &model->tensors[t];
}

/* An element that differs: says which, and ends the process. */
static void tell_difference(const toy_model *model, const toy_state *left, const toy_state *right,
                            int role, uint64_t at, const char *what)
{
    const toy_tensor *tensor = tensor_at(model, at);
    const char *name = zero_role_name((zero_role)role);
    const unsigned long long element = at - tensor->base;
    TOY_CHECK((left->owners[role][at] != 0) == (right->owners[role][at] != 0),
              "%s: %s of %s[%llu] is held by none", what, name, tensor->name, element);
    TOY_CHECK(false, "%s: %s of %s[%llu]: %08x and %08x", what, name, tensor->name, element,
              left->bits[role][at], right->bits[role][at]);
}

UNWATCHED void toy_state_same(const toy_model *model, const toy_state *left, const toy_state *right,
                              const char *what)
{
    TOY_CHECK(left->element_count == right->element_count, "%s: other models", what);
    for (int role = 0; role < TOY_ROLES; role++) {
        if (role == ZERO_ROLE_GRAD) {
            continue;
        }
        for (uint64_t i = 0; i < left->element_count; i++) {
            const bool held = left->owners[role][i] != 0;
            if (held != (right->owners[role][i] != 0) ||
                left->bits[role][i] != right->bits[role][i]) {
                tell_difference(model, left, right, role, i, what);
            }
        }
    }
}

zero_status toy_collect_first(toy_trainer *trainer, toy_state *state)
{
    toy_state own;
    TOY_TRY(toy_collect(trainer, &own));
    if (trainer->rank == 0) {
        *state = own;
    } else {
        toy_state_free(&own);
    }
    return ZERO_OK;
}

zero_status toy_collect_same(toy_trainer *trainer, const toy_state *expected, const char *what)
{
    toy_state state;
    const zero_status status = toy_collect(trainer, &state);
    if (status == ZERO_OK) {
        toy_state_same(trainer->run->model, expected, &state, what);
    }
    toy_state_free(&state);
    return status;
}

uint64_t toy_state_moved(const toy_state *left, const toy_state *right)
{
    uint64_t moved = 0;
    for (uint64_t i = 0; i < left->element_count; i++) {
        moved += left->gathered[i] != right->gathered[i];
    }
    return moved;
}

zero_status toy_train_collect(const toy_run *run, zero_world *world, toy_state *state)
{
    return toy_train_by(run, world, toy_step, state);
}

zero_status toy_train_by(const toy_run *run, zero_world *world, toy_step_fn step, toy_state *state)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, run, world));
    zero_status status = ZERO_OK;
    for (uint32_t s = 0; s < run->steps && status == ZERO_OK; s++) {
        status = step(&trainer);
    }
    if (status == ZERO_OK) {
        status = toy_collect(&trainer, state);
    }
    if (status != ZERO_OK) {
        /* Closing in the middle of a step is a failure too, and would hide this one. */
        fprintf(stderr, "  rank %u: %s: %s\n", trainer.rank, zero_status_name(status),
                zero_last_error()->message);
    }
    /* An engine goes before its world does, also when it has failed. */
    toy_close(&trainer);
    return status;
}

zero_status toy_train_same(const toy_run *run, zero_world *world, toy_step_fn step,
                           const toy_state *expected, const char *what)
{
    toy_state state;
    TOY_TRY(toy_train_by(run, world, step, &state));
    toy_state_same(run->model, expected, &state, what);
    toy_state_free(&state);
    return ZERO_OK;
}

zero_status toy_compare(const toy_run *run, zero_world *world, toy_step_fn left, toy_step_fn right,
                        const char *what)
{
    toy_state state;
    TOY_TRY(toy_train_by(run, world, left, &state));
    TOY_TRY(toy_train_same(run, world, right, &state, what));
    toy_state_free(&state);
    return ZERO_OK;
}
