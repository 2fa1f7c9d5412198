/** @file
 *  Version of the headers and of the library. */
#ifndef ZERO_VERSION_H
#define ZERO_VERSION_H

#include "zero/export.h"
#include <stdint.h>

ZERO_BEGIN

/** Version of these headers: its three numbers. */
#define ZERO_VERSION_MAJOR 0
/** See ZERO_VERSION_MAJOR. */
#define ZERO_VERSION_MINOR 2
/** See ZERO_VERSION_MAJOR. */
#define ZERO_VERSION_PATCH 0

/** The same as text. */
#define ZERO_VERSION_TEXT "0.2.0"

/** The same as one number that grows with each release; the preprocessor can compare it: 200 is
 *  0.2.0, 10203 is 1.2.3. */
#define ZERO_VERSION (ZERO_VERSION_MAJOR * 10000 + ZERO_VERSION_MINOR * 100 + ZERO_VERSION_PATCH)

/** Version of the library that is linked, as text.
 *  - Ownership: the library's, for ever.
 *  - Threads: any. */
ZERO_API const char *zero_version(void);

/** The same as one number: ZERO_VERSION of the headers it was built with.
 *  - Threads: any. */
ZERO_API uint32_t zero_version_number(void);

ZERO_END

#endif
