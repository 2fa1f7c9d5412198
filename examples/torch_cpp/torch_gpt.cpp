// A GPT of libtorch's modules that learns the bytes of a text, sharded by libzero; with --plain it
// is trained by torch::optim::AdamW on the same batches.
//
//     torch_gpt bible.txt --stage 3 --ranks 2         ranks as threads
//     mpirun -n 4 torch_gpt bible.txt --stage 3       or as processes
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>
#include <zero/torch.hpp>

constexpr std::int64_t vocabulary = 256, context = 64, width = 64, heads = 4, layers = 4, batch = 4;

struct Arguments {
    const char *text = nullptr;
    std::string stage = "3", save, load;
    std::uint32_t ranks = 2;
    std::int64_t steps = 100;
    bool plain = false;
};

struct BlockImpl : torch::nn::Module {
    BlockImpl()
        : norm1(register_module("norm1", torch::nn::LayerNorm(norm_of()))),
          norm2(register_module("norm2", torch::nn::LayerNorm(norm_of()))),
          attention(register_module("attention", torch::nn::Linear(width, 3 * width))),
          out(register_module("out", torch::nn::Linear(width, width))),
          up(register_module("up", torch::nn::Linear(width, 4 * width))),
          down(register_module("down", torch::nn::Linear(4 * width, width)))
    {
    }
    static torch::nn::LayerNormOptions norm_of()
    {
        return torch::nn::LayerNormOptions({width});
    }
    torch::Tensor forward(torch::Tensor x)
    {
        const auto mask = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
        const auto shape = {x.size(0), x.size(1), heads, width / heads};
        auto parts = attention(norm1(x)).chunk(3, 2);
        for (auto &part : parts) {
            part = part.view(shape).transpose(1, 2);
        }
        auto scores = torch::matmul(parts[0], parts[1].transpose(2, 3)) / 4; // sqrt of a head
        auto mixed = torch::matmul(scores.masked_fill(mask, -1e9).softmax(-1), parts[2]);
        x = x + out(mixed.transpose(1, 2).reshape(x.sizes()));
        return x + down(torch::gelu(up(norm2(x))));
    }
    torch::nn::LayerNorm norm1, norm2;
    torch::nn::Linear attention, out, up, down;
};
ZERO_TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
    GptImpl()
        : tokens(register_module("tokens", torch::nn::Embedding(vocabulary, width))),
          places(register_module("places", torch::nn::Embedding(context, width))),
          norm(register_module("norm", torch::nn::LayerNorm(BlockImpl::norm_of()))),
          head(register_parameter("head", tokens->weight)) // tied: one tensor, two names
    {
        for (std::int64_t i = 0; i < layers; i++) {
            blocks.push_back(register_module("h" + std::to_string(i), Block()));
        }
        const torch::NoGradGuard no_grad;
        tokens->weight.mul_(0.05);
        places->weight.mul_(0.05);
    }
    torch::Tensor forward(const torch::Tensor &ids)
    {
        auto x = tokens(ids) + places(torch::arange(ids.size(1)));
        for (auto &block : blocks) {
            x = block(x);
        }
        return torch::matmul(norm(x), head.t());
    }
    torch::nn::Embedding tokens, places;
    torch::nn::LayerNorm norm;
    torch::Tensor head;
    std::vector<Block> blocks;
};
ZERO_TORCH_MODULE(Gpt);

static std::string read(const char *path)
{
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    TORCH_CHECK(text.size() > context + 1, path, " has ", text.size(),
                " bytes; give a text of more than ", context + 1);
    return text;
}

// The loss of a rank's batch of a step.
static torch::Tensor loss_of(Gpt &gpt, const std::string &text, std::int64_t step,
                             std::uint32_t rank)
{
    auto ids = torch::empty({batch, context + 1}, torch::kLong);
    for (std::int64_t row = 0; row < batch; row++) {
        float at = 0;
        zero_random_uniform(1, rank, static_cast<std::uint64_t>(step * batch + row), 1, 0, 1, &at);
        const auto first =
            static_cast<std::size_t>(at * static_cast<float>(text.size() - context - 1));
        for (std::int64_t i = 0; i <= context; i++) {
            ids[row][i] = static_cast<unsigned char>(text[first + static_cast<std::size_t>(i)]);
        }
    }
    const auto logits = gpt(ids.slice(1, 0, context));
    return torch::nn::functional::cross_entropy(logits.reshape({-1, vocabulary}),
                                                ids.slice(1, 1).reshape({-1}));
}

static void say(std::int64_t step, double loss)
{
    std::printf("step %4lld  loss %.5f\n", static_cast<long long>(step), loss);
    (void)std::fflush(stdout);
}

static void train_plain(const Arguments &arguments)
{
    torch::manual_seed(1);
    Gpt gpt;
    const std::string text = read(arguments.text);
    std::vector<torch::Tensor> params; // libtorch names a tied one twice
    for (const auto &item : gpt->named_parameters()) {
        if (item.key() != "head") {
            params.push_back(item.value());
        }
    }
    torch::optim::AdamW optimizer(params, torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
    for (std::int64_t step = 0; step < arguments.steps; step++) {
        double sum = 0;
        optimizer.zero_grad();
        for (std::uint32_t rank = 0; rank < arguments.ranks; rank++) {
            const auto loss = loss_of(gpt, text, step, rank);
            (loss / static_cast<double>(arguments.ranks)).backward();
            sum += loss.item<double>();
        }
        torch::nn::utils::clip_grad_norm_(params, 1.0);
        optimizer.step();
        say(step, sum / arguments.ranks);
    }
}

static void train(const Arguments &arguments, zero::World &world)
{
    torch::set_num_threads(static_cast<int>(world.cpus()));
    static std::mutex one; // ranks are threads, and libtorch's generator is the process's
    std::unique_lock<std::mutex> lock(one);
    torch::manual_seed(1);
    Gpt gpt;
    lock.unlock();
    const std::string text = read(arguments.text);
    zero::NamedOptions options;
    options.set("stage", arguments.stage);
    zero::torch::Config config;
    config.units = zero::torch::by_type<BlockImpl>();
    zero::torch::Sharded model(gpt, world, options.options(), config);
    zero::StepParams params;
    params.hyper.adamw.weight_decay = 0.01F;
    params.max_norm = 1;
    if (!arguments.load.empty()) {
        model.load(arguments.load);
    }
    const auto first = static_cast<std::int64_t>(model.engine().step_state().updates);
    for (std::int64_t step = first; step < arguments.steps; step++) {
        double loss = 0;
        model.micro(zero::Micro::last, [&] {
            const auto mean = loss_of(gpt, text, step, world.rank());
            model.backward(mean);
            loss = mean.item<double>();
        });
        model.step(params);
        loss = world.mean(loss);
        if (world.rank() == 0) {
            say(step, loss);
        }
    }
    if (!arguments.save.empty()) {
        model.save(arguments.save);
    }
}

static Arguments parse(int argc, char **argv)
{
    Arguments arguments;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        const bool value = i + 1 < argc;
        if (name == "--plain") {
            arguments.plain = true;
        } else if (name == "--stage" && value) {
            arguments.stage = argv[++i];
        } else if (name == "--ranks" && value) {
            arguments.ranks = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
        } else if (name == "--steps" && value) {
            arguments.steps = std::strtol(argv[++i], nullptr, 10);
        } else if (name == "--save" && value) {
            arguments.save = argv[++i];
        } else if (name == "--load" && value) {
            arguments.load = argv[++i];
        } else if (name[0] != '-' && arguments.text == nullptr) {
            arguments.text = argv[i];
        } else {
            TORCH_CHECK(false, "unknown argument \"", name, "\"");
        }
    }
    TORCH_CHECK(
        arguments.text != nullptr,
        "usage: torch_gpt TEXT [--stage S] [--ranks N] [--steps N] [--save DIR] [--load DIR] "
        "[--plain]");
    return arguments;
}

int main(int argc, char **argv)
try {
    const Arguments arguments = parse(argc, argv);
    if (arguments.plain) {
        train_plain(arguments);
    } else if (zero_world_is_launched() != 0) {
        zero::World world = zero::World::launched();
        train(arguments, world);
    } else {
        zero::World::run(arguments.ranks, [&](zero::World &world) { train(arguments, world); });
    }
} catch (const c10::Error &error) {
    std::fprintf(stderr, "torch_gpt: %s\n", error.msg().c_str());
    return 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "torch_gpt: %s\n", error.what());
    return 1;
}
