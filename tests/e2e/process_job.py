"""Jobs of several meshtrain-worker processes, for the tests that disturb them. Standard library only."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import process_table  # noqa: E402
from hosts import free_ports  # noqa: E402
from metrics_file import steps_of  # noqa: E402

DEADLINE = 120  # seconds until a case counts as hanging; generous, since other tests share the cores

MANIFEST = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: faults}}
spec:
  replicaSpecs: {{worker: {{replicas: 3}}}}
  checkpoint: {{path: {checkpoints}, everySteps: {every}}}
  program:
    seed: 7
    mesh: {{batch: 3}}
    data:
      train: {{idx: {{images: {data}/digits5120-images-idx3-ubyte.gz, labels: {data}/digits5120-labels-idx1-ubyte.gz}}}}
      map: [{{scale: 0.00392156862745098}}]
      shuffle: {{buffer: 1000, seed: 3}}
      batch: 64
      uneven: true
    model: [flatten, dense: {{units: 48, activation: relu}}, dense: {{units: 10}}]
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: adam
    train: {{epochs: {epochs}}}
"""
STEPS_PER_EPOCH = 80


# Larger steps, in which computing is most.
HEAVY = {"batch: 64": "batch: 1024", "units: 48": "units: 1536"}


def killed(index):
    """What the others say of a worker that was killed: by their links, or by the rendezvous."""
    return f"worker-{index} (is )?lost: (its )?connection closed"


def while_it_works(job, logs, what, timeout):
    """Yields again and again, and fails after `timeout` seconds in which no step of the job has ended and none of the logs has
    grown: a job that is slow, as under a sanitizer beside other tests, does not hang."""
    seen, end = None, 0
    while True:
        said = job.step(), *(log.stat().st_size for log in logs)
        if said != seen:
            seen, end = said, time.monotonic() + timeout
        if time.monotonic() > end:
            raise AssertionError(f"{what}; {job.logs()}")
        yield


class Job:
    """The three processes of one job, in a folder of its own.

    change: {old: new}, replaced in the manifest; hosts: "HOST:PORT" of each (free ports of 127.0.0.1 without); prefix(index): what its command line begins with.
    """

    def __init__(self, folder, worker, data, epochs=4, every=10, peer_return=60, hosts=None, prefix=lambda index: [],
                 change=None):
        self.folder = pathlib.Path(folder)
        self.worker = worker
        self.steps = epochs * STEPS_PER_EPOCH
        self.peer_return = peer_return
        self.hosts = hosts or [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.prefix = prefix
        self.manifest = self.folder / "job.yaml"
        text = MANIFEST.format(checkpoints=self.folder / "checkpoints", data=data, every=every, epochs=epochs)
        for old, new in (change or {}).items():
            assert old in text, old
            text = text.replace(old, new)
        self.manifest.write_text(text)
        self.processes = {}
        self.hold_file = self.folder / "hold"
        # Where processes look into that file; who runs them alone may not have it.
        self.hold_open = pathlib.Path(self.worker).resolve().parents[1] / "tests" / "hold_open.so"

    def start(self, index, token="secret", job="test/faults", manifest=None, host=None, metrics=None, variables=None):
        """`host`: the index that `prefix` is asked with, where it is not the process' own; `variables`: of its environment."""
        token_file = self.folder / f"token-{index}"
        token_file.write_text(token)
        config = {"cluster": {"worker": self.hosts}, "task": {"type": "worker", "index": index}}
        environment = {
            "PATH": os.environ["PATH"], "TF_CONFIG": json.dumps(config), "MESHTRAIN_JOB": job,
            "MESHTRAIN_TOKEN_FILE": str(token_file), "MESHTRAIN_PEER_RETURN_SECONDS": str(self.peer_return),
        }
        if self.hold_open.exists():
            environment.update({"LD_PRELOAD": str(self.hold_open), "MT_HOLD_FILE": str(self.hold_file)})
        environment.update(variables or {})
        for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                environment[name] = os.environ[name]
        # The sanitizer's library is loaded after ours.
        environment["ASAN_OPTIONS"] = ":".join(
            filter(None, [environment.get("ASAN_OPTIONS", ""), "verify_asan_link_order=0"]))
        with open(self.folder / f"log-{index}", "ab") as log:
            self.processes[index] = subprocess.Popen(
                self.prefix(index if host is None else host) + [self.worker, "-f", str(manifest or self.manifest), "--output", str(self.folder / str(index)), "--threads", "1"]
                + (["--metrics-address", metrics] if metrics else []),
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self.processes[index]

    def start_all(self):
        for index in range(3):
            self.start(index)

    def step(self):
        try:
            lines = (self.folder / "0" / "metrics.jsonl").read_text().splitlines()
            return json.loads(lines[-1])["step"]
        except (OSError, IndexError, json.JSONDecodeError):
            return 0

    def while_it_works(self, what, timeout=DEADLINE):
        logs = [self.folder / f"log-{i}" for i in self.processes]
        return while_it_works(self, logs, what, timeout)

    def wait_for_step(self, step):
        for _ in self.while_it_works(f"step {step} was not reached"):
            if self.step() >= step:
                return
            for index, process in self.processes.items():
                if process.poll() not in (None, 0):
                    raise AssertionError(f"worker-{index} left with {process.returncode}; {self.logs()}")
            time.sleep(0.01)

    def wait_for_standstill(self):
        """Until no step ends any more."""
        end = time.monotonic() + DEADLINE
        stands = -1
        while self.step() != stands:
            assert time.monotonic() < end, f"step {stands} is not the last; {self.logs()}"
            stands = self.step()
            time.sleep(0.3)

    def wait_for_checkpoint(self, step):
        """Until the checkpoint of that step is complete: it is written while training goes on."""
        index = self.folder / "checkpoints" / f"ckpt-{step:08}" / "index.json"
        end = time.monotonic() + DEADLINE
        while not index.exists():
            assert time.monotonic() < end, f"no {index}; {self.logs()}"
            time.sleep(0.002)

    def wait_for_text(self, index, pattern, timeout=DEADLINE):
        """Until the process has said it; what it said before counts too."""
        end = time.monotonic() + timeout
        while not re.search(pattern, self.log(index)):
            if time.monotonic() > end:
                raise AssertionError(f"worker-{index} did not say: {pattern}; {self.logs()}")
            time.sleep(0.005)

    def wait(self, index, timeout=DEADLINE):
        for _ in self.while_it_works(f"worker-{index} hangs", timeout):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.processes[index].wait(timeout=0.2)

    def listening_ports(self, index):
        return process_table.listening_ports(self.processes[index].pid)

    def connected(self, index, port):
        return process_table.connected(self.processes[index].pid, port)

    def hold(self, end_of_path):
        """Whichever process opens a file of that name stands still there (tests/support/hold_open.cc)."""
        assert self.hold_open.exists(), f"expected {self.hold_open} (the target mt_hold_open), got: none"
        self.hold_file.write_text(end_of_path)

    def hold_save(self, index, step):
        """Holds the save of a later `step`: process `index` stands still where it opens its part."""
        folder = self.folder / "checkpoints" / f"ckpt-{step:08}"
        self.held = folder, f"shard-{index:05}-of-00003"
        self.hold("/".join((folder.name, self.held[1])))
        assert not folder.exists(), "the save has begun already"

    def wait_for_held_save(self):
        """Until the parts of all others are written; the save is then under way, and stays so."""
        folder, name = self.held
        end = time.monotonic() + DEADLINE
        while len([x for x in folder.glob("shard-*.safetensors") if not x.name.startswith(name) and x.stat().st_size > 0]) < 2:
            assert time.monotonic() < end, f"the save in {folder} did not begin; {self.logs()}"
            time.sleep(0.005)
        time.sleep(0.2)
        assert not (folder / "index.json").exists(), "the save was not held"
        assert all(x.poll() is None for x in self.processes.values()), self.logs()

    def hold_model(self):
        """Holds the chief where it opens the model that it leaves at the end."""
        self.hold("/0/model.safetensors")

    def wait_for_held_model(self):
        """Until all that comes before it is done."""
        self.wait_for_checkpoint(self.steps)
        time.sleep(0.5)
        assert not (self.folder / "0" / "model.safetensors").exists(), "the model was not held"

    def release(self):
        """Who opens what was held from now on does not wait."""
        with contextlib.suppress(FileNotFoundError):
            self.hold_file.unlink()

    def weights(self):
        return (self.folder / "0" / "model.safetensors").read_bytes()

    def losses(self):
        return steps_of(self.folder / "0" / "metrics.jsonl")

    def log(self, index):
        return (self.folder / f"log-{index}").read_text(errors="replace")

    def logs(self):
        return "".join(f"\n--- worker-{i}\n{self.log(i)[-1500:]}" for i in sorted(self.processes))

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
