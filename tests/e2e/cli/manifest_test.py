#!/usr/bin/env python3
"""Rows of docs/reference/manifest.md, each by a job that the worker trains.   manifest_test.py BIN_FOLDER"""
import json
import os
import re
import shutil
import struct
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import steps_of  # noqa: E402
from cli_case import Case  # noqa: E402: it takes BIN_FOLDER from the arguments


def tensors(path):
    """name -> (dtype, shape, bytes) of a safetensors file."""
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__", None)
    body = data[8 + size:]
    return {name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for name, t in head.items()}


def history(output):
    """The figures of each epoch as the newest checkpoint has them, unrounded."""
    index = max(output.glob("checkpoints/ckpt-*/index.json"))
    return json.loads(json.loads(index.read_text())["index"]["metadata"]["history"])


def edits(*pairs):
    def apply(text):
        for old, new in pairs:
            assert old in text, old
            text = text.replace(old, new)
        return text
    return apply


def model_axis(text):
    """Both weights split over `model`, 14 and 10 places of which 3 and 4 do not divide."""
    rules = "[{match: hidden.kernel, spec: [unsharded, model]}, {match: hidden.bias, spec: [model]}, {match: logits.kernel, spec: [model, unsharded]}]"
    return edits(("units: 12", "units: 14"), ("    train: {epochs", "    layout: {rules: %s}\n    train: {epochs" % rules))(text)


class ManifestCase(Case):
    def train(self, *more, output="out", **given):
        result = self.run_job(self.manifest(**given), *more, output=output)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def lines(self, output="out"):
        return steps_of(self.folder / output / "metrics.jsonl")

    def checkpoints(self, output="out"):
        return sorted(path.name for path in (self.folder / output / "checkpoints").glob("ckpt-*"))

    def forget(self, step, output="out"):
        """As if the job had been killed before it saved `step`."""
        shutil.rmtree(self.folder / output / "checkpoints" / f"ckpt-{step:08d}")


class OtherMesh(ManifestCase):
    def test_a_run_goes_on_where_the_mesh_is_another(self):
        self.train("--isolated", mesh="{batch: 2, model: 4}", edit=model_axis, output="whole")
        whole = self.lines("whole")
        self.assertEqual(len(whole), 10)
        for i, (mesh, more) in enumerate((("{model: 3}", ["--isolated"]), ("{batch: 5}", []))):
            with self.subTest(mesh):
                output = f"out{i}"
                self.train("--isolated", mesh="{batch: 2, model: 4}", epochs=1, edit=model_axis, output=output)
                self.forget(5, output)
                edit = model_axis if "model" in mesh else edits(("units: 12", "units: 14"))
                result = self.train(*more, mesh=mesh, edit=edit, output=output)
                self.assertIn("ckpt-00000003 at step 3", result.stdout)
                lines = self.lines(output)
                self.assertEqual([line["step"] for line in lines], list(range(1, 11)))
                for want, got in zip(whole, lines, strict=True):
                    self.assertAlmostEqual(got["loss"], want["loss"], delta=1e-5 * abs(want["loss"]))


class Rows(ManifestCase):
    def test_initial_weights_of_a_file_and_of_a_checkpoint(self):
        self.train(output="first")
        saved = self.folder / "first"
        given = lambda path: edits(("    data:", f"    initial_weights: {path}\n    data:"))
        runs = []
        for i, path in enumerate((saved / "model.safetensors", saved / "checkpoints" / "ckpt-00000010")):
            # A rate too small to change a weight's float: what comes out is what went in.
            self.train(edit=given(path), rate="1.0e-30", epochs=1, output=f"out{i}")
            got, want = tensors(self.folder / f"out{i}" / "model.safetensors"), tensors(saved / "model.safetensors")
            self.assertEqual(got, want)
            runs.append([line["loss"] for line in self.lines(f"out{i}")])
        self.assertEqual(runs[0], runs[1])
        self.assertLess(runs[0][0], 0.9 * self.lines("first")[0]["loss"])

    def test_initial_weights_that_are_not_there_or_not_these(self):
        self.train(epochs=1, output="first")
        weights = self.folder / "first" / "model.safetensors"
        given = lambda path, *more: edits(("    data:", f"    initial_weights: {path}\n    data:"), *more)
        run = lambda edit: self.run_job(self.manifest(edit=edit))
        none = self.folder / "none.safetensors"
        self.expect_error(run(given(none)), 66, f"{none}: ")
        self.expect_error(run(given(weights, ("units: 12", "units: 14"))), 65, f"{weights}: ", "hidden.kernel", "f32[100,14]", "f32[100,12]")
        self.expect_error(run(given(weights, ("name: hidden", "name: other"))), 65, f"{weights}: ", "other.kernel")
        bad = self.folder / "bad.safetensors"
        bad.write_bytes(b"\xff" * 100)
        self.expect_error(run(given(bad)), 65, f"{bad}: ")
        bad.write_bytes(weights.read_bytes()[:-1])
        self.expect_error(run(given(bad)), 65, f"{bad}: ")

    def test_keep(self):
        keep = lambda n: edits(("everySteps: 2", f"everySteps: 2, keep: {n}"))
        for n, kept in ((1, [10]), (2, [8, 10]), (4, [4, 6, 8, 10])):
            with self.subTest(n):
                self.train(every=2, edit=keep(n), output=f"out{n}")
                self.assertEqual(self.checkpoints(f"out{n}"), [f"ckpt-{step:08d}" for step in kept])

    def test_resume_never_begins_anew(self):
        self.train(epochs=2, output="whole")
        never = edits(("everySteps", "resume: Never, everySteps"))
        self.train(epochs=1)
        self.forget(5)
        result = self.train(epochs=2, edit=never)
        self.assertNotIn("resuming from", result.stdout)
        self.assertEqual([line["step"] for line in self.lines()], list(range(1, 11)))
        whole, out = (self.folder / name / "model.safetensors" for name in ("whole", "out"))
        self.assertEqual(out.read_bytes(), whole.read_bytes())
        # Even where what lies there is of another model, which `Latest` refuses.
        self.train(epochs=1)
        self.forget(5)
        other = edits(("units: 12", "units: 14"))
        self.assertEqual(self.run_job(self.manifest(edit=other)).returncode, 78)
        self.train(edit=lambda t: never(other(t)))

    def test_early_stopping_ends_it(self):
        def stop(given):
            return edits(("    train: {epochs", "    train: {early_stopping: {%s}, epochs" % given))

        # Nothing gets better at this rate, so the epoch after the first and `patience` more are in vain.
        for patience in (1, 3):
            with self.subTest(patience):
                output = f"out{patience}"
                said = self.train(rate="1.0e-30", epochs=50, edit=stop(f"patience: {patience}"), output=output)
                why = f"stopped early: step {5 * (1 + patience)}: val_loss has not been better than "
                self.assertRegex(said.stdout, re.escape(why) + rf"\d\.\d{{4}}, that of epoch 1, for {patience} epoch")
                self.assertIn("that of epoch 1, for", (self.folder / output / "report.html").read_text())
                self.assertEqual(self.lines(output)[-1]["step"], 5 * (1 + patience))
                self.assertEqual(self.checkpoints(output)[-1], f"ckpt-{5 * (1 + patience):08d}")
                self.assertTrue((self.folder / output / "model.safetensors").exists())
        # While it gets better it goes on; not by enough is not better.
        self.train(epochs=4, edit=stop("monitor: loss, patience: 1"), output="better")
        self.assertEqual(self.lines("better")[-1]["step"], 20)
        self.train(epochs=4, edit=stop("monitor: loss, patience: 1, min_delta: 100"), output="enough")
        self.assertEqual(self.lines("enough")[-1]["step"], 10)

    def test_the_best_epochs_weights_are_kept(self):
        # The second epoch is the last that gets better by so much, and by the end its checkpoint is an old one.
        worse = edits(("    train: {epochs", "    train: {early_stopping: {monitor: loss, min_delta: 1, patience: 5, restore_best_weights: true}, epochs"),
                      ("everySteps: 3", "everySteps: 100, keep: 2"), ("adam:", "sgd:"))
        model = lambda output: (self.folder / output / "model.safetensors").read_bytes()
        given = dict(rate=8, edit=worse)
        said = self.train(epochs=50, **given)
        best, last = 2, 5 * 7
        self.assertEqual(self.lines()[-1]["step"], last)
        self.assertIn(f"the model is that of the best epoch: epoch {best}, step {5 * best}, loss ", said.stdout)
        self.assertEqual(self.checkpoints(), [f"ckpt-{step:08d}" for step in (5 * best, last - 5, last)])
        self.train(epochs=best, output="best", **given)
        self.assertEqual(model("out"), model("best"))
        # A job that was killed and goes on knows it from its history.
        self.train(epochs=50, output="again", **given)
        self.forget(last, output="again")
        on = self.train(epochs=50, output="again", **given)
        self.assertIn(f"resuming from {self.folder}/again/checkpoints/ckpt-{last - 5:08d}", on.stdout)
        self.assertEqual(model("again"), model("best"))
        # Without being asked for, the model is that of the last epoch.
        self.train(epochs=50, rate=8, edit=lambda t: worse(t).replace(", restore_best_weights: true", ""), output="last")
        self.assertNotEqual(model("last"), model("best"))

    def test_a_finished_checkpoint_leaves_nothing_to_train(self):
        given = edits(("everySteps: 3", f"path: {self.folder}/saved, everySteps: 3"))
        self.train(edit=given)
        said = self.train(edit=given, output="other")
        self.assertIn(f"nothing is left to train: {self.folder}/saved/ckpt-00000010 is the end of 2 epochs", said.stdout)
        self.assertNotIn("epoch 0/0", said.stdout)
        models = [(self.folder / output / "model.safetensors").read_bytes() for output in ("out", "other")]
        self.assertEqual(models[0], models[1])

    def test_strict_gives_the_same_bits_on_any_mesh(self):
        layout = lambda given: ("    train: {epochs", "    layout: {%s}\n    train: {epochs" % given)
        strict = ("    seed: 3", "    seed: 3\n    numerics: strict")
        even = ("      batch:", "      drop_remainder: true\n      batch:")  # 24, of 100
        uneven = ("      batch:", "      uneven: true\n      batch:")
        columns = layout("rules: [{match: hidden.kernel, spec: [unsharded, model]}]")
        rows = layout("rules: [{match: hidden.kernel, spec: [model, unsharded]}]")
        models, runs = [], []
        for i, (mesh, more, *changes) in enumerate((
                ("{batch: 1}", []), ("{batch: 8}", []), ("{batch: 2, model: 2}", [], columns), ("{batch: 7}", [], uneven),
                ("{model: 3, batch: 4}", ["--threads", "1"], rows), ("{batch: 8}", [], layout("update: shared")))):
            self.train(*more, mesh=mesh, batch=24, edit=edits(strict, even, *changes), output=f"out{i}")
            models.append((self.folder / f"out{i}" / "model.safetensors").read_bytes())
            runs.append([(line["step"], line["loss"], line["accuracy"]) for line in self.lines(f"out{i}")])
        self.assertEqual([step for step, *_ in runs[0]], list(range(1, 9)))
        for i in range(1, len(models)):
            self.assertEqual(runs[i], runs[0])
            self.assertEqual(models[i], models[0])
        # Devices by themselves sum in another order, and are refused.
        self.expect_error(self.run_job(self.manifest(edit=edits(strict)), "--isolated"), 78, "program.numerics: strict", "--isolated")


class Figures(ManifestCase):
    """100 examples to train on and 40 to test on, in batches of 24, the last of 4 and of 16."""

    def sizes(self, count, batch=24):
        return [batch] * (count // batch) + ([count % batch] if count % batch else [])

    def test_an_epochs_figures_are_means_over_examples(self):
        # A rate too small to change a weight's float: what one batch of all examples gives, every way to cut them gives.
        self.train(mesh="{batch: 1}", batch=100, rate="1.0e-30", epochs=1, output="whole")
        want, = history(self.folder / "whole")
        for i, (mesh, more, *changes) in enumerate((
                ("{batch: 1}", []), ("{batch: 4}", []), ("{batch: 4}", ["--isolated"]),
                ("{batch: 7}", ["--isolated"], ("      batch:", "      uneven: true\n      batch:")),
                ("{batch: 4}", [], ("replicas: 1", "replicas: 2")))):
            with self.subTest(mesh=mesh, more=more):
                output = f"out{i}"
                self.train(*more, mesh=mesh, batch=24, rate="1.0e-30", epochs=2, edit=edits(*changes), output=output)
                lines = self.lines(output)
                sizes = self.sizes(100)
                self.assertEqual(len(lines), 2 * len(sizes))
                for epoch in history(self.folder / output):
                    for figure in ("loss", "accuracy"):
                        self.assertAlmostEqual(epoch["train"][figure], want["train"][figure], delta=1e-6)
                        self.assertAlmostEqual(epoch["validation"][figure], want["validation"][figure], delta=1e-6)
                # The mean of the batches' means is another number.
                plain = sum(line["loss"] for line in lines[:5]) / 5
                self.assertGreater(abs(plain - want["train"]["loss"]), 1e-4)

    def test_an_epoch_that_was_interrupted_has_the_figures_of_one_that_was_not(self):
        self.train(batch=24, every=3, epochs=2, output="whole")
        self.train(batch=24, every=3, epochs=2)
        for step in (10, 9):
            self.forget(step)
        result = self.train(batch=24, every=3, epochs=2)
        self.assertIn("ckpt-00000006 at step 6", result.stdout)  # one batch into the second epoch
        self.assertEqual(history(self.folder / "out"), history(self.folder / "whole"))
        epoch = history(self.folder / "out")[1]
        losses = [line["loss"] for line in self.lines()][5:]
        weighted = sum(n * loss for n, loss in zip(self.sizes(100), losses, strict=True)) / 100
        self.assertAlmostEqual(epoch["train"]["loss"], weighted, delta=1e-12)

    def test_drop_remainder_drops_training_examples_only(self):
        drop = edits(("      batch:", "      drop_remainder: true\n      batch:"))
        for output, edit in (("all", edits()), ("dropped", drop)):
            self.train(mesh="{batch: 1}", batch=24, rate="1.0e-30", epochs=1, edit=edit, output=output)
        kept, dropped = (history(self.folder / output)[0] for output in ("all", "dropped"))
        self.assertEqual(len(self.lines("all")), 5)
        self.assertEqual(len(self.lines("dropped")), 4)
        self.assertEqual(dropped["validation"], kept["validation"])


class Batches(ManifestCase):
    """What shows only when a program meets its data, found before a process starts, at the manifest's own line."""

    def refused(self, words, code=78, **given):
        manifest = self.manifest(**given)
        for result in (self.meshtrain("validate", "-f", manifest), self.meshtrain("plan", "-f", manifest), self.run_job(manifest)):
            self.expect_error(result, code, *words)
        self.assertFalse((self.folder / "out").exists(), "no process was started")

    def line(self, key):
        text = (self.folder / "job.yaml").read_text().split("\n")
        return next(f"job.yaml:{i}:{len(l) - len(l.lstrip()) + 1}" for i, l in enumerate(text, 1) if l.lstrip().startswith(key))

    def test_a_short_last_batch_that_the_axis_does_not_divide(self):
        self.manifest(mesh="{batch: 8}", batch=48)
        at = "program.data.batch: x f32[4,10,10], the short last batch of data.train, does not divide over {batch, *, *} of mesh batch=8"
        self.refused([self.line("batch:").rsplit(":", 1)[0], at, "data.drop_remainder", "data.uneven"], mesh="{batch: 8}", batch=48)
        # Evaluation drops nothing: its own short batch is found, too.
        drop = edits(("      batch:", "      drop_remainder: true\n      batch:"), ("take: 40", "take: 45"))
        self.refused(["f32[5,10,10], the short last batch of data.test", "(data.uneven: true takes it)"],
                     mesh="{batch: 8}", batch=40, edit=drop)
        self.train(mesh="{batch: 8}", batch=40, epochs=1, edit=lambda t: edits(("      batch:", "      uneven: true\n      batch:"))(drop(t)))
        # Strategies that make their own mesh take every batch.
        own = edits(("    mesh: \n", "    devices: {count: 8}\n"), ("  replicaSpecs:", "  strategy: Mirrored\n  replicaSpecs:"))
        self.train(mesh="", batch=48, epochs=1, edit=own, output="own")
        # Without data a manifest is valid as far as one can see.
        (self.folder / "images.gz").unlink()
        result = self.meshtrain("validate", "-f", self.manifest(mesh="{batch: 8}", batch=48))
        self.assertEqual(result.returncode, 0, result.stderr)

    def floats(self, values):
        (self.folder / "floats").write_bytes(struct.pack(">HBBI", 0, 0x0D, 1, len(values)) + struct.pack(f">{len(values)}f", *values))
        return edits(("labels.gz}", "floats}"))

    def test_labels_of_floats_are_no_class_numbers(self):
        floats = self.floats([i % 10 for i in range(100)])
        self.manifest()
        self.refused([self.line("loss:") + ": program.loss: ",
                      "sparse_categorical_crossentropy takes class numbers (u8, i32, i64), got: labels f32[20] in data.train",
                      "labels_as: i32"], edit=floats)
        # They are, when asked for, as long as they are whole.
        self.train(epochs=1, output="u8")
        as_whole = lambda t: floats(t).replace("floats}", "floats, labels_as: i32}")
        self.train(epochs=1, edit=as_whole, output="whole")
        self.assertEqual([line["loss"] for line in self.lines("whole")], [line["loss"] for line in self.lines("u8")])
        self.floats([i % 10 + (0.5 if i == 71 else 0) for i in range(100)])
        self.expect_error(self.run_job(self.manifest(edit=as_whole)), 65,
                          f"{self.folder}/floats: example 71: label 1.5, which labels_as: i32 would cut")

    def test_labels_of_a_regression_are_never_cut(self):
        # Labels between 0 and 1, which cut would all be 0. A rate too small to change a weight.
        floats = self.floats([(i * 7 % 10 + 0.5) / 10 for i in range(100)])
        mse = lambda t: edits(("units: 10}", "units: 1, kernel_initializer: zeros}"), ("metrics: [accuracy]", "metrics: [mae]"),
                              ("{sparse_categorical_crossentropy: {from_logits: true}}", "mse"))(floats(t))
        self.train(epochs=1, rate="1.0e-30", edit=mse)
        epoch, = history(self.folder / "out")
        labels = [(i * 7 % 10 + 0.5) / 10 for i in range(100)]
        self.assertAlmostEqual(epoch["train"]["loss"], sum(y * y for y in labels) / 100, delta=1e-6)
        self.assertAlmostEqual(epoch["train"]["mae"], sum(labels) / 100, delta=1e-6)

    def test_a_label_outside_the_classes(self):
        nine = edits(("units: 10}", "units: 9}"), ("      batch:", "      shuffle: {buffer: 5, seed: 1}\n      batch:"))
        for more, changes in (([], []), (["--isolated"], []), ([], [("replicas: 1", "replicas: 2")])):
            with self.subTest(more=more, changes=changes):
                result = self.run_job(self.manifest(edit=lambda t: edits(*changes)(nine(t))), *more)
                self.expect_error(result, 65, f"{self.folder}/labels.gz: example ", "9: label 9, but 9 classes")
        # Of the data to validate on, in its own file.
        labels = [i % 10 for i in range(40)]
        labels[33] = 200
        (self.folder / "bad").write_bytes(struct.pack(">HBBI", 0, 8, 1, 100) + bytes(labels + [0] * 60))
        bad = edits(("labels.gz}, take: 40", "bad}, take: 40"))
        self.expect_error(self.run_job(self.manifest(edit=bad)), 65, f"{self.folder}/bad: example 33: label 200, but 10 classes")


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    unittest.main(verbosity=2)
