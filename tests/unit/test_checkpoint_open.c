/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_headers.h"

#include <ferry/ferry.h>

#include "support/check.h"
#include "support/text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/ferry-test-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static void empty_folder(void)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            remove(path_of(entry->d_name));
        }
    }
    closedir(dir);
}

static int remove_folder(void **state)
{
    (void)state;
    empty_folder();
    return rmdir(folder);
}

/* A text with single quotes for double ones. */
static void put_text(const char *name, const char *quoted)
{
    FILE *stream = fopen(path_of(name), "wb");
    assert_non_null(stream);
    for (const char *c = quoted; *c != '\0'; c++) {
        fputc(*c == '\'' ? '"' : *c, stream);
    }
    fclose(stream);
}

/* A safetensors file of this header and so many bytes of data. */
static void put_model(const char *name, const char *quoted, size_t n_data)
{
    size_t n = strlen(quoted);
    FILE *stream = fopen(path_of(name), "wb");
    assert_non_null(stream);
    for (int i = 0; i < 8; i++) {
        fputc((int)(n >> (8 * i) & 0xff), stream);
    }
    for (size_t i = 0; i < n; i++) {
        fputc(quoted[i] == '\'' ? '"' : quoted[i], stream);
    }
    for (size_t i = 0; i < n_data; i++) {
        fputc(0, stream);
    }
    fclose(stream);
}

#define ENTRY(name, dtype, shape, begin, end)                                                      \
    "'" name "':{'dtype':'" dtype "','shape':[" shape "],'data_offsets':[" begin "," end "]}"
#define META(pairs) "'__metadata__':{" pairs "}"

static ferry_checkpoint *opened(const char *path)
{
    ferry_checkpoint *checkpoint = NULL;
    ferry_error error;
    must(ferry_checkpoint_open(path, &checkpoint, &error), &error);
    return checkpoint;
}

/* Refused with a sentence that says all of these. */
static void check_refused(const char *row, const char *path, const char *says, const char *too)
{
    ferry_checkpoint *checkpoint = NULL;
    ferry_error error = {""};
    ferry_status status = ferry_checkpoint_open(path, &checkpoint, &error);
    check_row(row, status != FERRY_OK && checkpoint == NULL && status != FERRY_ERR_MISUSE);
    check_says(row, says, &error);
    check_says(row, too, &error);
}

static void check_others(const ferry_checkpoint *checkpoint, const char *wanted)
{
    text_buffer text = {0};
    text_append(&text, "", 0);
    for (size_t i = 0; i < checkpoint->n_others; i++) {
        if (checkpoint->others[i].left_out == NULL) {
            text_printf(&text, "%s%s", text.used == 0 ? "" : " ", checkpoint->others[i].name);
        }
    }
    assert_string_equal(text.bytes, wanted);
    text_cleanup(&text);
}

/* ---- logical ---- */

static void test_file(void **state)
{
    (void)state;
    struct stat about;
    put_model("m.safetensors",
              "{" META("'format':'pt','ferry.x':'y'") "," ENTRY(
                  "b", "F32", "2", "0", "8") "," ENTRY("a", "F6_E2M3", "2,2", "8", "11") "}",
              11);
    put_text("config.json", "{}");
    ferry_checkpoint *c = opened(path_of("m.safetensors"));
    assert_true(!c->is_sharded && !c->is_folder && c->n_files == 1 && c->n_others == 0);
    assert_string_equal(c->folder, folder);
    assert_string_equal(c->files[0].name, "m.safetensors");
    assert_int_equal(stat(path_of("m.safetensors"), &about), 0);
    assert_true(c->files[0].bytes == (uint64_t)about.st_size);
    assert_true(c->files[0].inode == about.st_ino);
    assert_true(c->files[0].changed_s == about.st_mtim.tv_sec);
    assert_true(c->files[0].changed_ns == about.st_mtim.tv_nsec);
    assert_int_equal(c->n_metadata, 1); /* ferry's own key is none of them */
    assert_string_equal(c->metadata[0].value, "pt");
    assert_int_equal(c->n_tensors, 2);
    assert_string_equal(c->tensors[0].name, "b");
    const fy_ckpt_tensor *a = &c->tensors[1];
    assert_int_equal(fy_ckpt_find(c, "a"), 1);
    assert_int_equal(fy_ckpt_find(c, "c"), FY_INDEX_NONE);
    assert_true(a->is_opaque && a->n_dims == 1 && a->shape[0] == 3 && a->dtype.element_bits == 8);
    assert_true(a->file_n_dims == 2 && a->file_shape[1] == 2 && a->file == 0 && a->entry == 1);
    ferry_checkpoint_destroy(c);
    empty_folder();
}

static void test_about(void **state)
{
    (void)state;
    put_model("model.safetensors",
              "{" ENTRY("b", "F32", "2", "0", "8") "," ENTRY("a", "F6_E2M3", "2,2", "8", "11") "}",
              11);
    char slashes[200];
    snprintf(slashes, sizeof slashes, "%s///", folder);
    ferry_checkpoint *c = opened(slashes);
    ferry_checkpoint_totals totals = FERRY_CHECKPOINT_TOTALS_INIT;
    ferry_checkpoint_file file = FERRY_CHECKPOINT_FILE_INIT;
    ferry_checkpoint_tensor tensor = FERRY_CHECKPOINT_TENSOR_INIT;
    text_buffer text = {0};
    ferry_error error;
    assert_string_equal(c->path, folder);
    must(ferry_checkpoint_get_totals(c, &totals, &error), &error);
    assert_true(!totals.is_sharded && totals.n_files == 1 && totals.n_tensors == 2);
    assert_true(totals.tensor_bytes == 11 && totals.file_bytes == c->files[0].bytes);
    must(ferry_checkpoint_file_at(c, 0, &file, &error), &error);
    assert_string_equal(file.name, "model.safetensors");
    assert_true(file.n_tensors == 2 && file.bytes == totals.file_bytes);
    assert_int_equal(ferry_checkpoint_file_at(c, 1, &file, &error), FERRY_ERR_MISUSE);
    must(ferry_checkpoint_tensor_at(c, 1, &tensor, &error), &error);
    assert_string_equal(tensor.name, "a");
    assert_string_equal(tensor.dtype, "F6_E2M3");
    assert_true(tensor.n_dims == 2 && tensor.shape[0] == 2 && tensor.bytes == 3);
    assert_int_equal(ferry_checkpoint_tensor_at(c, 2, &tensor, &error), FERRY_ERR_MISUSE);
    must(ferry_checkpoint_write_layout(c, text_write, &text, &error), &error);
    assert_string_equal(text.bytes, "null");
    text_cleanup(&text);
    ferry_checkpoint_destroy(c);
    ferry_checkpoint_destroy(NULL);
    assert_int_equal(ferry_checkpoint_open(NULL, &c, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_checkpoint_open(folder, NULL, &error), FERRY_ERR_MISUSE);
    empty_folder();
}

static void put_parts(const char *map)
{
    put_model("b.safetensors", "{" ENTRY("x", "U8", "3", "0", "3") "," META("'k':'1'") "}", 3);
    put_model("a.safetensors",
              "{" ENTRY("z", "U8", "1", "0", "1") "," ENTRY("y", "U8", "1", "1",
                                                            "2") "," META("'k':'1','l':'2'") "}",
              2);
    put_text("model.safetensors.index.json", map);
}

static const char good_map[] = "{'metadata':{'total_size':5,'more':[]},'other':1,'weight_map':{"
                               "'x':'b.safetensors','y':'a.safetensors','z':'a.safetensors'}}";

static void check_parts(const char *path)
{
    ferry_checkpoint *c = opened(path);
    assert_true(c->n_files == 2 && c->n_tensors == 3 && c->is_folder);
    assert_string_equal(c->files[0].name, "a.safetensors");
    static const char *const order[] = {"z", "y", "x"}; /* file by file, by offset */
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_equal(c->tensors[i].name, order[i]);
        assert_int_equal(fy_ckpt_find(c, order[i]), i);
    }
    assert_true(c->tensors[2].file == 1 && c->tensors[2].entry == 0);
    assert_int_equal(c->n_metadata, 2);
    assert_string_equal(c->metadata[0].key, "k");
    assert_string_equal(c->metadata[1].key, "l");
    check_others(c, ".gitattributes config.json vocab.txt");
    ferry_checkpoint_destroy(c);
}

/* The index wins over other files, which are not taken along either. */
static void test_index(void **state)
{
    (void)state;
    put_parts(good_map);
    put_model("model.safetensors", "{}", 0);
    put_text("consolidated.safetensors", "no header at all");
    put_text("config.json", "{}");
    put_text(".gitattributes", "");
    put_text(".ferry-something", "");
    assert_int_equal(mkdir(path_of("sub"), 0700), 0);
    assert_int_equal(symlink("config.json", path_of("vocab.txt")), 0);
    assert_int_equal(symlink("nowhere", path_of("broken.txt")), 0);
    check_parts(folder);
    check_parts(path_of("model.safetensors.index.json"));
    put_text("own.json", "{'weight_map':{'x':'x.st'}}");
    put_model("x.st", "{" ENTRY("x", "U8", "3", "0", "3") "}", 3);
    ferry_checkpoint *c = opened(path_of("own.json"));
    check_others(c, ".gitattributes config.json vocab.txt");
    ferry_checkpoint_destroy(c);
    unlink(path_of("x.st"));
    put_text("own.json", good_map);
    unlink(path_of("model.safetensors.index.json"));
    check_parts(path_of("own.json"));
    empty_folder();
}

static const struct map_row {
    const char *name, *map, *says, *too;
} maps[] = {
    {"no map", "{}", "index.json", "weight_map"},
    {"an array", "[]", "index.json", "object"},
    {"map is no object", "{'weight_map':[]}", "index.json", "weight_map"},
    {"twice", "{'weight_map':{'x':'b.safetensors','x':'b.safetensors'}}", "index.json", "x"},
    {"a number", "{'weight_map':{'x':5}}", "index.json: byte",
     "\"weight_map\" x expected a string"},
    {"a path", "{'weight_map':{'x':'../b.safetensors'}}", "\"weight_map\" x ", "beside"},
    {"a root", "{'weight_map':{'x':'/b.safetensors'}}", "\"weight_map\" x ", "beside"},
    {"nothing", "{'weight_map':{'x':''}}", "\"weight_map\" x ", "empty"},
    {"the folder", "{'weight_map':{'x':'..'}}", "..", "\"x\""},
    {"two maps", "{'weight_map':{},'weight_map':{}}", "weight_map", "twice"},
    {"more behind it", "{'weight_map':{}} {}", "index.json: byte 18", "behind"},
    {"no end", "{'weight_map':{}", "index.json: byte 16", "ends"},
    {"no such part", "{'weight_map':{'x':'c.safetensors'}}", "c.safetensors", "\"x\""},
    {"not named", "{'weight_map':{'z':'a.safetensors'}}", "\"y\"", "does not name"},
    {"elsewhere", "{'weight_map':{'x':'a.safetensors','y':'a.safetensors','z':'b.safetensors'}}",
     "\"z\"", "another part"},
    {"not held",
     "{'weight_map':{'w':'b.safetensors','x':'b.safetensors','y':'a.safetensors','z':"
     "'a.safetensors'}}",
     "\"w\" in b.safetensors", "does not hold"},
};

static void test_bad_index(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(maps); i++) {
        put_parts(maps[i].map);
        check_refused(maps[i].name, folder, maps[i].says, maps[i].too);
    }
    put_parts(good_map);
    put_model("b.safetensors", "{" ENTRY("x", "U8", "3", "0", "3") "}", 2);
    check_refused("a part is cut", folder, "b.safetensors", "\"x\"");
    put_model("b.safetensors", "{" ENTRY("x", "U8", "3", "0", "3") "," META("'l':'3'") "}", 3);
    check_refused("metadata", folder, "b.safetensors: ", "\"2\"");
    check_refused("metadata", folder, "a.safetensors have", "key \"l\"");
    unlink(path_of("b.safetensors"));
    check_refused("a part is gone", folder, "b.safetensors", "not there");
    assert_int_equal(symlink("nowhere", path_of("b.safetensors")), 0);
    check_refused("a broken link", folder, "b.safetensors", "cannot be opened");
    empty_folder();
}

static void test_folder_without_index(void **state)
{
    (void)state;
    check_refused("nothing", folder, folder, "no checkpoint");
    check_refused("not there", path_of("none"), "none", "cannot be opened");
    put_model("b.safetensors", "{" ENTRY("x", "U8", "3", "0", "3") "}", 3);
    put_model("a.safetensors", "{" ENTRY("y", "U8", "3", "0", "3") "}", 3);
    ferry_checkpoint *c = opened(folder);
    assert_true(c->n_files == 2 && c->n_tensors == 2);
    assert_string_equal(c->tensors[0].name, "y");
    ferry_checkpoint_destroy(c);
    put_model("a.safetensors", "{" ENTRY("x", "U8", "3", "0", "3") "}", 3);
    check_refused("twice", folder, "b.safetensors: holds \"x\"", "a.safetensors");
    put_model("model.safetensors", "{" ENTRY("w", "U8", "3", "0", "3") "}", 3);
    c = opened(folder);
    assert_int_equal(c->n_files, 1);
    assert_string_equal(c->tensors[0].name, "w");
    check_others(c, "");
    ferry_checkpoint_destroy(c);
    empty_folder();
}

/* A model is opened by a path that counts from here, and is what specs take their tensors from. */
static void test_relative(void **state)
{
    (void)state;
    char before[1000];
    json_t *tensors = NULL;
    ferry_error error;
    put_parts(good_map);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    static const char *const paths[] = {".", "./", "model.safetensors.index.json"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        must(fy_model_read_tensors(paths[i], &tensors, &error), &error);
        assert_int_equal(json_array_size(tensors), 3);
        json_t *wanted = json_pack("{s:s, s:[i], s:s}", "name", "z", "shape", 1, "dtype", "u8");
        assert_true(json_equal(json_array_get(tensors, 0), wanted));
        json_decref(wanted);
        json_decref(tensors);
    }
    must(fy_model_read_tensors("b.safetensors", &tensors, &error), &error);
    assert_int_equal(json_array_size(tensors), 1);
    json_decref(tensors);
    assert_int_equal(chdir(before), 0);
    empty_folder();
}

/* ---- sharded ---- */

#define SIDE "'mesh':[['tp',2]],'rules':[{'match':'*'}]"
#define TENSORS                                                                                    \
    "{'name':'w','shape':[4],'dtype':'bf16'},{'name':'q','shape':[3],'dtype':'bytes:1'},"          \
    "{'name':'e','shape':[0,2],'dtype':'bytes:4'}"
static const char good_layout[] = "{" SIDE ",'tensors':[" TENSORS "]}";
#define RANK                                                                                       \
    ENTRY("w", "BF16", "4", "0", "8")                                                              \
    "," ENTRY("q", "F6_E2M3", "2,2", "8", "11") "," ENTRY("e", "Z", "0,2", "11", "11")
#define SUM "'ferry.xxh3.w':'0123456789abcdef'"

static void put_sharded(void)
{
    put_text("ferry.layout.json", good_layout);
    put_model("rank-00000.safetensors", "{" RANK "," META("'k':'1'," SUM) "}", 11);
    put_model("rank-00001.safetensors", "{" RANK "," META(SUM ",'k':'1','j':'2'") "}", 11);
}

static void test_sharded(void **state)
{
    (void)state;
    text_buffer text = {0};
    ferry_checkpoint_totals totals = FERRY_CHECKPOINT_TOTALS_INIT;
    ferry_error error;
    put_sharded();
    put_text("tokenizer.json", "{}");
    put_model("model.safetensors", "{}", 0); /* the layout wins */
    put_text("model.safetensors.index.json", "{}");
    ferry_checkpoint *c = opened(folder);
    assert_true(c->is_sharded && c->is_folder && c->n_files == 2 && c->n_tensors == 3);
    assert_true(c->files[0].rank == 0 && c->files[1].rank == 1);
    assert_string_equal(c->tensors[0].dtype_text, "BF16");
    assert_string_equal(c->tensors[2].dtype_text, "Z");
    const fy_ckpt_tensor *q = &c->tensors[fy_ckpt_find(c, "q")];
    assert_true(q->is_opaque && q->n_dims == 1 && q->file_n_dims == 2);
    assert_string_equal(q->dtype_text, "F6_E2M3");
    assert_int_equal(c->n_metadata, 2);
    const fy_st_tensor *w = fy_st_find(&c->files[1].header, "w");
    assert_true(w->has_checksum && w->checksum == 0x0123456789abcdef);
    assert_false(fy_st_find(&c->files[1].header, "q")->has_checksum);
    check_others(c, "tokenizer.json");
    must(ferry_checkpoint_get_totals(c, &totals, &error), &error);
    assert_true(totals.is_sharded && totals.tensor_bytes == 11);
    must(ferry_checkpoint_write_layout(c, text_write, &text, &error), &error);
    assert_string_equal(text.bytes, "{\"mesh\":[[\"tp\",2]],\"rules\":[{\"match\":\"*\"}]}");
    text_cleanup(&text);
    ferry_checkpoint_destroy(c);
    empty_folder();
}

static void test_ranks(void **state)
{
    (void)state;
    put_text("ferry.layout.json", "{'mesh':[['a',2]],'ranks':[100000,7],'rules':[],'tensors':[]}");
    put_model("rank-00007.safetensors", "{}", 0);
    put_model("rank-100000.safetensors", "{}", 0);
    ferry_checkpoint *c = opened(folder);
    assert_true(c->files[0].rank == 100000 && c->files[1].rank == 7 && c->n_tensors == 0);
    ferry_checkpoint_destroy(c);
    put_model("rank-7.safetensors", "{}", 0);
    check_refused("a stray rank", folder, "rank-7.safetensors", "no rank");
    unlink(path_of("rank-7.safetensors"));
    unlink(path_of("rank-100000.safetensors"));
    check_refused("a rank is gone", folder, "rank 100000", "rank-100000.safetensors");
    put_text("ferry.layout.json", "{'mesh':[['a',1]],'first_rank':8,'rules':[],'tensors':[]}");
    check_refused("another first rank", folder, "rank 8", "rank-00008.safetensors");
    put_text("ferry.layout.json", "{'mesh':[['a',16777215],['b',16777215]],'rules':[],'tensors':"
                                  "[]}");
    check_refused("many ranks", folder, "ferry.layout.json", "mesh");
    empty_folder();
}

static const struct layout_row {
    const char *name, *layout, *says, *too;
} layouts[] = {
    {"no tensors", "{" SIDE "}", "ferry.layout.json", "tensors"},
    {"no mesh", "{'rules':[],'tensors':[" TENSORS "]}", "ferry.layout.json", "mesh"},
    {"tensors are an object", "{" SIDE ",'tensors':{}}", "tensors", "array"},
    {"a tensor is a number", "{" SIDE ",'tensors':[5]}", "tensors[0]", "object"},
    {"count", "{" SIDE ",'tensors':[{'name':'w','count':[1],'shape':[],'dtype':'u8'}]}",
     "tensors[0]", "\"count\""},
    {"source", "{" SIDE ",'tensors':[{'name':'w','source':'v','shape':[],'dtype':'u8'}]}",
     "tensors[0]", "\"source\""},
    {"a key", "{" SIDE ",'tensors':[{'name':'w','x':1,'shape':[],'dtype':'u8'}]}", "tensors[0]",
     "\"x\""},
    {"no name", "{" SIDE ",'tensors':[{'shape':[],'dtype':'u8'}]}", "tensors[0]", "\"name\""},
    {"no shape", "{" SIDE ",'tensors':[{'name':'w','dtype':'u8'}]}", "tensors[0]", "\"shape\""},
    {"no dtype", "{" SIDE ",'tensors':[{'name':'w','shape':[]}]}", "tensors[0]", "\"dtype\""},
    {"empty name", "{" SIDE ",'tensors':[{'name':'','shape':[],'dtype':'u8'}]}", "tensors[0].name",
     "empty"},
    {"a dtype", "{" SIDE ",'tensors':[{'name':'w','shape':[],'dtype':'U8'}]}", "tensors[0].dtype",
     "U8"},
    {"an extent", "{" SIDE ",'tensors':[{'name':'w','shape':[-1],'dtype':'u8'}]}",
     "tensors[0].shape[0]", "-1"},
    {"dimensions", "{" SIDE ",'tensors':[{'name':'w','shape':[1,1,1,1,1,1,1,1,1],'dtype':'u8'}]}",
     "tensors[0].shape", "limit of 8"},
    {"much", "{" SIDE ",'tensors':[{'name':'w','shape':[0,4294967296,4294967296],'dtype':'u8'}]}",
     "tensors[0]", "2^63"},
    {"half a byte", "{" SIDE ",'tensors':[{'name':'w','shape':[3],'dtype':'f4'}]}", "tensors[0]",
     "12 bits"},
    {"twice",
     "{" SIDE ",'tensors':[{'name':'w','shape':[],'dtype':'u8'},{'name':'w','shape':[],'dtype':"
     "'u8'}]}",
     "tensors[1].name", "twice"},
    {"another dtype",
     "{" SIDE ",'tensors':[{'name':'w','shape':[4],'dtype':'f16'},{'name':'q','shape':[3],'dtype':"
     "'bytes:1'}]}",
     "rank-00000.safetensors: \"w\"", "f16"},
    {"an opaque one that is cut",
     "{" SIDE ",'tensors':[{'name':'w','shape':[4],'dtype':'bf16'},{'name':'q','shape':[1],"
     "'dtype':'bytes:3'}]}",
     "rank-00000.safetensors: \"q\"", "bytes:1"},
    {"not listed", "{" SIDE ",'tensors':[{'name':'q','shape':[3],'dtype':'bytes:1'}]}",
     "rank-00000.safetensors", "\"w\""},
};

static void test_bad_layout(void **state)
{
    (void)state;
    put_sharded();
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        put_text("ferry.layout.json", layouts[i].layout);
        check_refused(layouts[i].name, folder, layouts[i].says, layouts[i].too);
    }
    empty_folder();
}

/* What the second file may not say once the first is read. */
static const struct rank_row {
    const char *name, *header;
    size_t n_data;
    const char *says, *too;
} ranks[] = {
    {"nothing", "{}", 0, "\"w\"", "rank 1"},
    {"another shape", "{" ENTRY("w", "BF16", "2,2", "0", "8") "}", 8, "\"w\"", "[2, 2]"},
    {"another word", "{" ENTRY("e", "Y", "0,2", "0", "0") "}", 0, "\"e\" is Y",
     "rank-00000.safetensors"},
    {"another opaque shape", "{" ENTRY("q", "F6_E2M3", "4", "0", "3") "}", 3, "\"q\"",
     "rank-00000.safetensors"},
    {"another opaque size", "{" ENTRY("q", "F6_E2M3", "8", "0", "6") "}", 6, "\"q\"", "[6]"},
    {"a word of another size", "{" ENTRY("w", "F32", "2", "0", "8") "}", 8, "\"w\" is F32", "bf16"},
    {"metadata", "{" META("'k':'2'") "}", 0, "rank-00001.safetensors: ", "rank-00000.safetensors"},
    {"a checksum of nothing", "{" META(SUM) "}", 0, "checksum", "\"w\""},
    {"a short checksum",
     "{" ENTRY("w", "BF16", "4", "0", "8") "," META("'ferry.xxh3.w':'0123456789abcde'") "}", 8,
     "checksum of \"w\"", "16 hex"},
    {"a long checksum",
     "{" ENTRY("w", "BF16", "4", "0", "8") "," META("'ferry.xxh3.w':'0123456789abcdef0'") "}", 8,
     "checksum of \"w\"", "16 hex"},
    {"a checksum of capitals",
     "{" ENTRY("w", "BF16", "4", "0", "8") "," META("'ferry.xxh3.w':'0123456789ABCDEF'") "}", 8,
     "checksum of \"w\"", "16 hex"},
    {"a stranger", "{" ENTRY("v", "BF16", "4", "0", "8") "}", 8, "\"v\"", "does not list"},
};

static void test_bad_ranks(void **state)
{
    (void)state;
    put_sharded();
    for (size_t i = 0; i < COUNT_OF(ranks); i++) {
        put_model("rank-00001.safetensors", ranks[i].header, ranks[i].n_data);
        check_refused(ranks[i].name, folder, ranks[i].says, ranks[i].too);
        check_refused(ranks[i].name, folder, "rank-00001.safetensors", "");
    }
    put_sharded();
    put_model("rank-00002.safetensors", "{}", 0);
    check_refused("a rank too many", folder, "rank-00002.safetensors", "no rank");
    empty_folder();
}

/* ---- memory ---- */

/* Each allocation refused in turn: told, and nothing is kept (the sanitizers look). */
static void check_refusals(const char *path)
{
    for (int64_t n = 0;; n++) {
        ferry_checkpoint *checkpoint = NULL;
        ferry_error error = {""};
        fy_alloc_fail_after(n);
        ferry_status status = ferry_checkpoint_open(path, &checkpoint, &error);
        fy_alloc_fail_after(-1);
        if (status == FERRY_OK) {
            assert_true(n > 10);
            ferry_checkpoint_destroy(checkpoint);
            return;
        }
        check_status(path, FERRY_ERR_NO_MEMORY, status, &error);
        check_row(path, checkpoint == NULL && strlen(error.message) > 10);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    put_parts(good_map);
    put_text("config.json", "{}");
    check_refusals(folder);
    check_refusals(path_of("model.safetensors.index.json"));
    check_refusals(path_of("b.safetensors"));
    put_sharded();
    check_refusals(folder);
    empty_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_about),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_folder_without_index),
        cmocka_unit_test(test_relative),
        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_bad_layout),
        cmocka_unit_test(test_bad_ranks),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
