/* Element bits to value and back, to nearest even, written without the library's so that the two
 * check each other. In a header: tests do it for every element of every step. */
#ifndef TESTS_ENGINE_TOY_BITS_H
#define TESTS_ENGINE_TOY_BITS_H

#include <stdint.h>
#include <string.h>

#include "sanitizer.h"
#include "zero/zero.h"

float toy_decode_f16(uint32_t bits);
uint32_t toy_encode_f16(float value);

UNWATCHED static inline uint32_t toy_bits_of(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

UNWATCHED static inline float toy_float_of(uint32_t bits)
{
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

UNWATCHED static inline float toy_decode(uint32_t bits, zero_dtype dtype)
{
    if (dtype == ZERO_DTYPE_F16) {
        return toy_decode_f16(bits);
    }
    return toy_float_of(dtype == ZERO_DTYPE_BF16 ? bits << 16 : bits);
}

UNWATCHED static inline uint32_t toy_encode(float value, zero_dtype dtype)
{
    if (dtype == ZERO_DTYPE_F16) {
        return toy_encode_f16(value);
    }
    const uint32_t bits = toy_bits_of(value);
    if (dtype != ZERO_DTYPE_BF16) {
        return bits;
    }
    if (value != value) {
        return bits >> 16 | 0x40;
    }
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* An element of an array of the caller's own; what others share is fetched first (toy_device.h).
 * DEFAULT is the type of an fp32 parameter, which is its own master. */
UNWATCHED static inline uint32_t toy_load(const void *data, uint64_t index, zero_dtype dtype)
{
    const unsigned char *bytes = data;
    uint32_t word = 0;
    uint16_t half = 0;
    switch (dtype == ZERO_DTYPE_DEFAULT ? sizeof word : zero_dtype_bytes(dtype)) {
    case 1:
        return bytes[index];
    case 2:
        memcpy(&half, bytes + 2 * index, sizeof half);
        return half;
    default:
        memcpy(&word, bytes + 4 * index, sizeof word);
        return word;
    }
}

UNWATCHED static inline void toy_store(void *data, uint64_t index, zero_dtype dtype, uint32_t bits)
{
    unsigned char *bytes = data;
    const uint16_t half = (uint16_t)bits;
    switch (dtype == ZERO_DTYPE_DEFAULT ? sizeof bits : zero_dtype_bytes(dtype)) {
    case 1:
        bytes[index] = (unsigned char)bits;
        break;
    case 2:
        memcpy(bytes + 2 * index, &half, sizeof half);
        break;
    default:
        memcpy(bytes + 4 * index, &bits, sizeof bits);
        break;
    }
}

#endif
