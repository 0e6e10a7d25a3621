/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "html.h"
#include "plan.h"
#include "steps.h"
#include "terminal.h"
#include "units.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
    "Usage: ferry plan [OPTION]... SPEC\n"
    "       ferry plan --names NAMES [OPTION]... CONFIG\n"
    "\n"
    "Plans how the weights of a sharded model get from one layout to another: which box of which\n"
    "tensor goes from which rank to which, and with --schedule also when. SPEC is a JSON file "
    "that\n"
    "names the tensors and says how each side cuts them over its ranks (ferry.spec/1: see "
    "examples/\n"
    "and docs/formats.md), or a plan that was saved with --save. Nothing is moved, and no other\n"
    "machine is needed: a plan of 16,384 ranks is made on a laptop.\n"
    "\n"
    "Without options it prints a table: the bytes that travel and stay, the busiest ranks, how\n"
    "well the senders share the work, and the least that the busiest could do: no plan beats that\n"
    "bound in which receivers pass nothing on. The bound with relays, which --schedule prints, is\n"
    "that of all schedules.\n";

static const char more_help[] =
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (one sentence on stderr), 2 wrong usage\n"
    "\n"
    "Examples:\n"
    "  ferry plan examples/llama-3-70b.json\n"
    "  ferry plan examples/kimi-k2-16384.json --rank 5 --json\n"
    "  ferry plan examples/llama-3-70b-disjoint.json --schedule\n"
    "  ferry plan examples/llama-tiny.json --schedule=first-fit --slot-bytes 64K --json\n"
    "  ferry plan examples/llama-tiny.json --trace llama-tiny.trace.json\n"
    "  ferry plan examples/llama-tiny.json --schedule --html llama-tiny.html\n"
    "  ferry plan --names megatron:vllm --from tp=8,pp=4 --to tp=4 --first-rank 32 "
    "config.json\n";

/* A saved plan names its format in its first bytes: ferry writes it so. */
bool plan_is_saved(const char *path)
{
    static const char begin[] = "{\"format\":\"ferry.saved-plan/";
    char bytes[sizeof begin - 1];
    FILE *file = fopen(path, "rb");
    bool saved = file != NULL && fread(bytes, 1, sizeof bytes, file) == sizeof bytes &&
                 memcmp(bytes, begin, sizeof bytes) == 0;
    if (file != NULL) {
        fclose(file);
    }
    return saved;
}

enum { MOST_CONFIG_BYTES = 1 << 20 };

/* Whether the file is JSON that says what Hugging Face's config.json says, and no spec. */
static bool is_model(const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > MOST_CONFIG_BYTES) {
        return false;
    }
    json_t *json = json_load_file(path, 0, NULL);
    bool is = json_object_get(json, "format") == NULL &&
              (json_object_get(json, "architectures") != NULL ||
               json_object_get(json, "model_type") != NULL);
    json_decref(json);
    return is;
}

/* A model's folder, or the config.json in it, is no spec, but a plan can be made of it. */
static void point_to_names(const char *path, ferry_error *error)
{
    char inside[4096];
    size_t used = strlen(error->message);
    snprintf(inside, sizeof inside, "%s/config.json", path);
    if (is_model(path) || is_model(inside)) {
        snprintf(error->message + used, sizeof error->message - used,
                 "; a model is planned with --names, as in `ferry plan --names megatron:vllm --to "
                 "tp=4 CONFIG`, where --save saves that plan for ferry run; ferry simulate takes "
                 "--names, too");
    }
}

ferry_status plan_load_spec(const char *path, ferry_spec **spec_out, ferry_error *error)
{
    ferry_status status = ferry_spec_load(path, spec_out, error);
    if (status != FERRY_OK) {
        point_to_names(path, error);
    }
    return status;
}

static ferry_status open_spec(const char *who, const char *path, const ferry_plan_options *planning,
                              ferry_plan **plan_out, ferry_error *error)
{
    ferry_spec *spec = NULL;
    ferry_status status = plan_load_spec(path, &spec, error);
    FY_THEN(status, ferry_plan_create(spec, planning, plan_out, error));
    FY_THEN(status, plan_note_unused(who, spec, error)); /* once all is well */
    ferry_spec_destroy(spec);
    return status;
}

ferry_status plan_open(const char *who, const char *path, const ferry_plan_options *planning,
                       ferry_plan **plan_out, ferry_error *error)
{
    ferry_plan *plan = NULL;
    ferry_status status = plan_is_saved(path) ? ferry_plan_load(path, &plan, error)
                                              : open_spec(who, path, planning, &plan, error);
    FY_THEN(status, plan_note_idle(who, plan, error));
    if (status == FERRY_OK) {
        *plan_out = plan;
        plan = NULL;
    }
    ferry_plan_destroy(plan);
    return status;
}

int write_stream(void *context, const char *bytes, size_t n_bytes)
{
    return fwrite(bytes, 1, n_bytes, context) == n_bytes ? 0 : -1;
}

enum { TEMPORARY_BYTES = 512 };

typedef ferry_status (*write_json_fn)(const void *what, FILE *file, ferry_error *error);

static ferry_status write_plan(const void *plan, FILE *file, ferry_error *error)
{
    return ferry_plan_write_json(plan, NULL, write_stream, file, error);
}

static ferry_status write_spec(const void *spec, FILE *file, ferry_error *error)
{
    return ferry_spec_write_json(spec, write_stream, file, error);
}

/* A file that the caller unlinks, also after a failure; path "" if there is none. */
static ferry_status write_temporary(const void *what, write_json_fn write_json,
                                    char path[TEMPORARY_BYTES], ferry_error *error)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, TEMPORARY_BYTES, "%s/ferry-plan-XXXXXX", folder == NULL ? "/tmp" : folder);
    int descriptor = mkstemp(path);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (file == NULL) {
        snprintf(error->message, sizeof error->message, "%.400s: cannot be created: %s", path,
                 strerror(errno));
        path[0] = '\0';
        return FERRY_ERR_IO;
    }
    ferry_status status = write_json(what, file, error);
    if (fclose(file) != 0 && status == FERRY_OK) {
        snprintf(error->message, sizeof error->message, "%.400s: cannot be written", path);
        status = FERRY_ERR_IO;
    }
    return status;
}

/* The proof reads what a user of --json would read: the plan goes through a file, and so does a
 * spec that was made of names. */
static ferry_status prove(const plan_request *r, const ferry_plan *plan, ferry_proof *proof,
                          ferry_error *error)
{
    char path[TEMPORARY_BYTES], spec_path[TEMPORARY_BYTES] = "";
    ferry_spec *spec = NULL;
    ferry_status status = write_temporary(plan, write_plan, path, error);
    if (r->model.names != NULL) {
        FY_THEN(status, plan_name_spec(NULL, &r->model, r->path, &spec, error));
        FY_THEN(status, write_temporary(spec, write_spec, spec_path, error));
        ferry_spec_destroy(spec);
    }
    const char *from = r->model.names != NULL ? spec_path : r->path;
    FY_THEN(status, ferry_plan_prove(from, path, proof, error));
    unlink(path);
    unlink(spec_path);
    return status;
}

/* schedule may be NULL: then the plan is printed without one. */
static int print_json(const plan_request *r, const ferry_plan *plan, const ferry_schedule *schedule)
{
    ferry_error error;
    ferry_plan_json_options options = FERRY_PLAN_JSON_OPTIONS_INIT;
    options.summary = r->summary;
    options.rank = r->has_rank ? r->rank : FERRY_ALL_RANKS;
    ferry_status status =
        schedule == NULL
            ? ferry_plan_write_json(plan, &options, write_stream, stdout, &error)
            : ferry_schedule_write_json(schedule, plan, &options, write_stream, stdout, &error);
    return status == FERRY_OK ? EXIT_DONE : fail("plan", error.message);
}

static int check_request(const plan_request *r, const ferry_plan *plan)
{
    char text[128];
    uint32_t n_ranks = ferry_plan_rank_count(plan);
    if (r->has_rank && r->rank >= n_ranks) {
        snprintf(text, sizeof text, "--rank: rank %u is not in the world of %u rank%s", r->rank,
                 n_ranks, plural(n_ranks));
        return fail("plan", text);
    }
    /* The library passes over them, as a world may be larger than a plan; here it is a slip. */
    for (size_t i = 0; i < r->planning.n_lost_ranks; i++) {
        if (r->lost[i] >= n_ranks) {
            snprintf(text, sizeof text, "--without: rank %u is not in the world of %u rank%s",
                     r->lost[i], n_ranks, plural(n_ranks));
            return fail("plan", text);
        }
    }
    return EXIT_DONE;
}

static int print_all(const plan_request *r, const ferry_plan *plan, const ferry_schedule *schedule,
                     const ferry_proof *proof)
{
    if (r->json) {
        return print_json(r, plan, schedule);
    }
    if (terminal_loudness() == LOUDNESS_QUIET) {
        return EXIT_DONE;
    }
    int status = plan_print_table(r, plan);
    if (status == EXIT_DONE && schedule != NULL) {
        status = plan_print_schedule(r, plan, schedule);
    }
    if (status == EXIT_DONE && r->prove) {
        char text[2][UNIT_TEXT_BYTES];
        printf("\nProven: %s move%s write%s every element of %s destination shard%s exactly once\n",
               format_count(proof->n_moves, text[0]), plural(proof->n_moves),
               proof->n_moves == 1 ? "s" : "", format_count(proof->n_destination_shards, text[1]),
               plural(proof->n_destination_shards));
    }
    return status;
}

/* ---- what takes long ---- */

static bool show_schedule(void *context, const ferry_schedule_progress *p)
{
    terminal_clock_turn_to(context, p->doing);
    if (p->ratio > 0) {
        terminal_step("plan", "%s; the best so far takes %.4f times the bound with relays",
                      p->doing, p->ratio);
    } else {
        terminal_step("plan", "%s", p->doing);
    }
    return true;
}

static ferry_status make_schedule(const plan_request *r, const ferry_plan *plan,
                                  ferry_schedule **schedule_out, ferry_error *error)
{
    ferry_schedule_options options = r->scheduling;
    terminal_clock *clock = terminal_clock_begin("scheduling");
    options.progress = show_schedule;
    options.context = clock;
    ferry_status status = ferry_schedule_create_for_plan(plan, &options, schedule_out, error);
    terminal_clock_end(clock);
    return status;
}

static ferry_status prove_slowly(const plan_request *r, const ferry_plan *plan, ferry_proof *proof,
                                 ferry_error *error)
{
    terminal_clock *clock = terminal_clock_begin("proving");
    ferry_status status = prove(r, plan, proof, error);
    terminal_clock_end(clock);
    return status;
}

static ferry_status plan_of_names(const plan_request *r, ferry_plan **plan_out, ferry_error *error)
{
    ferry_spec *spec = NULL;
    ferry_status status = plan_name_spec("plan", &r->model, r->path, &spec, error);
    FY_THEN(status, ferry_plan_create(spec, &r->planning, plan_out, error));
    FY_THEN(status, plan_note_idle("plan", *plan_out, error));
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status make_plan(const plan_request *r, ferry_plan **plan_out, ferry_error *error)
{
    terminal_clock *clock = terminal_clock_begin("planning");
    ferry_status status = r->model.names != NULL
                              ? plan_of_names(r, plan_out, error)
                              : plan_open("plan", r->path, &r->planning, plan_out, error);
    terminal_clock_end(clock);
    return status;
}

static int write_report(const plan_request *r, const ferry_plan *plan,
                        const ferry_schedule *schedule)
{
    ferry_error error;
    terminal_clock *clock = terminal_clock_begin("writing the report");
    ferry_status status =
        html_write_plan(r->html, "ferry plan", r->path, plan, schedule, NULL, &error);
    terminal_clock_end(clock);
    return status == FERRY_OK ? EXIT_DONE : fail("plan", error.message);
}

/* What may fail comes before what prints and what leaves files. */
static int run_request(const plan_request *r, const ferry_plan *plan)
{
    ferry_error error;
    ferry_proof proof = FERRY_PROOF_INIT;
    ferry_schedule *schedule = NULL;
    int status = check_request(r, plan);
    if (status != EXIT_DONE) {
        return status;
    }
    if ((r->prove && prove_slowly(r, plan, &proof, &error) != FERRY_OK) ||
        (r->has_schedule && make_schedule(r, plan, &schedule, &error) != FERRY_OK) ||
        (r->save != NULL && ferry_plan_save(plan, r->save, &error) != FERRY_OK)) {
        status = fail("plan", error.message);
        goto out;
    }
    if (r->trace != NULL) {
        status = plan_write_trace(schedule, r->trace);
    }
    if (status == EXIT_DONE && r->html != NULL) {
        status = write_report(r, plan, schedule);
    }
    if (status == EXIT_DONE) {
        status = print_all(r, plan, schedule, &proof);
    }
out:
    ferry_schedule_destroy(schedule);
    return status;
}

static int open_and_run(const plan_request *r)
{
    if (r->model.names == NULL && (r->has_planning_option || r->prove) && plan_is_saved(r->path)) {
        return fail_usage("plan",
                          "a saved plan has its own --replica, tensors and --without, and --prove "
                          "needs the spec");
    }
    ferry_error error;
    ferry_plan *plan = NULL;
    if (make_plan(r, &plan, &error) != FERRY_OK) {
        return fail("plan", error.message);
    }
    int status = run_request(r, plan);
    ferry_plan_destroy(plan);
    return status;
}

static int run(int argc, char **argv)
{
    plan_request r;
    int status = plan_parse_arguments(argc, argv, &r);
    if (status == EXIT_DONE) {
        status = open_and_run(&r);
    }
    plan_request_cleanup(&r);
    return status;
}

const command command_plan = {.name = "plan",
                              .group = "Plan and move",
                              .summary = "plan a move between two layouts, and predict its time",
                              .help = help,
                              .options = plan_option_rows,
                              .more_help = more_help,
                              .run = run};
