/* A cluster as it was checked. */
#ifndef ZI_PLAN_CLUSTER_H
#define ZI_PLAN_CLUSTER_H

#include "zero/cluster.h"

/* Errors: those of zero_cluster_check. */
zero_status zi_cluster_resolve(const zero_cluster *given, zero_cluster *resolved);

#endif
