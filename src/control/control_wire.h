/* Frames of the control plane: a header, and as many bytes as it says. A frame is checked by its
 * header alone before any memory is taken for the rest. Hosts are of one kind, so numbers go as
 * they are in memory; the magic number finds out when they are not. */
#ifndef ZI_CONTROL_CONTROL_WIRE_H
#define ZI_CONTROL_CONTROL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/failure.h"
#include "zero/status.h"

#define ZI_CONTROL_MAGIC UINT64_C(0x7a65726f6374726c)
#define ZI_CONTROL_VERSION 3

typedef enum zi_control_kind {
    ZI_CONTROL_CHALLENGE = 0, /* of the server: its nonce */
    ZI_CONTROL_HELLO = 1,     /* of a rank: who it is */
    ZI_CONTROL_WELCOME = 2,   /* of the server: who it is */
    ZI_CONTROL_REFUSAL = 3,   /* of the server; `status` is a zi_control_refusal */
    ZI_CONTROL_HEARTBEAT = 4, /* of both; the server's lists who is silent */
    ZI_CONTROL_GATHER = 5,    /* of a rank: its record */
    ZI_CONTROL_GATHERED = 6,  /* of the server: all records, each as long as the longest */
    ZI_CONTROL_FAILED = 7,    /* of both: a zi_failure: a gather's status, and who it waits for */
    ZI_CONTROL_NOTICE = 8,    /* of both: a zi_failure: a rank aborts with it, or died of it */
    ZI_CONTROL_GOODBYE = 9    /* of a rank, and the answer: it needs the others no more */
} zi_control_kind;
#define ZI_CONTROL_KINDS 10

typedef enum zi_control_refusal {
    ZI_CONTROL_OTHER_VERSION = 1,
    ZI_CONTROL_OTHER_JOB = 2,
    ZI_CONTROL_OTHER_SIZE = 3,
    ZI_CONTROL_RANK_TAKEN = 4
} zi_control_refusal;

typedef struct zi_control_frame {
    uint32_t bytes; /* behind the header */
    uint16_t kind;
    uint16_t status; /* of a REFUSAL */
    uint64_t number; /* of a gather, from 1 on */
} zi_control_frame;

/* The secret that both sides must know to belong to one job. */
typedef struct zi_control_key {
    uint64_t word[2];
} zi_control_key;

typedef struct zi_control_nonce {
    uint64_t word[2];
} zi_control_nonce;

#define ZI_CONTROL_HOST_BYTES 40

/* Who sends a HELLO or WELCOME. */
typedef struct zi_control_name {
    uint32_t rank;
    uint32_t size; /* of the world */
    uint64_t pid;
    char host[ZI_CONTROL_HOST_BYTES];
} zi_control_name;

typedef struct zi_control_challenge {
    uint64_t magic;
    uint64_t version;
    zi_control_nonce nonce;
} zi_control_challenge;

typedef struct zi_control_hello {
    zi_control_challenge own; /* the nonce that the server answers to */
    zi_control_name name;
    uint64_t proof; /* zi_control_proof of the server's nonce */
} zi_control_hello;

typedef struct zi_control_welcome {
    zi_control_name name;
    uint64_t proof; /* of the rank's nonce */
} zi_control_welcome;

/* One entry of a server's HEARTBEAT. */
typedef struct zi_control_silent {
    uint32_t rank;
    uint32_t ms; /* since it was last heard */
    char host[ZI_CONTROL_HOST_BYTES];
} zi_control_silent;

/* Most entries of a HEARTBEAT. */
#define ZI_CONTROL_SILENT_MAX 16

_Static_assert(sizeof(zi_control_frame) == 16 && sizeof(zi_control_hello) == 96 &&
                   sizeof(zi_control_welcome) == 64 && sizeof(zi_control_silent) == 48,
               "no padding: sent as bytes");

/* The key that a job's name stands for. */
zi_control_key zi_control_key_of(const char *text);

/* The proof that only a holder of the key can compute of a nonce and a name. */
uint64_t zi_control_proof(const zi_control_key *key, const zi_control_nonce *nonce,
                          const zi_control_name *name);

/* The most bytes of a rank's record where so many ranks gather: their sum stays below 32 MiB. */
uint32_t zi_control_record_max(uint32_t size);

/* Who is at the other end of a connection, which decides what may come from there. */
typedef enum zi_control_sender {
    ZI_CONTROL_NOBODY = 0, /* who says nothing more */
    ZI_CONTROL_NEW_SERVER, /* that has not proved yet that it knows the key */
    ZI_CONTROL_NEW_RANK,
    ZI_CONTROL_SERVER,
    ZI_CONTROL_RANK
} zi_control_sender;

/* True if the frame may come from there; `records`: the most bytes of a GATHER or GATHERED. */
bool zi_control_may_come(const zi_control_frame *frame, zi_control_sender from, uint64_t records);

/* The bytes that come in over one connection. */
typedef struct zi_control_inbox {
    zi_control_sender from;
    uint64_t records;
    zi_control_frame frame;
    size_t got; /* bytes of the frame so far, header included */
    unsigned char *payload;
    size_t capacity;
} zi_control_inbox;

typedef enum zi_control_fed {
    ZI_CONTROL_MORE,  /* the frame goes on */
    ZI_CONTROL_WHOLE, /* `frame` and `payload` are there, until the next call */
    ZI_CONTROL_BAD    /* no such frame may come; the inbox takes nothing more */
} zi_control_fed;

/* The place for the next bytes, and how many have room there: one at least. */
void *zi_control_room(zi_control_inbox *inbox, size_t *bytes);

/* So many bytes have been put there. */
zi_control_fed zi_control_feed(zi_control_inbox *inbox, size_t bytes);

/* The failure of a FAILED or NOTICE that has come. */
zi_failure zi_control_failure_of(const zi_control_inbox *inbox);

/* Free its memory. */
void zi_control_inbox_free(zi_control_inbox *inbox);

#endif
