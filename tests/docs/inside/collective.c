/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
#include "scene.h"

int main(void)
{
    enum { ROWS = 2, COLUMNS = 64, DP = 2 };
    static uint16_t in_memory[ROWS * COLUMNS], out_memory[DP * ROWS * COLUMNS];
    ferry_error error = {""};
    ferry_world *world = NULL;
    ferry_mixed_comm *comm = NULL;
    ferry_mixed_tensor in = {ferry_buffer_of(in_memory, sizeof in_memory), ROWS, COLUMNS};
    ferry_mixed_tensor out = {ferry_buffer_of(out_memory, sizeof out_memory), DP * ROWS, COLUMNS};
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        in_memory[i] = 0x3f80; /* 1 in bf16 */
    }
    check(ferry_world_create(NULL, &world, &error), &error);
    BLOCK
    demand(error.message[0] == 0, error.message);
    for (size_t i = 0; i < DP * ROWS * COLUMNS; i++) {
        demand(out_memory[i] == 0x4000, "every element is the sum of two, 2 in bf16");
    }
    ferry_mixed_comm_destroy(comm);
    ferry_world_destroy(world);
    return 0;
}
