/** @file
 *  The C structs of options, with their defaults set: `zero::Options options; options.stage = ...`.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_OPTIONS_HPP
#define ZERO_OPTIONS_HPP

#include "zero/checkpoint.h"
#include "zero/option.h"
#include "zero/options.h"
#include "zero/result.hpp"
#include "zero/step.h"
#include <list>
#include <memory>
#include <string>

namespace zero
{

/** zero_engine_options with their defaults. */
struct Options : zero_engine_options {
    Options() noexcept : zero_engine_options(zero_engine_options_init())
    {
    }
};

/** zero_tuning with its defaults. */
struct Tuning : zero_tuning {
    Tuning() noexcept : zero_tuning(zero_tuning_init())
    {
    }
};

/** zero_step_params with their defaults, which are AdamW's. */
struct StepParams : zero_step_params {
    StepParams() noexcept : zero_step_params(zero_step_params_init())
    {
    }
    /** The defaults of another optimizer. */
    explicit StepParams(zero_optimizer kind) noexcept : StepParams()
    {
        hyper = zero_hyper_init(kind);
    }
};

/** zero_save_options with their defaults. */
struct SaveOptions : zero_save_options {
    SaveOptions() noexcept : zero_save_options(zero_save_options_init())
    {
    }
};

/** zero_load_options with their defaults. */
struct LoadOptions : zero_load_options {
    LoadOptions() noexcept : zero_load_options(zero_load_options_init())
    {
    }
};

inline namespace ZERO_CPP_MODE
{

/** Options and tuning that are set by name, as command lines and files give them. It keeps the
 *  texts that options point to. */
class NamedOptions
{
  public:
    /** All defaults. */
    NamedOptions() : inside_(std::make_unique<Inside>())
    {
        inside_->options.tuning = &inside_->tuning;
    }

    /** Set an option or a tuning: zero_option_set. */
    Outcome<void> set(const std::string &name, const std::string &text)
    {
        inside_->texts.push_back(text);
        return detail::done(zero_option_set(&inside_->options, &inside_->tuning, name.c_str(),
                                            inside_->texts.back().c_str()));
    }

    /** The options, whose tuning is tuning(). Valid as long as this object, moved or not. */
    [[nodiscard]] Options &options() const noexcept
    {
        return inside_->options;
    }
    /** The tuning. */
    [[nodiscard]] Tuning &tuning() const noexcept
    {
        return inside_->tuning;
    }

  private:
    struct Inside {
        Options options;
        Tuning tuning;
        std::list<std::string> texts;
    };
    std::unique_ptr<Inside> inside_;
};

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
