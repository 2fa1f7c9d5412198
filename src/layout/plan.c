/* Owns the public plan: a layout behind a handle, and its table. */
#include "zero/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "layout/layout.h"
#include "zero/option.h"

zero_status zero_plan_create(const zero_model *model, const zero_engine_options *options,
                             uint32_t world_size, zero_plan **plan)
{
    if (plan == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "plan is NULL; pass the address of a zero_plan pointer");
    }
    *plan = NULL;
    zero_plan *made = NULL;
    ZI_TRY(zi_calloc(1, sizeof *made, (void **)&made));
    const zero_status status =
        zi_layout_create(model, options, world_size, false, NULL, &made->layout);
    if (status != ZERO_OK) {
        zi_free(made);
        return status;
    }
    *plan = made;
    return ZERO_OK;
}

void zero_plan_destroy(zero_plan *plan)
{
    if (plan != NULL) {
        zi_layout_destroy(plan->layout);
        zi_free(plan);
    }
}

static zero_status check_plan(const zero_plan *plan)
{
    if (plan == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "plan is NULL; make one with zero_plan_create, or take an engine's");
    }
    return ZERO_OK;
}

zero_status zero_plan_memory(const zero_plan *plan, zero_memory *memory)
{
    ZI_TRY(check_plan(plan));
    return ZI_SIZED_OUT(zero_memory, memory, &plan->layout->memory);
}

zero_status zero_plan_sharding(const zero_plan *plan, zero_sharding *sharding)
{
    ZI_TRY(check_plan(plan));
    return ZI_SIZED_OUT(zero_sharding, sharding, &plan->layout->shardings[0]);
}

zero_status zero_plan_options(const zero_plan *plan, zero_engine_options *options)
{
    ZI_TRY(check_plan(plan));
    zero_engine_options own = plan->layout->options;
    own.tuning = NULL;
    return ZI_SIZED_OUT(zero_engine_options, options, &own);
}

zero_status zero_plan_tuning(const zero_plan *plan, zero_tuning *tuning)
{
    ZI_TRY(check_plan(plan));
    return ZI_SIZED_OUT(zero_tuning, tuning, &plan->layout->tuning);
}

uint64_t zero_plan_hash(const zero_plan *plan)
{
    return plan != NULL ? zi_layout_hash(plan->layout) : 0;
}

/* Text that is cut at its end but always counted whole. */
typedef struct printer {
    char *text;
    size_t text_bytes;
    size_t used;
} printer;

static void print(printer *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void print(printer *out, const char *format, ...)
{
    const size_t room = out->used < out->text_bytes ? out->text_bytes - out->used : 0;
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(room != 0 ? out->text + out->used : NULL, room, format, args);
    va_end(args);
    out->used += length > 0 ? (size_t)length : 0;
}

static void print_row(printer *out, const char *name, const char *tier, const char *split,
                      uint64_t bytes)
{
    print(out, "%-12s %-7s %10s %18" PRIu64 " %12.2f\n", name, tier, split, bytes,
          (double)bytes / 1048576.0);
}

static void print_roles(printer *out, const zi_layout *layout)
{
    for (int i = 0; i < ZERO_ROLE_COUNT_MAX; i++) {
        const zero_role role = (zero_role)i;
        char split[64];
        size_t used = 0;
        if (zero_role_exists(role) == 0) {
            continue;
        }
        for (uint32_t k = 0; k < layout->sharding_count; k++) {
            used +=
                (size_t)snprintf(split + used, sizeof split - used, "%s%" PRIu32, k == 0 ? "" : "/",
                                 zi_role_degree(&layout->shardings[k], role));
        }
        print_row(out, zero_role_name(role), zero_tier_name(zi_role_tier(layout, role)), split,
                  layout->memory.bytes[role]);
    }
}

/* Slots that exist only because the role is on disk. */
static uint64_t slots_for_disk(const zi_layout *layout, zero_role role)
{
    const bool param = role == ZERO_ROLE_PARAM;
    const zi_slot_class *classes = param ? layout->param_classes : layout->grad_classes;
    const uint32_t count = param ? layout->param_class_count : layout->grad_class_count;
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < layout->sharding_count; k++) {
        if ((param ? layout->shardings[k].param : layout->shardings[k].grad) > 1) {
            return 0; /* gathers and reductions need them anyway */
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        bytes += classes[i].slot_bytes * classes[i].slot_count;
    }
    return bytes;
}

/* Print the memory that parameters or gradients on disk take on their way, and whether that is less
 * than their shards would take. */
static void print_offload(printer *out, const zi_layout *layout, zero_role role)
{
    const zi_offload_place *place = &layout->offload[role];
    if (place->bytes == 0) {
        return;
    }
    const uint64_t window = place->window_buffers * place->extent_bytes_max;
    const uint64_t staging =
        role == ZERO_ROLE_PARAM ? layout->param_staging_bytes : layout->grad_staging_bytes;
    const uint64_t taken = window + staging + slots_for_disk(layout, role);
    print(out,
          "%s: %.2f MiB are on disk instead of in memory, and take %.2f MiB of memory on their "
          "way: a window of %" PRIu32 " extents of at most %.2f, and slots of whole units\n",
          zero_role_name(role), (double)place->bytes / 1048576.0, (double)taken / 1048576.0,
          place->window_buffers, (double)place->extent_bytes_max / 1048576.0);
    if (taken >= place->bytes) {
        print(out,
              "%s: on disk it takes more memory than it frees; keep it in memory, or split its "
              "largest unit\n",
              zero_role_name(role));
    }
}

/* The sums of the tiers where there is more than one, and what a step moves. */
static void print_tiers(printer *out, const zi_layout *layout)
{
    const zero_memory *memory = &layout->memory;
    const bool several = memory->tier_bytes[ZERO_TIER_DEVICE] != memory->total_bytes;
    for (int i = ZERO_TIER_DEVICE; several && i < ZERO_TIER_COUNT; i++) {
        if (memory->tier_bytes[i] != 0) {
            print_row(out, "sum", zero_tier_name((zero_tier)i), "", memory->tier_bytes[i]);
        }
    }
    print_row(out, "total", "", "", memory->total_bytes);
    if (layout->disk_bytes != 0) {
        print(out,
              "disk: a step reads at most %" PRIu64 " bytes and writes %" PRIu64 ", in %" PRIu32
              " extents of at most %" PRIu64 ", %" PRIu32 " of them in memory\n",
              layout->step_read_bytes, layout->step_write_bytes, layout->state.extent_count,
              layout->state.extent_bytes_max, layout->state.window_buffers);
    }
    print_offload(out, layout, ZERO_ROLE_PARAM);
    print_offload(out, layout, ZERO_ROLE_GRAD);
    if (layout->speculative_at != 0) {
        print(out, "disk: master and moments are there twice; a step that is updated during "
                   "backward and has to be clipped moves them twice\n");
    }
    if (layout->pass_read_bytes != 0) {
        print(out, "disk: a pass reads at most %" PRIu64 " bytes of parameters\n",
              layout->pass_read_bytes);
    }
    if (layout->micro_bytes != 0) {
        print(out,
              "disk: a micro-step writes %" PRIu64 " bytes of gradients; all but a step's first "
              "read at most as many\n",
              layout->micro_bytes);
    }
}

size_t zero_plan_print(const zero_plan *plan, char *text, size_t text_bytes)
{
    if (text != NULL && text_bytes != 0) {
        text[0] = '\0';
    }
    if (plan == NULL) {
        return 0;
    }
    const zi_layout *layout = plan->layout;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        elements += layout->tensor_infos[i].count;
    }
    printer out = {text, text != NULL ? text_bytes : 0, 0};
    print(&out,
          "stage %d: %" PRIu32 " units, %" PRIu32 " tensors, %" PRIu64 " elements, %" PRIu32
          " ranks\n",
          (int)layout->options.stage, layout->unit_count, layout->tensor_count, elements,
          layout->world);
    print(&out, "%-12s %-7s %10s %18s %12s\n", "role", "tier", "split over", "bytes per rank",
          "MiB");
    print_roles(&out, layout);
    print_tiers(&out, layout);
    return out.used;
}

size_t zero_plan_print_options(const zero_plan *plan, char *text, size_t text_bytes)
{
    const zero_option *option = NULL;
    printer out = {text, text != NULL ? text_bytes : 0, 0};
    if (out.text_bytes != 0) {
        text[0] = '\0';
    }
    for (uint32_t i = 0; plan != NULL && (option = zero_option_at(i)) != NULL; i++) {
        char value[128];
        if (option->kind != ZERO_OPTION_POINTER) {
            (void)zero_option_print(option, &plan->layout->options, &plan->layout->tuning, value,
                                    sizeof value);
            print(&out, "%-22s %s\n", option->name, value);
        }
    }
    return out.used;
}
