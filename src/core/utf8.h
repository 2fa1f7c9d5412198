/* Texts that are UTF-8, as JSON and names must be. */
#ifndef ZI_CORE_UTF8_H
#define ZI_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character that begins here; 0: it is none of UTF-8. No overlong forms, surrogates or
 * what is beyond U+10FFFF (RFC 3629). */
static inline size_t zi_utf8_bytes(const unsigned char *at)
{
    const unsigned char low = at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf;
    const size_t bytes = at[0] < 0x80   ? 1
                         : at[0] < 0xc2 ? 0
                         : at[0] < 0xe0 ? 2
                         : at[0] < 0xf0 ? 3
                         : at[0] < 0xf5 ? 4
                                        : 0;
    if (bytes > 1 && (at[1] < low || at[1] > high)) {
        return 0;
    }
    for (size_t i = 2; i < bytes; i++) {
        if (at[i] < 0x80 || at[i] > 0xbf) {
            return 0;
        }
    }
    return bytes;
}

/* True if all of a text is UTF-8. */
static inline bool zi_text_is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t bytes = 1;
    while (*at != '\0' && bytes != 0) {
        bytes = zi_utf8_bytes(at);
        at += bytes;
    }
    return bytes != 0;
}

/* The end of a text, or its first byte that is not UTF-8 or is a control character of ASCII: a line
 * end, a tab, an escape. */
static inline const char *zi_text_good_end(const char *text)
{
    while ((unsigned char)*text >= 0x20 && *text != 0x7f) {
        const size_t bytes = zi_utf8_bytes((const unsigned char *)text);
        if (bytes == 0) {
            break;
        }
        text += bytes;
    }
    return text;
}

/* The name that safetensors keeps for itself among those of tensors. */
#define ZI_NAME_OF_METADATA "__metadata__"

#endif
