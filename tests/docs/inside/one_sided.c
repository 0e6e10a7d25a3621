/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 2 */
#include "scene.h"

static void use(const void *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        demand(((const unsigned char *)memory)[i] == 7, "whoever sees the signal sees the bytes");
    }
}

int main(void)
{
    enum { bytes = 1000 };
    ferry_error error = {""};
    ferry_world *world = NULL;
    unsigned char data[bytes];
    memset(data, 7, sizeof data);
    check(ferry_world_create(NULL, &world, &error), &error);
    BLOCK
    demand(error.message[0] == 0, error.message);
    ferry_region_free(region);
    ferry_transport_close(transport);
    ferry_world_destroy(world);
    return 0;
}
