/* Ranks that are processes of one host, started without MPI. */
#ifndef ZI_COMM_SHM_SHM_COMM_H
#define ZI_COMM_SHM_SHM_COMM_H

#include "comm/comm.h"
#include "comm/shm/shared.h"

typedef struct zi_shm_place {
    char name[64]; /* for shm_open: "/...", the same for all ranks */
    uint32_t rank;
    uint32_t size;
    uint64_t launcher; /* that zi_process_launcher says; 0: the name tells jobs apart */
} zi_shm_place;

typedef struct zi_shm_comm {
    zi_comm base;
    zi_shared *shared;
} zi_shm_comm;

/* Make the comm, once all ranks have arrived. Errors: those of zi_shared_join. */
zero_status zi_shm_comm_create(const zi_shm_place *place, uint32_t deadline_ms, zi_comm **out);

#endif
