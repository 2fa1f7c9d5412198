/* Pages that the library's allocator has given out, counted beside it and not asked of an engine;
 * with TOY_CUDA a GPU's memory too. A program is linked with --wrap of what is wrapped here. */
#ifndef TESTS_ENGINE_PAGES_HELD_H
#define TESTS_ENGINE_PAGES_HELD_H

#include <stddef.h>
#include <stdint.h>

/* Counts what is given out from here on. Before, nothing is counted. */
void pages_watch(void);

/* Bytes of one allocation that begins at `pointer`, as long as its pages are held; else 0. */
uint64_t pages_of(const void *pointer);

/* Bytes of all of them, without the blocks that groups of ranks synchronise through: those belong
 * to a world's groups and no plan counts them. */
uint64_t pages_held(void);

#endif
