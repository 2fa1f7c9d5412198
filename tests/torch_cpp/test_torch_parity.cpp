/* Sharded training with libtorch beside libtorch's own: the same losses and parameters. */
#include "nets.hpp"

namespace
{

/* Losses are fp32, and parameters move by 0.01 a step: the order of sums differs, nothing else. */
constexpr double bound = 2e-5;

/* Beside torch::optim::AdamW on the same batches. Gives the sharded run. */
Outcome close_to_plain(const char *what, const Run &run, double most = bound)
{
    const Outcome plain = train_plain(run);
    Outcome sharded = train_sharded(run);
    CHECK(plain.losses.size() == static_cast<std::size_t>(run.steps * run.micros));
    CHECK(plain.losses.size() == sharded.losses.size());
    CHECK(plain.norms.size() == sharded.norms.size());
    for (std::size_t i = 0; i < plain.losses.size() && i < sharded.losses.size(); i++) {
        if (!(std::abs(plain.losses[i] - sharded.losses[i]) <= most)) {
            fail_at(what, 0,
                    "loss " + std::to_string(i) + " is " + std::to_string(sharded.losses[i]) +
                        ", and " + std::to_string(plain.losses[i]) + " with libtorch");
        }
    }
    for (std::size_t i = 0; i < plain.norms.size() && i < sharded.norms.size(); i++) {
        CHECK(std::abs(plain.norms[i] - sharded.norms[i]) <= most * plain.norms[i]);
    }
    const double apart = distance(sharded, plain);
    if (!(apart <= most)) {
        fail_at(what, 0, "parameters differ by " + std::to_string(apart));
    }
    CHECK(sharded.losses.front() > sharded.losses.back());
    return sharded;
}

/* The embedding a unit of its own beside the blocks. */
zero::torch::Config embedding_apart()
{
    zero::torch::Config config;
    config.units = [](const std::string &name, const torch::nn::Module &module) {
        return name == "tokens" || dynamic_cast<const BlockImpl *>(&module) != nullptr;
    };
    return config;
}

CASE(stages_have_the_same_bits_and_libtorch_s_values)
{
    for (const std::uint32_t ranks : {1U, 2U, 4U}) {
        Run run;
        run.ranks = ranks;
        run.stage = 0;
        const Outcome first = close_to_plain("stage 0", run);
        CHECK(first.params.size() == 3 + 3 * 9);
        for (run.stage = 1; run.stage <= 3; run.stage++) {
            CHECK(same_bits(first, train_sharded(run)));
        }
    }
}

CASE(units_may_be_chosen_otherwise)
{
    Run run;
    run.ranks = 2;
    const Outcome first = train_sharded(run);
    run.config = embedding_apart();
    CHECK(same_bits(first, close_to_plain("an embedding apart", run)));
    run.config.units = zero::torch::by_type<BlockImpl>();
    CHECK(same_bits(first, train_sharded(run)));
    run.config.units = zero::torch::by_name({"h.1"});
    CHECK(same_bits(first, train_sharded(run)));
    run.config.units = [](const std::string &, const torch::nn::Module &) { return false; };
    CHECK(same_bits(first, train_sharded(run))); /* all is the root's */
    run.config = {};
    run.bucket_bytes = 0;
    CHECK(same_bits(first, train_sharded(run)));
    run.config.no_decay = [](const std::string &, const Tensor &t) { return t.dim() < 2; };
    CHECK(!same_bits(first, train_sharded(run)));
}

CASE(tied)
{
    Run run;
    run.style = Style::tied;
    run.ranks = 2;
    const Outcome first = close_to_plain("tied in the root", run);
    CHECK(first.params.size() == 2 + 3 * 9); /* by its first name alone */
    run.config = embedding_apart();
    for (run.stage = 0; run.stage <= 3; run.stage++) {
        CHECK(same_bits(first, train_sharded(run)));
    }
}

CASE(frozen)
{
    Run run;
    run.ranks = 2;
    run.frozen = true;
    const Outcome first = close_to_plain("frozen", run);
    const Net net = made_net();
    const auto before = net->named_parameters();
    CHECK(torch::equal(first.params.at("places"), before["places"]));
    CHECK(torch::equal(first.params.at("h.1.up.weight"), before["h.1.up.weight"]));
    CHECK(!torch::equal(first.params.at("h.1.up.bias"), before["h.1.up.bias"]));
    for (run.stage = 0; run.stage < 3; run.stage++) {
        CHECK(same_bits(first, train_sharded(run)));
    }
}

CASE(used_twice)
{
    Run run;
    run.style = Style::shared;
    run.ranks = 2;
    const Outcome first = close_to_plain("used twice", run);
    for (run.stage = 0; run.stage < 3; run.stage++) {
        CHECK(same_bits(first, train_sharded(run)));
    }
}

CASE(recomputed)
{
    Run run;
    run.ranks = 2;
    const Outcome kept = train_sharded(run);
    run.style = Style::checkpointed;
    CHECK(same_bits(kept, train_sharded(run)));
}

CASE(accumulated_and_clipped)
{
    Run run;
    run.ranks = 2;
    run.micros = 3;
    run.steps = 3;
    run.max_norm = 0.5F;
    /* AdamW's first steps divide a gradient by its own size: of one near 0 each digit counts. */
    const Outcome first = close_to_plain("accumulated", run, 50 * bound);
    CHECK(first.norms.size() == 3 && first.norms[0] > 0.5);
    run.stage = 0;
    const Outcome whole = close_to_plain("accumulated at stage 0", run, 50 * bound);
    CHECK(distance(first, whole) <= 10 * bound); /* sums of sums, in another order */
}

/* 16-bit parameters have a master copy, which torch::optim has not: beside the fp32 run. */
CASE(bf16_parameters_and_gradients_of_either_type)
{
    Run run;
    run.ranks = 2;
    const Outcome exact = train_sharded(run);
    run.type = torch::kBFloat16;
    const Outcome first = train_sharded(run);
    CHECK(first.params.at("head").scalar_type() == torch::kBFloat16);
    CHECK(distance(first, exact) < 0.08);
    CHECK(std::abs(first.losses.back() - exact.losses.back()) < 0.1F);
    for (run.stage = 0; run.stage < 3; run.stage++) {
        CHECK(same_bits(first, train_sharded(run)));
    }
    run.stage = 3;
    run.grad_dtype = ZERO_DTYPE_F32;
    const Outcome wide = train_sharded(run);
    CHECK(distance(wide, exact) < 0.08);
    run.stage = 1;
    CHECK(same_bits(wide, train_sharded(run)));
}

} // namespace
