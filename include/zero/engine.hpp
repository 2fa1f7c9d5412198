/** @file
 *  zero/engine.h, zero/unit.h, zero/step.h, zero/shard.h, zero/checkpoint.h and zero/evict.h in
 *  C++: one rank's engine.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_ENGINE_HPP
#define ZERO_ENGINE_HPP

#include "zero/array.hpp"
#include "zero/callback.hpp"
#include "zero/checkpoint.h"
#include "zero/encoded.h"
#include "zero/engine.h"
#include "zero/evict.h"
#include "zero/model.hpp"
#include "zero/options.hpp"
#include "zero/path.h"
#include "zero/result.hpp"
#include "zero/shard.h"
#include "zero/step.h"
#include "zero/stream.h"
#include "zero/trace.h"
#include "zero/unit.hpp"
#include "zero/world.hpp"
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zero
{
inline namespace ZERO_CPP_MODE
{

/** The caller's own element-wise optimizer; zero_update_fn says what it may depend on. */
using UpdateFn = std::function<void(const zero_update_range &range)>;

/** One rank's engine. Moved, never copied; null after a move. It ends before its world, and after
 *  the units that were acquired from it. */
class Engine
{
  public:
    /** Null. */
    Engine() = default;
    /** The other is null afterwards. */
    Engine(Engine &&other) noexcept = default;
    /** The engine that was held before is destroyed. */
    Engine &operator=(Engine &&other) noexcept
    {
        Engine moved(std::move(other));
        std::swap(kept_, moved.kept_);
        std::swap(handle_, moved.handle_);
        return *this;
    }

    /** Allocate the plan and start the streams: zero_engine_create.
     *  - update: the update of every group that options.group_optimizer leaves open, where it is
     *    not empty. It runs on threads of the library. The first exception that leaves it comes out
     *    of a later call on this engine, and of all calls from then on; elements of that step were
     *    left as they were, so destroy the engine. */
    [[nodiscard]] static Outcome<Engine> create(World &world, const Model &model,
                                                const zero_engine_options &options = Options(),
                                                UpdateFn update = {})
    {
        Engine engine;
        engine.kept_ = std::make_unique<Kept>();
        engine.kept_->update = std::move(update);
        for (std::uint32_t i = 0; i < model.tensor_count(); i++) {
            engine.kept_->counts.push_back(model.element_count(i));
        }
        zero_engine_options used = options;
        if (engine.kept_->update) {
            used.optimizer = ZERO_OPTIMIZER_CALLBACK;
            used.update = run_update;
            used.update_user = engine.kept_.get();
        }
        zero_engine *made = nullptr;
        const zero_status status = zero_engine_create(world.get(), model.get(), &used, &made);
        engine.handle_ = Owner(made, true);
        return detail::give(status, [&] { return std::move(engine); });
    }

    /** The handle for functions of C; NULL after a move. */
    [[nodiscard]] zero_engine *get() const noexcept
    {
        return handle_.get();
    }
    /** False after a move. */
    [[nodiscard]] explicit operator bool() const noexcept
    {
        return get() != nullptr;
    }

    /** Set this rank's shards of every tensor: zero_engine_fill.
     *  - fn: called as fn(tensor, first, values) with a Span<float> of the elements from `first`
     *    on. An exception that leaves it comes out of this call; fill again, or destroy. The values
     *    that it did not give are NaN, which the other ranks notice. */
    template <class Fn> Outcome<void> fill(Fn fn)
    {
        struct Job {
            Fn &fn;
            detail::Caught caught;
        } job{fn, {}};
        const zero_status status = zero_engine_fill(
            get(),
            [](void *user, std::uint32_t tensor, std::uint64_t first, std::uint64_t count,
               float *values) {
                Job &mine = *static_cast<Job *>(user);
                const Span<float> span(values, static_cast<std::size_t>(count));
                if (!mine.caught.any()) {
                    detail::run_caught(mine.caught, [&] { mine.fn(tensor, first, span); });
                }
                if (mine.caught.any()) {
                    for (float &value : span) {
                        value = std::numeric_limits<float>::quiet_NaN();
                    }
                }
            },
            &job);
        if (job.caught.any()) {
            return job.caught.template fail<void>();
        }
        return done(status);
    }

    /** The plan the engine was made from; valid as long as the engine. */
    [[nodiscard]] Plan plan() const noexcept
    {
        return Plan::borrow(zero_engine_plan(get()));
    }
    /** The counters so far: zero_engine_stats. */
    [[nodiscard]] Outcome<zero_stats> stats() const
    {
        zero_stats stats = zero_stats_init();
        return give(zero_engine_stats(get(), &stats), stats);
    }
    /** The bytes that the engine holds: zero_engine_memory. */
    [[nodiscard]] Outcome<zero_memory> memory() const
    {
        zero_memory memory = zero_memory_init();
        return give(zero_engine_memory(get(), &memory), memory);
    }

    /** Open a micro-step: zero_micro_begin. */
    Outcome<void> micro_begin(Micro micro = Micro::last)
    {
        return done(zero_micro_begin(get(), static_cast<zero_micro>(micro)));
    }
    /** Close it: zero_micro_end. */
    Outcome<void> micro_end()
    {
        return done(zero_micro_end(get()));
    }
    /** Drop the step under way, the way out of an exception: zero_micro_abandon. Every unit is
     *  released; detach() objects of units that live on. */
    Outcome<void> micro_abandon(zero_stream stream = zero_stream_host())
    {
        return done(zero_micro_abandon(get(), stream));
    }

    /** Make a unit's parameters readable, in Pass::backward also its gradients writable, until the
     *  object ends: zero_unit_acquire. */
    [[nodiscard]] Outcome<Unit> acquire(std::uint32_t unit, Pass pass,
                                        zero_stream stream = zero_stream_host())
    {
        if (failed()) {
            return kept_->caught.fail<Unit>();
        }
        const zero_unit_view *view = nullptr;
        const zero_status status =
            zero_unit_acquire(get(), unit, static_cast<zero_pass>(pass), stream, &view);
        return detail::give(status, [&] { return Unit(get(), view, unit, pass, stream); });
    }

    /** Parameters alone, without an object: zero_unit_params_acquire. */
    Outcome<void> params_acquire(std::uint32_t unit, Pass pass,
                                 zero_stream stream = zero_stream_host())
    {
        return done(zero_unit_params_acquire(get(), unit, static_cast<zero_pass>(pass), stream));
    }
    /** zero_unit_params_release. */
    Outcome<void> params_release(std::uint32_t unit, zero_stream stream = zero_stream_host())
    {
        return done(zero_unit_params_release(get(), unit, stream));
    }
    /** Gradients alone, without an object: zero_unit_grads_acquire. */
    Outcome<void> grads_acquire(std::uint32_t unit, zero_stream stream = zero_stream_host())
    {
        return done(zero_unit_grads_acquire(get(), unit, stream));
    }
    /** The gradients are complete: zero_unit_grads_ready. */
    Outcome<void> grads_ready(std::uint32_t unit, zero_stream stream = zero_stream_host())
    {
        return done(zero_unit_grads_ready(get(), unit, stream));
    }
    /** The pass of a unit's last open acquire: zero_unit_pass. */
    [[nodiscard]] Outcome<Pass> pass_of(std::uint32_t unit) const
    {
        zero_pass pass = ZERO_PASS_NONE;
        const zero_status status = zero_unit_pass(get(), unit, &pass);
        return give(status, static_cast<Pass>(pass));
    }
    /** A tensor's elements, by its index in the model, while its unit is acquired:
     *  zero_tensor_data. */
    template <class T> [[nodiscard]] Outcome<Span<const T>> param(std::uint32_t tensor)
    {
        return view_of<const T>("parameter", zero_tensor_data, tensor);
    }
    /** Its codes and scales, with tuning.encoded_views: zero_tensor_encoded. */
    [[nodiscard]] Outcome<zero_encoded> encoded(std::uint32_t tensor)
    {
        zero_encoded encoded = {};
        const zero_status status = zero_tensor_encoded(get(), tensor, &encoded);
        return give(status, encoded);
    }
    /** Its gradient: zero_tensor_grad. */
    template <class T> [[nodiscard]] Outcome<Span<T>> grad(std::uint32_t tensor)
    {
        return view_of<T>("gradient", zero_tensor_grad, tensor);
    }

    /** Update the shards with the defaults of each group's optimizer: zero_step. */
    Outcome<void> step(zero_stream stream = zero_stream_host())
    {
        return done(zero_step(get(), nullptr, stream));
    }
    /** Update the shards: zero_step. */
    Outcome<void> step(const zero_step_params &params, zero_stream stream = zero_stream_host())
    {
        return done(zero_step(get(), &params, stream));
    }
    /** Give the next step's numbers ahead of backward: zero_step_predict. */
    Outcome<void> step_predict(const zero_step_params &params)
    {
        return done(zero_step_predict(get(), &params));
    }
    /** Drop the step that is due: zero_step_discard. */
    Outcome<void> step_discard()
    {
        return done(zero_step_discard(get()));
    }
    /** Wait for the last step's norm, clip and loss scale: zero_step_wait. */
    [[nodiscard]] Outcome<zero_step_result> step_wait()
    {
        zero_step_result result = zero_step_result_init();
        return give(zero_step_wait(get(), &result), result);
    }
    /** The factor of the next micro-step's loss: zero_loss_scale. */
    [[nodiscard]] Outcome<float> loss_scale()
    {
        float scale = 0;
        const zero_status status = zero_loss_scale(get(), &scale);
        return give(status, scale);
    }
    /** The norm of the step that is due: zero_grad_norm. */
    [[nodiscard]] Outcome<double> grad_norm(const zero_step_params &params,
                                            zero_stream stream = zero_stream_host())
    {
        double norm = 0;
        const zero_status status = zero_grad_norm(get(), &params, stream, &norm);
        return give(status, norm);
    }
    /** The state that a step passes on to the next: zero_step_state_get. */
    [[nodiscard]] Outcome<zero_step_state> step_state()
    {
        zero_step_state state = zero_step_state_init();
        return give(zero_step_state_get(get(), &state), state);
    }
    /** Let the next step follow this state: zero_step_state_set. */
    Outcome<void> set_step_state(const zero_step_state &state)
    {
        return done(zero_step_state_set(get(), &state));
    }

    /** Which elements of a tensor this rank's shard has: zero_shard_range. */
    [[nodiscard]] Outcome<zero_shard> shard_range(std::uint32_t tensor, zero_role role) const
    {
        zero_shard shard = {};
        return give(zero_shard_range(get(), tensor, role, &shard), shard);
    }
    /** A copy of this rank's shard, from any tier: zero_shard_read of all of it. */
    template <class T>
    [[nodiscard]] Outcome<std::vector<T>> shard_read(std::uint32_t tensor, zero_role role)
    {
        zero_shard shard = {};
        zero_status status = zero_shard_range(get(), tensor, role, &shard);
        if (status == ZERO_OK && shard.dtype != dtype_of<T>()) {
            return detail::failure<std::vector<T>>(
                wrong_role(tensor, role, shard.dtype, dtype_of<T>()));
        }
        std::vector<T> values;
        if (status == ZERO_OK) {
            values.resize(static_cast<std::size_t>(shard.count));
            status = zero_shard_read(get(), tensor, role, shard.first, shard.count, values.data());
        }
        return give(status, std::move(values));
    }
    /** Set this rank's shard, all of it: zero_shard_write.
     *  - values: as many as shard_range() says, and of its type. */
    template <class T>
    Outcome<void> shard_write(std::uint32_t tensor, zero_role role, const std::vector<T> &values)
    {
        zero_shard shard = {};
        zero_status status = zero_shard_range(get(), tensor, role, &shard);
        if (status == ZERO_OK && shard.dtype != dtype_of<T>()) {
            return detail::failure<void>(wrong_role(tensor, role, shard.dtype, dtype_of<T>()));
        }
        if (status == ZERO_OK && shard.count != values.size()) {
            return detail::failure<void>(
                detail::wrong_count("this rank's shard of tensor " + std::to_string(tensor),
                                    values.size(), shard.count));
        }
        if (status == ZERO_OK) {
            status = zero_shard_write(get(), tensor, role, shard.first, shard.count, values.data());
        }
        return done(status);
    }
    /** A whole tensor, rounded to T: zero_tensor_export. Ranks that want no copy call
     *  export_join() in its place. */
    template <class T>
    [[nodiscard]] Outcome<std::vector<T>> export_tensor(std::uint32_t tensor, zero_role role)
    {
        std::vector<T> values(static_cast<std::size_t>(count_of(tensor)));
        zero_array array = {};
        array.data = values.data();
        array.dtype = dtype_of<T>();
        T none = {};
        if (values.empty()) {
            array.data = &none; /* a tensor without elements still has ranks that meet */
        }
        const zero_status status = zero_tensor_export(get(), tensor, role, &array);
        return give(status, std::move(values));
    }
    /** Take part in the export of other ranks: zero_tensor_export without an array. */
    Outcome<void> export_join(std::uint32_t tensor, zero_role role)
    {
        return done(zero_tensor_export(get(), tensor, role, nullptr));
    }
    /** Set this rank's shard from a whole tensor: zero_tensor_import. */
    Outcome<void> import_tensor(std::uint32_t tensor, zero_role role, const Array &array)
    {
        if (tensor < counts() && !array.fits(count_of(tensor))) {
            return detail::failure<void>(detail::wrong_count("tensor " + std::to_string(tensor),
                                                             array.count(), count_of(tensor)));
        }
        return done(zero_tensor_import(get(), tensor, role, &array.c_array()));
    }

    /** Save the state, and wait until it is durable: zero_save. */
    Outcome<void> save(const zero_save_options &options)
    {
        return done(zero_save(get(), &options));
    }
    /** The same into a run's directory, with all other options at their defaults. */
    Outcome<void> save(const std::string &directory)
    {
        SaveOptions options;
        options.directory = directory.c_str();
        return save(options);
    }
    /** Begin to save while training goes on: zero_save_begin. */
    Outcome<void> save_begin(const zero_save_options &options)
    {
        return done(zero_save_begin(get(), &options));
    }
    /** How far the save is: zero_save_poll. */
    [[nodiscard]] Outcome<zero_save_progress> save_poll() const
    {
        zero_save_progress progress = zero_save_progress_init();
        return give(zero_save_poll(get(), &progress), progress);
    }
    /** Wait until the save is durable: zero_save_end. */
    Outcome<void> save_end()
    {
        return done(zero_save_end(get()));
    }
    /** Set the state from a checkpoint: zero_load.
     *  - report: NULL, or of zero_load_report_init(); filled in also where the load fails. */
    Outcome<void> load(const zero_load_options &options, zero_load_report *report = nullptr)
    {
        return done(zero_load(get(), &options, report));
    }
    /** The same from a run's directory or a checkpoint's folder. */
    Outcome<void> load(const std::string &path)
    {
        LoadOptions options;
        options.path = path.c_str();
        return load(options);
    }

    /** Give the memory of roles back until restore(): zero_engine_evict. */
    Outcome<void> evict(std::uint32_t roles, zero_tier tier)
    {
        return done(zero_engine_evict(get(), roles, tier));
    }
    /** Take it again: zero_engine_restore. */
    Outcome<void> restore()
    {
        return done(zero_engine_restore(get()));
    }

    /** Write the timeline: zero_engine_trace. */
    Outcome<void> trace(const std::string &path)
    {
        return done(zero_engine_trace(get(), path.c_str()));
    }
    /** Write this rank's last collectives: zero_engine_collectives_write. From any thread. */
    Outcome<void> collectives_write(const std::string &path) const
    {
        return done(zero_engine_collectives_write(get(), path.c_str()));
    }
    /** The path of a kind of traffic: zero_engine_path. */
    [[nodiscard]] Outcome<zero_path> path(zero_traffic traffic) const
    {
        zero_path path = zero_path_init();
        return give(zero_engine_path(get(), traffic, &path), path);
    }
    /** How this rank reaches its state on disk: zero_engine_disk_path. */
    [[nodiscard]] Outcome<zero_disk_path> disk_path() const
    {
        zero_disk_path path = zero_disk_path_init();
        return give(zero_engine_disk_path(get(), &path), path);
    }

  private:
    using Owner = detail::Handle<zero_engine, zero_engine_destroy>;

    /* Kept in one place: the engine of C points to it. `counts` it knows and does not say. */
    struct Kept {
        UpdateFn update;
        detail::Caught caught; /* of update */
        std::vector<std::uint64_t> counts;
    };

    static void run_update(void *user, const zero_update_range *range)
    {
        Kept &kept = *static_cast<Kept *>(user);
        if (!kept.caught.any()) {
            detail::run_caught(kept.caught, [&] { kept.update(*range); });
        }
    }

    [[nodiscard]] bool failed() const noexcept
    {
        return kept_ != nullptr && kept_->caught.any();
    }
    [[nodiscard]] std::uint32_t counts() const noexcept
    {
        return kept_ != nullptr ? static_cast<std::uint32_t>(kept_->counts.size()) : 0;
    }
    [[nodiscard]] std::uint64_t count_of(std::uint32_t tensor) const noexcept
    {
        return tensor < counts() ? kept_->counts[tensor] : 0;
    }

    Outcome<void> done(zero_status status) const
    {
        if (failed()) {
            return kept_->caught.fail<void>();
        }
        return detail::done(status);
    }
    /* `value` is a reference, since the call that is the argument before fills it in. */
    template <class T> Outcome<std::decay_t<T>> give(zero_status status, T &&value) const
    {
        if (failed()) {
            return kept_->caught.template fail<std::decay_t<T>>();
        }
        return detail::give(status, [&] { return std::decay_t<T>(std::forward<T>(value)); });
    }

    template <class T>
    Outcome<Span<T>> view_of(const char *what,
                             zero_status (*call)(zero_engine *, std::uint32_t, zero_view *),
                             std::uint32_t tensor)
    {
        zero_view view = {};
        const zero_status status = call(get(), tensor, &view);
        if (failed()) {
            return kept_->caught.template fail<Span<T>>();
        }
        if (status != ZERO_OK) {
            return detail::failure<Span<T>>(Error::last(status));
        }
        return detail::typed<T>(
            view, [&] { return std::string(what) + " of tensor " + std::to_string(tensor); });
    }

    static Error wrong_role(std::uint32_t tensor, zero_role role, zero_dtype is, zero_dtype asked)
    {
        return Error(ZERO_ERR_INVALID_ARGUMENT,
                     std::string(zero_role_name(role)) + " of tensor " + std::to_string(tensor) +
                         " is " + zero_dtype_name(is) + ", and is asked for as " +
                         zero_dtype_name(asked) + "; ask for the C++ type of its dtype",
                     __FILE__, __LINE__);
    }

    std::unique_ptr<Kept> kept_; /* outlives the engine of C */
    Owner handle_;
};

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
