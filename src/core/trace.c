/* Owns the spans of the calling thread. */
#include "core/trace.h"

#include <stddef.h>

#include "core/check.h"

#ifdef ZI_WITH_NVTX

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain; /* NULL: no profiler */

static void open_domain(void)
{
    domain = nvtxDomainCreateA("libzero");
    for (uint32_t i = 0; i < ZI_SPAN_COUNT && domain != NULL; i++) {
        nvtxDomainNameCategoryA(domain, i + 1, zi_span_text((zi_span)i)); /* 0 is no category */
    }
}

static void push_range(zi_span span, const char *name)
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

static void pop_range(void)
{
    if (domain != NULL) {
        (void)nvtxDomainRangePop(domain);
    }
}

#else

static void push_range(zi_span span, const char *name)
{
    (void)span;
    (void)name;
}

static void pop_range(void)
{
}

#endif

void zi_span_begin(zi_timeline *timeline, zi_span span, const char *name)
{
    push_range(span, name);
    if (timeline != NULL) {
        zi_assert_cmp(timeline->depth, <, ZI_SPAN_DEPTH);
        timeline->open[timeline->depth++] =
            zi_timeline_begin(timeline, ZI_TRACK_HOST, span, name, 0);
    }
}

void zi_span_end(zi_timeline *timeline)
{
    pop_range();
    if (timeline != NULL) {
        zi_timeline_end(timeline, timeline->open[--timeline->depth]);
    }
}
