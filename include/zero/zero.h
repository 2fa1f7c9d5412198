/** @file
 *  All of libzero but the optional zero/cuda.h, zero/mpi.h and zero/nccl.h. What is planned before
 * a trainer exists is a library of its own: zero/planner.h. */
#ifndef ZERO_ZERO_H
#define ZERO_ZERO_H

#include "zero/array.h"
#include "zero/bottleneck.h"
#include "zero/capture.h"
#include "zero/checkpoint.h"
#include "zero/dtype.h"
#include "zero/encoded.h"
#include "zero/engine.h"
#include "zero/evict.h"
#include "zero/log.h"
#include "zero/model.h"
#include "zero/option.h"
#include "zero/options.h"
#include "zero/path.h"
#include "zero/plan.h"
#include "zero/random.h"
#include "zero/role.h"
#include "zero/shard.h"
#include "zero/status.h"
#include "zero/step.h"
#include "zero/stream.h"
#include "zero/trace.h"
#include "zero/tuning.h"
#include "zero/unit.h"
#include "zero/version.h"
#include "zero/world.h"

#endif
