/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/request.h"

#include "base/status.h"

ferry_status ferry_request_test(ferry_request *request, bool *done_out, ferry_error *error)
{
    FY_TRY(fy_check_use(request != NULL && done_out != NULL,
                        "ferry_request_test needs a request and a place for the result", error));
    return request->ops->test(request, done_out, error);
}

ferry_status ferry_request_wait(ferry_request *request, ferry_error *error)
{
    FY_TRY(fy_check_use(request != NULL, "ferry_request_wait needs a request", error));
    return request->ops->wait(request, error);
}

void ferry_request_cancel(ferry_request *request)
{
    if (request != NULL) {
        request->ops->cancel(request);
    }
}

void ferry_request_destroy(ferry_request *request)
{
    if (request != NULL) {
        request->ops->destroy(request);
    }
}
