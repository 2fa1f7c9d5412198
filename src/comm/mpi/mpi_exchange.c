/* Owns one exchange of pieces among members. All receives are posted before any send, so that a
 * piece finds its place waiting. */
#include "comm/mpi/mpi_exchange.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"

static int rank_of(const zi_mpi_exchange *exchange, uint32_t member)
{
    return (int)(exchange->comm_ranks != NULL ? exchange->comm_ranks[member] : member);
}

static int start(zi_mpi_op *op)
{
    zi_mpi_exchange *exchange = op->argument;
    uint32_t count = 0;
    int code = MPI_SUCCESS;
    for (uint32_t i = 1; i < exchange->size && code == MPI_SUCCESS; i++) {
        /* Everybody begins with another member. */
        const uint32_t member = (exchange->rank + i) % exchange->size;
        if (exchange->recv_bytes[member] != 0) {
            exchange->peers[count] = member;
            code = MPI_Irecv(exchange->recv_at[member], (int)exchange->recv_bytes[member], MPI_BYTE,
                             rank_of(exchange, member), exchange->tag, exchange->comm,
                             &op->requests[count]);
            count += code == MPI_SUCCESS;
        }
    }
    op->receive_count = count;
    for (uint32_t i = 1; i < exchange->size && code == MPI_SUCCESS; i++) {
        const uint32_t member = (exchange->rank + i) % exchange->size;
        if (exchange->send_bytes[member] != 0) {
            exchange->peers[count] = member;
            code = MPI_Isend(exchange->send_at[member], (int)exchange->send_bytes[member], MPI_BYTE,
                             rank_of(exchange, member), exchange->tag, exchange->comm,
                             &op->requests[count]);
            count += code == MPI_SUCCESS;
        }
    }
    op->request_count = count;
    return code;
}

uint32_t zi_mpi_exchange_late(const zi_mpi_exchange *exchange, uint32_t *world_ranks)
{
    bool named[ZI_RANKS_MAX] = {false};
    uint32_t count = 0;
    for (uint32_t i = 0; i < exchange->op.request_count; i++) {
        const uint32_t member = exchange->peers[i];
        if (exchange->late[i] && !named[member]) {
            named[member] = true;
            world_ranks[count++] = exchange->world_ranks[member];
        }
    }
    return count;
}

/* "rank 3", or "ranks 3, 5 and 2 more". */
static const char *late_text(const zi_mpi_exchange *exchange, char *text, size_t text_bytes)
{
    uint32_t ranks[ZI_RANKS_MAX];
    const uint32_t count = zi_mpi_exchange_late(exchange, ranks);
    const uint32_t named = count < 6 ? count : 6;
    size_t used = (size_t)snprintf(text, text_bytes, "rank%s", count == 1 ? "" : "s");
    for (uint32_t i = 0; i < named; i++) {
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%s %u", i != 0 ? "," : "", ranks[i]);
    }
    if (count > named) {
        (void)snprintf(text + used, text_bytes - used, " and %u more", count - named);
    }
    return text;
}

zero_status zi_mpi_exchange_run(zi_mpi_exchange *exchange, const char *what)
{
    for (uint32_t i = 0; i < exchange->size; i++) {
        zi_assert_cmp(exchange->send_bytes[i], <=, ZI_MPI_PIECE_MAX);
        zi_assert_cmp(exchange->recv_bytes[i], <=, ZI_MPI_PIECE_MAX);
    }
    exchange->op.start = start;
    exchange->op.argument = exchange;
    exchange->op.requests = exchange->requests;
    exchange->op.late = exchange->late;
    const zero_status status =
        zi_mpi_progress_run(exchange->progress, &exchange->op, exchange->deadline_ms);
    if (status == ZERO_TIMEOUT && !exchange->op.told) {
        char text[80];
        ZI_FAIL(ZERO_TIMEOUT, "%s did not arrive at %s within %u ms",
                late_text(exchange, text, sizeof text), what, exchange->deadline_ms);
    }
    return status;
}

zero_status zi_mpi_exchange_records(zi_mpi_exchange *exchange, const void *mine, void *all,
                                    size_t bytes, const char *what)
{
    unsigned char *to = all;
    for (uint32_t i = 0; i < exchange->size; i++) {
        exchange->send_at[i] = mine;
        exchange->send_bytes[i] = bytes;
        exchange->recv_at[i] = to + i * bytes;
        exchange->recv_bytes[i] = bytes;
    }
    memcpy(to + exchange->rank * bytes, mine, bytes);
    return zi_mpi_exchange_run(exchange, what);
}
