/* Owns where gradients are: in slots, staging buffers and shards. */
#include "layout/sharding.h"
#include "stage2/grad_internal.h"

unsigned char *zi_grads_slot_data(const zi_grads *grads, uint32_t bucket)
{
    const zi_slot_class *class =
        &grads->layout->grad_classes[grads->layout->buckets[bucket].grad_class];
    return grads->desc.slots + class->slots_at + grads->buckets[bucket].slot * class->slot_bytes;
}

unsigned char *zi_grads_tensor_at(const zi_grads *grads, uint32_t tensor)
{
    const zi_tensor_place *place = &grads->layout->tensors[tensor];
    const zi_flat *flat = &grads->layout->flats[place->flat];
    unsigned char *base = zi_flat_grad_in_slot(grads->layout, flat)
                              ? zi_grads_slot_data(grads, flat->bucket) + flat->grad_slot_at
                              : grads->arena + flat->at[ZERO_ROLE_GRAD];
    return base + zi_codec_offset(flat->slot[ZERO_ROLE_GRAD], place->offset);
}

unsigned char *zi_grads_shard(const zi_grads *grads, uint32_t flat)
{
    const zi_flat *place = &grads->layout->flats[flat];
    if (zi_shards_here(grads->desc.shards)) {
        return zi_shards_at(grads->desc.shards, flat, 0);
    }
    return zi_flat_grad_in_place(grads->layout, place)
               ? zi_grads_slot_data(grads, place->bucket) + place->grad_slot_at
               : grads->desc.slots + grads->layout->grad_staging_at + place->grad_staging_at;
}

uint64_t zi_grads_shard_first(const zi_grads *grads, uint32_t flat)
{
    const zero_sharding *s = zi_flat_sharding(grads->layout, &grads->layout->flats[flat]);
    return zi_optimizer_shard_index(s, grads->desc.rank, s->grad) *
           zi_shard_count(grads->layout, &grads->layout->flats[flat], s->optimizer);
}

static uint64_t optimizer_shard_bytes(const zi_grads *grads, uint32_t flat)
{
    return zi_codec_offset(grads->layout->flats[flat].kept[ZERO_ROLE_GRAD],
                           zi_grads_shard_first(grads, flat));
}

unsigned char *zi_grads_optimizer_shard(const zi_grads *grads, uint32_t flat)
{
    return zi_grads_shard(grads, flat) + optimizer_shard_bytes(grads, flat);
}
