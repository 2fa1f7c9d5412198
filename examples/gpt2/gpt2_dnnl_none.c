/* oneDNN's products in a build without it. */
#include "gpt2_dnnl.h"

bool gpt2_dnnl_is_fast(void)
{
    return false;
}

const char *gpt2_dnnl_text(char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "no oneDNN");
    return text;
}

zero_status gpt2_dnnl_create(const gpt2_ops *ops, const size_t counts[2], uint32_t threads,
                             gpt2_error *error, gpt2_dnnl **dnnl)
{
    (void)ops;
    (void)counts;
    (void)threads;
    *dnnl = NULL;
    (void)gpt2_fail(error, "--products dnnl: this program was built without oneDNN; install it "
                           "(Debian: libdnnl-dev) and configure again with -Ddnnl=enabled, or use "
                           "--products blas");
    return ZERO_ERR_UNSUPPORTED;
}

void gpt2_dnnl_destroy(gpt2_dnnl *dnnl)
{
    (void)dnnl;
}

gpt2_multiplier *gpt2_dnnl_multiplier(gpt2_dnnl *dnnl)
{
    (void)dnnl;
    return NULL;
}

zero_status gpt2_dnnl_status(const gpt2_dnnl *dnnl, gpt2_error *error)
{
    (void)dnnl;
    (void)error;
    return ZERO_ERR_UNSUPPORTED;
}
