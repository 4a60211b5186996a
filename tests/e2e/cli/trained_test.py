#!/usr/bin/env python3
"""A trained model is used: `meshtrain evaluate` says what the run's validation said, `meshtrain predict` what the model
thinks of each example, from a run, a checkpoint or its safetensors file.   trained_test.py BIN_FOLDER"""
import gzip
import json
import math
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import validations_of  # noqa: E402
from process_table import program_below  # noqa: E402
from cli_case import BIN, TIMEOUT, Case, idx, npy  # noqa: E402: it takes BIN_FOLDER from the arguments


class Trained(Case):
    """One run for all: a mesh of two devices, a last batch that is shorter."""

    def setUp(self):
        super().setUp()
        # 40 examples of the test data in batches of 22: 22 and 18.
        self.job = self.manifest(batch=22, epochs=2, edit=lambda t: t.replace("      batch:", "      drop_remainder: true\n      batch:"))
        result = self.run_job(self.job)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.out = self.folder / "out"

    def test_a_terminal_that_goes_away_stops_it(self):
        many = 400_000
        (self.folder / "many.npy").write_bytes(npy(bytes(many * 100), (many, 10, 10)))
        child = subprocess.Popen([BIN / "meshtrain", "predict", self.job, "--from", str(self.out), "--input",
                                  str(self.folder / "many.npy"), "--output", str(self.folder / "many.csv")],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        while child.poll() is None and program_below(child.pid, "meshtrain-worker") is None:
            time.sleep(0.002)
        child.send_signal(signal.SIGHUP)
        _, error = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 129, error)
        self.assertFalse((self.folder / "many.csv").exists())

    def figures(self, source, *more, job=None):
        result = self.meshtrain("evaluate", job or self.job, "--from", str(source), "-o", "json", *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        read = json.loads(result.stdout)
        self.assertEqual(read["examples"], 40)
        return read["figures"]

    def test_a_run_is_evaluated_and_predicts(self):
        self.evaluations()
        self.predictions()
        self.mistakes()

    def evaluations(self):
        told = validations_of(self.out / "metrics.jsonl")[-1]
        want = {"loss": told["val_loss"], "accuracy": told["val_accuracy"]}
        checkpoints = sorted((self.out / "checkpoints").glob("ckpt-*"))
        for source in (self.out, self.out / "model.safetensors", self.out / "checkpoints", checkpoints[-1]):
            with self.subTest(source=source.name):
                self.assertEqual(self.figures(source), want, "the same to the last digit")
        alone = self.figures(self.out, "--one-device")
        self.assertAlmostEqual(alone["loss"], want["loss"], delta=1e-6)
        self.assertNotEqual(self.figures(checkpoints[0])["loss"], want["loss"], "an earlier step")
        table = self.meshtrain("evaluate", "-f", self.job, "--from", str(self.out))
        self.assertEqual(table.stdout, f"loss       {want['loss']:.4f}\naccuracy   {want['accuracy']:.4f}\nexamples   40\n")
        # Elsewhere lies the data of a machine that never saw the training data.
        away = self.folder / "away"
        away.mkdir()
        for name in ("images.gz", "labels.gz"):
            shutil.copy(self.folder / name, away / name)
        text = Path(self.job).read_text().replace(str(self.folder), "/nowhere")
        (self.folder / "away.yaml").write_text(text)
        self.assertEqual(self.figures(self.out, "--data", str(away), job=str(self.folder / "away.yaml")), want)

    def predictions(self):
        told = validations_of(self.out / "metrics.jsonl")[-1]
        # The first 40 images, those of data.test, as a plain IDX file and as numpy's.
        pixels = gzip.decompress((self.folder / "images.gz").read_bytes())[16:][:40 * 100]
        (self.folder / "forty.idx").write_bytes(idx(pixels, (40, 10, 10)))
        (self.folder / "forty.npy").write_bytes(npy(pixels, (40, 10, 10)))
        results = []
        for source, to in (("forty.idx", "a.csv"), ("forty.npy", "b.jsonl"), ("forty.npy", "c.npy")):
            result = self.meshtrain("predict", self.job, "--from", str(self.out), "--input", str(self.folder / source),
                                    "--output", str(self.folder / to))
            self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
            results.append((self.folder / to).read_bytes())
        logits = [[float(x) for x in line.split(",")] for line in results[0].decode().splitlines()]
        self.assertEqual([json.loads(line) for line in results[1].decode().splitlines()], logits)
        self.assertIn(b"'descr': '<f4', 'fortran_order': False, 'shape': (40, 10)", results[2][:128])
        floats = struct.unpack("<400f", results[2][-1600:])
        self.assertEqual([struct.unpack("<f", struct.pack("<f", x))[0] for row in logits for x in row], list(floats))
        # They are the examples' own, in order: they give the figures that the evaluation has.
        losses = [math.log(sum(math.exp(x) for x in row)) - row[i % 10] for i, row in enumerate(logits)]
        self.assertAlmostEqual(sum(losses) / 40, told["val_loss"], delta=1e-5)
        right = sum(max(range(10), key=row.__getitem__) == i % 10 for i, row in enumerate(logits))
        self.assertAlmostEqual(right / 40, told["val_accuracy"], delta=1e-6)
        # One alone, to stdout: a batch that two devices do not divide.
        (self.folder / "one.npy").write_bytes(npy(pixels[700:800], (1, 10, 10)))
        one = self.meshtrain("predict", self.job, "--from", str(self.out), "--input", str(self.folder / "one.npy"),
                             "--output", "-")
        self.assertEqual(one.returncode, 0, one.stderr)
        for got, want in zip((float(x) for x in one.stdout.split(",")), logits[7]):
            self.assertAlmostEqual(got, want, delta=1e-4)

    def mistakes(self):
        evaluate = lambda *more, job=self.job: self.meshtrain("evaluate", job, *more)
        none = str(self.folder / "none")
        self.expect_error(evaluate("--from", none), 66, f"meshtrain evaluate: {none}: expected weights")
        self.expect_error(evaluate("--from", str(self.folder)), 65, "expected a run's folder with model.safetensors, or a checkpoint")
        # A run that was killed before it left its model.
        half = self.folder / "half"
        shutil.copytree(self.out / "checkpoints", half / "checkpoints")
        self.expect_error(evaluate("--from", str(half)), 78, f"{half}: expected the folder of a run that has ended",
                          f"{half}/checkpoints/ckpt-")
        other = self.folder / "other.yaml"
        other.write_text(Path(self.job).read_text().replace("units: 12", "units: 13").replace("name: logits", "name: last"))
        self.expect_error(evaluate("--from", str(self.out), job=str(other)), 65, "model.safetensors",
                          "`hidden.kernel`: expected f32[100,13], got: f32[100,12]",
                          "expected `last.kernel` f32[13,10], got: no tensor of that name")
        predict = lambda source, to: self.meshtrain("predict", self.job, "--from", str(self.out), "--input",
                                                    str(self.folder / source), "--output", str(self.folder / to))
        (self.folder / "small.npy").write_bytes(npy(bytes(2 * 64), (2, 8, 8)))
        self.expect_error(predict("small.npy", "d.npy"), 65, "`hidden.kernel`: expected f32[64,12], got: f32[100,12]",
                          "examples of f32[8,8], those of")
        (self.folder / "short.npy").write_bytes(npy(bytes(400), (2, 10, 10), "<i2"))
        self.expect_error(predict("short.npy", "d.npy"), 65, "short.npy: byte 10: expected elements of <f4", "got: '<i2'")
        self.expect_error(predict("gone.npy", "d.npy"), 66, "gone.npy")
        self.expect_error(predict("forty.npy", "c.npy"), 73, "c.npy: expected no file of this name")
        self.expect_error(predict("forty.npy", "d.txt"), 64, "meshtrain predict: --output: expected a name with .npy")
        self.assertFalse((self.folder / "d.npy").exists())

    def test_an_id_outside_its_table_is_named(self):
        pixels_as_ids = """model:
      - embedding: {input_dim: 202, output_dim: 2}
      - flatten"""
        job = self.manifest(epochs=1, edit=lambda t: t.replace("      map: [{scale: 0.00392156862745098}]\n", "").replace(
            "model:\n      - flatten", pixels_as_ids))
        result = self.run_job(job, output="ids")
        self.assertEqual(result.returncode, 0, result.stderr)
        use = lambda verb, *more: self.meshtrain(verb, job, "--from", str(self.folder / "ids"), *more)
        self.assertEqual(use("evaluate").returncode, 0)
        ids = bytearray(3 * 100)
        ids[199] = 202
        (self.folder / "ids.npy").write_bytes(npy(ids, (3, 10, 10)))
        result = use("predict", "--input", str(self.folder / "ids.npy"), "--output", str(self.folder / "e.npy"))
        self.expect_error(result, 65, "ids.npy", "example 1: id 202, but 202 rows")
        self.assertFalse((self.folder / "e.npy").exists())
        images = gzip.decompress((self.folder / "images.gz").read_bytes())
        away = self.folder / "away"
        away.mkdir()
        (away / "images.gz").write_bytes(gzip.compress(images.replace(b"\xc8", b"\xff")))
        shutil.copy(self.folder / "labels.gz", away / "labels.gz")
        self.expect_error(use("evaluate", "--data", str(away)), 65, "images.gz", "example 0: id 255, but 202 rows")


if __name__ == "__main__":
    unittest.main(verbosity=2)
