/** @file
 *  Calls of modules in libtorch that acquire and release their units: ZERO_TORCH_MODULE, call(),
 *  around() and checkpoint().
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/torch.hpp. */
#ifndef ZERO_TORCH_CALL_HPP
#define ZERO_TORCH_CALL_HPP

#include "zero/torch/units.hpp"
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::torch
{

/** The tensors in a value of your own type that a sharded module's forward gives back. Specialise
 *  it, so that backward can find the module:
 *
 *      template <> struct zero::torch::Parts<Output> {
 *          template <class Fn> static void each(const Output &output, Fn &&fn)
 *          {
 *              fn(output.logits);
 *          }
 *      }; */
template <class T> struct Parts {
    static constexpr bool none = true; /**< no specialisation */
};

/** @cond */
namespace detail
{

template <class T, class = void> struct HasParts : std::true_type {
};
template <class T> struct HasParts<T, std::enable_if_t<Parts<T>::none>> : std::false_type {
};
template <class T, class = void> struct IsTuple : std::false_type {
};
template <class T>
struct IsTuple<T, std::void_t<decltype(std::tuple_size<T>::value)>> : std::true_type {
};
template <class T, class = void> struct IsOptional : std::false_type {
};
template <class T>
struct IsOptional<
    T, std::void_t<decltype(std::declval<const T &>().has_value(), *std::declval<const T &>())>>
    : std::true_type {
};
template <class T, class = void> struct IsRange : std::false_type {
};
template <class T>
struct IsRange<
    T, std::void_t<decltype(std::declval<const T &>().begin(), std::declval<const T &>().end())>>
    : std::true_type {
};
template <class T, class = void> struct IsItem : std::false_type { /* of an OrderedDict */
};
template <class T>
struct IsItem<
    T, std::void_t<decltype(std::declval<const T &>().key(), std::declval<const T &>().value())>>
    : std::true_type {
};

template <class T> struct AlwaysFalse : std::false_type {
};

/* Calls fn with each tensor in a value. strict: a type that may hide tensors does not compile. */
template <bool strict, class T, class Fn> void each_tensor(const T &value, Fn &fn)
{
    if constexpr (HasParts<T>::value) {
        Parts<T>::each(value, [&](const auto &part) { each_tensor<strict>(part, fn); });
    } else if constexpr (std::is_base_of_v<Tensor, T>) {
        fn(static_cast<const Tensor &>(value));
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                         std::is_convertible_v<const T &, std::string>) {
        /* no tensors */
    } else if constexpr (IsOptional<T>::value) {
        if (value.has_value()) {
            each_tensor<strict>(*value, fn);
        }
    } else if constexpr (IsTuple<T>::value) {
        std::apply([&](const auto &...parts) { (each_tensor<strict>(parts, fn), ...); }, value);
    } else if constexpr (IsItem<T>::value) {
        each_tensor<strict>(value.value(), fn);
    } else if constexpr (IsRange<T>::value) {
        for (const auto &part : value) {
            each_tensor<strict>(part, fn);
        }
    } else if constexpr (strict) {
        static_assert(AlwaysFalse<T>::value,
                      "a sharded module gives back a type whose tensors libzero cannot see: return "
                      "a Tensor, a vector, a tuple, an optional, or specialise zero::torch::Parts");
    }
}

/* How forwards of checkpoint() count: the first leaves a use behind, which the second takes up. */
enum class Recompute { none, first, again };

inline Recompute &recompute_now() noexcept
{
    static thread_local Recompute now = Recompute::none;
    return now;
}

class RecomputeScope
{
  public:
    explicit RecomputeScope(Recompute now) noexcept : before_(recompute_now())
    {
        recompute_now() = now;
    }
    ~RecomputeScope()
    {
        recompute_now() = before_;
    }
    RecomputeScope(const RecomputeScope &) = delete;
    RecomputeScope &operator=(const RecomputeScope &) = delete;

  private:
    Recompute before_;
};

/* One forward of a unit: acquired until leave(), or until it ends. */
class Forward
{
  public:
    Forward(std::shared_ptr<Units> units, std::uint32_t unit)
        : units_(std::move(units)), use_(std::make_shared<Use>())
    {
        use_->unit = unit;
        units_->enter(unit);
        count_recompute();
    }
    ~Forward()
    {
        if (units_ == nullptr) {
            return;
        }
        try {
            units_->leave(use_->unit);
        } catch (const Error &error) {
            ::zero::common::unreported(error);
        }
    }
    Forward(const Forward &) = delete;
    Forward &operator=(const Forward &) = delete;

    /* An argument, by which backward says that the use is over. A leaf becomes a view of it, since
     * a hook of its own would run as soon as its gradient is there. */
    template <class T> decltype(auto) argument(T &&value)
    {
        using Plain = std::decay_t<T>;
        if constexpr (std::is_same_v<Plain, Tensor>) {
            if (::torch::GradMode::is_enabled() && value.defined() && value.requires_grad()) {
                Tensor input = value.is_leaf() ? value.view_as(value) : value;
                watch(input);
                return input;
            }
            return Tensor(std::forward<T>(value));
        } else {
            if (::torch::GradMode::is_enabled()) {
                auto see = [&](const Tensor &tensor) {
                    if (tensor.defined() && tensor.requires_grad()) {
                        if (tensor.is_leaf()) {
                            use_->hidden = true;
                        } else {
                            watch(tensor);
                        }
                    }
                };
                each_tensor<false>(value, see);
            }
            return std::forward<T>(value);
        }
    }

    /* The result of forward: backward comes to the unit by it. */
    template <class T> void result(const T &value)
    {
        if (!::torch::GradMode::is_enabled()) {
            use_->over = true;
            return;
        }
        bool recorded = false;
        auto see = [&](const Tensor &tensor) {
            if (!tensor.defined() || !tensor.requires_grad() || tensor.is_leaf()) {
                return;
            }
            const Node *node = tensor.grad_fn().get();
            for (const Node *input : use_->inputs) {
                if (input == node) {
                    return; /* handed through */
                }
            }
            recorded = true;
            tensor.register_hook([units = std::weak_ptr<Units>(units_), use = use_,
                                  node](const Tensor &) {
                const auto alive = units.lock();
                if (alive == nullptr) {
                    refuse(ZERO_ERR_STATE, "backward comes after the end of zero::torch::Sharded; "
                                           "keep it until backward is over");
                }
                alive->backward_begins(*use, node);
            });
        };
        each_tensor<true>(value, see);
        if (recorded) {
            units_->add_use(use_);
        } else {
            use_->over = true;
        }
    }

    void leave()
    {
        const std::shared_ptr<Units> units = std::exchange(units_, nullptr);
        units->leave(use_->unit);
    }

  private:
    void watch(const Tensor &input)
    {
        use_->hooked = true;
        use_->inputs.push_back(input.grad_fn().get());
        input.register_hook([units = std::weak_ptr<Units>(units_), use = use_](const Tensor &) {
            if (const auto alive = units.lock()) {
                alive->use_over(*use);
            }
        });
    }

    void count_recompute()
    {
        UnitState &unit = units_->units[use_->unit];
        if (recompute_now() == Recompute::first) {
            unit.recomputes++;
        } else if (recompute_now() == Recompute::again && unit.recomputes > 0) {
            unit.recomputes--;
        }
    }

    std::shared_ptr<Units> units_;
    std::shared_ptr<Use> use_;
};

template <class M> struct IsHolder : std::is_base_of<::torch::detail::ModuleHolderIndicator, M> {
};

/* The module in a module, a holder or a shared_ptr. */
template <class M> auto &module_in(M &&module)
{
    using Plain = std::decay_t<M>;
    if constexpr (std::is_base_of_v<::torch::nn::Module, Plain>) {
        return module;
    } else if constexpr (IsHolder<Plain>::value) {
        return *module.ptr();
    } else {
        return *module;
    }
}

} // namespace detail
/** @endcond */

/** Run `fn(arguments...)` as the module's forward: with its unit acquired, if it is one, and so
 *  that backward acquires it too. For forwards under another name, or with work around them.
 *  - module: a module, its holder or a shared_ptr. Where it is not sharded this is a call of fn.
 *  - fn: gives back tensors, or vectors, tuples and optionals of them (Parts: your own types), or
 *    nothing.
 *  - Errors: those of zero_unit_acquire; STATE where a parameter was written since. */
template <class M, class Fn, class... Arguments>
auto around(M &&module, Fn &&fn, Arguments &&...arguments)
    -> std::invoke_result_t<Fn &, Arguments...>
{
    using Given = std::invoke_result_t<Fn &, Arguments...>;
    std::uint32_t unit = 0;
    auto units = detail::Registry::get().find(
        static_cast<const ::torch::nn::Module *>(&detail::module_in(module)), &unit);
    if (units == nullptr) {
        return fn(std::forward<Arguments>(arguments)...);
    }
    detail::Forward forward(std::move(units), unit);
    if constexpr (std::is_void_v<Given>) {
        fn(forward.argument(std::forward<Arguments>(arguments))...);
        forward.leave();
    } else {
        Given given = fn(forward.argument(std::forward<Arguments>(arguments))...);
        forward.result(given);
        forward.leave();
        return std::forward<Given>(given);
    }
}

/** Call a module's forward: what `block(x)` is for a module of ZERO_TORCH_MODULE, for all others,
 *  such as a torch::nn::Linear that is a unit of its own.
 *  - module: a module, its holder or a shared_ptr. Where it is not sharded this is its forward. */
template <class M, class... Arguments> decltype(auto) call(M &&module, Arguments &&...arguments)
{
    auto &inside = detail::module_in(module);
    using Inside = std::decay_t<decltype(inside)>;
    if constexpr (std::is_same_v<Inside, ::torch::nn::SequentialImpl>) {
        /* Its own forward would call the children's, past their units. */
        return around(
            inside,
            [&](::torch::Tensor x) {
                for (auto &child : inside) {
                    x = around(
                        *child.ptr(), [&](const ::torch::Tensor &in) { return child.forward(in); },
                        x);
                }
                return x;
            },
            std::forward<Arguments>(arguments)...);
    } else {
        return around(
            inside,
            [&](auto &&...in) -> decltype(auto) {
                return inside.forward(std::forward<decltype(in)>(in)...);
            },
            std::forward<Arguments>(arguments)...);
    }
}

/** As torch::nn::ModuleHolder, whose `block(x)` acquires and releases the module's unit where it is
 *  sharded, and is an ordinary call where it is not. */
template <class Contained> class ModuleHolder : public ::torch::nn::ModuleHolder<Contained>
{
  public:
    using ::torch::nn::ModuleHolder<Contained>::ModuleHolder;

    /** Forward of the module: call(). */
    template <class... Arguments> decltype(auto) operator()(Arguments &&...arguments) const
    {
        return call(*this->ptr(), std::forward<Arguments>(arguments)...);
    }
};

/** @cond */
namespace detail
{

struct Recomputed : ::torch::CustomClassHolder {
    std::function<Tensor(const Tensor &)> fn;
    Tensor random; /* the generator's state ahead of forward */
};

class RandomScope
{
  public:
    explicit RandomScope(const Tensor &state) : before_(generator().get_state())
    {
        generator().set_state(state);
    }
    ~RandomScope()
    {
        generator().set_state(before_);
    }
    RandomScope(const RandomScope &) = delete;
    RandomScope &operator=(const RandomScope &) = delete;
    static at::Generator generator()
    {
        return at::detail::getDefaultCPUGenerator();
    }

  private:
    Tensor before_;
};

struct CheckpointFunction : ::torch::autograd::Function<CheckpointFunction> {
    static Tensor forward(::torch::autograd::AutogradContext *context, const Tensor &x,
                          const c10::IValue &recomputed)
    {
        auto kept = c10::static_intrusive_pointer_cast<Recomputed>(recomputed.toCapsule());
        context->saved_data["recomputed"] = recomputed;
        context->save_for_backward({x});
        const RecomputeScope scope(Recompute::first);
        return kept->fn(x);
    }
    static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext *context,
                                                     ::torch::autograd::variable_list grads)
    {
        auto kept = c10::static_intrusive_pointer_cast<Recomputed>(
            context->saved_data["recomputed"].toCapsule());
        const Tensor saved = context->get_saved_variables()[0];
        const bool differentiable = saved.is_floating_point();
        const Tensor x = saved.detach().requires_grad_(differentiable);
        const ::torch::AutoGradMode record(true);
        Tensor y;
        {
            const RandomScope random(kept->random);
            const RecomputeScope scope(Recompute::again);
            y = kept->fn(x);
        }
        ::torch::autograd::backward({y}, {grads[0]});
        return {differentiable ? x.grad() : Tensor(), Tensor()};
    }
};

} // namespace detail
/** @endcond */

/** Run `fn(x)` without keeping what backward needs of it, and again in backward: activation
 *  checkpointing. Units that it uses are acquired in both. Random numbers of the CPU's generator
 *  are the same in both.
 *  - fn: a Tensor of a Tensor, such as a module's holder; called twice, so it is kept by value.
 *  - x: in training its gradient must be wanted, as that of the layer before is. */
template <class Fn>::torch::Tensor checkpoint(Fn fn, const ::torch::Tensor &x)
{
    if (!::torch::GradMode::is_enabled()) {
        return fn(x);
    }
    if (!x.requires_grad()) {
        detail::refuse(ZERO_ERR_INVALID_ARGUMENT,
                       "checkpoint() of an input that needs no gradient, so backward would not run "
                       "it again; call the first layers without it");
    }
    auto kept = c10::make_intrusive<detail::Recomputed>();
    kept->fn = [fn](const ::torch::Tensor &in) mutable { return ::torch::Tensor(fn(in)); };
    kept->random = detail::RandomScope::generator().get_state();
    return detail::CheckpointFunction::apply(x, c10::IValue::make_capsule(std::move(kept)));
}

} // namespace zero::torch

/** A holder `Name` of `NameImpl`, in place of TORCH_MODULE(Name): a unit where it is sharded. */
#define ZERO_TORCH_MODULE(Name)                                    \
    class Name : public zero::torch::ModuleHolder<Name##Impl>      \
    {                                                              \
      public:                                                      \
        using zero::torch::ModuleHolder<Name##Impl>::ModuleHolder; \
        using Impl [[maybe_unused]] = Name##Impl;                  \
    }

#endif
