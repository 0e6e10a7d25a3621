/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/journal.h"

#include "base/alloc.h"
#include "checkpoint/folder.h"
#include "host/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The file, in numbers of 64 bits, little endian (base/hash.h): first a head of magic, key and the
 * hash of these; then records of task, number of values, values and the hash of all of these.
 */
static const char MAGIC[16] = "ferry.journal/2";

enum {
    WORD_BYTES = sizeof(uint64_t),
    KEY_AT = 2,
    HEAD_WORDS = KEY_AT + 2 * FY_KEY_PARTS + 1,
    RECORD_WORDS = 3
};

static ferry_status fail_errno(const char *what, ferry_error *error)
{
    return fy_fail_errno("the journal " FY_JOURNAL_NAME, what, errno, error);
}

static void make_head(const fy_journal_key *key, uint64_t head[HEAD_WORDS])
{
    memcpy(head, MAGIC, sizeof MAGIC);
    for (size_t i = 0; i < FY_KEY_PARTS; i++) {
        head[KEY_AT + 2 * i] = key->part[i].low;
        head[KEY_AT + 2 * i + 1] = key->part[i].high;
    }
    head[HEAD_WORDS - 1] = fy_hash64(head, (HEAD_WORDS - 1) * WORD_BYTES);
}

/* One write, so that records of several threads do not mix. Where it ends early the disk is full,
 * and writing the rest says so. */
static ferry_status write_words(int fd, const uint64_t *words, size_t n, ferry_error *error)
{
    const char *bytes = (const char *)words;
    size_t left = n * WORD_BYTES;
    while (left > 0) {
        ssize_t now = write(fd, bytes, left);
        if (now < 0 && errno != EINTR) {
            return fail_errno("cannot be written", error);
        }
        if (now > 0) {
            bytes += now;
            left -= (size_t)now;
        }
    }
    return FERRY_OK;
}

ferry_status fy_journal_create(int folder_fd, const fy_journal_key *key, fy_journal *journal,
                               ferry_error *error)
{
    uint64_t head[HEAD_WORDS];
    if (unlinkat(folder_fd, FY_JOURNAL_NAME, 0) != 0 && errno != ENOENT) {
        return fail_errno("cannot be removed", error);
    }
    int fd = openat(folder_fd, FY_JOURNAL_NAME, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC,
                    0666);
    if (fd < 0) {
        return fail_errno("cannot be made", error);
    }
    make_head(key, head);
    ferry_status status = write_words(fd, head, HEAD_WORDS, error);
    if (status != FERRY_OK) {
        close(fd);
        unlinkat(folder_fd, FY_JOURNAL_NAME, 0);
        return status;
    }
    journal->fd = fd;
    return FERRY_OK;
}

ferry_status fy_journal_append(const fy_journal *journal, uint64_t task, const uint64_t *values,
                               size_t n_values, ferry_error *error)
{
    if (n_values > FY_JOURNAL_MOST_VALUES) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a record of the journal has %zu values, more than the limit of %d",
                       n_values, FY_JOURNAL_MOST_VALUES);
    }
    size_t n = n_values + RECORD_WORDS;
    uint64_t *words = fy_alloc(n, WORD_BYTES);
    FY_TRY(fy_check_memory(words != NULL, "a record of the journal", error));
    words[0] = task;
    words[1] = n_values;
    if (n_values > 0) {
        memcpy(words + 2, values, n_values * WORD_BYTES);
    }
    words[n - 1] = fy_hash64(words, (n - 1) * WORD_BYTES);
    ferry_status status = write_words(journal->fd, words, n, error);
    fy_free(words);
    return status;
}

/* ---- reading ---- */

typedef struct reader {
    FILE *stream;
    uint64_t whole_bytes; /* up to the last whole record */
    uint64_t *words;
    size_t capacity;
} reader;

/* false: there are no more so many. */
static bool read_words(reader *r, uint64_t *words, size_t n)
{
    return fread(words, WORD_BYTES, n, r->stream) == n;
}

/* Why a head is not the wanted one: the first part of the key that differs. */
static const char *tell_misfit(const uint64_t found[HEAD_WORDS], const uint64_t wanted[HEAD_WORDS])
{
    static const char *const why[FY_KEY_PARTS] = {
        [FY_KEY_PROGRAM] = "it was begun by another version of ferry",
        [FY_KEY_SOURCE_FILES] = "files of the source have changed",
        [FY_KEY_SOURCE_LAYOUT] = "the layout of the source has changed",
        [FY_KEY_TARGET] = "the target is different",
        [FY_KEY_OPTIONS] = "the options are different"};
    if (found[HEAD_WORDS - 1] != fy_hash64(found, (HEAD_WORDS - 1) * WORD_BYTES) ||
        memcmp(found, MAGIC, sizeof MAGIC) != 0) {
        return "its journal is damaged, or of another version of ferry";
    }
    for (size_t i = 0; i < FY_KEY_PARTS; i++) {
        size_t at = KEY_AT + 2 * i;
        if (memcmp(found + at, wanted + at, 2 * WORD_BYTES) != 0) {
            return why[i];
        }
    }
    return NULL;
}

static const char *read_head(reader *r, const fy_journal_key *key)
{
    uint64_t found[HEAD_WORDS], wanted[HEAD_WORDS];
    make_head(key, wanted);
    r->whole_bytes = sizeof wanted;
    return read_words(r, found, HEAD_WORDS) ? tell_misfit(found, wanted)
                                            : "its journal was not begun yet";
}

/* *n_out is the number of its words, 0 where no whole record follows. */
static ferry_status read_record(reader *r, size_t *n_out, ferry_error *error)
{
    uint64_t begin[2];
    *n_out = 0;
    if (!read_words(r, begin, 2) || begin[1] > FY_JOURNAL_MOST_VALUES) {
        return FERRY_OK;
    }
    size_t n = (size_t)begin[1] + RECORD_WORDS;
    FY_TRY(FY_GROW(r->words, r->capacity, n, "a record of the journal", error));
    memcpy(r->words, begin, sizeof begin);
    if (read_words(r, r->words + 2, n - 2) &&
        r->words[n - 1] == fy_hash64(r->words, (n - 1) * WORD_BYTES)) {
        *n_out = n;
    }
    return FERRY_OK;
}

static ferry_status read_all(reader *r, const fy_journal_key *key, fy_journal_visitor visitor,
                             void *context, const char **misfit_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    size_t n = 0;
    *misfit_out = read_head(r, key);
    while (*misfit_out == NULL) {
        status = read_record(r, &n, error);
        if (status == FERRY_OK && n > 0) {
            status = visitor(context, r->words[0], r->words + 2, n - RECORD_WORDS, error);
        }
        if (status != FERRY_OK || n == 0) {
            break;
        }
        r->whole_bytes += n * WORD_BYTES;
    }
    if (status == FERRY_OK && ferror(r->stream)) {
        status = fail_errno("cannot be read", error);
    }
    return status;
}

/* -1 where there is none that a run could have left. */
static ferry_status open_left(int folder_fd, int *fd_out, ferry_error *error)
{
    struct stat about;
    *fd_out =
        openat(folder_fd, FY_JOURNAL_NAME, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*fd_out < 0) {
        bool is_none = errno == ENOENT || errno == ELOOP || errno == EISDIR || errno == ENXIO;
        return is_none ? FERRY_OK : fail_errno("cannot be opened", error);
    }
    if (fstat(*fd_out, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(*fd_out);
        *fd_out = -1;
    }
    return FERRY_OK;
}

static ferry_status open_stream(int fd, FILE **stream_out, ferry_error *error)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "r");
    if (stream == NULL) {
        ferry_status status = fail_errno("cannot be read", error);
        if (copy >= 0) {
            close(copy);
        }
        return status;
    }
    *stream_out = stream;
    return FERRY_OK;
}

ferry_status fy_journal_resume(int folder_fd, const fy_journal_key *key, fy_journal_visitor visitor,
                               void *context, fy_journal *journal, const char **misfit_out,
                               ferry_error *error)
{
    reader r = {0};
    const char *misfit = "it has no journal";
    int fd = -1;
    ferry_status status = open_left(folder_fd, &fd, error);
    if (status == FERRY_OK && fd >= 0) {
        status = open_stream(fd, &r.stream, error);
    }
    if (r.stream == NULL) {
        goto out;
    }
    status = read_all(&r, key, visitor, context, &misfit, error);
    if (status == FERRY_OK && misfit == NULL && ftruncate(fd, (off_t)r.whole_bytes) != 0) {
        status = fail_errno("cannot be cut", error);
    }
    fclose(r.stream);
out:
    fy_free(r.words);
    if (status == FERRY_OK) {
        *misfit_out = misfit;
        journal->fd = misfit == NULL ? fd : -1;
    }
    if (fd >= 0 && (status != FERRY_OK || misfit != NULL)) {
        close(fd);
    }
    return status;
}

void fy_journal_close(fy_journal *journal)
{
    if (journal != NULL && journal->fd >= 0) {
        close(journal->fd);
        journal->fd = -1;
    }
}
