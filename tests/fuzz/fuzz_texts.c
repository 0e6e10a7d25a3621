/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Short texts from the environment, from launchers and from files; the first byte says which: the
 * engines of a transport, FERRY_NODES, an address, a rendezvous file, what rank 0 tells PMIx, and
 * the header of a mixed collective, which ends in a sentence.
 */
#include "fuzz.h"

#include "collective/comm.h"
#include "transport/choose.h"
#include "transport/wrap/wrap.h"
#include "world/address.h"
#include "world/rendezvous.h"

static void read_engines(const char *text)
{
    ferry_error error = {""};
    fy_choice choice = {.n_engines = 99};
    ferry_status status = fy_choice_parse(text, &choice, &error);
    check_sentence(status, &error);
    promise(status == FERRY_OK ? choice.n_engines <= FY_MOST_ENGINES : choice.n_engines == 99);
    if (status == FERRY_OK && choice.chain[0] != '\0') {
        promise(fy_wrap_check(choice.chain, &error) == FERRY_OK);
    }
    error.message[0] = '\0';
    status = fy_wrap_check(text, &error);
    check_sentence(status, &error);
}

/* Nodes are numbered from 0 without a gap, in order, and each has a rank. */
static void read_nodes(const char *text, uint32_t n_ranks)
{
    uint32_t last = 0;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        ferry_error error = {""};
        uint32_t node = UINT32_MAX;
        ferry_status status = fy_settings_fake_node(text, rank, n_ranks, &node, &error);
        check_sentence(status, &error);
        if (status != FERRY_OK) {
            promise(rank == 0); /* a text is right for all ranks, or for none */
            return;
        }
        promise(rank == 0 ? node == 0 : node == last || node == last + 1);
        last = node;
    }
}

static void read_address(const char *text, size_t length)
{
    char host[FY_HOST_BYTES] = "", port[FY_PORT_BYTES] = "";
    ferry_error error = {""};
    ferry_status status = fy_address_parse(text, length, host, port, &error);
    check_sentence(status, &error);
    promise(status != FERRY_OK || (strlen(host) < sizeof host && port[0] != '\0'));
    promise(strlen(port) < sizeof port);
}

static void read_notice(char *text)
{
    fy_notice notice;
    if (fy_notice_parse(text, &notice)) {
        promise(notice.n_ranks > 0 && notice.n_ranks <= FERRY_MAX_RANKS);
        promise(strlen(notice.key) == sizeof notice.key - 1);
        promise(strlen(notice.addresses) < sizeof notice.addresses && notice.by[0] != '\0');
    }
}

static void read_pmix(const char *text)
{
    ferry_error error = {""};
    fy_meeting meeting = FY_MEETING_INIT;
    fy_settings settings = {.secret = NULL};
    ferry_status status = fy_pmix_take_root(&meeting, &settings, text, &error);
    promise((status == FERRY_OK) == (error.message[0] == '\0'));
    promise((unsigned)status <= FY_LAST_STATUS && strlen(error.message) < sizeof error.message);
    promise(status != FERRY_OK || meeting.addresses[0] != '\0');
}

static void read_header(const uint8_t *data, size_t size)
{
    uint32_t op = 0, mode = 0;
    uint64_t count = 0;
    char text[96];
    if (size >= 16) {
        memcpy(&op, data, 4);
        memcpy(&mode, data + 4, 4);
        memcpy(&count, data + 8, 8);
        fy_mix_call_text(op, mode, count, text, sizeof text);
        promise(strlen(text) < sizeof text && text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[2048];
    if (size == 0 || size > sizeof text) {
        return 0;
    }
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0] % 6) {
    case 0:
        read_engines(text);
        break;
    case 1:
        read_nodes(text, 1 + data[0] / 6u);
        break;
    case 2:
        read_address(text, size - 1);
        break;
    case 3:
        read_notice(text);
        break;
    case 4:
        read_pmix(text);
        break;
    default:
        read_header(data + 1, size - 1);
    }
    return 0;
}
