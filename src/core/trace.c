/* Owns the spans. */
#include "core/trace.h"

#ifdef ZI_WITH_NVTX

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain; /* NULL: no profiler */

static void open_domain(void)
{
#define ZI_SPAN_ROW(name, text) text,
    static const char *const names[] = {ZI_SPANS(ZI_SPAN_ROW)};
#undef ZI_SPAN_ROW
    domain = nvtxDomainCreateA("libzero");
    for (uint32_t i = 0; i < ZI_SPAN_COUNT && domain != NULL; i++) {
        nvtxDomainNameCategoryA(domain, i + 1, names[i]); /* 0 is no category */
    }
}

void zi_span_begin(zi_span span, const char *name)
{
    (void)pthread_once(&once, open_domain);
    if (domain == NULL) {
        return;
    }
    const nvtxEventAttributes_t attributes = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .category = (uint32_t)span + 1,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message = {.ascii = name},
    };
    (void)nvtxDomainRangePushEx(domain, &attributes);
}

void zi_span_end(void)
{
    if (domain != NULL) {
        (void)nvtxDomainRangePop(domain);
    }
}

#else

void zi_span_begin(zi_span span, const char *name)
{
    (void)span;
    (void)name;
}

void zi_span_end(void)
{
}

#endif
