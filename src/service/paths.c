/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which way bytes take. The sender chooses, from what it can reach and what the receiver said. */
#include "service/exec.h"

#include "base/alloc.h"

/* A put of its own pays from here on; smaller runs travel together, in slots. */
enum { REMOTE_RUN_BYTES = 64 << 10 };

bool fy_path_allowed(const ferry_service *service, uint32_t path)
{
    return service->options.paths == 0 || (service->options.paths & path) != 0;
}

bool fy_peer_is_direct(ferry_service *service, uint32_t peer)
{
    if (fy_transport_shares_pointers(service->transport, peer)) {
        return fy_path_allowed(service, FERRY_PATH_MAPPED);
    }
    if (fy_transport_can_attach(service->transport, peer)) {
        return fy_path_allowed(service, FERRY_PATH_ATTACH) ||
               fy_path_allowed(service, FERRY_PATH_MAPPED);
    }
    uint32_t can = 0;
    ferry_transport_peer(service->transport, peer, NULL, &can, NULL);
    return can != UINT32_MAX && (can & FERRY_CAN_PEER_POINTER) != 0 &&
           fy_path_allowed(service, FERRY_PATH_MAPPED);
}

uint32_t fy_path_choose(ferry_service *service, const fy_channel *channel, const fy_place *place,
                        uint64_t source_run)
{
    uint64_t run = place->run_bytes < source_run ? place->run_bytes : source_run;
    const fy_spot *spots = place->spots;
    /* Both spots go the same way, so the items stay as they are cut. */
    bool is_mapped = spots[0].mapped != NULL && spots[1].mapped != NULL;
    bool is_keyed = spots[0].key != FY_NONE && spots[1].key != FY_NONE &&
                    channel->keys[spots[0].key] != NULL && channel->keys[spots[1].key] != NULL;
    if (is_mapped && fy_path_allowed(service, FERRY_PATH_MAPPED)) {
        return FERRY_PATH_MAPPED;
    }
    /*
     * One copy by the kernel takes longer than two through slots that are mapped and stay in the
     * caches, for any length of pieces: its pages cost more than its bytes.
     */
    uint32_t only = FERRY_PATH_ATTACH | FERRY_PATH_LOCAL | FERRY_PATH_STAGED;
    uint32_t can = fy_transport_capabilities(service->transport, channel->peer);
    bool slower = (can & FERRY_CAN_PEER_POINTER) != 0 && service->options.paths != only;
    if (fy_path_allowed(service, FERRY_PATH_ATTACH) && !slower &&
        fy_transport_can_attach(service->transport, channel->peer)) {
        return FERRY_PATH_ATTACH;
    }
    /* What is to be checked on its way must stop somewhere before it is in place. */
    if (fy_path_allowed(service, FERRY_PATH_REMOTE) && is_keyed && run >= REMOTE_RUN_BYTES &&
        service->options.checksum != FERRY_CHECKSUM_PATH) {
        return FERRY_PATH_REMOTE;
    }
    return FERRY_PATH_STAGED;
}

const char *ferry_path_name(uint32_t path)
{
    switch (path) {
    case FERRY_PATH_LOCAL:
        return "local";
    case FERRY_PATH_MAPPED:
        return "mapped";
    case FERRY_PATH_ATTACH:
        return "attach";
    case FERRY_PATH_REMOTE:
        return "remote";
    case FERRY_PATH_STAGED:
        return "staged";
    default:
        return "none";
    }
}
