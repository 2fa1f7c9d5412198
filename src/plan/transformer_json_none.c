/* Where the library is built without jansson. */
#include "core/error.h"
#include "zero/transformer.h"

zero_status zero_transformer_read(const char *path, zero_transformer *transformer)
{
    if (path == NULL || transformer == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "path or transformer is NULL");
    }
    ZI_FAIL(ZERO_UNSUPPORTED, "%s cannot be read: this library was built without jansson", path);
}
