/* A made-up model and its steps, for the tests of the C++ headers that throw. */
#ifndef TESTS_CPP_TRAINER_HPP
#define TESTS_CPP_TRAINER_HPP

#include "check.hpp"
#include <stdexcept>

inline constexpr std::uint32_t layer_count = 3;
inline constexpr std::size_t width = 8;
inline constexpr std::size_t weights = width * width;

inline zero::Model layers(const std::vector<float> &initial, zero_dtype dtype = ZERO_DTYPE_F32)
{
    zero::Model model = zero::Model::create();
    for (std::uint32_t l = 0; l < layer_count; l++) {
        const std::string name = "layer" + std::to_string(l);
        zero::Tensor tensor{name + ".weight", {width, width}, initial};
        tensor.dtype = dtype;
        (void)model.add_unit(name, {tensor});
    }
    return model;
}

inline std::vector<float> some_values(std::size_t count = weights)
{
    std::vector<float> values(count);
    zero_random_normal(1, 2, 0, count, 0, 0.25F, values.data());
    return values;
}

/* One micro-step of a made-up model: gradients depend on parameters, the rank and the step. */
inline void micro_step(zero::Engine &engine, std::uint32_t rank, std::uint32_t step,
                       std::uint32_t throw_at = layer_count)
{
    engine.micro_begin();
    for (std::uint32_t l = 0; l < layer_count; l++) {
        zero::Unit unit = engine.acquire(l, zero::Pass::forward);
        CHECK(unit.param<float>(0).size() == weights);
    }
    for (std::uint32_t l = layer_count; l-- > 0;) {
        zero::Unit unit = engine.acquire(l, zero::Pass::backward);
        const auto weight = unit.param<float>(0);
        const auto grad = unit.grad<float>(0);
        for (std::size_t i = 0; i < weights; i++) {
            grad[i] += weight[i] * static_cast<float>(rank + step + 1);
            if (l == throw_at && i == weights / 2) {
                throw std::out_of_range("a bad batch");
            }
        }
    }
    engine.micro_end();
}

#endif
