/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_PREPARE_H
#define FY_SERVICE_PREPARE_H

#include "base/bytes.h"
#include "service/program.h"
#include "transport/transport.h"

#include <ferry/reference.h>

/* What makes a program, and what it needs for that alone. */

/* A range of a task's bytes. */
typedef struct fy_range {
    uint64_t first;
    uint64_t bytes;
} fy_range;

/* What a receiver wants of a task, and how it goes there: beside the channel's place. */
typedef struct fy_wanted {
    uint32_t path;
    uint32_t first_range, n_ranges; /* into the channel's ranges */
} fy_wanted;

/* Receives in order of task ids, where relays need them. */
typedef struct fy_task_index {
    uint64_t task_id;
    uint32_t receive;
} fy_task_index;

/* Of a channel. */
typedef struct fy_channel_wire {
    uint32_t first_send, n_sends;
    uint32_t first_receive, n_receives;
    /* Receives that others registered for but this peer relays: in order of task ids. */
    uint32_t *relayed_receives;
    uint32_t n_relayed_receives;
    /* And the same of what is relayed to the peer: task ids, in order. Their places come behind
     * those of sends. */
    uint64_t *relayed_sends;
    uint32_t n_relayed_sends;
    /* What the receiver said. */
    fy_wanted *wanted; /* one for each place */
    fy_range *ranges;
    size_t n_ranges, range_capacity;
    char **key_bases; /* of the keys: where they are mapped here, or NULL */
} fy_channel_wire;

/* How far one direction of one pair has come; a letter begins with the length of the whole. */
typedef struct fy_passage {
    size_t done, bytes;
    bool begun;
} fy_passage;

/* One peer, and what it and this rank say to each other. */
typedef struct fy_talk {
    uint32_t peer;
    bool goes_on;
    const fy_pack *out; /* own, or why there is no message */
    fy_pack own, in;
    fy_pack message; /* within `in` */
    fy_passage to, from;
} fy_talk;

typedef struct fy_wire {
    fy_channel_wire *channels; /* one for each of the program's */
    fy_talk *talks;            /* and one */
    uint32_t n_channels;
    uint32_t local_sends; /* first of the sends to itself, which match the receives */
    uint32_t local_receives;
    fy_task_index *by_task;
    fy_range *wants;    /* of receives, where a ledger says what is missing */
    uint32_t *wants_of; /* by receive: n_receives + 1 begins in wants; NULL: all of all */
} fy_wire;

static inline fy_channel_wire *fy_wire_of(const ferry_service *service, const fy_channel *channel)
{
    return &service->wire->channels[fy_channel_number(service->program, channel)];
}

/*
 * prepare.c: collective. For the same registrations at other addresses, once fy_ledger_keep has
 * been called. A failure before it, with its sentence in *error, is that of all.
 */
ferry_status fy_prepare_again(ferry_service *service, ferry_status before, ferry_error *error);
/* Program, run and wire go. */
void fy_service_program_drop(ferry_service *service);
void fy_wire_destroy(fy_wire *wire); /* NULL is allowed */
void fy_wire_channels_free(fy_wire *wire);

/*
 * pairs.c: collective among pairs: what was written to each talk's `own`, from its beginning on, to
 * the channel's peer, and from it into `message`. A rank that has failed before says so in place of
 * its messages, and its peers have failed too: whoever goes on agrees with all, later.
 */
void fy_talk_begin(fy_talk *talk);
/* A letter from the peer; and all of its message, once it is there. */
ferry_status fy_talk_hear(fy_talk *talk, const void *bytes, size_t n_bytes, ferry_error *error);
ferry_status fy_talk_open(fy_talk *talk, ferry_error *error);
ferry_status fy_pairs_exchange(ferry_service *service, ferry_status before, ferry_error *error);
/*
 * The same between rank 0 and each of the others: [n_ranks - 1] there, rank by rank, and [1] on
 * them. What has no memory on arrival is marked so, and nobody fails.
 */
ferry_status fy_star_exchange(ferry_service *service, fy_talk *talks, const fy_pack *out,
                              fy_pack *in, ferry_error *error);

/* order.c */
/*
 * Collective. This rank's part of the schedule of the bound plan, into the program's rounds. A
 * batch takes at least the plan's largest element, however small slots are.
 */
ferry_status fy_order_plan(ferry_service *service, uint64_t element_bytes, ferry_error *error);
/* Collective, once paths are known: items by the rounds of what was registered. */
ferry_status fy_order_sends(ferry_service *service, ferry_status before, ferry_error *error);

/* channels.c: local. */
ferry_status fy_channels_make(ferry_service *service, ferry_error *error);
void fy_channels_drop(ferry_service *service); /* before any place or item is there */
uint32_t fy_receive_of_task(const ferry_service *service, uint64_t task_id); /* or FY_NONE */

/* places.c: what a receiver says; places_read.c: how the sender takes it. Slots hold whole lines of
 * at most so many bytes. */
enum {
    FY_MOST_PAYLOAD = (128 << 10) - FY_SLOT_HEAD_BYTES,
    FY_MOST_PAYLOAD_ASIDE = 1 << 20,
    FY_LEAST_PAYLOAD = 64
};
ferry_status fy_places_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                             ferry_error *error);
ferry_status fy_places_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                            ferry_error *error);
/*
 * The most of the memory cap that rings may take, and the parcels of what goes to others; and the
 * same once more aside, where there may be such.
 */
static inline uint64_t fy_staging_share(const ferry_service *service)
{
    bool may_be_aside = fy_transport_has_aside(service->transport) && service->registry.has_far;
    return service->options.memory_cap / (may_be_aside ? 4 : 2);
}
/* How far receivers' memory may be used for rings: fills in_ring, in_slots, in_payload. */
void fy_rings_lay_out(ferry_service *service);

/*
 * aside.c: the rings that this rank would have in memory of its device, for channels whose bytes
 * can come there without a look of the CPU's, each of so many bytes; heads lie from that offset of
 * the staging region on. And whether the sender takes what it was offered: all that it sends lies
 * on its device, too.
 */
void fy_aside_offer(ferry_service *service, uint64_t ring, uint64_t heads);
bool fy_aside_is_taken(ferry_service *service, const fy_channel *channel);

/* paths.c */
bool fy_path_allowed(const ferry_service *service, uint32_t path); /* by the options */
bool fy_peer_is_direct(ferry_service *service, uint32_t peer);
uint32_t fy_path_choose(ferry_service *service, const fy_channel *channel, const fy_place *place,
                        uint64_t source_run, fy_space source, bool casts);

/* items.c: cuts what is sent into items. */
ferry_status fy_items_cut(ferry_service *service, fy_channel *channel, uint32_t end, uint32_t place,
                          uint64_t first, uint64_t bytes, uint64_t order, ferry_error *error);
ferry_status fy_items_make(ferry_service *service, ferry_error *error);
ferry_status fy_items_local(ferry_service *service, ferry_error *error);
/* Windows, and slots of staged items. Once all items are there. */
void fy_items_finish(ferry_service *service);

ferry_status fy_items_cut_local(ferry_service *service, uint32_t send, uint32_t receive,
                                uint64_t first, uint64_t bytes, uint64_t order, ferry_error *error);

/* bands.c: in_order: nothing but the order of tasks says in which one items go. */
ferry_status fy_bands_plan(ferry_service *service, bool in_order, ferry_error *error);
bool fy_is_banded(const ferry_service *service, const fy_end *end);
ferry_status fy_bands_cut(ferry_service *service, fy_channel *channel, ferry_error *error);
ferry_status fy_bands_cut_local(ferry_service *service, ferry_error *error);
/* Once all items are known: what each waits for. */
ferry_status fy_bands_check(ferry_service *service, ferry_error *error);

/* manifest.c: what a sender says of its items. */
ferry_status fy_manifest_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                               ferry_error *error);
ferry_status fy_manifest_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                              ferry_error *error);
/*
 * Once all manifests are read: that they bring every wanted byte once; and the conditions of
 * relayed items, from what is received.
 */
ferry_status fy_arrivals_check(ferry_service *service, ferry_error *error);

/*
 * One step of a conversation with the peers of all channels: a message for each, and what is made
 * of theirs.
 */
typedef ferry_status (*fy_write_fn)(ferry_service *service, fy_channel *channel, fy_pack *out,
                                    ferry_error *error);
typedef ferry_status (*fy_read_fn)(ferry_service *service, fy_channel *channel, const fy_pack *in,
                                   ferry_error *error);
ferry_status fy_converse(ferry_service *service, ferry_status before, fy_write_fn write,
                         fy_read_fn read, ferry_error *error);

/*
 * staging.c: collective. before is how this rank fared; all ranks end alike. connects: a network
 * lies between some of them.
 */
ferry_status fy_staging_make(ferry_service *service, bool connects, ferry_status before,
                             ferry_error *error);
void fy_staging_free(ferry_service *service);

/* request.c: the first run must not fail for the lack of a request, for others wait for it. */
ferry_status fy_request_provide(ferry_service *service, ferry_error *error);

#endif
