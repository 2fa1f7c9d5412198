/* Other uses of a sharded module than training: evaluate, recompute by themselves, leave
 * units out, throw, save and export. */
#define CHECK_NO_MAIN
#include "nets.hpp"
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <unistd.h>

namespace
{

using zero::Micro;
using zero::torch::Sharded;

std::string folder()
{
    std::string name = (std::filesystem::temp_directory_path() / "zero_torch_XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr);
    return name;
}

zero::Options one_thread(std::uint32_t stage = 3)
{
    zero::Options options;
    options.stage = static_cast<zero_stage>(stage);
    options.threads = 1;
    return options;
}

void step_on(Sharded &model, Net &net, std::int64_t micro, std::uint32_t rank)
{
    const auto [x, y] = data_of(micro, rank);
    model.micro(Micro::last,
                [&, &ids = x, &targets = y] { model.backward(loss_of(net(ids), targets)); });
    model.step(adamw());
}

bool same(const std::map<std::string, Tensor> &a, const std::map<std::string, Tensor> &b)
{
    bool alike = a.size() == b.size() && !a.empty();
    for (const auto &[name, value] : a) {
        const auto other = b.find(name);
        alike = alike && other != b.end() && torch::equal(value, other->second);
    }
    return alike;
}

/* Evaluation gives libtorch's bits, between micro-steps and inside them, and changes nothing. */
CASE(evaluation)
{
    const auto [x, y] = data_of(0, 0);
    Net plain = made_net();
    Tensor wanted;
    {
        const torch::NoGradGuard no_grad;
        wanted = plain(x);
    }
    zero::World::run(2, [&, &ids = x, &targets = y](zero::World &world) {
        Net net = made_net();
        Sharded model(net, world, one_thread());
        net->eval();
        {
            const torch::NoGradGuard no_grad;
            CHECK(torch::equal(net(ids), wanted));
        }
        {
            const torch::InferenceMode inference;
            CHECK(torch::equal(net(ids), wanted));
        }
        CHECK(torch::equal(net(ids).detach(), wanted)); /* a graph that nobody uses */
        net->train();
        model.micro(Micro::last, [&] {
            {
                const torch::NoGradGuard no_grad;
                CHECK(torch::equal(net(ids), wanted));
            }
            model.backward(loss_of(net(ids), targets));
        });
        model.step(adamw());
        const auto after = model.state_dict();
        const Net other = made_net();
        CHECK(!torch::equal(after.at("places"), other->places));
    });
}

/* A unit whose output is not used, one that is not called, and a parameter that is not. */
CASE(units_that_are_left_out)
{
    Run run;
    run.ranks = 2;
    std::map<std::string, Tensor> found;
    zero::World::run(2, [&](zero::World &world) {
        Net net = made_net();
        zero::Tuning tuning;
        tuning.bucket_bytes = 1;
        zero::Options options = one_thread();
        options.tuning = &tuning;
        Sharded model(net, world, options);
        Block first(std::dynamic_pointer_cast<BlockImpl>((*net->blocks)[0]));
        Block second(std::dynamic_pointer_cast<BlockImpl>((*net->blocks)[1]));
        for (int step = 0; step < 3; step++) {
            model.micro(Micro::last, [&] {
                torch::manual_seed(5);
                const Tensor x = torch::randn({2, 4, width});
                const Tensor unused = second(first(x));
                const Tensor loss = zero::torch::around(
                    first, [&](const Tensor &in) { return first->up(in).pow(2).mean(); },
                    x.detach().requires_grad_());
                model.backward(loss);
            });
            model.step(adamw());
        }
        auto all = model.state_dict();
        if (world.rank() == 0) {
            found = std::move(all);
        }
    });
    const Net before = made_net();
    for (const auto &item : before->named_parameters()) {
        const bool moved = !torch::equal(item.value(), found.at(item.key()));
        /* The rest decays, as with torch::optim where a gradient is zero. */
        const Tensor decayed = item.value() * 0.999 * 0.999 * 0.999;
        const bool trained = !torch::allclose(decayed, found.at(item.key()), 1e-5, 1e-7);
        CHECK(moved || item.value().abs().max().item<float>() == 0);
        CHECK(trained == (item.key().find("h.0.up") == 0));
    }
}

/* Two ranks use two blocks, each its own, as experts are used; a rank without tokens joins in. */
CASE(ranks_that_use_different_units)
{
    std::map<std::string, Tensor> runs[4];
    for (const std::uint32_t stage : {0U, 1U, 2U, 3U}) {
        zero::World::run(2, [&](zero::World &world) {
            Net net = made_net();
            zero::Tuning tuning;
            tuning.bucket_bytes = 1;
            tuning.param_slots = 8; /* as many as there are units */
            zero::Options options = one_thread(stage);
            options.tuning = &tuning;
            Sharded model(net, world, options);
            Block mine(std::dynamic_pointer_cast<BlockImpl>((*net->blocks)[1 + world.rank()]));
            Block both(std::dynamic_pointer_cast<BlockImpl>((*net->blocks)[0]));
            for (int step = 0; step < 3; step++) {
                model.micro(Micro::last, [&] {
                    const Tensor x = torch::linspace(-1, 1, 4 * width).view({1, 4, width});
                    model.backward(mine(both(x + step)).pow(2).mean());
                });
                model.step(adamw());
            }
            auto all = model.state_dict(world.rank() == 0);
            if (world.rank() == 0) {
                runs[stage] = std::move(all);
            }
        });
        CHECK(same(runs[stage], runs[0]));
    }
    const Net before = made_net();
    CHECK(!torch::allclose(runs[3].at("h.1.up.weight"),
                           (*before->blocks)[1]->as<BlockImpl>()->up->weight, 1e-3, 1e-3));
    CHECK(!torch::allclose(runs[3].at("h.2.up.weight"),
                           (*before->blocks)[2]->as<BlockImpl>()->up->weight, 1e-3, 1e-3));
}

/* A Sharded that cannot be made leaves the module as it was. */
CASE(a_module_that_was_not_sharded)
{
    zero::World world = zero::World::self();
    Net net = made_net();
    const Net wanted = made_net();
    zero::Options options = one_thread();
    options.shard_group = 7;
    CHECK_THROWS(Sharded(net, world, options), ZERO_ERR_INVALID_ARGUMENT, "shard_group 7");
    CHECK(torch::equal(net->places, wanted->places));
    const Sharded model(net, world, one_thread());
    CHECK(net->places.isnan().all().item<bool>());
}

/* A function of the user's own that recomputes a block in backward. */
struct OwnCheckpoint : torch::autograd::Function<OwnCheckpoint> {
    static Tensor forward(torch::autograd::AutogradContext *context, const Tensor &x,
                          std::int64_t block)
    {
        context->save_for_backward({x});
        context->saved_data["block"] = block;
        return Block(reinterpret_cast<BlockImpl *>(block)->shared())(x);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext *context,
                                                   torch::autograd::variable_list grads)
    {
        const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
        const torch::AutoGradMode record(true);
        auto *block = reinterpret_cast<BlockImpl *>(context->saved_data["block"].toInt());
        torch::autograd::backward({Block(block->shared())(x)}, {grads[0]});
        return {x.grad(), Tensor()};
    }
};

CASE(recomputation_of_the_user_s_own)
{
    std::map<std::string, Tensor> runs[2];
    for (const bool own : {false, true}) {
        zero::World::run(2, [&](zero::World &world) {
            Net net = made_net();
            Sharded model(net, world, one_thread());
            Block block(std::dynamic_pointer_cast<BlockImpl>((*net->blocks)[1]));
            for (int step = 0; step < 3; step++) {
                model.micro(Micro::last, [&] {
                    const Tensor x = torch::linspace(-1, 1, 4 * width).view({1, 4, width});
                    const Tensor in =
                        (x + (step + static_cast<int>(world.rank()))).requires_grad_();
                    const Tensor y =
                        own ? OwnCheckpoint::apply(in, reinterpret_cast<std::int64_t>(block.get()))
                            : block(in);
                    model.backward(y.pow(2).mean());
                });
                model.step(adamw());
            }
            auto all = model.state_dict();
            if (world.rank() == 0) {
                runs[own] = std::move(all);
            }
        });
    }
    CHECK(same(runs[0], runs[1]));
}

/* An exception in the middle of forward or backward: later steps are as if it had not been. */
CASE(an_exception_in_a_micro_step)
{
    std::map<std::string, Tensor> wanted;
    for (const bool failing : {false, true}) {
        zero::World::run(2, [&](zero::World &world) {
            Net net = made_net();
            Sharded model(net, world, one_thread());
            for (std::int64_t step = 0; step < 4; step++) {
                for (int place = 0; failing && place < 2; place++) {
                    bool thrown = false;
                    try {
                        const auto [x, y] = data_of(77, world.rank());
                        model.micro(Micro::last, [&, &ids = x, &targets = y] {
                            Tensor logits = net(ids);
                            if (place == 0) {
                                throw std::out_of_range("a bad batch");
                            }
                            Tensor h = zero::torch::call((*net->blocks)[0]->as<BlockImpl>()->norm,
                                                         logits.slice(2, 0, width));
                            h.register_hook(
                                [](const Tensor &) { throw std::out_of_range("a bad batch"); });
                            model.backward(loss_of(logits, targets) + h.sum());
                        });
                    } catch (const std::out_of_range &) {
                        thrown = true;
                        CHECK(net->places.isnan().all().item<bool>());
                        model.micro_abandon();
                    }
                    CHECK(thrown);
                }
                step_on(model, net, step, world.rank());
            }
            auto all = model.state_dict();
            if (world.rank() == 0) {
                if (failing) {
                    CHECK(same(all, wanted));
                } else {
                    wanted = std::move(all);
                }
            }
        });
    }
}

/* Containers of libtorch, and outputs that are tuples, vectors and optionals. */
struct PairImpl : torch::nn::Module {
    PairImpl()
        : a(register_module("a", torch::nn::Linear(4, 4))),
          b(register_module("b", torch::nn::Linear(4, 4)))
    {
    }
    std::tuple<Tensor, std::vector<Tensor>> forward(const std::vector<Tensor> &in, double scale)
    {
        return {zero::torch::call(a, in[0]) * scale, {b(in[1]), in[0]}};
    }
    torch::nn::Linear a, b;
};
ZERO_TORCH_MODULE(Pair);

struct NestImpl : torch::nn::Module {
    NestImpl()
    {
        for (int i = 0; i < 2; i++) {
            sequence->push_back(torch::nn::Linear(4, 4));
            sequence->push_back(torch::nn::Tanh());
        }
        register_module("sequence", sequence);
        pair = register_module("pair", Pair());
        scale = register_parameter("scale", torch::ones({}));
        none = register_parameter("none", torch::ones({0, 4}));
    }
    Tensor forward(const Tensor &x)
    {
        const Tensor h = zero::torch::call(sequence, x);
        const auto [first, others] = pair(std::vector<Tensor>{h, h + 1}, 0.5);
        return scale * (first + others[0] + others[1]);
    }
    torch::nn::Sequential sequence;
    Pair pair = nullptr;
    Tensor scale, none;
};
ZERO_TORCH_MODULE(Nest);

/* Parameters after three steps of SGD. inner: a part of a unit is a unit of its own too. */
std::map<std::string, Tensor> nest_trained(zero::World *world, bool inner)
{
    static std::mutex one;
    std::unique_lock<std::mutex> lock(one);
    torch::manual_seed(3);
    Nest net;
    lock.unlock();
    const Tensor x = torch::linspace(-1, 1, 8).view({2, 4});
    std::map<std::string, Tensor> out;
    if (world == nullptr) {
        torch::optim::SGD sgd(net->parameters(), 0.1);
        for (int step = 0; step < 3; step++) {
            sgd.zero_grad();
            net(x).pow(2).sum().backward();
            sgd.step();
        }
        for (const auto &item : net->named_parameters()) {
            out[item.key()] = item.value().detach();
        }
        return out;
    }
    zero::torch::Config config;
    config.units = [inner](const std::string &name, const torch::nn::Module &module) {
        return name == "sequence" || dynamic_cast<const PairImpl *>(&module) != nullptr ||
               (name.find("sequence.") == 0 && !module.parameters().empty()) ||
               (inner && name == "pair.a");
    };
    zero::Tuning tuning;
    tuning.bucket_bytes = 1;
    zero::Options options = one_thread();
    options.tuning = &tuning;
    options.optimizer = ZERO_OPTIMIZER_SGD;
    Sharded model(net, *world, options, config);
    CHECK(model.print() == std::string("unit \"(root)\": scale none\n"
                                       "unit \"sequence.0\": sequence.0.weight sequence.0.bias\n"
                                       "unit \"sequence.2\": sequence.2.weight sequence.2.bias\n"
                                       "unit \"pair\": ") +
                               (inner ? "pair.b.weight pair.b.bias\n"
                                        "unit \"pair.a\": pair.a.weight pair.a.bias\n"
                                      : "pair.a.weight pair.a.bias pair.b.weight pair.b.bias\n"));
    zero::StepParams params(ZERO_OPTIMIZER_SGD);
    params.hyper.sgd.lr = 0.1F;
    for (int step = 0; step < 3; step++) {
        model.micro(Micro::last, [&] { model.backward(net(x).pow(2).sum()); });
        model.step(params);
    }
    return model.state_dict();
}

CASE(containers_nested_units_and_nested_outputs)
{
    const auto plain = nest_trained(nullptr, false);
    CHECK(plain.size() == 10);
    for (const bool inner : {false, true}) {
        zero::World::run(2, [&](zero::World &world) {
            const auto sharded = nest_trained(&world, inner);
            CHECK(sharded.size() == 10);
            for (const auto &[name, value] : plain) {
                CHECK(torch::allclose(value, sharded.at(name), 1e-5, 1e-6));
            }
        });
    }
}

/* fp16 on the CPU, which multiplies element by element only. */
struct HalfImpl : torch::nn::Module {
    HalfImpl() : scale(register_parameter("scale", torch::full({64}, 0.5, torch::kHalf)))
    {
    }
    Tensor forward(const Tensor &x)
    {
        return (x * scale).to(torch::kFloat);
    }
    Tensor scale;
};
ZERO_TORCH_MODULE(Half);

CASE(losses_of_fp16_are_scaled)
{
    zero::World world = zero::World::self();
    Half net;
    Sharded model(net, world, one_thread());
    CHECK(model.engine().loss_scale() == 65536);
    const Tensor x = torch::ones({64}, torch::kHalf);
    model.micro(Micro::last, [&] { model.backward(net(x).sum() * 1e-6); });
    zero::StepParams params;
    CHECK(std::abs(model.grad_norm(params) - 8e-6) < 1e-8); /* fp16 alone has no such numbers */
    model.step(params);
    const auto after = model.state_dict();
    CHECK(after.at("scale").scalar_type() == torch::kHalf);
    CHECK((after.at("scale") < 0.4998).all().item<bool>());
    model.micro(Micro::last, [&] { model.backward(net(x * 60000).sum() * 60000); });
    model.step(params);
    CHECK(model.step_wait().skipped == 1);
    CHECK(model.engine().loss_scale() == 32768);
}

/* Saved by 4 ranks at stage 3, loaded by 1, 2 and 3 at others; weights for libtorch and others. */
CASE(saved_and_exported)
{
    const std::string run = folder();
    std::map<std::string, Tensor> later, now;
    zero::World::run(4, [&](zero::World &world) {
        Net net = made_net();
        Sharded model(net, world, one_thread());
        for (std::int64_t step = 0; step < 2; step++) {
            step_on(model, net, step, 0);
        }
        model.save(run);
        model.export_safetensors(run + "/weights", "w");
        auto all = model.state_dict(world.rank() == 1);
        CHECK(all.empty() == (world.rank() != 1));
        model.whole([&] { torch::save(net, run + "/net.pt"); }, world.rank() == 1);
        CHECK(net->places.isnan().all().item<bool>());
        if (world.rank() == 1) {
            now = std::move(all);
        }
        step_on(model, net, 2, 0);
        all = model.state_dict(world.rank() == 0);
        if (world.rank() == 0) {
            later = std::move(all);
        }
    });
    for (const std::uint32_t ranks : {1U, 2U, 3U}) {
        zero::World::run(ranks, [&](zero::World &world) {
            Net net = made_net();
            Sharded model(net, world, one_thread(ranks));
            model.load(run);
            CHECK(same(model.state_dict(), now));
            step_on(model, net, 2, 0);
            const auto all = model.state_dict();
            bool close = all.size() == later.size();
            for (const auto &[name, value] : all) {
                close = close && torch::allclose(value, later.at(name), 1e-4, 1e-5);
            }
            CHECK(close);
            zero::LoadOptions weights;
            const std::string path = run + "/weights/w";
            weights.path = path.c_str();
            weights.params_only = 1;
            model.load(weights);
            CHECK(same(model.state_dict(), now));
        });
    }
    Net net = made_net(Style::plain);
    torch::load(net, run + "/net.pt");
    for (const auto &item : net->named_parameters()) {
        CHECK(torch::equal(item.value(), now.at(item.key())));
    }
    std::filesystem::remove_all(run);
}

long resident_pages()
{
    std::ifstream file("/proc/self/statm");
    long all = 0, resident = 0;
    file >> all >> resident;
    return resident;
}

/* Steps of a tiny module take no memory that they do not give back. TORCH_CPP_LEAK_STEPS: 10000 by
 * hand. */
CASE(memory_stays_flat)
{
    const char *asked = std::getenv("TORCH_CPP_LEAK_STEPS");
    const long steps = asked != nullptr ? std::atol(asked) : 1000;
    zero::World world = zero::World::self();
    torch::manual_seed(1);
    torch::nn::Sequential net;
    net->push_back(torch::nn::Linear(4, 4));
    net->push_back(torch::nn::Linear(4, 4));
    zero::torch::Config config;
    config.units = zero::torch::by_type<torch::nn::LinearImpl>();
    Sharded model(net, world, one_thread(), config);
    long before = 0;
    for (long step = 0; step < steps; step++) {
        model.micro(Micro::last, [&] {
            model.backward(zero::torch::call(net, torch::ones({2, 4})).pow(2).sum());
        });
        model.step(adamw());
        if (step == steps / 4) {
            before = resident_pages();
        }
    }
    const long grown = (resident_pages() - before) * (sysconf(_SC_PAGESIZE) / 1024);
    if (grown > 512) {
        fail_at(__FILE__, __LINE__,
                std::to_string(grown) + " KiB more after " + std::to_string(steps) + " steps");
    }
}

} // namespace
