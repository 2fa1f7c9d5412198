/* The tests of the C++ headers: CASE(name) { CHECK(...); } registers itself. They run in order, in
 * one process; the last line is "N passed, N failed, N skipped". It is C++ without exceptions too,
 * which harness.h is not. */
#ifndef TESTS_CPP_CHECK_HPP
#define TESTS_CPP_CHECK_HPP

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>
#include <zero/zero.hpp>

struct Case {
    const char *name;
    void (*run)();
};

inline std::vector<Case> cases;
inline std::atomic<int> failed_checks{0}; /* ranks are threads */

struct Registered {
    Registered(const char *name, void (*run)())
    {
        cases.push_back({name, run});
    }
};

#define CASE(name)                                              \
    static void case_##name();                                  \
    static const Registered case_of_##name(#name, case_##name); \
    static void case_##name()

inline void fail_at(const char *file, int line, const std::string &text)
{
    failed_checks++;
    std::fprintf(stderr, "  %s:%d: %s\n", file, line, text.c_str());
}

#define CHECK(condition)                                          \
    do {                                                          \
        if (!(condition)) {                                       \
            fail_at(__FILE__, __LINE__, "not true: " #condition); \
        }                                                         \
    } while (0)

/* That an Error has this status, and this text in its message. */
#define CHECK_ERROR(error, wanted, text)                                                         \
    do {                                                                                         \
        const zero::Error &error_ = (error);                                                     \
        if (error_.status() != (wanted) ||                                                       \
            std::string(error_.what()).find(text) == std::string::npos) {                        \
            fail_at(__FILE__, __LINE__,                                                          \
                    std::string("an error ") + error_.name() + ": " + error_.what() + ", not " + \
                        zero_status_name(wanted) + " with \"" + (text) + "\"");                  \
        }                                                                                        \
    } while (0)

#if defined(__cpp_exceptions)
/* That a call throws an Error of this status, with this text. */
#define CHECK_THROWS(call, wanted, text)                                 \
    do {                                                                 \
        bool threw_ = false;                                             \
        try {                                                            \
            (void)(call);                                                \
        } catch (const zero::Error &caught_) {                           \
            threw_ = true;                                               \
            CHECK_ERROR(caught_, wanted, text);                          \
        }                                                                \
        if (!threw_) {                                                   \
            fail_at(__FILE__, __LINE__, "nothing was thrown by " #call); \
        }                                                                \
    } while (0)
#endif

inline void run_case(const Case &test)
{
#if defined(__cpp_exceptions)
    try {
        test.run();
    } catch (const std::exception &error) {
        fail_at(test.name, 0, std::string("threw: ") + error.what());
    }
#else
    test.run();
#endif
}

/* A program of several files has its main in one. */
#if !defined(CHECK_NO_MAIN)
int main()
{
    int failed = 0;
    for (const Case &test : cases) {
        failed_checks = 0;
        run_case(test);
        failed += failed_checks > 0;
        std::printf("%-8s%s\n", failed_checks > 0 ? "FAILED" : "ok", test.name);
    }
    const int count = static_cast<int>(cases.size());
    std::printf("%d passed, %d failed, 0 skipped\n", count - failed, failed);
    return failed > 0 || count == 0;
}
#endif

#endif
