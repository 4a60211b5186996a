"""The guide's two examples under every strategy, in real processes: from C++ (deploy/examples/custom_loop) and from a manifest
(meshtrain-worker), with one process and with three; saved under one strategy and resumed under another and under none.

Standard library only. Usage: strategies_test.py WORKER CUSTOM_LOOP FOLDER_OF_GUIDE_FILES
"""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from process_job import DEADLINE, free_ports

WORKER, CUSTOM_LOOP, GUIDE_FOLDER = sys.argv[1:4]
GUIDE = json.loads((pathlib.Path(GUIDE_FOLDER) / "guide_series.json").read_text())
LOSSES = GUIDE["printed_in_text"]
TOLERANCE = 1e-6


@dataclasses.dataclass
class Strategy:
    name: str  # of the manifest; "": none
    loop: str = "default"  # of custom_loop
    devices: int = 1  # per process
    processes: int = 1

    @property
    def replicas(self):
        return self.devices * self.processes

    def __str__(self):
        return f"{self.name or 'none'} {self.processes}x{self.devices}"


NONE = Strategy("")
MIRRORED = Strategy("Mirrored", "mirrored", devices=2)
MANY = Strategy("MultiWorkerMirrored", "multi-worker", processes=3)
STRATEGIES = [
    NONE, Strategy("Default"), Strategy("OneDevice", "one-device"), Strategy("Mirrored", "mirrored"), MIRRORED,
    Strategy("CentralStorage", "central-storage", devices=2), Strategy("MultiWorkerMirrored", "multi-worker"), MANY,
]

MANIFEST = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: guide}}
spec:
  {strategy}
  replicaSpecs: {{worker: {{replicas: {processes}}}}}
  checkpoint: {{path: {checkpoints}}}
  program:
    devices: {{count: {devices}}}
    data:
      train: {{idx: {{images: {ones}/x.idx, labels: {ones}/y.idx, labels_as: f32}}, take: {examples}}}
      {test}
      map: [{{cast: f32}}]
      batch: {batch}
      {repeat}
    model: [dense: {{units: 1, kernel_initializer: {{constant: {{value: {w0}}}}}, kernel_regularizer: {{l2: 1.0e-4}}}}]
    loss: {loss}
    optimizer: {{sgd: {{learning_rate: 0.01}}}}
    train: {train}
"""


class StrategiesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="strategies-"))
        count = 3000  # ([1.], [1.]), as often as the largest job's 200 steps need
        (cls.root / "x.idx").write_bytes(struct.pack(">4B2I", 0, 0, 8, 2, count, 1) + b"\1" * count)
        (cls.root / "y.idx").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + b"\1" * count)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root, ignore_errors=True)

    def setUp(self):
        self.folder = self.root / self.id().rsplit(".", 1)[-1]
        self.folder.mkdir()

    def run_processes(self, strategy, command):
        """Runs command(process) as every process of a job; what each wrote to its output."""
        hosts = [f"127.0.0.1:{port}" for port in free_ports(strategy.processes)]
        running, outputs = [], []
        try:
            for index in range(strategy.processes):
                environment = {"PATH": os.environ["PATH"]}
                environment.update({k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")})
                if strategy.processes > 1:
                    environment["TF_CONFIG"] = json.dumps(
                        {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
                running.append(subprocess.Popen(command(index), env=environment, stdin=subprocess.DEVNULL,
                                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            ends = [process.communicate(timeout=DEADLINE) for process in running]
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        for process, (out, err) in zip(running, ends):
            self.assertEqual(process.returncode, 0, f"{strategy}: {out[-2000:]}{err[-2000:]}")
            outputs.append(out)
        return outputs

    def run_manifest(self, strategy, folder, *, train, batch, examples, w0, loss, checkpoints=None, repeat=True, test=False):
        """Runs a job of meshtrain-worker; what each process printed."""
        folder.mkdir()
        source = f"{{idx: {{images: {self.root}/x.idx, labels: {self.root}/y.idx, labels_as: f32}}, take: {examples}}}"
        (folder / "job.yaml").write_text(MANIFEST.format(
            strategy=f"strategy: {strategy.name}" if strategy.name else "", processes=strategy.processes,
            checkpoints=checkpoints or folder / "checkpoints", devices=strategy.devices, ones=self.root,
            examples=examples, test=f"test: {source}" if test else "", batch=batch, repeat="repeat: true" if repeat else "",
            w0=w0, loss=loss, train=train))
        return self.run_processes(strategy, lambda index: [
            WORKER, "-f", str(folder / "job.yaml"), "--output", str(folder / str(index)), "--threads", "1"])

    def run_loop(self, strategy, folder, epochs=1, batch=None, checkpoints=None):
        """The custom loop's losses from a manifest: `epochs` of two halves of its 210 steps."""
        per_pass = 5 * strategy.replicas
        self.run_manifest(strategy, folder, train=f"{{epochs: {epochs}, steps_per_epoch: 105}}", batch=batch or per_pass,
                          examples=200 * (batch or per_pass), w0=GUIDE["w0"], checkpoints=checkpoints,
                          loss="{binary_crossentropy: {from_logits: true}}")
        return self.losses(folder)

    @staticmethod
    def losses(folder):
        return [json.loads(line)["loss"] for line in (folder / "0" / "metrics.jsonl").read_text().splitlines()]

    def assert_near(self, got, want, what):
        self.assertEqual(len(got), len(want), what)
        for step, (g, w) in enumerate(zip(got, want)):
            self.assertAlmostEqual(g, w, delta=TOLERANCE, msg=f"{what}, step {step}")

    def test_the_custom_loop_from_cpp(self):
        for strategy in STRATEGIES:
            with self.subTest(str(strategy)):
                outputs = self.run_processes(
                    strategy, lambda _, s=strategy: [CUSTOM_LOOP, "--strategy", s.loop, "--devices", str(s.devices)])
                self.assert_near([float(line) for line in outputs[0].splitlines()], LOSSES, str(strategy))
                self.assertEqual("".join(outputs[1:]), "", "only the chief prints")

    def test_the_custom_loop_from_a_manifest(self):
        for number, strategy in enumerate(STRATEGIES):
            with self.subTest(str(strategy)):
                folder = self.folder / str(number)
                self.assert_near(self.run_loop(strategy, folder, epochs=2), LOSSES, str(strategy))
                # Curves, events and the model are the chief's; what the others leave are no files at all.
                chief = {path.name for path in (folder / "0").iterdir()}
                self.assertLessEqual({"metrics.jsonl", "events", "report.html", "model.safetensors"}, chief)
                self.assertTrue(list((folder / "0" / "events" / "train").iterdir()))
                for index in range(1, strategy.processes):
                    left = [p for p in (folder / str(index)).rglob("*") if p.is_file()]
                    self.assertEqual(left, [], f"of worker-{index}")

    def test_the_keras_example_from_a_manifest(self):
        # Two epochs, an evaluation and two epochs more: four epochs, evaluated after each.
        epoch1, epoch2, evaluated, epoch3, epoch4 = GUIDE["fit_mse"]["epoch1,epoch2,evaluate,epoch3,epoch4"]
        for number, strategy in enumerate(STRATEGIES):
            with self.subTest(str(strategy)):
                folder = self.folder / str(number)
                outputs = self.run_manifest(strategy, folder, train="{epochs: 4}", batch=10, examples=100, repeat=False,
                                            test=True, w0=GUIDE["fit_mse"]["w0_from_first_batch"], loss="mse")
                losses = self.losses(folder)
                means = [sum(losses[i:i + 10]) / 10 for i in range(0, 40, 10)]
                self.assert_near(means, [epoch1, epoch2, epoch3, epoch4], str(strategy))
                row = re.search(r"^ +2 +([0-9.]+) +\S+ +([0-9.]+)", outputs[0], re.MULTILINE)
                self.assertIsNotNone(row, outputs[0])
                self.assertEqual((row[1], row[2]), (f"{epoch2:.4f}", f"{evaluated:.4f}"))

    def test_saved_under_one_strategy_and_resumed_under_another_and_under_none(self):
        # Batches of 10 whatever the number of replicas: 5 + 5, and 4 + 4 + 2.
        for before in (MIRRORED, MANY, NONE):
            saved = self.folder / f"saved-{before.name}"
            first = self.run_loop(before, self.folder / f"first-{before.name}", epochs=1, batch=10, checkpoints=saved)
            self.assert_near(first, LOSSES[:105], str(before))
            for after in (MIRRORED, MANY, NONE, Strategy("CentralStorage", devices=3)):
                if after is before:
                    continue
                with self.subTest(f"{before}, then {after}"):
                    name = f"{before.name}-{after.name}"
                    shutil.copytree(saved, self.folder / f"copy-{name}")
                    second = self.run_loop(after, self.folder / name, epochs=2, batch=10,
                                           checkpoints=self.folder / f"copy-{name}")
                    self.assert_near(second, LOSSES[105:], f"{before}, then {after}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
