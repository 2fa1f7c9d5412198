/* Headers of safetensors files: which tensors a file has, of what type and shape, and where. What
 * tensors mean is not known here, and their bytes are not read.
 *
 * The format: eight bytes, little-endian, with the length of the header; the header, a JSON object
 * with an entry for each tensor, and texts under "__metadata__"; the tensors' bytes, without gaps.
 * https://github.com/huggingface/safetensors */
#ifndef ZI_FORMAT_SAFETENSORS_H
#define ZI_FORMAT_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/private_api.h"
#include "format/json.h"
#include "format/regular_file.h"
#include "zero/dtype.h"

/* The format's own bound. */
#define ZI_SAFETENSORS_HEADER_MAX UINT64_C(100000000)
#define ZI_SAFETENSORS_DIMS_MAX 8

typedef struct zi_safetensor {
    const char *name;
    const char *type; /* as the file calls it: "BF16" */
    zero_dtype dtype; /* ZERO_DTYPE_NONE: a type that no parameter has here */
    uint32_t dims;
    uint64_t shape[ZI_SAFETENSORS_DIMS_MAX];
    uint64_t count; /* elements */
    uint64_t begin; /* of its bytes, behind the header */
    uint64_t end;
} zi_safetensor;

typedef struct zi_safetensors {
    zi_json json;           /* has the names */
    zi_safetensor *tensors; /* as they lie in the file */
    uint32_t count;
    uint64_t data_at; /* bytes before the first tensor */
} zi_safetensors;

/* *found := true if the file begins as one of safetensors and not as text. Errors: IO. */
ZI_PRIVATE_API zero_status zi_safetensors_found(const zi_regular_file *file, bool *found);

/* Read the header. The bytes behind it need not be there: the beginning of a download has it all.
 * Errors: INVALID_ARGUMENT naming the file and, where it is about one, the tensor; OUT_OF_MEMORY;
 * IO. */
ZI_PRIVATE_API zero_status zi_safetensors_read(zi_safetensors *header, const zi_regular_file *file);

/* After zi_safetensors_read, whatever it returned; accepts a zeroed one. */
ZI_PRIVATE_API void zi_safetensors_close(zi_safetensors *header);

#endif
