/* Owns the backend "mpi": which ranks are on which host, and what is done through MPI at all.
 * Invariants: our communicators are ours alone, so no message of the program can match one of ours;
 * the ranks of a host share memory as those of "shm" do, so on one host MPI is called in create and
 * destroy only.
 *
 * Destroying a healthy world is a barrier; then everything is freed, and MPI finalised if the
 * options say so. After a failure nothing that waits for other ranks is called, MPI_Finalize
 * included. A process that ends without it makes mpirun end the job with a message and a status
 * that is not 0, which is what a job with a dead or hung rank needs. */
#include "comm/mpi/mpi_comm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/host/process.h"
#include "comm/mpi/mpi_launch.h"
#include "comm/mpi/mpi_world.h"
#include "comm/world.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/failure.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "zero/world.h"

#define POLL_NS 100000
/* How long a rank tries to reach rank 0, which serves already. */
#define REACH_MS 30000
#define POLL_MS 100

static atomic_uint comms_made;
/* MPI is finalised by us only if it was initialised by us. */
static atomic_bool initialised_here;

static zero_status check_code(int code, const char *call)
{
    return code == ZI_MPI_SUCCESS ? ZERO_OK : zi_mpi_error(code, call);
}

/* Poll a collective outside the progress thread. OK with *done false: the deadline has passed. */
static zero_status poll_request(zi_mpi_handle *request, uint32_t deadline_ms, bool *done)
{
    const uint64_t until_ns = zi_deadline_in_ms(deadline_ms);
    int complete = 0;
    for (;;) {
        ZI_TRY(check_code(zi_mpi->test(request, &complete), "MPI_Test"));
        *done = complete != 0;
        if (*done || zi_clock_ns() >= until_ns) {
            return ZERO_OK;
        }
        zi_deadline_pause(0, 0, POLL_NS);
    }
}

/* Check what must hold before MPI is used. */
static zero_status check_mpi(void)
{
    int level = ZI_MPI_SINGLE;
    int yes = 0;
    ZI_TRY(check_code(zi_mpi->initialized(&yes), "MPI_Initialized"));
    if (!yes) {
        ZI_FAIL(ZERO_ERR_STATE,
                "MPI is not initialised; call MPI_Init_thread with MPI_THREAD_MULTIPLE "
                "first, or use zero_world_create_launched");
    }
    ZI_TRY(check_code(zi_mpi->finalized(&yes), "MPI_Finalized"));
    if (yes) {
        ZI_FAIL(ZERO_ERR_STATE,
                "MPI was finalised in this process and cannot start again; keep the "
                "first world until the program ends");
    }
    ZI_TRY(check_code(zi_mpi->query_thread(&level), "MPI_Query_thread"));
    if (level < ZI_MPI_SERIALIZED) {
        ZI_FAIL(ZERO_ERR_STATE,
                "MPI was initialised with thread level %d; ask MPI_Init_thread for "
                "MPI_THREAD_MULTIPLE, or at least MPI_THREAD_SERIALIZED",
                level);
    }
    return ZERO_OK;
}

static zero_status mpi_comm_group_create(zi_comm *base, const zi_kernels *kernels,
                                         const uint32_t *members, uint32_t size, const char *name,
                                         zi_group **out)
{
    zi_mpi_comm *comm = (zi_mpi_comm *)base;
    const uint32_t host = comm->host_of[base->rank];
    for (uint32_t i = 0; i < size; i++) {
        if (comm->host_of[members[i]] != host) {
            return zi_mpi_group_create(comm, kernels, members, size, name, out);
        }
    }
    return zi_shared_group_create(comm->shared, base, kernels, members, size, name, out);
}

/* All ranks fail when one does, with what that one has found. */
static zero_status hear_failure(const zi_mpi_comm *comm)
{
    const uint32_t size = comm->base.size;
    const uint32_t rank = zi_failure_first_cause(&comm->words->told, sizeof comm->words[0], size);
    return rank < size ? zi_failure_hear(&comm->words[rank].told, "", rank) : ZERO_OK;
}

/* Exchange between hosts how the allocation went. */
static zero_status agree_alloc(zi_mpi_comm *comm, size_t bytes, zero_status mine)
{
    const zero_error own = *zero_last_error();
    const zi_mpi_word word = {bytes, zi_failure_tell(mine)};
    const zi_mpi_word *all = comm->words;
    const zero_status status = zi_mpi_exchange_records(&comm->control, &word, sizeof word,
                                                       comm->words, sizeof word, "memory_alloc");
    if (mine != ZERO_OK) {
        return zi_error_adopt(&own);
    }
    ZI_TRY(status);
    for (uint32_t i = 0; i < comm->base.size; i++) {
        if (all[i].bytes == ZI_MPI_LEFT) {
            return zi_mpi_abort_left(comm, i, "memory_alloc");
        }
    }
    for (uint32_t i = 0; i < comm->base.size; i++) {
        if (all[i].bytes != bytes) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "memory_alloc: rank %u asked for %llu bytes, rank %u for %zu; all ranks of a "
                    "world allocate alike",
                    i, (unsigned long long)all[i].bytes, comm->base.rank, bytes);
        }
    }
    return hear_failure(comm);
}

static zero_status mpi_comm_memory_alloc(zi_comm *base, size_t bytes, void **out)
{
    zi_mpi_comm *comm = (zi_mpi_comm *)base;
    zero_status status = zi_shared_window_alloc(comm->shared, bytes, out);
    if (comm->progress == NULL) {
        return status;
    }
    status = agree_alloc(comm, bytes, status);
    if (status != ZERO_OK) {
        zi_shared_window_free(comm->shared, *out, bytes);
        *out = NULL;
    }
    return status;
}

static void mpi_comm_memory_free(zi_comm *base, void *pointer, size_t bytes)
{
    zi_shared_window_free(((zi_mpi_comm *)base)->shared, pointer, bytes);
}

/* A rank has aborted or died: fail the memory that the ranks of this host share too. */
static void take_loss(void *user, const zi_failure *failure)
{
    zi_mpi_comm *comm = user;
    zi_shared_abort(comm->shared, failure);
}

static zero_status mpi_comm_poll(void *user, const char *what)
{
    return zi_shared_poll(user, what);
}

static void mpi_comm_abort_all(zi_comm *base, const zero_error *error)
{
    zi_mpi_comm *comm = (zi_mpi_comm *)base;
    const zi_failure failure = zi_failure_of_abort(base->rank, error);
    zi_shared_abort(comm->shared, &failure);
    if (comm->plane != NULL) {
        zi_control_abort(comm->plane, error);
    }
}

/* Leave together with the ranks of other hosts: exchange a record that a rank which still waits for
 * this one elsewhere reads instead. */
static bool leave_hosts(zi_mpi_comm *comm)
{
    const uint64_t words[2] = {ZI_MPI_LEFT}; /* no longer than the shortest that others wait for */
    const zi_mpi_word *all = comm->words;
    bool left = zi_mpi_exchange_records(&comm->control, words, sizeof words, comm->words,
                                        sizeof *all, "the end of the world") == ZERO_OK;
    for (uint32_t i = 0; i < comm->base.size && left; i++) {
        left = all[i].bytes == ZI_MPI_LEFT;
    }
    return left;
}

/* Leave together with the ranks of this host, who know through shared memory that this one leaves.
 */
static bool leave_host(zi_mpi_comm *comm)
{
    const uint64_t until_ns = zi_deadline_in_ms(comm->base.deadline_ms);
    zi_mpi_handle request = {0};
    bool done = false;
    bool fine = zi_mpi->ibarrier(comm->world, &request) == ZI_MPI_SUCCESS;
    while (fine && !done && zi_clock_ns() < until_ns) {
        fine = poll_request(&request, POLL_MS, &done) == ZERO_OK &&
               (done || zi_shared_poll(comm->shared, "zero_world_destroy") == ZERO_OK);
    }
    return fine && done;
}

/* True when all ranks have reached the end alive. */
static bool leave_together(zi_mpi_comm *comm)
{
    if (zi_mpi_has_failed(comm)) {
        return false;
    }
    zi_shared_begin_leave(comm->shared);
    return comm->progress != NULL ? leave_hosts(comm) : leave_host(comm);
}

/* Tell the ranks of other hosts, unless they know: nobody lingers for another. This rank may know
 * of a failure from its host's memory, of which they hear from this rank first. The last error
 * stays. */
static void tell_failure(const zi_mpi_comm *comm)
{
    const zero_error last = *zero_last_error();
    const zero_error left = {.status = ZERO_ERR_COMM, .message = "the rank left a failed world"};
    const zero_error error = zi_shared_check(comm->shared) != ZERO_OK ? *zero_last_error() : left;
    zi_control_abort(comm->plane, &error);
    (void)zi_error_adopt(&last);
}

static void mpi_comm_destroy(zi_comm *base)
{
    zi_mpi_comm *comm = (zi_mpi_comm *)base;
    if (comm == NULL) {
        return;
    }
    const bool healthy = leave_together(comm);
    const bool stopped = zi_mpi_progress_destroy(comm->progress);
    if (!healthy && comm->plane != NULL) {
        tell_failure(comm);
    }
    zi_control_leave(comm->plane);
    zi_shared_leave(comm->shared);
    if (healthy) {
        for (uint32_t i = 0; i < comm->link_count; i++) {
            if (comm->links[i].made) {
                (void)zi_mpi->comm_free(&comm->links[i].comm);
            }
        }
        (void)zi_mpi->comm_free(&comm->world);
    }
    if (healthy && comm->finalize) {
        (void)zi_mpi->finalize();
    } else if (comm->finalize) {
        zi_log(ZERO_LOG_WARN, "a rank failed: MPI is not finalised, so that mpirun ends the job");
    }
    if (stopped) {
        zi_silence_destroy(base->silence);
        zi_mpi_exchange_close(&comm->control);
        zi_free(comm);
    }
}

/* Failures of other hosts reach the shared memory too. */
static zero_status check_ranks(zi_comm *base)
{
    return zi_shared_poll(((zi_mpi_comm *)base)->shared, "a collective of GPUs");
}

static const zi_comm_ops mpi_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "mpi",
    .group_create = mpi_comm_group_create,
    .memory_alloc = mpi_comm_memory_alloc,
    .memory_free = mpi_comm_memory_free,
    .abort = mpi_comm_abort_all,
    .destroy = mpi_comm_destroy,
    .check = check_ranks,
};

/* Duplicate the communicator. A rank that never calls is found by the deadline; MPI cannot name it.
 */
static zero_status duplicate(zi_mpi_handle parent, uint32_t deadline_ms, zi_mpi_handle *world)
{
    zi_mpi_handle request = {0};
    ZI_TRY(check_code(zi_mpi->comm_idup(parent, world, &request), "MPI_Comm_idup"));
    bool done = false;
    ZI_TRY(poll_request(&request, deadline_ms, &done));
    if (!done) {
        ZI_FAIL(ZERO_ERR_TIMEOUT,
                "not all ranks of the communicator made a world within %u ms; the call is "
                "collective",
                deadline_ms);
    }
    return check_code(zi_mpi->comm_return_errors(*world), "MPI_Comm_set_errhandler");
}

/* Find the ranks of this host, in ascending world rank, and the host of every rank. */
static zero_status find_hosts(zi_mpi_comm *comm, uint32_t ranks_per_host, zi_mpi_handle *host)
{
    const int rank = (int)comm->base.rank;
    if (ranks_per_host == 0) {
        ZI_TRY(check_code(zi_mpi->comm_split_host(comm->world, rank, host), "MPI_Comm_split_type"));
    } else {
        ZI_TRY(check_code(zi_mpi->comm_split(comm->world, rank / (int)ranks_per_host, rank, host),
                          "MPI_Comm_split"));
    }
    int size = 0;
    ZI_TRY(check_code(zi_mpi->comm_size(*host, &size), "MPI_Comm_size"));
    comm->base.local_size = (uint32_t)size;
    const uint32_t own = comm->base.rank;
    ZI_TRY(check_code(zi_mpi->allgather(&own, comm->on_host, sizeof own, *host), "MPI_Allgather"));
    return check_code(zi_mpi->allgather(&comm->on_host[0], comm->host_of, sizeof own, comm->world),
                      "MPI_Allgather");
}

/* Join the ranks of this host, by a name that no other job can have. */
static zero_status join_host(zi_mpi_comm *comm, zi_mpi_handle host)
{
    const uint32_t *on_host = comm->on_host;
    char name[64] = "";
    if (on_host[0] == comm->base.rank) {
        const uint64_t pid = (uint64_t)getpid();
        (void)snprintf(name, sizeof name, "/zero-mpi-%u-%llu-%llx-%u", (unsigned)geteuid(),
                       (unsigned long long)pid, (unsigned long long)zi_process_start(pid),
                       atomic_fetch_add(&comms_made, 1));
    }
    ZI_TRY(check_code(zi_mpi->bcast(name, (int)sizeof name, 0, host), "MPI_Bcast"));
    zi_shared_desc desc = {
        .name = name,
        .world_ranks = on_host,
        .size = comm->base.local_size,
        .deadline_ms = comm->base.deadline_ms,
        .silence = comm->base.silence,
        .watches_stops = comm->base.local_size == comm->base.size,
    };
    while (on_host[desc.index] != comm->base.rank) {
        desc.index++;
    }
    return zi_shared_join(&desc, &comm->shared);
}

/* Exchange whether joining worked: all ranks fail when one does. All arrive here, since joining has
 * a deadline. */
static zero_status agree_joined(zi_mpi_comm *comm, zero_status mine)
{
    const zero_error own = *zero_last_error();
    const zi_mpi_word word = {.told = zi_failure_tell(mine)};
    const int code = zi_mpi->allgather(&word, comm->words, sizeof word, comm->world);
    if (mine != ZERO_OK) {
        return zi_error_adopt(&own);
    }
    ZI_TRY(check_code(code, "MPI_Allgather"));
    return hear_failure(comm);
}

static bool several_hosts(const zi_mpi_comm *comm)
{
    return comm->base.local_size != comm->base.size;
}

/* Join the control plane: rank 0 serves at all its addresses, and tells the others which these are
 * and a key that nobody else knows. Each tries them in their order. All ranks come here, and each
 * leaves by its deadline. */
static zero_status join_plane(zi_mpi_comm *comm)
{
    struct {
        zi_control_endpoint endpoint;
        zi_failure told;
    } said = {.told.status = ZERO_OK};
    zi_control *control = NULL;
    zero_status served = ZERO_OK;
    if (comm->base.rank == 0) {
        served =
            zi_control_serve(&said.endpoint, comm->base.size, comm->base.deadline_ms, &control);
    }
    const zero_error error = *zero_last_error();
    said.told = zi_failure_tell(served);
    const int code = zi_mpi->bcast(&said, (int)sizeof said, 0, comm->world);
    if (served != ZERO_OK) {
        return zi_error_adopt(&error);
    }
    if (code != ZI_MPI_SUCCESS) {
        zi_control_leave(control);
        return zi_mpi_error(code, "MPI_Bcast");
    }
    if (said.told.status != ZERO_OK) {
        return zi_failure_hear(&said.told, "", 0);
    }
    const zi_control_desc desc = {
        .endpoint = &said.endpoint,
        .rank = comm->base.rank,
        .size = comm->base.size,
        .deadline_ms = comm->base.deadline_ms,
        .join_ms = (uint32_t)zi_min_u64(comm->base.deadline_ms, REACH_MS),
        .served = control,
        .silence = comm->base.silence,
        .lost = take_loss,
        .user = comm,
    };
    return zi_control_join(&desc, &comm->plane);
}

/* Everything after the ranks of the world are known. */
static zero_status mpi_comm_build(zi_mpi_comm *comm, const zi_mpi_options *options)
{
    zi_mpi_handle host = {0};
    ZI_TRY(find_hosts(comm, options->ranks_per_host, &host));
    const zero_status status = agree_joined(comm, join_host(comm, host));
    (void)zi_mpi->comm_free(&host);
    ZI_TRY(status);
    if (!several_hosts(comm)) {
        return ZERO_OK;
    }
    ZI_TRY(agree_joined(comm, join_plane(comm)));
    ZI_TRY(zi_mpi_progress_create(comm->world, comm->base.rank, comm->base.size, &comm->progress));
    zi_mpi_progress_on_wait(comm->progress, mpi_comm_poll, comm->shared);
    comm->control = (zi_mpi_exchange){
        .progress = comm->progress,
        .comm = comm->world,
        .tag = ZI_MPI_TAG_RENDEZVOUS,
        .rank = comm->base.rank,
        .size = comm->base.size,
        .deadline_ms = comm->base.deadline_ms,
        .world_ranks = comm->ranks,
        .silence = comm->base.silence,
    };
    return zi_mpi_exchange_open(&comm->control);
}

/* Allocate all memory, before the others wait for this rank without a deadline. */
static zero_status mpi_comm_make_comm(uint32_t rank, uint32_t size, uint32_t deadline_ms,
                                      zi_mpi_comm **out)
{
    zi_mpi_comm *comm = NULL;
    const size_t rank_bytes = sizeof comm->words[0] + 3 * sizeof *comm->ranks;
    ZI_TRY(zi_calloc(1, sizeof *comm + size * rank_bytes, (void **)&comm));
    comm->host_of = (uint32_t *)(void *)(comm->words + size);
    comm->ranks = comm->host_of + size;
    comm->on_host = comm->ranks + size;
    for (uint32_t i = 0; i < size; i++) {
        comm->ranks[i] = i;
    }
    comm->base = (zi_comm){
        .ops = &mpi_ops,
        .rank = rank,
        .size = size,
        .deadline_ms = deadline_ms != 0 ? deadline_ms : ZI_DEADLINE_DEFAULT_MS,
        .submit_waits = true,
    };
    const zero_status status = zi_silence_create(size, &comm->base.silence);
    if (status != ZERO_OK) {
        zi_free(comm);
        return status;
    }
    *out = comm;
    return ZERO_OK;
}

static zero_status create_over(zi_mpi_handle parent, uint32_t deadline_ms,
                               const zi_mpi_options *options, zi_comm **out)
{
    int rank = 0;
    int size = 0;
    ZI_TRY(check_code(zi_mpi->comm_rank(parent, &rank), "MPI_Comm_rank"));
    ZI_TRY(check_code(zi_mpi->comm_size(parent, &size), "MPI_Comm_size"));
    zi_mpi_comm *comm = NULL;
    ZI_TRY(mpi_comm_make_comm((uint32_t)rank, (uint32_t)size, deadline_ms, &comm));
    comm->finalize = options->finalize;
    zero_status status = duplicate(parent, comm->base.deadline_ms, &comm->world);
    if (status == ZERO_OK) {
        status = mpi_comm_build(comm, options);
    }
    if (status != ZERO_OK) {
        /* Others may be anywhere: nothing collective is called, the communicators stay. */
        const zero_error error = *zero_last_error();
        (void)zi_mpi_progress_destroy(comm->progress);
        if (comm->plane != NULL) {
            zi_control_abort(comm->plane, &error);
        }
        zi_control_leave(comm->plane);
        zi_shared_leave(comm->shared);
        zi_mpi_exchange_close(&comm->control);
        zi_silence_destroy(comm->base.silence);
        zi_free(comm);
        return zi_error_adopt(&error);
    }
    *out = &comm->base;
    return ZERO_OK;
}

zero_status zi_mpi_comm_create(int parent, uint32_t deadline_ms, const zi_mpi_options *options,
                               zi_comm **out)
{
    *out = NULL;
    ZI_TRY(zi_mpi_load(false));
    ZI_TRY(check_mpi());
    zi_mpi_handle ranks = {0};
    if (parent != ZERO_MPI_COMM_NONE) {
        ranks = zi_mpi->comm_f2c(parent);
    }
    if (ranks.word == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "comm is MPI_COMM_NULL; pass a communicator of this rank");
    }
    return create_over(ranks, deadline_ms, options, out);
}

zero_status zero_world_create_mpi_fortran(int32_t comm, uint32_t deadline_ms, zero_world **world)
{
    ZI_TRY(zi_world_clear(world));
    const zi_mpi_options options = {.ranks_per_host = 0, .finalize = false};
    zi_comm *made = NULL;
    ZI_TRY(zi_mpi_comm_create(comm, deadline_ms, &options, &made));
    return zi_world_create(made, world);
}

/* Initialise MPI unless the program has. */
static zero_status initialise(void)
{
    int yes = 0;
    ZI_TRY(check_code(zi_mpi->initialized(&yes), "MPI_Initialized"));
    if (yes) {
        return ZERO_OK; /* or finalised since: check_mpi finds that */
    }
    ZI_TRY(check_code(zi_mpi->init(), "MPI_Init_thread"));
    atomic_store(&initialised_here, true);
    return ZERO_OK;
}

zero_status zi_mpi_launch(const zi_launch *launch, uint32_t deadline_ms, zi_comm **out)
{
    *out = NULL;
    int size = 0;
    int rank = 0;
    if (zi_mpi_load(launch->pmi) != ZERO_OK) {
        const zero_error error = *zero_last_error();
        ZI_FAIL(error.status, "%s started %u ranks, but %s", launch->launcher, launch->size,
                error.message);
    }
    ZI_TRY(initialise());
    ZI_TRY(check_mpi());
    const zi_mpi_handle all = zi_mpi->comm_world();
    ZI_TRY(check_code(zi_mpi->comm_size(all, &size), "MPI_Comm_size"));
    ZI_TRY(check_code(zi_mpi->comm_rank(all, &rank), "MPI_Comm_rank"));
    if ((uint32_t)size != launch->size || (uint32_t)rank != launch->rank) {
        ZI_FAIL(ZERO_ERR_STATE,
                "%s calls this rank %u of %u, MPI calls it rank %d of %d; start the program with "
                "the mpirun of the MPI it was built with (srun: add --mpi=pmix or --mpi=pmi2)",
                launch->launcher, launch->rank, launch->size, rank, size);
    }
    const zi_mpi_options options = {.finalize = atomic_load(&initialised_here)};
    return create_over(all, deadline_ms, &options, out);
}
