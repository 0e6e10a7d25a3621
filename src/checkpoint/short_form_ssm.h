/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SHORT_FORM_SSM_H
#define FY_CHECKPOINT_SHORT_FORM_SSM_H

#include "checkpoint/short_form_facts.h"

/* The numbers of state spaces; part of fy_facts_gather. */
ferry_status fy_facts_gather_ssm(fy_facts *facts, const fy_model_tensor *const *samples,
                                 ferry_error *error);

#endif
