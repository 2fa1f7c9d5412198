/* Owns the launcher's environment: the only place of the library that reads it. A launcher is a row
 * of names. The rows are tried innermost first: torchrun started by srun or mpirun leaves the outer
 * launcher's variables in place, and a batch script has Slurm's variables without being a rank. */
#include "comm/bootstrap.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/host/host_comm.h"
#include "comm/host/process.h"
#include "comm/mpi/mpi_launch.h"
#include "comm/nccl/nccl_launch.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/hash.h"

#define NAMES_MAX 3

/* Variables of one launcher; of several spellings the first that is set counts. */
typedef struct launcher_row {
    const char *launcher;
    zi_launch_kind kind;
    const char *rank;
    const char *sizes[NAMES_MAX];
    const char *local_ranks[NAMES_MAX];
    const char *local_sizes[NAMES_MAX];
} launcher_row;

static const launcher_row row_torchrun = {
    "torchrun",     ZI_LAUNCH_TORCHRUN, "RANK",
    {"WORLD_SIZE"}, {"LOCAL_RANK"},     {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"},
};
static const launcher_row row_open_mpi = {
    "mpirun",
    ZI_LAUNCH_MPI,
    "OMPI_COMM_WORLD_RANK",
    {"OMPI_COMM_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_LOCAL_RANK"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE"},
};
static const launcher_row row_pmi = {
    "mpiexec",
    ZI_LAUNCH_MPI,
    "PMI_RANK",
    {"PMI_SIZE"},
    {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
    {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
};
/* Slurm gives sizes per node as lists, and of the job rather than of the step: MPI counts them
 * itself.
 */
static const launcher_row row_slurm = {
    "srun",
    ZI_LAUNCH_MPI,
    "SLURM_PROCID",
    {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
    {"SLURM_LOCALID"},
    {NULL},
};

/* Slurm's reserved step numbers begin here: the batch script, an interactive shell, ... */
#define SLURM_STEP_RESERVED UINT64_C(0xfffffff0)

typedef struct environment {
    zi_lookup_fn lookup;
    void *user;
} environment;

static const char *bootstrap_look(const environment *env, const char *name)
{
    return env->lookup(env->user, name);
}

/* The first of `names` that is set, or NULL. *name: which. */
static const char *look_any(const environment *env, const char *const names[NAMES_MAX],
                            const char **name)
{
    for (size_t i = 0; i < NAMES_MAX && names[i] != NULL; i++) {
        const char *value = bootstrap_look(env, names[i]);
        if (value != NULL) {
            *name = names[i];
            return value;
        }
    }
    *name = names[0];
    return NULL;
}

/* Digits only: no sign, no blank, no tail. False also when the number passes 2^53. */
static bool read_digits(const char *text, uint64_t *number)
{
    uint64_t value = 0;
    size_t length = 0;
    while (text[length] >= '0' && text[length] <= '9' && length < 16) {
        value = value * 10 + (uint64_t)(text[length] - '0');
        length++;
    }
    *number = value;
    return length > 0 && text[length] == '\0';
}

static zero_status bootstrap_read_number(const char *name, const char *text, uint32_t low,
                                         uint32_t high, uint32_t *number)
{
    uint64_t value = 0;
    if (!read_digits(text, &value) || value < low || value > high) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "environment: %s='%.60s' is not a whole number in [%u, %u]; unset it or start the "
                "program with its launcher",
                name, text, low, high);
    }
    *number = (uint32_t)value;
    return ZERO_OK;
}

static bool row_present(const environment *env, const launcher_row *row)
{
    const char *name = NULL;
    return bootstrap_look(env, row->rank) != NULL || look_any(env, row->sizes, &name) != NULL;
}

/* True inside srun; not in the script that sbatch runs, which calls srun or mpirun itself. */
static bool slurm_step(const environment *env)
{
    const char *step = bootstrap_look(env, "SLURM_STEP_ID");
    uint64_t number = 0;
    return step != NULL && read_digits(step, &number) && number < SLURM_STEP_RESERVED;
}

/* The launcher next to this process; NULL: none. */
static const launcher_row *find_row(const environment *env)
{
    if (bootstrap_look(env, "TORCHELASTIC_RUN_ID") != NULL && row_present(env, &row_torchrun)) {
        return &row_torchrun;
    }
    if (row_present(env, &row_open_mpi)) {
        return &row_open_mpi;
    }
    if (row_present(env, &row_pmi)) {
        return &row_pmi;
    }
    if (row_present(env, &row_torchrun)) {
        return &row_torchrun;
    }
    return slurm_step(env) && row_present(env, &row_slurm) ? &row_slurm : NULL;
}

static zero_status read_local(const environment *env, const launcher_row *row, zi_launch *launch)
{
    const char *rank_name = NULL;
    const char *size_name = NULL;
    const char *rank = look_any(env, row->local_ranks, &rank_name);
    const char *size = look_any(env, row->local_sizes, &size_name);
    if (rank != NULL) {
        ZI_TRY(
            bootstrap_read_number(rank_name, rank, 0, ZI_LAUNCH_SIZE_MAX - 1, &launch->local_rank));
    }
    if (size != NULL) {
        ZI_TRY(bootstrap_read_number(size_name, size, 1, ZI_LAUNCH_SIZE_MAX, &launch->local_size));
        if (launch->local_size > launch->size) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "environment: %s=%u is more than the %u ranks of the world", size_name,
                    launch->local_size, launch->size);
        }
    }
    const uint32_t bound = launch->local_size != 0 ? launch->local_size : launch->size;
    if (launch->local_rank >= bound) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "environment: %s=%u is not below the number of ranks on this host, %u", rank_name,
                launch->local_rank, bound);
    }
    return ZERO_OK;
}

/* A host name, with a port or without; "" when the variable is not set. */
static zero_status read_address(const environment *env, const char *name, char text[256])
{
    const char *value = bootstrap_look(env, name);
    const size_t length = value != NULL ? strlen(value) : 0;
    if (length > 255) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "environment: %s='%.60s...' has %zu bytes; at most 255 are a host name", name,
                value, length);
    }
    memcpy(text, length != 0 ? value : "", length + 1);
    return ZERO_OK;
}

/* Make the key of what strangers do not know: ranks of another run, of the same run before a
 * restart, and whoever has not the token. Of texts of any length, so each is hashed by itself. */
static zi_control_key read_key(const environment *env)
{
    static const char *const names[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                        "ZERO_JOB_TOKEN"};
    char text[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = bootstrap_look(env, names[i]);
        const zi_control_key part = zi_control_key_of(value != NULL ? value : "");
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%016llx%016llx ",
                             (unsigned long long)part.word[0], (unsigned long long)part.word[1]);
    }
    return zi_control_key_of(text);
}

/* "none" is torchrun's run id where the user gave none. */
static bool is_named(const environment *env)
{
    const char *run = bootstrap_look(env, "TORCHELASTIC_RUN_ID");
    const char *token = bootstrap_look(env, "ZERO_JOB_TOKEN");
    return (run != NULL && run[0] != '\0' && strcmp(run, "none") != 0) ||
           (token != NULL && token[0] != '\0');
}

/* Read where rank 0 runs, and the key of the run. */
static zero_status read_meeting(const environment *env, zi_launch *launch)
{
    ZI_TRY(read_address(env, "MASTER_ADDR", launch->address));
    ZI_TRY(read_address(env, "NCCL_COMM_ID", launch->comm_id));
    const char *port = bootstrap_look(env, "MASTER_PORT");
    if (port != NULL) {
        ZI_TRY(bootstrap_read_number("MASTER_PORT", port, 1, 65535, &launch->port));
    }
    launch->key = read_key(env);
    launch->named = is_named(env);
    return ZERO_OK;
}

zero_status zi_launch_parse(zi_lookup_fn lookup, void *user, zi_launch *launch)
{
    *launch = (zi_launch){.kind = ZI_LAUNCH_NONE, .launcher = "none", .size = 1, .local_size = 1};
    const environment env = {lookup, user};
    const launcher_row *row = find_row(&env);
    if (row == NULL) {
        return ZERO_OK;
    }
    const char *size_name = NULL;
    const char *rank = bootstrap_look(&env, row->rank);
    const char *size = look_any(&env, row->sizes, &size_name);
    if (rank == NULL || size == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "environment: %s='%.60s' is set without %s; set both, as %s does, or neither",
                rank == NULL ? size_name : row->rank, rank == NULL ? size : rank,
                rank == NULL ? row->rank : size_name, row->launcher);
    }
    zi_launch found = {.kind = row->kind, .launcher = row->launcher, .pmi = row == &row_pmi};
    ZI_TRY(bootstrap_read_number(size_name, size, 1, ZI_LAUNCH_SIZE_MAX, &found.size));
    ZI_TRY(bootstrap_read_number(row->rank, rank, 0, ZI_LAUNCH_SIZE_MAX - 1, &found.rank));
    if (found.rank >= found.size) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "environment: %s=%u is not below %s=%u; ranks count from 0", row->rank, found.rank,
                size_name, found.size);
    }
    ZI_TRY(read_local(&env, row, &found));
    if (found.kind == ZI_LAUNCH_TORCHRUN) {
        ZI_TRY(read_meeting(&env, &found));
    }
    *launch = found;
    return ZERO_OK;
}

/* Copy a host without the brackets of an IPv6 address. */
static void copy_host(const char *text, size_t length, char host[256])
{
    const bool brackets = length > 2 && text[0] == '[' && text[length - 1] == ']';
    (void)snprintf(host, 256, "%.*s", (int)(length - (brackets ? 2 : 0)), text + brackets);
}

/* True if a host is this one under the names that every host has for itself. */
static bool bootstrap_is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "localhost.", 10) == 0 ||
           strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* The host at which rank 0 is met, without a port; "" where the environment does not say. */
static void meeting_host(const zi_launch *launch, char host[256])
{
    const char *colon = strrchr(launch->comm_id, ':');
    if (colon != NULL) {
        copy_host(launch->comm_id, (size_t)(colon - launch->comm_id), host);
    } else {
        copy_host(launch->address, strlen(launch->address), host);
    }
}

/* A host's own name must not count: that of rank 0's host is MASTER_ADDR, the others' are not, so
 * ranks would come to different answers. */
zero_status zi_launch_on_one_host(const zi_launch *launch, bool *one)
{
    char host[256];
    *one = launch->local_size == launch->size;
    if (launch->local_size != 0) {
        return ZERO_OK;
    }
    meeting_host(launch, host);
    /* Started by hand without an address: other hosts could not be found anyway. */
    *one = host[0] == '\0' || bootstrap_is_loopback(host);
    if (*one) {
        return ZERO_OK;
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "environment: WORLD_SIZE=%u without LOCAL_WORLD_SIZE, and rank 0 at %.80s, leave open "
            "which ranks share a host; set LOCAL_WORLD_SIZE on every rank to the ranks on its host "
            "(%u if all are on one)",
            launch->size, host, launch->size);
}

zero_status zi_launch_endpoint(const zi_launch *launch, zi_control_endpoint *endpoint)
{
    char host[256] = "";
    uint64_t port = launch->port;
    *endpoint = (zi_control_endpoint){.key = launch->key};
    if (launch->comm_id[0] != '\0') {
        const char *colon = strrchr(launch->comm_id, ':');
        port = 0;
        if (colon != NULL && read_digits(colon + 1, &port)) {
            copy_host(launch->comm_id, (size_t)(colon - launch->comm_id), host);
        }
    } else {
        copy_host(launch->address, strlen(launch->address), host);
    }
    if (host[0] == '\0' || strchr(host, ' ') != NULL || port == 0 || port >= 65535) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "environment: ranks on several hosts meet at the port after MASTER_PORT of "
                "MASTER_ADDR, which are '%.60s' and %u; set both, the port below 65535, or "
                "NCCL_COMM_ID=host:port, which is '%.60s'",
                launch->address, launch->port, launch->comm_id);
    }
    endpoint->port = (uint32_t)port + 1;
    memcpy(endpoint->hosts, host, sizeof host);
    return ZERO_OK;
}

static const char *look_process(void *user, const char *name)
{
    (void)user;
    return getenv(name);
}

/* Anybody can list names, and the key is a secret: the name has a hash of it. */
void zi_launch_host_name(const zi_launch *launch, char name[64])
{
    const uint64_t key =
        zi_hash_u64(zi_hash_u64(ZI_HASH_START, launch->key.word[0]), launch->key.word[1]);
    (void)snprintf(name, 64, "/zero-%u-%u-%016llx-%u", (unsigned)geteuid(), launch->port,
                   (unsigned long long)key, launch->size);
}

/* Join ranks that torchrun started on one host. Runs without a name are told apart by the process
 * that started their ranks. */
static zero_status join_on_host(const zi_launch *launch, uint32_t deadline_ms, zi_comm **comm)
{
    zi_process_rank own = {.rank = launch->rank, .size = launch->size};
    zi_launch_host_name(launch, own.name);
    own.launcher = launch->named ? 0 : zi_process_launcher(row_torchrun.rank);
    return zi_process_comm_create(&own, deadline_ms, comm);
}

static zero_status join_over_nccl(const zi_launch *launch, uint32_t deadline_ms, zi_comm **comm)
{
    zi_control_endpoint endpoint;
    ZI_TRY(zi_nccl_can_launch(launch));
    ZI_TRY(zi_launch_endpoint(launch, &endpoint));
    return zi_nccl_launch(launch, deadline_ms, &endpoint, comm);
}

static zero_status join_torchrun(const zi_launch *launch, uint32_t deadline_ms, zi_comm **comm)
{
    bool one = false;
    ZI_TRY(zi_launch_on_one_host(launch, &one));
    return one ? join_on_host(launch, deadline_ms, comm)
               : join_over_nccl(launch, deadline_ms, comm);
}

zero_status zero_world_create_launched(uint32_t deadline_ms, zero_world **world)
{
    ZI_TRY(zi_world_clear(world));
    zi_launch launch;
    ZI_TRY(zi_launch_parse(look_process, NULL, &launch));
    if (launch.size == 1) {
        return zero_world_create_self(world);
    }
    const uint32_t deadline = deadline_ms != 0 ? deadline_ms : ZI_DEADLINE_DEFAULT_MS;
    zi_comm *comm = NULL;
    if (launch.kind == ZI_LAUNCH_MPI) {
        ZI_TRY(zi_mpi_launch(&launch, deadline, &comm));
    } else {
        ZI_TRY(join_torchrun(&launch, deadline, &comm));
    }
    return zi_world_create(comm, world);
}

/* An environment that zero_world_create_launched refuses counts as launched: a program that asks
 * first would otherwise train alone without a word. */
int32_t zero_world_is_launched(void)
{
    zi_launch launch;
    return zi_launch_parse(look_process, NULL, &launch) != ZERO_OK || launch.size > 1;
}
