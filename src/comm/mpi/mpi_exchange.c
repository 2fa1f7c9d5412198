/* Owns one exchange among members. Invariant: all receives are posted before any send, so that
 * messages are received without a copy. */
#include "comm/mpi/mpi_exchange.h"

#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

zero_status zi_mpi_exchange_open(zi_mpi_exchange *exchange)
{
    const size_t size = exchange->size;
    const size_t request_bytes =
        sizeof *exchange->requests + sizeof *exchange->peers + sizeof *exchange->late;
    const size_t member_bytes = sizeof *exchange->transfers + 2 * request_bytes;
    ZI_TRY(zi_calloc(size, member_bytes, (void **)&exchange->transfers));
    /* In the order of their alignment. */
    exchange->requests = (zi_mpi_handle *)(void *)(exchange->transfers + size);
    exchange->peers = (uint32_t *)(void *)(exchange->requests + 2 * size);
    exchange->late = (bool *)(exchange->peers + 2 * size);
    return ZERO_OK;
}

void zi_mpi_exchange_close(zi_mpi_exchange *exchange)
{
    zi_free(exchange->transfers);
    exchange->transfers = NULL;
}

static int rank_of(const zi_mpi_exchange *exchange, uint32_t member)
{
    return (int)(exchange->comm_ranks != NULL ? exchange->comm_ranks[member] : member);
}

static int mpi_exchange_start(zi_mpi_op *op)
{
    zi_mpi_exchange *exchange = op->argument;
    uint32_t count = 0;
    int code = ZI_MPI_SUCCESS;
    for (uint32_t i = 0; i < 2 * exchange->size && code == ZI_MPI_SUCCESS; i++) {
        const bool sends = i >= exchange->size;
        const zi_mpi_transfer *transfer =
            &exchange->transfers[(exchange->first + i) % exchange->size];
        const uint32_t member = transfer->member;
        op->receive_count = i == exchange->size ? count : op->receive_count;
        if (member == exchange->rank ||
            (sends ? transfer->send_bytes : transfer->recv_bytes) == 0) {
            continue;
        }
        zi_mpi_handle *request = &op->requests[count];
        exchange->peers[count] = member;
        code =
            sends
                ? zi_mpi->isend(transfer->send_at, (int)transfer->send_bytes,
                                rank_of(exchange, member), exchange->tag, exchange->comm, request)
                : zi_mpi->irecv(transfer->recv_at, (int)transfer->recv_bytes,
                                rank_of(exchange, member), exchange->tag, exchange->comm, request);
        count += code == ZI_MPI_SUCCESS;
    }
    op->request_count = count;
    return code;
}

/* Mark the members whose requests are open as late, and write "rank 3" or "ranks 3, 5 and 2 more".
 */
static const char *find_late(zi_mpi_exchange *exchange, char *text, size_t text_bytes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < exchange->op.request_count; i++) {
        zi_mpi_transfer *transfer = &exchange->transfers[exchange->peers[i]];
        transfer->late = transfer->late || exchange->late[i];
    }
    /* The op is over, so `peers` is free for the ranks. */
    for (uint32_t i = 0; i < exchange->size; i++) {
        if (exchange->transfers[i].late) {
            exchange->peers[count++] = exchange->world_ranks[i];
        }
    }
    return zi_ranks_text(exchange->peers, count, text, text_bytes);
}

zero_status zi_mpi_exchange_run(zi_mpi_exchange *exchange, const char *what)
{
    for (uint32_t i = 0; i < exchange->size; i++) {
        zi_assert_cmp(exchange->transfers[i].send_bytes, <=, ZI_MPI_TRANSFER_MAX);
        zi_assert_cmp(exchange->transfers[i].recv_bytes, <=, ZI_MPI_TRANSFER_MAX);
    }
    exchange->op.start = mpi_exchange_start;
    exchange->op.argument = exchange;
    exchange->op.what = what;
    exchange->op.requests = exchange->requests;
    exchange->op.request_capacity = 2 * (size_t)exchange->size;
    exchange->op.late = exchange->late;
    const zero_status status =
        zi_mpi_progress_run(exchange->progress, &exchange->op, exchange->deadline_ms);
    if (status == ZERO_ERR_TIMEOUT && !exchange->op.notified) {
        char text[80];
        char silent[ZI_SILENCE_TEXT_BYTES];
        ZI_FAIL(ZERO_ERR_TIMEOUT, "%s did not arrive at %s within %u ms%s",
                find_late(exchange, text, sizeof text), what, exchange->deadline_ms,
                zi_silence_text(exchange->silence, silent, sizeof silent));
    }
    return status;
}

zero_status zi_mpi_exchange_records(zi_mpi_exchange *exchange, const void *mine, size_t mine_bytes,
                                    void *all, size_t bytes, const char *what)
{
    zi_assert_cmp(mine_bytes, <=, bytes);
    unsigned char *to = all;
    exchange->first = (exchange->rank + 1) % exchange->size;
    /* Sent from `all`: a send that nobody receives may read its buffer after this call. */
    const unsigned char *own = to + exchange->rank * bytes;
    memcpy(to + exchange->rank * bytes, mine, mine_bytes);
    for (uint32_t i = 0; i < exchange->size; i++) {
        exchange->transfers[i].member = i;
        exchange->transfers[i].send_at = own;
        exchange->transfers[i].send_bytes = mine_bytes;
        exchange->transfers[i].recv_at = to + i * bytes;
        exchange->transfers[i].recv_bytes = bytes;
    }
    return zi_mpi_exchange_run(exchange, what);
}
