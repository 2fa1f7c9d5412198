/** @file
 *  zero/unit.h in C++: an acquired unit, which is released where its scope ends.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_UNIT_HPP
#define ZERO_UNIT_HPP

#include "zero/array.hpp"
#include "zero/result.hpp"
#include "zero/stream.h"
#include "zero/unit.h"
#include <cstdint>
#include <string>
#include <utility>

namespace zero
{

/** The caller's use of a unit: zero_pass. */
enum class Pass {
    none = ZERO_PASS_NONE,         /**< forward where a micro-step is open, else eval */
    forward = ZERO_PASS_FORWARD,   /**< forward of a micro-step */
    backward = ZERO_PASS_BACKWARD, /**< backward of a micro-step */
    eval = ZERO_PASS_EVAL          /**< forward outside any micro-step */
};

/** Which micro-step of a step one is: zero_micro. */
enum class Micro {
    earlier = ZERO_MICRO_EARLIER, /**< others follow before the step */
    last = ZERO_MICRO_LAST        /**< the step follows */
};

inline namespace ZERO_CPP_MODE
{

class Engine;

/** A unit from Engine::acquire until it is released: by release(), or where the object ends.
 *
 *  Where failures are thrown the destructor throws the one of a release that fails. It cannot while
 *  an exception is in flight, nor where failures are returned: on_unreported() gets it then. Call
 *  release() to see the failure yourself.
 *
 *  If an exception leaves the scope in Pass::backward the unit is not released, since that would
 *  declare an incomplete gradient complete. Engine::micro_abandon drops the step and releases it.
 *
 *  Moved, never copied; null after a move. An assignment releases the unit that was held before. It
 *  ends before its engine does. */
class [[nodiscard]] Unit
{
  public:
    /** Null. */
    Unit() = default;
    /** The other is null afterwards. */
    Unit(Unit &&other) noexcept
        : engine_(std::exchange(other.engine_, nullptr)),
          view_(std::exchange(other.view_, nullptr)), stream_(other.stream_), index_(other.index_),
          pass_(other.pass_)
    {
    }
    /** Releases what was held before, as the destructor does. */
    Unit &operator=(Unit &&other) noexcept(!ZERO_CPP_THROWS)
    {
        Unit moved(std::move(other));
        std::swap(engine_, moved.engine_);
        std::swap(view_, moved.view_);
        std::swap(stream_, moved.stream_);
        std::swap(index_, moved.index_);
        std::swap(pass_, moved.pass_);
        return *this;
    }
    Unit(const Unit &) = delete;
    Unit &operator=(const Unit &) = delete;
    ~Unit() noexcept(!ZERO_CPP_THROWS)
    {
        if (engine_ == nullptr || (pass_ == Pass::backward && scope_.unwinding())) {
            return;
        }
        const zero_status status = zero_unit_release(engine_, index_, stream_);
        if (status == ZERO_OK) {
            return;
        }
#if ZERO_CPP_THROWS
        if (!scope_.unwinding()) {
            throw Error::last(status);
        }
#endif
        detail::unreported(Error::last(status));
    }

    /** Release it now, whatever comes of it: zero_unit_release. Its views are invalid.
     *  - Errors: those of zero_unit_release; STATE where it was released before, or moved. */
    Outcome<void> release()
    {
        if (engine_ == nullptr) {
            return detail::failure<void>(gone());
        }
        const zero_status status =
            zero_unit_release(std::exchange(engine_, nullptr), index_, stream_);
        view_ = nullptr;
        return detail::done(status);
    }

    /** Forget it without releasing it: Engine::micro_abandon has, or will. */
    void detach() noexcept
    {
        engine_ = nullptr;
        view_ = nullptr;
    }

    /** False after a release, a detach and a move. */
    [[nodiscard]] explicit operator bool() const noexcept
    {
        return engine_ != nullptr;
    }
    /** The unit's index. */
    [[nodiscard]] std::uint32_t index() const noexcept
    {
        return index_;
    }
    /** Its own tensors and those that it ties to; 0 of a null object. */
    [[nodiscard]] std::uint32_t tensor_count() const noexcept
    {
        return view_ != nullptr ? view_->tensor_count : 0;
    }
    /** The views of C; NULL of a null object. */
    [[nodiscard]] const zero_unit_view *get() const noexcept
    {
        return view_;
    }

    /** A tensor's elements, by its place in the unit.
     *  - Errors: INVALID_ARGUMENT for another dtype than T's, and beyond tensor_count(). */
    template <class T> [[nodiscard]] Outcome<Span<const T>> param(std::uint32_t tensor) const &
    {
        if (tensor >= tensor_count()) {
            return detail::failure<Span<const T>>(no_tensor(tensor));
        }
        return detail::typed<const T>(view_->params[tensor],
                                      [&] { return whose("parameter", tensor); });
    }

    /** A tensor's gradient, to be added to. Empty for a frozen tensor.
     *  - Errors: as of param; STATE outside backward. */
    template <class T> [[nodiscard]] Outcome<Span<T>> grad(std::uint32_t tensor) const &
    {
        if (tensor >= tensor_count()) {
            return detail::failure<Span<T>>(no_tensor(tensor));
        }
        if (view_->grads == nullptr) {
            return detail::failure<Span<T>>(Error(
                ZERO_ERR_STATE,
                whose("gradient", tensor) + " is not there; acquire the unit with Pass::backward",
                __FILE__, __LINE__));
        }
        if (view_->grads[tensor].dtype == ZERO_DTYPE_NONE) {
            return Outcome<Span<T>>(Span<T>());
        }
        return detail::typed<T>(view_->grads[tensor], [&] { return whose("gradient", tensor); });
    }

    /** Not of a temporary, which is released before the view is used: give the unit a name. */
    template <class T> Outcome<Span<const T>> param(std::uint32_t tensor) const && = delete;
    /** As param. */
    template <class T> Outcome<Span<T>> grad(std::uint32_t tensor) const && = delete;

  private:
    friend class Engine;
    Unit(zero_engine *engine, const zero_unit_view *view, std::uint32_t index, Pass pass,
         zero_stream stream) noexcept
        : engine_(engine), view_(view), stream_(stream), index_(index), pass_(pass)
    {
    }

    std::string whose(const char *what, std::uint32_t tensor) const
    {
        return std::string(what) + " " + std::to_string(tensor) + " of unit " +
               std::to_string(index_);
    }

    static Error gone()
    {
        return Error(ZERO_ERR_STATE, "the unit was released or moved; acquire it again", __FILE__,
                     __LINE__);
    }

    Error no_tensor(std::uint32_t tensor) const
    {
        if (view_ == nullptr) {
            return gone();
        }
        return Error(ZERO_ERR_INVALID_ARGUMENT,
                     "unit " + std::to_string(index_) + " has no tensor " + std::to_string(tensor) +
                         "; give a number below " + std::to_string(tensor_count()),
                     __FILE__, __LINE__);
    }

    zero_engine *engine_ = nullptr;
    const zero_unit_view *view_ = nullptr;
    zero_stream stream_ = {};
    std::uint32_t index_ = 0;
    Pass pass_ = Pass::none;
    detail::Scope scope_;
};

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
