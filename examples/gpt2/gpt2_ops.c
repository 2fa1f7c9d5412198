/* One table of loops, compiled once per instruction set (GPT2_OPS_TABLE names it).
 *
 * Vectors are the compiler's own vector type, as long as the instruction set's registers. Nothing
 * is fused, and a sum always has 16 partial sums, whatever the length of a vector, so the tables
 * agree to the bit. */
#include "gpt2_lanes.h"

#ifndef GPT2_OPS_TABLE
#define GPT2_OPS_TABLE gpt2_ops_base
#define GPT2_OPS_ISA "base"
#endif

static void exponential(gpt2_real *y, const gpt2_real *x, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        store(y + i, vec_exp(load(x + i, count - i)), count - i);
    }
}

static void bias_rows(gpt2_real *y, const gpt2_real *x, const gpt2_real *bias, size_t rows,
                      size_t width)
{
    for (size_t r = 0; r < rows; r++) {
        if (x == NULL) {
            memcpy(y + r * width, bias, width * sizeof *y);
            continue;
        }
        for (size_t c = 0; c < width; c += LANES) {
            const vec added = load(x + r * width + c, width - c) + load(bias + c, width - c);
            store(y + r * width + c, added, width - c);
        }
    }
}

static void column_sums(gpt2_real *sums, const gpt2_real *x, size_t rows, size_t width)
{
    for (size_t c = 0; c < width; c += LANES) {
        vec total = {0};
        for (size_t r = 0; r < rows; r++) {
            total += load(x + r * width + c, width - c);
        }
        store(sums + c, load(sums + c, width - c) + total, width - c);
    }
}

static void norm_forward(const gpt2_norm *norm)
{
    const size_t width = norm->width;
    for (size_t r = 0; r < norm->rows; r++) {
        const gpt2_real *x = norm->x + r * width;
        gpt2_real *y = norm->y + r * width;
        sum total = {0};
        for (size_t c = 0; c < width; c += LANES) {
            sum_add(&total, c, load(x + c, width - c));
        }
        const gpt2_real mean = sum_of(&total) / (gpt2_real)width;
        sum square = {0};
        for (size_t c = 0; c < width; c += LANES) {
            const size_t left = width - c;
            /* Lanes beyond the row must not count: they get mean - mean. */
            const vec centred = load_or(x + c, left, splat(mean)) - mean;
            sum_add(&square, c, centred * centred);
        }
        const gpt2_real variance = sum_of(&square) / (gpt2_real)width;
        const gpt2_real rstd = (gpt2_real)(1.0 / sqrt((double)variance + 1e-5));
        for (size_t c = 0; c < width; c += LANES) {
            const size_t left = width - c;
            const vec scaled = (load(x + c, left) - mean) * rstd;
            store(y + c, scaled * load(norm->weight + c, left) + load(norm->bias + c, left), left);
        }
        norm->mean[r] = mean;
        norm->rstd[r] = rstd;
    }
}

/* With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - h mean(g h)). */
static void norm_backward(const gpt2_norm *norm, const gpt2_norm_grad *grad)
{
    const size_t width = norm->width;
    for (size_t r = 0; r < norm->rows; r++) {
        const gpt2_real *x = norm->x + r * width;
        const gpt2_real *dy = grad->dy + r * width;
        gpt2_real *dx = grad->dx + r * width;
        const gpt2_real mean = norm->mean[r];
        const gpt2_real rstd = norm->rstd[r];
        sum total = {0};
        sum product = {0};
        for (size_t c = 0; c < width; c += LANES) {
            const size_t left = width - c;
            const vec d = load(dy + c, left);
            const vec h = (load(x + c, left) - mean) * rstd;
            const vec g = d * load(norm->weight + c, left);
            sum_add(&total, c, g);
            sum_add(&product, c, g * h);
            store(grad->dweight + c, load(grad->dweight + c, left) + d * h, left);
            store(grad->dbias + c, load(grad->dbias + c, left) + d, left);
        }
        const gpt2_real mean_g = sum_of(&total) / (gpt2_real)width;
        const gpt2_real mean_gh = sum_of(&product) / (gpt2_real)width;
        for (size_t c = 0; c < width; c += LANES) {
            const size_t left = width - c;
            const vec h = (load(x + c, left) - mean) * rstd;
            const vec g = load(dy + c, left) * load(norm->weight + c, left);
            const vec add = (g - mean_g - h * mean_gh) * rstd;
            store(dx + c, load(dx + c, left) + add, left);
        }
    }
}

/* gelu(x) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form, because
 * (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)). */
#define GELU_MINUS_TWO_K ((gpt2_real)-1.5957691216057308)
#define GELU_CUBE ((gpt2_real)0.044715)

INLINE vec gelu_gate(vec x)
{
    const vec u = x * (x * x * GELU_CUBE + 1) * GELU_MINUS_TWO_K;
    return 1 / (vec_exp(u) + 1);
}

static void gelu_forward(gpt2_real *y, gpt2_real *x, const gpt2_real *bias, size_t rows,
                         size_t width)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < width; c += LANES) {
            const size_t left = width - c;
            gpt2_real *at = x + r * width + c;
            const vec value = load(at, left) + load(bias + c, left);
            store(at, value, left);
            store(y + r * width + c, value * gelu_gate(value), left);
        }
    }
}

static void gelu_backward(gpt2_real *dy, const gpt2_real *x, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        const size_t left = count - i;
        const vec value = load(x + i, left);
        const vec gate = gelu_gate(value);
        const vec slope = (value * value * (3 * GELU_CUBE) + 1) * -GELU_MINUS_TWO_K;
        const vec factor = gate + value * gate * (1 - gate) * slope;
        store(dy + i, load(dy + i, left) * factor, left);
    }
}

/* A row of `count` values of which the first `seen` >= 1 matter. What lies beyond them within the
 * row may be read and written, so that vectors are whole wherever the row is long enough. */
typedef struct row {
    gpt2_real *x;
    size_t seen;
    size_t count;
} row;

/* `value` in the lanes of elements c .. that are seen, `other` in the rest. */
INLINE vec within(const row *r, size_t c, vec value, vec other)
{
    const size_t left = r->seen - c;
    if (left >= LANES) {
        return value;
    }
    mask_vec lane = {0};
    for (size_t i = 0; i < LANES; i++) {
        lane[i] = (int)i - (int)left;
    }
    return choose(lane < 0, value, other);
}

/* Largest of the seen; NaN where the first is. */
INLINE gpt2_real row_max(const row *r)
{
    const vec first = splat(r->x[0]);
    vec most = first;
    for (size_t c = 0; c < r->seen; c += LANES) {
        const vec value = within(r, c, load(r->x + c, r->count - c), first);
        most = choose(value > most, value, most);
    }
    return max_of(most);
}

/* x = exp(x - max(x)), 0 in the lanes beyond the seen; returns the sum. */
INLINE gpt2_real row_exp(const row *r)
{
    const gpt2_real most = row_max(r);
    sum total = {0};
    for (size_t c = 0; c < r->seen; c += LANES) {
        const vec value = load(r->x + c, r->count - c) - most;
        const vec power = within(r, c, vec_exp(value), (vec){0});
        store(r->x + c, power, r->count - c);
        sum_add(&total, c, power);
    }
    return sum_of(&total);
}

INLINE void row_scale(const row *r, gpt2_real factor)
{
    for (size_t c = 0; c < r->seen; c += LANES) {
        store(r->x + c, load(r->x + c, r->count - c) * factor, r->count - c);
    }
}

/* 0 in the columns that whole vectors have not reached. */
INLINE void row_clear(const row *r)
{
    const size_t done = (r->seen + LANES - 1) / LANES * LANES;
    if (done < r->count) {
        memset(r->x + done, 0, (r->count - done) * sizeof *r->x);
    }
}

static void softmax_forward(const gpt2_scores *scores)
{
    for (size_t i = 0; i < scores->rows; i++) {
        const row r = {scores->values + i * scores->columns, scores->first + i + 1,
                       scores->columns};
        row_scale(&r, 1 / row_exp(&r));
        row_clear(&r);
    }
}

static void softmax_backward(const gpt2_scores *dprob, const gpt2_real *prob)
{
    for (size_t i = 0; i < dprob->rows; i++) {
        const row r = {dprob->values + i * dprob->columns, dprob->first + i + 1, dprob->columns};
        const gpt2_real *p = prob + i * dprob->columns;
        sum product = {0};
        for (size_t c = 0; c < r.seen; c += LANES) {
            const vec d = within(&r, c, load(r.x + c, r.count - c), (vec){0});
            sum_add(&product, c, d * load(p + c, r.count - c));
        }
        const gpt2_real mean = sum_of(&product);
        for (size_t c = 0; c < r.seen; c += LANES) {
            const vec d = within(&r, c, load(r.x + c, r.count - c), (vec){0});
            store(r.x + c, (d - mean) * load(p + c, r.count - c), r.count - c);
        }
        row_clear(&r);
    }
}

static double loss_forward(const gpt2_logits *logits)
{
    double total = 0;
    for (size_t i = 0; i < logits->rows; i++) {
        const row r = {logits->values + i * logits->vocab, logits->vocab, logits->vocab};
        const gpt2_real most = row_max(&r);
        sum partial = {0};
        for (size_t c = 0; c < r.seen; c += LANES) {
            const vec power = vec_exp(load(r.x + c, r.seen - c) - most);
            sum_add(&partial, c, within(&r, c, power, (vec){0}));
        }
        const double at_target = (double)r.x[logits->targets[i]] - (double)most;
        total += log((double)sum_of(&partial)) - at_target;
    }
    return total;
}

static void loss_backward(const gpt2_logits *logits, gpt2_real scale)
{
    for (size_t i = 0; i < logits->rows; i++) {
        const row r = {logits->values + i * logits->vocab, logits->vocab, logits->vocab};
        row_scale(&r, scale / row_exp(&r));
        r.x[logits->targets[i]] -= scale;
    }
}

/* --- low precision ---------------------------------------------------------------------------- */

INLINE hvec load_half(const uint16_t *from, size_t left)
{
    hvec value = {0};
    if (left >= LANES) {
        memcpy(&value, from, sizeof value);
    } else {
        memcpy(&value, from, left * sizeof *from);
    }
    return value;
}

INLINE void store_half(uint16_t *to, uvec value, size_t left)
{
    const hvec half = __builtin_convertvector(value, hvec);
    if (left >= LANES) {
        memcpy(to, &half, sizeof half);
    } else {
        memcpy(to, &half, left * sizeof *to);
    }
}

INLINE uvec choose_bits(ivec where, uvec yes, uvec no)
{
    return (yes & (uvec)where) | (no & ~(uvec)where);
}

INLINE fvec from_bf16(hvec half)
{
    return (fvec)(__builtin_convertvector(half, uvec) << 16);
}

INLINE uvec to_bf16(fvec value)
{
    const uvec bits = (uvec)value;
    const uvec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uvec quiet = (bits >> 16) | 0x40u;
    return choose_bits(value != value, quiet, rounded);
}

/* Exponent and fraction move to their places in a binary32; multiplying by 2^112 then sets the
 * exponent right, subnormals included. Infinity and NaN get the top exponent. */
INLINE fvec from_f16(hvec half)
{
    const uvec bits = __builtin_convertvector(half, uvec);
    const uvec magnitude = (bits & 0x7fffu) << 13;
    const uvec finite = (uvec)((fvec)magnitude * 0x1p112f);
    const uvec special = magnitude | 0x7f800000u;
    const uvec value = choose_bits((bits & 0x7c00u) == 0x7c00u, special, finite);
    return (fvec)(value | ((bits & 0x8000u) << 16));
}

/* Rounds to nearest even in three ranges: beyond 65520 infinity (or NaN), normal numbers by integer
 * rounding of the bits, subnormal ones by adding 0.5, whose unit in the last place is 2^-24. */
INLINE uvec to_f16(fvec value)
{
    const uvec sign = ((uvec)value >> 16) & 0x8000u;
    const uvec bits = (uvec)value & 0x7fffffffu;
    const uvec normal = (bits - 0x38000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13;
    const uvec subnormal = (uvec)((fvec)bits + 0.5f) - 0x3f000000u;
    const ivec signed_bits = (ivec)bits;
    uvec half = choose_bits(signed_bits < 0x38800000, subnormal, normal);
    half = choose_bits(signed_bits > 0x477fefff, (uvec){0} + 0x7c00u, half);
    half = choose_bits(signed_bits > 0x7f800000, (uvec){0} + 0x7e00u, half);
    return half | sign;
}

static void widen_bf16(gpt2_real *y, const uint16_t *x, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        const size_t left = count - i;
        store(y + i, __builtin_convertvector(from_bf16(load_half(x + i, left)), vec), left);
    }
}

static void widen_f16(gpt2_real *y, const uint16_t *x, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        const size_t left = count - i;
        store(y + i, __builtin_convertvector(from_f16(load_half(x + i, left)), vec), left);
    }
}

static void narrow_bf16(uint16_t *y, const gpt2_real *x, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        const size_t left = count - i;
        store_half(y + i, to_bf16(__builtin_convertvector(load(x + i, left), fvec)), left);
    }
}

static void add_bf16(uint16_t *y, const gpt2_real *x, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        const size_t left = count - i;
        const fvec old = from_bf16(load_half(y + i, left));
        const fvec added = old + __builtin_convertvector(load(x + i, left), fvec);
        store_half(y + i, to_bf16(added), left);
    }
}

static void add_f16(uint16_t *y, const gpt2_real *x, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        const size_t left = count - i;
        const fvec old = from_f16(load_half(y + i, left));
        const fvec added = old + __builtin_convertvector(load(x + i, left), fvec);
        store_half(y + i, to_f16(added), left);
    }
}

extern const gpt2_ops GPT2_OPS_TABLE;

const gpt2_ops GPT2_OPS_TABLE = {
    .isa = GPT2_OPS_ISA,
    .exponential = exponential,
    .bias_rows = bias_rows,
    .column_sums = column_sums,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .softmax_forward = softmax_forward,
    .softmax_backward = softmax_backward,
    .loss_forward = loss_forward,
    .loss_backward = loss_backward,
    .widen_bf16 = widen_bf16,
    .widen_f16 = widen_f16,
    .narrow_bf16 = narrow_bf16,
    .add_bf16 = add_bf16,
    .add_f16 = add_f16,
};
