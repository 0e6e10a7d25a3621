/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/meeting.h"

#include "support/meeting.h"
#include "support/port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * The key
 */

static void test_key(void **state)
{
    (void)state;
    /* All of these differ; the long secrets only behind what BLAKE2b takes as a key. */
    char long_a[101], long_b[101];
    memset(long_a, 'x', 100);
    memset(long_b, 'x', 100);
    long_a[100] = long_b[100] = '\0';
    long_b[99] = 'y';
    const char *const rows[][2] = {{NULL, ""}, {NULL, "a"},   {"", ""},     {"", "a"},
                                   {"a", ""},  {"a", "a"},    {"a", "b"},   {"b", "a"},
                                   {"ab", ""}, {long_a, "a"}, {long_b, "a"}};
    fy_meeting meetings[COUNT_OF(rows)];
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        meetings[i] = (fy_meeting)FY_MEETING_INIT;
        fy_meeting_key(&meetings[i], rows[i][0], rows[i][1]);
        fy_meeting again = FY_MEETING_INIT;
        fy_meeting_key(&again, rows[i][0], rows[i][1]);
        assert_true(same_key(&again, &meetings[i]));
        for (size_t j = 0; j < i; j++) {
            check_at(!same_key(&meetings[i], &meetings[j]), "rows %zu and %zu", i, j);
        }
    }
}

static void test_cleanup(void **state)
{
    (void)state;
    static const unsigned char zeros[FY_KEY_BYTES];
    fy_meeting meeting = FY_MEETING_INIT;
    fy_meeting_key(&meeting, "secret", "job");
    meeting.listener = dup(STDIN_FILENO);
    int fd = meeting.listener;
    fy_meeting_cleanup(&meeting);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(meeting.listener, -1);
    assert_memory_equal(meeting.key, zeros, sizeof zeros);
    fy_meeting_cleanup(&meeting);
}

/*
 * The environment
 */

static const char *const all_variables[] = {"SLURM_NTASKS",
                                            "PMI_SIZE",
                                            "RANK",
                                            "WORLD_SIZE",
                                            "LOCAL_RANK",
                                            "LOCAL_WORLD_SIZE",
                                            "MASTER_ADDR",
                                            "MASTER_PORT",
                                            "FERRY_PORT",
                                            "FERRY_RENDEZVOUS",
                                            "FERRY_LISTEN_FD",
                                            "FERRY_SECRET",
                                            "FERRY_PLUGINS",
                                            "TORCHELASTIC_USE_AGENT_STORE",
                                            "TORCHELASTIC_RUN_ID",
                                            "PMIX_RANK",
                                            "PMIX_NAMESPACE"};

static void clear_environment(void)
{
    for (size_t i = 0; i < COUNT_OF(all_variables); i++) {
        unsetenv(all_variables[i]);
    }
}

/* "A=1 B=2" */
static void set_environment(const char *text)
{
    char copy[512];
    clear_environment();
    assert_true(strlen(text) < sizeof copy);
    strcpy(copy, text);
    char *rest = NULL;
    for (char *item = strtok_r(copy, " ", &rest); item != NULL; item = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(item, '=');
        *value = '\0';
        assert_int_equal(setenv(item, value + 1, 1), 0);
    }
}

#define TORCH "RANK=1 WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
#define NEEDS                                                                                      \
    " not set: a rank needs all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; `ferry launch "  \
    "-n N -- PROG` sets them"

static void test_environment_good(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        uint32_t rank, n_ranks;
        const char *addresses;
    } rows[] = {
        {TORCH, 1, 4, "10.0.0.1:29500"},
        {TORCH " LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", 1, 4, "10.0.0.1:29500"},
        {TORCH " LOCAL_RANK=3", 1, 4, "10.0.0.1:29500"},
        {TORCH " FERRY_PORT=1000", 1, 4, "10.0.0.1:1000"},
        {TORCH " TORCHELASTIC_USE_AGENT_STORE=True", 1, 4, "10.0.0.1:29501"},
        {TORCH " TORCHELASTIC_USE_AGENT_STORE=False", 1, 4, "10.0.0.1:29500"},
        {TORCH " TORCHELASTIC_USE_AGENT_STORE=True FERRY_PORT=77", 1, 4, "10.0.0.1:77"},
        {"RANK=3 WORLD_SIZE=4 MASTER_ADDR=node-7.cluster FERRY_PORT=65535", 3, 4,
         "node-7.cluster:65535"},
        {"RANK=03 WORLD_SIZE=4 MASTER_ADDR=fd00::7 MASTER_PORT=1", 3, 4, "[fd00::7]:1"},
        {"RANK=3 WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=9", 3, 4, "127.0.0.1:9,[::1]:9"},
        {"RANK=0 WORLD_SIZE=1", 0, 1, ""},
        {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=x MASTER_PORT=5 LOCAL_RANK=0", 0, 1, ""},
        /* Complete variables win, whatever PMIx says. */
        {TORCH " PMIX_RANK=3 PMIX_NAMESPACE=job", 1, 4, "10.0.0.1:29500"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_settings settings = settings_of(1, "secret");
        fy_meeting meeting = FY_MEETING_INIT;
        ferry_error error;
        set_environment(rows[i].set);
        check_status(rows[i].set, FERRY_OK, fy_meet_environment(&meeting, &settings, &error),
                     &error);
        check_row(rows[i].set, meeting.rank == rows[i].rank);
        check_row(rows[i].set, meeting.n_ranks == rows[i].n_ranks);
        check_row(rows[i].set, meeting.listener == -1);
        check_row(rows[i].set, strcmp(meeting.addresses, rows[i].addresses) == 0);
        fy_meeting_cleanup(&meeting);
    }
    clear_environment();
}

/* What the environment says, and what is wrong with it. */
static const struct {
    const char *set;
    const char *sentence;
} bad_environments[] = {
    {"", "nothing says where the other ranks are: RANK and WORLD_SIZE are not set, nor is "
         "FERRY_RENDEZVOUS, and no PMIx is offered; start with `ferry launch -n N -- PROG`, "
         "torchrun or mpirun"},
    {"MASTER_ADDR=a MASTER_PORT=1",
     "nothing says where the other ranks are: RANK and WORLD_SIZE are not set, nor is "
     "FERRY_RENDEZVOUS, and no PMIx is offered; start with `ferry launch -n N -- PROG`, "
     "torchrun or mpirun"},
    {"RANK=1", "RANK is \"1\", but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are" NEEDS},
    {"WORLD_SIZE=4", "WORLD_SIZE is \"4\", but RANK, MASTER_ADDR, MASTER_PORT are" NEEDS},
    {"WORLD_SIZE=1", "WORLD_SIZE is \"1\", but RANK, MASTER_ADDR, MASTER_PORT are" NEEDS},
    {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a",
     "RANK is \"1\", WORLD_SIZE is \"4\", MASTER_ADDR is \"a\", but MASTER_PORT is" NEEDS},
    {"RANK=1 WORLD_SIZE=4 FERRY_PORT=8",
     "RANK is \"1\", WORLD_SIZE is \"4\", FERRY_PORT is \"8\", but MASTER_ADDR is" NEEDS},
    {"RANK=5 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1",
     "RANK is 5, but WORLD_SIZE is 4: ranks are 0 to 3"},
    {"RANK=1 WORLD_SIZE=1", "RANK is 1, but WORLD_SIZE is 1: ranks are 0 to 0"},
    {"RANK=one WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1",
     "environment variable RANK is \"one\", which is not a number from 0 to 16777215"},
    {"RANK=-1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1",
     "environment variable RANK is \"-1\", which is not a number from 0 to 16777215"},
    {"RANK= WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1",
     "environment variable RANK is \"\", which is not a number from 0 to 16777215"},
    {"RANK=0 WORLD_SIZE=0 MASTER_ADDR=a MASTER_PORT=1",
     "environment variable WORLD_SIZE is \"0\", which is not a number from 1 to 16777216"},
    {"RANK=0 WORLD_SIZE=4294967297 MASTER_ADDR=a MASTER_PORT=1",
     "environment variable WORLD_SIZE is \"4294967297\", which is not a number from 1 to "
     "16777216"},
    {"RANK=0 WORLD_SIZE=4x MASTER_ADDR=a MASTER_PORT=1",
     "environment variable WORLD_SIZE is \"4x\", which is not a number from 1 to 16777216"},
    {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=70000",
     "environment variable MASTER_PORT is \"70000\", which is not a number from 1 to 65535"},
    {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=0",
     "environment variable MASTER_PORT is \"0\", which is not a number from 1 to 65535"},
    {TORCH " FERRY_PORT=http",
     "environment variable FERRY_PORT is \"http\", which is not a number from 1 to 65535"},
    {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
     "MASTER_PORT is 65535 and belongs to torchrun's store, and there is no port after it: set "
     "FERRY_PORT to a free one"},
    {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a,b MASTER_PORT=1",
     "environment variable MASTER_ADDR is \"a,b\", which is not a host name or address"},
    {"RANK=1 WORLD_SIZE=4 MASTER_ADDR= MASTER_PORT=1",
     "environment variable MASTER_ADDR is \"\", which is not a host name or address"},
    {TORCH " LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"},
    {TORCH " LOCAL_RANK=4", "LOCAL_RANK is 4, but WORLD_SIZE is 4"},
    {TORCH " LOCAL_WORLD_SIZE=5",
     "LOCAL_WORLD_SIZE is 5, but WORLD_SIZE is 4: one machine cannot have more ranks than "
     "there are"},
    {TORCH " LOCAL_RANK=a",
     "environment variable LOCAL_RANK is \"a\", which is not a number from 0 to 16777215"},
    {"FERRY_RENDEZVOUS=/x",
     "FERRY_RENDEZVOUS is \"/x\", but RANK and WORLD_SIZE are not set: a rank needs both RANK "
     "and WORLD_SIZE beside it"},
    {"FERRY_RENDEZVOUS=/x RANK=0",
     "FERRY_RENDEZVOUS is \"/x\", but WORLD_SIZE is not set: a rank needs both RANK and "
     "WORLD_SIZE beside it"},
    {"FERRY_RENDEZVOUS=/x RANK=4 WORLD_SIZE=4", "RANK is 4, but WORLD_SIZE is 4: ranks are 0 to 3"},
    {"FERRY_RENDEZVOUS= RANK=0 WORLD_SIZE=4",
     "environment variable FERRY_RENDEZVOUS is set, but empty; unset it instead"},
};

static void test_environment_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_environments); i++) {
        fy_settings settings = settings_of(1, NULL);
        fy_meeting meeting = FY_MEETING_INIT;
        ferry_error error = {""};
        set_environment(bad_environments[i].set);
        check_status(bad_environments[i].set, FERRY_ERR_INVALID_INPUT,
                     fy_meet_environment(&meeting, &settings, &error), &error);
        if (strcmp(error.message, bad_environments[i].sentence) != 0) {
            fail_msg("row \"%s\": it says \"%s\"", bad_environments[i].set, error.message);
        }
        check_row(bad_environments[i].set, meeting.listener == -1);
    }
    clear_environment();
}

/* Incomplete variables beside PMIx leave the word to it; here its plugin is missing. */
static void test_environment_pmix(void **state)
{
    (void)state;
    static const char *const rows[] = {"", "RANK=0 WORLD_SIZE=4", "WORLD_SIZE=4", "RANK=9"};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char set[256], sentence[256];
        fy_settings settings = settings_of(1, NULL);
        fy_meeting meeting = FY_MEETING_INIT;
        ferry_error error = {""};
        snprintf(set, sizeof set, "%s PMIX_RANK=0 PMIX_NAMESPACE=job FERRY_PLUGINS=%s", rows[i],
                 folder);
        snprintf(sentence, sizeof sentence,
                 "the launcher offers PMIx, but there is no plugin \"pmix\": libferry_pmix.so is "
                 "not in %s; install it, or name its folder in FERRY_PLUGINS",
                 folder);
        set_environment(set);
        check_status(set, FERRY_ERR_UNSUPPORTED, fy_meet_environment(&meeting, &settings, &error),
                     &error);
        check_row(error.message, strcmp(error.message, sentence) == 0);
    }
    set_environment("PMIX_RANK=0");
    assert_false(fy_pmix_offered());
    clear_environment();
}

/* Whatever ranks may see differently must not make their keys differ. */
static void test_environment_key(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        char *secret;
        bool same;
    } rows[] = {
        {TORCH, "secret", true},
        {"RANK=2 WORLD_SIZE=8 MASTER_ADDR=head MASTER_PORT=29500", "secret", true},
        {TORCH, "another", false},
        {TORCH, NULL, false},
        {TORCH " TORCHELASTIC_RUN_ID=7", "secret", false},
    };
    fy_meeting first = FY_MEETING_INIT;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_settings settings = settings_of(1, rows[i].secret);
        fy_meeting meeting = FY_MEETING_INIT;
        ferry_error error;
        set_environment(rows[i].set);
        must(fy_meet_environment(&meeting, &settings, &error), &error);
        first = i == 0 ? meeting : first;
        check_row(rows[i].set, same_key(&first, &meeting) == rows[i].same);
    }
    clear_environment();
}

static bool is_reached(const char *host, uint16_t port)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, host, &name.sin_addr), 1);
    bool reached = connect(fd, (struct sockaddr *)&name, sizeof name) == 0;
    close(fd);
    return reached;
}

static void test_root_listens(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        char *secret;
        bool everywhere;
    } rows[] = {
        {"MASTER_ADDR=localhost", "secret", true},
        {"MASTER_ADDR=head-node", NULL, true},
        {"MASTER_ADDR=localhost", NULL, false},
        {"MASTER_ADDR=127.0.0.1 LOCAL_WORLD_SIZE=2", NULL, false},
        {"MASTER_ADDR=127.0.0.1 LOCAL_WORLD_SIZE=1", NULL, true}, /* the other is elsewhere */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_settings settings = settings_of(1, rows[i].secret);
        fy_meeting meeting = FY_MEETING_INIT;
        ferry_error error;
        char set[256];
        int claim = -1;
        uint16_t port = claim_port(&claim);
        snprintf(set, sizeof set, "RANK=0 WORLD_SIZE=2 MASTER_PORT=%u %s", port, rows[i].more);
        set_environment(set);
        must(fy_meet_environment(&meeting, &settings, &error), &error);
        check_row(set, is_reached("127.0.0.1", port));
        /* 127.0.0.1 is the only address when it is not every one. */
        check_row(set, is_reached("127.0.0.2", port) == rows[i].everywhere);
        check_row(set, (fcntl(meeting.listener, F_GETFD) & FD_CLOEXEC) != 0);

        fy_meeting second = FY_MEETING_INIT;
        check_status(set, FERRY_ERR_IO, fy_meet_environment(&second, &settings, &error), &error);
        check_says(set, "rank 0 cannot listen where MASTER_PORT says: port ", &error);
        check_says(set,
                   "is taken by another program: set FERRY_PORT to a free one, the same on all "
                   "ranks",
                   &error);
        assert_null(strstr(error.message, "PMIX_RANK"));
        setenv("PMIX_RANK", "1", 1);
        check_status(set, FERRY_ERR_IO, fy_meet_environment(&second, &settings, &error), &error);
        check_says(set, "(PMIX_RANK is 1: was RANK=0 meant for this process, or given to all?)",
                   &error);
        assert_int_equal(second.listener, -1);
        fy_meeting_cleanup(&meeting);
        close(claim);
    }
    clear_environment();
}

static void test_inherited_listener(void **state)
{
    (void)state;
    fy_settings settings = settings_of(1, "secret");
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_error error;
    char set[256];
    int fd = -1, claim = -1;
    uint16_t port = claim_port(&claim);
    must(fy_listen("127.0.0.1", port, &fd, &port, &error), &error);
    fcntl(fd, F_SETFD, 0);
    snprintf(set, sizeof set,
             "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%u FERRY_LISTEN_FD=%d", port,
             fd);
    set_environment(set);
    must(fy_meet_environment(&meeting, &settings, &error), &error);
    assert_int_equal(meeting.listener, fd);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_null(getenv("FERRY_LISTEN_FD"));
    fy_meeting_cleanup(&meeting);
    /* A second world listens at the same port by itself. */
    must(fy_meet_environment(&meeting, &settings, &error), &error);
    assert_true(is_reached("127.0.0.1", port));
    fy_meeting_cleanup(&meeting);
    close(claim);
    clear_environment();
}

static void check_inherited(int fd, uint16_t port, const char *sentence)
{
    fy_settings settings = settings_of(1, "secret");
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_error error;
    char set[256];
    snprintf(set, sizeof set,
             "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%u FERRY_LISTEN_FD=%d", port,
             fd);
    set_environment(set);
    check_status(sentence, FERRY_ERR_INVALID_INPUT,
                 fy_meet_environment(&meeting, &settings, &error), &error);
    check_says(sentence, sentence, &error);
    assert_int_equal(meeting.listener, -1);
    clear_environment();
}

static void test_inherited_is_none(void **state)
{
    (void)state;
    int pipes[2];
    int idle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int fd = -1;
    uint16_t port = 0;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(fy_listen("127.0.0.1", 0, &fd, &port, NULL), FERRY_OK);
    check_inherited(pipes[0], 5000, "is not a socket; unset it to let rank 0 open a socket itself");
    check_inherited(idle, 5000, "is a socket that does not listen");
    check_inherited(datagrams, 5000, "is not a TCP socket");
    check_inherited(65535, 5000,
                    "FERRY_LISTEN_FD is 65535, but that descriptor is not open here: what stands "
                    "between the launcher and this program closed it");
    char sentence[200];
    uint16_t other = (uint16_t)(port == 5000 ? 5001 : 5000);
    snprintf(sentence, sizeof sentence,
             "FERRY_LISTEN_FD is a socket at port %u, but by MASTER_PORT the other ranks look for "
             "rank 0 at port %u",
             port, other);
    check_inherited(fd, other, sentence);

    /* A world of one rank needs none, and does not keep it. */
    fy_settings settings = settings_of(1, NULL);
    fy_meeting meeting = FY_MEETING_INIT;
    char set[100];
    snprintf(set, sizeof set, "RANK=0 WORLD_SIZE=1 FERRY_LISTEN_FD=%d", fd);
    set_environment(set);
    assert_int_equal(fy_meet_environment(&meeting, &settings, NULL), FERRY_OK);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_null(getenv("FERRY_LISTEN_FD"));
    close(pipes[0]);
    close(pipes[1]);
    close(idle);
    close(datagrams);
    clear_environment();
}

static void test_file_by_environment(void **state)
{
    (void)state;
    fy_settings settings = settings_of(10, NULL);
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_error error;
    char set[256];
    const char *path = path_of("environment");
    /* Before the torchrun variables. */
    snprintf(set, sizeof set, TORCH " FERRY_RENDEZVOUS=%s", path);
    set_environment(set);
    setenv("RANK", "0", 1);
    must(fy_meet_environment(&meeting, &settings, &error), &error);
    assert_int_equal(count_entries(folder), 1);
    assert_true(meeting.listener >= 0);
    fy_meeting_cleanup(&meeting);
    fy_meet_file_done(path);
    clear_environment();
}

/* Several processes that are not told how to find each other: none of them is alone. */
static void test_environment_of_a_launcher(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *says;
    } rows[] = {
        {"SLURM_NTASKS", "2", "SLURM_NTASKS is \"2\", so this is one of several processes"},
        {"PMI_SIZE", "3", "PMI_SIZE is \"3\", so this is one of several processes"},
        {"SLURM_NTASKS", "1", "nothing says where the other ranks are"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_settings settings = settings_of(1, NULL);
        fy_meeting meeting = FY_MEETING_INIT;
        ferry_error error;
        clear_environment();
        setenv(rows[i].name, rows[i].value, 1);
        check_status(rows[i].name, FERRY_ERR_INVALID_INPUT,
                     fy_meet_environment(&meeting, &settings, &error), &error);
        check_says(rows[i].name, rows[i].says, &error);
    }
    clear_environment();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_cleanup),
        cmocka_unit_test(test_environment_good),
        cmocka_unit_test(test_environment_bad),
        cmocka_unit_test(test_environment_of_a_launcher),
        cmocka_unit_test(test_environment_pmix),
        cmocka_unit_test(test_environment_key),
        cmocka_unit_test(test_root_listens),
        cmocka_unit_test(test_inherited_listener),
        cmocka_unit_test(test_inherited_is_none),
        cmocka_unit_test(test_file_by_environment),
        cmocka_unit_test(test_no_descriptor_left),
    };
    clear_environment();
    return cmocka_run_group_tests(tests, begin_meetings, end_meetings);
}
