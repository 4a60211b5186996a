"""TensorBoard's own reader reads our event files; Python's json reads metrics.jsonl."""
import json
import math
import pathlib
import re
import sys
import tempfile
import time
import unittest

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from samples import JOB_STEPS, job, samples

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from metrics_file import steps_of, validations_of  # noqa: E402


class TensorBoardTest(unittest.TestCase):
    def test_reads_scalars(self):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.time()
            samples("events", folder)
            events = EventAccumulator(str(pathlib.Path(folder, "train")), size_guidance={"scalars": 0})
            events.Reload()
            self.assertEqual(events.file_version, 2.0)
            self.assertEqual(sorted(events.Tags()["scalars"]), ["accuracy", "loss"])
            loss = events.Scalars("loss")
            self.assertEqual([e.step for e in loss], list(range(1, 301)))
            self.assertEqual([e.value for e in loss], [np.float32(2 / math.sqrt(s)) for s in range(1, 301)])
            for event in loss:
                self.assertGreaterEqual(event.wall_time, begin - 1)
                self.assertLessEqual(event.wall_time, time.time() + 1)

    def test_finds_train_and_test_as_two_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            samples("events", folder)
            runs = EventMultiplexer()
            runs.AddRunsFromDirectory(folder)
            runs.Reload()
            self.assertEqual(sorted(runs.Runs()), ["test", "train"])
            self.assertEqual([e.step for e in runs.Scalars("test", "accuracy")], [100, 200, 300])

    def test_reads_what_a_job_leaves(self):
        with tempfile.TemporaryDirectory() as folder:
            _, _, out, said = job(folder)
            runs = EventMultiplexer(size_guidance={"scalars": 0})
            runs.AddRunsFromDirectory(str(out / "events"))
            runs.Reload()
            self.assertEqual({run: sorted(tags["scalars"]) for run, tags in runs.Runs().items()},
                             {run: ["accuracy", "loss"] for run in ("train", "test")})
            lines = steps_of(out / "metrics.jsonl")
            self.assertEqual([line["step"] for line in lines], list(range(1, JOB_STEPS[-1] + 1)))
            for tag in ("loss", "accuracy"):
                self.assertEqual([(e.step, e.value) for e in runs.Scalars("train", tag)],
                                 [(line["step"], np.float32(line[tag])) for line in lines])
                self.assertEqual([e.step for e in runs.Scalars("test", tag)], JOB_STEPS)
                self.assertEqual([(e.step, e.value) for e in runs.Scalars("test", tag)],
                                 [(line["step"], np.float32(line["val_" + tag])) for line in validations_of(out / "metrics.jsonl")])
            # Epoch, loss and accuracy of training, and of the test.
            table = re.findall(r"^ +(\d+)  +([\d.]+)  +([\d.]+)  +([\d.]+)  +([\d.]+)$", said, re.MULTILINE)
            for column, tag in ((3, "loss"), (4, "accuracy")):
                for row, event in zip(table, runs.Scalars("test", tag), strict=True):
                    self.assertAlmostEqual(float(row[column]), event.value, delta=5.1e-5)  # four decimals

    def test_metrics_jsonl_is_one_json_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            samples("events", folder)
            lines = [json.loads(line) for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines], list(range(1, 301)))
            self.assertEqual([line["loss"] for line in lines], [2 / math.sqrt(s) for s in range(1, 301)])
            self.assertEqual(lines[150]["epoch"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
