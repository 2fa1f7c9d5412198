/* Owns what frames of the control plane mean: who is at the other end of a connection, what a rank
 * says, and what follows from it. The mutex is held. */
#include "control/control_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"

#define BEAT_NS (300 * CONTROL_NS_PER_MS)

/* ---- failures ---- */

void zi_control_set_failure(zi_control *control, int kind, zi_failure failure)
{
    if (control->failures[kind].status == ZERO_OK) {
        control->failures[kind] = failure;
        (void)pthread_cond_broadcast(&control->moved);
    }
}

zero_status zi_control_check_lost(const zi_control *control)
{
    const zi_failure *lost = &control->failures[CONTROL_LOST];
    if (lost->status == ZERO_OK) {
        return ZERO_OK;
    }
    const zero_error error = zi_failure_error(lost, ZI_FAILURE_NO_RANK);
    return zi_error_adopt(&error);
}

void zi_control_settle_failures(zi_control *control)
{
    for (uint32_t i = 0; i < 2 * control->link_count; i++) {
        zi_control_link *link = &control->links[i / 2];
        const zi_failure *failure = &control->failures[i % 2];
        const zi_control_frame frame = {.bytes = sizeof *failure,
                                        .kind = i % 2 == CONTROL_LOST ? ZI_CONTROL_NOTICE
                                                                      : ZI_CONTROL_FAILED};
        if (failure->status != ZERO_OK && link->proved && !link->told[i % 2]) {
            link->told[i % 2] = zi_control_link_put(link, frame, failure);
        }
    }
}

void zi_control_drop(zi_control *control, zi_control_link *link)
{
    if (link->proved && (control->desc.rank == 0 || control->end_ns == 0)) {
        (void)zi_silence_died(link->name.pid, link->name.host,
                              ", its connection ended without a goodbye");
        zi_control_set_failure(control, CONTROL_LOST,
                               zi_failure_of_abort(link->name.rank, zero_last_error()));
    }
    if (link->proved && control->desc.rank == 0) {
        control->round->ranks[link->name.rank].presence = ZI_CONTROL_GONE;
    }
    link->proved = false;
    zi_control_link_close(link);
}

/* ---- who is at the other end ---- */

uint32_t zi_control_most(const zi_control *control)
{
    return control->round->record_max;
}

/* The failure so far of a gather that is not answered. The mutex is held. */

static bool control_frames_refuse(zi_control_link *link, zi_control_refusal why)
{
    (void)zi_control_link_put(
        link, (zi_control_frame){.kind = ZI_CONTROL_REFUSAL, .status = (uint16_t)why}, NULL);
    (void)zi_control_link_send(link);
    return false;
}

static void trust(zi_control *control, zi_control_link *link, const zi_control_name *name)
{
    const uint32_t size = control->desc.size;
    link->proved = true;
    link->name = *name;
    link->name.host[sizeof name->host - 1] = '\0';
    link->inbox.from = control->desc.rank == 0 ? ZI_CONTROL_RANK : ZI_CONTROL_SERVER;
    link->inbox.records = (control->desc.rank == 0 ? 1 : size) * (uint64_t)zi_control_most(control);
}

static bool take_hello(zi_control *control, zi_control_link *link)
{
    zi_control_hello hello;
    zi_control_welcome welcome;
    const zi_control_frame frame = {.kind = ZI_CONTROL_WELCOME, .bytes = sizeof welcome};
    memcpy(&hello, link->inbox.payload, sizeof hello);
    if (hello.own.magic != ZI_CONTROL_MAGIC || hello.own.version != ZI_CONTROL_VERSION) {
        return control_frames_refuse(link, ZI_CONTROL_OTHER_VERSION);
    }
    if (hello.proof != zi_control_proof(&control->endpoint.key, &link->nonce, &hello.name)) {
        return control_frames_refuse(link, ZI_CONTROL_OTHER_JOB);
    }
    if (hello.name.size != control->desc.size || hello.name.rank >= control->desc.size) {
        return control_frames_refuse(link, ZI_CONTROL_OTHER_SIZE);
    }
    zi_control_round_rank *rank = &control->round->ranks[hello.name.rank];
    if (rank->presence != ZI_CONTROL_AWAY) {
        return control_frames_refuse(link, ZI_CONTROL_RANK_TAKEN);
    }
    rank->presence = ZI_CONTROL_HERE;
    trust(control, link, &hello.name);
    zi_control_own_name(0, control->desc.size, &welcome.name);
    welcome.proof = zi_control_proof(&control->endpoint.key, &hello.own.nonce, &welcome.name);
    return zi_control_link_put(link, frame, &welcome);
}

static bool take_challenge(zi_control *control, zi_control_link *link)
{
    zi_control_challenge challenge;
    zi_control_hello hello = {
        .own = {.magic = ZI_CONTROL_MAGIC, .version = ZI_CONTROL_VERSION, .nonce = link->nonce}};
    const zi_control_frame frame = {.bytes = sizeof hello, .kind = ZI_CONTROL_HELLO};
    memcpy(&challenge, link->inbox.payload, sizeof challenge);
    zi_control_own_name(control->desc.rank, control->desc.size, &hello.name);
    hello.proof = zi_control_proof(&control->endpoint.key, &challenge.nonce, &hello.name);
    return zi_control_link_put(link, frame, &hello);
}

static bool take_welcome(zi_control *control, zi_control_link *link)
{
    zi_control_welcome welcome;
    memcpy(&welcome, link->inbox.payload, sizeof welcome);
    if (welcome.proof != zi_control_proof(&control->endpoint.key, &link->nonce, &welcome.name)) {
        control->refusal = ZI_CONTROL_OTHER_JOB;
        return false;
    }
    trust(control, link, &welcome.name);
    return true;
}

/* ---- what a rank says, or rank 0 ---- */

static bool take_failure(zi_control *control, zi_control_link *link)
{
    const int kind = link->inbox.frame.kind == ZI_CONTROL_NOTICE ? CONTROL_LOST : CONTROL_LATE;
    zi_failure failure = zi_control_failure_of(&link->inbox);
    if (kind == CONTROL_LOST && failure.rank >= control->desc.size) {
        failure.rank = link->name.rank;
    }
    link->told[kind] = true;
    zi_control_set_failure(control, kind, failure);
    return true;
}

/* Who was silent and is not listed is heard again. Rank 0 is judged by its heartbeats. */
static void take_silence(const zi_control *control, const zi_control_link *link)
{
    zi_control_silent silent[ZI_CONTROL_SILENT_MAX];
    const uint32_t count = link->inbox.frame.bytes / (uint32_t)sizeof *silent;
    if (count != 0) {
        memcpy(silent, link->inbox.payload, link->inbox.frame.bytes);
    }
    for (uint32_t rank = 1; rank < control->desc.size && control->desc.rank != 0; rank++) {
        uint32_t i = 0;
        while (i < count && silent[i].rank != rank) {
            i++;
        }
        const bool listed = i < count && rank != control->desc.rank;
        zi_silence_set(control->desc.silence, rank,
                       listed ? link->heard_ns - silent[i].ms * CONTROL_NS_PER_MS : 0,
                       listed ? silent[i].host : "", "no heartbeat");
    }
}

/* A rank leaves, or rank 0 has seen that this one does. */
static bool take_goodbye(zi_control *control, zi_control_link *link)
{
    link->proved = false;
    link->inbox.from = ZI_CONTROL_NOBODY; /* it says nothing more, and closes */
    link->opened_ns = link->heard_ns;
    if (control->desc.rank == 0) {
        control->round->ranks[link->name.rank].presence = ZI_CONTROL_GONE;
        (void)zi_control_link_put(link, (zi_control_frame){.kind = ZI_CONTROL_GOODBYE}, NULL);
    }
    return true;
}

bool zi_control_take_frame(void *user, zi_control_link *link)
{
    zi_control *control = user;
    zi_control_inbox *inbox = &link->inbox;
    switch (inbox->frame.kind) {
    case ZI_CONTROL_CHALLENGE:
        return take_challenge(control, link);
    case ZI_CONTROL_HELLO:
        return take_hello(control, link);
    case ZI_CONTROL_WELCOME:
        return take_welcome(control, link);
    case ZI_CONTROL_REFUSAL:
        control->refusal = inbox->frame.status;
        return false;
    case ZI_CONTROL_HEARTBEAT:
        take_silence(control, link);
        return true;
    case ZI_CONTROL_GATHER:
        return link->large == NULL && zi_control_round_take(control->round, link->name.rank,
                                                            &inbox->frame, inbox->payload);
    case ZI_CONTROL_GATHERED:
        (void)pthread_cond_broadcast(&control->moved);
        return zi_control_round_keep(control->round, inbox);
    case ZI_CONTROL_FAILED:
    case ZI_CONTROL_NOTICE:
        return take_failure(control, link);
    default:
        return take_goodbye(control, link);
    }
}

/* ---- what follows from it ---- */

void zi_control_settle_gather(zi_control *control)
{
    const zi_control_frame *frame = zi_control_round_settle(control->round);
    if (control->round->failed.status != ZERO_OK) {
        zi_control_set_failure(control, CONTROL_LATE, control->round->failed);
    } else if (frame != NULL) {
        (void)pthread_cond_broadcast(&control->moved);
        for (uint32_t i = 0; i < control->link_count; i++) {
            if (control->links[i].proved) {
                zi_control_link_put_large(&control->links[i], frame, sizeof *frame + frame->bytes);
            }
        }
    }
}

void zi_control_settle_silence(zi_control *control)
{
    zi_control_silent silent[ZI_CONTROL_SILENT_MAX];
    const uint64_t now_ns = zi_clock_ns();
    uint32_t count = 0;
    bool changed = false;
    for (uint32_t i = 0; i < control->link_count; i++) {
        zi_control_link *link = &control->links[i];
        if (!link->proved) {
            continue;
        }
        const bool is_silent = now_ns - link->heard_ns > ZI_SILENCE_MS * CONTROL_NS_PER_MS;
        changed = changed || is_silent != link->silent;
        link->silent = is_silent;
        zi_silence_set(control->desc.silence, link->name.rank, is_silent ? link->heard_ns : 0,
                       link->name.host, "no heartbeat");
        if (is_silent && control->desc.rank == 0 && count < ZI_CONTROL_SILENT_MAX) {
            zi_control_silent *entry = &silent[count++];
            entry->rank = link->name.rank;
            entry->ms = (uint32_t)((now_ns - link->heard_ns) / CONTROL_NS_PER_MS);
            memcpy(entry->host, link->name.host, sizeof entry->host);
        }
    }
    const zi_control_frame frame = {.kind = ZI_CONTROL_HEARTBEAT,
                                    .bytes = count * (uint32_t)sizeof *silent};
    for (uint32_t i = 0; i < control->link_count; i++) {
        zi_control_link *link = &control->links[i];
        if (link->proved && link->out_bytes == 0 &&
            (changed || now_ns - link->told_ns >= BEAT_NS)) {
            (void)zi_control_link_put(link, frame, silent);
            link->told_ns = now_ns;
        }
    }
}
