/* Check that the host has the memory that the ranks on it plan to take. (host_room.c) */
#ifndef ZI_ENGINE_HOST_ROOM_H
#define ZI_ENGINE_HOST_ROOM_H

#include "core/host.h"
#include "engine/engine_internal.h"

/* The bytes that the ranks that share a pool want of it, and those that it has. */
typedef struct zi_pool_need {
    uint64_t id;
    uint64_t room;  /* bytes left, the least that any of its ranks reads */
    uint64_t bytes; /* that they take together */
} zi_pool_need;

typedef struct zi_host_room {
    uint64_t count;
    zi_pool_need needs[ZI_MEMORY_POOLS];
    zi_memory_pool pools[ZI_MEMORY_POOLS]; /* as needs */
} zi_host_room;

/* This rank's own; returns `room`. Of no pools where the plan takes no host memory, or
 * tuning.host_overcommit is set. */
zi_host_room *zi_engine_find_room(const zero_engine *engine, zi_host_room *room);

/* Add up what ranks of one of the engine's worlds take of each pool: first over its own world, then
 * over the model-parallel one. OUT_OF_MEMORY on all its ranks where a pool has less. world NULL:
 * nothing is done. Collective. */
zero_status zi_engine_check_room(const zero_engine *engine, zero_world *world, zi_host_room *room);

#endif
