"""Each layer, loss, metric and optimizer of the catalogue beside real Keras: options, weights and inputs are drawn by seed,
and results, gradients, figures of several batches and weights after several steps are compared, in f32 and f64, on one
device and split over a mesh. What Keras lacks stands in rows.py. Steps of models of two outputs are compared too.

Usage: keras_test.py KERAS_ROWS [unittest arguments]; skipped (77) where this Python has no Keras.
  MT_TEST_SEED=7    other drawings than those of seed 1
  MT_KERAS_ROW=sgd  this row alone
  MT_KERAS_DRAWS=100  so many configurations of each row
"""
import fnmatch
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

if importlib.util.find_spec("keras") is None or importlib.util.find_spec("tensorflow") is None:
    print("skipped: this Python has no Keras and TensorFlow")
    sys.exit(77)

import keras  # noqa: E402
import layer_cases  # noqa: E402
import loss_cases  # noqa: E402
import metric_cases  # noqa: E402
import numpy as np  # noqa: E402
import optimizer_cases  # noqa: E402
import output_cases  # noqa: E402
import rows as named  # noqa: E402
import tensorflow as tf  # noqa: E402
from exchange import Case, Draw, run_ours  # noqa: E402

warnings.filterwarnings("ignore", message="You are using a softmax over axis")  # of size 1, which is meant
tf.get_logger().setLevel("ERROR")

KERAS_ROWS = sys.argv[1]
SEED = os.environ.get("MT_TEST_SEED", "1")
ROW = os.environ.get("MT_KERAS_ROW", "*")
DRAWS = int(os.environ.get("MT_KERAS_DRAWS", "10"))
CASES = {"layers": layer_cases, "losses": loss_cases, "metrics": metric_cases, "optimizers": optimizer_cases}

# u: what a type rounds by. An element may differ by ROUNDINGS * u of the largest number of its array, or of a layer's
# results and gradients together: sums here have up to some hundred terms, functions are off by a few u on either side, and
# gradients go through a dozen of them. What is measured is printed, and lies well below.
UNIT = {"f32": 2.0**-24, "f64": 2.0**-53}
ROUNDINGS = 256


def catalogue():
    return json.loads(subprocess.run([KERAS_ROWS], check=True, capture_output=True, text=True).stdout)


class Compared:
    """The cases of a row or of all rows, and how far ours was from Keras at most, in u of the largest number."""

    def __init__(self):
        self.failures, self.worst, self.count = [], {}, {}

    def add(self, case, ours):
        self.count[case.row] = self.count.get(case.row, 0) + 1
        if isinstance(ours, str):
            return self.fail(case, f"ours refused it: {ours}")
        for name, want in case.want.items():
            if name not in ours:
                self.fail(case, f"{name}: expected {want.shape}, got: nothing")
            elif ours[name].shape != np.shape(want):
                self.fail(case, f"{name}: expected {np.shape(want)}, got: {ours[name].shape}")
            else:
                self.compare(case, name, np.array(ours[name], np.float64, ndmin=1), np.array(want, np.float64, ndmin=1))
        for name in sorted(set(ours) - set(case.want)):
            if name.startswith(("state/", "grad/")) and case.kind == "layer":
                self.fail(case, f"{name}: Keras has no such result")

    def compare(self, case, name, ours, want):
        if not want.size:
            return
        scale = max(np.abs(want).max(), case.magnitude)
        apart = np.abs(ours - want)
        apart[np.isnan(ours) & np.isnan(want)] = 0
        off = np.where(np.isnan(apart), np.inf, apart) / (UNIT[case.unit or case.dtype] * scale if scale > 0 else 1e-300)
        at = np.unravel_index(off.argmax(), off.shape)
        key = case.row, case.dtype
        self.worst[key] = max(self.worst.get(key, (0, "")), (float(off[at]), name))
        if off[at] > ROUNDINGS:
            self.fail(case, f"{name}[{', '.join(map(str, at))}]: Keras {float(want[at])!r}, ours {float(ours[at])!r}, "
                            f"{off[at]:.3g} u apart of the largest number, {scale:.3g}; "
                            f"{int((off > ROUNDINGS).sum())} of {off.size} are off")

    def fail(self, case, what):
        self.failures.append(f"{case}\n  seed {case.seed}: {what}")

    def print(self, kind):
        for row in self.count:
            said = [f"{dtype} {self.worst[row, dtype][0]:.3g} ({self.worst[row, dtype][1]})" for dtype in UNIT
                    if (row, dtype) in self.worst]
            print(f"  {kind} {row}: {self.count[row]} cases, at most {', '.join(said)} u")


class KerasTest(unittest.TestCase):
    def hold(self, kind):
        self.assertEqual(sorted(CASES[kind].ROWS), sorted(named.COMPARED[kind]))
        rows = [row for row in CASES[kind].ROWS if fnmatch.fnmatch(row, ROW)]
        cases = []
        for row in rows:
            for number in range(DRAWS):
                cases += CASES[kind].draw_cases(Draw(SEED, row, number))
        self.compare(kind, cases)
        if ROW == "*":
            self.check_options(kind, catalogue()[kind])

    def compare(self, kind, cases):
        with tempfile.TemporaryDirectory(prefix="keras-") as folder:
            results = run_ours(KERAS_ROWS, cases, folder)
        compared = Compared()
        for case, ours in zip(cases, results):
            compared.add(case, ours)
        compared.print(kind)
        if compared.failures:
            self.fail(f"{len(compared.failures)} differences, the first:\n" + "\n".join(compared.failures[:20]))

    def check_options(self, kind, rows):
        """Every option and word of the rows is drawn, or named with a reason."""
        wrong, used = [], set()
        reasons = named.OPTIONS[kind]
        for row in named.COMPARED[kind]:
            for option, words in rows[row].items():
                drawn = Draw.drawn.get((row, option), {})
                names = {f"{row}.{option}", f"*.{option}"} & set(reasons)
                used |= names
                if drawn and names:
                    wrong.append(f"{row}: option {option} is drawn, and named in rows.py")
                elif not drawn and not names:
                    wrong.append(f"{row}: option {option} is neither drawn nor named in rows.py")
                elif drawn and words:
                    of_all = {json.loads(value) for (_, other), values in Draw.drawn.items() if other == option
                              for value in values}
                    missing = set(words) - of_all - set(named.WORDS.get(option, {}))
                    wrong += [f"{row}: {option}: {word} is neither drawn nor named in rows.py" for word in sorted(missing)]
        wrong += [f"{name}: named in rows.py, but no option" for name in sorted(set(reasons) - used)]
        self.assertEqual(wrong, [])

    def test_a_wrong_number_is_seen(self):
        case = Case("layer", "dense", {}, {}, {}, {"y": np.array([1.0, -4.0])}, "f32", "0")
        for ours, wrong in (({"y": np.array([1 + 1e-6, -4])}, ""), ({"y": np.array([1 + 1e-4, -4])}, "y[0]: Keras"),
                            ({"y": np.array([np.nan, -4])}, "y[0]: Keras"), ({"y": np.array([1.0])}, "expected (2,)"),
                            ({}, "got: nothing"), ("no such layer", "refused it: no such layer"),
                            ({"y": case.want["y"], "grad/x": np.array([1.0])}, "Keras has no such result")):
            compared = Compared()
            compared.add(case, ours)
            self.assertEqual(len(compared.failures), 1 if wrong else 0, (ours, compared.failures))
            self.assertTrue(not wrong or wrong in compared.failures[0], compared.failures)

    def test_layers(self):
        self.hold("layers")

    def test_losses(self):
        self.hold("losses")

    def test_metrics(self):
        self.hold("metrics")

    def test_optimizers(self):
        self.hold("optimizers")
        if ROW == "*":
            self.check_options("schedules", catalogue()["schedules"])


    def test_outputs(self):
        cases = [case for number in range(DRAWS) for case in output_cases.draw_cases(Draw(SEED, "outputs", number))]
        self.assertTrue(all({"digit_loss", "loss"} <= set(case.want) for case in cases if "sum" not in
                            case.options["reductions"]), "what Keras calls the figures")
        self.compare("model of two", cases)


if __name__ == "__main__":
    print(f"Keras {keras.__version__}, TensorFlow {tf.__version__}, MT_TEST_SEED={SEED}")
    # False: the filters stay as they are.
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2, warnings=False)
