/* State shared by the parts of the parameter shard: what callers and steps do with units
 * (params.c), which unit has which slot (param_slots.c), what is put on the gather stream
 * (gather.c), and what callers see where their releases are checked (param_views.c). */
#ifndef ZI_STAGE3_PARAM_INTERNAL_H
#define ZI_STAGE3_PARAM_INTERNAL_H

#include "comm/wire_gather.h"
#include "stage3/params.h"
#include "stage3/unit_state.h"

typedef struct param_unit {
    zi_unit_state state;
    uint32_t use_count;   /* acquires, by any name */
    uint32_t own_count;   /* of these, by the unit's own name */
    bool released_before; /* since its first acquire: `released` speaks for others */
    zero_pass pass;       /* of the last of them that was granted */
    uint32_t slot;        /* in its class; ZI_NO_INDEX: none */
    uint32_t fixed_slot;  /* the only slot that it may take; ZI_NO_INDEX: any */
    uint64_t touched;     /* when the schedule last came by; the smallest is evicted first */
    zi_event *gathered;
    zi_event *released;
    zi_event *updated;
    zi_event *shown; /* NULL: releases are not checked */
    uint32_t turn;   /* which of its two views it has: another one at each first acquire */
} param_unit;

struct zi_params {
    zi_params_desc desc;
    const zi_layout *layout;
    unsigned char *arena; /* of the shards */
    bool slotted;         /* split or offloaded: gathers or loads are real */
    uint32_t look_ahead;
    uint64_t clock; /* of `touched` */
    param_unit *units;
    /* ZI_WIRE_COLLECTIVES by flat; a unit's are its batch, from its first flat's on. */
    zi_collective *collectives;
    uint32_t *slot_units;     /* holder of each slot, all classes end to end */
    zi_event *gathers_done;   /* gather stream, before a step */
    const zi_schedule *sweep; /* gathers follow it now */
    zi_schedule schedules[ZI_SCHEDULES];
};

static inline const zi_device_ops *param_ops_of(const zi_params *params)
{
    return params->desc.device->ops;
}

static inline void *param_self_of(const zi_params *params)
{
    return params->desc.device->self;
}

/* The tables of slots and, where each unit has a fixed one, which. (param_slots.c) */
zero_status zi_params_make_slots(zi_params *params);
/* Find the unit a slot of its class, evicting its holder. *taken false: all are in use or, without
 * `may_drop`, hold gathers that nobody has used yet. */
zero_status zi_params_take_slot(zi_params *params, uint32_t unit, bool may_drop, bool *taken);
/* STATE: the unit finds no slot. */
zero_status zi_params_no_slot(const zi_params *params, uint32_t unit);
/* An event that may take the unit's slot away. */
zero_status zi_params_leave(zi_params *params, uint32_t unit, zi_unit_event event);
unsigned char *zi_params_slot_data(const zi_params *params, uint32_t unit);
/* A flat where it is read: in its unit's slot or, where there are none, its shard. */
unsigned char *zi_params_flat(const zi_params *params, uint32_t flat);

/* If releases are checked, fill the unit's view on the stream that first acquires it, or let
 * another stream wait for that; poison it on the stream of the last release. (param_views.c) */
zero_status zi_params_show(zi_params *params, uint32_t unit, zi_stream *stream);
zero_status zi_params_hide(zi_params *params, uint32_t unit, zi_stream *stream);
zero_status zi_params_hide_both(zi_params *params, uint32_t unit, zi_stream *stream);
/* Block until nothing on the caller's streams touches the view any more. */
void zi_params_end_view(zi_params *params, uint32_t unit);
unsigned char *zi_params_view(const zi_params *params, uint32_t unit);

/* Enqueue the unit's gather into its slot. (gather.c) */
zero_status zi_params_gather(zi_params *params, uint32_t unit);

#endif
