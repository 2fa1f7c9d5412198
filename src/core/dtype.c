/* Owns the table of element types. */
#include "zero/dtype.h"

size_t zero_dtype_bytes(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_DTYPE_F32:
        return 4;
    case ZERO_DTYPE_BF16:
    case ZERO_DTYPE_F16:
    case ZERO_DTYPE_REMAINDER16:
        return 2;
    case ZERO_DTYPE_REMAINDER8:
    case ZERO_DTYPE_I8:
    case ZERO_DTYPE_COMPANDED8:
    case ZERO_DTYPE_U8_ROOT:
    case ZERO_DTYPE_MXFP8:
    case ZERO_DTYPE_INT8_BLOCK:
        return 1;
    case ZERO_DTYPE_INT4_BLOCK: /* half a byte */
    case ZERO_DTYPE_DEFAULT:
    case ZERO_DTYPE_NONE:
        break;
    }
    return 0;
}

const char *zero_dtype_name(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_DTYPE_DEFAULT:
        return "default";
    case ZERO_DTYPE_F32:
        return "f32";
    case ZERO_DTYPE_BF16:
        return "bf16";
    case ZERO_DTYPE_F16:
        return "f16";
    case ZERO_DTYPE_NONE:
        return "none";
    case ZERO_DTYPE_REMAINDER16:
        return "remainder16";
    case ZERO_DTYPE_REMAINDER8:
        return "remainder8";
    case ZERO_DTYPE_I8:
        return "i8";
    case ZERO_DTYPE_COMPANDED8:
        return "companded8";
    case ZERO_DTYPE_U8_ROOT:
        return "u8root";
    case ZERO_DTYPE_MXFP8:
        return "mxfp8";
    case ZERO_DTYPE_INT8_BLOCK:
        return "int8";
    case ZERO_DTYPE_INT4_BLOCK:
        return "int4";
    }
    return "unknown";
}
