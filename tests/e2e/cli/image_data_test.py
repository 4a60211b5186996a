#!/usr/bin/env python3
"""Folders of PNG images and arrays of numpy's, flipped and cropped, by jobs that the worker trains: the figures are the same
in every number of processes and after a restart.   image_data_test.py BIN_FOLDER"""
import json
import random
import signal
import struct
import sys
import unittest
import zlib
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import lines_of, steps_of  # noqa: E402
from cli_case import TIMEOUT, RunningCase  # noqa: E402: it takes BIN_FOLDER from the arguments

MANIFEST = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: images}}
spec:{strategy}
  replicaSpecs: {{{replicas}}}
  checkpoint: {{everySteps: 1000000}}
  program:
    seed: 3{mesh}
    data:
      train: {{{train}}}
      test: {{{test}}}
      map:
        - random_crop: {{size: [8, 8], padding: 2}}
        - random_flip
        - cast: {dtype}
        - normalize: {{mean: [128, 64, 128], deviation: [128, 64, 96]}}
      shuffle: {{buffer: 64}}
      batch: 12
      cache: {cache}
      uneven: true
    model:
      - flatten
      - dense: {{name: hidden, units: 12, activation: tanh}}
      - dense: {{name: logits, units: 3}}
    layout: {{rules: [{rules}]}}
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: {{sgd: {{learning_rate: 0.05}}}}
    metrics: [accuracy]
    train: {{epochs: {epochs}}}
"""
CLASSES = ("circle", "line", "noise")


def png(rows):
    """Rows of (red, green, blue)."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    raw = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def npy(descr, shape, data):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def draw(kind, chance, height=8, width=8):
    def pixel(r, c):
        if kind == "circle":
            return 220 if 4 < (r - 3.5) ** 2 + (c - 3.5) ** 2 < 14 else chance.randrange(40)
        if kind == "line":
            return 220 if c == 3 else chance.randrange(40)
        return chance.randrange(256)
    return [[(value := pixel(r, c), value // 2, 255 - value) for c in range(width)] for r in range(height)]


class ImageData(RunningCase):
    def setUp(self):
        super().setUp()
        chance = random.Random(5)
        self.pixels, self.labels = {}, {}
        for part, each in (("train", 16), ("test", 5)):
            self.pixels[part], self.labels[part] = b"", b""
            for label, kind in enumerate(CLASSES):
                (self.folder / part / kind).mkdir(parents=True)
                for i in range(each):
                    rows = draw(kind, chance)
                    (self.folder / part / kind / f"{i:03}.png").write_bytes(png(rows))
                    self.pixels[part] += bytes(value for row in rows for pixel in row for value in pixel)
                    self.labels[part] += struct.pack("<q", label)

    def images(self, epochs=2, dtype="f64", cache="true", mesh="{batch: 4}", replicas="worker: {replicas: 1}", strategy="", rules="", **sources):
        path = self.folder / "job.yaml"
        given = {part: f"image_folder: {{folder: {self.folder}/{part}}}" for part in ("train", "test")} | sources
        path.write_text(MANIFEST.format(epochs=epochs, dtype=dtype, cache=cache, replicas=replicas, strategy=strategy, rules=rules,
                                        mesh=f"\n    mesh: {mesh}" if mesh else "", **given))
        return str(path)

    def figures(self, output):
        """Of every step, and of every validation."""
        return [line["loss"] if "loss" in line else line["val_loss"] for line in lines_of(self.folder / output / "metrics.jsonl")]

    def train(self, output, **given):
        result = self.run_job(self.images(**given), output=output)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.figures(output)

    def expect_same(self, got, want):
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertAlmostEqual(a, b, delta=1e-6)  # metrics.jsonl is rounded

    def test_figures_are_the_same_in_every_number_of_processes(self):
        want = self.train("one")
        self.assertEqual(len(want), 2 * 5)  # 4 steps and a validation in each epoch
        for processes in (2, 4):
            self.expect_same(self.train(f"of{processes}", replicas=f"worker: {{replicas: {processes}}}"), want)
        self.expect_same(self.train("alone", mesh="{batch: 1}", cache="false"), want)
        self.expect_same(self.train("model", mesh="{batch: 2, model: 2}", replicas="worker: {replicas: 2}",
                                    rules="{match: 'hidden.*kernel', spec: [unsharded, model]}"), want)

    def test_arrays_of_the_same_images_give_the_same_figures(self):
        sources = {}
        for part, pixels in self.pixels.items():
            count = len(self.labels[part]) // 8
            (self.folder / f"{part}-x.npy").write_bytes(npy("|u1", (count, 8, 8, 3), pixels))
            (self.folder / f"{part}-y.npy").write_bytes(npy("<i8", (count,), self.labels[part]))
            sources[part] = f"npy: {{images: {self.folder}/{part}-x.npy, labels: {self.folder}/{part}-y.npy, labels_as: i32}}"
        self.assertEqual(self.train("arrays", **sources), self.train("folders"))
        self.expect_same(self.train("of2", replicas="worker: {replicas: 2}", **sources), self.figures("arrays"))
        # Flipped and cropped, or the images would be those that lie there.
        path = Path(self.images(**sources))
        path.write_text(path.read_text().replace("        - random_flip\n", ""))
        self.assertEqual(self.run_job(str(path), output="unflipped").returncode, 0)
        self.assertNotEqual(self.figures("unflipped")[:4], self.figures("arrays")[:4])
        # Under parameter servers each worker reads them by itself.
        roles = "chief: {replicas: 1}, worker: {replicas: 2}, ps: {replicas: 1}"
        for name, given in (("ps-arrays", sources), ("ps-folders", {})):
            self.train(name, mesh="", strategy="\n  strategy: ParameterServer", replicas=roles, dtype="f32", **given)

    def test_a_run_that_is_stopped_within_a_pass_goes_on_with_the_same_images(self):
        epochs = 1000
        want = self.train("whole", epochs=epochs)
        child = self.start(self.images(epochs=epochs))
        within = lambda: (n := len(self.read(self.folder / "out" / "metrics.jsonl").splitlines())) >= 12 and n % 5 in (1, 2)
        trainer = self.hold_when(child, within)
        child.send_signal(signal.SIGTERM)
        trainer.send_signal(signal.SIGCONT)
        child.communicate(timeout=TIMEOUT)
        done = len(steps_of(self.folder / "out" / "metrics.jsonl"))
        self.assertLess(done, 4 * epochs)
        again = self.run_job(self.images(epochs=epochs))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("resuming from", again.stdout)
        self.assertEqual(self.figures("out"), want)

    def test_validation_and_evaluation_see_the_images_as_they_are(self):
        self.train("out")
        steps = lines_of(self.folder / "out" / "metrics.jsonl")
        manifest = self.images()
        first = self.meshtrain("evaluate", "-f", manifest, "--from", str(self.folder / "out"), "-o", "json")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(self.meshtrain("evaluate", "-f", manifest, "--from", str(self.folder / "out"), "-o", "json").stdout, first.stdout)
        self.assertAlmostEqual(json.loads(first.stdout)["figures"]["loss"], steps[-1]["val_loss"], delta=1e-5)
        # What is random in training does not matter to it.
        plain = Path(manifest)
        plain.write_text(plain.read_text().replace("        - random_crop: {size: [8, 8], padding: 2}\n        - random_flip\n", ""))
        self.assertEqual(self.meshtrain("evaluate", "-f", manifest, "--from", str(self.folder / "out"), "-o", "json").stdout, first.stdout)

    def test_what_is_wrong_is_said_before_anything_runs(self):
        valid = self.meshtrain("validate", "-f", self.images())
        self.assertEqual(valid.returncode, 0, valid.stderr)
        for old, new, words in (
                ("size: [8, 8]", "size: [8]", ["size: expected [height, width], each at least 1"]),
                ("- random_flip\n", "- random_flip: {horizontal: false}\n", ["horizontal: expected true, or `vertical: true`"]),
                ("- random_flip\n", "- random_flop\n", ["random_flop", "random_flip"]),
                ("size: [8, 8]", "size: [9, 13]", ["random_crop: expected a size of at most [12, 12]", "got: [9, 13]"]),
                ("mean: [128, 64, 128]", "mean: [128, 64]",
                 ["normalize: expected one mean, or one for each channel (3), got: 2"]),
                ("{folder:", "{color_mode: gray, folder:", ["color_mode: expected one of grayscale, rgb, rgba"])):
            path = Path(self.images())
            path.write_text(path.read_text().replace(old, new))
            result = self.meshtrain("validate", "-f", str(path))
            self.assertNotEqual(result.returncode, 0, words)
            for word in words:
                self.assertIn(word, result.stderr)
        (self.folder / "test" / "square").mkdir()
        for verb in ("validate", "plan"):
            self.expect_error(self.meshtrain(verb, "-f", self.images()), 65,
                              f"{self.folder}/test: expected the classes of {self.folder}/train, of which number 3 is none, got: `square`")
        self.expect_error(self.run_job(self.images(), output="square"), 65, "got: `square`")
        (self.folder / "test" / "square").rmdir()
        kept = self.meshtrain("validate", "-f", self.images(cache="false", train=f"idx: {{images: {self.folder}/a, labels: b}}"))
        self.assertIn("program.data.cache: expected true", kept.stderr)

    def test_a_damaged_image_is_named(self):
        bad = self.folder / "train" / "line" / "007.png"
        sound = bad.read_bytes()
        bad.write_bytes(sound[:60])
        for replicas in (1, 2):
            result = self.run_job(self.images(replicas=f"worker: {{replicas: {replicas}}}"), output=f"cut{replicas}")
            self.expect_error(result, 65, f"{bad}: byte ", "expected a sound PNG image, got: end of file")
        bad.write_bytes(png(draw("line", random.Random(1), 9, 8)))
        self.expect_error(self.run_job(self.images(), output="size"), 65,
                          f"{bad}: byte 16: expected 8 rows of 8 pixels, as {self.folder}/train/circle/000.png has, got: 9 of 8")
        bad.write_bytes(sound)
        self.expect_error(self.run_job(self.images(train=f"image_folder: {{folder: {self.folder}/none}}"), output="none"), 66,
                          f"{self.folder}/none: cannot read the folder")


if __name__ == "__main__":
    unittest.main(verbosity=2)
