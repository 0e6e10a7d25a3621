/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_AUTH_H
#define FY_WORLD_AUTH_H

#include "base/status.h"
#include "world/meeting.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * How two ranks prove to each other that they know a key, and how messages are protected after
 * that. Everything is keyed BLAKE2b of libsodium.
 *
 * Both sides make a nonce. A proof is a MAC of who proves, both nonces and the versions of the
 * control protocol that are known by then; so one that was seen elsewhere, or sent back, proves
 * nothing. The client proves first: who knocks on a port learns nothing that depends on the key.
 */
enum { FY_AUTH_NONCE_BYTES = 32, FY_AUTH_PROOF_BYTES = 32, FY_AUTH_MAC_BYTES = 16 };

typedef enum fy_auth_role {
    FY_CLIENT = 0, /* connected */
    FY_SERVER = 1, /* accepted */
} fy_auth_role;

/* What both sides have seen of a handshake, by role. */
typedef struct fy_transcript {
    unsigned char nonces[2][FY_AUTH_NONCE_BYTES];
    uint32_t versions[2];
} fy_transcript;

/* Before anything else here; from any thread, any number of times. */
ferry_status fy_auth_begin(ferry_error *error);

void fy_auth_random(void *bytes, size_t n_bytes);
void fy_auth_wipe(void *bytes, size_t n_bytes);
/* In a time that does not depend on the bytes. */
bool fy_auth_equal(const void *a, const void *b, size_t n_bytes);

/*
 * The handshake of a stream, without the stream. On the wire, numbers little endian:
 *
 *     both sides at once   magic (8), role (1), nonce (32)
 *     client               version (4), proof (32)
 *     server               verdict (1), version (4), proof (32); zeros when it refuses
 *
 * That much is the same in every version of the protocol, so that ranks of different ones can tell
 * each other. A step is read into a fixed array: whoever has proven nothing costs no memory.
 */
enum { FY_HELLO_BYTES = 8 + 1 + FY_AUTH_NONCE_BYTES, FY_REPLY_BYTES = 1 + 4 + FY_AUTH_PROOF_BYTES };

typedef struct fy_handshake {
    fy_auth_role role;
    int step;       /* what is coming in: 0 hello, 1 proof, 2 verdict; 3: all is done */
    bool proven;    /* the other side knows the key, whatever else is wrong */
    size_t n_bytes; /* of this step, so far */
    unsigned char bytes[FY_HELLO_BYTES];
    unsigned char key[FY_KEY_BYTES];
    fy_transcript transcript;
} fy_handshake;

/* What to send first to hello_out. fy_auth_wipe the whole when it is over. */
void fy_handshake_begin(fy_handshake *handshake, fy_auth_role role,
                        const unsigned char key[FY_KEY_BYTES],
                        unsigned char hello_out[FY_HELLO_BYTES]);

/* How many bytes to put to bytes + n_bytes: no more, as what follows is no handshake. 0: done. */
size_t fy_handshake_wants(const fy_handshake *handshake);

/*
 * n_bytes more have been put there. What to send then, also after an error, goes to reply_out, and
 * its size, perhaps 0, to *reply_bytes_out. FERRY_ERR_INVALID_INPUT: a stranger, or a proven peer
 * of another version; FERRY_ERR_DENIED: another key. peer is the other side's name in the sentence.
 */
ferry_status fy_handshake_advance(fy_handshake *handshake, size_t n_bytes, const char *peer,
                                  unsigned char reply_out[FY_REPLY_BYTES], size_t *reply_bytes_out,
                                  ferry_error *error);

/* The client proves before it knows the server's version: its proof does not hold that. */
void fy_auth_prove(const unsigned char key[FY_KEY_BYTES], fy_auth_role who,
                   const fy_transcript *transcript, unsigned char proof_out[FY_AUTH_PROOF_BYTES]);

/* The key of what `from` sends on this connection. */
void fy_auth_session_key(const unsigned char key[FY_KEY_BYTES], fy_auth_role from,
                         const fy_transcript *transcript, unsigned char key_out[FY_KEY_BYTES]);

/*
 * A message has two MACs: of its number, type and length, so that a length can be believed before
 * room is made for the payload; and of these and the payload.
 */
void fy_auth_mac_header(const unsigned char key[FY_KEY_BYTES], uint64_t number, uint32_t type,
                        uint32_t n_bytes, unsigned char mac_out[FY_AUTH_MAC_BYTES]);
void fy_auth_mac_payload(const unsigned char key[FY_KEY_BYTES], uint64_t number, uint32_t type,
                         const void *payload, uint32_t n_bytes,
                         unsigned char mac_out[FY_AUTH_MAC_BYTES]);

/* The version of the control protocol; the test sets another one for links created from then on. */
uint32_t fy_auth_version(void);
void fy_auth_set_version_for_test(uint32_t version);

#endif
