/* Owns the library's version, read from the headers it was built with. */
#include "zero/version.h"

const char *zero_version(void)
{
    return ZERO_VERSION_TEXT;
}

uint32_t zero_version_number(void)
{
    return ZERO_VERSION;
}
