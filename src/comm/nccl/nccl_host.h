/* Groups of host memory where ranks share nothing but NCCL: every collective of comm.h, meant for
 * few bytes, in as many exchanges of a link as they take. Differs from comm.h in that a TIMEOUT
 * cannot name the rank that is missing, and in that sums move size times the bytes. */
#ifndef ZI_COMM_NCCL_NCCL_HOST_H
#define ZI_COMM_NCCL_NCCL_HOST_H

#include "comm/nccl/nccl_link.h"

/* Called by destroy instead of zi_nccl_link_destroy. */
typedef void (*zi_nccl_host_close)(zi_comm *comm, zi_nccl_link *link);

typedef struct zi_nccl_host_desc {
    zi_comm *comm;             /* of the world */
    zi_nccl_link *link;        /* of the same members; the group owns it, also after a failure */
    const zi_kernels *kernels; /* of a CPU device */
    const uint32_t *members;
    uint32_t size;
    const char *name;
    zi_nccl_host_close close; /* NULL: none */
} zi_nccl_host_desc;

/* Local. */
zero_status zi_nccl_host_create(const zi_nccl_host_desc *desc, zi_group **out);

#endif
