/* Where the library is built without jansson. */
#include "core/error.h"
#include "zero/cluster.h"
#include "zero/transformer.h"

static zero_status json_none_refuse(const char *path, const void *out)
{
    if (path == NULL || out == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is NULL",
                path == NULL ? "path" : "the struct to fill");
    }
    ZI_FAIL(ZERO_ERR_UNSUPPORTED, "%s cannot be read: this library was built without jansson",
            path);
}

zero_status zero_transformer_read(const char *path, zero_transformer *transformer)
{
    return json_none_refuse(path, transformer);
}

zero_status zero_cluster_read(const char *path, zero_cluster *cluster)
{
    return json_none_refuse(path, cluster);
}
