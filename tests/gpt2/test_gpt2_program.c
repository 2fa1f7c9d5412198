/* gpt2_train as a user runs it: it trains, its log files hold together, every way of running it
 * gives the same losses, and what it cannot do it refuses in one line with status 1. */
#include "gpt2_program.h"

#include "zero/role.h"

/* The lines of --losses-exact. */
typedef struct exact {
    char lines[8192];
    int count;
} exact;

static exact exact_lines(void)
{
    exact found = {.count = 0};
    size_t used = 0;
    for (const char *at = output; at != NULL && *at != '\0';) {
        const char *stop = strchr(at, '\n');
        const size_t length = stop != NULL ? (size_t)(stop - at) + 1 : strlen(at);
        if (strncmp(at, "exact ", 6) == 0) {
            CHECK(used + length < sizeof found.lines);
            memcpy(found.lines + used, at, length);
            used += length;
            found.count++;
        }
        at += length;
    }
    return found;
}

static exact exact_of(const char *options)
{
    run_well(test_text("--steps 6 --val-every 3 --losses-exact %s", options));
    const exact found = exact_lines();
    CHECK_EQ(found.count, 6);
    return found;
}

static void check_equal(const exact *left, const exact *right)
{
    if (strcmp(left->lines, right->lines) != 0) {
        TEST_FAIL("losses differ:\n%sand\n%s", left->lines, right->lines);
    }
}

static void check_prints(const exact *expected, const char *options)
{
    const exact found = exact_of(options);
    check_equal(expected, &found);
}

static double loss_of_line(const exact *found, int line)
{
    return strtod(after(found->lines, test_text("exact %d loss ", line + 1)), NULL);
}

/* --- training --------------------------------------------------------------------------------- */

static void check_reaches(double limit, const char *options)
{
    run_well(test_text("--steps 40 --val-every 40 --lr 0.01 --losses-exact %s", options));
    const exact found = exact_lines();
    CHECK_EQ(found.count, 40);
    CHECK_NEAR(loss_of_line(&found, 0), log(256), 0.3);
    const double last = loss_of_line(&found, 39);
    if (!(last < limit)) {
        TEST_FAIL("%s: the loss after 40 steps is %g", options, last);
    }
}

static void check_learns(const char *options)
{
    check_reaches(2.6, options);
}

TEST(losses_fall_in_every_type)
{
    begin();
    check_learns("--ranks 2 --dtype f32");
    check_learns("--ranks 2 --dtype bf16");
    check_learns("--ranks 2 --dtype f16");
    check_learns("--ranks 2 --dtype bf16 --moments bf16 --wire-dtype f32");
    check_learns("--ranks 2 --dtype bf16 --master none --grad-dtype f32");
}

TEST(losses_fall_with_every_optimizer)
{
    begin();
    check_learns("--ranks 2 --optimizer lion --lr 0.01");
    check_learns("--ranks 2 --optimizer sgd --lr 0.3 --weight-decay 0");
    check_learns("--ranks 2 --optimizer lamb --lr 0.1");
    check_reaches(2.0, "--ranks 2 --optimizer lamb --lr 0.1 --adapt-undecayed");
    check_reaches(3.2, "--ranks 2 --optimizer lars --lr 0.1 --trust 0.1");
}

TEST(every_stage_prints_the_same_losses)
{
    begin();
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        const exact zero = exact_of(test_text("--ranks %d --stage 0", ranks));
        for (int stage = 1; stage <= 3; stage++) {
            check_prints(&zero, test_text("--ranks %d --stage %d", ranks, stage));
        }
        check_prints(&zero, test_text("--ranks %d --shard-group 1", ranks));
    }
}

TEST(recomputation_and_another_run_print_the_same_losses)
{
    begin();
    const exact once = exact_of("--ranks 2 --dtype f32");
    const exact other_seed = exact_of("--ranks 2 --dtype f32 --seed 2");
    check_prints(&once, "--ranks 2 --dtype f32");
    check_prints(&once, "--ranks 2 --dtype f32 --recompute");
    CHECK(strcmp(once.lines, other_seed.lines) != 0);
}

TEST(every_tier_prints_the_same_losses)
{
    begin();
    const exact device = exact_of("--ranks 2");
    check_prints(&device, "--ranks 2 --master-tier host --moment-tier host");
    CHECK(strstr(output, "GB/s") == NULL);
    check_prints(&device, test_text("--ranks 2 --master-tier disk --moment-tier disk "
                                    "--extent-bytes 16K --disk %s --disk .",
                                    folder));
    check_output("/rank  disk ");
    check_output(" GB/s/rank  ");
    check_output("compute ");
    check_output("\nstate on disk by ");
    check_prints(&device, test_text("--ranks 2 --master-tier disk --moment-tier disk "
                                    "--extent-bytes 16K --speculative --disk %s",
                                    folder));
    check_output("updated during backward: ");
    check_prints(&device, test_text("--ranks 2 --stage 2 --moment-tier disk --disk %s", folder));
    check_prints(&device, test_text("--ranks 2 --moment-tier disk --evict disk --disk %s", folder));
    check_prints(&device, test_text("--ranks 2 --param-tier disk --grad-tier disk "
                                    "--master-tier host --disk %s",
                                    folder));
    check_output("/rank  disk ");
}

/* The global batch is the same, only the order of its sums differs. */
TEST(ranks_and_micro_steps_only_round_differently)
{
    begin();
    const exact one = exact_of("--ranks 1 --dtype f32");
    const exact four = exact_of("--ranks 4 --dtype f32");
    const exact parts = exact_of("--ranks 2 --dtype f32 --micro-steps 4");
    for (int step = 0; step < 6; step++) {
        CHECK_NEAR(loss_of_line(&one, step), loss_of_line(&four, step), 1e-5);
        CHECK_NEAR(loss_of_line(&one, step), loss_of_line(&parts, step), 1e-5);
    }
}

/* The options of both kinds of processes; `more`: where roles live. */
#define PROCESS_OPTIONS                                                                         \
    "--data %s --layers 2 --heads 2 --width 32 --seq 32 --batch 8 --val-batches 2 --threads 1 " \
    "--steps 6 --val-every 3 --losses-exact --disk %s %s"
#define ON_DISK "--param-tier disk --grad-tier disk --moment-tier disk"

static void check_launched(const exact *threads, const char *more)
{
    const char *line = test_text(PROCESS_OPTIONS, text_path, folder, more);
    (void)unlink(output_path);
    launch_environment("2");
    fflush(NULL);
    pid_t children[2];
    for (int rank = 0; rank < 2; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            execute(line, rank == 0 ? "0" : "1");
        }
    }
    const int code = wait_for(children[0]) + wait_for(children[1]);
    read_text(output_path, output);
    if (code != 0) {
        TEST_FAIL("sum of statuses %d: %s", code, output);
    }
    const exact processes = exact_lines();
    check_equal(threads, &processes);
}

TEST(processes_of_a_launcher_print_what_threads_print)
{
    begin();
    const exact threads = exact_of("--ranks 2");
    check_launched(&threads, "");
    check_launched(&threads, ON_DISK);
}

#ifdef GPT2_MPIRUN

static void check_mpi(const exact *threads, const char *more)
{
    const int code =
        run_shell(test_text("'%s' --oversubscribe --bind-to none -n 2 '%s' " PROCESS_OPTIONS,
                            GPT2_MPIRUN, GPT2_TRAIN, text_path, folder, more));
    if (code != 0) {
        TEST_FAIL("status %d: %s", code, output);
    }
    const exact processes = exact_lines();
    check_equal(threads, &processes);
}

#endif

/* The same again as processes of mpirun. */
TEST(processes_of_mpirun_print_what_threads_print)
{
#ifdef GPT2_MPIRUN
    begin();
    const exact threads = exact_of("--ranks 2");
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    /* MPI's own leaks and races are not looked for here. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    setenv("TSAN_OPTIONS", "report_bugs=0", 1);
    check_mpi(&threads, "");
    check_mpi(&threads, ON_DISK);
#else
    SKIP("built without MPI, or no mpirun was found");
#endif
}

/* The same tokens as uint16 in llm.c's format train the same way. */
TEST(a_token_file_trains_like_the_text)
{
    begin();
    static unsigned char file[1024 + 2 * TEXT_BYTES];
    const uint32_t header[3] = {20240520, 1, TEXT_BYTES};
    char text[TEXT_BYTES];
    make_text(text);
    memcpy(file, header, sizeof header);
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        file[1024 + 2 * i] = (unsigned char)text[i];
    }
    const exact from_text = exact_of("--ranks 2");
    write_file(text_path, file, sizeof file);
    check_prints(&from_text, "--ranks 2 --vocab 256");
}

/* --- what it prints --------------------------------------------------------------------------- */

TEST(samples_do_not_depend_on_the_stage)
{
    begin();
    char first[512];
    run_well("--steps 5 --ranks 2 --stage 0 --sample 60 --prompt AB --top-k 20");
    const char *mark = "---\nAB";
    const char *stop = strstr(after(output, mark), "\n---\n");
    CHECK(stop != NULL);
    const size_t length = (size_t)(stop - after(output, mark));
    CHECK(length >= 60 && length < sizeof first); /* a byte beyond ASCII prints as one byte */
    memcpy(first, after(output, mark), length);
    run_well("--steps 5 --ranks 2 --stage 3 --sample 60 --prompt AB --top-k 20");
    CHECK_BYTES(first, after(output, mark), length);
}

TEST(measured_memory_is_the_planned)
{
    begin();
    for (int stage = 0; stage <= 3; stage++) {
        run_well(test_text("--steps 2 --ranks 2 --memory --stage %d", stage));
        const char *at = after(output, "planned       measured\n");
        uint64_t planned = 0;
        for (int row = 0; row <= ZERO_ROLE_COUNT_MAX; row++) {
            if (row < ZERO_ROLE_COUNT_MAX && zero_role_exists((zero_role)row) == 0) {
                continue;
            }
            char *next = NULL;
            planned = strtoull(at + 27, &next, 10);
            const uint64_t measured = strtoull(next, &next, 10);
            CHECK_EQ(planned, measured);
            CHECK(*next == '\n');
            at = next + 1;
        }
        CHECK(planned > 0); /* the total */
    }
}

static uint32_t count_of(const char *text, char wanted)
{
    uint32_t count = 0;
    for (const char *at = text; *at != '\0'; at++) {
        count += *at == wanted;
    }
    return count;
}

TEST(log_files_hold_every_step)
{
    begin();
    run_well(test_text("--steps 7 --ranks 2 --val-every 3 --csv %s --json %s", csv, json));
    read_text(csv, output);
    CHECK(strncmp(output, "step,loss,val_loss,norm,lr,", 27) == 0);
    CHECK_EQ(count_of(output, '\n'), 8);
    CHECK_EQ(count_of(output, ','), 8 * 10);
    check_output(",memory_bytes,disk_bytes\n");
    read_text(json, output);
    CHECK(strncmp(output, "{\"settings\": {\"data\": \"", 23) == 0);
    check_output("{\"step\": 7, \"loss\": ");
    check_output("{\"step\": 3, \"loss\": ");
    CHECK(strtod(after(after(output, "{\"step\": 3,"), "\"val_loss\": "), NULL) > 1);
    CHECK(strncmp(after(after(output, "{\"step\": 4,"), "\"val_loss\": "), "null", 4) == 0);
    CHECK(strtod(after(output, "\"param\": {\"planned\": "), NULL) > 0);
    check_output("\"gather\": \"host memory\", \"reduce\": \"host memory\"");
    CHECK_EQ(count_of(output, '{'), count_of(output, '}'));
    CHECK_EQ(count_of(output, '['), count_of(output, ']'));
}

TEST(the_plan_and_the_help_need_no_training)
{
    begin();
    run_well("--plan --ranks 2");
    check_output("param slots");
    CHECK(strstr(output, "loss") == NULL);
    run_well("--plan --ranks 2 --preset gpt2-124m --layers 1 --heads 12 --width 768");
    check_output("stage 3: 3 units, 16 tensors, 7310592 elements, 2 ranks");
    run_well("--help");
    check_output("--losses-exact");
    run_well("-h");
    check_output("--losses-exact");
    run_well("--version");
    check_output("gpt2_train of libzero ");
}

/* Alone on the line, as a user asks what would fit: no data, and no batch that suits the ranks. */
static void check_plan(const char *options, const char *text)
{
    const int code = run_shell(test_text("'%s' --plan %s", GPT2_TRAIN, options));
    if (code != 0) {
        TEST_FAIL("%s: status %d: %s", options, code, output);
    }
    check_output(text);
}

TEST(presets_are_the_public_models)
{
    begin();
    check_plan("--preset gpt2-124m", "148 tensors, 124439808 elements");
    check_plan("--preset gpt2-355m", "292 tensors, 354823168 elements");
    check_plan("--preset gpt2-774m", "436 tensors, 774030080 elements");
    check_plan("--preset gpt2-1558m", "580 tensors, 1557611200 elements");
    check_output("1024 positions, vocabulary 50257: 1557.61 M parameters");
    check_plan("--preset gpt2-124m --ranks 7 --micro-steps 5", "124439808 elements, 7 ranks");
    /* Options given by name hold, on either side of the preset. */
    check_plan("--layers 1 --preset=gpt2-124m --vocab 256", "16 tensors, 8072448 elements");
    check_plan("--preset=gpt2-124m --vocab 256 --layers 1", "16 tensors, 8072448 elements");
    check_plan(test_text("--preset gpt2-124m --data %s", text_path),
               "148 tensors, 86039040 elements");
    check_output("vocabulary: the 256 bytes of ");
    check_output("the public gpt2-124m has 50257 tokens (--vocab 50257)");
}

/* --- refusals --------------------------------------------------------------------------------- */

TEST(wrong_options_are_refused)
{
    begin();
    check_refused("--frobnicate", "unknown option \"--frobnicate\"; --help lists them all");
    check_refused("--prest=gpt2-124m", "option \"--prest\"; did you mean \"--preset\"?");
    check_refused("--mirco-steps 2", "did you mean \"--micro-steps\"?");
    check_refused("-x", "unknown option \"-x\"");
    check_refused("--steps=0", "--steps 0: give a whole number in [1, 1000000000]");
    check_refused("--plan=yes", "--plan takes no value");
    check_refused("gpt2-124m", "\"gpt2-124m\" is no option");
    check_refused("-- --steps", "\"--steps\" is no option");
    check_refused("--steps", "--steps needs a value");
    check_refused("--steps 0", "--steps 0: give a whole number in [1, 1000000000]");
    check_refused("--steps ten", "--steps ten: give a whole number");
    check_refused("--steps -1", "--steps -1: give a whole number");
    check_refused("--steps 99999999999999999999999", "give a whole number");
    check_refused("--layers 1001", "--layers 1001: give a whole number in [1, 1000]");
    check_refused("--heads 5", "--heads 5 does not divide --width 32");
    check_refused("--width 0", "--width 0: give");
    check_refused("--dtype f64", "--dtype f64: give one of f32, bf16, f16");
    check_refused("--moments f16",
                  "--moments f16: moment_dtype \"f16\" is not one of default, f32, bf16");
    check_refused("--master bf16",
                  "--master bf16: master_dtype \"bf16\" is not one of default, f32, none");
    check_refused("--dtype f32 --master none", "--master none is for bf16 or f16");
    check_refused("--stage 4", "--stage 4: stage \"4\" is not one of 0, 1, 2, 3");
    check_refused("--nccl-memory all", "is not one of none, registered");
    check_refused("--nccl-memory registered", "it is for ZERO_DEVICE_CUDA over NCCL");
    check_refused("--zero-cta", "set nccl_memory to ZERO_NCCL_MEMORY_REGISTERED");
    check_refused("--lr nan", "--lr nan: give a number in [0, 10]");
    check_refused("--lr -0.1", "--lr -0.1: give a number in [0, 10]");
    check_refused("--lr 0x1p-3", "--lr 0x1p-3: give a number in [0, 10]");
    check_refused("--lr=", "--lr : give a number in [0, 10]");
    check_refused("--seed 18446744073709551616", "give a whole number below 2^64");
    check_refused("--seed +1", "--seed +1: give a whole number");
    check_refused("--budget 1KK", "--budget 1KK: device_budget_bytes \"1KK\" is not in");
    check_refused("--deadline 0", "--deadline 0: give a whole number in [1, 4294967]");
    check_refused("--skips-max -1", "--skips-max -1: give a whole number in [0, 1000000000]");
    check_refused("--json -", "--json - is for --plan; give a file");
    check_refused("--beta1 1", "--beta1 1: give a number");
    check_refused("--optimizer callback", "ZERO_OPTIMIZER_CALLBACK needs it");
    check_refused("--min-lr 1 --lr 0.1", "--min-lr 1 is above --lr 0.1");
    check_refused("--warmup 20 --steps 10", "--warmup 20 is longer than --steps 10");
    check_refused("--moment-tier tape", "tiers are default, device, host, disk");
    check_refused("--master-tier disk", "give --disk DIR");
    check_refused("--evict disk", "give --disk DIR");
    check_refused("--evict host", "frees nothing");
    check_refused("--param-tier disk", "give --disk DIR");
    check_refused("--master-tier disk --disk /nonexistent", "/nonexistent");
    check_refused("--moment-tier disk --disk . --extent-bytes 5000", "extent_bytes 5000");
    check_refused("--budget 5X", "--budget 5X: device_budget_bytes");
    check_refused("--budget 99999999999G", "with K, M or G behind it");
    check_refused("--micro-steps 3", "--micro-steps 3 does not divide --batch 8");
    check_refused("--ranks 3", "--batch 8 is no multiple of 3 ranks x 1 micro-steps; 9 would be");
    check_refused("--ranks 257", "--ranks 257: give a whole number in [1, 256]");
    check_refused("--ranks 4 --shard-group 3", "--shard-group 3 does not divide 4 ranks");
    check_refused("--look-ahead 64", "--look-ahead 64: look_ahead \"64\" is not in [1, 63]");
    check_refused("--no-prefetch=1", "--no-prefetch takes no value");
    check_refused("--disk-weights 1", "unknown option \"--disk-weights\"");
    check_refused("--preset gpt3", "--preset gpt3: give one of gpt2-124m");
}

/* Options that the GPU's kernels cannot serve are refused on any machine; the GPU itself only where
 * it lacks. */
TEST(a_gpu_is_refused_where_it_cannot_serve)
{
    begin();
    check_refused("--device gpu", "--device gpu: device \"gpu\" is not one of default, cpu, cuda");
    check_refused("--device cuda --dtype f16", "--dtype f16 is not for --device cuda");
    check_refused("--device cuda --dtype f32 --grad-dtype bf16", "--grad-dtype bf16 with --dtype");
    check_refused("--device cuda --heads 8", "--width 32 / --heads 8 is 4; --device cuda needs");
    if (run("--device cuda --ranks 2 --steps 1") != 0) {
        CHECK(strncmp(output, "gpt2_train: --device cuda: ", 27) == 0);
        CHECK(strchr(output, '\n') == output + strlen(output) - 1);
    }
}

TEST(wrong_data_and_files_are_refused)
{
    begin();
    check_refused("--data /nonexistent", "cannot open /nonexistent");
    check_refused("--val /nonexistent", "cannot open /nonexistent");
    check_refused("--seq 2000", "validation part has 600 tokens, --seq 2000 needs");
    check_refused("--vocab 32", "is not below the vocabulary of 32");
    check_refused("--csv /nonexistent/file", "cannot write /nonexistent/file");
    check_refused("--json /nonexistent/file", "cannot write /nonexistent/file");
}

TEST(too_small_a_budget_is_refused_with_the_shortfall)
{
    begin();
    CHECK_EQ(run("--ranks 2 --budget 1K"), 1);
    check_output("gpt2_train: ");
    check_output("1024");
}

TEST(half_an_environment_is_refused)
{
    begin();
    CHECK_EQ(setenv("WORLD_SIZE", "2", 1), 0);
    CHECK_EQ(run("--steps 1"), 1);
    check_output("gpt2_train: ");
    CHECK_EQ(setenv("RANK", "0", 1) + setenv("LOCAL_RANK", "0", 1), 0);
    check_refused("--steps 1 --ranks 2", "--ranks is for ranks in one process");
    CHECK_EQ(setenv("RANK", "2", 1), 0);
    CHECK_EQ(run("--steps 1"), 1);
    check_output("gpt2_train: ");
}
