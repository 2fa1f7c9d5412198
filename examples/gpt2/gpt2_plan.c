/* Owns the two forms of a plan that --plan gives. */
#include "gpt2_plan.h"
#include "gpt2_log.h"
#include "zero/world.h"

#include <stdlib.h>
#include <string.h>

static bool print_table(const gpt2_options *options, const gpt2_config *config,
                        const zero_plan *plan, gpt2_error *error)
{
    const size_t bytes = zero_plan_print(plan, NULL, 0) + 1;
    char *text = malloc(bytes);
    if (text == NULL) {
        return gpt2_fail(error, "no memory for the plan's table");
    }
    (void)zero_plan_print(plan, text, bytes);
    /* Launchers may give their ranks terminals that nobody sees. */
    const unsigned columns = zero_world_is_launched() ? 0 : live_line_columns(stdout);
    gpt2_print_model(options, columns, config->vocab, gpt2_parameter_count(config));
    live_line_wrap(stdout, columns, text);
    free(text);
    return gpt2_flush_output(error);
}

static bool write_json(const gpt2_options *options, const gpt2_config *config,
                       const zero_plan *plan, FILE *out)
{
    zero_memory memory = zero_memory_init();
    zero_sharding sharding = zero_sharding_init();
    zero_engine_options used = zero_engine_options_init();
    if (zero_plan_memory(plan, &memory) != ZERO_OK ||
        zero_plan_sharding(plan, &sharding) != ZERO_OK ||
        zero_plan_options(plan, &used) != ZERO_OK) {
        return false;
    }
    (void)fputs("{\"settings\": {", out);
    const bool whole = gpt2_options_json(options, out);
    (void)fprintf(out,
                  "},\n\"world\": %u, \"parameters\": %llu, \"vocab\": %u,\n"
                  "\"sharding\": {\"param\": %u, \"grad\": %u, \"optimizer\": %u},\n\"memory\": {",
                  sharding.world, (unsigned long long)gpt2_parameter_count(config), config->vocab,
                  sharding.param, sharding.grad, sharding.optimizer);
    for (int i = 0; i < ZERO_ROLE_COUNT_MAX; i++) {
        if (zero_role_exists((zero_role)i) == 0) {
            continue;
        }
        (void)fprintf(out, "\"%s\": {\"planned\": %llu", zero_role_name((zero_role)i),
                      (unsigned long long)memory.bytes[i]);
        if (i < ZERO_ROLE_SHARDS_MAX) {
            (void)fprintf(out, ", \"tier\": \"%s\"", zero_tier_name(used.tier[i]));
        }
        (void)fputs("}, ", out);
    }
    (void)fprintf(out, "\"total\": {\"planned\": %llu}},\n\"tiers\": {",
                  (unsigned long long)memory.total_bytes);
    for (int i = ZERO_TIER_DEVICE; i < ZERO_TIER_COUNT; i++) {
        (void)fprintf(out, "%s\"%s\": %llu", i == ZERO_TIER_DEVICE ? "" : ", ",
                      zero_tier_name((zero_tier)i), (unsigned long long)memory.tier_bytes[i]);
    }
    (void)fputs("}\n}\n", out);
    return whole;
}

static bool write_file(const char *path, const char *text, size_t bytes, gpt2_error *error)
{
    gpt2_file file;
    return gpt2_file_open(&file, path, 0, error) && gpt2_file_add(&file, text, bytes, "", error) &&
           gpt2_file_close(&file, error);
}

bool gpt2_plan_report(const gpt2_options *options, const gpt2_config *config, const zero_plan *plan,
                      gpt2_error *error)
{
    const bool alone = options->json != NULL && strcmp(options->json, "-") == 0;
    if (!alone && !print_table(options, config, plan, error)) {
        return false;
    }
    if (options->json == NULL) {
        return true;
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    bool good = out != NULL && write_json(options, config, plan, out) && ferror(out) == 0;
    good = out != NULL && fclose(out) == 0 && good;
    if (!good) {
        (void)gpt2_fail(error, "no memory for the plan as JSON");
    } else if (alone) {
        (void)fwrite(text, 1, bytes, stdout);
        good = gpt2_flush_output(error);
    } else {
        good = write_file(options->json, text, bytes, error);
    }
    free(text);
    return good;
}
