/* Spans of host time that a profiler shows: NVTX ranges of the domain "libzero" where the build has
 * NVTX (it comes with the CUDA toolkit), else nothing. Without a profiler a span costs a load. */
#ifndef ZI_CORE_TRACE_H
#define ZI_CORE_TRACE_H

/* X(name, text): what a span is about; a category of NVTX. */
#define ZI_SPANS(X)                     \
    X(ACQUIRE, "acquire")               \
    X(RELEASE, "release")               \
    X(PARAMS_ACQUIRE, "params acquire") \
    X(PARAMS_RELEASE, "params release") \
    X(GRADS_ACQUIRE, "grads acquire")   \
    X(GRADS_READY, "grads ready")       \
    X(MICRO_BEGIN, "micro begin")       \
    X(MICRO_END, "micro end")           \
    X(STEP, "step")                     \
    X(COLLECTIVE, "collective")

#define ZI_SPAN_ROW(name, text) ZI_SPAN_##name,
typedef enum zi_span { ZI_SPANS(ZI_SPAN_ROW) ZI_SPAN_COUNT } zi_span;
#undef ZI_SPAN_ROW

/* Spans of a thread nest. name: a unit's or a group's; read before return. */
void zi_span_begin(zi_span span, const char *name);
void zi_span_end(void);

#endif
