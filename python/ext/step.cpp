/* Steps: hyper-parameters by name, results. */
#include "engine.h"
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

/* An optimizer's numbers by name, in the order of its struct. */
static const char *const adamw_names[] = {"lr", "beta1", "beta2", "eps", "weight_decay", nullptr};
static const char *const lion_names[] = {"lr", "beta1", "beta2", "weight_decay", nullptr};
static const char *const sgd_names[] = {"lr", "momentum", "weight_decay", "nesterov", nullptr};

static const char *const lamb_names[] = {"lr",        "beta1",           "beta2",
                                         "eps",       "weight_decay",    "min_ratio",
                                         "max_ratio", "adapt_undecayed", nullptr};
static const char *const lars_names[] = {"lr",  "momentum",        "weight_decay", "trust",
                                         "eps", "adapt_undecayed", nullptr};

static const char *const *names_of(zero_optimizer kind)
{
    switch (kind) {
    case ZERO_OPTIMIZER_LION:
        return lion_names;
    case ZERO_OPTIMIZER_SGD:
        return sgd_names;
    case ZERO_OPTIMIZER_LAMB:
        return lamb_names;
    case ZERO_OPTIMIZER_LARS:
        return lars_names;
    default:
        return adamw_names;
    }
}

static float *numbers_of(zero_hyper &hyper)
{
    switch (hyper.kind) {
    case ZERO_OPTIMIZER_LION:
        return &hyper.lion.lr;
    case ZERO_OPTIMIZER_SGD:
        return &hyper.sgd.lr;
    case ZERO_OPTIMIZER_LAMB:
        return &hyper.lamb.lr;
    case ZERO_OPTIMIZER_LARS:
        return &hyper.lars.lr;
    default:
        return &hyper.adamw.lr;
    }
}

static zero_hyper hyper_of(int kind, nb::dict given)
{
    zero_hyper hyper = zero_hyper_init(static_cast<zero_optimizer>(kind));
    const char *const *names = names_of(hyper.kind);
    float *numbers = numbers_of(hyper);
    for (auto [key, value] : given) {
        const std::string name = nb::cast<std::string>(key);
        std::string known;
        int found = -1;
        for (int i = 0; names[i] != nullptr; i++) {
            found = name == names[i] ? i : found;
            known += std::string(known.empty() ? "" : ", ") + names[i];
        }
        if (found < 0) {
            throw nb::type_error(
                (name + " is no hyper-parameter of this optimizer; it has " + known).c_str());
        }
        numbers[found] = static_cast<float>(nb::cast<double>(value));
    }
    return hyper;
}

/* Hyper-parameters as the library takes them, and what they point to. */
struct Params {
    zero_step_params params = zero_step_params_init();
    std::vector<zero_hyper> groups;
    float weight = 0;

    Params(const std::vector<int> &kinds, nb::list given, float max_norm, double divisor,
           std::optional<float> grad_weight)
    {
        for (size_t i = 0; i < kinds.size(); i++) {
            groups.push_back(hyper_of(kinds[i], nb::cast<nb::dict>(given[i])));
        }
        params.hyper = groups[0];
        params.groups = groups.size() > 1 ? groups.data() : nullptr;
        params.group_count = groups.size() > 1 ? static_cast<uint32_t>(groups.size()) : 0;
        params.max_norm = max_norm;
        params.grad_divisor = divisor;
        weight = grad_weight.value_or(0);
        params.grad_weight = grad_weight ? &weight : nullptr;
    }
};

static void step(Engine &self, const Params &params)
{
    on_engine(self, [&](zero_engine *engine) {
        return zero_step(engine, &params.params, zero_stream_host());
    });
}

static void predict(Engine &self, const Params &params)
{
    on_engine(self, [&](zero_engine *engine) { return zero_step_predict(engine, &params.params); });
}

static double grad_norm(Engine &self, const Params &params)
{
    double norm = 0;
    on_engine(self, [&](zero_engine *engine) {
        return zero_grad_norm(engine, &params.params, zero_stream_host(), &norm);
    });
    return norm;
}

static nb::tuple result(Engine &self)
{
    zero_step_result known = zero_step_result_init();
    on_engine(self, [&](zero_engine *engine) { return zero_step_wait(engine, &known); });
    return nb::make_tuple(known.step, known.updates, known.norm, known.clip, known.loss_scale,
                          known.skipped != 0, known.skipped_in_a_row, known.stalled);
}

static float loss_scale(Engine &self)
{
    float scale = 1;
    on_engine(self, [&](zero_engine *engine) { return zero_loss_scale(engine, &scale); });
    return scale;
}

void step_register(nb::module_ &module, nb::class_<Engine> &engine)
{
    nb::class_<Params>(module, "Params")
        .def(nb::init<const std::vector<int> &, nb::list, float, double, std::optional<float>>(),
             nb::arg("kinds"), nb::arg("groups"), nb::arg("max_norm"), nb::arg("grad_divisor"),
             nb::arg("grad_weight").none());
    engine.def("step", step)
        .def("predict", predict)
        .def("grad_norm", grad_norm)
        .def("result", result)
        .def("loss_scale", loss_scale)
        .def("discard", [](Engine &self) { on_engine(self, zero_step_discard); });
}
