/* A program that plans: both libraries of one release, and one record of errors. */
#include <stdio.h>
#include <zero/planner.h>

int main(void)
{
    zero_transformer model = zero_transformer_init();
    if (zero_transformer_preset("none of these", &model) == ZERO_OK ||
        zero_transformer_preset("gpt2", &model) != ZERO_OK) {
        return 1;
    }
    return printf("%s\n", zero_last_error()->message) > 0 ? 0 : 1;
}
