/* bfloat16 on the host: the upper half of a float, rounded to nearest even. */
#ifndef TESTS_GPT2_BF16_H
#define TESTS_GPT2_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float float_of(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
