/* Shared by the files of the extension: errors, waits without the GIL, and the three owners of a
 * handle of the library. */
#ifndef ZERO_PYTHON_NATIVE_H
#define ZERO_PYTHON_NATIVE_H

#include <cstdint>
#include <deque>
#include <memory>
#include <nanobind/nanobind.h>
#include <string>
#include <vector>
#include <zero/zero.h>

namespace nb = nanobind;

/** Raise the exception of a status that is not ZERO_OK, from the calling thread's error record. A
 *  KeyboardInterrupt that is pending wins. Needs the GIL. */
void check(zero_status status);

/** Raise the exception of a failure that another thread found. */
[[noreturn]] void raise_error(zero_status status, const zero_error &error);

/** Let zeroshard give its exceptions: a class by status. */
void errors_register(nb::module_ &module);

/** The ranks of a World.run that are in their function. With the GIL held. */
struct Ranks {
    std::vector<zero_world *> worlds; // NULL once the rank is out of its function
    std::vector<unsigned long> threads;
};

/** A call that may wait for other ranks: it holds no GIL, and Ctrl-C on the main thread ends it by
 *  aborting the worlds that it waits in. All of it happens on one thread. */
class Wait
{
  public:
    explicit Wait(zero_world *world);
    explicit Wait(const Ranks *ranks);
    ~Wait();
    Wait(const Wait &) = delete;
    Wait &operator=(const Wait &) = delete;

  private:
    void begin();
    bool main_;
    PyThreadState *state_ = nullptr;
};

/** Chain to the process's handler of SIGINT, unless it is done or there is none. */
void interrupts_watch();
void interrupts_register(nb::module_ &module);

/** `call` without the GIL, and its failure as an exception. */
template <typename Call> void waiting(zero_world *world, Call call)
{
    zero_status status;
    {
        Wait wait(world);
        status = call();
    }
    check(status);
}

/** One rank's world. `owned`: it was created here; else zero_world_run made it. */
struct World {
    zero_world *world = nullptr;
    bool owned = false;

    ~World();
    void close();
    zero_world *get() const; // STATE once it is closed
};

/** A tensor as its arrays show it. */
struct TensorInfo {
    std::vector<size_t> shape;
    bool frozen;
};

/** A model under construction, and the arrays that its tensors begin with. */
struct Model {
    zero_model *model = nullptr;
    std::vector<std::vector<uint32_t>> units; // by unit, the tensors of its view
    std::vector<nb::object> initial;

    Model();
    ~Model();
};

/** The options of both structs, and the texts that they point to. */
struct Options {
    zero_engine_options options;
    zero_tuning tuning;
    std::deque<std::string> texts;
    std::vector<const char *> directories;
    std::vector<uint32_t> weights;
    nb::object model_parallel;

    Options();
};

void world_register(nb::module_ &module);
void model_register(nb::module_ &module);
void options_register(nb::module_ &module);
void engine_register(nb::module_ &module);

#endif
