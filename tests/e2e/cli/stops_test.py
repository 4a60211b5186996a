#!/usr/bin/env python3
"""Runs that are stopped or killed, and what the next one goes on from.   stops_test.py BIN_FOLDER"""
import json
import os
import signal
import sys
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import lines_of, steps_of  # noqa: E402
from cli_case import TIMEOUT, RunningCase  # noqa: E402: it takes BIN_FOLDER from the arguments


class Stops(RunningCase):
    def test_a_finished_runs_checkpoints_stay_until_the_next_run_has_one(self):
        self.assertEqual(self.run_job(self.manifest(epochs=400, every=1000)).returncode, 0)
        out = self.folder / "out"
        old, model = self.checkpoints(), (out / "model.safetensors").read_bytes()
        log, replaced = out / "metrics.jsonl", out / "metrics.replaced.jsonl"
        figures = log.read_text()
        steps = len(steps_of(log))
        self.assertEqual(old[-1], f"ckpt-{steps:08}")

        for _ in range(2):  # killed before their first checkpoints
            begun = time.time()
            child = self.start(self.manifest(epochs=400, every=100000000))
            self.hold_when(child, lambda: self.read(replaced) and log.exists() and log.stat().st_mtime > begun and
                           20 <= len(self.read(log).splitlines()) < steps)
            child.kill()
            child.communicate(timeout=TIMEOUT)
            self.assertEqual(self.checkpoints(), old)
            self.assertEqual((out / "model.safetensors").read_bytes(), model)
            self.assertEqual(replaced.read_text(), figures)
        # They are whole.
        warm = self.manifest(edit=lambda t: t.replace("    data:", f"    initial_weights: {out}/checkpoints/{old[-1]}\n    data:"))
        self.assertEqual(self.run_job(warm, output="warm").returncode, 0)
        # The first one of a new run, of a lower step, is where that goes on; the old ones are gone.
        child = self.start(self.manifest(epochs=400, every=4))
        self.hold_when(child, lambda: self.checkpoints() and self.checkpoints()[-1] != old[-1])
        child.kill()
        child.communicate(timeout=TIMEOUT)
        kept = self.checkpoints()
        self.assertNotIn(old[-1], kept)
        self.assertTrue(all(int(name[5:]) % 4 == 0 for name in kept), kept)
        again = self.run_job(self.manifest(epochs=int(kept[-1][5:]) // 5 + 2, every=4))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"{kept[-1]} at step", again.stdout)
        # Not before: the kill may have come between the checkpoint and the removal of the old figures.
        self.assertFalse(replaced.exists())

    def test_a_stopped_job_saves_and_goes_on_to_the_same_end(self):
        whole = self.run_job(self.manifest(epochs=1500, every=1000000), output="whole")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        child = self.start(self.manifest(epochs=1500, every=1000000))
        trainer = self.hold_when(child, lambda: len(self.read(self.folder / "out" / "metrics.jsonl").splitlines()) >= 30)
        child.send_signal(signal.SIGTERM)
        trainer.send_signal(signal.SIGCONT)
        out, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 143, err)
        self.assertIn("saved", out)
        again = self.run_job(self.manifest(epochs=1500, every=1000000))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("resuming from", again.stdout)
        whole, parts = (lines_of(self.folder / name / "metrics.jsonl") for name in ("whole", "out"))
        for line in whole + parts:
            line.pop("seconds", None)
        self.assertEqual(parts, whole)
        self.assertEqual((self.folder / "whole" / "model.safetensors").read_bytes(), (self.folder / "out" / "model.safetensors").read_bytes())

    def test_a_supervisor_that_signals_every_process_asks_once(self):
        child = self.start(self.manifest(epochs=1000000, every=1000000))
        trainer = self.hold_when(child, lambda: len(self.read(self.folder / "out" / "metrics.jsonl").splitlines()) >= 30)
        trainer.send_signal(signal.SIGCONT)
        trainer.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGTERM)  # it sends the trainer another
        out, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 143, err)
        self.assertIn("saved", out)
        self.assertRegex(err, "stopped at step [0-9]+; checkpoint of step")

    def test_an_output_folder_that_vanishes_is_said(self):
        out = self.folder / "out"
        child = self.start(self.manifest(epochs=1000000, every=1000000))
        self.wait_for_step(3)
        out.rename(self.folder / "away")
        _, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 73, err)
        self.assertIn(f"{out}: expected the output folder to stay while the run writes into it", err)

    def test_a_run_without_a_folder_has_its_own_and_an_unfinished_one_goes_on(self):
        bare = lambda t: t.replace("  checkpoint: {everySteps: 3}\n", "")
        def run(manifest):
            child = self.start(manifest, own_folder=True)
            out, err = child.communicate(timeout=TIMEOUT)
            self.assertEqual(child.returncode, 0, err)
            return out

        runs = self.folder / "runs"
        for name in ("tiny", "tiny-2"):
            self.assertIn(f"output in runs/{name}\n", run(self.manifest(edit=bare)))
            self.assertTrue((runs / name / "model.safetensors").exists())
        whole = self.manifest(epochs=60, edit=bare)
        self.assertIn("output in runs/tiny-3\n", run(whole))
        # Killed in an epoch after the second: that costs an epoch at most.
        said = "# the same once more\n"
        again = self.manifest(epochs=60, edit=lambda t: bare(t) + said)
        child = self.start(again, own_folder=True)
        self.hold_when(child, lambda: len(list((runs / "tiny-4" / "checkpoints").glob("ckpt-*/index.json"))) >= 2)
        child.kill()
        child.communicate(timeout=TIMEOUT)
        told = run(again)
        self.assertIn("going on in runs/tiny-4", told)
        self.assertRegex(told, r"resuming from runs/tiny-4/checkpoints/ckpt-0*\d+[05] at step \d+[05]\n")
        one, other = (lines_of(runs / name / "metrics.jsonl") for name in ("tiny-3", "tiny-4"))
        for line in one + other:
            line.pop("seconds", None)
        self.assertEqual(one, other)
        self.assertIn("output in runs/tiny-5\n", run(again))

    def test_interrupt(self):
        child = self.start(self.manifest(epochs=1000000, every=1000000))
        self.wait_for_step(3)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 130)

    def test_the_endpoints_answer_while_it_trains(self):
        child = self.start(self.manifest(epochs=1000000, every=1000000), "--metrics-address", "127.0.0.1:0")
        url = None
        for line in child.stdout:
            if "live page" in line:
                url = line.split()[-1]
                break
        self.wait_for_step(3)
        get = lambda path: urllib.request.urlopen(url + path, timeout=20).read().decode()
        self.assertIn("meshtrain_steps_total", get("metrics"))
        progress = json.loads(get("progress"))
        self.assertGreaterEqual(progress["step"], 1)
        self.assertIn("loss", progress)
        self.assertIn("hash", progress["plan"])
        get("healthz")
        get("readyz")
        self.assertIn("<html", get("").lower())
        with self.assertRaises(urllib.error.HTTPError):
            get("nothing")
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 143)


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    unittest.main(verbosity=2)
