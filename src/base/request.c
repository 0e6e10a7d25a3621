/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/request.h"

#include "base/status.h"

ferry_status ferry_request_test(ferry_request *request, bool *done_out, ferry_error *error)
{
    if (request == NULL || done_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_request_test needs a request and a place for the result");
    }
    return request->ops->test(request, done_out, error);
}

ferry_status ferry_request_wait(ferry_request *request, ferry_error *error)
{
    if (request == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_request_wait needs a request");
    }
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
