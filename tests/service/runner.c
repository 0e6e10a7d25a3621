/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The cases of the copy service, and where each runs: conformance/rows.h tells how. */
#include "service/suite.h"

/* Of cases with faults that wait for no deadline: who is kept off the cores is not silent. */
enum { PATIENT = 20 };

static const case_row cases[] = {
    {.name = "properties", .n_ranks = 2, .run = case_properties},
    {.name = "empty", .n_ranks = 3, .run = case_empty},
    {.name = "empty1", .n_ranks = 1, .run = case_empty},
    {.name = "boxes", .n_ranks = 4, .run = case_boxes},
    {.name = "transposed", .n_ranks = 3, .run = case_transposed},
    {.name = "many", .n_ranks = 3, .run = case_many},
    {.name = "random1", .n_ranks = 1, .run = case_random},
    {.name = "random2", .n_ranks = 2, .run = case_random},
    {.name = "random3", .n_ranks = 3, .run = case_random},
    {.name = "random5", .n_ranks = 5, .run = case_random},
    {.name = "random9", .n_ranks = 9, .run = case_random},
    {.name = "delta", .n_ranks = 3, .run = case_delta},
    {.name = "delta_pairs", .n_ranks = 4, .run = case_delta_pairs},
    {.name = "delta_marked", .n_ranks = 4, .run = case_delta_marked},
    {.name = "delta_failed", .n_ranks = 3, .run = case_delta_failed},
    {.name = "delta_devices", .n_ranks = 2, .run = case_delta_devices},
    {.name = "delta_fan", .n_ranks = 6, .run = case_delta_fan},
    {.name = "large", .n_ranks = 3, .run = case_large},
    {.name = "caps", .n_ranks = 3, .run = case_caps},
    {.name = "shared_transport", .n_ranks = 3, .run = case_shared_transport},
    {.name = "beside", .n_ranks = 4, .run = case_beside},
    {.name = "aside", .n_ranks = 4, .run = case_aside},
    {.name = "aside_cancelled", .n_ranks = 4, .run = case_aside_cancelled},
    {.name = "polling", .n_ranks = 3, .run = case_polling},
    {.name = "askers", .n_ranks = 3, .run = case_askers},
    {.name = "cancel", .n_ranks = 3, .run = case_cancel},
    {.name = "progress_cancel", .n_ranks = 3, .run = case_progress_cancel},
    {.name = "ends", .n_ranks = 2, .run = case_ends},
    {.name = "spans", .n_ranks = 2, .run = case_spans},
    {.name = "cycles", .n_ranks = 2, .run = case_cycles},
    {.name = "bad_calls", .n_ranks = 2, .run = case_bad_calls},
    {.name = "bad_registrations", .n_ranks = 2, .run = case_bad_registrations},
    {.name = "bad_boxes", .n_ranks = 2, .run = case_bad_boxes},
    {.name = "unmatched", .n_ranks = 3, .run = case_unmatched},
    {.name = "two_writers", .n_ranks = 3, .run = case_two_writers},
    {.name = "two_buffers", .n_ranks = 3, .run = case_two_buffers},
    {.name = "other_bytes", .n_ranks = 3, .run = case_other_bytes},
    {.name = "differing_options", .n_ranks = 3, .run = case_differing_options},
    {.name = "bad_plans", .n_ranks = 3, .run = case_bad_plans},
    {.name = "queue", .n_ranks = 3, .run = case_queue},
    {.name = "bad_queues", .n_ranks = 2, .run = case_bad_queues},
    {.name = "captured", .n_ranks = 2, .run = case_captured},
    {.name = "captured4", .n_ranks = 4, .run = case_captured},
    {.name = "captured_killed",
     .n_ranks = 3,
     .run = case_captured_killed,
     .deadline_seconds = PATIENT,
     .processes_only = true,
     .dies = true},
    {.name = "bind", .n_ranks = 4, .run = case_bind},
    {.name = "rebind", .n_ranks = 3, .run = case_rebind},
    {.name = "swap", .n_ranks = 3, .run = case_swap},
    {.name = "relays", .n_ranks = 6, .run = case_relays},
    {.name = "quantize", .n_ranks = 3, .run = case_quantize},
    {.name = "made", .n_ranks = 3, .run = case_made},
    {.name = "quantize_bands", .n_ranks = 3, .run = case_quantize_bands},
    {.name = "nvfp4_bands", .n_ranks = 3, .run = case_nvfp4_bands},
    {.name = "nvfp4_devices", .n_ranks = 2, .run = case_nvfp4_devices},
    {.name = "quantize_resume", .n_ranks = 3, .run = case_quantize_resume},
    {.name = "bad_quantize", .n_ranks = 2, .run = case_bad_quantize},
    {.name = "dequantize", .n_ranks = 3, .run = case_dequantize},
    {.name = "flip", .n_ranks = 3, .run = case_flip},
    {.name = "lose", .n_ranks = 3, .run = case_lose, .deadline_seconds = 1},
    {.name = "abort", .n_ranks = 3, .run = case_abort, .deadline_seconds = PATIENT},
    {.name = "killed",
     .n_ranks = 4,
     .run = case_killed,
     .deadline_seconds = PATIENT,
     .processes_only = true,
     .dies = true},
    {.name = "stopped",
     .n_ranks = 3,
     .run = case_stopped,
     .deadline_seconds = 7,
     .processes_only = true,
     .dies = true},
    {.name = "killed_early",
     .n_ranks = 3,
     .run = case_killed_early,
     .deadline_seconds = PATIENT,
     .processes_only = true,
     .dies = true},
    {.name = "resume", .n_ranks = 4, .run = case_resume, .deadline_seconds = PATIENT, .dies = true},
    {.name = "resume_tasks", .n_ranks = 3, .run = case_resume_tasks, .deadline_seconds = PATIENT},
    {.name = "recover_pairs",
     .n_ranks = 4,
     .run = case_recover_pairs,
     .deadline_seconds = PATIENT,
     .dies = true},
    {.name = "turned", .n_ranks = 3, .run = case_turned, .deadline_seconds = PATIENT},
    {.name = "recover_onto", .n_ranks = 3, .run = case_recover_onto, .deadline_seconds = PATIENT},
};

static const case_row *case_at(size_t index)
{
    return &cases[index];
}

static bool is_wanted(const suite_options *o, size_t index)
{
    const case_row *row = &cases[index];
    /* Two transports are open at once while one takes the place of the other. */
    bool is_alone = row->run == case_recover_onto && strstr(o->engine->name, "strict") != NULL;
    /* These make a transport in a world that has shrunk. */
    bool goes_on = row->run == case_resume || row->run == case_resume_tasks ||
                   row->run == case_turned || row->run == case_recover_onto;
    /* These wait for deadlines to pass: the quick run has them where no wrapper stands. */
    bool waits = row->run == case_lose || row->run == case_stopped;
    return !is_alone && !(goes_on && row_has_one_job(o->engine)) &&
           (!waits || row_is_plain(o->engine) || o->is_long || o->only != NULL);
}

int main(int argc, char **argv)
{
    static const row_suite suite = {.name = "service",
                                    .n_cases = COUNT_OF(cases),
                                    .case_at = case_at,
                                    .is_wanted = is_wanted,
                                    .long_seconds = 900};
    return run_suite(&suite, argc, argv);
}
