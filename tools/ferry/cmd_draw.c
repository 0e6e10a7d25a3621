/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "draw.h"
#include "options.h"
#include "output.h"
#include "plan.h"
#include "steps.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: ferry draw [OPTION]... SPEC\n"
    "\n"
    "Draws how one tensor gets from one layout to another, as an SVG picture: what each rank\n"
    "holds before and after, and which rank sends it what. SPEC is a JSON file that says how each\n"
    "side cuts the tensors (ferry.spec/1: see examples/ and docs/formats.md). The tensor is drawn\n"
    "as a matrix: its last dimension runs to the right, the others are folded into rows. Ranks\n"
    "that hold the same elements are drawn in copies of the matrix.\n";

static const char more_help[] =
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (one sentence on stderr), 2 wrong usage\n"
    "\n"
    "Examples:\n"
    "  ferry draw examples/run/rows-to-columns.json --out picture.svg\n"
    "  ferry draw examples/llama-tiny.json --out tiny.svg\n";

typedef struct draw_request {
    const char *path;
    const char *tensor;
    const char *out;
} draw_request;

enum { OPT_TENSOR = 256, OPT_OUT };

static const option_row rows[] = {
    OPTION("tensor", "NAME", OPT_TENSOR,
           "the destination tensor to draw; default: the one that is cut into most moves, "
           "up to 64, and of several the largest"),
    OPTION("out", "FILE", OPT_OUT,
           "write to FILE, which is replaced when the picture is complete; default: standard "
           "output"),
    OPTION_END};

static int apply_option(int option, void *request)
{
    draw_request *r = request;
    *(option == OPT_TENSOR ? &r->tensor : &r->out) = optarg;
    return EXIT_DONE;
}

/* More boxes than these are no picture for people. */
enum { MOST_MOVES = 64 };

/* The tensor that is worth a picture: the one that is cut into most moves, while they can be told
 * apart, of several the largest, and of these the first. */
typedef struct choice {
    const char *tensor; /* of the plan */
    const char *current;
    uint64_t n_moves;
    uint64_t bytes;
    uint64_t most_moves;
    uint64_t most_bytes;
    bool is_fine; /* the chosen has more than MOST_MOVES */
} choice;

static bool is_better(const choice *c)
{
    bool is_fine = c->n_moves > MOST_MOVES;
    if (c->tensor == NULL || is_fine != c->is_fine) {
        return c->tensor == NULL || !is_fine;
    }
    return c->n_moves > c->most_moves || (c->n_moves == c->most_moves && c->bytes > c->most_bytes);
}

static void close_tensor(choice *c)
{
    if (c->current != NULL && is_better(c)) {
        c->is_fine = c->n_moves > MOST_MOVES;
        c->tensor = c->current;
        c->most_moves = c->n_moves;
        c->most_bytes = c->bytes;
    }
}

/* Moves come in order of task ids, which is the order of tensors. */
static ferry_status count_move(void *context, const ferry_move *move)
{
    choice *c = context;
    if (c->current == NULL || strcmp(c->current, move->tensor) != 0) {
        close_tensor(c);
        c->current = move->tensor;
        c->n_moves = 0;
        c->bytes = 0;
    }
    c->n_moves++;
    c->bytes += move->bytes;
    return FERRY_OK;
}

/*
 * Patterns have no way to write * and ? as themselves, but a name with them fits itself; a comma
 * and a ! at the begin, which mean something between patterns, are any byte here.
 */
static ferry_status plan_tensor(const ferry_spec *spec, const char *tensor, ferry_plan **plan_out,
                                ferry_error *error)
{
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    char *pattern = tensor == NULL ? NULL : strdup(tensor);
    if (tensor != NULL && pattern == NULL) {
        snprintf(error->message, sizeof error->message, "no memory for a tensor's name");
        return FERRY_ERR_NO_MEMORY;
    }
    for (char *at = pattern; at != NULL && *at != '\0'; at++) {
        *at = *at == ',' || (*at == '!' && at == pattern) ? '?' : *at;
    }
    options.subset = pattern;
    ferry_status status = ferry_plan_create(spec, &options, plan_out, error);
    free(pattern);
    return status;
}

static ferry_status choose(const ferry_spec *spec, char **tensor_out, ferry_error *error)
{
    ferry_plan *plan = NULL;
    choice c = {0};
    ferry_status status = plan_tensor(spec, NULL, &plan, error);
    FY_THEN(status, ferry_plan_visit(plan, FERRY_ALL_RANKS, count_move, &c, NULL, error));
    if (status == FERRY_OK) {
        close_tensor(&c);
        *tensor_out = strdup(c.tensor == NULL ? "*" : c.tensor);
        if (*tensor_out == NULL) {
            snprintf(error->message, sizeof error->message, "no memory for a tensor's name");
            status = FERRY_ERR_NO_MEMORY;
        }
    }
    ferry_plan_destroy(plan);
    return status;
}

static ferry_status write_picture(const draw_request *r, const draw_picture *picture,
                                  ferry_error *error)
{
    return r->out == NULL ? draw_write_svg(picture, stdout, error)
                          : replace_file(r->out, draw_write_svg, picture, error);
}

static ferry_status draw(const draw_request *r, const ferry_spec *spec, ferry_error *error)
{
    char *chosen = NULL;
    ferry_plan *plan = NULL;
    draw_picture picture = {0};
    ferry_status status = r->tensor == NULL ? choose(spec, &chosen, error) : FERRY_OK;
    if (status == FERRY_OK) {
        status = plan_tensor(spec, r->tensor == NULL ? chosen : r->tensor, &plan, error);
        if (status == FERRY_ERR_INVALID_PLAN && r->tensor != NULL) {
            snprintf(error->message, sizeof error->message,
                     "no rank of the destination holds a tensor \"%.400s\", or it has no element; "
                     "`ferry inspect` lists the tensors of a spec",
                     r->tensor);
        }
    }
    FY_THEN(status, draw_collect(plan, &picture, error));
    FY_THEN(status, write_picture(r, &picture, error));
    draw_cleanup(&picture);
    ferry_plan_destroy(plan);
    free(chosen);
    return status;
}

static int run(int argc, char **argv)
{
    draw_request r = {0};
    int status = parse_options(&command_draw, argc, argv, apply_option, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("draw", optind == argc ? "a SPEC is needed" : "one SPEC, not several");
    }
    ferry_error error;
    ferry_spec *spec = NULL;
    r.path = argv[optind];
    if (plan_is_saved(r.path)) {
        return fail_usage("draw", "%s is a saved plan: give the spec that it was made from",
                          r.path);
    }
    note_input(r.path);
    status = check_output("draw", "--out", r.out);
    if (status != EXIT_DONE) {
        return status;
    }
    ferry_status done = plan_load_spec(r.path, &spec, &error);
    if (done == FERRY_OK) {
        done = draw(&r, spec, &error);
    }
    ferry_spec_destroy(spec);
    return done == FERRY_OK ? EXIT_DONE : fail("draw", error.message);
}

const command command_draw = {.name = "draw",
                              .group = "Plan and move",
                              .summary = "draw how a tensor gets from one layout to another",
                              .help = help,
                              .options = rows,
                              .more_help = more_help,
                              .run = run};
