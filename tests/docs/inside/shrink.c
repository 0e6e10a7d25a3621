/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 3 */
#include "scene.h"

int main(void)
{
    ferry_error error;
    ferry_world *world = NULL;
    check(ferry_world_create(NULL, &world, &error), &error);
    if (ferry_world_rank(world) == 2) {
        end_when_ready(2);
    }
    say_ready(ferry_world_rank(world));
    ferry_status status = ferry_world_barrier(world, &error);
    demand(status == FERRY_ERR_PEER_LOST, "the others hear of it");
    BLOCK
    check(status, &error);
    demand(ferry_world_rank_count(world) == 2, "two go on");
    check(ferry_world_barrier(world, &error), &error);
    ferry_world_destroy(world);
    return 0;
}
