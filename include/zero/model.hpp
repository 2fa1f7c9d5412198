/** @file
 *  zero/model.h and zero/plan.h in C++: the description of a model, and every byte it takes.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_MODEL_HPP
#define ZERO_MODEL_HPP

#include "zero/array.hpp"
#include "zero/model.h"
#include "zero/options.hpp"
#include "zero/plan.h"
#include "zero/result.hpp"
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zero
{

/** One parameter of the model: zero_tensor_desc. `{"weight", {768, 768}, values}`. */
struct Tensor {
    std::string name;                        /**< unique in the model; of layers, in the layer */
    std::vector<std::uint64_t> shape;        /**< extents, outermost first; empty: a scalar */
    Array initial = {};                      /**< initial values, read by Engine::create */
    zero_dtype dtype = ZERO_DTYPE_F32;       /**< element type of the parameter */
    std::uint32_t flags = ZERO_TENSOR_PLAIN; /**< zero_tensor_flags */
    std::uint32_t group = 0;                 /**< hyper-parameter group */
    std::uint64_t layer_stride = 0;          /**< as zero_tensor_desc.layer_stride */
    std::vector<std::uint64_t> global_shape = {}; /**< of a box: extents of the global tensor */
    std::vector<std::uint64_t> box_first = {};    /**< of a box: index of its first element */
    std::uint32_t replica = 0;                    /**< as zero_tensor_desc.replica */
};

/** The indices of what was added to a model; of layers, those of the first. */
struct Added {
    std::uint32_t unit;   /**< of the unit; layer i's is i more */
    std::uint32_t tensor; /**< in the model, of its first tensor; the others follow */
};

inline namespace ZERO_CPP_MODE
{

/** A description under construction. Moved, never copied; null after a move. */
class Model
{
  public:
    /** Null. */
    Model() = default;
    /** Own what a C function made, for example zero_transformer_model. */
    explicit Model(zero_model *owned) noexcept : handle_(owned, owned != nullptr)
    {
    }

    /** An empty model: zero_model_create. */
    [[nodiscard]] static Outcome<Model> create()
    {
        zero_model *made = nullptr;
        return detail::give(zero_model_create(&made), [&] { return Model(made); });
    }

    /** Append a unit with its tensors: zero_unit_add.
     *  - Errors: those of zero_unit_add; INVALID_ARGUMENT for more dimensions than a tensor has,
     *    and for initial values of another number than the tensor's elements. */
    Outcome<Added> add_unit(const std::string &name, const std::vector<Tensor> &tensors,
                            std::uint32_t shard_group = 0)
    {
        return add(name, 0, tensors, shard_group);
    }

    /** Append units that are alike, such as a transformer's blocks: zero_unit_desc.layers. Initial
     *  values are those of all layers, one layer behind the other. */
    Outcome<Added> add_layers(const std::string &name, std::uint32_t layers,
                              const std::vector<Tensor> &tensors, std::uint32_t shard_group = 0)
    {
        return add(name, layers, tensors, shard_group);
    }

    /** Let `unit` use a tensor of another unit: zero_tensor_tie. */
    Outcome<void> tie(std::uint32_t unit, std::uint32_t tensor)
    {
        return detail::done(zero_tensor_tie(get(), unit, tensor));
    }

    /** The handle for functions of C; NULL after a move. */
    [[nodiscard]] zero_model *get() const noexcept
    {
        return handle_.get();
    }
    /** False after a move. */
    [[nodiscard]] explicit operator bool() const noexcept
    {
        return get() != nullptr;
    }
    /** Number of units. */
    [[nodiscard]] std::uint32_t unit_count() const noexcept
    {
        return zero_model_unit_count(get());
    }
    /** Number of tensors. */
    [[nodiscard]] std::uint32_t tensor_count() const noexcept
    {
        return zero_model_tensor_count(get());
    }
    /** Elements of all tensors. */
    [[nodiscard]] std::uint64_t element_count() const noexcept
    {
        return zero_model_element_count(get());
    }
    /** Elements of one tensor. */
    [[nodiscard]] std::uint64_t element_count(std::uint32_t tensor) const noexcept
    {
        return zero_model_tensor_count_of(get(), tensor);
    }
    /** A tensor's name; empty where there is none. */
    [[nodiscard]] std::string tensor_name(std::uint32_t tensor) const
    {
        const char *name = zero_model_tensor_name(get(), tensor);
        return name != nullptr ? name : "";
    }

  private:
    Outcome<Added> add(const std::string &name, std::uint32_t layers,
                       const std::vector<Tensor> &tensors, std::uint32_t shard_group)
    {
        std::vector<zero_tensor_desc> descs;
        for (const Tensor &tensor : tensors) {
            if (tensor.shape.size() > ZERO_TENSOR_DIMS_MAX ||
                tensor.global_shape.size() > tensor.shape.size() ||
                tensor.box_first.size() > tensor.shape.size()) {
                return detail::failure<Added>(wrong_dims(tensor));
            }
            const std::uint64_t wanted = elements(tensor, layers);
            if (tensor.layer_stride == 0 && !tensor.initial.fits(wanted)) {
                return detail::failure<Added>(detail::wrong_count("tensor \"" + tensor.name + "\"",
                                                                  tensor.initial.count(), wanted));
            }
            descs.push_back(desc_of(tensor));
        }
        zero_unit_desc unit = {};
        unit.struct_bytes = sizeof unit;
        unit.name = name.c_str();
        unit.tensors = descs.data();
        unit.tensor_count = static_cast<std::uint32_t>(descs.size());
        unit.layers = layers;
        unit.shard_group = shard_group;
        Added added = {};
        const zero_status status = zero_unit_add(get(), &unit, &added.unit, &added.tensor);
        return detail::give(status, [&] { return added; });
    }

    static std::uint64_t elements(const Tensor &tensor, std::uint32_t layers)
    {
        std::uint64_t count = layers > 0 ? layers : 1;
        for (const std::uint64_t extent : tensor.shape) {
            count *= extent;
        }
        return count;
    }

    static Error wrong_dims(const Tensor &tensor)
    {
        return Error(ZERO_ERR_INVALID_ARGUMENT,
                     "tensor \"" + tensor.name + "\": its shape has " +
                         std::to_string(tensor.shape.size()) + " extents, global_shape " +
                         std::to_string(tensor.global_shape.size()) + ", box_first " +
                         std::to_string(tensor.box_first.size()) + "; give at most " +
                         std::to_string(ZERO_TENSOR_DIMS_MAX) + ", and no more than the shape has",
                     __FILE__, __LINE__);
    }

    static zero_tensor_desc desc_of(const Tensor &tensor)
    {
        zero_tensor_desc desc = {};
        desc.name = tensor.name.c_str();
        desc.dims = static_cast<std::uint32_t>(tensor.shape.size());
        desc.dtype = tensor.dtype;
        desc.flags = tensor.flags;
        desc.group = tensor.group;
        desc.initial = tensor.initial.c_array();
        desc.layer_stride = tensor.layer_stride;
        desc.replica = tensor.replica;
        for (std::size_t i = 0; i < tensor.shape.size(); i++) {
            desc.shape[i] = tensor.shape[i];
        }
        for (std::size_t i = 0; i < tensor.global_shape.size(); i++) {
            desc.global_shape[i] = tensor.global_shape[i];
        }
        for (std::size_t i = 0; i < tensor.box_first.size(); i++) {
            desc.box_first[i] = tensor.box_first[i];
        }
        return desc;
    }

    detail::Handle<zero_model, zero_model_destroy> handle_;
};

/** A computed plan. Moved, never copied; null after a move. */
class Plan
{
  public:
    /** Null. */
    Plan() = default;
    /** Name a plan that another owns, such as zero_engine_plan's. */
    [[nodiscard]] static Plan borrow(const zero_plan *plan) noexcept
    {
        return Plan(const_cast<zero_plan *>(plan), false); /* never changed */
    }

    /** Every byte of a rank of `world_size`: zero_plan_create. */
    [[nodiscard]] static Outcome<Plan>
    create(const Model &model, const zero_engine_options &options, std::uint32_t world_size)
    {
        zero_plan *made = nullptr;
        return detail::give(zero_plan_create(model.get(), &options, world_size, &made),
                            [&] { return Plan(made, true); });
    }

    /** The handle for functions of C; NULL after a move. */
    [[nodiscard]] const zero_plan *get() const noexcept
    {
        return handle_.get();
    }
    /** False after a move. */
    [[nodiscard]] explicit operator bool() const noexcept
    {
        return get() != nullptr;
    }
    /** One rank's bytes by role and tier: zero_plan_memory. */
    [[nodiscard]] Outcome<zero_memory> memory() const
    {
        zero_memory memory = zero_memory_init();
        return detail::give(zero_plan_memory(get(), &memory), [&] { return memory; });
    }
    /** Over how many ranks each state is split: zero_plan_sharding. */
    [[nodiscard]] Outcome<zero_sharding> sharding() const
    {
        zero_sharding sharding = zero_sharding_init();
        return detail::give(zero_plan_sharding(get(), &sharding), [&] { return sharding; });
    }
    /** The options as they will be used: zero_plan_options. */
    [[nodiscard]] Outcome<Options> options() const
    {
        Options options;
        return detail::give(zero_plan_options(get(), &options), [&] { return options; });
    }
    /** The tuning as it will be used: zero_plan_tuning. */
    [[nodiscard]] Outcome<Tuning> tuning() const
    {
        Tuning tuning;
        return detail::give(zero_plan_tuning(get(), &tuning), [&] { return tuning; });
    }
    /** The plan as a table: zero_plan_print. */
    [[nodiscard]] std::string print() const
    {
        return printed(zero_plan_print);
    }
    /** Every option as it will be used: zero_plan_print_options. */
    [[nodiscard]] std::string print_options() const
    {
        return printed(zero_plan_print_options);
    }
    /** A hash of everything ranks must agree on. */
    [[nodiscard]] std::uint64_t hash() const noexcept
    {
        return zero_plan_hash(get());
    }

  private:
    Plan(zero_plan *plan, bool owned) noexcept : handle_(plan, owned)
    {
    }

    template <class Print> std::string printed(Print function) const
    {
        std::string text(function(get(), nullptr, 0), '\0');
        (void)function(get(), text.data(), text.size() + 1); /* the NUL's place is the string's */
        return text;
    }

    detail::Handle<zero_plan, zero_plan_destroy> handle_;
};

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
