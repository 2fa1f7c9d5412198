/* A file of a test's own, alone in a folder in memory. */
#ifndef TESTS_PLAN_ONE_FILE_H
#define TESTS_PLAN_ONE_FILE_H

#include "folders.h"
#include "harness.h"

typedef struct folder {
    char *path;
    char file[96];
} folder;

static inline folder folder_create(const char *name)
{
    folder made = {.path = rig_folder(true)};
    (void)snprintf(made.file, sizeof made.file, "%s/%s", made.path, name);
    return made;
}

static inline void folder_destroy(folder *made)
{
    CHECK(unlink(made->file) == 0);
    rig_remove(made->path);
}

static inline void write_bytes(const folder *into, const char *text, size_t bytes)
{
    FILE *file = fopen(into->file, "w");
    CHECK(file != NULL && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0);
}

#endif
