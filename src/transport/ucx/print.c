/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/print.h"

#include <stddef.h>
#include <string.h>

static const char *const rdma[] = {"rc_", "ud_", "dc_", "gga_", "ugni_", "srd/"};
static const char *const tcp[] = {"tcp/"};
static const char *const inside[] = {"self/", "sysv/", "posix/", "cma/", "knem/", "xpmem/"};

static bool begins(const char *text, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strncmp(text, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

#define BEGINS(text, names) begins(text, names, sizeof(names) / sizeof(names)[0])

/* A line for each device: "resource 1 : md 1 dev 1 flags -- rc_verbs/mlx5_0:1". Memory of GPUs has
 * lines as well, "cuda_copy/cuda", and is no network. */
static bool has_device(const char *context, const char *const *names, size_t n)
{
    bool has = false;
    for (const char *at = strstr(context, " -- "); at != NULL && !has; at = strstr(at, " -- ")) {
        at += strlen(" -- ");
        has = begins(at, names, n);
    }
    return has;
}

bool fy_ucx_names_rdma(const char *context)
{
    return has_device(context, rdma, sizeof rdma / sizeof rdma[0]);
}

bool fy_ucx_names_tcp(const char *context)
{
    return has_device(context, tcp, sizeof tcp / sizeof tcp[0]);
}

/* Of a lane "[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] ..." what begins with the transport, or "". */
static const char *transport_of(const char *lane)
{
    const char *at = strchr(lane, ':');
    at = at == NULL ? NULL : strchr(at + 1, ':');
    return at == NULL ? "" : at + 1;
}

/*
 * A line for each lane, and what the lane is for behind it:
 *
 *     lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4]   -> md[4]/ib/sysdev[1] rma_bw#0 am am_bw#0 wireup
 *
 * Over TCP, RMA is emulated by the target's CPU one segment at a time, several times slower than
 * messages. What copies between host and GPU reaches no other rank's host memory.
 */
bool fy_ucx_names_native_rma(const char *endpoint)
{
    bool is_native = false;
    for (const char *at = strstr(endpoint, "lane["); at != NULL; at = strstr(at + 1, "lane[")) {
        char line[256];
        size_t length = strcspn(at, "\n");
        length = length < sizeof line - 1 ? length : sizeof line - 1;
        memcpy(line, at, length);
        line[length] = '\0';
        const char *transport = transport_of(line);
        if (strstr(line, " rma") == NULL) {
            continue;
        }
        if (strncmp(transport, "tcp/", 4) == 0) {
            return false;
        }
        is_native = is_native || BEGINS(transport, rdma) || BEGINS(transport, inside);
    }
    return is_native;
}

bool fy_ucx_names_xpmem(const char *endpoint)
{
    bool has = false;
    for (const char *at = strstr(endpoint, "lane["); at != NULL && !has;
         at = strstr(at + 1, "lane[")) {
        has = strncmp(transport_of(at), "xpmem/", strlen("xpmem/")) == 0;
    }
    return has;
}
