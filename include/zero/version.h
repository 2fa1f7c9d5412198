/** @file
 *  Version of the headers and of the library. */
#ifndef ZERO_VERSION_H
#define ZERO_VERSION_H

#include "zero/export.h"

ZERO_BEGIN

/** Version of these headers. */
#define ZERO_VERSION "0.1.0"

/** Version of the library that is linked. */
ZERO_API const char *zero_version(void);

ZERO_END

#endif
