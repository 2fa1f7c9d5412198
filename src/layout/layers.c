/* Owns which tensors have norms that are measured, and what their optimizers do not go with. */
#include <inttypes.h>

#include "core/error.h"
#include "layout/layout.h"
#include "optimizer/optimizer_table.h"

bool zi_tensor_has_layer(const zi_layout *layout, uint32_t tensor)
{
    const zi_tensor_info *info = &layout->tensor_infos[tensor];
    return (info->flags & ZERO_TENSOR_FROZEN) == 0 &&
           zi_optimizer_is_layerwise(layout->options.group_optimizer[info->group]) != 0;
}

bool zi_flat_measures(const zi_flat *flat, zero_role role)
{
    const bool moments = zi_optimizer_measured_moments(flat->optimizer) != 0;
    if (!zi_optimizer_is_layerwise(flat->optimizer) || zi_codec_is_none(flat->kept[role])) {
        return false;
    }
    return role == ZERO_ROLE_PARAM ? zi_flat_reads_param(flat)
                                   : moments || !zi_role_is_moment(role);
}

/* A role whose shards two passes over the tensors cannot both read where they are; SHARD_ROLES:
 * there is none. Parameters and gradients that a GPU has in host memory come to it one unit at a
 * time, for the update alone. */
static int role_out_of_reach(const zi_layout *layout)
{
    for (int role = 0; role < ZI_SHARD_ROLES; role++) {
        const bool offloaded =
            role < ZI_OFFLOAD_ROLES && zi_role_offloaded(layout, (zero_role)role);
        if (offloaded || zi_role_tier(layout, (zero_role)role) == ZERO_TIER_DISK) {
            return role;
        }
    }
    return ZI_SHARD_ROLES;
}

/* Of the tensor's optimizer, with whatever else the options say. */
static zero_status check_layer(const zi_layout *layout, uint32_t tensor)
{
    const zi_tensor_info *info = &layout->tensor_infos[tensor];
    const char *name = zi_optimizer_of(layout->options.group_optimizer[info->group])->name;
    const int role = role_out_of_reach(layout);
    if (role < ZI_SHARD_ROLES) {
        const zero_tier tier = zi_role_tier(layout, (zero_role)role);
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tensor %" PRIu32 " \"%.60s\" is updated by %s, which goes over all tensors twice "
                "in a step, and options.tier of %s is %s; use %s for it, or another optimizer",
                tensor, info->name, name, zero_role_name((zero_role)role), zero_tier_name(tier),
                tier == ZERO_TIER_DISK && role >= ZI_OFFLOAD_ROLES ? "ZERO_TIER_HOST"
                                                                   : "ZERO_TIER_DEVICE");
    }
    if (layout->tuning.updater >= ZERO_UPDATER_CPU) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tensor %" PRIu32 " \"%.60s\" is updated by %s, whose norms are in the GPU's "
                "memory, and tuning.updater is %d; use ZERO_UPDATER_GPU, or another optimizer",
                tensor, info->name, name, (int)layout->tuning.updater);
    }
    if (layout->part_count > 1) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tensor %" PRIu32 " \"%.60s\" is updated by %s, which needs the norm of the whole "
                "tensor, and options.model_parallel has %" PRIu32
                " parts, any of which may hold a piece; use another optimizer, or one part",
                tensor, info->name, name, layout->part_count);
    }
    return ZERO_OK;
}

zero_status zi_layout_check_layers(const zi_layout *layout)
{
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        if (zi_tensor_has_layer(layout, t)) {
            return check_layer(layout, t); /* they are alike to all that is refused */
        }
    }
    return ZERO_OK;
}
