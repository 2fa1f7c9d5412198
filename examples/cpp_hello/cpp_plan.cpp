// Prints what a rank of a small transformer needs at a stage. It has no exceptions: each call gives
// back a value or an error. Usage: cpp_plan STAGE RANKS
#include <cstdio>
#include <cstdlib>
#include <zero/zero.hpp>

constexpr std::uint64_t width = 768, vocabulary = 50257;
constexpr std::uint32_t layers = 12;

static zero::Result<void> describe(zero::Model &model)
{
    auto embedding = model.add_unit("embedding", {{"tokens", {vocabulary, width}}});
    if (!embedding) {
        return embedding.error();
    }
    auto blocks = model.add_layers("block", layers,
                                   {{"attention", {4 * width, width}},
                                    {"up", {4 * width, width}},
                                    {"down", {width, 4 * width}}});
    if (!blocks) {
        return blocks.error();
    }
    return {};
}

static zero::Result<zero::Plan> plan(const char *stage, std::uint32_t ranks)
{
    auto model = zero::Model::create();
    if (!model) {
        return model.error();
    }
    if (auto described = describe(*model); !described) {
        return described.error();
    }
    zero::NamedOptions options;
    if (auto set = options.set("stage", stage); !set) {
        return set.error();
    }
    return zero::Plan::create(*model, options.options(), ranks);
}

int main(int argc, char **argv)
{
    const char *stage = argc > 1 ? argv[1] : "3";
    const char *ranks = argc > 2 ? argv[2] : "8";
    const auto planned = plan(stage, static_cast<std::uint32_t>(std::strtoul(ranks, nullptr, 10)));
    if (!planned) {
        std::fprintf(stderr, "cpp_plan: %s\n", planned.error().what());
        return 1;
    }
    std::fputs(planned.value().print().c_str(), stdout);
    return 0;
}
