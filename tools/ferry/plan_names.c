/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* `ferry plan --names`: from a config.json to a spec. */
#include "plan.h"

#include "steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_CONFIG_BYTES = 64 << 20, MOST_PATH = 4096, MOST_NAMING = 64 };

static ferry_status fail_file(ferry_error *error, const char *path, const char *what)
{
    snprintf(error->message, sizeof error->message, "%.400s: %s: %s", path, what, strerror(errno));
    return FERRY_ERR_IO;
}

/* The whole of a file that is not too long; NULL with errno. */
static char *read_file(const char *path, size_t *length_out)
{
    FILE *file = fopen(path, "rb");
    struct stat about;
    char *text = NULL;
    if (file != NULL && fstat(fileno(file), &about) == 0 && about.st_size >= 0 &&
        about.st_size <= MOST_CONFIG_BYTES) {
        text = malloc((size_t)about.st_size + 1);
    }
    if (text != NULL) {
        *length_out = fread(text, 1, (size_t)about.st_size, file);
    }
    if (file != NULL) {
        fclose(file);
    }
    return text;
}

/* A folder stands for the config.json in it. */
static ferry_status read_config(const char *given, char **text_out, size_t *length_out,
                                ferry_error *error)
{
    char path[MOST_PATH];
    struct stat about;
    bool is_folder = stat(given, &about) == 0 && S_ISDIR(about.st_mode);
    snprintf(path, sizeof path, "%s%s", given, is_folder ? "/config.json" : "");
    errno = 0;
    *text_out = read_file(path, length_out);
    return *text_out != NULL ? FERRY_OK : fail_file(error, path, "cannot be read");
}

/* "megatron:vllm", or one for both. */
static ferry_status split_names(const char *names, char from[MOST_NAMING], const char **to_out,
                                ferry_error *error)
{
    const char *colon = strchr(names, ':');
    size_t length = colon == NULL ? strlen(names) : (size_t)(colon - names);
    if (length == 0 || length >= MOST_NAMING || (colon != NULL && colon[1] == '\0')) {
        snprintf(error->message, sizeof error->message,
                 "--names takes a naming such as hf, or two such as megatron:vllm, not \"%.60s\"",
                 names);
        return FERRY_ERR_INVALID_INPUT;
    }
    memcpy(from, names, length);
    from[length] = '\0';
    *to_out = colon == NULL ? from : colon + 1;
    return FERRY_OK;
}

ferry_status plan_name_spec(const plan_request *r, ferry_spec **spec_out, ferry_error *error)
{
    char from[MOST_NAMING], *text = NULL;
    const char *to;
    ferry_names *names = NULL;
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    ferry_status status = split_names(r->names, from, &to, error);
    FY_THEN(status, read_config(r->path, &text, &options.config_length, error));
    options.config = text;
    options.source_name = r->path;
    FY_THEN(status, ferry_names_create(&options, &names, error));
    FY_THEN(status, ferry_names_get_spec(names, from, r->forms[0], to, r->forms[1], r->first_rank,
                                         spec_out, error));
    ferry_names_destroy(names);
    free(text);
    return status;
}
