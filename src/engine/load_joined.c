/* Owns what an engine wants of a tensor's saved boxes: which box of it, and which role. */
#include <string.h>

#include "engine/load.h"

/* The box of the global tensor that the engine has, as its model says. */
static zi_box load_joined_describe(const zero_engine *engine, uint32_t tensor)
{
    const zi_layout *layout = engine->layout;
    const zi_tensor_info *info = &layout->tensor_infos[tensor];
    zi_box box = zi_box_whole(info->dims, info->shape);
    if (info->extra != ZI_NO_EXTRA) {
        const zi_tensor_extra *extra = &layout->tensor_extras[info->extra];
        memcpy(box.global, extra->global_shape, sizeof box.global);
        memcpy(box.first, extra->box_first, sizeof box.first);
    }
    return box;
}

/* The parameter of a remainder is no copy of the master but half of it. */
static bool is_half(zero_dtype master)
{
    return zi_dtype_is_remainder(master);
}

static zi_joined_from from_master(const zi_checkpoint_tensor *saved, bool widened)
{
    const zero_dtype master = saved->role[ZERO_ROLE_MASTER].dtype;
    return (zi_joined_from){.role =
                                zero_dtype_bytes(master) != 0 ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM,
                            .widened = widened};
}

/* Of the parameter or its master. */
static zi_joined_from param_from(const zi_checkpoint_tensor *saved, const load_source *source)
{
    const zero_dtype there = saved->role[ZERO_ROLE_MASTER].dtype;
    const zero_dtype here = source->kept[ZERO_ROLE_MASTER].dtype;
    const bool halves = is_half(there) || is_half(here);
    if (there == here && halves) {
        return (zi_joined_from){.role = source->role};
    }
    return source->role == ZERO_ROLE_MASTER || halves ||
                   saved->role[ZERO_ROLE_PARAM].dtype != source->kept[ZERO_ROLE_PARAM].dtype
               ? from_master(saved, halves)
               : (zi_joined_from){.role = ZERO_ROLE_PARAM};
}

/* Of a moment, or of its scales. Blocks of other boxes begin elsewhere. */
static zi_joined_from moment_from(const zi_checkpoint_tensor *saved, const load_source *source)
{
    const zero_role moment =
        zi_role_is_scales(source->role) ? zi_role_of_scales(source->role) : source->role;
    const zero_dtype there = saved->role[moment].dtype;
    const zero_dtype here = source->kept[moment].dtype;
    const bool codes = zi_dtype_is_code(there) || zi_dtype_is_code(here);
    const zi_box box = zi_box_of(saved);
    if (!codes || (there == here && zi_box_same(&box, &source->wanted))) {
        return (zi_joined_from){.role = source->role};
    }
    return (zi_joined_from){.role = moment, .widened = true};
}

zi_joined_from zi_load_from(const zi_checkpoint_tensor *saved, const load_source *source)
{
    return zi_role_is_moment(source->role) ? moment_from(saved, source) : param_from(saved, source);
}

static zi_joined_from from(const zi_checkpoint_tensor *saved, const void *user)
{
    return zi_load_from(saved, user);
}

zi_joined zi_load_joined(const engine_load *load, uint32_t tensor, uint32_t head, zero_role role,
                         load_source *source)
{
    const zi_checkpoint_map *map = load->source->map;
    const zi_layout *layout = load->engine->layout;
    const zi_tensor_info *info = &layout->tensor_infos[tensor];
    const zi_box saved = zi_box_of(&map->tensors[head]);
    zi_joined joined = {.source = load->source,
                        .head = head,
                        .wanted = load_joined_describe(load->engine, tensor),
                        .from = from,
                        .user = source};
    /* An engine that knows no other parts saves its boxes as tensors of their own. */
    if (load->engine->mesh == NULL && !zi_box_same_global(&joined.wanted, &saved)) {
        joined.wanted = zi_box_whole(info->dims, info->shape);
    }
    if (source != NULL) {
        *source = (load_source){.role = role,
                                .kept = layout->flats[layout->tensors[tensor].flat].kept,
                                .wanted = joined.wanted};
    }
    return joined;
}
