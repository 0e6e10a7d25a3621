/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/claim.h"

#include "base/hash.h"
#include "checkpoint/folder.h"
#include "host/file.h"

#include <dirent.h>
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
 * there is no such process, or it has ended and nobody has asked how, or this user may not see it.
 */
static unsigned long long began_at(long pid)
{
    char path[64], text[1024];
    unsigned long long ticks = 0;
    long n_threads = 0;
    char state;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    size_t n = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL) {
        fclose(file);
    }
    text[n] = '\0';
    /* The name, in parentheses, may hold any byte; behind it stand the state and 18 numbers. */
    const char *rest = strrchr(text, ')');
    if (rest == NULL || sscanf(rest,
                               ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                               "%*s %*s %ld %*s %llu",
                               &state, &n_threads, &ticks) != 3) {
        return 0;
    }
    /* A first thread that has ended looks the same, but there are others. */
    return (state == 'Z' || state == 'X') && n_threads <= 1 ? 0 : ticks;
}

/* Where process numbers mean the same: one boot of one machine, one space of numbers. Where the
 * boot is not known, nowhere: it begins with UNKNOWN. */
static void describe_machine(char text[CLAIM_BYTES])
{
    char boot[WORD_BYTES], space[WORD_BYTES];
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
    host[sizeof host - 1] = '\0';
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
    char there[CLAIM_BYTES], here[CLAIM_BYTES];
    ssize_t n = readlinkat(folder_fd, name, c->text, sizeof c->text - 1);
    if (n < 0 && errno == ENOENT) {
        return false;
    }
    c->text[n < 0 ? 0 : n] = '\0';
    c->pid = 0;
    strcpy(c->host, UNKNOWN);
    describe_machine(here);
    bool is_read = sscanf(c->text, "%ld %llu %159s %511s", &c->pid, &began, c->host, there) == 4;
    c->is_here = is_read && c->pid > 0 && strcmp(there, here) == 0 && here[0] != UNKNOWN[0];
    c->lives =
        !c->is_here || (kill((pid_t)c->pid, 0) != 0 ? errno == EPERM : began_at(c->pid) == began);
    return true;
}

/* ---- who holds the folder ---- */

/*
 * Nobody may remove the claim of a dead process: another could have put his own into its place
 * meanwhile. It is succeeded instead. The successor of a claim has a name made of its text, so that
 * only one of many can make it, and it counts as long as the claim that is succeeded stands in
 * FY_CLAIM_NAME. Whoever has made it renames it to FY_CLAIM_NAME: a text that was there never comes
 * back, for its process is dead, and whoever looks after making a successor finds out that he came
 * too late. Processes die between these steps too, so successors have successors.
 */
typedef struct chain {
    claim first;
    claim last;
    char next[64]; /* the name of the last one's successor */
} chain;

static void name_successor(const char *text, char *name, size_t size)
{
    fy_hash128 hash = fy_hash128_of(text, strlen(text));
    snprintf(name, size, FY_CLAIM_NAME ".%016llx%016llx", (unsigned long long)hash.high,
             (unsigned long long)hash.low);
}

/* False where nobody claims. */
static bool read_chain(int folder_fd, chain *c)
{
    claim next;
    if (!read_claim(folder_fd, FY_CLAIM_NAME, &c->first)) {
        return false;
    }
    c->last = c->first;
    for (int i = 0; !c->last.lives; i++) {
        name_successor(c->last.text, c->next, sizeof c->next);
        if (!read_claim(folder_fd, c->next, &next)) {
            break;
        }
        c->last = next;
        c->last.lives = next.lives || i == MOST_TRIES; /* a ring, which no run makes */
    }
    return true;
}

bool fy_claim_is_free(int folder_fd)
{
    chain c;
    return !read_chain(folder_fd, &c) || !c.last.lives;
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

static ferry_status fail_claim(const char *path, ferry_error *error)
{
    return fy_fail_errno(path, "its file system has no locks, and no claim can be made", errno,
                         error);
}

/* Of a dead one's chain. *taken_out is false where another was faster. */
static ferry_status succeed(int folder_fd, const chain *c, const char *own, const char *path,
                            bool *taken_out, ferry_error *error)
{
    claim now;
    *taken_out = false;
    if (symlinkat(own, folder_fd, c->next) != 0) {
        return errno == EEXIST ? FERRY_OK : fail_claim(path, error);
    }
    if (!read_claim(folder_fd, FY_CLAIM_NAME, &now) || strcmp(now.text, c->first.text) != 0) {
        unlinkat(folder_fd, c->next, 0);
        return FERRY_OK;
    }
    if (renameat(folder_fd, c->next, folder_fd, FY_CLAIM_NAME) != 0) {
        ferry_status status = fail_claim(path, error);
        unlinkat(folder_fd, c->next, 0);
        return status;
    }
    *taken_out = true;
    return FERRY_OK;
}

ferry_status fy_claim_take(int folder_fd, const char *path, ferry_error *error)
{
    char own[CLAIM_BYTES];
    describe_self(own);
    for (int i = 0; i < MOST_TRIES; i++) {
        chain c;
        bool taken = false;
        ferry_status status = FERRY_OK;
        if (symlinkat(own, folder_fd, FY_CLAIM_NAME) == 0) {
            return FERRY_OK;
        }
        if (errno != EEXIST) {
            return fail_claim(path, error);
        }
        if (read_chain(folder_fd, &c)) {
            status = c.last.lives ? fail_taken(&c.last, path, error)
                                  : succeed(folder_fd, &c, own, path, &taken, error);
        }
        if (status != FERRY_OK || taken) {
            return status;
        }
    }
    return fy_fail(error, FERRY_ERR_IO, "%s: other runs keep claiming and leaving it", path);
}

ferry_status fy_claim_refuse(int folder_fd, const char *path, ferry_error *error)
{
    claim c;
    if (!read_claim(folder_fd, FY_CLAIM_NAME, &c)) {
        return FERRY_OK;
    }
    FY_TRY(fy_claim_take(folder_fd, path, error));
    fy_claim_drop(folder_fd);
    return FERRY_OK;
}

bool fy_claim_is_name(const char *name)
{
    return strncmp(name, FY_CLAIM_NAME, strlen(FY_CLAIM_NAME)) == 0;
}

/* What dead processes have left in a chain; the claim itself stays. */
static void remove_successors(int folder_fd)
{
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    for (const struct dirent *item = NULL; stream != NULL && (item = readdir(stream)) != NULL;) {
        if (fy_claim_is_name(item->d_name) && strcmp(item->d_name, FY_CLAIM_NAME) != 0) {
            unlinkat(folder_fd, item->d_name, 0);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    } else if (fd >= 0) {
        close(fd);
    }
}

void fy_claim_drop(int folder_fd)
{
    remove_successors(folder_fd);
    if (unlinkat(folder_fd, FY_CLAIM_NAME, 0) != 0 && errno != ENOENT) {
        unlinkat(folder_fd, FY_CLAIM_NAME, 0);
    }
}
