#!/usr/bin/env python3
"""LeNet of deploy/examples/lenet.yaml: twenty steps are the same whatever the mesh splits, the batch, the filters, the
images themselves or the weights (ZeRO-3), in one process or several, in both precisions; and the example learns.
   lenet_test.py BIN_FOLDER"""
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "support"))
from metrics_file import steps_of  # noqa: E402
from plan_text import gathers_of  # noqa: E402

TIMEOUT = 1500  # of one run, also of a sanitized program
EXAMPLE = (ROOT / "deploy" / "examples" / "lenet.yaml").read_text()
MESH = "mesh: {batch: 2, h: 2, w: 2}"
LAYOUT = "layout:\n      inputs: {x: [batch, h, w]}"
FILTERS = ("layout: {rules: [{match: 'conv_2.*kernel', spec: [unsharded, unsharded, unsharded, model]}, "
           "{match: 'hidden_1.*kernel', spec: [unsharded, model]}]}")
# The kernels by their filters or units, all else by its only dimension.
ZERO = ("layout: {rules: [{match: 'conv.*kernel', spec: [unsharded, unsharded, unsharded, batch]}, "
        "{match: '.*kernel', spec: [batch, unsharded]}, {match: '.*', spec: [batch]}]}")
LAYOUTS = (("batch", "mesh: {batch: 8}", ""),
           ("filters", "mesh: {batch: 4, model: 2}", FILTERS),
           ("space", MESH, LAYOUT),
           # Seven rows a device, then three and a half.
           ("uneven", "mesh: {batch: 2, h: 4}", "layout: {inputs: {x: [batch, h, unsharded]}}"),
           ("zero", "mesh: {batch: 8}", ZERO))


class LeNet(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([ROOT / "scripts" / "make-data", "--first", "5000", "--out", cls.folder / "data"], check=True,
                       timeout=TIMEOUT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def run_job(self, text, name, *more):
        (self.folder / f"{name}.yaml").write_text(text)
        return subprocess.run([BIN / "meshtrain", "run", "-f", f"{name}.yaml", "--output", f"runs/{name}", *more],
                              cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)

    def losses(self, mesh, layout, name, *more, processes=1, dtype="f64"):
        """Of twenty steps."""
        text = EXAMPLE
        for old, new in ((MESH, mesh), (LAYOUT, layout), ("take: 5000", "take: 320"), ("take: 1000", "take: 16"),
                         ("batch: 100", "batch: 16"), ("epochs: 3", "epochs: 1"),
                         ("replicas: 1", f"replicas: {processes}"),
                         ("- scale: 0.00392156862745098", f"- {{cast: {dtype}}}\n        - {{scale: 0.00392156862745098}}")):
            self.assertIn(old, text)
            text = text.replace(old, new)
        result = self.run_job(text, name, *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [line["loss"] for line in steps_of(self.folder / "runs" / name / "metrics.jsonl")]
        self.assertEqual(len(losses), 20)
        return losses

    def test_twenty_steps_are_the_same_in_every_layout(self):
        want = self.losses("mesh: {batch: 1}", "", "alone")
        self.assertLess(want[-1], want[0])
        for name, mesh, layout in LAYOUTS:
            for more, processes in (([], 1), (["--isolated"], 1), ([], 2), ([], 4)):
                with self.subTest(name, more=more, processes=processes):
                    got = self.losses(mesh, layout, f"{name}{''.join(more)}_{processes}", *more, processes=processes)
                    for step, (ours, reference) in enumerate(zip(got, want)):
                        self.assertAlmostEqual(ours, reference, delta=1e-9 * max(1, abs(reference)), msg=f"step {step}")

    def test_in_single_precision_they_are_so_to_1e_5(self):
        want = self.losses("mesh: {batch: 1}", "", "alone_f32", dtype="f32")
        for name, mesh, layout in LAYOUTS:
            with self.subTest(name):
                got = self.losses(mesh, layout, name + "_f32", "--isolated", dtype="f32")
                for step, (ours, reference) in enumerate(zip(got, want)):
                    self.assertAlmostEqual(ours, reference, delta=1e-5 * max(1, abs(reference)), msg=f"step {step}")

    def test_the_example_learns(self):
        result = self.run_job(EXAMPLE, "example")
        self.assertEqual(result.returncode, 0, result.stderr)
        last = [line for line in result.stdout.splitlines() if line.startswith("    3 ")]
        self.assertEqual(len(last), 1, result.stdout)
        self.assertGreater(float(last[0].split()[4]), 0.9, result.stdout)

    def plan(self, text):
        (self.folder / "plan.yaml").write_text(text)
        plan = subprocess.run([BIN / "meshtrain", "plan", "-f", "plan.yaml"], cwd=self.folder, capture_output=True,
                              text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        return plan.stdout

    def test_the_plan_lists_exchanges(self):
        self.assertIn("halo", self.plan(EXAMPLE))

    def test_what_is_gathered_is_little_and_listed(self):
        # Five by five pixels, of which the dense layers take all (docs/examples.md).
        self.assertEqual(gathers_of(self.plan(EXAMPLE)), ["window_max (max_pooling_2d_1)"])
        self.assertEqual(gathers_of(self.plan(EXAMPLE.replace(MESH, "mesh: {batch: 4}").replace(LAYOUT, ""))), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
