/* Functions of shared libraries that are looked up when they are first needed: a program that
 * never needs them starts on a machine without the library. */
#ifndef ZI_CORE_LIBRARY_H
#define ZI_CORE_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "zero/status.h"

/* A function, and where its pointer goes in the caller's table. */
typedef struct zi_library_symbol {
    const char *name;
    size_t at;
    bool required;
} zi_library_symbol;

typedef struct zi_library {
    const zi_library_symbol *symbols;
    size_t symbol_count;
    bool global;        /* its symbols serve libraries that are loaded later */
    const char *remedy; /* said when the library is missing or lacks a function */
} zi_library;

/* Open the library `file` and write its functions to `table`; those that it lacks and that are not
 * required become NULL. A library that was opened stays open: its threads may outlive its users.
 * - Errors: UNSUPPORTED, with the loader's reason and the remedy. */
zero_status zi_library_load(const zi_library *library, const char *file, void *table);

/* True if all required functions are in the table, for example because the program links them. */
bool zi_library_complete(const zi_library *library, const void *table);

#endif
