/** @file
 *  A parameter of libtorch whose memory is libzero's while its unit is acquired, and NaN while it
 *  is not.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/torch.hpp. */
#ifndef ZERO_TORCH_MEMORY_HPP
#define ZERO_TORCH_MEMORY_HPP

#include "zero/dtype.h"
#include "zero/result.hpp"
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>
#include <utility>

/** libzero for libtorch's C++ frontend. */
namespace zero::torch
{

/** @cond */
namespace detail
{

using ::torch::Tensor;

[[noreturn]] inline void refuse(zero_status status, const std::string &message)
{
    throw Error(status, message, __FILE__, __LINE__);
}

/* An element type of libtorch as libzero names it; NONE where it has none. */
inline zero_dtype dtype_of(::torch::ScalarType type) noexcept
{
    return type == ::torch::kFloat      ? ZERO_DTYPE_F32
           : type == ::torch::kBFloat16 ? ZERO_DTYPE_BF16
           : type == ::torch::kHalf     ? ZERO_DTYPE_F16
                                        : ZERO_DTYPE_NONE;
}

inline ::torch::ScalarType type_of(zero_dtype dtype) noexcept
{
    return dtype == ZERO_DTYPE_BF16  ? ::torch::kBFloat16
           : dtype == ZERO_DTYPE_F16 ? ::torch::kHalf
                                     : ::torch::kFloat;
}

/* Addresses that read as NaN in each type and cannot be written, as many as are asked for. One
 * mebibyte of memory is behind all of them. They stay as long as the process. */
class NanPages
{
  public:
    /* NULL where the system gives none: then views of released parameters have no memory. */
    static void *at_least(std::size_t bytes)
    {
        static NanPages pages;
        const std::lock_guard<std::mutex> lock(pages.mutex_);
        if (bytes > pages.bytes_) {
            pages.grow(bytes);
        }
        return bytes <= pages.bytes_ ? pages.first_ : nullptr;
    }

  private:
    static constexpr std::size_t chunk = std::size_t{1} << 20;

    /* Older places stay mapped, since storages may point to them. */
    void grow(std::size_t bytes)
    {
        if (file_ < 0 && !open()) {
            return;
        }
        const std::size_t size = (bytes + chunk - 1) / chunk * chunk;
        void *place = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) {
            return;
        }
        for (std::size_t at = 0; at < size; at += chunk) {
            if (mmap(static_cast<char *>(place) + at, chunk, PROT_READ, MAP_SHARED | MAP_FIXED,
                     file_, 0) == MAP_FAILED) {
                (void)munmap(place, size);
                return;
            }
        }
        first_ = place;
        bytes_ = size;
    }

    bool open()
    {
        const int file = memfd_create("zero-nan", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, chunk) != 0) {
            return false;
        }
        void *all = mmap(nullptr, chunk, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (all == MAP_FAILED) {
            return false;
        }
        std::memset(all, 0xff, chunk); /* a NaN in fp32, bf16 and fp16 */
        (void)munmap(all, chunk);
        file_ = file;
        return true;
    }

    std::mutex mutex_;
    int file_ = -1;
    void *first_ = nullptr;
    std::size_t bytes_ = 0;
};

/* A tensor over memory that comes and goes. Its storage stays the same object, so views of it that
 * autograd has saved follow. */
class Movable
{
  public:
    Movable() = default;
    Movable(::torch::IntArrayRef shape, const ::torch::TensorOptions &options)
        : device_(options.device())
    {
        std::size_t bytes = options.dtype().itemsize();
        for (const std::int64_t extent : shape) {
            bytes *= static_cast<std::size_t>(extent);
        }
        nowhere_ = device_.is_cpu() && bytes > 0 ? NanPages::at_least(bytes) : nullptr;
        tensor_ = ::torch::from_blob(nowhere_, shape, options);
    }

    [[nodiscard]] const Tensor &tensor() const noexcept
    {
        return tensor_;
    }
    [[nodiscard]] const void *storage() const
    {
        return tensor_.storage().unsafeGetStorageImpl();
    }
    void place(void *data) const
    {
        tensor_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, device_));
    }
    void take_away() const
    {
        place(nowhere_);
    }

  private:
    ::torch::Device device_ = ::torch::kCPU;
    void *nowhere_ = nullptr;
    Tensor tensor_;
};

/* Options of a plain tensor like this one. */
inline ::torch::TensorOptions plain(const Tensor &tensor)
{
    return ::torch::TensorOptions().dtype(tensor.dtype()).device(tensor.device());
}

/* A parameter of the module. Acquires of several units may hold it: its own, and those that tie to
 * it. */
class Param
{
  public:
    std::string name;
    std::uint32_t unit = 0; /* the owner's */
    bool trained = false;
    bool accumulated = false; /* in this micro-step */

    Param(std::string its_name, const Tensor &tensor, std::uint32_t its_unit)
        : name(std::move(its_name)), unit(its_unit), trained(tensor.requires_grad()),
          tensor_(tensor)
    {
        const ::torch::InferenceMode plain_mode(false);
        data_ = Movable(tensor.sizes(), plain(tensor));
        blank_ = ::torch::full({}, std::numeric_limits<double>::quiet_NaN(), plain(tensor))
                     .expand(tensor.sizes());
    }

    [[nodiscard]] const Tensor &tensor() const noexcept
    {
        return tensor_;
    }
    [[nodiscard]] bool held() const noexcept
    {
        return holders_ > 0;
    }
    [[nodiscard]] bool grad_held() const noexcept
    {
        return grad_holders_ > 0;
    }

    /* Show this memory of libzero's. */
    void attach(void *data)
    {
        if (holders_ == 0) {
            check_untouched();
            data_.place(data);
            tensor_.set_data(data_.tensor());
        }
        holders_++;
    }
    void detach()
    {
        if (holders_ > 0 && --holders_ == 0) {
            blank();
        }
    }
    /* Show NaN. Reads nothing: errors and destruction call it too. */
    void blank()
    {
        holders_ = 0;
        tensor_.set_data(blank_);
        data_.take_away();
        version_ = tensor_._version();
    }

    /* Let autograd add into this memory of libzero's. What it has collected before is added. */
    void attach_grad(void *data, zero_dtype dtype)
    {
        if (grad_holders_ == 0) {
            const ::torch::InferenceMode plain_mode(false);
            if (!grad_.tensor().defined()) {
                grad_ = Movable(tensor_.sizes(), plain(tensor_).dtype(type_of(dtype)));
            }
            grad_.place(data);
            const Tensor collected = std::exchange(tensor_.mutable_grad(), grad_.tensor());
            if (collected.defined()) {
                const ::torch::NoGradGuard no_graph;
                Tensor(grad_.tensor()).add_(collected);
            }
        }
        grad_holders_++;
    }
    void detach_grad()
    {
        if (grad_holders_ > 0 && --grad_holders_ == 0) {
            drop_grad();
        }
    }
    void drop_grad()
    {
        grad_holders_ = 0;
        tensor_.mutable_grad() = Tensor();
        if (grad_.tensor().defined()) {
            grad_.take_away();
        }
    }
    /* False where autograd has replaced the gradient, as with create_graph. */
    [[nodiscard]] bool grad_in_place() const
    {
        const Tensor &grad = tensor_.mutable_grad();
        return grad.defined() && !grad.requires_grad() &&
               (grad_holders_ == 0 ||
                (!grad.is_sparse() && grad.storage().unsafeGetStorageImpl() == grad_.storage()));
    }

    /* Show whole values of the caller's until blank(). */
    void show(const Tensor &whole)
    {
        check_untouched();
        tensor_.set_data(whole);
        version_ = tensor_._version();
        shown_ = whole;
    }
    void hide()
    {
        const bool kept =
            tensor_._version() == version_ && tensor_.is_same_size(shown_) &&
            tensor_.storage().unsafeGetStorageImpl() == shown_.storage().unsafeGetStorageImpl();
        shown_ = Tensor();
        blank();
        if (!kept) {
            refuse(ZERO_ERR_STATE,
                   "parameter \"" + name +
                       "\" was written inside whole(), where values are copies; load weights "
                       "before Sharded is made, or by load()");
        }
    }

    /* That nobody has given the tensor other data, or has written to it, while it was released. */
    void check_untouched() const
    {
        if (tensor_.scalar_type() != blank_.scalar_type() ||
            tensor_.storage().unsafeGetStorageImpl() != blank_.storage().unsafeGetStorageImpl() ||
            tensor_._version() != version_) {
            refuse(ZERO_ERR_STATE,
                   "parameter \"" + name +
                       "\" was written or replaced since Sharded was made (torch::load, to(), an "
                       "initialisation, an optimizer of torch's), and the values are lost; do that "
                       "before, or use load()");
        }
        if (tensor_.requires_grad() != trained) {
            refuse(ZERO_ERR_STATE, "parameter \"" + name + "\" was " +
                                       (trained ? "trained" : "frozen") +
                                       " when Sharded was made; set requires_grad before");
        }
    }

  private:
    Tensor tensor_; /* the module's own */
    Tensor blank_;
    Tensor shown_;
    Movable data_;
    Movable grad_;
    std::int64_t version_ = 0;
    std::uint32_t holders_ = 0;
    std::uint32_t grad_holders_ = 0;
};

} // namespace detail
/** @endcond */

} // namespace zero::torch

#endif
