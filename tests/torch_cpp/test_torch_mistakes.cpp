/* A beginner's mistakes with libtorch, and the message of each: docs/torch-cpp.md shows some. */
#define CHECK_NO_MAIN
#include "nets.hpp"

namespace
{

using zero::Error;
using zero::Micro;
using zero::torch::Sharded;

struct Mistake {
    const char *what;
    void (*make)(zero::World &world);
    zero_status status;
    const char *says;
};

/* One micro-step as it should be, but for what `wrong` does in it. */
template <class Fn> void step_with(zero::World &world, Fn wrong)
{
    Net net = made_net();
    Sharded model(net, world);
    const auto [x, y] = data_of(0, 0);
    model.micro(Micro::last, [&, &ids = x, &targets = y] { wrong(model, net, ids, targets); });
    model.step(adamw());
}

/* A step after something was done to the module. */
template <class Fn> void step_after(zero::World &world, Fn wrong)
{
    Net net = made_net();
    Sharded model(net, world);
    wrong(net);
    const auto [x, y] = data_of(0, 0);
    model.micro(Micro::last,
                [&, &ids = x, &targets = y] { model.backward(loss_of(net(ids), targets)); });
}

Block block_of(const Net &net, std::size_t i)
{
    return Block(std::dynamic_pointer_cast<BlockImpl>((*net->blocks)[i]));
}

const Mistake mistakes[] = {
    {"a parameter of doubles",
     [](zero::World &world) {
         Net net = made_net();
         net->places.set_data(net->places.to(torch::kDouble));
         const Sharded model(net, world);
     },
     ZERO_ERR_INVALID_ARGUMENT, "parameter \"places\" is Double; libzero trains dense float"},
    {"a module without parameters",
     [](zero::World &world) {
         torch::nn::ReLU net;
         const Sharded model(net, world);
     },
     ZERO_ERR_INVALID_ARGUMENT, "no parameters"},
    {"two tensors over the same memory",
     [](zero::World &world) {
         Net net = made_net();
         net->head.set_data(net->tokens->weight.detach());
         const Sharded model(net, world);
     },
     ZERO_ERR_INVALID_ARGUMENT,
     "\"head\" and \"tokens.weight\" are two tensors over the same memory"},
    {"a module that is sharded twice",
     [](zero::World &world) {
         Net net = made_net();
         const Sharded model(net, world);
         const Sharded again(net, world);
     },
     ZERO_ERR_STATE, "is sharded already"},
    {"forward past the hooks",
     [](zero::World &world) {
         step_with(world, [](Sharded &model, Net &net, const Tensor &x, const Tensor &y) {
             model.backward(loss_of(net->forward(x), y));
         });
     },
     ZERO_ERR_STATE, "call block(x) of a ZERO_TORCH_MODULE or zero::torch::call(block, x)"},
    {"backward outside a micro-step",
     [](zero::World &world) {
         Net net = made_net();
         const Sharded model(net, world);
         const auto [x, y] = data_of(0, 0);
         loss_of(net(x), y).backward();
     },
     ZERO_ERR_STATE, "put forward and backward into Sharded::micro"},
    {"two backward passes in a micro-step",
     [](zero::World &world) {
         step_with(world, [](Sharded &model, Net &net, const Tensor &x, const Tensor &) {
             const Tensor h = block_of(net, 0)(torch::randn({2, 3, width}).requires_grad_());
             h.sum().backward();
             const Tensor again = block_of(net, 0)(torch::randn({2, 3, width}).requires_grad_());
             again.sum().backward();
             (void)model;
             (void)x;
         });
     },
     ZERO_ERR_STATE, "is in two backward passes of one micro-step"},
    {"a backward that is to be differentiated",
     [](zero::World &world) {
         step_with(world, [](Sharded &, Net &net, const Tensor &x, const Tensor &y) {
             loss_of(net(x), y).backward({}, true, true);
         });
     },
     ZERO_ERR_STATE, "was replaced and not added to; backward with create_graph"},
    {"a parameter that is used outside its unit",
     [](zero::World &world) {
         step_with(world, [](Sharded &model, Net &net, const Tensor &x, const Tensor &y) {
             const Tensor penalty = block_of(net, 1)->up->weight.pow(2).sum();
             model.backward(loss_of(net(x), y) + penalty);
         });
     },
     ZERO_ERR_STATE, "a gradient came to \"h.1.up.weight\""},
    {"weights that are loaded too late",
     [](zero::World &world) {
         step_after(world, [](Net &net) {
             Net other = made_net();
             std::stringstream file;
             torch::save(other, file);
             torch::load(net, file);
         });
     },
     ZERO_ERR_STATE, "was written or replaced since Sharded was made (torch::load, to(), "},
    {"a module that is converted too late",
     [](zero::World &world) { step_after(world, [](Net &net) { net->to(torch::kBFloat16); }); },
     ZERO_ERR_STATE, "was written or replaced since Sharded was made"},
    {"a parameter of one element that is written",
     [](zero::World &world) {
         torch::nn::Linear net(1, 1);
         const Sharded model(net, world);
         {
             const torch::NoGradGuard no_grad;
             net->weight.fill_(2);
         }
         (void)zero::torch::call(net, torch::ones({1, 1}));
     },
     ZERO_ERR_STATE, "parameter \"weight\" was written or replaced"},
    {"a parameter that is frozen too late",
     [](zero::World &world) {
         step_after(world, [](Net &net) { net->places.set_requires_grad(false); });
     },
     ZERO_ERR_STATE, "parameter \"places\" was trained when Sharded was made"},
    {"checkpoint() of what needs no gradient",
     [](zero::World &world) {
         step_with(world, [](Sharded &, Net &net, const Tensor &x, const Tensor &) {
             (void)zero::torch::checkpoint(net, x);
         });
     },
     ZERO_ERR_INVALID_ARGUMENT, "call the first layers without it"},
    {"values that are written inside whole()",
     [](zero::World &world) {
         Net net = made_net();
         Sharded model(net, world);
         model.whole([&] {
             const torch::NoGradGuard no_grad;
             net->places.fill_(1);
         });
     },
     ZERO_ERR_STATE, "parameter \"places\" was written inside whole(), where values are copies"},
    {"a model that was moved",
     [](zero::World &world) {
         Net net = made_net();
         Sharded model(net, world);
         const Sharded other = std::move(model);
         model.micro_begin();
     },
     ZERO_ERR_INVALID_ARGUMENT, "this zero::torch::Sharded was moved"},
};

CASE(a_beginner_s_mistakes_with_libtorch_say_what_to_do)
{
    for (const Mistake &mistake : mistakes) {
        zero::World world = zero::World::self();
        try {
            mistake.make(world);
            fail_at(mistake.what, 0, "nothing was thrown");
        } catch (const Error &error) {
            if (error.status() != mistake.status ||
                std::string(error.what()).find(mistake.says) == std::string::npos) {
                fail_at(mistake.what, 0, std::string(error.name()) + ": " + error.what());
            }
        } catch (const std::exception &error) {
            fail_at(mistake.what, 0, std::string("not an Error: ") + error.what());
        }
    }
}

/* Outside its unit a parameter reads NaN; to write to it is libtorch's own error. */
CASE(a_released_parameter_reads_nan_and_is_not_written)
{
    zero::World world = zero::World::self();
    Net net = made_net();
    const Tensor view = block_of(net, 1)->up->weight.t();
    const Sharded model(net, world);
    const torch::NoGradGuard no_grad;
    const Tensor weight = block_of(net, 1)->up->weight;
    CHECK(weight.sizes() == torch::IntArrayRef({2 * width, width}));
    CHECK(weight.isnan().all().item<bool>());
    CHECK(block_of(net, 1)->forward(torch::randn({1, 2, width})).isnan().all().item<bool>());
    CHECK(net(data_of(0, 0).first).isfinite().all().item<bool>());
    Tensor kept;
    (void)zero::torch::around(
        block_of(net, 1), [&](const Tensor &x) { return kept = weight.t(), x.clone(); }, view);
    CHECK(kept.isnan().all().item<bool>());
    bool refused = false;
    try {
        weight.normal_();
    } catch (const c10::Error &) {
        refused = true;
    }
    CHECK(refused);
}

} // namespace
