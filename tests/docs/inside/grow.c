/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 3 */
#include "scene.h"

int main(void)
{
    ferry_error error;
    ferry_status status;
    ferry_world *world = NULL, *larger = NULL;
    uint32_t rank = (uint32_t)atoi(getenv("RANK"));
    bool is_new = rank == 2;
    if (!is_new) {
        check(ferry_world_create_from_file("start", rank, 2, NULL, &world, &error), &error);
    }
    BLOCK
    check(status, &error);
    demand(ferry_world_rank_count(larger) == 3, "all three are in it");
    demand(ferry_world_rank(larger) == rank, "members keep their ranks, newcomers come behind");
    check(ferry_world_barrier(larger, &error), &error);
    ferry_world_destroy(world);
    ferry_world_destroy(larger);
    return 0;
}
