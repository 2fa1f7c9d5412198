/* Owns the tests of folders: a save may die before any system call, or have any of them fail, and
 * an old or the new checkpoint is whole and found. The calls that change the file system go through
 * this program, which counts them; the linker puts it in between (--wrap). */
#include "checkpoint_case.h"
#include "folders.h"

#include <sys/resource.h>

#define DIED 42

/* ---- the calls ---- */

typedef enum mishap { DIE, FAIL } mishap;

static long calls;         /* so far */
static long mishap_at;     /* the n-th; 0: none */
static mishap mishap_kind; /* of the n-th */
static bool no_exchange;   /* the file system cannot */
static char order[256];    /* a letter for each call */

/* True if this call is the one that must fail. */
static bool hit(char letter)
{
    const size_t length = strlen(order);
    if (length + 1 < sizeof order) {
        order[length] = letter;
    }
    calls++;
    if (calls == mishap_at && mishap_kind == DIE) {
        _exit(DIED);
    }
    errno = EIO;
    return calls == mishap_at;
}

static void arm(mishap kind, long at)
{
    calls = 0;
    mishap_at = at;
    mishap_kind = kind;
    memset(order, 0, sizeof order);
}

#define WRAP(result, name, letter, parameters, arguments)  \
    result __real_##name parameters;                       \
    result __wrap_##name parameters;                       \
    result __wrap_##name parameters                        \
    {                                                      \
        return hit(letter) ? -1 : __real_##name arguments; \
    }                                                      \
    _Static_assert(true, #name)

WRAP(int, fsync, 'f', (int file), (file));
WRAP(int, rename, 'r', (const char *from, const char *to), (from, to));
WRAP(int, mkdir, 'm', (const char *path, mode_t mode), (path, mode));
WRAP(int, unlink, 'u', (const char *path), (path));
WRAP(int, rmdir, 'd', (const char *path), (path));

ssize_t __real_write(int file, const void *data, size_t bytes);
ssize_t __wrap_write(int file, const void *data, size_t bytes);
/* Half of it is written before the program dies. */
ssize_t __wrap_write(int file, const void *data, size_t bytes)
{
    if (calls + 1 == mishap_at && mishap_kind == DIE) {
        (void)!__real_write(file, data, bytes / 2);
    }
    return hit('w') ? -1 : __real_write(file, data, bytes);
}

int __real_zi_exchange_names(const char *one, const char *other);
int __wrap_zi_exchange_names(const char *one, const char *other);
int __wrap_zi_exchange_names(const char *one, const char *other)
{
    const bool failed = hit('x');
    errno = no_exchange ? EINVAL : errno;
    return failed || no_exchange ? -1 : __real_zi_exchange_names(one, other);
}

/* ---- runs ---- */

static char *run;
static case_model model;

static void make_run(void)
{
    run = rig_folder(true);
    case_make(&model, 3, 200, 2, test_seed);
}

static void remove_run(void)
{
    case_free(&model);
    case_remove(run, true);
    free(run);
}

/* Steps of what is whole, newest last; all can be read. */
static uint32_t steps_of(uint64_t steps[8])
{
    zi_checkpoint_entry *entries = NULL;
    uint32_t count = 0;
    CHECK_OK(zi_checkpoint_list(run, &entries, &count));
    CHECK(count <= 8);
    for (uint32_t i = 0; i < count; i++) {
        char folder[ZI_CHECKPOINT_PATH_BYTES];
        zi_manifest manifest;
        CHECK_OK(zi_checkpoint_find(run, entries[i].name, folder, NULL));
        CHECK_OK(zi_manifest_read(&manifest, folder));
        steps[i] = entries[i].head.step;
        CHECK_EQ(manifest.state.updates + manifest.state.skipped, steps[i]);
        zi_manifest_free(&manifest);
    }
    zi_free(entries);
    return count;
}

static char passed[ZI_CHECKPOINT_PASSED_BYTES]; /* why the newest is not the last commit's */

/* The step of the newest; 0: there is none. */
static uint64_t newest(void)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    zi_manifest_head head;
    const zero_status status = zi_checkpoint_find(run, NULL, folder, passed);
    if (status != ZERO_OK) {
        CHECK_EQ(status, ZERO_ERR_INVALID_ARGUMENT);
        CHECK_SAID(run);
        return 0;
    }
    CHECK_OK(zi_manifest_read_head(folder, true, &head));
    return head.step;
}

/* The changes of a save: the name and step of what is there, and of what comes. */
typedef struct scene {
    const char *old_name; /* NULL: nothing is there */
    uint64_t old_step;
    const char *new_name;
    uint64_t new_step;
} scene;

static const scene scenes[] = {
    {NULL, 0, "step-00000005", 5},
    {"step-00000005", 5, "step-00000006", 6},
    {"best", 5, "best", 6},
    {"best", 9, "best", 6},          /* a run that went back to an earlier step */
    {"step-00000009", 9, "again", 6} /* likewise */
};
#define SCENES (sizeof scenes / sizeof scenes[0])

static void set_scene(const scene *s)
{
    mishap_at = 0;
    case_remove(run, false);
    if (s->old_name != NULL) {
        case_write(&model, run, s->old_name, s->old_step);
    }
}

/* Old or new, whole; and the new one counts as soon as it has its name. */
static void check_scene(const scene *s)
{
    uint64_t steps[8];
    const uint32_t count = steps_of(steps);
    bool old = s->old_name == NULL;
    bool new = false;
    for (uint32_t i = 0; i < count; i++) {
        old = old || steps[i] == s->old_step;
        new = new || steps[i] == s->new_step;
        CHECK(steps[i] == s->old_step || steps[i] == s->new_step);
    }
    CHECK(old || new);
    CHECK_EQ(newest(), new ? s->new_step : s->old_step);
}

/* Nothing is left but checkpoints and the name of the newest. */
static void check_tidy(const scene *s)
{
    uint64_t steps[8];
    const bool apart = s->old_name != NULL && strcmp(s->old_name, s->new_name) != 0;
    CHECK_EQ(steps_of(steps), apart ? 2 : 1);
    CHECK_EQ(newest(), s->new_step);
    CHECK_EQ(rig_entries(run), apart ? 3 : 2);
}

/* Returns whether the save ended before it could die. */
static bool save_dies(const scene *s, long at)
{
    const pid_t child = fork();
    int state = 0;
    if (child == 0) {
        arm(DIE, at);
        case_write(&model, run, s->new_name, s->new_step);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state));
    CHECK(WEXITSTATUS(state) == 0 || WEXITSTATUS(state) == DIED);
    return WEXITSTATUS(state) == 0;
}

static void die_everywhere(bool exchange)
{
    make_run();
    no_exchange = !exchange;
    for (size_t i = 0; i < SCENES; i++) {
        bool ended = false;
        long at = 1;
        for (; !ended; at++) {
            set_scene(&scenes[i]);
            ended = save_dies(&scenes[i], at);
            check_scene(&scenes[i]);
            case_write(&model, run, scenes[i].new_name, scenes[i].new_step);
            check_tidy(&scenes[i]);
        }
        printf("  scene %zu: %ld calls\n", i, at - 1);
        CHECK(at > 10);
    }
    remove_run();
}

TEST_CALL(a_save_that_dies_leaves_the_old_or_the_new, die_everywhere(true));
TEST_CALL(a_save_that_dies_where_names_cannot_be_exchanged, die_everywhere(false));

/* The checkpoint that was whole before the second save stays the newest until the second is whole:
 * also where the first died before it could say so in `latest`, and where steps do not tell which
 * is newer. */
TEST(two_saves_that_die_one_after_the_other)
{
    const scene *first = &scenes[SCENES - 1];
    const scene second = {.new_name = "third", .new_step = 7};
    bool ended = false;
    make_run();
    for (long at = 1; !ended; at++) {
        bool second_ended = false;
        for (long second_at = 1; !second_ended; second_at++) {
            set_scene(first);
            ended = save_dies(first, at);
            const uint64_t before = newest();
            second_ended = save_dies(&second, second_at);
            const uint64_t after = newest();
            CHECK(after == before || after == second.new_step);
        }
        CHECK_EQ(newest(), second.new_step);
    }
    remove_run();
}

static char *begin_scene(const scene *s, size_t *bytes)
{
    return case_begin(&model, run, s->new_name, s->new_step, bytes);
}

static void fail_everywhere(bool exchange)
{
    make_run();
    no_exchange = !exchange;
    for (size_t i = 0; i < SCENES; i++) {
        zero_status status = ZERO_ERR_IO;
        for (long at = 1; status != ZERO_OK; at++) {
            size_t bytes = 0;
            set_scene(&scenes[i]);
            char *text = begin_scene(&scenes[i], &bytes);
            arm(FAIL, at);
            status = zi_checkpoint_commit(run, scenes[i].new_name,
                                          &(zi_checkpoint_text){text, bytes, false});
            mishap_at = 0;
            zi_free(text);
            if (status != ZERO_OK) {
                CHECK_EQ(status, ZERO_ERR_IO);
                CHECK_SAID(run);
                CHECK_EQ(zero_last_error()->native, EIO);
                CHECK_EQ(newest(), scenes[i].old_step);
                zi_checkpoint_discard(run, scenes[i].new_name);
                CHECK_EQ(rig_entries(run), scenes[i].old_name != NULL ? 2 : 0);
            }
        }
        CHECK_EQ(newest(), scenes[i].new_step);
    }
    remove_run();
}

TEST_CALL(a_commit_that_fails_changes_nothing, fail_everywhere(true));
TEST_CALL(a_commit_that_fails_where_names_cannot_be_exchanged, fail_everywhere(false));

/* All that is named is on the disk before. w: write, f: fsync, r: rename, x: exchange, u:
 * removal. */
TEST(a_commit_syncs_before_it_names)
{
    size_t bytes = 0;
    make_run();
    set_scene(&scenes[2]);
    char *text = begin_scene(&scenes[2], &bytes);
    arm(FAIL, 0);
    CHECK_OK(zi_checkpoint_commit(run, "best", &(zi_checkpoint_text){text, bytes, false}));
    order[10] = '\0';
    CHECK(strcmp(order, "wfrfwfxfru") == 0);
    zi_free(text);
    remove_run();
}

/* ---- begin ---- */

TEST(names)
{
    const char *const bad[] = {"",       ".",      "..",  ".a", "a/b",
                               "a.part", "latest", "a b", "ü",  "x.replaced"};
    char part[ZI_CHECKPOINT_PATH_BYTES];
    char name[256];
    make_run();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_FAILS(zi_checkpoint_begin(run, bad[i], true, part), ZERO_ERR_INVALID_ARGUMENT,
                    bad[i]);
    }
    memset(name, 'x', sizeof name);
    name[201] = '\0';
    CHECK_FAILS(zi_checkpoint_begin(run, name, true, part), ZERO_ERR_INVALID_ARGUMENT, "200");
    name[200] = '\0';
    case_write(&model, run, name, 3);
    CHECK_EQ(newest(), 3);
    zi_checkpoint_step_name(name, sizeof name, 42);
    CHECK(strcmp(name, "step-00000042") == 0);
    remove_run();
}

TEST(a_name_that_is_taken)
{
    char part[ZI_CHECKPOINT_PATH_BYTES];
    make_run();
    case_write(&model, run, "a", 3);
    CHECK_FAILS(zi_checkpoint_begin(run, "a", false, part), ZERO_ERR_STATE, "replace");
    CHECK_OK(zi_checkpoint_begin(run, "b", false, part));
    CHECK_EQ(newest(), 3);
    /* The remains of a dead save are removed, and so is what is no folder. */
    CHECK(close(case_open(part, "left")) == 0);
    CHECK_OK(zi_checkpoint_begin(run, "b", false, part));
    CHECK_EQ(rig_entries(part), 0);
    CHECK(rmdir(part) == 0 && symlink("/etc", part) == 0);
    CHECK_OK(zi_checkpoint_begin(run, "b", false, part));
    CHECK_EQ(rig_entries(part), 0);
    CHECK(access("/etc/passwd", F_OK) == 0);
    remove_run();
}

TEST(directories)
{
    char part[ZI_CHECKPOINT_PATH_BYTES];
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    struct stat status;
    make_run();
    char inner[128];
    (void)snprintf(inner, sizeof inner, "%s/ein Lauf mit größe", run);
    (void)umask(077);
    case_write(&model, inner, "a", 3);
    CHECK_OK(zi_checkpoint_find(inner, NULL, folder, NULL));
    CHECK(strcmp(folder, test_text("%s/a", inner)) == 0);
    CHECK(stat(folder, &status) == 0 && (status.st_mode & 0777) == 0700);
    CHECK(stat(test_text("%s/" ZI_MANIFEST_NAME, folder), &status) == 0);
    CHECK_EQ(status.st_mode & 0777, 0600);
    /* A checkpoint's own folder is found as itself. */
    CHECK_OK(zi_checkpoint_find(test_text("%s/a", inner), NULL, folder, NULL));
    CHECK(strcmp(folder, test_text("%s/a", inner)) == 0);
    CHECK_FAILS(zi_checkpoint_find(inner, "b", folder, NULL), ZERO_ERR_INVALID_ARGUMENT, "/b");
    CHECK_FAILS(zi_checkpoint_find(inner, "../x", folder, NULL), ZERO_ERR_INVALID_ARGUMENT, "../x");
    CHECK_FAILS(zi_checkpoint_find("/nowhere", NULL, folder, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "/nowhere");
    CHECK_FAILS(zi_checkpoint_find(run, NULL, folder, NULL), ZERO_ERR_INVALID_ARGUMENT, run);
    CHECK_FAILS(zi_checkpoint_begin("/nowhere/run", "a", true, part), ZERO_ERR_IO, "/nowhere/run");
    CHECK_EQ(zero_last_error()->native, ENOENT);
    CHECK_FAILS(zi_checkpoint_begin(test_text("%s/a/" ZI_MANIFEST_NAME, inner), "a", true, part),
                ZERO_ERR_INVALID_ARGUMENT, "no directory");
    case_remove(inner, true);
    remove_run();
}

TEST(a_directory_that_may_not_be_written)
{
    char part[ZI_CHECKPOINT_PATH_BYTES];
    if (geteuid() == 0) {
        SKIP("root may write everywhere");
    }
    make_run();
    CHECK(chmod(run, 0500) == 0);
    CHECK_FAILS(zi_checkpoint_begin(run, "a", true, part), ZERO_ERR_IO, run);
    CHECK_EQ(zero_last_error()->native, EACCES);
    CHECK(chmod(run, 0700) == 0);
    remove_run();
}

TEST(a_disk_that_is_full)
{
    size_t bytes = 0;
    make_run();
    char *disk = rig_small_disk();
    free(run);
    run = disk;
    case_write(&model, run, "old", 5);
    char *text = begin_scene(&scenes[1], &bytes);
    const int rest = case_open(run, "rest");
    static const char block[4096];
    while (__real_write(rest, block, sizeof block) > 0) {
    }
    CHECK_FAILS(
        zi_checkpoint_commit(run, scenes[1].new_name, &(zi_checkpoint_text){text, bytes, false}),
        ZERO_ERR_IO, "manifest");
    CHECK_EQ(zero_last_error()->native, ENOSPC);
    CHECK_EQ(newest(), 5);
    CHECK(close(rest) == 0);
    zi_free(text);
    case_remove(run, false);
    rig_small_disk_remove(run);
    case_free(&model);
}

/* ---- list and find ---- */

TEST(what_is_torn_is_not_listed)
{
    uint64_t steps[8];
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    make_run();
    for (uint64_t step = 1; step <= 4; step++) {
        char name[32];
        zi_checkpoint_step_name(name, sizeof name, step);
        case_write(&model, run, name, step);
    }
    CHECK(truncate(test_text("%s/step-00000002/" ZI_MANIFEST_NAME, run), 700) == 0);
    CHECK(unlink(test_text("%s/step-00000004/" ZI_MANIFEST_NAME, run)) == 0);
    CHECK(mkdir(test_text("%s/empty", run), 0700) == 0);
    CHECK_EQ(steps_of(steps), 2);
    CHECK(steps[0] == 1 && steps[1] == 3);
    CHECK_EQ(newest(), 3); /* latest names one that is gone */
    CHECK_FAILS(zi_checkpoint_find(run, "step-00000002", folder, NULL), ZERO_ERR_CORRUPT,
                "step-00000002");
    CHECK_FAILS(zi_checkpoint_find(run, "step-00000004", folder, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "its save did not end");
    CHECK(truncate(test_text("%s/latest", run), 3) == 0);
    CHECK_EQ(newest(), 3);
    CHECK(unlink(test_text("%s/latest", run)) == 0);
    CHECK_EQ(newest(), 3);
    /* Nothing outside is named by it. */
    CHECK(symlink("/etc/passwd", test_text("%s/latest", run)) == 0);
    CHECK_EQ(newest(), 3);
    remove_run();
}

/* As another version of the library would have written it. */
static void set_version(const char *name, char version)
{
    static const char of_version[] = "\"version\": ";
    static const char of_hash[] = ",\n\"xxh3\": \"";
    static char text[1 << 16];
    const int file = open(test_text("%s/%s/" ZI_MANIFEST_NAME, run, name), O_RDWR);
    const ssize_t bytes = read(file, text, sizeof text - 1);
    CHECK(bytes > 0);
    text[bytes] = '\0';
    char *end = strstr(text, of_hash);
    char *place = strstr(text, of_version);
    CHECK(place != NULL && end != NULL);
    place[sizeof of_version - 1] = version;
    const uint64_t hash = zi_checkpoint_hash(text, (size_t)(end - text));
    CHECK(snprintf(end + sizeof of_hash - 1, 17, "%016" PRIx64, hash) == 16);
    end[sizeof of_hash - 1 + 16] = '"';
    case_put(file, text, (uint64_t)bytes, 0);
    CHECK(close(file) == 0);
}

/* Nobody begins anew, or goes on from an older one, because a checkpoint cannot be read. */
TEST(what_cannot_be_read_is_not_taken_for_nothing)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    make_run();
    case_write(&model, run, "step-00000001", 1);
    CHECK(truncate(test_text("%s/step-00000001/" ZI_MANIFEST_NAME, run), 700) == 0);
    CHECK_FAILS(zi_checkpoint_find(run, NULL, folder, NULL), ZERO_ERR_CORRUPT, "step-00000001");
    case_write(&model, run, "step-00000002", 2);
    case_write(&model, run, "step-00000003", 3);
    CHECK_EQ(newest(), 3);
    set_version("step-00000003", '9');
    CHECK_FAILS(zi_checkpoint_find(run, NULL, folder, NULL), ZERO_ERR_UNSUPPORTED, "version 9");
    CHECK_OK(zi_checkpoint_find(run, "step-00000002", folder, NULL));
    CHECK(truncate(test_text("%s/step-00000003/" ZI_MANIFEST_NAME, run), 700) == 0);
    CHECK_EQ(newest(), 2);
    remove_run();
}

/* ---- which one is the newest ---- */

static void write_step(uint64_t step)
{
    char name[32];
    zi_checkpoint_step_name(name, sizeof name, step);
    case_write(&model, run, name, step);
}

/* So many whole ones, newest last, by step. */
#define CHECK_STEPS(...)                                               \
    do {                                                               \
        const uint64_t wanted_[] = {__VA_ARGS__};                      \
        uint64_t steps_[8];                                            \
        CHECK_EQ(steps_of(steps_), sizeof wanted_ / sizeof(uint64_t)); \
        CHECK_BYTES(steps_, wanted_, sizeof wanted_);                  \
    } while (0)

/* A run that began anew, or went back, where an older one has left more steps. */
TEST(the_newest_was_committed_last)
{
    make_run();
    write_step(20);
    write_step(30);
    for (uint64_t step = 2; step <= 8; step += 2) {
        write_step(step);
    }
    CHECK_STEPS(20, 30, 2, 4, 6, 8);
    CHECK_EQ(newest(), 8);
    /* Also in a copy, whose files all have other times. */
    char *copy = rig_folder(true);
    CHECK_EQ(system(test_text("cd '%s' && cp -r step-00000008 step-0000000[246] step-000000[23]0 "
                              "latest '%s' && rm -r ./* && mv '%s'/* .",
                              run, copy, copy)),
             0);
    rig_remove(copy);
    CHECK_STEPS(20, 30, 2, 4, 6, 8);
    CHECK_OK(zi_checkpoint_prune(run, false, 2, NULL));
    CHECK_STEPS(6, 8);
    CHECK(truncate(test_text("%s/step-00000008/" ZI_MANIFEST_NAME, run), 700) == 0);
    CHECK_EQ(newest(), 6);
    remove_run();
}

/* A step that is saved again is a new commit; one that is copied here from elsewhere is none. */
TEST(commits_are_counted_in_each_directory)
{
    uint64_t commits = 0;
    make_run();
    write_step(1);
    write_step(2);
    write_step(1);
    CHECK_STEPS(2, 1);
    CHECK_OK(zi_checkpoint_commits(run, &commits));
    CHECK_EQ(commits, 3);
    CHECK_EQ(system(test_text("cd '%s' && cp -r step-00000002 copied", run)), 0);
    write_step(3);
    CHECK_EQ(newest(), 3);
    CHECK_EQ(system(test_text("cd '%s' && mv step-00000003 last && cp -r last step-00000003 && "
                              "rm -r last",
                              run)),
             0);
    CHECK_EQ(newest(), 3);
    remove_run();
}

/* ---- files that are named ---- */

/* Damages the newest, whose name and place the shell has as $NEW. */
static void lose(const char *command, const char *said)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    case_remove(run, false);
    write_step(1);
    write_step(2);
    write_step(3);
    CHECK_EQ(system(test_text("NEW='%s/step-00000003' && cd $NEW && %s", run, command)), 0);
    CHECK_EQ(newest(), 2);
    CHECK(strstr(passed, said) != NULL && strstr(passed, "step-00000003, the newest,") != NULL);
    CHECK_FAILS(zi_checkpoint_find(run, "step-00000003", folder, NULL), ZERO_ERR_CORRUPT, said);
    CHECK_OK(zi_checkpoint_prune(run, false, 2, NULL));
    CHECK_STEPS(1, 2);
    /* Nobody begins anew because of it. */
    CHECK_EQ(system(test_text("cd '%s' && rm -r step-0000000[12]", run)), 0);
    CHECK_FAILS(zi_checkpoint_find(run, NULL, folder, NULL), ZERO_ERR_CORRUPT, said);
}

TEST(what_is_whole_has_all_its_files)
{
    make_run();
    lose("rm param.safetensors", "param.safetensors is not there");
    lose("rm moment2.safetensors", "moment2.safetensors is not there");
    lose("rm sums.bin", "sums.bin is not there");
    lose("truncate -s -1 param.safetensors", "param.safetensors has ");
    lose("rm sums.bin && mkdir sums.bin", "sums.bin is no regular file");
    lose("cd .. && mv $NEW elsewhere && rm -r elsewhere && ln -s elsewhere $NEW",
         "link to nothing");
    case_split(&model, 3);
    lose("rm part-00002.param.safetensors", "part-00002.param.safetensors is not there");
    remove_run();
}

/* ---- kinds ---- */

static void write_weights(const char *name, uint64_t step)
{
    model.weights = true;
    case_write(&model, run, name, step);
    model.weights = false;
}

TEST(weights_do_not_count_for_what_can_be_resumed)
{
    make_run();
    write_weights("w1", 1);
    CHECK_EQ(newest(), 1); /* there is nothing else */
    CHECK(passed[0] == '\0' && access(test_text("%s/latest", run), F_OK) != 0);
    write_step(2);
    write_weights("w3", 3);
    write_step(4);
    write_weights("w5", 5);
    CHECK_STEPS(1, 2, 3, 4, 5);
    CHECK_EQ(newest(), 4);
    CHECK(unlink(test_text("%s/latest", run)) == 0);
    CHECK_EQ(newest(), 4);
    CHECK_OK(zi_checkpoint_prune(run, true, 2, NULL));
    CHECK_STEPS(2, 3, 4, 5);
    CHECK_OK(zi_checkpoint_prune(run, false, 1, NULL));
    CHECK_STEPS(3, 4, 5);
    /* Weights that replace what `latest` names leave it to the one before. */
    write_step(6);
    write_weights("step-00000006", 7);
    CHECK_EQ(newest(), 4);
    CHECK(strstr(passed, "step-00000006 has weights alone") != NULL);
    remove_run();
}

TEST(weights_that_die_leave_the_newest)
{
    int status = DIED;
    make_run();
    for (long at = 1; status == DIED; at++) {
        mishap_at = 0;
        case_remove(run, false);
        write_step(5);
        write_weights("w", 1);
        const pid_t child = fork();
        if (child == 0) {
            arm(DIE, at);
            write_weights("w", 6);
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
        status = WEXITSTATUS(status);
        uint64_t steps[8];
        CHECK_EQ(newest(), 5);
        CHECK(steps_of(steps) >= 2);
        write_weights("w", 7);
        CHECK_STEPS(5, 7);
        CHECK_EQ(rig_entries(run), 3);
    }
    CHECK_EQ(status, 0);
    remove_run();
}

/* ---- links ---- */

TEST(a_link_is_a_checkpoint_like_any_other)
{
    make_run();
    char *archive = rig_folder(true);
    for (uint64_t step = 1; step <= 4; step++) {
        write_step(step);
    }
    CHECK_EQ(system(test_text("cd '%s' && for s in 2 4; do mv step-0000000$s '%s' && "
                              "ln -s '%s'/step-0000000$s .; done && ln -s step-00000004 best && "
                              "ln -s step-00000003 also",
                              run, archive, archive)),
             0);
    CHECK_STEPS(1, 2, 3, 4); /* none twice */
    CHECK_EQ(newest(), 4);
    CHECK(unlink(test_text("%s/latest", run)) == 0);
    CHECK_EQ(newest(), 4);
    CHECK_OK(zi_checkpoint_prune(run, false, 2, NULL));
    CHECK_STEPS(3, 4);
    CHECK_EQ(rig_entries(archive), 2); /* only the link is gone */
    write_step(4);
    CHECK_STEPS(3, 4);
    CHECK(readlink(test_text("%s/step-00000004", run), passed, sizeof passed) < 0);
    CHECK_EQ(rig_entries(test_text("%s/step-00000004", archive)), 6);
    case_remove(archive, true);
    free(archive);
    remove_run();
}

/* ---- prune ---- */

/* Steps 1 to 5, of which 2 was committed last; and three that are not whole. */
static void set_prune(void)
{
    static const uint64_t steps[] = {1, 3, 4, 5, 2};
    mishap_at = 0;
    case_remove(run, false);
    for (int i = 0; i < 5; i++) {
        char name[32];
        zi_checkpoint_step_name(name, sizeof name, steps[i]);
        case_write(&model, run, name, steps[i]);
    }
    /* Of saves: one that died before step 5 was saved, one that goes on, and one of a step to come.
     */
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    CHECK(mkdir(test_text("%s/step-00000001.part", run), 0700) == 0);
    CHECK(utimensat(AT_FDCWD, test_text("%s/step-00000001.part", run), long_ago, 0) == 0);
    CHECK(mkdir(test_text("%s/step-00000002.part", run), 0700) == 0);
    CHECK(mkdir(test_text("%s/step-00000009.part", run), 0700) == 0);
}

TEST(prune_keeps_the_newest)
{
    uint64_t steps[8];
    zi_checkpoint_pruned pruned = {.planned = true};
    make_run();
    set_prune();
    CHECK_FAILS(zi_checkpoint_prune(run, false, 0, NULL), ZERO_ERR_INVALID_ARGUMENT, "keep");
    CHECK_OK(zi_checkpoint_prune(run, false, 3, &pruned));
    CHECK_EQ(pruned.removed, 2);
    CHECK_EQ(steps_of(steps), 5); /* it was only told */
    pruned.planned = false;
    CHECK_OK(zi_checkpoint_prune(run, false, 9, &pruned));
    CHECK_EQ(pruned.removed, 0);
    CHECK_OK(zi_checkpoint_prune(run, false, 3, &pruned));
    CHECK_EQ(pruned.removed, 2);
    CHECK_EQ(steps_of(steps), 3);
    CHECK(steps[0] == 4 && steps[1] == 5 && steps[2] == 2);
    CHECK_EQ(rig_entries(run), 6); /* latest, and what may still be written */
    CHECK(access(test_text("%s/step-00000001.part", run), F_OK) != 0);
    CHECK_OK(zi_checkpoint_prune(run, false, 1, &pruned));
    CHECK_EQ(pruned.removed, 2);
    CHECK_EQ(newest(), 2);
    CHECK_EQ(steps_of(steps), 1);
    remove_run();
}

TEST(a_prune_that_dies)
{
    uint64_t steps[8];
    int status = DIED;
    make_run();
    for (long at = 1; status == DIED; at++) {
        set_prune();
        const pid_t child = fork();
        if (child == 0) {
            arm(DIE, at);
            CHECK_OK(zi_checkpoint_prune(run, false, 2, NULL));
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
        status = WEXITSTATUS(status);
        const uint32_t count = steps_of(steps);
        CHECK(count >= 2 && steps[count - 2] == 5);
        CHECK_EQ(newest(), 2);
        CHECK_OK(zi_checkpoint_prune(run, false, 2, NULL));
        CHECK_EQ(rig_entries(run), 5);
    }
    CHECK_EQ(status, 0);
    remove_run();
}
