#!/usr/bin/env python3
"""The ResNet of deploy/examples/resnet.yaml: from the reference's weights its twenty losses are those
of the reference (tests/testdata/resnet), whatever the mesh splits: the batch, the filters, the images themselves or the
weights (ZeRO-3), on devices of their own (`--isolated`), in one process or several. And what a plan gathers is what the
layout asks for.   resnet_test.py BIN_FOLDER Always|Long, by a Python with numpy and safetensors"""
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

BIN = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "support"))
from metrics_file import steps_of  # noqa: E402
from plan_text import gathers_of  # noqa: E402

TIMEOUT = 1500  # of one run, also of a sanitized program
BATCH = 64
EXAMPLE = (ROOT / "deploy" / "examples" / "resnet.yaml").read_text()
GOLDEN = json.loads((ROOT / "tests" / "testdata" / "resnet" / "golden.json").read_text())
MESH = "mesh: {batch: 2, h: 2, w: 2}"
LAYOUT = "layout:\n      inputs: {x: [batch, h, w, unsharded]}"
FILTERS = "layout: {rules: [{match: 'stage.*kernel', spec: [unsharded, unsharded, unsharded, model]}]}"
# The kernels by their filters, all else by its only dimension.
ZERO = ("layout: {rules: [{match: 'logits.kernel', spec: [batch, unsharded]}, "
        "{match: '.*kernel', spec: [unsharded, unsharded, unsharded, batch]}, {match: '.*', spec: [batch]}]}")
LAYOUTS = (("batch", "mesh: {batch: 8}", ""), ("filters", "mesh: {batch: 4, model: 2}", FILTERS),
           ("space", MESH, LAYOUT), ("zero", "mesh: {batch: 8}", ZERO))


def initial_weights(dtype):
    """The reference's, by the example's paths, and the moving averages as they begin."""
    weights, payload = {}, hashlib.sha256()
    for i, tensor in enumerate(GOLDEN["tensors"]):
        if tensor["init"] == "normal":
            drawn = np.random.RandomState(2000 + i).randn(*tensor["shape"]) * tensor["scale"]
        else:
            drawn = np.full(tensor["shape"], {"zeros": 0, "ones": 1}.get(tensor["init"], tensor.get("scale")))
        drawn = drawn.astype(np.float32)
        payload.update(drawn.tobytes())
        layer, weight = tensor["name"].rsplit(".", 1)
        path = layer.replace(".", "_") + "."
        weights[path + weight] = drawn.astype(dtype)
        if weight == "gamma":
            weights[path + "moving_mean"] = np.zeros(tensor["shape"], dtype)
            weights[path + "moving_variance"] = np.ones(tensor["shape"], dtype)
    assert payload.hexdigest() == GOLDEN["payload_sha256"]
    return weights


class Network(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([ROOT / "scripts" / "make-images", "--first", "1280", "--out", cls.folder / "data"], check=True,
                       timeout=TIMEOUT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for name, dtype in (("f64", np.float64), ("f32", np.float32)):
            save_file(initial_weights(dtype), cls.folder / f"initial-{name}.safetensors")

    def manifest(self, mesh, layout, name, steps, dtype="f64", processes=1):
        text = EXAMPLE
        for old, new in ((MESH, mesh + f"\n    initial_weights: initial-{dtype}.safetensors"), (LAYOUT, layout),
                         ("train-labels32.idx.gz}", f"train-labels32.idx.gz}}\n        take: {steps * BATCH}"),
                         ("test-labels32.idx.gz}", "test-labels32.idx.gz}\n        take: 64"),
                         ("- normalize:", f"- cast: {dtype}\n        - normalize:"), ("epochs: 3", "epochs: 1"),
                         ("replicas: 1", f"replicas: {processes}")):
            self.assertIn(old, text)
            text = text.replace(old, new)
        (self.folder / f"{name}.yaml").write_text(text)

    def losses(self, mesh, layout, name, steps, *more, dtype="f64", processes=1):
        self.manifest(mesh, layout, name, steps, dtype, processes)
        result = subprocess.run([BIN / "meshtrain", "run", "-f", f"{name}.yaml", "--output", f"runs/{name}", *more],
                                cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                                stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [line["loss"] for line in steps_of(self.folder / "runs" / name / "metrics.jsonl")]
        self.assertEqual(len(losses), steps)
        return losses

    def expect(self, got, within):
        for step, (ours, reference) in enumerate(zip(got, GOLDEN["losses_f64"])):
            self.assertLess(abs(ours / reference - 1), within, f"step {step}: {ours} and {reference}")


class Always(Network):
    def test_its_losses_are_the_reference_s(self):
        got = self.losses("mesh: {batch: 1}", "", "alone", 20)
        self.assertEqual(len(GOLDEN["losses_f64"]), 20)
        self.expect(got, 1e-9)

    def test_in_single_precision_they_are_so_to_1e_4(self):
        self.expect(self.losses("mesh: {batch: 1}", "", "single", 20, dtype="f32"), 1e-4)

    def test_the_first_steps_are_the_same_in_every_layout(self):
        for name, mesh, layout in LAYOUTS:
            for more in ([], ["--isolated"]):
                with self.subTest(name, more=more):
                    self.expect(self.losses(mesh, layout, f"{name}{''.join(more)}", 2, *more), 1e-9)
        for name, mesh, layout, processes in (("batch_2", "mesh: {batch: 8}", "", 2), ("batch_4", "mesh: {batch: 4}", "", 4),
                                              ("filters_2", "mesh: {batch: 2, model: 2}", FILTERS, 2),
                                              ("space_2", "mesh: {h: 2, w: 2}", "layout: {inputs: {x: [unsharded, h, w, unsharded]}}", 2),
                                              ("space_4", MESH, LAYOUT, 4), ("zero_2", "mesh: {batch: 2}", ZERO, 2)):
            with self.subTest(name):
                self.expect(self.losses(mesh, layout, name, 2, processes=processes), 1e-9)


    def test_no_value_is_gathered_but_the_weights_that_a_layout_splits(self):
        gathered = {}
        for name, mesh, layout in LAYOUTS:
            self.manifest(mesh, layout, name + "_plan", 20, dtype="f32")
            plan = subprocess.run([BIN / "meshtrain", "plan", "-f", f"{name}_plan.yaml"], cwd=self.folder,
                                  capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
            self.assertEqual(plan.returncode, 0, plan.stderr)
            gathered[name] = gathers_of(plan.stdout)
        self.assertEqual((gathered["batch"], gathered["space"]), ([], []))
        kernels = [name for name in initial_weights(np.float32) if name.endswith("kernel")]
        self.assertEqual(sorted(name for name in gathered["zero"] if name.endswith("kernel")), sorted(kernels))
        # Scales and shifts of a few bytes beside them; nothing of the size of activations.
        self.assertEqual([name for name in gathered["zero"] if "relu" in name or "conv (" in name], [])


class Long(Network):
    def test_all_twenty_in_every_layout(self):
        for name, mesh, layout in LAYOUTS:
            with self.subTest(name):
                self.expect(self.losses(mesh, layout, name, 20, "--isolated"), 1e-9)

    def test_in_single_precision_too(self):
        for name, mesh, layout in LAYOUTS:
            with self.subTest(name):
                self.expect(self.losses(mesh, layout, name + "_f32", 20, "--isolated", dtype="f32"), 1e-4)

    def test_all_twenty_in_several_processes(self):
        for name, mesh, layout in LAYOUTS:
            with self.subTest(name):
                self.expect(self.losses(mesh, layout, name + "_2", 20, processes=2), 1e-9)


if __name__ == "__main__":
    unittest.main(verbosity=2)
