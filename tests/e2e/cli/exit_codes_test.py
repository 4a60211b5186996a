#!/usr/bin/env python3
"""Every way to end and its exit code: each row of the table in docs/reference/run.md has a test here that goes that way.
exit_codes_test.py BIN_FOLDER"""
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from hosts import free_ports  # noqa: E402
from cli_case import BIN, TIMEOUT, RunningCase, npy  # noqa: E402: it takes BIN_FOLDER from the arguments

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| (?P<way>.+?) \| (?P<code>\d+) \| (?P<again>yes|no|) \|$")


def rows_of_the_docs():
    text = (ROOT / "docs/reference/run.md").read_text()
    section = text[text.index("## Every way to end"):]
    return [(m["way"], int(m["code"]), m["again"]) for m in map(ROW.match, section.splitlines()) if m]


def xxh64(data):
    """XXH64 with seed 0, by its specification."""
    mask, p1, p2, p3, p4, p5 = 2**64 - 1, 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
    left = lambda value, by: (value << by | value >> (64 - by)) & mask
    mix = lambda sum_, lane: left((sum_ + lane * p2) & mask, 31) * p1 & mask
    at, size = 0, len(data)
    if size >= 32:
        sums = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        while at + 32 <= size:
            sums = [mix(sum_, int.from_bytes(data[at + 8 * i:at + 8 * i + 8], "little")) for i, sum_ in enumerate(sums)]
            at += 32
        out = sum(left(sum_, by) for sum_, by in zip(sums, (1, 7, 12, 18))) & mask
        for sum_ in sums:
            out = ((out ^ mix(0, sum_)) * p1 + p4) & mask
    else:
        out = p5
    out = (out + size) & mask
    while at + 8 <= size:
        out = (left(out ^ mix(0, int.from_bytes(data[at:at + 8], "little")), 27) * p1 + p4) & mask
        at += 8
    if at + 4 <= size:
        out = (left(out ^ int.from_bytes(data[at:at + 4], "little") * p1 & mask, 23) * p2 + p3) & mask
        at += 4
    for byte in data[at:]:
        out = left(out ^ byte * p5 & mask, 11) * p1 & mask
    out = (out ^ out >> 33) * p2 & mask
    out = (out ^ out >> 29) * p3 & mask
    return out ^ out >> 32


WAYS = {}  # the row's words -> (code, the test's name)


def way(words, code):
    def add(test):
        assert words not in WAYS, words
        WAYS[words] = (code, test.__name__)
        test.code = code
        return test
    return add


class Ways(RunningCase):
    def setUp(self):
        super().setUp()
        self.code = getattr(getattr(self, self._testMethodName), "code", None)

    def worker(self, *arguments, manifest=None, limits=None, environment=None, output="out"):
        """A process of the worker by itself, under limits: {resource.RLIMIT_...: value}."""
        def limit():
            for what, most in (limits or {}).items():
                resource.setrlimit(what, (most, most))
        return subprocess.run(
            [BIN / "meshtrain-worker", *(["-f", manifest] if manifest else []), "--output", str(self.folder / output), "--metrics-address", "none",
             "--threads", "1", *arguments], capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
            preexec_fn=limit, env={"PATH": os.environ["PATH"], **(environment or {})})

    def ends(self, result, *words):
        self.expect_error(result, self.code, *words)

    def both_end(self, manifest, *words):
        """The worker, and `meshtrain run`, which hands its code on."""
        self.ends(self.worker(manifest=manifest), *words)
        self.ends(self.run_job(manifest, output="run"), *words)

    # --- done

    @way("the job is done", 0)
    def test_done(self):
        self.assertEqual(self.run_job(self.manifest()).returncode, 0)

    # --- what was asked

    @way("wrong usage", 64)
    def test_usage(self):
        self.ends(self.meshtrain("run", "--fil", "x"), "meshtrain: ")
        said = self.worker("--thread", "many")
        self.ends(said, "meshtrain-worker: ")
        self.assertIn("--thread", said.stderr.splitlines()[-1], "the line that a pod's status tells")
        self.ends(self.meshtrain("evaluate", "--bogus", tool="meshtrain-worker"), "meshtrain-worker: ")
        self.ends(self.meshtrain("--bogus", tool="meshtrain-operator"), "meshtrain-operator: ")
        self.ends(self.worker(), "expected --file MANIFEST")

    @way("no such manifest", 66)
    def test_no_manifest(self):
        self.both_end(str(self.folder / "none.yaml"), "none.yaml: cannot open")

    @way("a manifest that is wrong, too large, or asks for what is not there", 78)
    def test_wrong_manifest(self):
        self.both_end(self.manifest(edit=lambda t: t.replace("- flatten", "- flaten")), "did you mean `flatten`?")
        self.both_end(self.manifest(edit=lambda t: t.replace("    data:", "    devices: {kind: cda}\n    data:")), "got: cda")
        self.ends(self.worker(manifest=self.manifest(edit=lambda t: t + "# " + "x" * (5 << 20) + "\n")), "job.yaml: expected at most")

    @way("a variable of the environment that is wrong (TF_CONFIG, a token, certificates)", 78)
    def test_wrong_environment(self):
        manifest = self.manifest()
        self.ends(self.worker(manifest=manifest, environment={"TF_CONFIG": "{"}), "TF_CONFIG")
        config = json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}, "task": {"type": "worker", "index": 0}})
        two = self.manifest(edit=lambda t: t.replace("replicas: 1", "replicas: 2"))
        self.ends(self.worker(manifest=two, environment={"TF_CONFIG": config, "MESHTRAIN_TLS_CA": "ca.pem"}), "expected all three or none")

    @way("an allocation beyond the machine", 78)
    def test_beyond_the_machine(self):
        # A sanitizer ends a program that asks for so much, and itself takes more than the limit.
        program = (BIN / "meshtrain-worker").read_bytes()
        if b"__asan_init" not in program and b"__tsan_init" not in program:
            # 3.6 TB of weights: more than any machine's memory has pages for.
            self.both_end(self.manifest(edit=lambda t: t.replace("units: 12", "units: 1000000000")), "memory")
            # Or than the process may have.
            self.ends(self.worker(manifest=self.manifest(edit=lambda t: t.replace("units: 12", "units: 20000000")),
                                  limits={resource.RLIMIT_AS: 3 << 30}), "memory")
        # What its plans need is known before any of it is taken.
        self.ends(self.worker("--memory", "1000", manifest=self.manifest()),
                  "expected to need at most 1000 bytes (what this process may use), got: ", "of variables")

    @way("a job that is suspended by its manifest", 78)
    def test_suspended(self):
        self.ends(self.run_job(self.manifest(edit=lambda t: t.replace("spec:\n", "spec:\n  runPolicy: {suspend: true}\n", 1))), "suspend")

    # --- data

    @way("data that is not there", 66)
    def test_no_data(self):
        (self.folder / "labels.gz").unlink()
        self.both_end(self.manifest(), "labels.gz: cannot open")

    @way("data that is damaged or of another kind", 65)
    def test_bad_data(self):
        (self.folder / "images.gz").write_bytes(b"not an idx file at all")
        self.both_end(self.manifest(), "images.gz: byte 0: expected IDX's magic number")

    @way("data with a number that is not finite, which spoils a step", 65)
    def test_data_that_is_not_finite(self):
        (self.folder / "x.npy").write_bytes(npy(struct.pack("<100f", *[1.0] * 99, float("nan")), (100, 1), "<f4"))
        source = "train: {npy: {images: %s/x.npy, labels: %s/y.npy, labels_as: i32}}" % (self.folder, self.folder)
        (self.folder / "y.npy").write_bytes(npy(bytes(100), (100,)))
        self.both_end(self.manifest(edit=lambda t: re.sub(r"train: \{idx:.*", source, re.sub(r" *(test|map): .*\n", "", t))),
                      "x.npy, component `x`: example 99: expected finite numbers, got: nan")

    # --- output and checkpoints

    @way("an output folder or file that cannot be made, or in whose place something else lies", 73)
    def test_no_output(self):
        (self.folder / "out").write_text("in the way")
        (self.folder / "run").write_text("in the way")
        self.both_end(self.manifest(), "cannot make folder")

    @way("an output folder that another run writes into", 73)
    def test_output_in_use(self):
        folder = self.folder / "out"
        folder.mkdir()
        with open(folder / "run.lock", "w") as lock:
            lock.write("process 1 since yesterday")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.ends(self.run_job(self.manifest()), "got: one of process 1 since yesterday")

    @way("a disk that is full, a file that may not grow, input or output that fails", 74)
    def test_output_fails(self):
        # Without a checkpoint's room, and with the room of a few lines: SIGXFSZ would end it with 153.
        for most in (1 << 10, 2 << 10, 8 << 10):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            self.ends(self.worker(manifest=self.manifest(every=1), limits={resource.RLIMIT_FSIZE: most}), "File too large")

    def saved(self):
        """A job that has ended with checkpoints in a folder of its own, and the manifest that goes on from them."""
        given = lambda t: t.replace("checkpoint: {everySteps", f"checkpoint: {{path: {self.folder / 'saved'}, everySteps")
        self.assertEqual(self.worker(manifest=self.manifest(epochs=1, every=2, edit=given)).returncode, 0)
        return self.manifest(epochs=2, every=2, edit=given), sorted((self.folder / "saved").glob("ckpt-*"))

    @way("checkpoints of which none is whole", 65)
    def test_damaged_checkpoints(self):
        manifest, checkpoints = self.saved()
        for shard in [shard for one in checkpoints for shard in one.glob("*.safetensors")]:
            data = bytearray(shard.read_bytes())
            data[-100] ^= 1
            shard.write_bytes(data)
        self.both_end(manifest, "safetensors")

    @way("a checkpoint of a newer format", 78)
    def test_newer_checkpoint(self):
        manifest, checkpoints = self.saved()
        for path in (one / "index.json" for one in checkpoints):
            body = path.read_text().removeprefix('{"index":').rpartition(',"xxh64":')[0]
            newer = re.sub(r'"version":(\d+)', lambda m: f'"version":{int(m[1]) + 1}', body)
            self.assertNotEqual(newer, body)
            path.write_text('{"index":%s,"xxh64":"%016x"}\n' % (newer, xxh64(newer.encode())))
        self.both_end(manifest, "index.json: version: expected at most")

    @way("an unfinished run's checkpoint of another model", 78)
    def test_another_model(self):
        manifest, _ = self.saved()
        Path(manifest).write_text(Path(manifest).read_text().replace("units: 12", "units: 14"))
        self.both_end(manifest, "it is of another model")

    # --- computing

    @way("a loss, a gradient or a new value that is not finite", 79)
    def test_nan(self):
        self.both_end(self.manifest(rate="1.0e+30", every=1), "not finite")

    @way("the run's deadline", 70)
    def test_deadline(self):
        policy = lambda t: t.replace("spec:\n", "spec:\n  runPolicy: {activeDeadlineSeconds: 1}\n", 1)
        self.ends(self.run_job(self.manifest(epochs=100000, every=1000000, edit=policy)), "runPolicy.activeDeadlineSeconds, 1 s")

    @way("no thread left on the machine", 74)
    def test_no_threads(self):
        if os.getuid() != 0:
            self.skipTest("needs to become a user of its own")
        # Root has no such limit; nobody else runs as this user, who may not see into the build folder.
        program = shutil.copy(BIN / "meshtrain-worker", self.folder)
        for path in [self.folder, *self.folder.rglob("*")]:
            path.chmod(0o777)
        seen = set()
        for most in range(1, 4):
            result = subprocess.run(
                ["setpriv", "--reuid=61327", "--regid=61327", "--clear-groups", "prlimit", f"--nproc={most}", program, "-f",
                 self.manifest(), "--output", str(self.folder / "out"), "--metrics-address", "none", "--threads", "4"],
                capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})  # which takes a thread too
            self.assertEqual(result.returncode, self.code, (most, result.stderr))
            seen.add(re.search(r"expected a thread, got: Resource temporarily unavailable", result.stderr) is not None)
        self.assertEqual(seen, {True})

    # --- other processes of the job

    def team(self, index, hosts, token="secret"):
        path = self.folder / f"token-{token}"
        path.write_text(token)
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}),
                "MESHTRAIN_TOKEN_FILE": str(path), "MESHTRAIN_JOB": "test/exits", "MESHTRAIN_PEER_RETURN_SECONDS": "0"}

    def two(self, **more):
        return self.manifest(edit=lambda t: t.replace("replicas: 1", "replicas: 2"), **more)

    @way("a token, or a job's name, that the other processes refuse", 78)
    def test_refused(self):
        hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
        first = subprocess.Popen([BIN / "meshtrain-worker", "-f", self.two(), "--output", str(self.folder / "first"), "--metrics-address", "none"],
                                 env={"PATH": os.environ["PATH"], **self.team(0, hosts)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (first.kill(), first.wait()))
        self.ends(self.worker(manifest=self.two(), environment=self.team(1, hosts, token="guess")), "token")

    @way("a port that is taken", 138)
    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            hosts = [f"127.0.0.1:{taken.getsockname()[1]}", f"127.0.0.1:{free_ports(1)[0]}"]
            self.ends(self.worker(manifest=self.two(), environment=self.team(0, hosts)), "Address already in use")

    def member(self, index, hosts, manifest, **more):
        """A process of two that runs beside the test."""
        child = subprocess.Popen(
            [BIN / "meshtrain-worker", "-f", manifest, "--output", str(self.folder / ("out" if index == 0 else f"out{index}")),
             "--metrics-address", "none", "--threads", "1"],
            env={"PATH": os.environ["PATH"], **self.team(index, hosts), **more}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (child.kill(), child.wait(), child.stderr.close()))
        return child

    def all_end(self, children, words):
        for child in children:
            _, err = child.communicate(timeout=TIMEOUT)
            self.assertEqual(child.returncode, self.code, err)
            self.assertIn(words, err)

    @way("another process that is lost and does not return in time", 138)
    def test_peer_lost(self):
        hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
        manifest = self.two(epochs=100000, every=1000000)
        first, second = (self.member(i, hosts, manifest) for i in range(2))
        self.wait_for_step(3)
        second.kill()
        self.all_end([first], "worker-1")

    @way("another process that returns with a lesser instruction set", 138)
    def test_lesser_set(self):
        self.needs_two_sets()
        hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
        manifest = self.two(epochs=100000, every=1000000)
        waits = {"MESHTRAIN_PEER_RETURN_SECONDS": str(TIMEOUT)}
        first, second = (self.member(i, hosts, manifest, **waits) for i in range(2))
        self.wait_for_step(3)
        second.kill()
        again = self.member(1, hosts, manifest, MESHTRAIN_INSTRUCTION_SET="v2", **waits)
        self.all_end([first, again], "worker-1 has no better than v2")

    @way("copies of a value that differ between processes", 70)
    def test_copies_differ(self):
        self.needs_two_sets()
        hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
        manifest = self.two(epochs=20, every=20)
        forced = [{}, {"MESHTRAIN_FORCED_INSTRUCTION_SET": "v2"}]
        self.all_end([self.member(i, hosts, manifest, **forced[i]) for i in range(2)], "expected equal copies on all ranks")

    def needs_two_sets(self):
        flags = re.search(r"^flags.*", Path("/proc/cpuinfo").read_text(), re.M)
        if flags is None or not {"avx2", "fma"} <= set(flags[0].split()):
            self.skipTest("no device: this processor has one instruction set")

    # --- signals

    def stopped_by(self, sent, code):
        child = self.start(self.manifest(epochs=100000, every=1000000))
        self.wait_for_step(3)
        child.send_signal(sent)
        out, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, code, err)
        self.assertIn("saved", out + err)

    @way("SIGINT, after saving", 130)
    def test_interrupted(self):
        self.stopped_by(signal.SIGINT, self.code)

    @way("SIGTERM, after saving", 143)
    def test_terminated(self):
        self.stopped_by(signal.SIGTERM, self.code)

    @way("SIGHUP, after saving (`meshtrain run`)", 129)
    def test_hung_up(self):
        self.stopped_by(signal.SIGHUP, self.code)

    def replica(self, script):
        path = self.folder / "shell.yaml"
        path.write_text("apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: shell}\nspec:\n  replicaSpecs:\n    worker: "
                        "{restartPolicy: Never, template: {spec: {containers: [{name: trainer, image: any, command: [sh, -c, '%s']}]}}}\n" % script)
        return self.run_job(str(path))

    @way("killed (SIGKILL, the kernel out of memory)", 137)
    def test_killed(self):
        self.assertEqual(self.replica("kill -KILL $$$$").returncode, self.code)

    @way("a crash: SIGABRT", 134)
    def test_aborted(self):
        self.assertEqual(self.replica("kill -ABRT $$$$").returncode, self.code)

    @way("a crash: SIGSEGV", 139)
    def test_segfault(self):
        self.assertEqual(self.replica("kill -SEGV $$$$").returncode, self.code)


class Table(unittest.TestCase):
    def test_the_docs_and_these_tests_have_the_same_rows(self):
        docs = {words: code for words, code, _ in rows_of_the_docs()}
        self.assertEqual(len(docs), len(rows_of_the_docs()), "a row stands there twice")
        self.assertEqual(docs, {words: code for words, (code, _) in WAYS.items()})

    def test_what_is_said_to_be_tried_again_is_so(self):
        # cluster::ClassifyExit, which tests/runtime/cluster/contract_test.cc holds for every code.
        retried = lambda code: code == 74 or (code >= 128 and code not in (134, 139))
        for words, code, again in rows_of_the_docs():
            self.assertEqual(again, "" if code == 0 else "yes" if retried(code) else "no", words)


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    unittest.main(verbosity=2, defaultTest=[name for name in ("Table", "Ways")])
