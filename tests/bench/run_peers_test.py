#!/usr/bin/env python3
"""run_peers.py's arithmetic and its handling of runs that fail, with programs that take no time."""
import argparse
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import run_peers  # noqa: E402

ARGS = argparse.Namespace(retries=0, timeout=10.0, noise=1e9)


def rows(**least):
    return {name: {"step_ms_min": value} for name, value in least.items()}


def named(results):
    return {what: (figure, target, note) for what, figure, _, target, note in results}


class Job(unittest.TestCase):
    """What the real job is measured by, with a script in its place: a parent, and a child that is larger."""

    def measure(self, script):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "job.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(f"#!{sys.executable}\n{script}")
            os.chmod(program, 0o755)
            return run_peers.measure_job(argparse.Namespace(meshtrain=program, job="x.yaml", timeout=30.0))

    def test_counts_all_processes_and_the_first_step(self):
        child = "import time; x = bytearray(64 << 20); time.sleep(0.5)"
        figures = self.measure("import os, subprocess, sys, time\n"
                               "y = bytearray(32 << 20)\n"
                               "os.makedirs(sys.argv[5])\n"
                               "time.sleep(0.3)\n"
                               "open(sys.argv[5] + '/metrics.jsonl', 'w').write('{}')\n"
                               f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n")
        self.assertGreater(figures["peak_mib"], 64)
        self.assertLess(figures["peak_mib"], 96)
        self.assertGreater(figures["all_processes_mib"], 96)
        self.assertGreater(figures["first_step_s"], 0.3)

    def test_a_steps_time_is_that_of_the_best_two_seconds_and_its_share_of_the_rest(self):
        slow, fast = [0.25] * 16, [0.125] * 16
        self.assertAlmostEqual(run_peers.step_ms([9.0] + slow + fast + slow, 10.0)[0], 125)
        self.assertAlmostEqual(run_peers.step_ms([9.0] + slow + fast + slow, 16.0)[0], 250)
        self.assertAlmostEqual(run_peers.step_ms([9.0, 0.1, 0.3], 0.4)[0], 200)
        self.assertEqual(run_peers.step_ms([9.0], 1.0), [])

    def test_tells_a_job_that_fails(self):
        self.assertIn("exit status 3", self.measure("import sys; sys.exit(3)")["error"])


class Run(unittest.TestCase):
    def test_takes_output_peak_and_status(self):
        result = run_peers.run([sys.executable, "-c", "x = bytearray(64 << 20); print('hello')"], 30)
        self.assertTrue(result["ok"])
        self.assertEqual(result["stdout"], "hello\n")
        self.assertGreater(result["peak_mib"], 64)

    def test_names_the_signal_and_the_last_line(self):
        result = run_peers.run(["sh", "-c", "echo stuck >&2; kill -ABRT $$"], 10)
        self.assertFalse(result["ok"])
        self.assertEqual(result["error"], "signal 6: stuck")

    def test_ends_what_hangs(self):
        result = run_peers.run(["sleep", "60"], 0.2)
        self.assertFalse(result["ok"])
        self.assertIn("no end after", result["error"])

    def test_says_what_cannot_start(self):
        self.assertIn("No such file", run_peers.run(["/no/such/program"], 1)["error"])

    def test_tries_again_until_it_lives(self):
        with tempfile.TemporaryDirectory() as folder:
            script = f"[ -e {folder}/again ] && echo lived && exit 0; touch {folder}/again; exit 1"
            args = argparse.Namespace(retries=1, timeout=10.0, noise=1e9)
            self.assertEqual(run_peers.quietest(["sh", "-c", script], args)["stdout"], "lived\n")


class Ratios(unittest.TestCase):
    def test_divides_the_least_times(self):
        ours = rows(one_device=2.0, virtual8=2.5, isolated8=6.0, products=1.5, optimizer=0.5, plan=7.0)
        peers = rows(**{"tf dtensor x8": 30.0, "jax x8": 15.0, "jax jit": 2.2, "tf xla": 3.0})
        got = named(run_peers.ratios(ours, peers, {"first_step_s": 0.1, "peak_mib": 60.0, "all_processes_mib": 90.0}, 70.0))
        self.assertEqual([figure for figure, _, _ in got.values()], [1.0, 1.25, 3.0, 12.0, 6.0, 1.1, 7.0, 0.1, 90.0, 60.0,
                                                                     70.0])
        self.assertEqual(got["fastest peer on one device / one device"][2], "jax jit")

    def test_waives_a_peer_that_aborted_and_nothing_of_ours(self):
        ours = rows(one_device=2.0, virtual8=2.5)
        peers = {"jax x8": {"error": "signal 6"}, "tf dtensor x8": {"step_ms_min": 10.0}}
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            missed = run_peers.print_tables("the step", ours, peers, run_peers.ratios(ours, peers, {}, None))
        self.assertEqual(missed, ["TensorFlow DTensor x8 / 8 virtual devices"])
        self.assertIn("waived (signal 6)", text.getvalue())
        self.assertIn("| planning, ms |  | at most 20 | not measured |", text.getvalue())

    def test_a_peer_that_was_asked_for_and_did_not_run_is_missed(self):
        asked = argparse.Namespace(tf="/bin/false", torch=None, jax=None, threads=1, reps=1, **vars(ARGS))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            peers = run_peers.over_rounds([run_peers.measure_peers(asked, run_peers.PEERS, [])])
            missed = run_peers.print_tables("the step", rows(one_device=2.0), peers, [])
        self.assertEqual(peers["jax jit"]["error"], run_peers.NOT_ASKED_FOR)
        self.assertEqual(missed, ["tf plain was not measured", "tf xla was not measured"])


class Rounds(unittest.TestCase):
    def test_medians_of_the_rounds_that_ran(self):
        def row(median, least):
            return {"step_ms_median": median, "step_ms_min": least, "peak_mib": least, "others_cores": 0.0}

        rounds = [{"a": row(3.0, 1.0), "b": {"error": "signal 6"}}, {"a": row(9.0, 2.0), "b": row(5.0, 4.0)},
                  {"a": row(4.0, 0.5), "b": {"error": "signal 6"}}]
        got = run_peers.over_rounds(rounds)
        self.assertEqual(got["a"]["step_ms_median"], 4.0)
        self.assertEqual(got["a"]["step_ms_min"], 0.5)
        self.assertEqual(got["a"]["peak_mib"], 2.0)
        self.assertEqual(got["a"]["rounds"], [3.0, 9.0, 4.0])
        self.assertEqual(got["b"]["step_ms_median"], 5.0)

    def test_what_never_ran_keeps_its_error(self):
        self.assertEqual(run_peers.over_rounds([{"a": {"error": "signal 6"}}] * 2), {"a": {"error": "signal 6"}})


class Ours(unittest.TestCase):
    def test_every_mode_must_be_there(self):
        args = argparse.Namespace(ours="/bin/false", **vars(ARGS))
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(run_peers.measure_ours(args), ({}, False))
            with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
                script.write("#!/bin/sh\necho '{\"name\": \"one_device\", \"step_ms_min\": 1, \"step_ms_median\": 1}'\n")
            os.chmod(script.name, 0o700)
            got, good = run_peers.measure_ours(argparse.Namespace(ours=script.name, **vars(ARGS)))
            os.remove(script.name)
        self.assertFalse(good)
        self.assertEqual(list(got), ["one_device"])


if __name__ == "__main__":
    unittest.main()
