/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Specs and plans of specs when memory runs out. */
#include "steps.h"

#include "base/alloc.h"

#include "support/spec.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

/* Uses everything that a spec can say. */
static const char rich[] =
    "{'format':'ferry.spec/1','tensors':["
    "{'name':'embed','shape':[40,6],'dtype':'bf16'},"
    "{'name':'l.{0}.q','count':[4],'shape':[24,6],'dtype':'bf16'},"
    "{'name':'l.{0}.up','count':[4],'shape':[24,6],'dtype':'f32'},"
    "{'name':'l.{0}.norm','count':[4],'shape':[6],'dtype':'f32'},"
    "{'name':'packed','shape':[24,4],'dtype':'u8'},{'name':'ragged','shape':[13],'dtype':'u8'},"
    "{'name':'flat','shape':[8,5],'dtype':'f32'},{'name':'cyclic','shape':[24],'dtype':'bytes:3'},"
    "{'name':'nested','shape':[10],'dtype':'u8'},{'name':'scalar','shape':[],'dtype':'i64'},"
    "{'name':'head','shape':[40,6],'dtype':'bf16','source':'embed'},"
    "{'name':'qup','shape':[48,6],'dtype':'bf16','source':["
    "{'tensor':'l.0.q','begin':[0,0],'shape':[24,6],'at':[0,0]},"
    "{'tensor':'l.1.q','begin':[0,0],'shape':[24,6],'at':[24,0]}]},"
    "{'name':'turned.{0}','count':[2],'shape':[24,6],'dtype':'bf16','source':["
    "{'tensor':'l.{0}.q','begin':[0,0],'shape':[24,4],'at':[0,2]},"
    "{'tensor':'l.{0}.q','begin':[0,4],'shape':[24,2],'at':[0,0]}]},"
    "{'name':'bent','shape':[4,4],'dtype':'u8','source':["
    "{'tensor':'packed','begin':[0,0],'shape':[2,4],'at':[0,0]},"
    "{'tensor':'packed','begin':[2,0],'shape':[2,2],'at':[2,0]},"
    "{'tensor':'packed','begin':[10,0],'shape':[2,2],'at':[2,2]}]},"
    "{'name':'bent.again','shape':[4,4],'dtype':'u8','source':'bent'},"
    "{'name':'twice','shape':[2,48,6],'dtype':'bf16','source':["
    "{'tensor':'qup','begin':[0,0],'shape':[48,6],'at':[1,0,0]},"
    "{'tensor':'qup','begin':[0,0],'shape':[48,6],'at':[0,0,0]}]}],"
    "'source':{'mesh':[['pp',2],['dp',2],['tp',2]],"
    "'stages':[{'match':'l.{}.*','count':4,'axis':'pp'}],'rules':["
    "{'match':'l.*.q','shard':[{'dim':0,'axis':'tp','parts':1}]},"
    "{'match':'l.*.up','shard':[{'dim':0,'axis':'tp','stride':2},{'dim':1,'axis':'dp'}]},"
    "{'match':'packed','on':{'pp':-1},'shard':[{'dim':0,'axis':'tp','blocks':[8,[12,1],4]}]},"
    "{'match':'ragged','on':{'pp':[0]},'shard':[{'dim':0,'axis':['dp','tp'],'sizes':[5,0,7,1]}]},"
    "{'match':'flat','flat':{'axis':'dp','sizes':[9,11]},'shard':[{'dim':0,'axis':'tp'}]},"
    "{'match':'cyclic','shard':[{'dim':0,'axis':'tp','cycle':3}]},"
    "{'match':'nested','shard':[{'dim':0,'axis':['pp','tp'],'nested':true}]},{'match':'*'}]},"
    "'destination':{'mesh':[['dp',3],['tp',3]],'ranks':[4,5,6,7,8,9,10,11,0],'rules':["
    "{'match':'l.0.norm','skip':true},{'match':'flat','flat':{'axis':'tp'}},"
    "{'match':'packed','shard':[{'dim':0,'axis':'tp','blocks':[8,[16,1]]}]},"
    "{'match':'scalar'},{'match':'l.*.norm','on':{'dp':1}},"
    "{'match':'twice','shard':[{'dim':0,'axis':'tp'}],'dtype':'f8e4m3','cast':'round','add':1},"
    "{'match':'l.*.up','shard':[{'dim':0,'axis':'tp'}],"
    "'quantize':{'format':'f8e4m3','block':[2,3],'scale':'*.scale'}},"
    "{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},"
    "'cluster':{'ranks_per_node':4,'rank_gbytes_per_s':40,'node_gbytes_per_s':100.5,'latency_us':5,"
    "'nodes':{'1':{'rank_gbytes_per_s':20},'2':{'node_gbytes_per_s':30}}}}";

/* A safetensors file of two tensors, with the eight bytes of its length in front. */
static const char header[] = "{'w.0':{'dtype':'F32','shape':[4,2],'data_offsets':[0,32]},"
                             "'w.1':{'dtype':'BF16','shape':[8],'data_offsets':[32,48]}}";
static const char modelled[] =
    "{'format':'ferry.spec/1','model':'model.safetensors',"
    "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},"
    "'destination':{'mesh':[['tp',4]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]}}";

/* What the steps work on. Texts and files are made before anything fails. */
typedef struct scene {
    char folder[64];
    char spec_path[128], model_spec_path[128], plan_path[128], saved_path[128], out_path[128];
    char *text, *map_text;
    ferry_spec *map_spec;
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_plan_options options;
    /* What a step makes: it must be untouched by failures, and is given back after success. */
    ferry_spec *made_spec;
    ferry_plan *made_plan;
    ferry_map *map, *inverse; /* of the steps' own; a step makes made_map */
    ferry_map *made_map;
    uint64_t n_moves;
    text_buffer printed;
    bool is_printed; /* to the end */
    ferry_visit_statistics visited;
    ferry_proof proof;
} scene;

static void put_file(const char *path, const char *prefix, size_t n_prefix, const char *quoted)
{
    char *text = strdup(quoted);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    unquote(text);
    fwrite(prefix, 1, n_prefix, stream);
    fwrite(text, 1, strlen(text), stream);
    if (n_prefix > 0) {
        static const char data[48];
        fwrite(data, 1, sizeof data, stream);
    }
    fclose(stream);
    free(text);
}

static void make_paths(scene *s)
{
    char model[128];
    snprintf(s->folder, sizeof s->folder, "/tmp/ferry-fault-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->spec_path, sizeof s->spec_path, "%s/spec.json", s->folder);
    snprintf(s->model_spec_path, sizeof s->model_spec_path, "%s/model-spec.json", s->folder);
    snprintf(s->plan_path, sizeof s->plan_path, "%s/plan.json", s->folder);
    snprintf(s->saved_path, sizeof s->saved_path, "%s/saved.plan", s->folder);
    snprintf(s->out_path, sizeof s->out_path, "%s/out.plan", s->folder);
    snprintf(model, sizeof model, "%s/model.safetensors", s->folder);
    char length[8] = {(char)strlen(header)};
    put_file(model, length, sizeof length, header);
    put_file(s->spec_path, "", 0, rich);
    put_file(s->model_spec_path, "", 0, modelled);
}

static const char map_text[] =
    "{'format':'ferry.map/1','sources':[{'name':'s.{0}.{1}','count':[2,3],'shape':[4,4],"
    "'dtype':'u8'},{'name':'whole','shape':[40,6],'dtype':'bf16'}],'targets':["
    "{'name':'t.{0+1}','count':[2],'shape':[3,4,4],'dtype':'u8','source':["
    "{'tensor':'s.{0}.{1}','begin':[0,0],'shape':[2,4],'at':[0,0,0],"
    "'repeat':[{'count':3,'at':[1,0,0]}]},"
    "{'tensor':'s.{0}.{1}','begin':[2,0],'shape':[2,2],'at':[0,2,2],"
    "'repeat':[{'count':3,'at':[1,0,0]}]},"
    "{'tensor':'s.{0}.{1}','begin':[2,2],'shape':[2,2],'at':[0,2,0],"
    "'repeat':[{'count':3,'at':[1,0,0]}]}]},"
    "{'name':'embed','shape':[40,6],'dtype':'bf16','source':'whole'}]}";

/* A spec of which one tensor is a target. */
static void make_maps(scene *s)
{
    ferry_error error;
    s->map_text = strdup(map_text);
    unquote(s->map_text);
    must(ferry_map_parse(s->map_text, strlen(s->map_text), "map", &s->map, &error), &error);
    must(ferry_map_invert(s->map, &s->inverse, &error), &error);
    must(try_spec("{'format':'ferry.spec/1','tensors':[{'name':'t.{0}','count':[3],"
                  "'shape':[3,4,4],'dtype':'u8'}],'source':{'mesh':[['tp',2]],'rules':["
                  "{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},'destination':{'mesh':[],"
                  "'rules':[{'match':'*'}]}}",
                  &s->map_spec, &error),
         &error);
}

static int make_scene(void **state)
{
    static scene s;
    ferry_error error;
    s = (scene){.options = FERRY_PLAN_OPTIONS_INIT, .visited = FERRY_VISIT_STATISTICS_INIT};
    make_paths(&s);
    s.text = strdup(rich);
    unquote(s.text);
    must(ferry_spec_parse(s.text, strlen(s.text), "spec", &s.spec, &error), &error);
    must(ferry_plan_create(s.spec, NULL, &s.plan, &error), &error);
    must(ferry_plan_save(s.plan, s.saved_path, &error), &error);
    make_maps(&s);
    text_buffer printed = print_plan(s.plan);
    FILE *stream = fopen(s.plan_path, "wb");
    fwrite(printed.bytes, 1, printed.used, stream);
    fclose(stream);
    text_cleanup(&printed);
    *state = &s;
    return 0;
}

static int remove_scene(void **state)
{
    scene *s = *state;
    char command[100];
    ferry_plan_destroy(s->plan);
    ferry_spec_destroy(s->spec);
    ferry_map_destroy(s->map);
    ferry_map_destroy(s->inverse);
    ferry_spec_destroy(s->map_spec);
    free(s->map_text);
    free(s->text);
    snprintf(command, sizeof command, "rm -r %s", s->folder);
    return system(command);
}

static ferry_status parse_spec(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_spec_parse(s->text, strlen(s->text), "spec", &s->made_spec, error);
}

static ferry_status parse_map(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_map_parse(s->map_text, strlen(s->map_text), "map", &s->made_map, error);
}

static ferry_status compose_maps(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_map_compose(s->map, s->inverse, &s->made_map, error);
}

static ferry_status invert_map(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_map_invert(s->map, &s->made_map, error);
}

static ferry_status apply_map(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_map_apply(s->map, s->map_spec, &s->made_spec, error);
}

static ferry_status load_spec(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_spec_load(s->spec_path, &s->made_spec, error);
}

static ferry_status load_model_spec(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_spec_load(s->model_spec_path, &s->made_spec, error);
}

static ferry_status create_balanced(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_create(s->spec, NULL, &s->made_plan, error);
}

static ferry_status create_seed(void *context, ferry_error *error)
{
    scene *s = context;
    s->options.replica = FERRY_REPLICA_SEED;
    return ferry_plan_create(s->spec, &s->options, &s->made_plan, error);
}

static ferry_status create_subset(void *context, ferry_error *error)
{
    scene *s = context;
    s->options.subset = "l.*";
    return ferry_plan_create(s->spec, &s->options, &s->made_plan, error);
}

static ferry_status count_move(void *context, const ferry_move *move)
{
    scene *s = context;
    s->n_moves += move->bytes > 0;
    return FERRY_OK;
}

static ferry_status visit_all(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_visit(s->plan, FERRY_ALL_RANKS, count_move, s, &s->visited, error);
}

static ferry_status visit_receiver(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_visit(s->plan, 9, count_move, s, &s->visited, error);
}

static ferry_status visit_sender(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_visit(s->plan, 0, count_move, s, &s->visited, error);
}

static int collect(void *context, const char *bytes, size_t n_bytes)
{
    int64_t countdown = failing_countdown; /* the test's own memory does not fail */
    failing_countdown = -1;
    text_append(context, bytes, n_bytes);
    failing_countdown = countdown;
    return 0;
}

static ferry_status write_json(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_status status = ferry_plan_write_json(s->plan, NULL, collect, &s->printed, error);
    s->is_printed = status == FERRY_OK;
    return status;
}

static ferry_status write_map(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_status status = ferry_map_write_json(s->map, collect, &s->printed, error);
    s->is_printed = status == FERRY_OK;
    return status;
}

static ferry_status save(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_save(s->plan, s->out_path, error);
}

static ferry_status load(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_load(s->saved_path, &s->made_plan, error);
}

static ferry_status prove(void *context, ferry_error *error)
{
    scene *s = context;
    s->proof = (ferry_proof)FERRY_PROOF_INIT;
    return ferry_plan_prove(s->spec_path, s->plan_path, &s->proof, error);
}

static void describe_plan(const ferry_plan *plan, text_buffer *out)
{
    text_buffer printed = print_plan(plan);
    text_append(out, printed.bytes, printed.used);
    text_cleanup(&printed);
}

static void describe_file(const char *path, text_buffer *out)
{
    char part[4096];
    FILE *stream = fopen(path, "rb");
    size_t n = 0;
    while (stream != NULL && (n = fread(part, 1, sizeof part, stream)) > 0) {
        text_append(out, part, n);
    }
    if (stream != NULL) {
        fclose(stream);
    }
}

/* A spec is what its plan is, and the text that a saved plan keeps. */
static void describe_spec(const scene *s, text_buffer *out)
{
    ferry_plan *plan = NULL;
    ferry_error error;
    must(ferry_plan_create(s->made_spec, NULL, &plan, &error), &error);
    must(ferry_plan_save(plan, s->out_path, &error), &error);
    describe_file(s->out_path, out);
    describe_plan(plan, out);
    unlink(s->out_path);
    ferry_plan_destroy(plan);
}

/* A visit that fails has handed over moves: that is no output. */
static void describe_scene(const void *context, text_buffer *out)
{
    const scene *s = context;
    if (s->made_spec != NULL) {
        describe_spec(s, out);
    }
    if (s->made_plan != NULL) {
        describe_plan(s->made_plan, out);
    }
    if (s->made_map != NULL) {
        ferry_error error;
        must(ferry_map_write_json(s->made_map, text_write, out, &error), &error);
    }
    describe_file(s->out_path, out);
    text_printf(out, "proven %llu visited %llu\n", (unsigned long long)s->proof.n_moves,
                (unsigned long long)s->visited.n_moves_visited);
    if (s->is_printed) {
        text_append(out, s->printed.bytes, s->printed.used);
    }
}

static void give_back(void *context)
{
    scene *s = context;
    ferry_spec_destroy(s->made_spec);
    ferry_plan_destroy(s->made_plan);
    ferry_map_destroy(s->made_map);
    unlink(s->out_path);
    s->made_spec = NULL;
    s->made_plan = NULL;
    s->made_map = NULL;
    s->options = (ferry_plan_options)FERRY_PLAN_OPTIONS_INIT;
    s->proof = (ferry_proof)FERRY_PROOF_INIT;
    s->visited = (ferry_visit_statistics)FERRY_VISIT_STATISTICS_INIT;
    s->n_moves = 0;
    s->is_printed = false;
    text_cleanup(&s->printed);
}

static const step steps[] = {
    {"parse a spec", parse_spec, describe_scene, give_back, FERRY_OK},
    {"load a spec", load_spec, describe_scene, give_back, FERRY_OK},
    {"load a spec with a model", load_model_spec, describe_scene, give_back, FERRY_OK},
    {"plan, balanced", create_balanced, describe_scene, give_back, FERRY_OK},
    {"plan, seed", create_seed, describe_scene, give_back, FERRY_OK},
    {"plan a subset", create_subset, describe_scene, give_back, FERRY_OK},
    {"visit all", visit_all, describe_scene, give_back, FERRY_OK},
    {"visit a receiver", visit_receiver, describe_scene, give_back, FERRY_OK},
    {"visit a sender", visit_sender, describe_scene, give_back, FERRY_OK},
    {"write JSON", write_json, describe_scene, give_back, FERRY_OK},
    {"save", save, describe_scene, give_back, FERRY_OK},
    {"load", load, describe_scene, give_back, FERRY_OK},
    {"prove", prove, describe_scene, give_back, FERRY_OK},
    {"parse a map", parse_map, describe_scene, give_back, FERRY_OK},
    {"compose maps", compose_maps, describe_scene, give_back, FERRY_OK},
    {"invert a map", invert_map, describe_scene, give_back, FERRY_OK},
    {"apply a map", apply_map, describe_scene, give_back, FERRY_OK},
    {"write a map", write_map, describe_scene, give_back, FERRY_OK},
};

/* The output file may not stay behind under its temporary name either. */
static size_t count_files(const scene *s)
{
    size_t n = 0;
    DIR *folder = opendir(s->folder);
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        n += entry->d_name[0] != '.';
    }
    closedir(folder);
    return n;
}

static void test_steps(void **state)
{
    scene *s = *state;
    size_t n_files = count_files(s);
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        run_step(&steps[i], s);
        check_row(steps[i].name, count_files(s) == n_files);
    }
}

/* The library's own switch, which other programs can use without linking like this one. */
static void test_own_switch(void **state)
{
    scene *s = *state;
    for (int64_t n = 0;; n++) {
        ferry_error error = {""};
        ferry_plan *plan = NULL;
        fy_alloc_fail_after(n);
        ferry_status status = ferry_plan_create(s->spec, NULL, &plan, &error);
        fy_alloc_fail_after(-1);
        if (status == FERRY_OK) {
            assert_true(n > 50);
            ferry_plan_destroy(plan);
            return;
        }
        check_status("plan", FERRY_ERR_NO_MEMORY, status, &error);
        check_row("plan", plan == NULL && strlen(error.message) > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_own_switch),
    };
    failing_init();
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
