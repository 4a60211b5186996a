#!/usr/bin/env python3
"""The main job as scripts/quickstart runs it, from a manifest and from C++: the epoch figures of a right run on the drawn
digits, its curves, its checkpoints, its processes, its exit codes. And the Keras-like example on all of the drawn digits,
which takes longer.   example_test.py BIN_FOLDER Example|KerasLike"""
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "e2e"))
from process_job import free_ports, killed  # noqa: E402
from metrics_file import steps_of  # noqa: E402: found by process_job's path
from report_document import curve_of, document_of  # noqa: E402: likewise

TIMEOUT = 1500  # of one run, also of a sanitized program
# Train loss, train accuracy, test loss, test accuracy of each epoch: a reference run of the same job (batches of 128 of
# the first 5,000 digits, 39 of them full) to the digits that it was recorded with. They are means of the batches' means, as
# core_mlp prints them.
FIGURES = [(0.831, 0.772, 0.340, 0.901), (0.299, 0.911, 0.249, 0.926), (0.187, 0.946, 0.233, 0.929)]
# The same of a manifest's run: means over the 5,000 examples.
OVER_EXAMPLES = [(0.796, 0.778, 0.345, 0.898), (0.301, 0.909, 0.253, 0.924), (0.191, 0.944, 0.238, 0.9276)]


class Example(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([ROOT / "scripts" / "make-data", "--first", "5000", "--out", cls.folder / "data"], check=True,
                       timeout=TIMEOUT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def run_here(self, *command):
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                              stdin=subprocess.DEVNULL)

    def table(self, result):
        rows = re.findall(r"^ +(\d)  +([\d.]+)  +([\d.]+)  +([\d.]+)  +([\d.]+)$", result.stdout, re.MULTILINE)
        self.assertEqual([row[0] for row in rows], ["1", "2", "3"], result.stdout)
        return [tuple(map(float, row[1:])) for row in rows]

    def expect_figures(self, rows, want=FIGURES):
        self.assertEqual(len(rows), len(want), rows)
        for ours, reference in zip(rows, want):
            for a, b in zip(ours, reference):
                self.assertAlmostEqual(a, b, delta=0.0006)

    def test_the_manifest(self):
        result = self.run_here(BIN / "meshtrain", "run", "-f", ROOT / "deploy" / "examples" / "mnist-mlp.yaml",
                               "--output", "runs/manifest")
        self.assertEqual(result.returncode, 0, result.stderr)
        table = self.table(result)
        self.expect_figures(table, OVER_EXAMPLES)
        report = document_of(self.folder / "runs" / "manifest" / "report.html")
        for title, column in (("Loss", 2), ("Accuracy", 3)):
            self.assertEqual([round(value, 4) for _, value in curve_of(report, title, "test")], [row[column] for row in table])
        # 39 batches of 128 and one of 8: the two ways to count are those of the same steps.
        lines = steps_of(self.folder / "runs" / "manifest" / "metrics.jsonl")
        self.assertEqual(len(lines), 120)
        for epoch, row in enumerate(table):
            for figure, shown, means in zip(("loss", "accuracy"), row, FIGURES[epoch]):
                batches = [line[figure] for line in lines[40 * epoch:40 * epoch + 40]]
                self.assertAlmostEqual((128 * sum(batches[:39]) + 8 * batches[39]) / 5000, shown, delta=0.00006)
                self.assertAlmostEqual(sum(batches) / 40, means, delta=0.0006)

    def test_layouts_chosen_by_cost(self):
        text = (ROOT / "deploy" / "examples" / "mnist-mlp.yaml").read_text()
        edited = text.replace("mesh: {batch: 8}", "mesh: {batch: 2, model: 4}\n    layout: auto")
        self.assertNotEqual(edited, text)
        (self.folder / "auto.yaml").write_text(edited)
        plan = self.run_here(BIN / "meshtrain", "plan", "-f", "auto.yaml")
        self.assertRegex(plan.stdout, r"kernel .*model", plan.stderr)
        result = self.run_here(BIN / "meshtrain", "run", "-f", "auto.yaml", "--output", "runs/auto", "--isolated")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.expect_figures(self.table(result), OVER_EXAMPLES)

    def core_mlp(self, *more, code=0):
        """Its figures by epoch, and what it printed."""
        result = self.run_here(BIN / "core_mlp", "--data", "data", *more)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return self.epochs(result.stdout), result

    @staticmethod
    def epochs(text):
        rows = re.findall(r"^epoch (\d+): train loss ([\d.]+), train accuracy ([\d.]+), test loss ([\d.]+), "
                          r"test accuracy ([\d.]+)$", text, re.MULTILINE)
        return {int(row[0]): tuple(map(float, row[1:])) for row in rows}

    def test_cpp(self):
        for more in ([], ["--isolated"], ["--mesh", "batch=4,model=2"]):
            with self.subTest(more):
                figures, _ = self.core_mlp("--curves", "curves.html", *more)
                self.expect_figures(list(figures.values()))
                self.assertIn("<svg", (self.folder / "curves.html").read_text())

    def test_cpp_resumes_as_if_undisturbed(self):
        undisturbed, _ = self.core_mlp("--checkpoint", "whole")
        self.expect_figures(list(undisturbed.values()))
        for name, more in (("same", []), ("other", ["--mesh", "batch=4,model=2"]), ("isolated", ["--isolated"])):
            with self.subTest(name):
                first, _ = self.core_mlp("--checkpoint", name, "--epochs", "1")
                self.assertEqual(first, {1: undisturbed[1]})
                rest, result = self.core_mlp("--checkpoint", name, "--curves", f"{name}.html", *more)
                self.assertIn(f"resuming from {name}/ckpt-00000040 at step 40\n", result.stdout)
                self.assertEqual(list(rest), [2, 3])
                self.expect_figures([first[1], rest[2], rest[3]])
                if name == "same":
                    self.assertEqual({**first, **rest}, undisturbed)
                # The curves are those of all epochs; a run that is done trains no more.
                self.assertIn(f"{undisturbed[1][0]:.4f}", (self.folder / f"{name}.html").read_text())
                self.assertEqual(sorted(p.name for p in (self.folder / name).iterdir()),
                                 ["ckpt-00000040", "ckpt-00000080", "ckpt-00000120"])
                self.assertEqual(self.core_mlp("--checkpoint", name)[0], {})

    def damage(self, checkpoint):
        file = next((self.folder / checkpoint).glob("*.safetensors"))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        return str(file.relative_to(self.folder))

    def test_cpp_and_what_is_wrong_with_its_checkpoints(self):
        few = ["--take", "256"]  # two steps an epoch
        undisturbed, _ = self.core_mlp(*few, "--checkpoint", "wrong")
        file = self.damage("wrong/ckpt-00000006")
        again, result = self.core_mlp(*few, "--checkpoint", "wrong")
        self.assertIn(file, result.stderr)
        self.assertIn("resuming from wrong/ckpt-00000004 at step 4\n", result.stdout)
        self.assertEqual(again, {3: undisturbed[3]})
        for step in (2, 4, 6):
            file = self.damage(f"wrong/ckpt-0000000{step}")
            if step == 2:
                oldest = file
        _, result = self.core_mlp(*few, "--checkpoint", "wrong", code=65)
        self.assertIn(f"DATA_LOSS: no whole checkpoint is left: {oldest}: bytes", result.stderr)

        self.core_mlp(*few, "--checkpoint", "batches", "--epochs", "1")
        _, result = self.core_mlp(*few, "--checkpoint", "batches", "--batch", "64", code=78)
        self.assertIn("batches/ckpt-00000002: ", result.stderr)
        # A manifest's checkpoints are of the same kind: of the same model they fit, of another they say so.
        example = (ROOT / "deploy" / "examples" / "mnist-mlp.yaml").read_text().replace("take: 5000", "take: 256")
        for name, old, new, code, words in (
                ("same", "", "", 0, None),
                ("narrow", "units: 700", "units: 600", 78, "hidden_1.kernel`: expected f32[784,700], got: f32[784,600]"),
                ("renamed", "name: hidden_2", "name: second", 78, "hidden_2.kernel`: expected f32[700,500], got: no such")):
            with self.subTest(name):
                self.assertIn(old, example)
                (self.folder / f"{name}.yaml").write_text(example.replace(old, new))
                ran = self.run_here(BIN / "meshtrain", "run", "-f", f"{name}.yaml", "--output", f"runs/{name}")
                self.assertEqual(ran.returncode, 0, ran.stderr)
                _, result = self.core_mlp(*few, "--checkpoint", f"runs/{name}/checkpoints", code=code)
                if words:
                    self.assertIn(f"runs/{name}/checkpoints/ckpt-00000006: it is of another model: `{words}", result.stderr)
                else:
                    self.assertIn(f"resuming from runs/{name}/checkpoints/ckpt-00000006 at step 6", result.stdout)
        _, result = self.core_mlp(*few, "--checkpoint", "data/manifest.json/checkpoints", code=73)
        self.assertIn("data/manifest.json/checkpoints", result.stderr)

    def start_two(self, *more):
        """core_mlp in two processes that find each other by TF_CONFIG."""
        hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
        running = []
        for index in range(2):
            config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
            running.append(subprocess.Popen(
                [BIN / "core_mlp", "--data", "data", *more], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, TF_CONFIG=json.dumps(config))))
            self.addCleanup(self.end, running[-1])
        return running

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def test_cpp_in_two_processes(self):
        alone, _ = self.core_mlp()
        for mesh in ("batch=8", "model=2,batch=4"):
            with self.subTest(mesh):
                folder = f"two-{mesh}"
                running = self.start_two("--mesh", mesh, "--checkpoint", folder, "--curves", f"{folder}.html")
                said = [process.communicate(timeout=TIMEOUT) for process in running]
                self.assertEqual([process.returncode for process in running], [0, 0], said)
                figures = self.epochs(said[0][0])
                self.expect_figures(list(figures.values()))
                for epoch, row in alone.items():
                    for a, b in zip(figures[epoch], row):
                        self.assertAlmostEqual(a, b, delta=0.0006)
                self.assertEqual(said[1][0], "", "only the chief prints")
                self.assertIn("<svg", (self.folder / f"{folder}.html").read_text())
                self.assertEqual(len(list((self.folder / folder / "ckpt-00000120").glob("shard-*-of-00002*"))), 2)
                # What two have saved, one goes on from.
                shutil.rmtree(self.folder / folder / "ckpt-00000120")
                rest, _ = self.core_mlp("--checkpoint", folder)
                self.expect_figures([figures[1], figures[2], rest[3]])
        running = self.start_two("--mesh", "batch=7")
        said = [process.communicate(timeout=TIMEOUT)[1] for process in running]
        self.assertIn("expected devices that 2 processes have equal parts of, got: 7 (batch=7)", said[0])
        self.assertEqual([process.returncode for process in running], [78, 78], said)

    def test_cpp_goes_on_after_a_process_was_lost(self):
        few = ["--take", "512", "--checkpoint", "lost"]
        running = self.start_two(*few, "--epochs", "100000")
        while not running[0].stdout.readline().startswith("epoch 3:"):
            self.assertIsNone(running[0].poll(), "the chief left")
        running[1].kill()
        said = running[0].communicate(timeout=TIMEOUT)[1]
        self.assertEqual(running[0].returncode, 138, said)
        self.assertRegex(said, "core_mlp: UNAVAILABLE: .*" + killed(1))
        done = max(int(p.parent.name[-8:]) for p in (self.folder / "lost").glob("ckpt-*/index.json")) // 4
        self.assertGreaterEqual(done, 2)
        more = ["--epochs", str(done + 2)]
        undisturbed, _ = self.core_mlp("--take", "512", *more)
        running = self.start_two(*few, *more)
        said = [process.communicate(timeout=TIMEOUT) for process in running]
        self.assertEqual([process.returncode for process in running], [0, 0], said)
        figures = self.epochs(said[0][0])
        self.assertEqual(list(figures), [done + 1, done + 2])
        for epoch, row in figures.items():
            for a, b in zip(row, undisturbed[epoch]):
                self.assertAlmostEqual(a, b, delta=0.004)  # the accuracy of two images of 512

    def test_cpp_says_what_is_wrong(self):
        for code, words, more in ((64, "--no-such-flag", ["--no-such-flag"]), (64, "--epochs", ["--epochs", "-1"]),
                                  (64, "--batch", ["--batch", "0"]), (66, "nowhere/train-images", ["--data", "nowhere"]),
                                  (78, "batch", ["--data", "data", "--mesh", "batch"]),
                                  (78, "axis `spare` in no layout", ["--data", "data", "--mesh", "batch=2,spare=2,one=1"]),
                                  (73, "data/curves.html", ["--data", "data", "--epochs", "0", "--curves",
                                                            "data/manifest.json/data/curves.html"])):
            with self.subTest(words):
                result = self.run_here(BIN / "core_mlp", *more)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(words, result.stderr)
                self.assertRegex(result.stderr, "^core_mlp: ")


# 128 hidden units, Adam with a rate of 0.01 on the sum of the batch's losses, all 60,000 drawn digits shuffled anew for each
# of three passes, on a mesh of eight.
KERAS_LIKE = """
seed: {seed}
mesh: {{batch: 8}}
data:
  train: {{idx: {{images: {data}/train-images-idx3-ubyte.gz, labels: {data}/train-labels-idx1-ubyte.gz}}}}
  test: {{idx: {{images: {data}/t10k-images-idx3-ubyte.gz, labels: {data}/t10k-labels-idx1-ubyte.gz}}}}
  map: [{{scale: 0.00392156862745098}}]
  shuffle: {{buffer: 60000}}
  batch: 128
model: [flatten, dense: {{units: 128, activation: relu}}, dense: {{units: 10}}]
loss: {{sparse_categorical_crossentropy: {{from_logits: true, reduction: sum}}}}
optimizer: {{adam: {{learning_rate: 0.01}}}}
metrics: [accuracy]
train: {{epochs: 3}}
"""


class KerasLike(unittest.TestCase):
    """The accuracies of Keras on the same digits, with first weights and an order of its own."""

    # Of one device; those of the run over DTensor were 0.9005, 0.9682 and 0.9752.
    TRAIN = (0.9335, 0.9727, 0.9785)
    TEST = (0.9562, 0.9699, 0.9727)  # of the run over DTensor
    SEEDS = range(1, 6)

    def test_it_reaches_what_the_reference_does(self):
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run([ROOT / "scripts" / "make-data"], check=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True)
            runs = []
            for seed in self.SEEDS:
                manifest = Path(folder, f"{seed}.yaml")
                manifest.write_text(KERAS_LIKE.format(seed=seed, data=made.stdout.strip()))
                ran = subprocess.run([BIN / "meshtrain", "run", "-f", manifest, "--output", Path(folder, str(seed))],
                                     capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                rows = re.findall(r"^ +\d  +[\d.]+  +([\d.]+)  +[\d.]+  +([\d.]+)$", ran.stdout, re.MULTILINE)
                self.assertEqual(len(rows), 3, ran.stdout)
                runs.append([tuple(map(float, row)) for row in rows])
        # The reference is one more draw of what ours are draws of: it lies within three deviations of their mean, where the
        # mean itself is known to one over the root of their number, and the reference's digits to 0.00005.
        for epoch in range(3):
            for which, want in enumerate((self.TRAIN, self.TEST)):
                ours = [run[epoch][which] for run in runs]
                mean = sum(ours) / len(ours)
                deviation = math.sqrt(sum((one - mean) ** 2 for one in ours) / (len(ours) - 1))
                print(f"epoch {epoch + 1}: {ours}, mean {mean:.4f}, deviation {deviation:.4f}, reference {want[epoch]}")
                self.assertLess(abs(mean - want[epoch]), 3 * deviation * math.sqrt(1 + 1 / len(ours)) + 0.00005)
        self.assertGreaterEqual(mean, 0.97, "of the test digits, after three epochs")


if __name__ == "__main__":
    unittest.main()
