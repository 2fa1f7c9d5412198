/* The cost of a unit's hooks beside libtorch's own work: a module of many small layers, trained
 * plain and sharded over one rank. Usage: bench_units [LAYERS [STEPS]]. Times are medians of the
 * processor time of the thread that trains, so waits for other threads are not in them. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>
#include <zero/torch.hpp>

constexpr std::int64_t width = 16;

struct NetImpl : torch::nn::Module {
    explicit NetImpl(long count)
    {
        for (long i = 0; i < count; i++) {
            layers->push_back(torch::nn::Linear(width, width));
        }
        register_module("layers", layers);
    }
    torch::Tensor forward(torch::Tensor x)
    {
        for (const auto &layer : *layers) {
            x = zero::torch::call(*layer->as<torch::nn::Linear>(), x);
        }
        return x;
    }
    torch::nn::ModuleList layers;
};
TORCH_MODULE(Net);

/* Microseconds of this thread's processor. */
static double now()
{
    timespec time = {};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

/* Of one call, the median of many. */
template <class Fn> static double time_of(long steps, Fn fn)
{
    std::vector<double> times;
    for (long i = 0; i < steps; i++) {
        const double begun = now();
        fn();
        times.push_back(now() - begun);
    }
    std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
    return times[static_cast<std::size_t>(steps / 2)];
}

int main(int argc, char **argv)
{
    const long layers = argc > 1 ? std::atol(argv[1]) : 64;
    const long steps = argc > 2 ? std::atol(argv[2]) : 500;
    torch::set_num_threads(1);
    const torch::Tensor x = torch::ones({4, width});
    Net net(layers);
    const double plain_forward = time_of(steps, [&] { net->forward(x); });
    const double plain = time_of(steps, [&] { net->forward(x).sum().backward(); });
    zero::World world = zero::World::self();
    zero::Options options;
    options.threads = 1;
    zero::torch::Sharded model(net, world, options);
    const double forward = time_of(steps, [&] { net->forward(x); });
    const double whole = time_of(steps, [&] {
        model.micro(zero::Micro::last, [&] { net->forward(x).sum().backward(); });
        model.step_discard();
    });
    const double step = time_of(steps, [&] {
        model.micro(zero::Micro::last, [&] { net->forward(x).sum().backward(); });
        model.step(zero::StepParams());
    });
    const auto units = static_cast<double>(layers);
    std::printf("%ld units of two tensors, microseconds of one unit:\n", layers);
    std::printf("  libtorch alone     forward %6.2f   forward and backward %6.2f\n",
                plain_forward / units, plain / units);
    std::printf("  sharded            forward %6.2f\n", forward / units);
    std::printf("  sharded                             forward and backward %6.2f\n",
                whole / units);
    std::printf("  so hooks cost %.2f in both passes; with the update %.2f\n",
                (whole - plain) / units, (step - plain) / units);
    return 0;
}
