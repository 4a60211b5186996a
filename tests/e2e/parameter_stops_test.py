#!/usr/bin/env python3
"""Parameter servers whose processes are stopped, killed or late, one alone or all at once.
parameter_stops_test.py BIN_FOLDER DATA_FOLDER"""
import json
import pathlib
import re
import signal
import struct
import time
import unittest
import urllib.request

from parameter_server_case import Case  # it takes its arguments
from process_job import DEADLINE
from parameter_job import DIGITS, GUIDE, HEAD, write_idx


class Life(Case):
    def test_stop_saves_and_the_job_goes_on_as_if_it_had_not_stopped(self):
        self.values = dict(self.values, options=", steps_in_flight: 1", epochs=10)
        calm = self.job("calm", HEAD + DIGITS, servers=2)
        calm.start_all()
        calm.expect_end()
        want = [(line["step"], line["loss"]) for line in calm.lines()]
        self.assertEqual(len(want), 600)

        job = self.job("stopped", HEAD + DIGITS, servers=2)
        job.start_all()
        job.wait_for_step(33)
        job.processes[job.leader].send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(job.leader), 143, job.logs())
        saved = job.checkpoint_steps()[-1]
        self.assertEqual(saved, job.step())
        self.assertIn(f"stopped at step {saved}", job.log(job.leader))
        # The others live on, and take the next chief.
        self.assertTrue(all(p.poll() is None for t, p in job.processes.items() if t != job.leader))
        job.start(job.leader)
        job.expect_end()
        self.assertIn(f"at step {saved}", job.log(job.leader))
        self.assertEqual([(line["step"], line["loss"]) for line in job.lines()], want)
        self.assertEqual(job.count_in_checkpoint(600), 600)

    def test_a_killed_chief_goes_on_from_its_checkpoint(self):
        self.values = dict(self.values, epochs=10)
        job = self.job("killed", HEAD + DIGITS, workers=2, servers=2)
        job.start_all()
        job.wait_for_step(45)
        job.kill(job.leader)
        job.start(job.leader)
        job.expect_end()
        self.assertIn("resuming from", job.log(job.leader))
        self.assertEqual(job.step(), 600)
        self.assertGreaterEqual(job.count_in_checkpoint(600), 600)

    def test_worker_0_is_the_chief_where_there_is_none_and_everyone_answers(self):
        self.values = dict(self.values, epochs=10000)
        job = self.job("chiefless", (HEAD + DIGITS).replace("chief: {{replicas: 1}}, ", ""), workers=2, chief=False,
                       evaluator=True, metrics=True)
        job.start_all()
        job.wait_for_step(25)
        end = time.monotonic() + DEADLINE
        while not job.lines(("evaluator", 0)):
            self.assertLess(time.monotonic(), end, job.logs())
            time.sleep(0.05)
        pages = {(task, path): self.fetch(job.addresses[task], path)
                 for task in job.tasks for path in ("metrics", "healthz", "readyz", "progress")}
        for task in job.tasks:
            self.assertIn(f'replica_type="{task[0]}"', pages[task, "metrics"])
        self.assertIn("meshtrain_parameter_pushes_total", pages[("ps", 0), "metrics"])
        self.assertIn("meshtrain_parameter_workers_ready", pages[job.leader, "metrics"])
        self.assertGreaterEqual(json.loads(pages[job.leader, "progress"])["step"], 25)
        self.assertEqual(json.loads(pages[("evaluator", 0), "progress"])["step"] % 20, 0)
        # Asked to stop, every role does.
        for task in job.tasks:
            job.processes[task].send_signal(signal.SIGTERM)
            self.assertEqual(job.wait(task), 143, job.logs())

    def fetch(self, address, path):
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=60) as answer:
            return answer.read().decode()

    def test_an_evaluator_that_comes_late_evaluates_every_checkpoint_that_is_there(self):
        self.values = dict(self.values, epochs=2)
        job = self.job("late", (HEAD + DIGITS).replace("everySteps:", "keep: 100, everySteps:"), evaluator=True)
        evaluator = ("evaluator", 0)
        for task in job.tasks:
            if task != evaluator:
                job.start(task)
        for task in job.tasks:
            if task != evaluator:
                self.assertEqual(job.wait(task), 0, job.logs())
        steps = list(range(20, 121, 20))
        self.assertEqual(job.checkpoint_steps(), steps)
        job.start(evaluator)
        self.assertEqual(job.wait(evaluator), 0, job.logs())
        self.assertEqual([line["step"] for line in job.lines(evaluator)], steps)

    def test_a_server_that_stays_away_ends_the_chief_with_138(self):
        self.values = dict(self.values, epochs=100)
        job = self.job("away", HEAD + DIGITS, peer_return=5)
        job.start_all()
        job.wait_for_step(5)
        job.kill(("ps", 0))
        self.assertEqual(job.wait(job.leader), 138, job.logs())
        self.assertIn("ps-0", job.log(job.leader))

    def test_a_loss_that_is_no_number_ends_it_with_79(self):
        job = self.job("nan", (HEAD + DIGITS).replace("optimizer: adam", "optimizer: {{sgd: {{learning_rate: 1.0e+30}}}}"))
        job.start_all()
        self.assertEqual(job.wait(job.leader), 79, job.logs())
        self.assertIn("output `loss`: expected finite numbers, got: nan", job.log(job.leader))


    def test_data_that_is_not_finite_ends_it_with_65_and_is_named_by_file_and_example(self):
        # The worker's own data; of three workers each reads all of it.
        for workers in (1, 3):
            with self.subTest(workers):
                self.values = dict(self.values, w0=-0.4, every=0, devices=1)
                job = self.job(f"data-{workers}", HEAD + GUIDE, workers=workers)
                numbers = [1.0] * 1000
                numbers[37] = float("nan")
                write_idx(job.folder / "x.idx", 0x0D, [1000, 1], struct.pack(">1000f", *numbers))
                job.start_all()
                self.assertEqual(job.wait(job.leader), 65, job.logs())
                log = job.log(job.leader)
                self.assertIn("first not finite: input x", log)
                self.assertIn(f"{job.folder}/x.idx, component `x`: example 37: expected finite numbers, got: nan", log)


class Stopping(Case):
    """Pods that are deleted together get SIGTERM at about the same time."""

    def ask(self, job, tasks):
        """SIGTERM to all of them at once, as soon as each would take it as a request."""
        end = time.monotonic() + DEADLINE
        for task in tasks:
            while not self.takes_requests(job.processes[task].pid):
                self.assertLess(time.monotonic(), end, job.logs())
                time.sleep(0.01)
        for task in tasks:
            job.processes[task].send_signal(signal.SIGTERM)

    def takes_requests(self, pid):
        """The process waits for SIGTERM itself: it is blocked. (One that has only just started would be ended by it.)"""
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return True  # it has left
        return bool(int(re.search(r"^SigBlk:\s*([0-9a-f]+)", status, re.M)[1], 16) >> (signal.SIGTERM - 1) & 1)

    def stopped(self, job):
        """Everyone left with 143, and the chief saved the step that it came to."""
        self.assertEqual(job.wait(job.leader), 143, job.logs())
        for task in job.tasks:
            self.assertEqual(job.wait(task), 143, job.logs())
        saved = job.checkpoint_steps()[-1]
        self.assertEqual(saved, job.step(), job.logs())
        self.assertIn(f"stopped at step {saved}, saved", job.log(job.leader))
        return saved

    def test_everyone_at_once_and_the_job_goes_on_as_if_it_had_not_stopped(self):
        self.values = dict(self.values, options=", steps_in_flight: 1", epochs=4)
        calm = self.job("calm", HEAD + DIGITS, servers=2)
        calm.start_all()
        calm.expect_end()
        want = [(line["step"], line["loss"]) for line in calm.lines()]
        self.assertEqual(len(want), 240)
        job = self.job("stopped", HEAD + DIGITS, servers=2, evaluator=True)
        job.start_all()
        # In the middle of an epoch, in or beside its validation (60), beside a save (100): wherever they are by then.
        for step in (7, 60, 99, 140):
            job.wait_for_step(step)
            self.ask(job, job.tasks)
            saved = self.stopped(job)
            self.assertGreaterEqual(saved, step)
            # Not a push more or less than the steps that were told.
            self.assertEqual(job.count_in_checkpoint(saved), saved)
            job.start_all()
        job.expect_end()
        self.assertEqual([(line["step"], line["loss"]) for line in job.lines()], want)
        self.assertEqual(job.count_in_checkpoint(240), 240)

    def test_servers_and_workers_wait_for_a_chief_that_hears_of_it_later(self):
        self.values = dict(self.values, epochs=10000)
        job = self.job("later", HEAD + DIGITS, workers=2, servers=2)
        job.start_all()
        job.wait_for_step(25)
        others = [task for task in job.tasks if task != job.leader]
        self.ask(job, others)
        # They serve: training goes on.
        job.wait_for_step(job.step() + 50)
        self.assertTrue(all(job.processes[task].poll() is None for task in others), job.logs())
        self.ask(job, [job.leader])
        saved = self.stopped(job)
        self.assertGreaterEqual(job.count_in_checkpoint(saved), saved)
        for task in others:
            self.assertIn("asked to stop: serving until the chief has saved, for 27 s at most", job.log(task))

    def test_a_server_and_a_worker_that_leave_alone_are_replaced(self):
        self.values = dict(self.values, epochs=10000)
        job = self.job("drained", HEAD + DIGITS, workers=2, servers=2, grace=2)
        job.start_all()
        job.wait_for_step(25)
        for task in (("ps", 1), ("worker", 0)):
            step = job.step()
            self.ask(job, [task])
            self.assertEqual(job.wait(task), 143, job.logs())
            self.assertIn("the chief has not come to its end in time", job.log(task))
            job.start(task)
            job.wait_for_step(step + 100)
        self.assertNotIn("resuming from", job.log(job.leader))
        self.ask(job, job.tasks)
        saved = self.stopped(job)
        # What the worker left may have been pushed in part, and ran again; nothing that was acknowledged is missing.
        self.assertGreaterEqual(job.count_in_checkpoint(saved), saved)

    def test_nobody_waits_for_a_chief_that_is_gone_or_has_never_come(self):
        self.values = dict(self.values, epochs=10000)
        job = self.job("gone", HEAD + DIGITS, servers=2, grace=600)
        job.start_all()
        job.wait_for_step(5)
        job.kill(job.leader)
        others = [task for task in job.tasks if task != job.leader]
        self.ask(job, others)
        for task in others:
            self.assertEqual(job.wait(task), 143, job.logs())
        lonely = self.job("lonely", HEAD + DIGITS, grace=600)
        for task in (("worker", 0), ("ps", 0)):
            lonely.start(task)
            end = time.monotonic() + DEADLINE
            while " at port " not in lonely.log(task):
                self.assertLess(time.monotonic(), end, lonely.logs())
                time.sleep(0.02)
            self.ask(lonely, [task])
            self.assertEqual(lonely.wait(task), 143, lonely.logs())
            self.assertNotIn("asked to stop", lonely.log(task))

    def test_a_chief_that_cannot_save_in_time_says_so(self):
        self.values = dict(self.values, epochs=10000, every=0)
        job = self.job("late", HEAD + DIGITS, servers=2, grace=3)
        job.start_all()
        job.wait_for_step(25)
        # Stands still: no step can end, and its part of a checkpoint cannot be written.
        job.processes[("ps", 1)].send_signal(signal.SIGSTOP)
        self.ask(job, [job.leader])
        self.assertEqual(job.wait(job.leader), 143, job.logs())
        self.assertIn("stopped without saving", job.log(job.leader))
        self.assertEqual(job.checkpoint_steps(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
