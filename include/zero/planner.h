/** @file
 *  All of libzero-plan: transformers by their dimensions, clusters, what a rank needs, how long a
 *  step takes, and steps that are simulated. A program that trains needs none of it; one that plans
 *  links libzero-plan (pkg-config: zero-plan), which links libzero of the same version.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). */
#ifndef ZERO_PLANNER_H
#define ZERO_PLANNER_H

#include "zero/cluster.h"
#include "zero/estimate.h"
#include "zero/footprint.h"
#include "zero/run.h"
#include "zero/search.h"
#include "zero/sim.h"
#include "zero/transformer.h"

#endif
