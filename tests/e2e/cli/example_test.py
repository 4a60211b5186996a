#!/usr/bin/env python3
"""The main job as scripts/quickstart runs it, from a manifest and from C++: the epoch figures of a right run on the drawn
digits, its curves, its exit codes.   example_test.py BIN_FOLDER"""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 300
# Train loss, train accuracy, test loss, test accuracy of each epoch: a reference run of the same job (batches of 128 of
# the first 5,000 digits, 39 of them full) to the digits that it was recorded with.
FIGURES = [(0.831, 0.772, 0.340, 0.901), (0.299, 0.911, 0.249, 0.926), (0.187, 0.946, 0.233, 0.929)]


class Example(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([ROOT / "scripts" / "make-data", "--first", "5000", "--out", cls.folder / "data"], check=True,
                       timeout=TIMEOUT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def run_here(self, *command):
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                              stdin=subprocess.DEVNULL)

    def table(self, result):
        rows = re.findall(r"^ +(\d)  +([\d.]+)  +([\d.]+)  +([\d.]+)  +([\d.]+)$", result.stdout, re.MULTILINE)
        self.assertEqual([row[0] for row in rows], ["1", "2", "3"], result.stdout)
        return [tuple(map(float, row[1:])) for row in rows]

    def expect_figures(self, rows):
        self.assertEqual(len(rows), len(FIGURES), rows)
        for ours, reference in zip(rows, FIGURES):
            for a, b in zip(ours, reference):
                self.assertAlmostEqual(a, b, delta=0.0006)

    def test_the_manifest(self):
        result = self.run_here(BIN / "meshtrain", "run", "-f", ROOT / "deploy" / "examples" / "mnist-mlp.yaml",
                               "--output", "runs/manifest")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.expect_figures(self.table(result))
        self.assertIn("0.2328", (self.folder / "runs" / "manifest" / "report.html").read_text())

    def test_layouts_chosen_by_cost(self):
        text = (ROOT / "deploy" / "examples" / "mnist-mlp.yaml").read_text()
        edited = text.replace("mesh: {batch: 8}", "mesh: {batch: 2, model: 4}\n    layout: auto")
        self.assertNotEqual(edited, text)
        (self.folder / "auto.yaml").write_text(edited)
        plan = self.run_here(BIN / "meshtrain", "plan", "-f", "auto.yaml")
        self.assertRegex(plan.stdout, r"kernel .*model", plan.stderr)
        result = self.run_here(BIN / "meshtrain", "run", "-f", "auto.yaml", "--output", "runs/auto", "--isolated")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.expect_figures(self.table(result))

    def test_cpp(self):
        for more in ([], ["--isolated"], ["--mesh", "batch=4,model=2"]):
            with self.subTest(more):
                result = self.run_here(BIN / "core_mlp", "--data", "data", "--curves", "curves.html", *more)
                self.assertEqual(result.returncode, 0, result.stderr)
                rows = re.findall(r"^epoch \d: train loss ([\d.]+), train accuracy ([\d.]+), test loss ([\d.]+), "
                                  r"test accuracy ([\d.]+)$", result.stdout, re.MULTILINE)
                self.expect_figures([tuple(map(float, row)) for row in rows])
                self.assertIn("<svg", (self.folder / "curves.html").read_text())

    def test_cpp_says_what_is_wrong(self):
        for code, words, more in ((64, "--no-such-flag", ["--no-such-flag"]), (66, "nowhere/train-images", ["--data", "nowhere"]),
                                  (78, "batch", ["--data", "data", "--mesh", "batch"]),
                                  (78, "axis `spare` in no layout", ["--data", "data", "--mesh", "batch=2,spare=2,one=1"]),
                                  (73, "data/curves.html", ["--data", "data", "--epochs", "0", "--curves",
                                                            "data/manifest.json/data/curves.html"])):
            with self.subTest(words):
                result = self.run_here(BIN / "core_mlp", *more)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
