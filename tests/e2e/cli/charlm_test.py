#!/usr/bin/env python3
"""The language model of deploy/examples/charlm.yaml: from the reference's weights its twenty losses are those of the
reference (tests/testdata/charlm), whatever the mesh splits: the batch, the heads and the vocabulary, the sequence, the
update alone (ZeRO-1 and ZeRO-2) or the weights themselves (ZeRO-3), in one process or several. The text that it writes at its end is the same on each.
   charlm_test.py BIN_FOLDER Always|Long, by a Python with numpy and safetensors"""
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
EXAMPLE = (ROOT / "deploy" / "examples" / "charlm.yaml").read_text()
GOLDEN = json.loads((ROOT / "tests" / "testdata" / "charlm" / "golden.json").read_text())
MESH = "mesh: {batch: 4, model: 2}"
RULES = EXAMPLE[EXAMPLE.index("    layout:\n"):EXAMPLE.index("    loss:")]
RATE = EXAMPLE[EXAMPLE.index("learning_rate: "):EXAMPLE.index("        weight_decay:")]
GENERATE = EXAMPLE[EXAMPLE.index("    generate: "):]
FEW = (("          validation_split: 0.05\n", "        take: 64\n"),
       ("subset: validation}", "subset: validation}\n        take: 16"), ("epochs: 2", "epochs: 1"))
SEQUENCE = "    layout: {inputs: {x: [batch, sequence], y: [batch, sequence]}}\n"
SHARED = "    layout: {update: shared}\n"
ZERO = "    layout: {rules: [{match: '.*(kernel|embeddings)', spec: [batch, unsharded]}, {match: '.*', spec: [batch]}]}\n"


def initial_weights(dtype):
    """The reference's, by the example's paths."""
    weights, payload = {}, hashlib.sha256()
    for i, tensor in enumerate(GOLDEN["tensors"]):
        if tensor["init"] == "normal":
            drawn = np.random.RandomState(1000 + i).randn(*tensor["shape"]) * tensor["scale"]
        else:
            drawn = np.full(tensor["shape"], {"zeros": 0, "ones": 1}[tensor["init"]])
        drawn = drawn.astype(np.float32)
        payload.update(drawn.tobytes())
        name = tensor["name"]
        weights[f"blocks.{name[5:]}" if name.startswith("block") else name] = drawn.astype(dtype)
    assert payload.hexdigest() == GOLDEN["payload_sha256"]
    return weights


class CharacterModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([ROOT / "scripts" / "make-text", "--out", cls.folder / "data"], check=True, timeout=TIMEOUT,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        text = (cls.folder / "data" / "text.txt").read_bytes()
        assert hashlib.sha256(text).hexdigest() == GOLDEN["text_sha256"]
        for name, dtype in (("f64", np.float64), ("f32", np.float32)):
            save_file(initial_weights(dtype), cls.folder / f"initial-{name}.safetensors")

    def run_it(self, name, changes, *more):
        text = EXAMPLE
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        (self.folder / f"{name}.yaml").write_text(text)
        return subprocess.run([BIN / "meshtrain", "run", "-f", f"{name}.yaml", "--output", f"runs/{name}", *more],
                              cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                              stdin=subprocess.DEVNULL)

    def losses(self, mesh, layout, name, steps, *more, dtype="f64", heads=4, processes=1):
        result = self.run_it(name, (
            (MESH, mesh + f"\n    initial_weights: initial-{dtype}.safetensors"), (RULES, layout),
            (GENERATE, ""), (RATE, "learning_rate: 0.0003\n"), ("      shuffle: {buffer: 8192}\n", ""), ("epochs: 2", "epochs: 1"),
            ("          validation_split: 0.05\n", f"        take: {steps * 16}\n"),
            ("subset: validation}", "subset: validation}\n        take: 16"), ("num_heads: 4", f"num_heads: {heads}"),
            ("output_dim: 256,", f"output_dim: 256, dtype: {dtype},"), ("replicas: 1", f"replicas: {processes}")), *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [line["loss"] for line in steps_of(self.folder / "runs" / name / "metrics.jsonl")]
        self.assertEqual(len(losses), steps)
        return losses

    def expect(self, got, within, reference=None):
        for step, (ours, theirs) in enumerate(zip(got, reference or GOLDEN["losses_f64"])):
            self.assertLess(abs(ours / theirs - 1), within, f"step {step}: {ours} and {theirs}")


class Always(CharacterModel):
    def test_in_single_precision_its_losses_are_the_reference_s_to_1e_5(self):
        self.expect(self.losses("mesh: {batch: 1}", "", "single", 5, dtype="f32"), 1e-5)

    def test_the_first_are_so_to_1e_9_with_batch_heads_and_vocabulary_split(self):
        self.expect(self.losses(MESH, RULES, "split", 2, "--isolated"), 1e-9)

    def test_the_first_are_so_in_several_processes(self):
        for name, mesh, layout, processes in (("two_heads", MESH, RULES, 2),
                                              ("two_sequence", "mesh: {sequence: 2}", SEQUENCE.replace("batch", "unsharded"), 2),
                                              ("two_zero", "mesh: {batch: 2}", ZERO, 2),
                                              ("four_shared", "mesh: {batch: 4}", SHARED, 4)):
            with self.subTest(name):
                self.expect(self.losses(mesh, layout, name, 2, processes=processes), 1e-9)

    def test_nothing_is_gathered_but_what_the_layout_splits_and_the_cost_says(self):
        for name, mesh, layout, want in (("batch", "mesh: {batch: 8}", "", []),
                                         # 49 kB; else the sums of half a megabyte of embeddings.
                                         ("example", MESH, RULES, ["token_embedding.embeddings"]),
                                         ("zero", "mesh: {batch: 8}", ZERO, sorted(initial_weights(np.float32)))):
            with self.subTest(name):
                (self.folder / "plan.yaml").write_text(EXAMPLE.replace(MESH, mesh).replace(RULES, layout))
                plan = subprocess.run([BIN / "meshtrain", "plan", "-f", "plan.yaml"], cwd=self.folder,
                                      capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
                self.assertEqual(plan.returncode, 0, plan.stderr)
                self.assertEqual(sorted(gathers_of(plan.stdout)), want)

    def test_a_run_writes_text_and_what_it_left_writes_the_same_on_any_mesh(self):
        ask = '    generate: {prompt: "One ", length: 30, temperature: 0.8, seed: 2}\n'
        result = self.run_it("writes", (*FEW, (GENERATE, ask)))
        self.assertEqual(result.returncode, 0, result.stderr)
        run = self.folder / "runs" / "writes"
        text = (run / "generated.txt").read_text()
        self.assertEqual((len(text), text[:4]), (34, "One "))
        self.assertIn(text, result.stdout)
        self.assertIn("text that the model writes", (run / "report.html").read_text())

        def generate(name, changes, *more):
            manifest = (self.folder / "writes.yaml").read_text()
            for old, new in changes:
                self.assertIn(old, manifest)
                manifest = manifest.replace(old, new)
            (self.folder / f"{name}.yaml").write_text(manifest)
            made = subprocess.run([BIN / "meshtrain", "generate", f"{name}.yaml", "--from", run, *more], cwd=self.folder,
                                  capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
            self.assertEqual(made.returncode, 0, made.stderr)
            return made.stdout

        for name, mesh, layout in (("alone", "mesh: {batch: 1}", ""), ("zero", "mesh: {batch: 8}", ZERO),
                                   ("sequence", "mesh: {sequence: 4, batch: 2}", SEQUENCE)):
            with self.subTest(name):
                self.assertEqual(generate("on_" + name, ((MESH, mesh), (RULES, layout))), text + "\n")
        asked = ("--prompt", "Two", "--length", "5", "--seed", "9", "--output", "other.txt")
        self.assertEqual(generate("asked", (), *asked), "")
        other = (self.folder / "other.txt").read_bytes()
        self.assertEqual((len(other), other[:3]), (8, b"Two"))

    def test_heads_that_the_axis_does_not_divide_are_refused(self):
        result = self.run_it("refused", ((MESH, "mesh: {batch: 1, model: 8}"),))
        self.assertEqual(result.returncode, 78, result.stderr)
        self.assertIn("blocks.0.attention.query.kernel: expected axes that divide its 4 heads", result.stderr)


class Long(CharacterModel):
    def test_all_twenty_in_every_layout(self):
        self.assertEqual(len(GOLDEN["losses_f64"]), 20)
        one = self.losses("mesh: {batch: 1}", "", "alone", 20)
        self.expect(one, 1e-8)
        for name, mesh, layout, *more in (("batch", "mesh: {batch: 8}", ""),
                                          ("heads", MESH, RULES), ("heads_isolated", MESH, RULES, "--isolated"),
                                          ("batch_isolated", "mesh: {batch: 8}", "", "--isolated"),
                                          ("sequence", "mesh: {sequence: 4, batch: 2}", SEQUENCE, "--isolated"),
                                          ("shared", "mesh: {batch: 8}", SHARED, "--isolated"),
                                          ("zero", "mesh: {batch: 8}", ZERO, "--isolated")):
            with self.subTest(name):
                self.expect(self.losses(mesh, layout, name, 20, *more), 1e-9, one)

    def test_all_twenty_in_several_processes(self):
        for name, mesh, layout in (("batch", "mesh: {batch: 8}", ""), ("heads", MESH, RULES),
                                   ("sequence", "mesh: {sequence: 4, batch: 2}", SEQUENCE),
                                   ("zero", "mesh: {batch: 8}", ZERO)):
            for processes in (2, 4):
                with self.subTest(name, processes=processes):
                    self.expect(self.losses(mesh, layout, f"{name}_{processes}", 20, processes=processes), 1e-8)

    def test_in_single_precision_too(self):
        for name, mesh, layout in (("alone", "mesh: {batch: 1}", ""), ("batch", "mesh: {batch: 8}", ""),
                                   ("heads", MESH, RULES), ("sequence", "mesh: {sequence: 4, batch: 2}", SEQUENCE),
                                   ("zero", "mesh: {batch: 8}", ZERO)):
            with self.subTest(name):
                self.expect(self.losses(mesh, layout, name + "_f32", 20, "--isolated", dtype="f32"), 1e-5)

    def test_eight_heads_on_eight_devices(self):
        one = self.losses("mesh: {batch: 1}", "", "heads8_alone", 20, heads=8)
        for more, processes in ((["--isolated"], 1), ([], 2)):
            got = self.losses("mesh: {batch: 1, model: 8}", RULES, f"heads8_{processes}", 20, *more, heads=8,
                              processes=processes)
            self.expect(got, 1e-9, one)
        self.assertGreater(abs(one[1] / GOLDEN["losses_f64"][1] - 1), 1e-6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
