/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a terminal shows of long work: seconds and bytes are given here, so that no clock counts. */
#include "work_progress.h"

#include "support/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Of the command's main file; what is tested here does not fail. In parentheses, as cmocka has a
 * macro of the name. */
int(fail)(const char *name, const char *sentence);
int(fail)(const char *name, const char *sentence)
{
    fprintf(stderr, "%s: %s\n", name, sentence);
    return 1;
}

typedef struct step {
    const char *phase;
    double      seconds;
    uint64_t    done, total;
    const char *shows; /* NULL: nothing */
} step;

/* What a call writes to stderr. */
static const char *shown(work_watch *watch, const ferry_work_progress *progress)
{
    static char text[300];
    FILE       *file = tmpfile();
    int         kept = dup(STDERR_FILENO);
    fflush(stderr);
    assert_true(file != NULL && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    bool goes_on = work_watch_show(watch, progress);
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_true(goes_on);
    return text;
}

#define MIB ((uint64_t)1 << 20)

static void test_lines(void **state)
{
    (void)state;
    static const step steps[] = {
        {"copying", 0.1, 0, 1000 * MIB, "copying: 0% of 1000.00 MiB"},
        {"copying", 0.2, 50 * MIB, 1000 * MIB, NULL}, /* too soon */
        {"copying", 1.1, 100 * MIB, 1000 * MIB, "copying: 10% of 1000.00 MiB, 0.10 GB/s, 9 s left"},
        {"copying", 1.2, 200 * MIB, 1000 * MIB, NULL},
        {"copying", 2.1, 200 * MIB, 1000 * MIB, "copying: 20% of 1000.00 MiB, 0.10 GB/s, 8 s left"},
        /* Four times as fast, which counts for three tenths: 190 MiB a second. */
        {"copying", 3.1, 600 * MIB, 1000 * MIB, "copying: 60% of 1000.00 MiB, 0.20 GB/s, 2 s left"},
        {"copying", 4.1, 1000 * MIB, 1000 * MIB, "copying: 100% of 1000.00 MiB"},
        {"syncing", 4.1, 1000 * MIB, 1000 * MIB, "syncing: 100% of 1000.00 MiB"},
        {"looking", 4.2, 0, 0, "looking"},
        /* What an earlier run has done makes no rate; minutes and hours. */
        {"copying", 5, 500 * MIB, 100000 * MIB, "copying: 0% of 97.66 GiB"},
        {"copying", 6, 600 * MIB, 100000 * MIB,
         "copying: 1% of 97.66 GiB, 0.10 GB/s, 0:16:34 left"},
    };
    work_watch watch = {.is_terminal = true};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        const step         *s        = &steps[i];
        ferry_work_progress progress = {.phase       = s->phase,
                                        .done_bytes  = s->done,
                                        .total_bytes = s->total,
                                        .seconds     = s->seconds};
        char                expected[200];
        const char         *found = shown(&watch, &progress);
        snprintf(expected, sizeof expected, "%s%s", s->shows == NULL ? "" : "\r\033[K",
                 s->shows == NULL ? "" : s->shows);
        check_at(strcmp(found, expected) == 0, "step %zu: \"%s\"", i, found);
    }
}

/* Once, at once, and also where there is no terminal; not where others print it. */
static void test_anew(void **state)
{
    (void)state;
    const ferry_work_progress progress = {.phase = "copying", .anew = "the target is another"};
    for (int quiet = 0; quiet < 2; quiet++) {
        work_watch watch = {.is_quiet = quiet != 0};
        assert_string_equal(shown(&watch, &progress),
                            quiet != 0 ? ""
                                       : "ferry reshard: note: starting anew, not where an earlier "
                                         "run ended: the target is another\n");
        assert_string_equal(shown(&watch, &progress), "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_anew)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
