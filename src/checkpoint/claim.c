/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/claim.h"

#include "base/file.h"
#include "checkpoint/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CLAIM_BYTES = 512, WORD_BYTES = 160, MOST_TRIES = 100 };

/* ---- who makes claims ---- */

static const char UNKNOWN[] = "?";

/* The first word of a small file, UNKNOWN where there is none. */
static void read_word(const char *path, char word[WORD_BYTES])
{
    FILE *file = fopen(path, "re");
    if (file == NULL || fscanf(file, "%159s", word) != 1) {
        strcpy(word, UNKNOWN);
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* When a process began, in ticks since the boot: a number that is given out again has another. 0:
 * there is no such process, or this user may not see it. */
static unsigned long long began_at(long pid)
{
    char               path[64], text[1024];
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE  *file = fopen(path, "re");
    size_t n    = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL) {
        fclose(file);
    }
    text[n] = '\0';
    /* The name, in parentheses, may hold any byte; behind it stand the state and 18 numbers. */
    const char *rest = strrchr(text, ')');
    if (rest == NULL || sscanf(rest,
                               ") %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                               "%*s %*s %*s %*s %*s %llu",
                               &ticks) != 1) {
        return 0;
    }
    return ticks;
}

/* Where process numbers mean the same: one boot of one machine, one space of numbers. Where the
 * boot is not known, nowhere: it begins with UNKNOWN. */
static void describe_machine(char text[CLAIM_BYTES])
{
    char    boot[WORD_BYTES], space[WORD_BYTES];
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    read_word("/proc/sys/kernel/random/boot_id", boot);
    strcpy(space + (n < 0 ? 0 : n), n < 0 ? UNKNOWN : "");
    snprintf(text, CLAIM_BYTES, "%s/%s", boot, space);
}

static void describe_self(char text[CLAIM_BYTES])
{
    char host[WORD_BYTES], machine[CLAIM_BYTES];
    if (gethostname(host, sizeof host) != 0) {
        strcpy(host, UNKNOWN);
    }
    host[sizeof host - 1]      = '\0';
    host[strcspn(host, " \t")] = '\0';
    if (host[0] == '\0') { /* a word must stand there to be read again */
        strcpy(host, UNKNOWN);
    }
    describe_machine(machine);
    snprintf(text, CLAIM_BYTES, "%ld %llu %.100s %.300s", (long)getpid(), began_at(getpid()), host,
             machine);
}

/* ---- reading one ---- */

typedef struct claim {
    char text[CLAIM_BYTES];
    long pid;
    char host[WORD_BYTES];
    bool is_here; /* its process numbers are ours */
    bool lives;   /* or may live */
} claim;

/* False where there is none. One that nobody can read is not known to be dead. */
static bool read_claim(int folder_fd, const char *name, claim *c)
{
    unsigned long long began = 0;
    char               there[CLAIM_BYTES], here[CLAIM_BYTES];
    ssize_t            n = readlinkat(folder_fd, name, c->text, sizeof c->text - 1);
    if (n < 0 && errno == ENOENT) {
        return false;
    }
    c->text[n < 0 ? 0 : n] = '\0';
    c->pid                 = 0;
    strcpy(c->host, UNKNOWN);
    describe_machine(here);
    bool is_read = sscanf(c->text, "%ld %llu %159s %511s", &c->pid, &began, c->host, there) == 4;
    c->is_here   = is_read && c->pid > 0 && strcmp(there, here) == 0 && here[0] != UNKNOWN[0];
    c->lives =
        !c->is_here || (kill((pid_t)c->pid, 0) != 0 ? errno == EPERM : began_at(c->pid) == began);
    return true;
}

bool fy_claim_is_free(int folder_fd)
{
    claim c;
    return !read_claim(folder_fd, FY_CLAIM_NAME, &c) || !c.lives;
}

static ferry_status fail_taken(const claim *c, const char *path, ferry_error *error)
{
    if (c->is_here) {
        return fy_fail(error, FERRY_ERR_IO,
                       "%s: another run (process %ld) is writing it; wait for its end, or end it",
                       path, c->pid);
    }
    return fy_fail(error, FERRY_ERR_IO,
                   "%s: process %ld of %s may be writing it, which cannot be seen from here, as "
                   "its file system has no locks; if it is dead, remove the partial folder",
                   path, c->pid, c->host);
}

/*
 * Away with the claim of a dead process. Between reading and removing another may have done that
 * and made its own: so it is renamed first, and who finds that he took a living one puts it back.
 */
static void remove_dead(int folder_fd, const claim *dead)
{
    char  name[64];
    claim taken;
    snprintf(name, sizeof name, FY_CLAIM_NAME ".%ld", (long)getpid());
    if (renameat(folder_fd, FY_CLAIM_NAME, folder_fd, name) != 0 ||
        !read_claim(folder_fd, name, &taken)) {
        return;
    }
    if (strcmp(taken.text, dead->text) != 0 && symlinkat(taken.text, folder_fd, FY_CLAIM_NAME)) {
        return; /* yet another has come: two may write now, and the later rename fails */
    }
    unlinkat(folder_fd, name, 0);
}

ferry_status fy_claim_refuse(int folder_fd, const char *path, ferry_error *error)
{
    claim c;
    if (!read_claim(folder_fd, FY_CLAIM_NAME, &c)) {
        return FERRY_OK;
    }
    if (c.lives) {
        return fail_taken(&c, path, error);
    }
    remove_dead(folder_fd, &c);
    return FERRY_OK;
}

ferry_status fy_claim_take(int folder_fd, const char *path, ferry_error *error)
{
    char own[CLAIM_BYTES];
    describe_self(own);
    for (int i = 0; i < MOST_TRIES; i++) {
        if (symlinkat(own, folder_fd, FY_CLAIM_NAME) == 0) {
            return FERRY_OK;
        }
        if (errno != EEXIST) {
            return fy_fail_errno(path, "its file system has no locks, and no claim can be made",
                                 errno, error);
        }
        ferry_status status = fy_claim_refuse(folder_fd, path, error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    return fy_fail(error, FERRY_ERR_IO, "%s: other runs claim and leave it all the time", path);
}
