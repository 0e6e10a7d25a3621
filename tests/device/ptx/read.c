/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads PTX: variables, kernels, their registers, labels and instructions. */
#include "device/ptx/decode.h"
#include "device/ptx/scan.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP_BYTES = 64 /* between variables: a multiple of all alignments */ };

typedef struct label {
    struct label *next;
    char name[PTX_NAME_BYTES];
    uint32_t at;
} label;

/* A jump to a label that may come later. */
typedef struct jump {
    struct jump *next;
    char name[PTX_NAME_BYTES];
    uint32_t from;
} jump;

typedef struct reader {
    ptx_scan scan;
    ptx_module *module;
    ptx_kernel *kernel;
    uint32_t depth;
    bool is_hidden[PTX_MOST_FAMILIES]; /* families whose braces are closed */
    label *labels;
    jump *jumps;
    const char *mnemonic; /* of the instruction that is read; NULL: none is */
    char *said;
} reader;

__attribute__((format(printf, 2, 3))) static bool refuse(reader *from, const char *format, ...)
{
    va_list arguments;
    bool is_inside = from->mnemonic != NULL;
    int n = snprintf(from->said, PTX_SAID_BYTES, "line %u: %s%s", from->scan.line,
                     is_inside ? from->mnemonic : "", is_inside ? ": " : "");
    va_start(arguments, format);
    vsnprintf(from->said + n, PTX_SAID_BYTES - (size_t)n, format, arguments);
    va_end(arguments);
    return false;
}

static bool next(reader *from)
{
    return ptx_scan_next(&from->scan) || refuse(from, "the text ends too early");
}

static bool is_word(const reader *from, const char *word)
{
    return strcmp(from->scan.word, word) == 0;
}

/* The next word must be this one. */
static bool expect(reader *from, const char *word)
{
    return next(from) && (is_word(from, word) ||
                          refuse(from, "\"%s\" stands where \"%s\" should", from->scan.word, word));
}

static bool read_number(reader *from, uint64_t *number_out)
{
    return next(from) && (ptx_scan_number(from->scan.word, number_out) ||
                          refuse(from, "\"%s\" is no number", from->scan.word));
}

static bool skip_to(reader *from, const char *word)
{
    while (next(from)) {
        if (is_word(from, word)) {
            return true;
        }
    }
    return false;
}

/*
 * Registers and variables
 */

static bool add_family(reader *from, uint32_t bits)
{
    ptx_kernel *kernel = from->kernel;
    uint64_t count = 0;
    if (kernel->n_families == PTX_MOST_FAMILIES) {
        return refuse(from, "more than %d declarations of registers", PTX_MOST_FAMILIES);
    }
    ptx_family *one = &kernel->families[kernel->n_families];
    strcpy(one->name, from->scan.word);
    if (ptx_scan_sees(&from->scan, '<') &&
        (!expect(from, "<") || !read_number(from, &count) || !expect(from, ">"))) {
        return false;
    }
    one->first = kernel->n_registers;
    one->count = (uint32_t)count;
    one->bits = bits;
    one->depth = from->depth;
    kernel->n_registers += count > 0 ? (uint32_t)count : 1;
    kernel->n_families++;
    return true;
}

/* .reg .TYPE name, name<count>, ...; */
static bool read_registers(reader *from)
{
    bool is_signed;
    if (!next(from)) {
        return false;
    }
    uint32_t bits = ptx_type_bits(from->scan.word + 1, &is_signed);
    if (bits == 0 || bits == 8) {
        return refuse(from, "registers of type %s", from->scan.word);
    }
    do {
        if (!next(from) || !add_family(from, bits) || !next(from)) {
            return false;
        }
    } while (is_word(from, ","));
    return is_word(from, ";") || refuse(from, "\"%s\" among registers", from->scan.word);
}

/* One register, or one of a family; false: there is none. */
static bool find_register(const reader *from, const char *name, int32_t *reg_out,
                          uint32_t *bits_out)
{
    const ptx_kernel *kernel = from->kernel;
    for (uint32_t i = kernel->n_families; i-- > 0;) { /* the innermost first */
        const ptx_family *one = &kernel->families[i];
        size_t length = strlen(one->name);
        char *end;
        if (from->is_hidden[i] || strncmp(name, one->name, length) != 0) {
            continue;
        }
        bool has_number = isdigit((unsigned char)name[length]) != 0;
        unsigned long number = has_number ? strtoul(name + length, &end, 10) : 0;
        if (one->count > 0 ? has_number && *end == 0 && number < one->count : name[length] == 0) {
            *reg_out = (int32_t)(one->first + number);
            *bits_out = one->bits;
            return true;
        }
    }
    return false;
}

static const ptx_variable *find_variable(const reader *from, const char *name)
{
    for (uint32_t i = 0; i < from->module->n_variables; i++) {
        if (strcmp(from->module->variables[i].name, name) == 0) {
            return &from->module->variables[i];
        }
    }
    return NULL;
}

/* .shared or .local [.align N] .TYPE name[N]; */
static bool read_variable(reader *from, ptx_space space)
{
    ptx_module *module = from->module;
    uint64_t alignment = 0, n = 1;
    bool is_signed;
    if (!next(from) ||
        (is_word(from, ".align") && (!read_number(from, &alignment) || !next(from)))) {
        return false;
    }
    uint32_t each = ptx_type_bits(from->scan.word + 1, &is_signed) / 8;
    if (each == 0 || alignment > GAP_BYTES || module->n_variables == PTX_MOST_VARIABLES) {
        return refuse(from, "a variable of type %s", from->scan.word);
    }
    ptx_variable *one = &module->variables[module->n_variables];
    if (!next(from)) {
        return false;
    }
    strcpy(one->name, from->scan.word);
    if (ptx_scan_sees(&from->scan, '[') &&
        (!expect(from, "[") || !read_number(from, &n) || !expect(from, "]"))) {
        return false;
    }
    uint32_t *used = space == PTX_SHARED ? &module->shared_bytes : &module->local_bytes;
    one->space = space;
    one->begin = *used + GAP_BYTES;
    one->bytes = each * (uint32_t)n;
    *used = (one->begin + one->bytes + GAP_BYTES - 1) / GAP_BYTES * GAP_BYTES;
    module->n_variables++;
    return expect(from, ";");
}

/*
 * Instructions
 */

/* The word that was read last, as value i of an item. */
static bool read_value(reader *from, ptx_item *item, uint32_t i)
{
    ptx_operand *value = &item->values[i];
    bool is_negative = is_word(from, "-");
    if (is_negative && !next(from)) {
        return false;
    }
    const char *word = from->scan.word;
    const ptx_variable *variable = find_variable(from, word);
    item->bits[i] = PTX_ANY_BITS;
    item->n = i + 1;
    *value = (ptx_operand){.reg = PTX_NUMBER};
    if (ptx_scan_number(word, &value->number)) {
        value->number = is_negative ? 0 - value->number : value->number;
        return true;
    }
    if (is_negative) {
        return refuse(from, "\"-%s\" is no number", word);
    }
    if (strcmp(word, "_") == 0) {
        value->reg = PTX_SINK;
        return true;
    }
    if (variable != NULL) {
        value->number = variable->begin;
        item->space = variable->space;
        return true;
    }
    if (strcmp(word, from->kernel->parameter) == 0) {
        item->space = PTX_PARAM;
        return true;
    }
    if (word[0] != '%' && item->kind == PTX_VALUE && i == 0 &&
        !find_register(from, word, &value->reg, &item->bits[i])) {
        item->kind = PTX_LABEL;
        strcpy(item->label, word);
        return true;
    }
    return find_register(from, word, &value->reg, &item->bits[i]) ||
           ptx_special_find(word, value, &item->bits[i]) ||
           refuse(from, "there is no register %s", word);
}

static bool read_list(reader *from, ptx_item *item)
{
    item->kind = PTX_LIST;
    for (uint32_t i = 0; i < PTX_MOST_VALUES; i++) {
        if (!next(from) || !read_value(from, item, i) || !next(from)) {
            return false;
        }
        if (is_word(from, "}")) {
            return true;
        }
        if (!is_word(from, ",")) {
            break;
        }
    }
    return refuse(from, "a list of operands does not end");
}

/* [value], [value+number] or [value-number] */
static bool read_place(reader *from, ptx_item *item)
{
    uint64_t number = 0;
    item->kind = PTX_PLACE;
    if (!next(from) || !read_value(from, item, 0) || !next(from)) {
        return false;
    }
    if (is_word(from, "+") || is_word(from, "-")) {
        bool is_negative = is_word(from, "-");
        if (ptx_scan_sees(&from->scan, '-')) { /* "+-8" */
            is_negative = !is_negative;
            (void)next(from);
        }
        if (!read_number(from, &number) || !next(from)) {
            return false;
        }
        item->offset = (int64_t)(is_negative ? 0 - number : number);
    }
    return is_word(from, "]") || refuse(from, "\"%s\" in an address", from->scan.word);
}

static bool read_items(reader *from, ptx_statement *statement)
{
    while (next(from) && !is_word(from, ";")) {
        ptx_item *item = &statement->items[statement->n_items];
        if (statement->n_items > 0 && (!is_word(from, ",") || !next(from))) {
            return refuse(from, "\"%s\" among operands", from->scan.word);
        }
        if (statement->n_items == PTX_MOST_ITEMS) {
            return refuse(from, "more than %d operands", PTX_MOST_ITEMS);
        }
        statement->n_items++;
        bool is_read = is_word(from, "{")   ? read_list(from, item)
                       : is_word(from, "[") ? read_place(from, item)
                                            : read_value(from, item, 0);
        if (!is_read) {
            return false;
        }
    }
    return is_word(from, ";");
}

/* @p or @!p */
static bool read_guard(reader *from, ptx_instruction *guard_out)
{
    uint32_t bits = 1;
    if (!is_word(from, "@")) {
        return true;
    }
    guard_out->guard_is_not = ptx_scan_sees(&from->scan, '!');
    if ((guard_out->guard_is_not && !next(from)) || !next(from)) {
        return false;
    }
    if (!find_register(from, from->scan.word, &guard_out->guard, &bits) || bits != 1) {
        return refuse(from, "\"%s\" is no predicate", from->scan.word);
    }
    return next(from);
}

static ptx_instruction *add_instruction(ptx_kernel *kernel)
{
    if (kernel->n_code == kernel->room) {
        uint32_t room = kernel->room * 2 + 256;
        ptx_instruction *more = realloc(kernel->code, room * sizeof *more);
        if (more == NULL) {
            return NULL;
        }
        kernel->code = more;
        kernel->room = room;
    }
    return &kernel->code[kernel->n_code++];
}

static bool add_jump(reader *from, const char *name)
{
    jump *one = calloc(1, sizeof *one);
    if (one == NULL) {
        return refuse(from, "no memory");
    }
    strcpy(one->name, name);
    one->from = from->kernel->n_code - 1;
    one->next = from->jumps;
    from->jumps = one;
    return true;
}

static bool read_instruction(reader *from)
{
    ptx_instruction guard = {.guard = PTX_NUMBER};
    ptx_statement statement = {.n_items = 0};
    const char *why = NULL;
    uint32_t line = from->scan.line;
    if (!read_guard(from, &guard)) {
        return false;
    }
    strcpy(statement.mnemonic, from->scan.word);
    from->mnemonic = statement.mnemonic;
    if (!read_items(from, &statement)) {
        return false;
    }
    ptx_instruction *one = add_instruction(from->kernel);
    if (one == NULL || !ptx_decode(&statement, one, &why)) {
        return refuse(from, "%s", one == NULL ? "no memory" : why);
    }
    from->mnemonic = NULL;
    one->guard = guard.guard;
    one->guard_is_not = guard.guard_is_not;
    one->line = line;
    from->kernel->has_barrier |= one->perform == ptx_perform_barrier;
    return one->perform != ptx_perform_jump || add_jump(from, statement.items[0].label);
}

static const label *find_label(const reader *from, const char *name)
{
    const label *one = from->labels;
    while (one != NULL && strcmp(one->name, name) != 0) {
        one = one->next;
    }
    return one;
}

/* One name stands for one place of a kernel, though braces may be read to hide it. */
static bool add_label(reader *from)
{
    if (find_label(from, from->scan.word) != NULL) {
        return refuse(from, "the label %s is there twice", from->scan.word);
    }
    label *one = calloc(1, sizeof *one);
    if (one == NULL) {
        return refuse(from, "no memory");
    }
    strcpy(one->name, from->scan.word);
    one->at = from->kernel->n_code;
    one->next = from->labels;
    from->labels = one;
    return expect(from, ":");
}

/* All labels are known: jumps go there. */
static bool bind_jumps(reader *from)
{
    for (const jump *one = from->jumps; one != NULL; one = one->next) {
        const label *to = find_label(from, one->name);
        if (to == NULL) {
            return refuse(from, "a jump to %s, which is nowhere", one->name);
        }
        from->kernel->code[one->from].jump = to->at;
    }
    return true;
}

static void forget_labels(reader *from)
{
    while (from->labels != NULL) {
        label *one = from->labels;
        from->labels = one->next;
        free(one);
    }
    while (from->jumps != NULL) {
        jump *one = from->jumps;
        from->jumps = one->next;
        free(one);
    }
}

/*
 * Kernels
 */

static void close_brace(reader *from)
{
    for (uint32_t i = 0; i < from->kernel->n_families; i++) {
        from->is_hidden[i] |= from->kernel->families[i].depth == from->depth;
    }
    from->depth--;
}

static bool read_statement(reader *from)
{
    if (is_word(from, "{")) {
        from->depth++;
        return true;
    }
    if (is_word(from, "}")) {
        close_brace(from);
        return true;
    }
    if (is_word(from, ".reg")) {
        return read_registers(from);
    }
    if (is_word(from, ".shared") || is_word(from, ".local")) {
        return read_variable(from, is_word(from, ".shared") ? PTX_SHARED : PTX_LOCAL);
    }
    if (is_word(from, ".pragma")) {
        return skip_to(from, ";");
    }
    if (from->scan.word[0] == '.') {
        return refuse(from, "an unknown directive: %s", from->scan.word);
    }
    return ptx_scan_sees(&from->scan, ':') ? add_label(from) : read_instruction(from);
}

/* A kernel ends with an instruction that ends it, so that no thread runs on behind it. */
static bool end_kernel(reader *from)
{
    ptx_instruction *one = add_instruction(from->kernel);
    if (one == NULL) {
        return refuse(from, "no memory");
    }
    *one =
        (ptx_instruction){.perform = ptx_perform_end, .guard = PTX_NUMBER, .line = from->scan.line};
    return bind_jumps(from);
}

/* ( .param .align N .b8 name[N] ), and directives up to the brace. */
static bool read_head(reader *from)
{
    ptx_kernel *kernel = from->kernel;
    uint64_t bytes = 0, threads = PTX_MOST_THREADS, rest;
    if (!next(from)) {
        return false;
    }
    strcpy(kernel->name, from->scan.word);
    if (!expect(from, "(") || !expect(from, ".param") || !expect(from, ".align") ||
        !read_number(from, &rest) || !expect(from, ".b8") || !next(from)) {
        return false;
    }
    strcpy(kernel->parameter, from->scan.word);
    if (!expect(from, "[") || !read_number(from, &bytes) || !expect(from, "]") ||
        !expect(from, ")") || !next(from)) {
        return false;
    }
    while (!is_word(from, "{")) {
        bool is_most = is_word(from, ".maxntid");
        bool is_known = is_most || is_word(from, ".minnctapersm") || is_word(from, ",");
        if (!is_known || !read_number(from, is_most ? &threads : &rest) || !next(from)) {
            return is_known ? false : refuse(from, "an unknown directive: %s", from->scan.word);
        }
    }
    kernel->argument_bytes = (uint32_t)bytes;
    kernel->most_threads = (uint32_t)threads;
    return true;
}

static bool read_kernel(reader *from)
{
    ptx_kernel *kernel = calloc(1, sizeof *kernel);
    ptx_family *families = calloc(PTX_MOST_FAMILIES, sizeof *families);
    if (kernel == NULL || families == NULL) {
        free(kernel);
        free(families);
        return refuse(from, "no memory");
    }
    kernel->families = families;
    kernel->module = from->module;
    kernel->next = from->module->kernels;
    from->module->kernels = kernel;
    from->kernel = kernel;
    from->depth = 1;
    memset(from->is_hidden, 0, sizeof from->is_hidden);
    bool is_read = read_head(from);
    while (is_read && from->depth > 0) {
        is_read = next(from) && read_statement(from);
    }
    is_read = is_read && end_kernel(from);
    forget_labels(from);
    return is_read;
}

static bool read_module(reader *from)
{
    while (ptx_scan_next(&from->scan)) {
        uint64_t number;
        bool is_read;
        if (is_word(from, ".version")) {
            is_read = next(from);
        } else if (is_word(from, ".target")) {
            is_read = next(from);
            (void)sscanf(from->scan.word, "sm_%" SCNu32, &from->module->target);
        } else if (is_word(from, ".address_size")) {
            is_read = read_number(from, &number) &&
                      (number == 64 || refuse(from, "addresses of %u bits", (unsigned)number));
        } else if (is_word(from, ".visible")) {
            is_read = expect(from, ".entry") && read_kernel(from);
        } else if (is_word(from, ".shared")) {
            is_read = read_variable(from, PTX_SHARED);
        } else {
            is_read = refuse(from, "an unknown directive: %s", from->scan.word);
        }
        if (!is_read) {
            return false;
        }
    }
    return from->scan.at[0] == 0 || refuse(from, "a word that is too long");
}

ptx_module *ptx_module_read(const char *text, char said[PTX_SAID_BYTES])
{
    reader from = {.scan = {.at = text, .line = 1}, .said = said};
    from.module = calloc(1, sizeof *from.module);
    if (from.module == NULL) {
        (void)refuse(&from, "no memory");
        return NULL;
    }
    if (!read_module(&from)) {
        ptx_module_free(from.module);
        return NULL;
    }
    return from.module;
}

void ptx_module_free(ptx_module *module)
{
    while (module != NULL && module->kernels != NULL) {
        ptx_kernel *one = module->kernels;
        module->kernels = one->next;
        free(one->families);
        free(one->code);
        free(one);
    }
    free(module);
}

uint32_t ptx_module_target(const ptx_module *module)
{
    return module->target;
}

const ptx_kernel *ptx_kernel_find(const ptx_module *module, const char *name)
{
    const ptx_kernel *one = module->kernels;
    while (one != NULL && strcmp(one->name, name) != 0) {
        one = one->next;
    }
    return one;
}

size_t ptx_kernel_argument_bytes(const ptx_kernel *kernel)
{
    return kernel->argument_bytes;
}
