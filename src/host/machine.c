/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "host/copy_rate.h"
#include "host/file.h"
#include "host/room.h"

#include <ferry/machine.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The CPUs that this process may use, in a set that fy_free gives back. */
static ferry_status allowed_cpus(cpu_set_t **set_out, size_t *set_bytes_out, ferry_error *error)
{
    for (size_t n = 1024; n <= (size_t)1 << 20; n *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(n);
        cpu_set_t *set = fy_alloc_zeroed(1, bytes);
        FY_TRY(fy_check_memory(set != NULL, "the set of CPUs", error));
        if (sched_getaffinity(0, bytes, set) == 0) {
            *set_out = set;
            *set_bytes_out = bytes;
            return FERRY_OK;
        }
        fy_free(set);
        if (errno != EINVAL) { /* that: the machine has more than n */
            break;
        }
    }
    return fy_fail(error, FERRY_ERR_IO, "the CPUs of this process cannot be determined: %s",
                   strerror(errno));
}

/* The size that MFD_HUGETLB and MAP_HUGETLB take when none is named, and its pool's free pages. */
static void look_at_huge_pages(ferry_machine *machine)
{
    char path[128], line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Hugepagesize: %llu kB", &kib) != 1) {
            kib = 0;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    if (kib == 0) { /* no pools; the kernel may still join small pages to large ones */
        machine->huge_page_bytes =
            fy_file_number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
        return;
    }
    machine->huge_page_bytes = (uint64_t)kib * 1024;
    snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-%llukB/free_hugepages", kib);
    uint64_t n_free = fy_file_number(path);
    snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-%llukB/resv_hugepages", kib);
    machine->n_free_huge_pages = n_free - fy_min(n_free, fy_file_number(path));
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FY_UNDER_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(FY_UNDER_TSAN)
/* The sanitizer's stand-in for clone takes the child's memory for a copy; this is libc's own. */
int __clone(int (*run)(void *), void *stack, int flags, void *argument, ...);
#define clone __clone
#endif

struct attach {
    pid_t parent;
    uint64_t value; /* what the child shall read */
};

/* In the child, whose memory and thread are still the parent's: it calls the kernel and ends. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static int
read_parent(void *argument)
{
    struct attach *attach = argument;
    uint64_t copy = 0;
    struct iovec here = {&copy, sizeof copy}, there = {&attach->value, sizeof attach->value};
    long n = syscall(SYS_process_vm_readv, attach->parent, &here, 1ul, &there, 1ul, 0ul);
    return n == (long)sizeof copy && copy == attach->value ? 0 : 1;
}

/*
 * Really tried, as a child that reads this process: Linux may let a process read its own children,
 * but this direction needs the same leave as between any two processes of a user. Yama, a seccomp
 * filter or being undumpable forbid it; a child that cannot be made counts as forbidden too.
 *
 * The child is made as posix_spawn makes one: it borrows this thread and this memory until it ends,
 * so other threads and their locks do not matter. It ends without a SIGCHLD, and only a wait for
 * clones sees it, so the program's own waits are undisturbed.
 */
static bool try_attach(void)
{
    _Alignas(64) char stack[16 << 10];
    struct attach attach = {getpid(), 0x6665727279u};
    sigset_t all, old;
    int result = -1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pid_t child = clone(read_parent, stack + sizeof stack, CLONE_VM | CLONE_VFORK, &attach);
    while (child > 0 && waitpid(child, &result, (int)__WCLONE) < 0 && errno == EINTR) {}
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return child > 0 && WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

static ferry_status list_cpus(uint32_t **cpus_out, uint32_t *n_out, ferry_error *error)
{
    cpu_set_t *set = NULL;
    size_t set_bytes;
    FY_TRY(allowed_cpus(&set, &set_bytes, error));
    ferry_status status = FERRY_OK;
    uint32_t n = 0, n_allowed = (uint32_t)CPU_COUNT_S(set_bytes, set);
    uint32_t *cpus = fy_alloc(n_allowed, sizeof *cpus);
    if (cpus == NULL) {
        status = fy_fail_no_memory(error, "the list of CPUs");
        goto out;
    }
    for (uint32_t cpu = 0; n < n_allowed; cpu++) {
        if (CPU_ISSET_S(cpu, set_bytes, set)) {
            cpus[n++] = cpu;
        }
    }
    *cpus_out = cpus;
    *n_out = n;
out:
    fy_free(set);
    return status;
}

static ferry_status measure(const uint32_t *cpus, double seconds, ferry_machine *machine,
                            ferry_error *error)
{
    double one = 0, all = 0;
    bool is_alone = machine->n_cpus == 1;
    ferry_status status =
        fy_copy_rate(cpus, 1, machine->room_bytes, is_alone ? seconds : seconds / 2, &one, error);
    all = one;
    if (status == FERRY_OK && !is_alone) {
        status = fy_copy_rate(cpus, machine->n_cpus, machine->room_bytes, seconds / 2, &all, error);
    }
    machine->copy_gbytes_per_s = one * 1e-9;
    machine->copy_all_gbytes_per_s = all * 1e-9;
    return status;
}

ferry_status ferry_machine_probe(double measure_seconds, ferry_machine *machine_out,
                                 ferry_error *error)
{
    ferry_machine machine = FERRY_MACHINE_INIT;
    uint32_t *cpus = NULL;
    if (!(measure_seconds >= 0 && measure_seconds <= 3600)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a measurement of %g seconds: use 0 for none, 3600 at most",
                       measure_seconds);
    }
    ferry_status status = list_cpus(&cpus, &machine.n_cpus, error);
    FY_THEN(status, fy_room(&machine.room_bytes, error));
    if (status == FERRY_OK) {
        machine.cross_memory_attach = try_attach();
        machine.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        look_at_huge_pages(&machine);
    }
    if (status == FERRY_OK && measure_seconds > 0) {
        status = measure(cpus, measure_seconds, &machine, error);
    }
    FY_THEN(status, fy_copy_out(&machine, sizeof machine, machine_out, "ferry_machine", error));
    fy_free(cpus);
    return status;
}
