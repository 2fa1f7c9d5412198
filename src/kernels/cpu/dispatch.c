/* Owns the choice of instruction set. Invariant: a table is offered only when every instruction in
 * it runs on this machine; all tables give the same bits, so the choice can show in speed alone. */
#include <stdatomic.h>

#include "core/check.h"
#include "kernels/cpu/lanes.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define HAS_X86_LANES 1
#else
#define HAS_X86_LANES 0
#endif

#define LANES_MAX 3

/* 1 + the selected index; 0: the last table. */
static atomic_uint selected;

#if HAS_X86_LANES
/* Conversions of binary16, which clang 14 knows no name of. Whether the system keeps the registers
 * is in the answer to avx2. Asked once: under a hypervisor the instruction takes microseconds. */
static int runs_f16c(void)
{
    enum { UNKNOWN = 0, ABSENT = 1, PRESENT = 2 };
    static atomic_int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == UNKNOWN) {
        unsigned a = 0;
        unsigned b = 0;
        unsigned c = 0;
        unsigned d = 0;
        const int told = __get_cpuid(1, &a, &b, &c, &d);
        answer = told != 0 && (c & bit_F16C) != 0 ? PRESENT : ABSENT;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == PRESENT;
}

static int runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && runs_f16c();
}

static int runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

/* Fills the tables in ascending speed and returns how many there are. */
static uint32_t lanes_list(const zi_cpu_lanes *tables[LANES_MAX])
{
    uint32_t count = 0;
    tables[count++] = &zi_cpu_lanes_generic;
#if HAS_X86_LANES
    if (runs_avx2()) {
        tables[count++] = &zi_cpu_lanes_avx2;
    }
    if (runs_avx512()) {
        tables[count++] = &zi_cpu_lanes_avx512;
    }
#endif
    return count;
}

uint32_t zi_cpu_lanes_count(void)
{
    const zi_cpu_lanes *tables[LANES_MAX];
    return lanes_list(tables);
}

const zi_cpu_lanes *zi_cpu_lanes_at(uint32_t index)
{
    const zi_cpu_lanes *tables[LANES_MAX];
    zi_assert_cmp(index, <, lanes_list(tables));
    return tables[index];
}

const zi_cpu_lanes *zi_cpu_lanes_current(void)
{
    const zi_cpu_lanes *tables[LANES_MAX];
    const uint32_t count = lanes_list(tables);
    const uint32_t choice = atomic_load_explicit(&selected, memory_order_relaxed);
    return tables[choice == 0 ? count - 1 : choice - 1];
}

void zi_cpu_lanes_select(uint32_t index)
{
    zi_assert_cmp(index, <, zi_cpu_lanes_count());
    atomic_store_explicit(&selected, index + 1, memory_order_relaxed);
}
