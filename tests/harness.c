/* Owns a test program's command line, its list of tests, and the processes in which they run.
 *
 * Arguments: words select tests: "io." those of test_io.c, "io.short_reads" those of its tests
 * whose names begin so, "short" all that have it in their names; without a word, all. --seed N;
 * --machine: on the deterministic machine (tests/machine), where the program has it; --cases N,
 * --case K: see harness.h; --choices LIST, --chosen FILE, --program FILE: what test_asked
 * is; --list: names alone. Environment: TEST_TIMEOUT in seconds for a test (default 120, with
 * sanitizers 360; none with --cases).
 *
 * One line a test; under one that failed, the command that repeats it. The last line is
 * "N passed, N failed, N skipped". */
#include "harness.h"

#include <stdatomic.h>
#include <sys/mman.h>

/* Nothing where the machine is not linked. */
extern void machine_begin(uint64_t seed) __attribute__((weak));

uint64_t test_seed = 1;
bool test_over_doubles;
struct test_asked test_asked;

static test_case *first;
static test_case **last = &first;

static struct {
    const char *program;
    char **words;
    int word_count;
    bool machine;
    bool list;
    uint64_t cases;           /* 0: what is usual */
    uint64_t chosen;          /* the one case */
    bool one;                 /* it was asked for */
    uint64_t *case_under_way; /* shared with the test's process; UINT64_MAX: none */
} run;

void test_add(test_case *test)
{
    *last = test;
    last = &test->next;
}

void test_machine_begin(uint64_t seed)
{
    if (run.machine) {
        machine_begin(seed);
    }
}

uint64_t test_cases(uint64_t usual, uint64_t *from)
{
    const uint64_t count = getenv("TEST_LONG") != NULL ? usual : (usual + 2) / 3;
    *from = run.one ? run.chosen : 0;
    return run.one ? 1 : run.cases != 0 ? run.cases : count;
}

bool test_case_is_chosen(void)
{
    return run.one;
}

void test_case_begins(uint64_t number)
{
    *run.case_under_way = number;
}

/* Not a thread's own: the machine copies those with every turn. */
const char *test_text(const char *format, ...)
{
    enum { TEXTS = 64, TEXT_MAX = 2048 };
    static char texts[TEXTS][TEXT_MAX];
    static atomic_uint turn;
    char *text = texts[atomic_fetch_add(&turn, 1) % TEXTS];
    va_list parts;
    va_start(parts, format);
    CHECK((unsigned)vsnprintf(text, TEXT_MAX, format, parts) < TEXT_MAX);
    va_end(parts);
    return text;
}

/* "io.short_reads", of test_io.c. */
static const char *name_of(const test_case *test)
{
    const char *slash = strrchr(test->file, '/');
    const char *file = slash != NULL ? slash + 1 : test->file;
    file += strncmp(file, "test_", 5) == 0 ? 5 : 0;
    return test_text("%.*s.%s", (int)strcspn(file, "."), file, test->name);
}

static bool is_wanted(const test_case *test)
{
    const char *name = name_of(test);
    bool wanted = run.word_count == 0;
    for (int i = 0; i < run.word_count; i++) {
        const char *word = run.words[i];
        wanted |= strchr(word, '.') != NULL ? strncmp(name, word, strlen(word)) == 0
                                            : strstr(test->name, word) != NULL;
    }
    return wanted;
}

static unsigned limit_s(void)
{
    const char *limit = getenv("TEST_TIMEOUT");
    if (limit != NULL) {
        return (unsigned)strtoul(limit, NULL, 10);
    }
    return run.cases != 0 ? 0 : UNDER_SANITIZER ? 360 : 120;
}

/* Runs one test in a child; returns its exit status, or 128 + signal. exit(), not _exit(), ends a
 * test that passed, so that leak checkers report. */
static int run_child(const test_case *test)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(limit_s());
        run.machine &= !test->real;
        test_machine_begin(test_seed);
        test->run();
        exit(0);
    }
    int state = 0;
    while (child > 0 && waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    if (child < 0) {
        return 99;
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static void print_command(const test_case *test)
{
    printf("        again: %s%s --seed %" PRIu64, run.program, run.machine ? " --machine" : "",
           test_seed);
    if (*run.case_under_way != UINT64_MAX) {
        printf(" --case %" PRIu64, *run.case_under_way);
    }
    if (test_asked.choices != NULL) {
        printf(" --choices \"%s\"", test_asked.choices);
    }
    printf(" %s\n", name_of(test));
}

/* Run a test, and count it as passed, failed or skipped in counts[0, 1 or 2]. */
static void run_test(const test_case *test, unsigned counts[3])
{
    *run.case_under_way = UINT64_MAX;
    const int code = run_child(test);
    const int verdict = code == 0 ? 0 : code == 77 ? 2 : 1;
    static const char *const words[] = {"ok", "FAILED", "skip"};
    counts[verdict]++;
    printf("%-8s%s", code == 128 + SIGALRM ? "TIMEOUT" : words[verdict], name_of(test));
    if (verdict == 1) {
        printf(" (exit %d, seed %" PRIu64 ")\n", code, test_seed);
        print_command(test);
    } else {
        printf("\n");
    }
}

/* The number behind an option; the program ends where there is none. */
static uint64_t number_behind(char **argv, int *i)
{
    char *end = NULL;
    const char *text = argv[*i + 1];
    errno = 0;
    const uint64_t number = text != NULL ? strtoull(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != 0 || errno != 0) {
        fprintf(stderr, "%s: %s wants a number, not \"%s\"\n", run.program, argv[*i],
                text != NULL ? text : "");
        exit(2);
    }
    ++*i;
    return number;
}

/* True if a word is an option that a text follows, which is taken then. */
static bool takes_text(char **argv, int *i)
{
    const struct {
        const char *name;
        const char **text;
    } options[] = {{"--choices", &test_asked.choices},
                   {"--chosen", &test_asked.chosen},
                   {"--program", &test_asked.program}};
    for (size_t o = 0; o < sizeof options / sizeof options[0]; o++) {
        if (strcmp(argv[*i], options[o].name) == 0) {
            *options[o].text = argv[++*i];
            if (*options[o].text == NULL) {
                fprintf(stderr, "%s: %s wants a text\n", run.program, options[o].name);
                exit(2);
            }
            return true;
        }
    }
    return false;
}

static void read_arguments(char **argv)
{
    run.program = argv[0];
    run.words = argv;
    for (int i = 1; argv[i] != NULL; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--seed") == 0) {
            test_seed = number_behind(argv, &i);
        } else if (strcmp(word, "--cases") == 0) {
            run.cases = number_behind(argv, &i);
        } else if (strcmp(word, "--case") == 0) {
            run.chosen = number_behind(argv, &i);
            run.one = true;
        } else if (strcmp(word, "--machine") == 0) {
            run.machine = true;
        } else if (strcmp(word, "--list") == 0) {
            run.list = true;
        } else if (takes_text(argv, &i)) {
            continue;
        } else if (word[0] == '-') {
            fprintf(stderr, "%s: unknown option %s; see tests/harness.c\n", run.program, word);
            exit(2);
        } else {
            run.words[run.word_count++] = argv[i];
        }
    }
    if (run.machine && machine_begin == NULL) {
        fprintf(stderr, "%s: --machine: this program is built without it\n", run.program);
        exit(2);
    }
}

int test_main(int argc, char **argv)
{
    unsigned counts[3] = {0, 0, 0};
    (void)argc;
    read_arguments(argv);
    run.case_under_way = mmap(NULL, sizeof *run.case_under_way, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.case_under_way == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    for (const test_case *test = first; test != NULL; test = test->next) {
        if (is_wanted(test) && run.list) {
            printf("%s\n", name_of(test));
        } else if (is_wanted(test)) {
            run_test(test, counts);
        }
    }
    if (run.list) {
        return 0;
    }
    if (run.word_count != 0 && counts[0] + counts[1] + counts[2] == 0) {
        fprintf(stderr, "%s: no test has such a name; --list prints them\n", run.program);
        return 2;
    }
    printf("%u passed, %u failed, %u skipped\n", counts[0], counts[1], counts[2]);
    return counts[1] == 0 ? 0 : 1;
}
