/* A bare 0 to 3 in `stage` is that stage of ZeRO and no other, anything else is refused, and what
 * was not set is stage 3. Compiled as C11 and as C++17 by abi.py, and run with no argument. */
#include <stdio.h>
#include <string.h>
#include <zero/zero.h>

/* C++ has no conversion from a number, so the bytes are written as a caller of a binding does. */
static int refused(const zero_model *model, zero_engine_options options, int number)
{
    char name[32];
    zero_plan *plan = NULL;
    memcpy(&options.stage, &number, sizeof number);
    snprintf(name, sizeof name, "stage %d ", number);
    return zero_plan_create(model, &options, 4, &plan) == ZERO_ERR_INVALID_ARGUMENT &&
           strstr(zero_last_error()->message, name) != NULL;
}

/* Over how many of 4 ranks each state must be split, and how the table must begin. */
static int planned(const zero_model *model, const zero_engine_options *options, unsigned number)
{
    static const uint32_t degrees[4][3] = {{1, 1, 1}, {1, 1, 4}, {1, 4, 4}, {4, 4, 4}};
    char name[32];
    char text[64];
    zero_plan *plan = NULL;
    if (zero_plan_create(model, options, 4, &plan) != ZERO_OK) {
        return 0;
    }
    zero_sharding split = zero_sharding_init();
    const zero_status status = zero_plan_sharding(plan, &split);
    zero_plan_print(plan, text, sizeof text);
    zero_plan_destroy(plan);
    snprintf(name, sizeof name, "stage %u: ", number);
    return status == ZERO_OK && split.param == degrees[number][0] &&
           split.grad == degrees[number][1] && split.optimizer == degrees[number][2] &&
           strncmp(text, name, strlen(name)) == 0;
}

static int check(const char *what, int good)
{
    if (!good) {
        printf("FAILED: %s: %s\n", what, zero_last_error()->message);
    }
    return good ? 0 : 1;
}

int main(void)
{
    static const int others[] = {-1, 4, 5, 10, 13, 0x7fffffff};
    zero_engine_options options = zero_engine_options_init();
    zero_tensor_desc weight;
    zero_unit_desc unit;
    zero_model *model = NULL;
    int failed = 0;
    memset(&weight, 0, sizeof weight);
    weight.name = "weight";
    weight.dims = 1;
    weight.shape[0] = 300;
    memset(&unit, 0, sizeof unit);
    unit.name = "unit";
    unit.tensors = &weight;
    unit.tensor_count = 1;
    if (zero_model_create(&model) != ZERO_OK ||
        zero_unit_add(model, &unit, NULL, NULL) != ZERO_OK) {
        return check("the model", 0);
    }
    failed += check("no options", planned(model, NULL, 3));
    failed += check("nothing set", planned(model, &options, 3));
    for (unsigned number = 0; number < 4; number++) {
#ifdef __cplusplus
        options.stage = static_cast<zero_stage>(number);
#else
        options.stage = number;
#endif
        failed += check("a bare number", planned(model, &options, number));
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        failed += check("another number", refused(model, options, others[i]));
    }
    zero_model_destroy(model);
    return failed != 0;
}
