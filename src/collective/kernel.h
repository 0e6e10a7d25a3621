/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_KERNEL_H
#define FY_COLLECTIVE_KERNEL_H

#include "collective/device.h"

/*
 * Calls of a handle whose options name a device, where all ranks' devices reach each other's
 * memory: a kernel goes through the schedule, with boxes in the devices' memory. The host launches
 * it, and looks on: lane 0 stands for all of them.
 */

/*
 * Collective, once the handle's own boxes are there: comm->kernel, or NULL where the host goes
 * through schedules itself, as without a device. Why it does is logged.
 */
ferry_status fy_mix_kernel_open(ferry_mixed_comm *comm, ferry_error *error);
/* Waits for what is under way, which ends soon if others do not come any more. */
void fy_mix_kernel_close(ferry_mixed_comm *comm);

/*
 * A call that is on the queue it was asked for on before it begins here: nothing that comes behind
 * it waits for the host, which only looks on. Its number was given when it was asked for.
 */
typedef struct fy_mix_ahead {
    uint64_t number; /* 0: the device gives it, and it is known when the call has come */
    uint32_t which;  /* its name meanwhile; graphs' calls have others */
    uint32_t n_lanes;
    bool is_there;
    bool is_graphs; /* its kernel says itself when it is over: there is no queue to ask */
    fy_mix_question *question; /* but whether the device is there: then */
    fy_exec_queue *queue;
    fy_ticket end;
} fy_mix_ahead;

/* Names of calls that are no graph's. */
enum { FY_MIX_NAMES_AHEAD = 1 << 30 };

/*
 * Whether a call on a queue of that space may be made like that: its tensors lie on the device, and
 * no other rank's kernel may be in the stream's channel.
 */
bool fy_mix_kernel_may_go_ahead(const fy_mix_kernel *kernel, const fy_mix_call *call,
                                fy_space queue);
/* Puts it there. call: as foreseen, with its number; 0: calls of graphs may come before it. */
ferry_status fy_mix_kernel_go_ahead(fy_mix_kernel *kernel, const fy_mix_call *call,
                                    fy_exec_queue *queue, fy_mix_ahead *ahead_out,
                                    ferry_error *error);
/* Its kernel: with its number, or with a name. */
void fy_mix_kernel_fill(const fy_mix_kernel *kernel, const fy_mix_call *call, uint32_t which,
                        fy_lanes_call *out);
/* Calls that graphs have; NULL: none are kernels. */
struct fy_mix_graphs *fy_mix_kernel_graphs(const fy_mix_kernel *kernel);
/*
 * The host's count of calls: what graphs have made before one begins, if that is not expected; and
 * what the device is to know once it has begun, where no kernel makes it.
 */
void fy_mix_kernel_catch_up(ferry_mixed_comm *comm);
void fy_mix_kernel_has_counted(ferry_mixed_comm *comm, bool by_kernel);
/* Until none is under way, or the world has failed. */
void fy_mix_kernel_await_graphs(const ferry_mixed_comm *comm);
/* Calls that the host has not counted were made by kernels of graphs. */
void fy_mix_kernel_add_ahead(fy_mix_kernel *kernel, uint64_t n);
/* Until the device has come to it. */
void fy_mix_kernel_await(const fy_mix_kernel *kernel, const fy_mix_ahead *ahead);
/*
 * Then its number, if the host may not have it; false: it is over, and another one that has come
 * since was seen first, so that all is counted. What became of it is in *status.
 */
bool fy_mix_kernel_number(ferry_mixed_comm *comm, fy_mix_ahead *ahead, ferry_status *status_out,
                          ferry_error *error);
/* The next call that begins is this one; and it has ended, or was refused: then it is stopped. */
void fy_mix_kernel_expect(ferry_mixed_comm *comm, const fy_mix_ahead *ahead);
void fy_mix_kernel_part(fy_mix_kernel *kernel);

/* Why kernels have stopped, in that call or before it, where no more is to be known. */
ferry_status fy_mix_kernel_say_stop(const fy_mix_kernel *kernel, uint64_t call, ferry_error *error);

/* The lanes' counts since the last reset, added to. */
ferry_status fy_mix_kernel_count(const ferry_mixed_comm *comm, ferry_mixed_counts *counts,
                                 ferry_error *error);
ferry_status fy_mix_kernel_reset(fy_mix_kernel *kernel, ferry_error *error);

/* What calls are cut by, and their schedules. */
const fy_mix_program *fy_mix_kernel_program(const fy_mix_kernel *kernel);

/* Whether it goes by multicast objects. */
bool fy_mix_kernel_has_fleet(const fy_mix_kernel *kernel);

/* The device, for memory of it. */
const fy_mix_device *fy_mix_kernel_device(const fy_mix_kernel *kernel);
/* A call has begun, and is launched when those that began before it are. */
void fy_mix_kernel_line_up(fy_mix_kernel *kernel);

extern const fy_mix_verbs fy_mix_kernel_verbs;

/*
 * Fleets of a rank: that of its node, and that of its tensor-parallel group where this is a part of
 * the node. Nothing goes among the ranks of a data-parallel group alone.
 */
typedef enum fy_mix_fleet_kind {
    FY_MIX_FLEET_NODE = 0,
    FY_MIX_FLEET_TP,
    FY_MIX_N_FLEETS
} fy_mix_fleet_kind;

/* kernel_fleet.c: pure. Whether there are any such, and the edge that joins all of one. */
bool fy_mix_fleet_is_wanted(const fy_topology *t, fy_mix_fleet_kind kind);
fy_mix_edge fy_mix_fleet_edge(fy_mix_fleet_kind kind);

/*
 * kernel_tables.c: pure. A schedule as tables at an address; boxes of rank r begin at bases[r].
 *
 * Memory of a fleet is areas of the same size, with a part of fy_mix_fleet_lane_bytes for each
 * lane: area r for what its rank r has all others read, stored to all at once, and one behind them
 * for what is added up, which each rank writes in its own memory. Headers of all messages are in
 * the boxes.
 */
typedef struct fy_mix_boxes {
    const uint64_t *bases;
    uint64_t regions[FY_MIX_N_REGIONS];         /* where each begins in a rank's boxes */
    fy_fleet_addresses fleets[FY_MIX_N_FLEETS]; /* zeroed: there is none */
    uint64_t area_bytes[FY_MIX_N_FLEETS];
} fy_mix_boxes;

uint64_t fy_mix_fleet_lane_bytes(const fy_mix_program *program, fy_mix_fleet_kind kind);
uint64_t fy_mix_tables_bytes(const fy_mix_schedule *schedule);
void fy_mix_tables_write(const fy_mix_program *program, const fy_mix_schedule *schedule,
                         const fy_mix_boxes *boxes, uint64_t address, void *bytes,
                         fy_lanes_tables *tables_out);

/* kernel_fleet.c */
typedef struct fy_mix_fleet {
    fy_fleet *fleet; /* NULL: there is none */
    uint64_t area_bytes;
    fy_fleet_addresses at;
} fy_mix_fleet;

typedef struct fy_mix_fleets {
    const fy_fleets *verbs; /* NULL: there are none, nor will there be */
    fy_mix_fleet of[FY_MIX_N_FLEETS];
} fy_mix_fleets;

/* What a rank says before there are boxes: zeroed, it can be in no fleet. */
typedef struct fy_mix_fleet_word {
    uint64_t unit;
    uint32_t can, spare;
} fy_mix_fleet_word;

/* Pure but for a log: can is 0 for a rank that is alone on its node, and where none can be. */
fy_mix_fleet_word fy_mix_fleets_ask(const ferry_mixed_comm *comm, const fy_mix_device *on);
/*
 * Collective, where all ranks can: memory of all fleets that the program wants, which begins with
 * any bytes. Without one afterwards, on all ranks, what went wrong is logged; a status is of the
 * world.
 */
ferry_status fy_mix_fleets_open(ferry_mixed_comm *comm, const fy_mix_device *on, uint64_t unit,
                                const fy_mix_program *program, fy_mix_fleets *fleets,
                                ferry_error *error);
/* No kernel of any rank uses them; zeroed is allowed. */
void fy_mix_fleets_close(fy_mix_fleets *fleets);

#endif
