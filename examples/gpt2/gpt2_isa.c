/* Chooses among the tables that gpt2_ops.c was compiled to. */
#include "gpt2_ops.h"

extern const gpt2_ops gpt2_ops_base;
#ifdef GPT2_HAVE_X86_TABLES
extern const gpt2_ops gpt2_ops_avx2;
extern const gpt2_ops gpt2_ops_avx512;
#endif

const gpt2_ops *gpt2_ops_table(size_t index)
{
#ifdef GPT2_HAVE_X86_TABLES
    if (index == 1) {
        return __builtin_cpu_supports("avx2") ? &gpt2_ops_avx2 : NULL;
    }
    if (index == 2) {
        const int runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return runs ? &gpt2_ops_avx512 : NULL;
    }
#endif
    return index == 0 ? &gpt2_ops_base : NULL;
}

const gpt2_ops *gpt2_ops_best(void)
{
    for (size_t index = GPT2_OPS_TABLES - 1; index > 0; index--) {
        const gpt2_ops *table = gpt2_ops_table(index);
        if (table != NULL) {
            return table;
        }
    }
    return gpt2_ops_table(0);
}
