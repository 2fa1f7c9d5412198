/* A beginner's mistakes in C++, and the message of each: docs/cpp.md shows some of them. */
#include "trainer.hpp"

namespace
{

using zero::Engine;
using zero::Error;
using zero::Model;
using zero::Pass;
using zero::Unit;
using zero::World;

/* A beginner's mistake, and what it says. */
struct Mistake {
    const char *what;
    void (*make)(World &world, Engine &engine);
    zero_status status;
    const char *says;
};

const Mistake mistakes[] = {
    {"a stage that there is not",
     [](World &, Engine &) {
         zero::NamedOptions options;
         options.set("stage", "7");
     },
     ZERO_ERR_INVALID_ARGUMENT, "stage"},
    {"shards of another number than the ranks",
     [](World &world, Engine &) {
         zero::Options options;
         options.shard_group = 7;
         const std::vector<float> initial = some_values();
         (void)Engine::create(world, layers(initial), options);
     },
     ZERO_ERR_INVALID_ARGUMENT, "shard_group 7 does not divide the world of 1 ranks"},
    {"initial values of another size",
     [](World &, Engine &) {
         const std::vector<float> few(10);
         Model model = Model::create();
         (void)model.add_unit("layer", {{"weight", {4, 4}, few}});
     },
     ZERO_ERR_INVALID_ARGUMENT, "tensor \"weight\" has 16 elements, and the array has 10"},
    {"two tensors of one name",
     [](World &, Engine &) {
         Model model = Model::create();
         (void)model.add_unit("layer", {{"weight", {4}}, {"weight", {4}}});
     },
     ZERO_ERR_INVALID_ARGUMENT, "\"weight\""},
    {"a shape of nine extents",
     [](World &, Engine &) {
         Model model = Model::create();
         (void)model.add_unit("layer", {{"weight", {1, 1, 1, 1, 1, 1, 1, 1, 1}}});
     },
     ZERO_ERR_INVALID_ARGUMENT, "its shape has 9 extents"},
    {"a unit that there is not",
     [](World &, Engine &engine) { (void)engine.acquire(17, Pass::eval); },
     ZERO_ERR_INVALID_ARGUMENT, "17"},
    {"forward before micro_begin",
     [](World &, Engine &engine) { (void)engine.acquire(0, Pass::forward); }, ZERO_ERR_STATE,
     "call zero_micro_begin first"},
    {"a tensor that the unit has not",
     [](World &, Engine &engine) {
         const Unit unit = engine.acquire(0, Pass::eval);
         (void)unit.param<float>(1);
     },
     ZERO_ERR_INVALID_ARGUMENT, "unit 0 has no tensor 1; give a number below 1"},
    {"another type than the tensor's",
     [](World &, Engine &engine) {
         const Unit unit = engine.acquire(0, Pass::eval);
         (void)unit.param<zero::bf16>(0);
     },
     ZERO_ERR_INVALID_ARGUMENT, "is f32, and is asked for as bf16"},
    {"gradients in forward",
     [](World &, Engine &engine) {
         const Unit unit = engine.acquire(0, Pass::eval);
         (void)unit.grad<float>(0);
     },
     ZERO_ERR_STATE, "acquire the unit with Pass::backward"},
    {"a step without a micro-step", [](World &, Engine &engine) { engine.step(); }, ZERO_ERR_STATE,
     "micro-step"},
    {"hyper-parameters that are not those of zero_step_params_init()",
     [](World &world, Engine &engine) {
         micro_step(engine, world.rank(), 0);
         zero::StepParams params;
         params.hyper.adamw = {};
         try {
             engine.step(params);
         } catch (...) {
             engine.step_discard();
             throw;
         }
     },
     ZERO_ERR_INVALID_ARGUMENT, "all numbers of this zero_adamw but lr"},
    {"a unit that is held at the end of the micro-step",
     [](World &, Engine &engine) {
         engine.micro_begin();
         Unit unit = engine.acquire(0, Pass::forward);
         try {
             engine.micro_end();
         } catch (...) {
             engine.micro_abandon();
             unit.detach();
             throw;
         }
     },
     ZERO_ERR_STATE, "unit 0"},
    {"an engine that was moved",
     [](World &world, Engine &) {
         const std::vector<float> initial = some_values();
         Engine engine = Engine::create(world, layers(initial));
         const Engine other = std::move(engine);
         engine.micro_begin();
     },
     ZERO_ERR_INVALID_ARGUMENT, "engine is NULL"},
    {"a unit that was released",
     [](World &, Engine &engine) {
         Unit unit = engine.acquire(0, Pass::eval);
         unit.release();
         (void)unit.param<float>(0);
     },
     ZERO_ERR_STATE, "the unit was released or moved; acquire it again"},
};

CASE(a_beginner_s_mistakes_say_what_to_do)
{
    World world = World::self();
    const std::vector<float> initial = some_values();
    Engine engine = Engine::create(world, layers(initial));
    for (const Mistake &mistake : mistakes) {
        try {
            mistake.make(world, engine);
            fail_at(mistake.what, 0, "nothing was thrown");
        } catch (const Error &error) {
            CHECK_ERROR(error, mistake.status, mistake.says);
        }
    }
    /* None of them has harmed the engine. */
    micro_step(engine, 0, 0);
    engine.step();
}

} // namespace
