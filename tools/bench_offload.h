/* What benchmarks of a rank with state on disk share. */
#ifndef TOOLS_BENCH_OFFLOAD_H
#define TOOLS_BENCH_OFFLOAD_H

#include "offload_rank.h"

/* The rank that the line asks for. */
offload_rank_desc bench_offload_desc(const bench_options *options);

/* False, with the reason, where a directory's disk has no room for its share of the bytes. */
bool bench_disks_suffice(const offload_rank_desc *desc, uint64_t bytes, char *reason,
                         size_t reason_bytes);

#endif
