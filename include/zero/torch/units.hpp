/** @file
 *  The units of a module in libtorch: which one is acquired, and when its gradient is complete.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/torch.hpp. */
#ifndef ZERO_TORCH_UNITS_HPP
#define ZERO_TORCH_UNITS_HPP

#include "zero/engine.hpp"
#include "zero/torch/memory.hpp"
#include "zero/unit.hpp"
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>
#if defined(ZERO_TORCH_CUDA)
#include "zero/cuda.h"
#include <c10/cuda/CUDAStream.h>
#endif

namespace zero::torch
{

/** @cond */
namespace detail
{

using ::torch::autograd::Node;

/* One forward of a unit that autograd recorded. It is over when backward has passed all of it. */
struct Use {
    std::uint32_t unit = 0;
    bool over = false;
    bool hooked = false; /* `inputs` say when it is over */
    bool hidden = false; /* gradients go to inputs that cannot say it */
    std::vector<const Node *> inputs;
};

/* A unit and its part in the micro-step under way. */
struct UnitState {
    enum class Backward { none, open, done };

    std::string name;
    std::vector<std::uint32_t> params; /* its own, then those that it ties to, as in its views */
    std::uint32_t own = 0;             /* of params, its own */
    std::uint32_t trained = 0;         /* of its own */
    bool any_trained = false;          /* of all */
    bool parent = false;               /* forward runs other units inside */

    std::uint32_t forwards = 0; /* that are open, one inside another */
    Unit forward;
    Backward backward = Backward::none;
    Unit held;                  /* in backward, where gradients go into libzero's memory at once */
    bool collects = false;      /* in backward: gradients are in memory of libtorch's */
    bool waits = false;         /* what was collected is still to be given to libzero */
    std::uint32_t uses = 0;     /* that are not over */
    std::uint32_t unhooked = 0; /* of these, with inputs that need no gradient */
    std::uint32_t recomputes = 0;  /* forwards of checkpoint() that are still to be run again */
    std::uint32_t accumulated = 0; /* of its own parameters that are trained */
    bool hidden = false;           /* a use was */
};

/* All units of a module on one rank. Hooks that autograd keeps hold it weakly. */
class Units : public std::enable_shared_from_this<Units>
{
  public:
    std::deque<Param> params;
    std::vector<UnitState> units;
    std::unordered_map<const void *, std::uint32_t> of_module;
    std::shared_ptr<::torch::nn::Module> root;
    Engine engine;
    bool in_micro = false;

    Units() = default;
    Units(const Units &) = delete;
    Units &operator=(const Units &) = delete;
    ~Units()
    {
        if (engine) {
            drop(); /* before the engine goes */
        }
    }

    /* Follow when gradients are added. Accumulators live as long as somebody holds them. */
    void watch()
    {
        for (std::uint32_t i = 0; i < params.size(); i++) {
            if (params[i].trained) {
                accumulators_.push_back(
                    ::torch::autograd::impl::grad_accumulator(params[i].tensor()));
                accumulators_.back()->add_post_hook(
                    std::make_unique<Accumulated>(weak_from_this(), i));
            }
        }
    }

    static zero_stream stream()
    {
#if defined(ZERO_TORCH_CUDA)
        return zero_stream_cuda(c10::cuda::getCurrentCUDAStream().stream());
#else
        return zero_stream_host();
#endif
    }

    void enter(std::uint32_t index)
    {
        UnitState &unit = units[index];
        if (unit.forwards == 0) {
            Unit got = engine.acquire(index, Pass::none, stream());
            attach(unit, got.get()->params);
            unit.forward = std::move(got);
        }
        unit.forwards++;
    }
    void leave(std::uint32_t index)
    {
        UnitState &unit = units[index];
        if (unit.forwards > 0 && --unit.forwards == 0) {
            detach(unit);
            unit.forward.release();
        }
    }

    /* Backward comes to a use of the unit, whose output `node` made. */
    void backward_begins(const Use &use, const Node *node)
    {
        if (use.over) {
            return;
        }
        UnitState &unit = units[use.unit];
        if (!in_micro) {
            refuse(ZERO_ERR_STATE, "backward of unit \"" + unit.name +
                                       "\" outside a micro-step; put forward and backward into "
                                       "Sharded::micro, or evaluate under torch::NoGradGuard");
        }
        if (unit.backward == UnitState::Backward::open) {
            return;
        }
        if (unit.backward == UnitState::Backward::done) {
            refuse(ZERO_ERR_STATE,
                   "unit \"" + unit.name +
                       "\" is in two backward passes of one micro-step, and its gradient was "
                       "complete after the first; add the losses and call backward once, or make "
                       "each a micro-step (Micro::earlier)");
        }
        end_uses_at(node);
        open(use.unit);
    }

    /* Backward has run all of a use. */
    void use_over(Use &use)
    {
        if (use.over) {
            return;
        }
        use.over = true;
        UnitState &unit = units[use.unit];
        if (unit.uses > 0) {
            unit.uses--;
        }
        if (unit.uses == 0 && unit.recomputes == 0 && unit.backward == UnitState::Backward::open) {
            close(use.unit);
        }
    }

    void add_use(const std::shared_ptr<Use> &use)
    {
        if (!in_micro) {
            return; /* evaluation with a graph, which nobody ends */
        }
        UnitState &unit = units[use->unit];
        unit.uses++;
        unit.unhooked += use->hooked || use->hidden ? 0U : 1U;
        unit.hidden = unit.hidden || use->hidden;
        if (use->hooked) {
            uses_.push_back(use);
        }
    }

    /* A gradient was added to a parameter's. */
    void accumulated(std::uint32_t index)
    {
        Param &param = params[index];
        UnitState &unit = units[param.unit];
        if (!param.grad_held() && !collected(index)) {
            param.drop_grad();
            refuse(ZERO_ERR_STATE, not_acquired(param, unit));
        }
        if (!param.grad_in_place()) {
            param.drop_grad();
            refuse(ZERO_ERR_STATE,
                   "the gradient of \"" + param.name +
                       "\" was replaced and not added to; backward with create_graph, or a hook "
                       "that sets grad, cannot be used on a sharded module");
        }
        if (!param.accumulated) {
            param.accumulated = true;
            unit.accumulated++;
        }
        /* With inputs that need no gradient nothing of the unit is left to run then. */
        if (unit.accumulated == unit.trained && unit.unhooked == unit.uses && !unit.hidden &&
            !unit.parent && unit.recomputes == 0 && unit.own == unit.params.size() &&
            unit.backward == UnitState::Backward::open) {
            unit.uses = unit.unhooked = 0;
            close(param.unit);
        }
    }

    void micro_begin(Micro micro)
    {
        engine.micro_begin(micro);
        forget();
        in_micro = true;
    }
    void micro_end()
    {
        for (std::uint32_t i = static_cast<std::uint32_t>(units.size()); i-- > 0;) {
            UnitState &unit = units[i];
            unit.uses = unit.recomputes = 0; /* what backward has not come to it never will */
            if (unit.backward == UnitState::Backward::open) {
                close(i);
            }
        }
        give_waiting();
        in_micro = false;
        engine.micro_end();
        forget();
    }
    /* Drop all that is acquired, without a call on the engine: it abandons, or is destroyed. */
    void drop()
    {
        for (UnitState &unit : units) {
            unit.forward.detach();
            unit.held.detach();
            unit.forwards = 0;
        }
        for (Param &param : params) {
            param.drop_grad();
            param.blank();
        }
        in_micro = false;
        forget();
    }

  private:
    /* Runs behind autograd's node that adds a parameter's gradients, as DDP's hooks do. */
    struct Accumulated : ::torch::autograd::FunctionPostHook {
        Accumulated(std::weak_ptr<Units> its_units, std::uint32_t its_param)
            : units(std::move(its_units)), param(its_param)
        {
        }
        ::torch::autograd::variable_list
        operator()(const ::torch::autograd::variable_list &outputs,
                   const ::torch::autograd::variable_list &) override
        {
            if (const auto alive = units.lock()) {
                alive->accumulated(param);
            }
            return outputs;
        }
        std::weak_ptr<Units> units;
        std::uint32_t param;
    };

    void attach(UnitState &unit, const zero_view *views)
    {
        std::size_t done = 0;
        try {
            for (; done < unit.params.size(); done++) {
                if (views[done].dtype == ZERO_DTYPE_NONE) {
                    refuse(ZERO_ERR_UNSUPPORTED, "tuning.encoded_views is 1, and modules of "
                                                 "libtorch compute with values; leave it 0");
                }
                params[unit.params[done]].attach(views[done].data);
            }
        } catch (...) {
            while (done-- > 0) {
                params[unit.params[done]].detach();
            }
            throw;
        }
    }
    void detach(UnitState &unit)
    {
        for (const std::uint32_t param : unit.params) {
            params[param].detach();
        }
    }
    void attach_grads(UnitState &unit, const zero_view *views)
    {
        for (std::size_t i = 0; views != nullptr && i < unit.params.size(); i++) {
            if (views[i].dtype != ZERO_DTYPE_NONE) {
                params[unit.params[i]].attach_grad(views[i].data, views[i].dtype);
            }
        }
    }

    /* True while gradients of the unit are still to come, or to be given to libzero. */
    static bool pending(const UnitState &unit)
    {
        return unit.any_trained && (unit.uses > 0 || unit.recomputes > 0 || unit.waits ||
                                    unit.backward == UnitState::Backward::open);
    }
    /* Gradients are reduced from the last unit to the first. A unit that comes out of turn, as one
     * that has other units inside does, collects its gradient in libtorch's memory: to acquire it
     * would say that backward has gone past the units before it. */
    bool in_turn(std::uint32_t index) const
    {
        return std::none_of(units.begin() + index + 1, units.end(), pending);
    }

    void open(std::uint32_t index)
    {
        UnitState &unit = units[index];
        if (in_turn(index)) {
            unit.held = engine.acquire(index, Pass::backward, stream());
            attach(unit, unit.held.get()->params);
            attach_grads(unit, unit.held.get()->grads);
        } else {
            engine.params_acquire(index, Pass::forward, stream());
            unit.collects = true;
            std::vector<zero_view> views(unit.params.size());
            for (std::size_t i = 0; i < views.size(); i++) {
                must(zero_tensor_data(engine.get(), unit.params[i], &views[i]));
            }
            attach(unit, views.data());
        }
        unit.backward = UnitState::Backward::open;
    }

    /* All gradients of the unit are there. */
    void close(std::uint32_t index)
    {
        UnitState &unit = units[index];
        unit.backward = UnitState::Backward::done;
        detach(unit);
        if (unit.collects) {
            engine.params_release(index, stream());
            unit.collects = false;
            unit.waits = unit.any_trained;
        } else {
            for (const std::uint32_t param : unit.params) {
                params[param].detach_grad();
            }
            unit.waits = false;
            unit.held.release();
        }
        give_waiting();
    }

    /* Give libzero what was collected, as far as the turn of these units has come. */
    void give_waiting()
    {
        for (std::uint32_t i = static_cast<std::uint32_t>(units.size()); i-- > 0;) {
            UnitState &unit = units[i];
            if (unit.waits) {
                give(i);
                unit.waits = false;
            } else if (pending(unit)) {
                return;
            }
        }
    }
    void give(std::uint32_t index)
    {
        UnitState &unit = units[index];
        engine.grads_acquire(index, stream());
        std::vector<zero_view> views(unit.params.size());
        for (std::size_t i = 0; i < views.size(); i++) {
            views[i].dtype = ZERO_DTYPE_NONE;
            if (params[unit.params[i]].trained) {
                must(zero_tensor_grad(engine.get(), unit.params[i], &views[i]));
            }
        }
        attach_grads(unit, views.data());
        for (std::size_t i = 0; i < views.size(); i++) {
            if (views[i].dtype != ZERO_DTYPE_NONE) {
                params[unit.params[i]].detach_grad();
            }
        }
        engine.grads_ready(index, stream());
    }
    static void must(zero_status status)
    {
        if (status != ZERO_OK) {
            throw Error::last(status);
        }
    }

    /* True where a unit that uses the parameter collects. The owner gives what came by a tie. */
    bool collected(std::uint32_t index)
    {
        UnitState &owner = units[params[index].unit];
        if (owner.backward == UnitState::Backward::open) {
            return true;
        }
        for (const UnitState &unit : units) {
            if (unit.backward == UnitState::Backward::open && unit.own < unit.params.size() &&
                std::find(unit.params.begin() + unit.own, unit.params.end(), index) !=
                    unit.params.end()) {
                owner.waits = owner.backward == UnitState::Backward::none;
                return owner.waits;
            }
        }
        return false;
    }

    /* Inputs of uses that `node` made say that these are over, before another unit takes a slot. */
    void end_uses_at(const Node *node)
    {
        for (std::size_t i = uses_.size(); i-- > 0;) {
            const std::shared_ptr<Use> use = uses_[i];
            if (!use->over &&
                std::find(use->inputs.begin(), use->inputs.end(), node) != use->inputs.end()) {
                use_over(*use);
            }
        }
        while (!uses_.empty() && uses_.back()->over) {
            uses_.pop_back();
        }
    }

    static std::string not_acquired(const Param &param, const UnitState &unit)
    {
        if (unit.backward == UnitState::Backward::done) {
            return "a gradient came to \"" + param.name + "\" after that of its unit \"" +
                   unit.name +
                   "\" was complete; use the parameter inside the unit's forward only, or leave it "
                   "to the root";
        }
        return "a gradient came to \"" + param.name + "\", whose unit \"" + unit.name +
               "\" was not acquired, so it computed with NaN; call block(x) of a "
               "ZERO_TORCH_MODULE or zero::torch::call(block, x), not block->forward(x)";
    }

    void forget()
    {
        for (UnitState &unit : units) {
            unit.backward = UnitState::Backward::none;
            unit.collects = unit.waits = false;
            unit.uses = unit.unhooked = unit.recomputes = unit.accumulated = 0;
            unit.hidden = false;
        }
        for (Param &param : params) {
            param.accumulated = false;
        }
        for (const auto &use : uses_) {
            use->over = true; /* of a graph that somebody keeps */
        }
        uses_.clear();
    }

    std::vector<decltype(::torch::autograd::impl::grad_accumulator(std::declval<Tensor>()))>
        accumulators_;
    std::vector<std::shared_ptr<Use>> uses_;
};

/* Which modules are sharded, for all ranks of the process. */
class Registry
{
  public:
    static Registry &get()
    {
        static Registry registry;
        return registry;
    }
    /* NULL where the module is no unit's. */
    std::shared_ptr<Units> find(const void *module, std::uint32_t *unit)
    {
        const std::shared_lock<std::shared_mutex> lock(mutex_);
        const auto found = modules_.find(module);
        if (found == modules_.end()) {
            return nullptr;
        }
        *unit = found->second.second;
        return found->second.first;
    }
    /* False where one of them is sharded already. */
    bool add(const std::shared_ptr<Units> &units)
    {
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        for (const auto &[module, unit] : units->of_module) {
            if (modules_.count(module) > 0) {
                return false;
            }
        }
        for (const auto &[module, unit] : units->of_module) {
            modules_[module] = {units, unit};
        }
        return true;
    }
    void remove(const Units &units)
    {
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        for (const auto &[module, unit] : units.of_module) {
            modules_.erase(module);
        }
    }

  private:
    std::shared_mutex mutex_;
    std::unordered_map<const void *, std::pair<std::shared_ptr<Units>, std::uint32_t>> modules_;
};

} // namespace detail
/** @endcond */

} // namespace zero::torch

#endif
