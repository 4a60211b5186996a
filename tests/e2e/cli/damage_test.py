#!/usr/bin/env python3
"""Files that cannot be read or written, damaged checkpoints, and values that are not finite.   damage_test.py BIN_FOLDER"""
import gzip
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import steps_of  # noqa: E402
from cli_case import BIN, TIMEOUT, Case, idx, npy  # noqa: E402: it takes BIN_FOLDER from the arguments


class Outputs(Case):
    """What lies in the way of a file stays there, whoever tries again; a full disk may be given room."""

    @staticmethod
    def under(policy):
        return lambda t: t.replace("replicas: 1", f"replicas: 1, restartPolicy: {policy}")

    def test_something_else_in_a_files_place_is_not_retried(self):
        folder = lambda path: path.mkdir(parents=True)
        file = lambda path: path.write_text("in the way")
        loop = lambda path: path.symlink_to(path)
        for name, make, named, why in (
                ("metrics.jsonl", folder, "metrics.jsonl", "expected a regular file, got: a folder"),
                ("metrics.jsonl", loop, "metrics.jsonl", "expected a regular file, got: a symbolic link"),
                ("metrics.jsonl", os.mkfifo, "metrics.jsonl", "expected a regular file, got: a FIFO"),
                ("plan.txt", folder, "plan.txt: cannot rename over", "Is a directory"),
                ("report.html", folder, "report.html: cannot rename over", "Is a directory"),
                ("model.safetensors", folder, "model.safetensors: cannot rename over", "Is a directory"),
                ("events", file, "events/train: cannot make folder", "Not a directory"),
                ("events", loop, "events/train: cannot make folder", "Too many levels"),
                ("checkpoints", file, "checkpoints: cannot make folder", "Not a directory"),
                ("checkpoints", loop, "checkpoints: cannot make folder", "Too many levels")):
            with self.subTest(name=name, why=why), tempfile.TemporaryDirectory(dir=self.folder) as out:
                make(Path(out) / name)
                result = self.meshtrain("run", "-f", self.manifest(edit=self.under("ExitCode")), "--output", out)
                self.expect_error(result, 73, f"{out}/{named}: {why}", "failed with exit code 73 (Error), which is not retried")
                self.assertNotIn("JobRestarting", result.stderr)

    def test_nor_is_it_with_parameter_servers(self):
        roles = ", ".join(f"{role}: {{replicas: 1, restartPolicy: ExitCode}}" for role in ("chief", "worker", "ps", "evaluator"))
        # So many epochs that the chief is still at work when the evaluator comes to its files.
        manifest = self.manifest(mesh="", epochs=100000, edit=lambda t: t.replace("    mesh: \n", "").replace(
            "replicaSpecs: {worker: {replicas: 1}}", "strategy: ParameterServer\n  replicaSpecs: {%s}" % roles))
        for who, name, why in (("chief", "metrics.jsonl", "got: a folder"), ("chief", "plan.txt", "Is a directory"),
                               ("evaluator", "evaluator-0/metrics.jsonl", "got: a folder")):
            with self.subTest(name), tempfile.TemporaryDirectory(dir=self.folder) as out:
                (Path(out) / name).mkdir(parents=True)
                result = self.meshtrain("run", "-f", manifest, "--output", out)
                self.expect_error(result, 73, f"{out}/{name}: ", why,
                                  f"tiny-{who}-0 failed with exit code 73 (Error), which is not retried")

    def test_a_file_that_cannot_grow_ends_in_74(self):
        out = self.folder / "out"

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768))
        manifest = self.manifest(epochs=200, every=1000000)
        result = subprocess.run([BIN / "meshtrain-worker", "-f", manifest, "-o", out, "--metrics-address", "none"], preexec_fn=limit,
                                capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.expect_error(result, 74, f"{out}/metrics.jsonl: cannot write: File too large")
        self.assertEqual((out / "metrics.jsonl").stat().st_size, 32768)


class BadData(Case):
    def test_a_fifo_is_not_waited_for(self):
        for name in ("images.gz", "labels.gz"):
            with self.subTest(name):
                path = self.folder / name
                path.rename(self.folder / "away")
                os.mkfifo(path)
                for verb in ("run", "plan"):
                    self.expect_error(self.meshtrain(verb, "-f", self.manifest()), 65,
                                      f"{path}: expected a regular file, got: a FIFO")
                (self.folder / "away").rename(path)
        manifest = self.folder / "job.fifo"
        os.mkfifo(manifest)
        for verb in ("run", "plan", "validate"):
            self.expect_error(self.meshtrain(verb, "-f", str(manifest)), 78, f"{manifest}: expected a regular file, got: a FIFO")

    def test_missing(self):
        (self.folder / "labels.gz").unlink()
        self.expect_error(self.run_job(self.manifest()), 66, "labels.gz")

    def test_truncated_wrong_magic_and_counts(self):
        path = self.folder / "images.gz"
        packed = path.read_bytes()
        whole = gzip.decompress(packed)
        half = len(packed) // 2
        labels = self.folder / "labels.gz"
        for data, words in (
                (packed[:half], f"{path}: byte {half} of the compressed file: expected the gzip stream to go on"),
                (b"not an idx file at all", f"{path}: byte 0: expected IDX's magic number"),
                (b"\0\0\x09" + whole[3:], f"{path}: byte 2: expected element type"),
                (whole[:500], f"{path}: byte 500: expected the file to hold u8[100,10,10] = 10000 bytes after its header, got: 484"),
                (gzip.compress(whole[:500]), f"{path}: byte 500: expected content up to byte 10016 (u8[100,10,10]), got: end of file"),
                (gzip.compress(whole + b"more"), f"{path}: byte 10016: expected the end after u8[100,10,10], got: more bytes"),
                (gzip.compress(idx(bytes(100 * 99), (99, 10, 10))), f"{labels}: byte 4: expected 99 labels, as many as images in {path}, got: 100")):
            with self.subTest(words):
                path.write_bytes(data)
                self.expect_error(self.run_job(self.manifest()), 65, words)

    def test_a_bomb_costs_nothing(self):
        size, manifest = 200_000_000, self.manifest(epochs=1)

        def peak_bytes(code, *words):
            """Of the largest process of a run. What this process holds counts in its children: the bomb is packed in pieces."""
            with tempfile.TemporaryFile("w+") as said:
                child = subprocess.Popen([BIN / "meshtrain", "run", "-f", manifest, "--output", str(self.folder / "out")],
                                         stdout=said, stderr=said, stdin=subprocess.DEVNULL)
                timer = threading.Timer(TIMEOUT, child.kill)
                timer.start()
                _, status, usage = os.wait4(child.pid, 0)
                timer.cancel()
                child.returncode = os.waitstatus_to_exitcode(status)
                said.seek(0)
                text = said.read()
            self.assertEqual(child.returncode, code, text)
            for word in words:
                self.assertIn(word, text)
            return usage.ru_maxrss * 1024

        usual = peak_bytes(0)
        with gzip.open(self.folder / "images.gz", "wb", 9) as bomb:
            bomb.write(struct.pack(">HBB", 0, 8, 3) + struct.pack(">III", 100, 10, 10))
            for _ in range(200):
                bomb.write(bytes(size // 200))
        bombed = peak_bytes(65, "images.gz: byte 10016: expected the end after u8[100,10,10], got: more bytes")
        self.assertLess(bombed, usual + size // 4)


class Damage(Case):
    def test_nan_names_the_step_and_the_first_op_and_keeps_the_checkpoint(self):
        result = self.run_job(self.manifest(rate="1.0e+30", every=1))
        self.expect_error(result, 79, "step 2", "matmul", "checkpoint")
        kept = sorted(p.name for p in (self.folder / "out" / "checkpoints").glob("ckpt-*"))
        self.assertEqual(kept[-1], "ckpt-00000001")

    @staticmethod
    def spoil(more=""):
        """Inputs scaled by 1e19 under a squared error: a regression on the labels."""
        return lambda t: t.replace("0.00392156862745098", "1.0e+19").replace(
            "labels.gz}", "labels.gz, labels_as: f32}").replace("units: 10", "units: 1").replace(
            "sparse_categorical_crossentropy: {from_logits: true}", "mse: {}").replace("metrics: [accuracy]", "metrics: []").replace(
            "train: {epochs", "train: {%sepochs" % more)

    def spoiled_job_leaves(self, result, steps):
        out = self.folder / "out"
        self.expect_error(result, 79, f"step {steps}: ", "first not finite: ", "no variable was changed", "no checkpoint was saved")
        self.assertEqual(list((out / "checkpoints").glob("ckpt-*")), [])
        self.assertFalse((out / "model.safetensors").exists())
        lines = steps_of(out / "metrics.jsonl")
        self.assertEqual([(line["step"], line["loss"]) for line in lines], [(s + 1, None) for s in range(steps)])
        for line in lines:
            self.assertIn("first not finite: ", line["bad"])

    def test_a_bad_step_changes_nothing_and_is_not_saved(self):
        edit = self.spoil()
        for mesh, more in (("", []), ("{batch: 2}", []), ("{batch: 2}", ["--isolated"])):
            with self.subTest(mesh=mesh, more=more):
                change = (lambda t: edit(t.replace("    mesh: \n", ""))) if not mesh else edit
                result = self.run_job(self.manifest(mesh=mesh, every=1, edit=change), *more)
                self.spoiled_job_leaves(result, 1)
        # The folder is as good as before: the same job with inputs as they should be.
        good = self.run_job(self.manifest(every=1, edit=lambda t: edit(t).replace("1.0e+19", "0.004")))
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertNotIn("resuming from", good.stdout)

    def test_bad_steps_are_counted_and_end_the_job_when_there_are_too_many(self):
        result = self.run_job(self.manifest(every=1, edit=self.spoil("end_after_bad_steps: 3, ")))
        self.spoiled_job_leaves(result, 3)
        self.assertIn("the 3 steps up to it were bad", result.stderr)
        self.assertEqual(result.stderr.count("a bad step changed nothing"), 3)

    def test_data_that_is_not_finite_is_named_by_file_and_example(self):
        values = [float(i % 7) for i in range(64 * 3)]
        values[37 * 3 + 1] = float("nan")
        (self.folder / "x.npy").write_bytes(npy(struct.pack("<192f", *values), (64, 3), "<f4"))
        (self.folder / "y.npy").write_bytes(npy(struct.pack("<64f", *values[:64]), (64,), "<f4"))
        source = "{npy: {images: %s/x.npy, labels: %s/y.npy}}" % (self.folder, self.folder)

        def regression(more=""):
            return lambda t: re.sub(r"train: \{idx:.*", f"train: {source}", re.sub(r" *((test|map): .*|mesh: )\n", "", t)).replace(
                "units: 10", "units: 1").replace("sparse_categorical_crossentropy: {from_logits: true}", "mse: {}").replace(
                "metrics: [accuracy]", "metrics: []").replace("train: {epochs", "train: {%sepochs" % more)
        example = f"{self.folder}/x.npy, component `x`: example 37: expected finite numbers, got: nan"
        for output, mesh, more in (("one", "", []), ("two", "{batch: 2}", []), ("apart", "{batch: 2}", ["--isolated"])):
            with self.subTest(output):
                result = self.run_job(self.manifest(mesh=mesh, batch=16, every=1, edit=regression()), *more, output=output)
                self.expect_error(result, 65, "step 3: ", "first not finite: input x", example, "the last checkpoint is of step 2")
        # A job that allows bad steps goes on, and says what was wrong with this one.
        result = self.run_job(self.manifest(batch=16, every=1, epochs=1, edit=regression("end_after_bad_steps: 2, ")))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(example, result.stderr)

    def test_updated_values_that_are_not_finite_are_not_saved(self):
        # The gradient of step 6 is finite; the learning rate, as f32, is not, nor is the new weight.
        sgd = lambda t: t.replace("adam:", "sgd:")
        self.assertEqual(self.run_job(self.manifest(epochs=1, every=1, rate=0.001, edit=sgd)).returncode, 0)
        result = self.run_job(self.manifest(epochs=2, every=1, rate="1.0e+39", edit=lambda t: sgd(t).replace(
            "    train: {epochs", "    train: {validation: false, epochs")))
        self.expect_error(result, 79, "step 6 is not saved: variable `", "expected finite values")
        newest = sorted((self.folder / "out" / "checkpoints").glob("ckpt-*"))[-1]
        self.assertEqual(newest.name, "ckpt-00000005")
        # From there the job goes on.
        again = self.run_job(self.manifest(epochs=2, every=1, rate=0.001, edit=sgd))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("ckpt-00000005 at step 5", again.stdout)

    def test_a_flipped_byte_is_found_and_the_checkpoint_before_is_used(self):
        folder = self.folder / "saved"
        given = lambda t: t.replace("checkpoint: {everySteps", f"checkpoint: {{path: {folder}, everySteps")
        self.assertEqual(self.run_job(self.manifest(epochs=1, every=2, edit=given)).returncode, 0)
        before, newest = sorted(folder.glob("ckpt-*"))[-2:]
        shard = next(newest.glob("*.safetensors"))
        data = bytearray(shard.read_bytes())
        data[-100] ^= 1
        shard.write_bytes(data)
        again = self.run_job(self.manifest(epochs=2, every=2, edit=given))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("damaged", again.stderr)
        self.assertIn(f"resuming from {before} at step", again.stdout)
        # When none is whole there is nothing to go on from, and nothing is trained over it.
        for shard in folder.glob("ckpt-*/*.safetensors"):
            data = bytearray(shard.read_bytes())
            data[-100] ^= 1
            shard.write_bytes(data)
        self.expect_error(self.run_job(self.manifest(epochs=3, every=2, edit=given)), 65, "safetensors")


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    unittest.main(verbosity=2)
