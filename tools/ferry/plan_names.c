/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* `--names` of ferry plan and simulate: from a config.json to a spec. */
#include "plan.h"

#include "arguments.h"
#include "commands.h"
#include "name_text.h"
#include "steps.h"
#include "terminal.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_CONFIG_BYTES = 64 << 20, MOST_PATH = 4096, MOST_NAMING = 64, NOTED_NAMES = 4 };

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

/* ---- what a user might miss in the plan ---- */

static ferry_status note_left_out(const char *who, ferry_names *names, const char *from,
                                  const char *to, ferry_error *error)
{
    const char *noted[NOTED_NAMES], *name = "";
    size_t n = 0;
    while (name != NULL) {
        FY_TRY(ferry_names_left_out_at(names, from, to, n, &name, error));
        if (name != NULL && n++ < NOTED_NAMES) {
            noted[n - 1] = name;
        }
    }
    if (n == 0 || !terminal_begin_note(who)) {
        return FERRY_OK;
    }
    fprintf(stderr,
            "%zu tensor%s of %s %s left out, for which %s has no place, as for layers that predict "
            "further tokens: ",
            n, n == 1 ? "" : "s", from, n == 1 ? "is" : "are", to);
    for (size_t i = 0; i < n && i < NOTED_NAMES; i++) {
        fputs(i == 0 ? "" : ", ", stderr);
        print_name(stderr, noted[i]);
    }
    fprintf(stderr, "%s\n", n > NOTED_NAMES ? ", ..." : "");
    return FERRY_OK;
}

/* Names are those of values: a config.json may say that files have codes instead. */
static ferry_status note_codes(const char *who, ferry_names *names, const char *from,
                               const char *text, size_t length, ferry_error *error)
{
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    json_t *config = json_loadb(text, length, 0, NULL);
    const json_t *about = json_object_get(config, "quantization_config");
    if (about == NULL) {
        about = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    }
    const char *method = json_string_value(json_object_get(about, "quant_method"));
    ferry_status status = ferry_names_tensor_at(names, from, 0, &tensor, error);
    if (status == FERRY_OK && json_is_object(about)) {
        bool is_mx = method != NULL && strcmp(method, "mxfp4") == 0;
        ferry_dtype_format(tensor.dtype, dtype, sizeof dtype);
        terminal_note(who,
                      "config.json says that files have codes (quantization_config: %.40s), but "
                      "names are those of values: bytes are counted of %s; %s, and codes are "
                      "planned by a spec of their own tensors",
                      method == NULL ? "of no known method" : method, dtype,
                      is_mx ? "ferry reshard makes no values of such codes"
                            : "`ferry reshard --dequantize` makes a checkpoint of values");
    }
    json_decref(config);
    return status;
}

ferry_status plan_name_spec(const char *who, const named_model *model, const char *path,
                            ferry_spec **spec_out, ferry_error *error)
{
    char from[MOST_NAMING], *text = NULL;
    const char *to;
    ferry_names *names = NULL;
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    ferry_status status = split_names(model->names, from, &to, error);
    FY_THEN(status, read_config(path, &text, &options.config_length, error));
    options.config = text;
    options.source_name = path;
    FY_THEN(status, ferry_names_create(&options, &names, error));
    FY_THEN(status, ferry_names_get_spec(names, from, model->forms[0], to, model->forms[1],
                                         model->first_rank, spec_out, error));
    if (who != NULL) {
        FY_THEN(status, note_left_out(who, names, from, to, error));
        FY_THEN(status, note_codes(who, names, from, text, options.config_length, error));
    }
    ferry_names_destroy(names);
    free(text);
    return status;
}

/* ---- the options ---- */

bool names_has_option(int option)
{
    return option >= NAMES_OPT_NAMES && option <= NAMES_OPT_FIRST_RANK;
}

static int read_form(const char *who, int option, named_model *m)
{
    m->forms[option == NAMES_OPT_TO] = optarg;
    m->option = option == NAMES_OPT_TO ? "--to" : "--from";
    return *optarg != '\0' ? EXIT_DONE
                           : fail_usage(who,
                                        "%s takes a short form such as tp=4,pp=2, not an empty "
                                        "text; without it one rank has all",
                                        m->option);
}

int names_apply_option(const char *who, int option, named_model *m)
{
    switch (option) {
    case NAMES_OPT_NAMES:
        m->names = optarg;
        return EXIT_DONE;
    case NAMES_OPT_FIRST_RANK:
        m->option = "--first-rank";
        return parse_within(who, "--first-rank", optarg, 0, FERRY_MAX_RANKS - 1, &m->first_rank);
    default:
        return read_form(who, option, m);
    }
}

int names_check_together(const char *who, const named_model *m)
{
    return m->option == NULL || m->names != NULL ? EXIT_DONE
                                                 : fail_usage(who, "%s needs --names", m->option);
}
