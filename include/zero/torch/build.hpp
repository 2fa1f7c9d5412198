/** @file
 *  How a module of libtorch becomes units of libzero: Config, and the policies of units.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/torch.hpp. */
#ifndef ZERO_TORCH_BUILD_HPP
#define ZERO_TORCH_BUILD_HPP

#include "zero/model.hpp"
#include "zero/torch/call.hpp"
#include "zero/torch/units.hpp"
#include "zero/world.hpp"
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zero::torch
{

/** Which modules are units: asked for each module inside the root, in the order in which they were
 *  registered, which is that of the units. */
using Policy = std::function<bool(const std::string &name, const ::torch::nn::Module &module)>;

/** Every module of these types: `by_type<BlockImpl>()`. */
template <class... Impl> Policy by_type()
{
    static_assert((std::is_base_of_v<::torch::nn::Module, Impl> && ...),
                  "name the module's own type, such as BlockImpl, not its holder's");
    return [](const std::string &, const ::torch::nn::Module &module) {
        return ((dynamic_cast<const Impl *>(&module) != nullptr) || ...);
    };
}

/** The modules of these names, such as "h.0". */
inline Policy by_name(std::vector<std::string> names)
{
    return [names = std::move(names)](const std::string &name, const ::torch::nn::Module &) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
}

/** How a module is sharded, beside the engine's options. */
struct Config {
    /** The units. Empty: each child of a torch::nn::ModuleList, as a transformer's blocks are. */
    Policy units;
    /** The hyper-parameter group of a parameter, by its name. Empty: 0. */
    std::function<std::uint32_t(const std::string &name)> group;
    /** True for parameters that weight decay does not apply to. Empty: it applies to all. */
    std::function<bool(const std::string &name, const ::torch::Tensor &tensor)> no_decay;
};

/** @cond */
namespace detail
{

template <class M> std::shared_ptr<::torch::nn::Module> pointer_to(M &&module)
{
    using Plain = std::decay_t<M>;
    static_assert(!std::is_base_of_v<::torch::nn::Module, Plain>,
                  "give the module's holder or a shared_ptr to it");
    if constexpr (IsHolder<Plain>::value) {
        return module.ptr();
    } else {
        return module;
    }
}

/* Describes a module's units and creates their engine. */
class Builder
{
  public:
    Builder(std::shared_ptr<::torch::nn::Module> root, const Config &config, Units &units)
        : config_(config), units_(units)
    {
        if (root == nullptr) {
            refuse(ZERO_ERR_INVALID_ARGUMENT, "the module is NULL; construct it first");
        }
        units_.root = std::move(root);
    }

    void create(World &world, const zero_engine_options &options)
    {
        choose();
        assign();
        refuse_aliases();
        Model model = Model::create();
        std::vector<Tensor> kept; /* until the engine has read them */
        describe(model, kept);
        for (const auto &[module, index] : units_.of_module) {
            std::uint32_t other = 0;
            if (Registry::get().find(module, &other) != nullptr) {
                refuse(ZERO_ERR_STATE, "the module of unit \"" + units_.units[index].name +
                                           "\" is sharded already; one Sharded has a module");
            }
        }
        units_.engine = Engine::create(world, model, options);
        for (Param &param : units_.params) {
            param.drop_grad();
            param.blank();
        }
    }

  private:
    struct Chosen {
        std::string name;
        const ::torch::nn::Module *module;
    };

    /* The root comes first, since its forward begins first. */
    void choose()
    {
        const auto &modules = units_.root->named_modules();
        chosen_.push_back({"(root)", units_.root.get()});
        by_name_[""] = 0;
        std::unordered_map<const void *, std::size_t> seen{{units_.root.get(), 0}};
        for (const auto &item : modules) {
            if (item.key().empty() || !is_unit(item.key(), *item.value(), modules)) {
                continue;
            }
            const auto [found, fresh] = seen.insert({item.value().get(), chosen_.size()});
            by_name_[item.key()] = found->second;
            if (fresh) {
                chosen_.push_back({item.key(), item.value().get()});
            }
        }
    }

    template <class Modules>
    bool is_unit(const std::string &name, const ::torch::nn::Module &module,
                 const Modules &modules) const
    {
        if (config_.units) {
            return config_.units(name, module);
        }
        const std::size_t dot = name.rfind('.');
        const std::string above = dot == std::string::npos ? "" : name.substr(0, dot);
        const auto *parent = above.empty() ? units_.root.get() : modules.find(above)->get();
        return dynamic_cast<const ::torch::nn::ModuleListImpl *>(parent) != nullptr;
    }

    /* The innermost unit that a name lies in. */
    std::size_t unit_of(std::string name) const
    {
        for (;;) {
            const std::size_t dot = name.rfind('.');
            name = dot == std::string::npos ? "" : name.substr(0, dot);
            if (const auto found = by_name_.find(name); found != by_name_.end()) {
                return found->second;
            }
        }
    }

    void assign()
    {
        for (const auto &item : units_.root->named_parameters()) {
            const std::size_t unit = unit_of(item.key());
            const void *impl = item.value().unsafeGetTensorImpl();
            const auto [found, fresh] = places_.insert({impl, found_.size()});
            if (fresh) {
                found_.push_back({item.key(), item.value(), unit});
            } else if (found_[found->second].unit != unit) {
                ties_.push_back({unit, found->second});
            }
        }
        if (found_.empty()) {
            refuse(ZERO_ERR_INVALID_ARGUMENT, "the module has no parameters; there is nothing to "
                                              "shard");
        }
    }

    /* Two tensors over the same memory would become two parameters, in silence. */
    void refuse_aliases() const
    {
        std::map<const void *, std::string> first;
        for (const auto &found : found_) {
            if (found.tensor.numel() == 0) {
                continue;
            }
            const auto [other, fresh] =
                first.insert({found.tensor.storage().unsafeGetStorageImpl(), found.name});
            if (!fresh) {
                refuse(ZERO_ERR_INVALID_ARGUMENT,
                       "parameters \"" + other->second + "\" and \"" + found.name +
                           "\" are two tensors over the same memory; register one tensor under "
                           "both names to tie them, or clone it");
            }
        }
    }

    void describe(Model &model, std::vector<Tensor> &kept)
    {
        std::vector<std::size_t> place(found_.size());
        std::vector<std::size_t> unit_index(chosen_.size(), chosen_.size());
        for (std::size_t u = 0; u < chosen_.size(); u++) {
            std::vector<zero::Tensor> tensors;
            UnitState unit;
            unit.name = chosen_[u].name;
            const auto index = static_cast<std::uint32_t>(units_.units.size());
            for (std::size_t i = 0; i < found_.size(); i++) {
                if (found_[i].unit == u) {
                    place[i] = units_.params.size();
                    unit.params.push_back(static_cast<std::uint32_t>(units_.params.size()));
                    units_.params.emplace_back(found_[i].name, found_[i].tensor, index);
                    unit.trained += found_[i].tensor.requires_grad() ? 1U : 0U;
                    tensors.push_back(described(found_[i].name, found_[i].tensor, kept));
                }
            }
            unit.own = static_cast<std::uint32_t>(unit.params.size());
            const bool tied = std::any_of(ties_.begin(), ties_.end(),
                                          [&](const auto &tie) { return tie.first == u; });
            if (unit.own == 0 && !tied) {
                continue; /* all inside are units of their own */
            }
            unit_index[u] = index;
            units_.of_module[chosen_[u].module] = index;
            (void)model.add_unit(unit.name, tensors);
            units_.units.push_back(std::move(unit));
        }
        tie(model, place, unit_index);
        find_parents(unit_index);
    }

    void tie(Model &model, const std::vector<std::size_t> &place,
             const std::vector<std::size_t> &unit_index)
    {
        for (std::size_t t = 0; t < ties_.size(); t++) {
            if (std::find(ties_.begin(), ties_.begin() + static_cast<std::ptrdiff_t>(t),
                          ties_[t]) != ties_.begin() + static_cast<std::ptrdiff_t>(t)) {
                continue;
            }
            UnitState &unit = units_.units[unit_index[ties_[t].first]];
            const auto param = static_cast<std::uint32_t>(place[ties_[t].second]);
            model.tie(static_cast<std::uint32_t>(unit_index[ties_[t].first]), param);
            unit.params.push_back(param);
        }
        for (UnitState &unit : units_.units) {
            unit.any_trained = std::any_of(unit.params.begin(), unit.params.end(),
                                           [&](auto i) { return units_.params[i].trained; });
        }
    }

    /* Units that have other units inside. */
    void find_parents(const std::vector<std::size_t> &unit_index)
    {
        for (const auto &[name, u] : by_name_) {
            if (unit_index[u] == chosen_.size() || name.empty()) {
                continue;
            }
            std::string above = name;
            while (!above.empty()) {
                const std::size_t dot = above.rfind('.');
                above = dot == std::string::npos ? "" : above.substr(0, dot);
                const auto found = by_name_.find(above);
                if (found != by_name_.end() && unit_index[found->second] != chosen_.size()) {
                    units_.units[unit_index[found->second]].parent = true;
                }
            }
        }
    }

    zero::Tensor described(const std::string &name, const Tensor &tensor,
                           std::vector<Tensor> &kept) const
    {
        zero::Tensor desc;
        desc.dtype = dtype_of(tensor.scalar_type());
        if (desc.dtype == ZERO_DTYPE_NONE || tensor.layout() != ::torch::kStrided) {
            refuse(ZERO_ERR_INVALID_ARGUMENT,
                   "parameter \"" + name + "\" is " + c10::toString(tensor.scalar_type()) +
                       (tensor.layout() != ::torch::kStrided ? ", not strided" : "") +
                       "; libzero trains dense float, bfloat16 and half: convert it by to(), or "
                       "make it a buffer");
        }
        desc.name = name;
        for (const std::int64_t extent : tensor.sizes()) {
            desc.shape.push_back(static_cast<std::uint64_t>(extent));
        }
        desc.flags = tensor.requires_grad() ? ZERO_TENSOR_PLAIN : ZERO_TENSOR_FROZEN;
        if (config_.no_decay && config_.no_decay(name, tensor)) {
            desc.flags |= ZERO_TENSOR_NO_DECAY;
        }
        desc.group = config_.group ? config_.group(name) : 0;
        if (tensor.numel() > 0) {
            kept.push_back(tensor.detach().cpu().contiguous()); /* no copy where it is */
            zero_array initial = {};
            initial.data = kept.back().data_ptr();
            initial.dtype = desc.dtype;
            desc.initial = Array(initial);
        }
        return desc;
    }

    struct Found {
        std::string name;
        Tensor tensor;
        std::size_t unit;
    };

    const Config &config_;
    Units &units_;
    std::vector<Chosen> chosen_;
    std::map<std::string, std::size_t> by_name_;
    std::vector<Found> found_;
    std::unordered_map<const void *, std::size_t> places_;
    std::vector<std::pair<std::size_t, std::size_t>> ties_;
};

} // namespace detail
/** @endcond */

} // namespace zero::torch

#endif
