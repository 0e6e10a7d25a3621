/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/folder.h"

#include "base/alloc.h"
#include "checkpoint/claim.h"
#include "host/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PARTIAL_SUFFIX ".ferry-partial"

/* How often a folder is taken that others make and remove meanwhile, and how often it is read again
 * while it is emptied. */
enum { MOST_TRIES = 100, MOST_PASSES = 100 };

/* ---- names ---- */

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static char *join(const char *head, size_t head_bytes, const char *middle, const char *tail)
{
    size_t bytes = head_bytes + strlen(middle) + strlen(tail) + 1;
    char *text = fy_alloc(bytes, 1);
    if (text != NULL) {
        snprintf(text, bytes, "%.*s%s%s", (int)head_bytes, head, middle, tail);
    }
    return text;
}

static ferry_status resolve(const char *path, fy_folder *folder, ferry_error *error)
{
    size_t length = strlen(path);
    if (length == 0 || length >= PATH_MAX) {
        return fy_fail(error, length == 0 ? FERRY_ERR_IO : FERRY_ERR_LIMIT,
                       length == 0 ? "the name of the folder to write is empty"
                                   : "the name of the folder to write is too long");
    }
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    folder->path = join(path, length, "", "");
    FY_TRY(fy_check_memory(folder->path != NULL, "a file name", error));
    const char *name = name_of(folder->path);
    size_t head = (size_t)(name - folder->path); /* with its slash */
    folder->parent = head == 0 ? join(".", 1, "", "") : join(path, head > 1 ? head - 1 : 1, "", "");
    char *hidden = join(".", 1, name, PARTIAL_SUFFIX);
    if (hidden != NULL) {
        folder->partial = join(path, head, hidden, "");
    }
    fy_free(hidden);
    return folder->parent == NULL || folder->partial == NULL
               ? fy_fail_no_memory(error, "a file name")
               : FERRY_OK;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

static bool has_no_flock(int reason)
{
    return reason == ENOSYS || reason == ENOLCK || reason == EOPNOTSUPP || reason == EINVAL;
}

/* What fails once is tried again. */
static void unlink_surely(int fd, const char *name)
{
    if (unlinkat(fd, name, 0) != 0 && errno != ENOENT) {
        unlinkat(fd, name, 0);
    }
}

/* What a run needs beside its result, the lock last. A result that holds some of it is whole all
 * the same. */
static void remove_own(int fd)
{
    unlink_surely(fd, FY_JOURNAL_NAME);
    fy_claim_drop(fd);
    unlink_surely(fd, FY_LOCK_NAME);
    fsync(fd);
}

static ferry_status open_parent(fy_folder *folder, ferry_error *error)
{
    folder->parent_fd = open(folder->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->parent_fd < 0) {
        return fy_fail_errno(folder->parent, "cannot be opened as the folder to write into", errno,
                             error);
    }
    long most = fpathconf(folder->parent_fd, _PC_NAME_MAX);
    if (most > 0 && strlen(name_of(folder->partial)) > (size_t)most) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%s: the name has %zu bytes, and with what is added while it is written it "
                       "exceeds the %ld of this file system",
                       folder->path, strlen(name_of(folder->path)), most);
    }
    return FERRY_OK;
}

/* A run that was killed behind its rename has left its own in the result. */
static void tidy_result(const fy_folder *folder)
{
    struct stat about;
    int fd = openat(folder->parent_fd, name_of(folder->path),
                    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int lock = fd < 0 ? -1 : openat(fd, FY_LOCK_NAME, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (lock >= 0 && fstat(lock, &about) == 0 && S_ISREG(about.st_mode) &&
        about.st_uid == geteuid() && (flock(lock, LOCK_EX | LOCK_NB) == 0 || has_no_flock(errno)) &&
        fy_claim_is_free(fd)) {
        remove_own(fd);
    }
    close_fd(&lock);
    close_fd(&fd);
}

/* Whether nothing is there: no file, no folder, and no link to nowhere either. */
static ferry_status check_absent(const fy_folder *folder, ferry_error *error)
{
    struct stat about;
    const char *name = name_of(folder->path);
    /* The root has no name of its own. */
    if (*name == '\0' || fstatat(folder->parent_fd, name, &about, AT_SYMLINK_NOFOLLOW) == 0) {
        tidy_result(folder);
        return fy_fail(error, FERRY_ERR_IO,
                       "%s: already exists, and ferry does not replace it; name another folder",
                       folder->path);
    }
    if (errno != ENOENT) {
        return fy_fail_errno(folder->path, "cannot be examined", errno, error);
    }
    return FERRY_OK;
}

/* ---- what lies in a folder ---- */

/* context is for the visitor. */
typedef ferry_status (*entry_visitor)(const fy_folder *folder, const char *name, void *context,
                                      ferry_error *error);

static bool is_entry(const char *name)
{
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, FY_LOCK_NAME) != 0 &&
           !fy_claim_is_name(name);
}

/* Visits all but the lock, in no order. */
static ferry_status visit_entries(const fy_folder *folder, entry_visitor visitor, void *context,
                                  ferry_error *error)
{
    ferry_status status = FERRY_OK;
    /* Opened anew: a duplicate would share its place in the list. */
    int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (stream == NULL) {
        status = fy_fail_errno(folder->partial, "cannot be listed", errno, error);
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    while (status == FERRY_OK) {
        errno = 0;
        const struct dirent *item = readdir(stream);
        if (item == NULL) {
            break;
        }
        if (is_entry(item->d_name)) {
            status = visitor(folder, item->d_name, context, error);
        }
    }
    if (status == FERRY_OK && errno != 0) {
        status = fy_fail_errno(folder->partial, "cannot be listed", errno, error);
    }
    closedir(stream);
    return status;
}

static ferry_status fail_entry(const fy_folder *folder, const char *name, const char *what,
                               ferry_error *error)
{
    int reason = errno;
    char *path = join(folder->partial, strlen(folder->partial), "/", name);
    FY_TRY(fy_check_memory(path != NULL, "a file name", error));
    ferry_status status = fy_fail_errno(path, what, reason, error);
    fy_free(path);
    return status;
}

static ferry_status refuse_folder(const fy_folder *folder, const char *name, void *unused,
                                  ferry_error *error)
{
    struct stat about;
    (void)unused;
    if (fstatat(folder->fd, name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? FERRY_OK : fail_entry(folder, name, "cannot be examined", error);
    }
    if (S_ISDIR(about.st_mode)) {
        return fy_fail(error, FERRY_ERR_IO,
                       "%s/%s: is a folder, which no run of ferry makes: remove %s yourself, or "
                       "name another place",
                       folder->partial, name, folder->partial);
    }
    return FERRY_OK;
}

/* Which files are to go, and whether some went. */
typedef struct sweep {
    fy_folder_keeps_fn keeps; /* NULL: none */
    const void *context;
    bool has_removed;
} sweep;

static ferry_status sweep_entry(const fy_folder *folder, const char *name, void *context,
                                ferry_error *error)
{
    sweep *s = context;
    if (s->keeps != NULL && s->keeps(s->context, name)) {
        return FERRY_OK;
    }
    if (unlinkat(folder->fd, name, 0) == 0) {
        s->has_removed = true;
    } else if (errno != ENOENT) {
        return fail_entry(folder, name, "cannot be removed", error);
    }
    return FERRY_OK;
}

ferry_status fy_folder_keep_only(fy_folder *folder, fy_folder_keeps_fn keeps, const void *context,
                                 ferry_error *error)
{
    /* All or nothing, as far as that can be seen before. */
    ferry_status status = visit_entries(folder, refuse_folder, NULL, error);
    /* A list that is changed while it is read may leave out some: until there was nothing. */
    for (int pass = 0; pass < MOST_PASSES && status == FERRY_OK; pass++) {
        sweep s = {.keeps = keeps, .context = context};
        status = visit_entries(folder, sweep_entry, &s, error);
        if (!s.has_removed) {
            break;
        }
    }
    return status;
}

ferry_status fy_folder_clear(fy_folder *folder, ferry_error *error)
{
    return fy_folder_keep_only(folder, NULL, NULL, error);
}

/* A link would lead the next writer out of the folder, and so would a second name of a file; and
 * what is another user's he can still change when it is part of the result. */
static ferry_status examine_entry(const fy_folder *folder, const char *name, void *context,
                                  ferry_error *error)
{
    fy_leftover *left = context;
    struct stat about, own;
    (void)error;
    if (fstatat(folder->fd, name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode) ||
        about.st_nlink != 1 || fstat(folder->lock, &own) != 0 || about.st_uid != own.st_uid) {
        *left = FY_LEFT_STRANGE;
    } else if (*left == FY_LEFT_NOTHING) {
        *left = FY_LEFT_FILES;
    }
    return FERRY_OK;
}

/* ---- taking the partial folder ---- */

/* Whether name in the folder at is what is open as fd. */
static bool is_still(int at, const char *name, int fd)
{
    struct stat there, here;
    return fstatat(at, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &here) == 0 &&
           there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

/* " (process 17)" if the lock file names one that lives here, else "". */
static void describe_owner(int lock, char *text, size_t text_bytes)
{
    char digits[24];
    ssize_t n = pread(lock, digits, sizeof digits - 1, 0);
    text[0] = '\0';
    if (n <= 0) {
        return;
    }
    digits[n] = '\0';
    long pid = strtol(digits, NULL, 10);
    /* Its predecessor's number stands there for a moment. */
    if (pid > 0 && pid <= INT_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM)) {
        snprintf(text, text_bytes, " (process %ld)", pid);
    }
}

/* For people only: where the disk is too full for it, the run itself will say so. */
static void write_owner(int lock)
{
    char text[24];
    snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(lock, 0) != 0 || pwrite(lock, text, strlen(text), 0) < 0) {
        return;
    }
}

/* The rights of group and others to write that this process gives away, and so trusts in. */
static mode_t trusted_writers(void)
{
    char line[128];
    unsigned mask = 0;
    bool found = false;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        found = sscanf(line, "Umask: %o", &mask) == 1;
    }
    if (file != NULL) {
        fclose(file);
    }
    return (mode_t)(found ? ~mask & 022u : 022u);
}

/* One that is there already becomes the result, so it must be this user's, and his alone. */
static ferry_status check_owner(const fy_folder *folder, ferry_error *error)
{
    struct stat about;
    if (fstat(folder->fd, &about) != 0) {
        return fy_fail_errno(folder->partial, "cannot be examined", errno, error);
    }
    if (about.st_uid != geteuid()) {
        return fy_fail(error, FERRY_ERR_IO,
                       "%s: belongs to user %ld, not to user %ld who runs this: have it removed, "
                       "or name another place",
                       folder->partial, (long)about.st_uid, (long)geteuid());
    }
    if ((about.st_mode & 022 & ~trusted_writers()) != 0) {
        return fy_fail(error, FERRY_ERR_IO,
                       "%s: others may write into it (its mode is %04o): remove it, or name "
                       "another place",
                       folder->partial, (unsigned)about.st_mode & 07777u);
    }
    return FERRY_OK;
}

static ferry_status open_partial(fy_folder *folder, bool *retry_out, ferry_error *error)
{
    const char *name = name_of(folder->partial);
    folder->is_made = mkdirat(folder->parent_fd, name, 0777) == 0;
    if (!folder->is_made && errno != EEXIST) {
        return fy_fail_errno(folder->partial, "cannot be made", errno, error);
    }
    folder->fd = openat(folder->parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder->fd < 0 && errno == ENOENT) {
        *retry_out = true; /* another run ended and removed it */
        return FERRY_OK;
    }
    if (folder->fd < 0) {
        return fy_fail_errno(folder->partial, "cannot be opened as a folder", errno, error);
    }
    return folder->is_made ? FERRY_OK : check_owner(folder, error);
}

/*
 * By its path, not in the folder that is open: that may have become a result since, and must not
 * get a lock any more.
 */
static ferry_status make_lock(fy_folder *folder, int flags, bool *retry_out, ferry_error *error)
{
    const char *partial = name_of(folder->partial);
    char *name = join(partial, strlen(partial), "/", FY_LOCK_NAME);
    FY_TRY(fy_check_memory(name != NULL, "a file name", error));
    folder->lock = openat(folder->parent_fd, name, flags | O_CREAT | O_EXCL, 0666);
    int reason = errno;
    fy_free(name);
    if (folder->lock >= 0) {
        return FERRY_OK;
    }
    if (reason == EEXIST || reason == ENOENT) {
        *retry_out = true; /* another run was faster, or has removed the folder */
        return FERRY_OK;
    }
    errno = reason;
    return fail_entry(folder, FY_LOCK_NAME, "cannot be made", error);
}

static ferry_status open_lock(fy_folder *folder, bool *retry_out, ferry_error *error)
{
    const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    struct stat about;
    folder->lock = openat(folder->fd, FY_LOCK_NAME, flags);
    if (folder->lock < 0 && errno == ENOENT) {
        return make_lock(folder, flags, retry_out, error);
    }
    if (folder->lock < 0) {
        return fail_entry(folder, FY_LOCK_NAME, "cannot be opened", error);
    }
    if (fstat(folder->lock, &about) != 0 || !S_ISREG(about.st_mode)) {
        return fy_fail(error, FERRY_ERR_IO, "%s/%s: is not a regular file: remove %s yourself",
                       folder->partial, FY_LOCK_NAME, folder->partial);
    }
    return FERRY_OK;
}

static ferry_status lock_file(fy_folder *folder, ferry_error *error)
{
    while (flock(folder->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) {
            continue;
        }
        if (has_no_flock(errno)) {
            ferry_status status = fy_claim_take(folder->fd, folder->path, error);
            folder->has_claim = status == FERRY_OK;
            if (!folder->has_claim && folder->is_made && fy_claim_is_free(folder->fd)) {
                unlinkat(folder->fd, FY_LOCK_NAME, 0);
            }
            return status;
        }
        if (errno != EWOULDBLOCK) {
            ferry_status status = fail_entry(folder, FY_LOCK_NAME, "cannot be locked", error);
            if (folder->is_made) {
                unlinkat(folder->fd, FY_LOCK_NAME, 0);
            }
            return status;
        }
        char owner[40];
        describe_owner(folder->lock, owner, sizeof owner);
        return fy_fail(error, FERRY_ERR_IO,
                       "%s: another run%s is writing it; wait for its end, or end it", folder->path,
                       owner);
    }
    /* Who has come by a mount without flock holds a claim, and sees no lock of ours. */
    ferry_status status = fy_claim_refuse(folder->fd, folder->path, error);
    if (status != FERRY_OK && folder->is_made) {
        unlinkat(folder->fd, FY_LOCK_NAME, 0);
    }
    return status;
}

static ferry_status take_lock(fy_folder *folder, bool *retry_out, ferry_error *error)
{
    FY_TRY(lock_file(folder, error));
    /* Its last owner may have removed it, or renamed the folder, while it was being opened. */
    bool is_partial = is_still(folder->parent_fd, name_of(folder->partial), folder->fd);
    bool is_current = is_still(folder->fd, FY_LOCK_NAME, folder->lock);
    if (is_current && !is_partial) {
        remove_own(folder->fd); /* a result has none, and nobody else holds it */
    }
    *retry_out = !is_current || !is_partial;
    return FERRY_OK;
}

/* At each end: a process that lives on must not seem to write. */
static void drop_claim(fy_folder *folder)
{
    if (folder->has_claim) {
        fy_claim_drop(folder->fd);
    }
    folder->has_claim = false;
}

static ferry_status take_once(fy_folder *folder, bool *retry_out, ferry_error *error)
{
    *retry_out = false;
    ferry_status status = open_partial(folder, retry_out, error);
    if (status == FERRY_OK && !*retry_out) {
        status = open_lock(folder, retry_out, error);
    }
    if (status == FERRY_OK && !*retry_out) {
        status = take_lock(folder, retry_out, error);
    }
    if (status != FERRY_OK && folder->is_made) { /* stays where another run has come meanwhile */
        unlinkat(folder->parent_fd, name_of(folder->partial), AT_REMOVEDIR);
    }
    if (status != FERRY_OK || *retry_out) {
        drop_claim(folder);
        close_fd(&folder->lock);
        close_fd(&folder->fd);
    }
    return status;
}

static ferry_status take(fy_folder *folder, ferry_error *error)
{
    for (int i = 0; i < MOST_TRIES; i++) {
        bool retry = false;
        ferry_status status = take_once(folder, &retry, error);
        if (status != FERRY_OK || !retry) {
            if (status == FERRY_OK) {
                write_owner(folder->lock);
            }
            return status;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return fy_fail(error, FERRY_ERR_IO, "%s: other runs keep creating and removing it",
                   folder->partial);
}

/* ---- its life ---- */

/* What a dead run has left: to go on with it, or gone. */
static ferry_status settle(fy_folder *folder, bool keep, fy_leftover *left_out, ferry_error *error)
{
    FY_TRY(keep ? visit_entries(folder, examine_entry, left_out, error) : FERRY_OK);
    if (!keep || *left_out == FY_LEFT_STRANGE) {
        FY_TRY(fy_folder_clear(folder, error));
    }
    return FERRY_OK;
}

static void forget(fy_folder *folder)
{
    drop_claim(folder);
    close_fd(&folder->lock); /* the others see its end last */
    close_fd(&folder->fd);
    close_fd(&folder->parent_fd);
    fy_free(folder->path);
    fy_free(folder->parent);
    fy_free(folder->partial);
    *folder = (fy_folder){0};
}

/* Of a path alone: where it leads, and that nothing is there. */
static ferry_status find_place(const char *path, fy_folder *folder, ferry_error *error)
{
    *folder = (fy_folder){.parent_fd = -1, .fd = -1, .lock = -1};
    FY_TRY(resolve(path, folder, error));
    FY_TRY(open_parent(folder, error));
    return check_absent(folder, error);
}

ferry_status fy_folder_check(const char *path, ferry_error *error)
{
    fy_folder folder;
    ferry_status status = find_place(path, &folder, error);
    forget(&folder);
    return status;
}

bool fy_folder_has_journal(const char *path)
{
    struct stat about;
    ferry_error error;
    fy_folder folder = {.parent_fd = -1, .fd = -1, .lock = -1};
    bool found = resolve(path, &folder, &error) == FERRY_OK;
    char *name = found ? join(folder.partial, strlen(folder.partial), "/", FY_JOURNAL_NAME) : NULL;
    found = name != NULL && lstat(name, &about) == 0 && S_ISREG(about.st_mode);
    fy_free(name);
    forget(&folder);
    return found;
}

ferry_status fy_folder_begin(const char *path, bool keep, fy_folder *folder, fy_leftover *left_out,
                             ferry_error *error)
{
    fy_folder begun;
    fy_leftover left = FY_LEFT_NOTHING;
    ferry_status status = find_place(path, &begun, error);
    FY_THEN(status, take(&begun, error));
    if (status != FERRY_OK) {
        forget(&begun);
        return status;
    }
    status = settle(&begun, keep, &left, error);
    bool is_known = status == FERRY_OK; /* until then nothing that may be wanted is removed */
    if (status == FERRY_OK) {
        status = check_absent(&begun, error); /* a run that lived until now may have made it */
    }
    if (status != FERRY_OK) {
        fy_folder_end(&begun, keep && (!is_known || left == FY_LEFT_FILES));
        return status;
    }
    *folder = begun;
    *left_out = left;
    return FERRY_OK;
}

/* RENAME_NOREPLACE, where the file system has it; else the name is looked at just before. */
static ferry_status rename_into_place(const fy_folder *folder, ferry_error *error)
{
    const char *from = name_of(folder->partial), *to = name_of(folder->path);
    int at = folder->parent_fd;
    int rc = renameat2(at, from, at, to, RENAME_NOREPLACE);
    if (rc != 0 && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)) {
        FY_TRY(check_absent(folder, error));
        rc = renameat(at, from, at, to);
    }
    if (rc != 0 && errno == EEXIST) {
        ferry_status status = check_absent(folder, error);
        errno = EEXIST;
        if (status != FERRY_OK) {
            return status;
        }
    }
    return rc == 0 ? FERRY_OK
                   : fy_fail_errno(folder->path, "cannot be given its name", errno, error);
}

/* Some network file systems have nothing to sync for a folder, and say so. */
static ferry_status sync_folder(int fd, const char *path, ferry_error *error)
{
    if (fy_file_sync(fd) == 0 || errno == EINVAL || errno == ENOTSUP) {
        return FERRY_OK;
    }
    return fy_fail_errno(path, "cannot be synced", errno, error);
}

ferry_status fy_folder_commit(fy_folder *folder, ferry_error *error)
{
    FY_TRY(check_absent(folder, error));
    FY_TRY(sync_folder(folder->fd, folder->partial, error));
    FY_TRY(rename_into_place(folder, error));
    ferry_status status = sync_folder(folder->parent_fd, folder->parent, error);
    if (status != FERRY_OK && renameat(folder->parent_fd, name_of(folder->path), folder->parent_fd,
                                       name_of(folder->partial)) == 0) {
        return status; /* there is nothing at path, as after any error */
    }
    folder->is_done = true;
    folder->has_claim = false;
    remove_own(folder->fd);
    return status;
}

void fy_folder_end(fy_folder *folder, bool keep)
{
    if (folder->path == NULL) {
        return;
    }
    if (!folder->is_done && !keep && fy_folder_clear(folder, NULL) == FERRY_OK) {
        unlinkat(folder->fd, FY_LOCK_NAME, 0);
        /* Whoever claims it from here on finds the lock gone, and begins anew. */
        drop_claim(folder);
        unlinkat(folder->parent_fd, name_of(folder->partial), AT_REMOVEDIR);
    }
    forget(folder);
}
