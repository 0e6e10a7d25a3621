/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

int main(void)
{
    ferry_error error = {""};
    ferry_checkpoint *checkpoint = NULL;
    ferry_reshard *reshard = NULL;
    BLOCK
    demand(error.message[0] == 0, error.message);
    ferry_reshard_destroy(reshard);
    ferry_checkpoint_destroy(checkpoint);
    check(ferry_checkpoint_open("llama-tp8pp2", &checkpoint, &error), &error);
    ferry_checkpoint_destroy(checkpoint);
    return 0;
}
