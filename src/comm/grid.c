/* Owns which members of a group exchange with which. Invariant: all members compute the same grid,
 * since it follows from the list of members and their hosts alone. */
#include "comm/grid.h"

#include "core/check.h"

/* The grid at the place of `rank`. */
static zi_grid grid_of(uint32_t rows, uint32_t columns, const uint32_t *at, uint32_t rank)
{
    uint32_t i = 0;
    while (at[i] != rank) {
        i++;
        zi_assert_cmp(i, <, rows * columns);
    }
    return (zi_grid){rows, columns, i / columns, i % columns, at};
}

zi_grid zi_grid_flat(const uint32_t *order, uint32_t size, uint32_t rank)
{
    return grid_of(size, 1, order, rank);
}

/* Members of the host of the i-th one, which is the first of its host; they are written to `row`.
 */
static uint32_t list_host(const uint32_t *order, const uint64_t *hosts, uint32_t size, uint32_t i,
                          uint32_t *row)
{
    uint32_t count = 0;
    for (uint32_t k = i; k < size; k++) {
        if (hosts[order[k]] == hosts[order[i]]) {
            row[count++] = order[k];
        }
    }
    return count;
}

static bool is_first(const uint32_t *order, const uint64_t *hosts, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++) {
        if (hosts[order[k]] == hosts[order[i]]) {
            return false;
        }
    }
    return true;
}

zi_grid zi_grid_of_hosts(const uint32_t *order, const uint64_t *hosts, uint32_t size, uint32_t rank,
                         uint32_t *at)
{
    uint32_t rows = 0;
    uint32_t listed = 0;
    uint32_t columns = 0;
    bool even = true;
    for (uint32_t i = 0; i < size; i++) {
        if (is_first(order, hosts, i)) {
            const uint32_t count = list_host(order, hosts, size, i, at + listed);
            columns = rows == 0 ? count : columns;
            even = even && count == columns;
            listed += count;
            rows++;
        }
    }
    const bool levels = even && rows > 1 && columns > 1;
    return levels ? grid_of(rows, columns, at, rank) : zi_grid_flat(order, size, rank);
}

bool zi_grid_crosses_at_once(const zi_grid *grid, const uint64_t *hosts)
{
    bool crosses = false;
    for (uint32_t row = 0; row < grid->rows; row++) {
        crosses = crosses || hosts[row] != hosts[0];
    }
    return crosses && grid->columns == 1;
}
