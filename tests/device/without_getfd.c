/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 *     device_without_getfd PROGRAM [WORD]...
 *
 * Runs a program that may not take descriptors of other processes, as in a container: pidfd_getfd
 * is EPERM for it and its children, which is looked at first.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

int main(int argc, char **argv)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("device_without_getfd");
        return 2;
    }
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (own < 0 || syscall(SYS_pidfd_getfd, own, STDIN_FILENO, 0) >= 0 || errno != EPERM) {
        fprintf(stderr, "device_without_getfd: descriptors can still be taken\n");
        return 2;
    }
    close(own);
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 2;
}
