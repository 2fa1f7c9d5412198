/* The measurements of `zero bench comm` of ranks on several hosts. */
#ifndef TOOLS_BENCH_HOSTS_H
#define TOOLS_BENCH_HOSTS_H

#include "bench.h"
#include "comm/comm.h"

/* As one of the ranks of `world`, which is over MPI: reductions between hosts. Where all are on one
 * host, each half of them says that it is on a host of its own. */
int bench_hosts(const zero_world *world, const bench_options *options, bench_report *report);

#endif
