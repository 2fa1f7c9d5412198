/* Owns the backend of a world of one rank. Its groups are peer groups of one, which need no block.
 */
#include "comm/self/self.h"

#include "comm/peer/peer.h"
#include "comm/world.h"
#include "core/check.h"
#include "core/memory.h"

typedef struct self_comm {
    zi_comm base;
    zi_peer_space space;
} self_comm;

static zero_status self_group_create(zi_comm *base, const zi_kernels *kernels,
                                     const uint32_t *members, uint32_t size, const char *name,
                                     zi_group **out)
{
    const self_comm *comm = (self_comm *)base;
    zi_assert_cmp(size, ==, 1);
    (void)members;
    return zi_peer_group_create_alone(base, &comm->space, kernels, name, out);
}

/* No other rank waits. */
static void self_abort_nobody(zi_comm *comm, const zero_error *error)
{
    (void)comm;
    (void)error;
}

static void self_destroy(zi_comm *comm)
{
    zi_free(comm);
}

static const zi_comm_ops self_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "self",
    .group_create = self_group_create,
    .memory_alloc = zi_comm_pages_alloc,
    .memory_free = zi_comm_pages_free,
    .abort = self_abort_nobody,
    .destroy = self_destroy,
};

zero_status zi_self_comm_create(zi_comm **out)
{
    *out = NULL;
    self_comm *comm = NULL;
    const zero_status status = zi_calloc(1, sizeof *comm, (void **)&comm);
    if (status == ZERO_OK) {
        comm->base = (zi_comm){
            .ops = &self_ops,
            .size = 1,
            .local_size = 1,
            .deadline_ms = ZI_DEADLINE_DEFAULT_MS,
            .one_process = true,
        };
        comm->space.one_address_space = true;
        *out = &comm->base;
    }
    return status;
}
