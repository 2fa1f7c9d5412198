/** @file
 *  Elements with a C++ type: views of the library's memory, and the caller's arrays.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_ARRAY_HPP
#define ZERO_ARRAY_HPP

#include "zero/array.h"
#include "zero/dtype.h"
#include "zero/result.hpp"
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#if __cplusplus >= 202002L && defined(__has_include)
#if __has_include(<span>)
#include <span>
#endif
#endif

namespace zero
{

#if defined(__cpp_lib_span)
/** Neighbouring elements: std::span where the C++ library has it. */
template <class T> using Span = std::span<T>;
#else
/** Neighbouring elements: std::span where the C++ library has it, else this. */
template <class T> class Span
{
  public:
    /** No elements. */
    Span() = default;
    /** `size` elements from `data` on. */
    Span(T *data, std::size_t size) noexcept : data_(data), size_(size)
    {
    }
    /** The first element. */
    [[nodiscard]] T *data() const noexcept
    {
        return data_;
    }
    /** Number of elements. */
    [[nodiscard]] std::size_t size() const noexcept
    {
        return size_;
    }
    /** True where there are none. */
    [[nodiscard]] bool empty() const noexcept
    {
        return size_ == 0;
    }
    /** One of them. */
    [[nodiscard]] T &operator[](std::size_t index) const noexcept
    {
        return data_[index];
    }
    /** The first element. */
    [[nodiscard]] T *begin() const noexcept
    {
        return data_;
    }
    /** The end of the elements. */
    [[nodiscard]] T *end() const noexcept
    {
        return data_ + size_;
    }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};
#endif

/** The bits of a bfloat16, for programs without a type of their own for it. */
struct bf16 {
    std::uint16_t bits; /**< the upper half of a binary32 */
};

/** The bits of an IEEE binary16, for programs without a type of their own for it. */
struct f16 {
    std::uint16_t bits; /**< of the binary16 */
};

/** The dtype of a C++ type. Specialise it for your own, for example CUDA's:
 *
 *      template <> struct zero::Element<__nv_bfloat16> {
 *          static constexpr zero_dtype dtype = ZERO_DTYPE_BF16;
 *      }; */
template <class T> struct Element {
    static constexpr zero_dtype dtype = ZERO_DTYPE_NONE; /**< NONE: not the type of an element */
};
/** @cond */
template <> struct Element<float> {
    static constexpr zero_dtype dtype = ZERO_DTYPE_F32;
};
template <> struct Element<bf16> {
    static constexpr zero_dtype dtype = ZERO_DTYPE_BF16;
};
template <> struct Element<f16> {
    static constexpr zero_dtype dtype = ZERO_DTYPE_F16;
};
/** @endcond */

/** A C++ type's dtype; a compile-time error for a type that has none. */
template <class T> constexpr zero_dtype dtype_of() noexcept
{
    constexpr zero_dtype dtype = Element<std::remove_cv_t<T>>::dtype;
    static_assert(dtype != ZERO_DTYPE_NONE,
                  "elements are float, zero::bf16 or zero::f16; specialise zero::Element for a "
                  "type of your own");
    static_assert(sizeof(T) == (dtype == ZERO_DTYPE_F32 ? 4 : 2),
                  "zero::Element names a dtype of another size");
    return dtype;
}

/** The caller's elements that tensors are set from: a pointer, its type, and how many there are,
 *  so that an array of another size than its tensor is an error. Not copied. */
class Array
{
  public:
    /** No values. */
    Array() = default;
    /** `count` elements from `data` on. */
    template <class T>
    Array(const T *data, std::uint64_t count) noexcept : counted_(true), count_(count)
    {
        array_.data = const_cast<T *>(data); /* only read */
        array_.dtype = dtype_of<T>();
    }
    /** A vector, a span or another container whose elements lie end to end. */
    template <class C, class = decltype(std::declval<const C &>().data())>
    Array(C &&container) noexcept : Array(container.data(), container.size())
    {
        static_assert(std::is_lvalue_reference_v<C> || std::is_trivially_copyable_v<C>,
                      "values are read later than this: give the container a name");
    }
    /** An array of C. */
    template <class T, std::size_t count>
    Array(const T (&data)[count]) noexcept : Array(data, std::uint64_t{count})
    {
    }
    /** A strided part of an array, whose size is not checked. */
    explicit Array(const zero_array &array) noexcept : array_(array)
    {
    }

    /** As the C functions take it. */
    [[nodiscard]] const zero_array &c_array() const noexcept
    {
        return array_;
    }
    /** False where there are other elements than `wanted`, and it is known how many. */
    [[nodiscard]] bool fits(std::uint64_t wanted) const noexcept
    {
        return !counted_ || count_ == wanted;
    }
    /** Number of elements; 0 of a strided array. */
    [[nodiscard]] std::uint64_t count() const noexcept
    {
        return count_;
    }

  private:
    zero_array array_ = {};
    bool counted_ = false;
    std::uint64_t count_ = 0;
};

inline namespace ZERO_CPP_MODE
{

/** @cond */
namespace detail
{

/* The view's elements as T; whose() names them in the error. */
template <class T, class Whose> Outcome<Span<T>> typed(const zero_view &view, Whose whose)
{
    if (view.dtype != dtype_of<T>()) {
        return failure<Span<T>>(
            Error(ZERO_ERR_INVALID_ARGUMENT,
                  whose() + " is " + zero_dtype_name(view.dtype) + ", and is asked for as " +
                      zero_dtype_name(dtype_of<T>()) + "; ask for the C++ type of its dtype",
                  __FILE__, __LINE__));
    }
    return Outcome<Span<T>>(Span<T>(static_cast<T *>(view.data), view.count));
}

inline Error wrong_count(const std::string &whose, std::uint64_t has, std::uint64_t wanted)
{
    return Error(ZERO_ERR_INVALID_ARGUMENT,
                 whose + " has " + std::to_string(wanted) + " elements, and the array has " +
                     std::to_string(has) + "; give one of the tensor's size",
                 __FILE__, __LINE__);
}

} // namespace detail
/** @endcond */

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
