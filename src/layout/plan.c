/* Owns the public plan: a layout behind a handle, and its table. */
#include "zero/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/error.h"
#include "core/memory.h"
#include "layout/layout.h"

const char *zero_role_name(zero_role role)
{
    static const char *const names[ZERO_ROLE_COUNT] = {"param",      "grad",    "master",
                                                       "moment1",    "moment2", "param slots",
                                                       "grad slots", "step",    "scratch"};
    return (unsigned)role < ZERO_ROLE_COUNT ? names[role] : "unknown";
}

zero_status zero_plan_create(const zero_model *model, const zero_engine_options *options,
                             uint32_t world_size, zero_plan **plan)
{
    if (plan == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "plan is NULL; pass the address of a zero_plan pointer");
    }
    *plan = NULL;
    zero_plan *made = NULL;
    ZI_TRY(zi_calloc(1, sizeof *made, (void **)&made));
    const zero_status status = zi_layout_create(model, options, world_size, false, &made->layout);
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

zero_memory zero_plan_memory(const zero_plan *plan)
{
    return plan->layout->memory;
}

zero_sharding zero_plan_sharding(const zero_plan *plan)
{
    return plan->layout->sharding;
}

zero_engine_options zero_plan_options(const zero_plan *plan)
{
    return plan->layout->options;
}

uint64_t zero_plan_hash(const zero_plan *plan)
{
    return zi_layout_hash(plan->layout);
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

/* Over how many ranks a role is split; 1 for slots, which every rank has whole. */
static uint32_t degree_of(const zero_sharding *s, zero_role role)
{
    switch (role) {
    case ZERO_ROLE_PARAM:
        return s->param;
    case ZERO_ROLE_GRAD:
        return s->grad;
    case ZERO_ROLE_MASTER:
    case ZERO_ROLE_MOMENT1:
    case ZERO_ROLE_MOMENT2:
        return s->optimizer;
    case ZERO_ROLE_PARAM_SLOT:
    case ZERO_ROLE_GRAD_SLOT:
    case ZERO_ROLE_STEP:
    case ZERO_ROLE_SCRATCH:
        break;
    }
    return 1;
}

size_t zero_plan_print(const zero_plan *plan, char *text, size_t text_bytes)
{
    const zi_layout *layout = plan->layout;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        elements += layout->tensor_infos[i].count;
    }
    printer out = {text, text_bytes, 0};
    print(&out, "%" PRIu32 " units, %" PRIu32 " tensors, %" PRIu64 " elements, %" PRIu32 " ranks\n",
          layout->unit_count, layout->tensor_count, elements, layout->sharding.world);
    print(&out, "%-12s %10s %18s %12s\n", "role", "split over", "bytes per rank", "MiB");
    for (int i = 0; i < ZERO_ROLE_COUNT; i++) {
        const uint64_t bytes = layout->memory.bytes[i];
        print(&out, "%-12s %10" PRIu32 " %18" PRIu64 " %12.2f\n", zero_role_name((zero_role)i),
              degree_of(&layout->sharding, (zero_role)i), bytes, (double)bytes / 1048576.0);
    }
    print(&out, "%-12s %10s %18" PRIu64 " %12.2f\n", "total", "", layout->memory.total_bytes,
          (double)layout->memory.total_bytes / 1048576.0);
    return out.used;
}
