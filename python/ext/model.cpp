/* Models, and the options of plans and engines. */
#include "native.h"
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

Model::Model()
{
    check(zero_model_create(&model));
}

Model::~Model()
{
    zero_model_destroy(model);
}

using Shape = std::vector<uint64_t>;
/* name, shape, dtype, flags, group, initial's address or 0, its dtype, global_shape, box_first,
 * replica */
using Described =
    std::tuple<std::string, Shape, int, uint32_t, uint32_t, uintptr_t, int, Shape, Shape, uint32_t>;

static void set_extents(uint64_t *extents, const Shape &shape, const std::string &name)
{
    if (shape.size() > ZERO_TENSOR_DIMS_MAX) {
        throw nb::value_error(
            (name + " has " + std::to_string(shape.size()) + " dimensions; a tensor has at most 8")
                .c_str());
    }
    std::copy(shape.begin(), shape.end(), extents);
}

static zero_tensor_desc describe(const Described &from)
{
    zero_tensor_desc desc = {};
    const auto &[name, shape, dtype, flags, group, address, initial, global, first, replica] = from;
    desc.name = name.c_str();
    set_extents(desc.shape, shape, name);
    desc.dims = static_cast<uint32_t>(shape.size());
    desc.dtype = static_cast<zero_dtype>(dtype);
    desc.flags = flags;
    desc.group = group;
    desc.initial.data = reinterpret_cast<void *>(address);
    desc.initial.dtype = static_cast<zero_dtype>(initial);
    set_extents(desc.global_shape, global, name);
    set_extents(desc.box_first, first, name);
    desc.replica = replica;
    return desc;
}

static std::pair<uint32_t, uint32_t> add_unit(Model &self, const std::string &name,
                                              const std::vector<Described> &tensors,
                                              uint32_t layers, uint32_t shard_group,
                                              nb::object arrays)
{
    std::vector<zero_tensor_desc> descs;
    for (const Described &tensor : tensors) {
        descs.push_back(describe(tensor));
    }
    zero_unit_desc desc = {};
    desc.struct_bytes = sizeof desc;
    desc.name = name.c_str();
    desc.tensors = descs.empty() ? nullptr : descs.data();
    desc.tensor_count = static_cast<uint32_t>(descs.size());
    desc.layers = layers;
    desc.shard_group = shard_group;
    uint32_t unit = 0;
    uint32_t tensor = zero_model_tensor_count(self.model);
    check(zero_unit_add(self.model, &desc, &unit, descs.empty() ? nullptr : &tensor));
    uint32_t next = tensor;
    for (uint32_t layer = 0; layer < (layers != 0 ? layers : 1); layer++) {
        std::vector<uint32_t> own(descs.size());
        for (uint32_t &index : own) {
            index = next++;
        }
        self.units.push_back(std::move(own));
    }
    self.initial.push_back(arrays);
    return {unit, tensor};
}

static void tie(Model &self, uint32_t unit, uint32_t tensor)
{
    check(zero_tensor_tie(self.model, unit, tensor));
    self.units[unit].push_back(tensor);
}

static std::string tensor_name(Model &self, uint32_t tensor)
{
    zero_tensor_desc desc = {};
    check(zero_model_tensor_desc(self.model, tensor, &desc));
    return desc.name;
}

void model_register(nb::module_ &module)
{
    nb::class_<Model>(module, "Model")
        .def(nb::init<>())
        .def("add_unit", add_unit)
        .def("tie", tie)
        .def("tensor_name", tensor_name)
        .def("unit_count", [](Model &self) { return zero_model_unit_count(self.model); })
        .def("tensor_count", [](Model &self) { return zero_model_tensor_count(self.model); })
        .def("element_count", [](Model &self) { return zero_model_element_count(self.model); });
}

Options::Options() : options(zero_engine_options_init()), tuning(zero_tuning_init())
{
    options.tuning = &tuning;
}

static void set(Options &self, const std::string &name, const std::string &text)
{
    self.texts.push_back(text);
    check(zero_option_set(&self.options, &self.tuning, name.c_str(), self.texts.back().c_str()));
}

static void set_directories(Options &self, const std::vector<std::string> &directories)
{
    self.directories.clear();
    for (const std::string &directory : directories) {
        self.texts.push_back(directory);
        self.directories.push_back(self.texts.back().c_str());
    }
    self.options.disk_directories = self.directories.data();
    self.options.disk_directory_count = static_cast<uint32_t>(self.directories.size());
}

static void set_weights(Options &self, const std::vector<uint32_t> &weights)
{
    self.weights = weights;
    self.tuning.disk_weights = self.weights.data();
}

static void set_model_parallel(Options &self, nb::object world)
{
    self.options.model_parallel = nb::cast<World &>(world).get();
    self.model_parallel = world;
}

static std::string print(const Options &self, const zero_option *option)
{
    std::string text(zero_option_print(option, &self.options, &self.tuning, nullptr, 0) + 1, '\0');
    (void)zero_option_print(option, &self.options, &self.tuning, text.data(), text.size());
    text.pop_back();
    return text;
}

static nb::dict values(const Options &self)
{
    nb::dict all;
    for (uint32_t i = 0; i < zero_option_count(); i++) {
        const zero_option *option = zero_option_at(i);
        if (option->kind != ZERO_OPTION_POINTER) {
            all[option->name] = print(self, option);
        }
    }
    return all;
}

static nb::list table()
{
    nb::list rows;
    for (uint32_t i = 0; i < zero_option_count(); i++) {
        const zero_option *option = zero_option_at(i);
        rows.append(nb::make_tuple(option->name, option->text, option->fallback,
                                   static_cast<int>(option->kind), option->is_tuning != 0));
    }
    return rows;
}

void options_register(nb::module_ &module)
{
    nb::class_<Options>(module, "Options")
        .def(nb::init<>())
        .def("set", set)
        .def("set_directories", set_directories)
        .def("set_weights", set_weights)
        .def("set_model_parallel", set_model_parallel)
        .def("values", values);
    module.def("options_table", table);
}
