/* Engines: create, fill, counters, shards and tensors between steps. */
#include "engine.h"
#include <limits>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

Core::~Core()
{
    nb::gil_scoped_release release;
    zero_engine_destroy(engine);
}

Core &Engine::get() const
{
    if (core == nullptr) {
        PyErr_SetString(PyExc_ValueError, "the engine is closed; make another one");
        throw nb::python_error();
    }
    return *core;
}

static TensorInfo tensor_info(const Model &model, uint32_t tensor)
{
    zero_tensor_desc desc = {};
    check(zero_model_tensor_desc(model.model, tensor, &desc));
    return {std::vector<size_t>(desc.shape, desc.shape + desc.dims),
            (desc.flags & ZERO_TENSOR_FROZEN) != 0};
}

static Engine *create(World &world, const Model &model, const Options &options)
{
    if (options.options.device == ZERO_DEVICE_CUDA) {
        PyErr_SetString(PyExc_ValueError, "device is cuda, and arrays of numpy are host memory; "
                                          "leave device at cpu");
        throw nb::python_error();
    }
    interrupts_watch();
    auto core = std::make_shared<Core>();
    core->world = world.get();
    core->units = model.units;
    for (uint32_t i = 0; i < zero_model_tensor_count(model.model); i++) {
        core->tensors.push_back(tensor_info(model, i));
    }
    waiting(core->world, [&] {
        return zero_engine_create(core->world, model.model, &options.options, &core->engine);
    });
    return new Engine{std::move(core)};
}

/* A callback of zero_engine_fill. Its exception is raised when the call is over. Values that were
 * not given are NaN, so that ranks differ and none of them takes the values of others. */
struct Fill {
    nb::object fn;
    bool failed = false;
    nb::object type, value, trace;
};

static void fill_range(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    Fill *fill = static_cast<Fill *>(user);
    nb::gil_scoped_acquire gil;
    if (!fill->failed) {
        try {
            size_t shape[1] = {count};
            fill->fn(tensor, first,
                     nb::ndarray<nb::numpy, float>(values, 1, shape, nb::none())
                         .cast(nb::rv_policy::reference));
            return;
        } catch (nb::python_error &error) {
            fill->failed = true;
            fill->value = nb::borrow<nb::object>(error.value());
        }
    }
    std::fill_n(values, count, std::numeric_limits<float>::quiet_NaN());
}

static void fill(Engine &self, nb::object fn)
{
    Fill filled;
    filled.fn = fn;
    zero_status status;
    {
        Core &core = self.get();
        Wait wait(core.world);
        status = zero_engine_fill(core.engine, fill_range, &filled);
    }
    if (filled.failed) {
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(filled.value.ptr())),
                        filled.value.ptr());
        throw nb::python_error();
    }
    check(status);
}

static nb::dict stats(Engine &self)
{
    zero_stats now = zero_stats_init();
    check(zero_engine_stats(self.get().engine, &now));
    nb::dict all;
#define FIELD(name) all[#name] = now.name;
    FIELD(steps)
    FIELD(steps_skipped)
    FIELD(micro_steps)
    FIELD(gathers)
    FIELD(gathers_hit)
    FIELD(gathers_unforeseen)
    FIELD(reduces)
    FIELD(param_gathers)
    FIELD(gather_bytes)
    FIELD(reduce_bytes)
    FIELD(acquire_wait_ns)
    FIELD(grad_wait_ns)
    FIELD(step_wait_ns)
    FIELD(device_bytes)
    FIELD(device_peak_bytes)
    FIELD(host_bytes)
    FIELD(disk_bytes)
    FIELD(disk_read_bytes)
    FIELD(disk_write_bytes)
    FIELD(disk_read_hits)
    FIELD(disk_read_wait_ns)
    FIELD(disk_write_wait_ns)
    FIELD(update_ns)
    FIELD(steps_speculative)
    FIELD(steps_redone)
    FIELD(taken_ns)
    FIELD(steps_discarded)
    FIELD(steps_held_back)
    FIELD(disk_check_ns)
    FIELD(values_overflowed)
#undef FIELD
    return all;
}

static nb::dict memory_of(const zero_memory &memory)
{
    nb::dict roles;
    nb::dict tiers;
    for (uint32_t i = 0; i < ZERO_ROLE_COUNT_MAX; i++) {
        if (zero_role_exists(static_cast<zero_role>(i)) != 0 && memory.bytes[i] != 0) {
            roles[zero_role_name(static_cast<zero_role>(i))] = memory.bytes[i];
        }
    }
    for (uint32_t i = ZERO_TIER_DEVICE; i < ZERO_TIER_COUNT; i++) {
        tiers[zero_tier_name(static_cast<zero_tier>(i))] = memory.tier_bytes[i];
    }
    nb::dict all;
    all["roles"] = roles;
    all["tiers"] = tiers;
    all["total"] = memory.total_bytes;
    return all;
}

static nb::dict memory(Engine &self)
{
    zero_memory now = zero_memory_init();
    check(zero_engine_memory(self.get().engine, &now));
    return memory_of(now);
}

using Printer = size_t (*)(const zero_plan *, char *, size_t);

static std::string printed(const zero_plan *plan, Printer printer)
{
    std::string text(printer(plan, nullptr, 0) + 1, '\0');
    (void)printer(plan, text.data(), text.size());
    text.pop_back();
    return text;
}

/* memory, the table, the options, and the optimizer of each hyper-parameter group */
static nb::tuple plan_of(const zero_plan *plan)
{
    zero_memory memory = zero_memory_init();
    check(zero_plan_memory(plan, &memory));
    zero_engine_options options = zero_engine_options_init();
    check(zero_plan_options(plan, &options));
    nb::list optimizers;
    for (zero_optimizer optimizer : options.group_optimizer) {
        optimizers.append(static_cast<int>(optimizer != 0 ? optimizer : options.optimizer));
    }
    return nb::make_tuple(memory_of(memory), printed(plan, zero_plan_print),
                          printed(plan, zero_plan_print_options), optimizers);
}

static nb::tuple plan(const Model &model, const Options &options, uint32_t ranks)
{
    zero_plan *made = nullptr;
    check(zero_plan_create(model.model, &options.options, ranks, &made));
    const std::unique_ptr<zero_plan, void (*)(zero_plan *)> owner(made, zero_plan_destroy);
    return plan_of(made);
}

/* Part of a tensor's state: which elements this rank has, and the number of their type. */
static nb::tuple shard_range(Engine &self, uint32_t tensor, int role)
{
    zero_shard shard = {};
    check(zero_shard_range(self.get().engine, tensor, static_cast<zero_role>(role), &shard));
    return nb::make_tuple(shard.first, shard.count, static_cast<int>(shard.dtype));
}

static void shard_move(Engine &self, uint32_t tensor, int role, uint64_t first, uint64_t count,
                       uintptr_t address, bool writes)
{
    void *values = reinterpret_cast<void *>(address);
    on_engine(self, [&](zero_engine *engine) {
        const zero_role of = static_cast<zero_role>(role);
        return writes ? zero_shard_write(engine, tensor, of, first, count, values)
                      : zero_shard_read(engine, tensor, of, first, count, values);
    });
}

/* address 0: this rank wants no copy. */
static void tensor_move(Engine &self, uint32_t tensor, int role, uintptr_t address, int dtype,
                        bool imports)
{
    zero_array array = {};
    array.data = reinterpret_cast<void *>(address);
    array.dtype = static_cast<zero_dtype>(dtype);
    on_engine(self, [&](zero_engine *engine) {
        const zero_role of = static_cast<zero_role>(role);
        return imports ? zero_tensor_import(engine, tensor, of, &array)
                       : zero_tensor_export(engine, tensor, of, address != 0 ? &array : nullptr);
    });
}

static std::vector<size_t> tensor_shape(Engine &self, uint32_t tensor)
{
    const Core &core = self.get();
    if (tensor >= core.tensors.size()) {
        throw nb::index_error(("tensor " + std::to_string(tensor) + " is not below the model's " +
                               std::to_string(core.tensors.size()))
                                  .c_str());
    }
    return core.tensors[tensor].shape;
}

static void evict(Engine &self, uint32_t roles, int tier)
{
    on_engine(self, [&](zero_engine *engine) {
        return zero_engine_evict(engine, roles, static_cast<zero_tier>(tier));
    });
}

static void restore(Engine &self)
{
    on_engine(self, [](zero_engine *engine) { return zero_engine_restore(engine); });
}

static void random_fill(nb::ndarray<float, nb::c_contig, nb::device::cpu> values, bool normal,
                        uint64_t seed, uint64_t stream, uint64_t first, float a, float b)
{
    nb::gil_scoped_release release;
    if (normal) {
        zero_random_normal(seed, stream, first, values.size(), a, b, values.data());
    } else {
        zero_random_uniform(seed, stream, first, values.size(), a, b, values.data());
    }
}

void engine_register(nb::module_ &module)
{
    nb::class_<Engine> engine(module, "Engine");
    engine.def("close", [](Engine &self) { self.core.reset(); })
        .def("fill", fill)
        .def("stats", stats)
        .def("memory", memory)
        .def("plan", [](Engine &self) { return plan_of(zero_engine_plan(self.get().engine)); })
        .def("shard_range", shard_range)
        .def("shard_move", shard_move)
        .def("tensor_move", tensor_move)
        .def("tensor_shape", tensor_shape)
        .def("evict", evict)
        .def("restore", restore);
    step_register(module, engine);
    unit_register(module, engine);
    checkpoint_register(engine);
    module.def("engine_create", create);
    module.def("plan_create", plan);
    module.def("random_fill", random_fill);
    module.attr("EVICT_ALL") = ZERO_EVICT_ALL;
    module.attr("EVICT_STATE") = ZERO_EVICT_STATE;
}
