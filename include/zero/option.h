/** @file
 *  The options of an engine as a table: for command lines, configuration files and bindings of
 *  other languages, which need not repeat names, kinds, bounds and defaults. docs/options.md is
 *  printed from it (`zero options --markdown`). */
#ifndef ZERO_OPTION_H
#define ZERO_OPTION_H

#include "zero/export.h"
#include "zero/options.h"
#include "zero/status.h"
#include "zero/tuning.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** The type of an option's field, and the form of its text. */
typedef enum zero_option_kind {
    ZERO_OPTION_FLAG = 1,   /**< int32_t, 0 or 1 */
    ZERO_OPTION_COUNT = 2,  /**< uint32_t; a whole number */
    ZERO_OPTION_BYTES = 3,  /**< uint64_t; a whole number, with K, M or G for KiB, MiB or GiB */
    ZERO_OPTION_NUMBER = 4, /**< uint64_t; a whole number */
    ZERO_OPTION_REAL = 5,   /**< float, finite, >= 0 */
    ZERO_OPTION_CHOICE = 6, /**< an enumeration; one of its names */
    ZERO_OPTION_TIERS = 7,  /**< zero_tier by zero_role; "ROLE=TIER", several separated by commas */
    ZERO_OPTION_POINTER = 8, /**< a pointer, which no text can give */
    ZERO_OPTION_TEXT = 9,    /**< const char *; the text itself, which is not copied */
    ZERO_OPTION_GROUPS = 10  /**< an enumeration by hyper-parameter group; "GROUP=NAME", several
                                separated by commas */
} zero_option_kind;

/** One option: a field of zero_engine_options or zero_tuning. The library's own; it grows at its
 *  end. */
typedef struct zero_option {
    const char *name;           /**< the field's name */
    const char *text;           /**< its effect, one line */
    const char *fallback;       /**< its default, in words */
    zero_option_kind kind;      /**< of the field */
    int32_t is_tuning;          /**< 1: a field of zero_tuning; 0: of zero_engine_options */
    int32_t same_on_ranks;      /**< 1: zero_engine_create compares it over the ranks */
    uint32_t choice_count;      /**< entries of choices */
    const char *const *choices; /**< of CHOICE, TIERS and GROUPS: names by value; NULL for a value
                                   that this option cannot have */
    size_t offset;              /**< of the field in its struct */
    size_t bytes;               /**< of the field */
    uint64_t low;               /**< of COUNT, BYTES and NUMBER: the least value besides 0 */
    uint64_t high;              /**< of COUNT, BYTES and NUMBER: the largest value */
    uint64_t value;             /**< that 0 stands for; 0: itself, or what `fallback` says */
} zero_option;

/** Number of options.
 *  - Threads: any. */
ZERO_API uint32_t zero_option_count(void);

/** An option by its index: those of zero_engine_options first, each struct's in the order of its
 *  fields. NULL when out of range.
 *  - Ownership: the library's, for ever.
 *  - Threads: any. */
ZERO_API const zero_option *zero_option_at(uint32_t index);

/** An option by name, where '-' is as good as '_'. NULL for NULL and where there is none.
 *  - Ownership: the library's, for ever.
 *  - Threads: any. */
ZERO_API const zero_option *zero_option_find(const char *name);

/** Set a field from text, as command lines and files give it. Nothing is written on errors.
 *  - options, tuning: the one that has the option is written; filled by their _init() before.
 *  - name: as for zero_option_find.
 *  - text: as the option's kind says; "0" and "default" give a default where one stands for it. Of
 *    TEXT the field points to it, so it stays until the options have been used.
 *  - Local call.
 *  - Errors: INVALID_ARGUMENT naming the option, the text and what would do; UNSUPPORTED where the
 *    struct is an older caller's that lacks the field.
 *  - Threads: any, on structs of their own. */
ZERO_API ZERO_MUST_CHECK zero_status zero_option_set(zero_engine_options *options,
                                                     zero_tuning *tuning, const char *name,
                                                     const char *text);

/** Print a field's value as zero_option_set reads it; a pointer is "set" or "none". Returns the
 *  bytes that the whole text needs without the final NUL; 0, with an empty text, when option is
 *  NULL.
 *  - options, tuning: only the one that has the option is read; NULL: its default.
 *  - text: out, at most text_bytes, NUL at its end; or NULL.
 *  - Local call.
 *  - Threads: any. */
ZERO_API size_t zero_option_print(const zero_option *option, const zero_engine_options *options,
                                  const zero_tuning *tuning, char *text, size_t text_bytes);

ZERO_END

#endif
