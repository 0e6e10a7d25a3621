/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A letter and any text: the index of a folder of two parts, or the layout of two rank files. */
#include "fuzz.h"

#include "checkpoint/checkpoint.h"

static char folder[] = "/tmp/ferry-fuzz-XXXXXX";

static const char *const parts[] = {"a.safetensors", "b.safetensors", "rank-00000.safetensors",
                                    "rank-00001.safetensors"};

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t n_bytes)
{
    FILE *stream = fopen(path_of(name), "wb");
    promise(stream != NULL && fwrite(bytes, 1, n_bytes, stream) == n_bytes);
    promise(fclose(stream) == 0);
}

static void remove_folder(void)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        unlink(path_of(parts[i]));
    }
    unlink(path_of(FY_LAYOUT_NAME));
    unlink(path_of(FY_INDEX_NAME));
    rmdir(folder);
}

/* Two parts that hold different tensors, and two ranks that hold the same. */
static void make_folder(void)
{
    promise(mkdtemp(folder) != NULL);
    atexit(remove_folder);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char text[300] = {0};
        int length =
            snprintf(text + 8, sizeof text - 8,
                     "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                     "\"q\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[8,11]}}",
                     i < 2 ? parts[i] : "w");
        if (i == 1) { /* "q" is in the first part only */
            length = snprintf(text + 8, sizeof text - 8,
                              "{\"x\":{\"dtype\":\"I8\",\"shape\":[11],"
                              "\"data_offsets\":[0,11]}}");
        }
        text[0] = (char)length; /* below 256 */
        put(parts[i], text, 8 + (size_t)length + 11);
    }
}

/* Whatever was accepted can be asked for all that it says it has. */
static void check_checkpoint(const ferry_checkpoint *checkpoint)
{
    ferry_checkpoint_totals totals = FERRY_CHECKPOINT_TOTALS_INIT;
    ferry_error error = {""};
    uint64_t bytes = 0;
    promise(ferry_checkpoint_get_totals(checkpoint, &totals, &error) == FERRY_OK);
    promise(totals.n_files <= 2 && totals.is_sharded == (checkpoint->layout != NULL));
    for (size_t i = 0; i < totals.n_tensors; i++) {
        ferry_checkpoint_tensor tensor = FERRY_CHECKPOINT_TENSOR_INIT;
        promise(ferry_checkpoint_tensor_at(checkpoint, i, &tensor, &error) == FERRY_OK);
        promise(fy_ckpt_find(checkpoint, tensor.name) == i && tensor.n_dims <= FERRY_MAX_DIMS);
        promise(tensor.dtype != NULL && tensor.dtype[0] != '\0');
        bytes += tensor.bytes;
    }
    promise(bytes == totals.tensor_bytes);
    for (size_t i = 0; i < checkpoint->n_others; i++) {
        promise(checkpoint->others[i].left_out != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_made = false;
    ferry_error error = {""};
    ferry_checkpoint *opened = NULL;
    if (size == 0) {
        return 0;
    }
    if (!is_made) {
        make_folder();
        is_made = true;
    }
    const char *name = data[0] == 'i' ? FY_INDEX_NAME : FY_LAYOUT_NAME;
    put(name, data + 1, size - 1);
    ferry_status status = ferry_checkpoint_open(folder, &opened, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        check_checkpoint(opened);
    }
    ferry_checkpoint_destroy(opened);
    unlink(path_of(name));
    return 0;
}
