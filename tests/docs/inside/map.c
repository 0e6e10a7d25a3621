/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

int main(void)
{
    ferry_error error;
    ferry_status status;
    BLOCK
    check(status, &error);
    size_t target;
    ferry_map_box box = FERRY_MAP_BOX_INIT;
    check(ferry_map_find_target(map, "model.layers.3.mlp.experts.w2_weight", &target, &error),
          &error);
    check(ferry_map_box_at(map, target, 7, &box, &error), &error);
    demand(strcmp(box.source, "decoder.layers.3.mlp.experts.linear_fc2.weight7") == 0,
           "boxes of the composed map are of the trainer's tensors");
    ferry_map_destroy(to_hf);
    ferry_map_destroy(to_server);
    ferry_map_destroy(map);
    return 0;
}
