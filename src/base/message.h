/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_MESSAGE_H
#define FY_BASE_MESSAGE_H

#include "base/bytes.h"
#include "base/status.h"

#include <ferry/reshard.h>

/*
 * What ranks that compute together tell each other over the caller's exchange. A message is a
 * status and, if that is FERRY_OK, content; else the sentence. A rank that has failed goes on
 * taking part, so that nobody waits for it in vain; one without memory does so with an empty
 * message.
 */
void fy_message_begin(fy_pack *out, ferry_status status, const char *sentence);
/* The status of a rank's message, with its sentence; the content is left to be read. */
ferry_status fy_message_read(fy_reader *in, uint32_t rank, ferry_error *error);
ferry_status fy_message_fail(uint32_t rank, ferry_error *error); /* it is damaged */

/* Everybody's messages behind one another, where they are known: on rank 0, or on all. */
typedef struct fy_gathered {
    const unsigned char *at;
    const size_t *lengths; /* [n_ranks] */
} fy_gathered;

/* To all, or to rank 0 where the exchange can. Fails where the exchange itself does. */
ferry_status fy_exchange_gather(const ferry_exchange *x, bool to_all, const fy_pack *message,
                                fy_gathered *all_out, ferry_error *error);

/* On rank 0: what goes to each rank, behind one another. All zero is a rank without memory. */
typedef struct fy_outbox {
    fy_pack bytes;
    size_t *lengths; /* [n_ranks]; NULL: there was no memory for them */
} fy_outbox;

void fy_outbox_cleanup(fy_outbox *box);
/* The one message to every rank instead of what was there; to none where memory is short. */
void fy_outbox_post_to_all(fy_outbox *box, uint32_t n_ranks, const fy_pack *message);

/*
 * To each rank its own, and nothing to anybody where rank 0 has no memory. Without a scatter rank 0
 * sends everything, with the lengths in front, in its part of an all-gather. The reader has failed
 * where that is damaged.
 */
ferry_status fy_exchange_scatter(const ferry_exchange *x, const fy_outbox *box, fy_reader *mine_out,
                                 ferry_error *error);

#endif
