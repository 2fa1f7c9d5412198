/** @file
 *  libzero for C++17 and later: a header over the C functions of zero/zero.h, which needs no other
 *  library. examples/cpp_hello is a whole trainer; docs/cpp.md is a guide.
 *
 *      zero::World::run(2, [](zero::World &world) {
 *          auto model = zero::Model::create();
 *          model.add_unit("layer", {{"weight", {256, 256}}});
 *          auto engine = zero::Engine::create(world, model);
 *          ...
 *          auto unit = engine.acquire(0, zero::Pass::forward);
 *          auto weight = unit.param<float>(0);
 *      });
 *
 *  - World, Model, Plan, Engine and Unit own what C creates and destroys. They are moved, never
 *    copied, and null after a move; a call on a null one is INVALID_ARGUMENT or STATE.
 *  - Structs and enumerations of options and results are C's. Options, Tuning, StepParams,
 *    SaveOptions and LoadOptions are these structs with their defaults set.
 *  - Callbacks are callables of C++. What they throw never crosses a frame of C: it is caught, and
 *    thrown again by the call that it belongs to.
 *  - The headers of C have each call's contract: whether it is collective, which stream it uses,
 *    its errors.
 *
 *  Functions of C alone, for which the handles have get(): zero/capture.h, zero_stats_bottleneck,
 *  zero_random_normal and zero_random_uniform, the table of options (zero_option_at),
 *  zero_shard_view and parts of shards, strided exports, options.device_alloc,
 * zero_world_create_mpi and zero_world_create_nccl (World takes what they make), and all of
 * zero/planner.h.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). */
#ifndef ZERO_ZERO_HPP
#define ZERO_ZERO_HPP

#include "zero/array.hpp"
#include "zero/callback.hpp"
#include "zero/engine.hpp"
#include "zero/model.hpp"
#include "zero/options.hpp"
#include "zero/result.hpp"
#include "zero/unit.hpp"
#include "zero/world.hpp"
#include "zero/zero.h"

#endif
