/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/auth.h"

#include "world/wire.h"

#include <sodium.h>

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum { PROTOCOL_VERSION = 3 };

/* First in every hashed text, so that what was made for one purpose fits no other. */
enum purpose {
    PURPOSE_PROOF = 0x10,   /* the role is added */
    PURPOSE_SESSION = 0x20, /* the role is added */
    PURPOSE_HEADER = 0x30,
    PURPOSE_PAYLOAD = 0x40,
};

/* Never changes: by it a rank of any version knows that it has met a rank. */
static const unsigned char magic[8] = {0xfe, 'f', 'e', 'r', 'r', 'y', 0x1a, '\n'};

enum {
    STEP_HELLO,
    STEP_PROOF,   /* of the client, to the server */
    STEP_VERDICT, /* of the server, to the client */
    STEP_DONE,

    VERDICT_REFUSED = 0,
    VERDICT_ACCEPTED = 1,

    PROOF_BYTES = 4 + FY_AUTH_PROOF_BYTES,
};

static_assert((int)FY_REPLY_BYTES == 1 + (int)PROOF_BYTES, "a verdict is the longest reply");
static_assert((int)FY_REPLY_BYTES <= (int)FY_HELLO_BYTES, "every step fits the array");

enum {
    HANDSHAKE_TEXT_BYTES = 1 + 2 * FY_AUTH_NONCE_BYTES + 2 * 4,
    MESSAGE_TEXT_BYTES = 1 + 8 + 4 + 4,
};

static_assert(FY_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN &&
                  FY_KEY_BYTES <= crypto_generichash_KEYBYTES_MAX,
              "the key fits the hash");
static_assert(FY_AUTH_MAC_BYTES >= crypto_generichash_BYTES_MIN &&
                  FY_AUTH_PROOF_BYTES <= crypto_generichash_BYTES_MAX,
              "the hash can be as long as MACs and proofs");

static _Atomic uint32_t version_of_test; /* 0: none */

ferry_status fy_auth_begin(ferry_error *error)
{
    if (sodium_init() < 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "libsodium cannot start: this system gives it no random numbers");
    }
    return FERRY_OK;
}

void fy_auth_random(void *bytes, size_t n_bytes)
{
    randombytes_buf(bytes, n_bytes);
}

void fy_auth_wipe(void *bytes, size_t n_bytes)
{
    sodium_memzero(bytes, n_bytes);
}

bool fy_auth_equal(const void *a, const void *b, size_t n_bytes)
{
    return sodium_memcmp(a, b, n_bytes) == 0;
}

uint32_t fy_auth_version(void)
{
    uint32_t version = atomic_load_explicit(&version_of_test, memory_order_relaxed);
    return version == 0 ? PROTOCOL_VERSION : version;
}

void fy_auth_set_version_for_test(uint32_t version)
{
    atomic_store_explicit(&version_of_test, version, memory_order_relaxed);
}

static void hash_handshake(const unsigned char key[FY_KEY_BYTES], unsigned purpose,
                           const fy_transcript *transcript, uint32_t server_version,
                           unsigned char *hash_out, size_t hash_bytes)
{
    unsigned char text[HANDSHAKE_TEXT_BYTES];
    fy_pack packer = fy_pack_into(text, sizeof text);
    fy_pack_number(&packer, purpose);
    fy_pack_bytes(&packer, transcript->nonces, sizeof transcript->nonces);
    fy_pack_u32(&packer, transcript->versions[FY_CLIENT]);
    fy_pack_u32(&packer, server_version);
    crypto_generichash(hash_out, hash_bytes, text, sizeof text, key, FY_KEY_BYTES);
}

void fy_auth_prove(const unsigned char key[FY_KEY_BYTES], fy_auth_role who,
                   const fy_transcript *transcript, unsigned char proof_out[FY_AUTH_PROOF_BYTES])
{
    uint32_t server_version = who == FY_CLIENT ? 0 : transcript->versions[FY_SERVER];
    hash_handshake(key, PURPOSE_PROOF + (unsigned)who, transcript, server_version, proof_out,
                   FY_AUTH_PROOF_BYTES);
}

void fy_auth_session_key(const unsigned char key[FY_KEY_BYTES], fy_auth_role from,
                         const fy_transcript *transcript, unsigned char key_out[FY_KEY_BYTES])
{
    hash_handshake(key, PURPOSE_SESSION + (unsigned)from, transcript,
                   transcript->versions[FY_SERVER], key_out, FY_KEY_BYTES);
}

static void write_message_text(unsigned char text[MESSAGE_TEXT_BYTES], unsigned purpose,
                               uint64_t number, uint32_t type, uint32_t n_bytes)
{
    fy_pack packer = fy_pack_into(text, MESSAGE_TEXT_BYTES);
    fy_pack_number(&packer, purpose);
    fy_pack_u64(&packer, number);
    fy_pack_u32(&packer, type);
    fy_pack_u32(&packer, n_bytes);
}

void fy_auth_mac_header(const unsigned char key[FY_KEY_BYTES], uint64_t number, uint32_t type,
                        uint32_t n_bytes, unsigned char mac_out[FY_AUTH_MAC_BYTES])
{
    unsigned char text[MESSAGE_TEXT_BYTES];
    write_message_text(text, PURPOSE_HEADER, number, type, n_bytes);
    crypto_generichash(mac_out, FY_AUTH_MAC_BYTES, text, sizeof text, key, FY_KEY_BYTES);
}

void fy_auth_mac_payload(const unsigned char key[FY_KEY_BYTES], uint64_t number, uint32_t type,
                         const void *payload, uint32_t n_bytes,
                         unsigned char mac_out[FY_AUTH_MAC_BYTES])
{
    crypto_generichash_state state;
    unsigned char text[MESSAGE_TEXT_BYTES];
    write_message_text(text, PURPOSE_PAYLOAD, number, type, n_bytes);
    crypto_generichash_init(&state, key, FY_KEY_BYTES, FY_AUTH_MAC_BYTES);
    crypto_generichash_update(&state, text, sizeof text);
    crypto_generichash_update(&state, payload, n_bytes);
    crypto_generichash_final(&state, mac_out, FY_AUTH_MAC_BYTES);
    sodium_memzero(&state, sizeof state); /* it holds the key */
}

static size_t step_bytes(const fy_handshake *handshake)
{
    static const size_t bytes[] = {
        [STEP_HELLO] = FY_HELLO_BYTES,
        [STEP_PROOF] = PROOF_BYTES,
        [STEP_VERDICT] = FY_REPLY_BYTES,
        [STEP_DONE] = 0,
    };
    return bytes[handshake->step];
}

void fy_handshake_begin(fy_handshake *handshake, fy_auth_role role,
                        const unsigned char key[FY_KEY_BYTES],
                        unsigned char hello_out[FY_HELLO_BYTES])
{
    *handshake = (fy_handshake){.role = role, .step = STEP_HELLO};
    memcpy(handshake->key, key, FY_KEY_BYTES);
    handshake->transcript.versions[role] = fy_auth_version();
    fy_auth_random(handshake->transcript.nonces[role], FY_AUTH_NONCE_BYTES);
    memcpy(hello_out, magic, sizeof magic);
    hello_out[sizeof magic] = (unsigned char)role;
    memcpy(hello_out + sizeof magic + 1, handshake->transcript.nonces[role], FY_AUTH_NONCE_BYTES);
}

size_t fy_handshake_wants(const fy_handshake *handshake)
{
    return step_bytes(handshake) - handshake->n_bytes;
}

/* Looks at as much of a hello as there is: a stranger is known by its first wrong byte. */
static ferry_status check_hello(const fy_handshake *handshake, const char *peer, ferry_error *error)
{
    size_t n = handshake->n_bytes < sizeof magic ? handshake->n_bytes : sizeof magic;
    if (memcmp(handshake->bytes, magic, n) != 0) {
        return handshake->role == FY_CLIENT
                   ? fy_fail(
                         error, FERRY_ERR_INVALID_INPUT,
                         "%s answers, but is not a ferry rank: the port belongs to another program",
                         peer)
                   : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%s is not a ferry rank: it sent something else", peer);
    }
    if (handshake->n_bytes > sizeof magic && handshake->bytes[sizeof magic] != !handshake->role) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s takes the same side of the connection as this rank", peer);
    }
    return FERRY_OK;
}

static size_t write_proof(const fy_handshake *handshake, unsigned char *text)
{
    fy_pack packer = fy_pack_into(text, PROOF_BYTES);
    fy_pack_u32(&packer, handshake->transcript.versions[handshake->role]);
    fy_auth_prove(handshake->key, handshake->role, &handshake->transcript, text + packer.used);
    return PROOF_BYTES;
}

/* Compares the proof behind a version with what the other side must send. */
static bool check_proof(fy_handshake *handshake, const unsigned char *text)
{
    unsigned char expected[FY_AUTH_PROOF_BYTES];
    fy_auth_role other = !handshake->role;
    fy_reader reader = fy_reader_of(text, PROOF_BYTES);
    handshake->transcript.versions[other] = fy_read_u32(&reader);
    fy_auth_prove(handshake->key, other, &handshake->transcript, expected);
    handshake->proven = fy_auth_equal(expected, reader.at, sizeof expected);
    fy_auth_wipe(expected, sizeof expected);
    return handshake->proven;
}

static ferry_status check_versions(fy_handshake *handshake, const char *peer, ferry_error *error)
{
    uint32_t mine = handshake->transcript.versions[handshake->role];
    uint32_t theirs = handshake->transcript.versions[!handshake->role];
    if (mine != theirs) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s speaks version %u of ferry's control protocol, and this rank version "
                       "%u: run the same ferry on all ranks",
                       peer, theirs, mine);
    }
    handshake->step = STEP_DONE;
    return FERRY_OK;
}

static ferry_status take_hello(fy_handshake *handshake, const char *peer, unsigned char *reply,
                               size_t *reply_bytes_out, ferry_error *error)
{
    unsigned char *theirs = handshake->transcript.nonces[!handshake->role];
    memcpy(theirs, handshake->bytes + sizeof magic + 1, FY_AUTH_NONCE_BYTES);
    if (fy_auth_equal(theirs, handshake->transcript.nonces[handshake->role], FY_AUTH_NONCE_BYTES)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s sends back what it gets", peer);
    }
    if (handshake->role == FY_SERVER) {
        handshake->step = STEP_PROOF;
        return FERRY_OK;
    }
    *reply_bytes_out = write_proof(handshake, reply);
    handshake->step = STEP_VERDICT;
    return FERRY_OK;
}

static ferry_status take_proof(fy_handshake *handshake, const char *peer, unsigned char *reply,
                               size_t *reply_bytes_out, ferry_error *error)
{
    *reply_bytes_out = FY_REPLY_BYTES;
    if (!check_proof(handshake, handshake->bytes)) {
        memset(reply, 0, FY_REPLY_BYTES);
        reply[0] = VERDICT_REFUSED;
        return fy_fail(error, FERRY_ERR_DENIED,
                       "%s did not prove the secret: FERRY_SECRET must be the same on all ranks",
                       peer);
    }
    reply[0] = VERDICT_ACCEPTED;
    write_proof(handshake, reply + 1);
    return check_versions(handshake, peer, error);
}

static ferry_status take_verdict(fy_handshake *handshake, const char *peer, ferry_error *error)
{
    if (handshake->bytes[0] != VERDICT_ACCEPTED) {
        return fy_fail(error, FERRY_ERR_DENIED,
                       "%s does not accept this rank's proof of the secret: FERRY_SECRET must be "
                       "the same on all ranks",
                       peer);
    }
    if (!check_proof(handshake, handshake->bytes + 1)) {
        return fy_fail(error, FERRY_ERR_DENIED,
                       "%s accepts this rank but did not prove the secret itself: what listens "
                       "there does not know FERRY_SECRET",
                       peer);
    }
    return check_versions(handshake, peer, error);
}

ferry_status fy_handshake_advance(fy_handshake *handshake, size_t n_bytes, const char *peer,
                                  unsigned char reply_out[FY_REPLY_BYTES], size_t *reply_bytes_out,
                                  ferry_error *error)
{
    *reply_bytes_out = 0;
    handshake->n_bytes += n_bytes;
    if (handshake->step == STEP_HELLO) {
        FY_TRY(check_hello(handshake, peer, error));
    }
    if (handshake->n_bytes < step_bytes(handshake)) {
        return FERRY_OK;
    }
    handshake->n_bytes = 0;
    if (handshake->step == STEP_HELLO) {
        return take_hello(handshake, peer, reply_out, reply_bytes_out, error);
    }
    return handshake->step == STEP_PROOF
               ? take_proof(handshake, peer, reply_out, reply_bytes_out, error)
               : take_verdict(handshake, peer, error);
}
