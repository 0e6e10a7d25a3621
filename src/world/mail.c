/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/mail.h"

#include "base/alloc.h"

#include <ferry/world.h>

#include <stdio.h>
#include <string.h>

enum { FIRST_HOLES = 16, LETTERS_PER_HOLE = 2 };

fy_letter *fy_letter_new(uint32_t from, uint64_t tag, const void *bytes, size_t n_bytes)
{
    fy_letter *letter = fy_alloc(1, sizeof *letter + n_bytes);
    if (letter == NULL) {
        return NULL;
    }
    *letter = (fy_letter){.from = from, .tag = tag, .n_bytes = n_bytes};
    if (n_bytes > 0) {
        memcpy(letter->bytes, bytes, n_bytes);
    }
    return letter;
}

uint64_t fy_letter_room(size_t n_bytes)
{
    return sizeof(fy_letter) + n_bytes;
}

static void append(fy_letter_list *list, fy_letter *letter, int which)
{
    if (list->first == NULL) {
        list->end = &list->first;
    }
    letter->links[which] = (fy_letter_link){.at = list->end};
    *list->end = letter;
    list->end = &letter->links[which].next;
}

static void unlink_letter(fy_letter_list *list, const fy_letter *letter, int which)
{
    const fy_letter_link *own = &letter->links[which];
    *own->at = own->next;
    if (own->next != NULL) {
        own->next->links[which].at = own->at;
    } else {
        list->end = own->at;
    }
}

static fy_letter_list *hole_of(const fy_mail *mail, uint32_t from)
{
    return &mail->holes[from & (mail->n_holes - 1)];
}

/* As many holes as keep them short: senders are ranks, which spread by themselves. */
static bool make_holes(fy_mail *mail)
{
    size_t n_holes = mail->n_holes == 0 ? FIRST_HOLES : 2 * mail->n_holes;
    fy_letter_list *holes = fy_alloc_zeroed(n_holes, sizeof *holes);
    if (holes == NULL) {
        return false;
    }
    fy_free(mail->holes);
    mail->holes = holes;
    mail->n_holes = n_holes;
    for (fy_letter *letter = mail->all.first; letter != NULL;
         letter = letter->links[FY_BY_ARRIVAL].next) {
        append(hole_of(mail, letter->from), letter, FY_BY_SENDER);
    }
    return true;
}

bool fy_mail_add(fy_mail *mail, fy_letter *letter)
{
    if (mail->n >= LETTERS_PER_HOLE * mail->n_holes && !make_holes(mail)) {
        return false;
    }
    append(&mail->all, letter, FY_BY_ARRIVAL);
    append(hole_of(mail, letter->from), letter, FY_BY_SENDER);
    mail->n++;
    mail->bytes += fy_letter_room(letter->n_bytes);
    return true;
}

static void remove_letter(fy_mail *mail, const fy_letter *letter)
{
    unlink_letter(&mail->all, letter, FY_BY_ARRIVAL);
    unlink_letter(hole_of(mail, letter->from), letter, FY_BY_SENDER);
    mail->n--;
    mail->bytes -= fy_letter_room(letter->n_bytes);
}

fy_letter *fy_mail_take(fy_mail *mail, uint32_t from, uint64_t tag)
{
    bool any = from == FERRY_ANY_RANK;
    int which = any ? FY_BY_ARRIVAL : FY_BY_SENDER;
    fy_letter *letter = mail->n == 0 ? NULL : any ? mail->all.first : hole_of(mail, from)->first;
    while (letter != NULL && (letter->tag != tag || (!any && letter->from != from))) {
        letter = letter->links[which].next;
        mail->looks++;
    }
    if (letter != NULL) {
        remove_letter(mail, letter);
        mail->looks++;
    }
    return letter;
}

void fy_mail_forget(fy_mail *mail, uint64_t first, uint64_t last)
{
    fy_letter *next;
    for (fy_letter *letter = mail->all.first; letter != NULL; letter = next) {
        next = letter->links[FY_BY_ARRIVAL].next;
        if (letter->tag >= first && letter->tag <= last) {
            remove_letter(mail, letter);
            fy_free(letter);
        }
    }
}

void fy_mail_cleanup(fy_mail *mail)
{
    fy_mail_forget(mail, 0, UINT64_MAX);
    fy_free(mail->holes);
    *mail = (fy_mail){.holes = NULL};
}

ferry_status fy_mail_fail_late(uint32_t from, uint64_t tag, int64_t limit_ns, ferry_error *error)
{
    char who[32] = "any rank";
    if (from != FERRY_ANY_RANK) {
        snprintf(who, sizeof who, "rank %u", from);
    }
    return fy_fail(error, FERRY_ERR_TIMEOUT, "no message with tag %llu from %s within %g s",
                   (unsigned long long)tag, who, (double)limit_ns / 1e9);
}
