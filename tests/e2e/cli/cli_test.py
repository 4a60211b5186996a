#!/usr/bin/env python3
"""The command line and the worker as a user meets them: good runs, mistakes, damage, signals, and the exit codes of
runtime/cluster/contract.h. What the rows of a manifest do is manifest_test.py's.   cli_test.py BIN_FOLDER"""
import gzip
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import lines_of, steps_of, validations_of  # noqa: E402

BIN = Path(sys.argv.pop(1)).resolve()
TIMEOUT = 120

MANIFEST = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: tiny}}
spec:
  replicaSpecs: {{worker: {{replicas: 1}}}}
  checkpoint: {{everySteps: {every}}}
  program:
    seed: 3
    mesh: {mesh}
    data:
      train: {{idx: {{images: {folder}/images.gz, labels: {folder}/labels.gz}}}}
      test: {{idx: {{images: {folder}/images.gz, labels: {folder}/labels.gz}}, take: 40}}
      map: [{{scale: 0.00392156862745098}}]
      batch: {batch}
    model:
      - flatten
      - dense: {{name: hidden, units: 12, activation: relu}}
      - dense: {{name: logits, units: 10}}
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: {{adam: {{learning_rate: {rate}}}}}
    metrics: [accuracy]
    train: {{epochs: {epochs}}}
"""


def idx(values, dims):
    return struct.pack(">HBB", 0, 8, len(dims)) + b"".join(struct.pack(">I", d) for d in dims) + bytes(values)


class Case(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        count = 100
        images = bytearray()
        for i in range(count):  # class k lights row k
            images += bytes(200 if row == i % 10 else (i * 7 + row * 3) % 20 for row in range(10) for _ in range(10))
        (self.folder / "images.gz").write_bytes(gzip.compress(idx(images, (count, 10, 10)), mtime=0))
        (self.folder / "labels.gz").write_bytes(gzip.compress(idx([i % 10 for i in range(count)], (count,)), mtime=0))

    def tearDown(self):
        self._folder.cleanup()

    def manifest(self, mesh="{batch: 2}", batch=20, rate=0.01, epochs=2, every=3, edit=lambda text: text):
        path = self.folder / "job.yaml"
        path.write_text(edit(MANIFEST.format(folder=self.folder, mesh=mesh, batch=batch, rate=rate, epochs=epochs, every=every)))
        return str(path)

    def meshtrain(self, *arguments, tool="meshtrain"):
        return subprocess.run([BIN / tool, *arguments], capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)

    def run_job(self, manifest, *more, output="out"):
        return self.meshtrain("run", "-f", manifest, "--output", str(self.folder / output), *more)

    def expect_error(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertNotIn("terminate called", result.stderr)


class GoodRuns(Case):
    def test_a_run_leaves_everything_it_names(self):
        manifest = self.manifest()
        result = self.run_job(manifest)
        self.assertEqual(result.returncode, 0, result.stderr)
        out = self.folder / "out"
        self.assertEqual((out / "manifest.as-run.yaml").read_bytes(), Path(manifest).read_bytes())
        lines = steps_of(out / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, 11)))
        self.assertEqual([sorted(line) for line in validations_of(out / "metrics.jsonl")],
                         2 * [["epoch", "step", "val_accuracy", "val_loss"]])
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertIn("epoch 2/2", result.stdout)
        for name in ("report.html", "plan.txt", "model.safetensors", "checkpoints/ckpt-00000010/index.json"):
            self.assertTrue((out / name).exists(), name)
        self.assertTrue(list((out / "events" / "train").glob("events.out.tfevents.*")))
        report = (out / "report.html").read_text()
        self.assertIn("<svg", report)
        facts = dict(re.findall(r"<tr><td>([a-z ]+)</td><td>([^<]+)</td></tr>", report))
        self.assertRegex(facts["model"], "^flatten, dense 12 ")
        self.assertEqual(facts["batch"], "20 examples")
        self.assertGreater(float(facts["examples per second"]), 0)
        self.assertIn(facts["best epoch"], ("1", "2"))
        self.assertEqual(len(re.findall("<svg", report)), 2 * len({"loss", "accuracy"}), "epochs and steps of each")
        self.assertNotIn("http", report.replace("http://www.w3.org", ""))

    def test_isolated_devices_and_shared_memory_agree(self):
        losses = []
        for i, more in enumerate(([], ["--isolated"])):
            self.assertEqual(self.run_job(self.manifest(mesh="{batch: 2, model: 2}", edit=lambda t: t.replace(
                "    train: {epochs", "    layout: {rules: [{match: hidden.kernel, spec: [unsharded, model]}]}\n    train: {epochs")),
                *more, output=f"out{i}").returncode, 0)
            losses.append([line["loss"] for line in steps_of(self.folder / f"out{i}" / "metrics.jsonl")])
        for a, b in zip(*losses):
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(a))

    def test_plan_validate_version_help(self):
        plan = self.meshtrain("plan", "-f", self.manifest())
        self.assertEqual(plan.returncode, 0, plan.stderr)
        for word in ("hidden.kernel", "all_reduce", "peak", "hash"):
            self.assertIn(word, plan.stdout)
        self.assertEqual(self.meshtrain("validate", "-f", self.manifest()).returncode, 0)
        version = self.meshtrain("version").stdout
        self.assertRegex(version, r"^meshtrain \d+\.\d+\.\d+\n$")
        for binary in ("meshtrain-worker", "meshtrain-operator"):
            self.assertEqual(self.meshtrain("--version", tool=binary).stdout, version.replace("meshtrain", binary))
        self.assertIn("run", self.meshtrain("--help").stdout)
        self.assertEqual(self.meshtrain("--help").returncode, 0)

    def test_what_plan_prints_is_what_runs(self):
        rules = "    layout: {rules: [{match: hidden.kernel, spec: [unsharded, model]}]}\n    train: {epochs"
        split = lambda t: t.replace("    train: {epochs", rules)
        packs = lambda t: t.replace("    mesh: \n", "    devices: {count: 4}\n    mirrored: {packing: {bytes_per_pack: 64}}\n").replace(
            "  replicaSpecs:", "  strategy: Mirrored\n  replicaSpecs:")
        uneven = lambda t: t.replace("      batch:", "      uneven: true\n      batch:")
        processes = lambda t: t.replace("replicas: 1", "replicas: 2")
        plans = set()
        for i, (mesh, edit, more) in enumerate((
                ("{batch: 2}", lambda t: t, []), ("{batch: 2, model: 2}", split, []), ("{batch: 2, model: 2}", split, ["--isolated"]),
                ("{batch: 8}", uneven, []), ("", packs, []), ("{batch: 4}", processes, []))):
            with self.subTest(mesh=mesh, more=more):
                manifest = self.manifest(mesh=mesh, epochs=1, edit=edit)
                plan = self.meshtrain("plan", "-f", manifest)
                self.assertEqual(plan.returncode, 0, plan.stderr)
                self.assertEqual(self.run_job(manifest, *more, output=f"out{i}").returncode, 0)
                # And, below it, what there is beside what is needed.
                ran = (self.folder / f"out{i}" / "plan.txt").read_text()
                self.assertTrue(plan.stdout.startswith(ran))
                self.assertRegex(plan.stdout[len(ran):], r"^on one host  at most [\d.]+ \w+ for \d+ devices?; available: [\d.]+ [MGT]B \(.+\)\n$")
                plans.add(plan.stdout)
        self.assertEqual(len(plans), 5)  # devices by themselves have no plan of their own

    def alone(self, beside=""):
        """The program without a job around it, its fields at the top of the file or under `program`."""
        text = Path(self.manifest(mesh="")).read_text()
        lines = text[text.index("    seed:"):].split("\n")
        top = "\n".join(line[4:] for line in lines)
        under = "program:\n" + "\n".join(line[2:] for line in lines)
        for name, body in (("top", top), ("under", under)):
            path = self.folder / f"{name}.yaml"
            path.write_text(beside + body)
            yield path

    def test_a_program_alone_may_have_strategy_and_checkpoint(self):
        beside = "strategy: Mirrored\ncheckpoint: {everySteps: 3, keep: 100}\n"
        for path in self.alone(beside):
            with self.subTest(path.name):
                text = path.read_text()
                indent = "" if path.name == "top.yaml" else "  "
                path.write_text(text.replace(f"{indent}data:", f"{indent}devices: {{count: 2}}\n{indent}data:", 1))
                out = self.folder / path.stem
                result = self.meshtrain("run", "-f", str(path), "--output", str(out))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("on mesh batch=2", result.stdout)
                self.assertGreater(len(list((out / "checkpoints").glob("ckpt-*"))), 2, "every third step's")
                path.write_text(text.replace("Mirrored", "Mirored").replace("everySteps", "everyStep"))
                result = self.meshtrain("validate", "-f", str(path))
                self.expect_error(result, 78, f"{path}:1:1: strategy: unknown strategy `Mirored`, did you mean `Mirrored`?",
                                  f"{path}:2:14: checkpoint: unknown field `everyStep`, did you mean `everySteps`?")

    def test_a_second_document_is_named(self):
        for path in self.alone():
            path.write_text(path.read_text().rstrip("\n") + "\n---\nseed: 4\n")
            line = path.read_text().split("\n").index("seed: 4", 4) + 1
            self.expect_error(self.meshtrain("validate", "-f", str(path)), 78,
                              f"{path}:{line}:1: expected one program, got: a second document")

    def test_each_mistake_is_shown_also_behind_another(self):
        edit = lambda t: (t.replace("replicas: 1", "replicas: 1, restartPolicy: Sometimes").replace("- flatten", "- flaten")
                          .replace("batch: 20", "batch: 21").replace("everySteps: ", "resume: Latst, everySteps: ")
                          .replace("    loss:", "    seed: 4\n    loss:"))
        manifest = self.manifest(batch=20, edit=edit)
        result = self.meshtrain("validate", "-f", manifest)
        self.expect_error(result, 78, "key `seed` is here twice", "unknown layer `flaten`, did you mean `flatten`?",
                          "program.data.batch: expected a multiple of 2", "spec.checkpoint.resume: expected one of Latest, Never",
                          "spec.replicaSpecs.worker.restartPolicy: must be one of")
        self.assertEqual(len(result.stderr.strip().split("\n")), 5, result.stderr)

    def test_validate_goes_by_the_operators_rules_too(self):
        # A job of the user's own image declares no program.
        job = self.folder / "own.yaml"
        text = ("apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: own}\nspec:\n  replicaSpecs:\n"
                "    worker: {replicas: 2, template: {spec: {containers: [{name: tensorflow, image: tf}]}}}\n")
        job.write_text(text)
        result = self.meshtrain("validate", "-f", str(job))
        self.assertEqual((result.returncode, result.stdout), (0, f"{job}: valid\n"), result.stderr)
        job.write_text(text.replace("replicas: 2", "replicas: -1"))
        self.expect_error(self.meshtrain("validate", "-f", str(job)), 78, "own.yaml:6:14", "spec.replicaSpecs.worker.replicas")
        for example in sorted((Path(__file__).resolve().parents[3] / "deploy" / "examples").glob("*.yaml")):
            result = self.meshtrain("validate", "-f", str(example))
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_short_last_batch_may_be_uneven_when_asked(self):
        uneven = lambda t: t.replace("      batch:", "      uneven: true\n      batch:")
        runs = []
        for mesh, edit, more in (("{batch: 1}", lambda t: t, []), ("{batch: 8}", uneven, ["--isolated"]), ("{batch: 8}", uneven, [])):
            output = f"out{len(runs)}"
            result = self.run_job(self.manifest(mesh=mesh, batch=30, edit=edit), *more, output=output)
            self.assertEqual(result.returncode, 0, result.stderr)
            runs.append(steps_of(self.folder / output / "metrics.jsonl"))
        self.assertEqual([line["step"] for line in runs[0]], list(range(1, 9)))  # of 30, 30, 30 and 10
        for run in runs[1:]:
            for want, got in zip(runs[0], run, strict=True):
                for figure in ("loss", "accuracy"):
                    self.assertAlmostEqual(got[figure], want[figure], delta=1e-5 * abs(want[figure]))


class Resumes(Case):
    @staticmethod
    def table(result):
        return re.findall(r"^ +(\d+)  +([\d.]+)  +([\d.]+)  +([\d.]+)  +([\d.]+)$", result.stdout, re.MULTILINE)

    def test_a_longer_run_goes_on_and_keeps_its_epochs(self):
        whole = self.run_job(self.manifest(epochs=4), output="whole")
        self.assertEqual(self.run_job(self.manifest(epochs=2)).returncode, 0)
        result = self.run_job(self.manifest(epochs=4))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("resuming from", result.stdout)
        self.assertEqual([row[0] for row in self.table(result)], ["1", "2", "3", "4"])
        self.assertEqual(self.table(result), self.table(whole))
        epochs = re.findall(r"<tr[^>]*><td>(\d+)(?: <small>best</small>)?</td>", (self.folder / "out" / "report.html").read_text())
        self.assertEqual(epochs, ["1", "2", "3", "4"])

    def test_a_finished_run_is_replaced_whatever_its_model_was(self):
        self.assertEqual(self.run_job(self.manifest()).returncode, 0)
        for old, new in (("units: 12", "units: 14"), ("name: hidden", "name: other"), ("adam:", "sgd:"), ("", "")):
            with self.subTest(new):
                result = self.run_job(self.manifest(edit=lambda t: t.replace(old, new)))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertNotIn("resuming from", result.stdout)
                self.assertEqual(len(steps_of(self.folder / "out" / "metrics.jsonl")), 10)

    def test_an_unfinished_run_of_another_model_is_refused(self):
        self.assertEqual(self.run_job(self.manifest(epochs=1)).returncode, 0)
        for old, new, words in (("units: 12", "units: 14", "expected f32[100,14], got: f32[100,12]"),
                                ("name: hidden", "name: other", "`other.kernel`: expected f32[100,12], got: no such variable")):
            with self.subTest(new):
                result = self.run_job(self.manifest(epochs=2, edit=lambda t: t.replace(old, new)))
                self.expect_error(result, 78, "ckpt-00000005: it is of another model", words, "--output")
        # What fits is taken, and said.
        result = self.run_job(self.manifest(epochs=2, rate=0.5))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("the program has changed since the checkpoint", result.stderr)
        self.assertEqual(len(steps_of(self.folder / "out" / "metrics.jsonl")), 10)


class Mistakes(Case):
    def test_plan_ends_as_a_run_does(self):
        plan = lambda **given: self.meshtrain("plan", "-f", self.manifest(**given))
        self.expect_error(self.meshtrain("plan", "-f", str(self.folder / "none.yaml")), 66, "none.yaml: cannot open")
        self.expect_error(plan(edit=lambda t: t.replace("- flatten", "- flaten")), 78, "job.yaml:", "flaten")
        self.expect_error(plan(mesh="{batch: 3}"), 78, "program.data.batch: expected a multiple of 3")
        images = self.folder / "images.gz"
        images.write_bytes(b"not an idx file at all")
        self.expect_error(plan(), 65, f"{images}: byte 0: expected IDX's magic number")
        images.unlink()
        self.expect_error(plan(), 66, f"{images}: cannot open")

    def test_figures_and_counts_that_are_not_there(self):
        stop = lambda more: lambda t: t.replace("    train: {epochs", "    train: {early_stopping: {%s}, epochs" % more)
        without_test = lambda edit: lambda t: edit("\n".join(l for l in t.split("\n") if " test: " not in l))
        for edit, words in (
                (stop("monitor: val_los"), "unknown figure `val_los`, did you mean `val_loss`?"),
                (stop("monitor: val_top5"), "unknown figure `val_top5`"),
                (without_test(stop("patience: 1")), "`val_loss` needs data.test and a validation, got: none"),
                (without_test(lambda t: t.replace("train: {epochs", "train: {validation: {steps: 1}, epochs")),
                 "expected data.test to validate on, got: none"),
                (lambda t: t.replace("take: 40", "take: 0"), "expected at least 1 example, or -1 for all, got: 0")):
            with self.subTest(words):
                result = self.meshtrain("validate", "-f", self.manifest(edit=edit))
                self.expect_error(result, 78, words)
                self.assertRegex(result.stderr, r"job\.yaml:\d+:\d+: ")
        for edit in (stop("monitor: val_accuracy"), without_test(stop("monitor: loss")),
                     without_test(lambda t: t.replace("train: {epochs", "train: {validation: false, epochs"))):
            result = self.meshtrain("validate", "-f", self.manifest(edit=edit))
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_threads_that_cannot_be(self):
        for threads in ("-3", "99999", "many"):
            self.expect_error(self.run_job(self.manifest(), "--threads", threads), 64, "--threads")
        self.assertFalse((self.folder / "out").exists())

    def test_usage(self):
        self.assertEqual(self.meshtrain("run").returncode, 64)
        self.assertEqual(self.meshtrain("run", "--fil", "x").returncode, 64)
        self.expect_error(self.meshtrain("frobnicate"), 64, "run", "plan")
        self.expect_error(self.meshtrain("valdate", "-f", "x"), 64, "did you mean `validate`?")
        self.assertEqual(self.meshtrain("--file", "x", "--metrics-address", "nowhere", tool="meshtrain-worker").returncode, 64)

    def test_no_such_manifest(self):
        self.expect_error(self.run_job(str(self.folder / "none.yaml")), 66, "none.yaml")

    def test_unknown_layer_and_option(self):
        self.expect_error(self.run_job(self.manifest(edit=lambda t: t.replace("- flatten", "- flaten"))), 78, "flaten", "flatten", "job.yaml:")
        self.expect_error(self.run_job(self.manifest(edit=lambda t: t.replace("units: 12", "unit: 12"))), 78, "`unit`", "units")

    def test_meshes_that_cannot_be(self):
        devices = lambda given: lambda t: t.replace("    data:", "    devices: {%s}\n    data:" % given)
        self.expect_error(self.run_job(self.manifest(mesh="{batch: 0}")), 78,
                          "job.yaml:10:19: program.mesh.batch: expected a size of at least 1, got: 0")
        self.expect_error(self.run_job(self.manifest(mesh="{batch: 2, model: 2}")), 78,
                          "job.yaml:10:5: program.mesh: axis `model` of size 2 splits nothing: no layout rule and no input uses it")
        self.expect_error(self.run_job(self.manifest(edit=devices("kind: cpu, count: 1"))), 78,
                          "job.yaml:10:5: program.mesh: mesh batch=2 needs 2 devices, got: 1 process with 1 device")
        self.expect_error(self.run_job(self.manifest(edit=devices("kind: cuda"))), 78,
                          "program.devices.kind: expected cpu, the only kind that runs yet, got: cuda")

    def test_layouts_that_do_not_fit(self):
        rule = lambda text: (lambda t: t.replace("    train: {epochs", "    layout: {rules: [" + text + "]}\n    train: {epochs"))
        self.expect_error(self.run_job(self.manifest(edit=rule("{match: hidden.kernel, spec: [batch]}"))), 78,
                          "program.layout.rules[0]: layout [batch] has 1 entry, but `hidden.kernel` has rank 2")
        self.expect_error(self.run_job(self.manifest(edit=rule("{match: hiden.kernel, spec: [unsharded, batch]}"))), 78,
                          "program.layout.rules[0]: layout rule `hiden.kernel` matches no parameter", "near: hidden.kernel")

    def test_a_batch_that_the_axis_does_not_divide(self):
        self.expect_error(self.run_job(self.manifest(mesh="{batch: 3}")), 78,
                          "program.data.batch: expected a multiple of 3, the size of axis `batch` (or data.uneven: true), got: 20")

    def test_an_output_that_cannot_be_written(self):
        (self.folder / "file").write_text("in the way")
        result = self.run_job(self.manifest(), output="file/out")
        self.expect_error(result, 73, "file/out")
        (self.folder / "loop").symlink_to(self.folder / "loop")
        for output, why in (("loop/out", "Too many levels of symbolic links"), ("n" * 300, "File name too long")):
            self.expect_error(self.run_job(self.manifest(), output=output), 73, f"{self.folder / output}: cannot make folder: {why}")


class Outputs(Case):
    """What lies in the way of a file stays there, whoever tries again; a full disk may be given room."""

    @staticmethod
    def under(policy):
        return lambda t: t.replace("replicas: 1", f"replicas: 1, restartPolicy: {policy}")

    def test_something_else_in_a_files_place_is_not_retried(self):
        folder = lambda path: path.mkdir(parents=True)
        file = lambda path: path.write_text("in the way")
        loop = lambda path: path.symlink_to(path)
        for name, make, named, why in (
                ("metrics.jsonl", folder, "metrics.jsonl", "expected a regular file, got: a folder"),
                ("metrics.jsonl", loop, "metrics.jsonl", "expected a regular file, got: a symbolic link"),
                ("metrics.jsonl", os.mkfifo, "metrics.jsonl", "expected a regular file, got: a FIFO"),
                ("plan.txt", folder, "plan.txt: cannot rename over", "Is a directory"),
                ("report.html", folder, "report.html: cannot rename over", "Is a directory"),
                ("model.safetensors", folder, "model.safetensors: cannot rename over", "Is a directory"),
                ("events", file, "events/train: cannot make folder", "Not a directory"),
                ("events", loop, "events/train: cannot make folder", "Too many levels"),
                ("checkpoints", file, "checkpoints: cannot make folder", "Not a directory"),
                ("checkpoints", loop, "checkpoints: cannot make folder", "Too many levels")):
            with self.subTest(name=name, why=why), tempfile.TemporaryDirectory(dir=self.folder) as out:
                make(Path(out) / name)
                result = self.meshtrain("run", "-f", self.manifest(edit=self.under("ExitCode")), "--output", out)
                self.expect_error(result, 73, f"{out}/{named}: {why}", "failed with exit code 73 (Error), which is not retried")
                self.assertNotIn("JobRestarting", result.stderr)

    def test_nor_is_it_with_parameter_servers(self):
        roles = ", ".join(f"{role}: {{replicas: 1, restartPolicy: ExitCode}}" for role in ("chief", "worker", "ps", "evaluator"))
        # So many epochs that the chief is still at work when the evaluator comes to its files.
        manifest = self.manifest(mesh="", epochs=100000, edit=lambda t: t.replace("    mesh: \n", "").replace(
            "replicaSpecs: {worker: {replicas: 1}}", "strategy: ParameterServer\n  replicaSpecs: {%s}" % roles))
        for who, name, why in (("chief", "metrics.jsonl", "got: a folder"), ("chief", "plan.txt", "Is a directory"),
                               ("evaluator", "evaluator-0/metrics.jsonl", "got: a folder")):
            with self.subTest(name), tempfile.TemporaryDirectory(dir=self.folder) as out:
                (Path(out) / name).mkdir(parents=True)
                result = self.meshtrain("run", "-f", manifest, "--output", out)
                self.expect_error(result, 73, f"{out}/{name}: ", why,
                                  f"tiny-{who}-0 failed with exit code 73 (Error), which is not retried")

    def test_a_file_that_cannot_grow_ends_in_74(self):
        out = self.folder / "out"

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768))
        manifest = self.manifest(epochs=200, every=1000000)
        result = subprocess.run([BIN / "meshtrain-worker", "-f", manifest, "-o", out, "--metrics-address", "none"], preexec_fn=limit,
                                capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.expect_error(result, 74, f"{out}/metrics.jsonl: cannot write: File too large")
        self.assertEqual((out / "metrics.jsonl").stat().st_size, 32768)


class BadData(Case):
    def test_a_fifo_is_not_waited_for(self):
        for name in ("images.gz", "labels.gz"):
            with self.subTest(name):
                path = self.folder / name
                path.rename(self.folder / "away")
                os.mkfifo(path)
                for verb in ("run", "plan"):
                    self.expect_error(self.meshtrain(verb, "-f", self.manifest()), 65,
                                      f"{path}: expected a regular file, got: a FIFO")
                (self.folder / "away").rename(path)
        manifest = self.folder / "job.fifo"
        os.mkfifo(manifest)
        for verb in ("run", "plan", "validate"):
            self.expect_error(self.meshtrain(verb, "-f", str(manifest)), 78, f"{manifest}: expected a regular file, got: a FIFO")

    def test_missing(self):
        (self.folder / "labels.gz").unlink()
        self.expect_error(self.run_job(self.manifest()), 66, "labels.gz")

    def test_truncated_wrong_magic_and_counts(self):
        path = self.folder / "images.gz"
        packed = path.read_bytes()
        whole = gzip.decompress(packed)
        half = len(packed) // 2
        labels = self.folder / "labels.gz"
        for data, words in (
                (packed[:half], f"{path}: byte {half} of the compressed file: expected the gzip stream to go on"),
                (b"not an idx file at all", f"{path}: byte 0: expected IDX's magic number"),
                (b"\0\0\x09" + whole[3:], f"{path}: byte 2: expected element type"),
                (whole[:500], f"{path}: byte 500: expected the file to hold u8[100,10,10] = 10000 bytes after its header, got: 484"),
                (gzip.compress(whole[:500]), f"{path}: byte 500: expected content up to byte 10016 (u8[100,10,10]), got: end of file"),
                (gzip.compress(whole + b"more"), f"{path}: byte 10016: expected the end after u8[100,10,10], got: more bytes"),
                (gzip.compress(idx(bytes(100 * 99), (99, 10, 10))), f"{labels}: byte 4: expected 99 labels, as many as images in {path}, got: 100")):
            with self.subTest(words):
                path.write_bytes(data)
                self.expect_error(self.run_job(self.manifest()), 65, words)

    def test_a_bomb_costs_nothing(self):
        size, manifest = 200_000_000, self.manifest(epochs=1)

        def peak_bytes(code, *words):
            """Of the largest process of a run. What this process holds counts in its children: the bomb is packed in pieces."""
            with tempfile.TemporaryFile("w+") as said:
                child = subprocess.Popen([BIN / "meshtrain", "run", "-f", manifest, "--output", str(self.folder / "out")],
                                         stdout=said, stderr=said, stdin=subprocess.DEVNULL)
                timer = threading.Timer(TIMEOUT, child.kill)
                timer.start()
                _, status, usage = os.wait4(child.pid, 0)
                timer.cancel()
                child.returncode = os.waitstatus_to_exitcode(status)
                said.seek(0)
                text = said.read()
            self.assertEqual(child.returncode, code, text)
            for word in words:
                self.assertIn(word, text)
            return usage.ru_maxrss * 1024

        usual = peak_bytes(0)
        with gzip.open(self.folder / "images.gz", "wb", 9) as bomb:
            bomb.write(struct.pack(">HBB", 0, 8, 3) + struct.pack(">III", 100, 10, 10))
            for _ in range(200):
                bomb.write(bytes(size // 200))
        began = time.monotonic()
        bombed = peak_bytes(65, "images.gz: byte 10016: expected the end after u8[100,10,10], got: more bytes")
        self.assertLess(time.monotonic() - began, 60)
        self.assertLess(bombed, usual + size // 4)


class Damage(Case):
    def test_nan_names_the_step_and_the_first_op_and_keeps_the_checkpoint(self):
        result = self.run_job(self.manifest(rate="1.0e+30", every=1))
        self.expect_error(result, 79, "step 2", "matmul", "checkpoint")
        kept = sorted(p.name for p in (self.folder / "out" / "checkpoints").glob("ckpt-*"))
        self.assertEqual(kept[-1], "ckpt-00000001")

    @staticmethod
    def spoil(more=""):
        """Inputs scaled by 1e19 under a squared error: a regression on the labels."""
        return lambda t: t.replace("0.00392156862745098", "1.0e+19").replace(
            "labels.gz}", "labels.gz, labels_as: f32}").replace("units: 10", "units: 1").replace(
            "sparse_categorical_crossentropy: {from_logits: true}", "mse: {}").replace("metrics: [accuracy]", "metrics: []").replace(
            "train: {epochs", "train: {%sepochs" % more)

    def spoiled_job_leaves(self, result, steps):
        out = self.folder / "out"
        self.expect_error(result, 79, f"step {steps}: ", "first not finite: ", "no variable was changed", "no checkpoint was saved")
        self.assertEqual(list((out / "checkpoints").glob("ckpt-*")), [])
        self.assertFalse((out / "model.safetensors").exists())
        lines = steps_of(out / "metrics.jsonl")
        self.assertEqual([(line["step"], line["loss"]) for line in lines], [(s + 1, None) for s in range(steps)])
        for line in lines:
            self.assertIn("first not finite: ", line["bad"])

    def test_a_bad_step_changes_nothing_and_is_not_saved(self):
        edit = self.spoil()
        for mesh, more in (("", []), ("{batch: 2}", []), ("{batch: 2}", ["--isolated"])):
            with self.subTest(mesh=mesh, more=more):
                change = (lambda t: edit(t.replace("    mesh: \n", ""))) if not mesh else edit
                result = self.run_job(self.manifest(mesh=mesh, every=1, edit=change), *more)
                self.spoiled_job_leaves(result, 1)
        # The folder is as good as before: the same job with inputs as they should be.
        good = self.run_job(self.manifest(every=1, edit=lambda t: edit(t).replace("1.0e+19", "0.004")))
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertNotIn("resuming from", good.stdout)

    def test_bad_steps_are_counted_and_end_the_job_when_there_are_too_many(self):
        result = self.run_job(self.manifest(every=1, edit=self.spoil("end_after_bad_steps: 3, ")))
        self.spoiled_job_leaves(result, 3)
        self.assertIn("the 3 steps up to it were bad", result.stderr)
        self.assertEqual(result.stderr.count("a bad step changed nothing"), 3)

    def test_updated_values_that_are_not_finite_are_not_saved(self):
        # The gradient of step 6 is finite; the learning rate, as f32, is not, nor is the new weight.
        sgd = lambda t: t.replace("adam:", "sgd:")
        self.assertEqual(self.run_job(self.manifest(epochs=1, every=1, rate=0.001, edit=sgd)).returncode, 0)
        result = self.run_job(self.manifest(epochs=2, every=1, rate="1.0e+39", edit=lambda t: sgd(t).replace(
            "    train: {epochs", "    train: {validation: false, epochs")))
        self.expect_error(result, 79, "step 6 is not saved: variable `", "expected finite values")
        newest = sorted((self.folder / "out" / "checkpoints").glob("ckpt-*"))[-1]
        self.assertEqual(newest.name, "ckpt-00000005")
        # From there the job goes on.
        again = self.run_job(self.manifest(epochs=2, every=1, rate=0.001, edit=sgd))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("ckpt-00000005 at step 5", again.stdout)

    def test_a_flipped_byte_is_found_and_the_checkpoint_before_is_used(self):
        folder = self.folder / "saved"
        given = lambda t: t.replace("checkpoint: {everySteps", f"checkpoint: {{path: {folder}, everySteps")
        self.assertEqual(self.run_job(self.manifest(epochs=1, every=2, edit=given)).returncode, 0)
        newest = sorted(folder.glob("ckpt-*"))[-1]
        shard = next(newest.glob("*.safetensors"))
        data = bytearray(shard.read_bytes())
        data[-100] ^= 1
        shard.write_bytes(data)
        again = self.run_job(self.manifest(epochs=2, every=2, edit=given))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("damaged", again.stderr)
        self.assertIn("resuming from", again.stdout)
        # When none is whole there is nothing to go on from, and nothing is trained over it.
        for shard in folder.glob("ckpt-*/*.safetensors"):
            data = bytearray(shard.read_bytes())
            data[-100] ^= 1
            shard.write_bytes(data)
        self.expect_error(self.run_job(self.manifest(epochs=3, every=2, edit=given)), 65, "safetensors")


class Hostile(Case):
    """What a manifest or a file's name says reaches the terminal as text, and not at any length."""

    def expect_text(self, result, code, *words):
        self.expect_error(result, code, *words)
        acting = [c for c in result.stderr + result.stdout if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c == "\u202e"]
        self.assertEqual(acting, [])
        self.assertLess(len(result.stderr), 3000)

    def test_escapes_are_spelled_out(self):
        odd = "\x1b[31mred\x07\u009b1m\u202e"
        spelled = "\\x1b[31mred\\x07\\xc2\\x9b1m\\xe2\\x80\\xae"
        quoted = '"\\e[31mred\\a\\x9b1m\\u202e"'
        kind = self.manifest(edit=lambda t: t.replace("- flatten", f"- {quoted}"))
        metric = self.manifest
        for verb in ("validate", "plan", "run"):
            self.expect_text(self.meshtrain(verb, "-f", kind), 78, "unknown layer `" + spelled)
        (self.folder / f"{odd}.gz").write_bytes(b"no IDX file")
        data = metric(edit=lambda t: t.replace("/images.gz", "/" + odd + ".gz").replace("{images: ", '{images: "').replace(
            ".gz, labels", '.gz", labels').replace(odd, quoted[1:-1]))
        for verb in ("validate", "plan", "run"):
            self.expect_text(self.meshtrain(verb, "-f", data), 65, spelled + ".gz: byte 0: expected IDX's magic number")
        self.expect_text(self.meshtrain("validate", "-f", str(self.folder / odd)), 66, spelled)
        self.expect_text(self.meshtrain(odd), 64, spelled)

    def test_long_scalars_are_cut(self):
        for field, code in (("- flatten", 78), ("metrics: [accuracy]", 78), ("epochs: 2", 78)):
            manifest = self.manifest(edit=lambda t: t.replace(field, field.split(" ")[0] + " " + "x" * 70000))
            result = self.meshtrain("validate", "-f", manifest)
            self.expect_text(result, code, "x" * 200 + "... (70000 bytes)")

    def test_nul_is_refused_with_its_place(self):
        manifest = self.manifest(edit=lambda t: t.replace("/images.gz", '/images.gz').replace(
            f"{{images: {self.folder}/images.gz", f'{{images: "{self.folder}/im\\0ages.gz"', 1))
        for verb in ("validate", "plan", "run"):
            self.expect_text(self.meshtrain(verb, "-f", manifest), 78, f"{manifest}:12:29: expected a text without NUL characters",
                             "im\\x00ages.gz")


class Stops(Case):
    def start(self, manifest, *more, own_folder=False):
        to = [] if own_folder else ["--output", str(self.folder / "out")]
        child = subprocess.Popen([BIN / "meshtrain", "run", "-f", manifest, *to, *more], cwd=self.folder,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: (child.poll() is None and child.kill(), child.wait(), child.stdout.close(), child.stderr.close()))
        return child

    def wait_for_step(self, step):
        path = self.folder / "out" / "metrics.jsonl"
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if path.exists() and len(path.read_text().splitlines()) >= step:
                return
            time.sleep(0.02)
        self.fail("the job never came to step %d" % step)

    def read(self, path):
        return path.read_text() if path.exists() else ""

    def checkpoints(self):
        return sorted(p.parent.name for p in (self.folder / "out" / "checkpoints").glob("ckpt-*/index.json"))

    def test_a_finished_runs_checkpoints_stay_until_the_next_run_has_one(self):
        self.assertEqual(self.run_job(self.manifest(epochs=400, every=1000)).returncode, 0)
        out = self.folder / "out"
        old, model = self.checkpoints(), (out / "model.safetensors").read_bytes()
        figures = (out / "metrics.jsonl").read_text()
        steps = len(steps_of(out / "metrics.jsonl"))
        self.assertEqual(old[-1], f"ckpt-{steps:08}")

        def begins_anew(at_least):
            deadline = time.monotonic() + TIMEOUT
            while not (self.read(out / "metrics.replaced.jsonl")
                       and at_least <= len(self.read(out / "metrics.jsonl").splitlines()) < steps):
                self.assertLess(time.monotonic(), deadline)

        for _ in range(2):  # killed before their first checkpoints
            child = self.start(self.manifest(epochs=400, every=100000000))
            begins_anew(20)
            child.kill()
            child.wait()
            self.assertEqual(self.checkpoints(), old)
            self.assertEqual((out / "model.safetensors").read_bytes(), model)
            self.assertEqual((out / "metrics.replaced.jsonl").read_text(), figures)
        # They are whole.
        warm = self.manifest(edit=lambda t: t.replace("    data:", f"    initial_weights: {out}/checkpoints/{old[-1]}\n    data:"))
        self.assertEqual(self.run_job(warm, output="warm").returncode, 0)
        # The first one of a new run, of a lower step, is where that goes on; the old ones are gone.
        child = self.start(self.manifest(epochs=400, every=4))
        deadline = time.monotonic() + TIMEOUT
        while not self.checkpoints() or self.checkpoints()[-1] == old[-1]:
            self.assertLess(time.monotonic(), deadline)
        child.kill()
        child.wait()
        kept = self.checkpoints()
        self.assertNotIn(old[-1], kept)
        self.assertTrue(all(int(name[5:]) % 4 == 0 for name in kept), kept)
        again = self.run_job(self.manifest(epochs=int(kept[-1][5:]) // 5 + 2, every=4))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"{kept[-1]} at step", again.stdout)
        # Not before: the kill may have come between the checkpoint and the removal of the old figures.
        self.assertFalse((out / "metrics.replaced.jsonl").exists())

    def test_a_stopped_job_saves_and_goes_on_to_the_same_end(self):
        whole = self.run_job(self.manifest(epochs=1500, every=1000000), output="whole")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        child = self.start(self.manifest(epochs=1500, every=1000000))
        self.wait_for_step(30)
        child.send_signal(signal.SIGTERM)
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
        whole = self.manifest(epochs=300, edit=bare)
        self.assertIn("output in runs/tiny-3\n", run(whole))
        # Killed in an epoch after the second: that costs an epoch at most.
        said = "# the same once more\n"
        again = self.manifest(epochs=300, edit=lambda t: bare(t) + said)
        child = self.start(again, own_folder=True)
        deadline = time.monotonic() + TIMEOUT
        while len(list((runs / "tiny-4" / "checkpoints").glob("ckpt-*/index.json"))) < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
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
        child = self.start(self.manifest(epochs=5000, every=1000000))
        self.wait_for_step(3)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 130)

    def test_the_endpoints_answer_while_it_trains(self):
        child = self.start(self.manifest(epochs=20000, every=1000000), "--metrics-address", "127.0.0.1:0")
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
