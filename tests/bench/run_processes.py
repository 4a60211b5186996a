"""Data parallel training over processes: what more processes give, and what a network takes.

  run_processes.py --worker build/release/bin/meshtrain-worker --data FOLDER [--out FILE] [--check]
  run_processes.py --worker build/release/bin/meshtrain-worker --only detection --check

Prints, as ratios within one run:
  2 processes of one thread each against 1 process of one thread, for the MLP of deploy/examples/mnist-mlp.yaml at global
  batches of 128 and 1,024;
  as root, 4 hosts (network namespaces) with a link of 1 Gbit each against what the link's measured goodput allows: the
  larger of computing and of sending the plan's bytes;
  as root, 2 hosts whose links are sealed by mutual TLS against the same two with plain links (no target);
and in seconds, of a job of three processes (tests/e2e/process_job.py, with the digits of tests/testdata/mlp):
  from kill -9 or SIGSTOP of a rank until the last of the others has named it;
  from its return (its start, or SIGCONT) until the chief has written a step again.
--check: exit 1 where a target is missed. FOLDER holds MNIST-like IDX files (scripts/make-data). Rounds alternate, medians are shown. Standard library only.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "support"), str(TESTS / "e2e")]
from hosts import Hosts, free_ports  # noqa: E402
from process_job import Job, killed  # noqa: E402

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


def train(options, processes, batch, steps, hosts=None, prefix=lambda index: [], more=None):
    """Median seconds of a step, the first fifth left out, and the plan's collective bytes a step."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = pathlib.Path(folder) / "job.yaml"
        epochs = max(1, steps * batch // 4096)
        manifest.write_text(MANIFEST.format(processes=processes, data=os.path.abspath(options.data), batch=batch, epochs=epochs,
                                            update=options.update))
        hosts = hosts or [f"127.0.0.1:{port}" for port in free_ports(processes)]
        running = []
        for index in range(processes):
            environment = {**os.environ, **(more or {})}
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
        rows.append({"what": f"2 processes, batch {batch}", "batch": batch, "one_ms": statistics.median(one) * 1e3,
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


def certificates(folder, addresses):
    """An authority and a certificate for these addresses, as the operator makes them for a job: what processes are told."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    for name in ("ca", "tls"):
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    openssl("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=bench", "-days", "2", "-out", "ca.crt")
    openssl("req", "-new", "-key", "tls.key", "-subj", "/CN=bench", "-out", "tls.csr")
    (folder / "names").write_text("subjectAltName=" + ",".join(f"IP:{address}" for address in addresses) +
                                  "\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\n")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "tls.crt")
    return {"MESHTRAIN_TLS_CA": f"{folder}/ca.crt", "MESHTRAIN_TLS_CERT": f"{folder}/tls.crt",
            "MESHTRAIN_TLS_KEY": f"{folder}/tls.key"}


def sealed(options):
    """What sealing adds to a step of the MLP over two hosts whose link is as fast as the machine."""
    with Hosts("ms", "10.79.0", 2) as hosts, tempfile.TemporaryDirectory() as folder:
        addresses = [hosts.address(i) for i in range(2)]
        variables = certificates(pathlib.Path(folder), addresses)
        times = {"plain": [], "sealed": []}
        for _ in range(options.rounds):
            for name, more in (("plain", None), ("sealed", variables)):
                times[name].append(train(options, 2, 128, options.steps, [f"{address}:2222" for address in addresses],
                                         hosts.prefix, more)[0])
        plain, under_seal = (statistics.median(times[name]) for name in ("plain", "sealed"))
        return {"what": "2 hosts, sealed links", "plain_ms": plain * 1e3, "sealed_ms": under_seal * 1e3,
                "times": under_seal / plain}


NAMED_WITHIN = 2.0  # seconds
BACK_WITHIN = 5.0
SPEED_UP = {128: 1.45, 1024: 1.7}
LINK_SHARE = 0.9


def lose(options, index, number):
    """One rank is killed or stopped in a step and comes back: seconds until all others named it, and until steps go on."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, os.path.abspath(options.worker), TESTS / "testdata" / "mlp", epochs=40)
        try:
            job.start_all()
            job.wait_for_step(35)
            others = [i for i in range(3) if i != index]
            said = killed(index) if number == signal.SIGKILL else f"worker-{index} lost: silent for"
            begin = time.monotonic()
            job.processes[index].send_signal(number)
            for other in others:
                job.wait_for_text(other, said)
            named = time.monotonic() - begin
            if number == signal.SIGKILL:
                job.wait(index)
            reached = job.step()
            begin = time.monotonic()
            if number == signal.SIGKILL:
                job.start(index)
            else:
                job.processes[index].send_signal(signal.SIGCONT)
            job.wait_for_step(reached + 1)  # what lies behind the last checkpoint is trained again first
            return named, time.monotonic() - begin
        finally:
            job.close()


def detection(options):
    rows = []
    for what, index, number in (("kill -9 of a worker", 1, signal.SIGKILL), ("kill -9 of the chief", 0, signal.SIGKILL),
                                ("SIGSTOP of a worker", 1, signal.SIGSTOP), ("SIGSTOP of the chief", 0, signal.SIGSTOP)):
        times = [lose(options, index, number) for _ in range(options.rounds)]
        rows.append({"what": what, "named_s": max(t[0] for t in times), "back_s": max(t[1] for t in times)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--data", help="not for --only detection")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--update", default="auto", choices=("auto", "shared", "copied"), help="layout.update of the job")
    parser.add_argument("--only", choices=("speed-up", "network", "sealed", "detection"))
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.data is None and options.only != "detection":
        parser.error("--data: expected a folder of IDX files")
    load = os.getloadavg()[0]
    rows = []
    missed = []

    def target(row, met, text):
        row["met"] = row.get("met", True) and met
        if not met:
            missed.append(f"{row['what']}: {text}")

    if options.only in (None, "detection"):
        for row in detection(options):
            rows.append(row)
            target(row, row["named_s"] <= NAMED_WITHIN, f"named after {row['named_s']:.2f} s, {NAMED_WITHIN:.0f} wanted")
            target(row, row["back_s"] <= BACK_WITHIN, f"trains again after {row['back_s']:.2f} s, {BACK_WITHIN:.0f} wanted")
            print(f"{row['what']:<28} named by all others after {row['named_s']:.3f} s ({NAMED_WITHIN:.0f}), trains again "
                  f"{row['back_s']:.3f} s after the return ({BACK_WITHIN:.0f})")
    for row in speed_up(options) if options.only in (None, "speed-up") else []:
        rows.append(row)
        wanted = SPEED_UP[row["batch"]]
        target(row, row["speed_up"] >= wanted, f"{row['speed_up']:.2f} x, {wanted} wanted")
        print(f"{row['what']:<28} one {row['one_ms']:7.2f} ms  two {row['two_ms']:7.2f} ms  {row['speed_up']:.2f} x")
    if os.geteuid() == 0 and options.only in (None, "network"):
        row = network(options)
        rows.append(row)
        target(row, row["share"] >= LINK_SHARE, f"{row['share']:.2f} of what the link allows, {LINK_SHARE} wanted")
        print(f"{row['what']:<28} link {row['goodput_MBps']:.1f} MB/s, {row['bytes_per_step']} bytes a step: at least "
              f"{row['allowed_ms']:.2f} ms; measured {row['measured_ms']:.2f} ms: {row['share']:.2f} of what it allows")
    if os.geteuid() == 0 and options.only in (None, "sealed"):
        row = sealed(options)
        rows.append(row)
        print(f"{row['what']:<28} plain {row['plain_ms']:.2f} ms a step, sealed {row['sealed_ms']:.2f} ms: {row['times']:.2f} x")
    print(f"load when it began: {load:.1f}")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(rows, indent=1))
    for line in missed:
        print(f"missed: {line}")
    if options.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
