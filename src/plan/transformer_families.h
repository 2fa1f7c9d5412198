/* The model types of config.json. */
#ifndef ZI_PLAN_TRANSFORMER_FAMILIES_H
#define ZI_PLAN_TRANSFORMER_FAMILIES_H

#include "format/json.h"
#include "zero/transformer.h"

typedef struct zi_family zi_family;

/* INVALID_ARGUMENT where no type is called so, with all that there are. */
zero_status zi_family_find(const zi_json *json, const char *type, const zi_family **found);

/* Set the dimensions and flags, but the type of parameters. Errors: INVALID_ARGUMENT naming the key
 * that is missing, is no such value, or says what no transformer has. */
zero_status zi_family_read(const zi_family *family, const zi_json *json, zero_transformer *t);

#endif
