/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has set a locale in which one half is "0,5": what the library writes and reads
 * stays as it is elsewhere. The locale is made here, as few machines have one installed.
 */
#include "base/config.h"
#include "base/print.h"
#include "base/writer.h"

#include "support/small_checkpoint.h"
#include "support/spec.h"

#include <locale.h>

static bool has_comma;

static int make_locale(void **state)
{
    static const char source[] = "comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point \",\"\n"
                                 "thousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";
    if (small_begin(state) != 0) {
        return 1;
    }
    FILE *stream = fopen(small_path("comma.src"), "w");
    assert_non_null(stream);
    assert_true(fputs(source, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
    text_buffer command = {0};
    text_printf(&command, "localedef -c --no-archive -i '%s/comma.src' '%s/comma' >/dev/null 2>&1",
                small_folder, small_folder);
    int made = system(command.bytes); /* 1: with warnings, as the other categories are missing */
    text_cleanup(&command);
    has_comma = made != -1 && setenv("LOCPATH", small_folder, 1) == 0 &&
                setlocale(LC_ALL, "comma") != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
    setlocale(LC_ALL, "C");
    return 0;
}

static void need_comma(void)
{
    if (!has_comma) {
        print_message("left out: there is no localedef\n");
        skip();
    }
    assert_int_equal(setenv("LOCPATH", small_folder, 1), 0); /* a test clears the environment */
    assert_non_null(setlocale(LC_ALL, "comma"));
    char text[16];
    snprintf(text, sizeof text, "%g", 0.5);
    assert_string_equal(text, "0,5"); /* what would happen */
}

static int plain_again(void **state)
{
    (void)state;
    setlocale(LC_ALL, "C");
    return 0;
}

static const char spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[1000003],'dtype':'u8'}],"
    "'cluster':{'ranks_per_node':2,'rank_gbytes_per_s':2.5,'node_gbytes_per_s':1.25,"
    "'latency_us':1.5},'source':{'mesh':[['x',2]],'rules':[{'match':'*'}]},"
    "'destination':{'mesh':[['x',3]],'first_rank':2,'rules':[{'match':'*','shard':["
    "{'dim':0,'axis':'x'}]}]}}";

/* A plan and its schedule, read from a spec and printed. */
static text_buffer print_all(void)
{
    ferry_error error;
    ferry_plan *plan = plan_of(spec, NULL);
    ferry_schedule *schedule = NULL;
    text_buffer printed = print_plan(plan);
    must(ferry_schedule_create_for_plan(plan, NULL, &schedule, &error), &error);
    must(ferry_schedule_write_json(schedule, plan, NULL, text_write, &printed, &error), &error);
    ferry_schedule_destroy(schedule);
    ferry_plan_destroy(plan);
    return printed;
}

static void test_plans(void **state)
{
    (void)state;
    text_buffer plain = print_all();
    assert_non_null(memmem(plain.bytes, plain.used, "\"seconds\":0.", 12));
    need_comma();
    text_buffer other = print_all();
    assert_int_equal(plain.used, other.used);
    assert_memory_equal(plain.bytes, other.bytes, plain.used);
    text_cleanup(&plain);
    text_cleanup(&other);
}

static void test_variables(void **state)
{
    (void)state;
    need_comma();
    ferry_error error;
    clearenv();
    setenv("FERRY_DEADLINE", "0.5", 1);
    must(ferry_config_check(&error), &error);
    assert_true(fy_config_seconds("FERRY_DEADLINE", 7) == 0.5);
    setenv("FERRY_DEADLINE", "2.5e1", 1);
    assert_true(fy_config_seconds("FERRY_DEADLINE", 7) == 25);
    setenv("FERRY_DEADLINE", "0,5", 1);
    assert_int_equal(ferry_config_check(&error), FERRY_ERR_INVALID_INPUT);
    assert_true(fy_config_seconds("FERRY_DEADLINE", 7) == 7);
}

static void test_sentences(void **state)
{
    (void)state;
    need_comma();
    ferry_error error;
    ferry_cluster *cluster = NULL;
    ferry_cluster_options options = FERRY_CLUSTER_OPTIONS_INIT;
    options.ranks_per_node = 1;
    options.rank_bytes_per_s = options.node_bytes_per_s = 2.5;
    options.latency_s = -0.25;
    assert_int_equal(ferry_cluster_create(&options, &cluster, &error), FERRY_ERR_INVALID_INPUT);
    check_says("latency", "latency of -0.25 s", &error);
    char text[32];
    fy_print(text, sizeof text, "%.2f %.3g", 0.5, 1.25);
    assert_string_equal(text, "0.50 1.25");
    assert_true(localeconv()->decimal_point[0] == ','); /* the program's own stays */
}

/* Doubles come back as they were, the ends of their range too. */
static void test_doubles(void **state)
{
    (void)state;
    static const double values[] = {0.1,    1.0 / 3,   2.7306666666666667e-05,
                                    5e-324, 1.797e308, 123456.5};
    need_comma();
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        ferry_error error;
        fy_writer writer;
        text_buffer printed = {0};
        fy_writer_init(&writer, text_write, &printed);
        fy_write_double(&writer, values[i]);
        must(fy_writer_finish(&writer, &error), &error);
        text_append(&printed, "", 1);
        assert_null(strchr(printed.bytes, ','));
        char *end;
        assert_true(fy_read_double(printed.bytes, &end) == values[i]);
        assert_true(*end == '\0');
        text_cleanup(&printed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_plans, plain_again),
        cmocka_unit_test_teardown(test_variables, plain_again),
        cmocka_unit_test_teardown(test_sentences, plain_again),
        cmocka_unit_test_teardown(test_doubles, plain_again),
    };
    return cmocka_run_group_tests(tests, make_locale, small_end);
}
