"""The safetensors package reads our checkpoints and exports, and we read its files."""
import json
import pathlib
import tempfile
import unittest

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from samples import samples

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
