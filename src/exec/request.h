/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_REQUEST_H
#define FY_EXEC_REQUEST_H

#include <ferry/request.h>

#include <stdbool.h>

/* What <ferry/request.h> says of each call; none is NULL, and neither are request and done_out. */
typedef struct fy_request_ops {
    ferry_status (*test)(ferry_request *request, bool *done_out, ferry_error *error);
    ferry_status (*wait)(ferry_request *request, ferry_error *error);
    void (*cancel)(ferry_request *request);
    void (*destroy)(ferry_request *request);
} fy_request_ops;

/* The first member of every kind of request. */
struct ferry_request {
    const fy_request_ops *ops;
};

#endif
