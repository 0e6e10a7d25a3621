/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the journal of a reshard, behind the head of a right one if the first byte is
 * odd. What is read once is what is read the next time, too: damaged ends are cut off.
 */
#include "fuzz.h"

#include "checkpoint/folder.h"
#include "checkpoint/journal.h"

#include <fcntl.h>

static const fy_journal_key KEY = {.part = {[FY_KEY_PROGRAM] = {.low = 17, .high = 3}}};

typedef struct seen {
    uint64_t n, sum;
} seen;

static ferry_status see(void *context, uint64_t task, const uint64_t *values, size_t n_values,
                        ferry_error *error)
{
    seen *s = context;
    (void)error;
    promise(n_values <= FY_JOURNAL_MOST_VALUES);
    s->n++;
    s->sum = s->sum * 31 + task;
    for (size_t i = 0; i < n_values; i++) {
        s->sum = s->sum * 31 + values[i];
    }
    return FERRY_OK;
}

static char folder[] = "/dev/shm/ferry-test-fuzz-XXXXXX";

static void remove_folder(void)
{
    rmdir(folder);
}

static int folder_of_this_process(void)
{
    static int fd = -1;
    if (fd < 0) {
        promise(mkdtemp(folder) != NULL);
        fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        atexit(remove_folder);
        promise(fd >= 0);
    }
    return fd;
}

/* The head is what a journal without records has. */
static void write_file(int folder_fd, bool with_head, const uint8_t *data, size_t size)
{
    ferry_error error;
    fy_journal journal = {.fd = -1};
    if (with_head) {
        promise(fy_journal_create(folder_fd, &KEY, &journal, &error) == FERRY_OK);
        fy_journal_close(&journal);
    }
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (with_head ? O_APPEND : O_TRUNC);
    int fd = openat(folder_fd, FY_JOURNAL_NAME, flags, 0600);
    promise(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static bool resume(int folder_fd, seen *s)
{
    ferry_error error = {""};
    fy_journal journal = {.fd = -1};
    const char *misfit = "unset";
    ferry_status status = fy_journal_resume(folder_fd, &KEY, see, s, &journal, &misfit, &error);
    check_sentence(status, &error);
    promise(status != FERRY_OK || (misfit == NULL) == (journal.fd >= 0));
    promise(status != FERRY_OK || misfit == NULL || s->n == 0);
    fy_journal_close(&journal);
    return status == FERRY_OK && misfit == NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    seen first = {0}, again = {0};
    if (size == 0) {
        return 0;
    }
    int fd = folder_of_this_process();
    write_file(fd, (data[0] & 1) != 0, data + 1, size - 1);
    if (resume(fd, &first)) {
        promise(resume(fd, &again));
        promise(first.n == again.n && first.sum == again.sum);
    }
    unlinkat(fd, FY_JOURNAL_NAME, 0);
    return 0;
}
