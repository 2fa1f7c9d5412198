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
    zi_group *gather;  /* 1 -> param; gather stream */
    zi_group *scatter; /* 1 -> grad; reduce stream, as the next two */
    zi_group *narrow;  /* grad -> optimizer */
    zi_group *replica; /* optimizer -> world */
    zi_group *publish; /* param -> optimizer; step stream, as the next */
    zi_group *norm;    /* 1 -> world: the squares of all, and what all were given */
    zi_group *mesh;    /* of the model-parallel world, after that: what each part has come to; NULL:
                          there is one part */
} engine_groups;

/* Steps that the host may be ahead of the device. */
#define ENGINE_TURNS 4
/* The turn behind those: a captured graph's, for as long as it is launched. */
#define ENGINE_GRAPH_TURN ENGINE_TURNS
/* The engine's own streams. */
#define ENGINE_STREAMS 3

/* What a step hands to the device and gets back, in host memory that the device reaches. */
typedef struct engine_turn {
    zi_step_input input;
    zi_step_given given;       /* what the other ranks are told of it */
    zi_step_decision outcome;  /* there once the turn's `decided` has fired */
    zi_optim_judgement drafts; /* likewise, where it was drafted */
} engine_turn;

/* Host memory that the device reaches. */
typedef struct engine_host {
    engine_turn turns[ENGINE_TURNS + 1];
    zi_step_decision presumed; /* of the step that is drafted */
    engine_turn asked;         /* of a norm that was asked for */
    zi_step_state state;       /* on its way to the device or back */
} engine_host;

/* Announced steps that were updated twice, one after the other, before no more are drafted. */
#define ENGINE_REDONE_MAX 3
/* Announced steps that are then not drafted, before one is again: at first, and at most. */
#define ENGINE_REST_FIRST 8
#define ENGINE_REST_MAX 512

/* A step that is begun before it is decided. (announce.c) */
typedef struct engine_announced {
    bool given;          /* for the next step, or the one under way */
    bool begun;          /* its last micro-step is under way or over; false without state on disk */
    uint32_t next;       /* bucket whose units are drafted next */
    zi_step_input input; /* the divisor as given */
    /* What became of drafts so far, a function of the steps' outcomes: see may_draft. */
    bool drafted[ENGINE_TURNS]; /* by turn: its step is, and what came of it was not looked at */
    uint32_t unknown;           /* of these */
    uint32_t redone;            /* drafted steps that were updated twice since one was not */
    uint32_t rest;              /* steps that are not drafted */
    uint32_t next_rest;         /* as many after these, should the next be updated twice too */
} engine_announced;

/* By what a store is dealt over the directories. (tiers.c) */
typedef enum engine_dealt {
    ENGINE_DEALT_EQUALLY = 0,
    ENGINE_DEALT_AS_GIVEN = 1, /* tuning.disk_weights */
    ENGINE_DEALT_AS_MEASURED = 2
} engine_dealt;

typedef struct engine_dealing {
    engine_dealt by;
    uint32_t rates[ZI_STORE_DIRECTORIES_MAX];
} engine_dealing;

/* What is offloaded between steps. (park.c) */
typedef struct engine_park {
    const char **directories; /* of the options; in one piece with their texts */
    uint32_t directory_count;
    engine_dealing dealing; /* as roles on disk are, or measured by the first store worth it */
    zero_tier tier;
    uint32_t roles;                 /* that the caller has offloaded, bits by role; 0: none */
    uint32_t given;                 /* of these, whose memory was given up */
    uint32_t parked;                /* of those, what is kept on `tier` */
    zi_store *store;                /* there, role after role */
    uint64_t *sums;                 /* its checksums, chunk after chunk; NULL: none */
    unsigned char *host[ZI_STATES]; /* or here, from MASTER on */
    bool grads_lost;                /* since the last plain step or launch */
} engine_park;

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
    engine_dealing dealing;                /* of the store */
    zi_store *store;                       /* roles on disk; NULL: there are none */
    uint64_t *sums;                        /* its checksums; NULL: none */
    zi_window *window;                     /* of optimizer state; used on the step stream */
    zi_offload *offload[ZI_OFFLOAD_ROLES]; /* by role; NULL: it is where the device computes */
    engine_park park;
    engine_views views;
    zi_params *params;
    zi_grads *grads;
    zi_optim *optim;
    zi_collective norm_gather;
    zi_collective norm_query; /* the same, for zero_grad_norm */
    zi_collective part_gather;
    zi_collective part_query;
    zi_norm_sum *replicas; /* step arena: squares that another part of the model counts */
    float *weights; /* step arena: by turn, what this rank's gradients weigh; behind the graph's
                       turn, of a norm that was asked for */
    zi_decide_job decide; /* its input is the turn's */
    zi_decide_job aside;  /* the same on a copy of the state, for what moves nothing */
    engine_announced announced;
    engine_host *host;
    engine_turn *turns; /* the host's */
    /* step stream, after the decision and what becomes of drafts -> host and, where there were
     * drafts, the reduce stream; the graph's: recorded on the stream of its launches, after them */
    zi_event *decided[ENGINE_TURNS + 1];
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
    uint32_t turn;             /* of the next plain step */
    uint32_t last_turn;        /* of the last */
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

/* INVALID_ARGUMENT for NULL. For calls that only read: no engine is too broken for them. */
zero_status zi_engine_check_given(const zero_engine *engine);
/* POISONED with the first failure's message, or INVALID_ARGUMENT for NULL. Every public call starts
 * here. */
zero_status zi_engine_check(const zero_engine *engine);
/* STATE where the engine's state refuses the call, or what it needs besides is not so: with the
 * call's name, the state and the remedy of the table (engine_state.h). */
zero_status zi_engine_admit(const zero_engine *engine, zi_engine_call call, const char *name);
/* The same for a call on one of the engine's units, which the message names. */
zero_status zi_engine_admit_unit(const zero_engine *engine, zi_engine_call call, const char *name,
                                 uint32_t unit);
/* The same for a call on the shards of a role: STATE too where they are not there or not at rest.
 */
zero_status zi_engine_admit_role(const zero_engine *engine, zi_engine_call call, const char *name,
                                 zero_role role);
/* Note a failure that leaves ranks or streams out of step; returns `status`. Every public call ends
 * here, or in the next. */
zero_status zi_engine_finish(zero_engine *engine, zero_status status);
/* The same; after OK the engine is in the state that the table says the call leads to. */
zero_status zi_engine_leave(zero_engine *engine, zi_engine_call call, zero_status status);
/* The names of a set of roles, with commas, cut where they do not fit. Returns text. */
const char *zi_engine_roles_text(uint32_t roles, char *text, size_t text_bytes);
/* Block the host until the event has fired, and ask the groups whether they are alive: what a
 * failed one had under way ends like any other work of a GPU. */
zero_status zi_engine_await(zero_engine *engine, zi_event *event);
/* The caller's stream for a hook. STATE where it is of no use in a capture or for its launches. */
zero_status zi_engine_wrap(zero_engine *engine, zero_stream stream, zi_stream **out);
/* A step's hyper-parameters as the device reads them. input->divisor: 0 where the caller gave no
 * number. weight: where the caller has its rank's weight, or NULL. (step.c) */
zero_status zi_engine_take_input(const zero_engine *engine, const zero_step_params *params,
                                 zi_step_input *input, const float **weight);
/* What the other ranks are told of a step's input, but for the micro-steps. (step.c) */
void zi_engine_give(const zero_engine *engine, const zi_step_input *input, zi_step_given *given);
/* Why a decision refused a step: MISMATCH where ranks gave different numbers to it, else
 * INVALID_ARGUMENT; OK where it did not. (agree.c) */
zero_status zi_engine_check_refusal(const zero_engine *engine, const zi_step_refusal *refusal);
/* Settle by what a step of this many micro-steps is divided, where nothing else was given. (step.c)
 */
void zi_engine_settle_divisor(const zero_engine *engine, zi_step_input *input, const float *weight,
                              uint64_t micro_steps);
/* The step stream goes on after what `caller` has; there this rank's message is put together: what
 * it was given beside its squares. turn: of the weight's place. (step.c) */
zero_status zi_engine_put_message(zero_engine *engine, zi_stream *caller, engine_turn *room,
                                  uint32_t turn, const float *weight);
/* Enqueue a decision from all messages, and those of all parts. (step.c) */
zero_status zi_engine_decide(zero_engine *engine, zi_decide_job job, const zi_collective *messages,
                             const zi_collective *parts);
/* Enqueue the decision for gradients of zeros, which moves nothing. input, outcome: host memory
 * that the device reaches. (control.c) */
zero_status zi_engine_presume(zero_engine *engine, const zi_step_input *input,
                              zi_step_decision *outcome);
/* Block until a stream of the engine has run all so far. (shard.c) */
zero_status zi_engine_await_stream(zero_engine *engine, zi_stream *stream);
/* Block until all steps so far are decided, and count them. (step.c) */
zero_status zi_engine_settle_outcomes(zero_engine *engine);
/* Block until the last step that used the turn is decided, if any did. (step.c) */
zero_status zi_engine_await_turn(zero_engine *engine, uint32_t turn);
/* The last micro-step begins: so does the step that was announced, if one was. (announce.c) */
zero_status zi_engine_begin_announced(zero_engine *engine);
/* The turn's last step was awaited and another takes its place: note what came of its drafts.
 * (announce.c) */
void zi_engine_note_drafts(zero_engine *engine, uint32_t turn);
/* After anything that may have enqueued reductions: draft what they are of. (announce.c) */
zero_status zi_engine_draft(zero_engine *engine);
/* INVALID_ARGUMENT where the step is not the one that was announced. (announce.c) */
zero_status zi_engine_check_announced(const zero_engine *engine, const zi_step_input *input,
                                      const float *weight);
/* The last step's result, once it is known; STATE when there is none. (step.c) */
zero_status zi_engine_take_result(zero_engine *engine, zero_step_result *result);
zero_status zi_engine_check_unit(const zero_engine *engine, uint32_t unit);
zero_status zi_engine_check_tensor(const zero_engine *engine, uint32_t tensor);

/* Make the groups; collective. Connect them for all that will be put on them; collective, after the
 * stages are made and before they do anything. (groups.c) */
zero_status zi_engine_make_groups(zero_engine *engine);
zero_status zi_engine_connect_groups(zero_engine *engine);
/* What any of them has failed with so far. */
zero_status zi_engine_check_groups(const zero_engine *engine);
void zi_engine_destroy_groups(zero_engine *engine);

/* Words that agree.c needs at engine->agreement. */
size_t zi_engine_agreement_words(uint32_t world_size);
/* Ranks compare their layouts; MISMATCH names the first difference. planned: what making the layout
 * came to on this rank; when it is not OK (layout NULL), that is returned and the others get
 * MISMATCH. Collective. (agree.c) */
zero_status zi_engine_agree_layout(zero_engine *engine, zero_status planned);
/* Ranks of one of the engine's worlds say whether they have what each takes alone. mine: what came
 * of it here; when it is not OK, that is returned and the others get COMM with its message. world
 * NULL: `mine` is returned. Collective. (agree.c) */
zero_status zi_engine_agree_ready(zero_engine *engine, zero_world *world, zero_status mine);
/* The parts of the model compare what they must have alike to decide alike; MISMATCH names the
 * first difference. Collective over the model-parallel world, where there is one. (agree.c) */
zero_status zi_engine_agree_parts(zero_engine *engine);
/* Ranks of one of the engine's worlds compare what each was given, by a hash; INVALID_ARGUMENT
 * names the first rank that differs. checked: what the rank's own check of it came to; when it is
 * not OK, that is returned, and the others are told. `what` is in the messages. world NULL: as
 * above. Collective. (agree.c) */
zero_status zi_engine_agree_given(zero_engine *engine, zero_world *world, zero_status checked,
                                  uint64_t hash, const char *what);
/* Let the ranks of all its worlds fail: this one cannot go on. (guard.c) */
void zi_engine_abort(const zero_engine *engine, const zero_error *error);
/* Prune what has moved elsewhere from the orders of gathers. Collective. (agree.c) */
zero_status zi_engine_agree_schedules(zero_engine *engine);
/* Take the `initial` arrays of the model's tensors. (array.c) */
zero_status zi_engine_take_initial(zero_engine *engine);

/* Take the memory of all roles that have some, and give it back. Own: local. Shared: what peers
 * read, collective; when it fails it fails on all ranks. (arenas.c) */
zero_status zi_engine_take_own_arenas(zero_engine *engine);
zero_status zi_engine_take_shared_arenas(zero_engine *engine);
void zi_engine_free_arenas(zero_engine *engine);
/* Take a role's memory, zeroed, where its tier says; again, after it was given up. The first time
 * collective over the world for memory that peers read, later on local. */
zero_status zi_engine_take_arena(zero_engine *engine, zero_role role);
/* Give a role's memory back to the system. Nothing uses it; on failure it is held still. */
zero_status zi_engine_give_arena(zero_engine *engine, zero_role role);
/* Let the stages work on the arenas as they are now: some were taken again. The streams that use
 * them are idle. */
zero_status zi_engine_point(zero_engine *engine);

/* Make the arrays that acquires hand out, and free them. (unit_views.c) */
zero_status zi_engine_make_views(zero_engine *engine);
void zi_engine_free_views(zero_engine *engine);
/* Let a unit's views point to its parameters, or gradients, where these are now: they are acquired.
 */
void zi_engine_view_params(zero_engine *engine, uint32_t unit);
void zi_engine_view_grads(zero_engine *engine, uint32_t unit);
/* The memory of gradients is another one. */
void zi_engine_forget_grad_views(zero_engine *engine);

/* Copy the directories, for zero_engine_offload. (park.c) */
zero_status zi_engine_keep_directories(zero_engine *engine, const zero_engine_options *options);
void zi_engine_close_park(zero_engine *engine);
/* Add what is parked. */
void zi_engine_add_parked(const zero_engine *engine, zero_memory *memory);

/* Settle by what a store of so many bytes is dealt: measures the directories where it was equally
 * so far and that is worth it. (tiers.c) */
zero_status zi_engine_choose_dealing(const zero_engine *engine, const char *const *directories,
                                     uint32_t directory_count, uint64_t bytes,
                                     engine_dealing *dealing);
/* Reserve roles on disk, and make what offloaded roles pass through; nothing where there are none.
 * (tiers.c) */
zero_status zi_engine_open_store(zero_engine *engine, const zero_engine_options *caller_options);
/* A stream that a role's store may be used on while the engine rests. */
zi_stream *zi_engine_offload_stream(const zero_engine *engine, zero_role role);
/* The engine's streams are gone. */
void zi_engine_close_store(zero_engine *engine);
/* Whether the host has a part in what streams do beside issuing it: a disk, or updates of a GPU's
 * parameters. Such a GPU's streams have threads that issue. */
static inline bool zi_engine_uses_host(const zero_engine *engine)
{
    return engine->layout->disk_bytes != 0 || engine->layout->room_bytes != 0;
}
/* The kernels for what tasks do to memory of the host. */
static inline const zi_kernels *zi_engine_host_kernels(const zero_engine *engine)
{
    return engine->host_kernels.ops != NULL ? &engine->host_kernels : &engine->kernels;
}
/* Whether the next step goes from the last unit to the first: see zi_optim_look_ahead. */
bool zi_engine_steps_down(const zero_engine *engine);

/* A rank's shard of one flat in one role, and the part of a tensor in it. (shard.c) */
typedef struct engine_shard {
    unsigned char *data; /* NULL: on disk, or there is none */
    uint64_t part_first; /* elements of the role's shard of the flat before it */
    zero_dtype dtype;
    zero_tier tier;
    uint32_t flat;
    zero_role role;
    uint64_t at;           /* elements from the shard's start to the tensor's first here */
    uint64_t tensor_first; /* its index in the tensor */
    uint64_t count;        /* 0: nothing of the tensor is here in this role */
} engine_shard;

/* The elements of a tensor in one part of its flat. */
typedef struct engine_part {
    uint64_t at;    /* elements from the part's start to the tensor's first here */
    uint64_t first; /* its index in the tensor */
    uint64_t count; /* 0: none */
} engine_part;

/* Over how many ranks a role is split outside steps: of GRAD, what was reduced. (shard.c) */
uint32_t zi_engine_degree(const zi_layout *layout, zero_role role);
/* What the index-th part of so many has of a tensor. (shard.c) */
engine_part zi_engine_part(const zi_layout *layout, uint32_t tensor, uint32_t degree,
                           uint32_t index);
engine_shard zi_engine_shard(const zero_engine *engine, uint32_t tensor, zero_role role);
/* Elements [first, first + count) of the shard's part of the tensor := values of `dtype`, which is
 * host memory that the device reaches, rounded to nearest even. Blocks. Nothing else uses the
 * shard. */
zero_status zi_engine_shard_fill(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, float *values, zero_dtype dtype);
/* The other way: values of the role's own type, in host memory. Blocks. (shard.c) */
zero_status zi_engine_shard_read(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, void *values);
/* Wait until a role's shards are at rest; before a write of PARAM also forget what was gathered.
 * (shard.c) */
zero_status zi_engine_begin_transfer(zero_engine *engine, zero_role role, bool writes);

/* Elements that go through a staging buffer at a time, and its bytes. */
#define ENGINE_STAGED_COUNT ((uint64_t)65536)
#define ENGINE_STAGED_BYTES (ENGINE_STAGED_COUNT * sizeof(float))
/* Host memory that the device reaches, for values on their way into shards: fp32 elements, or of a
 * smaller type. (array.c) */
zero_status zi_engine_open_staging(zero_engine *engine, float **staging);
void zi_engine_close_staging(zero_engine *engine, float *staging); /* accepts NULL */
/* What was filled is on disk. Blocks. */
zero_status zi_engine_shards_rest(zero_engine *engine);

#endif
