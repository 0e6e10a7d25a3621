/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What does not travel by the tree. The tree's links say of a neighbour whether it lives; but an
 * engine has connections of its own, and what breaks one need not be a death: a rank that has heard
 * of a failure closes its connections, and the news of that failure may be stuck behind the very
 * rank that failed. So an engine's loss is asked after at the lost one's own door, and a failure is
 * told to those who would have heard of it through the rank that it names.
 *
 * Both wait for other machines, so they are threads of their own: one question and one telling in
 * the life of a world.
 */
#include "world/process.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Failures as messages hold them. */

bool fy_news_pack(const fy_failure *failure, fy_pack *packer)
{
    uint32_t rank;
    ferry_error text;
    ferry_status status = fy_failure_get(failure, &rank, &text);
    if (status == FERRY_OK) {
        return false;
    }
    fy_pack_u32(packer, (uint32_t)status);
    fy_pack_u32(packer, rank);
    fy_pack_text(packer, text.message);
    return true;
}

bool fy_news_read(fy_reader *reader, fy_failure *failure_out)
{
    uint32_t status = fy_read_u32(reader);
    uint32_t rank = fy_read_u32(reader);
    ferry_error text;
    fy_read_string(reader, text.message, sizeof text.message);
    return !reader->failed && status != FERRY_OK && status <= FY_LAST_STATUS &&
           fy_failure_set(failure_out, (ferry_status)status, rank, "%s", text.message);
}

void fy_news_adopt(fy_process *process, const fy_failure *failure)
{
    if (fy_status_is_loss((ferry_status)failure->status)) {
        fy_process_mark_lost(process, failure->rank);
    }
    fy_process_fail(process, (ferry_status)failure->status, failure->rank, "%s", failure->sentence);
}

/* The threads. */

/* How long a world that goes still tells; and what lies between two questions at least. */
enum { LAST_NS = 300 * 1000 * 1000, ASK_AGAIN_NS = 10 * 1000 * 1000 };

/* Stop functions: nobody wants to know any more, and there was time enough to tell. */
static bool is_known(void *context)
{
    const fy_process *process = context;
    return atomic_load(&process->news.end_ns) != 0 || fy_failed(&process->failure);
}

static bool is_over(void *context)
{
    const fy_process *process = context;
    int64_t end_ns = atomic_load(&process->news.end_ns);
    return end_ns != 0 && fy_now_ns() >= end_ns;
}

/* Signals are for the caller's threads. */
static bool start(pthread_t *thread, void *(*run)(void *context), fy_process *process)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool runs = pthread_create(thread, NULL, run, process) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return runs;
}

void fy_news_stop(fy_process *process)
{
    atomic_store(&process->news.end_ns, fy_now_ns() + LAST_NS);
    if (process->news.asks) {
        pthread_join(process->news.asker, NULL);
    }
    if (process->news.tells) {
        pthread_join(process->news.teller, NULL);
    }
    process->news.asks = process->news.tells = false;
}

/* Asking. */

/* What became of a question; false: nothing yet. Under the lock. */
static bool conclude(fy_process *process, fy_standing standing, const fy_failure *failure,
                     int64_t asked_ns)
{
    uint32_t rank = process->suspicion.rank;
    if (process->leaving.begun || is_known(process)) {
        return true;
    }
    if (standing == FY_SILENT) {
        if (fy_control_silence_counts(process, rank, asked_ns)) {
            fy_process_mark_lost(process, rank);
            fy_process_fail(process, FERRY_ERR_TIMEOUT, rank,
                            "rank %u has shown no sign of life for %.1f s, after this: %.700s",
                            rank, (double)(fy_now_ns() - asked_ns) / 1e9, process->suspicion.text);
        }
    } else if (standing == FY_GONE) {
        /* It may have left for a reason that is still on its way here. */
        if (fy_now_ns() - asked_ns < process->limits.deadline_ns / 2) {
            return false;
        }
        fy_process_mark_lost(process, rank);
        fy_process_fail(process, FERRY_ERR_PEER_LOST, rank, "%s", process->suspicion.text);
    } else if (fy_failed(failure)) {
        fy_news_adopt(process, failure);
    } else {
        /* Nobody is lost: a smaller world has all ranks. */
        fy_process_fail(
            process, FERRY_ERR_ABORTED, process->rank,
            "rank %u ended the world: rank %u lives, but of its connection with it this "
            "became known: %.700s",
            process->rank, rank, process->suspicion.text);
    }
    return is_known(process);
}

static void *ask(void *context)
{
    fy_process *process = context;
    int64_t asked_ns = fy_now_ns();
    bool is_done = false;
    while (!is_done) {
        fy_heard answer = {0};
        fy_standing standing =
            fy_doubt_ask(process, process->suspicion.rank, fy_doubt_patience_ns(process), is_known,
                         process, &answer);
        pthread_mutex_lock(&process->lock);
        is_done = conclude(process, standing, &answer.failure, asked_ns);
        pthread_mutex_unlock(&process->lock);
        if (!is_done) { /* also where the question itself failed, for the lack of a descriptor, say
                         */
            nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_NS}, NULL);
        }
    }
    return NULL;
}

void fy_news_ask(fy_process *process)
{
    process->news.asks = start(&process->news.asker, ask, process);
    if (!process->news.asks) {
        fy_failure unknown = {0};
        (void)conclude(process, FY_GONE, &unknown, fy_now_ns() - process->limits.deadline_ns);
    }
}

/* Telling. */

/* The parent and the children of the rank that the failure names hear of it from that one, or not
 * at all. */
static bool is_behind(const fy_process *process, uint32_t named, uint32_t rank)
{
    fy_tree_place there = process->tree.table[named].place;
    fy_tree_place at = process->tree.table[rank].place;
    return rank != named && rank != process->rank &&
           (fy_place_equal(fy_tree_parent(at), there) || fy_place_equal(fy_tree_parent(there), at));
}

static bool is_neighbour(const fy_process *process, uint32_t rank)
{
    fy_tree_place own = process->tree.table[process->rank].place;
    fy_tree_place there = process->tree.table[rank].place;
    return fy_place_equal(fy_tree_parent(own), there) || fy_place_equal(fy_tree_parent(there), own);
}

static void tell_one(fy_process *process, uint32_t rank)
{
    enum { TELL_NS = 200 * 1000 * 1000 };
    char addresses[FY_ADDRESSES_BYTES];
    unsigned char head[4 + sizeof process->world_id + FY_NEWS_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_link *link;
    fy_doubt_address(process, rank, addresses);
    if (fy_link_reopen(addresses, process->key, TELL_NS, is_over, process, &link, NULL) !=
        FERRY_OK) {
        return;
    }
    fy_pack_u32(&packer, process->epoch);
    fy_pack_bytes(&packer, process->world_id, sizeof process->world_id);
    (void)fy_news_pack(&process->failure, &packer);
    if (fy_link_post(link, FY_WIRE_NEWS, head, packer.used, NULL, 0, NULL) == FERRY_OK) {
        (void)fy_link_drain(link, TELL_NS, NULL);
    }
    fy_link_destroy(link);
}

static void *tell(void *context)
{
    fy_process *process = context;
    uint32_t named = process->failure.rank;
    for (uint32_t rank = 0; rank < process->n_ranks && !is_over(process); rank++) {
        if (is_behind(process, named, rank) && !is_neighbour(process, rank)) {
            tell_one(process, rank);
        }
    }
    return NULL;
}

void fy_news_tell(fy_process *process)
{
    uint32_t named;
    ferry_status status = fy_failure_get(&process->failure, &named, NULL);
    if (fy_status_is_loss(status) && atomic_load(&process->tree.tabled) && !process->news.tells &&
        named < process->n_ranks && is_neighbour(process, named)) {
        process->news.tells = start(&process->news.teller, tell, process);
    }
}

bool fy_news_arrive(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    fy_failure failure = {0};
    uint32_t epoch = fy_read_u32(reader);
    const unsigned char *world_id = fy_read_bytes(reader, sizeof process->world_id);
    if (reader->failed || epoch != process->epoch ||
        memcmp(world_id, process->world_id, sizeof process->world_id) != 0 ||
        !fy_news_read(reader, &failure)) {
        return false;
    }
    fy_news_adopt(process, &failure);
    fy_control_drop(process, conn);
    return true;
}
