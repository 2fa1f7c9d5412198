/* device: says that a build without CUDA has no CUDA device to test. */
#include "harness.h"

TEST(the_cuda_device)
{
    SKIP("built without CUDA");
}
