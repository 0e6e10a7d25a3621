/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry plan --trace: the timeline of a schedule as a file. */
#include "plan.h"

#include "commands.h"
#include "output.h"
#include "steps.h"

static ferry_status fill_trace(const void *context, FILE *file, ferry_error *error)
{
    return ferry_simulation_write_trace(context, write_stream, file, error);
}

int plan_write_trace(const ferry_schedule *schedule, const char *path)
{
    ferry_error error;
    ferry_simulation *simulation = NULL;
    ferry_status status = ferry_simulation_create(schedule, NULL, &simulation, &error);
    FY_THEN(status, replace_file(path, fill_trace, simulation, &error));
    ferry_simulation_destroy(simulation);
    return status == FERRY_OK ? EXIT_DONE : fail("plan", error.message);
}
