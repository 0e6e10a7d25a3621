/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
#include "scene.h"

int main(void)
{
    enum { ROWS = 2, COLUMNS = 64, DP = 2 };
    static uint16_t input[ROWS * COLUMNS], output[DP * ROWS * COLUMNS];
    ferry_error error = {""};
    ferry_world *world = NULL;
    ferry_mixed_comm *comm = NULL;
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        input[i] = 0x3f80; /* 1 in bf16 */
    }
    BLOCK
    demand(error.message[0] == 0, error.message);
    for (size_t i = 0; i < DP * ROWS * COLUMNS; i++) {
        demand(output[i] == 0x4000, "every element is the sum of two, 2 in bf16");
    }
    ferry_mixed_comm_destroy(comm);
    ferry_world_destroy(world);
    return 0;
}
