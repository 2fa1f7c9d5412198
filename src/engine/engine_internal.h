/* The parts of an engine, for the files of this folder. */
#ifndef ZI_ENGINE_ENGINE_INTERNAL_H
#define ZI_ENGINE_ENGINE_INTERNAL_H

#include "comm/comm.h"
#include "core/failure.h"
#include "core/thread.h"
#include "core/trace.h"
#include "engine/backend.h"
#include "engine/engine_state.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "offload/shards.h"
#include "stage1/optim.h"
#include "stage2/grads.h"
#include "stage3/params.h"
#include "storage/rate.h"
#include "zero/engine.h"
#include "zero/shard.h"
#include "zero/step.h"
#include "zero/unit.h"

/* Groups, each used by one stream: collectives of different directions never wait for one another.
 */
typedef struct engine_groups {
    /* By the way to split units and the hop: GATHER on the gather stream, the sums on the reduce
     * stream, UPDATED on the step stream, as the next two. */
    zi_group *hops[ZI_SHARDINGS_MAX][ZI_HOPS];
    zi_group *norm; /* 1 -> world: the squares of all ranks, and what each was given */
    zi_group *mesh; /* of the model-parallel world, after that: each part's sums; NULL: there is one
                       part */
} engine_groups;

/* Steps that the host may be ahead of the device. */
#define ENGINE_STEP_BUFFERS 4
/* The buffer behind those belongs to the captured graph. */
#define ENGINE_GRAPH_BUFFER ENGINE_STEP_BUFFERS
/* The engine's own streams. */
#define ENGINE_STREAMS 3
/* Windows, by role: states share the master's. */
#define ENGINE_WINDOWS (ZERO_ROLE_MASTER + 1)

/* The inputs of a step for the device, and its outputs, in host memory that the device reaches. */
typedef struct engine_step_buffer {
    zi_step_input input;
    zi_step_given given;      /* the part of it that the other ranks get */
    zi_step_decision outcome; /* valid once the step buffer's `decided` has fired */
} engine_step_buffer;

/* Host memory that the device reaches. */
typedef struct engine_host {
    engine_step_buffer step_buffers[ENGINE_STEP_BUFFERS + 1];
    zi_step_decision predicted; /* of the speculative step */
    engine_step_buffer query;   /* of zero_grad_norm */
    zi_step_state state;        /* on its way to the device or back */
    zi_norm_sum so_far[];       /* of a speculative step, by bucket: this rank's squares then */
} engine_host;

/* Outcomes that say whether a predicted step is speculative. */
#define ENGINE_REMEMBERED 8

/* The speculative step. (speculate.c) */
typedef struct engine_speculation {
    bool given;          /* a prediction, for the next step or the one under way */
    bool begun;          /* the step is speculative: its last micro-step has begun */
    uint32_t next;       /* bucket whose units are updated next */
    zi_step_input input; /* the divisor as given */
    /* The outcomes of steps so far: see may_speculate. */
    bool unknown[ENGINE_STEP_BUFFERS]; /* by step buffer: its step's outcome was not counted yet */
    uint32_t outcomes;                 /* counted, at most ENGINE_REMEMBERED */
    uint32_t clipped;                  /* bit i: the step i before the last of these was clipped */
    bool held_back;                    /* the last predicted step was */
} engine_speculation;

/* The stripe weights of a store's directories. (tiers.c) */
typedef enum engine_striped_by {
    ENGINE_STRIPED_EQUALLY = 0,
    ENGINE_STRIPED_AS_GIVEN = 1, /* tuning.disk_weights */
    ENGINE_STRIPED_AS_MEASURED = 2
} engine_striped_by;

typedef struct engine_striping {
    engine_striped_by by;
    uint32_t rates[ZI_STORE_DIRECTORIES_MAX];
} engine_striping;

/* The bytes that are kept of an evicted role: extents on disk behind a window, or a copy in host
 * memory. (evict.c) */
typedef struct engine_kept {
    zero_role role;
    uint64_t at; /* in the store */
    uint64_t bytes;
    zi_extent *extents;
    uint32_t extent_count;
    uint64_t *sums;      /* the window's; NULL: none */
    zi_window *window;   /* suspended while the role is evicted; NULL: in host memory */
    unsigned char *host; /* NULL: on disk */
} engine_kept;

/* Roles that are evicted between steps. (evict.c) */
typedef struct engine_evicted {
    const char **directories; /* of the options, in one allocation with their texts */
    uint32_t directory_count;
    engine_striping
        striping; /* as roles on disk are, or measured by the first eviction that is large enough */
    zero_tier tier;
    uint32_t roles;              /* that the caller has evicted, bits by role; 0: none */
    uint32_t given;              /* of these, those whose memory was freed */
    engine_kept kept[ZI_STATES]; /* of those, the ones that are kept on `tier` */
    uint32_t kept_count;
    uint64_t kept_bytes;
    zi_store *store;       /* NULL: nothing is kept on disk */
    unsigned char *bounce; /* host memory that extents pass through during a call */
    bool grads_lost;       /* since the last plain step or launch */
} engine_evicted;

/* The view that zero_unit_acquire hands out for a unit, and how its calls nest. (unit_views.c) */
typedef struct engine_unit {
    zero_unit_view view;     /* of engine->views; its grads NULL outside backward */
    uint32_t first;          /* of its tensors in those arrays */
    uint32_t own_count;      /* tensors of its own; those it ties to come after them */
    uint32_t depth;          /* calls of zero_unit_acquire that are not released */
    uint32_t backward_depth; /* `depth` at the outermost of them in backward; 0: there is none */
    uint32_t param_slot;     /* of its own tensors when the views were taken */
    uint32_t grad_slot;      /* likewise */
} engine_unit;

/* Arrays over the views of all units, end to end. */
typedef struct engine_views {
    engine_unit *units;
    uint32_t *tensors;
    zero_view *params;
    zero_view *grads;
} engine_views;

struct engine_save;  /* engine/save.h */
struct engine_prune; /* engine/save_prune.c */
struct engine_run;   /* engine/save_owner.c */

struct zero_engine {
    zero_world *world;
    zero_world *mesh; /* options.model_parallel; NULL: the model is in one part */
    zero_plan plan;
    const zi_layout *layout; /* the plan's */
    zi_backend backend;
    zi_device *device;    /* the world's, or its own */
    zi_device own_device; /* zeroed where the world's is used */
    /* With a timeline (tracing.c): `device` is a copy that carries it. */
    zi_device noted_device;
    zi_timeline *timeline; /* NULL: tuning.trace_events is 0 */
    zi_stream *host_stream;
    zi_mark *entered; /* of the hook under way, on the caller's stream; NULL: none is noted */
    zi_stream *entered_stream;
    char *hang_directory;    /* tuning.hang_directory, copied; NULL: none was given */
    int64_t clock_offset_ns; /* of this host's clock, from rank 0's */
    uint64_t clock_error_ns;
    zi_pool *pool;
    zi_kernels kernels;
    zi_kernels host_kernels; /* the CPU's, where it updates a GPU's parameters; else zeroed */
    engine_groups groups;
    zi_stream *gather_stream;
    zi_stream *reduce_stream;
    zi_stream *step_stream;
    unsigned char *arena[ZERO_ROLE_COUNT_MAX];
    uint64_t arena_bytes[ZERO_ROLE_COUNT_MAX]; /* as counted by the allocator; 0: not held */
    engine_striping striping;                  /* of the store */
    zi_store *store;                           /* roles on disk; NULL: there are none */
    uint64_t *sums;                            /* its checksums; NULL: none */
    /* Of PARAM, GRAD and all states, each used on its role's stream (zi_engine_role_stream); NULL:
     * nothing of it is on disk. */
    zi_window *windows[ENGINE_WINDOWS];
    zi_shards shards[ZI_SHARD_ROLES]; /* by role */
    engine_evicted evicted;
    struct engine_save *save; /* under way, from zero_save_begin to zero_save_end; NULL: none is */
    struct engine_prune *prune; /* under way; NULL: none is */
    struct engine_run *runs;    /* directories that this rank owns; NULL: none */
    engine_views views;
    zi_params *params;
    zi_grads *grads;
    zi_optim *optim;
    zi_collective norm_gather;
    zi_collective norm_query; /* the same, for zero_grad_norm */
    zi_collective part_gather;
    zi_collective part_query;
    zi_norm_sum
        *replicas;  /* step arena: squares of replicas, which another part of the model counts */
    float *weights; /* step arena: this rank's grad_weight by step buffer; behind the graph's
                       buffer, that of zero_grad_norm */
    zi_decide_job decide; /* its input is the step buffer's */
    zi_decide_job aside;  /* the same on a copy of the state, for zero_grad_norm and predictions */
    engine_speculation speculation;
    engine_host *host;
    engine_step_buffer *step_buffers; /* the host's */
    /* step stream, after the decision and the commit of speculative updates -> host and, with
     * speculative updates, the reduce stream; the graph's: stream of its launches, after them */
    zi_event *decided[ENGINE_STEP_BUFFERS + 1];
    /* the caller's stream, when a step is enqueued -> step stream; when a capture begins or
     * launches are over -> all of the engine's streams */
    zi_event *caller;
    /* step stream, after the last unit or a copy of state on disk; other streams, after a copy of
     * an offloaded role -> host, for access to shards */
    zi_event *stepped;
    /* each of the engine's streams -> host or the caller's stream, around captures and launches */
    zi_event *joined[ENGINE_STREAMS];
    zi_engine_state state;
    bool filling; /* zero_engine_fill has not returned: its callback runs, or never came back */
    void *fill_staging; /* memory that it has allocated, freed with the engine if it never comes
                           back */
    uint64_t *fill_hashes;
    bool has_graph;            /* a step was captured, and nothing was evicted since */
    uint32_t step_buffer;      /* of the next plain step */
    uint32_t last_step_buffer; /* of the last */
    const float *graph_weight; /* that the captured step reads */
    uint64_t plain_steps;      /* plain steps, the same number on every rank */
    uint64_t other_steps; /* steps before zero_step_state_set, which outcomes count and this engine
                             does not */
    uint64_t other_skipped;  /* of these */
    uint64_t refused;        /* steps that were refused for their weights, as counted by outcomes */
    zi_step_refusal refusal; /* of the last of them; kind NONE: it was reported */
    float first_scale; /* the loss scale until the first outcome since create or zero_step_state_set
                        */
    uint64_t *agreement; /* the last exchange of ranks (agree.c) */
    uint64_t *given;  /* by tensor, what local calls have written; NULL: there is one rank, or ranks
                         have compared it (replicas.c) */
    uint32_t touched; /* roles, bits: shards in them may not be as they were created */
    uint64_t micro_index;   /* finished micro-steps of this step */
    bool norm_warned;       /* of a norm that is exactly 0 */
    uint64_t stalled_step;  /* the last step whose count of stalled elements was looked at */
    uint32_t stalled_steps; /* up to it, in a row, that had many */
    zero_error poison;      /* of ZI_ENGINE_POISONED */
    zi_failure_cell found;  /* by threads of this rank, before others were told */
    zero_stats stats;
};

/* This rank is in a public call from here on, for exchanges and errors of its worlds. */
static inline void zi_engine_enter_call(const zero_engine *engine, zi_public_call call)
{
    zi_call_set(engine->world->comm->call, call);
    if (engine->mesh != NULL) {
        zi_call_set(engine->mesh->comm->call, call);
    }
}

/* True if the host takes part in the work of streams besides issuing it: disk I/O, or updates for a
 * GPU. Such a GPU's streams have threads that issue. */
static inline bool zi_engine_uses_host(const zero_engine *engine)
{
    return engine->layout->disk_bytes != 0 || engine->layout->bounce_bytes != 0;
}
/* The kernels that tasks use on memory of the host. */
static inline const zi_kernels *zi_engine_host_kernels(const zero_engine *engine)
{
    return engine->host_kernels.ops != NULL ? &engine->host_kernels : &engine->kernels;
}

#endif
