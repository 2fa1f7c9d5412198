/* The loops in float: accuracy of exp and GELU, low precision, equal bits of all tables; and
 * recomputation changes nothing. */
#include "bf16.h"
#include "gpt2_case.h"

/* Distance in units of float precision at the exact value. */
static double ulps(float value, double exact)
{
    int exponent = 0;
    (void)frexp(exact, &exponent);
    return fabs((double)value - exact) / ldexp(1, exponent - 24);
}

TEST(exp_is_within_two_ulp)
{
    double worst = 0;
    for (float x = -87.0f; x <= 88.0f; x += 0.00037f) {
        float y = 0;
        gpt2_ops_best()->exponential(&y, &x, 1);
        worst = fmax(worst, ulps(y, exp((double)x)));
    }
    CHECK(worst < 2.0);
}

TEST(exp_holds_its_ends_and_passes_nan_on)
{
    const float x[4] = {-INFINITY, INFINITY, NAN, 0.0f};
    float y[4];
    gpt2_ops_best()->exponential(y, x, 4);
    CHECK(y[0] > 0 && y[0] < 1e-37f);
    CHECK(y[1] > 1e38f && isfinite(y[1]));
    CHECK(isnan(y[2]));
    CHECK_SAME(y[3], 1.0f);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(gelu_and_its_slope_follow_the_tanh_form)
{
    const float none = 0;
    for (float x = -12.0f; x < 12.0f; x += 0.0013f) {
        float in = x;
        float out = 0;
        float slope = 1;
        gpt2_ops_best()->gelu_forward(&out, &in, &none, 1, 1);
        gpt2_ops_best()->gelu_backward(&slope, &in, 1);
        CHECK_NEAR(out, gelu((double)x), 4e-7 * fmax(1, fabs((double)x)));
        const double step = 1e-4;
        const double exact = (gelu((double)x + step) - gelu((double)x - step)) / (2 * step);
        CHECK_NEAR(slope, exact, 2e-6);
    }
}

static float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The exact value of a binary16. */
static double half_value(uint16_t half)
{
    const int exponent = half >> 10 & 31;
    const int fraction = half & 1023;
    const double sign = (half & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

TEST(every_half_widens_to_its_value)
{
    for (uint32_t half = 0; half < 65536; half++) {
        const uint16_t in = (uint16_t)half;
        float f16 = 1;
        float bf16 = 1;
        gpt2_ops_best()->widen_f16(&f16, &in, 1);
        gpt2_ops_best()->widen_bf16(&bf16, &in, 1);
        CHECK_SAME(f16, half_value(in));
        CHECK_SAME(bf16, bits_to_float(half << 16));
    }
}

TEST(random_floats_narrow_to_the_nearest_bf16)
{
    for (uint32_t i = 0; i < 200000; i++) {
        const float x = bits_to_float(case_hash(i));
        uint16_t narrow = 0;
        gpt2_ops_best()->narrow_bf16(&narrow, &x, 1);
        if (isnan(x)) {
            CHECK(isnan(bits_to_float((uint32_t)narrow << 16)));
        } else {
            CHECK_EQ(narrow, bf16_of(x));
        }
    }
}

/* Adding to +0 rounds; the neighbours of the result must not be nearer, and a tie goes to even. */
TEST(rounding_to_half_is_to_nearest_even)
{
    for (uint32_t i = 0; i < 400000; i++) {
        const float x = bits_to_float(case_hash(i) & 0x7fffffffu);
        uint16_t half = 0;
        gpt2_ops_best()->add_f16(&half, &x, 1);
        if (isnan(x)) {
            CHECK(isnan(half_value(half)));
        } else if ((double)x >= 65520.0) {
            CHECK_EQ(half, 0x7c00);
        } else {
            CHECK(half < 0x7c00);
            const double gap = fabs(half_value(half) - (double)x);
            const double above = half == 0x7bff ? 65536.0 : half_value((uint16_t)(half + 1));
            const double gap_above = above - (double)x;
            CHECK(gap < gap_above || (gap <= gap_above && half % 2 == 0));
            if (half > 0) {
                const double gap_below = (double)x - half_value((uint16_t)(half - 1));
                CHECK(gap < gap_below || (gap <= gap_below && half % 2 == 0));
            }
        }
    }
}

TEST(rounding_to_bf16_is_to_nearest_even)
{
    const uint32_t from[5] = {0x3f800000u, 0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f7fffffu};
    const uint16_t to[5] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x7f80};
    for (size_t i = 0; i < 5; i++) {
        const float x = bits_to_float(from[i]);
        uint16_t half = 0;
        gpt2_ops_best()->add_bf16(&half, &x, 1);
        CHECK_EQ(half, to[i]);
    }
    const float broken = bits_to_float(0x7f800001u);
    uint16_t half = 0;
    gpt2_ops_best()->add_bf16(&half, &broken, 1);
    CHECK((half & 0x7f80) == 0x7f80 && (half & 0x7f) != 0);
}

/* A width that is no multiple of the vectors; two rows of attention blocks; tails everywhere. */
static const gpt2_config shape = {.layers = 2, .heads = 2, .width = 40, .seq = 67, .vocab = 101};

static double run_with(const gpt2_ops *ops, bool recompute, gpt2_case *model)
{
    case_create(model, &shape, 3, recompute);
    model->space->ops = ops;
    const double loss = case_forward(model);
    case_backward(model, 1);
    return loss;
}

TEST(recomputation_changes_no_bit)
{
    gpt2_case kept;
    gpt2_case again;
    CHECK_SAME(run_with(gpt2_ops_best(), false, &kept), run_with(gpt2_ops_best(), true, &again));
    CHECK_BYTES(kept.grads, again.grads, kept.first[kept.tensor_count] * sizeof *kept.grads);
    CHECK(again.space->bytes < kept.space->bytes);
    case_destroy(&kept);
    case_destroy(&again);
}

TEST(every_instruction_set_gives_the_same_bits)
{
    gpt2_case base;
    const double loss = run_with(gpt2_ops_table(0), false, &base);
    uint32_t compared = 0;
    for (size_t i = 1; i < GPT2_OPS_TABLES; i++) {
        if (gpt2_ops_table(i) == NULL) {
            continue;
        }
        gpt2_case other;
        CHECK_SAME(loss, run_with(gpt2_ops_table(i), false, &other));
        CHECK_BYTES(base.grads, other.grads, base.first[base.tensor_count] * sizeof *base.grads);
        case_destroy(&other);
        compared++;
    }
    case_destroy(&base);
    if (compared == 0) {
        SKIP("this machine or build has one table only");
    }
}

TEST(parameter_names_and_shapes_are_those_of_gpt2)
{
    const gpt2_config small = {
        .layers = 12, .heads = 12, .width = 768, .seq = 1024, .vocab = 50257};
    uint64_t total = 0;
    CHECK_EQ(gpt2_tensor_count(&small), 148);
    gpt2_tensor tensor;
    for (uint32_t i = 0; i < 148; i++) {
        gpt2_tensor_describe(&small, i, &tensor);
        total += case_count(&tensor);
        CHECK_EQ(tensor.decays, tensor.dims == 2);
    }
    CHECK_EQ(total, 124439808);
    gpt2_tensor_describe(&small, 2 + 11 * 12 + GPT2_QKV_W, &tensor);
    CHECK(strcmp(tensor.name, "h.11.attn.c_attn.weight") == 0);
    CHECK_EQ(tensor.shape[0], 768);
    CHECK_EQ(tensor.shape[1], 2304);
    gpt2_tensor_describe(&small, 2 + GPT2_SHRINK_W, &tensor);
    CHECK(strcmp(tensor.name, "h.0.mlp.c_proj.weight") == 0);
    CHECK_EQ(tensor.shape[0], 3072);
    CHECK_NEAR(tensor.init_sigma, 0.02 / sqrt(24), 1e-9);
    gpt2_tensor_describe(&small, 146, &tensor);
    CHECK(strcmp(tensor.name, "ln_f.weight") == 0);
    CHECK_EQ(tensor.unit, 13);
}
