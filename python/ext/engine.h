/* An engine and those of its arrays that live. */
#ifndef ZERO_PYTHON_ENGINE_H
#define ZERO_PYTHON_ENGINE_H

#include "native.h"

/** The library's engine. The Engine and every array over its memory share it, so that memory is
 *  there as long as an array is: the last of them to go destroys it. */
struct Core {
    zero_engine *engine = nullptr;
    zero_world *world = nullptr;
    std::vector<TensorInfo> tensors;
    std::vector<std::vector<uint32_t>> units;

    ~Core();
};

/** Python's handle. */
struct Engine {
    std::shared_ptr<Core> core;

    Core &get() const; // an exception once it is closed
};

/** `call` on the engine, without the GIL. */
template <typename Call> void on_engine(const Engine &self, Call call)
{
    Core &core = self.get();
    zero_engine *engine = core.engine;
    waiting(core.world, [engine, &call] { return call(engine); });
}

void step_register(nb::module_ &module, nb::class_<Engine> &engine);
void unit_register(nb::module_ &module, nb::class_<Engine> &engine);
void checkpoint_register(nb::class_<Engine> &engine);

#endif
