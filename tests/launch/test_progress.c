/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a terminal shows of long work: seconds and bytes are given here, so that no clock counts;
 * and numbers as people read them.
 */
#include "terminal.h"
#include "units.h"
#include "work_progress.h"

#include "support/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct step {
    const char *phase;
    double seconds;
    uint64_t done, total;
    const char *shows; /* behind the bar; NULL: nothing is shown now */
} step;

#define MIB ((uint64_t)1 << 20)

static void test_lines(void **state)
{
    (void)state;
    static const step steps[] = {
        {"copying", 0.1, 0, 1000 * MIB, "0% of 1000.00 MiB"},
        {"copying", 0.2, 50 * MIB, 1000 * MIB, NULL}, /* too soon */
        {"copying", 1.1, 100 * MIB, 1000 * MIB, "10% of 1000.00 MiB, 105 MB/s, 9 s left"},
        {"copying", 1.2, 200 * MIB, 1000 * MIB, NULL},
        {"copying", 2.1, 200 * MIB, 1000 * MIB, "20% of 1000.00 MiB, 105 MB/s, 8 s left"},
        /* Four times as fast, which counts for three tenths: 190 MiB a second. */
        {"copying", 3.1, 600 * MIB, 1000 * MIB, "60% of 1000.00 MiB, 199 MB/s, 2 s left"},
        {"copying", 4.1, 1000 * MIB, 1000 * MIB, "100% of 1000.00 MiB"},
        {"syncing", 4.1, 1000 * MIB, 1000 * MIB, "100% of 1000.00 MiB"},
        {"looking", 4.2, 0, 0, ""},
        /* What an earlier run has done makes no rate; minutes and hours. */
        {"copying", 5, 500 * MIB, 100000 * MIB, "0% of 97.66 GiB"},
        {"copying", 6, 600 * MIB, 100000 * MIB, "1% of 97.66 GiB, 105 MB/s, 0:16:34 left"},
    };
    work_watch watch = {.name = "reshard"};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        const step *s = &steps[i];
        ferry_work_progress progress = {.phase = s->phase,
                                        .done_bytes = s->done,
                                        .total_bytes = s->total,
                                        .seconds = s->seconds};
        work_line line;
        bool is_shown = work_watch_take(&watch, &progress, &line);
        check_at(is_shown == (s->shows != NULL), "step %zu", i);
        if (is_shown) {
            check_at(strcmp(line.before, s->phase) == 0 && strcmp(line.behind, s->shows) == 0,
                     "step %zu: \"%s\" \"%s\"", i, line.before, line.behind);
            double done = s->total == 0 ? 0 : (double)s->done / (double)s->total;
            check_at(line.has_bar == (s->total > 0) && line.done == done, "step %zu", i);
        }
    }
}

static void test_files(void **state)
{
    (void)state;
    work_watch watch = {.name = "inspect"};
    work_line line = {.has_bar = false};
    ferry_work_progress progress = {.phase = "opening", .n_done_files = 512, .n_total_files = 2048};
    assert_true(work_watch_take(&watch, &progress, &line));
    assert_true(line.has_bar && line.done == 0.25);
    assert_string_equal(line.behind, "512 of 2,048 files");
}

/* ---- what comes to stderr, which is no terminal here ---- */

static char seen[2000];

static void show(work_watch *watch, const ferry_work_progress *progress)
{
    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);
    fflush(stderr);
    assert_true(file != NULL && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    bool goes_on = work_watch_show(watch, progress);
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(file);
    seen[fread(seen, 1, sizeof seen - 1, file)] = '\0';
    fclose(file);
    assert_true(goes_on);
}

/* Once, at once, and also where there is no terminal; not where it is in the output, or --quiet. */
static void test_notes(void **state)
{
    (void)state;
    static const struct {
        ferry_work_progress progress;
        const char *says;
    } rows[] = {
        {{.phase = "copying", .anew = "the target is different"},
         "ferry reshard: note: starting anew, not where an earlier run ended: the target is "
         "different\n"},
        {{.phase = "copying", .goes_on = true},
         "ferry reshard: note: going on where an earlier run ended; --restart begins anew\n"},
        {{.phase = "copying"}, ""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (int how = 0; how < 3; how++) {
            work_watch watch = {.name = "reshard", .is_json = how == 1};
            terminal_set_loudness(how == 2 ? LOUDNESS_QUIET : LOUDNESS_NORMAL);
            show(&watch, &rows[i].progress);
            assert_string_equal(seen, how == 0 ? rows[i].says : "");
            show(&watch, &rows[i].progress);
            assert_string_equal(seen, "");
        }
    }
    terminal_set_loudness(LOUDNESS_NORMAL);
}

/* With --verbose each phase is told when the next begins. */
static void test_phases(void **state)
{
    (void)state;
    static const ferry_work_progress told[] = {
        {.phase = "copying", .seconds = 1, .done_bytes = MIB, .total_bytes = 9 * MIB},
        {.phase = "copying", .seconds = 3, .done_bytes = 9 * MIB, .total_bytes = 9 * MIB},
        {.phase = "syncing", .seconds = 3, .done_bytes = 9 * MIB, .total_bytes = 9 * MIB},
        {.phase = "closing", .seconds = 3.5, .done_bytes = 9 * MIB, .total_bytes = 9 * MIB}};
    static const char *const says[] = {"", "",
                                       "ferry verify: copying: 8.00 MiB in 2 s, 4.19 MB/s\n",
                                       "ferry verify: syncing: 0 s\n"};
    work_watch watch = {.name = "verify"};
    terminal_set_loudness(LOUDNESS_VERBOSE);
    for (size_t i = 0; i < COUNT_OF(told); i++) {
        show(&watch, &told[i]);
        assert_string_equal(seen, says[i]);
    }
    terminal_set_loudness(LOUDNESS_NORMAL);
}

/* ---- numbers ---- */

static void test_units(void **state)
{
    (void)state;
    static const struct {
        const char *(*format)(double value, char text[UNIT_TEXT_BYTES]);
        double value;
        const char *text;
    } rows[] = {
        {format_seconds, 0, "0 s"},
        {format_seconds, 2.336e-6, "2.34 us"},
        {format_seconds, 3.73539e-5, "37.4 us"},
        {format_seconds, 4e-10, "0.4 ns"},
        {format_seconds, 9.996e-4, "1 ms"},
        {format_seconds, 0.25, "250 ms"},
        {format_seconds, 1.25, "1.25 s"},
        {format_seconds, 59.94, "59.9 s"},
        {format_seconds, 59.96, "1 min 0 s"},
        {format_seconds, 994, "16 min 34 s"},
        {format_seconds, 3599.6, "1 h 0 min"},
        {format_seconds, 11100, "3 h 5 min"},
        {format_times, 15.9905, "16x"},
        {format_times, 1.985, "1.99x"},
        {format_times, 0.75, "0.75x"},
        {format_times, 0.1, "0.1x"},
        {format_times, 3990, "3990x"},
        {format_rate, 0, "0 B/s"},
        {format_rate, 105e6, "105 MB/s"},
        {format_rate, 21.5e9, "21.5 GB/s"},
        {format_rate, 12345e9, "12345 GB/s"},
        {format_bytes, 1023, "1023 B"},
        {format_bytes, 1342177280, "1.25 GiB"},
    };
    static const struct {
        uint64_t n;
        const char *text;
    } counts[] = {{0, "0"},
                  {999, "999"},
                  {1000, "1,000"},
                  {245760, "245,760"},
                  {1234567, "1,234,567"},
                  {UINT64_MAX, "18,446,744,073,709,551,615"}};
    char text[UNIT_TEXT_BYTES];
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_at(strcmp(rows[i].format(rows[i].value, text), rows[i].text) == 0, "row %zu: %s", i,
                 text);
    }
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        assert_string_equal(format_count(counts[i].n, text), counts[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_notes), cmocka_unit_test(test_phases),
                                       cmocka_unit_test(test_units)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
