/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From what is written to what is performed. */
#include "device/ptx/decode.h"

#include <string.h>

static const char misfit[] = "its operands are not those of the instruction";
static const char unknown[] = "an unknown instruction";

uint32_t ptx_type_bits(const char *type, bool *is_signed_out)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } types[] = {{"pred", 1}, {"b8", 8},   {"u8", 8},   {"s8", 8},   {"b16", 16}, {"u16", 16},
                 {"s16", 16}, {"f16", 16}, {"b32", 32}, {"u32", 32}, {"s32", 32}, {"f32", 32},
                 {"b64", 64}, {"u64", 64}, {"s64", 64}, {"f64", 64}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, type) == 0) {
            *is_signed_out = type[0] == 's';
            return types[i].bits;
        }
    }
    return 0;
}

static uint64_t mask_of(uint32_t bits)
{
    return bits >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << bits) - 1;
}

static uint32_t bits_of_letter(char letter)
{
    return letter == 'p' ? 1 : letter == 'h' ? 16 : letter == 'w' ? 32 : 64;
}

/* A value of so many bits, or one register of at least as many. */
static bool takes(const ptx_item *item, uint32_t i, uint32_t bits, bool may_be_wider)
{
    if (i >= item->n || item->values[i].reg == PTX_SINK) {
        return false;
    }
    uint32_t its = item->bits[i];
    return its == PTX_ANY_BITS || its == bits || (may_be_wider && its > bits);
}

static ptx_operand cut(ptx_operand value, uint32_t bits)
{
    if (value.reg == PTX_NUMBER) {
        value.number &= mask_of(bits);
    }
    return value;
}

static bool is_register(const ptx_item *item, uint32_t i, uint32_t bits, bool may_be_wider)
{
    return takes(item, i, bits, may_be_wider) && item->values[i].reg >= 0;
}

/* Of a row of a table. */
static bool decode_row(const ptx_row *row, const ptx_statement *statement, ptx_instruction *one)
{
    const char *sources = row->shape + 2;
    size_t n = strcspn(sources, "!");
    uint32_t bits = bits_of_letter(row->shape[0]);
    const ptx_item *target = &statement->items[0];
    if (statement->n_items != 1 + n || target->kind != PTX_VALUE ||
        !is_register(target, 0, bits, false)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const ptx_item *item = &statement->items[1 + i];
        uint32_t its = bits_of_letter(sources[i]);
        if (item->kind != PTX_VALUE || !takes(item, 0, its, false)) {
            return false;
        }
        one->sources[i] = cut(item->values[0], its);
    }
    one->targets[0] = target->values[0].reg;
    one->n_targets = 1;
    one->n_sources = (uint8_t)n;
    one->mask = mask_of(bits);
    one->reckon = row->reckon;
    one->divides = sources[n] == '!';
    one->perform = ptx_perform_of((uint32_t)n);
    return true;
}

/* mov of {parts} to a whole, or the other way. */
static bool decode_parts(const ptx_statement *statement, ptx_instruction *one)
{
    bool is_signed, packs = statement->items[1].kind == PTX_LIST;
    const ptx_item *whole = &statement->items[packs ? 0 : 1];
    const ptx_item *parts = &statement->items[packs ? 1 : 0];
    uint32_t bits = ptx_type_bits(statement->mnemonic + strlen("mov."), &is_signed);
    uint32_t each = parts->n > 0 ? bits / parts->n : 0;
    if (whole->kind != PTX_VALUE || parts->kind != PTX_LIST || parts->n < 2 ||
        !is_register(whole, 0, bits, false)) {
        return false;
    }
    for (uint32_t i = 0; i < parts->n; i++) {
        bool is_sink = !packs && parts->values[i].reg == PTX_SINK;
        if (!is_sink && !(packs ? takes : is_register)(parts, i, each, false)) {
            return false;
        }
        one->sources[i] = parts->values[i];
        one->targets[i] = parts->values[i].reg;
    }
    one->targets[0] = packs ? whole->values[0].reg : one->targets[0];
    one->sources[0] = packs ? one->sources[0] : whole->values[0];
    one->n_targets = (uint8_t)(packs ? 1 : parts->n);
    one->n_sources = (uint8_t)(packs ? parts->n : 1);
    one->access.bytes = each / 8;
    one->mask = mask_of(each);
    one->perform = packs ? ptx_perform_pack : ptx_perform_unpack;
    return true;
}

/* The next word of a mnemonic, which ends at a dot. */
static bool next_word(const char **at, char word[PTX_NAME_BYTES])
{
    size_t n = strcspn(*at, ".");
    memcpy(word, *at, n);
    word[n] = 0;
    *at += n + ((*at)[n] == '.');
    return n > 0;
}

static bool is_among(const char *word, const char *const *words)
{
    while (*words != NULL && strcmp(*words, word) != 0) {
        words++;
    }
    return *words != NULL;
}

/* What the words of an access may say; false: one that is not known, or its type is missing. */
typedef struct access_words {
    bool is_atomic;
    char operation[PTX_NAME_BYTES], type[PTX_NAME_BYTES];
} access_words;

static bool read_access_word(const char *word, ptx_access *access, access_words *words)
{
    static const char *const spaces[] = {"", "global", "shared", "local", "param"};
    static const char *const orders[] = {"weak", "relaxed", "acquire", "release", "acq_rel"};
    static const char *const scopes[] = {"cta", "gpu", "sys", NULL};
    static const char *const hints[] = {"L1::no_allocate", "ca", "cg", "cs", "wb", NULL};
    for (size_t i = 1; i < sizeof spaces / sizeof spaces[0]; i++) {
        if (strcmp(word, spaces[i]) == 0) {
            access->space = (ptx_space)i;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        if (strcmp(word, orders[i]) == 0) {
            access->order = (ptx_order)i;
            return true;
        }
    }
    if (strcmp(word, "v2") == 0 || strcmp(word, "v4") == 0) {
        access->n = word[1] == '2' ? 2 : 4;
        return true;
    }
    uint32_t bits = ptx_type_bits(word, &access->is_signed);
    if (bits >= 8) {
        access->bytes = bits / 8;
        strcpy(words->type, word);
        return true;
    }
    if (words->is_atomic && words->operation[0] == 0 && !is_among(word, scopes)) {
        strcpy(words->operation, word);
        return true;
    }
    return is_among(word, scopes) || is_among(word, hints);
}

static bool read_access(const char *at, ptx_access *access, access_words *words)
{
    char word[PTX_NAME_BYTES];
    *access = (ptx_access){.n = 1};
    while (next_word(&at, word)) {
        if (access->bytes != 0 || !read_access_word(word, access, words)) {
            return false; /* nothing comes behind the type */
        }
    }
    bool is_word = access->n == 1 && (access->bytes == 4 || access->bytes == 8);
    bool fits = access->order == PTX_WEAK || is_word;
    return *at == 0 && access->bytes != 0 && access->bytes * access->n <= 16 && fits;
}

static bool decode_place(const ptx_item *item, ptx_instruction *one)
{
    bool is_wide = item->bits[0] == 64, is_narrow = item->bits[0] == 32;
    ptx_space space = one->access.space;
    bool may_be_narrow = space == PTX_SHARED || space == PTX_LOCAL || space == PTX_PARAM;
    if (item->kind != PTX_PLACE ||
        !(item->bits[0] == PTX_ANY_BITS || is_wide || (is_narrow && may_be_narrow))) {
        return false;
    }
    if (item->space != PTX_GENERIC && item->space != space) {
        return false; /* a variable of another space */
    }
    one->base = item->values[0];
    one->offset = item->offset;
    return true;
}

/* Registers may be wider than what is loaded or stored. */
static bool decode_elements(const ptx_item *item, bool is_target, ptx_instruction *one)
{
    uint32_t bits = one->access.bytes * 8;
    bool is_list = item->kind == PTX_LIST;
    if ((!is_list && item->kind != PTX_VALUE) || item->n != one->access.n ||
        is_list != (one->access.n > 1)) {
        return false;
    }
    for (uint32_t i = 0; i < item->n; i++) {
        if (is_target ? !is_register(item, i, bits, true) : !takes(item, i, bits, true)) {
            return false;
        }
        one->targets[i] = item->values[i].reg;
        one->sources[i] = item->values[i];
    }
    *(is_target ? &one->n_targets : &one->n_sources) = (uint8_t)item->n;
    one->mask = mask_of(is_target ? item->bits[0] : bits);
    return true;
}

static bool decode_atomic(const ptx_statement *statement, bool has_target, ptx_instruction *one)
{
    const ptx_item *items = statement->items + has_target;
    uint32_t n = statement->n_items - has_target, bits = one->access.bytes * 8;
    if (statement->n_items < 1u + has_target || n < 2 || n > 3 || !decode_place(&items[0], one) ||
        (has_target && !is_register(&statement->items[0], 0, bits, false))) {
        return false;
    }
    for (uint32_t i = 1; i < n; i++) {
        if (items[i].kind != PTX_VALUE || !takes(&items[i], 0, bits, false)) {
            return false;
        }
        one->sources[i - 1] = cut(items[i].values[0], bits);
    }
    one->n_sources = (uint8_t)(n - 1);
    one->n_targets = has_target;
    one->targets[0] = has_target ? statement->items[0].values[0].reg : PTX_SINK;
    one->perform = ptx_perform_atomic;
    return true;
}

/* ld, st, atom and red; *why is set where it is one of them. */
static bool decode_access(const ptx_statement *statement, ptx_instruction *one, const char **why)
{
    const char *rest = statement->mnemonic;
    char kind[PTX_NAME_BYTES];
    access_words words = {.operation = "", .type = ""};
    (void)next_word(&rest, kind);
    bool loads = strcmp(kind, "ld") == 0, stores = strcmp(kind, "st") == 0;
    words.is_atomic = strcmp(kind, "atom") == 0 || strcmp(kind, "red") == 0;
    if ((!loads && !stores && !words.is_atomic) || !read_access(rest, &one->access, &words)) {
        return false;
    }
    const ptx_access *access = &one->access;
    if (words.is_atomic) {
        one->reckon = ptx_atomic(words.operation, words.type);
        if (one->reckon == NULL) {
            return false;
        }
        *why = misfit;
        bool takes_two = strcmp(words.operation, "cas") == 0, has_target = kind[0] == 'a';
        return statement->n_items == 2u + takes_two + has_target &&
               decode_atomic(statement, has_target, one);
    }
    bool fits = loads ? access->order != PTX_RELEASE && access->order != PTX_BOTH
                      : access->order != PTX_ACQUIRE && access->order != PTX_BOTH &&
                            access->space != PTX_PARAM;
    if (!fits) {
        return false;
    }
    *why = misfit;
    one->perform = loads ? ptx_perform_load : ptx_perform_store;
    return statement->n_items == 2 && decode_place(&statement->items[loads ? 1 : 0], one) &&
           decode_elements(&statement->items[loads ? 0 : 1], loads, one);
}

static bool decode_multimem(const ptx_statement *statement, ptx_instruction *one, const char **why)
{
    bool loads;
    if (!ptx_decode_multimem(statement->mnemonic, one, &loads)) {
        return false;
    }
    *why = misfit;
    return statement->n_items == 2 && decode_place(&statement->items[loads ? 1 : 0], one) &&
           decode_elements(&statement->items[loads ? 0 : 1], loads, one);
}

/* cvta.SPACE.u64 makes an address generic; cvta.to.SPACE.u64 takes one. */
static bool decode_window(const ptx_statement *statement, ptx_instruction *one, const char **why)
{
    static const struct {
        const char *name;
        uint64_t window;
        bool from_generic;
    } known[] = {{"cvta.to.global.u64", 0, true},
                 {"cvta.global.u64", 0, false},
                 {"cvta.to.shared.u64", PTX_SHARED_WINDOW, true},
                 {"cvta.shared.u64", PTX_SHARED_WINDOW, false},
                 {"cvta.to.local.u64", PTX_LOCAL_WINDOW, true},
                 {"cvta.local.u64", PTX_LOCAL_WINDOW, false}};
    static const ptx_row row = {"cvta", "d=d", NULL};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, statement->mnemonic) != 0) {
            continue;
        }
        *why = misfit;
        if (!decode_row(&row, statement, one)) {
            return false;
        }
        one->from_generic = known[i].from_generic;
        one->offset = (int64_t)known[i].window;
        one->perform = ptx_perform_window;
        return true;
    }
    return false;
}

/* Where it goes on, and whether. */
static bool decode_flow(const ptx_statement *statement, ptx_instruction *one, const char **why)
{
    static const struct {
        const char *name;
        ptx_perform perform;
        uint32_t n_items;
    } known[] = {{"bra", ptx_perform_jump, 1},
                 {"bra.uni", ptx_perform_jump, 1},
                 {"ret", ptx_perform_end, 0},
                 {"exit", ptx_perform_end, 0},
                 {"trap", ptx_perform_trap, 0},
                 {"bar.sync", ptx_perform_barrier, 1},
                 {"barrier.sync", ptx_perform_barrier, 1},
                 {"fence.proxy.alias", ptx_perform_settle, 0},
                 {"nanosleep.u32", ptx_perform_pause, 1}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, statement->mnemonic) != 0) {
            continue;
        }
        const ptx_item *item = &statement->items[0];
        bool jumps = known[i].perform == ptx_perform_jump;
        bool is_barrier = known[i].perform == ptx_perform_barrier;
        bool fits = statement->n_items == known[i].n_items &&
                    (item->kind == PTX_LABEL) == (jumps && statement->n_items > 0);
        if (fits && known[i].perform == ptx_perform_pause) {
            fits = item->kind == PTX_VALUE && takes(item, 0, 32, false);
        } else if (fits && is_barrier) { /* the first of the sixteen, for all threads */
            fits = item->kind == PTX_VALUE && item->values[0].reg == PTX_NUMBER &&
                   item->values[0].number == 0;
        }
        *why = misfit;
        one->sources[0] = item->values[0];
        one->perform = known[i].perform;
        return fits;
    }
    return false;
}

const ptx_row *ptx_find_row(const ptx_row *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

bool ptx_decode(const ptx_statement *statement, ptx_instruction *one_out, const char **why)
{
    const char *name = statement->mnemonic;
    *one_out = (ptx_instruction){.guard = PTX_NUMBER};
    *why = unknown;
    bool has_list = statement->n_items == 2 &&
                    (statement->items[0].kind == PTX_LIST || statement->items[1].kind == PTX_LIST);
    if (has_list && strncmp(name, "mov.", 4) == 0) {
        *why = misfit;
        return decode_parts(statement, one_out);
    }
    const ptx_row *row = ptx_integer_row(name);
    row = row != NULL ? row : ptx_float_row(name);
    if (row != NULL) {
        *why = misfit;
        return decode_row(row, statement, one_out);
    }
    return decode_access(statement, one_out, why) ||
           (*why == unknown && decode_multimem(statement, one_out, why)) ||
           (*why == unknown && decode_flow(statement, one_out, why)) ||
           (*why == unknown && decode_window(statement, one_out, why));
}
