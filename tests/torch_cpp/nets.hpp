/* Small modules and their training, with libtorch alone and sharded, for the tests of
 * zero/torch.hpp. */
#ifndef TESTS_TORCH_CPP_NETS_HPP
#define TESTS_TORCH_CPP_NETS_HPP

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>
#include <zero/torch.hpp>
/* libtorch's logging has a CHECK of its own, which ends the program. */
#undef CHECK
#include "../cpp/check.hpp"

using torch::Tensor;

inline constexpr std::int64_t vocabulary = 32, width = 16, context = 8, batch = 2;

/* Attention of one head, and two layers behind it. */
struct BlockImpl : torch::nn::Module {
    explicit BlockImpl(std::int64_t c = width)
        : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c})))),
          qkv(register_module("qkv",
                              torch::nn::Linear(torch::nn::LinearOptions(c, 3 * c).bias(false)))),
          out(register_module("out", torch::nn::Linear(c, c))),
          up(register_module("up", torch::nn::Linear(c, 2 * c))),
          down(register_module("down", torch::nn::Linear(2 * c, c)))
    {
    }
    Tensor forward(const Tensor &x)
    {
        const auto parts = qkv(norm(x)).chunk(3, -1);
        const Tensor scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) / 4;
        const Tensor mask = torch::ones({x.size(-2), x.size(-2)}, torch::kBool).triu(1);
        const Tensor mixed = torch::matmul(scores.masked_fill(mask, -1e4).softmax(-1), parts[2]);
        const Tensor h = x + out(mixed);
        return h + down(torch::gelu(up(h)));
    }
    std::shared_ptr<BlockImpl> shared()
    {
        return std::dynamic_pointer_cast<BlockImpl>(shared_from_this());
    }
    torch::nn::LayerNorm norm;
    torch::nn::Linear qkv, out, up, down;
};
ZERO_TORCH_MODULE(Block);

enum class Style { plain, tied, checkpointed, shared };

/* Tokens in, logits out. */
struct NetImpl : torch::nn::Module {
    explicit NetImpl(Style its_style = Style::plain, std::int64_t layers = 3) : style(its_style)
    {
        tokens = register_module("tokens", torch::nn::Embedding(vocabulary, width));
        places = register_parameter("places", torch::randn({context, width}) * 0.1);
        for (std::int64_t i = 0; i < layers; i++) {
            blocks->push_back(Block());
        }
        register_module("h", blocks);
        if (style == Style::tied) {
            head = register_parameter("head", tokens->weight);
        } else {
            head = register_parameter("head", torch::randn({vocabulary, width}) * 0.2);
        }
    }
    Tensor forward(const Tensor &ids)
    {
        Tensor x = zero::torch::call(tokens, ids) + places;
        for (const auto &child : *blocks) {
            Block block(std::dynamic_pointer_cast<BlockImpl>(child));
            x = style == Style::checkpointed ? zero::torch::checkpoint(block, x) : block(x);
        }
        if (style == Style::shared) {
            Block first(std::dynamic_pointer_cast<BlockImpl>((*blocks)[0]));
            x = first(x);
        }
        return torch::matmul(x, head.t());
    }
    Style style;
    torch::nn::Embedding tokens = nullptr;
    torch::nn::ModuleList blocks;
    Tensor places, head;
};
ZERO_TORCH_MODULE(Net);

inline Net made_net(Style style = Style::plain, std::int64_t layers = 3)
{
    static std::mutex one; /* ranks are threads, and the generator is the process's */
    const std::lock_guard<std::mutex> lock(one);
    torch::manual_seed(7);
    return Net(style, layers);
}

/* The batch of a micro-step, of one rank of so many: rows of one that all numbers of ranks share.
 */
inline std::pair<Tensor, Tensor> data_of(std::int64_t micro, std::int64_t rank)
{
    const Tensor at = torch::arange(batch * (context + 1)) + 131 * (micro * 4 + rank);
    const Tensor ids = ((at * at + 7 * at) % vocabulary).view({batch, context + 1});
    return {ids.slice(1, 0, context), ids.slice(1, 1, context + 1)};
}

inline Tensor loss_of(const Tensor &logits, const Tensor &targets)
{
    return torch::nn::functional::cross_entropy(logits.to(torch::kFloat).reshape({-1, vocabulary}),
                                                targets.reshape({-1}));
}

inline zero::StepParams adamw(float max_norm = 0)
{
    zero::StepParams params;
    params.hyper.adamw.lr = 0.01F;
    params.hyper.adamw.weight_decay = 0.1F;
    params.max_norm = max_norm;
    return params;
}

/* A training run: how it is done, and what came of it. */
struct Run {
    Style style = Style::plain;
    std::uint32_t ranks = 1;
    std::uint32_t stage = 3;
    std::int64_t steps = 4;
    std::int64_t micros = 1;
    float max_norm = 0;
    torch::ScalarType type = torch::kFloat;
    bool frozen = false;
    zero_dtype grad_dtype = ZERO_DTYPE_DEFAULT;
    zero::torch::Config config;
    std::uint64_t bucket_bytes = 1;
    std::uint32_t extra_slots = 0;
};

struct Outcome {
    std::vector<float> losses; /* of rank 0 */
    std::vector<double> norms;
    std::map<std::string, Tensor> params;
};

inline void prepare(Net &net, const Run &run)
{
    net->to(run.type);
    if (run.frozen) {
        for (auto &item : (*net->blocks)[1]->named_parameters()) {
            item.value().set_requires_grad(item.key().find("bias") != std::string::npos);
        }
        net->places.set_requires_grad(false);
    }
}

/* Training as with libtorch alone, on the batches of all ranks. */
inline Outcome train_plain(const Run &run)
{
    Net net = made_net(run.style);
    prepare(net, run);
    Outcome outcome;
    std::vector<Tensor> trained;
    for (const Tensor &param : net->parameters()) {
        bool seen = !param.requires_grad();
        for (const Tensor &other : trained) {
            seen = seen || other.unsafeGetTensorImpl() == param.unsafeGetTensorImpl();
        }
        if (!seen) {
            trained.push_back(param);
        }
    }
    torch::optim::AdamW optimizer(trained, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    for (std::int64_t step = 0; step < run.steps; step++) {
        optimizer.zero_grad();
        for (std::int64_t micro = 0; micro < run.micros; micro++) {
            for (std::uint32_t rank = 0; rank < run.ranks; rank++) {
                const auto [x, y] = data_of(step * run.micros + micro, rank);
                const Tensor loss = loss_of(net(x), y);
                if (rank == 0) {
                    outcome.losses.push_back(loss.item<float>());
                }
                (loss / static_cast<double>(run.ranks * run.micros)).backward();
            }
        }
        if (run.max_norm > 0) {
            outcome.norms.push_back(torch::nn::utils::clip_grad_norm_(trained, run.max_norm));
        }
        optimizer.step();
    }
    for (const auto &item : net->named_parameters()) {
        outcome.params[item.key()] = item.value().detach().clone();
    }
    return outcome;
}

inline Outcome train_sharded(const Run &run)
{
    Outcome outcome;
    zero::World::run(run.ranks, [&](zero::World &world) {
        Net net = made_net(run.style);
        prepare(net, run);
        zero::Options options;
        zero::Tuning tuning;
        options.stage = static_cast<zero_stage>(run.stage);
        options.threads = 1;
        options.grad_dtype = run.grad_dtype;
        options.tuning = &tuning;
        tuning.bucket_bytes = run.bucket_bytes;
        if (run.extra_slots > 0) {
            tuning.param_slots = 3 + run.extra_slots;
            tuning.grad_slots = 2 + run.extra_slots;
        }
        zero::torch::Sharded model(net, world, options, run.config);
        const zero::StepParams params = adamw(run.max_norm);
        for (std::int64_t step = 0; step < run.steps; step++) {
            for (std::int64_t micro = 0; micro < run.micros; micro++) {
                const auto [x, y] = data_of(step * run.micros + micro, world.rank());
                const auto which =
                    micro + 1 == run.micros ? zero::Micro::last : zero::Micro::earlier;
                model.micro(which, [&, &ids = x, &targets = y] {
                    const Tensor loss = loss_of(net(ids), targets);
                    if (world.rank() == 0) {
                        outcome.losses.push_back(loss.item<float>());
                    }
                    model.backward(loss);
                });
            }
            model.step(params);
            if (world.rank() == 0 && run.max_norm > 0) {
                outcome.norms.push_back(model.step_wait().norm);
            }
        }
        auto whole = model.state_dict(world.rank() == 0);
        if (world.rank() == 0) {
            outcome.params = std::move(whole);
        }
    });
    return outcome;
}

/* The largest difference of a parameter between two runs, of those that both have. */
inline double distance(const Outcome &a, const Outcome &b)
{
    double most = a.params.empty() ? 1e30 : 0;
    for (const auto &[name, value] : a.params) {
        const auto other = b.params.find(name);
        if (other != b.params.end()) {
            const double here = (value.to(torch::kDouble) - other->second.to(torch::kDouble))
                                    .abs()
                                    .max()
                                    .item<double>();
            most = here > most || here != here ? here : most;
        }
    }
    return most;
}

inline bool same_bits(const Outcome &a, const Outcome &b)
{
    if (a.params.empty() || a.params.size() != b.params.size() || a.losses != b.losses) {
        return false;
    }
    for (const auto &[name, value] : a.params) {
        if (!torch::equal(value, b.params.at(name))) {
            return false;
        }
    }
    return true;
}

#endif
