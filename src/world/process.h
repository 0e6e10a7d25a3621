/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_PROCESS_H
#define FY_WORLD_PROCESS_H

#include "base/status.h"
#include "world/link.h"
#include "world/mail.h"
#include "world/meeting.h"
#include "world/node_socket.h"
#include "world/shared_page.h"
#include "world/tree.h"
#include "world/wire.h"
#include "world/world.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A world of processes, as one of them sees it: control links to its neighbours in the tree, the
 * shared page of its node, and one thread that serves them, so that deaths are noticed, messages
 * passed on and descriptors handed out while the caller computes.
 *
 * Everything in fy_process is guarded by its lock, but for what is atomic, what is set before the
 * thread starts, and what the calling thread alone uses (said so). The control thread holds the
 * lock except while it waits; the calling thread takes it for a moment at a time, and posts
 * messages itself, so that no hand-over stands between a call and the wire.
 *
 * A claim is what a rank calls itself while a world is made: its rank, or in a shrinking world its
 * rank in the old one. Ranks are given with the table.
 */
typedef struct fy_process fy_process;

/* What a connection of the control thread is. */
typedef enum fy_conn_kind {
    FY_CONN_EVENT,         /* pokes from the calling thread */
    FY_CONN_DOOR,          /* listens for links */
    FY_CONN_LINK,          /* a link; its role says more */
    FY_CONN_NODE_LISTENER, /* listens for the ranks of the node: only on its host */
    FY_CONN_NODE_PEER,     /* a rank of the node, at its host */
    FY_CONN_NODE_HOST,     /* the host, at another rank of the node */
    FY_CONN_DEATH,         /* a pidfd: readable when the process has ended */
    FY_CONN_WATCHED        /* somebody else's descriptor */
} fy_conn_kind;

typedef enum fy_conn_role {
    FY_ROLE_NEW,    /* has not said what it wants; perhaps a stranger */
    FY_ROLE_JOINER, /* joins, at the root */
    FY_ROLE_PARKED, /* wants to join the successor of this world, which is not there yet */
    FY_ROLE_CHILD,
    FY_ROLE_PARENT
} fy_conn_role;

/* A child's part of a collective. */
typedef struct fy_part {
    uint64_t number; /* 0: nothing has come yet */
    fy_step step;
    uint64_t total; /* bytes that will come */
    unsigned char *bytes;
    size_t used;
    size_t capacity;
} fy_part;

typedef struct fy_conn {
    struct fy_conn *next;
    fy_conn_kind kind;
    fy_conn_role role;
    bool dead; /* is freed when the control thread has done its round */
    int fd;
    uint32_t interest; /* what epoll was told */
    fy_link *link;
    uint32_t claim;
    uint32_t rank;     /* FERRY_ANY_RANK before the table */
    bool joined;       /* a joiner has said JOIN; a door is for joining only */
    bool left;         /* a child whose subtree leaves */
    int64_t doomed_ns; /* when its end counts as a death: see fy_node_doom */
    int64_t since_ns;
    fy_part part;
    fy_node_peer peer;
    void (*ready)(void *context);
    void *context;
} fy_conn;

/* Who is where: one for each rank, in order of ranks. */
typedef struct fy_member {
    uint32_t claim;
    fy_tree_place place;
    const char *addresses; /* in the table's bytes, not zero ended */
    uint32_t n_address;
} fy_member;

/* What the root knows of those that join. */
typedef struct fy_register fy_register;

/* A descriptor that came by the socket of the node and is not yet asked for. */
typedef struct fy_passed_fd {
    struct fy_passed_fd *next;
    uint64_t tag;
    int fd;
} fy_passed_fd;

/* The collective that the calling thread is in, or was in last. */
typedef struct fy_gathering {
    uint64_t number; /* counts all collectives of this world, barriers included */
    fy_step step;
    bool open;          /* entered and not yet done */
    bool sent;          /* this subtree's part has gone up */
    unsigned char *own; /* the records of this rank and its children */
    size_t own_used;
    size_t own_capacity;
    unsigned char *result;
    size_t result_used;
    size_t result_capacity;
    uint64_t result_total;
    _Atomic uint64_t done; /* the number of the last that is done */
    size_t *lengths;
} fy_gathering;

/* How long things may take. */
typedef struct fy_limits {
    int64_t deadline_ns;
    int64_t join_ns;
    int64_t entry_ns;
} fy_limits;

/* Where links to this rank begin. */
typedef struct fy_door {
    int fd;
    int join_fd; /* on the root, until all have joined */
    uint16_t port;
    char addresses[FY_ADDRESSES_BYTES];
} fy_door;

/* The control thread, what it listens to, and when it looked last. */
typedef struct fy_control {
    pthread_t thread;
    bool runs;
    _Atomic bool stop;
    int epoll_fd;
    int event_fd;
    fy_conn *conns;
    fy_conn *calling; /* whose watcher runs right now, without the lock */
    pthread_cond_t called;
    size_t n_new;          /* connections that may be strangers' */
    uint32_t n_denied;     /* connections that did not prove the key */
    char denied_from[128]; /* the last of them */
    int64_t ticked_ns;     /* when the control thread was last awake */
    int64_t forgive_ns;    /* silence before this moment was our own sleep */
    int64_t beaten_ns;
    int64_t checked_ns; /* when silence was last looked for */
    bool hurries;       /* somebody is doomed or suspect: the loop looks again soon */
} fy_control;

/* Whom an engine has lost: see fy_node_tick. */
typedef struct fy_suspicion {
    uint32_t rank;
    int64_t counts_ns; /* when it counts; 0: nobody */
    char text[FERRY_ERROR_BYTES];
} fy_suspicion;

/* How the failure of the world gets around: see news.c. */
typedef struct fy_news {
    bool flooded;    /* it has been told to the neighbours */
    pthread_t asker; /* each runs once at most */
    pthread_t teller;
    bool asks;
    bool tells;
    _Atomic int64_t end_ns; /* 0: the world stands */
} fy_news;

/* Those that share memory with this rank. */
typedef struct fy_node {
    fy_shared_page *page;
    int page_fd;        /* of the host */
    fy_conn *host_conn; /* to the host; NULL on the host itself */
    bool host;
    fy_passed_fd *passed_fds;
    uint64_t n_shared; /* the calling thread's count of shared descriptors */
} fy_node;

/* Who is where, and this rank's neighbours. */
typedef struct fy_tree {
    fy_conn *parent;
    uint32_t n_children; /* that the table says; they may not have attached yet */
    bool attached;       /* all of them */
    unsigned char *table_bytes;
    size_t table_used;
    size_t table_total;
    int64_t table_ns; /* when the table came */
    _Atomic bool tabled;
    fy_member *table;
    uint32_t *rank_at;    /* ranks in order of places */
    uint32_t *node_first; /* by node: its first entry of rank_at; one more at the end */
    uint32_t n_nodes;
} fy_tree;

/* What the calling thread alone uses. */
typedef struct fy_caller {
    fy_letter *taken;  /* the last that was received */
    uint64_t barriers; /* how many it has entered */
    bool looked;       /* it has asked what the others do in this barrier */
    bool is_patient;   /* it waits for others who all are on their way: no entry limit */
} fy_caller;

/* The orderly end. */
typedef struct fy_leaving {
    bool begun;
    bool sent;
    _Atomic bool all_left;
} fy_leaving;

/* Whether a rank is known to be dead, stopped or gone. */
typedef enum fy_loss {
    FY_NOT_LOST,
    FY_LOST,
    FY_PASSED_OVER /* lives, but did not come to shrink: counts as lost unless it does come */
} fy_loss;

/* What comes after this world, and what came before it. */
typedef struct fy_shrinking {
    int64_t *silent_ns; /* the calling thread's, by rank: since when its door does not answer; 0: it
                           does, or was not asked */
    fy_process *successor;     /* takes parked joiners */
    bool is_over;              /* the successor is complete: whoever comes now is too late */
    unsigned char next_id[16]; /* the name of that successor */
    bool is_out; /* the others go on without this rank, which makes no smaller world */
    fy_process *predecessor;
    _Atomic bool complete; /* this rank has the world, or knows of one that has it */
    fy_process *doubt; /* a successor that others may have complete: see doubt.c. Changes only while
                          no other successor is being made */
} fy_shrinking;

/* A world that is made of another one and of newcomers, and that other one: see grow.c. */
typedef struct fy_growing {
    fy_process *successor; /* of the old world, and fails as it does; under the old lock */
    uint64_t attempt;      /* of the old world: how often its members have begun to grow */
    fy_failure vain;       /* of the old world: why its last attempt comes to nothing */
    bool is_newcomer;      /* this rank, in the new one */
    int64_t beaten_ns;     /* of a newcomer: when it last gave the root a sign of life */
    /* The rest is of the new world's root, until the table is written. */
    uint32_t n_members;      /* claims from here on are newcomers'; 0: this is no such world */
    const uint32_t *members; /* by claim: its number among all members */
} fy_growing;

struct fy_process {
    ferry_world *world;
    fy_failure failure;
    fy_bell early_bell; /* slept on until the shared page is there */
    unsigned char key[FY_KEY_BYTES];
    unsigned char world_id[16];
    uint32_t claim;
    uint32_t n_claims;
    uint32_t root_claim;
    uint32_t epoch;
    uint32_t fake_node;
    char *nodes_text; /* "" for real nodes */
    uint32_t rank;
    uint32_t n_ranks;
    _Atomic unsigned char *lost; /* by rank: an fy_loss */
    fy_limits limits;
    pthread_mutex_t lock;
    fy_door door;
    fy_control control;
    fy_suspicion suspicion;
    fy_news news;
    fy_node node;
    fy_register *registry; /* on the root, until all have joined */
    fy_tree tree;
    fy_gathering gathering;
    fy_mail mail;
    fy_caller caller;
    fy_leaving leaving;
    fy_shrinking shrinking;
    fy_growing growing;
};

/* process.c */
void fy_process_wake(fy_process *process); /* all that wait in this process, and on its node */
/* Sets the failure and has the control thread tell the neighbours. Callable with or without lock.
 */
void fy_process_fail(fy_process *process, ferry_status status, uint32_t rank, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));
/* Why this rank does not make this world: the others are told of a caller's wish as of a loss. */
void fy_process_fail_making(fy_process *process, ferry_status status, const char *reason);
void fy_process_mark_lost(fy_process *process, uint32_t rank);
extern const fy_world_ops fy_process_ops;

/* control.c: all but start and stop under the lock. */
ferry_status fy_control_start(fy_process *process, ferry_error *error);
void fy_control_stop(fy_process *process);
void fy_control_poke(fy_process *process); /* without the lock, too */
fy_conn *fy_control_add(fy_process *process, fy_conn_kind kind, int fd, ferry_error *error);
/* Takes the link over, also on failure. */
fy_conn *fy_control_add_link(fy_process *process, fy_link *link, fy_conn_role role, uint32_t claim,
                             ferry_error *error);
/* Takes the link out of a connection, which is dropped. */
fy_link *fy_control_release(fy_process *process, fy_conn *conn);
void fy_control_drop(fy_process *process, fy_conn *conn);
/* Stops listening to what a connection says. */
void fy_control_mute(fy_process *process, fy_conn *conn);
/* A link that fails here is noticed by the control thread. */
void fy_control_post(fy_process *process, fy_conn *conn, fy_wire_type type, const void *head,
                     size_t head_bytes, const void *body, size_t body_bytes);
/* Why the world has failed, if it has, to one who may not have heard. */
void fy_control_tell_failure(fy_process *process, fy_conn *conn);
/* How often a rank of a world of this deadline gives signs of life. */
int64_t fy_control_beat_ns(int64_t deadline_ns);
/*
 * Whether a rank counts as lost of which nothing was heard since then: the one rule about silence.
 */
bool fy_control_silence_counts(const fy_process *process, uint32_t rank, int64_t heard_ns);
/* By the state of its process, where that is to be seen. Without the lock, too. */
bool fy_control_seems_to_run(ferry_world *world, uint32_t rank);
/* How many connections that prove nothing are borne, by the network and by the socket of the node.
 */
enum { FY_CONTROL_ROUND = 64 }; /* events, or strangers at one door, handled in one round */
uint32_t fy_control_most_strangers(void);
/*
 * Signs of life, if some are due, and what is queued goes on its way: for work that keeps the lock
 * for long. What messages of the tree hold is gone after it.
 */
void fy_control_serve(fy_process *process);
/* The link to the neighbour on the way to a rank; NULL if it is not (or no longer) there. */
fy_conn *fy_control_route(fy_process *process, uint32_t rank);
uint32_t fy_process_rank_at(const fy_process *process,
                            fy_tree_place place); /* UINT32_MAX: nobody */

/* Handlers of messages, under the lock. False: the message makes no sense. */
bool fy_join_knock(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_join_enter(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_join_join(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_join_attach(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_join_attached(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_join_table(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_collect_up(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_collect_down(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_collect_query(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_collect_missing(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_letter_arrive(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_letter_asked(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_leave_arrive(fy_process *process, fy_conn *conn, fy_reader *reader);
bool fy_leave_done(fy_process *process, fy_conn *conn, fy_reader *reader);

/* Ranks and children by the table. */
uint32_t fy_process_rank_of(const fy_process *process, uint32_t claim); /* or FERRY_ANY_RANK */
uint32_t fy_process_missing_child(const fy_process *process);
/* The table as far as it has come, to a child; and all of it, once it is there. */
void fy_join_send_table(fy_process *process, fy_conn *conn);
bool fy_join_read_table(fy_process *process);

/* register.c: the root's side of joining. */
ferry_status fy_register_open(fy_process *process, ferry_error *error);
void fy_register_close(fy_process *process);
/* The root's own entry, from the calling thread: then others may come. */
ferry_status fy_register_enter(fy_process *process, ferry_error *error);
/* The first claim from this one on that has not joined and is not known to be lost. With the lock.
 */
uint32_t fy_register_missing(const fy_process *process, uint32_t from);
/* Nobody came for a join limit: fails the world, or (shrinking) goes on without. */
void fy_register_tick(fy_process *process, int64_t now_ns);
/* Children that the table promises and that have not come. */
void fy_join_tick(fy_process *process, int64_t now_ns);
/* Whether it is at the door of a world that grows and has a number there, but no place yet. */
bool fy_register_is_newcomer(const fy_process *process, const fy_conn *conn);
/* A joiner whose link broke. */
void fy_register_lost(fy_process *process, fy_conn *conn, const char *why);

/* join.c: the calling thread's side. */
/*
 * How long one that has been seen may take for its next step. At the start it may have to wait for
 * others itself; in a smaller world it is alive, or shows no sign of life.
 */
int64_t fy_join_step_ns(const fy_process *process);
ferry_status fy_join_root(fy_process *process, ferry_error *error);
ferry_status fy_join_member(fy_process *process, const char *addresses,
                            const unsigned char key[FY_KEY_BYTES], int64_t connect_ns,
                            ferry_error *error);
/* The same for one that has its number and the world's name from the root, by this link, which is
 * taken over. */
ferry_status fy_join_newcomer(fy_process *process, fy_link *root, ferry_error *error);

/* node.c */
/*
 * A rank of this node has closed its socket or ended. It may be an orderly end of which the news is
 * still on its way through the tree, so it counts as a death only after a moment.
 */
void fy_node_doom(fy_process *process, fy_conn *conn);
void fy_node_suspect(ferry_world *world, uint32_t rank, const char *sentence);
void fy_node_tick(fy_process *process, int64_t now_ns);
/* Watches the process at the other end of a socket. */
void fy_node_watch_life(fy_process *process, int socket_fd, uint32_t claim);
/* Finds the shared page, or makes it. FERRY_ERR_STOPPED, without a sentence: stop ended it. */
ferry_status fy_node_enter(fy_process *process, bool (*stop)(void *context), void *context,
                           ferry_error *error);
void fy_node_hear_peer(fy_process *process, fy_conn *conn);
void fy_node_hear_host(fy_process *process, fy_conn *conn);
void fy_node_accept(fy_process *process, const fy_conn *listener);
ferry_status fy_node_share(ferry_world *world, int fd, int *fd_out, ferry_error *error);

/* collect.c, letters.c, leave.c: operations of the calling thread. */
ferry_status fy_collect_barrier(ferry_world *world, ferry_error *error);
ferry_status fy_collect_gather(ferry_world *world, fy_collective kind, uint32_t root,
                               const void *bytes, size_t n_bytes, const void **all_out,
                               const size_t **lengths_out, ferry_error *error);
/* All of the tree, heads or not: the last step of making a world. */
ferry_status fy_collect_joined(ferry_world *world, ferry_error *error);
ferry_status fy_letter_send(ferry_world *world, uint32_t to, uint64_t tag, const void *bytes,
                            size_t n_bytes, bool waits, ferry_error *error);
ferry_status fy_letter_receive(ferry_world *world, uint32_t from, uint64_t tag, int64_t limit_ns,
                               const void **bytes_out, size_t *n_bytes_out, uint32_t *from_out,
                               ferry_error *error);
bool fy_letter_take(ferry_world *world, uint32_t from, uint64_t tag, void *buffer, size_t capacity,
                    size_t *n_bytes_out, uint32_t *from_out);
void fy_letter_forget(ferry_world *world, uint64_t first, uint64_t last);
void fy_letter_ask(ferry_world *world, uint32_t rank, const fy_question *question);
void fy_leave_world(fy_process *process);

/* news.c: what does not travel by the tree. */
enum { FY_NEWS_BYTES = 16 + FERRY_ERROR_BYTES };
/* A failure as a message holds it; false, and nothing, where there is none. */
bool fy_news_pack(const fy_failure *failure, fy_pack *packer);
bool fy_news_read(fy_reader *reader, fy_failure *failure_out);
/* Another rank's failure becomes this one's. Under the lock. */
void fy_news_adopt(fy_process *process, const fy_failure *failure);
bool fy_news_arrive(fy_process *process, fy_conn *conn, fy_reader *reader);
/* An engine has lost process->suspicion.rank: asks before that is believed. Under the lock. */
void fy_news_ask(fy_process *process);
/* The world has failed because of a neighbour: tells those who would have heard it from that one.
   Under the lock. */
void fy_news_tell(fy_process *process);
/* When the control thread has ended, which starts these. */
void fy_news_stop(fy_process *process);

/* doubt.c */
/* How far a world is with one of its ranks. */
typedef enum fy_standing {
    FY_GONE,       /* nobody is behind its door: it is dead, or has closed that world */
    FY_UNFINISHED, /* it is there, and does not have the world complete (yet) */
    FY_COMPLETE,
    FY_GONE_ON,   /* it is in the next world already */
    FY_SHRINKING, /* it is there, and makes a smaller world as its root */
    FY_WITHOUT,   /* the same, but of those whom it waits for this rank is none */
    FY_OUT,       /* it is there, but others count it as lost: it makes no smaller world */
    FY_SILENT     /* it has not answered yet: it may be slow, stopped or out of reach */
} fy_standing;

/* What is heard with it. */
typedef struct fy_heard {
    fy_failure failure;        /* why its world has failed; all zero where it has not */
    unsigned char next_id[16]; /* FY_GONE_ON: the name of the world that it is in */
} fy_heard;

/* How long one question waits at a door. Who does not answer in time is asked again. */
int64_t fy_doubt_patience_ns(const fy_process *process);
/*
 * Asks at a rank's door, from any thread and without the lock, how far this world is there.
 * *answer_out is all zero before. stop ends it: silent.
 */
fy_standing fy_doubt_ask(const fy_process *process, uint32_t rank, int64_t patience,
                         bool (*stop)(void *context), void *context, fy_heard *answer_out);
void fy_doubt_address(const fy_process *process, uint32_t rank, char text[FY_ADDRESSES_BYTES]);
bool fy_doubt_answer(fy_process *process, fy_conn *conn, fy_reader *reader);
/* An attempt that has failed: whom its failure names has been silent in it. */
void fy_doubt_note_silence(fy_process *old, const fy_process *process);
bool fy_doubt_is_silent(const fy_process *old, uint32_t claim); /* when it was last asked */
/*
 * The rest is about the successor of a world of which this rank is in doubt; claims are ranks of
 * the old one. Whether one that is not known to be lost may have it complete.
 */
bool fy_doubt_concerns(const fy_process *old, uint32_t claim);
/*
 * Whether it is waited for, and may be the root: not if it is known to be lost. In doubt that is
 * not enough: who has the doubtful world complete may have closed the old one, which looks like a
 * death there. And one that the doubtful world was made without has been counted as lost.
 */
bool fy_doubt_awaits(const fy_process *old, uint32_t claim);
/*
 * Asks a rank about the doubtful world, and if that is not complete there, about the old one. One
 * that has been silent for too long is gone, and so is one that is out.
 */
fy_standing fy_doubt_consult(fy_process *old, uint32_t claim);
/* Asks a root until it answers or is gone; silent only where the doubt or the shrinking ended. */
fy_standing fy_doubt_hear_out(fy_process *old, uint32_t claim);
bool fy_doubt_is_settled(const fy_process *old);     /* the doubtful world is complete */
bool fy_doubt_is_interrupted(const fy_process *old); /* the caller wants no smaller world */
void fy_doubt_mark_lost(fy_process *old, uint32_t claim);
/* An attempt that has failed: if others may have it complete it is the doubtful world from now on,
 * otherwise it is abandoned. */
void fy_doubt_keep(fy_process *old, fy_process *process, ferry_status status,
                   const ferry_error *reason);
void fy_doubt_drop(fy_process *old);

/* shrink.c */
void fy_shrink_hand_over(
    fy_process *process); /* parked joiners, to the successor if there is one */
/* This rank has the next world complete: whoever asks at the old door hears that, and its name. */
void fy_shrink_go_on(fy_process *old, const fy_process *next);
ferry_status fy_shrink_world(ferry_world *world, uint32_t min_ranks, ferry_world **world_out,
                             ferry_error *error);

/* grow.c */
/* Under the lock: the world that is being made of this one fails as this one, or the making, has.
 */
void fy_grow_pass_on(fy_process *old);
bool fy_grow_in_vain(fy_process *process, fy_conn *conn, fy_reader *reader);
ferry_status fy_grow_world(ferry_world *world, const fy_growth *growth, ferry_world **world_out,
                           ferry_error *error);

/* process.c: what process.c, shrink.c and grow.c share. */
ferry_status fy_process_new(const fy_meeting *meeting, fy_settings *settings, uint32_t epoch,
                            fy_process **process_out, ferry_error *error);
/* Opens this rank's door; the listener of the meeting becomes the door for joining. */
ferry_status fy_process_open_door(fy_process *process, fy_meeting *meeting, bool root,
                                  ferry_error *error);
/* Waits for the table, gives the world its numbers, and waits for all. */
ferry_status fy_process_meet(fy_process *process, const uint32_t *claim_members,
                             ferry_error *error);
/* From here on this rank has the world: others that are in doubt are told so. */
void fy_process_mark_complete(fy_process *process);
/* Both. */
ferry_status fy_process_complete(fy_process *process, const uint32_t *claim_members,
                                 ferry_error *error);
void fy_process_free(fy_process *process);
bool fy_process_is_tabled(void *process);
/* Ends a world that was not completed: those who wait for this rank learn why. */
void fy_process_abandon(fy_process *process, ferry_status status, const ferry_error *reason);

#endif
