/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Formulas over config.json: a parser that descends and computes as it goes. */
#include "model/formula.h"

#include "base/checked.h"

#include <string.h>

enum { MOST_DEPTH = 24, MOST_WORDS = 4096, MOST_SHOWN = 200 };

/* A missing value names the key that config.json lacks. */
typedef struct value {
    uint64_t number;
    const json_t *list; /* of config.json; then there is no number */
    const char *missing;
    size_t missing_length;
} value;

typedef struct word {
    const char *text;
    size_t length;
} word;

typedef struct parser {
    const fy_formula_scope *scope;
    const char *text, *at;
    word own; /* the number whose formula this is */
    int depth;
    size_t *n_words; /* that were looked up so far, in formulas of formulas, too */
} parser;

static ferry_status evaluate(const parser *within, const char *text, word own, value *value_out,
                             ferry_error *error);
static ferry_status parse_choice(parser *p, value *value_out, ferry_error *error);

static ferry_status fail_at(const parser *p, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "the formula \"%.*s\" of the names %s at \"%.40s\"", MOST_SHOWN, p->text, what,
                   p->at);
}

static ferry_status fail_number(const parser *p, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: the formula \"%.*s\" of the names %s",
                   p->scope->source_name, MOST_SHOWN, p->text, what);
}

static void skip_blanks(parser *p)
{
    while (*p->at == ' ') {
        p->at++;
    }
}

/* Whether this operator comes next; then it is passed. */
static bool take(parser *p, const char *operator)
{
    size_t length = strlen(operator);
    skip_blanks(p);
    if (strncmp(p->at, operator, length) != 0) {
        return false;
    }
    p->at += length;
    return true;
}

/* ---- words ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool word_is(word w, const char *text)
{
    return strlen(text) == w.length && memcmp(text, w.text, w.length) == 0;
}

/* The member of a word's name; NULL where it is null, too. */
static const json_t *member(const json_t *object, word w)
{
    char key[64];
    if (w.length >= sizeof key) {
        return NULL;
    }
    memcpy(key, w.text, w.length);
    key[w.length] = '\0';
    const json_t *found = json_object_get(object, key);
    return json_is_null(found) ? NULL : found;
}

static ferry_status read_config(const parser *p, const json_t *found, word w, value *value_out,
                                ferry_error *error)
{
    *value_out = (value){.list = json_is_array(found) ? found : NULL};
    if (value_out->list != NULL) {
        return FERRY_OK;
    }
    if (json_is_boolean(found)) {
        value_out->number = json_is_true(found);
        return FERRY_OK;
    }
    if (!json_is_integer(found) || json_integer_value(found) < 0) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s: \"%.*s\" of config.json must be a whole number from 0 on, true, false or "
            "a list for the names of the model's tensors",
            p->scope->source_name, (int)w.length, w.text);
    }
    value_out->number = (uint64_t)json_integer_value(found);
    return FERRY_OK;
}

static ferry_status read_word(parser *p, word w, value *value_out, ferry_error *error)
{
    const fy_formula_scope *s = p->scope;
    *value_out = (value){0};
    if (++*p->n_words > MOST_WORDS) {
        return fail_at(p, "takes too long", error);
    }
    for (size_t i = 0; i < s->n_indices; i++) {
        if (word_is(w, s->indices[i])) {
            value_out->number = s->values[i];
            return FERRY_OK;
        }
    }
    bool is_own = w.length == p->own.length && memcmp(w.text, p->own.text, w.length) == 0;
    for (size_t i = 0; i < 2 && !is_own; i++) {
        const json_t *formula = member(s->numbers[i], w);
        if (formula != NULL && !json_is_string(formula)) {
            return read_config(p, formula, w, value_out, error);
        }
        if (formula != NULL) {
            return evaluate(p, json_string_value(formula), w, value_out, error);
        }
    }
    const json_t *found = member(s->text_config, w);
    found = found == NULL ? member(s->config, w) : found;
    if (found != NULL) {
        return read_config(p, found, w, value_out, error);
    }
    *value_out = (value){.missing = w.text, .missing_length = w.length};
    return FERRY_OK;
}

static ferry_status parse_digits(parser *p, value *value_out, ferry_error *error)
{
    *value_out = (value){0};
    for (; is_digit(*p->at); p->at++) {
        if (!fy_mul(value_out->number, 10, &value_out->number) ||
            !fy_add(value_out->number, (uint64_t)(*p->at - '0'), &value_out->number)) {
            return fail_at(p, "has a number beyond 2^64", error);
        }
    }
    return FERRY_OK;
}

static ferry_status parse_atom(parser *p, value *value_out, ferry_error *error)
{
    skip_blanks(p);
    if (is_digit(*p->at)) {
        return parse_digits(p, value_out, error);
    }
    if (take(p, "(")) {
        FY_TRY(parse_choice(p, value_out, error));
        return take(p, ")") ? FERRY_OK : fail_at(p, "lacks a \")\"", error);
    }
    word w = {.text = p->at};
    while (is_letter(p->at[w.length]) || (w.length > 0 && is_digit(p->at[w.length]))) {
        w.length++;
    }
    if (w.length == 0) {
        return fail_at(p, "needs a number or a word", error);
    }
    p->at += w.length;
    return read_word(p, w, value_out, error);
}

/* ---- operators: a missing side makes the whole missing ---- */

static ferry_status parse_not(parser *p, value *value_out, ferry_error *error)
{
    skip_blanks(p);
    if (p->at[0] != '!' || p->at[1] == '=') {
        return parse_atom(p, value_out, error);
    }
    if (++p->depth > MOST_DEPTH) {
        return fail_at(p, "is nested too deeply", error);
    }
    p->at++;
    FY_TRY(parse_not(p, value_out, error));
    p->depth--;
    value_out->number = value_out->number == 0;
    return FERRY_OK;
}

static ferry_status check_numbers(const parser *p, const value *a, const value *b,
                                  ferry_error *error)
{
    return a->list == NULL && b->list == NULL ? FERRY_OK
                                              : fail_number(p, "computes with a list", error);
}

/* a op b for one of + - * / %. */
static ferry_status compute(const parser *p, char op, value *a, const value *b, ferry_error *error)
{
    uint64_t x = a->number, y = b->number;
    if (a->missing != NULL || b->missing != NULL) {
        *a = a->missing != NULL ? *a : *b;
        return FERRY_OK;
    }
    FY_TRY(check_numbers(p, a, b, error));
    if ((op == '/' || op == '%') && y == 0) {
        return fail_number(p, "divides by 0", error);
    }
    bool fits = true;
    if (op == '+') {
        fits = fy_add(x, y, &a->number);
    } else if (op == '*') {
        fits = fy_mul(x, y, &a->number);
    } else if (op == '-') {
        fits = x >= y;
        a->number = x - y;
    } else {
        a->number = op == '/' ? x / y : x % y;
    }
    return fits ? FERRY_OK : fail_number(p, "is below 0 or beyond 2^64", error);
}

static ferry_status parse_product(parser *p, value *value_out, ferry_error *error)
{
    FY_TRY(parse_not(p, value_out, error));
    for (skip_blanks(p); *p->at != '\0' && strchr("*/%", *p->at) != NULL; skip_blanks(p)) {
        char op = *p->at++;
        value right;
        FY_TRY(parse_not(p, &right, error));
        FY_TRY(compute(p, op, value_out, &right, error));
    }
    return FERRY_OK;
}

static ferry_status parse_sum(parser *p, value *value_out, ferry_error *error)
{
    FY_TRY(parse_product(p, value_out, error));
    for (skip_blanks(p); *p->at == '+' || *p->at == '-'; skip_blanks(p)) {
        char op = *p->at++;
        value right;
        FY_TRY(parse_product(p, &right, error));
        FY_TRY(compute(p, op, value_out, &right, error));
    }
    return FERRY_OK;
}

static bool is_in(uint64_t number, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_integer(item) && json_integer_value(item) >= 0 &&
            (uint64_t)json_integer_value(item) == number) {
            return true;
        }
    }
    return false;
}

static ferry_status compare(const parser *p, const char *op, value *a, const value *b,
                            ferry_error *error)
{
    if (a->missing != NULL || b->missing != NULL) {
        *a = a->missing != NULL ? *a : *b;
        return FERRY_OK;
    }
    if (strcmp(op, "in ") == 0) {
        a->number = is_in(a->number, b->list);
        return a->list == NULL && b->list != NULL
                   ? FERRY_OK
                   : fail_number(p, "has \"in\" without a list", error);
    }
    FY_TRY(check_numbers(p, a, b, error));
    uint64_t x = a->number, y = b->number;
    bool is_strict = op[1] == '\0';
    switch (op[0]) {
    case '=':
        a->number = x == y;
        break;
    case '!':
        a->number = x != y;
        break;
    case '<':
        a->number = is_strict ? x < y : x <= y;
        break;
    default:
        a->number = is_strict ? x > y : x >= y;
    }
    return FERRY_OK;
}

static ferry_status parse_comparison(parser *p, value *value_out, ferry_error *error)
{
    static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">", "in "};
    FY_TRY(parse_sum(p, value_out, error));
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (take(p, operators[i])) {
            value right;
            FY_TRY(parse_sum(p, &right, error));
            return compare(p, operators[i], value_out, &right, error);
        }
    }
    return FERRY_OK;
}

/* A left side that decides makes a missing right one harmless. */
static void join(bool is_and, value *a, const value *b)
{
    bool decided = a->missing == NULL && (a->number == 0) == is_and;
    if (a->missing != NULL || decided) {
        a->number = decided ? !is_and : a->number;
        return;
    }
    *a = *b;
    a->number = b->number != 0;
}

static ferry_status parse_and(parser *p, value *value_out, ferry_error *error)
{
    FY_TRY(parse_comparison(p, value_out, error));
    while (take(p, "&&")) {
        value right;
        FY_TRY(parse_comparison(p, &right, error));
        join(true, value_out, &right);
    }
    return FERRY_OK;
}

static ferry_status parse_or(parser *p, value *value_out, ferry_error *error)
{
    FY_TRY(parse_and(p, value_out, error));
    while (take(p, "||")) {
        value right;
        FY_TRY(parse_and(p, &right, error));
        join(false, value_out, &right);
    }
    return FERRY_OK;
}

static ferry_status parse_choice(parser *p, value *value_out, ferry_error *error)
{
    if (++p->depth > MOST_DEPTH) {
        return fail_at(p, "is nested too deeply", error);
    }
    FY_TRY(parse_or(p, value_out, error));
    while (take(p, "??")) {
        value right;
        FY_TRY(parse_or(p, &right, error));
        *value_out = value_out->missing == NULL ? *value_out : right;
    }
    p->depth--;
    return FERRY_OK;
}

static ferry_status run(parser *p, value *value_out, ferry_error *error)
{
    FY_TRY(parse_choice(p, value_out, error));
    skip_blanks(p);
    return *p->at == '\0' ? FERRY_OK : fail_at(p, "does not end", error);
}

static ferry_status evaluate(const parser *within, const char *text, word own, value *value_out,
                             ferry_error *error)
{
    parser p = {.scope = within->scope,
                .text = text,
                .at = text,
                .own = own,
                .depth = within->depth,
                .n_words = within->n_words};
    return run(&p, value_out, error);
}

ferry_status fy_formula_evaluate(const fy_formula_scope *scope, const char *text,
                                 uint64_t *value_out, ferry_error *error)
{
    size_t n_words = 0;
    value found;
    parser p = {.scope = scope, .text = text, .at = text, .own = {"", 0}, .n_words = &n_words};
    FY_TRY(run(&p, &found, error));
    if (found.missing != NULL) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s: config.json lacks \"%.*s\", which the names of the model's tensors need "
            "(\"%.*s\")",
            scope->source_name, (int)found.missing_length, found.missing, MOST_SHOWN, text);
    }
    if (found.list != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the formula \"%.*s\" of the names is a list, not a number",
                       scope->source_name, MOST_SHOWN, text);
    }
    *value_out = found.number;
    return FERRY_OK;
}
