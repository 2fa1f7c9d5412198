/* Functions of the library that libzero-plan.so calls. libzero.so exports them in a version of
 * their own (ZERO_PRIVATE in src/zero.map), which names the whole version of the library: only a
 * libzero-plan.so of the same build finds them. No header that is installed declares them. */
#ifndef ZI_CORE_PRIVATE_API_H
#define ZI_CORE_PRIVATE_API_H

#define ZI_PRIVATE_API __attribute__((visibility("default")))

#endif
