"""The safetensors package reads our checkpoints and exports, and we read its files."""
import json
import pathlib
import tempfile
import unittest

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from samples import job, samples

COUNT = {
    "hidden_1.kernel": (np.arange(35, dtype=np.float32) / np.float32(7)).reshape(7, 5),
    "hidden_1.bias": np.arange(5, dtype=np.float64) / 7,
    "ids": np.arange(9, dtype=np.int32) - 5,
    "step": np.array(1 << 40, dtype=np.int64),
    "mask": np.arange(4) % 3 == 0,
    "pixels": np.arange(9, dtype=np.uint8).reshape(3, 3),
    "nothing": np.zeros((0, 3), np.float32),
}


class SafetensorsTest(unittest.TestCase):
    def assert_same(self, got, want):
        self.assertEqual((got.dtype, got.shape, got.tobytes()), (want.dtype, want.shape, want.tobytes()))

    def test_reads_an_export(self):
        with tempfile.TemporaryDirectory() as folder:
            samples("checkpoint", folder)
            exported = pathlib.Path(folder, "model.safetensors")
            got = load_file(exported)
            self.assertEqual(sorted(got), sorted(COUNT))
            for name, want in COUNT.items():
                self.assert_same(got[name], want)
            with safe_open(exported, "numpy") as file:
                self.assertEqual(file.metadata()["step"], "120")

    def test_reads_the_shards_of_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            samples("checkpoint", folder)
            checkpoint = pathlib.Path(folder, "ckpt-00000120")
            index = json.loads((checkpoint / "index.json").read_text())["index"]
            self.assertEqual(index["step"], 120)
            self.assertGreater(len(index["variables"]["hidden_1.kernel"]["shards"]), 1)
            files = [load_file(checkpoint / f["name"]) for f in index["files"]]
            for name, want in COUNT.items():
                got = np.full_like(want, 1)
                for shard in index["variables"][name]["shards"]:
                    box = tuple(slice(o, o + s) for o, s in zip(shard["offsets"], shard["sizes"]))
                    got[box] = files[shard["file"]][shard["key"]]
                self.assert_same(got, want)

    def test_what_a_job_leaves(self):
        with tempfile.TemporaryDirectory() as folder:
            images, labels, out, _ = job(folder)
            model = load_file(out / "model.safetensors")
            self.assertEqual({name: value.shape for name, value in model.items()},
                             {"hidden.kernel": (100, 12), "hidden.bias": (12,), "logits.kernel": (12, 10), "logits.bias": (10,)})
            # The shards of both processes, put together by the index.
            checkpoint = out / "checkpoints" / "ckpt-00000010"
            index = json.loads((checkpoint / "index.json").read_text())["index"]
            files = [load_file(checkpoint / f["name"]) for f in index["files"]]
            self.assertGreater(len(files), 1)
            self.assertEqual(len(index["variables"]["hidden.kernel"]["shards"]), 2)
            whole = {}
            for name, variable in index["variables"].items():
                shards = [(s["offsets"], files[s["file"]][s["key"]]) for s in variable["shards"]]
                dims = [max(o[d] + part.shape[d] for o, part in shards) for d in range(len(shards[0][0]))]
                whole[name] = np.full(dims, 99, shards[0][1].dtype)
                for offsets, part in shards:
                    whole[name][tuple(slice(o, o + n) for o, n in zip(offsets, part.shape))] = part
            for name, value in model.items():
                self.assert_same(whole[name], value)
                self.assertEqual({whole[f"optimizer.{slot}.{name}"].shape for slot in "mv"}, {value.shape})
            self.assertEqual(whole["optimizer.iterations"], 10)
            # They are the weights that the job ended with: the loss that it told of the first 40 examples.
            x = images[:40].reshape(40, 100) / np.float64(255)
            hidden = np.maximum(x @ model["hidden.kernel"] + model["hidden.bias"], 0)
            logits = hidden @ model["logits.kernel"] + model["logits.bias"]
            loss = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(40), labels[:40]])
            told = EventAccumulator(str(out / "events" / "test"))
            told.Reload()
            self.assertEqual(told.Scalars("loss")[-1].step, 10)
            self.assertAlmostEqual(loss, told.Scalars("loss")[-1].value, delta=1e-5 * loss)
            self.assertLess(loss, 0.8 * np.log(10))

    def test_its_files_are_read_by_us(self):
        names = {"hidden_1.kernel": "f32[7,5]", "ids": "i32[9]", "step": "i64[]", "mask": "bool[4]",
                 "pixels": "u8[3,3]"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "w.safetensors")
            save_file({**COUNT, "half": np.zeros(3, np.float16)}, path, {"by": "the package"})
            lines = samples("weights", path, *(f"{n}={t}" for n, t in names.items())).splitlines()
            self.assertEqual(lines, [f"{n} {t} {COUNT[n].tobytes().hex()}" for n, t in names.items()])


if __name__ == "__main__":
    unittest.main(verbosity=2)
