/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A short form, a line of names of tensors with their shapes ("NAME ROWS COLUMNS;..."), and
 * config.json: a side that is a side, or a sentence.
 */
#include "fuzz.h"

#include "base/alloc.h"
#include "base/json.h"
#include "checkpoint/short_form.h"

enum { MOST_MODEL_TENSORS = 32, MOST_LINE = 2048 };

typedef struct model {
    char text[MOST_LINE];
    uint64_t shapes[MOST_MODEL_TENSORS][3];
    fy_model_tensor tensors[MOST_MODEL_TENSORS];
    size_t n;
} model;

static void read_model(const char *line, size_t length, model *m)
{
    char *save = NULL;
    length = length < sizeof m->text - 1 ? length : sizeof m->text - 1;
    memcpy(m->text, line, length);
    m->text[length] = '\0';
    m->n = 0;
    for (char *one = strtok_r(m->text, ";", &save); one != NULL && m->n < MOST_MODEL_TENSORS;
         one = strtok_r(NULL, ";", &save)) {
        uint64_t *shape = m->shapes[m->n];
        uint32_t n_dims = 0;
        char *at = strchr(one, ' ');
        while (at != NULL && n_dims < 3) {
            *at = '\0';
            shape[n_dims++] = strtoull(at + 1, &at, 10) % 100000 + 1;
            at = *at == ' ' ? at : NULL;
        }
        if (one[0] != '\0') {
            m->tensors[m->n++] = (fy_model_tensor){.name = one, .n_dims = n_dims, .shape = shape};
        }
    }
}

static const uint8_t *line_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    return newline == NULL ? end : newline;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static model m;
    char text[256];
    ferry_error error = {""};
    json_t *side = NULL, *replicated = NULL;
    const uint8_t *end = data + size;
    const uint8_t *first = line_end(data, end);
    size_t length = (size_t)(first - data);
    if (length >= sizeof text || first == end) {
        return 0;
    }
    memcpy(text, data, length);
    text[length] = '\0';
    const uint8_t *second = line_end(first + 1, end);
    json_t *names = json_stringn((const char *)first + 1, (size_t)(second - first - 1));
    json_decref(names);
    if (names == NULL) {
        return 0; /* names come from JSON, which is UTF-8 */
    }
    read_model((const char *)first + 1, (size_t)(second - first - 1), &m);
    json_t *config = second == end
                         ? NULL
                         : json_loadb((const char *)second + 1, (size_t)(end - second - 1),
                                      JSON_REJECT_DUPLICATES, NULL);
    bool is_one = fy_short_form_is(text);
    ferry_status status =
        fy_short_form_make(text, m.tensors, m.n, config, "the model", &side, &replicated, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        promise(is_one && json_is_object(side) && json_is_array(replicated));
        promise(json_is_array(json_object_get(side, "mesh")));
        promise(json_array_size(replicated) <= m.n);
        json_decref(side);
        json_decref(replicated);
    }
    json_decref(config);
    return 0;
}
