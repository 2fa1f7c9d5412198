// examples/01_hello in C++: two ranks of this process teach three linear layers to swap
// neighbouring values, sharded as the first argument says: stage 0, 1, 2 or 3. The losses are the
// same bits.
#include <cstdio>
#include <vector>
#include <zero/zero.hpp>

constexpr std::size_t ranks = 2, layers = 3, width = 16, weights = width * width, steps = 500;

static void train(zero::World &world, const zero::Options &options)
{
    auto model = zero::Model::create();
    std::vector<float> initial[layers];
    for (std::uint32_t l = 0; l < layers; l++) {
        initial[l].resize(weights);
        zero_random_normal(1, l, 0, weights, 0, 0.25F, initial[l].data());
        const auto name = "layer" + std::to_string(l);
        model.add_unit(name, {{name + ".weight", {width, width}, initial[l]}});
    }
    auto engine = zero::Engine::create(world, model, options);
    zero::StepParams params;
    params.hyper.adamw.lr = 0.01F;
    for (std::uint32_t step = 0; step < steps; step++) {
        float x[layers + 1][width] = {}, d[layers + 1][width] = {}, loss = 0;
        zero_random_normal(2, world.rank(), step * width, width, 0, 1, x[0]);
        engine.micro_begin();
        for (std::uint32_t l = 0; l < layers; l++) {
            auto unit = engine.acquire(l, zero::Pass::forward);
            auto weight = unit.param<float>(0);
            for (std::size_t i = 0; i < weights; i++) {
                x[l + 1][i / width] += weight[i] * x[l][i % width];
            }
        }
        for (std::size_t i = 0; i < width; i++) {
            d[layers][i] = (x[layers][i] - x[0][i ^ 1]) * 2 / width;
            loss += d[layers][i] * d[layers][i] * width / 4;
        }
        for (std::uint32_t l = layers; l-- > 0;) {
            auto unit = engine.acquire(l, zero::Pass::backward);
            auto weight = unit.param<float>(0);
            auto grad = unit.grad<float>(0);
            for (std::size_t i = 0; i < weights; i++) {
                grad[i] += d[l + 1][i / width] * x[l][i % width];
                d[l][i % width] += d[l + 1][i / width] * weight[i];
            }
        }
        engine.micro_end();
        engine.step(params);
        if (world.rank() == 0) {
            std::printf("step %3u  loss %.8e\n", step, double{loss});
        }
    }
}

int main(int argc, char **argv)
try {
    zero::NamedOptions options;
    options.set("stage", argc > 1 ? argv[1] : "3");
    zero::World::run(ranks, [&](zero::World &world) { train(world, options.options()); });
} catch (const zero::Error &error) {
    std::fprintf(stderr, "hello: %s\n", error.what());
    return 1;
}
