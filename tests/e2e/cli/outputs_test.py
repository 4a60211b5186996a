#!/usr/bin/env python3
"""A model of two outputs from its manifest to its predictions: the same figures on one device, on meshes and in parts of
batches; its page, its evaluation and a file of predictions for each output.   outputs_test.py BIN_FOLDER"""
import json
import math
import re
import struct
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import steps_of, validations_of  # noqa: E402
from cli_case import Case, npy  # noqa: E402: it takes BIN_FOLDER from the arguments

MANIFEST = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: two}}
spec:
  strategy: {strategy}
  replicaSpecs: {{worker: {{replicas: 1}}}}
  program:
    seed: 3
{mesh}
    data:
      train: {{npy: {{images: {folder}/x.npy, labels: {folder}/digit.npy, more: {{odd: {folder}/odd.npy}}}}}}
      test: {{npy: {{images: {folder}/x.npy, labels: {folder}/digit.npy, more: {{odd: {folder}/odd.npy}}}}, take: 40}}
      map: [{{scale: 0.00392156862745098}}]
      batch: 22
      uneven: true
    model:
      layers:
        - flatten: {{inputs: x}}
        - dense: {{name: trunk, units: 12, activation: relu}}
        - dense: {{name: digit, units: 10}}
        - dense: {{name: parity, units: 1, inputs: trunk}}
    outputs:
      - layer: digit
        loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
        metrics: [accuracy]
      - {{layer: parity, labels: odd, loss: {{binary_crossentropy: {{from_logits: true}}}}, weight: 0.25, metrics: [auc]}}
    optimizer: {{adam: {{learning_rate: 0.01}}}}
    train: {{epochs: 2, early_stopping: {{monitor: val_parity_auc, patience: 5}}}}
"""
FIGURES = ["loss", "digit_loss", "digit_accuracy", "parity_loss", "parity_auc"]


class TwoOutputs(Case):
    def setUp(self):
        super().setUp()
        count = 100
        self.pixels = bytes(200 if row == i % 10 else (i * 7 + row * 3) % 20
                            for i in range(count) for row in range(10) for _ in range(10))
        (self.folder / "x.npy").write_bytes(npy(self.pixels, (count, 10, 10)))
        (self.folder / "digit.npy").write_bytes(npy(bytes(i % 10 for i in range(count)), (count,)))
        (self.folder / "odd.npy").write_bytes(npy(bytes(i % 2 for i in range(count)), (count,)))

    def job(self, name="two", strategy="Mesh", mesh="    mesh: {batch: 2}", edit=lambda text: text):
        path = self.folder / f"{name}.yaml"
        path.write_text(edit(MANIFEST.format(folder=self.folder, strategy=strategy, mesh=mesh)))
        return str(path)

    def worker(self, *arguments):
        return self.meshtrain(*arguments, tool="meshtrain-worker")

    def run_of(self, job, name):
        result = self.worker("-f", job, "--output", str(self.folder / name))
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.folder / name

    def close(self, got, want, delta=1e-4):
        for figure in want:
            self.assertAlmostEqual(got[figure], want[figure], delta=delta, msg=figure)

    def test_from_the_manifest_to_predictions(self):
        job = self.job()
        out = self.run_of(job, "out")
        first = steps_of(out / "metrics.jsonl")[0]
        self.assertEqual([name for name in first if name in FIGURES], FIGURES)
        self.assertAlmostEqual(first["loss"], first["digit_loss"] + 0.25 * first["parity_loss"], delta=1e-5)
        told = validations_of(out / "metrics.jsonl")[-1]
        want = {figure: told[f"val_{figure}"] for figure in FIGURES}
        # The page has a curve of each, and so has what it is made of.
        charts = json.dumps(json.loads((out / "run.json").read_text()))
        for title in ("Loss", "Digit loss", "Digit accuracy", "Parity loss", "Parity auc"):
            self.assertRegex(charts, re.compile(f'"{title}"', re.IGNORECASE))
        evaluated = self.worker("evaluate", "-f", job, "--from", str(out), "-o", "json")
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        self.assertEqual(json.loads(evaluated.stdout)["figures"], want)
        self.predictions(job, out, want)

    def predictions(self, job, out, want):
        (self.folder / "forty.npy").write_bytes(npy(self.pixels[:4000], (40, 10, 10)))
        predict = lambda to: self.worker("predict", "-f", job, "--from", str(out), "--input",
                                         str(self.folder / "forty.npy"), "--output", to)
        self.assertEqual(predict(str(self.folder / "p.npy")).returncode, 0)
        self.assertEqual(predict(str(self.folder / "p.csv")).returncode, 0)
        read = lambda name: [[float(x) for x in line.split(",")] for line in (self.folder / name).read_text().splitlines()]
        digit, parity = read("p.digit.csv"), read("p.parity.csv")
        self.assertFalse((self.folder / "p.csv").exists())
        floats = struct.unpack("<40f", (self.folder / "p.parity.npy").read_bytes()[-160:])
        self.assertEqual([struct.unpack("<f", struct.pack("<f", row[0]))[0] for row in parity], list(floats))
        self.assertIn(b"'shape': (40, 10)", (self.folder / "p.digit.npy").read_bytes()[:128])
        # They give the losses that the evaluation has.
        losses = [math.log(sum(math.exp(x) for x in row)) - row[i % 10] for i, row in enumerate(digit)]
        self.assertAlmostEqual(sum(losses) / 40, want["digit_loss"], delta=1e-5)
        losses = [math.log(1 + math.exp(-row[0] if i % 2 else row[0])) for i, row in enumerate(parity)]
        self.assertAlmostEqual(sum(losses) / 40, want["parity_loss"], delta=1e-5)
        # One that is there already stops both.
        (self.folder / "q.parity.csv").write_text("mine")
        self.expect_error(predict(str(self.folder / "q.csv")), 73, "q.parity.csv: expected no file of this name")
        self.assertFalse((self.folder / "q.digit.csv").exists())
        self.expect_error(predict("-"), 78, "meshtrain-worker predict: --output: expected a file's name, since", "program.outputs")

    def test_every_way_to_run_it_gives_its_numbers(self):
        one = self.run_of(self.job("one", strategy="OneDevice", mesh=""), "one")
        alone = validations_of(one / "metrics.jsonl")[-1]
        want = {f"val_{figure}": alone[f"val_{figure}"] for figure in FIGURES}
        ways = {
            "mesh": {"mesh": "    mesh: {batch: 2, model: 2}",
                     "edit": lambda t: t + "    layout: {rules: [{match: trunk.kernel, spec: [unsharded, model]}]}\n"},
            "parts": {"edit": lambda t: t.replace("epochs: 2", "epochs: 2, accumulate: 4")},
            "mirrored": {"strategy": "Mirrored", "mesh": "    devices: {count: 2}"},
        }
        for name, way in ways.items():
            with self.subTest(way=name):
                out = self.run_of(self.job(name, **way), name)
                self.close(validations_of(out / "metrics.jsonl")[-1], want)

    def test_sixteen_bits_come_near(self):
        job = self.job("half", edit=lambda t: t + "    precision: bf16\n")
        told = validations_of(self.run_of(job, "half") / "metrics.jsonl")[-1]
        exact = validations_of(self.run_of(self.job(), "exact") / "metrics.jsonl")[-1]
        self.close(told, {name: exact[name] for name in ("val_loss", "val_digit_loss", "val_parity_loss")}, delta=0.05)

    def test_mistakes_are_told_before_anything_runs(self):
        for edit, words in (
                (lambda t: t + "    loss: mse\n", "program.loss: expected none beside `outputs`"),
                (lambda t: t.replace("layer: parity", "layer: parita"), "no layer of the model is named `parita`, did you mean"),
                (lambda t: t.replace("labels: odd", "labels: even"), "no component of the data is named `even`"),
                (lambda t: t.replace("val_parity_auc", "val_auc"), "unknown figure `val_auc`"),
                (lambda t: t.replace("weight: 0.25", "weight: -1"), "program.outputs[1].weight: expected a number of at least 0")):
            result = self.worker("-f", self.job("wrong", edit=edit), "--output", str(self.folder / "wrong"))
            self.expect_error(result, 78, words)
        # A label of the second output that is no class of it.
        (self.folder / "odd.npy").write_bytes(npy(bytes(3 if i == 7 else i % 2 for i in range(100)), (100,)))
        result = self.worker("-f", self.job("label"), "--output", str(self.folder / "label"))
        self.expect_error(result, 65, "odd.npy: example 7: label 3, but 2 classes")


if __name__ == "__main__":
    unittest.main(verbosity=2)
