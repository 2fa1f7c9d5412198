/* The C++ headers where failures are thrown: handles, the guard of a unit, errors, callbacks. */
#include "trainer.hpp"
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <sys/wait.h>
#include <type_traits>
#include <unistd.h>

/* Of returns_part.cpp, which is compiled without exceptions: the status of a shard_group of 7. */
zero_status status_without_exceptions();

namespace
{

using zero::Engine;
using zero::Error;
using zero::Micro;
using zero::Model;
using zero::Pass;
using zero::Unit;
using zero::World;

struct Folder {
    std::string path;
    Folder()
        : path((std::filesystem::temp_directory_path() / ("zero-cpp-" + std::to_string(getpid())))
                   .string())
    {
        std::filesystem::create_directories(path);
    }
    ~Folder()
    {
        std::filesystem::remove_all(path);
    }
};

/* A tensor after some steps. */
std::vector<float> trained(World &world, Engine &engine, std::uint32_t steps)
{
    for (std::uint32_t step = 0; step < steps; step++) {
        micro_step(engine, world.rank(), step);
        engine.step();
    }
    return engine.export_tensor<float>(0, ZERO_ROLE_PARAM);
}

std::string unreported_text;

void note_unreported(const Error &error)
{
    unreported_text = error.what();
}

static_assert(!std::is_copy_constructible_v<Engine> && !std::is_copy_assignable_v<Engine>);
static_assert(!std::is_copy_constructible_v<World> && !std::is_copy_constructible_v<Model>);
static_assert(!std::is_copy_constructible_v<Unit> && !std::is_copy_constructible_v<zero::Plan>);
static_assert(std::is_nothrow_move_constructible_v<Engine> &&
              std::is_nothrow_move_assignable_v<Engine>);
static_assert(std::is_nothrow_move_constructible_v<World> &&
              std::is_nothrow_move_constructible_v<Model>);
static_assert(sizeof(World) <= 3 * sizeof(void *) && sizeof(Engine) <= 3 * sizeof(void *));
static_assert(
    std::is_same_v<decltype(std::declval<Unit &>().param<float>(0)), zero::Span<const float>>);
static_assert(
    std::is_same_v<decltype(std::declval<Unit &>().grad<zero::bf16>(0)), zero::Span<zero::bf16>>);
#if defined(__cpp_lib_span)
static_assert(std::is_same_v<zero::Span<float>, std::span<float>>);
#endif

CASE(handles_move_and_are_null_after_it)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    Model model = layers(initial);
    Engine engine = Engine::create(world, model);
    zero_engine *raw = engine.get();
    Engine other = std::move(engine);
    CHECK(other.get() == raw && engine.get() == nullptr && !engine); // NOLINT: it is the question
    Engine third(std::move(engine));
    CHECK(!third && !engine);
    CHECK_THROWS(engine.micro_begin(), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    Engine &alias = other;
    other = std::move(alias);
    CHECK(other.get() == raw);
    other.micro_begin();
    other.micro_end();
    Model moved = std::move(model);
    CHECK(!model && moved.unit_count() == layer_count);
    model = std::move(moved);
    CHECK(model.element_count() == layer_count * weights && model.element_count(1) == weights);
    CHECK(model.tensor_name(2) == "layer2.weight" && model.tensor_name(3).empty());
    World elsewhere = std::move(world);
    CHECK(!world && world.size() == 0 && elsewhere.size() == 1);
    CHECK_THROWS(world.barrier(), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK(std::string(elsewhere.backend()) == "self" && elsewhere.cpus() >= 1);
}

CASE(an_assignment_destroys_what_was_held)
{
    World::run(1, [](World &world) {
        const std::vector<float> initial = some_values();
        Engine engine = Engine::create(world, layers(initial));
        Engine second = Engine::create(world, layers(initial));
        engine = std::move(second);
        engine = Engine::create(world, layers(initial));
    });
    /* It would have said so of an engine that lives on. */
    zero_engine *leaked = nullptr;
    CHECK_THROWS(World::run(1,
                            [&](World &world) {
                                leaked = nullptr;
                                const std::vector<float> initial = some_values();
                                const Model model = layers(initial);
                                return zero_engine_create(world.get(), model.get(), nullptr,
                                                          &leaked);
                            }),
                 ZERO_ERR_STATE, "engine of its world lives");
    zero_engine_destroy(leaked);
}

CASE(an_error_has_what_c_has)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    const Model model = layers(initial);
    zero::Options options;
    options.shard_group = 7;
    try {
        (void)Engine::create(world, model, options);
        fail_at(__FILE__, __LINE__, "an engine of 7 shards in a world of 1");
    } catch (const std::runtime_error &base) {
        const auto &error = dynamic_cast<const Error &>(base);
        const zero_error *record = zero_last_error();
        CHECK(error.status() == record->status && error.native() == record->native);
        CHECK(error.line() == record->line && std::string(error.file()) == record->file);
        CHECK(error.of_other() == record->of_other);
        CHECK(std::string(error.what()) == record->message);
        CHECK(std::string(error.name()) == "INVALID_ARGUMENT");
        const Error copy = error;
        CHECK(std::string(copy.message()) == error.what());
    }
    CHECK(status_without_exceptions() == ZERO_ERR_INVALID_ARGUMENT);
}

CASE(a_unit_is_released_where_its_scope_ends)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    Engine engine = Engine::create(world, layers(initial));
    engine.micro_begin();
    {
        Unit unit = engine.acquire(1, Pass::forward);
        CHECK(unit.index() == 1 && unit.tensor_count() == 1 && unit);
        CHECK(engine.pass_of(1) == Pass::forward);
        Unit moved = std::move(unit);
        CHECK(!unit && moved && moved.get() != nullptr);
        CHECK_THROWS(unit.param<float>(0), ZERO_ERR_STATE, "released or moved");
    }
    CHECK(engine.pass_of(1) == Pass::none);
    {
        Unit unit = engine.acquire(0, Pass::forward);
        unit = engine.acquire(1, Pass::forward);
        CHECK(engine.pass_of(0) == Pass::none && engine.pass_of(1) == Pass::forward);
        unit.release();
        CHECK(engine.pass_of(1) == Pass::none && !unit);
        CHECK_THROWS(unit.release(), ZERO_ERR_STATE, "released or moved");
    }
    engine.micro_end();
    engine.step();
    Unit unit = engine.acquire(0, Pass::none);
    CHECK(engine.pass_of(0) == Pass::eval);
}

CASE(a_release_that_fails_is_not_silent)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    Engine engine = Engine::create(world, layers(initial));
    auto fails = [&] {
        Unit unit = engine.acquire(0, Pass::eval);
        CHECK(zero_unit_release(engine.get(), 0, zero_stream_host()) == ZERO_OK);
    };
    CHECK_THROWS(fails(), ZERO_ERR_STATE, "unit 0");
    unreported_text.clear();
    zero::on_unreported(note_unreported);
    try {
        Unit unit = engine.acquire(0, Pass::eval);
        CHECK(zero_unit_release(engine.get(), 0, zero_stream_host()) == ZERO_OK);
        throw std::out_of_range("first");
    } catch (const std::out_of_range &error) {
        CHECK(std::string(error.what()) == "first");
    }
    zero::on_unreported(nullptr);
    CHECK(unreported_text.find("unit 0") != std::string::npos);
    {
        Unit unit = engine.acquire(0, Pass::eval);
        CHECK(zero_unit_release(engine.get(), 0, zero_stream_host()) == ZERO_OK);
        unit.detach();
        CHECK(!unit);
    }
}

CASE(an_exception_in_backward_leaves_no_half_gradient)
{
    for (const zero_stage stage : {ZERO_STAGE_0, ZERO_STAGE_3}) {
        zero::Options options;
        options.stage = stage;
        World::run(2, [&](World &world) {
            const std::vector<float> initial = some_values();
            const Model model = layers(initial);
            Engine clean = Engine::create(world, model, options);
            const std::vector<float> wanted = trained(world, clean, 3);
            Engine engine = Engine::create(world, model, options);
            (void)trained(world, engine, 1);
            bool threw = false;
            try {
                micro_step(engine, world.rank(), 1, 1);
            } catch (const std::out_of_range &) {
                threw = true;
            }
            CHECK(threw && engine.pass_of(1) == Pass::backward);
            engine.micro_abandon();
            CHECK(engine.pass_of(1) == Pass::none);
            for (std::uint32_t step = 1; step < 3; step++) {
                micro_step(engine, world.rank(), step);
                engine.step();
            }
            CHECK(engine.export_tensor<float>(0, ZERO_ROLE_PARAM) == wanted);
            CHECK(engine.stats().steps == 3 && engine.stats().steps_discarded == 1);
        });
    }
}

CASE(views_have_the_tensors_size_and_type)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    const Model model = layers(initial, ZERO_DTYPE_BF16);
    Engine engine = Engine::create(world, model);
    engine.micro_begin();
    {
        Unit unit = engine.acquire(0, Pass::backward);
        CHECK(unit.param<zero::bf16>(0).size() == weights);
        CHECK(unit.grad<zero::bf16>(0).size() == weights);
        CHECK_THROWS(unit.param<float>(0), ZERO_ERR_INVALID_ARGUMENT,
                     "parameter 0 of unit 0 is bf16, and is asked for as f32");
        CHECK_THROWS(unit.grad<zero::f16>(0), ZERO_ERR_INVALID_ARGUMENT, "asked for as f16");
        CHECK(engine.param<zero::bf16>(0).data() == unit.param<zero::bf16>(0).data());
        CHECK(engine.grad<zero::bf16>(0).data() == unit.grad<zero::bf16>(0).data());
        CHECK_THROWS(engine.param<float>(0), ZERO_ERR_INVALID_ARGUMENT, "bf16");
        CHECK_THROWS(engine.param<zero::bf16>(1), ZERO_ERR_STATE, "not acquired");
    }
    engine.micro_end();
    engine.step_discard();
    CHECK_THROWS(engine.shard_read<zero::bf16>(0, ZERO_ROLE_MASTER), ZERO_ERR_INVALID_ARGUMENT,
                 "master of tensor 0 is f32");
    CHECK(engine.shard_read<float>(0, ZERO_ROLE_MASTER) == initial);
}

CASE(a_frozen_tensor_has_an_empty_gradient)
{
    World world = World::self();
    Model model = Model::create();
    zero::Tensor frozen{"frozen", {4}};
    frozen.flags = ZERO_TENSOR_FROZEN;
    const zero::Added added = model.add_unit("unit", {{"trained", {4}}, frozen});
    CHECK(added.unit == 0 && added.tensor == 0);
    const auto [unit_index, tensor] = model.add_layers("block", 2, {{"a", {2, 3}}, {"b", {}}});
    CHECK(unit_index == 1 && tensor == 2 && model.unit_count() == 3);
    CHECK(model.tensor_name(5) == "block.1.b" && model.element_count(5) == 1);
    model.tie(2, 2);
    Engine engine = Engine::create(world, model);
    engine.micro_begin();
    {
        Unit unit = engine.acquire(0, Pass::backward);
        CHECK(unit.grad<float>(0).size() == 4 && unit.grad<float>(1).empty());
        Unit tied = engine.acquire(2, Pass::backward);
        CHECK(tied.tensor_count() == 3 && tied.param<float>(2).size() == 6);
    }
    engine.micro_end();
}

CASE(a_rank_s_exception_comes_out_as_it_was)
{
    std::atomic<int> woken{0};
    bool caught = false;
    try {
        World::run(3, [&](World &world) {
            if (world.rank() == 1) {
                throw std::out_of_range("of rank 1");
            }
            try {
                world.barrier();
            } catch (const Error &error) {
                CHECK_ERROR(error, ZERO_ERR_COMM, "rank 1");
                woken++;
                throw;
            }
        });
    } catch (const std::out_of_range &error) {
        caught = std::string(error.what()) == "of rank 1";
    }
    CHECK(caught && woken == 2);
    struct Odd {
    };
    bool odd = false;
    try {
        World::run(1, [](World &) { throw Odd(); });
    } catch (const Odd &) {
        odd = true;
    }
    CHECK(odd);
}

CASE(a_rank_s_error_names_the_rank)
{
    const auto throws = [](World &world) {
        if (world.rank() == 1) {
            throw Error(ZERO_ERR_IO, "no such file: weights");
        }
        world.barrier();
    };
    CHECK_THROWS(World::run(2, throws), ZERO_ERR_IO, "rank 1: no such file: weights");
    CHECK_THROWS(
        World::run(2, [](World &world) { return world.rank() == 1 ? ZERO_ERR_IO : ZERO_OK; }),
        ZERO_ERR_IO, "rank 1: ");
    CHECK_THROWS(World::run(2,
                            [](World &world) -> zero::Result<void> {
                                if (world.rank() == 0) {
                                    return Error(ZERO_ERR_CORRUPT, "bad header");
                                }
                                return {};
                            }),
                 ZERO_ERR_CORRUPT, "rank 0: bad header");
    CHECK_THROWS(World::run(0, [](World &) {}), ZERO_ERR_INVALID_ARGUMENT, "rank_count");
    World::run(2, [](World &world) {
        CHECK(world.gather(world.rank() + 5) == (std::vector<std::uint32_t>{5, 6}));
        CHECK(world.mean(world.rank()) == 0.5 && world.local_size() == 2);
    });
}

/* One of two processes; 0 if all was as it should be. */
int launched_rank(std::uint32_t rank)
{
    const std::string number = std::to_string(rank);
    for (const char *name : {"RANK", "LOCAL_RANK"}) {
        (void)setenv(name, number.c_str(), 1);
    }
    for (const char *name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
        (void)setenv(name, "2", 1);
    }
    try {
        World world = World::launched(60000);
        if (world.rank() != rank || world.size() != 2 || world.mean(rank) != 0.5) {
            return 2;
        }
        if (rank == 1) {
            zero::NamedOptions().set("stage", "9");
        }
        world.barrier();
    } catch (const Error &error) {
        /* Rank 0 hears why rank 1 left. */
        CHECK_ERROR(error, rank == 1 ? ZERO_ERR_INVALID_ARGUMENT : ZERO_ERR_COMM,
                    rank == 1 ? "stage" : "rank 1: stage \"9\"");
        return failed_checks;
    }
    return 3;
}

CASE(a_process_that_throws_wakes_the_others)
{
    pid_t children[2];
    for (std::uint32_t rank = 0; rank < 2; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            _exit(launched_rank(rank));
        }
    }
    for (const pid_t child : children) {
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

CASE(a_fill_gives_values_or_its_exception)
{
    World world = World::self();
    Model model = Model::create();
    (void)model.add_unit("unit", {{"a", {1000}}, {"b", {10}}});
    Engine engine = Engine::create(world, model);
    const auto give = [](std::uint32_t tensor, std::uint64_t first, zero::Span<float> values) {
        for (std::size_t i = 0; i < values.size(); i++) {
            values[i] = static_cast<float>(tensor * 10000 + first + i);
        }
    };
    engine.fill(give);
    const std::vector<float> a = engine.export_tensor<float>(0, ZERO_ROLE_PARAM);
    CHECK(a.size() == 1000 && a[0] == 0 && a[999] == 999);
    CHECK(engine.export_tensor<float>(1, ZERO_ROLE_MASTER)[9] == 10009);
    bool threw = false;
    try {
        engine.fill([&](std::uint32_t tensor, std::uint64_t, zero::Span<float>) {
            if (tensor == 1) {
                throw std::invalid_argument("tensor 1 is unknown");
            }
        });
    } catch (const std::invalid_argument &error) {
        threw = std::string(error.what()) == "tensor 1 is unknown";
    }
    CHECK(threw);
    engine.fill(give);
    CHECK(engine.export_tensor<float>(0, ZERO_ROLE_PARAM) == a);
}

CASE(an_update_of_one_s_own_trains_or_throws)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    std::atomic<bool> fail{false};
    Engine engine;
    {
        const zero::UpdateFn update = [&](const zero_update_range &range) {
            if (fail) {
                throw std::domain_error("no update");
            }
            for (std::size_t i = 0; i < range.count; i++) {
                range.param[i] -= 0.5F * range.grad[i];
            }
        };
        engine = Engine::create(world, layers(initial), zero::Options(), update);
    }
    micro_step(engine, 0, 0);
    engine.step();
    const std::vector<float> after = engine.export_tensor<float>(0, ZERO_ROLE_PARAM);
    for (std::size_t i = 0; i < weights; i++) {
        CHECK(after[i] == initial[i] - 0.5F * initial[i]);
    }
    fail = true;
    micro_step(engine, 0, 1);
    int threw = 0;
    for (int turn = 0; turn < 3; turn++) {
        try {
            if (turn == 0) {
                engine.step();
            }
            (void)engine.step_wait();
            (void)engine.export_tensor<float>(0, ZERO_ROLE_PARAM);
        } catch (const std::domain_error &) {
            threw++;
        }
    }
    CHECK(threw == 3);
    bool acquire_threw = false;
    try {
        Unit unit = engine.acquire(0, Pass::eval);
    } catch (const std::domain_error &) {
        acquire_threw = true;
    }
    CHECK(acquire_threw);
}

CASE(the_log_is_a_function)
{
    World world = World::self();
    const std::vector<float> too_large(weights, 1e6F); /* for an f16, which is a warning */
    const Model model = layers(too_large, ZERO_DTYPE_F16);
    std::vector<std::string> heard;
    zero::log_set([&](zero_log_level, const char *message) { heard.push_back(message); });
    (void)Engine::create(world, model);
    CHECK(!heard.empty() && heard[0].find("infinite") != std::string::npos);
    unreported_text.clear();
    zero::on_unreported(note_unreported);
    zero::log_set([](zero_log_level, const char *) { throw std::range_error("no log today"); });
    (void)Engine::create(world, model);
    CHECK(unreported_text == "no log today");
    zero::log_set({});
    unreported_text.clear();
    (void)Engine::create(world, model);
    CHECK(unreported_text.empty());
    zero::on_unreported(nullptr);
}

CASE(options_are_set_by_name)
{
    zero::NamedOptions named;
    named.set("stage", "1");
    named.set("disk-path", std::string("/tmp/a") + ":/tmp/b");
    named.set("look_ahead", "3");
    CHECK_THROWS(named.set("stage", "9"), ZERO_ERR_INVALID_ARGUMENT, "stage");
    CHECK_THROWS(named.set("stages", "1"), ZERO_ERR_INVALID_ARGUMENT, "stages");
    zero::NamedOptions moved = std::move(named);
    CHECK(moved.options().stage == ZERO_STAGE_1);
    CHECK(std::string(moved.options().disk_path) == "/tmp/a:/tmp/b");
    CHECK(moved.options().tuning == &moved.tuning() && moved.tuning().look_ahead == 3);
    CHECK(zero::Options().stage == ZERO_STAGE_3);
    CHECK(zero::StepParams().hyper.adamw.beta1 == 0.9F);
    CHECK(zero::StepParams(ZERO_OPTIMIZER_SGD).hyper.kind == ZERO_OPTIMIZER_SGD);
}

CASE(a_plan_says_what_an_engine_takes)
{
    const std::vector<float> initial = some_values();
    const Model model = layers(initial);
    const zero::Plan plan = zero::Plan::create(model, zero::Options(), 1);
    World world = World::self();
    Engine engine = Engine::create(world, model);
    CHECK(plan.memory().total_bytes == engine.memory().total_bytes);
    CHECK(plan.hash() != 0 && plan.hash() == engine.plan().hash());
    CHECK(plan.sharding().world == 1 && plan.options().stage == ZERO_STAGE_3);
    CHECK(plan.tuning().look_ahead > 0);
    const std::string text = plan.print();
    CHECK(text.size() == zero_plan_print(plan.get(), nullptr, 0));
    CHECK(text.find("param") != std::string::npos && text.back() == '\n');
    CHECK(plan.print_options().find("stage") != std::string::npos);
    CHECK(zero::Plan().print().empty());
    zero::Options small;
    small.device_budget_bytes = 4096;
    CHECK_THROWS(zero::Plan::create(model, small, 1), ZERO_ERR_OUT_OF_MEMORY, "4096");
}

CASE(shards_and_whole_tensors_go_both_ways)
{
    World::run(2, [](World &world) {
        const std::vector<float> initial = some_values();
        Engine engine = Engine::create(world, layers(initial));
        std::vector<float> shard = engine.shard_read<float>(1, ZERO_ROLE_PARAM);
        const zero_shard range = engine.shard_range(1, ZERO_ROLE_PARAM);
        CHECK(shard.size() == range.count);
        for (float &value : shard) {
            value += 1;
        }
        engine.shard_write(1, ZERO_ROLE_PARAM, shard);
        std::vector<float> whole;
        if (world.rank() == 0) {
            whole = engine.export_tensor<float>(1, ZERO_ROLE_PARAM);
            CHECK(whole.size() == weights && whole[5] == initial[5] + 1);
        } else {
            engine.export_join(1, ZERO_ROLE_PARAM);
        }
        engine.import_tensor(1, ZERO_ROLE_PARAM, initial);
        CHECK(engine.export_tensor<float>(1, ZERO_ROLE_PARAM) == initial);
        const std::vector<float> few(3);
        CHECK_THROWS(engine.import_tensor(1, ZERO_ROLE_PARAM, few), ZERO_ERR_INVALID_ARGUMENT,
                     "has 64 elements, and the array has 3");
        CHECK_THROWS(engine.shard_write(1, ZERO_ROLE_PARAM, std::vector<float>(1000)),
                     ZERO_ERR_INVALID_ARGUMENT, "1000");
        CHECK_THROWS(engine.import_tensor(99, ZERO_ROLE_PARAM, few), ZERO_ERR_INVALID_ARGUMENT,
                     "99");
    });
}

CASE(a_checkpoint_goes_on_with_the_same_bits)
{
    const Folder folder;
    World world = World::self();
    const std::vector<float> initial = some_values();
    const Model model = layers(initial);
    Engine engine = Engine::create(world, model);
    (void)trained(world, engine, 2);
    engine.save(folder.path + "/run");
    zero::SaveOptions again;
    const std::string run = folder.path + "/run";
    again.directory = run.c_str();
    again.name = "second";
    engine.save_begin(again);
    CHECK(engine.save_poll().active == 1);
    engine.save_end();
    Engine other = Engine::create(world, model);
    other.load(run);
    CHECK(other.step_state().updates == 2);
    zero_load_report report = zero_load_report_init();
    zero::LoadOptions load;
    load.path = run.c_str();
    load.name = "second";
    other.load(load, &report);
    CHECK(report.loaded == layer_count && report.step == 2);
    CHECK(trained(world, engine, 2) == trained(world, other, 2));
    CHECK_THROWS(other.load(folder.path + "/none"), ZERO_ERR_INVALID_ARGUMENT, "none");
    other.set_step_state(engine.step_state());
}

CASE(evicted_roles_come_back)
{
    const Folder folder;
    World world = World::self();
    const std::vector<float> initial = some_values();
    const Model model = layers(initial);
    zero::Options options;
    options.disk_path = folder.path.c_str();
    Engine engine = Engine::create(world, model, options);
    Engine clean = Engine::create(world, model);
    (void)trained(world, engine, 1);
    engine.evict(ZERO_EVICT_ALL, ZERO_TIER_DISK);
    CHECK_THROWS(engine.micro_begin(), ZERO_ERR_STATE, "evicted");
    engine.restore();
    (void)trained(world, clean, 1);
    CHECK(trained(world, engine, 1) == trained(world, clean, 1));
}

CASE(steps_are_asked_and_dropped)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    Engine engine = Engine::create(world, layers(initial));
    zero::StepParams params;
    micro_step(engine, 0, 0);
    const double norm = engine.grad_norm(params);
    engine.step(params);
    const zero_step_result result = engine.step_wait();
    CHECK(norm > 0 && result.norm == norm && result.updates == 1);
    micro_step(engine, 0, 1);
    engine.step_discard();
    CHECK(engine.loss_scale() == 1.0F);
    CHECK_THROWS(engine.step_predict(params), ZERO_ERR_STATE, "speculative_step");
}

CASE(the_split_calls_and_the_files_of_an_engine)
{
    const Folder folder;
    World world = World::self();
    const std::vector<float> initial = some_values();
    zero::Tuning tuning;
    tuning.trace_events = 4096;
    zero::Options options;
    options.tuning = &tuning;
    Engine engine = Engine::create(world, layers(initial), options);
    engine.micro_begin(Micro::earlier);
    engine.params_acquire(0, Pass::forward);
    CHECK(engine.param<float>(0).size() == weights);
    engine.params_release(0);
    engine.grads_acquire(0);
    engine.grad<float>(0)[0] += 1;
    engine.grads_ready(0);
    engine.micro_end();
    engine.micro_begin(Micro::last);
    engine.micro_end();
    engine.step();
    engine.trace(folder.path + "/trace.json");
    engine.collectives_write(folder.path + "/collectives.json");
    CHECK(std::filesystem::file_size(folder.path + "/trace.json") > 0);
    CHECK(std::filesystem::file_size(folder.path + "/collectives.json") > 0);
    CHECK(engine.path(ZERO_TRAFFIC_GATHER).carrier == ZERO_CARRIER_NONE);
    CHECK(engine.disk_path().backend == ZERO_IO_BACKEND_NONE);
    CHECK_THROWS(engine.trace(folder.path + "/no/trace.json"), ZERO_ERR_IO, "trace.json");
}

} // namespace
