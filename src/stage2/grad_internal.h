/* State shared by the parts of the gradient shard: who has which slot (grads.c), reductions
 * (reduce.c), what is added where gradients are offloaded (offload_grads.c), and where they are
 * (grad_places.c). */
#ifndef ZI_STAGE2_GRAD_INTERNAL_H
#define ZI_STAGE2_GRAD_INTERNAL_H

#include "stage2/grads.h"

typedef struct grad_unit {
    uint32_t own_count; /* acquires by its own name */
    uint32_t tie_count; /* acquires through units that tie to it */
    uint32_t ties_done; /* of those units, how many are ready in this micro-step */
    bool own_done;      /* declared ready by its own name in this micro-step */
    bool ready;         /* complete: counted in its bucket */
    uint32_t bucket;    /* its own; for a unit without one, that of the trained unit after it */
    bool zeroed;        /* in-place flats hold this step's sum, not the last one's */
    bool left_out;      /* by zi_grads_left_out */
    bool came;          /* acquired in any micro-step so far, by any name */
    bool marked;        /* its tensors begin with marks (added.c) */
} grad_unit;

typedef struct grad_bucket {
    uint32_t slot; /* in its class; ZI_NO_INDEX: none */
    uint32_t ready_count;
    uint32_t behind; /* buckets before this one are over when backward comes to here */
    zi_event *ready;
    zi_event *reduced;
    zi_event *filled;
    bool filling; /* zeros are under way on a caller's stream, which has not come to `ready` */
} grad_bucket;

typedef struct grad_slot {
    uint32_t bucket; /* that holds it; ZI_NO_INDEX: free */
    bool reserved;   /* held by an acquire that may still be refused: nothing is enqueued for it */
    bool used;       /* a bucket has held it: `emptied` gates reuse */
    zi_event *emptied;
    uint64_t freed; /* when: the smallest is taken first; 0: never used */
} grad_slot;

/* A copy to the wire buffer that is scaled or packed; stays in place until it is issued. */
typedef struct grad_folding {
    zi_fold fold;
    const void *source;
} grad_folding;

struct zi_grads {
    zi_grads_desc desc;
    const zi_layout *layout;
    unsigned char *arena; /* of the shards */
    bool first;           /* micro-step of the step */
    bool last;            /* the boundary */
    uint32_t micro_count; /* micro-steps of the step so far, this one too */
    bool norm_cleared;    /* for this boundary */
    bool ended;           /* work put off to its end is enqueued */
    uint32_t next;        /* bucket to be reduced next in this micro-step */
    grad_unit *units;
    grad_bucket *buckets;
    grad_slot *slots; /* all classes end to end */
    uint64_t clock;   /* of grad_slot.freed */
    /* By hop and position in layout->bucket_flats: those of a bucket's flats are neighbours. */
    zi_collective *batches[ZI_HOPS];
    grad_folding *foldings[ZI_HOPS];
    zi_event *consumed;
    bool marking;         /* this is the engine's first micro-step and tuning.check_added is set */
    unsigned char *marks; /* a byte a tensor, in the host's memory; NULL: nothing was marked yet */
    zi_event *marks_read;
    uint32_t assigned; /* the first tensor whose mark was overwritten; ZI_NO_INDEX: none */
};

static inline const zi_device_ops *grad_ops_of(const zi_grads *grads)
{
    return grads->desc.device->ops;
}

static inline void *grad_self_of(const zi_grads *grads)
{
    return grads->desc.device->self;
}

/* A span of the reduce stream about a flat's unit. */
static inline zero_status zi_grads_begin(const zi_grads *grads, zi_span span, const zi_flat *flat,
                                         uint64_t bytes, zi_mark **mark)
{
    return zi_stream_begin(grads->desc.device, grads->desc.reduce_stream, span,
                           grads->layout->unit_infos[flat->unit].name, bytes, mark);
}

static inline zero_status zi_grads_end(const zi_grads *grads, zi_mark *mark)
{
    return zi_stream_end(grads->desc.device, grads->desc.reduce_stream, mark);
}

/* The sum that the squares of a flat's final sums are added to. */
static inline zi_norm_sum *norm_of(const zi_grads *grads, const zi_flat *flat)
{
    return flat->replica || !grads->desc.counts[flat->sharding] ? grads->desc.replicas
                                                                : grads->desc.norm;
}

/* Enqueue the reduction of bucket grads->next and step to the one after. */
zero_status zi_grads_reduce_next(zi_grads *grads);
/* The reductions that were put off to the end of the last micro-step. */
zero_status zi_grads_end_boundary(zi_grads *grads);

/* For tuning.check_added (added.c); they do nothing after the engine's first micro-step. Before a
 * unit's gradient is handed out, and before nobody holds it any more. */
zero_status zi_grads_mark(zi_grads *grads, uint32_t unit, zi_stream *stream);
zero_status zi_grads_unmark(zi_grads *grads, uint32_t unit, zi_stream *stream);

/* The slot that the bucket holds. (grad_places.c) */
unsigned char *zi_grads_slot_data(const zi_grads *grads, uint32_t bucket);
/* A trained tensor's gradient while its unit's is acquired. */
unsigned char *zi_grads_tensor_at(const zi_grads *grads, uint32_t tensor);
/* A flat's gradient shard while its bucket is reduced: in its arena or, offloaded, in its bucket's
 * slot or the staging buffer. */
unsigned char *zi_grads_shard(const zi_grads *grads, uint32_t flat);
/* This rank's optimizer shard of it. */
unsigned char *zi_grads_optimizer_shard(const zi_grads *grads, uint32_t flat);

/* Functions for offloaded gradients; they do nothing elsewhere, and put all on the reduce stream.
 * position: of a flat in the list of all buckets' flats. (offload_grads.c) */
/* Load what the sum so far needs before the bucket is added to it; all: whatever was added. */
zero_status zi_grads_load(zi_grads *grads, uint32_t bucket, bool all);
/* Store the bucket's shards; own: only this rank's optimizer shard of them. */
zero_status zi_grads_store(zi_grads *grads, uint32_t bucket, bool own);
/* Fill the slot that the bucket has just taken, with its sums so far or zeros, before what follows
 * on `stream`. */
zero_status zi_grads_fill_slot(zi_grads *grads, uint32_t bucket, zi_stream *stream);
/* Zeros for the bucket are on the caller's stream: until its gradient is ready destroying waits for
 * them. */
zero_status zi_grads_note_fill(zi_grads *grads, uint32_t bucket, zi_stream *stream);
/* True if a flat's gradients are added to its sum in the window. The second adds them, as that
 * collective of a group of one would. */
bool zi_grads_added_in_window(const zi_grads *grads, uint32_t flat);
zero_status zi_grads_add_in_window(zi_grads *grads, uint32_t position, const zi_collective *sum);
/* Add the squares of a sum that backward adds to in place, and that is in no slot. */
zero_status zi_grads_square_offloaded(zi_grads *grads, uint32_t position);

#endif
