#!/usr/bin/env python3
"""Parameter servers from a manifest, with a process for each role: what they compute, and what a job needs.
parameter_server_test.py BIN_FOLDER DATA_FOLDER GUIDE_JSON EXAMPLE"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time
import unittest

from parameter_server_case import BIN, DATA, TIMEOUT, WORKER, Case  # it takes its arguments
from process_job import DEADLINE
from metrics_file import steps_of
from report_document import document_of
from parameter_job import DIGITS, GUIDE, HEAD, TOWERS

GUIDE_JSON, EXAMPLE = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))


class Guide(Case):
    """The 210 losses that every strategy must give, one step at a time."""

    def check(self, workers, devices=1):
        guide = json.loads(GUIDE_JSON.read_text())
        want = guide["printed_in_text"]
        self.assertEqual(len(want), 210)
        self.values = dict(self.values, w0=guide["w0"], every=0, devices=devices)
        job = self.job("guide", HEAD + GUIDE, workers=workers, servers=2)
        job.start_all()
        job.expect_end()
        got = [line["loss"] for line in job.lines()]
        self.assertEqual(len(got), 210)
        for step, (a, b) in enumerate(zip(got, want)):
            self.assertLess(abs(a - b), 1e-6, f"step {step + 1}")

    def test_one_worker(self):
        self.check(1)

    def test_three_workers(self):
        self.check(3)

    # A batch of 5: 3 on one device and 2 on the other.
    def test_one_worker_of_two_devices(self):
        self.check(1, devices=2)

    def test_three_workers_of_two_devices(self):
        self.check(3, devices=2)


class Towers(Case):
    """A step of two chains that meet loses none of its ops: its losses are those of one device."""

    def test_the_losses_are_those_of_one_device(self):
        alone = self.folder / "alone.yaml"
        head = "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: alone}\nspec:\n"
        head += "  strategy: OneDevice\n  replicaSpecs: {worker: {replicas: 1}}"
        alone.write_text(head + TOWERS.format(**self.values))
        out = self.folder / "alone"
        run = subprocess.run([BIN / "meshtrain", "run", "-f", str(alone), "--output", str(out)], capture_output=True,
                             text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(run.returncode, 0, run.stderr)
        want = [line["loss"] for line in steps_of(out / "metrics.jsonl")]
        self.assertEqual(len(want), 40)
        self.assertGreater(want[0], 2)
        self.assertLess(want[-1], want[0] / 1.5)

        self.values = dict(self.values, every=0, options="\n    parameter_server: {steps_in_flight: 1}")
        job = self.job("towers", HEAD + TOWERS, servers=2)
        job.start_all()
        job.expect_end()
        got = [line["loss"] for line in job.lines()]
        self.assertEqual(len(got), len(want))
        for step, (a, b) in enumerate(zip(got, want)):
            self.assertLess(abs(a - b), 1e-5 * b, f"step {step + 1}")


class Example(Case):
    def manifest(self):
        text = EXAMPLE.read_text()
        for part in ("images-idx3", "labels-idx1"):
            for kind in ("train", "t10k"):
                text = text.replace(f"data/{kind}-{part}-ubyte.gz", f"{DATA}/digits5120-{part}-ubyte.gz")
        text = text.replace("path: checkpoints/", f"keep: 100\n    path: {self.folder}/checkpoints/")
        path = self.folder / "job.yaml"
        path.write_text(text)
        return str(path)

    def test_meshtrain_run_starts_every_role_and_succeeds(self):
        manifest = self.manifest()
        valid = subprocess.run([BIN / "meshtrain", "validate", "-f", manifest], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(valid.returncode, 0, valid.stderr)
        out = self.folder / "out"
        run = subprocess.run([BIN / "meshtrain", "run", "-f", manifest, "--output", str(out)], capture_output=True,
                             text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
        lines = steps_of(out / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, 121)))
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        for name in ("report.html", "plan.txt", "model.safetensors"):
            self.assertTrue((out / name).exists(), name)
        self.assertIn("hidden.kernel/part_1", (out / "plan.txt").read_text())
        report = document_of(out / "report.html")
        self.assertEqual(report["state"]["phase"], "ended")
        self.assertEqual(report["plan"]["groups"], [["workers", ["worker-0", "worker-1", "worker-2"], 3],
                                                    ["parameter servers", ["ps-0", "ps-1"], 2]])
        places = {v["name"]: v["layout"] for v in report["plan"]["variables"]}
        self.assertRegex(places["hidden.kernel/part_1"], r"^ps-[01], part 2 of 2, from row \d+$")
        # Each checkpoint once; the last is of the weights that the chief validated last.
        evaluated = [json.loads(line) for line in (out / "evaluator-0" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in evaluated], [40, 80, 120])
        saved = (out / "checkpoints").glob("ckpt-*/index.json")
        self.assertEqual(sorted(int(path.parent.name.split("-")[1]) for path in saved), [40, 80, 120])
        self.assertTrue(list((out / "evaluator-0" / "events" / "evaluator").glob("events.out.tfevents.*")))
        # Curves are the chief's and the evaluator's alone.
        self.assertTrue(list((out / "events" / "train").glob("events.out.tfevents.*")))
        curves = [path for pattern in ("*tfevents*", "metrics.jsonl", "report.html") for path in out.rglob(pattern)]
        places = {path.relative_to(out).parts[0] for path in curves}
        self.assertEqual(places, {"events", "metrics.jsonl", "report.html", "evaluator-0"}, curves)
        validated = float(re.findall(r"test_loss (\d+\.\d+)", run.stdout)[-1])
        self.assertAlmostEqual(evaluated[-1]["loss"], validated, delta=1e-4)
        status = json.loads((out / "status.json").read_text())
        self.assertEqual(status["replicaStatuses"]["worker"]["succeeded"], 3, status)
        self.assertTrue(any(c["type"] == "Succeeded" and c["status"] == "True" for c in status["conditions"]), status)


    def wait_for_step(self, out, step, child):
        end = time.monotonic() + DEADLINE
        while True:
            try:
                if (out / "metrics.jsonl").read_text().count("\n") >= step:
                    return
            except OSError:
                pass
            self.assertIsNone(child.poll(), "meshtrain run left")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_an_interrupt_of_the_terminal_saves_and_the_next_run_goes_on(self):
        text = self.manifest()
        out = self.folder / "out"
        command = [BIN / "meshtrain", "run", "-f", text, "--output", str(out)]
        # As a terminal does with Ctrl-C: to everybody in the group of the foreground.
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(lambda: run.poll() is None and run.kill())
        self.wait_for_step(out, 20, run)
        os.killpg(run.pid, signal.SIGINT)
        _, err = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 130, err)
        said = re.search(r": stopped at step (\d+); checkpoint of step (\d+) in (\S+)\n", err)
        self.assertTrue(said, err)
        self.assertEqual(said[1], said[2])
        self.assertTrue((pathlib.Path(said[3]) / "index.json").is_file(), said[3])
        self.assertNotIn("without saving", err)
        again = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"resuming from {said[3]} at step {said[1]}", again.stdout)
        lines = steps_of(out / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, 121)))

    def test_a_second_interrupt_ends_it_at_once(self):
        out = self.folder / "out"
        run = subprocess.Popen([BIN / "meshtrain", "run", "-f", self.manifest(), "--output", str(out)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                               start_new_session=True)
        self.addCleanup(lambda: run.poll() is None and run.kill())
        self.wait_for_step(out, 3, run)
        # Nobody can be done before the second one: the servers stand still.
        servers = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and self.is_server(p, out)]
        self.assertEqual(len(servers), 2)
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)
        os.killpg(run.pid, signal.SIGINT)
        for line in run.stderr:
            if "a second signal kills them" in line:
                break
        os.killpg(run.pid, signal.SIGINT)
        _, err = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 130, err)
        self.assertIn("killing what still runs", err)
        self.assertFalse(any(pathlib.Path(f"/proc/{pid}").exists() for pid in servers))

    def is_server(self, process, out):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return False
        return "meshtrain-worker" in words[0] and any(w.startswith(str(out) + "/ps-") for w in words)


def history(path):
    """The figures of each epoch in a checkpoint, unrounded."""
    return json.loads(json.loads((path / "index.json").read_text())["index"]["metadata"]["history"])


class Figures(Case):
    def test_figures_are_means_over_the_examples_of_the_workers_own_batches(self):
        # 150 examples in batches of 64: the last has 22. One worker goes through them as one process does.
        self.values = dict(self.values, epochs=2, every=0)
        text = (HEAD + DIGITS).replace("-ubyte.gz}}}}\n      test", "-ubyte.gz}}, take: 150}}\n      test").replace(
            ", steps_per_epoch: {steps}", "").replace("{options}", ", steps_in_flight: 1")
        self.assertIn("take: 150", text)
        job = self.job("figures", text, evaluator=True)
        job.start_all()
        job.expect_end()
        lines = job.lines()
        self.assertEqual(len(lines), 6)
        epochs = history(job.folder / "checkpoints" / "ckpt-00000006")
        for epoch, three in zip(epochs, (lines[:3], lines[3:]), strict=True):
            for figure in ("loss", "accuracy"):
                means = [line[figure] for line in three]
                weighted = sum(n * mean for n, mean in zip((64, 64, 22), means, strict=True)) / 150
                self.assertAlmostEqual(epoch["train"][figure], weighted, delta=1e-12)
                self.assertGreater(abs(sum(means) / 3 - weighted), 1e-4)
        # The chief validates on 31 batches of 64 and one of 16; the evaluator sees the same 2,000.
        first, evaluated = job.lines(("evaluator", 0))
        self.assertEqual((first["step"], evaluated["step"]), (3, 6))  # after each epoch
        for figure in ("loss", "accuracy"):
            self.assertAlmostEqual(evaluated[figure], epochs[-1]["validation"][figure], delta=1e-6)

    def test_a_label_outside_the_classes_that_a_worker_reads_ends_the_job_with_65(self):
        job = self.job("label", (HEAD + DIGITS).replace("units: 10}}", "units: 9}}"))
        job.start_all()
        self.assertEqual(job.wait(job.leader), 65, job.logs())
        self.assertRegex(job.log(job.leader), r"digits5120-labels-idx1-ubyte.gz: example \d+: label 9, but 9 classes")

    def test_an_evaluator_whose_labels_are_outside_the_classes_leaves_with_65(self):
        self.values = dict(self.values, epochs=1, steps=2, every=0)
        count = 2000
        bad = self.folder / "labels"
        bad.write_bytes(struct.pack(">HBBI", 0, 8, 1, count) + bytes([10 if i == 1234 else 3 for i in range(count)]))
        images = self.folder / "images"
        images.write_bytes(struct.pack(">HBBIII", 0, 8, 3, count, 28, 28) + bytes(28 * 28 * count))
        text = (HEAD + DIGITS).replace("train: {{epochs", "train: {{validation: false, epochs").replace(
            "test: {{idx: {{images: {data}/digits5120-images-idx3-ubyte.gz, labels: {data}/digits5120-labels-idx1-ubyte.gz}}, take",
            f"test: {{{{idx: {{{{images: {images}, labels: {bad}}}}}, take")
        self.assertIn(str(bad), text)
        job = self.job("evaluator", text, evaluator=True)
        job.start_all()
        self.assertEqual(job.wait(job.leader), 0, job.logs())
        self.assertEqual(job.wait(("evaluator", 0)), 65, job.logs())
        self.assertIn(f"{bad}: example 1234: label 10, but 10 classes", job.log(("evaluator", 0)))


class Mistakes(Case):
    def refused(self, job, task, *words):
        job.start(task)
        self.assertEqual(job.wait(task), 78, job.logs())
        for word in words:
            self.assertIn(word, job.log(task))

    def test_no_tf_config(self):
        job = self.job("alone", HEAD + DIGITS)
        run = subprocess.run([WORKER, "-f", str(job.manifest), "--output", str(self.folder / "out")], env={}, timeout=TIMEOUT,
                             capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(run.returncode, 78, run.stderr)
        self.assertIn("expected TF_CONFIG", run.stderr)

    def test_what_a_role_needs(self):
        self.refused(self.job("servers", HEAD + DIGITS, servers=0), ("chief", 0), "cluster.ps")
        no_path = (HEAD + DIGITS).replace("path: {folder}/checkpoints, ", "")
        self.refused(self.job("folder", no_path), ("ps", 0), "checkpoint.path")
        self.refused(self.job("folder2", no_path, evaluator=True), ("evaluator", 0), "checkpoint.path")
        no_test = re.sub(r"      test:.*\n", "", HEAD + DIGITS)
        self.refused(self.job("test", no_test, evaluator=True), ("evaluator", 0), "data.test")
        no_strategy = (HEAD + DIGITS).replace("  strategy: ParameterServer\n", "  strategy: MultiWorkerMirrored\n")
        self.refused(self.job("strategy", no_strategy), ("ps", 0), "program.parameter_server")
        plain = re.sub(r"    parameter_server:.*\n", "", no_strategy)
        self.refused(self.job("ps", plain), ("ps", 0), "strategy ParameterServer")


class EvaluatorOfAMesh(Case):
    def test_every_checkpoint_of_two_workers_and_an_evaluator(self):
        text = (HEAD + DIGITS).replace("  strategy: ParameterServer\n", "  waitForEvaluator: true\n")
        text = re.sub(r"  replicaSpecs:.*\n", "  replicaSpecs: {{worker: {{replicas: 2}}, evaluator: {{replicas: 1}}}}\n", text)
        text = re.sub(r"    parameter_server:.*\n", "    mesh: {{batch: 2}}\n", text)
        text = text.replace("everySteps:", "keep: 100, everySteps:")
        path = self.folder / "job.yaml"
        path.write_text(text.format(folder=self.folder, **self.values))
        out = self.folder / "out"
        run = subprocess.run([BIN / "meshtrain", "run", "-f", path, "--output", out], capture_output=True, text=True,
                             timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
        evaluated = [json.loads(line) for line in (out / "evaluator-0" / "metrics.jsonl").read_text().splitlines()]
        steps = list(range(20, 121, 20))
        self.assertEqual([line["step"] for line in evaluated], steps)
        saved = (self.folder / "checkpoints").glob("ckpt-*/index.json")
        self.assertEqual(sorted(int(path.parent.name.split("-")[1]) for path in saved), steps)
        validated = float(re.findall(r"test_loss (\d+\.\d+)", run.stdout)[-1])
        self.assertAlmostEqual(evaluated[-1]["loss"], validated, delta=1e-4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
