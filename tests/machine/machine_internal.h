/* What the machine's threads and its files ask of one another. */
#ifndef TESTS_MACHINE_MACHINE_INTERNAL_H
#define TESTS_MACHINE_MACHINE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

/* Whether threads are the machine's by now. */
bool machine_is_on(void) __attribute__((weak)); /* NULL where they never are */
/* In [0, count), from the seed; 0 without a seed. */
uint32_t machine_choose(uint32_t count) __attribute__((weak));
/* Others have their turns for so long. */
void machine_pause(uint64_t ns) __attribute__((weak));

/* renameat2 of two paths with RENAME_EXCHANGE, noted where it is watched. */
int machine_exchange(const char *one, const char *other);

#endif
