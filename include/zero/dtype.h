/** @file
 *  Element types and views of tensors. */
#ifndef ZERO_DTYPE_H
#define ZERO_DTYPE_H

#include "zero/export.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** Element type. 0 stands for "the default" wherever an option accepts it. */
typedef enum zero_dtype {
    ZERO_DTYPE_DEFAULT = 0,     /**< unset: the field's documented default */
    ZERO_DTYPE_F32 = 1,         /**< IEEE binary32 */
    ZERO_DTYPE_BF16 = 2,        /**< bfloat16: the upper half of a binary32 */
    ZERO_DTYPE_F16 = 3,         /**< IEEE binary16 */
    ZERO_DTYPE_NONE = 4,        /**< the role does not exist (master only) */
    ZERO_DTYPE_REMAINDER16 = 5, /**< of a master: the 16 bits that make a binary32 of its bfloat16
                                   parameter, exactly */
    ZERO_DTYPE_REMAINDER8 = 6,  /**< of a master: the 8 bits that make of it a float of 24 bits,
                                   15 of them of the fraction */
    ZERO_DTYPE_I8 = 7,          /**< of a moment: an 8-bit code q for each element, and a bfloat16
                                   scale for each block of ZERO_CODE_BLOCK. Signed; stands for
                                   scale * q / 127. In options.moment_dtype: codes of 8 bits, of
                                   the kinds that suit the optimizer */
    ZERO_DTYPE_COMPANDED8 = 8,  /**< the same; a sign, and 7 bits q that stand for scale * (y - 2) /
                                   29.5: y is the binary32 of the bits 0x40000000 + (q << 18) */
    ZERO_DTYPE_U8_ROOT = 9,     /**< the same without a sign; for scale * q^2 / 255^2 */
    ZERO_DTYPE_MXFP8 = 10,      /**< between ranks: MXFP8 of the OCP Microscaling Formats (MX)
                                   Specification v1.0, with elements of E4M3: a sign, 4 bits of
                                   exponent of bias 7 and 3 of fraction, up to 448, without
                                   infinities. The byte b that each 32 elements share stands for a
                                   factor of 2^(b - 127), 255 for NaN */
    ZERO_DTYPE_INT8_BLOCK = 11, /**< between ranks: a signed code q for each element, and a bfloat16
                                   scale for each 128; stands for scale * q / 127 */
    ZERO_DTYPE_INT4_BLOCK = 12  /**< between hosts, of sums of gradients: the same in 4 bits, for
                                   scale * q / 7, of the Hadamard transform of each 32 neighbours */
} zero_dtype;

/** Neighbouring elements of a tensor whose codes have one scale; the first of a block is a multiple
 *  of it. */
#define ZERO_CODE_BLOCK 32

/** Bytes of one element, without its block's scale; 0 for ZERO_DTYPE_DEFAULT and NONE, and for
 *  INT4_BLOCK, where two elements share one. */
ZERO_API size_t zero_dtype_bytes(zero_dtype dtype);

/** Lower-case name: "f32", "bf16", "f16", "none", "remainder16", "remainder8", "i8",
 *  "companded8", "u8root", "mxfp8", "int8", "int4", "default". Never NULL. */
ZERO_API const char *zero_dtype_name(zero_dtype dtype);

/** Contiguous elements in memory of the library. The call that gives the view says how long it is
 *  valid. The struct's size never changes. */
typedef struct zero_view {
    void *data;           /**< first element; memory of options.device, unless said otherwise */
    size_t count;         /**< elements */
    zero_dtype dtype;     /**< element type */
    uint32_t reserved[3]; /**< 0 */
} zero_view;

ZERO_END

#endif
