/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements: what ranks bring is merged in trees of any form, and among threads; what comes out is
 * held against loops over all ranks. And what makes no sense is the failure of whoever sent it.
 */
#include "rank_threads.h"

#include "support/random.h"

#include "world/agree.h"

#include <ferry/service.h>

#include <string.h>

enum { N_FIELDS = 8, ROUNDS = 300 };

static const char *const words[] = {"inproc", "shm", ""};

typedef struct scene {
    uint32_t n;
    fy_field fields[MOST_RANKS][N_FIELDS];
    ferry_status own[MOST_RANKS];
    char why[MOST_RANKS][64];
    char said[MOST_RANKS][N_FIELDS][FY_FIELD_TEXT_BYTES]; /* of texts, when they are agreed on */
} scene;

/* Mostly all is well: else every scene would fail for its first ranks. */
static void make_scene(scene *s, uint64_t *state)
{
    s->n = 1 + random_below(state, MOST_RANKS);
    bool alike = random_below(state, 3) != 0;
    bool fine = random_below(state, 3) != 0;
    for (uint32_t r = 0; r < s->n; r++) {
        for (uint32_t f = 0; f < N_FIELDS; f++) {
            fy_field *field = &s->fields[r][f];
            *field = (fy_field){.name = "a field", .how = (fy_how)(f % FY_N_HOWS)};
            field->value = random_u64(state) >> random_below(state, 64);
            if (field->how == FY_SAME) {
                field->value = alike ? 17 : 17 + random_below(state, 2);
                field->has_none = random_below(state, 4) == 0;
                field->text = f < FY_N_HOWS ? NULL : words[alike ? 0 : random_below(state, 3)];
                field->text_out = s->said[r][f];
                snprintf(s->said[r][f], sizeof s->said[r][f], "not said");
                field->status = f < FY_N_HOWS ? FERRY_OK : FERRY_ERR_DIGEST;
            }
        }
        s->own[r] = fine || random_below(state, 10) != 0 ? FERRY_OK : FERRY_ERR_IO;
        snprintf(s->why[r], sizeof s->why[r], random_below(state, 2) == 0 ? "no" : "rank 99: no");
    }
}

static bool differ(const fy_field *a, const fy_field *b)
{
    return a->text == NULL ? a->value != b->value : strcmp(a->text, b->text) != 0;
}

/* The sentence that all ranks must hear; false: they agree. */
static bool expect_failure(const scene *s, ferry_status *status_out, char *text, size_t text_bytes)
{
    for (uint32_t r = 0; r < s->n; r++) {
        if (s->own[r] != FERRY_OK) {
            *status_out = s->own[r];
            if (s->why[r][0] == 'r') {
                snprintf(text, text_bytes, "rank 99: no");
            } else {
                snprintf(text, text_bytes, "rank %u: no", r);
            }
            return true;
        }
    }
    for (uint32_t f = 0; f < N_FIELDS; f++) {
        const fy_field *first = NULL;
        for (uint32_t r = 0, first_rank = 0; r < s->n; r++) {
            const fy_field *its = &s->fields[r][f];
            if (its->how != FY_SAME || its->has_none) {
                continue;
            }
            if (first == NULL) {
                first = its;
                first_rank = r;
            }
            if (differ(first, its)) {
                *status_out = its->status == FERRY_OK ? FERRY_ERR_INVALID_INPUT : its->status;
                if (its->text == NULL) {
                    snprintf(text, text_bytes, "a field is %llu on rank %u and %llu on rank %u: it",
                             (unsigned long long)first->value, first_rank,
                             (unsigned long long)its->value, r);
                } else {
                    snprintf(text, text_bytes,
                             "a field is \"%s\" on rank %u and \"%s\" on rank %u: it", first->text,
                             first_rank, its->text, r);
                }
                return true;
            }
        }
    }
    return false;
}

static uint64_t due_value(const scene *s, uint32_t f)
{
    uint64_t value = s->fields[0][f].value;
    for (uint32_t r = 1; r < s->n; r++) {
        uint64_t its = s->fields[r][f].value;
        switch (s->fields[0][f].how) {
        case FY_LEAST:
            value = its < value ? its : value;
            break;
        case FY_MOST:
            value = its > value ? its : value;
            break;
        case FY_SUM:
            value += its;
            break;
        case FY_AND:
            value &= its;
            break;
        default:
            break;
        }
    }
    return value;
}

/* What is said of a field's text: "" where it has none. */
static const char *due_text(const scene *s, uint32_t f)
{
    for (uint32_t r = 0; r < s->n; r++) {
        if (!s->fields[r][f].has_none) {
            return s->fields[r][f].text == NULL ? "" : s->fields[r][f].text;
        }
    }
    return "";
}

/* "" or what is wrong with an answer. */
static void check_answer(const scene *s, const fy_field fields[N_FIELDS], ferry_status status,
                         const ferry_error *error, char *wrong, size_t wrong_bytes)
{
    char text[FERRY_ERROR_BYTES];
    ferry_status wanted = FERRY_OK;
    wrong[0] = '\0';
    if (expect_failure(s, &wanted, text, sizeof text)) {
        if (status != wanted || strstr(error->message, text) == NULL) {
            snprintf(wrong, wrong_bytes, "%s \"%.300s\" where %s \"%.300s\" is due",
                     ferry_status_name(status), error->message, ferry_status_name(wanted), text);
        }
        return;
    }
    if (status != FERRY_OK) {
        snprintf(wrong, wrong_bytes, "not agreed: %.500s", error->message);
    }
    for (uint32_t f = 0; f < N_FIELDS; f++) {
        if (fields[f].how != FY_SAME && fields[f].value != due_value(s, f)) {
            snprintf(wrong, wrong_bytes, "field %u is %llu where %llu is due", f,
                     (unsigned long long)fields[f].value, (unsigned long long)due_value(s, f));
        }
        if (fields[f].how == FY_SAME && strcmp(fields[f].text_out, due_text(s, f)) != 0) {
            snprintf(wrong, wrong_bytes, "of field %u \"%.40s\" is said, not \"%s\"", f,
                     fields[f].text_out, due_text(s, f));
        }
    }
}

/* Two of the messages become one, until one is left. */
static void test_trees(void **state)
{
    static scene s;
    static unsigned char bytes[MOST_RANKS][FY_AGREEMENT_BYTES];
    uint64_t seed = 20, n_failed = 0;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        fy_pack messages[MOST_RANKS];
        char wrong[1024];
        ferry_error error = {.message = ""};
        make_scene(&s, &seed);
        for (uint32_t r = 0; r < s.n; r++) {
            messages[r] = fy_pack_into(bytes[r], sizeof bytes[r]);
            fy_agreement_pack(r, s.fields[r], N_FIELDS, s.own[r], s.why[r], &messages[r]);
        }
        for (uint32_t n = s.n; n > 1; n--) {
            uint32_t to = random_below(&seed, n - 1);
            fy_agreement_merge(&messages[to], messages[n - 1].bytes, messages[n - 1].used, n - 1);
            assert_false(messages[to].failed);
        }
        fy_field answer[N_FIELDS];
        memcpy(answer, s.fields[0], sizeof answer);
        ferry_status status =
            fy_agreement_read(messages[0].bytes, messages[0].used, answer, N_FIELDS, &error);
        n_failed += status != FERRY_OK;
        check_answer(&s, answer, status, &error, wrong, sizeof wrong);
        check_at(wrong[0] == '\0', "round %d, %u ranks: %s", round, s.n, wrong);
    }
    check_at(n_failed > 10 && n_failed < ROUNDS - 10, "%d failed", (int)n_failed);
}

static void agree_as_rank(rank_thread *self)
{
    const scene *s = self->context;
    fy_field fields[N_FIELDS];
    memcpy(fields, s->fields[self->rank], sizeof fields);
    fy_fail(&self->error, FERRY_ERR_IO, "%s", s->why[self->rank]);
    ferry_status status = fy_agree_on(self->world, FY_JOINT_SERVICE_INIT, 0, fields, N_FIELDS,
                                      s->own[self->rank], &self->error);
    check_answer(s, fields, status, &self->error, self->wrong, sizeof self->wrong);
}

static void test_threads(void **state)
{
    static scene s;
    uint64_t seed = 4;
    int n_agreed = 0;
    (void)state;
    for (int round = 0; round < 40; round++) {
        char text[FERRY_ERROR_BYTES];
        ferry_status status;
        make_scene(&s, &seed);
        s.n = s.n > 9 ? 9 : s.n;
        n_agreed += !expect_failure(&s, &status, text, sizeof text);
        run_ranks(s.n, NULL, agree_as_rank, &s);
    }
    assert_true(n_agreed > 5 && n_agreed < 35);
}

/* Bytes that are no message, and one of other fields, from rank 3. */
static void test_damaged(void **state)
{
    fy_field fields[] = {{.value = 5, .how = FY_SUM}, {.value = 7, .how = FY_MOST}};
    fy_field others[] = {{.value = 5, .how = FY_MOST}, {.value = 7, .how = FY_MOST}};
    unsigned char right[FY_AGREEMENT_BYTES], wrong[FY_AGREEMENT_BYTES];
    fy_pack its = fy_pack_into(wrong, sizeof wrong);
    (void)state;
    fy_agreement_pack(3, fields, 2, FERRY_OK, NULL, &its);
    size_t whole = its.used;
    for (size_t i = 0; i <= whole + 2; i++) {
        fy_pack own = fy_pack_into(right, sizeof right);
        ferry_error error = {.message = ""};
        fy_agreement_pack(0, fields, 2, FERRY_OK, NULL, &own);
        if (i == whole + 2) {
            its.used = 0;
            fy_agreement_pack(3, others, 2, FERRY_OK, NULL, &its);
        } else {
            wrong[whole] = 1;
            its.used = i;
        }
        fy_agreement_merge(&own, its.bytes, its.used, 3);
        ferry_status status = fy_agreement_read(own.bytes, own.used, fields, 2, &error);
        check_at(status == (i == whole ? FERRY_OK : FERRY_ERR_EXCHANGE), "%zu bytes: %s", i,
                 error.message);
        if (i != whole) {
            assert_string_equal(error.message, "the message of rank 3 is damaged");
        } else {
            assert_int_equal(fields[0].value, 10);
            fields[0].value = 5;
        }
    }
}

/* Two ranks at different steps, or in different calls: both hear of both. */
static void agree_elsewhere(rank_thread *self)
{
    fy_joint_call call = self->rank == 1 ? FY_JOINT_SERVICE_SCHEDULE : FY_JOINT_TRANSPORT_OPEN;
    ferry_status status = fy_agree_on(self->world, call, 0, NULL, 0, FERRY_OK, &self->error);
    expect(self, status == FERRY_ERR_MISUSE);
    expect_says(self, "rank 1 is in ferry_service_schedule");
    expect_says(self, "is in ferry_transport_open");
}

static void test_elsewhere(void **state)
{
    (void)state;
    run_ranks(3, NULL, agree_elsewhere, NULL);
}

/*
 * What it takes to make a service ready, in steps at which all ranks wait for all and in rounds of
 * letters: whoever adds one says so here.
 */
static void count_exchanges(rank_thread *self)
{
    static char memory[MOST_RANKS][64];
    ferry_service *service = NULL;
    ferry_service_statistics statistics = FERRY_SERVICE_STATISTICS_INIT;
    ferry_buffer buffer = ferry_buffer_of(memory[self->rank], 64);
    uint32_t next = (self->rank + 1) % self->n_ranks;
    uint32_t last = (self->rank + self->n_ranks - 1) % self->n_ranks;
    expect_ok(self, ferry_service_create(self->world, NULL, &service, &self->error));
    expect_ok(self, ferry_service_init(service, FERRY_LOG_OFF, &self->error));
    expect_ok(self, ferry_service_get_statistics(service, &statistics, &self->error));
    expect(self, statistics.n_exchanges == 4);
    expect_ok(self, ferry_service_register_send(service, 1, &buffer, 0, 32, next, &self->error));
    expect_ok(self,
              ferry_service_register_receive(service, 1, &buffer, 32, 32, last, &self->error));
    expect_ok(self, ferry_service_schedule(service, &self->error));
    expect_ok(self, ferry_service_get_statistics(service, &statistics, &self->error));
    expect(self, statistics.n_exchanges == 4 + 5);
    expect_ok(self, ferry_service_run(service, NULL, &self->error));
    expect_ok(self, ferry_service_get_statistics(service, &statistics, &self->error));
    expect(self, statistics.n_exchanges == 4 + 5);
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_service_destroy(service);
}

static void test_exchanges(void **state)
{
    (void)state;
    run_ranks(2, NULL, count_exchanges, NULL);
    run_ranks(16, NULL, count_exchanges, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),     cmocka_unit_test(test_threads),
        cmocka_unit_test(test_damaged),   cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_exchanges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
