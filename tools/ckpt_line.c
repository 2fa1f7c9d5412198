/* Owns `zero ckpt`: reads its line and hands it to the subcommand. */
#include "ckpt.h"

#include <inttypes.h>
#include <string.h>

#include "command_line.h"
#include "commands.h"

enum {
    OPTION_JSON = COMMAND_LINE_OPTIONS,
    OPTION_TENSORS,
    OPTION_DTYPE,
    OPTION_STRICT,
    OPTION_ROLE,
    OPTION_SHARD_BYTES,
    OPTION_KEEP,
    OPTION_DRY_RUN,
    OPTION_SKIP_OTHERS,
    OPTION_WORLD
};

#define HELP_TEXT "  -h, --help         this text\n"
#define JSON_TEXT "  --json FILE        write it as JSON too; - for stdout, without the text\n"

static const struct option json_options[] = {{"help", no_argument, NULL, COMMAND_LINE_HELP},
                                             {"json", required_argument, NULL, OPTION_JSON},
                                             {0}};
static const struct option show_options[] = {{"help", no_argument, NULL, COMMAND_LINE_HELP},
                                             {"json", required_argument, NULL, OPTION_JSON},
                                             {"tensors", no_argument, NULL, OPTION_TENSORS},
                                             {0}};
static const struct option export_options[] = {
    {"help", no_argument, NULL, COMMAND_LINE_HELP},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"strict", no_argument, NULL, OPTION_STRICT},
    {"role", required_argument, NULL, OPTION_ROLE},
    {"shard-bytes", required_argument, NULL, OPTION_SHARD_BYTES},
    {0}};
static const struct option import_options[] = {
    {"help", no_argument, NULL, COMMAND_LINE_HELP},
    {"skip-others", no_argument, NULL, OPTION_SKIP_OTHERS},
    {0}};
static const struct option prune_options[] = {{"help", no_argument, NULL, COMMAND_LINE_HELP},
                                              {"keep", required_argument, NULL, OPTION_KEEP},
                                              {"dry-run", no_argument, NULL, OPTION_DRY_RUN},
                                              {0}};
static const struct option reshard_options[] = {{"help", no_argument, NULL, COMMAND_LINE_HELP},
                                                {"world", required_argument, NULL, OPTION_WORLD},
                                                {0}};

typedef struct ckpt_command {
    const char *name;
    const char *speaker; /* in bench_fail */
    const char *words;   /* of the line, as --help names them */
    uint32_t word_count;
    int refused; /* exit status of a line that is refused */
    const struct option *options;
    int (*run)(const ckpt_line *line);
    const char *summary;
    const char *help;
} ckpt_command;

static const ckpt_command commands[] = {
    {"ls", "zero ckpt ls", "RUN", 1, 1, json_options, ckpt_list,
     "the checkpoints of a run, and saves that did not end",
     "Lists the whole checkpoints in the directory RUN, oldest first, and with the\n"
     "word \"torn\" what is none: the folder of a save that did not end, or one whose\n"
     "manifest cannot be read. Torn folders are never loaded.\n\n" JSON_TEXT},
    {"show", "zero ckpt show", "CKPT", 1, 1, show_options, ckpt_show,
     "step, files, types, hyper-parameters",
     "Prints the manifest of CKPT: step, model, files, hyper-parameters. No tensor is\n"
     "read.\n\n"
     "  --tensors          every tensor too, with its shape and types\n" JSON_TEXT},
    {"verify", "zero ckpt verify", "CKPT", 1, 1, json_options, ckpt_verify,
     "read every byte and compare it with its sum",
     "Reads all of CKPT and compares every byte with what was saved. Exit status 1\n"
     "where something differs, after a line for each damaged range with file, tensor\n"
     "and offset.\n\n" JSON_TEXT},
    {"diff", "zero ckpt diff", "A B", 2, 2, json_options, ckpt_diff,
     "what differs between two checkpoints",
     "Compares two checkpoints by their sums: no tensor is read, so large ones take no\n"
     "longer. Numbers of ranks may differ. Tensors that model-parallel parts have cut\n"
     "in other ways are read. Exit status: 0 the same state, 1 they differ, 2 an\n"
     "error.\n\n" JSON_TEXT},
    {"export", "zero ckpt export", "CKPT OUT", 2, 1, export_options, ckpt_export,
     "parameters as public safetensors",
     "Writes the parameters of CKPT to the folder OUT: model.safetensors, or several\n"
     "files and model.safetensors.index.json. Boxes of model-parallel parts are joined\n"
     "into whole tensors. All that is read is compared with its sums.\n\n"
     "  --dtype TYPE       f32, bf16 or f16, rounded to nearest even; default: as\n"
     "                     saved\n"
     "  --strict           refuse finite values that are beyond the range of TYPE;\n"
     "                     default: they become infinite, and stderr says how many\n"
     "  --role ROLE        param (default), master, or best: of each tensor the\n"
     "                     master, or the parameter where it has no master\n"
     "  --shard-bytes N    of tensors in a file, at most; K, M and G are KiB, MiB and\n"
     "                     GiB; default 4G, which is the most\n"},
    {"import", "zero ckpt import", "IN OUT", 2, 1, import_options, ckpt_import,
     "safetensors as a checkpoint of parameters",
     "Makes the checkpoint OUT of the safetensors IN: a file, the index of several, or\n"
     "a folder with either. It has parameters and their sums, no masters and no\n"
     "moments: load it with zero_load_options.params_only.\n\n"
     "  --skip-others      leave out tensors that are none of f32, bf16 and f16,\n"
     "                     such as buffers of positions, and name them\n"},
    {"prune", "zero ckpt prune", "RUN", 1, 1, prune_options, ckpt_prune,
     "remove the oldest checkpoints of a run",
     "Removes the oldest whole checkpoints in RUN but N, and what older saves left\n"
     "that did not end. Prints what it removed.\n\n"
     "  --keep N           how many stay; needed\n"
     "  --dry-run          print it only\n"},
    {"reshard", "zero ckpt reshard", "CKPT OUT", 2, 1, reshard_options, ckpt_reshard,
     "the same state, with sums cut for other ranks",
     "Makes the checkpoint OUT of CKPT, with the same bytes of tensors, and sums that\n"
     "end where the parts of N ranks do. Loading at N ranks does not need it: files do\n"
     "not depend on the number of ranks. After it each rank finds damage in what it\n"
     "reads at once, and not at the end of the load. A checkpoint of a model in\n"
     "several parts becomes one in one part, of whole tensors.\n\n"
     "  --world N          ranks, in [1, 65536]; needed\n"},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_help(void)
{
    printf("usage: zero ckpt COMMAND ...\n\n"
           "Looks at checkpoints, checks them, and makes others of them. RUN is a run's\n"
           "directory. CKPT is the folder of a checkpoint, or RUN for its newest.\n\n"
           "commands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        printf("  %-8s %-9s %s\n", commands[i].name, commands[i].words, commands[i].summary);
    }
    printf("\n`zero ckpt COMMAND --help` explains a command.\n");
}

static int print_command_help(const ckpt_command *command)
{
    printf("usage: %s %s [OPTIONS]\n\n%s%s", command->speaker, command->words, command->help,
           HELP_TEXT);
    return ckpt_flush();
}

/* ---- values ---- */

static int read_type(const char *text, zero_dtype *type)
{
    for (int i = ZERO_DTYPE_F32; i <= ZERO_DTYPE_F16; i++) {
        if (strcmp(text, zero_dtype_name((zero_dtype)i)) == 0) {
            *type = (zero_dtype)i;
            return 0;
        }
    }
    return bench_fail("--dtype %.40s: f32, bf16 or f16", text);
}

static int read_role(const char *text, ckpt_line *line)
{
    line->best = strcmp(text, "best") == 0;
    line->role = strcmp(text, "master") == 0 ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
    return line->best || strcmp(text, zero_role_name(line->role)) == 0
               ? 0
               : bench_fail("--role %.40s: param, master or best", text);
}

static int read_whole(const char *name, const char *text, uint64_t high, uint64_t *value)
{
    return command_line_whole(text, 1, high, value)
               ? 0
               : bench_fail("%s %.40s: a whole number in [1, %" PRIu64 "]", name, text, high);
}

static int read_option(int option, const char *value, ckpt_line *line)
{
    switch (option) {
    case OPTION_JSON:
        line->json_path = value;
        return 0;
    case OPTION_TENSORS:
        line->tensors = true;
        return 0;
    case OPTION_DRY_RUN:
        line->dry_run = true;
        return 0;
    case OPTION_SKIP_OTHERS:
        line->skip_others = true;
        return 0;
    case OPTION_STRICT:
        line->strict = true;
        return 0;
    case OPTION_DTYPE:
        return read_type(value, &line->type);
    case OPTION_ROLE:
        return read_role(value, line);
    case OPTION_KEEP:
        return read_whole("--keep", value, UINT32_MAX, &line->keep);
    case OPTION_WORLD:
        return read_whole("--world", value, 65536, &line->world);
    default:
        return command_line_bytes(value, &line->shard_bytes) && line->shard_bytes > 0 &&
                       line->shard_bytes <= ZI_CHECKPOINT_FILE_BYTES
                   ? 0
                   : bench_fail("--shard-bytes %.40s: bytes in [1, 4G]", value);
    }
}

/* ---- the line ---- */

/* 1: --help was asked for; -1 after bench_fail. */
static int read_line(const ckpt_command *command, int argc, char **argv, ckpt_line *line)
{
    command_line words = command_line_begin(argc, argv, command->options);
    const char *value = NULL;
    uint32_t word_count = 0;
    int found = 0;
    while ((found = command_line_next(&words, &value)) != COMMAND_LINE_END) {
        if (found == COMMAND_LINE_HELP) {
            return 1;
        }
        if (found == COMMAND_LINE_BAD) {
            (void)bench_fail("%s", words.error);
            return -1;
        }
        if (found == COMMAND_LINE_WORD && word_count == command->word_count) {
            (void)bench_fail("\"%.200s\" is one word too many; it takes %s", value, command->words);
            return -1;
        }
        if (found == COMMAND_LINE_WORD) {
            line->words[word_count++] = value;
        } else if (read_option(found, value, line) != 0) {
            return -1;
        }
    }
    if (word_count < command->word_count) {
        (void)bench_fail("it takes %s; see `%s --help`", command->words, command->speaker);
        return -1;
    }
    return 0;
}

static int run(const ckpt_command *command, int argc, char **argv)
{
    ckpt_line line = {.role = ZERO_ROLE_PARAM, .shard_bytes = ZI_CHECKPOINT_FILE_BYTES};
    bench_speak_as(command->speaker);
    const int read = read_line(command, argc, argv, &line);
    if (read != 0) {
        return read > 0 ? print_command_help(command) : command->refused;
    }
    return command->run(&line);
}

int command_ckpt(int argc, char **argv)
{
    const char *names[COMMAND_COUNT];
    char advice[128];
    bench_speak_as("zero ckpt");
    if (argc < 2) {
        return bench_fail("which command? see `zero ckpt --help`");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return ckpt_flush();
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[1], commands[i].name) == 0) {
            return run(&commands[i], argc - 1, argv + 1);
        }
    }
    command_line_advice(argv[1], names, COMMAND_COUNT, "", "zero ckpt --help", advice,
                        sizeof advice);
    return bench_fail("unknown command \"%.200s\"%s", argv[1], advice);
}
