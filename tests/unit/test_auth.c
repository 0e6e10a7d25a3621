/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/auth.h"

#include "support/check.h"

static const unsigned char key[FY_KEY_BYTES] = {1, 2, 3};
static const unsigned char other[FY_KEY_BYTES] = {1, 2, 4};

static int begin(void **state)
{
    ferry_error error;
    (void)state;
    return fy_auth_begin(&error) == FERRY_OK ? 0 : -1;
}

static fy_transcript some_transcript(void)
{
    fy_transcript transcript = {.versions = {3, 3}};
    memset(transcript.nonces[FY_CLIENT], 0x11, FY_AUTH_NONCE_BYTES);
    memset(transcript.nonces[FY_SERVER], 0x22, FY_AUTH_NONCE_BYTES);
    return transcript;
}

/* Proofs and keys are all different, and depend on everything that both sides have seen. */
static void test_bound_to_everything(void **state)
{
    (void)state;
    fy_transcript seen[7];
    for (size_t i = 0; i < COUNT_OF(seen); i++) {
        seen[i] = some_transcript();
    }
    seen[1].nonces[FY_CLIENT][0] ^= 1;
    seen[2].nonces[FY_CLIENT][FY_AUTH_NONCE_BYTES - 1] ^= 0x80;
    seen[3].nonces[FY_SERVER][0] ^= 1;
    seen[4].nonces[FY_SERVER][FY_AUTH_NONCE_BYTES - 1] ^= 0x80;
    seen[5].versions[FY_CLIENT]++;
    memcpy(seen[6].nonces[FY_CLIENT], seen[0].nonces[FY_SERVER], FY_AUTH_NONCE_BYTES);
    memcpy(seen[6].nonces[FY_SERVER], seen[0].nonces[FY_CLIENT], FY_AUTH_NONCE_BYTES);
    unsigned char made[4 * COUNT_OF(seen) + 4][32];
    size_t n = 0;
    for (size_t i = 0; i < COUNT_OF(seen); i++) {
        for (fy_auth_role role = FY_CLIENT; role <= FY_SERVER; role++) {
            fy_auth_prove(key, role, &seen[i], made[n++]);
            fy_auth_session_key(key, role, &seen[i], made[n++]);
        }
    }
    for (fy_auth_role role = FY_CLIENT; role <= FY_SERVER; role++) {
        fy_auth_prove(other, role, &seen[0], made[n++]);
        fy_auth_session_key(other, role, &seen[0], made[n++]);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            check_at(!fy_auth_equal(made[i], made[j], 32), "%zu and %zu", i, j);
        }
    }
}

/* The client does not know the server's version when it proves; the server's proof holds it. */
static void test_server_version(void **state)
{
    (void)state;
    unsigned char a[FY_AUTH_PROOF_BYTES], b[FY_AUTH_PROOF_BYTES];
    fy_transcript one = some_transcript(), two = some_transcript();
    two.versions[FY_SERVER] = 9;
    fy_auth_prove(key, FY_CLIENT, &one, a);
    fy_auth_prove(key, FY_CLIENT, &two, b);
    assert_memory_equal(a, b, sizeof a);
    fy_auth_prove(key, FY_SERVER, &one, a);
    fy_auth_prove(key, FY_SERVER, &two, b);
    assert_memory_not_equal(a, b, sizeof a);
    one.versions[FY_SERVER] = 0; /* even one that the client's proof could have held */
    fy_auth_prove(key, FY_CLIENT, &one, a);
    fy_auth_prove(key, FY_SERVER, &one, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static void test_macs(void **state)
{
    (void)state;
    static const char payload[] = "the payload";
    unsigned char macs[12][FY_AUTH_MAC_BYTES];
    size_t n = 0;
    fy_auth_mac_header(key, 5, 6, 11, macs[n++]);
    fy_auth_mac_header(other, 5, 6, 11, macs[n++]);
    fy_auth_mac_header(key, 5 + (1ULL << 32), 6, 11, macs[n++]);
    fy_auth_mac_header(key, 6, 5, 11, macs[n++]);
    fy_auth_mac_header(key, 5, 6, 12, macs[n++]);
    fy_auth_mac_payload(key, 5, 6, payload, 11, macs[n++]);
    fy_auth_mac_payload(key, 5, 6, payload, 10, macs[n++]);
    fy_auth_mac_payload(key, 5, 6, payload + 1, 10, macs[n++]);
    fy_auth_mac_payload(other, 5, 6, payload, 11, macs[n++]);
    fy_auth_mac_payload(key, 4, 6, payload, 11, macs[n++]);
    fy_auth_mac_payload(key, 5, 7, payload, 11, macs[n++]);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            check_at(!fy_auth_equal(macs[i], macs[j], FY_AUTH_MAC_BYTES), "%zu and %zu", i, j);
        }
    }
    fy_auth_mac_payload(key, 5, 6, payload, 11, macs[0]);
    assert_memory_equal(macs[0], macs[5], FY_AUTH_MAC_BYTES);
}

/* Every run says something new; what the key has left is wiped. */
static void test_fresh_and_wiped(void **state)
{
    (void)state;
    unsigned char a[FY_HELLO_BYTES], b[FY_HELLO_BYTES];
    fy_handshake handshake;
    fy_handshake_begin(&handshake, FY_CLIENT, key, a);
    fy_handshake_begin(&handshake, FY_CLIENT, key, b);
    assert_memory_equal(a, b, 9);
    assert_memory_not_equal(a + 9, b + 9, FY_AUTH_NONCE_BYTES);
    assert_memory_equal(handshake.key, key, sizeof key);
    fy_auth_wipe(&handshake, sizeof handshake);
    static const unsigned char zeros[FY_KEY_BYTES];
    assert_memory_equal(handshake.key, zeros, sizeof zeros);
}

/*
 * What goes over the wire before ranks know each other's version never changes: these are the bytes
 * of the first version.
 */
static void test_wire_of_all_versions(void **state)
{
    (void)state;
    static const unsigned char start[] = {0xfe, 'f', 'e', 'r', 'r', 'y', 0x1a, '\n'};
    unsigned char hello[2][FY_HELLO_BYTES], reply[FY_REPLY_BYTES], verdict[FY_REPLY_BYTES];
    size_t n_bytes;
    ferry_error error;
    fy_handshake client, server;
    fy_auth_set_version_for_test(1);
    fy_handshake_begin(&client, FY_CLIENT, key, hello[FY_CLIENT]);
    fy_handshake_begin(&server, FY_SERVER, key, hello[FY_SERVER]);
    assert_int_equal(FY_HELLO_BYTES, 41);
    for (fy_auth_role role = FY_CLIENT; role <= FY_SERVER; role++) {
        assert_memory_equal(hello[role], start, sizeof start);
        assert_int_equal(hello[role][8], role);
    }
    assert_int_equal(fy_handshake_wants(&server), FY_HELLO_BYTES);
    memcpy(server.bytes, hello[FY_CLIENT], FY_HELLO_BYTES);
    must(fy_handshake_advance(&server, FY_HELLO_BYTES, "x", reply, &n_bytes, &error), &error);
    assert_int_equal(n_bytes, 0);
    memcpy(client.bytes, hello[FY_SERVER], FY_HELLO_BYTES);
    must(fy_handshake_advance(&client, FY_HELLO_BYTES, "x", reply, &n_bytes, &error), &error);
    assert_int_equal(n_bytes, 36);
    assert_memory_equal(reply, "\1\0\0\0", 4);
    assert_int_equal(fy_handshake_wants(&server), 36);
    memcpy(server.bytes, reply, n_bytes);
    must(fy_handshake_advance(&server, n_bytes, "x", verdict, &n_bytes, &error), &error);
    assert_int_equal(n_bytes, 37);
    assert_memory_equal(verdict, "\1\1\0\0\0", 5);
    assert_true(server.proven && fy_handshake_wants(&server) == 0);
    memcpy(client.bytes, verdict, n_bytes);
    must(fy_handshake_advance(&client, n_bytes, "x", reply, &n_bytes, &error), &error);
    assert_true(client.proven && fy_handshake_wants(&client) == 0 && n_bytes == 0);
    fy_auth_set_version_for_test(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound_to_everything),
        cmocka_unit_test(test_server_version),
        cmocka_unit_test(test_macs),
        cmocka_unit_test(test_fresh_and_wiped),
        cmocka_unit_test(test_wire_of_all_versions),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
