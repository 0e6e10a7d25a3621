/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a command of which one system call does not happen: instead the process is killed, or the
 * call fails.
 *
 *     syscall_faults [--from NAME] [--only NAME]... [--at N] [--all] --do WHAT [--log FILE] --
 * COMMAND
 *
 * Calls that touch files are counted, from the first one of the name that --from has, or only those
 * of the names that --only has. The N-th (with --all: each from there on) is the one that WHAT
 * happens to: kill, the name of an error, or that of a signal, with which the call does happen.
 * --at 0 only counts. FILE gets their number, and the name of the one. The exit status is the
 * command's, 128 and the signal that ended it, or 77 where the kernel does not let a process look
 * on.
 *
 * The kernel asks this program about each call (seccomp's user notification), which needs no rights
 * and works in every thread of the command.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What is to happen to a call: an error, or a signal as a negative number. */
enum { SKIPPED = 77, USAGE = 2, NOTHING = 0 };

typedef struct named {
    const char *name;
    int number;
} named;

#define CALL(name)                                                                                 \
    {                                                                                              \
#name, SYS_##name                                                                          \
    }

static const named calls[] = {
#ifdef SYS_open /* architectures that are younger have only the forms that begin at a folder */
    CALL(open),
    CALL(mkdir),
    CALL(rename),
    CALL(unlink),
    CALL(rmdir),
    CALL(symlink),
    CALL(link),
    CALL(stat),
    CALL(lstat),
    CALL(readlink),
    CALL(chmod),
    CALL(access),
#endif
    CALL(openat),
    CALL(mkdirat),
    CALL(renameat2),
    CALL(unlinkat),
    CALL(symlinkat),
    CALL(linkat),
    CALL(newfstatat),
    CALL(fstat),
    CALL(readlinkat),
    CALL(fchmod),
    CALL(faccessat),
    CALL(read),
    CALL(pread64),
    CALL(write),
    CALL(writev),
    CALL(pwrite64),
    CALL(copy_file_range),
    CALL(ftruncate),
    CALL(fsync),
    CALL(fdatasync),
    CALL(flock),
    CALL(fcntl),
    CALL(lseek),
    CALL(getdents64),
    CALL(fstatfs),
    CALL(fadvise64),
    CALL(sync_file_range),
    CALL(close),
#ifdef SYS_renameat
    CALL(renameat),
#endif
};
enum { N_CALLS = sizeof calls / sizeof calls[0] };

static const named errors[] = {
    {"kill", -SIGKILL}, {"SIGTERM", -SIGTERM},      {"SIGINT", -SIGINT}, {"SIGHUP", -SIGHUP},
    {"EIO", EIO},       {"ENOSPC", ENOSPC},         {"EINTR", EINTR},    {"ENOSYS", ENOSYS},
    {"ENOLCK", ENOLCK}, {"EOPNOTSUPP", EOPNOTSUPP}, {"EINVAL", EINVAL},  {"EDQUOT", EDQUOT}};

typedef struct plan {
    const char *from;
    bool only[N_CALLS];
    bool has_only;
    bool all;
    long at;
    int what;
    const char *log;
    char **command;
} plan;

static int find(const named *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return (int)i;
        }
    }
    fprintf(stderr, "syscall_faults: \"%s\" is unknown\n", name);
    exit(USAGE);
}

static const char *name_of(int number)
{
    for (size_t i = 0; i < N_CALLS; i++) {
        if (calls[i].number == number) {
            return calls[i].name;
        }
    }
    return "?";
}

static plan parse(int argc, char **argv)
{
    plan p = {0};
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--all") == 0) {
            p.all = true;
            continue;
        }
        if (strcmp(argv[i], "--from") == 0) {
            p.from = calls[find(calls, N_CALLS, value)].name;
        } else if (strcmp(argv[i], "--only") == 0) {
            p.only[find(calls, N_CALLS, value)] = p.has_only = true;
        } else if (strcmp(argv[i], "--at") == 0) {
            p.at = atol(value);
        } else if (strcmp(argv[i], "--do") == 0) {
            p.what = errors[find(errors, sizeof errors / sizeof errors[0], value)].number;
        } else if (strcmp(argv[i], "--log") == 0) {
            p.log = value;
        } else {
            break;
        }
        i++;
    }
    if (i + 1 >= argc || strcmp(argv[i], "--") != 0) {
        fprintf(stderr, "syscall_faults: see the head of its source\n");
        exit(USAGE);
    }
    p.command = argv + i + 1;
    return p;
}

/* ---- the command ---- */

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

/* A descriptor on which the kernel asks about the calls; -1 where it does not. */
static int install_filter(void)
{
#ifdef ARCHITECTURE
    struct sock_filter code[N_CALLS + 5];
    size_t n = 0;
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < N_CALLS; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i].number, (unsigned char)(N_CALLS - i), 0);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) {
        return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                            &program);
    }
#endif
    return -1;
}

/* Hands the descriptor to the parent: sending it is none of the calls that are asked about. */
static bool send_fd(int socket, int fd)
{
    char byte = 0, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return sendmsg(socket, &message, 0) == 1;
}

static int receive_fd(int socket)
{
    int fd = -1;
    char byte = 0, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != NULL) {
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    }
    return fd;
}

static void run_command(int socket, char **command)
{
    int listener = install_filter();
    if (listener < 0 || !send_fd(socket, listener)) {
        _exit(SKIPPED);
    }
    execvp(command[0], command); /* both descriptors end there, or with this process */
    _exit(127);
}

/* ---- looking on ---- */

typedef struct tally {
    long n;
    bool has_begun;
    const char *hit;
} tally;

static bool counts(const plan *p, tally *t, int number)
{
    const char *name = name_of(number);
    t->has_begun = t->has_begun || p->from == NULL || strcmp(p->from, name) == 0;
    return t->has_begun && (!p->has_only || p->only[find(calls, N_CALLS, name)]);
}

/* What is to happen to a call. */
static int judge(const plan *p, tally *t, int number)
{
    if (!counts(p, t, number)) {
        return NOTHING;
    }
    t->n++;
    if (p->at == 0 || (p->all ? t->n < p->at : t->n != p->at)) {
        return NOTHING;
    }
    t->hit = name_of(number);
    return p->what;
}

static void look_on(const plan *p, int listener, pid_t child, tally *t)
{
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    while (poll(&wait, 1, -1) >= 0 || errno == EINTR) {
        struct seccomp_notif asked = {0};
        struct seccomp_notif_resp answer;
        if ((wait.revents & POLLIN) == 0) {
            if ((wait.revents & (POLLHUP | POLLERR)) != 0) {
                return; /* the last thread has ended */
            }
            continue;
        }
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) {
            continue; /* a signal has ended it meanwhile */
        }
        int what = judge(p, t, asked.data.nr);
        if (what < 0) {
            kill(child, -what);
        }
        if (what == -SIGKILL) {
            return;
        }
        answer = (struct seccomp_notif_resp){.id = asked.id};
        if (what <= NOTHING) {
            answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        } else {
            answer.error = -what;
        }
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

int main(int argc, char **argv)
{
    plan p = parse(argc, argv);
    int sockets[2], how = 0;
    tally t = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
        return SKIPPED;
    }
    pid_t child = fork();
    if (child == 0) {
        run_command(sockets[1], p.command);
    }
    close(sockets[1]);
    int listener = receive_fd(sockets[0]);
    if (listener >= 0) {
        look_on(&p, listener, child, &t);
    }
    waitpid(child, &how, 0);
    FILE *log = p.log == NULL ? NULL : fopen(p.log, "we");
    if (log != NULL) {
        fprintf(log, "%ld %s\n", t.n, t.hit == NULL ? "-" : t.hit);
        fclose(log);
    }
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
}
