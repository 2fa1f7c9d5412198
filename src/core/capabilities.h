/* The capabilities and the needs of a backend, as far as anything above asks. A plan is computed
 * from these without a device, so they are known before one is opened; see engine/backend.h. */
#ifndef ZI_CORE_CAPABILITIES_H
#define ZI_CORE_CAPABILITIES_H

#include <stdbool.h>
#include <stdint.h>

/* Requests to a transport's library for each communicator; 0 and NULL: it chooses. */
typedef struct zi_transport_hints {
    uint32_t ctas_min; /* thread blocks of a collective */
    uint32_t ctas_max;
    uint32_t traffic_class; /* of the network */
    const char *network;    /* its name; read while an engine is created */
} zi_transport_hints;

typedef struct zi_capabilities {
    /* The device computes on the host's memory: ZERO_TIER_HOST is no other place, and what the
     * device writes host code may read. */
    bool host_memory;
    /* Reductions exchange through scratch memory that the engine lends them. */
    bool lent_scratch;
    /* Gathers are to run on copy engines alone. */
    bool copy_engines;
    /* Memory of collectives comes from the transport's allocator and is registered with each group.
     * A collective finds it at equal offsets on all ranks. */
    bool registered;
    zi_transport_hints hints;
} zi_capabilities;

#endif
