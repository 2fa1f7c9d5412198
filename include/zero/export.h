/** @file
 *  Visibility, result checking and language linkage for every public declaration. */
#ifndef ZERO_EXPORT_H
#define ZERO_EXPORT_H

/** Marks a symbol as part of the library's ABI. */
#if defined(__GNUC__)
#define ZERO_API __attribute__((visibility("default")))
/** Makes the compiler complain when a status is dropped. */
#define ZERO_MUST_CHECK __attribute__((warn_unused_result))
#else
#define ZERO_API
#define ZERO_MUST_CHECK
#endif

#ifdef __cplusplus
#define ZERO_BEGIN extern "C" {
#define ZERO_END }
#else
/** Opens the declarations of a public header. */
#define ZERO_BEGIN
/** Closes the declarations of a public header. */
#define ZERO_END
#endif

#endif
