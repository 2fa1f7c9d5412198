/* Micro-steps and uses of units. */
#include "engine.h"
#include <nanobind/ndarray.h>

/* A unit between acquire and release. */
struct Use {
    std::shared_ptr<Core> core;
    uint32_t unit;
    zero_pass pass;
    const zero_unit_view *view = nullptr; // NULL: not acquired
    nb::object params, grads;             // tuples of arrays, once they were asked for
};

static uint32_t unit_of(const Core &core, int64_t unit)
{
    const size_t units = core.units.size();
    if (unit < 0 || static_cast<size_t>(unit) >= units) {
        throw nb::index_error(("unit " + std::to_string(unit) + " is not one of the engine's " +
                               std::to_string(units) + "; units count from 0")
                                  .c_str());
    }
    return static_cast<uint32_t>(unit);
}

static zero_pass pass_of(int pass)
{
    if (pass < ZERO_PASS_NONE || pass > ZERO_PASS_EVAL) {
        throw nb::value_error(
            ("pass " + std::to_string(pass) + " is none of zeroshard.FORWARD, BACKWARD and EVAL")
                .c_str());
    }
    return static_cast<zero_pass>(pass);
}

static Use *make_use(Engine &self, int64_t unit, int pass)
{
    return new Use{self.core, unit_of(self.get(), unit), pass_of(pass), nullptr, {}, {}};
}

static Use &enter(Use &self)
{
    if (self.view != nullptr) {
        throw nb::value_error("this use of the unit is entered already; make one for each with");
    }
    zero_engine *engine = self.core->engine;
    const zero_unit_view *view = nullptr;
    waiting(self.core->world, [&] {
        return zero_unit_acquire(engine, self.unit, self.pass, zero_stream_host(), &view);
    });
    self.view = view;
    return self;
}

/* Arrays that are still held cannot be written through from here on: their memory is another
 * unit's soon. */
static void freeze(nb::object &arrays)
{
    if (!arrays.is_valid()) {
        return;
    }
    for (nb::handle array : nb::borrow<nb::tuple>(arrays)) {
        if (Py_REFCNT(array.ptr()) > 1 && !array.is_none()) {
            array.attr("setflags")(false);
        }
    }
    arrays.reset();
}

static bool leave(Use &self, nb::args)
{
    if (self.view != nullptr) {
        self.view = nullptr;
        self.params.reset();
        freeze(self.grads);
        zero_engine *engine = self.core->engine;
        check(zero_unit_release(engine, self.unit, zero_stream_host()));
    }
    return false;
}

static const zero_unit_view &opened(const Use &self)
{
    if (self.view == nullptr) {
        throw nb::value_error("the unit is not acquired; its arrays are there inside `with "
                              "engine.unit(...)` only");
    }
    return *self.view;
}

/* An array keeps the engine's memory. */
static nb::capsule owner_of(const std::shared_ptr<Core> &core)
{
    return nb::capsule(new std::shared_ptr<Core>(core), [](void *kept) noexcept {
        delete static_cast<std::shared_ptr<Core> *>(kept);
    });
}

/* numpy has no bfloat16: its arrays show the bits. */
static nb::dlpack::dtype type_of(zero_dtype dtype, bool numpy)
{
    using nb::dlpack::dtype_code;
    const dtype_code sixteen = numpy ? dtype_code::UInt : dtype_code::Bfloat;
    const dtype_code code = dtype == ZERO_DTYPE_BF16 ? sixteen : dtype_code::Float;
    return {static_cast<uint8_t>(code), static_cast<uint8_t>(zero_dtype_bytes(dtype) * 8), 1};
}

template <typename Array>
static nb::object array_of(const zero_view &view, const TensorInfo &info, nb::handle owner,
                           bool numpy)
{
    return Array(view.data, info.shape.size(), info.shape.data(), owner, nullptr,
                 type_of(view.dtype, numpy), nb::device::cpu::value)
        .cast(nb::rv_policy::reference);
}

/* The arrays of a unit in the order of its tensors: None for one that has no gradient. */
template <typename Array>
static nb::object arrays_of(const Use &self, const zero_view *views, bool numpy)
{
    const zero_unit_view &view = opened(self);
    const std::vector<uint32_t> &tensors = self.core->units[self.unit];
    nb::list all;
    const nb::capsule owner = owner_of(self.core);
    for (uint32_t i = 0; i < view.tensor_count; i++) {
        if (views[i].dtype == ZERO_DTYPE_NONE) {
            all.append(nb::none());
        } else {
            all.append(array_of<Array>(views[i], self.core->tensors[tensors[i]], owner, numpy));
        }
    }
    return nb::tuple(all);
}

/* zeroshard's tuple of gradients, which refuses to be assigned to. */
static PyObject *gradients;

static void set_gradients(nb::object type)
{
    Py_XDECREF(gradients);
    gradients = type.release().ptr();
}

static const zero_view *grads_there(const Use &self)
{
    const zero_view *grads = opened(self).grads;
    if (grads == nullptr) {
        throw nb::value_error("the unit is not acquired for backward, and has no gradients then; "
                              "use engine.unit(index, zeroshard.BACKWARD)");
    }
    return grads;
}

static nb::object params(Use &self)
{
    const zero_view *views = opened(self).params;
    if (!self.params.is_valid()) {
        self.params = arrays_of<nb::ndarray<nb::numpy, nb::ro>>(self, views, true);
    }
    return self.params;
}

/* `count` values of one plane, as codes have it. */
static nb::object plane(const void *data, uint64_t count, nb::dlpack::dtype_code code, uint8_t bits,
                        nb::handle owner)
{
    const size_t shape = count;
    return nb::ndarray<nb::numpy, nb::ro>(data, 1, &shape, owner, nullptr,
                                          nb::dlpack::dtype{static_cast<uint8_t>(code), bits, 1},
                                          nb::device::cpu::value)
        .cast(nb::rv_policy::reference);
}

/* For each tensor its codes and scales; of both types that numpy lacks it shows the bits. */
static nb::object encoded(Use &self)
{
    using nb::dlpack::dtype_code;
    (void)opened(self);
    nb::list all;
    const nb::capsule owner = owner_of(self.core);
    for (uint32_t tensor : self.core->units[self.unit]) {
        zero_encoded seen = {};
        check(zero_tensor_encoded(self.core->engine, tensor, &seen));
        const bool integers = seen.dtype == ZERO_DTYPE_INT8_BLOCK;
        const dtype_code code = integers ? dtype_code::Int : dtype_code::UInt;
        all.append(nb::make_tuple(
            plane(seen.codes, seen.count, code, 8, owner),
            plane(seen.scales, seen.scale_count, dtype_code::UInt, integers ? 16 : 8, owner)));
    }
    return nb::tuple(all);
}

static nb::object grads(Use &self)
{
    const zero_view *views = grads_there(self);
    if (!self.grads.is_valid()) {
        self.grads = nb::borrow(gradients)(arrays_of<nb::ndarray<nb::numpy>>(self, views, true));
    }
    return self.grads;
}

/* Addresses of a unit's tensors, in the order of its arrays: 0 for one that has no gradient. */
template <typename ViewOf>
static nb::tuple addresses_of(const Core &core, uint32_t unit, bool trained, ViewOf view_of)
{
    nb::list all;
    for (uint32_t tensor : core.units[unit]) {
        zero_view view = {};
        if (!trained || !core.tensors[tensor].frozen) {
            check(view_of(core.engine, tensor, &view));
        }
        all.append(reinterpret_cast<uintptr_t>(view.data));
    }
    return nb::tuple(all);
}

static nb::tuple params_acquire(Engine &self, int64_t unit, int pass)
{
    const Core &core = self.get();
    const uint32_t of = unit_of(core, unit);
    const zero_pass in = pass_of(pass);
    on_engine(self, [of, in](zero_engine *engine) {
        return zero_unit_params_acquire(engine, of, in, zero_stream_host());
    });
    return addresses_of(core, of, false, zero_tensor_data);
}

static void params_release(Engine &self, int64_t unit)
{
    const Core &core = self.get();
    check(zero_unit_params_release(core.engine, unit_of(core, unit), zero_stream_host()));
}

static nb::tuple grads_acquire(Engine &self, int64_t unit)
{
    const Core &core = self.get();
    const uint32_t of = unit_of(core, unit);
    on_engine(self, [of](zero_engine *engine) {
        return zero_unit_grads_acquire(engine, of, zero_stream_host());
    });
    return addresses_of(core, of, true, zero_tensor_grad);
}

static void grads_ready(Engine &self, int64_t unit)
{
    const Core &core = self.get();
    check(zero_unit_grads_ready(core.engine, unit_of(core, unit), zero_stream_host()));
}

/* Memory of the engine at an address that one of the calls above gave, for from_dlpack. */
static nb::object memory_at(Engine &self, uintptr_t address, size_t bytes)
{
    (void)self.get();
    return nb::ndarray<nb::array_api>(reinterpret_cast<void *>(address), 1, &bytes,
                                      owner_of(self.core), nullptr, nb::dtype<uint8_t>(),
                                      nb::device::cpu::value)
        .cast(nb::rv_policy::reference);
}

static void micro_begin(Engine &self, bool last)
{
    on_engine(self, [last](zero_engine *engine) {
        return zero_micro_begin(engine, last ? ZERO_MICRO_LAST : ZERO_MICRO_EARLIER);
    });
}

void unit_register(nb::module_ &module, nb::class_<Engine> &engine)
{
    nb::class_<Use>(module, "Use")
        .def("__enter__", enter, nb::rv_policy::reference)
        .def("__exit__", leave, nb::arg("reason").none())
        .def_prop_ro("params", params)
        .def_prop_ro("grads", grads)
        .def_prop_ro("encoded", encoded)
        .def_prop_ro("params_dlpack",
                     [](Use &self) {
                         return arrays_of<nb::ndarray<nb::array_api, nb::ro>>(
                             self, opened(self).params, false);
                     })
        .def_prop_ro("grads_dlpack", [](Use &self) {
            return arrays_of<nb::ndarray<nb::array_api>>(self, grads_there(self), false);
        });
    module.def("set_gradients", set_gradients);
    engine.def("unit", make_use)
        .def("params_acquire", params_acquire)
        .def("params_release", params_release)
        .def("grads_acquire", grads_acquire)
        .def("grads_ready", grads_ready)
        .def("memory_at", memory_at)
        .def("micro_begin", micro_begin)
        .def("micro_end", [](Engine &self) { on_engine(self, zero_micro_end); })
        .def("micro_abandon", [](Engine &self) {
            on_engine(self, [](zero_engine *to) { return zero_micro_abandon(to, {nullptr}); });
        });
}
