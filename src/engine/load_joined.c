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

zero_role zi_load_source(const zi_checkpoint_tensor *saved, zero_role role, zero_dtype dtype)
{
    const bool has_master = zero_dtype_bytes(saved->role[ZERO_ROLE_MASTER].dtype) != 0;
    if (role == ZERO_ROLE_MASTER) {
        return has_master ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
    }
    if (role == ZERO_ROLE_PARAM && has_master && saved->role[ZERO_ROLE_PARAM].dtype != dtype) {
        return ZERO_ROLE_MASTER;
    }
    return role;
}

static zero_role role_of(const zi_checkpoint_tensor *saved, const void *user)
{
    const load_source *source = user;
    return zi_load_source(saved, source->role, source->dtype);
}

zi_joined zi_load_joined(const engine_load *load, uint32_t tensor, uint32_t head,
                         const load_source *source)
{
    const zi_checkpoint_map *map = load->source->map;
    const zi_tensor_info *info = &load->engine->layout->tensor_infos[tensor];
    const zi_box saved = zi_box_of(&map->tensors[head]);
    zi_joined joined = {.source = load->source,
                        .head = head,
                        .wanted = load_joined_describe(load->engine, tensor),
                        .role_of = role_of,
                        .user = source};
    /* An engine that knows no other parts saves its boxes as tensors of their own. */
    if (load->engine->mesh == NULL && !zi_box_same_global(&joined.wanted, &saved)) {
        joined.wanted = zi_box_whole(info->dims, info->shape);
    }
    return joined;
}
