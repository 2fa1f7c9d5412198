/* Files that `zero` writes whole or not at all; "-" is stdout. */
#ifndef TOOLS_OUT_FILE_H
#define TOOLS_OUT_FILE_H

#include <jansson.h>

/* A text from malloc, which is freed. 1 after bench_fail, and for NULL, of which it was said why.
 * What was in a regular file is lost then. */
int out_text(char *text, const char *path);

/* JSON, whose reference is taken; NULL: memory was out. */
int out_json(json_t *json, const char *path);

#endif
