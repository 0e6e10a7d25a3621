/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What no tensor of a spec follows, and ranks without a part in its plan: by what is worked out by
 * hand of each spec. */
#include "support/check.h"
#include "support/spec.h"

#include <ferry/plan.h>
#include <ferry/spec.h>

#include <stdio.h>

static ferry_error error;

#define TENSORS                                                                                    \
    "{'format':'ferry.spec/1','tensors':[{'name':'l.{0}.w','count':[3],'shape':[8,4],"             \
    "'dtype':'bf16'},{'name':'e','shape':[8],'dtype':'f32'},"                                      \
    "{'name':'tied','shape':[8],'dtype':'f32','source':'e'},"                                      \
    "{'name':'only','shape':[8],'dtype':'f32','only':'source'}],"
#define ALL "'rules':[{'match':'*'}]}"
#define SOURCE TENSORS "'source':"
#define TO_ONE ",'destination':{'mesh':[]," ALL "}"

typedef struct row {
    const char *name;
    const char *spec;
    const char *unused; /* lines of what is visited */
    const char *idle;
} row;

static const row rows[] = {
    {"all is used",
     SOURCE "{'mesh':[['tp',2]],'rules':[{'match':'l.*','shard':[{'dim':0,'axis':'tp'}]},"
            "{'match':'?'},{'match':'only'}]}" TO_ONE,
     "", ""},
    {"a pattern of nothing, at both sides",
     SOURCE "{'mesh':[],'rules':[{'match':'x*'},{'match':'*'}]},'destination':{'mesh':[],'rules':["
            "{'match':'l.0.w'},{'match':'l.3.w'},{'match':'*'}]}}",
     "source rule 0 x*\ndestination rule 1 l.3.w\n", ""},
    {"a rule for any name may find nothing",
     SOURCE "{'mesh':[],'rules':[{'match':'l.*'},{'match':'e'},{'match':'only'},{'match':'*'},"
            "{'match':'**'}]}" TO_ONE,
     "", ""},
    {"rules behind others",
     SOURCE "{'mesh':[],'rules':[{'match':'l.*'},{'match':'l.1.w'},{'match':'*.w'},{'match':'*'},"
            "{'match':'e'}]}" TO_ONE,
     "source rule 1 l.1.w hidden\nsource rule 2 *.w hidden\nsource rule 4 e hidden\n", ""},
    {"tensors that the other side has",
     SOURCE "{'mesh':[],'rules':[{'match':'tied'},{'match':'*'}]},'destination':{'mesh':[],"
            "'rules':[{'match':'only'},{'match':'*'}]}}",
     "source rule 0 tied\ndestination rule 0 only\n", ""},
    {"a rule that skips",
     SOURCE "{'mesh':[],'rules':[{'match':'only','skip':true},{'match':'*'}]}" TO_ONE, "", ""},
    {"a stage of nothing, and one of tensors that are skipped",
     SOURCE "{'mesh':[['pp',2]],'stages':[{'match':'layer.{}.w','count':3,'axis':'pp'}]," ALL
            ",'destination':{'mesh':[['pp',2]],'stages':[{'match':'{}.only','count':3,'axis':'pp'},"
            "{'match':'l.{}.w','count':3,'axis':'pp'}],'rules':[{'match':'l.*','skip':true},"
            "{'match':'*'}]}}",
     "source stage 0 layer.{}.w\ndestination stage 0 {}.only\ndestination stage 1 l.{}.w\n", ""},
    {"coordinates without a layer, but for those that say so",
     SOURCE "{'mesh':[['pp',5]],'stages':[{'match':'l.{}.w','count':3,'axis':'pp'}]," ALL
            ",'destination':{'mesh':[['pp',4]],'stages':[{'match':'l.{}.w','sizes':[1,0,2,9],"
            "'axis':'pp'}]," ALL "}",
     "source stage 0 l.{}.w pp 2 1\nsource stage 0 l.{}.w pp 4 1\n"
     "destination stage 0 l.{}.w pp 3 1\n",
     ""},
    {"neighbours are one",
     SOURCE "{'mesh':[['pp',4]],'stages':[{'match':'l.{}.w','count':12,"
            "'axis':'pp'}]," ALL TO_ONE,
     "source stage 0 l.{}.w pp 1 3\n", ""},
    {"a side in boxes says no rules",
     "{'format':'ferry.spec/1','tensors':[{'name':'e','shape':[8],'dtype':'f32'}],'source':"
     "{'mesh':[],'rules':[{'match':'f'},{'match':'*'}]},'destination':{'boxes':[{'rank':3,"
     "'parameter':'p','elements':8,'holds':[{'tensor':'e','begin':[0],'shape':[8],'offset':0,"
     "'strides':[1]}]},{'rank':5,'parameter':'q','elements':2,'dtype':'u8','holds':[],"
     "'fill':[{'offset':0,'shape':[2],'strides':[1]}]}]}}",
     "source rule 0 f\n", "1 2, 4 1, "},
    {"nodes that no rank is on",
     SOURCE "{'mesh':[['tp',2]]," ALL
            ",'destination':{'mesh':[],'ranks':[4],'rules':[{'match':'*'}]},"
            "'cluster':{'ranks_per_node':2,'rank_gbytes_per_s':1,'node_gbytes_per_s':2,'nodes':"
            "{'2':{'rank_gbytes_per_s':2},'3':{'rank_gbytes_per_s':2},'0':{'node_gbytes_per_s':1},"
            "'70':{'node_gbytes_per_s':1}}}}",
     "node 3\nnode 70\n", "2 2, "},
    {"a gap between the sides",
     SOURCE "{'mesh':[['tp',2]]," ALL ",'destination':{'mesh':[],'first_rank':5," ALL "}", "",
     "2 3, "},
    {"ranks of a mesh on which nothing is",
     SOURCE "{'mesh':[['pp',3],['tp',2]],'rules':[{'match':'*','on':{'pp':1}}]}" TO_ONE, "",
     "1 1, 4 2, "},
};

static ferry_status write_unused(void *context, const ferry_unused *unused)
{
    char *text = context;
    size_t used = strlen(text);
    if (unused->is_node) {
        snprintf(text + used, 1000 - used, "node %zu\n", unused->index);
        return FERRY_OK;
    }
    snprintf(text + used, 1000 - used, "%s %s %zu %s%s",
             unused->is_destination ? "destination" : "source", unused->is_stage ? "stage" : "rule",
             unused->index, unused->match, unused->is_hidden ? " hidden" : "");
    used = strlen(text);
    if (unused->axis != NULL) {
        snprintf(text + used, 1000 - used, " %s %u %u", unused->axis, unused->first_coordinate,
                 unused->n_coordinates);
    }
    strcat(text, "\n");
    return FERRY_OK;
}

static ferry_status write_idle(void *context, uint32_t first, uint32_t n_ranks)
{
    char *text = context;
    size_t used = strlen(text);
    snprintf(text + used, 1000 - used, "%u %u, ", first, n_ranks);
    return FERRY_OK;
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const row *r = &rows[i];
        char unused[1000] = "", idle[1000] = "";
        ferry_spec *spec = NULL;
        ferry_plan *plan = NULL;
        check_status(r->name, FERRY_OK, try_spec(r->spec, &spec, &error), &error);
        must(ferry_spec_visit_unused(spec, write_unused, unused, &error), &error);
        check_status(r->name, FERRY_OK, ferry_plan_create(spec, NULL, &plan, &error), &error);
        must(ferry_plan_visit_idle(plan, write_idle, idle, &error), &error);
        check_at(strcmp(unused, r->unused) == 0, "%s: visited\n%s", r->name, unused);
        check_at(strcmp(idle, r->idle) == 0, "%s: idle are %s", r->name, idle);
        ferry_plan_destroy(plan);
        ferry_spec_destroy(spec);
    }
}

/* Lost ranks have no part, and that is no slip. */
static void test_lost(void **state)
{
    static const uint32_t lost[] = {0, 2};
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    char idle[1000] = "";
    (void)state;
    options.lost_ranks = lost;
    options.n_lost_ranks = 2;
    ferry_plan *plan = plan_of(SOURCE "{'mesh':[['dp',2]]," ALL
                                      ",'destination':{'mesh':[['dp',2]],'first_rank':4," ALL "}",
                               &options);
    must(ferry_plan_visit_idle(plan, write_idle, idle, &error), &error);
    assert_string_equal(idle, "3 1, ");
    ferry_plan_destroy(plan);
}

static ferry_status stop_unused(void *context, const ferry_unused *unused)
{
    (void)unused;
    ++*(int *)context;
    return FERRY_ERR_STOPPED;
}

static ferry_status stop_idle(void *context, uint32_t first, uint32_t n_ranks)
{
    (void)first;
    (void)n_ranks;
    ++*(int *)context;
    return FERRY_ERR_STOPPED;
}

static void test_visits_end(void **state)
{
    int n = 0;
    ferry_spec *spec = NULL;
    (void)state;
    must(try_spec(SOURCE "{'mesh':[['tp',2]],'rules':[{'match':'x'},{'match':'y'},{'match':'*'}]},"
                         "'destination':{'mesh':[],'ranks':[7]," ALL "}",
                  &spec, &error),
         &error);
    ferry_plan *plan = NULL;
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    assert_int_equal(ferry_spec_visit_unused(spec, stop_unused, &n, &error), FERRY_ERR_STOPPED);
    assert_int_equal(n, 1);
    assert_int_equal(ferry_plan_visit_idle(plan, stop_idle, &n, &error), FERRY_ERR_STOPPED);
    assert_int_equal(n, 2);
    assert_int_equal(ferry_spec_visit_unused(NULL, stop_unused, &n, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_spec_visit_unused(spec, NULL, &n, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_visit_idle(NULL, stop_idle, &n, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_visit_idle(plan, NULL, &n, &error), FERRY_ERR_MISUSE);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_visits_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
