/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/rendezvous.h"

#include "base/log.h"
#include "world/auth.h"
#include "world/bell.h"
#include "world/link.h"

#include <ferry/group.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * The file:
 *
 *   ferry.rendezvous/1
 *   ranks 8
 *   secret no
 *   key 64 hexadecimal digits
 *   by process 4711 on host3 at 2026-01-31T12:00:00Z
 *   at 10.0.0.3:41000,127.0.0.1:41000
 *   end
 *
 * Rank 0 makes it beside the path and renames it, so it is there whole or not at all, and replaces
 * one that an earlier, killed job left. Others may have read that one: so each calls rank 0 before
 * it believes the file, and looks for a new file as long as nobody there proves the key.
 */
static const char first_line[] = "ferry.rendezvous/";
enum { VERSION = 1, FILE_BYTES = 2048 };

/* Which of the files that were at the path; all zero is none. */
typedef struct file_id {
    ino_t inode;
    off_t bytes;
    struct timespec changed;
} file_id;

typedef enum found {
    FOUND_NOTHING,
    FOUND_NOTICE,
    FOUND_DAMAGED, /* begins as one does */
    FOUND_OTHER,   /* no file of ferry's */
} found;

static file_id id_of(const struct stat *info)
{
    return (file_id){.inode = info->st_ino, .bytes = info->st_size, .changed = info->st_mtim};
}

static bool same_file(const file_id *a, const file_id *b)
{
    return a->inode == b->inode && a->bytes == b->bytes && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

/* Only what this user alone can have written is believed. */
static ferry_status check_owner(const char *path, const struct stat *info, ferry_error *error)
{
    if (!S_ISREG(info->st_mode)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "rendezvous \"%s\" is not a regular file",
                       path);
    }
    if (info->st_uid != geteuid()) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "rendezvous \"%s\" belongs to user %u, and this is user %u: name a path in "
                       "a folder of your own",
                       path, (unsigned)info->st_uid, (unsigned)geteuid());
    }
    if ((info->st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "rendezvous \"%s\" has mode %04o: others could have written it; remove it",
                       path, (unsigned)(info->st_mode & 07777));
    }
    return FERRY_OK;
}

/* text gets at most FILE_BYTES - 1 bytes and a zero; *there_out is false where no file is. */
static ferry_status read_text(const char *path, char text[FILE_BYTES], file_id *id_out,
                              bool *there_out, ferry_error *error)
{
    struct stat info;
    ferry_status status = FERRY_OK;
    size_t used = 0;
    /* A pipe must not make this wait; nor may a link lead to a file that somebody else chose. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ESTALE)) {
        *there_out = false;
        *id_out = (file_id){0};
        return FERRY_OK;
    }
    if (fd < 0) {
        const char *why = errno == ELOOP ? "it is a symbolic link" : strerror(errno);
        return fy_fail(error, errno == ELOOP ? FERRY_ERR_INVALID_INPUT : FERRY_ERR_IO,
                       "rendezvous \"%s\" cannot be read: %s", path, why);
    }
    if (fstat(fd, &info) != 0) {
        status = fy_fail(error, FERRY_ERR_IO, "rendezvous \"%s\": %s", path, strerror(errno));
        goto out;
    }
    status = check_owner(path, &info, error);
    while (status == FERRY_OK && used < FILE_BYTES - 1) {
        ssize_t n = read(fd, text + used, FILE_BYTES - 1 - used);
        if (n < 0 && errno != EINTR) {
            status = fy_fail(error, FERRY_ERR_IO, "rendezvous \"%s\" cannot be read: %s", path,
                             strerror(errno));
        }
        if (n == 0) {
            break;
        }
        used += n > 0 ? (size_t)n : 0;
    }
    text[used] = '\0';
    if (status == FERRY_OK) {
        *there_out = true;
        *id_out = id_of(&info);
    }
out:
    close(fd);
    return status;
}

/* The rest of the line that begins with name, cut off; NULL if the text goes on otherwise. */
static char *take_line(char **at, const char *name)
{
    size_t length = strlen(name);
    char *end = strchr(*at, '\n');
    if (end == NULL || strncmp(*at, name, length) != 0) {
        return NULL;
    }
    char *rest = *at + length;
    *end = '\0';
    *at = end + 1;
    return rest;
}

static bool copy_line(char **at, const char *name, char *copy, size_t copy_bytes)
{
    const char *rest = take_line(at, name);
    size_t length = rest == NULL ? 0 : strlen(rest);
    if (length == 0 || length >= copy_bytes) {
        return false;
    }
    memcpy(copy, rest, length + 1);
    return true;
}

bool fy_notice_parse(char *text, fy_notice *notice_out)
{
    char ranks[12];
    char secret[4];
    fy_notice read = {0};
    char *at = text;
    const char *tail = take_line(&at, first_line);
    if (tail == NULL || strcmp(tail, "1") != 0 || !copy_line(&at, "ranks ", ranks, sizeof ranks) ||
        !copy_line(&at, "secret ", secret, sizeof secret) ||
        !copy_line(&at, "key ", read.key, sizeof read.key) ||
        !copy_line(&at, "by ", read.by, sizeof read.by) ||
        !copy_line(&at, "at ", read.addresses, sizeof read.addresses) || strcmp(at, "end\n") != 0) {
        return false;
    }
    char *end;
    unsigned long n_ranks = strtoul(ranks, &end, 10);
    read.has_secret = strcmp(secret, "yes") == 0;
    read.n_ranks = (uint32_t)n_ranks;
    if (*end != '\0' || ranks[0] < '0' || ranks[0] > '9' || n_ranks == 0 ||
        n_ranks > FERRY_MAX_RANKS || strlen(read.key) != FY_NOTICE_KEY_BYTES - 1 ||
        strspn(read.key, "0123456789abcdef") != FY_NOTICE_KEY_BYTES - 1) {
        return false;
    }
    *notice_out = read;
    return true;
}

static ferry_status read_notice(const char *path, fy_notice *notice_out, file_id *id_out,
                                found *found_out, ferry_error *error)
{
    char text[FILE_BYTES];
    bool there = false;
    FY_TRY(read_text(path, text, id_out, &there, error));
    if (!there) {
        *found_out = FOUND_NOTHING;
    } else if (id_out->bytes > 0 && strncmp(text, first_line, sizeof first_line - 1) != 0) {
        *found_out = FOUND_OTHER;
    } else {
        *found_out = fy_notice_parse(text, notice_out) ? FOUND_NOTICE : FOUND_DAMAGED;
    }
    fy_auth_wipe(text, sizeof text);
    return FERRY_OK;
}

static ferry_status fail_other(const char *path, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "\"%s\" exists and is not a rendezvous file: name another path, or remove it",
                   path);
}

static void write_by(char by[FY_NOTICE_BY_BYTES])
{
    char host[65] = "?";
    time_t now = time(NULL);
    struct tm parts;
    char date[32] = "?";
    gethostname(host, sizeof host - 1);
    if (gmtime_r(&now, &parts) != NULL) {
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
    snprintf(by, FY_NOTICE_BY_BYTES, "process %ld on %s at %s", (long)getpid(), host, date);
}

static ferry_status write_all(int fd, const char *text, size_t length, const char *path,
                              ferry_error *error)
{
    while (length > 0) {
        ssize_t n = write(fd, text, length);
        if (n < 0 && errno != EINTR) {
            return fy_fail(error, FERRY_ERR_IO, "\"%s\" cannot be written: %s", path,
                           strerror(errno));
        }
        text += n > 0 ? n : 0;
        length -= n > 0 ? (size_t)n : 0;
    }
    return FERRY_OK;
}

static ferry_status write_notice(const char *path, const fy_notice *says, ferry_error *error)
{
    char temporary[PATH_MAX];
    char text[FILE_BYTES];
    int length =
        snprintf(text, sizeof text, "%s%d\nranks %u\nsecret %s\nkey %s\nby %s\nat %s\nend\n",
                 first_line, VERSION, says->n_ranks, says->has_secret ? "yes" : "no", says->key,
                 says->by, says->addresses);
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    /* Made anew, follows no link, and is readable and writable by this user alone. */
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        return fy_fail(error, FERRY_ERR_IO, "rendezvous \"%s\" cannot be made: %s", path,
                       strerror(errno));
    }
    ferry_status status = write_all(fd, text, (size_t)length, path, error);
    if (close(fd) != 0 && status == FERRY_OK) {
        status =
            fy_fail(error, FERRY_ERR_IO, "\"%s\" cannot be written: %s", path, strerror(errno));
    }
    if (status == FERRY_OK && rename(temporary, path) != 0) {
        status = fy_fail(error, FERRY_ERR_IO, "rendezvous \"%s\" cannot be made: %s", path,
                         strerror(errno));
    }
    if (status != FERRY_OK) {
        unlink(temporary);
    }
    fy_auth_wipe(text, sizeof text);
    return status;
}

/* The file's key is known to whoever can read it; with a secret both must be known. */
static void make_key(fy_meeting *meeting, const char *secret, const fy_notice *says)
{
    char job[FY_NOTICE_KEY_BYTES + 16];
    snprintf(job, sizeof job, "file %s", says->key);
    fy_meeting_key(meeting, secret, job);
    fy_auth_wipe(job, sizeof job);
}

static ferry_status host_meeting(fy_meeting *meeting, const char *path, const fy_settings *settings,
                                 ferry_error *error)
{
    fy_notice fresh = {.n_ranks = meeting->n_ranks, .has_secret = settings->secret != NULL};
    fy_notice old;
    file_id id;
    found there = FOUND_NOTHING;
    uint16_t port = 0;
    unsigned char key[FY_KEY_BYTES];
    FY_TRY(fy_auth_begin(error));
    FY_TRY(read_notice(path, &old, &id, &there, error));
    if (there == FOUND_OTHER) {
        return fail_other(path, error);
    }
    if (there == FOUND_NOTICE) {
        fy_log(FERRY_LOG_INFO, "rendezvous \"%s\" of an earlier world is replaced: it was by %s",
               path, old.by);
    }
    ferry_status status = fy_listen(NULL, 0, &meeting->listener, &port, error);
    FY_THEN(status, fy_own_addresses(settings->host, port, fresh.addresses, error));
    if (status == FERRY_OK) {
        fy_auth_random(key, sizeof key);
        for (size_t i = 0; i < sizeof key; i++) {
            snprintf(fresh.key + 2 * i, 3, "%02x", key[i]);
        }
        write_by(fresh.by);
        memcpy(meeting->addresses, fresh.addresses, sizeof meeting->addresses);
        make_key(meeting, settings->secret, &fresh);
        status = write_notice(path, &fresh, error);
    }
    fy_auth_wipe(key, sizeof key);
    fy_auth_wipe(&fresh, sizeof fresh);
    return status;
}

/* A search for rank 0 by another rank. */
typedef struct search {
    const char *path;
    file_id id; /* of the file that was read */
    int64_t end_ns;
    int64_t refused_ns; /* since when who listens there refuses; 0: it does not */
    found last;
    fy_notice notice;
    ferry_error why; /* of the last attempt to reach rank 0; empty if there was none */

    fy_interrupt *interrupt;
} search;

/* A stop function of fy_link_open: another file is at the path, or none, or the caller stops it. */
static bool is_to_stop(void *context)
{
    const search *at = context;
    struct stat info;
    if (fy_interrupted(at->interrupt)) {
        return true;
    }
    if (lstat(at->path, &info) != 0) {
        return errno == ENOENT || errno == ESTALE;
    }
    file_id now = id_of(&info);
    return !same_file(&now, &at->id);
}

static void pause_ns(int64_t ns)
{
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&time, NULL);
}

static int64_t left_ns(const search *at)
{
    int64_t left = at->end_ns - fy_now_ns();
    return left > 0 ? left : 0;
}

static ferry_status fail_late(const search *at, const fy_settings *settings, ferry_error *error)
{
    double seconds = (double)settings->join_ns / 1e9;
    if (at->last == FOUND_NOTICE && at->why.message[0] != '\0') {
        return fy_fail(error, FERRY_ERR_TIMEOUT,
                       "rank 0 does not answer at what rendezvous \"%s\" says, written by %s, "
                       "within %g s: %.500s; if that is an earlier run's file, rank 0 of this run "
                       "has not come",
                       at->path, at->notice.by, seconds, at->why.message);
    }
    if (at->last == FOUND_DAMAGED) {
        return fy_fail(error, FERRY_ERR_TIMEOUT,
                       "rendezvous \"%s\" is cut off, or of another version of ferry, and rank 0 "
                       "made no new one within %g s",
                       at->path, seconds);
    }
    return fy_fail(error, FERRY_ERR_TIMEOUT,
                   "rank 0 made no rendezvous \"%s\" within %g s: does it run, and does it see "
                   "this folder?",
                   at->path, seconds);
}

/* Somebody proved the key: this is no file of an earlier run, and what it says counts. */
static ferry_status check_live(const search *at, const fy_meeting *meeting, ferry_error *error)
{
    if (meeting->n_ranks != 0 && at->notice.n_ranks != meeting->n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "rendezvous \"%s\" is for %u ranks, by rank 0, but rank %u expects %u",
                       at->path, at->notice.n_ranks, meeting->rank, meeting->n_ranks);
    }
    return FERRY_OK;
}

/*
 * What became of the call to rank 0. A wrong secret, or another version of ferry, cannot be told
 * from an earlier run's file whose port is by now another program's: so that gets a deadline's time
 * to be replaced, and no more.
 */
static ferry_status judge(search *at, ferry_status status, const fy_settings *settings,
                          ferry_error *error)
{
    if (status == FERRY_ERR_TIMEOUT || status == FERRY_ERR_PEER_LOST ||
        status == FERRY_ERR_STOPPED) {
        return FERRY_ERR_STOPPED;
    }
    if (status == FERRY_ERR_DENIED || status == FERRY_ERR_INVALID_INPUT) {
        int64_t now = fy_now_ns();
        at->refused_ns = at->refused_ns == 0 ? now : at->refused_ns;
        if (now - at->refused_ns < settings->deadline_ns) {
            return FERRY_ERR_STOPPED;
        }
    }
    const char *doubt = "";
    if (status == FERRY_ERR_DENIED && at->notice.has_secret != (settings->secret != NULL)) {
        doubt = at->notice.has_secret ? "; rank 0 has a secret and this rank has none"
                                      : "; this rank has a secret and rank 0 has none";
    }
    return fy_fail(error, status, "rendezvous \"%s\", written by %s: %.600s%s", at->path,
                   at->notice.by, at->why.message, doubt);
}

/* One look: FERRY_OK when rank 0 was found, FERRY_ERR_STOPPED to look again. */
static ferry_status look(search *at, fy_meeting *meeting, const fy_settings *settings,
                         ferry_error *error)
{
    fy_link *link = NULL;
    file_id id;
    FY_TRY(read_notice(at->path, &at->notice, &id, &at->last, error));
    if (!same_file(&id, &at->id)) {
        at->refused_ns = 0;
        at->why.message[0] = '\0';
    }
    at->id = id;
    if (at->last == FOUND_OTHER) {
        return fail_other(at->path, error);
    }
    if (at->last != FOUND_NOTICE) {
        return FERRY_ERR_STOPPED;
    }
    make_key(meeting, settings->secret, &at->notice);
    ferry_status status = fy_link_open(at->notice.addresses, meeting->key, left_ns(at), is_to_stop,
                                       at, &link, &at->why);
    if (status != FERRY_OK) {
        return judge(at, status, settings, error);
    }
    fy_link_destroy(link);
    memcpy(meeting->addresses, at->notice.addresses, sizeof meeting->addresses);
    return check_live(at, meeting, error);
}

enum { FIRST_PAUSE_NS = 2000000, LAST_PAUSE_NS = 50000000, NEWCOMER_PAUSE_NS = 8000000 };

/* A hundredth of what was waited already. */
int64_t fy_meet_pause_ns(int64_t waited_ns)
{
    int64_t pause_ns = waited_ns / 100;
    return pause_ns < NEWCOMER_PAUSE_NS ? NEWCOMER_PAUSE_NS
           : pause_ns > LAST_PAUSE_NS   ? LAST_PAUSE_NS
                                        : pause_ns;
}

static ferry_status find_root(fy_meeting *meeting, const char *path, const fy_settings *settings,
                              ferry_error *error)
{
    int64_t since = meeting->since_ns != 0 ? meeting->since_ns : fy_now_ns();
    search at = {
        .path = path, .end_ns = since + settings->join_ns, .interrupt = settings->interrupt};
    int64_t pause_of = FIRST_PAUSE_NS;
    for (;;) {
        ferry_status status = look(&at, meeting, settings, error);
        if (status != FERRY_ERR_STOPPED) {
            return status;
        }
        int64_t left = left_ns(&at);
        if (fy_interrupted(at.interrupt)) {
            return fy_interrupt_fail(error);
        }
        if (left == 0) {
            return fail_late(&at, settings, error);
        }
        pause_ns(left < pause_of ? left : pause_of);
        int64_t longest =
            meeting->n_ranks == 0 ? fy_meet_pause_ns(fy_now_ns() - since) : LAST_PAUSE_NS;
        pause_of = pause_of * 2 > longest ? longest : pause_of * 2;
    }
}

static ferry_status check_path(const char *path, ferry_error *error)
{
    FY_TRY(fy_check_use(path != NULL && path[0] != '\0', "a rendezvous needs the path of a file",
                        error));
    if (strlen(path) > PATH_MAX - 16) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "rendezvous: a path has at most %d bytes, and not %zu", PATH_MAX - 16,
                       strlen(path));
    }
    return FERRY_OK;
}

/* Where rank and n_ranks of the meeting are known, or those of a newcomer. */
static ferry_status meet(fy_meeting *meeting, const char *path, const fy_settings *settings,
                         ferry_error *error)
{
    ferry_status status = meeting->n_ranks > 0 && meeting->rank == 0
                              ? host_meeting(meeting, path, settings, error)
                              : find_root(meeting, path, settings, error);
    if (status != FERRY_OK) {
        fy_meeting_cleanup(meeting);
    }
    return status;
}

ferry_status fy_meet_growing_file(fy_meeting *meeting, const char *path,
                                  const fy_settings *settings, ferry_error *error)
{
    FY_TRY(check_path(path, error));
    return meet(meeting, path, settings, error);
}

ferry_status fy_meet_file(fy_meeting *meeting, const char *path, uint32_t rank, uint32_t n_ranks,
                          const fy_settings *settings, ferry_error *error)
{
    FY_TRY(check_path(path, error));
    if (n_ranks == 0 || rank >= n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "rendezvous \"%s\": there is no rank %u of %u",
                       path, rank, n_ranks);
    }
    if (n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "rendezvous: a world has at most %u ranks, not %u",
                       FERRY_MAX_RANKS, n_ranks);
    }
    meeting->rank = rank;
    meeting->n_ranks = n_ranks;
    if (n_ranks == 1) {
        return FERRY_OK; /* nobody to meet */
    }
    return meet(meeting, path, settings, error);
}

static bool is_own_file(const char *path, file_id *id_out)
{
    fy_notice says;
    found there = FOUND_NOTHING;
    char own[FY_NOTICE_BY_BYTES];
    if (read_notice(path, &says, id_out, &there, NULL) != FERRY_OK || there != FOUND_NOTICE) {
        return false;
    }
    write_by(own);
    size_t who = (size_t)(strstr(own, " at ") - own);
    return strncmp(says.by, own, who) == 0 && says.by[who] == ' ';
}

/*
 * Only the own file: another job may be waiting at the same path by now, also one that came after
 * this rank had looked. So the file is set aside, where nobody replaces it, and looked at again
 * before it is gone; one that was another's is put back unless a newer one is there.
 */
void fy_meet_file_done(const char *path)
{
    file_id id;
    char aside[PATH_MAX];
    if (path == NULL || !is_own_file(path, &id)) {
        return;
    }
    snprintf(aside, sizeof aside, "%s.%x", path, (unsigned)id.inode);
    if (rename(path, aside) != 0) {
        return;
    }
    bool is_own = is_own_file(aside, &id);
    if (!is_own && link(aside, path) != 0 && errno != EEXIST) {
        (void)rename(aside, path); /* a file system without hard links */
        return;
    }
    unlink(aside);
}
