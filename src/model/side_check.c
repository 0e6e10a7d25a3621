/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A side in boxes, held against the tensors of its spec: what each box says by itself, and that no
 * element of a parameter is given twice, or by nobody. Nothing here looks at elements one by one.
 */
#include "model/spec.h"

#include "base/checked.h"
#include "base/sort.h"
#include "model/memory.h"

#include <stdio.h>
#include <string.h>

typedef struct checking {
    const ferry_spec *spec;
    const fy_side *side;
    ferry_side *boxes;
    bool is_destination;
    const fy_parameter *parameter;
    ferry_dtype dtype;  /* of the parameter */
    fy_strided *places; /* scratch: of a parameter's boxes, then of its fills; simplified */
    uint32_t *owners;   /* which box, or n_boxes + which fill, each is of */
    size_t places_capacity, owners_capacity;
    uint64_t budget; /* of the searches in all parameters */
} checking;

enum { TITLE_BYTES = 512, MOST_CROSSING_STEPS = 1 << 20 };

/* `destination: parameter "w" of rank 3`. */
static void put_title(const checking *c, char text[TITLE_BYTES])
{
    const fy_rank_list *list = &c->boxes->lists[c->parameter->ranks];
    snprintf(text, TITLE_BYTES, "%s: parameter \"%.400s\" of rank %u", c->side->name,
             c->parameter->name, list->ranks[0]);
}

/* `box 2 ("layers.0.q")`, or `fill 0`. */
static void put_owner(const checking *c, uint32_t number, char text[TITLE_BYTES])
{
    if (number >= c->parameter->n_boxes) {
        snprintf(text, TITLE_BYTES, "fill %u", number - c->parameter->n_boxes);
        return;
    }
    const fy_said_box *box = &c->boxes->boxes[c->parameter->first_box + number];
    snprintf(text, TITLE_BYTES, "box %u (\"%.400s\")", number, c->boxes->tensors[box->tensor].name);
}

static ferry_status fail(const checking *c, uint32_t number, ferry_error *error,
                         const char *sentence)
{
    char title[TITLE_BYTES], owner[TITLE_BYTES];
    put_title(c, title);
    put_owner(c, number, owner);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s, %s: %s", title, owner, sentence);
}

/* A source has tensors as they are. */
static ferry_status check_types(const checking *c, uint32_t number, ferry_dtype dtype,
                                ferry_error *error)
{
    char sentence[TITLE_BYTES], why[FY_CAST_WHY_BYTES];
    char have[FERRY_DTYPE_TEXT_BYTES], want[FERRY_DTYPE_TEXT_BYTES];
    bool is_same = dtype.kind == c->dtype.kind && dtype.element_bits == c->dtype.element_bits;
    ferry_dtype_format(dtype, have, sizeof have);
    ferry_dtype_format(c->dtype, want, sizeof want);
    if (!c->is_destination && !is_same) {
        snprintf(sentence, sizeof sentence,
                 "the tensor is %s and the parameter %s, which takes a cast from %s to %s; only "
                 "destinations say casts, so give the tensor the type that the source has",
                 have, want, want, have);
        return fail(c, number, error, sentence);
    }
    if (c->parameter->blocks != NULL || c->parameter->codes != NULL) {
        return FERRY_OK; /* the type of its tensors was looked at when scales were added */
    }
    fy_cast_key(&c->parameter->cast, dtype, c->dtype, why);
    if (why[0] == '\0') {
        return FERRY_OK;
    }
    snprintf(sentence, sizeof sentence, "the tensor is %s and the parameter %s, which %s", have,
             want, why);
    return fail(c, number, error, sentence);
}

static bool is_plain(const checking *c, ferry_dtype dtype)
{
    char why[FY_CAST_WHY_BYTES];
    return fy_conversion_key_is_zero(fy_cast_key(&c->parameter->cast, dtype, c->dtype, why));
}

/* Boxes that are quantized, and all that repeats make of them, are of whole blocks. */
static ferry_status check_blocks(const checking *c, uint32_t number, const fy_tensor *of,
                                 const fy_said_box *box, ferry_error *error)
{
    char sentence[TITLE_BYTES];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t d = of->n_dims - 2 + i;
        uint64_t block = c->parameter->blocks->block[i];
        uint64_t begin = box->numbers[d], end = begin + fy_said_box_shape(box)[d];
        uint64_t wrong = begin % block != 0 ? begin : end;
        for (uint32_t r = 0; r < box->n_repeats && wrong % block == 0; r++) {
            const uint64_t *repeat = fy_said_box_repeat(box, r);
            wrong = repeat[0] > 1 && repeat[2 + d] % block != 0 ? begin + repeat[2 + d] : wrong;
        }
        if (wrong % block != 0 && !(wrong == end && end == of->shape[d])) {
            snprintf(sentence, sizeof sentence,
                     "begins or ends at %llu on dim %u of the tensor, inside a block of %llu",
                     (unsigned long long)wrong, d, (unsigned long long)block);
            return fail(c, number, error, sentence);
        }
    }
    return FERRY_OK;
}

static ferry_status check_tensor(const checking *c, uint32_t number, const fy_said_box *box,
                                 ferry_error *error)
{
    uint32_t tensor = c->side->tensor_of[box->tensor];
    char sentence[TITLE_BYTES];
    if (tensor == FY_NONE) {
        return fail(c, number, error, "there is no tensor of this name");
    }
    const fy_tensor *of = &c->spec->tensors[tensor];
    if (of->n_feeds > 0 && !c->is_destination) {
        return fail(c, number, error,
                    "the tensor has a source, so it is made of others and no source rank has it");
    }
    if (of->is_source_only && c->is_destination) {
        return fail(c, number, error, "the tensor is \"only\" at the source");
    }
    if (of->n_dims != box->n_dims) {
        snprintf(sentence, sizeof sentence,
                 "has %u dimensions, but the tensor has %u; begin, "
                 "shape and strides have one number for each",
                 box->n_dims, of->n_dims);
        return fail(c, number, error, sentence);
    }
    if (of->scales != NULL && (c->parameter->blocks != NULL || !is_plain(c, of->dtype))) {
        return fail(c, number, error,
                    "the tensor has scales of blocks, which are neither cast nor quantized");
    }
    FY_TRY(check_types(c, number, of->dtype, error));
    return c->parameter->blocks == NULL ? FERRY_OK : check_blocks(c, number, of, box, error);
}

static ferry_status check_extent(const checking *c, uint32_t number, const fy_said_box *box,
                                 ferry_error *error)
{
    const fy_tensor *of = &c->spec->tensors[c->side->tensor_of[box->tensor]];
    char sentence[TITLE_BYTES];
    for (uint32_t d = 0; d < box->n_dims; d++) {
        uint64_t end;
        bool fits = fy_add(box->numbers[d], fy_said_box_shape(box)[d], &end);
        for (uint32_t i = 0; fits && i < box->n_repeats; i++) {
            const uint64_t *repeat = fy_said_box_repeat(box, i);
            uint64_t reach;
            fits = repeat[0] > 0 && fy_mul(repeat[0] - 1, repeat[2 + d], &reach) &&
                   fy_add(end, reach, &end);
        }
        if (!fits) {
            return fail(c, number, error,
                        "a repeat has the count 0, or reaches further than 64 bits");
        }
        if (end > of->shape[d]) {
            snprintf(sentence, sizeof sentence,
                     "reaches from %llu to %llu on dim %u of the tensor, whose extent is %llu",
                     (unsigned long long)box->numbers[d], (unsigned long long)end, d,
                     (unsigned long long)of->shape[d]);
            return fail(c, number, error, sentence);
        }
    }
    for (uint32_t i = 0; i < box->n_repeats; i++) {
        if (fy_said_box_repeat(box, i)[0] == 0) {
            return fail(c, number, error, "a repeat has the count 0");
        }
    }
    return FERRY_OK;
}

/* Whether elements of less than a byte lie in whole bytes; places are simplified. */
static bool has_whole_bytes(const fy_strided *places, uint32_t element_bits)
{
    uint64_t per_byte = 8 / element_bits;
    uint32_t last = places->n_loops - 1;
    if (places->n_loops == 0 || places->stride[last] != 1 || places->count[last] % per_byte != 0 ||
        places->offset % per_byte != 0) {
        return false;
    }
    for (uint32_t k = 0; k < last; k++) {
        if (places->stride[k] % per_byte != 0) {
            return false;
        }
    }
    return true;
}

/* Elements of less than a byte must be whole bytes along the dimension of stride 1. */
static ferry_status check_bytes(const checking *c, uint32_t number, const fy_strided *places,
                                ferry_error *error)
{
    if (c->dtype.element_bits % 8 == 0 || has_whole_bytes(places, c->dtype.element_bits)) {
        return FERRY_OK;
    }
    char sentence[TITLE_BYTES];
    snprintf(sentence, sizeof sentence,
             "has elements of %u bits and does not start and end on bytes: stride 1 on the "
             "innermost dimension, and all other numbers even, keep it on them",
             c->dtype.element_bits);
    return fail(c, number, error, sentence);
}

/* Where a box or a fill lies, by itself; *any_out: it has an element. */
static ferry_status check_places(checking *c, uint32_t number, fy_strided *places, bool *any_out,
                                 ferry_error *error)
{
    char sentence[TITLE_BYTES], title[TITLE_BYTES], owner[TITLE_BYTES];
    uint64_t n = 0, last = 0, place = 0;
    bool is_zero = false, meets = false;
    ferry_error inner;
    if (!*any_out) {
        return FERRY_OK;
    }
    for (uint32_t k = 0; k < places->n_loops; k++) {
        is_zero = is_zero || (places->count[k] > 1 && places->stride[k] == 0);
    }
    if (is_zero) {
        return fail(c, number, error,
                    "has the stride 0 where its length, or the count of a repeat, is above 1");
    }
    if (!fy_strided_measure(places, &n, &last)) {
        return fail(c, number, error, "reaches further than 2^63 elements");
    }
    if (last >= c->parameter->elements) {
        snprintf(sentence, sizeof sentence,
                 "reaches element %llu of the parameter, which has %llu elements",
                 (unsigned long long)last, (unsigned long long)c->parameter->elements);
        return fail(c, number, error, sentence);
    }
    fy_strided_simplify(places);
    ferry_status status = fy_strided_meets_itself(places, &c->budget, &meets, &place, &inner);
    put_title(c, title);
    put_owner(c, number, owner);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "%s, %s: %s", title, owner, inner.message);
    }
    return meets ? fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: %s gives element %llu of it twice",
                           title, owner, (unsigned long long)place)
                 : check_bytes(c, number, places, error);
}

static ferry_status add_places(checking *c, uint32_t number, const fy_strided *places, size_t *n,
                               ferry_error *error)
{
    if (!FY_RESERVE(c->places, c->places_capacity, *n + 1) ||
        !FY_RESERVE(c->owners, c->owners_capacity, *n + 1)) {
        return fy_fail_no_memory(error, "the check of boxes");
    }
    c->places[*n] = *places;
    c->owners[(*n)++] = number;
    return FERRY_OK;
}

/* What lies behind an element's bits is cleared: equal fills are equal bytes. */
static ferry_status check_fill(const checking *c, uint32_t number, fy_fill *fill,
                               ferry_error *error)
{
    char sentence[TITLE_BYTES];
    uint32_t bits = c->dtype.element_bits;
    if (!c->is_destination) {
        return fail(c, number, error, "only destinations have fills");
    }
    if (bits > 64) {
        return fail(c, number, error, "elements that are filled may have up to 8 bytes");
    }
    if (fill->n_digits != 0 && fill->n_digits != bits / 4) {
        snprintf(sentence, sizeof sentence, "bits has %u hex digits, but an element has %u",
                 fill->n_digits, bits / 4);
        return fail(c, number, error, sentence);
    }
    if (bits == 4 && (fill->bits[0] & 15) != fill->bits[0] >> 4) {
        return fail(c, number, error, "elements of 4 bits are filled two by two, with bits alike");
    }
    size_t bytes = bits < 8 ? 1 : bits / 8;
    memset(fill->bits + bytes, 0, sizeof fill->bits - bytes);
    return FERRY_OK;
}

static ferry_status list_places(checking *c, size_t *n_out, ferry_error *error)
{
    const fy_parameter *p = c->parameter;
    *n_out = 0;
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        const fy_said_box *box = &c->boxes->boxes[p->first_box + i];
        fy_strided places;
        bool any = fy_said_box_places(box, &places);
        FY_TRY(check_tensor(c, i, box, error));
        FY_TRY(check_extent(c, i, box, error));
        FY_TRY(check_places(c, i, &places, &any, error));
        FY_TRY(any ? add_places(c, i, &places, n_out, error) : FERRY_OK);
    }
    for (uint32_t i = 0; i < p->n_fills; i++) {
        fy_fill *fill = &c->boxes->fills[p->first_fill + i];
        fy_strided places;
        bool any = fy_fill_places(fill, &places);
        FY_TRY(check_fill(c, p->n_boxes + i, fill, error));
        FY_TRY(check_places(c, p->n_boxes + i, &places, &any, error));
        FY_TRY(any ? add_places(c, p->n_boxes + i, &places, n_out, error) : FERRY_OK);
    }
    return FERRY_OK;
}

static ferry_status check_overlap(checking *c, size_t n, ferry_error *error)
{
    size_t a = n, b = n;
    uint64_t place = 0;
    char title[TITLE_BYTES], first[TITLE_BYTES], second[TITLE_BYTES];
    ferry_error inner;
    ferry_status status = fy_strided_find_meeting(c->places, n, &c->budget, &a, &b, &place, &inner);
    if (status == FERRY_OK && a == n) {
        return FERRY_OK;
    }
    put_title(c, title);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "%s: %s", title, inner.message);
    }
    put_owner(c, c->owners[a], first);
    put_owner(c, c->owners[b], second);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: %s and %s both give element %llu of it",
                   title, first, second, (unsigned long long)place);
}

/* Strides that cross may take more steps than anybody waits for. */
static bool can_find_gap(const checking *c, size_t n)
{
    uint64_t steps = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t its = fy_strided_count_steps(&c->places[i]);
        if (its > 1 && (!fy_add(steps, its, &steps) || steps > MOST_CROSSING_STEPS)) {
            return false;
        }
    }
    return true;
}

/* The first element that nothing gives: below it, as many are given as there are. */
static ferry_status check_gaps(const checking *c, size_t n, ferry_error *error)
{
    uint64_t given = 0;
    char title[TITLE_BYTES];
    for (size_t i = 0; i < n; i++) {
        given += fy_strided_count_below(&c->places[i], UINT64_MAX);
    }
    if (!c->is_destination || c->parameter->is_partial || given == c->parameter->elements) {
        return FERRY_OK;
    }
    put_title(c, title);
    if (!can_find_gap(c, n)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: boxes and fills give %llu of its %llu elements; say \"partial\" where "
                       "the others are to keep what they have",
                       title, (unsigned long long)given,
                       (unsigned long long)c->parameter->elements);
    }
    uint64_t low = 0, high = c->parameter->elements;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        given = 0;
        for (size_t i = 0; i < n; i++) {
            given += fy_strided_count_below(&c->places[i], middle);
        }
        *(given == middle ? &low : &high) = middle;
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: no box and no fill gives element %llu of it; say \"partial\" where it is "
                   "to keep what it has",
                   title, (unsigned long long)low);
}

static ferry_status check_parameter(checking *c, ferry_error *error)
{
    const fy_parameter *p = c->parameter;
    size_t n = 0;
    uint64_t bits;
    char title[TITLE_BYTES];
    c->dtype = p->dtype.kind == 0 && p->blocks != NULL ? p->blocks->codes : p->dtype;
    if (c->dtype.kind == 0 && p->n_boxes > 0) {
        uint32_t tensor = c->side->tensor_of[c->boxes->boxes[p->first_box].tensor];
        FY_TRY(tensor == FY_NONE ? fail(c, 0, error, "there is no tensor of this name") : FERRY_OK);
        c->dtype = c->spec->tensors[tensor].dtype;
    }
    put_title(c, title);
    if ((p->cast.is_said || p->blocks != NULL || p->codes != NULL) && !c->is_destination) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: says %s, but a source holds tensors as they are; say at the "
                       "destination what they become",
                       title,
                       p->blocks != NULL  ? "\"quantize\""
                       : p->codes != NULL ? "\"dequantize\""
                                          : "a cast");
    }
    if (p->blocks != NULL && c->dtype.kind != p->blocks->codes.kind) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has another dtype than that of its codes", title);
    }
    if (c->dtype.kind == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has neither a dtype nor a box whose tensor has one", title);
    }
    if (!fy_mul(p->elements, c->dtype.element_bits, &bits) || bits > INT64_MAX) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: has more than 2^63 bits", title);
    }
    FY_TRY(list_places(c, &n, error));
    c->boxes->parameters[p - c->boxes->parameters].dtype = c->dtype;
    FY_TRY(check_overlap(c, n, error));
    return check_gaps(c, n, error);
}

typedef struct named_rank {
    const char *name;
    uint32_t rank;
    uint32_t parameter;
} named_rank;

static int compare_named(const void *a, const void *b)
{
    const named_rank *x = a, *y = b;
    int names = strcmp(x->name, y->name);
    if (names != 0) {
        return names;
    }
    return (x->parameter > y->parameter) - (x->parameter < y->parameter);
}

static int compare_ranks(const void *a, const void *b)
{
    const named_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Of parameters first .. end of one name: the ranks of all, each once. */
static ferry_status check_one_name(const checking *c, const named_rank *of, size_t n,
                                   ferry_error *error)
{
    named_rank *all = NULL;
    size_t n_all = 0, capacity = 0;
    bool is_staged = false;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        const fy_parameter *parameter = &c->boxes->parameters[of[i].parameter];
        const fy_rank_list *list = &c->boxes->lists[parameter->ranks];
        is_staged = is_staged || parameter->staged != 0;
        status = FY_GROW(all, capacity, n_all + list->n, "the names of parameters", error);
        for (uint32_t k = 0; k < list->n && status == FERRY_OK; k++) {
            all[n_all++] = (named_rank){.name = of[i].name, .rank = list->ranks[k]};
        }
    }
    if (status == FERRY_OK) {
        fy_sort(all, n_all, sizeof *all, compare_ranks);
    }
    for (size_t i = 1; i < n_all && status == FERRY_OK; i++) {
        if (all[i].rank == all[i - 1].rank) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%s: rank %u has the parameter \"%s\" twice%s", c->side->name,
                             all[i].rank, all[i].name,
                             is_staged ? "; one has the scales that come with what is dequantized, "
                                         "and are called so"
                                       : "");
        }
    }
    fy_free(all);
    return status;
}

static ferry_status check_names(const checking *c, ferry_error *error)
{
    size_t n = c->boxes->n_parameters;
    named_rank *names = fy_alloc(n, sizeof *names);
    FY_TRY(fy_check_memory(names != NULL, "the names of parameters", error));
    for (size_t p = 0; p < n; p++) {
        names[p] = (named_rank){.name = c->boxes->parameters[p].name, .parameter = (uint32_t)p};
    }
    fy_sort(names, n, sizeof *names, compare_named);
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n && status == FERRY_OK;) {
        size_t end = i + 1;
        while (end < n && strcmp(names[i].name, names[end].name) == 0) {
            end++;
        }
        status = end - i > 1 ? check_one_name(c, names + i, end - i, error) : FERRY_OK;
        i = end;
    }
    fy_free(names);
    return status;
}

/* Tensors that a side's maker has added must be those of the spec. */
static ferry_status resolve_tensors(const ferry_spec *spec, fy_side *side, ferry_error *error)
{
    const ferry_side *boxes = side->boxes;
    side->tensor_of =
        fy_arena_alloc(&((ferry_spec *)spec)->arena, boxes->n_tensors + 1, sizeof *side->tensor_of);
    FY_TRY(fy_check_memory(side->tensor_of != NULL, "the tensors of a side", error));
    for (size_t t = 0; t < boxes->n_tensors; t++) {
        const fy_side_tensor *said = &boxes->tensors[t];
        uint32_t number = fy_spec_find_tensor(spec, said->name);
        side->tensor_of[t] = number;
        if (number == FY_NONE || said->shape == NULL) {
            continue;
        }
        const fy_tensor *tensor = &spec->tensors[number];
        if (tensor->n_dims != said->n_dims || tensor->dtype.kind != said->dtype.kind ||
            tensor->dtype.element_bits != said->dtype.element_bits ||
            memcmp(tensor->shape, said->shape, said->n_dims * sizeof *said->shape) != 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: the tensor \"%s\" has another shape or type than in the spec",
                           side->name, said->name);
        }
    }
    return FERRY_OK;
}

static ferry_status check_all(checking *c, ferry_error *error)
{
    for (size_t p = 0; p < c->boxes->n_parameters; p++) {
        const fy_parameter *parameter = &c->boxes->parameters[p];
        if (parameter->ranks == FY_OWN_RANK) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: the parameter \"%s\" has no ranks; those that know only themselves "
                           "tell each other what they have first",
                           c->side->name, parameter->name);
        }
    }
    for (size_t p = 0; p < c->boxes->n_parameters; p++) {
        c->parameter = &c->boxes->parameters[p];
        FY_TRY(check_parameter(c, error));
    }
    return FERRY_OK;
}

static const char *name_of(const void *context, uint32_t tensor)
{
    return ((const ferry_spec *)context)->tensors[tensor].name;
}

static ferry_dtype dtype_of(const void *context, uint32_t tensor)
{
    return ((const ferry_spec *)context)->tensors[tensor].dtype;
}

ferry_status fy_spec_make_memory(const ferry_spec *spec, fy_side *side, ferry_error *error)
{
    fy_memory_of of = {.side = side->boxes,
                       .role = side->name,
                       .tensor_of = side->tensor_of,
                       .n_tensors = spec->n_tensors,
                       .name_of = name_of,
                       .dtype_of = dtype_of,
                       .context = spec};
    return fy_memory_create(&of, &side->memory, error);
}

ferry_status fy_spec_say_boxes(ferry_spec *spec, fy_side *side, ferry_side *boxes,
                               ferry_error *error)
{
    checking c = {
        .spec = spec, .side = side, .boxes = boxes, .is_destination = side == &spec->destination};
    bool has_staged = false;
    c.budget = fy_strided_budget(boxes->n_boxes + boxes->n_fills);
    ferry_side_destroy(side->boxes);
    side->boxes = boxes;
    if (boxes->n_parameters == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: a side in boxes needs a parameter",
                       side->name);
    }
    ferry_status status = boxes->is_sorted ? FERRY_OK : fy_side_sort(boxes, error);
    if (c.is_destination) {
        FY_THEN(status, fy_spec_add_box_scales(spec, boxes, error));
    }
    FY_THEN(status, resolve_tensors(spec, side, error));
    FY_THEN(status, check_all(&c, error));
    if (c.is_destination) {
        FY_THEN(status, fy_spec_add_box_staged(spec, boxes, side->tensor_of, &has_staged, error));
    }
    FY_THEN(status, has_staged ? resolve_tensors(spec, side, error) : FERRY_OK);
    FY_THEN(status, check_names(&c, error));
    fy_free(c.places);
    fy_free(c.owners);
    return status;
}

ferry_status fy_spec_set_boxes(ferry_spec *spec, fy_side *side, ferry_side *boxes,
                               ferry_error *error)
{
    FY_TRY(fy_spec_say_boxes(spec, side, boxes, error));
    return fy_spec_make_memory(spec, side, error);
}
