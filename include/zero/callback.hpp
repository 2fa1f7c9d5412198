/** @file
 *  Callbacks that may throw, below frames of C that must not be unwound.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_CALLBACK_HPP
#define ZERO_CALLBACK_HPP

#include "zero/log.h"
#include "zero/result.hpp"
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace zero
{
inline namespace ZERO_CPP_MODE
{

/** @cond */
namespace detail
{

/* The first failure of callbacks, which several threads may run. */
class Caught
{
  public:
    [[nodiscard]] bool any() const noexcept
    {
        return any_.load(std::memory_order_acquire);
    }

    void keep(Error error)
    {
        const std::lock_guard<std::mutex> lock(lock_);
        if (!any()) {
            error_ = std::move(error);
            any_.store(true, std::memory_order_release);
        }
    }

    void keep_exception(std::exception_ptr exception, Error error)
    {
        const std::lock_guard<std::mutex> lock(lock_);
        if (!any()) {
            exception_ = std::move(exception);
            error_ = std::move(error);
            any_.store(true, std::memory_order_release);
        }
    }

    /* Only where any(): throws what was caught, or returns it. */
    template <class T> [[nodiscard]] Outcome<T> fail() const
    {
#if ZERO_CPP_THROWS
        if (exception_ != nullptr) {
            std::rethrow_exception(exception_);
        }
#endif
        return failure<T>(*error_);
    }

    /* Only where any(). */
    [[nodiscard]] const Error &error() const noexcept
    {
        return *error_;
    }

  private:
    std::mutex lock_;
    std::atomic<bool> any_{false};
    std::exception_ptr exception_;
    std::optional<Error> error_;
};

/* Run fn. What it throws goes to on_error, if it is an Error, or is kept. */
template <class Fn, class OnError> void run_caught(Caught &caught, Fn fn, OnError on_error) noexcept
{
#if ZERO_CPP_CATCHES
    try {
        fn();
    } catch (const Error &error) {
        on_error(error);
    } catch (const std::exception &other) {
        caught.keep_exception(std::current_exception(), Error(ZERO_ERR_STATE, other.what()));
    } catch (...) {
        caught.keep_exception(std::current_exception(),
                              Error(ZERO_ERR_STATE, "a callback threw no std::exception"));
    }
#else
    (void)caught;
    (void)on_error;
    fn();
#endif
}

template <class Fn> void run_caught(Caught &caught, Fn fn) noexcept
{
    run_caught(caught, fn, [&caught](const Error &error) {
        caught.keep_exception(std::current_exception(), error);
    });
}

} // namespace detail
/** @endcond */

/** Receives one message of the library. */
using LogFn = std::function<void(zero_log_level level, const char *message)>;

/** Send messages to `fn`, or nowhere where it is empty: zero_log_set. An exception that leaves it
 *  goes to on_unreported(). Meant to be called once, at start. */
inline void log_set(LogFn fn)
{
    /* Never destroyed: threads of the library may log as long as the process lives. */
    static auto *current = new std::shared_ptr<LogFn>;
    static auto *lock = new std::mutex;
    const std::lock_guard<std::mutex> locked(*lock);
    if (!fn) {
        zero_log_set(nullptr, nullptr);
        current->reset();
        return;
    }
    auto next = std::make_shared<LogFn>(std::move(fn));
    zero_log_set(
        [](void *user, zero_log_level level, const char *message) {
            detail::Caught caught;
            detail::run_caught(
                caught, [&] { (*static_cast<LogFn *>(user))(level, message); }, detail::unreported);
            if (caught.any()) {
                detail::unreported(caught.error());
            }
        },
        next.get());
    *current = std::move(next); /* no call of the one before is under way */
}

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
