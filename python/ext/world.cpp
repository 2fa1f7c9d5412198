/* Worlds: made by a launcher's variables, of threads, or alone. */
#include "native.h"
#include <condition_variable>
#include <mutex>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <thread>

World::~World()
{
    close();
}

void World::close()
{
    zero_world *gone = world;
    world = nullptr;
    if (gone != nullptr && owned) {
        nb::gil_scoped_release release;
        zero_world_destroy(gone);
    }
}

zero_world *World::get() const
{
    if (world == nullptr) {
        PyErr_SetString(PyExc_ValueError,
                        "the world is closed, or the function that World.run called with it has "
                        "returned; make another one");
        throw nb::python_error();
    }
    return world;
}

static World *create_self()
{
    interrupts_watch();
    auto made = std::make_unique<World>();
    check(zero_world_create_self(&made->world));
    made->owned = true;
    return made.release();
}

/* A world that a thread of its own makes, so that Python handles signals meanwhile. */
struct Joining {
    std::mutex lock;
    std::condition_variable ended;
    bool over = false;
    bool wanted = true; // nobody takes it: the thread destroys it
    zero_status status = ZERO_OK;
    zero_error error = {};
    zero_world *world = nullptr;
};

static void join_launched(std::shared_ptr<Joining> joining, uint32_t deadline_ms)
{
    zero_world *world = nullptr;
    const zero_status status = zero_world_create_launched(deadline_ms, &world);
    std::unique_lock<std::mutex> held(joining->lock);
    joining->status = status;
    joining->error = *zero_last_error();
    joining->over = true;
    if (joining->wanted) {
        joining->world = world;
        joining->ended.notify_one();
    } else {
        held.unlock();
        zero_world_abort(world);
        zero_world_destroy(world);
    }
}

static bool wait_a_moment(Joining &joining)
{
    nb::gil_scoped_release release;
    std::unique_lock<std::mutex> held(joining.lock);
    return joining.ended.wait_for(held, std::chrono::milliseconds(50),
                                  [&joining] { return joining.over; });
}

static World *create_launched(uint32_t deadline_ms)
{
    interrupts_watch();
    auto joining = std::make_shared<Joining>();
    std::thread(join_launched, joining, deadline_ms).detach();
    while (!wait_a_moment(*joining)) {
        if (PyErr_CheckSignals() != 0) {
            std::lock_guard<std::mutex> held(joining->lock);
            joining->wanted = false;
            if (joining->over) {
                nb::gil_scoped_release release;
                zero_world_destroy(joining->world);
            }
            throw nb::python_error();
        }
    }
    if (joining->status != ZERO_OK) {
        raise_error(joining->status, joining->error);
    }
    auto made = std::make_unique<World>();
    made->world = joining->world;
    made->owned = true;
    return made.release();
}

/* One World.run. */
struct Run {
    nb::object fn;
    Ranks ranks;
};

/* fn returns a status: what it raised is kept by zeroshard. */
static zero_status run_rank(zero_world *handle, void *user)
{
    Run *run = static_cast<Run *>(user);
    nb::gil_scoped_acquire gil;
    zero_status status = ZERO_ERR_STATE;
    try {
        run->ranks.worlds.push_back(handle);
        run->ranks.threads.push_back(PyThread_get_thread_ident());
        auto *world = new World;
        world->world = handle;
        nb::object given = nb::cast(world, nb::rv_policy::take_ownership);
        status = static_cast<zero_status>(nb::cast<int>(run->fn(given)));
        world->close();
    } catch (std::exception &) {
        PyErr_Clear();
    }
    for (zero_world *&other : run->ranks.worlds) {
        if (other == handle) {
            other = nullptr;
        }
    }
    return status;
}

static void run_world(uint32_t ranks, uint32_t deadline_ms, nb::object fn)
{
    interrupts_watch();
    Run run;
    run.fn = fn;
    zero_status status;
    {
        Wait wait(&run.ranks);
        status = zero_world_run(ranks, deadline_ms, run_rank, &run);
    }
    check(status);
}

static nb::list gather(World &self, nb::bytes sent)
{
    zero_world *world = self.get();
    const size_t bytes = sent.size();
    if (bytes > UINT32_MAX) {
        throw nb::value_error("a rank gathers at most 4294967295 bytes");
    }
    std::vector<char> all(bytes * zero_world_size(world));
    waiting(world, [&] {
        return zero_world_gather(world, sent.c_str(), all.data(), static_cast<uint32_t>(bytes));
    });
    nb::list parts;
    for (size_t first = 0; parts.size() < zero_world_size(world); first += bytes) {
        parts.append(nb::bytes(all.data() + first, bytes));
    }
    return parts;
}

static double mean(World &self, double value)
{
    zero_world *world = self.get();
    double all = 0;
    waiting(world, [&] { return zero_world_mean(world, value, &all); });
    return all;
}

void world_register(nb::module_ &module)
{
    nb::class_<World>(module, "World")
        .def("close", &World::close)
        .def("rank", [](World &self) { return zero_world_rank(self.get()); })
        .def("size", [](World &self) { return zero_world_size(self.get()); })
        .def("local_size", [](World &self) { return zero_world_local_size(self.get()); })
        .def("cpus", [](World &self) { return zero_world_cpus(self.get()); })
        .def("backend", [](World &self) { return std::string(zero_world_backend(self.get())); })
        .def("barrier",
             [](World &self) {
                 zero_world *world = self.get();
                 waiting(world, [world] { return zero_world_barrier(world); });
             })
        .def("gather", gather)
        .def("mean", mean)
        .def("abort", [](World &self) { zero_world_abort(self.get()); });
    module.def("world_self", create_self);
    module.def("world_launched", create_launched, nb::arg("deadline_ms"));
    module.def("world_is_launched", [] { return zero_world_is_launched() != 0; });
    module.def("world_run", run_world, nb::arg("ranks"), nb::arg("deadline_ms"), nb::arg("fn"));
}
