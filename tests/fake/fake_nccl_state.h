/* The state that the files of the fake NCCL share: communicators, what their ranks have issued,
 * splits. */
#ifndef TESTS_FAKE_FAKE_NCCL_STATE_H
#define TESTS_FAKE_FAKE_NCCL_STATE_H

#include <pthread.h>

#include <stdatomic.h>

#include "fake_cuda.h"
#include "fake_nccl.h"

#define RANKS_MAX 32
/* Looks at a communicator that still find it in progress. */
#define LOOKS 3
typedef struct fake_op {
    fake_nccl_call call;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    int peer;
    cudaStream_t stream;
    unsigned char *sent; /* a copy, made in stream order */
} fake_op;

typedef struct op_list {
    fake_op *ops;
    size_t count;
    size_t room;
} op_list;

/* The nth group of calls of the ranks. Results run once all have. */
typedef struct fake_round {
    op_list lists[RANKS_MAX];
    int size;
    int arrived;
    bool unlike;              /* the ranks' calls do not match */
    bool given_up[RANKS_MAX]; /* guarded by the fake CUDA's lock, as the latch */
    fake_cuda_latch latch;    /* that each comes to with what it sends copied away */
    atomic_size_t left;       /* results that are still to run */
    struct fake_round *next;
} fake_round;

/* The number of ways that a communicator connects, one at a time: each is a collective of a class
 * of sizes. */
#define WAYS 6
/* Collectives of more bytes than this go another way. */
#define SMALL_BYTES ((size_t)4096)

/* The nth split of a clique: what each of its ranks asks for. */
typedef struct fake_split {
    int colors[RANKS_MAX];
    int keys[RANKS_MAX];
    int arrived;
    uint64_t number;
    bool broken; /* one rank has failed: the others never finish */
    struct fake_split *next;
} fake_split;

typedef struct fake_clique {
    char id[NCCL_UNIQUE_ID_BYTES];
    int size;
    int joined;
    int finalized;
    bool left; /* one rank has aborted */
    ncclComm_t comms[RANKS_MAX];
    bool came[WAYS][RANKS_MAX];          /* to connect */
    uint64_t exchanges[RANKS_MAX];       /* groups of calls that told of registered buffers */
    bool sends[RANKS_MAX][RANKS_MAX];    /* [a][b]: a has come to connect to b */
    bool receives[RANKS_MAX][RANKS_MAX]; /* [a][b]: b has, to connect to a */
    fake_round *rounds;                  /* the last first */
    uint64_t round_count;
    fake_split *splits;
    struct fake_clique *next;
} fake_clique;

/* Registrations of a communicator, also those that were given back. */
#define KNOWN_MAX 8

typedef struct fake_known {
    unsigned char *base;
    size_t bytes;
    int flags;
    bool alive;
    bool window;
    bool pending; /* other ranks have not registered theirs */
    void **out;
} fake_known;

/* The place of one buffer of a call. */
typedef struct fake_place {
    bool covered; /* it is in registered memory, or nothing */
    bool window;
    int flags;
    uint32_t index; /* of the registration */
    size_t offset;
    bool in_place; /* it is this rank's own part of the other buffer */
} fake_place;

struct ncclComm {
    fake_clique *clique;
    int rank;
    int device;
    pthread_t process; /* that it is of: the thread that made it, or what it was split off */
    int looks;         /* that still find it in progress */
    uint64_t issued;
    op_list waiting;   /* a group of calls that waits for the others to connect */
    uint64_t exchange; /* that it waits for, of its clique's; 0: none */
    uint64_t split_count;
    fake_split *split;    /* under way */
    ncclComm_t *child_at; /* gets the communicator that it makes */
    ncclConfig_t child_config;
    ncclResult_t failed; /* other than ncclSuccess: all that it is good for is to be aborted */
    bool blocking;
    bool joining;
    bool finalized;
    bool stalled;  /* its calls wait at the gate, see fake_nccl_stall */
    bool aborting; /* its kernels have left, and calls under way are leaving */
    bool gone;
    int under_way;               /* calls that wait for other ranks */
    ncclComm_t child;            /* of a split that is not over on all ranks */
    fake_known known[KNOWN_MAX]; /* the nth of all ranks belong together */
    uint32_t known_count;
    fake_place (*log)[2]; /* of the collectives so far, where memory is registered */
    uint32_t log_count;
    uint32_t log_room;
    struct ncclComm *to_free; /* of the aborts of a thread's group of calls */
    struct ncclComm *next;    /* of all */
};

/* Guards all of it but what kernels touch. */
extern pthread_mutex_t fake_nccl_lock;
extern ncclComm_t fake_nccl_comms;
extern _Atomic uint64_t fake_nccl_counts[FAKE_NCCL_CALLS];
extern atomic_int fake_nccl_version;

/* Bytes sent between hosts, by ordinal; hosts of so many GPUs, 0: one host. */
extern uint64_t fake_nccl_sent[RANKS_MAX];
extern uint32_t fake_nccl_gpus_per_host;

__attribute__((format(printf, 1, 2))) void fake_nccl_fault(const char *format, ...);
void *fake_nccl_allocate(size_t bytes);

/* The lock is held for what follows, but for NCCL's own functions. */
fake_clique *fake_nccl_clique(const char *id, int size);
ncclComm_t fake_nccl_join(fake_clique *clique, int rank, const ncclConfig_t *config);
/* Let others have the lock for a while. */
void fake_nccl_pause(void);
/* May something new be asked of it? */
bool fake_nccl_is_ready(ncclComm_t comm);
/* Move a split on as far as it goes. */
ncclResult_t fake_nccl_split_state(ncclComm_t comm);
/* The communicator, which is ready, takes a group of calls over, and moves it on as far as it
 * goes. (fake_nccl_calls.c) */
ncclResult_t fake_nccl_accept(ncclComm_t comm, op_list list);
ncclResult_t fake_nccl_calls_state(ncclComm_t comm);
/* Let what waits for other ranks go on. (fake_nccl_calls.c) */
void fake_nccl_give_up(ncclComm_t comm);
/* Calls that were issued wait for other ranks. (fake_nccl_calls.c) */
bool fake_nccl_is_stuck(ncclComm_t comm);
/* A graph holds calls. (fake_nccl_calls.c) */
bool fake_nccl_is_captured(ncclComm_t comm);
/* See fake_nccl_stall. */
void fake_nccl_pass_gate(ncclComm_t comm, cudaStream_t stream);
/* The rank gives it back. */
void fake_nccl_leave(ncclComm_t comm, bool aborted);
/* The communicator is being aborted. */
void fake_nccl_split_abort(ncclComm_t comm);

/* ---- memory (fake_nccl_memory.c) ---- */

void fake_nccl_memory_join(const ncclConfig_t *config);
/* No window of the communicator waits for other ranks; hands out those that no longer do. */
bool fake_nccl_memory_ready(ncclComm_t comm);
/* The communicator has registered buffers. */
bool fake_nccl_memory_exchanges(ncclComm_t comm);
/* A window has not been handed out. */
bool fake_nccl_memory_waits(ncclComm_t comm);
/* A call that is issued. bytes: that it sends and receives; 0: nothing. */
void fake_nccl_memory_use(ncclComm_t comm, const fake_op *op, const size_t *bytes);
void fake_nccl_memory_leave(ncclComm_t comm, bool aborted);

/* ---- NCCL's own ---- */

ncclResult_t fake_nccl_split(ncclComm_t comm, int color, int key, ncclComm_t *child,
                             ncclConfig_t *config);
ncclResult_t fake_nccl_count(ncclComm_t comm, int *count);
ncclResult_t fake_nccl_user_rank(ncclComm_t comm, int *rank);
ncclResult_t fake_nccl_cu_device(ncclComm_t comm, int *device);

#endif
