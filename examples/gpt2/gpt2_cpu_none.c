/* The CPU's table in a build without any CBLAS. */
#include "gpt2_backend.h"

const gpt2_backend *gpt2_cpu_backend(gpt2_error *error)
{
    (void)gpt2_fail(error, "--device cpu: this program was built without a CBLAS; install one "
                           "(Debian: libopenblas-dev) and configure again, or use --device cuda");
    return NULL;
}
