"""TensorBoard's own reader reads our event files; Python's json reads metrics.jsonl."""
import json
import math
import pathlib
import tempfile
import time
import unittest

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from samples import samples


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
                self.assertTrue(begin - 1 <= event.wall_time <= time.time() + 1)

    def test_finds_train_and_test_as_two_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            samples("events", folder)
            runs = EventMultiplexer()
            runs.AddRunsFromDirectory(folder)
            runs.Reload()
            self.assertEqual(sorted(runs.Runs()), ["test", "train"])
            self.assertEqual([e.step for e in runs.Scalars("test", "accuracy")], [100, 200, 300])

    def test_metrics_jsonl_is_one_json_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            samples("events", folder)
            lines = [json.loads(line) for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines], list(range(1, 301)))
            self.assertEqual([line["loss"] for line in lines], [2 / math.sqrt(s) for s in range(1, 301)])
            self.assertEqual(lines[150]["epoch"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
