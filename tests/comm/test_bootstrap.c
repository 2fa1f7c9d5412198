/* Tests of what each launcher's environment is taken for, and of environments that are refused. */
#include "comm/bootstrap.h"
#include "comm/nccl/nccl_launch.h"
#include "harness.h"
#include "zero/world.h"

#define PAIRS_MAX 12

typedef struct parse_case {
    struct {
        zi_launch_kind kind;
        const char *launcher;
        uint32_t rank;
        uint32_t size;
        uint32_t local_rank;
        uint32_t local_size;
    } is;
    const char *pairs[PAIRS_MAX]; /* "NAME=value" texts, ended by NULL */
} parse_case;

static const char *look(void *user, const char *name)
{
    const char *const *pairs = user;
    const size_t length = strlen(name);
    for (size_t i = 0; pairs[i] != NULL; i++) {
        if (strncmp(pairs[i], name, length) == 0 && pairs[i][length] == '=') {
            return pairs[i] + length + 1;
        }
    }
    return NULL;
}

static zero_status parse(const char *const *pairs, zi_launch *launch)
{
    const char *copy[PAIRS_MAX] = {NULL};
    for (size_t i = 0; i + 1 < PAIRS_MAX && pairs[i] != NULL; i++) {
        copy[i] = pairs[i];
    }
    return zi_launch_parse(look, copy, launch);
}

static const parse_case parses[] = {
    {{ZI_LAUNCH_NONE, "none", 0, 1, 0, 1}, {NULL}},
    {{ZI_LAUNCH_NONE, "none", 0, 1, 0, 1}, {"LOCAL_RANK=3", "MASTER_PORT=1"}},
    {{ZI_LAUNCH_MPI, "mpirun", 3, 8, 1, 2},
     {"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2"}},
    {{ZI_LAUNCH_MPI, "mpirun", 0, 1, 0, 0}, {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}},
    {{ZI_LAUNCH_MPI, "mpiexec", 2, 4, 2, 4},
     {"PMI_RANK=2", "PMI_SIZE=4", "MPI_LOCALRANKID=2", "MPI_LOCALNRANKS=4"}},
    {{ZI_LAUNCH_MPI, "mpiexec", 5, 6, 1, 2},
     {"PMI_RANK=5", "PMI_SIZE=6", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=2"}},
    /* A step of srun; the step's own number of tasks counts. */
    {{ZI_LAUNCH_MPI, "srun", 5, 8, 1, 0},
     {"SLURM_STEP_ID=0", "SLURM_PROCID=5", "SLURM_NTASKS=8", "SLURM_LOCALID=1",
      "SLURM_TASKS_PER_NODE=4(x2)"}},
    {{ZI_LAUNCH_MPI, "srun", 1, 2, 0, 0},
     {"SLURM_STEP_ID=17", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=8"}},
    /* The script of sbatch, with and without Slurm's number for it; the shell of salloc. */
    {{ZI_LAUNCH_NONE, "none", 0, 1, 0, 1}, {"SLURM_JOB_ID=9", "SLURM_PROCID=0", "SLURM_NTASKS=8"}},
    {{ZI_LAUNCH_NONE, "none", 0, 1, 0, 1},
     {"SLURM_STEP_ID=4294967291", "SLURM_PROCID=0", "SLURM_NTASKS=8"}},
    {{ZI_LAUNCH_NONE, "none", 0, 1, 0, 1},
     {"SLURM_STEP_ID=4294967290", "SLURM_PROCID=0", "SLURM_NTASKS=8"}},
    {{ZI_LAUNCH_TORCHRUN, "torchrun", 1, 4, 1, 2},
     {"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node0",
      "MASTER_PORT=29500"}},
    {{ZI_LAUNCH_TORCHRUN, "torchrun", 0, 2147483647, 0, 0}, {"RANK=0", "WORLD_SIZE=2147483647"}},
    /* mpirun inside a batch job; torchrun inside mpirun and srun: the innermost. */
    {{ZI_LAUNCH_MPI, "mpirun", 3, 4, 0, 0},
     {"SLURM_STEP_ID=1", "SLURM_PROCID=0", "SLURM_NTASKS=2", "OMPI_COMM_WORLD_RANK=3",
      "OMPI_COMM_WORLD_SIZE=4"}},
    {{ZI_LAUNCH_MPI, "mpirun", 3, 4, 0, 0},
     {"RANK=0", "WORLD_SIZE=9", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4"}},
    {{ZI_LAUNCH_TORCHRUN, "torchrun", 2, 8, 0, 0},
     {"TORCHELASTIC_RUN_ID=x", "RANK=2", "WORLD_SIZE=8", "OMPI_COMM_WORLD_RANK=1",
      "OMPI_COMM_WORLD_SIZE=2"}},
    {{ZI_LAUNCH_TORCHRUN, "torchrun", 2, 8, 0, 0},
     {"RANK=2", "WORLD_SIZE=8", "SLURM_STEP_ID=1", "SLURM_PROCID=0", "SLURM_NTASKS=2"}},
};

TEST(parses)
{
    for (size_t i = 0; i < sizeof parses / sizeof parses[0]; i++) {
        const parse_case *row = &parses[i];
        zi_launch launch;
        CHECK_OK(parse(row->pairs, &launch));
        if (launch.kind != row->is.kind || strcmp(launch.launcher, row->is.launcher) != 0) {
            TEST_FAIL("case %zu: %s (%d)", i, launch.launcher, (int)launch.kind);
        }
        CHECK_EQ(launch.rank, row->is.rank);
        CHECK_EQ(launch.size, row->is.size);
        CHECK_EQ(launch.local_rank, row->is.local_rank);
        CHECK_EQ(launch.local_size, row->is.local_size);
    }
}

/* An environment and what the refusal must name. */
typedef struct refusal {
    const char *pairs[PAIRS_MAX];
    const char *words[3];
} refusal;

static const refusal refusals[] = {
    {{"WORLD_SIZE=2"}, {"WORLD_SIZE='2'", "without RANK", "torchrun"}},
    {{"RANK=1"}, {"RANK='1'", "without WORLD_SIZE", ""}},
    {{"OMPI_COMM_WORLD_SIZE=2"}, {"OMPI_COMM_WORLD_SIZE='2'", "without OMPI_COMM_WORLD_RANK", ""}},
    {{"PMI_RANK=0"}, {"PMI_RANK='0'", "without PMI_SIZE", "mpiexec"}},
    {{"SLURM_STEP_ID=0", "SLURM_NTASKS=2"}, {"SLURM_NTASKS='2'", "without SLURM_PROCID", "srun"}},
    {{"RANK=2", "WORLD_SIZE=2"}, {"RANK=2", "not below WORLD_SIZE=2", ""}},
    {{"OMPI_COMM_WORLD_RANK=9", "OMPI_COMM_WORLD_SIZE=4"}, {"OMPI_COMM_WORLD_RANK=9", "=4", ""}},
    {{"RANK=one", "WORLD_SIZE=2"}, {"RANK='one'", "whole number", ""}},
    {{"RANK=-1", "WORLD_SIZE=2"}, {"RANK='-1'", "whole number", ""}},
    {{"RANK=+1", "WORLD_SIZE=2"}, {"RANK='+1'", "whole number", ""}},
    {{"RANK= 1", "WORLD_SIZE=2"}, {"RANK=' 1'", "whole number", ""}},
    {{"RANK=1 ", "WORLD_SIZE=2"}, {"RANK='1 '", "whole number", ""}},
    {{"RANK=", "WORLD_SIZE=2"}, {"RANK=''", "whole number", ""}},
    {{"RANK=0x1", "WORLD_SIZE=2"}, {"RANK='0x1'", "whole number", ""}},
    {{"RANK=1", "WORLD_SIZE=2.0"}, {"WORLD_SIZE='2.0'", "whole number", ""}},
    {{"RANK=0", "WORLD_SIZE=0"}, {"WORLD_SIZE='0'", "[1, 2147483647]", ""}},
    {{"RANK=0", "WORLD_SIZE=2147483648"}, {"WORLD_SIZE='2147483648'", "[1, 2147483647]", ""}},
    {{"RANK=0", "WORLD_SIZE=18446744073709551618"}, {"WORLD_SIZE='1844674407370955", "[1, ", ""}},
    {{"PMI_RANK=2147483647", "PMI_SIZE=2147483647"}, {"PMI_RANK='2147483647'", "2147483646]", ""}},
    {{"SLURM_STEP_ID=0", "SLURM_PROCID=x", "SLURM_NTASKS=2"}, {"SLURM_PROCID='x'", "", ""}},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2"}, {"LOCAL_RANK=2", "on this host, 2", ""}},
    {{"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}, {"LOCAL_RANK=2", "", ""}},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=a"}, {"LOCAL_RANK='a'", "", ""}},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=3"}, {"LOCAL_WORLD_SIZE=3", "2 ranks", ""}},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=0"}, {"LOCAL_WORLD_SIZE='0'", "", ""}},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=0"}, {"MASTER_PORT='0'", "[1, 65535]", ""}},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=65536"}, {"MASTER_PORT='65536'", "", ""}},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=http"}, {"MASTER_PORT='http'", "", ""}},
};

TEST(refuses)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        zi_launch launch;
        for (size_t k = 0; k < 3; k++) {
            CHECK_FAILS(parse(refusals[i].pairs, &launch), ZERO_ERR_INVALID_ARGUMENT,
                        refusals[i].words[k]);
        }
        CHECK_EQ(launch.size, 1);
        CHECK_EQ(launch.kind, ZI_LAUNCH_NONE);
    }
}

TEST(meeting_place)
{
    zi_launch launch;
    const char *here[] = {"RANK=0",           "WORLD_SIZE=2",          "MASTER_ADDR=node0",
                          "MASTER_PORT=1234", "TORCHELASTIC_RUN_ID=a", NULL};
    CHECK_OK(parse(here, &launch));
    CHECK(strcmp(launch.address, "node0") == 0);
    CHECK_EQ(launch.port, 1234);
    here[2] = NULL;
    CHECK_OK(parse(here, &launch));
    CHECK(launch.address[0] == '\0');
    CHECK_EQ(launch.port, 0);
    char longest[300] = "MASTER_ADDR=";
    memset(longest + 12, 'x', 256);
    here[2] = longest;
    here[3] = NULL;
    CHECK_FAILS(parse(here, &launch), ZERO_ERR_INVALID_ARGUMENT, "256 bytes");
    longest[12 + 255] = '\0';
    CHECK_OK(parse(here, &launch));
    CHECK_EQ(strlen(launch.address), 255);
}

typedef enum hosts { ONE, SEVERAL, OPEN } hosts;

/* Without a number of ranks on the host only what every host calls itself says that there is one:
 * rank 0 may have the name of its own host before it, the others have another's. */
TEST(one_host)
{
    static const struct {
        const char *pairs[PAIRS_MAX];
        hosts are;
    } rows[] = {
        {{"RANK=0", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=elsewhere"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=localhost"}, SEVERAL},
        {{"RANK=0", "WORLD_SIZE=4", "LOCAL_SIZE=4", "MASTER_ADDR=elsewhere"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4", "LOCAL_SIZE=1", "MASTER_ADDR=elsewhere"}, SEVERAL},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=localhost"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=localhost.localdomain"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=::1"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=[::1]"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4"}, ONE},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=elsewhere"}, OPEN},
        {{"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "MASTER_ADDR=elsewhere"}, OPEN},
        {{"RANK=0", "WORLD_SIZE=4", "NCCL_COMM_ID=elsewhere:7"}, OPEN},
        {{"RANK=0", "WORLD_SIZE=4", "NCCL_COMM_ID=[::1]:7", "MASTER_ADDR=elsewhere"}, ONE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        zi_launch launch;
        bool one = false;
        CHECK_OK(parse(rows[i].pairs, &launch));
        if (rows[i].are == OPEN) {
            CHECK_FAILS(zi_launch_on_one_host(&launch, &one), ZERO_ERR_INVALID_ARGUMENT,
                        "WORLD_SIZE=4 without LOCAL_WORLD_SIZE, and rank 0 at elsewhere, leave");
            CHECK(strstr(zero_last_error()->message, "(4 if all are on one)") != NULL);
            continue;
        }
        CHECK_OK(zi_launch_on_one_host(&launch, &one));
        if (one != (rows[i].are == ONE)) {
            TEST_FAIL("case %zu is taken for %s", i, one ? "one host" : "several hosts");
        }
    }
}

/* The places at which ranks on several hosts meet. */
TEST(meeting_places)
{
    static const struct {
        const char *pairs[PAIRS_MAX];
        const char *host; /* NULL: refused */
        uint32_t port;
    } rows[] = {
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=node0", "MASTER_PORT=29500"}, "node0", 29501},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=10.0.0.7", "MASTER_PORT=1"}, "10.0.0.7", 2},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=fe80::1", "MASTER_PORT=65534"}, "fe80::1", 65535},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=[fe80::1]", "MASTER_PORT=9"}, "fe80::1", 10},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=node0", "MASTER_PORT=65535"}, NULL, 0},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=node0"}, NULL, 0},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_PORT=29500"}, NULL, 0},
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=two words", "MASTER_PORT=9"}, NULL, 0},
        /* NCCL itself listens at the port of NCCL_COMM_ID. */
        {{"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=node0", "MASTER_PORT=29500",
          "NCCL_COMM_ID=node1:7"},
         "node1",
         8},
        {{"RANK=0", "WORLD_SIZE=4", "NCCL_COMM_ID=[fe80::2]:7"}, "fe80::2", 8},
        {{"RANK=0", "WORLD_SIZE=4", "NCCL_COMM_ID=node1"}, NULL, 0},
        {{"RANK=0", "WORLD_SIZE=4", "NCCL_COMM_ID=:7"}, NULL, 0},
        {{"RANK=0", "WORLD_SIZE=4", "NCCL_COMM_ID=node1:65535"}, NULL, 0},
        {{"RANK=0", "WORLD_SIZE=4", "NCCL_COMM_ID=node1:7x"}, NULL, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        zi_launch launch;
        zi_control_endpoint endpoint;
        CHECK_OK(parse(rows[i].pairs, &launch));
        if (rows[i].host == NULL) {
            CHECK_FAILS(zi_launch_endpoint(&launch, &endpoint), ZERO_ERR_INVALID_ARGUMENT,
                        "NCCL_COMM_ID=host:port");
            continue;
        }
        CHECK_OK(zi_launch_endpoint(&launch, &endpoint));
        if (strcmp(endpoint.hosts, rows[i].host) != 0 || endpoint.port != rows[i].port) {
            TEST_FAIL("case %zu: %s port %u instead of %s port %u", i, endpoint.hosts,
                      endpoint.port, rows[i].host, rows[i].port);
        }
    }
}

/* The longest address still fits; a longer NCCL_COMM_ID is refused, not cut. */
TEST(long_meeting_places)
{
    char address[300] = "MASTER_ADDR=";
    char given[300] = "NCCL_COMM_ID=";
    const char *pairs[] = {"RANK=0", "WORLD_SIZE=2", address, "MASTER_PORT=65534", NULL, NULL};
    zi_launch launch;
    zi_control_endpoint endpoint;
    memset(address + 12, 'n', 255);
    CHECK_OK(parse(pairs, &launch));
    CHECK_OK(zi_launch_endpoint(&launch, &endpoint));
    CHECK(strcmp(endpoint.hosts, address + 12) == 0);
    memset(given + 13, 'x', 256);
    pairs[4] = given;
    CHECK_FAILS(parse(pairs, &launch), ZERO_ERR_INVALID_ARGUMENT, "NCCL_COMM_ID='xxx");
}

/* Only ranks of one run, one restart and one token have the same key, and meet. */
TEST(keys_of_runs)
{
    static const char *const pairs[][PAIRS_MAX] = {
        {"RANK=0", "WORLD_SIZE=4"},
        {"RANK=0", "WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=a"},
        {"RANK=0", "WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=b"},
        {"RANK=0", "WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=a", "TORCHELASTIC_RESTART_COUNT=1"},
        {"RANK=0", "WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=a", "ZERO_JOB_TOKEN=1"},
        {"RANK=0", "WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=a1"},
    };
    enum { KEYS = sizeof pairs / sizeof pairs[0] };
    zi_launch launches[KEYS];
    char names[KEYS][64];
    for (int i = 0; i < KEYS; i++) {
        zi_launch again;
        CHECK_OK(parse(pairs[i], &launches[i]));
        CHECK_OK(parse(pairs[i], &again));
        CHECK_BYTES(&again.key, &launches[i].key, sizeof again.key);
        zi_launch_host_name(&again, names[i]);
        for (int k = 0; k < i; k++) {
            CHECK(strcmp(names[i], names[k]) != 0);
            CHECK(memcmp(&launches[i].key, &launches[k].key, sizeof again.key) != 0);
        }
    }
}

/* Forget the launcher this test itself may run under. */
static void clear_environment(void)
{
    static const char *const names[] = {
        "RANK",          "WORLD_SIZE",   "LOCAL_RANK",           "LOCAL_WORLD_SIZE",
        "LOCAL_SIZE",    "MASTER_ADDR",  "MASTER_PORT",          "TORCHELASTIC_RUN_ID",
        "PMI_RANK",      "PMI_SIZE",     "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "SLURM_STEP_ID", "NCCL_COMM_ID", "ZERO_JOB_TOKEN",       "TORCHELASTIC_RESTART_COUNT",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_EQ(unsetenv(names[i]), 0);
    }
}

static void set(const char *name, const char *value)
{
    CHECK_EQ(setenv(name, value, 1), 0);
}

TEST(alone)
{
    clear_environment();
    CHECK_EQ(zero_world_is_launched(), 0);
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_launched(0, &world));
    CHECK(strcmp(zero_world_backend(world), "self") == 0);
    CHECK_EQ(zero_world_size(world), 1);
    zero_world_destroy(world);
    CHECK_FAILS(zero_world_create_launched(0, NULL), ZERO_ERR_INVALID_ARGUMENT, "NULL");
}

/* The host of rank 0 is no exception, and nobody waits for anybody. */
TEST(ranks_that_are_not_told_their_host)
{
    char own[256] = "";
    clear_environment();
    CHECK_EQ(gethostname(own, sizeof own - 1), 0);
    const char *const addresses[] = {own, test_text("%s.cluster.local", own), "job-master-0"};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        zero_world *world = NULL;
        set("RANK", i % 2 == 0 ? "0" : "1");
        set("WORLD_SIZE", "2");
        set("MASTER_ADDR", addresses[i]);
        set("MASTER_PORT", "23456");
        CHECK_FAILS(zero_world_create_launched(60000, &world), ZERO_ERR_INVALID_ARGUMENT,
                    "set LOCAL_WORLD_SIZE on every rank");
        CHECK_EQ(zero_world_is_launched(), 1);
    }
}

TEST(launched_alone)
{
    clear_environment();
    set("RANK", "0");
    set("WORLD_SIZE", "1");
    CHECK_EQ(zero_world_is_launched(), 0);
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_launched(0, &world));
    CHECK(strcmp(zero_world_backend(world), "self") == 0);
    zero_world_destroy(world);
}

TEST(launched_refusals)
{
    clear_environment();
    zero_world *world = NULL;
    set("WORLD_SIZE", "2");
    CHECK_EQ(zero_world_is_launched(), 1);
    CHECK_FAILS(zero_world_create_launched(0, &world), ZERO_ERR_INVALID_ARGUMENT, "without RANK");
    CHECK(world == NULL);
    set("RANK", "1");
    set("LOCAL_WORLD_SIZE", "1");
    set("MASTER_ADDR", "node0");
    CHECK_EQ(zero_world_is_launched(), 1);
    /* Several hosts: with NCCL and a GPU it needs the port too. */
    const zi_launch launch = {.size = 2, .local_size = 1, .address = "node0"};
    if (zi_nccl_can_launch(&launch) == ZERO_OK) {
        CHECK_FAILS(zero_world_create_launched(0, &world), ZERO_ERR_INVALID_ARGUMENT,
                    "the port after MASTER_PORT of MASTER_ADDR, which are 'node0' and 0");
    } else {
        CHECK_FAILS(zero_world_create_launched(0, &world), ZERO_ERR_UNSUPPORTED, "mpirun");
        CHECK(strstr(zero_last_error()->message, "2 ranks are on several hosts") != NULL);
        CHECK(strstr(zero_last_error()->message, "NCCL") != NULL);
    }
    CHECK(world == NULL);
    CHECK(getenv("NCCL_COMM_ID") == NULL);
}
