/* Owns the choice of OpenBLAS's kernels. Its functions are weak, so that any other CBLAS may be
 * linked in its place. */
#include "gpt2_blas.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

extern char *openblas_get_corename(void) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));
extern void openblas_set_num_threads(int threads) __attribute__((weak));

#define CORETYPE "OPENBLAS_CORETYPE"
/* From the process as it was started to itself run anew: which kernels OpenBLAS took by itself. */
#define REPLACED "GPT2_TRAIN_REPLACED_CORE"

gpt2_vectors gpt2_vectors_here(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        return GPT2_VECTORS_AVX512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return GPT2_VECTORS_AVX2;
    }
    if (__builtin_cpu_supports("avx")) {
        return GPT2_VECTORS_AVX;
    }
#endif
    return GPT2_VECTORS_BASE;
}

gpt2_vectors gpt2_vectors_of_core(const char *core)
{
    static const struct {
        const char *core;
        gpt2_vectors vectors;
    } known[] = {
        {"Unknown", GPT2_VECTORS_BASE},      {"Generic", GPT2_VECTORS_BASE},
        {"Katmai", GPT2_VECTORS_BASE},       {"Coppermine", GPT2_VECTORS_BASE},
        {"Northwood", GPT2_VECTORS_BASE},    {"Prescott", GPT2_VECTORS_BASE},
        {"Banias", GPT2_VECTORS_BASE},       {"Atom", GPT2_VECTORS_BASE},
        {"Core2", GPT2_VECTORS_BASE},        {"Penryn", GPT2_VECTORS_BASE},
        {"Dunnington", GPT2_VECTORS_BASE},   {"Nehalem", GPT2_VECTORS_BASE},
        {"Athlon", GPT2_VECTORS_BASE},       {"Opteron", GPT2_VECTORS_BASE},
        {"Opteron_SSE3", GPT2_VECTORS_BASE}, {"Barcelona", GPT2_VECTORS_BASE},
        {"Nano", GPT2_VECTORS_BASE},         {"Bobcat", GPT2_VECTORS_BASE},
        {"Sandybridge", GPT2_VECTORS_AVX},   {"Bulldozer", GPT2_VECTORS_AVX},
        {"Piledriver", GPT2_VECTORS_AVX},    {"Steamroller", GPT2_VECTORS_AVX},
        {"Haswell", GPT2_VECTORS_AVX2},      {"Excavator", GPT2_VECTORS_AVX2},
        {"Zen", GPT2_VECTORS_AVX2},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcasecmp(core, known[i].core) == 0) {
            return known[i].vectors;
        }
    }
    return GPT2_VECTORS_AVX512;
}

const char *gpt2_core_for(gpt2_vectors vectors)
{
    switch (vectors) {
    case GPT2_VECTORS_AVX:
        return "Sandybridge";
    case GPT2_VECTORS_AVX2:
        return "Haswell";
    case GPT2_VECTORS_AVX512:
        return "SkylakeX";
    case GPT2_VECTORS_BASE:
    default:
        return NULL;
    }
}

/* The kernels that are older than the CPU; NULL: they are not, or nobody can say. */
static const char *older_core(void)
{
    if (openblas_get_corename == NULL) {
        return NULL;
    }
    const char *core = openblas_get_corename();
    return gpt2_vectors_of_core(core) < gpt2_vectors_here() ? core : NULL;
}

void gpt2_blas_start(char **argv)
{
    char path[4096];
    const char *core = getenv(CORETYPE) == NULL ? older_core() : NULL;
    /* Others have kernels for one CPU only. */
    if (core == NULL || openblas_get_config == NULL ||
        strstr(openblas_get_config(), "DYNAMIC_ARCH") == NULL) {
        return;
    }
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) {
        return;
    }
    path[length] = '\0';
    if (setenv(CORETYPE, gpt2_core_for(gpt2_vectors_here()), 1) == 0 &&
        setenv(REPLACED, core, 1) == 0) {
        (void)execv(path, argv);
    }
    /* It goes on as it is, and gpt2_blas_text says so. */
    (void)unsetenv(CORETYPE);
    (void)unsetenv(REPLACED);
}

/* "OpenBLAS 0.3.21 NO_LAPACKE ..." without what follows the version. */
static void print_version(char *text, size_t bytes)
{
    const char *config = openblas_get_config != NULL ? openblas_get_config() : "OpenBLAS";
    const size_t name = strcspn(config, " ");
    const size_t version = config[name] == ' ' ? 1 + strcspn(config + name + 1, " ") : 0;
    (void)snprintf(text, bytes, "%.*s", (int)(name + version), config);
}

const char *gpt2_blas_text(void)
{
    static const char *const names[] = {"", "AVX", "AVX2", "AVX-512"};
    static char text[256];
    char version[64];
    if (openblas_get_corename == NULL) {
        return "the CBLAS that is linked";
    }
    print_version(version, sizeof version);
    const char *replaced = getenv(REPLACED);
    const char *older = older_core();
    if (older != NULL) {
        const bool asked = getenv(CORETYPE) != NULL && replaced == NULL;
        (void)snprintf(text, sizeof text,
                       "%s, %s kernels: slow, they are older than this CPU, which has %s; %s",
                       version, older, names[gpt2_vectors_here()],
                       asked ? "unset " CORETYPE : "use a newer OpenBLAS");
    } else if (replaced != NULL) {
        (void)snprintf(text, sizeof text, "%s, %s kernels (by itself it takes %s)", version,
                       openblas_get_corename(), replaced);
    } else {
        (void)snprintf(text, sizeof text, "%s, %s kernels", version, openblas_get_corename());
    }
    return text;
}

void gpt2_blas_use_threads(unsigned threads)
{
    if (openblas_set_num_threads != NULL) {
        openblas_set_num_threads((int)threads);
    }
}
