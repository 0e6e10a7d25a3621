/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that are opened, resharded and verified when memory runs out. */
#include "steps.h"

#include "support/small_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A model of two layers, so small that names are most of it. */
enum { HIDDEN = 4, ROWS = 8, N_LAYERS = 2 };

typedef struct weight {
    const char *name; /* behind "model.layers.N." */
    uint64_t rows, columns;
} weight;

static const weight weights[] = {
    {"self_attn.q_proj.weight", 8, HIDDEN}, {"self_attn.k_proj.weight", 4, HIDDEN},
    {"self_attn.v_proj.weight", 4, HIDDEN}, {"self_attn.o_proj.weight", HIDDEN, 8},
    {"mlp.gate_proj.weight", ROWS, HIDDEN}, {"mlp.down_proj.weight", HIDDEN, ROWS},
    {"input_layernorm.weight", HIDDEN, 0},
};

static const char config[] = "{'architectures':['LlamaForCausalLM'],'model_type':'llama',"
                             "'num_hidden_layers':2,'hidden_size':4,'num_attention_heads':4,"
                             "'num_key_value_heads':2,'intermediate_size':8,'head_dim':2,"
                             "'vocab_size':8}";

/* New tensors from boxes of others, and a subset that only they fit. */
static const char fused[] =
    "{'mesh':[['tp',2]],'rules':[{'match':'*.qkv','shard':[{'dim':0,'axis':'tp',"
    "'blocks':[8,4,4]}]},{'match':'*'}],'tensors':["
    "{'name':'model.embed_tokens.weight','shape':[8,4],'dtype':'f32'},"
    "{'name':'model.norm.weight','shape':[4],'dtype':'f32'},"
    "{'name':'lm_head.weight','shape':[8,4],'dtype':'f32'},"
#define LAYER(n)                                                                                   \
    "{'name':'model.layers." n ".self_attn.o_proj.weight','shape':[4,8],'dtype':'f32'},"           \
    "{'name':'model.layers." n ".mlp.gate_proj.weight','shape':[8,4],'dtype':'f32'},"              \
    "{'name':'model.layers." n ".mlp.down_proj.weight','shape':[4,8],'dtype':'f32'},"              \
    "{'name':'model.layers." n ".input_layernorm.weight','shape':[4],'dtype':'f32'},"              \
    "{'name':'model.layers." n ".qkv','shape':[16,4],'dtype':'f32','source':["                     \
    "{'tensor':'model.layers." n ".self_attn.q_proj.weight','begin':[0,0],'shape':[8,4],"          \
    "'at':[0,0]},{'tensor':'model.layers." n ".self_attn.k_proj.weight','begin':[0,0],"            \
    "'shape':[4,4],'at':[8,0]},{'tensor':'model.layers." n ".self_attn.v_proj.weight',"            \
    "'begin':[0,0],'shape':[4,4],'at':[12,0]}]}"
    LAYER("0") "," LAYER("1") "]}";

/* A server's ranks: fused, transposed, with loops, a fill and a gap. */
static const char boxes[] =
    "{'boxes':[{'ranks':[0,1],'parameter':'qk','elements':56,'shape':[14,4],'holds':["
    "{'tensor':'model.layers.0.self_attn.q_proj.weight','begin':[0,0],'shape':[8,4],'offset':0,"
    "'strides':[1,8]},{'tensor':'model.layers.0.self_attn.k_proj.weight','begin':[0,0],"
    "'shape':[1,4],'offset':32,'strides':[4,1],'repeat':[{'count':4,'begin':[1,0],'offset':4}]}],"
    "'fill':[{'offset':48,'shape':[8],'strides':[1]}]},"
    "{'rank':1,'parameter':'norm','elements':9,'partial':true,'holds':[{'tensor':"
    "'model.norm.weight','begin':[0],'shape':[4],'offset':0,'strides':[2]}]}]}";

/* Codes that become values: a box that begins and ends within blocks, transposed; and scales. */
static const char value_boxes[] =
    "{'boxes':[{'ranks':[0,1],'parameter':'gate','dtype':'bf16','elements':15,'dequantize':{"
    "'block':[2,2],'scale':'*_scale_inv'},'holds':[{'tensor':'model.layers.0.mlp.gate_proj.weight',"
    "'begin':[1,1],'shape':[5,3],'offset':0,'strides':[1,5]}]},{'rank':1,'parameter':'scales',"
    "'elements':8,'holds':[{'tensor':'model.layers.0.mlp.gate_proj.weight_scale_inv','begin':[0,0],"
    "'shape':[4,2],'offset':0,'strides':[2,1]}]}]}";

/* Values that become codes: scales where a box says, and beside what is transposed. */
static const char code_boxes[] =
    "{'boxes':[{'ranks':[0,1],'parameter':'gate','elements':15,'shape':[3,5],'holds':[{'tensor':"
    "'model.layers.0.mlp.gate_proj.weight','begin':[1,1],'shape':[5,3],'offset':0,'strides':[1,5]}"
    "]},{'rank':1,'parameter':'scales','elements':8,'holds':[{'tensor':"
    "'model.layers.0.self_attn.q_proj.weight_scale_inv','begin':[0,0],'shape':[4,2],'offset':0,"
    "'strides':[2,1]}]}]}";

/* Codes of half a byte, with two parameters of scales beside them. */
static const char half_boxes[] =
    "{'boxes':[{'ranks':[0,1],'parameter':'q','elements':10,'shape':[5,2],'holds':[{'tensor':"
    "'model.layers.0.self_attn.q_proj.weight','begin':[1,2],'shape':[5,2],'offset':0,'strides':"
    "[2,1]}]}]}";

/* Values of which the side says that they become codes. */
static const char said_boxes[] =
    "{'boxes':[{'rank':0,'parameter':'q','elements':10,'quantize':{'format':'f8e4m3','block':[2,2],"
    "'scale':'*_scale_inv'},'holds':[{'tensor':'model.layers.0.self_attn.q_proj.weight','begin':"
    "[1,2],'shape':[5,2],'offset':0,'strides':[2,1]}]}]}";

/* Parts of tensors: rows, and every second element; then these and codes of rows, twice. */
#define EVERY_SECOND                                                                               \
    "{'rank':0,'parameter':'embed','elements':16,'holds':["                                        \
    "{'tensor':'model.embed_tokens.weight','begin':[0,0],'shape':[1,1],'offset':0,'strides':[1,1]" \
    ","                                                                                            \
    "'repeat':[{'count':4,'begin':[2,0],'offset':2},{'count':2,'begin':[0,2],'offset':1}]},"       \
    "{'tensor':'model.embed_tokens.weight','begin':[1,1],'shape':[1,1],'offset':8,'strides':[1,1]" \
    ","                                                                                            \
    "'repeat':[{'count':4,'begin':[2,0],'offset':2},{'count':2,'begin':[0,2],'offset':1}]}]}"
static const char part_boxes[] =
    "{'boxes':[" EVERY_SECOND ",{'rank':1,'parameter':'q','elements':16,'holds':[{'tensor':"
    "'model.layers.0.self_attn.q_proj.weight','begin':[2,0],'shape':[4,4],'offset':0,'strides':"
    "[4,1]}]}]}";
static const char twice_boxes[] =
    "{'boxes':[" EVERY_SECOND ",{'rank':1,'parameter':'q','elements':16,'shape':[4,4],'holds':[{"
    "'tensor':'model.layers.0.self_attn.q_proj.weight','begin':[2,0],'shape':[2,4],'offset':0,"
    "'strides':[4,1],'repeat':[{'count':2,'begin':[0,0],'offset':8}]}]}]}";

typedef struct scene {
    /* What a step works on. */
    const char *from, *to;
    ferry_reshard_options options;
    ferry_reshard_run_options run;
    ferry_verify_options compare;
    ferry_checkpoint *source;
    ferry_checkpoint *other;
    ferry_reshard *ready;
    /* What it makes. */
    ferry_checkpoint *opened;
    ferry_reshard *made;
    ferry_verify_result compared;
} scene;

static char logical[64], sharded[64], boxed[64], result[64], layout[64], box_layout[64];

static void add(small_file *file, const char *name, uint64_t rows, uint64_t columns)
{
    static float values[ROWS * ROWS];
    static float next;
    const uint64_t shape[] = {rows, columns};
    uint64_t n = rows * (columns == 0 ? 1 : columns);
    for (uint64_t i = 0; i < n; i++) {
        values[i] = next++;
    }
    small_add(file, name, "F32", shape, columns == 0 ? 1 : 2, values, n * sizeof *values);
}

static void put_model(void)
{
    small_file parts[2] = {0};
    text_buffer index = {0};
    char path[300];
    assert_int_equal(mkdir(logical, 0700), 0);
    add(&parts[0], "model.embed_tokens.weight", ROWS, HIDDEN);
    add(&parts[0], "model.norm.weight", HIDDEN, 0);
    add(&parts[0], "lm_head.weight", ROWS, HIDDEN);
    text_printf(&index, "{'weight_map':{'model.embed_tokens.weight':'a.safetensors',"
                        "'model.norm.weight':'a.safetensors','lm_head.weight':'a.safetensors'");
    for (int layer = 0; layer < N_LAYERS; layer++) {
        for (size_t i = 0; i < COUNT_OF(weights); i++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, weights[i].name);
            add(&parts[layer], name, weights[i].rows, weights[i].columns);
            text_printf(&index, ",'%s':'%c.safetensors'", name, 'a' + layer);
        }
    }
    text_printf(&index, "}}");
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%c.safetensors", logical, 'a' + i);
        small_write(&parts[i], path, "'format':'pt'");
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", logical);
    small_put_text(path, index.bytes);
    snprintf(path, sizeof path, "%s/config.json", logical);
    small_put_text(path, config);
    small_put_text(layout, fused);
    small_put_text(box_layout, boxes);
    text_cleanup(&index);
}

static void write_result(const char *from, const char *to, const char *path)
{
    ferry_checkpoint *checkpoint = small_open(from);
    ferry_reshard *reshard = NULL;
    ferry_error error;
    must(ferry_reshard_create(checkpoint, to, NULL, &reshard, &error), &error);
    must(ferry_reshard_run(reshard, path, NULL, NULL, &error), &error);
    ferry_reshard_destroy(reshard);
    ferry_checkpoint_destroy(checkpoint);
}

static int make_scene(void **state)
{
    if (small_begin(state) != 0) {
        return -1;
    }
    snprintf(logical, sizeof logical, "%s/logical", small_folder);
    snprintf(sharded, sizeof sharded, "%s/sharded", small_folder);
    snprintf(result, sizeof result, "%s/result", small_folder);
    snprintf(layout, sizeof layout, "%s/layout.json", small_folder);
    snprintf(boxed, sizeof boxed, "%s/boxed", small_folder);
    snprintf(box_layout, sizeof box_layout, "%s/boxes.json", small_folder);
    put_model();
    write_result(logical, "tp=2,pp=2", sharded);
    write_result(logical, box_layout, boxed);
    return 0;
}

/* ---- steps ---- */

static ferry_status open_step(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_checkpoint_open(s->from, &s->opened, error);
}

static ferry_status create_step(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_reshard_create(s->source, s->to, &s->options, &s->made, error);
}

static ferry_status run_step_of(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_reshard_run(s->ready, result, &s->run, NULL, error);
}

static ferry_status compare_step(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_checkpoint_verify(s->source, s->other, &s->compare, &s->compared, error);
}

/* Names and bytes of a folder, in any order that stays: files by name. */
static void describe_file(const char *path, const char *name, text_buffer *out)
{
    char full[600], bytes[4096];
    size_t n, total = 0;
    unsigned long long sum = 0;
    snprintf(full, sizeof full, "%s/%s", path, name);
    FILE *stream = fopen(full, "rb");
    if (stream == NULL) {
        return;
    }
    while ((n = fread(bytes, 1, sizeof bytes, stream)) > 0) {
        for (size_t i = 0; i < n; i++) {
            sum = sum * 1099511628211u + (unsigned char)bytes[i];
        }
        total += n;
    }
    fclose(stream);
    text_printf(out, "%s %zu %016llx\n", name, total, sum);
}

/* Everything beside the scene's own files: the result, and what should not be left. */
static void describe_folder(text_buffer *out)
{
    static const char *const names[] = {"ferry.layout.json",      "config.json",
                                        "model.safetensors",      "rank-00000.safetensors",
                                        "rank-00001.safetensors", "rank-00002.safetensors",
                                        "rank-00003.safetensors"};
    struct dirent *entry;
    DIR *folder = opendir(small_folder);
    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        if (strstr("..logical sharded result boxed layout.json boxes.json", entry->d_name) ==
            NULL) {
            text_printf(out, "left: %s\n", entry->d_name);
        }
    }
    closedir(folder);
    text_printf(out, "result %d\n", access(result, F_OK) == 0);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        describe_file(result, names[i], out);
    }
}

static void describe_scene(const void *context, text_buffer *out)
{
    const scene *s = context;
    describe_folder(out);
    if (s->opened != NULL) {
        ferry_checkpoint_totals totals = FERRY_CHECKPOINT_TOTALS_INIT;
        ferry_error error;
        must(ferry_checkpoint_get_totals(s->opened, &totals, &error), &error);
        text_printf(out, "opened %zu %zu\n", totals.n_files, totals.n_tensors);
    }
    if (s->made != NULL) {
        ferry_reshard_totals totals = FERRY_RESHARD_TOTALS_INIT;
        ferry_error error;
        must(ferry_reshard_get_totals(s->made, &totals, &error), &error);
        text_printf(out, "made %zu %zu %llu\n", totals.n_files, totals.n_tensors,
                    (unsigned long long)totals.file_bytes);
    }
    text_printf(out, "compared %llu %llu\n", (unsigned long long)s->compared.n_tensors,
                (unsigned long long)s->compared.n_checked);
}

static void give_back(void *context)
{
    scene *s = context;
    ferry_checkpoint_destroy(s->opened);
    ferry_reshard_destroy(s->made);
    s->opened = NULL;
    s->made = NULL;
    s->compared = (ferry_verify_result)FERRY_VERIFY_RESULT_INIT;
    small_remove(result);
}

static void try_step(const char *name, ferry_status (*run)(void *scene, ferry_error *error),
                     scene *s)
{
    const step t = {name, run, describe_scene, give_back, FERRY_OK};
    run_step(&t, s);
}

static scene scene_of(const char *from, const char *to)
{
    scene s = {.from = from,
               .to = to,
               .options = FERRY_RESHARD_OPTIONS_INIT,
               .run = FERRY_RESHARD_RUN_OPTIONS_INIT,
               .compare = FERRY_VERIFY_OPTIONS_INIT,
               .compared = FERRY_VERIFY_RESULT_INIT};
    s.options.n_threads = 1;
    s.options.memory_cap_bytes = 1 << 20;
    s.compare.n_threads = 1;
    s.compare.memory_cap_bytes = 1 << 20;
    return s;
}

/* Opens, plans, runs: each with every allocation refused. */
static void try_reshard(scene *s)
{
    ferry_error error;
    s->source = small_open(s->from);
    try_step("open", open_step, s);
    try_step("plan", create_step, s);
    must(ferry_reshard_create(s->source, s->to, &s->options, &s->ready, &error), &error);
    try_step("reshard", run_step_of, s);
    ferry_reshard_destroy(s->ready);
    ferry_checkpoint_destroy(s->source);
}

static void test_short_form(void **state)
{
    (void)state;
    scene s = scene_of(logical, "tp=2,pp=2");
    try_reshard(&s);
}

static void test_cast(void **state)
{
    (void)state;
    scene s = scene_of(sharded, "hf");
    s.options.cast = FERRY_BF16;
    try_reshard(&s);
}

/* Scales beside weights that are cut between blocks, with one for each matrix as well. */
static void test_quantize(void **state)
{
    (void)state;
    scene s = scene_of(sharded, "tp=2");
    s.options.quantize = "f8e4m3:2x2=*_proj.weight";
    try_reshard(&s);
    s = scene_of(logical, "hf");
    s.options.quantize = "nvfp4";
    try_reshard(&s);
}

static void write_changed(scene *s, const char *path)
{
    ferry_error error;
    s->source = small_open(s->from);
    must(ferry_reshard_create(s->source, s->to, &s->options, &s->ready, &error), &error);
    must(ferry_reshard_run(s->ready, path, NULL, NULL, &error), &error);
    ferry_reshard_destroy(s->ready);
    ferry_checkpoint_destroy(s->source);
}

/* And back, and the comparison of a checkpoint with what it has become. */
static void test_dequantize(void **state)
{
    char codes[64];
    (void)state;
    snprintf(codes, sizeof codes, "%s/codes", small_folder);
    scene s = scene_of(logical, "hf");
    s.options.quantize = "nvfp4";
    write_changed(&s, codes);
    s = scene_of(codes, "tp=2");
    s.options.dequantize = "auto";
    s.options.cast = FERRY_F32;
    try_reshard(&s);
    s = scene_of(codes, "hf"); /* the others stay codes, of which config.json has to tell */
    s.options.dequantize = "auto=model.layers.0.mlp.gate_proj.weight";
    try_reshard(&s);
    s = scene_of(logical, NULL);
    s.compare.quantize = "nvfp4";
    s.source = small_open(logical);
    s.other = small_open(codes);
    try_step("compare quantized", compare_step, &s);
    ferry_checkpoint_destroy(s.source);
    ferry_checkpoint_destroy(s.other);
    small_remove(codes);
}

/* The same into boxes, said by their side; then compared with what they come from. */
static void test_dequantize_boxes(void **state)
{
    char codes[64], served[64], file[64];
    (void)state;
    snprintf(codes, sizeof codes, "%s/codes", small_folder);
    snprintf(served, sizeof served, "%s/served", small_folder);
    snprintf(file, sizeof file, "%s/values.json", small_folder);
    small_put_text(file, value_boxes);
    scene s = scene_of(logical, "hf");
    s.options.quantize = "f8e4m3:2x2=*_proj.weight";
    write_changed(&s, codes);
    s = scene_of(codes, file);
    try_reshard(&s);
    write_changed(&s, served);
    s.compare.dequantize = "f8e4m3:2x2";
    s.source = small_open(codes);
    s.other = small_open(served);
    try_step("compare values in boxes", compare_step, &s);
    ferry_checkpoint_destroy(s.source);
    ferry_checkpoint_destroy(s.other);
    small_remove(codes);
    small_remove(served);
    remove(file);
}

/* format: NULL where the side says it */
static void try_quantize_boxes(const char *text, const char *format)
{
    char served[64], file[64];
    snprintf(served, sizeof served, "%s/served", small_folder);
    snprintf(file, sizeof file, "%s/codes.json", small_folder);
    small_put_text(file, text);
    scene s = scene_of(sharded, file);
    s.options.quantize = format;
    try_reshard(&s);
    write_changed(&s, served);
    s.compare.quantize = format != NULL ? format : "f8e4m3:2x2=*.q_proj.weight";
    s.source = small_open(sharded);
    s.other = small_open(served);
    try_step("compare codes in boxes", compare_step, &s);
    ferry_checkpoint_destroy(s.source);
    ferry_checkpoint_destroy(s.other);
    small_remove(served);
    remove(file);
}

static void test_quantize_boxes(void **state)
{
    (void)state;
    try_quantize_boxes(code_boxes, "f8e4m3:2x2=*_proj.weight");
    try_quantize_boxes(half_boxes, "nvfp4");
    try_quantize_boxes(said_boxes, NULL);
}

/* A source that has parts of tensors. */
static void test_parts(void **state)
{
    char parts[64], served[64], file[64];
    (void)state;
    snprintf(parts, sizeof parts, "%s/parts", small_folder);
    snprintf(served, sizeof served, "%s/served", small_folder);
    snprintf(file, sizeof file, "%s/parts.json", small_folder);
    small_put_text(file, part_boxes);
    write_result(logical, file, parts);
    small_put_text(file, twice_boxes);
    scene s = scene_of(parts, file);
    s.options.quantize = "f8e4m3:2x2=*.q_proj.weight";
    try_reshard(&s);
    write_changed(&s, served);
    s.compare.quantize = s.options.quantize;
    s.source = small_open(parts);
    s.other = small_open(served);
    try_step("compare parts", compare_step, &s);
    ferry_checkpoint_destroy(s.source);
    ferry_checkpoint_destroy(s.other);
    small_remove(parts);
    small_remove(served);
    remove(file);
}

static void test_boxes(void **state)
{
    (void)state;
    scene s = scene_of(sharded, layout);
    s.options.subset = "*.qkv";
    try_reshard(&s);
}

/* To boxes and from there; and each parameter made again to compare it. */
static void test_in_boxes(void **state)
{
    (void)state;
    scene s = scene_of(sharded, box_layout);
    s.options.cast = FERRY_BF16;
    s.options.subset = "*.self_attn.*";
    try_reshard(&s);
    s = scene_of(boxed, "hf");
    try_reshard(&s);
    s = scene_of(logical, NULL);
    s.source = small_open(logical);
    s.other = small_open(boxed);
    try_step("compare boxes", compare_step, &s);
    ferry_checkpoint_destroy(s.source);
    s.source = small_open(boxed);
    try_step("compare boxes with themselves", compare_step, &s);
    ferry_checkpoint_destroy(s.source);
    ferry_checkpoint_destroy(s.other);
}

/* What --resume needs stays after a failure: it is cleared away by the next run. */
static void forget_partial(void *context)
{
    char partial[300];
    snprintf(partial, sizeof partial, "%s/.result.ferry-partial", small_folder);
    small_remove(partial);
    give_back(context);
}

static void describe_result(const void *context, text_buffer *out)
{
    text_buffer all = {0};
    describe_scene(context, &all);
    for (char *line = strtok(all.bytes, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "left: .result.ferry-partial", 27) != 0) {
            text_printf(out, "%s\n", line);
        }
    }
    text_cleanup(&all);
}

static void test_journal(void **state)
{
    (void)state;
    scene s = scene_of(logical, "tp=2,pp=2");
    const step t = {"reshard, to be resumed", run_step_of, describe_result, forget_partial,
                    FERRY_OK};
    const step u = {"resume", run_step_of, describe_result, give_back, FERRY_OK};
    ferry_error error;
    s.run.resume = true;
    s.source = small_open(s.from);
    must(ferry_reshard_create(s.source, s.to, &s.options, &s.ready, &error), &error);
    run_step(&t, &s);
    run_step(&u, &s); /* each goes on where the one before it failed */
    ferry_reshard_destroy(s.ready);
    ferry_checkpoint_destroy(s.source);
}

static void test_compare(void **state)
{
    (void)state;
    scene s = scene_of(logical, NULL);
    s.source = small_open(logical);
    s.other = small_open(sharded);
    try_step("compare", compare_step, &s);
    ferry_checkpoint_destroy(s.source);
    ferry_checkpoint_destroy(s.other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_form),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_dequantize),
        cmocka_unit_test(test_dequantize_boxes),
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_quantize_boxes),
        cmocka_unit_test(test_in_boxes),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_journal),
        cmocka_unit_test(test_compare),
    };
    failing_init();
    return cmocka_run_group_tests(tests, make_scene, small_end);
}
