/* Which members of a group exchange with which. Members that are on several hosts exchange in two
 * levels: those of a host first, then those that have the same place on their hosts. So the hosts
 * exchange sums, and a rank sends as many of them as there are other hosts, instead of a part to
 * every rank of theirs. */
#ifndef ZI_COMM_GRID_H
#define ZI_COMM_GRID_H

#include <stdbool.h>
#include <stdint.h>

/* A row is a host. With one column all members exchange at once. Rows are in the order of their
 * lowest world ranks, the members of a row in ascending world rank: both are orders of addition. */
typedef struct zi_grid {
    uint32_t rows;
    uint32_t columns;
    uint32_t row; /* this rank's */
    uint32_t column;
    const uint32_t *at; /* the group rank in each row, column by column; borrowed */
} zi_grid;

static inline uint32_t zi_grid_at(const zi_grid *grid, uint32_t row, uint32_t column)
{
    return grid->at[row * grid->columns + column];
}

/* All members at once.
 * - order: group ranks in ascending world rank.
 * - rank: this rank's group rank. */
zi_grid zi_grid_flat(const uint32_t *order, uint32_t size, uint32_t rank);

/* In two levels; all at once where the hosts have different numbers of members, or one each, or
 * where there is one host.
 * - hosts: of each group rank; equal for those of one host.
 * - at: memory for as many group ranks; kept. */
zi_grid zi_grid_of_hosts(const uint32_t *order, const uint64_t *hosts, uint32_t size, uint32_t rank,
                         uint32_t *at);

/* True if members of several hosts exchange at once in that grid. */
bool zi_grid_crosses_at_once(const zi_grid *grid, const uint64_t *hosts);

#endif
