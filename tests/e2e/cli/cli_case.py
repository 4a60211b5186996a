"""A small job of one process and the tools that tests run it with. It takes BIN_FOLDER from the arguments."""
import gzip
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from process_table import program_below, run_a_slice, stop  # noqa: E402

BIN = Path(sys.argv.pop(1)).resolve()
TIMEOUT = 600  # of one run, also of a sanitized program

MANIFEST = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: tiny}}
spec:
  replicaSpecs: {{worker: {{replicas: 1}}}}
  checkpoint: {{everySteps: {every}}}
  program:
    seed: 3
    mesh: {mesh}
    data:
      train: {{idx: {{images: {folder}/images.gz, labels: {folder}/labels.gz}}}}
      test: {{idx: {{images: {folder}/images.gz, labels: {folder}/labels.gz}}, take: 40}}
      map: [{{scale: 0.00392156862745098}}]
      batch: {batch}
    model:
      - flatten
      - dense: {{name: hidden, units: 12, activation: relu}}
      - dense: {{name: logits, units: 10}}
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: {{adam: {{learning_rate: {rate}}}}}
    metrics: [accuracy]
    train: {{epochs: {epochs}}}
"""


def idx(values, dims):
    return struct.pack(">HBB", 0, 8, len(dims)) + b"".join(struct.pack(">I", d) for d in dims) + bytes(values)


def npy(values, dims, descr="|u1"):
    header = repr({"descr": descr, "fortran_order": False, "shape": tuple(dims)})
    header += " " * (-(11 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(values)


class Case(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        count = 100
        images = bytearray()
        for i in range(count):  # class k lights row k
            images += bytes(200 if row == i % 10 else (i * 7 + row * 3) % 20 for row in range(10) for _ in range(10))
        (self.folder / "images.gz").write_bytes(gzip.compress(idx(images, (count, 10, 10)), mtime=0))
        (self.folder / "labels.gz").write_bytes(gzip.compress(idx([i % 10 for i in range(count)], (count,)), mtime=0))

    def tearDown(self):
        self._folder.cleanup()

    def manifest(self, mesh="{batch: 2}", batch=20, rate=0.01, epochs=2, every=3, edit=lambda text: text):
        path = self.folder / "job.yaml"
        path.write_text(edit(MANIFEST.format(folder=self.folder, mesh=mesh, batch=batch, rate=rate, epochs=epochs, every=every)))
        return str(path)

    def meshtrain(self, *arguments, tool="meshtrain"):
        return subprocess.run([BIN / tool, *arguments], capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)

    def run_job(self, manifest, *more, output="out"):
        return self.meshtrain("run", "-f", manifest, "--output", str(self.folder / output), *more)

    def expect_error(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertNotIn("terminate called", result.stderr)


class RunningCase(Case):
    """Tests that look at a run while it goes on."""

    def start(self, manifest, *more, own_folder=False):
        to = [] if own_folder else ["--output", str(self.folder / "out")]
        # Nobody reads the pipes while the test looks on: a run of many epochs would stand still once they are full.
        child = subprocess.Popen([BIN / "meshtrain", "run", "-f", manifest, *to, *more], cwd=self.folder, pipesize=1 << 20,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: (child.poll() is None and child.kill(), child.wait(), child.stdout.close(), child.stderr.close()))
        return child

    def wait_until(self, child, holds):
        """What holds() gives once it is true."""
        deadline = time.monotonic() + TIMEOUT
        while not (seen := holds()):
            if child.poll() is not None:
                self.fail("the run ended before the test saw what it waits for: " + child.stderr.read())
            if time.monotonic() > deadline:
                self.fail("the run never came to what the test waits for")
            time.sleep(0.002)
        return seen

    def hold_when(self, child, holds):
        """The process that trains, stopped (SIGSTOP) at a moment when holds() is true. It runs in slices and is looked at while it
        stands still, so that a slow look does not miss what a quick run does."""
        trainer = self.wait_until(child, lambda: program_below(child.pid, "meshtrain-worker"))

        def held():
            stop([trainer])
            if holds():
                return True
            run_a_slice(trainer)
            return False

        self.wait_until(child, held)
        return trainer

    def wait_for_step(self, step):
        path = self.folder / "out" / "metrics.jsonl"
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if path.exists() and len(path.read_text().splitlines()) >= step:
                return
            time.sleep(0.02)
        self.fail("the job never came to step %d" % step)

    def read(self, path):
        return path.read_text() if path.exists() else ""

    def checkpoints(self):
        return sorted(p.parent.name for p in (self.folder / "out" / "checkpoints").glob("ckpt-*/index.json"))
