"""Jobs with parameter servers: one process of meshtrain-worker for each role, which tests disturb. Standard library only."""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import time
import urllib.request

from process_job import DEADLINE, free_ports, while_it_works
from process_table import frozen, open_files

PORT, HTTP_PORT = 2222, 2280  # of hosts of their own

HEAD = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: servers}}
spec:
  strategy: ParameterServer
  replicaSpecs: {{chief: {{replicas: 1}}, worker: {{replicas: 1}}, ps: {{replicas: 1}}}}
  checkpoint: {{path: {folder}/checkpoints, everySteps: {every}}}
"""

# An MLP on drawn digits, its kernels cut.
DIGITS = """
  program:
    seed: 7
    parameter_server: {{variable_partitioner: {{min_size: {{min_shard_bytes: 8192, max_shards: 3}}}}{options}}}
    data:
      train: {{idx: {{images: {data}/digits5120-images-idx3-ubyte.gz, labels: {data}/digits5120-labels-idx1-ubyte.gz}}}}
      test: {{idx: {{images: {data}/digits5120-images-idx3-ubyte.gz, labels: {data}/digits5120-labels-idx1-ubyte.gz}}, take: 2000}}
      map: [{{scale: 0.00392156862745098}}]
      shuffle: {{buffer: 1000, seed: 3}}
      batch: 64
    model: [flatten, dense: {{units: 48, activation: relu}}, dense: {{units: 10}}]
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: adam
    metrics: [accuracy]
    train: {{epochs: {epochs}, steps_per_epoch: {steps}}}
"""


def write_idx(path, code, dims, body):
    path.write_bytes(struct.pack(">HBB", 0, code, len(dims)) + b"".join(struct.pack(">I", d) for d in dims) + body)


# The guide's Dense(1) on ([1.], [1.]), its data as files in the job's folder.
GUIDE = """
  program:
    parameter_server: {{steps_in_flight: 1}}
    devices: {{count: {devices}}}
    data:
      train: {{idx: {{images: {folder}/x.idx, labels: {folder}/y.idx, labels_as: f32}}}}
      batch: 5
    model:
      - dense: {{units: 1, kernel_initializer: {{constant: {{value: {w0!r}}}}}, kernel_regularizer: {{l2: 1.0e-4}}}}
      - reshape: {{dims: []}}
    loss: {{binary_crossentropy: {{from_logits: true}}}}
    optimizer: {{sgd: {{learning_rate: 0.01}}}}
    train: {{epochs: 1, steps_per_epoch: 210}}
"""

# Two towers over drawn digits: chains of their own, each with a softmax in it, that meet in a sum.
TOWERS = """
  program:
    seed: 7{options}
    data:
      train: {{idx: {{images: {data}/digits5120-images-idx3-ubyte.gz, labels: {data}/digits5120-labels-idx1-ubyte.gz}}}}
      map: [{{scale: 0.00392156862745098}}]
      batch: 64
    model:
      layers:
        - flatten: {{name: flat, inputs: x}}
        - dense: {{name: left, units: 24, activation: tanh, inputs: flat}}
        - activation: {{name: left_share, activation: softmax, inputs: left}}
        - add: {{name: left_tower, inputs: [left, left_share]}}
        - dense: {{name: right, units: 24, activation: tanh, inputs: flat}}
        - activation: {{name: right_share, activation: softmax, inputs: right}}
        - add: {{name: right_tower, inputs: [right, right_share]}}
        - add: {{name: both, inputs: [left_tower, right_tower]}}
        - dense: {{name: logits, units: 10, inputs: both}}
      output: logits
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: {{sgd: {{learning_rate: 0.1}}}}
    train: {{epochs: 1, steps_per_epoch: 40}}
"""


def write_guide_data(folder):
    write_idx(folder / "x.idx", 0x0D, [1000, 1], struct.pack(">1000f", *[1.0] * 1000))
    write_idx(folder / "y.idx", 0x08, [1000], bytes([1] * 1000))


class Job:
    """The processes of one job, in a folder of its own. `manifest`: its text, formatted.

    host(task): the host of each, 127.0.0.1 without; prefix(task): what its command line begins with."""

    def __init__(self, folder, worker, manifest, workers=1, servers=1, chief=True, evaluator=False, peer_return=60,
                 metrics=False, grace=None, host=lambda task: None, prefix=lambda task: []):
        self.folder = pathlib.Path(folder)
        self.worker = worker
        self.peer_return = peer_return
        self.metrics = metrics
        self.grace = grace  # seconds between SIGTERM and SIGKILL, as the processes are told; None: they take 30
        counts = {"chief": int(chief), "worker": workers, "ps": servers, "evaluator": int(evaluator)}
        self.tasks = [(role, index) for role, count in counts.items() for index in range(count)]
        ports = iter(free_ports(2 * len(self.tasks)))
        self.hosts = {task: f"{host(task)}:{PORT}" if host(task) else f"127.0.0.1:{next(ports)}" for task in self.tasks}
        self.addresses = {task: f"{host(task)}:{HTTP_PORT}" if host(task) else f"127.0.0.1:{next(ports)}"
                          for task in self.tasks}
        self.prefix = prefix
        self.leader = ("chief", 0) if chief else ("worker", 0)
        self.manifest = self.folder / "job.yaml"
        self.manifest.write_text(manifest)
        self.processes = {}

    def output(self, task):
        return self.folder / f"{task[0]}-{task[1]}"

    def start(self, task, token="secret", **variables):
        token_file = self.folder / f"token-{task[0]}-{task[1]}"
        token_file.write_text(token)
        # An evaluator is listed in its own TF_CONFIG only.
        cluster = {}
        for (role, index), host in self.hosts.items():
            if role != "evaluator" or task[0] == "evaluator":
                cluster.setdefault(role, []).append(host)
        environment = {
            "PATH": os.environ["PATH"], "MESHTRAIN_JOB": "test/servers", "MESHTRAIN_TOKEN_FILE": str(token_file),
            "MESHTRAIN_PEER_RETURN_SECONDS": str(self.peer_return),
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}}),
        }
        if self.grace is not None:
            environment["MESHTRAIN_STOP_GRACE_SECONDS"] = str(self.grace)
        environment |= variables
        for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                environment[name] = os.environ[name]
        with open(self.log_file(task), "ab") as log:
            self.processes[task] = subprocess.Popen(
                self.prefix(task) + [self.worker, "-f", str(self.manifest), "--output", str(self.output(task)), "--threads", "1",
                 "--metrics-address", self.addresses[task] if self.metrics else "none"],
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self.processes[task]

    def start_all(self):
        for task in self.tasks:
            self.start(task)

    def kill(self, task):
        """It was alive until then."""
        process = self.processes[task]
        if process.poll() is not None:
            raise AssertionError(f"{task} left before it was killed; {self.logs()}")
        process.kill()
        if (code := self.wait(task)) != -signal.SIGKILL:
            raise AssertionError(f"{task}: expected an end by SIGKILL, got: {code}; {self.logs()}")

    def kill_in_save(self, victim):
        """Kills it while a server writes its part of a checkpoint: the victim's own, where that is a server. The
        checkpoint's folder; its index is not there."""
        end = time.monotonic() + DEADLINE
        writers = [task for task in self.tasks if task[0] == "ps" and (task == victim or victim[0] != "ps")]
        while time.monotonic() < end:
            with frozen(self.processes.values()):
                for task in writers:
                    for file in map(pathlib.Path, open_files(self.processes[task].pid)):
                        if file.name.endswith(".safetensors") and file.parent.parent == self.folder / "checkpoints":
                            assert not (file.parent / "index.json").exists(), file
                            self.kill(victim)
                            return file.parent
            time.sleep(random.uniform(0, 0.01))
        raise AssertionError(f"no save was under way; {self.logs()}")

    def while_it_works(self, what, timeout=DEADLINE):
        logs = [self.log_file(task) for task in self.processes]
        return while_it_works(self, logs, what, timeout)

    def wait(self, task, timeout=DEADLINE):
        for _ in self.while_it_works(f"{task} hangs", timeout):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.processes[task].wait(timeout=0.2)

    def expect_end(self, timeout=DEADLINE):
        """Every process ends with 0."""
        for task in [self.leader] + [t for t in self.tasks if t != self.leader]:
            code = self.wait(task, timeout)
            if code != 0:
                raise AssertionError(f"{task}: expected 0, got: {code}; {self.logs()}")

    def lines(self, task=None):
        try:
            text = (self.output(task or self.leader) / "metrics.jsonl").read_text()
        except OSError:
            return []
        whole = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in whole if "loss" in line]  # of steps

    def step(self):
        lines = self.lines()
        return lines[-1]["step"] if lines else 0

    def wait_for_step(self, step):
        for _ in self.while_it_works(f"step {step} was not reached"):
            if self.step() >= step:
                return
            if self.processes[self.leader].poll() is not None:
                raise AssertionError(f"{self.leader} left; {self.logs()}")
            time.sleep(0.01)

    def metric(self, name, task=None):
        with urllib.request.urlopen(f"http://{self.addresses[task or self.leader]}/metrics", timeout=60) as answer:
            return float(re.search(rf"^{name}{{.*}} (\S+)$", answer.read().decode(), re.M).group(1))

    def wait_for_ready(self, workers):
        """The chief counts so many workers that take steps."""
        end = time.monotonic() + DEADLINE
        while self.metric("meshtrain_parameter_workers_ready") < workers:
            if time.monotonic() > end:
                raise AssertionError(f"{workers} workers were not ready; {self.logs()}")
            time.sleep(0.02)

    def wait_for_text(self, task, pattern, count=1):
        """Until it has said that so often."""
        end = time.monotonic() + DEADLINE
        while len(re.findall(pattern, self.log(task))) < count:
            if time.monotonic() > end:
                raise AssertionError(f"{task} did not say {pattern} {count} times; {self.logs()}")
            time.sleep(0.01)

    def log_file(self, task):
        return self.folder / f"log-{task[0]}-{task[1]}"

    def log(self, task):
        return self.log_file(task).read_text(errors="replace")

    def logs(self):
        return "".join(f"\n--- {t[0]}-{t[1]} (left with {p.poll()})\n{self.log(t)[-1500:]}"
                       for t, p in self.processes.items())

    def checkpoint_steps(self):
        return sorted(int(p.parent.name.split("-")[1]) for p in (self.folder / "checkpoints").glob("ckpt-*/index.json"))

    def count_in_checkpoint(self, step, name="optimizer.iterations"):
        """A whole number that a checkpoint holds."""
        folder = self.folder / "checkpoints" / f"ckpt-{step:08d}"
        index = json.loads((folder / "index.json").read_text())["index"]
        for file in index["files"]:
            data = (folder / file["name"]).read_bytes()
            head = struct.unpack("<Q", data[:8])[0]
            for key, tensor in json.loads(data[8:8 + head]).items():
                if key.startswith(name) and key != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    return struct.unpack("<q" if end - begin == 8 else "<i", data[8 + head + begin:8 + head + end])[0]
        raise AssertionError(f"{folder}: expected {name}, got: {[f['name'] for f in index['files']]}")

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
