/* Owns the update of chunks within a task, on whatever has their state.
 * Invariant: a chunk is touched by one task at a time, the one whose unit it is. */
#include "core/clock.h"
#include "core/error.h"
#include "stage1/optim_internal.h"

static uint64_t clock_of(bool timed)
{
    return timed ? zi_clock_ns() : 0;
}

static void update_count(atomic_uint_fast64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static zi_update_job *jobs_of(const optim_work *work)
{
    return work->speculates ? work->optim->speculative_jobs : work->optim->jobs;
}

zero_status zi_optim_update_staged(const optim_work *work, uint32_t p, uint32_t next)
{
    zi_optim *optim = work->optim;
    const zi_update_job *jobs = jobs_of(work);
    const bool goes_on = next < optim->layout->chunk_count && jobs[next].segment_count != 0;
    const zi_staged_chunk chunk = {.job = &jobs[p],
                                   .segments = optim->segments + optim->segment_first[p],
                                   .decision = work->outcome,
                                   .stalled = &optim->host_stalled[work->speculates ? 1 : 0]};
    const uint64_t start_ns = clock_of(true);
    ZI_TRY(zi_staging_update(optim->staging, &chunk, goes_on ? &jobs[next] : NULL));
    update_count(&optim->update_ns, clock_of(true) - start_ns);
    update_count(&optim->host_elements, chunk.job->count);
    return ZERO_OK;
}

static uint32_t unit_of(const zi_layout *layout, uint32_t p)
{
    return layout->flats[layout->chunks[p].flat].unit;
}

/* The chunk that the update comes to after this one; ZI_NO_INDEX: none that is known to be ready.
 * Speculative updates come a unit at a time. */
static uint32_t chunk_after(const optim_work *work, uint32_t p)
{
    const zi_layout *layout = work->optim->layout;
    const uint32_t next = work->down ? p - 1 : p + 1; /* none below the first either */
    const bool comes = next < layout->chunk_count &&
                       (work->speculates ? unit_of(layout, next) == unit_of(layout, p)
                                         : !zi_optim_adopts(work, unit_of(layout, next)));
    return comes ? next : ZI_NO_INDEX;
}

/* The extents that an update has acquired of its chunk besides the state. */
typedef struct held_chunk {
    zi_extent_place grad;
    zi_extent_place param;
    bool has_grad;
    bool has_param;
} held_chunk;

/* Acquire the chunk's extent of a role; those that the next few updates read are prefetched. A
 * speculative update prefetches none: what it reads was written a moment ago, and another stream
 * uses the window. */
static zero_status acquire_extent(const optim_work *work, uint32_t p, zero_role role,
                                  zi_extent_place *place, unsigned char **memory)
{
    const zi_optim *optim = work->optim;
    const zi_layout *layout = optim->layout;
    const bool param = role == ZERO_ROLE_PARAM;
    const zi_shards *shards = &optim->desc.shards[role];
    zi_window_range next[ZI_WINDOW_AHEAD];
    zi_shards_element element = {0};
    bool reads = true;
    uint32_t count = 0;
    for (uint32_t q = p, looked = 0; q != ZI_NO_INDEX && looked <= ZI_WINDOW_AHEAD; looked++) {
        const zi_chunk *chunk = &layout->chunks[q];
        const uint64_t first = zi_optim_shard_first(optim, role, chunk->flat);
        const zi_shards_element own = {.flat = chunk->flat, .index = first + chunk->first};
        const bool read = !param || zi_flat_reads_param(&layout->flats[chunk->flat]);
        if (q == p) {
            element = own;
            reads = read;
        } else if (read && optim->jobs[q].segment_count != 0) {
            next[count++] = zi_shards_range(shards, own);
        }
        q = work->speculates ? ZI_NO_INDEX : chunk_after(work, q);
    }
    return zi_shards_acquire_before(shards, element, reads ? ZI_WINDOW_READS : ZI_WINDOW_REPLACES,
                                    next, count, place, memory);
}

/* Acquire what the chunk's job works on. What lies between tensors is zeros. */
static zero_status acquire_chunk(const optim_work *work, uint32_t p, held_chunk *held)
{
    zi_optim *optim = work->optim;
    const zi_chunk *chunk = &optim->layout->chunks[p];
    const zi_flat *flat = &optim->layout->flats[chunk->flat];
    zi_update_job *job = &jobs_of(work)[p];
    unsigned char *memory = NULL;
    *held = (held_chunk){.has_grad = zi_shards_on_disk(&optim->desc.shards[ZERO_ROLE_GRAD]),
                         .has_param = zi_shards_on_disk(&optim->desc.shards[ZERO_ROLE_PARAM]) &&
                                      !work->speculates && optim->desc.param_staging == NULL};
    if (chunk->extent != ZI_NO_INDEX) {
        ZI_TRY(zi_window_acquire(optim->desc.window, chunk->extent, ZI_WINDOW_READS, &memory));
        zi_optim_rebind_job(optim, p, job, memory);
    }
    if (held->has_grad) {
        ZI_TRY(acquire_extent(work, p, ZERO_ROLE_GRAD, &held->grad, &memory));
        job->grad = memory;
    }
    if (held->has_param) {
        ZI_TRY(acquire_extent(work, p, ZERO_ROLE_PARAM, &held->param, &memory));
        job->param = memory;
        if (!zi_flat_reads_param(flat)) {
            const zi_device *host = optim->desc.host_kernels->device;
            ZI_TRY(host->ops->fill(host->self, optim->host, memory, 0,
                                   zi_codec_bytes(flat->kept[ZERO_ROLE_PARAM], chunk->count)));
        }
    }
    return ZERO_OK;
}

static zero_status release_chunk(const optim_work *work, uint32_t p, const held_chunk *held)
{
    const zi_optim *optim = work->optim;
    const uint32_t extent = optim->layout->chunks[p].extent;
    if ((held->has_grad || held->has_param) && !optim_ops_of(optim)->host_memory) {
        ZI_TRY(optim_ops_of(optim)->drain(optim_self_of(optim),
                                          optim->desc.step_stream)); /* a GPU's kernel */
    }
    if (held->has_param) {
        ZI_TRY(zi_shards_release(&optim->desc.shards[ZERO_ROLE_PARAM], &held->param, true));
    }
    if (held->has_grad) {
        ZI_TRY(zi_shards_release(&optim->desc.shards[ZERO_ROLE_GRAD], &held->grad, false));
    }
    return extent != ZI_NO_INDEX ? zi_window_release(optim->desc.window, extent, true) : ZERO_OK;
}

/* The chunk whose arrays begin to come to the CPU meanwhile. They are not in the staging buffer
 * yet, where parameters go through that. */
static uint32_t staged_after(const optim_work *work, uint32_t p)
{
    const uint32_t next = chunk_after(work, p);
    const bool comes = next != ZI_NO_INDEX && work->optim->desc.param_staging == NULL &&
                       zi_optim_is_staged(work->optim, next);
    return comes ? next : ZI_NO_INDEX;
}

zero_status zi_optim_update_chunk(const optim_work *work, uint32_t p)
{
    zi_optim *optim = work->optim;
    const zi_kernels *kernels = optim->desc.kernels;
    const zi_update_job *job = &jobs_of(work)[p];
    held_chunk held;
    if (job->segment_count == 0) {
        return ZERO_OK;
    }
    ZI_TRY(acquire_chunk(work, p, &held));
    if (zi_optim_is_staged(optim, p)) {
        ZI_TRY(zi_optim_update_staged(work, p, staged_after(work, p)));
    } else {
        /* A GPU's kernels are only handed over. */
        const bool timed = optim_ops_of(optim)->host_memory;
        const uint64_t start_ns = clock_of(timed);
        ZI_TRY(kernels->ops->update(kernels->self, optim->desc.step_stream, job));
        update_count(&optim->update_ns, clock_of(timed) - start_ns);
    }
    return release_chunk(work, p, &held);
}

zero_status zi_optim_update_chunks(const optim_work *work)
{
    uint32_t first = 0;
    const uint32_t chunks = zi_unit_chunks(work->optim->layout, work->unit, &first);
    for (uint32_t i = 0; i < chunks; i++) {
        ZI_TRY(zi_optim_update_chunk(work, first + (work->down ? chunks - 1 - i : i)));
    }
    return ZERO_OK;
}

uint64_t zi_optim_update_ns(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->update_ns, memory_order_relaxed);
}

uint64_t zi_optim_host_elements(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->host_elements, memory_order_relaxed);
}
