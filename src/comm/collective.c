/* Owns the one-line text of a collective. Everything that members must agree on shows in it, so
 * that two collectives that differ read differently. */
#include <stdio.h>

#include "comm/comm.h"

static const char *kind_name(zi_collective_kind kind)
{
    switch (kind) {
    case ZI_ALL_GATHER:
        return "all_gather";
    case ZI_REDUCE_SCATTER:
        return "reduce_scatter";
    case ZI_ALL_REDUCE:
        return "all_reduce";
    }
    return "unknown collective";
}

const char *zi_collective_text(const zi_collective *collective, char *text, size_t text_bytes)
{
    const char *accumulate = (collective->flags & ZI_COLLECTIVE_ACCUMULATE) != 0 ? " added" : "";
    const char *exact = (collective->flags & ZI_COLLECTIVE_EXACT) != 0 ? ", exact" : "";
    char target[16] = "";
    if (collective->recv_dtype != collective->send_dtype) {
        (void)snprintf(target, sizeof target, " to %s", zero_dtype_name(collective->recv_dtype));
    }
    (void)snprintf(text, text_bytes, "%s of unit %u, %zu x %s%s%s%s", kind_name(collective->kind),
                   collective->tag, collective->count, zero_dtype_name(collective->send_dtype),
                   target, accumulate, exact);
    return text;
}
