/* The C++ headers where failures are returned: with ZERO_NO_EXCEPTIONS, and without exceptions. */
#include "check.hpp"
#include <atomic>
#include <utility>

namespace
{

using zero::Engine;
using zero::Error;
using zero::Model;
using zero::Pass;
using zero::Result;
using zero::Unit;
using zero::World;

static_assert(std::is_same_v<decltype(World::self()), Result<World>>);
static_assert(std::is_same_v<decltype(std::declval<Engine &>().step()), Result<void>>);
static_assert(noexcept(std::declval<Unit &>().~Unit()));
static_assert(std::is_nothrow_move_constructible_v<Unit>);

constexpr std::size_t count = 16;

#define TRY(call)                    \
    do {                             \
        auto &&outcome_ = (call);    \
        if (!outcome_) {             \
            return outcome_.error(); \
        }                            \
    } while (0)

std::string unreported_text;

void note_unreported(const Error &error)
{
    unreported_text = error.what();
}

Result<Engine> engine_of(World &world, const std::vector<float> &initial)
{
    auto model = Model::create();
    TRY(model);
    TRY(model->add_unit("unit", {{"weight", {count}, initial}}));
    return Engine::create(world, *model);
}

Result<void> train(World &world)
{
    const std::vector<float> initial(count, 1.0F);
    auto engine = engine_of(world, initial);
    TRY(engine);
    TRY(engine->micro_begin());
    {
        auto unit = engine->acquire(0, Pass::backward);
        TRY(unit);
        auto weight = unit->param<float>(0);
        auto grad = unit->grad<float>(0);
        TRY(weight);
        TRY(grad);
        for (std::size_t i = 0; i < count; i++) {
            (*grad)[i] += (*weight)[i];
        }
        TRY(unit->release());
    }
    TRY(engine->micro_end());
    TRY(engine->step());
    auto values = engine->export_tensor<float>(0, ZERO_ROLE_PARAM);
    TRY(values);
    CHECK(values->size() == count && (*values)[3] < 1.0F);
    auto stats = engine->stats();
    TRY(stats);
    CHECK(stats->steps == 1);
    auto mean = world.mean(world.rank());
    TRY(mean);
    CHECK(*mean == 0.5);
    return {};
}

CASE(ranks_train)
{
    const Result<void> trained = World::run(2, train);
    CHECK(trained.ok() && trained.status() == ZERO_OK);
}

CASE(a_failure_is_returned)
{
    auto world = World::self();
    auto model = Model::create();
    CHECK(world && model && model->add_unit("unit", {{"weight", {count}}}).ok());
    zero::Options options;
    options.shard_group = 7;
    const auto engine = Engine::create(*world, *model, options);
    CHECK(!engine && !engine.ok() && engine.status() == ZERO_ERR_INVALID_ARGUMENT);
    CHECK_ERROR(engine.error(), ZERO_ERR_INVALID_ARGUMENT,
                "shard_group 7 does not divide the world of 1 ranks");
    CHECK(std::string(engine.error().what()) == zero_last_error()->message);
    Engine none;
    CHECK(none.micro_begin().status() == ZERO_ERR_INVALID_ARGUMENT);
    CHECK_ERROR(World::run(0, train).error(), ZERO_ERR_INVALID_ARGUMENT, "rank_count");
}

CASE(a_rank_s_failure_names_the_rank)
{
    const auto failed = World::run(2, [](World &world) -> Result<void> {
        if (world.rank() == 1) {
            return Error(ZERO_ERR_IO, "no such file: weights");
        }
        return world.barrier();
    });
    CHECK_ERROR(failed.error(), ZERO_ERR_IO, "rank 1: no such file: weights");
}

CASE(wrong_types_and_sizes_are_returned)
{
    auto world = World::self();
    const std::vector<float> initial(count);
    auto engine = engine_of(*world, initial);
    CHECK(engine.ok());
    auto unit = engine->acquire(0, Pass::eval);
    CHECK(unit.ok());
    CHECK_ERROR(unit->param<zero::bf16>(0).error(), ZERO_ERR_INVALID_ARGUMENT, "is f32");
    CHECK_ERROR(unit->param<float>(5).error(), ZERO_ERR_INVALID_ARGUMENT, "no tensor 5");
    CHECK_ERROR(unit->grad<float>(0).error(), ZERO_ERR_STATE, "Pass::backward");
    CHECK(unit->release().ok());
    CHECK_ERROR(unit->release().error(), ZERO_ERR_STATE, "released");
    const std::vector<float> few(3);
    CHECK_ERROR(engine_of(*world, few).error(), ZERO_ERR_INVALID_ARGUMENT, "the array has 3");
    CHECK_ERROR(engine->shard_read<zero::f16>(0, ZERO_ROLE_PARAM).error(),
                ZERO_ERR_INVALID_ARGUMENT, "asked for as f16");
}

CASE(a_release_that_fails_in_a_destructor_is_reported)
{
    auto world = World::self();
    const std::vector<float> initial(count);
    auto engine = engine_of(*world, initial);
    zero::on_unreported(note_unreported);
    {
        auto unit = engine->acquire(0, Pass::eval);
        CHECK(unit.ok());
        CHECK(zero_unit_release(engine->get(), 0, zero_stream_host()) == ZERO_OK);
    }
    zero::on_unreported(nullptr);
    CHECK(unreported_text.find("unit 0") != std::string::npos);
}

#if defined(__cpp_exceptions)
CASE(what_callbacks_throw_is_returned)
{
    const auto failed = World::run(1, [](World &) { throw std::out_of_range("of a rank"); });
    CHECK_ERROR(failed.error(), ZERO_ERR_STATE, "of a rank");
    auto world = World::self();
    const std::vector<float> initial(count);
    auto engine = engine_of(*world, initial);
    const auto filled = engine->fill([](std::uint32_t, std::uint64_t, zero::Span<float>) {
        throw std::out_of_range("of a fill");
    });
    CHECK_ERROR(filled.error(), ZERO_ERR_STATE, "of a fill");
}
#endif

} // namespace
