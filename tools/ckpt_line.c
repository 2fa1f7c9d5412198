/* Owns `zero ckpt`: reads its line and hands it to the subcommand. */
#include "ckpt.h"

#include <string.h>

#include "command_line.h"
#include "commands.h"
#include "line_table.h"

/* ---- values ---- */

static int read_type(void *line, const char *name, const char *text)
{
    for (int i = ZERO_DTYPE_F32; i <= ZERO_DTYPE_F16; i++) { /* of parameters */
        if (strcmp(text, zero_dtype_name((zero_dtype)i)) == 0) {
            ((ckpt_line *)line)->type = (zero_dtype)i;
            return 0;
        }
    }
    return bench_fail("--%s %.40s: f32, bf16 or f16", name, text);
}

static int read_role(void *words, const char *name, const char *text)
{
    ckpt_line *line = words;
    line->best = strcmp(text, "best") == 0;
    line->role = strcmp(text, "master") == 0 ? ZERO_ROLE_MASTER : ZERO_ROLE_PARAM;
    return line->best || strcmp(text, zero_role_name(line->role)) == 0
               ? 0
               : bench_fail("--%s %.40s: param, master or best", name, text);
}

static int read_shard_bytes(void *line, const char *name, const char *text)
{
    uint64_t *bytes = &((ckpt_line *)line)->shard_bytes;
    return command_line_bytes(text, bytes) && *bytes > 0 && *bytes <= ZI_CHECKPOINT_FILE_BYTES
               ? 0
               : bench_fail("--%s %.40s: bytes in [1, 4G]", name, text);
}

#define AT(field) offsetof(ckpt_line, field)
#define JSON_ROW LINE_VALUE("json", LINE_TEXT, AT(json_path))

static const line_row show_rows[] = {JSON_ROW, LINE_VALUE("tensors", LINE_FLAG, AT(tensors))};
static const line_row export_rows[] = {
    LINE_BY("dtype", read_type), LINE_VALUE("strict", LINE_FLAG, AT(strict)),
    LINE_BY("role", read_role), LINE_BY("shard-bytes", read_shard_bytes)};
static const line_row import_rows[] = {LINE_VALUE("skip-others", LINE_FLAG, AT(skip_others))};
static const line_row prune_rows[] = {LINE_NUMBER("keep", LINE_U64, AT(keep), 1, UINT32_MAX),
                                      LINE_VALUE("dry-run", LINE_FLAG, AT(dry_run))};
static const line_row reshard_rows[] = {LINE_NUMBER("world", LINE_U64, AT(world), 1, 65536)};

#define HELP_TEXT "  -h, --help         this text\n"
#define JSON_TEXT "  --json FILE        write it as JSON too; - for stdout, without the text\n"

typedef struct ckpt_command {
    const char *name;
    const char *speaker; /* in bench_fail */
    const char *words;   /* of the line, as --help names them */
    uint32_t word_count;
    int refused; /* exit status of a line that is refused */
    const line_row *rows;
    size_t row_count;
    int (*run)(const ckpt_line *line);
    const char *summary;
    const char *help;
} ckpt_command;

static const ckpt_command commands[] = {
    {"ls", "zero ckpt ls", "RUN", 1, 1, show_rows, 1, ckpt_list,
     "the checkpoints of a run, and saves that did not end",
     "Lists the whole checkpoints in the directory RUN, oldest first, and with the\n"
     "word \"torn\" what is none: the folder of a save that did not end, or one whose\n"
     "manifest cannot be read. Torn folders are never loaded.\n\n" JSON_TEXT},
    {"show", "zero ckpt show", "CKPT", 1, 1, show_rows, 2, ckpt_show,
     "step, files, types, hyper-parameters",
     "Prints the manifest of CKPT: step, model, files, hyper-parameters. No tensor is\n"
     "read.\n\n"
     "  --tensors          every tensor too, with its shape and types\n" JSON_TEXT},
    {"verify", "zero ckpt verify", "CKPT", 1, 1, show_rows, 1, ckpt_verify,
     "read every byte and compare it with its sum",
     "Reads all of CKPT and compares every byte with what was saved. Exit status 1\n"
     "where something differs, after a line for each damaged range with file, tensor\n"
     "and offset.\n\n" JSON_TEXT},
    {"diff", "zero ckpt diff", "A B", 2, 2, show_rows, 1, ckpt_diff,
     "what differs between two checkpoints",
     "Compares two checkpoints by their sums: no tensor is read, so large ones take no\n"
     "longer. Numbers of ranks may differ. Tensors that model-parallel parts have cut\n"
     "in other ways are read. Exit status: 0 the same state, 1 they differ, 2 an\n"
     "error.\n\n" JSON_TEXT},
    {"export", "zero ckpt export", "CKPT OUT", 2, 1, export_rows, 4, ckpt_export,
     "parameters as public safetensors",
     "Writes the parameters of CKPT to the folder OUT: model.safetensors, or several\n"
     "files and model.safetensors.index.json. Boxes of model-parallel parts are joined\n"
     "into whole tensors. All that is read is compared with its sums.\n\n"
     "  --dtype TYPE       f32, bf16 or f16, rounded to nearest even; default: as\n"
     "                     saved, of masters that are remainders f32\n"
     "  --strict           refuse finite values that are beyond the range of TYPE;\n"
     "                     default: they become infinite, and stderr says how many\n"
     "  --role ROLE        param (default), master, or best: of each tensor the\n"
     "                     master, or the parameter where it has no master\n"
     "  --shard-bytes N    of tensors in a file, at most; K, M and G are KiB, MiB and\n"
     "                     GiB; default 4G, which is the most\n"},
    {"import", "zero ckpt import", "IN OUT", 2, 1, import_rows, 1, ckpt_import,
     "safetensors as a checkpoint of parameters",
     "Makes the checkpoint OUT of the safetensors IN: a file, the index of several, or\n"
     "a folder with either. It has parameters and their sums, no masters and no\n"
     "moments: load it with zero_load_options.params_only.\n\n"
     "  --skip-others      leave out tensors that are none of f32, bf16 and f16,\n"
     "                     such as buffers of positions, and name them\n"},
    {"prune", "zero ckpt prune", "RUN", 1, 1, prune_rows, 2, ckpt_prune,
     "remove the oldest checkpoints of a run",
     "Removes the oldest whole checkpoints in RUN but N, and what older saves left\n"
     "that did not end. Prints what it removed.\n\n"
     "  --keep N           how many stay; needed\n"
     "  --dry-run          print it only\n"},
    {"reshard", "zero ckpt reshard", "CKPT OUT", 2, 1, reshard_rows, 1, ckpt_reshard,
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

/* ---- the line ---- */

/* A line that is being read; the first member is what rows are about. */
typedef struct ckpt_words {
    ckpt_line line;
    const ckpt_command *command;
    uint32_t count;
} ckpt_words;

static int read_word(void *line, const char *value)
{
    ckpt_words *words = line;
    if (words->count == words->command->word_count) {
        return bench_fail("\"%.200s\" is one word too many; it takes %s", value,
                          words->command->words);
    }
    words->line.words[words->count++] = value;
    return 0;
}

static int run(const ckpt_command *command, int argc, char **argv)
{
    const line_table table = {command->rows, command->row_count, read_word};
    ckpt_words words = {.line = {.role = ZERO_ROLE_PARAM, .shard_bytes = ZI_CHECKPOINT_FILE_BYTES},
                        .command = command};
    bench_speak_as(command->speaker);
    int read = line_read(&table, argc, argv, &words, NULL);
    if (read == 0 && words.count < command->word_count) {
        read = bench_fail("it takes %s; see `%s --help`", command->words, command->speaker);
    }
    if (read != 0) {
        return read == LINE_HELP ? print_command_help(command) : command->refused;
    }
    return command->run(&words.line);
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
