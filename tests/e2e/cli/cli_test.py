#!/usr/bin/env python3
"""The command line and the worker as a user meets them: good runs, resumed ones, mistakes, and what may reach a terminal.
What the rows of a manifest do is manifest_test.py's; bad files, damage and signals have tests of their own.   cli_test.py BIN_FOLDER"""
import os
import re
import shutil
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import steps_of, validations_of  # noqa: E402
from report_document import curve_of, document_of  # noqa: E402
from cli_case import Case  # noqa: E402: it takes BIN_FOLDER from the arguments


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
        report = document_of(out / "report.html")
        facts = dict(report["facts"])
        self.assertRegex(facts["model"], "^flatten, dense 12 ")
        self.assertEqual(facts["batch"], "20 examples")
        self.assertGreater(float(facts["examples per second"]), 0)
        self.assertIn(facts["best epoch"], ("1", "2"))
        self.assertEqual([chart["title"] for chart in report["charts"]],
                         ["Loss", "Loss of each step", "Accuracy", "Accuracy of each step", "Time of each step"])
        state = report["state"]
        self.assertEqual({key: state[key] for key in ("phase", "why", "step", "steps", "epoch", "epochs")},
                         {"phase": "ended", "why": "", "step": 10, "steps": 10, "epoch": 2, "epochs": 2})
        self.assertEqual(curve_of(report, "Loss of each step"), [[line["step"], float(f"{line['loss']:.6g}")] for line in lines])
        plan = report["plan"]
        self.assertEqual((plan["axes"], plan["devices"]), ([["batch", 2]], ["cpu:0", "cpu:1"]))
        printed = re.findall(r"^  (\w+) +over (\S+) +(\d+) x +(\d+) bytes", (out / "plan.txt").read_text(), re.MULTILINE)
        self.assertEqual([(c["kind"], c["axes"], str(c["count"]), str(c["bytes"])) for c in plan["collectives"]], printed)
        self.assertNotRegex((out / "report.html").read_text(), "https?:")

    def test_isolated_devices_and_shared_memory_agree(self):
        losses = []
        for i, more in enumerate(([], ["--isolated"])):
            self.assertEqual(self.run_job(self.manifest(mesh="{batch: 2, model: 2}", edit=lambda t: t.replace(
                "    train: {epochs", "    layout: {rules: [{match: hidden.kernel, spec: [unsharded, model]}]}\n    train: {epochs")),
                *more, output=f"out{i}").returncode, 0)
            losses.append([line["loss"] for line in steps_of(self.folder / f"out{i}" / "metrics.jsonl")])
        self.assertTrue(losses[0])
        for a, b in zip(*losses, strict=True):
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
                self.assertRegex(plan.stdout[len(ran):], r"^on one host  at most [\d.]+ \w+ \(\d+ bytes\) for \d+ devices?, kernels' scratch aside; available: [\d.]+ [MGT]B \(\d+ bytes\) \(.+\)\n$")
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
        report, other = (document_of(self.folder / name / "report.html") for name in ("out", "whole"))
        self.assertEqual([row["epoch"] for row in report["epochs"]["rows"]], [1, 2, 3, 4])
        for title in ("Loss", "Loss of each step", "Accuracy of each step"):
            self.assertEqual(curve_of(report, title), curve_of(other, title))
        for title in ("Loss of each step", "Time of each step"):
            self.assertEqual(len(curve_of(report, title)), 20, "the steps of the first process too")

    def test_a_finished_run_is_replaced_whatever_its_model_was(self):
        self.assertEqual(self.run_job(self.manifest()).returncode, 0)
        # Where it does not fit, whatever number of epochs is asked for.
        for old, new, epochs in (("units: 12", "units: 14", 2), ("name: hidden", "name: other", 3), ("adam:", "sgd:", 2), ("", "", 2)):
            with self.subTest(new):
                result = self.run_job(self.manifest(epochs=epochs, edit=lambda t: t.replace(old, new)))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertNotIn("resuming from", result.stdout)
                self.assertEqual(len(steps_of(self.folder / "out" / "metrics.jsonl")), 5 * epochs)

    def test_an_unfinished_run_of_another_model_is_refused(self):
        self.assertEqual(self.run_job(self.manifest(epochs=1)).returncode, 0)
        shutil.rmtree(self.folder / "out" / "checkpoints" / "ckpt-00000005")
        for old, new, words in (("units: 12", "units: 14", "expected f32[100,14], got: f32[100,12]"),
                                ("name: hidden", "name: other", "`other.kernel`: expected f32[100,12], got: no such variable")):
            with self.subTest(new):
                result = self.run_job(self.manifest(epochs=2, edit=lambda t: t.replace(old, new)))
                self.expect_error(result, 78, "ckpt-00000003: it is of another model", words, "--output")
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
        self.expect_error(self.run_job(self.manifest(edit=devices("kind: cda"))), 78,
                          "program.devices.kind: expected one of cpu, discrete, cuda, tpu, pjrt, got: cda, did you mean `cuda`?")

    def test_layouts_that_do_not_fit(self):
        rule = lambda text: (lambda t: t.replace("    train: {epochs", "    layout: {rules: [" + text + "]}\n    train: {epochs"))
        self.expect_error(self.run_job(self.manifest(edit=rule("{match: hidden.kernel, spec: [batch]}"))), 78,
                          "program.layout.rules[0]: layout [batch] has 1 entry, but `hidden.kernel` has rank 2")
        self.expect_error(self.run_job(self.manifest(edit=rule("{match: hiden.kernel, spec: [unsharded, batch]}"))), 78,
                          "program.layout.rules[0]: layout rule `hiden.kernel` matches no parameter", "near: hidden.kernel")

    def test_a_mistake_that_only_the_worker_sees_has_its_place_too(self):
        # A template says that the data may be elsewhere: only the process that opens it knows its types.
        anchored = lambda t: t.replace("    loss:", "    # a comment, and an anchor\n    loss: &loss").replace("- flatten", "- dense: {units: 3}")
        want = self.meshtrain("validate", "-f", self.manifest(edit=anchored))
        self.expect_error(want, 78, "job.yaml:")
        elsewhere = lambda t: anchored(t).replace("replicas: 1", "replicas: 1, template: {spec: {containers: [{name: t, image: any}]}}")
        manifest = self.manifest(edit=elsewhere)
        got = self.run_job(manifest)
        self.expect_error(got, 78, want.stderr.replace("meshtrain validate: ", "meshtrain-worker: "))
        self.assertEqual((self.folder / "out" / "manifest.as-run.yaml").read_text(), Path(manifest).read_text())

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


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    unittest.main(verbosity=2)
