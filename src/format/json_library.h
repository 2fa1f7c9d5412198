/* jansson, for readers of JSON: its functions that the library calls are ours by name, and call
 * those of a libjansson that is loaded when the first text is parsed. So neither libzero.so nor a
 * program that reads no JSON needs it. */
#ifndef ZI_FORMAT_JSON_LIBRARY_H
#define ZI_FORMAT_JSON_LIBRARY_H

/* The header's own inline functions and macros call these names too. */
#define json_array_get zi_json_array_get
#define json_array_size zi_json_array_size
#define json_delete zi_json_delete
#define json_integer_value zi_json_integer_value
#define json_loadb zi_json_loadb
#define json_number_value zi_json_number_value
#define json_object_get zi_json_object_get
#define json_object_iter zi_json_object_iter
#define json_object_iter_key zi_json_object_iter_key
#define json_object_iter_next zi_json_object_iter_next
#define json_object_iter_value zi_json_object_iter_value
#define json_object_key_to_iter zi_json_object_key_to_iter
#define json_object_size zi_json_object_size
#define json_string_value zi_json_string_value
/* libzero-plan.so reads JSON with them too (core/private_api.h). */
#pragma GCC visibility push(default)
#include <jansson.h>
#pragma GCC visibility pop

#include "zero/status.h"

/* Load libjansson unless it is there; before the first of these calls.
 * - Errors: UNSUPPORTED; then always the same.
 * - Threads: any. */
zero_status zi_jansson_load(void);

#endif
