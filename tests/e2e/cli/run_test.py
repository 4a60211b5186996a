#!/usr/bin/env python3
"""`meshtrain run` with jobs of several processes, and of other people's programs. What one process of a declared program
does is cli_test.py's and stops_test.py's; every lifecycle rule, tests/operator/local's.   run_test.py BIN_FOLDER TESTDATA"""
import fcntl
import json
import os
import re
import signal
import sys
import time
import unittest
from pathlib import Path

TESTDATA = Path(sys.argv.pop(2)).resolve()
sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from metrics_file import steps_of  # noqa: E402
from process_table import Running  # noqa: E402
from cli_case import TIMEOUT, RunningCase  # noqa: E402: it takes BIN_FOLDER from the arguments

ROOT = Path(__file__).resolve().parents[3]

CONTAINER = "{restartPolicy: %s, replicas: %d, template: {spec: {containers: [{name: trainer, image: any, command: [sh, -c, '%s']}]}}}"


def job(roles, more=""):
    """roles: name -> (restartPolicy, replicas, script)"""
    specs = "\n".join(f"    {name}: " + CONTAINER % given for name, given in roles.items())
    return f"apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {{name: shell}}\nspec:\n  replicaSpecs:\n{specs}\n{more}"


class RunCase(RunningCase):
    def shell(self, roles, more=""):
        path = self.folder / "shell.yaml"
        path.write_text(job(roles, more))
        return str(path)

    def wait_for(self, what, condition):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def losses(self, output):
        return [(line["step"], line["loss"]) for line in steps_of(self.folder / output / "metrics.jsonl")]


class SealedJobs(RunCase):
    def test_what_seals_a_job_changes_no_loss(self):
        runs = {}
        for security in ("none", "mutualTLS"):
            result = self.run_job(self.manifest(epochs=1, edit=lambda t: t.replace("replicas: 1", "replicas: 2").replace(
                "  program:", f"  security: {security}\n  program:", 1)), output=security)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("process 0 of 2, sealed)" in result.stdout, security == "mutualTLS", result.stdout)
            runs[security] = self.losses(security)
        self.assertEqual(len(runs["none"]), 5)
        self.assertEqual(runs["mutualTLS"], runs["none"], "to the last bit")


class OtherPrograms(RunCase):
    def test_each_is_told_its_place_and_heard(self):
        say = "echo $MESHTRAIN_ROLE-$MESHTRAIN_INDEX: $TF_CONFIG; echo to stderr >&2"
        manifest = self.shell({"chief": ("Never", 1, say + "; sleep 0.5"), "worker": ("Never", 2, say)})
        result = self.run_job(manifest)
        self.assertEqual(result.returncode, 0, result.stderr)
        config = json.loads(result.stdout.removeprefix("chief-0: "))
        hosts = config["cluster"]["chief"] + config["cluster"]["worker"]
        self.assertEqual(len(set(hosts)), 3)
        for host in hosts:
            self.assertRegex(host, r"^127\.0\.0\.1:\d+$")
        self.assertEqual(config["task"], {"type": "chief", "index": 0})
        log = (self.folder / "out" / "logs" / "worker-1.log").read_text()
        other = json.loads(re.search("^worker-1: (.*)$", log, re.M).group(1))
        self.assertEqual(other["cluster"], config["cluster"])
        self.assertEqual(other["task"], {"type": "worker", "index": 1})
        self.assertIn("worker-1: to stderr\n", result.stderr)
        self.assertIn("shell: JobSucceeded: shell-chief-0 has succeeded\n", result.stderr)
        self.assertEqual(json.loads((self.folder / "out" / "status.json").read_text())["phase"], "Succeeded")

    def test_a_failure_leaves_with_the_replicas_code(self):
        manifest = self.shell({"chief": ("ExitCode", 1, "exec sleep 1000"), "worker": ("ExitCode", 1, "exit 3")})
        self.expect_error(self.run_job(manifest), 3, "shell-worker-0 failed with exit code 3 (Error), which is not retried")

    def test_a_retryable_end_is_retried(self):
        manifest = self.shell({"chief": ("ExitCode", 1, "[ $MESHTRAIN_ATTEMPT = 1 ] || exit 138; echo second")})
        result = self.run_job(manifest)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "second\n")
        self.assertIn("JobRestarting: shell-chief-0 failed with exit code 138", result.stderr)

    def test_a_lone_process_has_our_output_for_its_own(self):
        self.assertEqual(self.run_job(self.shell({"worker": ("Never", 1, "printf %s:$TF_CONFIG no-end")})).stdout, "no-end:")

    def test_mistakes_are_told_with_their_places(self):
        manifest = self.shell({"chief": ("Sometimes", 2, "exit 0")}, "  runPolicy: {backofLimit: 3}\n")
        self.expect_error(self.run_job(manifest), 78, "shell.yaml:6:13: spec.replicaSpecs.chief.restartPolicy: must be one of",
                          "shell.yaml:6:", "must be at most 1, got: 2", "shell.yaml:7:15: spec.runPolicy.backofLimit: is not a field")
        self.assertFalse((self.folder / "out").exists())

    def test_an_image_alone_cannot_run_here(self):
        manifest = self.shell({"chief": ("Never", 1, "exit 0")})
        Path(manifest).write_text(Path(manifest).read_text().replace(", command: [sh, -c, 'exit 0']", ""))
        self.expect_error(self.run_job(manifest), 78, "spec.replicaSpecs.chief.template.spec.containers[trainer].command")

    def test_a_suspended_job_does_not_run(self):
        manifest = self.shell({"chief": ("Never", 1, "echo ran")}, "  runPolicy: {suspend: true}\n")
        result = self.run_job(manifest)
        self.expect_error(result, 78, "spec.runPolicy.suspend is true: nothing was run")
        self.assertEqual(result.stdout, "")

    def test_a_deadline_ends_it(self):
        manifest = self.shell({"chief": ("Never", 1, "exec sleep 1000")}, "  runPolicy: {activeDeadlineSeconds: 1}\n")
        self.expect_error(self.run_job(manifest), 70, "runPolicy.activeDeadlineSeconds, 1 s")

    def test_usage(self):
        manifest = self.shell({"chief": ("Never", 1, "exit 0")})
        self.expect_error(self.run_job(manifest, "--metrics-address", "nowhere"), 64, "HOST:PORT", "nowhere")

    def family(self):
        """A chief and a worker, each with a child, a daemon, and a deaf one; eight processes that write their ids."""
        pids = self.folder / "pids"
        me = f"echo $$ >>{pids}; "
        script = self.folder / "family.sh"
        script.write_text(me + f"""
            setsid sh -c '{me} exec sleep 1000' &
            sh -c 'sh -c "echo \\$\\$ >>{pids}; exec sleep 1000" & exit 0'
            trap "" TERM INT HUP
            sh -c '{me} trap "" TERM INT HUP; while :; do sleep 1000; done' &
            while :; do sleep 1000; done
            """)
        run = f"exec sh {script}"
        return self.shell({"chief": ("Never", 1, run), "worker": ("Never", 1, run)}), pids

    def start_family(self):
        manifest, pids = self.family()
        child = self.start(manifest)
        self.wait_for("eight processes", lambda: pids.exists() and len(pids.read_text().split()) == 8)
        family = [int(pid) for pid in pids.read_text().split()]
        self.assertEqual(len(set(family)), 8)
        for pid in family:
            self.assertIsNone(Running(pid).poll(), pid)
        return child, family

    def test_nothing_outlives_a_run_that_is_killed(self):
        child, family = self.start_family()
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=TIMEOUT)
        self.wait_for("all are gone", lambda: all(Running(pid).poll() is not None for pid in family))

    def test_what_a_killed_run_leaves_in_the_temporary_folder_goes_with_the_next(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(temporary)
        self.addCleanup(lambda: os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before))
        child, family = self.start_family()
        left = list(temporary.iterdir())
        self.assertEqual([path.name[:14] for path in left], ["meshtrain-run-"])
        self.assertTrue(left[0].is_dir())
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=TIMEOUT)

        def nobody_holds_it():
            folder = os.open(left[0], os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
            finally:
                os.close(folder)
        self.wait_for("the last guardian is gone", nobody_holds_it)
        next_run = self.run_job(self.shell({"worker": ("Never", 1, "true")}))
        self.assertEqual(next_run.returncode, 0, next_run.stderr)
        self.assertEqual(list(temporary.iterdir()), [])

    def test_one_run_writes_to_a_folder_at_a_time(self):
        manifest = self.shell({"worker": ("Never", 1, "echo mine; exec sleep 1000")})
        first = self.start(manifest)
        status = self.folder / "out" / "status.json"
        self.wait_for("the first runs", lambda: status.exists() and json.loads(status.read_text()).get("phase") == "Running")
        before = status.read_bytes()
        second = self.run_job(manifest)
        self.assertEqual(second.returncode, 73, second.stderr)
        self.assertRegex(second.stderr, rf"out: expected a folder that no run writes to, got: one of process {first.pid} since 2")
        self.assertEqual(status.read_bytes(), before)
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=TIMEOUT)
        third = self.run_job(self.shell({"worker": ("Never", 1, "true")}))
        self.assertEqual(third.returncode, 0, third.stderr)

    def test_nothing_outlives_a_run_that_is_stopped_twice(self):
        child, family = self.start_family()
        child.send_signal(signal.SIGINT)
        for line in child.stderr:
            if "a second signal kills them" in line:
                break
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 130, err)
        for pid in family:
            self.assertIsNotNone(Running(pid).poll(), pid)


class Declared(RunCase):
    def test_the_example_trains_to_the_reference_losses(self):
        data = self.folder / "data"
        data.mkdir()
        for name in ("train", "t10k"):
            for kind in ("images-idx3", "labels-idx1"):
                (data / f"{name}-{kind}-ubyte.gz").symlink_to(TESTDATA / "mlp" / f"digits5120-{kind}-ubyte.gz")
        here = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, here)
        result = self.run_job(str(ROOT / "deploy/examples/mnist-mlp.yaml"))
        self.assertEqual(result.returncode, 0, result.stderr)
        golden = json.loads((TESTDATA / "mlp" / "golden.json").read_text())["runs"]["text_adam_t_counts_f32"]["loss"]
        losses = [loss for _, loss in self.losses("out")]
        self.assertEqual(len(losses), 120)
        for ours, reference in list(zip(losses, golden))[:39]:
            self.assertAlmostEqual(ours, reference, delta=1e-4 * reference)
        status = json.loads((self.folder / "out" / "status.json").read_text())
        self.assertEqual(status["progress"]["step"], 120)
        self.assertEqual(status["checkpoint"]["step"], 120)
        self.assertEqual(len(status["plan"]["hash"]), 16)

    def test_a_program_alone_is_a_job_of_one_worker(self):
        alone = lambda text: "\n".join(line[2:] for line in text[text.index("  program:"):].splitlines())
        result = self.run_job(self.manifest(edit=alone))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("training job on mesh", result.stdout)
        self.assertEqual(len(self.losses("out")), 10)

    def test_the_order_of_axes_is_the_manifests(self):
        self.assertEqual(self.run_job(self.manifest(mesh="{zeta: 2, batch: 2}", edit=lambda t: t.replace(
            "    train: {epochs", "    layout: {rules: [{match: hidden.kernel, spec: [unsharded, zeta]}]}\n    train: {epochs"))).returncode, 0)
        self.assertIn("zeta=2,batch=2", (self.folder / "out" / "plan.txt").read_text())

    def test_mistakes_that_show_with_the_data_are_told_once_and_with_their_place(self):
        rule = lambda t: self.replicas(3)(t).replace(
            "    train: {epochs", "    layout: {rules: [{match: hiden.kernel, spec: [unsharded, batch]}]}\n    train: {epochs")
        result = self.run_job(self.manifest(mesh="{batch: 3}", batch=21, edit=rule))
        self.expect_error(result, 78, "hiden")
        self.assertRegex(result.stderr, r"^meshtrain run: \S+job\.yaml:\d+:\d+: ")
        self.assertEqual(result.stderr.count("hiden"), 1)

    @staticmethod
    def replicas(workers, chief=False):
        roles = f"worker: {{replicas: {workers}, restartPolicy: ExitCode}}"
        if chief:
            roles += ", chief: {restartPolicy: ExitCode}"
        return lambda text: text.replace("worker: {replicas: 1}", roles)

    def test_processes_of_one_mesh_train_as_one_does(self):
        alone = self.run_job(self.manifest(mesh="{batch: 2}"), output="alone")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        both = self.run_job(self.manifest(mesh="{batch: 2}", edit=self.replicas(1, chief=True)), output="both")
        self.assertEqual(both.returncode, 0, both.stderr)
        self.assertIn("process 0 of 2", both.stdout)
        self.assertNotIn("process 1 of 2", both.stdout)
        self.assertIn("process 1 of 2", (self.folder / "both" / "logs" / "worker-0.log").read_text())
        self.assertTrue(self.losses("alone"))
        for (step, a), (other, b) in zip(self.losses("alone"), self.losses("both"), strict=True):
            self.assertEqual(step, other)
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(a))
        status = json.loads((self.folder / "both" / "status.json").read_text())
        self.assertEqual((status["phase"], status["ready"], status["progress"]["step"]), ("Succeeded", "2/2", 10))
        self.assertTrue((self.folder / "both" / "checkpoints" / "ckpt-00000010").is_dir())
        self.assertTrue((self.folder / "both" / "model.safetensors").is_file())

    def test_a_stopped_mesh_saves_and_goes_on_to_the_same_end(self):
        manifest = self.manifest(mesh="{batch: 2}", epochs=400, every=1000000, edit=self.replicas(2))
        whole = self.run_job(manifest, output="whole")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        child = self.start(manifest)
        self.wait_for_step(30)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 143, err)
        again = self.run_job(manifest)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("resuming from", again.stdout)
        self.assertEqual(self.losses("whole"), self.losses("out"))

    def test_a_killed_worker_is_replaced_and_training_goes_on(self):
        manifest = self.manifest(mesh="{batch: 2}", epochs=100000, every=5, edit=self.replicas(2))
        child = self.start(manifest)
        self.wait_for_step(20)
        log = self.folder / "out" / "logs" / "worker-1.log"
        # The worker of index 1, by its arguments: --output …/worker-1.
        mine = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and self.is_worker(p)]
        self.assertEqual(len(mine), 1, mine)
        os.kill(mine[0], signal.SIGKILL)
        step = len(self.losses("out"))
        self.wait_for("a second attempt", lambda: "attempt 1" in log.read_text())
        self.wait_for("more steps", lambda: len(self.losses("out")) > step + 50)
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=TIMEOUT)
        self.assertIn("tiny-worker-1 failed with exit code 137 (Error): it restarts", err)
        self.assertEqual(child.returncode, 143, err)
        status = json.loads((self.folder / "out" / "status.json").read_text())
        self.assertEqual(status["replicaStatuses"]["worker"]["restarts"], 1)

    def is_worker(self, process):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return arguments[0].endswith(b"meshtrain-worker") and str(self.folder / "out" / "worker-1").encode() in arguments


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    unittest.main(verbosity=2)
