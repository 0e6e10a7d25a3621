/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_CHAINS_H
#define FY_MODEL_CHAINS_H

#include "model/spec.h"

/*
 * Feeds every tensor of a spec from tensors that have no source, through those that have one,
 * however many lie in between. Tensors that have no such source keep their feeds as written.
 * Circles are an error that names the tensors of one.
 */
ferry_status fy_spec_compose(ferry_spec *spec, const fy_json_place *place, ferry_error *error);

#endif
