"""Data parallel training over processes: what more processes give, and what a network takes.

  run_processes.py --worker build/release/bin/meshtrain-worker --data FOLDER [--out FILE]

Prints, as ratios within one run:
  2 processes of one thread each against 1 process of one thread, for the MLP of deploy/examples/mnist-mlp.yaml at global
  batches of 128 and 1,024;
  as root, 4 hosts (network namespaces) with a link of 1 Gbit each against what the link's measured goodput allows: the
  larger of computing and of sending the plan's bytes.
FOLDER holds MNIST-like IDX files (scripts/make-data). Rounds alternate, medians are shown. Standard library only.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts, free_ports  # noqa: E402

MANIFEST = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: bench}}
spec:
  replicaSpecs: {{worker: {{replicas: {processes}}}}}
  program:
    mesh: {{batch: {processes}}}
    data:
      train: {{idx: {{images: {data}/train-images-idx3-ubyte.gz, labels: {data}/train-labels-idx1-ubyte.gz}}, take: 4096}}
      map: [{{scale: 0.00392156862745098}}]
      batch: {batch}
    model:
      - flatten
      - dense: {{units: 700, activation: relu}}
      - dense: {{units: 500, activation: relu}}
      - dense: {{units: 10}}
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: {{adam_paper: {{learning_rate: 0.001}}}}
    layout: {{update: {update}}}
    train: {{epochs: {epochs}}}
"""
DEADLINE = 600
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def train(options, processes, batch, steps, hosts=None, prefix=lambda index: []):
    """Median seconds of a step, the first fifth left out, and the plan's collective bytes a step."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = pathlib.Path(folder) / "job.yaml"
        epochs = max(1, steps * batch // 4096)
        manifest.write_text(MANIFEST.format(processes=processes, data=os.path.abspath(options.data), batch=batch, epochs=epochs,
                                            update=options.update))
        hosts = hosts or [f"127.0.0.1:{port}" for port in free_ports(processes)]
        running = []
        for index in range(processes):
            environment = dict(os.environ)
            if processes > 1:
                config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
                environment["TF_CONFIG"] = json.dumps(config)
            running.append(subprocess.Popen(
                prefix(index) + [os.path.abspath(options.worker), "-f", str(manifest), "--output", f"{folder}/{index}",
                                 "--threads", "1", "--metrics-address", "none"],
                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        for process in running:
            _, errors = process.communicate(timeout=DEADLINE)
            if process.returncode != 0:
                raise SystemExit(f"a worker left with {process.returncode}: {errors[-2000:]}")
        seconds = [json.loads(line)["seconds"] for line in open(f"{folder}/0/metrics.jsonl")]
        sent = [line for line in open(f"{folder}/0/plan.txt") if " x " in line and any(kind in line for kind in COLLECTIVES)]
        return statistics.median(seconds[len(seconds) // 5:]), sum(int(line.split(" x ")[1].split()[0]) for line in sent)


def speed_up(options):
    rows = []
    for batch in (128, 1024):
        one, two = [], []
        for _ in range(options.rounds):
            one.append(train(options, 1, batch, options.steps)[0])
            two.append(train(options, 2, batch, options.steps)[0])
        rows.append({"what": f"2 processes, batch {batch}", "one_ms": statistics.median(one) * 1e3,
                     "two_ms": statistics.median(two) * 1e3, "speed_up": statistics.median(one) / statistics.median(two)})
    return rows


class ShapedHosts(Hosts):
    """Each with a link of this rate, both ways."""

    def __init__(self, count, rate):
        super().__init__("mb", "10.78.0", count)
        self.rate = rate

    def __enter__(self):
        super().__enter__()
        for index in range(self.count):
            self.shape(index, self.rate, "256kb", "20ms", both=True)
        return self

    def goodput(self, seconds=3):
        """Bytes a second that each host sends to the next while all do so: a ring, as the collectives run."""
        program = """
import socket, sys, threading, time
own, peer, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
server = socket.create_server((own, 7777))
got = 0
def receive():
    global got
    connection, _ = server.accept()
    buffer = bytearray(1 << 20)
    while True:
        n = connection.recv_into(buffer)
        if n == 0: return
        got += n
thread = threading.Thread(target=receive); thread.start()
for _ in range(100):
    try: out = socket.create_connection((peer, 7777), timeout=5); break
    except OSError: time.sleep(0.05)
time.sleep(0.5)
block = bytes(1 << 20); end = time.monotonic() + seconds; begin = time.monotonic()
while time.monotonic() < end: out.sendall(block)
out.shutdown(socket.SHUT_WR); thread.join()
print(got / (time.monotonic() - begin))
"""
        running = [subprocess.Popen(self.prefix(i) + [sys.executable, "-c", program, self.address(i),
                                                      self.address((i + 1) % self.count), str(seconds)],
                                    stdout=subprocess.PIPE, text=True) for i in range(self.count)]
        return min(float(process.communicate(timeout=60)[0]) for process in running)


def network(options):
    count = 4
    with ShapedHosts(count, "1gbit") as hosts:
        goodput = hosts.goodput()
        addresses = [f"{hosts.address(i)}:2222" for i in range(count)]
        measured, sent = [], 0
        for _ in range(options.rounds):
            seconds, sent = train(options, count, 128, options.steps, addresses, hosts.prefix)
            measured.append(seconds)
        # Without the shaped link: what computing takes with so many processes on these cores.
        compute = statistics.median(train(options, count, 128, options.steps)[0] for _ in range(options.rounds))
        allowed = max(sent / goodput, compute)
        return {"what": "4 hosts, 1 Gbit", "goodput_MBps": goodput / 1e6, "bytes_per_step": sent,
                "compute_ms": compute * 1e3, "allowed_ms": allowed * 1e3, "measured_ms": statistics.median(measured) * 1e3,
                "share": allowed / statistics.median(measured)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--update", default="auto", choices=("auto", "shared", "copied"), help="layout.update of the job")
    parser.add_argument("--only", choices=("speed-up", "network"))
    parser.add_argument("--out")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = speed_up(options) if options.only != "network" else []
    for row in rows:
        print(f"{row['what']:<28} one {row['one_ms']:7.2f} ms  two {row['two_ms']:7.2f} ms  {row['speed_up']:.2f} x")
    if os.geteuid() == 0 and options.only != "speed-up":
        row = network(options)
        rows.append(row)
        print(f"{row['what']:<28} link {row['goodput_MBps']:.1f} MB/s, {row['bytes_per_step']} bytes a step: at least "
              f"{row['allowed_ms']:.2f} ms; measured {row['measured_ms']:.2f} ms: {row['share']:.2f} of what it allows")
    print(f"load when it began: {load:.1f}")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
