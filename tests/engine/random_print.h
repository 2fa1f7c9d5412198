/* A random case as a C program of the library's users, for --program FILE: it makes the same calls
 * with the same arguments and fails where it does not come to the same state (printed_loop.c).
 * Faults are not in it, nor calls that are refused. */
#ifndef TESTS_ENGINE_RANDOM_PRINT_H
#define TESTS_ENGINE_RANDOM_PRINT_H

#include "layout/model.h"
#include "random_case.h"

/* The call before a step. */
typedef enum before_step {
    NOTHING,
    A_DISCARDED_STEP,
    AN_ABANDONED_MICRO_STEP,
    AN_EVALUATION,
    AN_ODD_SWEEP,
    A_SKIPPED_STEP,
    TURNED_SIGNS,
    NEW_VALUES,
    EVICTED_ROLES,
    BEFORE_STEP_COUNT
} before_step;

typedef struct printed_save {
    uint64_t step; /* after so many */
    const char *name;
    int32_t replace; /* as zero_save_options has them */
    uint32_t keep;
    bool meanwhile; /* the steps behind it are taken until it is over */
} printed_save;

/* The parts of a program besides its case. */
typedef struct printed_parts {
    const before_step *before;    /* by step; NULL: nothing is called before any */
    uint64_t end;                 /* the step with which it ends; 0: all are taken */
    printed_save saves[2];        /* in order; name NULL: none */
    const random_case *elsewhere; /* NULL, or where it goes on from the last of them */
    const toy_state *expected;    /* the state at its end */
} printed_parts;

static void print_extents(FILE *file, const char *field, const uint64_t *extents, uint32_t dims)
{
    uint64_t any = 0;
    for (uint32_t d = 0; d < dims; d++) {
        any |= extents[d];
    }
    for (uint32_t d = 0; d < dims && (any != 0 || strcmp(field, "shape") == 0); d++) {
        if (d == 0) {
            (void)fprintf(file, ", .%s = {", field);
        }
        (void)fprintf(file, "%" PRIu64 "%s", extents[d], d + 1 == dims ? "}" : ", ");
    }
}

static void print_tensor(FILE *file, const toy_tensor *tensor)
{
    static const char *const dtypes[] = {"DEFAULT", "F32", "BF16", "F16"};
    static const char *const flags[] = {"", ", .flags = ZERO_TENSOR_NO_DECAY",
                                        ", .flags = ZERO_TENSOR_FROZEN",
                                        ", .flags = ZERO_TENSOR_NO_DECAY | ZERO_TENSOR_FROZEN"};
    const zero_tensor_desc *desc = &tensor->desc;
    (void)fprintf(file, "    tensor((zero_tensor_desc){.name = \"%s\", .dtype = ZERO_DTYPE_%s",
                  tensor->name, dtypes[desc->dtype]);
    (void)fprintf(file, ", .dims = %u", desc->dims);
    print_extents(file, "shape", desc->shape, desc->dims);
    print_extents(file, "global_shape", desc->global_shape, desc->dims);
    (void)fprintf(file, "%s, .group = %u});\n", flags[desc->flags], desc->group);
}

static void print_model(FILE *file, const toy_model *model)
{
    (void)fprintf(file, "static void describe(void)\n{\n");
    for (uint32_t u = 0; u < model->unit_count; u++) {
        const uint32_t group = model->model->units[u].shard_group;
        (void)fprintf(file, "    unit(\"%s\", %" PRIu32 ");\n", model->units[u].name, group);
        for (uint32_t t = 0; t < model->tensor_count; t++) {
            if (model->tensors[t].unit == u) {
                print_tensor(file, &model->tensors[t]);
            }
        }
        for (uint32_t i = 0; i < model->units[u].tie_count; i++) {
            (void)fprintf(file, "    tie(%u, %u);\n", u, model->units[u].ties[i]);
        }
    }
    (void)fprintf(file, "}\n\n");
}

/* The numbers of rates by tensor, which are not those that hyper() gives. */
static void print_rates(FILE *file, uint32_t group, const zero_hyper *hyper)
{
    if (hyper->kind == ZERO_OPTIMIZER_LAMB) {
        const zero_lamb *lamb = &hyper->lamb;
        (void)fprintf(file,
                      "    of.groups[%" PRIu32 "].lamb =\n"
                      "        (zero_lamb){%aF, %aF, %aF, %aF, %aF, %aF, %aF, %aF};\n",
                      group, (double)lamb->lr, (double)lamb->beta1, (double)lamb->beta2,
                      (double)lamb->eps, (double)lamb->weight_decay, (double)lamb->min_ratio,
                      (double)lamb->max_ratio, (double)lamb->adapt_undecayed);
    } else if (hyper->kind == ZERO_OPTIMIZER_LARS) {
        const zero_lars *lars = &hyper->lars;
        (void)fprintf(file,
                      "    of.groups[%" PRIu32 "].lars =\n"
                      "        (zero_lars){%aF, %aF, %aF, %aF, %aF, %aF};\n",
                      group, (double)lars->lr, (double)lars->momentum, (double)lars->weight_decay,
                      (double)lars->trust, (double)lars->eps, (double)lars->adapt_undecayed);
    }
}

/* All that is not its default. */
static void print_setup(FILE *file, const random_case *c, const char *name)
{
    const zero_option *option = NULL;
    const toy_run *run = &c->run;
    const zero_adamw *adamw = &run->params.hyper.adamw;
    (void)fprintf(file, "static setup %s_setup(void)\n{\n", name);
    (void)fprintf(file, "    setup of = setup_of(%u /* ranks */, %u /* micro-steps */);\n",
                  c->ranks, run->micro_steps);
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        char value[128];
        char fallback[128];
        const zero_engine_options plain = zero_engine_options_init();
        const zero_tuning tuning = zero_tuning_init();
        (void)zero_option_print(option, &run->options, &run->tuning, value, sizeof value);
        (void)zero_option_print(option, &plain, &tuning, fallback, sizeof fallback);
        if (strcmp(value, fallback) != 0 && option->kind != ZERO_OPTION_POINTER) {
            (void)fprintf(file, "    set(&of, \"%s\", \"%s\");\n", option->name, value);
        }
    }
    if (run->options.optimizer == ZERO_OPTIMIZER_CALLBACK) {
        (void)fprintf(file, "    of.options.update = update_by_momentum;\n"
                            "    of.params.hyper.kind = ZERO_OPTIMIZER_CALLBACK;\n");
    }
    (void)fprintf(file, "    of.params.hyper.adamw.lr = (float)%.9g;\n", (double)adamw->lr);
    (void)fprintf(file, "    of.params.hyper.adamw.weight_decay = (float)%.9g;\n",
                  (double)adamw->weight_decay);
    for (uint32_t g = 0; g < run->params.group_count; g++) {
        if (run->options.group_optimizer[g] != ZERO_OPTIMIZER_DEFAULT) {
            (void)fprintf(file, "    hyper(&of, %" PRIu32 ", (zero_optimizer)%d);\n", g,
                          (int)run->options.group_optimizer[g]);
            print_rates(file, g, &run->params.groups[g]);
        }
    }
    (void)fprintf(file, "    of.params.max_norm = (float)%.9g;\n", (double)run->params.max_norm);
    (void)fprintf(file, "    of.omits = %" PRIu64 ";\n", c->omits);
    (void)fprintf(file, "    of.split = %s;\n", run->split ? "true" : "false");
    (void)fprintf(file, "    of.predicted = %s;\n", run->predicted ? "true" : "false");
    (void)fprintf(file, "    return of;\n}\n\n");
}

/* True if it has anything that is trained: else no gradient makes a step be skipped. */
static bool random_case_trains(const random_case *s)
{
    bool trained = false;
    for (uint32_t t = 0; t < s->models[0].tensor_count; t++) {
        const toy_tensor *tensor = &s->models[0].tensors[t];
        trained |= tensor->count != 0 && (tensor->desc.flags & ZERO_TENSOR_FROZEN) == 0;
    }
    return trained;
}

static const char *const course_names[COURSE_COUNT] = {
    "IN_ORDER",      "THREE_TIMES", "COMES_BACK", "HELD_OVER_TWO_USES", "NESTED",
    "FIRST_IS_HELD", "RECOMPUTED",  "ROTATED",    "BACKWARD_AHEAD"};

/* True if no rank may leave out units in some step of it. */
static bool random_case_is_whole(const random_case *s)
{
    bool whole = random_case_has_ties(s);
    for (int step = 0; step < RANDOM_STEPS; step++) {
        whole = whole || course_is_whole(s->courses[step]);
    }
    return whole;
}

/* As the test's call_before. */
static void print_before(FILE *file, const random_case *at, const random_case *c,
                         before_step before, uint64_t step)
{
    const bool drops = !at->run.predicted;
    if (before == A_DISCARDED_STEP && drops) {
        (void)fprintf(file, "    TRY(discarded_step(r));\n");
    } else if (before == AN_ABANDONED_MICRO_STEP && drops) {
        (void)fprintf(file, "    TRY(abandoned_micro_step(r, %s));\n",
                      random_case_is_whole(at) ? "true" : "false");
    } else if (before == AN_EVALUATION) {
        (void)fprintf(file, "    TRY(evaluation(r));\n");
    } else if (before == AN_ODD_SWEEP) {
        (void)fprintf(file, "    TRY(odd_sweep(r, zero_world_rank(r->world), r->setup->ranks));\n");
    } else if (before == A_SKIPPED_STEP && random_case_trains(at)) {
        (void)fprintf(file, "    TRY(skipped_step(r));\n");
    } else if (before == TURNED_SIGNS) {
        (void)fprintf(file, "    TRY(turned_signs(r));\n");
    } else if (before == NEW_VALUES) {
        (void)fprintf(file, "    TRY(new_values(r));\n");
    } else if (before == EVICTED_ROLES && c->evicted != 0 && step > 0) {
        (void)fprintf(file, "    TRY(evicted(r, 0x%x, ZERO_TIER_%s));\n", c->evicted,
                      c->evicted_to == ZERO_TIER_HOST ? "HOST" : "DISK");
    }
}

/* Those from step `first` on, of the case or of where it goes on. */
static void print_steps(FILE *file, const random_case *c, const printed_parts *parts,
                        uint64_t first, bool elsewhere)
{
    const random_case *at = elsewhere ? parts->elsewhere : c;
    const uint64_t end = elsewhere || parts->end == 0 ? c->run.steps : parts->end;
    (void)fprintf(file, "static zero_status %s_steps(rank *r)\n{\n", elsewhere ? "later" : "first");
    if (elsewhere) {
        (void)fprintf(file, "    TRY(load(r, %" PRIu64 "));\n", first);
    }
    for (uint64_t s = first; s < end; s++) {
        print_before(file, at, c, parts->before != NULL ? parts->before[s] : NOTHING, s);
        (void)fprintf(file, "    TRY(step(r, %s));\n", course_names[c->courses[s]]);
        for (int i = 0; i < 2 && !elsewhere && parts->saves[i].name != NULL; i++) {
            if (parts->saves[i].step == s + 1) {
                const printed_save *save = &parts->saves[i];
                (void)fprintf(file, "    TRY(%s(r, \"%s\", %d, %u));\n",
                              save->meanwhile ? "begin_save" : "save", save->name, save->replace,
                              save->keep);
            }
        }
    }
    if (!elsewhere && parts->saves[0].meanwhile) {
        (void)fprintf(file, "    TRY(zero_save_end(r->engine));\n");
    }
    (void)fprintf(file, "    return ZERO_OK;\n}\n\n");
}

/* As printed_loop.c's. */
static uint64_t hash_state(const toy_state *state)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int role = 0; role < TOY_ROLES; role++) {
        for (uint64_t e = 0; role != ZERO_ROLE_GRAD && e < state->element_count; e++) {
            const uint64_t held = UINT64_C(1) << 32;
            const uint64_t word = state->owners[role][e] != 0 ? held | state->bits[role][e] : 0;
            hash = (hash ^ word) * UINT64_C(0x100000001b3);
        }
    }
    return hash;
}

/* The whole file, if the command line wants it. */
static void print_case(const random_case *c, const printed_parts *parts)
{
    if (test_asked.program == NULL) {
        return;
    }
    FILE *file = fopen(test_asked.program, "w");
    CHECK(file != NULL);
    (void)fprintf(file,
                  "/* Case %" PRIu64 " of seed %" PRIu64 " of tests/engine/test_engine_programs.c, "
                  "without faults and refused\n * calls. It fails where its state has other "
                  "bits than that of one plain rank.\n *\n *     cc -std=c11 -Iinclude FILE "
                  "build/libzero.so\n */\n"
                  "#define _XOPEN_SOURCE 700\n#include \"printed_loop.c\"\n\n",
                  c->number, test_seed);
    print_model(file, &c->models[0]);
    print_setup(file, c, "first");
    print_steps(file, c, parts, 0, false);
    if (parts->elsewhere != NULL) {
        const printed_save *last = &parts->saves[parts->saves[1].name != NULL];
        print_setup(file, parts->elsewhere, "later");
        print_steps(file, c, parts, last->step, true);
    }
    (void)fprintf(file,
                  "int main(void)\n{\n    begin();\n    describe();\n"
                  "    run(first_setup(), first_steps);\n%s"
                  "    return end(UINT64_C(0x%016" PRIx64 "));\n}\n",
                  parts->elsewhere != NULL ? "    run(later_setup(), later_steps);\n" : "",
                  hash_state(parts->expected));
    CHECK_EQ(fclose(file), 0);
}

/* Print what such a program prints at its end, of a case that has come to the state. */
static zero_status print_end(const toy_trainer *trainer, const toy_state *state)
{
    if (test_asked.program == NULL || trainer->rank != 0) {
        return ZERO_OK;
    }
    const zero_stats stats = engine_stats(trainer->engine);
    printf("%" PRIu64 " steps, %" PRIu64 " discarded, %" PRIu64 " micro-steps, %" PRIu64
           " gathers, %" PRIu64 " reductions\nstate %016" PRIx64 "\n",
           stats.steps, stats.steps_discarded, stats.micro_steps, stats.gathers, stats.reduces,
           hash_state(state));
    return ZERO_OK;
}

#endif
