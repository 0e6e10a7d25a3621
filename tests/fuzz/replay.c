/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over every file of the folders that are named: the corpus as a test. */
#include "fuzz.h"

#include <dirent.h>

static int replay_file(const char *path)
{
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0) {
        perror(path);
        return 1;
    }
    long size = ftell(stream);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    rewind(stream);
    if (data == NULL || fread(data, 1, (size_t)size, stream) != (size_t)size) {
        perror(path);
        return 1;
    }
    fclose(stream);
    fprintf(stderr, "%s\n", path); /* the last one named is the one that crashed */
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 0;
}

static int replay_folder(const char *folder, size_t *n_inout)
{
    char path[4096];
    int failures = 0;
    struct dirent *entry;
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        perror(folder);
        return 1;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            failures += replay_file(path);
            (*n_inout)++;
        }
    }
    closedir(dir);
    return failures;
}

int main(int argc, char **argv)
{
    size_t n = 0;
    int failures = 0;
    for (int i = 1; i < argc; i++) {
        failures += replay_folder(argv[i], &n);
    }
    printf("%zu inputs\n", n);
    return failures > 0 || n == 0;
}
