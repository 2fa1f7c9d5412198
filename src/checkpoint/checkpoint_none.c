/* Where the library is built without jansson. */
#include "checkpoint/checkpoint_weights.h"
#include "checkpoint/manifest.h"
#include "core/error.h"

static zero_status checkpoint_none_refuse(const char *path)
{
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "%.150s cannot be read: this library was built without jansson; build with "
            "-Djson=enabled",
            path);
}

zero_status zi_manifest_read(zi_manifest *manifest, const char *folder)
{
    *manifest = (zi_manifest){0};
    return checkpoint_none_refuse(folder);
}

void zi_manifest_free(zi_manifest *manifest)
{
    (void)manifest;
}

zero_status zi_checkpoint_weights_read(zi_checkpoint_weights *weights, const char *path)
{
    *weights = (zi_checkpoint_weights){0};
    return checkpoint_none_refuse(path);
}

void zi_checkpoint_weights_free(zi_checkpoint_weights *weights)
{
    (void)weights;
}
