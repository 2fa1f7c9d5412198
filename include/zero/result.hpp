/** @file
 *  How failures reach a C++ program: thrown as zero::Error, or returned in a zero::Result.
 *
 *  By default a failing call throws. With ZERO_NO_EXCEPTIONS defined ahead of the include, and with
 *  -fno-exceptions, the same calls return a Result and never throw. Files of both kinds may be
 *  linked into one program.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_RESULT_HPP
#define ZERO_RESULT_HPP

#include "zero/status.h"
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

/** @cond */
#if defined(__cpp_exceptions)
#define ZERO_CPP_CATCHES 1
#else
#define ZERO_CPP_CATCHES 0
#endif
/* Classes whose functions return other types have other names for the linker. */
#if !ZERO_CPP_CATCHES
#define ZERO_CPP_THROWS 0
#define ZERO_CPP_MODE without_exceptions
#elif defined(ZERO_NO_EXCEPTIONS)
#define ZERO_CPP_THROWS 0
#define ZERO_CPP_MODE returning
#else
#define ZERO_CPP_THROWS 1
#define ZERO_CPP_MODE throwing
#endif
/** @endcond */

/** libzero for C++. */
namespace zero
{

/** A failed call: the fields of zero_error, which outlive the thread's next failure. */
class Error : public std::runtime_error
{
  public:
    /** A failure with a record of its own. */
    explicit Error(const zero_error &record)
        : std::runtime_error(record.message), status_(record.status), native_(record.native),
          line_(record.line), of_other_(record.of_other), file_(record.file)
    {
    }

    /** A failure that the library has no record of: `message` says it. */
    Error(zero_status status, const std::string &message, const char *file = "",
          std::int32_t line = 0)
        : std::runtime_error(message), status_(status), line_(line), file_(file)
    {
    }

    /** The calling thread's last failure, if it is of this status. */
    [[nodiscard]] static Error last(zero_status status)
    {
        const zero_error *record = zero_last_error();
        return record->status == status ? Error(*record) : Error(status, zero_status_text(status));
    }

    /** The same failure with a text ahead of its message. */
    [[nodiscard]] Error with_prefix(const std::string &prefix) const
    {
        Error error(status_, prefix + what(), file_, line_);
        error.native_ = native_;
        error.of_other_ = of_other_;
        return error;
    }

    /** The status that the call returned. */
    [[nodiscard]] zero_status status() const noexcept
    {
        return status_;
    }
    /** The status's name, for example "TIMEOUT". */
    [[nodiscard]] const char *name() const noexcept
    {
        return zero_status_name(status_);
    }
    /** Values and remedy, one line; the same as what(). */
    [[nodiscard]] const char *message() const noexcept
    {
        return what();
    }
    /** errno, code of MPI, CUDA or NCCL, or 0. */
    [[nodiscard]] std::int32_t native() const noexcept
    {
        return native_;
    }
    /** The source file where the fault was found. */
    [[nodiscard]] const char *file() const noexcept
    {
        return file_ != nullptr ? file_ : "";
    }
    /** The source line where the fault was found. */
    [[nodiscard]] std::int32_t line() const noexcept
    {
        return line_;
    }
    /** As zero_error.of_other: 0 where the fault was found on this rank. */
    [[nodiscard]] std::uint32_t of_other() const noexcept
    {
        return of_other_;
    }

  private:
    zero_status status_;
    std::int32_t native_ = 0;
    std::int32_t line_ = 0;
    std::uint32_t of_other_ = 0;
    const char *file_ = "";
};

/** Receives a failure that could be neither thrown nor returned. It must not throw. */
using UnreportedFn = void (*)(const Error &error);

/** @cond */
namespace common
{

inline void print_unreported(const Error &error)
{
    (void)std::fprintf(stderr, "zero: %s: %s\n", error.name(), error.what());
}

inline std::atomic<UnreportedFn> unreported_fn{print_unreported};

inline void unreported(const Error &error) noexcept
{
    unreported_fn.load()(error);
}

} // namespace common
/** @endcond */

/** Say who receives failures that can be neither thrown nor returned: a release that fails in a
 *  destructor while an exception is in flight, and exceptions of a log callback. By default they
 *  are a line on stderr. NULL: that again. */
inline void on_unreported(UnreportedFn fn) noexcept
{
    common::unreported_fn.store(fn != nullptr ? fn : common::print_unreported);
}

/** A value, or why there is none. value() of a failed Result ends the program with its message. */
template <class T> class [[nodiscard]] Result
{
  public:
    /** A call that succeeded. */
    Result(T value) : held_(std::in_place_index<0>, std::move(value))
    {
    }
    /** A call that failed. */
    Result(Error error) : held_(std::in_place_index<1>, std::move(error))
    {
    }

    /** True where there is a value. */
    [[nodiscard]] bool ok() const noexcept
    {
        return held_.index() == 0;
    }
    /** As ok(). */
    [[nodiscard]] explicit operator bool() const noexcept
    {
        return ok();
    }
    /** ZERO_OK, or the kind of failure. */
    [[nodiscard]] zero_status status() const noexcept
    {
        return ok() ? ZERO_OK : error().status();
    }
    /** Why there is no value; only where ok() is false. */
    [[nodiscard]] const Error &error() const &noexcept
    {
        const Error *error = std::get_if<1>(&held_);
        if (error == nullptr) {
            (void)std::fputs("zero: error() of a Result that has a value\n", stderr);
            std::abort();
        }
        return *error;
    }
    /** The same, of a temporary: a copy. */
    [[nodiscard]] Error error() &&
    {
        return static_cast<const Result &>(*this).error();
    }
    /** The value; only where ok(). */
    [[nodiscard]] T &value() &noexcept
    {
        must_be_ok();
        return *std::get_if<0>(&held_);
    }
    /** The value; only where ok(). */
    [[nodiscard]] const T &value() const &noexcept
    {
        must_be_ok();
        return *std::get_if<0>(&held_);
    }
    /** The value, moved out; only where ok(). */
    [[nodiscard]] T value() &&
    {
        must_be_ok();
        return std::move(*std::get_if<0>(&held_));
    }
    /** As value(). */
    [[nodiscard]] T &operator*() &noexcept
    {
        return value();
    }
    /** As value(). */
    [[nodiscard]] T operator*() &&
    {
        return std::move(*this).value();
    }
    /** A member of the value. */
    [[nodiscard]] T *operator->() noexcept
    {
        return &value();
    }

  private:
    void must_be_ok() const noexcept
    {
        if (!ok()) {
            common::unreported(error());
            std::abort();
        }
    }

    std::variant<T, Error> held_;
};

/** The outcome of a call that gives nothing back. */
template <> class [[nodiscard]] Result<void>
{
  public:
    /** A call that succeeded. */
    Result() = default;
    /** A call that failed. */
    Result(Error error) : held_(std::in_place_index<1>, std::move(error))
    {
    }

    /** True where the call succeeded. */
    [[nodiscard]] bool ok() const noexcept
    {
        return held_.index() == 0;
    }
    /** As ok(). */
    [[nodiscard]] explicit operator bool() const noexcept
    {
        return ok();
    }
    /** ZERO_OK, or the kind of failure. */
    [[nodiscard]] zero_status status() const noexcept
    {
        return ok() ? ZERO_OK : error().status();
    }
    /** Why the call failed; only where ok() is false. */
    [[nodiscard]] const Error &error() const &noexcept
    {
        const Error *error = std::get_if<1>(&held_);
        if (error == nullptr) {
            (void)std::fputs("zero: error() of a Result that did not fail\n", stderr);
            std::abort();
        }
        return *error;
    }
    /** The same, of a temporary: a copy. */
    [[nodiscard]] Error error() &&
    {
        return static_cast<const Result &>(*this).error();
    }

  private:
    std::variant<std::monostate, Error> held_;
};

inline namespace ZERO_CPP_MODE
{

/** The type of a call's result: T itself where failures are thrown, else Result<T>. */
#if ZERO_CPP_THROWS
template <class T> using Outcome = T;
#else
template <class T> using Outcome = Result<T>;
#endif

/** @cond */
namespace detail
{

using common::unreported;

template <class T> [[nodiscard]] Outcome<T> failure(Error error)
{
#if ZERO_CPP_THROWS
    throw error;
#else
    return Outcome<T>(std::move(error));
#endif
}

inline Outcome<void> done(zero_status status)
{
    if (status != ZERO_OK) {
#if ZERO_CPP_THROWS
        throw Error::last(status);
#else
        return Error::last(status);
#endif
    }
    return Outcome<void>();
}

/* Gives what make() does, where the call before it succeeded. */
template <class Make> auto give(zero_status status, Make make) -> Outcome<decltype(make())>
{
    if (status != ZERO_OK) {
        return failure<decltype(make())>(Error::last(status));
    }
    return Outcome<decltype(make())>(make());
}

/* An owner of what the C functions create and destroy, or a name for what others own. */
template <class T, void (*destroy)(T *)> class Handle
{
  public:
    Handle() = default;
    Handle(T *pointer, bool owned) noexcept : pointer_(pointer), owned_(owned)
    {
    }
    Handle(Handle &&other) noexcept
        : pointer_(std::exchange(other.pointer_, nullptr)),
          owned_(std::exchange(other.owned_, false))
    {
    }
    Handle &operator=(Handle &&other) noexcept
    {
        Handle moved(std::move(other));
        std::swap(pointer_, moved.pointer_);
        std::swap(owned_, moved.owned_);
        return *this;
    }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    ~Handle()
    {
        if (owned_) {
            destroy(pointer_);
        }
    }
    [[nodiscard]] T *get() const noexcept
    {
        return pointer_;
    }
    [[nodiscard]] bool owned() const noexcept
    {
        return owned_;
    }

  private:
    T *pointer_ = nullptr;
    bool owned_ = false;
};

/* Tells the object that has it whether an exception ends its scope. A moved object has the scope of
 * its new place. */
class Scope
{
  public:
    Scope() noexcept = default;
    Scope(const Scope &) noexcept : Scope()
    {
    }
    Scope &operator=(const Scope &) noexcept
    {
        return *this;
    }
    [[nodiscard]] bool unwinding() const noexcept
    {
        return std::uncaught_exceptions() > exceptions_;
    }

  private:
    int exceptions_ = std::uncaught_exceptions();
};

} // namespace detail
/** @endcond */

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
