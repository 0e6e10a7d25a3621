/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TESTS_PROVE_CASE_H
#define FY_TESTS_PROVE_CASE_H

/* What the tests of the prover share; a test program includes it once, behind cmocka. */

#include "prove/prove.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Every case is proven twice, element by element and by cells, and both must say the same. The
 * files are written here with ' for ", to be readable.
 */

static char folder[] = "/tmp/ferry-test-prove-XXXXXX";
static const char *const files[] = {"spec.json", "plan.json", "model.safetensors",
                                    "part.safetensors", "model.safetensors.index.json"};

static const char *path_of(const char *name)
{
    static char paths[4][200];
    static size_t next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const char *bytes, size_t n)
{
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void write_json(const char *name, const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c != '\0'; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    write_bytes(name, copy, strlen(copy));
    free(copy);
}

/* The base, with another text in the place of one of its own. */
static inline void write_replaced(const char *file, const char *base, const char *find,
                                  const char *replace)
{
    char text[8192];
    const char *place = strstr(base, find);
    assert_non_null(place);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(place - base), base, replace,
             place + strlen(find));
    write_json(file, text);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        unlink(path_of(files[i]));
    }
    return rmdir(folder);
}

static ferry_status prove(uint64_t most_elements, ferry_proof *proof, ferry_error *error)
{
    error->message[0] = '\0';
    return fy_proof_run(path_of("spec.json"), path_of("plan.json"), most_elements, proof, NULL,
                        error);
}

/* Both ways agree, and a failure says each of the words (separated by |). */
static void expect(const char *name, ferry_status wanted, const char *words)
{
    for (int i = 0; i < 2; i++) {
        ferry_error error;
        ferry_status status = prove(i == 0 ? FY_PROOF_SMALL_SHARD : 0, NULL, &error);
        if (status != wanted) {
            fail_msg("%s, way %d: %s: %s", name, i, ferry_status_name(status), error.message);
        }
        char all[200];
        snprintf(all, sizeof all, "%s", words);
        for (char *rest = all, *word; (word = strsep(&rest, "|")) != NULL;) {
            if (strstr(error.message, word) == NULL) {
                fail_msg("%s, way %d: no \"%s\" in: %s", name, i, word, error.message);
            }
        }
    }
}

#endif
