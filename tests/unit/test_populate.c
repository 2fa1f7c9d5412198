/* core: memory whose pages are not to be had is refused when it is allocated. What the kernel says
 * when it is asked for pages is made up (--wrap). */
#include <errno.h>
#include <sys/mman.h>

#include "core/memory.h"
#include "harness.h"

/* The kernel's answers, one after the other; the last one stays. */
static const int *answers;
static int asked;

int __real_madvise(void *pointer, size_t bytes, int advice);
int __wrap_madvise(void *pointer, size_t bytes, int advice);

int __wrap_madvise(void *pointer, size_t bytes, int advice)
{
    if (advice != MADV_POPULATE_WRITE || answers == NULL) {
        return __real_madvise(pointer, bytes, advice);
    }
    asked++;
    const int code = *answers;
    answers += code == EINTR || code == EAGAIN;
    errno = code;
    return code == 0 ? 0 : -1;
}

static zero_status alloc_when(const int *codes, void **memory)
{
    answers = codes;
    asked = 0;
    return zi_pages_alloc(2 * ZI_PAGE_BYTES, memory);
}

TEST(pages_that_are_not_to_be_had_are_refused)
{
    static const int codes[][1] = {{ENOMEM}, {EFAULT}, {EHWPOISON}};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        void *memory = NULL;
        CHECK_FAILS(alloc_when(codes[i], &memory), ZERO_ERR_OUT_OF_MEMORY, strerror(codes[i][0]));
        CHECK_EQ(zero_last_error()->native, codes[i][0]);
        CHECK(memory == NULL);
        CHECK_EQ(asked, 1);
    }
}

TEST(an_interrupted_kernel_is_asked_again)
{
    static const int codes[] = {EINTR, EAGAIN, EINTR, 0};
    void *memory = NULL;
    CHECK_OK(alloc_when(codes, &memory));
    CHECK_EQ(asked, 4);
    zi_pages_free(memory, 2 * ZI_PAGE_BYTES);
}

TEST(a_kernel_that_cannot_is_no_error)
{
    static const int codes[] = {EINVAL};
    void *memory = NULL;
    CHECK_OK(alloc_when(codes, &memory));
    memset(memory, 1, 2 * ZI_PAGE_BYTES);
    zi_pages_free(memory, 2 * ZI_PAGE_BYTES);
}
