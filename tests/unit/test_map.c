/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Maps: filled by hand and by files, composed, turned round, written and applied to specs. */
#include "support/check.h"
#include "support/spec.h"

#include <ferry/ferry.h>

#include <stdio.h>

static const ferry_dtype u8 = {FERRY_U8, 8};

static ferry_status try_map(const char *quoted, ferry_map **map_out, ferry_error *error)
{
    char *text = strdup(quoted);
    assert_non_null(text);
    unquote(text);
    ferry_status status = ferry_map_parse(text, strlen(text), "map", map_out, error);
    free(text);
    return status;
}

static ferry_map *map_of(const char *quoted)
{
    ferry_map *map = NULL;
    ferry_error error;
    must(try_map(quoted, &map, &error), &error);
    return map;
}

static text_buffer print_map(const ferry_map *map)
{
    text_buffer printed = {0};
    ferry_error error;
    must(ferry_map_write_json(map, text_write, &printed, &error), &error);
    return printed;
}

static void check_equal(const ferry_map *a, const ferry_map *b)
{
    text_buffer x = print_map(a), y = print_map(b);
    assert_string_equal(x.bytes, y.bytes);
    text_cleanup(&x);
    text_cleanup(&y);
}

#define BEGIN "{'format':'ferry.map/1','sources':["

/* Three layers of two experts: gate and up of each side by side, and all of a layer in a stack. */
static const char experts[] =
    BEGIN "{'name':'l.{0+3}.e.{1}.gate','count':[3,2],'shape':[4,6],'dtype':'u8'},"
          "{'name':'l.{0+3}.e.{1}.up','count':[3,2],'shape':[4,6],'dtype':'u8'}],"
          "'targets':[{'name':'l.{0+3}.w13','count':[3],'shape':[2,8,6],'dtype':'u8','source':["
          "{'tensor':'l.{0+3}.e.{1}.gate','begin':[0,0],'shape':[4,6],'at':[0,0,0],"
          "'repeat':[{'count':2,'at':[1,0,0]}]},"
          "{'tensor':'l.{0+3}.e.{1}.up','begin':[0,0],'shape':[4,6],'at':[0,4,0],"
          "'repeat':[{'count':2,'at':[1,0,0]}]}]}]}";

static ferry_map *build_experts(void)
{
    static const uint64_t small[] = {4, 6}, large[] = {2, 8, 6};
    static const char *const halves[] = {"gate", "up"};
    ferry_map *map = NULL;
    ferry_error error;
    must(ferry_map_create(&map, &error), &error);
    for (int layer = 5; layer >= 3; layer--) {
        char target[40], source[40];
        snprintf(target, sizeof target, "l.%d.w13", layer);
        must(ferry_map_add_target(map, target, u8, 3, large, &error), &error);
        for (unsigned e = 0; e < 2; e++) {
            for (unsigned half = 0; half < 2; half++) {
                ferry_map_box box = FERRY_MAP_BOX_INIT;
                snprintf(source, sizeof source, "l.%d.e.%u.%s", layer, e, halves[half]);
                must(ferry_map_add_source(map, source, u8, 2, small, &error), &error);
                box.target = target;
                box.source = source;
                box.at[0] = e;
                for (unsigned row = 0; row < 4; row++) { /* row by row: they are joined */
                    box.begin[0] = row;
                    box.shape[0] = 1;
                    box.shape[1] = 6;
                    box.at[1] = 4 * half + row;
                    must(ferry_map_add_box(map, &box, &error), &error);
                }
            }
        }
    }
    must(ferry_map_finish(map, &error), &error);
    return map;
}

static void test_what_is_said_by_hand_and_by_a_file_is_equal(void **state)
{
    (void)state;
    ferry_map *a = build_experts(), *b = map_of(experts);
    check_equal(a, b);
    assert_int_equal(ferry_map_source_count(a), 12);
    assert_int_equal(ferry_map_target_count(a), 3);
    assert_int_equal(ferry_map_box_count(a), 12);
    text_buffer printed = print_map(a), again;
    assert_non_null(strstr(printed.bytes, "\"name\":\"l.{0+3}.w13\",\"count\":[3]"));
    assert_non_null(strstr(printed.bytes, "\"repeat\":[{\"count\":2,\"at\":[1,0,0]}]"));
    ferry_map *c = NULL;
    ferry_error error;
    must(ferry_map_parse(printed.bytes, printed.used, NULL, &c, &error), &error);
    again = print_map(c);
    assert_string_equal(printed.bytes, again.bytes);
    text_cleanup(&printed);
    text_cleanup(&again);
    ferry_map_destroy(a);
    ferry_map_destroy(b);
    ferry_map_destroy(c);
}

static void test_tensors_and_boxes_are_looked_up(void **state)
{
    (void)state;
    ferry_map *map = map_of(experts);
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    ferry_map_box box = FERRY_MAP_BOX_INIT;
    ferry_error error = {""};
    size_t index = 99;
    must(ferry_map_find_target(map, "l.4.w13", &index, &error), &error);
    assert_int_equal(index, 1);
    must(ferry_map_target_at(map, index, &tensor, &error), &error);
    assert_string_equal(tensor.name, "l.4.w13");
    assert_int_equal(tensor.n_dims, 3);
    assert_int_equal(tensor.shape[1], 8);
    assert_int_equal(tensor.n_boxes, 4);
    must(ferry_map_box_at(map, index, 3, &box, &error), &error);
    assert_string_equal(box.source, "l.4.e.1.up");
    assert_string_equal(box.target, "l.4.w13");
    assert_true(box.at[0] == 1 && box.at[1] == 4 && box.shape[0] == 4 && box.shape[2] == 0);
    must(ferry_map_find_source(map, "l.5.e.0.gate", &index, &error), &error);
    must(ferry_map_source_at(map, index, &tensor, &error), &error);
    assert_string_equal(tensor.name, "l.5.e.0.gate");
    assert_int_equal(tensor.n_boxes, 0);
    check_status("no source", FERRY_ERR_INVALID_INPUT,
                 ferry_map_find_source(map, "l.4.w13", &index, &error), &error);
    check_says("no source", "the map has no source \"l.4.w13\"", &error);
    check_status("no target", FERRY_ERR_MISUSE, ferry_map_target_at(map, 3, &tensor, &error),
                 &error);
    check_status("no box", FERRY_ERR_MISUSE, ferry_map_box_at(map, 0, 4, &box, &error), &error);
    ferry_map_destroy(map);
}

/* Layer 10 stands behind layer 9, and gates before ups. */
static void test_the_order_of_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "b.10.x", "b.9.x", "a.2", "b.9.w", "b.007.x", "b.7.x", "a.12345678901234567890", "a.1"};
    static const char *const wanted[] = {
        "a.1", "a.2", "a.12345678901234567890", "b.9.w", "b.7.x", "b.9.x", "b.10.x", "b.007.x"};
    ferry_map *map = NULL;
    ferry_error error;
    must(ferry_map_create(&map, &error), &error);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        must(ferry_map_add_source(map, names[i], u8, 0, NULL, &error), &error);
    }
    must(ferry_map_finish(map, &error), &error);
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
        must(ferry_map_source_at(map, i, &tensor, &error), &error);
        assert_string_equal(tensor.name, wanted[i]);
    }
    ferry_map_destroy(map);
}

/* Back and forth is the map that leaves all as it is. */
static void test_a_map_and_its_inverse(void **state)
{
    (void)state;
    ferry_map *map = map_of(experts), *inverse = NULL, *both = NULL, *again = NULL;
    ferry_error error;
    must(ferry_map_invert(map, &inverse, &error), &error);
    assert_int_equal(ferry_map_target_count(inverse), 12);
    must(ferry_map_invert(inverse, &again, &error), &error);
    check_equal(map, again);
    must(ferry_map_compose(map, inverse, &both, &error), &error);
    ferry_map *same = map_of(
        BEGIN "{'name':'l.{0+3}.e.{1}.gate','count':[3,2],'shape':[4,6],'dtype':'u8'},"
              "{'name':'l.{0+3}.e.{1}.up','count':[3,2],'shape':[4,6],'dtype':'u8'}],'targets':["
              "{'name':'l.{0+3}.e.{1}.gate','count':[3,2],'shape':[4,6],'dtype':'u8',"
              "'source':'l.{0+3}.e.{1}.gate'},{'name':'l.{0+3}.e.{1}.up','count':[3,2],"
              "'shape':[4,6],'dtype':'u8','source':'l.{0+3}.e.{1}.up'}]}");
    check_equal(both, same);
    ferry_map_destroy(map);
    ferry_map_destroy(inverse);
    ferry_map_destroy(again);
    ferry_map_destroy(both);
    ferry_map_destroy(same);
}

typedef struct bad_row {
    const char *map, *says;
} bad_row;

#define A "{'name':'a','shape':[4,6],'dtype':'u8'}"
#define T(source) "],'targets':[{'name':'t','shape':[4,6],'dtype':'u8','source':" source "}]}"
#define BOX(begin, shape, at) "{'tensor':'a','begin':" begin ",'shape':" shape ",'at':" at "}"

static const bad_row bad_maps[] = {
    {"[]", "map: must be an object"},
    {"{'format':'ferry.map/2','sources':[],'targets':[]}", "this version reads ferry.map/1"},
    {"{'format':'ferry.map/1','sources':[]}", "targets"},
    {BEGIN A T("'b'"), "targets[0].source of \"t\" names \"b\", which is not among the sources"},
    {BEGIN A "," A T("'a'"), "the source \"a\" is in the map already"},
    {BEGIN "{'name':'a','shape':[4,6],'dtype':'i8'}" T("'a'"),
     "(u8) has a box of \"a\", which is i8"},
    {BEGIN "{'name':'a','shape':[6,4],'dtype':'u8'}" T("'a'"), "no copy of \"a\", whose shape"},
    {BEGIN A T("5"), "must be the name of a tensor or an array of boxes"},
    {BEGIN A T("[]"), "the target \"t\" has no box"},
    {BEGIN A T("[" BOX("[0,0]", "[4,5]", "[0,0]") "]"),
     "the target \"t\" has no box for its [0:4, 5:6]"},
    {BEGIN A T("[" BOX("[0,0]", "[3,6]", "[0,0]") "," BOX("[1,0]", "[2,6]", "[2,0]") "]"),
     "two boxes for its [2:3, 0:6]: [0:3, 0:6] of \"a\" and [1:3, 0:6] of \"a\""},
    {BEGIN A T("[" BOX("[1,0]", "[4,6]", "[0,0]") "]"),
     "from 1 on, 4 long, on dim 0 of the source \"a\", whose extent is 4"},
    {BEGIN A T("[" BOX("[0,0]", "[4,6]", "[0,1]") "]"),
     "from 1 on, 6 long, on dim 1 of the target \"t\""},
    {BEGIN A T("[" BOX("[0,0,0]", "[1,4,6]", "[0,0]") "]"), "\"a\" has 2 dimensions"},
    {BEGIN A T("[" BOX("[0,0]", "[4]", "[0,0]") "]"), "begin has 2 numbers and shape 1"},
    {BEGIN A T("[{'tensor':'a','begin':[0,0],'shape':[1,6],'at':[0,0],'repeat':["
               "{'count':5,'begin':[1,0],'at':[1,0]}]}]"),
     "from 4 on, 1 long, on dim 0 of the source"},
    {BEGIN A T("[{'tensor':'a','begin':[0,0],'shape':[1,6],'at':[0,0],'repeat':["
               "{'count':4,'begin':[1],'at':[1,0]}]}]"),
     "has 1 numbers, but the box has 2"},
    {BEGIN A T("[{'tensor':'a','begin':[0,0],'shape':[1,6],'at':[0,0],'repeat':["
               "{'count':4,'begin':[9000000000000000000,0],'at':[1,0]}]}]"),
     "whose extent is 4"},
    {BEGIN A T("[{'tensor':'a','begin':[0,0],'shape':[4,6],'at':[0,0],'repeat':[]}]"),
     "from 1 to 4 loops, not 0"},
    {BEGIN A T("[{'tensor':'a','begin':[0,0],'shape':[4,6],'at':[0,0],'repeat':["
               "{'count':4000000},{'count':4000000}]}]"),
     "makes more than 4194304"},
    {BEGIN A T("[{'tensor':'a','begin':[0,0],'shape':[4,6],'at':[0,0],'strides':[1,4]}]"),
     "boxes keep the order of dimensions"},
    {BEGIN A T("[{'tensor':'a','begin':[0,0],'shape':[4,6],'at':[0,0],'permutation':[1,0]}]"),
     "a transposition is said by the strides of a side in boxes"},
    {BEGIN "{'name':'a','count':[2],'shape':[],'dtype':'u8'}],'targets':[]}",
     "name \"a\" lacks {0} for count number 0"},
    {BEGIN "{'name':'a{0-1}','count':[2],'shape':[],'dtype':'u8'}],'targets':[]}",
     "{0-1} is below 0"},
    {BEGIN "{'name':'a{0+18446744073709551615}','count':[2],'shape':[],'dtype':'u8'}],"
           "'targets':[]}",
     "beyond 2^64"},
    {BEGIN "{'name':'','shape':[],'dtype':'u8'}],'targets':[]}", "has a name of 0 bytes"},
    {BEGIN "{'name':'a','shape':[],'dtype':'u9'}],'targets':[]}", "u9"},
    {BEGIN "{'name':'a','shape':[],'dtype':'u8','source':'b'}],'targets':[]}", "source"},
    {BEGIN "{'name':'a','shape':[9000000000000000000],'dtype':'u8'}],'targets':[]}",
     "more than 2^63 bits"},
    {BEGIN "{'name':'a','shape':[1,1,1,1,1,1,1,1,1],'dtype':'u8'}],'targets':[]}",
     "more than the limit of 8 dimensions"},
    {BEGIN "{'name':'a{0}','count':[4194305],'shape':[],'dtype':'u8'}],'targets':[]}",
     "makes more than 4194304"},
    {BEGIN "{'name':'s','shape':[1],'dtype':'u8'}],'targets':[{'name':'t','shape':[20000],"
           "'dtype':'u8','source':[{'tensor':'s','begin':[0],'shape':[1],'at':[0],'repeat':["
           "{'count':20000,'at':[1]}]}]}]}",
     "\"t\" is composed of 20000 boxes; 16384 are possible"},
    {BEGIN "{'name':'s','shape':[1],'dtype':'u8'}],'targets':[{'name':'t{0}','count':[4000000],"
           "'shape':[20000],'dtype':'u8','source':[{'tensor':'s','begin':[0],'shape':[1],"
           "'at':[0],'repeat':[{'count':20000,'at':[1]}]}]}]}",
     "a map may have 4194304 boxes"},
};

static void test_bad_maps(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_maps); i++) {
        ferry_map *map = NULL;
        ferry_error error = {""};
        ferry_status status = try_map(bad_maps[i].map, &map, &error);
        check_at(status != FERRY_OK && map == NULL, "%s: is no error", bad_maps[i].says);
        check_says(bad_maps[i].says, bad_maps[i].says, &error);
    }
}

static void test_bad_pairs(void **state)
{
    (void)state;
    ferry_map *first = map_of(BEGIN A "],'targets':[{'name':'b','shape':[4,6],'dtype':'u8',"
                                      "'source':'a'}]}");
    static const bad_row rows[] = {
        {BEGIN "{'name':'c','shape':[2],'dtype':'u8'}],'targets':[{'name':'t','shape':[4],"
               "'dtype':'u8','source':[{'tensor':'c','begin':[0],'shape':[2],'at':[2]},"
               "{'tensor':'c','begin':[0],'shape':[2],'at':[0]}]}]}",
         "\"t\" of the second map is made of \"c\" in its [0:2], which is no target of the first"},
        {BEGIN "{'name':'b','shape':[6,4],'dtype':'u8'}],'targets':[{'name':'t','shape':[6,4],"
               "'dtype':'u8','source':'b'}]}",
         "made of \"b\" in its [0:6, 0:4], which has another shape or type in the first map"},
        {BEGIN "{'name':'b','shape':[4,6],'dtype':'i8'}],'targets':[{'name':'t','shape':[4,6],"
               "'dtype':'i8','source':'b'}]}",
         "which has another shape or type in the first map"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_map *second = map_of(rows[i].map), *both = NULL;
        ferry_error error = {""};
        ferry_status status = ferry_map_compose(first, second, &both, &error);
        check_status(rows[i].says, FERRY_ERR_INVALID_INPUT, status, &error);
        check_says(rows[i].says, rows[i].says, &error);
        ferry_map_destroy(second);
    }
    ferry_map_destroy(first);
}

static void test_no_inverse(void **state)
{
    (void)state;
    static const bad_row rows[] = {
        {BEGIN A ",{'name':'b','shape':[2],'dtype':'u8'}" T("'a'"),
         "the tensor \"b\" goes to no target"},
        {BEGIN A "],'targets':[{'name':'t','shape':[3,6],'dtype':'u8','source':["
                 "{'tensor':'a','begin':[1,0],'shape':[3,6],'at':[0,0]}]}]}",
         "the element [0, 0] of \"a\" goes to no target"},
        {BEGIN A
         "],'targets':[{'name':'t{0}','count':[2],'shape':[4,6],'dtype':'u8','source':'a'}]}",
         "the element [0, 0] of \"a\" goes to \"t0\" and to \"t1\""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_map *map = map_of(rows[i].map), *inverse = NULL;
        ferry_error error = {""};
        check_status(rows[i].says, FERRY_ERR_INVALID_INPUT, ferry_map_invert(map, &inverse, &error),
                     &error);
        check_says(rows[i].says, rows[i].says, &error);
        ferry_map_destroy(map);
    }
}

static void test_filling_ends(void **state)
{
    (void)state;
    static const uint64_t shape[] = {4};
    ferry_map *map = NULL, *other = NULL;
    ferry_error error = {""};
    ferry_map_box box = FERRY_MAP_BOX_INIT;
    must(ferry_map_create(&map, &error), &error);
    check_status("not finished", FERRY_ERR_MISUSE, ferry_map_invert(map, &other, &error), &error);
    check_says("not finished", "ferry_map_invert needs a map that is finished", &error);
    assert_int_equal(ferry_map_source_count(map), 0);
    must(ferry_map_add_source(map, "s", u8, 1, shape, &error), &error);
    must(ferry_map_add_target(map, "t", u8, 1, shape, &error), &error);
    check_status("a gap", FERRY_ERR_INVALID_INPUT, ferry_map_finish(map, &error), &error);
    check_says("a gap", "the target \"t\" has no box", &error);
    box.target = "t";
    box.source = "x";
    check_status("unknown", FERRY_ERR_INVALID_INPUT, ferry_map_add_box(map, &box, &error), &error);
    check_says("unknown", "there is no source \"x\"", &error);
    must(ferry_map_add_copy(map, "t", "s", &error), &error);
    must(ferry_map_finish(map, &error), &error);
    must(ferry_map_finish(map, &error), &error);
    assert_int_equal(ferry_map_box_count(map), 1);
    check_status("finished", FERRY_ERR_MISUSE, ferry_map_add_copy(map, "t", "s", &error), &error);
    check_says("finished", "the map is finished", &error);
    check_status("nothing", FERRY_ERR_MISUSE, ferry_map_create(NULL, &error), &error);
    check_status("no map", FERRY_ERR_MISUSE, ferry_map_finish(NULL, &error), &error);
    ferry_map_destroy(map);
    ferry_map_destroy(NULL);
}

static const char sides[] =
    "],'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},"
    "'destination':{'mesh':[['tp',3]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]}}";

static text_buffer planned(const ferry_spec *spec)
{
    ferry_plan *plan = NULL;
    ferry_error error;
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    text_buffer printed = print_plan(plan);
    ferry_plan_destroy(plan);
    return printed;
}

static ferry_spec *spec_of(const char *tensors)
{
    text_buffer text = {0};
    ferry_spec *spec = NULL;
    ferry_error error;
    text_printf(&text, "{'format':'ferry.spec/1','tensors':[%s%s", tensors, sides);
    must(try_spec(text.bytes, &spec, &error), &error);
    text_cleanup(&text);
    return spec;
}

/* The plan of a spec with the map is that of the spec that says the same itself. */
static void test_a_map_in_a_spec(void **state)
{
    (void)state;
    ferry_map *map = map_of(experts);
    ferry_spec *plain = spec_of("{'name':'other','shape':[5],'dtype':'f32'},"
                                "{'name':'l.{0}.w13','count':[5],'shape':[2,8,6],'dtype':'u8'}");
    ferry_spec *said = spec_of(
        "{'name':'other','shape':[5],'dtype':'f32'},"
        "{'name':'l.{0}.w13','count':[3],'shape':[2,8,6],'dtype':'u8'},"
        "{'name':'l.3.w13','shape':[2,8,6],'dtype':'u8','source':["
        "{'tensor':'l.3.e.0.gate','begin':[0,0],'shape':[4,6],'at':[0,0,0]},"
        "{'tensor':'l.3.e.0.up','begin':[0,0],'shape':[4,6],'at':[0,4,0]},"
        "{'tensor':'l.3.e.1.gate','begin':[0,0],'shape':[4,6],'at':[1,0,0]},"
        "{'tensor':'l.3.e.1.up','begin':[0,0],'shape':[4,6],'at':[1,4,0]}]},"
        "{'name':'l.4.w13','shape':[2,8,6],'dtype':'u8','source':["
        "{'tensor':'l.4.e.0.gate','begin':[0,0],'shape':[4,6],'at':[0,0,0]},"
        "{'tensor':'l.4.e.0.up','begin':[0,0],'shape':[4,6],'at':[0,4,0]},"
        "{'tensor':'l.4.e.1.gate','begin':[0,0],'shape':[4,6],'at':[1,0,0]},"
        "{'tensor':'l.4.e.1.up','begin':[0,0],'shape':[4,6],'at':[1,4,0]}]},"
        "{'name':'l.{0}.e.{1}.gate','count':[5,2],'shape':[4,6],'dtype':'u8','only':'source'},"
        "{'name':'l.{0}.e.{1}.up','count':[5,2],'shape':[4,6],'dtype':'u8','only':'source'}");
    ferry_spec *fed = NULL;
    ferry_error error;
    must(ferry_map_apply(map, plain, &fed, &error), &error);
    /* l.0 to l.2 have no map: they are at the source; and unused sources make no move. */
    text_buffer a = planned(fed), b = planned(said);
    assert_string_equal(strstr(a.bytes, "\"moves\""), strstr(b.bytes, "\"moves\""));
    text_cleanup(&a);
    text_cleanup(&b);
    ferry_map_destroy(map);
    ferry_spec_destroy(plain);
    ferry_spec_destroy(said);
    ferry_spec_destroy(fed);
}

/* A side in boxes: parameter number `parameter` of a rank is a tensor, its elements by strides. */
static void add_parameter(ferry_side *side, uint32_t rank, const char *parameter,
                          const char *tensor, uint32_t n_dims, const uint64_t *shape,
                          const uint64_t *strides)
{
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    ferry_error error;
    uint64_t n = 1;
    size_t number;
    box.tensor = tensor;
    box.n_dims = n_dims;
    for (uint32_t d = 0; d < n_dims; d++) {
        box.shape[d] = shape[d];
        box.strides[d] = strides[d];
        n *= shape[d];
    }
    must(ferry_side_add_tensor(side, tensor, u8, n_dims, shape, &error), &error);
    must(ferry_side_add_parameter(side, &rank, 1, parameter, NULL, n, 0, &number, &error), &error);
    must(ferry_side_add_box(side, number, &box, &error), &error);
}

/* Both sides are boxes, one transposed, and the map is in between. */
static void test_a_map_between_sides_in_boxes(void **state)
{
    (void)state;
    static const uint64_t part[] = {8, 6}, rows[] = {6, 1}, stack[] = {2, 8, 6},
                          turned[] = {48, 1, 8};
    ferry_side *source = NULL, *destination = NULL;
    ferry_spec *spec = NULL, *fed = NULL;
    ferry_error error;
    ferry_map *map = map_of(BEGIN "{'name':'e.{0}','count':[2],'shape':[8,6],'dtype':'u8'}],"
                                  "'targets':[{'name':'w13','shape':[2,8,6],'dtype':'u8','source':["
                                  "{'tensor':'e.{0}','begin':[0,0],'shape':[8,6],'at':[0,0,0],"
                                  "'repeat':[{'count':2,'at':[1,0,0]}]}]}]}");
    must(ferry_side_create(&source, &error), &error);
    must(ferry_side_create(&destination, &error), &error);
    add_parameter(source, 0, "expert.0", "e.0", 2, part, rows);
    add_parameter(source, 1, "expert.1", "e.1", 2, part, rows);
    add_parameter(destination, 2, "w13.T", "w13", 3, stack, turned);
    must(ferry_spec_create(NULL, source, destination, &spec, &error), &error);
    must(ferry_map_apply(map, spec, &fed, &error), &error);
    text_buffer printed = planned(fed);
    assert_non_null(strstr(printed.bytes, "\"source\":\"e.1\",\"from\":1,\"to\":2"));
    assert_non_null(strstr(printed.bytes, "\"offset\":48,\"strides\":[1,1,8]"));
    text_cleanup(&printed);
    ferry_side_destroy(source);
    ferry_side_destroy(destination);
    ferry_spec_destroy(spec);
    ferry_spec_destroy(fed);
    ferry_map_destroy(map);
}

static void test_maps_that_do_not_fit_a_spec(void **state)
{
    (void)state;
    static const char swap[] =
        BEGIN "{'name':'a','shape':[4],'dtype':'u8'},{'name':'b','shape':[4],'dtype':'u8'}],"
              "'targets':[{'name':'a','shape':[4],'dtype':'u8','source':'b'},"
              "{'name':'b','shape':[4],'dtype':'u8','source':'a'}]}";
    static const char same[] = BEGIN "{'name':'a','shape':[4],'dtype':'u8'}],'targets':["
                                     "{'name':'a','shape':[4],'dtype':'u8','source':'a'},"
                                     "{'name':'head','shape':[4],'dtype':'u8','source':'a'}]}";
    static const struct {
        const char *map, *tensors, *says; /* NULL: it fits */
    } rows[] = {
        {swap, "{'name':'a','shape':[4],'dtype':'u8'},{'name':'b','shape':[4],'dtype':'u8'}",
         "rename one of them"},
        {swap, "{'name':'x','shape':[4],'dtype':'u8'}",
         "no tensor of the spec is one of the 2 targets"},
        {same, "{'name':'head','shape':[2,2],'dtype':'u8'}",
         "another shape or type in the spec than as a target"},
        {same,
         "{'name':'head','shape':[4],'dtype':'u8'},{'name':'a','shape':[4],'dtype':'i8','only':'"
         "source'}",
         "\"a\" has another shape or type"},
        {same,
         "{'name':'head','shape':[4],'dtype':'u8'},{'name':'y','shape':[4],'dtype':'u8'},"
         "{'name':'a','shape':[4],'dtype':'u8','source':'y'}",
         "rename one of them"},
        {same, "{'name':'head','shape':[4],'dtype':'u8'},{'name':'a','shape':[4],'dtype':'u8'}",
         NULL},
        {same, "{'name':'head','shape':[4],'dtype':'u8'}", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_map *map = map_of(rows[i].map);
        ferry_spec *spec = spec_of(rows[i].tensors), *fed = NULL;
        ferry_error error = {""};
        ferry_status status = ferry_map_apply(map, spec, &fed, &error);
        if (rows[i].says == NULL) {
            check_status(rows[i].tensors, FERRY_OK, status, &error);
            text_buffer printed = planned(fed);
            assert_non_null(strstr(printed.bytes, "\"tensor\":\"head\",\"source\":\"a\""));
            text_cleanup(&printed);
        } else {
            check_status(rows[i].says, FERRY_ERR_INVALID_INPUT, status, &error);
            check_says(rows[i].says, rows[i].says, &error);
        }
        ferry_map_destroy(map);
        ferry_spec_destroy(spec);
        ferry_spec_destroy(fed);
    }
}

/* Names that look like patterns are written so that they are read as they are. */
static void test_names_with_braces(void **state)
{
    (void)state;
    ferry_map *map = NULL, *again = NULL;
    ferry_error error;
    must(ferry_map_create(&map, &error), &error);
    for (int i = 0; i < 3; i++) {
        char source[20], target[20];
        snprintf(source, sizeof source, "s{0}.%d", i);
        snprintf(target, sizeof target, "t.%d", i);
        must(ferry_map_add_source(map, source, u8, 0, NULL, &error), &error);
        must(ferry_map_add_target(map, target, u8, 0, NULL, &error), &error);
        must(ferry_map_add_copy(map, target, source, &error), &error);
    }
    must(ferry_map_finish(map, &error), &error);
    text_buffer printed = print_map(map);
    must(ferry_map_parse(printed.bytes, printed.used, "map", &again, &error), &error);
    check_equal(map, again);
    text_cleanup(&printed);
    ferry_map_destroy(map);
    ferry_map_destroy(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_said_by_hand_and_by_a_file_is_equal),
        cmocka_unit_test(test_tensors_and_boxes_are_looked_up),
        cmocka_unit_test(test_the_order_of_names),
        cmocka_unit_test(test_a_map_and_its_inverse),
        cmocka_unit_test(test_bad_maps),
        cmocka_unit_test(test_bad_pairs),
        cmocka_unit_test(test_no_inverse),
        cmocka_unit_test(test_filling_ends),
        cmocka_unit_test(test_a_map_in_a_spec),
        cmocka_unit_test(test_a_map_between_sides_in_boxes),
        cmocka_unit_test(test_maps_that_do_not_fit_a_spec),
        cmocka_unit_test(test_names_with_braces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
