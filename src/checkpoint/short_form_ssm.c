/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * State spaces. The first kind has an x_proj and no heads: z and x are cut by the chunk rule. The
 * second packs z, x, B, C and dt in one projection and x, B, C in one convolution; heads of x share
 * the B and C of their group, so a rank has whole heads and the groups that they use.
 */
#include "checkpoint/short_form_facts.h"

typedef unsigned long long ull;

/* inner is what out_proj takes, conv has inner + 2 states, in_proj 2 inner + 2 states + heads. */
static ferry_status read_sizes(fy_facts *facts, const fy_model_tensor *const *samples,
                               ferry_error *error)
{
    const fy_model_tensor *in = samples[FY_WAY_SSM_IN];
    const fy_model_tensor *conv = samples[FY_WAY_SSM_CONV];
    const fy_model_tensor *heads = samples[FY_WAY_SSM_HEADS];
    const fy_model_tensor *out = samples[FY_WAY_SSM_OUT];
    const uint64_t limit = UINT64_C(1) << 31;
    if (in != NULL && conv != NULL && heads != NULL && out != NULL && in->n_dims == 2 &&
        conv->n_dims >= 1 && heads->n_dims == 1 && out->n_dims == 2) {
        uint64_t inner = out->shape[1], rows = conv->shape[0], n = heads->shape[0];
        if (inner > 0 && inner < limit && rows > inner && rows < limit && n > 0 && n < limit &&
            (rows - inner) % 2 == 0 && inner % n == 0 && in->shape[0] == inner + rows + n) {
            facts->ssm_inner = inner;
            facts->ssm_states = (rows - inner) / 2;
            facts->ssm_heads = n;
            return FERRY_OK;
        }
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: the shapes of %s and its neighbours are not those of a state space with "
                   "z, x, B, C and dt in one; write a layout file",
                   facts->source_name,
                   in != NULL     ? in->name
                   : conv != NULL ? conv->name
                                  : heads->name);
}

static ferry_status read_groups(fy_facts *facts, ferry_error *error)
{
    static const char *const group_keys[] = {"mamba_n_groups", "n_groups", NULL};
    static const char *const state_keys[] = {"mamba_d_state", "ssm_state_size", "state_size", NULL};
    uint64_t groups = 0, state = 0;
    FY_TRY(fy_facts_number(facts, group_keys, &groups, error));
    FY_TRY(fy_facts_number(facts, state_keys, &state, error));
    if (groups == 0 && state == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: tp=%u needs config.json with the groups of the state spaces (n_groups "
                       "or mamba_n_groups); put it beside the tensors, or write a layout file",
                       facts->source_name, facts->tp);
    }
    groups = groups == 0 ? facts->ssm_states / state : groups;
    if (groups == 0 || facts->ssm_states % groups != 0 ||
        (state != 0 && facts->ssm_states / groups != state) || facts->ssm_heads % groups != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %llu states and %llu heads of a state space are not %llu groups of "
                       "%llu states, as config.json says; write a layout file",
                       facts->source_name, (ull)facts->ssm_states, (ull)facts->ssm_heads,
                       (ull)groups, (ull)state);
    }
    facts->ssm_groups = groups;
    return FERRY_OK;
}

ferry_status fy_facts_gather_ssm(fy_facts *facts, const fy_model_tensor *const *samples,
                                 ferry_error *error)
{
    bool some = samples[FY_WAY_SSM_IN] != NULL || samples[FY_WAY_SSM_CONV] != NULL ||
                samples[FY_WAY_SSM_HEADS] != NULL;
    if (!some || samples[FY_WAY_SSM_X] != NULL) {
        return FERRY_OK;
    }
    FY_TRY(read_sizes(facts, samples, error));
    FY_TRY(read_groups(facts, error));
    uint64_t tp = facts->tp, groups = facts->ssm_groups;
    if (facts->ssm_heads % tp != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: tp=%llu does not divide the %llu heads of the state spaces",
                       facts->source_name, (ull)tp, (ull)facts->ssm_heads);
    }
    if (groups % tp != 0 && tp % groups != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: tp=%llu neither divides the %llu groups of the state spaces nor is a "
                       "multiple of them",
                       facts->source_name, (ull)tp, (ull)groups);
    }
    return FERRY_OK;
}
