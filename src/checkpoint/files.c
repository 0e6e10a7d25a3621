/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/files.h"

#include "base/alloc.h"
#include "checkpoint/open.h"
#include "host/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct slot {
    char *path;                   /* for sentences */
    const char *name;             /* the end of path: of a file of the folder */
    const fy_ckpt_file *expected; /* of a file that is read */
    int descriptor;
    int lost; /* of a file that is written: why closing it failed, or 0 */
    uint32_t users;
    bool was_used; /* since the hand last passed */
    bool was_read;
    bool may_be_linked; /* which changes the time of the inode */
} slot;

struct fy_files {
    pthread_mutex_t lock;
    int folder_fd; /* the caller's */
    slot *slots;
    size_t n;
    size_t n_open;
    size_t most_open;
    fy_pace *pace; /* or NULL */
    size_t hand;   /* where the search for a file to close goes on */
};

/* A share of the descriptors that leaves most to the caller's program. */
static size_t descriptors_to_use(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 64) {
        return 16;
    }
    return limit.rlim_cur > 2048 ? 512 : (size_t)limit.rlim_cur / 4;
}

static ferry_status create(int folder_fd, size_t n, fy_files **files_out, ferry_error *error)
{
    fy_files *files = fy_alloc_zeroed(1, sizeof *files);
    slot *slots = fy_alloc_zeroed(n, sizeof *slots);
    if (files == NULL || slots == NULL || pthread_mutex_init(&files->lock, NULL) != 0) {
        fy_free(slots);
        fy_free(files);
        return fy_fail_no_memory(error, "the files of a checkpoint");
    }
    for (size_t i = 0; i < n; i++) {
        slots[i].descriptor = -1;
    }
    files->folder_fd = folder_fd;
    files->slots = slots;
    files->n = n;
    files->most_open = descriptors_to_use();
    *files_out = files;
    return FERRY_OK;
}

void fy_files_destroy(fy_files *files)
{
    if (files == NULL) {
        return;
    }
    for (size_t i = 0; i < files->n; i++) {
        if (files->slots[i].descriptor >= 0) {
            close(files->slots[i].descriptor);
        }
        fy_free(files->slots[i].path);
    }
    pthread_mutex_destroy(&files->lock);
    fy_free(files->slots);
    fy_free(files);
}

void fy_files_allow_links(fy_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        files->slots[i].may_be_linked = true;
    }
}

void fy_files_set_pace(fy_files *files, fy_pace *pace)
{
    files->pace = pace;
}

/* Gives them out, or ends them if a path is missing. */
static ferry_status hand_out(fy_files *files, fy_files **files_out, ferry_error *error)
{
    for (size_t i = 0; i < files->n; i++) {
        if (files->slots[i].path == NULL) {
            fy_files_destroy(files);
            return fy_fail_no_memory(error, "the files of a checkpoint");
        }
        const char *slash = strrchr(files->slots[i].path, '/');
        files->slots[i].name = slash == NULL ? files->slots[i].path : slash + 1;
    }
    *files_out = files;
    return FERRY_OK;
}

ferry_status fy_files_of(const ferry_checkpoint *checkpoint, fy_files **files_out,
                         ferry_error *error)
{
    fy_files *files = NULL;
    FY_TRY(create(checkpoint->folder_fd, checkpoint->n_files, &files, error));
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        files->slots[i].path = fy_strdup(checkpoint->files[i].path);
        files->slots[i].expected = &checkpoint->files[i];
    }
    return hand_out(files, files_out, error);
}

ferry_status fy_files_make(int folder_fd, const char *folder, size_t n, fy_file_name_fn name,
                           const void *context, fy_files **files_out, ferry_error *error)
{
    fy_files *files = NULL;
    FY_TRY(create(folder_fd, n, &files, error));
    for (size_t i = 0; i < n; i++) {
        files->slots[i].path = fy_ckpt_join(folder, name(context, i));
    }
    return hand_out(files, files_out, error);
}

const char *fy_files_path(const fy_files *files, size_t i)
{
    return files->slots[i].path;
}

static ferry_status check_same(const slot *s, const struct stat *about, ferry_error *error)
{
    const fy_ckpt_file *file = s->expected;
    /* Whoever sets the time of change back cannot set that of the inode back. */
    if ((uint64_t)about->st_ino != file->inode || (uint64_t)about->st_size != file->bytes ||
        about->st_mtim.tv_sec != file->changed_s || about->st_mtim.tv_nsec != file->changed_ns ||
        (!s->may_be_linked && (about->st_ctim.tv_sec != file->touched_s ||
                               about->st_ctim.tv_nsec != file->touched_ns))) {
        return fy_fail(error, FERRY_ERR_IO,
                       "%s: was changed after its header had been read; run again when it is "
                       "written",
                       s->path);
    }
    return FERRY_OK;
}

static ferry_status check_unchanged(const slot *s, int descriptor, ferry_error *error)
{
    struct stat about;
    return fstat(descriptor, &about) == 0
               ? check_same(s, &about, error)
               : fy_fail_errno(s->path, "cannot be examined", errno, error);
}

ferry_status fy_files_check_unchanged(const fy_files *files, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < files->n && status == FERRY_OK; i++) {
        const slot *s = &files->slots[i];
        struct stat about;
        if (s->was_read) {
            status = fstatat(files->folder_fd, s->name, &about, 0) == 0
                         ? check_same(s, &about, error)
                         : fy_fail_errno(s->path, "cannot be examined", errno, error);
        }
    }
    return status;
}

bool fy_files_were_changed(const fy_files *files)
{
    bool changed = false;
    for (size_t i = 0; files != NULL && i < files->n && !changed; i++) {
        const slot *s = &files->slots[i];
        struct stat about;
        changed = s->was_read && (fstatat(files->folder_fd, s->name, &about, 0) == 0
                                      ? check_same(s, &about, NULL) != FERRY_OK
                                      : errno == ENOENT);
    }
    return changed;
}

static ferry_status open_slot(int folder_fd, slot *s, ferry_error *error)
{
    bool reads = s->expected != NULL;
    if (s->lost != 0) {
        return fy_fail_errno(s->path, "cannot be written", s->lost, error);
    }
    int flags = reads ? O_RDONLY : O_RDWR | O_CREAT | O_NOFOLLOW;
    int descriptor = openat(folder_fd, s->name, flags | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return reads ? fy_fail(error, FERRY_ERR_IO, "%s: cannot be opened: %s", s->path,
                               strerror(errno))
                     : fy_fail_errno(s->path, "cannot be written", errno, error);
    }
    ferry_status status = reads ? check_unchanged(s, descriptor, error) : FERRY_OK;
    if (status != FERRY_OK) {
        close(descriptor);
        return status;
    }
    if (reads) {
        posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL); /* mostly, and a hint at that */
    }
    s->descriptor = descriptor;
    s->was_read = reads;
    return FERRY_OK;
}

/* Closes one that nobody uses and that was not used lately; if all are in use, none. */
static void close_one(fy_files *files)
{
    for (size_t i = 0; i < 2 * files->n; i++) {
        slot *s = &files->slots[files->hand];
        files->hand = (files->hand + 1) % files->n;
        if (s->descriptor < 0 || s->users > 0) {
            continue;
        }
        if (!s->was_used) {
            /* Network file systems write here, and who opens the file anew is not told. */
            s->lost = close(s->descriptor) != 0 && s->expected == NULL ? errno : 0;
            s->descriptor = -1;
            files->n_open--;
            return;
        }
        s->was_used = false;
    }
}

ferry_status fy_files_get(fy_files *files, size_t i, int *descriptor_out, ferry_error *error)
{
    slot *s = &files->slots[i];
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&files->lock);
    if (s->descriptor < 0) {
        if (files->n_open >= files->most_open) {
            close_one(files);
        }
        status = open_slot(files->folder_fd, s, error);
        files->n_open += status == FERRY_OK;
    }
    if (status == FERRY_OK) {
        s->users++;
        s->was_used = true;
        *descriptor_out = s->descriptor;
    }
    pthread_mutex_unlock(&files->lock);
    return status;
}

void fy_files_put(fy_files *files, size_t i)
{
    pthread_mutex_lock(&files->lock);
    files->slots[i].users--;
    pthread_mutex_unlock(&files->lock);
}

ferry_status fy_files_read(fy_files *files, size_t i, uint64_t offset, void *bytes,
                           uint64_t n_bytes, ferry_error *error)
{
    int descriptor;
    ferry_status status = fy_pace_take(files->pace, n_bytes, error);
    FY_THEN(status, fy_files_get(files, i, &descriptor, error));
    if (status == FERRY_OK) {
        status =
            fy_file_read_exactly(descriptor, files->slots[i].path, offset, n_bytes, bytes, error);
        fy_files_put(files, i);
    }
    return status;
}

static ferry_status write_all(const char *path, int descriptor, uint64_t offset, const char *bytes,
                              uint64_t n_bytes, ferry_error *error)
{
    for (uint64_t done = 0; done < n_bytes;) {
        ssize_t now =
            pwrite(descriptor, bytes + done, (size_t)(n_bytes - done), (off_t)(offset + done));
        if (now == 0 || (now < 0 && errno != EINTR)) {
            return fy_fail_errno(path, "cannot be written", now == 0 ? ENOSPC : errno, error);
        }
        done += now < 0 ? 0 : (uint64_t)now;
    }
    return FERRY_OK;
}

ferry_status fy_files_write(fy_files *files, size_t i, uint64_t offset, const void *bytes,
                            uint64_t n_bytes, ferry_error *error)
{
    int descriptor;
    ferry_status status = fy_pace_take(files->pace, n_bytes, error);
    FY_THEN(status, fy_files_get(files, i, &descriptor, error));
    if (status == FERRY_OK) {
        status = write_all(files->slots[i].path, descriptor, offset, bytes, n_bytes, error);
        fy_files_put(files, i);
    }
    return status;
}

/* Errors that say that this pair of files cannot be copied so, not that the disk failed. */
static bool is_no_copy(int number)
{
    return number == EXDEV || number == EINVAL || number == ENOSYS || number == EOPNOTSUPP ||
           number == EBADF || number == EPERM;
}

ferry_status fy_files_copy(fy_files *from, size_t i, uint64_t from_offset, fy_files *to, size_t j,
                           uint64_t to_offset, uint64_t n_bytes, bool *copied_out,
                           ferry_error *error)
{
    int in, out;
    FY_TRY(fy_pace_take(to->pace, n_bytes, error));
    FY_TRY(fy_pace_take(from->pace, n_bytes, error));
    FY_TRY(fy_files_get(from, i, &in, error));
    ferry_status status = fy_files_get(to, j, &out, error);
    if (status != FERRY_OK) {
        fy_files_put(from, i);
        return status;
    }
    *copied_out = true;
    for (uint64_t done = 0; done < n_bytes && *copied_out && status == FERRY_OK;) {
        off_t in_at = (off_t)(from_offset + done), out_at = (off_t)(to_offset + done);
        ssize_t now = copy_file_range(in, &in_at, out, &out_at, (size_t)(n_bytes - done), 0);
        if (now == 0 || (now < 0 && is_no_copy(errno))) {
            *copied_out = false; /* or cut short: reading will tell */
        } else if (now < 0 && errno != EINTR) {
            status = fy_fail_errno(to->slots[j].path, "cannot be written", errno, error);
        }
        done += now < 0 ? 0 : (uint64_t)now;
    }
    fy_files_put(from, i);
    fy_files_put(to, j);
    return status;
}
