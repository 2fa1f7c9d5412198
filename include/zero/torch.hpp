/** @file
 *  libzero for libtorch's C++ frontend: a torch::nn::Module whose parameters, gradients and
 *  optimizer state are sharded. A header over zero/zero.hpp that needs libtorch 1.13 or newer;
 *  zero/zero.hpp does not include it. examples/torch_cpp is a whole trainer; docs/torch-cpp.md is a
 *  guide.
 *
 *      struct BlockImpl : torch::nn::Module { ... };
 *      ZERO_TORCH_MODULE(Block);                          // in place of TORCH_MODULE
 *
 *      zero::World::run(2, [](zero::World &world) {
 *          Net net(...);
 *          zero::torch::Sharded model(net, world);
 *          for (...) {
 *              model.micro(zero::Micro::last, [&] { model.backward(loss_of(net(x), y)); });
 *              model.step(params);
 *          }
 *      });
 *
 *  - A unit is a module that Config::units chooses, with all parameters inside that no unit further
 *    inside has. What is left is the root's, which is acquired during the root's whole forward.
 *  - Only inside forward of its unit, and in its backward, a parameter has its values. Elsewhere it
 *    reads NaN, and a write is an error of libtorch's or, at the next acquire, of libzero's.
 *  - Ranks may be threads: each has a module of its own.
 *  - Tensors of one rank are used by one thread at a time, whose autograd numbers their nodes.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). */
#ifndef ZERO_TORCH_HPP
#define ZERO_TORCH_HPP

#include "zero/torch/build.hpp"
#include "zero/torch/call.hpp"
#include "zero/zero.hpp"
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zero::torch
{

/** A module whose parameters are sharded over the ranks of a world. It takes the module's values as
 *  initial values and frees their memory; the module stays the caller's, and computes with units
 *  that are gathered for it. Moved, never copied; null after a move. It ends before its world, and
 *  leaves the module without values. */
class Sharded
{
  public:
    /** Shard a module.
     *  - module: a holder or a shared_ptr, in training's types (fp32, bf16, fp16) and on its
     *    device. Initial values are the same on every rank, or rank 0's alone with
     *    tuning.broadcast_initial. Tensors that are registered twice are tied.
     *  - options: the engine's: stage, types, tiers.
     *  - config: units, and groups of hyper-parameters.
     *  - Collective: zero_engine_create.
     *  - Errors: those of zero_engine_create; INVALID_ARGUMENT for a parameter of another type,
     *    naming it, and where nothing is left to shard; STATE where a module is sharded already. */
    template <class M>
    Sharded(M &&module, World &world, const zero_engine_options &options = Options(),
            const Config &config = {})
        : units_(std::make_shared<detail::Units>())
    {
        detail::Builder(detail::pointer_to(std::forward<M>(module)), config, *units_)
            .create(world, options);
        units_->watch();
        detail::Registry::get().add(units_);
    }
    /** The other is null afterwards. */
    Sharded(Sharded &&other) noexcept = default;
    /** The one that was held before ends. */
    Sharded &operator=(Sharded &&other) noexcept
    {
        Sharded moved(std::move(other));
        std::swap(units_, moved.units_);
        return *this;
    }
    Sharded(const Sharded &) = delete;
    Sharded &operator=(const Sharded &) = delete;
    ~Sharded()
    {
        if (units_ != nullptr) {
            detail::Registry::get().remove(*units_);
            units_->drop();
            units_->engine = Engine();
        }
    }

    /** The engine, for all that has no call here: stats(), memory(), plan(), evict(). Its hooks are
     *  this object's. */
    [[nodiscard]] Engine &engine() const
    {
        return units().engine;
    }

    /** Run one micro-step: `fn` does forward and backward. If it throws, call micro_abandon() on
     *  all ranks to go on with the next batch, or let the exception leave the rank.
     *  - Collective: zero_micro_begin and zero_micro_end. */
    template <class Fn> void micro(Micro which, Fn &&fn)
    {
        micro_begin(which);
        try {
            fn();
            micro_end();
        } catch (...) {
            units().drop();
            throw;
        }
    }
    /** Open a micro-step by hand. */
    void micro_begin(Micro which = Micro::last)
    {
        units().micro_begin(which);
    }
    /** Close it: gradients are complete, also of units that backward has not passed by. */
    void micro_end()
    {
        units().micro_end();
    }
    /** Drop the step under way: zero_micro_abandon. */
    void micro_abandon()
    {
        units().drop();
        engine().micro_abandon(detail::Units::stream());
    }
    /** loss.backward(), times the loss scale where there is one (fp16). */
    void backward(const ::torch::Tensor &loss)
    {
        const float scale = engine().loss_scale();
        (scale == 1.0F ? loss : loss * scale).backward();
    }

    /** Update the shards: zero_step. */
    void step(const zero_step_params &params)
    {
        engine().step(params, detail::Units::stream());
    }
    /** The last step's norm, clip and loss scale: zero_step_wait. */
    [[nodiscard]] zero_step_result step_wait()
    {
        return engine().step_wait();
    }
    /** The norm of the step that is due: zero_grad_norm. */
    [[nodiscard]] double grad_norm(const zero_step_params &params)
    {
        return engine().grad_norm(params, detail::Units::stream());
    }
    /** Drop the step that is due: zero_step_discard. */
    void step_discard()
    {
        engine().step_discard();
    }

    /** Save a checkpoint of the whole state: zero_save. */
    void save(const zero_save_options &options)
    {
        engine().save(options);
    }
    /** Save to a run's directory with the defaults. */
    void save(const std::string &directory)
    {
        engine().save(directory);
    }
    /** Write the parameters alone, as safetensors files in `directory`/`name`, by all ranks at
     *  once. Names are the module's, so other programs read them. */
    void export_safetensors(const std::string &directory, const std::string &name)
    {
        SaveOptions options;
        options.directory = directory.c_str();
        options.name = name.c_str();
        options.params_only = 1;
        options.replace = 1;
        engine().save(options);
    }
    /** Load a checkpoint, or weights of safetensors files: zero_load. */
    void load(const zero_load_options &options, zero_load_report *report = nullptr)
    {
        engine().load(options, report);
    }
    /** Load the newest checkpoint of a run's directory. */
    void load(const std::string &path)
    {
        engine().load(path);
    }

    /** Whole parameters by name, and the module's buffers, in host memory.
     *  - here: false: this rank takes part and gets an empty map.
     *  - Collective over the world, between steps. */
    [[nodiscard]] std::map<std::string, ::torch::Tensor> state_dict(bool here = true)
    {
        std::map<std::string, ::torch::Tensor> all;
        for (std::uint32_t i = 0; i < units().params.size(); i++) {
            ::torch::Tensor whole = gathered(i, here);
            if (here) {
                all[units().params[i].name] = whole;
            }
        }
        if (here) {
            for (const auto &buffer : units().root->named_buffers()) {
                all[buffer.key()] = buffer.value().detach().cpu().clone();
            }
        }
        return all;
    }

    /** Run `fn` while the module has copies of its whole parameters, for example for
     *  `torch::save(net, "net.pt")`. Nothing that fn writes to them is kept.
     *  - here: false: this rank takes part, keeps NaN and does not run fn.
     *  - Collective over the world, between steps.
     *  - Memory: the whole model, where `here`.
     *  - Errors: those of zero_tensor_export; STATE where fn wrote to a parameter. */
    template <class Fn> void whole(Fn &&fn, bool here = true)
    {
        auto &params = units().params;
        std::vector<::torch::Tensor> values;
        for (std::uint32_t i = 0; i < params.size(); i++) {
            values.push_back(gathered(i, here));
        }
        if (!here) {
            return;
        }
        for (std::size_t i = 0; i < params.size(); i++) {
            params[i].show(values[i].to(params[i].tensor().device()));
        }
        try {
            fn();
        } catch (...) {
            for (auto &param : params) {
                param.blank();
            }
            throw;
        }
        std::exception_ptr written;
        for (auto &param : params) {
            try {
                param.hide();
            } catch (...) {
                written = std::current_exception();
            }
        }
        if (written) {
            std::rethrow_exception(written);
        }
    }

    /** The units with their parameters, a line each: what was sharded how. */
    [[nodiscard]] std::string print() const
    {
        std::string text;
        for (const detail::UnitState &unit : units().units) {
            text += "unit \"" + unit.name + "\":";
            for (std::uint32_t i = 0; i < unit.params.size(); i++) {
                const detail::Param &param = units().params[unit.params[i]];
                text += " " + param.name + (i >= unit.own ? " (tied)" : "") +
                        (param.trained ? "" : " (frozen)");
            }
            text += "\n";
        }
        return text;
    }

  private:
    [[nodiscard]] detail::Units &units() const
    {
        if (units_ == nullptr) {
            detail::refuse(ZERO_ERR_INVALID_ARGUMENT,
                           "this zero::torch::Sharded was moved; use the one it was moved to");
        }
        return *units_;
    }

    ::torch::Tensor gathered(std::uint32_t index, bool here)
    {
        const detail::Param &param = units().params[index];
        zero_array array = {};
        ::torch::Tensor whole;
        if (here) {
            const ::torch::InferenceMode plain_mode(false);
            whole = ::torch::empty(param.tensor().sizes(), param.tensor().scalar_type());
            array.data = whole.data_ptr();
            array.dtype = detail::dtype_of(param.tensor().scalar_type());
            if (array.data == nullptr) {
                array.data = &spare_;
            }
        }
        const zero_status status =
            zero_tensor_export(engine().get(), index, ZERO_ROLE_PARAM, here ? &array : nullptr);
        if (status != ZERO_OK) {
            throw Error::last(status);
        }
        return whole;
    }

    std::shared_ptr<detail::Units> units_;
    float spare_ = 0; /* the place of a tensor without elements */
};

} // namespace zero::torch

#endif
