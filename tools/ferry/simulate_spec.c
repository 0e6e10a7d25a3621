/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From the spec to one of each case: its JSON with other sizes of axes, another cluster, and the
 * destination's ranks in another order. The planner reads each as it reads any spec, so a layout
 * that does not go gets the planner's own sentence.
 */
#include "plan.h"
#include "simulate.h"

#include "steps.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_AXES = 16, MOST_ORDER_AXES = 4, MOST_CLUSTER_BYTES = 1 << 20 };

typedef struct cluster_file {
    json_t *json; /* as a spec has it */
    char name[64];
    double copy_rate;     /* in bytes per second; 0: it has none */
    double row_seconds;   /* that a byte in short rows takes beside that */
    double piece_seconds; /* and each piece of a tensor */
} cluster_file;

typedef struct simulating {
    const simulate_request *request;
    json_t *root; /* of the spec */
    cluster_file clusters[SIMULATE_MOST_LISTS];
    size_t n_clusters;
    simulate_cases *cases;
    ferry_error *error;
} simulating;

static ferry_status fail_with(simulating *s, const char *format, const char *text)
{
    snprintf(s->error->message, sizeof s->error->message, format, text);
    return FERRY_ERR_INVALID_INPUT;
}

static ferry_status fail_memory(simulating *s)
{
    snprintf(s->error->message, sizeof s->error->message, "no memory for a spec");
    return FERRY_ERR_NO_MEMORY;
}

/* ---- clusters ---- */

/* What a cluster file says beside what a spec's "cluster" does. */
static void take_name(cluster_file *cluster, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = json_string_value(json_object_get(cluster->json, "name"));
    snprintf(cluster->name, sizeof cluster->name, "%.60s",
             name != NULL    ? name
             : slash == NULL ? path
                             : slash + 1);
    json_object_del(cluster->json, "format");
    json_object_del(cluster->json, "name");
    json_object_del(cluster->json, "comment");
}

typedef struct limits {
    double least, most;
    const char *text;
} limits;

/* A number of a cluster file that a spec has not, taken out; *found stays where there is none. */
static ferry_status take_number(simulating *s, cluster_file *cluster, const char *path,
                                const char *key, const limits *l, double *found)
{
    const json_t *value = json_object_get(cluster->json, key);
    if (value == NULL) {
        return FERRY_OK;
    }
    double number = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(number >= l->least && number <= l->most)) {
        snprintf(s->error->message, sizeof s->error->message,
                 "%.400s: \"%s\" must be a number from %s", path, key, l->text);
        return FERRY_ERR_INVALID_INPUT;
    }
    *found = number;
    json_object_del(cluster->json, key);
    return FERRY_OK;
}

/* What the CPUs of a node copy together: a limit of memory, which the network of a spec has not. */
static ferry_status take_copies(simulating *s, cluster_file *cluster, const char *path)
{
    static const char all[] = "copy_all_gbytes_per_s", rows[] = "copy_rows_gbytes_per_s";
    static const char piece[] = "copy_piece_ns";
    static const limits rates = {1e-9, 1e12, "1e-9 to 1e12"}, times = {0, 1e9, "0 to 1e9"};
    bool has_rows = json_object_get(cluster->json, rows) != NULL;
    bool has_piece = json_object_get(cluster->json, piece) != NULL;
    double rate = 0, row_rate = 0, piece_ns = 0;
    FY_TRY(take_number(s, cluster, path, all, &rates, &rate));
    FY_TRY(take_number(s, cluster, path, rows, &rates, &row_rate));
    FY_TRY(take_number(s, cluster, path, piece, &times, &piece_ns));
    if (rate <= 0 && (has_rows || has_piece)) {
        snprintf(s->error->message, sizeof s->error->message, "%.400s: \"%s\" needs \"%s\"", path,
                 has_rows ? rows : piece, all);
        return FERRY_ERR_INVALID_INPUT;
    }
    cluster->copy_rate = 1e9 * rate;
    cluster->row_seconds = has_rows && row_rate < rate ? 1e-9 / row_rate - 1e-9 / rate : 0;
    cluster->piece_seconds = 1e-9 * piece_ns;
    return FERRY_OK;
}

/* A spec does not know what a file has besides. */
static void name_own_keys(char *sentence, size_t room)
{
    size_t length = strlen(sentence);
    if (strstr(sentence, "unknown key") != NULL) {
        snprintf(sentence + length, room - length,
                 ", and in a file format, name, comment, copy_all_gbytes_per_s, "
                 "copy_rows_gbytes_per_s, copy_piece_ns");
    }
}

/* A cluster is wrong for all layouts or for none: a spec of one rank shows which. */
static ferry_status check_cluster(simulating *s, json_t *cluster, const char *path)
{
    ferry_spec *spec = NULL;
    json_t *root = json_pack("{s:s,s:[{s:s,s:[i],s:s}],s:{s:[],s:[{s:s}]},s:{s:[],s:[{s:s}]},s:O}",
                             "format", "ferry.spec/1", "tensors", "name", "w", "shape", 1, "dtype",
                             "u8", "source", "mesh", "rules", "match", "*", "destination", "mesh",
                             "rules", "match", "*", "cluster", cluster);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    ferry_status status =
        text == NULL ? fail_memory(s) : ferry_spec_parse(text, strlen(text), path, &spec, s->error);
    if (status != FERRY_OK) {
        name_own_keys(s->error->message, sizeof s->error->message);
    }
    ferry_spec_destroy(spec);
    json_decref(root);
    free(text);
    return status;
}

static ferry_status read_cluster(simulating *s, const char *path)
{
    json_t *json = NULL;
    FY_TRY(simulate_load_cluster(path, &json, s->error));
    const char *format = json_string_value(json_object_get(json, "format"));
    cluster_file *cluster = &s->clusters[s->n_clusters++];
    cluster->json = json;
    if (format == NULL || strcmp(format, "ferry.cluster/1") != 0) {
        return fail_with(s, "%.400s: \"format\" must be \"ferry.cluster/1\"", path);
    }
    take_name(cluster, path);
    FY_TRY(take_copies(s, cluster, path));
    return check_cluster(s, json, path);
}

static ferry_status read_clusters(simulating *s)
{
    for (size_t i = 0; i < s->request->n_clusters; i++) {
        FY_TRY(read_cluster(s, s->request->clusters[i]));
    }
    if (s->n_clusters == 0) {
        json_t *own = json_object_get(s->root, "cluster");
        if (own == NULL) {
            return fail_with(s,
                             "%.400s has no \"cluster\": give one with --cluster, such as "
                             "--cluster 8xh100-400g",
                             s->request->path);
        }
        s->clusters[0].json = json_incref(own);
        snprintf(s->clusters[0].name, sizeof s->clusters[0].name, "the spec's");
        s->n_clusters = 1;
    }
    return FERRY_OK;
}

static double number_of(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

/* A node's rates become less; whether it is in the cluster at all, the prediction says. */
static bool slow_node(json_t *cluster, const simulate_fault *fault)
{
    static const char *const keys[] = {"node_gbytes_per_s", "rank_gbytes_per_s"};
    char number[16];
    snprintf(number, sizeof number, "%u", fault->node);
    json_t *nodes = json_object_get(cluster, "nodes");
    if (nodes == NULL) {
        nodes = json_object();
        if (json_object_set_new(cluster, "nodes", nodes) != 0) {
            return false;
        }
    }
    json_t *node = json_object_get(nodes, number);
    if (node == NULL) {
        node = json_object();
        if (json_object_set_new(nodes, number, node) != 0) {
            return false;
        }
    }
    for (size_t i = 0; i < (fault->is_network ? 1 : 2); i++) {
        double rate = number_of(node, keys[i], number_of(cluster, keys[i], 0));
        if (json_object_set_new(node, keys[i], json_real(rate * fault->factor)) != 0) {
            return false;
        }
    }
    return true;
}

/* ---- layouts ---- */

static json_t *mesh_of(json_t *root, bool is_source)
{
    json_t *side = json_object_get(root, is_source ? "source" : "destination");
    return json_object_get(side, "mesh");
}

/* The axis [name, size] of a mesh, or NULL. */
static json_t *axis_of(json_t *mesh, const char *name)
{
    for (size_t i = 0; i < json_array_size(mesh); i++) {
        json_t *axis = json_array_get(mesh, i);
        const char *own = json_string_value(json_array_get(axis, 0));
        if (own != NULL && strcmp(own, name) == 0) {
            return axis;
        }
    }
    return NULL;
}

static uint64_t ranks_of(json_t *mesh)
{
    uint64_t n = 1;
    for (size_t i = 0; i < json_array_size(mesh); i++) {
        n *= (uint64_t)json_integer_value(json_array_get(json_array_get(mesh, i), 1));
    }
    return n;
}

/* The axis of --fit takes what the number of ranks leaves it; false: that is no whole number. */
static bool fit_ranks(json_t *mesh, const char *fit, uint64_t wanted)
{
    json_t *axis = axis_of(mesh, fit);
    uint64_t own = axis == NULL ? 0 : (uint64_t)json_integer_value(json_array_get(axis, 1));
    if (own == 0 || wanted == ranks_of(mesh)) {
        return wanted == ranks_of(mesh);
    }
    uint64_t others = ranks_of(mesh) / own;
    if (others == 0 || wanted % others != 0) {
        return false;
    }
    return json_array_set_new(axis, 1, json_integer((json_int_t)(wanted / others))) == 0;
}

/* Sizes of the sweeps, counted like an odometer: the last turns fastest. */
static ferry_status apply_sizes(simulating *s, json_t *root, const size_t *turn,
                                simulate_case *found)
{
    const simulate_request *r = s->request;
    uint64_t before[2] = {ranks_of(mesh_of(root, false)), ranks_of(mesh_of(root, true))};
    size_t used = 0;
    snprintf(found->layout, sizeof found->layout, "%s", r->n_sweeps == 0 ? "as given" : "");
    for (size_t i = 0; i < r->n_sweeps; i++) {
        const simulate_sweep *sweep = &r->sweeps[i];
        json_t *axis = axis_of(mesh_of(root, sweep->is_source), sweep->axis);
        if (axis == NULL) {
            snprintf(s->error->message, sizeof s->error->message,
                     "--sweep: the mesh of the %s has no axis \"%s\"",
                     sweep->is_source ? "source" : "destination", sweep->axis);
            return FERRY_ERR_INVALID_INPUT;
        }
        if (json_array_set_new(axis, 1, json_integer(sweep->sizes[turn[i]])) != 0) {
            return fail_memory(s);
        }
        used += (size_t)snprintf(found->layout + used, sizeof found->layout - used, "%s%s%s=%u",
                                 i == 0 ? "" : ",", sweep->is_source ? "source." : "", sweep->axis,
                                 sweep->sizes[turn[i]]);
        used = used < sizeof found->layout ? used : sizeof found->layout - 1;
    }
    for (int is_source = 0; r->fit != NULL && is_source <= 1; is_source++) {
        json_t *mesh = mesh_of(root, is_source == 1);
        if (!fit_ranks(mesh, r->fit, before[is_source])) {
            snprintf(found->error, sizeof found->error,
                     "no size of %s gives the %s its %llu ranks again", r->fit,
                     is_source == 1 ? "source" : "destination",
                     (unsigned long long)before[is_source]);
            found->is_failed = true;
        }
    }
    return FERRY_OK;
}

/* ---- one case ---- */

static simulate_case *add_case(simulating *s, const simulate_case *found)
{
    simulate_cases *cases = s->cases;
    if (cases->n == cases->capacity) {
        size_t more = cases->capacity == 0 ? 64 : cases->capacity * 2;
        simulate_case *grown = realloc(cases->at, more * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        cases->at = grown;
        cases->capacity = more;
    }
    cases->at[cases->n] = *found;
    return &cases->at[cases->n++];
}

static int compare_nodes(const void *a, const void *b)
{
    const simulate_node *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* The nodes of a cluster that have rates of their own; whether their keys are numbers, the spec
 * says. */
static simulate_node *list_nodes(const json_t *cluster, size_t *n_out)
{
    json_t *nodes = json_object_get(cluster, "nodes"), *node;
    const char *key;
    size_t n = 0;
    simulate_node *list = calloc(json_object_size(nodes) + 1, sizeof *list);
    json_object_foreach (nodes, key, node) {
        if (list == NULL) {
            break;
        }
        double rank_rate = number_of(cluster, "rank_gbytes_per_s", 1);
        double node_rate = number_of(cluster, "node_gbytes_per_s", 1);
        list[n++] =
            (simulate_node){.number = (uint32_t)strtoul(key, NULL, 10),
                            .rank_rate = 1e9 * number_of(node, "rank_gbytes_per_s", rank_rate),
                            .node_rate = 1e9 * number_of(node, "node_gbytes_per_s", node_rate)};
    }
    if (n > 0) {
        qsort(list, n, sizeof *list, compare_nodes);
    }
    *n_out = n;
    return list;
}

static void predict_json(simulating *s, json_t *root, const cluster_file *file,
                         const simulate_fault *fault, simulate_case *found)
{
    const json_t *cluster = json_object_get(root, "cluster");
    double per = number_of(cluster, "ranks_per_node", 1);
    simulate_rates rates = {.ranks_per_node = per >= 1 && per < 1e9 ? (uint32_t)per : 1,
                            .rank_rate = 1e9 * number_of(cluster, "rank_gbytes_per_s", 1),
                            .node_rate = 1e9 * number_of(cluster, "node_gbytes_per_s", 1),
                            .latency = 1e-6 * number_of(cluster, "latency_us", 0),
                            .copy_rate = file->copy_rate,
                            .row_seconds = file->row_seconds,
                            .piece_seconds = file->piece_seconds};
    ferry_spec *spec = NULL;
    ferry_error error = {.message = ""};
    if (fault != NULL) {
        rates.fault = *fault;
    }
    simulate_node *nodes = list_nodes(cluster, &rates.n_nodes);
    rates.nodes = nodes;
    char *text = nodes == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    ferry_status status = text == NULL ? FERRY_ERR_NO_MEMORY : FERRY_OK;
    FY_THEN(status, ferry_spec_parse(text, strlen(text), s->request->path, &spec, &error));
    if (status == FERRY_OK) {
        simulate_predict(s->request, spec, &rates, found);
    } else {
        found->is_failed = true;
        memcpy(found->error, text == NULL ? "no memory for a spec" : error.message,
               text == NULL ? sizeof "no memory for a spec" : sizeof found->error);
    }
    ferry_spec_destroy(spec);
    free(text);
    free(nodes);
}

/* ---- another order of the destination's ranks ---- */

/* The rank of each place of the mesh, where its axes are walked in this order, slowest first. */
static json_t *list_ranks(json_t *mesh, const size_t *order, size_t n, uint64_t first)
{
    uint64_t size[MOST_AXES], stride[MOST_AXES], step = 1, n_ranks = ranks_of(mesh);
    json_t *ranks = json_array();
    for (size_t i = 0; i < n; i++) {
        size[i] = (uint64_t)json_integer_value(json_array_get(json_array_get(mesh, i), 1));
    }
    for (size_t i = n; i-- > 0;) {
        stride[order[i]] = step;
        step *= size[order[i]];
    }
    for (uint64_t place = 0; place < n_ranks && ranks != NULL; place++) {
        uint64_t rest = place, rank = first;
        for (size_t i = n; i-- > 0;) {
            rank += rest % size[i] * stride[i];
            rest /= size[i];
        }
        if (json_array_append_new(ranks, json_integer((json_int_t)rank)) != 0) {
            json_decref(ranks);
            ranks = NULL;
        }
    }
    return ranks;
}

static bool next_order(size_t *order, size_t n)
{
    size_t i = n - 1, k = n - 1;
    while (i > 0 && order[i - 1] >= order[i]) {
        i--;
    }
    if (i == 0) {
        return false;
    }
    while (order[k] <= order[i - 1]) {
        k--;
    }
    size_t kept = order[i - 1];
    order[i - 1] = order[k];
    order[k] = kept;
    for (size_t low = i, high = n - 1; low < high; low++, high--) {
        kept = order[low];
        order[low] = order[high];
        order[high] = kept;
    }
    return true;
}

/* The best order of all, if it is worth a hundredth of the time: behind the case as it is. */
static ferry_status relabel(simulating *s, json_t *root, const cluster_file *file,
                            const simulate_fault *fault, const simulate_case *given)
{
    json_t *side = json_object_get(root, "destination"), *mesh = mesh_of(root, false);
    size_t n = json_array_size(mesh), order[MOST_AXES];
    simulate_case best = *given;
    if (n < 2 || n > MOST_ORDER_AXES || json_object_get(side, "ranks") != NULL) {
        return FERRY_OK;
    }
    uint64_t first = (uint64_t)number_of(side, "first_rank", 0);
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
    }
    while (next_order(order, n)) {
        simulate_case found = *given;
        size_t used = 0;
        found.seconds = 0;
        found.order[0] = '\0';
        for (size_t i = 0; i < n && used < sizeof found.order; i++) {
            used += (size_t)snprintf(
                found.order + used, sizeof found.order - used, "%s%s", i == 0 ? "" : ",",
                json_string_value(json_array_get(json_array_get(mesh, order[i]), 0)));
        }
        json_t *ranks = list_ranks(mesh, order, n, first);
        if (ranks == NULL || json_object_set_new(side, "ranks", ranks) != 0) {
            return fail_memory(s);
        }
        json_object_del(side, "first_rank");
        predict_json(s, root, file, fault, &found);
        if (!found.is_failed && found.seconds < best.seconds) {
            best = found;
        }
    }
    bool pays = best.seconds < 0.99 * given->seconds;
    return pays && add_case(s, &best) == NULL ? fail_memory(s) : FERRY_OK;
}

/* ---- all cases ---- */

static ferry_status run_case(simulating *s, const json_t *layout, const cluster_file *cluster,
                             const simulate_fault *fault, const simulate_case *about)
{
    simulate_case found = *about;
    json_t *root = json_deep_copy(layout), *own = json_deep_copy(cluster->json);
    ferry_status status = FERRY_OK;
    snprintf(found.cluster, sizeof found.cluster, "%s", cluster->name);
    found.fault = fault == NULL ? NULL : fault->text;
    bool fits = root != NULL && own != NULL;
    if (fits && fault != NULL && fault->factor > 0) {
        fits = slow_node(own, fault);
    }
    if (!fits || json_object_set(root, "cluster", own) != 0) {
        status = fail_memory(s);
    }
    if (status == FERRY_OK && !found.is_failed) {
        predict_json(s, root, cluster, fault, &found);
    }
    if (status == FERRY_OK && add_case(s, &found) == NULL) {
        status = fail_memory(s);
    }
    if (status == FERRY_OK && s->request->relabel && !found.is_failed) {
        status = relabel(s, root, cluster, fault, &found);
    }
    json_decref(own);
    json_decref(root);
    return status;
}

/* Of a model the meshes become a spec: one that does not go is a row that says why. */
static void name_layout(simulating *s, json_t **layout, simulate_case *about)
{
    json_t *spec = NULL;
    ferry_error error = {.message = ""};
    if (s->request->model.names == NULL || about->is_failed) {
        return;
    }
    if (simulate_name_spec(s->request, NULL, *layout, &spec, &error) != FERRY_OK) {
        about->is_failed = true;
        memcpy(about->error, error.message, sizeof about->error);
        return;
    }
    json_decref(*layout);
    *layout = spec;
}

static ferry_status run_layout(simulating *s, const size_t *turn)
{
    simulate_case about = {.limit = "none"};
    json_t *layout = json_deep_copy(s->root);
    ferry_status status = layout == NULL ? fail_memory(s) : apply_sizes(s, layout, turn, &about);
    if (status == FERRY_OK) {
        name_layout(s, &layout, &about);
    }
    for (size_t c = 0; c < s->n_clusters && status == FERRY_OK; c++) {
        status = run_case(s, layout, &s->clusters[c], NULL, &about);
        for (size_t f = 0; f < s->request->n_faults && status == FERRY_OK; f++) {
            status = run_case(s, layout, &s->clusters[c], &s->request->faults[f], &about);
        }
    }
    json_decref(layout);
    return status;
}

/*
 * A node that no layout has is a slip; one that some have is a row that is not possible. A row that
 * is not possible for another reason says nothing of the node.
 */
static ferry_status check_faults(const simulating *s)
{
    for (size_t f = 0; f < s->request->n_faults; f++) {
        const simulate_case *lacking = NULL;
        bool fits = false;
        for (size_t i = 0; i < s->cases->n; i++) {
            const simulate_case *one = &s->cases->at[i];
            if (one->fault == s->request->faults[f].text) {
                lacking = one->lacks_node ? one : lacking;
                fits = fits || !one->is_failed;
            }
        }
        if (lacking != NULL && !fits) {
            snprintf(s->error->message, sizeof s->error->message, "--fault %.60s: %.400s",
                     lacking->fault, lacking->error);
            return FERRY_ERR_INVALID_INPUT;
        }
    }
    return FERRY_OK;
}

static ferry_status run_all(simulating *s)
{
    const simulate_request *r = s->request;
    if (r->fit != NULL && axis_of(mesh_of(s->root, false), r->fit) == NULL &&
        axis_of(mesh_of(s->root, true), r->fit) == NULL) {
        return fail_with(s, "--fit: no mesh has an axis \"%.100s\"", r->fit);
    }
    size_t turn[SIMULATE_MOST_LISTS] = {0}, n = s->n_clusters * (1 + r->n_faults);
    for (size_t i = 0; i < r->n_sweeps; i++) {
        n *= r->sweeps[i].n_sizes;
    }
    if (n > SIMULATE_MOST_CASES) {
        snprintf(s->error->message, sizeof s->error->message,
                 "these are %zu cases, more than %d: give shorter lists to --sweep", n,
                 SIMULATE_MOST_CASES);
        return FERRY_ERR_LIMIT;
    }
    for (;;) {
        FY_TRY(run_layout(s, turn));
        size_t i = r->n_sweeps;
        while (i > 0 && ++turn[i - 1] == r->sweeps[i - 1].n_sizes) {
            turn[--i] = 0;
        }
        if (i == 0) {
            return FERRY_OK;
        }
    }
}

/* ---- the spec ---- */

/* As the library has it, whose "model" is written out: a case does not lie where the file does. */
static ferry_status read_spec(simulating *s)
{
    ferry_spec *spec = NULL;
    ferry_status status = plan_load_spec(s->request->path, &spec, s->error);
    FY_THEN(status, plan_note_unused("simulate", spec, s->error));
    FY_THEN(status, simulate_json_of(spec, &s->root, s->error));
    ferry_spec_destroy(spec);
    return status;
}

/* That of a model is made for each layout; once before, so that notes come once, and what is wrong
 * with all of them ends the command. */
static ferry_status read_model(simulating *s)
{
    json_t *first = NULL;
    ferry_status status = simulate_name_spec(s->request, "simulate", NULL, &first, s->error);
    json_decref(first);
    FY_THEN(status, simulate_name_meshes(s->request, &s->root, s->error));
    return status;
}

ferry_status simulate_run(const simulate_request *request, simulate_cases *cases_out,
                          ferry_error *error)
{
    simulating s = {.request = request, .cases = cases_out, .error = error};
    ferry_status status = request->model.names != NULL ? read_model(&s) : read_spec(&s);
    FY_THEN(status, read_clusters(&s));
    FY_THEN(status, run_all(&s));
    FY_THEN(status, check_faults(&s));
    for (size_t i = 0; i < s.n_clusters; i++) {
        json_decref(s.clusters[i].json);
    }
    json_decref(s.root);
    return status;
}
