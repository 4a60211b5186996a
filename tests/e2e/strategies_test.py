"""The guide's two examples under every strategy, in real processes: from C++ (deploy/examples/custom_loop) and from a
manifest (meshtrain-worker), with one process and with three; saved under one strategy, resumed under another.

Standard library only. Usage: strategies_test.py WORKER CUSTOM_LOOP MESHTRAIN REPOSITORY
"""
import dataclasses
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tty
import unittest

from process_job import DEADLINE, free_ports, killed
from metrics_file import steps_of

WORKER, CUSTOM_LOOP, MESHTRAIN = sys.argv[1:4]
REPOSITORY = pathlib.Path(sys.argv[4])
GUIDE = json.loads((REPOSITORY / "tests/testdata/guide/guide_series.json").read_text())
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
    Strategy("CentralStorage", "central-storage"), Strategy("CentralStorage", "central-storage", devices=2),
    Strategy("MultiWorkerMirrored", "multi-worker"), Strategy("MultiWorkerMirrored", "multi-worker", devices=2), MANY,
    Strategy("MultiWorkerMirrored", "multi-worker", devices=2, processes=3),
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
    {options}
    data:
      train: {train_data}
      {test}
      map: [{{cast: f32}}]
      batch: {batch}
      {repeat}
    model: {model}
    loss: {loss}
    optimizer: {optimizer}
    train: {train}
"""
MLP = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: mlp}}
spec:
  replicaSpecs: {{worker: {{replicas: {processes}}}}}
  checkpoint: {{path: {checkpoints}}}
  program:
    seed: 42
    mesh: {{batch: 8}}
    devices: {{count: {devices}}}
    data:
      train: {{idx: {{images: {data}/digits5120-images-idx3-ubyte.gz, labels: {data}/digits5120-labels-idx1-ubyte.gz}}}}
      map: [{{scale: 0.00392156862745098}}]
      batch: 128
    model:
      - flatten
      - dense: {{units: 700, activation: relu}}
      - dense: {{units: 500, activation: relu}}
      - dense: {{units: 10}}
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: adam
    train: {{epochs: 1, steps_per_epoch: {steps}}}
"""
GUIDE_MODEL = "[dense: {{units: 1, kernel_initializer: {{constant: {{value: {w0}}}}}, kernel_regularizer: {{l2: 1.0e-4}}}}]"
SGD = "{sgd: {learning_rate: 0.01}}"
BAD_CONFIGURATION = 78


def write_idx(path, dims, data):
    path.write_bytes(struct.pack(f">4B{len(dims)}I", 0, 0, 8, len(dims), *dims) + bytes(data))


class StrategiesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="strategies-"))
        count = 6000  # ([1.], [1.]), as often as the largest job's 200 steps need
        write_idx(cls.root / "ones-x", [count, 1], [1] * count)
        write_idx(cls.root / "ones-y", [count], [1] * count)
        # Small numbers without a pattern, in three classes.
        write_idx(cls.root / "classes-x", [25, 4], [(i * i * 7 + i // 3) % 5 for i in range(100)])
        write_idx(cls.root / "classes-y", [25], [i * i % 3 for i in range(25)])

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root, ignore_errors=True)

    def setUp(self):
        self.folder = self.root / self.id().rsplit(".", 1)[-1]
        self.folder.mkdir()

    def run_processes(self, strategy, command, code=0, both=False):
        """Runs command(process) as every process of a job, which leaves with `code`; what each wrote, to stderr if not 0,
        or to stdout and stderr."""
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
            self.assertEqual(process.returncode, code, f"{strategy}: {out[-2000:]}{err[-2000:]}")
            outputs.append(err if code else out + (err if both else ""))
        return outputs

    def run_manifest(self, strategy, folder, *, train, batch, examples, model, loss, data="ones", labels_as="f32",
                     optimizer=SGD, checkpoints=None, repeat=True, test=False, options="", code=0):
        """Runs a job of meshtrain-worker; what each process printed. `options`: of the program, one line."""
        folder.mkdir()
        files = f"images: {self.root}/{data}-x, labels: {self.root}/{data}-y, labels_as: {labels_as}"
        source = f"{{idx: {{{files}}}, take: %d}}"
        (folder / "job.yaml").write_text(MANIFEST.format(
            strategy=f"strategy: {strategy.name}" if strategy.name else "", processes=strategy.processes,
            checkpoints=checkpoints or folder / "checkpoints", devices=strategy.devices, train_data=source % examples,
            test=f"test: {source % test}" if test else "", batch=batch, repeat="repeat: true" if repeat else "",
            model=model, loss=loss, optimizer=optimizer, train=train, options=options))
        return self.run_processes(strategy, lambda index: [
            WORKER, "-f", str(folder / "job.yaml"), "--output", str(folder / str(index)), "--threads", "1"], code,
            both=code == 0)

    def run_loop(self, strategy, folder, epochs=1, batch=None, checkpoints=None, options="", said=None):
        """The custom loop's losses from a manifest: `epochs` of two halves of its 210 steps. What was printed, to `said`."""
        batch = batch or 5 * strategy.replicas
        outputs = self.run_manifest(strategy, folder, train=f"{{epochs: {epochs}, steps_per_epoch: 105}}", checkpoints=checkpoints,
                          batch=batch, examples=200 * batch, model=GUIDE_MODEL.format(w0=GUIDE["w0"]),
                          loss="{binary_crossentropy: {from_logits: true}}", options=options)
        if said is not None:
            said.extend(outputs)
        return self.losses(folder)

    @staticmethod
    def losses(folder):
        return [line["loss"] for line in steps_of(folder / "0" / "metrics.jsonl")]

    def assert_near(self, got, want, what, tolerance=TOLERANCE):
        self.assertEqual(len(got), len(want), what)
        for step, (g, w) in enumerate(zip(got, want)):
            self.assertAlmostEqual(g, w, delta=tolerance, msg=f"{what}, step {step}")

    def test_the_mlp_on_one_mesh_in_one_to_eight_processes(self):
        steps = 39
        want = None
        for processes in (1, 2, 4, 8):
            folder = self.folder / str(processes)
            folder.mkdir()
            (folder / "job.yaml").write_text(
                MLP.format(processes=processes, devices=8 // processes, data=REPOSITORY / "tests/testdata/mlp",
                           checkpoints=folder / "checkpoints", steps=steps))
            self.run_processes(Strategy("", processes=processes), lambda index: [
                WORKER, "-f", str(folder / "job.yaml"), "--output", str(folder / str(index)), "--threads", "1"])
            losses = self.losses(folder)
            self.assertEqual(len(losses), steps)
            want = want or losses
            self.assertLess(want[-1], want[0] / 2)
            self.assert_near(losses, want, f"{processes} processes", tolerance=1e-5)

    def test_the_custom_loop_from_cpp(self):
        for strategy in STRATEGIES:
            with self.subTest(str(strategy)):
                outputs = self.run_processes(
                    strategy, lambda _, s=strategy: [CUSTOM_LOOP, "--strategy", s.loop, "--devices", str(s.devices)])
                self.assert_near([float(line) for line in outputs[0].splitlines()], LOSSES, str(strategy))
                self.assertEqual("".join(outputs[1:]), "", "only the chief prints")

    def test_a_custom_loop_that_is_called_wrongly_leaves_with_64(self):
        run = subprocess.run([CUSTOM_LOOP, "--strategy", "mirorred"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             timeout=DEADLINE)
        self.assertEqual(run.returncode, 64, run.stderr)
        self.assertRegex(run.stderr, "^custom_loop: .*--strategy")

    def test_the_custom_loop_as_a_job_of_three_processes(self):
        run = subprocess.run(
            [MESHTRAIN, "run", "-f", str(REPOSITORY / "deploy/examples/custom-loop.yaml"),
             "--output", str(self.folder / "out")],
            env=dict(os.environ, PATH=f"{pathlib.Path(CUSTOM_LOOP).parent}:{os.environ['PATH']}"),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])
        self.assert_near([float(line) for line in run.stdout.splitlines()], LOSSES, "meshtrain run")

    def test_a_custom_loop_whose_peer_is_lost_for_good_leaves_with_138_and_names_it(self):
        # The chief prints to a terminal whose output is held: after its first step it stands in the write of that loss, so
        # that all have met, and none can have come to the end, when the peer is killed.
        hosts = [f"127.0.0.1:{port}" for port in free_ports(3)]
        terminal, theirs = pty.openpty()
        self.addCleanup(os.close, terminal)
        self.addCleanup(os.close, theirs)
        tty.setraw(theirs)
        termios.tcflow(theirs, termios.TCOOFF)
        running = []
        try:
            for index in range(3):
                environment = {"PATH": os.environ["PATH"], "MESHTRAIN_PEER_RETURN_SECONDS": "0", "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})}
                environment.update({k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")})
                running.append(subprocess.Popen([CUSTOM_LOOP, "--strategy", "multi-worker"], env=environment,
                                                stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, text=True))
            end = time.monotonic() + DEADLINE
            while not self.writes_to_stdout(running[0].pid):
                self.assertIsNone(running[0].poll(), "the chief left")
                self.assertLess(time.monotonic(), end, "the chief came to no loss")
                time.sleep(0.01)
            running[2].kill()
            termios.tcflow(theirs, termios.TCOON)
            said = [process.communicate(timeout=DEADLINE)[1] for process in running]
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        # The chief, held in its write, may find worker 1 gone before it looks: that one left because of worker 2.
        for index, lost in ((1, killed(2)), (0, f"({killed(2)}|{killed(1)})")):
            self.assertEqual(running[index].returncode, 138, said[index])
            self.assertRegex(said[index], "custom_loop: UNAVAILABLE: .*" + lost)

    @staticmethod
    def writes_to_stdout(pid):
        """Whether a process stands in write(1, ...), by the number of the call on x86-64 and on arm64."""
        call = pathlib.Path(f"/proc/{pid}/syscall").read_text().split()
        return call[:2] in (["1", "0x1"], ["64", "0x1"])

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

    def test_the_options_of_strategies_from_a_manifest(self):
        one, many = "mirrored", "multi_worker_mirrored"
        cases = [(MIRRORED, f"{one}: {{cross_device_ops: {ops}}}") for ops in
                 ("Auto", "NCCL", "HierarchicalCopy", "ReductionToOneDevice", "Ring")]
        cases += [(MIRRORED, f"{one}: {{cross_device_ops: Ring, packing: {{num_packs: 2}}}}"),
                  (MIRRORED, f"{one}: {{packing: {{bytes_per_pack: 1}}}}")]
        cases += [(MANY, f"{many}: {{communication: {way}}}") for way in ("AUTO", "RING", "NCCL")]
        cases += [(MANY, f"{many}: {{packing: {packing}}}") for packing in ("{num_packs: 0}", "{bytes_per_pack: 64}")]
        for number, (strategy, options) in enumerate(cases):
            with self.subTest(f"{strategy} with {options}"):
                folder = self.folder / str(number)
                said = []
                self.assert_near(self.run_loop(strategy, folder, options=options, said=said), LOSSES[:105], options)
                self.assertEqual("NCCL was asked for, but there are no GPUs" in said[0], "NCCL" in options, said[0])
                # Asked for another way than Auto the devices have gradients of their own, and sum them so.
                if strategy is MIRRORED:
                    alone = "Auto" not in options and "NCCL" not in options
                    self.assertIn("each device by itself" if alone else "devices share memory", said[0])

    def test_packing_says_how_many_sums_there_are(self):
        steps = {}
        for number, packing in enumerate(("", "{num_packs: 0}", "{num_packs: 1}", "{bytes_per_pack: 1}")):
            folder = self.folder / str(number)
            self.run_manifest(MIRRORED, folder, train="{epochs: 1}", batch=5, examples=25, data="classes", labels_as="i32",
                              model="[dense: {units: 4}, dense: {units: 3}]", repeat=False,
                              loss="{sparse_categorical_crossentropy: {from_logits: true}}",
                              options=f"mirrored: {{packing: {packing}}}" if packing else "")
            text = (folder / "0" / "plan.txt").read_text()
            planned = subprocess.run([MESHTRAIN, "plan", "-f", folder / "job.yaml"], capture_output=True, text=True,
                                     timeout=DEADLINE, stdin=subprocess.DEVNULL)
            self.assertEqual(planned.returncode, 0, planned.stderr)
            counts = [re.search(r"^steps +(\d+)", t, re.M) for t in (text, planned.stdout)]
            self.assertEqual(counts[0][1], counts[1][1], "meshtrain plan shows what runs")
            steps[packing] = int(counts[0][1])
        # Four gradients, the loss before them, and the count of what is not finite after them. A number goes with the
        # pack before it, full or not; the loss has none before it.
        self.assertEqual(steps["{num_packs: 0}"], steps["{num_packs: 1}"] + 5, steps)
        self.assertEqual(steps["{bytes_per_pack: 1}"], steps["{num_packs: 1}"] + 4, steps)
        self.assertEqual(steps[""], steps["{num_packs: 1}"], steps)

    def test_the_keras_example_from_a_manifest(self):
        # Two epochs, an evaluation and two epochs more: four epochs, evaluated after each.
        epoch1, epoch2, evaluated, epoch3, epoch4 = GUIDE["fit_mse"]["epoch1,epoch2,evaluate,epoch3,epoch4"]
        for number, strategy in enumerate(STRATEGIES):
            with self.subTest(str(strategy)):
                folder = self.folder / str(number)
                outputs = self.run_manifest(strategy, folder, train="{epochs: 4}", batch=10, examples=100, repeat=False,
                                            test=100, loss="mse",
                                            model=GUIDE_MODEL.format(w0=GUIDE["fit_mse"]["w0_from_first_batch"]))
                losses = self.losses(folder)
                means = [sum(losses[i:i + 10]) / 10 for i in range(0, 40, 10)]
                self.assert_near(means, [epoch1, epoch2, epoch3, epoch4], str(strategy))
                row = re.search(r"^ +2 +([0-9.]+) +\S+ +([0-9.]+)", outputs[0], re.MULTILINE)
                self.assertIsNotNone(row, outputs[0])
                self.assertEqual((row[1], row[2]), (f"{epoch2:.4f}", f"{evaluated:.4f}"))

    def test_batches_that_do_not_divide_weigh_as_on_one_device(self):
        # 25 examples in batches of 7, 7, 7 and 4; over three, 3 + 3 + 1 and 2 + 2. The last evaluation is of 4 of 11.
        want = None
        for number, strategy in enumerate(STRATEGIES):
            with self.subTest(str(strategy)):
                folder = self.folder / str(number)
                outputs = self.run_manifest(
                    strategy, folder, train="{epochs: 5}", batch=7, examples=25, repeat=False, test=11, data="classes",
                    labels_as="i32", model="[dense: {units: 5, activation: tanh}, dense: {units: 3}]", optimizer="adam",
                    loss="{sparse_categorical_crossentropy: {from_logits: true}}")
                table = re.findall(r"^ +[1-5] +([0-9.]+) +\S+ +([0-9.]+) +\S+$", outputs[0], re.MULTILINE)
                self.assertEqual(len(table), 5, outputs[0])
                got = self.losses(folder), [float(cell) for row in table for cell in row]
                # An epoch's loss is the mean over its 25 examples.
                index = json.loads(max((folder / "checkpoints").glob("ckpt-*/index.json")).read_text())["index"]
                history = json.loads(index["metadata"]["history"])
                self.assertEqual(len(history), 5)
                for epoch, figures in enumerate(history):
                    means = got[0][4 * epoch:4 * epoch + 4]
                    weighted = sum(n * mean for n, mean in zip((7, 7, 7, 4), means, strict=True)) / 25
                    self.assertAlmostEqual(figures["train"]["loss"], weighted, delta=1e-12)
                want = want or got
                self.assertEqual(len(got[0]), 20)
                self.assertGreater(abs(got[0][3] - got[0][0]), 1e-3, "a short batch whose weight would not show")
                self.assert_near(got[0], want[0], str(strategy), tolerance=1e-5)
                self.assert_near(got[1], want[1], str(strategy), tolerance=1.1e-4)  # as printed, with four digits

    def test_a_tpu_that_is_not_there_is_no_cpu(self):
        said = self.run_manifest(Strategy("TPU", devices=4), self.folder / "job", train="{epochs: 1}", batch=8, examples=100,
                                 repeat=False, model=GUIDE_MODEL.format(w0=0), loss="mse", code=BAD_CONFIGURATION)
        self.assertIn("expected a plugin", said[0])  # there is none, or it is one of processors

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
