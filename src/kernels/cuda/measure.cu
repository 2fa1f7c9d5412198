/* Owns the kernels before the update of tensors whose rates depend on their norms: the squares of a
 * job's parameters and directions, and from the sums of all ranks to norms.
 * Invariant: all additions to accumulators are exact and of integers, so the order in which warps
 * come shows in no bit. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/norm_block.h"
#include "kernels/cuda/update_body.h"
#include "kernels/cuda/update_codes.h"
#include "kernels/math/layer_norms.h"

/* Elements of a warp: enough chunks of each lane to make up for what it empties at a segment's end.
 */
#define MEASURED_COUNT 4096
#define PASS_COUNT (ZI_NORM_WARP_CHUNKS * ZI_NORM_CHUNK)

/* A quad's parameters, and the directions of its update. */
typedef struct measured_quad {
    zi_quad param;
    zi_quad direction;
} measured_quad;

static __forceinline__ __device__ float moment_of(zi_update_form form, const zi_update_args *args,
                                                  uint32_t moment, uint64_t at)
{
    const void *const values = moment == 0 ? args->moment1 : args->moment2;
    const uint16_t *const scales = moment == 0 ? args->scale1 : args->scale2;
    if (zi_optimizer_measured_moments((uint32_t)form.optimizer) <= moment) {
        return 0.0f;
    }
    return zi_update_has_codes(form)
               ? zi_element_decode(zi_code_kind(form, moment), values, scales, at)
               : zi_element_get(values, form.moment, at);
}

/* The same of a quad of aligned arrays. */
static __forceinline__ __device__ zi_quad moments_of(zi_update_form form,
                                                     const zi_update_args *args, uint32_t moment,
                                                     uint64_t at)
{
    const zi_quad none = {{0.0f, 0.0f, 0.0f, 0.0f}};
    const void *const values = moment == 0 ? args->moment1 : args->moment2;
    const uint16_t *const scales = moment == 0 ? args->scale1 : args->scale2;
    if (zi_optimizer_measured_moments((uint32_t)form.optimizer) <= moment) {
        return none;
    }
    if (!zi_update_has_codes(form)) {
        return zi_quad_load(values, form.moment, at, ZI_USE_AGAIN);
    }
    const zero_dtype kind = zi_code_kind(form, moment);
    return zi_quad_decode(kind, zi_words_load(values, form.moment, at, ZI_USE_AGAIN),
                          zi_code_step(kind, scales[at / ZERO_CODE_BLOCK]));
}

/* zi_optimizer_direction with no branch on the way, as zi_update_quickly. */
static __forceinline__ __device__ float direct_quickly(zi_update_form form, zi_element_state state,
                                                       float grad, zi_coeffs coeffs, int *usual)
{
    if (form.optimizer != ZERO_OPTIMIZER_LAMB) {
        return zi_optimizer_direction((uint32_t)form.optimizer, state, grad, coeffs);
    }
    const zi_element_state next = zi_lamb_moments(state, grad, coeffs.lamb);
    const float root = zi_quick_sqrt(next.v, usual);
    const float quotient = zi_quick_quotient(zi_lamb_numerator(next.m, coeffs.lamb),
                                             zi_lamb_denominator(root, coeffs.lamb), usual);
    return zi_lamb_decayed(state.p, quotient, coeffs.lamb);
}

/* Elements [at, at + ZI_QUAD) of aligned arrays. */
static __forceinline__ __device__ measured_quad measure_whole(zi_update_form form,
                                                              const zi_update_args *args,
                                                              const zi_update_walk *walk,
                                                              uint64_t at)
{
    const zi_update_quad quad = zi_update_load_param(form, args, at);
    const zi_quad m = moments_of(form, args, 0, at);
    const zi_quad v = moments_of(form, args, 1, at);
    const zi_quad grads = zi_update_grad(form, args, quad.g);
    measured_quad measured;
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        const zi_element_state state = {zi_update_value(form, zi_update_kept_in(form, &quad, i)),
                                        m.value[i], v.value[i], 0.0f};
        const float grad = grads.value[i] * walk->grad_scale;
        int usual = 1;
        float direction = direct_quickly(form, state, grad, walk->coeffs, &usual);
        if (!usual) {
            direction = zi_optimizer_direction((uint32_t)form.optimizer, state, grad, walk->coeffs);
        }
        measured.param.value[i] = state.p;
        measured.direction.value[i] = direction;
    }
    return measured;
}

/* The same element by element, with zeros from `count` elements on. */
static __forceinline__ __device__ measured_quad measure_part(zi_update_form form,
                                                             const zi_update_args *args,
                                                             const zi_update_walk *walk,
                                                             uint64_t at, uint32_t count)
{
    measured_quad measured;
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        measured.param.value[i] = 0.0f;
        measured.direction.value[i] = 0.0f;
        if (i < count) {
            zi_update_kept before;
            const zi_element_state state = {zi_element_value(form, args, at + i, &before),
                                            moment_of(form, args, 0, at + i),
                                            moment_of(form, args, 1, at + i), 0.0f};
            const float grad =
                zi_element_get(args->grad, args->grad_dtype, at + i) * walk->grad_scale;
            measured.param.value[i] = state.p;
            measured.direction.value[i] =
                zi_optimizer_direction((uint32_t)form.optimizer, state, grad, walk->coeffs);
        }
    }
    return measured;
}

/* A lane's half of the chunk that begins `first` elements from where the walk is. */
static __forceinline__ __device__ void measure_half(zi_update_form form, const zi_update_args *args,
                                                    const zi_update_walk *walk, uint32_t first,
                                                    zi_norm_half *param, zi_norm_half *direction)
{
    const zi_norm_half none = {{0.0, 0.0, 0.0, 0.0}};
    *param = none;
    *direction = none;
    ZI_NO_UNROLL
    for (uint32_t row = 0; row < ZI_NORM_ROWS; row++) {
        const uint32_t offset = first + row * ZI_NORM_LANES + zi_kernel_lane() % 2 * ZI_NORM_HALF;
        const uint32_t left = offset < walk->left ? walk->left - offset : 0;
        const measured_quad quad = left >= ZI_QUAD && args->aligned
                                       ? measure_whole(form, args, walk, walk->at + offset)
                                       : measure_part(form, args, walk, walk->at + offset, left);
        zi_norm_half_add(param, quad.param);
        zi_norm_half_add(direction, quad.direction);
    }
}

/* All of a walk. All lanes of a warp come here together. Each addition to a limb of the launch's
 * sums is that of at most MEASURED_COUNT / ZI_NORM_CHUNK chunks. */
static __forceinline__ __device__ void measure_walk(zi_update_form form, const zi_update_args *args,
                                                    const zi_update_walk *walk)
{
    zi_layer_sums *const sums = &args->sums[walk->segment->layer];
    zi_sum_word *const param_words = (zi_sum_word *)&sums->param;
    zi_sum_word *const direction_words = (zi_sum_word *)&sums->direction;
    const uint32_t lane = zi_kernel_lane();
    zi_norm_window params;
    zi_norm_window directions;
    zi_norm_window_open(&params, ZI_NORM_NO_BASE);
    zi_norm_window_open(&directions, ZI_NORM_NO_BASE);
    ZI_NO_UNROLL
    for (uint32_t pass = 0; pass < walk->left; pass += PASS_COUNT) {
        const uint32_t first = pass + lane / 2 * ZI_NORM_CHUNK;
        const bool owns = lane % 2 == 0 && first < walk->left;
        zi_norm_half param;
        zi_norm_half direction;
        measure_half(form, args, walk, first, &param, &direction);
        zi_norm_add_totals(&params, param_words, zi_norm_pair_total(&param, lane), owns);
        zi_norm_add_totals(&directions, direction_words, zi_norm_pair_total(&direction, lane),
                           owns);
    }
    if (params.base != ZI_NORM_NO_BASE) {
        zi_norm_window_close(&params, param_words);
    }
    if (directions.base != ZI_NORM_NO_BASE) {
        zi_norm_window_close(&directions, direction_words);
    }
}

static __forceinline__ __device__ void measure_lane(zi_update_form form, const zi_update_args *args)
{
    const zi_warp_range range = zi_warp_range_of(zi_kernel_warp(), args->warp_count, args->count);
    if (args->decision->skip || range.begin == range.end) {
        return;
    }
    const zi_segment *const end = args->segments + args->segment_count;
    const zi_segment *segment =
        args->segments + zi_segment_find(args->segments, args->segment_count, range.begin);
    ZI_NO_UNROLL
    for (; segment != end && segment->offset < range.end; segment++) {
        const zi_update_walk walk = zi_update_walk_of(form, args, segment, range);
        measure_walk(form, args, &walk);
    }
}

/* The gradient's type is asked for when it runs, in the place where updates have it. */
template <zero_dtype grad, zero_dtype param, zero_dtype moment, zero_dtype master,
          zero_optimizer optimizer>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 2)
    measure_kernel(const __grid_constant__ zi_update_args args)
{
    const zi_update_form form = {optimizer, grad, param, moment, master};
    measure_lane(form, &args);
}

/* moments: that the optimizer's directions depend on. With none, in whichever type those are. */
template <zero_optimizer optimizer, uint32_t moments, zero_dtype param, zero_dtype master>
static const void *choose_measured(zi_update_form form)
{
    const void *const plain =
        (const void *)measure_kernel<ZERO_DTYPE_DEFAULT, param, ZERO_DTYPE_F32, master, optimizer>;
    if constexpr (moments != 0) {
        switch (form.moment) {
        case ZERO_DTYPE_F32:
            return plain;
        case ZERO_DTYPE_BF16:
            return (const void *)
                measure_kernel<ZERO_DTYPE_DEFAULT, param, ZERO_DTYPE_BF16, master, optimizer>;
        default:
            return (const void *)
                measure_kernel<ZERO_DTYPE_DEFAULT, param, ZERO_DTYPE_I8, master, optimizer>;
        }
    }
    (void)form;
    return plain;
}

/* By where parameters are exact; NULL: no job has such a parameter and master. */
template <zero_optimizer optimizer, uint32_t moments>
static const void *choose_master(zi_update_form form)
{
    switch (form.master) {
    case ZERO_DTYPE_F32:
        return choose_measured<optimizer, moments, ZERO_DTYPE_NONE, ZERO_DTYPE_F32>(form);
    case ZERO_DTYPE_DEFAULT:
        return form.param == ZERO_DTYPE_BF16
                   ? choose_measured<optimizer, moments, ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT>(form)
               : form.param == ZERO_DTYPE_F16
                   ? choose_measured<optimizer, moments, ZERO_DTYPE_F16, ZERO_DTYPE_DEFAULT>(form)
                   : NULL;
    case ZERO_DTYPE_REMAINDER16:
        return choose_measured<optimizer, moments, ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16>(form);
    case ZERO_DTYPE_REMAINDER8:
        return choose_measured<optimizer, moments, ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8>(form);
    default:
        return NULL;
    }
}

#define CHOOSE(KIND, name)      \
    case ZERO_OPTIMIZER_##KIND: \
        return choose_master<ZERO_OPTIMIZER_##KIND, ZI_##KIND##_MEASURED_MOMENTS>(form);

static const void *choose_measure(zi_update_form form)
{
    switch (form.optimizer) {
        ZI_LAYERWISE_OPTIMIZERS(CHOOSE)
    default:
        return NULL;
    }
}

extern "C" cudaError_t zi_cuda_launch_measure(cudaStream_t stream, const zi_update_job *job)
{
    const void *const kernel = choose_measure(zi_update_form_of(job));
    if (kernel == NULL || !zi_is_element(job->grad_dtype)) {
        return cudaErrorInvalidValue;
    }
    const zi_cuda_grid grid = zi_cuda_grid_with(job->count, MEASURED_COUNT);
    zi_update_args args = zi_update_args_of(job);
    args.warp_count = grid.warp_count;
    return zi_kernel_launch(kernel, grid.blocks, &args, stream);
}

/* A thread for each sum. */
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS)
    pack_kernel(const __grid_constant__ zi_layers_job job)
{
    const uint64_t index = (uint64_t)blockIdx.x * ZI_BLOCK_THREADS + threadIdx.x;
    if (index >= 2 * (uint64_t)job.layers) {
        return;
    }
    zi_norm_sum *const sum = &job.sums->param + index;
    const zi_norm_sum none = {{0}, 0, 0};
    (&job.packed->param)[index] = zi_norm_pack(*sum);
    *sum = none;
}

/* A warp for each norm: a lane adds up one word of all ranks. */
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS)
    merge_kernel(const __grid_constant__ zi_layers_job job)
{
    __shared__ zi_norm_sum sums[ZI_BLOCK_WARPS];
    const uint64_t index = zi_kernel_warp();
    const uint32_t lane = zi_kernel_lane();
    zi_norm_sum *const sum = &sums[threadIdx.x / ZI_WARP_LANES];
    if (index >= 2 * (uint64_t)job.layers) {
        return;
    }
    if (lane < ZI_PACKED_WORDS) {
        uint64_t word = 0;
        for (uint32_t k = job.peer_first; k < job.message_count; k += job.peer_stride) {
            const zi_packed_sum *const own = &zi_layers_message(&job, k, 0)->param + index;
            word += ((const uint32_t *)own)[lane];
        }
        ((uint64_t *)sum)[lane] = word;
    }
    __syncwarp();
    if (lane == 0) {
        (&job.norms->param)[index] = zi_layer_norm(sum);
    }
}

static_assert(sizeof(zi_layer_sums) == 2 * sizeof(zi_norm_sum) &&
                  sizeof(zi_packed_sums) == 2 * sizeof(zi_packed_sum) &&
                  sizeof(zi_packed_sum) == ZI_PACKED_WORDS * sizeof(uint32_t) &&
                  sizeof(zi_norm_sum) == ZI_PACKED_WORDS * sizeof(uint64_t) &&
                  sizeof(zi_layer_norms) == 2 * sizeof(double),
              "each is two neighbours, and a packed sum has the words of a sum");

extern "C" cudaError_t zi_cuda_launch_layers(cudaStream_t stream, const zi_layers_job *job)
{
    const uint64_t sums = 2 * (uint64_t)job->layers;
    const bool packs = job->phase == ZI_LAYERS_PACK;
    const uint64_t in_block = packs ? ZI_BLOCK_THREADS : ZI_BLOCK_WARPS;
    zi_layers_job args = *job;
    return zi_kernel_launch(packs ? (const void *)pack_kernel : (const void *)merge_kernel,
                            sums / in_block + (sums % in_block != 0), &args, stream);
}

static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_I8};

/* All kernels of one optimizer. */
static cudaError_t load_measurements(zero_optimizer optimizer)
{
    static const struct {
        zero_dtype param;
        zero_dtype master;
    } truths[] = {{ZERO_DTYPE_NONE, ZERO_DTYPE_F32},
                  {ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT},
                  {ZERO_DTYPE_F16, ZERO_DTYPE_DEFAULT},
                  {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER16},
                  {ZERO_DTYPE_BF16, ZERO_DTYPE_REMAINDER8}};
    cudaError_t code = cudaSuccess;
    for (const zero_dtype moment : moments) {
        for (const auto &truth : truths) {
            const zi_update_form form = {optimizer, ZERO_DTYPE_DEFAULT, truth.param, moment,
                                         truth.master};
            /* One that reads no moments is there for all types of them. */
            const bool is_other = moment == moments[0] || zi_optimizer_measured_moments(optimizer);
            if (code == cudaSuccess && is_other) {
                code = zi_kernel_load(choose_measure(form));
            }
        }
    }
    return code;
}

#define LOAD(KIND, name) \
    code = code == cudaSuccess ? load_measurements(ZERO_OPTIMIZER_##KIND) : code;

extern "C" cudaError_t zi_cuda_load_measure(void)
{
    cudaError_t code = zi_kernel_load((const void *)pack_kernel);
    code = code == cudaSuccess ? zi_kernel_load((const void *)merge_kernel) : code;
    ZI_LAYERWISE_OPTIMIZERS(LOAD)
    return code;
}
