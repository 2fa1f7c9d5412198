/* What an engine is made of, for the files of this folder. */
#ifndef ZI_ENGINE_ENGINE_INTERNAL_H
#define ZI_ENGINE_ENGINE_INTERNAL_H

#include "comm/comm.h"
#include "core/thread.h"
#include "engine/backend.h"
#include "engine/engine_state.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "offload/offload.h"
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
    zi_group *gather;       /* 1 -> param; gather stream */
    zi_group *scatter;      /* 1 -> grad; reduce stream, as the next two */
    zi_group *boundary;     /* grad -> optimizer */
    zi_group *replica;      /* optimizer -> world */
    zi_group *param_gather; /* param -> optimizer; step stream, as the next */
    zi_group *norm;         /* 1 -> world: the squares of all, and what all were given */
    zi_group *mesh; /* of the model-parallel world, after that: what each part has come to; NULL:
                       there is one part */
} engine_groups;

/* Steps that the host may be ahead of the device. */
#define ENGINE_STEP_SLOTS 4
/* The slot behind those: a captured graph's, for as long as it is launched. */
#define ENGINE_GRAPH_SLOT ENGINE_STEP_SLOTS
/* The engine's own streams. */
#define ENGINE_STREAMS 3

/* What a step hands to the device and gets back, in host memory that the device reaches. */
typedef struct engine_step_slot {
    zi_step_input input;
    zi_step_given given;                /* what the other ranks are told of it */
    zi_step_decision outcome;           /* there once the step slot's `decided` has fired */
    zi_speculation_outcome speculative; /* likewise, where it was speculative */
} engine_step_slot;

/* Host memory that the device reaches. */
typedef struct engine_host {
    engine_step_slot step_slots[ENGINE_STEP_SLOTS + 1];
    zi_step_decision predicted; /* of the step that is speculative */
    engine_step_slot asked;     /* of a norm that was asked for */
    zi_step_state state;        /* on its way to the device or back */
} engine_host;

/* Speculative steps that were updated twice, one after the other, before no more are speculative.
 */
#define ENGINE_REDONE_MAX 3
/* Speculative steps that are then not speculative, before one is again: at first, and at most. */
#define ENGINE_HELD_FIRST 8
#define ENGINE_HELD_MAX 512

/* A step that is begun before it is decided. (predict.c) */
typedef struct engine_speculation {
    bool given;          /* for the next step, or the one under way */
    bool begun;          /* its last micro-step is under way or over; false without state on disk */
    uint32_t next;       /* bucket whose units are speculative next */
    zi_step_input input; /* the divisor as given */
    /* What became of speculative updates so far, a function of the steps' outcomes: see
     * may_speculate. */
    bool speculative[ENGINE_STEP_SLOTS]; /* by step slot: its step is, and what came of it was not
                                            looked at */
    uint32_t unknown;                    /* of these */
    uint32_t redone;    /* speculative steps that were updated twice since one was not */
    uint32_t rest;      /* steps that are not speculative */
    uint32_t next_rest; /* as many after these, should the next be updated twice too */
} engine_speculation;

/* By what a store is striped over the directories. (tiers.c) */
typedef enum engine_striped_by {
    ENGINE_STRIPED_EQUALLY = 0,
    ENGINE_STRIPED_AS_GIVEN = 1, /* tuning.disk_weights */
    ENGINE_STRIPED_AS_MEASURED = 2
} engine_striped_by;

typedef struct engine_striping {
    engine_striped_by by;
    uint32_t rates[ZI_STORE_DIRECTORIES_MAX];
} engine_striping;

/* Roles that are evicted between steps. (evict.c) */
typedef struct engine_evicted {
    const char **directories; /* of the options; in one piece with their texts */
    uint32_t directory_count;
    engine_striping striping; /* as roles on disk are, or measured by the first store worth it */
    zero_tier tier;
    uint32_t roles;                 /* that the caller has evicted, bits by role; 0: none */
    uint32_t given;                 /* of these, whose memory was given up */
    uint32_t kept;                  /* of those, what is kept on `tier` */
    zi_store *store;                /* there, role after role */
    uint64_t *sums;                 /* its checksums, chunk after chunk; NULL: none */
    unsigned char *host[ZI_STATES]; /* or here, from MASTER on */
    bool grads_lost;                /* since the last plain step or launch */
} engine_evicted;

/* What zero_unit_acquire hands out for a unit, and how its calls nest there. (unit_views.c) */
typedef struct engine_unit {
    zero_unit_view view;     /* of engine->views; its grads NULL outside backward */
    uint32_t first;          /* of its tensors in those arrays */
    uint32_t own_count;      /* tensors of its own; those it ties to come after them */
    uint32_t depth;          /* calls of zero_unit_acquire that are not released */
    uint32_t backward_depth; /* `depth` at the outermost of them in backward; 0: there is none */
    uint32_t param_slot;     /* where its own tensors were when the views were taken */
    uint32_t grad_slot;      /* likewise */
} engine_unit;

/* Arrays over the views of all units, end to end. */
typedef struct engine_views {
    engine_unit *units;
    uint32_t *tensors;
    zero_view *params;
    zero_view *grads;
} engine_views;

struct zero_engine {
    zero_world *world;
    zero_world *mesh; /* options.model_parallel; NULL: the model is in one part */
    zero_plan plan;
    const zi_layout *layout; /* the plan's */
    zi_backend backend;
    zi_device *device;    /* the world's, or its own */
    zi_device own_device; /* zeroed where the world's is used */
    zi_pool *pool;
    zi_kernels kernels;
    zi_kernels host_kernels; /* the CPU's, where it updates a GPU's parameters; else zeroed */
    engine_groups groups;
    zi_stream *gather_stream;
    zi_stream *reduce_stream;
    zi_stream *step_stream;
    unsigned char *arena[ZERO_ROLE_COUNT];
    uint64_t arena_bytes[ZERO_ROLE_COUNT]; /* as taken from the allocator; 0: not held */
    engine_striping striping;              /* of the store */
    zi_store *store;                       /* roles on disk; NULL: there are none */
    uint64_t *sums;                        /* its checksums; NULL: none */
    zi_window *window;                     /* of optimizer state; used on the step stream */
    zi_offload *offload[ZI_OFFLOAD_ROLES]; /* by role; NULL: it is where the device computes */
    engine_evicted evicted;
    engine_views views;
    zi_params *params;
    zi_grads *grads;
    zi_optim *optim;
    zi_collective norm_gather;
    zi_collective norm_query; /* the same, for zero_grad_norm */
    zi_collective part_gather;
    zi_collective part_query;
    zi_norm_sum *replicas; /* step arena: squares that another part of the model counts */
    float *weights;        /* step arena: by step slot, what this rank's gradients weigh; behind the
                              graph's slot, of a norm that was asked for */
    zi_decide_job decide;  /* its input is the step slot's */
    zi_decide_job aside;   /* the same on a copy of the state, for what moves nothing */
    engine_speculation speculation;
    engine_host *host;
    engine_step_slot *step_slots; /* the host's */
    /* step stream, after the decision and what becomes of speculative updates -> host and, where
     * there were any, the reduce stream; the graph's: recorded on the stream of its launches,
     * after them */
    zi_event *decided[ENGINE_STEP_SLOTS + 1];
    /* the caller's stream, when a step is enqueued -> step stream; when a capture begins or
     * launches are over -> all of the engine's streams */
    zi_event *caller;
    /* step stream, after the last unit or a move of state on disk; another stream, after a move of
     * what is offloaded -> host, for shards */
    zi_event *stepped;
    /* each of the engine's streams -> host or the caller's stream, around captures and launches */
    zi_event *joined[ENGINE_STREAMS];
    zi_engine_state state;
    bool has_graph;            /* a step was captured, and nothing was offloaded since */
    uint32_t step_slot;        /* of the next plain step */
    uint32_t last_step_slot;   /* of the last */
    const float *graph_weight; /* that the captured step reads */
    uint64_t plain_steps;      /* as many on every rank, whatever their graphs did */
    uint64_t other_steps;    /* outcomes count them, but not this engine: of a state that was set */
    uint64_t other_skipped;  /* of these */
    uint64_t refused;        /* steps that outcomes so far say were refused for their weights */
    zi_step_refusal refusal; /* of the last of them; kind NONE: the caller was told */
    float first_scale;       /* the loss scale until the first outcome since create or that */
    uint64_t *agreement;     /* what the ranks told one another last (agree.c) */
    uint64_t micro_index;    /* micro-steps of this step that are over */
    zero_error poison;       /* of ZI_ENGINE_POISONED */
    zero_stats stats;
};

/* Whether the host has a part in what streams do beside issuing it: a disk, or updates of a GPU's
 * parameters. Such a GPU's streams have threads that issue. */
static inline bool zi_engine_uses_host(const zero_engine *engine)
{
    return engine->layout->disk_bytes != 0 || engine->layout->bounce_bytes != 0;
}
/* The kernels for what tasks do to memory of the host. */
static inline const zi_kernels *zi_engine_host_kernels(const zero_engine *engine)
{
    return engine->host_kernels.ops != NULL ? &engine->host_kernels : &engine->kernels;
}

#endif
