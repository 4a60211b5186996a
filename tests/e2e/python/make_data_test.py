"""scripts/make-data: the digits behind the reference figures, and that we read what it writes."""
import gzip
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

from samples import samples

NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
# sha256 of the payloads (un-gzipped) with --first 256: the beginnings of the 60,000 and 10,000 digits on which the
# reference figures were taken. They may never change.
FIRST_256 = {
    "train-images-idx3-ubyte": "2c949a67f0b69a5e602c58b47fb5baebf4063ee5e2d32c4e94f074a703dcbc91",
    "train-labels-idx1-ubyte": "6fe0cd39fa0a5e3a01131ac69216c8ef45c321beeecd50ce0ccb030c6296a95a",
    "t10k-images-idx3-ubyte": "7dcb1d4d72698d66225458b21e0767947c18b35dd409a827a9c49896ee0e6fe5",
    "t10k-labels-idx1-ubyte": "2b0bc0a4bd265653c577f49bbebf22aa7ba644d3aca283df8f85b60907fb5e9a",
}


def make(out, *arguments):
    script = pathlib.Path(os.environ["MT_ROOT"], "scripts", "make-data")
    command = [sys.executable, script, "--out", out, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout.strip(), done.stderr


def payload(folder, name):
    with gzip.open(pathlib.Path(folder, name + ".gz")) as file:
        return file.read()


def images(folder, name):
    raw = payload(folder, name)
    rank = raw[3]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(np.frombuffer(raw, ">u4", rank, 4))


class MakeDataTest(unittest.TestCase):
    def test_the_reference_digits_are_frozen(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(make(folder, "--first", "256")[:2], (0, folder))
            self.assertEqual({n: hashlib.sha256(payload(folder, n)).hexdigest() for n in NAMES}, FIRST_256)

    def test_a_prefix_is_the_beginning_of_the_whole(self):
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as prefix:
            sizes = ["--train", "700", "--test", "400", "--seed", "9"]
            self.assertEqual(make(whole, *sizes)[0], 0)
            self.assertEqual(make(prefix, *sizes, "--first", "300")[0], 0)
            for name in NAMES:
                got = images(prefix, name)
                self.assertEqual(len(got), 300)
                self.assertTrue((got == images(whole, name)[:300]).all(), name)

    def test_what_is_there_is_not_made_again(self):
        with tempfile.TemporaryDirectory() as folder:
            sizes = ["--train", "20", "--test", "20"]
            make(folder, *sizes)
            path = pathlib.Path(folder, NAMES[0] + ".gz")
            before = path.stat().st_mtime_ns
            time.sleep(0.02)
            make(folder, *sizes)
            self.assertEqual(path.stat().st_mtime_ns, before)
            make(folder, *sizes, "--seed", "2")
            self.assertNotEqual(path.stat().st_mtime_ns, before)

    def test_real_scans(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(make(folder, "--kind", "sklearn")[0], 0)
            train, test = images(folder, NAMES[0]), images(folder, NAMES[2])
            self.assertEqual((train.shape, test.shape), ((1500, 28, 28), (297, 28, 28)))
            counts = np.bincount(images(folder, NAMES[3]))
            self.assertLessEqual(counts.max() - counts.min(), 1)
            together = np.concatenate([train, test]).reshape(1797, -1)
            self.assertGreater(len(np.unique(together, axis=0)), 1790)  # no digit is in both
            self.assertGreaterEqual(together.max(), 250)
            self.assertEqual(train[:, :4].max(), 0)  # framed, as MNIST's
            self.assertEqual(make(folder, "--kind", "sklearn", "--train", "1700", "--test", "98")[0], 1)

    def test_our_reader_agrees(self):
        with tempfile.TemporaryDirectory() as folder:
            make(folder, "--train", "150", "--test", "30")
            lines = [line.split() for line in samples("digits", folder).splitlines()]
            for (split, count, pixels, *labels), tag in zip(lines, ("train", "t10k")):
                self.assertEqual(split, tag)
                x, y = images(folder, f"{tag}-images-idx3-ubyte"), images(folder, f"{tag}-labels-idx1-ubyte")
                self.assertEqual((int(count), int(pixels)), (len(x), int(x.sum())))
                self.assertEqual([int(n) for n in labels], np.bincount(y, minlength=10).tolist())

    def test_nonsense_is_refused(self):
        for arguments in (["--train", "0"], ["--kind", "sklearn", "--first", "5"], ["--kind", "cats"]):
            code, _, error = make("unused", *arguments)
            self.assertEqual(code, 64, arguments)
            self.assertTrue(error.startswith("make-data: "), error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
