/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which way bytes take. The sender chooses, from what it can reach and what the receiver said. */
#include "service/prepare.h"

#include "exec/exec.h"

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
    uint32_t can = 0;
    ferry_transport_get_peer(service->transport, peer, NULL, &can, NULL);
    return can != UINT32_MAX && (can & FERRY_CAN_PEER_POINTER) != 0 &&
           fy_path_allowed(service, FERRY_PATH_MAPPED);
}

/* Between memory of two devices there is none that copies: bytes go through slots. */
static bool can_copy(fy_space source, const fy_spot *spot)
{
    return spot->mapped != NULL && source.kind < FY_N_MEMORY_KINDS &&
           fy_exec_for(source, spot->space).exec != NULL;
}

uint32_t fy_path_choose(ferry_service *service, const fy_channel *channel, const fy_place *place,
                        uint64_t source_run, fy_space source, bool casts)
{
    uint64_t run = place->run_bytes < source_run ? place->run_bytes : source_run;
    if (channel->out_aside) { /* what came by another way would be told of before it */
        return FERRY_PATH_STAGED;
    }
    const fy_spot *spots = channel->bases[place->base].spots;
    /* Both spots go the same way, so the items stay as they are cut. */
    bool is_mapped = can_copy(source, &spots[0]) && can_copy(source, &spots[1]);
    bool is_keyed = fy_is_host(source) && fy_is_host(spots[0].space) &&
                    fy_is_host(spots[1].space) && spots[0].key != FY_NONE &&
                    spots[1].key != FY_NONE && channel->keys[spots[0].key] != NULL &&
                    channel->keys[spots[1].key] != NULL;
    if (is_mapped && fy_path_allowed(service, FERRY_PATH_MAPPED)) {
        return FERRY_PATH_MAPPED;
    }
    /* What is to be checked on its way must stop somewhere before it is in place, and so must what
     * is cast. */
    if (fy_path_allowed(service, FERRY_PATH_REMOTE) && is_keyed && !casts &&
        run >= REMOTE_RUN_BYTES && service->options.checksum != FERRY_CHECKSUM_PATH) {
        return FERRY_PATH_REMOTE;
    }
    return FERRY_PATH_STAGED;
}

const char *ferry_service_path_name(uint32_t path)
{
    switch (path) {
    case FERRY_PATH_LOCAL:
        return "local";
    case FERRY_PATH_MAPPED:
        return "mapped";
    case FERRY_PATH_REMOTE:
        return "remote";
    case FERRY_PATH_STAGED:
        return "staged";
    default:
        return "none";
    }
}
