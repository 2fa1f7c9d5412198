/* CUDA's table in a build without CUDA or without cuBLASLt. */
#include "gpt2_backend.h"

const gpt2_backend *gpt2_cuda_backend(gpt2_error *error)
{
    (void)gpt2_fail(error, "--device cuda: this program was built without CUDA; install the CUDA "
                           "toolkit with cuBLASLt and configure again with -Dcuda=enabled "
                           "-Dgpu_toolkit=FOLDER, or use --device cpu");
    return NULL;
}
