# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""CommunicationScheduler: what schedules must be, on random loads, and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import doctest
import random
import unittest

import ferry
from ferry.resharding.nvshmem_copy_service.nvshmem_types import (
    ReceiveRequest, ScheduledBatch, SendRequest, WorkloadGroup, WorkloadSummary,
)
from ferry.resharding.nvshmem_copy_service.planning.communication_scheduler import (
    CommunicationScheduler,
)
from support import run_ranks


def random_batches(seed, n_pes, n_batches):
    numbers = random.Random(seed)
    n_of = collections.Counter()
    batches = []
    for _ in range(n_batches):
        src, dest = numbers.sample(range(n_pes), 2)
        batches.append(ScheduledBatch(src, dest, n_of[src, dest], -1,
                                      total_size=numbers.randrange(1 << 24)))
        n_of[src, dest] += 1
    numbers.shuffle(batches)
    return batches


def degree(batches):
    sends = collections.Counter(batch.src_pe for batch in batches)
    receives = collections.Counter(batch.dest_pe for batch in batches)
    return max([*sends.values(), *receives.values()], default=0)


def busy(batches, one_at_a_time=False):
    """(iteration, PE, role) of every batch: a conflict is one that comes twice."""
    ports = collections.Counter()
    for batch in batches:
        ports[batch.iteration, batch.src_pe, "send"] += 1
        ports[batch.iteration, batch.dest_pe, "send" if one_at_a_time else "receive"] += 1
    return ports


def first_fit(batches):
    """Batches in order, each in the first iteration that its two PEs have free."""
    taken = set()
    iterations = []
    for batch in sorted(batches, key=lambda b: (b.src_pe, b.dest_pe, b.batch_index)):
        iteration = 0
        while {(iteration, batch.src_pe, 0), (iteration, batch.dest_pe, 1)} & taken:
            iteration += 1
        taken |= {(iteration, batch.src_pe, 0), (iteration, batch.dest_pe, 1)}
        iterations.append(iteration)
    return iterations


LOADS = [(seed, n_pes, n) for seed, (n_pes, n) in enumerate(
    [(2, 1), (2, 17), (3, 10), (4, 60), (5, 5), (8, 200), (16, 333), (33, 1500), (7, 0)])]


class Assigning(unittest.TestCase):
    def test_optimal(self):
        for seed, n_pes, n in LOADS:
            with self.subTest(seed=seed):
                batches = random_batches(seed, n_pes, n)
                wanted = sorted((b.src_pe, b.dest_pe, b.batch_index, b.total_size)
                                for b in batches)
                scheduler = CommunicationScheduler()
                self.assertIsNone(scheduler._assign_iterations(batches))
                self.assertEqual([(b.src_pe, b.dest_pe, b.batch_index, b.total_size)
                                  for b in batches], wanted)
                self.assertEqual(scheduler.num_iterations, degree(batches))
                self.assertEqual({b.iteration for b in batches}, set(range(degree(batches))))
                self.assertLessEqual(max(busy(batches).values(), default=0), 1)

    def test_first_fit_is_the_reference(self):
        for seed, n_pes, n in LOADS:
            with self.subTest(seed=seed):
                batches = random_batches(seed, n_pes, n)
                scheduler = CommunicationScheduler(rule="first_fit")
                scheduler.assign_iterations(batches)
                self.assertEqual([b.iteration for b in batches], first_fit(batches))
                self.assertEqual(scheduler.num_iterations,
                                 max(first_fit(batches), default=-1) + 1)

    def test_half_duplex(self):
        for options in ({"rule": "first-fit-half"}, {"duplex": "half"},
                        {"rule": "first-fit", "duplex": "half"}):
            for seed, n_pes, n in LOADS:
                with self.subTest(seed=seed, **options):
                    batches = random_batches(seed, n_pes, n)
                    CommunicationScheduler(**options).assign_iterations(batches)
                    self.assertLessEqual(max(busy(batches, True).values(), default=0), 1)

    def test_conflicts_by_brute_force(self):
        batches = random_batches(5, 5, 40)
        scheduler = CommunicationScheduler()
        scheduler.assign_iterations(batches)
        half = CommunicationScheduler(duplex="half")
        seen = set()
        for batch in batches:
            for iteration in range(scheduler.num_iterations + 1):
                moved = [b if b is not batch else dataclasses.replace(b, iteration=iteration)
                         for b in batches if b is batch or b.iteration == iteration]
                conflict = max(busy(moved).values()) > 1
                self.assertEqual(scheduler._has_conflict(batch, iteration, batches), conflict)
                own = busy([dataclasses.replace(batch, iteration=iteration)], True)
                others = busy([b for b in moved if b is not batch and
                               (b.src_pe, b.dest_pe, b.batch_index) !=
                               (batch.src_pe, batch.dest_pe, batch.batch_index)], True)
                self.assertEqual(half.has_conflict(batch, iteration, batches),
                                 bool(set(own) & set(others)))
                seen.add(conflict)
        self.assertEqual(seen, {True, False})

    def test_refused(self):
        for batches in (
            [ScheduledBatch(1, 1, 0, -1)], [ScheduledBatch(0, 1, 0, -1)] * 2,
            [ScheduledBatch(-1, 1, 0, -1)], [ScheduledBatch(0, 1, 0, -1, total_size=-1)],
            [ScheduledBatch(0, 1, 0, -1, total_size=1.5)], [ScheduledBatch(0, 1, 1 << 32, -1)],
        ):
            with self.subTest(batches), self.assertRaises(ferry.InvalidInput):
                CommunicationScheduler().assign_iterations(batches)
        for options in ({"rule": "best"}, {"duplex": "both"}, {"rule": None}):
            with self.subTest(options), self.assertRaises(ferry.InvalidInput):
                CommunicationScheduler(**options)


class Types(unittest.TestCase):
    def test_fields_and_defaults(self):
        self.assertEqual(vars(SendRequest(1, "t", 2, 3, 4)),
                         {"task_id": 1, "src_tensor": "t", "src_pos": 2, "size": 3, "dest_pe": 4})
        self.assertEqual(vars(ReceiveRequest(1, "t", 2, 3, 4)),
                         {"task_id": 1, "dest_tensor": "t", "dest_pos": 2, "size": 3, "src_pe": 4})
        self.assertEqual(vars(WorkloadGroup(5)), {"dest_pe": 5, "tasks": [], "total_size": 0})
        self.assertEqual(vars(WorkloadSummary(1, [2], [3])),
                         {"total_size": 1, "task_ids": [2], "task_sizes": [3]})
        self.assertEqual(vars(ScheduledBatch(1, 2, 3, 4)),
                         {"src_pe": 1, "dest_pe": 2, "batch_index": 3, "iteration": 4,
                          "gpu_plan": None, "tasks": [], "total_size": 0, "tasks_summary": None})
        self.assertIsNot(WorkloadGroup(5).tasks, WorkloadGroup(5).tasks)

    def test_examples(self):
        import sys

        module = sys.modules[CommunicationScheduler.__module__]
        self.assertEqual(doctest.testmod(module).failed, 0)

    def test_alone(self):
        group = WorkloadGroup(0, [SendRequest(1, None, 0, 8, 0)], 8)
        scheduler = CommunicationScheduler()
        self.assertEqual(scheduler.build_schedule({0: [group]}, 0, 1), ({}, {}))
        self.assertEqual(scheduler.num_iterations, 0)
        self.assertEqual(scheduler.build_schedule({}, my_pe=0, n_pes=1), ({}, {}))


def workloads_of(seed, my_pe, n_pes):
    """Groups of any number and size, some without tasks, some from a PE to itself."""
    numbers = random.Random(seed * 100 + my_pe)
    workloads = {}
    for dest_pe in numbers.sample(range(n_pes), numbers.randrange(n_pes + 1)):
        workloads[dest_pe] = groups = []
        for _ in range(numbers.randrange(4)):
            sizes = [numbers.randrange(1, 1 << 40) for _ in range(numbers.randrange(4))]
            tasks = [SendRequest(numbers.randrange(1 << 63), None, 0, size, dest_pe)
                     for size in sizes]
            groups.append(WorkloadGroup(dest_pe, tasks, sum(sizes)))
    return workloads


def build(rank, size, seeds, rules):
    """Of each rule what build_one says."""
    return [[build_one(rank, size, seed, rule) for seed in seeds] for rule in rules]


def build_one(rank, size, seed, rule):
    """The schedule of this PE and all summaries, as plain tuples; its own batches have tasks."""
    workloads = workloads_of(seed, rank, size)
    scheduler = CommunicationScheduler(rule=rule)
    schedule, summaries = scheduler.build_schedule(workloads, rank, size)
    assert list(schedule) == sorted(schedule)
    rows = []
    for iteration, batches in schedule.items():
        for b in batches:
            assert b.iteration == iteration
            summary = summaries[b.src_pe, b.dest_pe, b.batch_index]
            assert b.tasks_summary is summary and b.total_size == summary.total_size
            if b.src_pe == rank:
                assert b.tasks is workloads[b.dest_pe][b.batch_index].tasks
            else:
                assert b.tasks == []
            rows.append((b.src_pe, b.dest_pe, b.batch_index, iteration))
    plain = {key: dataclasses.astuple(summary) for key, summary in summaries.items()}
    return scheduler.num_iterations, rows, plain


def build_wrong(rank, size):
    """Rank 1 gives what cannot be scheduled: every rank hears why, and the next call works."""
    sentences = []
    good = {1 - rank: [WorkloadGroup(1 - rank, [], 5)]}
    wrong = (
        ({7: [WorkloadGroup(7)]}, 1, 2), ({0: [WorkloadGroup(1)]}, 1, 2), (good, 0, 2),
        (good, 1, 3), ({0: [WorkloadGroup(0, [], -1)]}, 1, 2), ([], 1, 2),
        ({0: [None]}, 1, 2), ({"0": [WorkloadGroup(0)]}, 1, 2), ({0: None}, 1, 2),
    )
    for arguments in wrong:
        try:
            CommunicationScheduler().build_schedule(*(arguments if rank == 1 else (good, 0, 2)))
            sentences.append("taken")
        except ferry.InvalidInput as error:
            sentences.append((str(error), error.ranks))
        CommunicationScheduler().build_schedule(good, rank, size)
    try:
        rule = ("optimal", "first-fit")[rank]
        CommunicationScheduler(rule=rule).build_schedule(good, rank, size)
    except ferry.InvalidInput as error:
        sentences.append((str(error), error.ranks))
    return sentences


class Building(unittest.TestCase):
    def check(self, seeds, size, outcomes, rule):
        for at, seed in enumerate(seeds):
            with self.subTest(seed=seed, size=size):
                wanted = {
                    (pe, dest, number): (group.total_size, [t.task_id for t in group.tasks],
                                         [t.size for t in group.tasks])
                    for pe in range(size)
                    for dest, groups in workloads_of(seed, pe, size).items() if dest != pe
                    for number, group in enumerate(groups)
                }
                every = {}
                for pe, outcome in enumerate(outcomes):
                    n_iterations, rows, summaries = outcome[at]
                    self.assertEqual(summaries, wanted)
                    self.assertEqual({key[:3] for key in rows},
                                     {key for key in wanted if pe in key[:2]})
                    self.assertEqual(len(rows), len({row[:3] for row in rows}))
                    for row in rows:  # its other PE has it in the same iteration
                        self.assertEqual(every.setdefault(row[:3], row), row)
                batches = [ScheduledBatch(*row) for row in every.values()]
                self.assertLessEqual(max(busy(batches).values(), default=0), 1)
                if rule == "optimal":
                    self.assertEqual({outcome[at][0] for outcome in outcomes}, {degree(batches)})

    def test_random_loads(self):
        seeds = list(range(12))
        rules = ("optimal", "first-fit")
        for size in (2, 4):
            outcomes = run_ranks(build, size, seeds, rules)
            for i, rule in enumerate(rules):
                self.check(seeds, size, [outcome[i] for outcome in outcomes], rule)

    def test_what_is_wrong_on_one_is_raised_on_all(self):
        outcomes = run_ranks(build_wrong, 2)
        self.assertEqual(outcomes[0], outcomes[1])
        self.assertNotIn("taken", outcomes[0])
        self.assertEqual([ranks for _, ranks in outcomes[0]], [(1,)] * 9 + [(0, 1)])


if __name__ == "__main__":
    unittest.main()
