/* Owns the end of a table of kernels, for every device. */
#include "kernels/kernels.h"

void zi_kernels_destroy(zi_kernels *kernels)
{
    if (kernels->ops != NULL) {
        kernels->ops->destroy(kernels->self);
    }
    *kernels = (zi_kernels){0};
}
