#!/usr/bin/env python3
"""Kinds of devices under the command line: the repository's examples and strategies give the numbers of the CPU on devices
with walls (`discrete`) and on a plugin's (`pjrt`), what one kind saves another takes up, and what is wrong is said.
    devices_test.py BIN_FOLDER PLUGINS_FOLDER [Discrete | Pjrt | Cuda]"""
import functools
import gzip
import json
import math
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = Path(sys.argv.pop(2)).resolve()
sys.path.append(str(ROOT / "tests" / "support"))
from metrics_file import steps_of, validations_of  # noqa: E402
from cli_case import BIN, TIMEOUT, Case, idx  # noqa: E402: it takes BIN_FOLDER from the arguments

EXAMPLES = ROOT / "deploy" / "examples"
GUIDE = json.loads((ROOT / "tests/testdata/guide/guide_series.json").read_text())["printed_in_text"]
PLUGIN = os.environ.get("MESHTRAIN_PJRT_PLUGIN", "")


def on_kind(text, kind, count=None):
    """The manifest with devices of `kind`, and `count` of them in each process where it says so."""
    devices = f"kind: {kind}" + (f", count: {count}" if count else "")
    assert text.count("  program:\n") == 1
    return text.replace("  program:\n", f"  program:\n    devices: {{{devices}}}\n")


def small(text, batch=32):
    """An example over few images, once."""
    for pattern, new in ((r"take: \d+", "take: 64"), (r"batch: \d+$", f"batch: {batch}"), (r"epochs: 3", "epochs: 1"),
                         (r"buffer: \d+", "buffer: 64")):
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    return text


@functools.cache
def data_files():
    """What the examples read: name to content."""
    files = {}
    for images, labels, dims in (("train-images-idx3-ubyte", "train-labels-idx1-ubyte", (80, 28, 28)),
                                 ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", (80, 28, 28)),
                                 ("train-images32.idx", "train-labels32.idx", (64, 32, 32, 3)),
                                 ("test-images32.idx", "test-labels32.idx", (32, 32, 32, 3))):
        pixels = bytes((i * i // 7 + i * 31) % 256 if i % 3 else 0 for i in range(math.prod(dims)))
        files[f"{images}.gz"] = gzip.compress(idx(pixels, dims), 1)
        files[f"{labels}.gz"] = gzip.compress(idx([i * 7 % 10 for i in range(dims[0])], dims[:1]), 1)
    return files


class DevicesCase(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        for name, content in data_files().items():
            (self.folder / "data" / name).write_bytes(content)

    def run_here(self, *command, environment=None, code=0):
        own = {k: v for k, v in os.environ.items() if not k.startswith(("MESHTRAIN_PJRT_OPTIONS", "MESHTRAIN_DISCRETE"))}
        result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                                stdin=subprocess.DEVNULL, env=own | (environment or {}))
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result

    def job(self, text, name, tool="meshtrain", **more):
        (self.folder / f"{name}.yaml").write_text(text)
        verb = ["run"] if tool == "meshtrain" else []
        return self.run_here(BIN / tool, *verb, "-f", f"{name}.yaml", "--output", f"out-{name}", **more)

    def figures(self, name):
        """Of every step and validation: loss, accuracy and what else there is."""
        path = self.folder / f"out-{name}" / "metrics.jsonl"
        hidden = ("seconds", "time")
        return [{k: v for k, v in line.items() if k not in hidden and isinstance(v, (int, float))}
                for line in steps_of(path) + validations_of(path)]

    def assert_same(self, got, want, tolerance, what):
        self.assertEqual(len(got), len(want), what)
        self.assertGreater(len(want), 0, what)
        for ours, theirs in zip(got, want):
            self.assertEqual(ours.keys(), theirs.keys(), what)
            for key, value in theirs.items():
                self.assertAlmostEqual(ours[key], value, delta=tolerance * max(1, abs(value)), msg=f"{what}: {key}")

    def strategy(self, strategy, count, batch, epochs=1, processes=1, options="", more="[]"):
        """A small job whose batches need not divide: of 40, 40 and 20, or twice of 50."""
        text = Path(self.manifest(mesh="", batch=batch, epochs=epochs)).read_text()
        text = text.replace("    mesh: \n", options).replace("replicas: 1", f"replicas: {processes}")
        text = text.replace("  replicaSpecs:", f"  strategy: {strategy}\n  replicaSpecs:")
        return lambda kind: on_kind(text, kind, count)


class SameNumbers:
    """What holds for every kind."""
    MESHES = staticmethod(lambda text: text)  # of the examples and the small job

    def both(self, make, name):
        for kind in ("cpu", self.KIND):
            self.job(make(kind), f"{name}-{kind}")
        self.assert_same(self.figures(f"{name}-{self.KIND}"), self.figures(f"{name}-cpu"), self.TOLERANCE, name)

    def test_examples(self):
        for name in self.EXAMPLES:
            with self.subTest(name):
                whole = self.MESHES((EXAMPLES / f"{name}.yaml").read_text())
                text = small(whole)
                if name in self.DEEP:
                    text = small(whole, batch=64)  # one step
                    smooth = small(whole).replace("activation: relu", "activation: gelu")
                    self.both(lambda kind: on_kind(smooth, kind), f"{name}-smooth")
                self.both(lambda kind: on_kind(text, kind), name)

    def test_strategies(self):
        for number, (strategy, count, more) in enumerate(self.STRATEGIES):
            with self.subTest(strategy, **more):
                on = self.strategy(strategy, count, self.BATCH, **more)
                # No CPU is a TPU: what it is otherwise is Mirrored.
                self.both(lambda kind: on(kind).replace("TPU", "Mirrored") if kind == "cpu" else on(kind), f"strategy{number}")

    def test_what_one_kind_saves_another_takes_up(self):
        def at(kind, epochs):
            return on_kind(Path(self.manifest(mesh=self.MESHES("{batch: 8}"), batch=50, epochs=epochs, edit=lambda t: t.replace(
                "      batch: 50", "      batch: 50\n      uneven: true"))).read_text(), kind)
        self.job(at("cpu", 2), "whole")
        whole = self.figures("whole")
        for first, second in (("cpu", self.KIND), (self.KIND, "cpu")):
            with self.subTest(f"{first}, then {second}"):
                name = f"{first}-{second}"
                self.job(at(first, 1), name)
                result = self.job(at(second, 2), name)
                self.assertIn("at step 2", result.stdout)
                self.assert_same(self.figures(name), whole, self.TOLERANCE, name)
        for kind in ("cpu", self.KIND):
            self.assertIn("devices share memory" if kind == "cpu" else "each device by itself",
                          self.job(at(kind, 1), f"says-{kind}").stdout)

    def test_programs_in_cpp(self):
        few = ("--data", "data", "--take", "80", "--batch", "40", "--epochs", "1", "--mesh", self.MESHES("batch=8"))
        epoch = [self.run_here(BIN / "core_mlp", *few, "--device", kind).stdout for kind in ("cpu", self.KIND)]
        numbers = [[float(n) for n in re.findall(r"\d\.\d{4}", line)] for line in epoch]
        self.assertEqual([len(each) for each in numbers], [4, 4], epoch)
        for a, b in zip(*numbers):
            self.assertAlmostEqual(a, b, delta=1.1e-4)
        for strategy, devices in self.LOOPS:
            with self.subTest(strategy, devices=devices):
                result = self.run_here(BIN / "custom_loop", "--strategy", strategy, "--devices", str(devices), "--device", self.KIND)
                losses = [float(line) for line in result.stdout.split()]
                self.assertEqual(len(losses), len(GUIDE))
                for a, b in zip(losses, GUIDE):
                    self.assertAlmostEqual(a, b, delta=1e-6)

    def test_plan_is_what_runs(self):
        text = on_kind(Path(self.manifest(mesh=self.MESHES("{batch: 2}"), epochs=1)).read_text(), self.KIND)
        self.job(text, "plan")
        plan = self.run_here(BIN / "meshtrain", "plan", "-f", "plan.yaml")
        self.assertTrue(plan.stdout.startswith((self.folder / "out-plan" / "plan.txt").read_text()))


class Discrete(SameNumbers, DevicesCase):
    KIND = "discrete"
    TOLERANCE = 1e-6
    EXAMPLES = ("mnist-mlp", "mnist-mlp-model-parallel", "lenet", "resnet")
    # The slope of relu jumps at 0. Where the roundings of two orders of a sum lie on both its sides, one unit's gradient is
    # there on the one kind and not on the other, which many layers and the second step make visible. So several steps are
    # compared with slopes that do not jump.
    DEEP = ("resnet",)
    BATCH = 40
    STRATEGIES = [("Default", 1, {}), ("OneDevice", 1, {}), ("Mirrored", 3, {}),
                  ("Mirrored", 2, {"options": "    mirrored: {cross_device_ops: Ring, packing: {num_packs: 2}}\n"}),
                  ("CentralStorage", 2, {}), ("MultiWorkerMirrored", 2, {"processes": 2})]
    LOOPS = [("one-device", 1), ("mirrored", 2), ("central-storage", 2)]

    def test_parameter_servers(self):
        # One worker, so that steps have one order.
        text = (EXAMPLES / "parameter-server.yaml").read_text()
        for old, new in (("    worker: {replicas: 3", "    worker: {replicas: 1"), ("    ps: {replicas: 2", "    ps: {replicas: 1"),
                         ("    evaluator: {replicas: 1, restartPolicy: ExitCode}\n", ""), ("  waitForEvaluator: true\n", ""),
                         ("max_shards: 2", "max_shards: 1")):
            self.assertIn(old, text)
            text = text.replace(old, new)
        self.both(lambda kind: on_kind(small(text), kind, 2), "servers")

    def test_what_is_wrong_is_said(self):
        on = self.strategy("Mirrored", 4, 40)("discrete")
        options = "MESHTRAIN_DISCRETE_OPTIONS"
        for text, environment, words in (
                (on, {options: "devices=2"}, "discrete: expected at least 4 devices, got: 2"),
                (on, {options: "devices"}, "expected options as seed=3,devices=4, of whole numbers, got: devices"),
                (on, {options: "colour=3"}, "got: colour=3"),
                (on, {options: "lost=7,lost_after_steps=3"}, "discrete: lost: expected one of 4 devices, from 0 on, got: 7"),
                (on, {options: "memory_bytes=9000"}, "discrete: device 0: expected 4096 bytes of its memory of 9000, got: "),
                # The weights fit, the step does not.
                (on.replace("units: 12", "units: 3000"), {options: "memory_bytes=4400000"}, "bytes (what a device has), got: "),
                (on.replace("    seed:", "    numerics: strict\n    seed:"), {},
                 "numerics: strict holds where the devices share memory: expected fast on devices of kind discrete")):
            with self.subTest(words):
                result = self.job(text, "wrong", tool="meshtrain-worker", environment=environment, code=78)
                self.assertIn(words, result.stderr)
                self.assertEqual([str(p) for p in (self.folder / "out-wrong").rglob("*.safetensors")], [])

    def test_devices_that_nothing_asks_for(self):
        there = {"MESHTRAIN_DISCRETE_OPTIONS": "devices=3"}
        said = "there are devices that this job does not use"
        mirrored = self.strategy("Mirrored", None, 40)("discrete")
        result = self.job(mirrored, "one", tool="meshtrain-worker", environment=there)
        self.assertIn(said, result.stderr)
        self.assertRegex(result.stderr, r'"?there"?[=:]\s*"?3')
        three = self.strategy("Mirrored", 3, 40)("discrete")
        self.assertNotIn(said, self.job(three, "three", tool="meshtrain-worker", environment=there).stderr)

    def test_a_lost_device(self):
        text = on_kind(Path(self.manifest(mesh="{batch: 4}")).read_text(), "discrete")
        self.job(text, "undisturbed")
        want = self.figures("undisturbed")
        lost = {"MESHTRAIN_DISCRETE_OPTIONS": "lost=2,lost_after_steps=9"}
        result = self.job(text, "alone", tool="meshtrain-worker", environment=lost, code=138)
        self.assertIn("discrete: device 2 is lost", result.stderr)
        # What it leaves is whole: the next process goes on from there.
        left = sorted((self.folder / "out-alone" / "checkpoints").iterdir())
        self.assertTrue(left)
        self.assertEqual([p.name for p in left if not (p / "index.json").exists()], [])
        self.job(text, "alone", tool="meshtrain-worker")
        self.assert_same(self.figures("alone"), want, 1e-6, "gone on")
        # A job does that by itself.
        again = text.replace("replicas: 1}", "replicas: 1, restartPolicy: ExitCode}")
        self.assertNotEqual(again, text)
        result = self.job(again, "job", environment=lost)
        self.assertIn("exit code 138", result.stdout + result.stderr)
        self.assert_same(self.figures("job"), want, 1e-6, "job")


class Pjrt(SameNumbers, DevicesCase):
    KIND = "pjrt"
    TOLERANCE = 1e-5
    EXAMPLES = ("mnist-mlp", "mnist-mlp-model-parallel", "lenet")  # XLA takes half a minute for resnet's programs
    DEEP = ()
    BATCH = 50  # a program less to compile
    STRATEGIES = [("Mirrored", 8, {"options": "    mirrored: {packing: {num_packs: 2}}\n"}), ("TPU", 8, {})]
    LOOPS = [("one-device", 1)]

    def wrong(self, text, code, *words, environment=None):
        result = self.job(text, "wrong", tool="meshtrain-worker", environment=environment, code=code)
        for word in words:
            self.assertIn(word, result.stderr)
        # Nothing half-written.
        for folder in (self.folder / "out-wrong").glob("checkpoints/*"):
            self.assertTrue((folder / "index.json").exists(), folder)

    def test_what_is_wrong_is_said(self):
        on = self.strategy("Mirrored", 2, 40)("pjrt")
        plugin = "MESHTRAIN_PJRT_PLUGIN"
        self.wrong(on, 78, "pjrt: expected a plugin, named by MESHTRAIN_PJRT_PLUGIN, got: none", environment={plugin: ""})
        self.wrong(on, 66, "/no/plugin.so, got: no such file", environment={plugin: "/no/plugin.so"})
        self.wrong(on, 78, "or one close to it, got: 7.1", environment={plugin: str(PLUGINS / "libplugin_of_other_version.so")})
        self.wrong(on, 78, "expected at least 2 devices, got: 1 of cpu", environment={"MESHTRAIN_PJRT_OPTIONS": "cpu_device_count=1"})
        self.wrong(on.replace("replicas: 1", "replicas: 2").replace("Mirrored", "MultiWorkerMirrored"), 78,
                   "devices.kind: expected cpu or discrete in 2 processes")
        self.wrong(self.strategy("Mirrored", 2, 40, options="    mirrored: {cross_device_ops: Ring}\n")("pjrt"), 78,
                   "mirrored.cross_device_ops: expected Auto on devices of kind pjrt, whose plugin makes their sums, got: Ring")

    def test_a_tpu_is_a_plugins_that_says_so(self):
        on = self.strategy("TPU", 8, self.BATCH)
        text = on("tpu").replace("kind: tpu, count: 8", "slice: v5e-8")
        self.assertIn("{slice: v5e-8}", text)
        self.wrong(text, 78, "devices: expected a plugin of tpu, got: ", ", of cpu")
        # XLA's processors under that name.
        tpu = {"MESHTRAIN_PJRT_PLUGIN": str(PLUGINS / "libplugin_that_fails.so"), "MESHTRAIN_PJRT_OPTIONS": "cpu_device_count=8",
               "MT_REAL_PLUGIN": PLUGIN, "MT_SAY_PLATFORM": "tpu"}
        self.job(text, "tpu", tool="meshtrain-worker", environment=tpu)
        self.job(on("cpu").replace("TPU", "Mirrored"), "mirrored")
        self.assert_same(self.figures("tpu"), self.figures("mirrored"), self.TOLERANCE, "TPU")

    def test_gpus_are_a_plugins_that_says_so(self):
        on = self.strategy("Mirrored", 8, self.BATCH)
        self.wrong(on("cuda"), 78, "devices: expected a plugin of cuda, got: ", ", of cpu")
        cuda = {"MESHTRAIN_PJRT_PLUGIN": str(PLUGINS / "libplugin_that_fails.so"), "MESHTRAIN_PJRT_OPTIONS": "cpu_device_count=8",
                "MT_REAL_PLUGIN": PLUGIN, "MT_SAY_PLATFORM": "cuda"}
        self.job(on("cuda"), "cuda", tool="meshtrain-worker", environment=cuda)
        self.job(on("cpu"), "cpu")
        self.assert_same(self.figures("cuda"), self.figures("cpu"), self.TOLERANCE, "cuda")

    def test_a_device_that_is_lost_or_full(self):
        text = on_kind(Path(self.manifest(mesh="{batch: 2}")).read_text(), "pjrt")
        failing = {"MESHTRAIN_PJRT_PLUGIN": str(PLUGINS / "libplugin_that_fails.so"), "MT_REAL_PLUGIN": PLUGIN, "MT_FAIL_AFTER": "9"}
        # UNAVAILABLE and RESOURCE_EXHAUSTED, by the numbers that PJRT gives them.
        self.wrong(text, 138, "the device went away", environment=failing | {"MT_FAIL_WITH": "14"})
        left = sorted(p.name for p in (self.folder / "out-wrong" / "checkpoints").iterdir())
        self.assertTrue(left)
        # INTERNAL, as XLA hands on what CUDA's driver says: of the card's state, or of anything else.
        self.wrong(text, 138, "ECC", environment=failing | {"MT_FAIL_WITH": "13", "MT_FAIL_AFTER": "2", "MT_FAIL_SAYING": "failed: CUDA_ERROR_ECC_UNCORRECTABLE"})
        self.wrong(text, 70, "VALUE", environment=failing | {"MT_FAIL_WITH": "13", "MT_FAIL_AFTER": "2", "MT_FAIL_SAYING": "failed: CUDA_ERROR_INVALID_VALUE"})
        self.wrong(text, 78, "the device is full", environment=failing | {"MT_FAIL_WITH": "8", "MT_FAIL_AFTER": "2"})


def on_one(text):
    """A manifest, or the text of a mesh, with axes of one device."""
    mesh = r"^    mesh: \{.*?\}" if "\n" in text else r"^.*$"
    return re.sub(mesh, lambda found: re.sub(r"\d+", "1", found[0]), text, flags=re.MULTILINE)


class Cuda(SameNumbers, DevicesCase):
    """One GPU of NVIDIA's, as many as a machine is sure to have."""
    KIND = "cuda"
    MESHES = staticmethod(on_one)
    TOLERANCE = 1e-5
    EXAMPLES = ("mnist-mlp", "mnist-mlp-model-parallel", "lenet", "resnet")
    DEEP = ("resnet",)
    BATCH = 40
    STRATEGIES = [("Default", 1, {}), ("OneDevice", 1, {}), ("Mirrored", 1, {})]
    LOOPS = [("one-device", 1)]

    def test_what_is_wrong_is_said(self):
        text = self.strategy("Mirrored", 99, 99)("cuda")
        result = self.job(text, "wrong", tool="meshtrain-worker", code=78)
        self.assertIn("expected at least 99 devices, got: ", result.stderr)


if __name__ == "__main__":
    if "Pjrt" in sys.argv and os.environ.get("MT_BUILT_WITHOUT_PJRT"):
        print("pjrt did not run: this build has no pjrt_c_api.h")
        sys.exit(0)
    if not PLUGIN and "Discrete" not in sys.argv:
        print("pjrt did not run: MESHTRAIN_PJRT_PLUGIN names no plugin")
        sys.exit(0)
    unittest.main(verbosity=2)
