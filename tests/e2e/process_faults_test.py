"""Three processes of meshtrain-worker train one job while one of them is killed, stopped, told to leave, or never comes.

After each fault: the weights of the undisturbed run, bit for bit, or the exit code 138 and the name of the lost rank. Every
case says that its fault was there when training was under way; one that did not happen fails its test. Standard library
only. Usage: process_faults_test.py WORKER FOLDER_OF_IDX_FILES
"""
import contextlib
import json
import pathlib
import re
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
import unittest
import urllib.request

from process_job import DEADLINE, HEAVY, Job, killed
from hosts import free_ports

WORKER, DATA = sys.argv[1:3]
RETRY = 138
BAD_CONFIG = 78

class ProcessFaultsTest(unittest.TestCase):
    reference = None  # of the undisturbed run

    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="faults-"))
        cls.reference = cls.undisturbed("reference")

    @classmethod
    def undisturbed(cls, name, **options):
        """The weights, and the losses by step, of a job to which nothing happens."""
        job = Job(cls.make(name), WORKER, DATA, **options)
        try:
            job.start_all()
            codes = [job.wait(i) for i in range(3)]
            assert codes == [0, 0, 0], (codes, job.logs())
            return job.weights(), [(x["step"], x["loss"]) for x in job.losses()]
        finally:
            job.close()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root, ignore_errors=True)

    @classmethod
    def make(cls, name):
        folder = cls.root / name
        folder.mkdir()
        return folder

    def job(self, name="", **options):
        job = Job(self.make(self.id().rsplit(".", 1)[-1] + name), WORKER, DATA, **options)
        self.addCleanup(job.close)
        return job

    def assert_undisturbed(self, job, reference=None):
        self.assertEqual([job.wait(i) for i in range(3)], [0, 0, 0], job.logs())
        weights, losses = reference or self.reference
        self.assertEqual(job.weights(), weights)
        self.assertEqual([(x["step"], x["loss"]) for x in job.losses()], losses)

    def kill(self, job, index, number=signal.SIGKILL):
        process = job.processes[index]
        self.assertIsNone(process.poll(), "the fault came too late")
        process.send_signal(number)
        return job.wait(index)

    def assert_noticed(self, job, survivor, text):
        self.assertRegex(job.log(survivor), text, job.logs())

    def test_worker_killed_in_a_step(self):
        job = self.job()
        job.start_all()
        job.wait_for_step(35)
        self.kill(job, 1)
        for survivor in (0, 2):
            job.wait_for_text(survivor, killed(1))
        job.start(1)
        begin = time.monotonic()
        job.wait_for_text(0, "resuming from")
        job.wait_for_step(41)
        print(f"worker-1 killed and back: its job trains again {time.monotonic() - begin:.2f} s after its return")
        self.assert_undisturbed(job)

    def test_worker_killed_in_a_collective(self):
        """All others stand in a sum that waits for one that is stopped; one of those that wait is killed."""
        # A thousand steps without a save: what they wait in is a step's collective.
        options = {"epochs": 35, "every": 1000}
        reference = self.undisturbed("long-reference", **options)
        for attempt in range(10):
            job = self.job(name=f"attempt-{attempt}", **options)
            job.start_all()
            job.wait_for_checkpoint(1000)
            job.wait_for_step(1010)
            late = job.processes[2]
            self.assertIsNone(late.poll(), "the fault came too late")
            late.send_signal(signal.SIGSTOP)
            job.wait_for_standstill()
            if "lost" not in job.log(0):  # a busy machine took longer than the silence that counts as that
                break
            job.close()
        self.assertLess(job.step(), job.steps)
        self.kill(job, 1)
        # Of gradients, nearly always; else of votes on whether to stop.
        job.wait_for_text(0, r"training is interrupted.*(all_reduce of|vote between processes) .*worker-1 (is )?lost")
        job.start(1)
        late.send_signal(signal.SIGCONT)
        self.assert_undisturbed(job, reference)
        self.assert_noticed(job, 0, r"resuming from .* at step [12]000\n")

    def test_chief_killed_in_a_step(self):
        job = self.job()
        job.start_all()
        job.wait_for_step(35)
        self.kill(job, 0)
        job.start(0)
        self.assert_undisturbed(job)
        for survivor in (1, 2):
            self.assert_noticed(job, survivor, killed(0))

    def killed_in_save(self, index):
        job = self.job()
        job.start_all()
        job.hold_save(index, 300)
        job.wait_for_step(300)
        job.wait_for_held_save()
        self.kill(job, index)
        job.release()
        self.assertLess(job.step(), job.steps)
        job.start(index)
        self.assert_undisturbed(job)
        self.assert_noticed(job, (index + 1) % 3, killed(index))

    def test_worker_killed_in_a_save(self):
        self.killed_in_save(1)

    def test_chief_killed_in_a_save(self):
        self.killed_in_save(0)

    def test_worker_killed_while_saving_every_step(self):
        job = self.job(every=1)
        job.start_all()
        job.wait_for_step(20)
        self.kill(job, 2)
        job.start(2)
        job.wait_for_step(60)
        self.kill(job, 2)
        job.start(2)
        self.assert_undisturbed(job)

    def killed_in_rendezvous(self, index):
        """The chief and a worker have met and wait for the third, which comes when one of them was killed and is back."""
        job = self.job()
        port = int(job.hosts[0].split(":")[1])
        job.start(0)
        job.start(1)
        end = time.monotonic() + DEADLINE
        while not job.connected(1, port):
            self.assertLess(time.monotonic(), end, job.logs())
            time.sleep(0.005)
        time.sleep(0.2)
        self.kill(job, index)
        self.assertEqual(job.step(), 0)
        job.start(index)
        job.start(2)
        self.assert_undisturbed(job)

    def test_worker_killed_in_rendezvous(self):
        self.killed_in_rendezvous(1)

    def test_chief_killed_in_rendezvous(self):
        self.killed_in_rendezvous(0)

    def test_lone_worker_killed_before_anybody_is_there(self):
        job = self.job()
        job.start(1)
        time.sleep(0.5)  # it looks for the chief
        self.kill(job, 1)
        job.start_all()
        self.assert_undisturbed(job)

    def test_worker_told_to_leave_saves_and_is_waited_for(self):
        job = self.job()
        job.start_all()
        job.wait_for_step(35)
        self.assertEqual(self.kill(job, 2, signal.SIGTERM), 143)
        job.start(2)
        self.assert_undisturbed(job)
        self.assert_noticed(job, 0, "another process stops")

    def test_chief_told_to_leave_saves_and_is_waited_for(self):
        job = self.job()
        job.start_all()
        job.wait_for_step(35)
        self.assertEqual(self.kill(job, 0, signal.SIGTERM), 143)
        job.start(0)
        self.assert_undisturbed(job)

    def test_all_told_to_leave_go_on_where_they_stopped(self):
        job = self.job()
        job.start_all()
        job.wait_for_step(35)
        for index in range(3):
            self.assertIsNone(job.processes[index].poll())
            job.processes[index].send_signal(signal.SIGTERM)
        self.assertEqual([job.wait(i) for i in range(3)], [143] * 3, job.logs())
        self.assertLess(job.step(), job.steps)
        job.start_all()
        self.assert_undisturbed(job)

    def stopped(self, index):
        job = self.job()
        job.start_all()
        job.wait_for_step(35)
        process = job.processes[index]
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        for other in ((index + 1) % 3, (index + 2) % 3):
            job.wait_for_text(other, f"worker-{index} lost: silent for")
            print(f"worker-{index} stopped: named by worker-{other} after {time.monotonic() - begin:.2f} s")
        process.send_signal(signal.SIGCONT)
        self.assert_undisturbed(job)

    def test_worker_stopped_and_continued(self):
        self.stopped(1)

    def test_chief_stopped_and_continued(self):
        self.stopped(0)

    def test_progress_names_the_rank_that_stopped(self):
        job = self.job()
        port = free_ports(1)[0]
        job.start(0, metrics=f"127.0.0.1:{port}")
        job.start(1)
        job.start(2)

        def progress():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=DEADLINE) as answer:
                return json.loads(answer.read())

        job.wait_for_step(35)
        self.assertNotIn("stoppedRank", progress())
        job.processes[2].send_signal(signal.SIGSTOP)
        job.wait_for_text(0, "worker-2 lost: silent for")
        job.wait_for_text(0, "training is interrupted")
        begun = time.monotonic()
        while progress().get("stoppedRank") != "worker-2":
            self.assertLess(time.monotonic(), begun + DEADLINE, progress())
            time.sleep(0.01)
        self.assertGreater(int(progress()["lostIncarnation"]), 0)
        job.processes[2].send_signal(signal.SIGCONT)
        job.wait_for_text(0, "resuming from")
        begun = time.monotonic()
        try:
            while "stoppedRank" in progress():  # gone with the next step
                self.assertLess(time.monotonic(), begun + DEADLINE)
                time.sleep(0.01)
        except OSError:  # the job has ended, and nobody answers
            job.processes[0].wait(DEADLINE)
        self.assert_undisturbed(job)

    def test_replaced_while_stopped_is_refused(self):
        job = self.job()
        job.start_all()
        job.wait_for_step(35)
        old = job.processes[1]
        old.send_signal(signal.SIGSTOP)
        self.addCleanup(old.kill)
        job.start(1)
        job.wait_for_text(0, "resuming from")
        old.send_signal(signal.SIGCONT)
        self.assertEqual(old.wait(timeout=DEADLINE), BAD_CONFIG, job.logs())
        self.assert_noticed(job, 1, "stale incarnation: worker-1 has a newer process than this one")
        self.assert_undisturbed(job)

    def test_lost_for_good_ends_in_retry_me(self):
        job = self.job(peer_return=2)
        job.start_all()
        job.wait_for_step(35)
        self.kill(job, 1)
        self.assertEqual([job.wait(0), job.wait(2)], [RETRY, RETRY], job.logs())
        self.assert_noticed(job, 0, "missing: worker-1")
        # What is restarted goes on from the last checkpoint.
        job.start_all()
        self.assert_undisturbed(job)

    def test_peer_return_zero_leaves_at_once(self):
        job = self.job(peer_return=0)
        job.start_all()
        job.wait_for_step(35)
        self.kill(job, 2)
        self.assertEqual([job.wait(0), job.wait(1)], [RETRY, RETRY], job.logs())
        for survivor in (0, 1):
            self.assert_noticed(job, survivor, killed(2))

    def test_wrong_token_and_another_job_are_refused(self):
        job = self.job()
        job.start(0)
        for options, said in (({"token": "wrong"}, "token"),
                              ({"job": "test/other"}, 'expected job "test/faults", got: "test/other"')):
            job.start(1, **options)
            self.assertEqual(job.wait(1), BAD_CONFIG, job.logs())
            self.assertIn(said, job.log(1).splitlines()[-1])
        job.start(1)
        job.start(2)
        self.assert_undisturbed(job)

    def killed_in_shutdown(self, index):
        """All have trained; the last save is under way, and who is done with it waits for the common end."""
        job = self.job()
        job.start_all()
        job.hold_save(index, job.steps)
        job.wait_for_step(job.steps)
        job.wait_for_held_save()
        self.kill(job, index)
        job.release()
        job.start(index)
        self.assert_undisturbed(job)
        self.assert_noticed(job, (index + 1) % 3, killed(index))

    def test_worker_killed_in_shutdown(self):
        self.killed_in_shutdown(2)

    def test_chief_killed_in_shutdown(self):
        self.killed_in_shutdown(0)

    def killed_while_the_chief_leaves_the_model(self, index):
        job = self.job()
        job.hold_model()
        job.start_all()
        job.wait_for_held_model()
        self.kill(job, index)
        job.release()
        return job

    def test_chief_killed_while_it_leaves_the_model(self):
        """The others have nothing left to do, and are needed nevertheless."""
        job = self.killed_while_the_chief_leaves_the_model(0)
        self.assertEqual([job.processes[i].poll() for i in (1, 2)], [None, None], job.logs())
        job.start(0)
        self.assert_undisturbed(job)
        self.assert_noticed(job, 0, f"resuming from .* at step {job.steps}\n")

    def test_worker_killed_while_the_chief_leaves_the_model(self):
        """It is not needed any more: nobody waits for its return."""
        job = self.killed_while_the_chief_leaves_the_model(1)
        self.assertEqual([job.wait(0), job.wait(2)], [0, 0], job.logs())
        self.assertEqual(job.weights(), self.reference[0])

    def test_worker_killed_about_the_end(self):
        job = self.job()
        job.start_all()
        job.wait_for_step(job.steps)  # written by the chief in the last step; saving and the common end follow
        self.kill(job, 1)
        # Where the chief was done with the last step the others are done without it; else all are needed once more.
        job.start(1)
        self.assertEqual([job.wait(0), job.wait(2)], [0, 0], job.logs())
        self.assertEqual(job.weights(), self.reference[0])

    def test_a_thousand_idle_connections_disturb_nobody(self):
        job = self.job()
        with contextlib.ExitStack() as stack:
            job.start(0)
            job.start(1)
            ports = set()
            end = time.monotonic() + DEADLINE
            while len(ports) < 3 and time.monotonic() < end:  # the chief's rendezvous, and each one's data
                ports = {(index, port) for index in (0, 1) for port in job.listening_ports(index)}
            self.assertGreaterEqual(len(ports), 3, job.logs())
            for i in range(1000):
                index, port = sorted(ports)[i % len(ports)]
                host = job.hosts[index].split(":")[0]
                stack.enter_context(socket.create_connection((host, port), timeout=DEADLINE))
            job.start(2)
            self.assert_undisturbed(job)
        self.assertNotIn("interrupted", job.log(0))

    def test_a_slow_rank_is_seen_in_the_times_of_the_ranks(self):
        job = self.job(epochs=400, every=1000, change=HEAVY)
        port = free_ports(1)[0]
        job.start(0, metrics=f"127.0.0.1:{port}")
        job.start(1)
        job.start(2)
        job.wait_for_step(3)
        slow = job.processes[1]
        seen, own = [], [0, 0, 0]
        end = time.monotonic() + DEADLINE
        # It runs a fifth of the time, so that its own time comes to stand out, however busy the machine is.
        while len(seen) < 20 or job.step() <= 8 or max(range(3), key=lambda rank: own[rank]) != 1:
            self.assertLess(time.monotonic(), end, f"own times of the ranks {own}, {job.step()} steps")
            slow.send_signal(signal.SIGSTOP)
            time.sleep(0.08)
            slow.send_signal(signal.SIGCONT)
            time.sleep(0.02)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=DEADLINE) as answer:
                seen.append(json.loads(answer.read())["rankStepSeconds"])
            own = [statistics.median(times[rank] for times in seen) for rank in range(3)]
        self.assertTrue(all(len(times) == 3 for times in seen), seen)
        step = statistics.median(x["seconds"] for x in job.losses()[5:])
        print(f"own times of the ranks {[f'{1e3 * s:.0f}' for s in own]} ms, of a step {1e3 * step:.0f} ms, {job.step()} steps")
        self.assertNotIn("interrupted", job.log(0))

    def test_port_taken(self):
        job = self.job()
        host, port = job.hosts[0].split(":")
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", int(port)))
            taken.listen()
            job.start(0)
            self.assertEqual(job.wait(0), RETRY, job.logs())
            self.assertRegex(job.log(0), f"rendezvous at {re.escape(job.hosts[0])}: .*Address already in use")
        # The next attempt finds it free.
        job.start_all()
        self.assert_undisturbed(job)

    def test_port_of_the_endpoints_taken(self):
        job = self.job()
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for index in range(3):
                job.start(index, metrics=f"0.0.0.0:{port}" if index == 1 else None)
            self.assertEqual(job.wait(1), RETRY, job.logs())
            self.assertRegex(job.log(1), f"expected to listen on 0.0.0.0:{port}, got: .*")
        job.start(1)
        self.assert_undisturbed(job)

    def test_another_plan_is_named(self):
        job = self.job()
        other = job.folder / "other.yaml"
        other.write_text(job.manifest.read_text().replace("units: 48", "units: 47"))
        job.start(0)
        job.start(1)
        job.start(2, manifest=other)
        self.assertEqual([job.wait(i) for i in range(3)], [BAD_CONFIG] * 3, job.logs())
        for index in range(3):
            self.assert_noticed(job, index, "worker-0 and worker-2 are about to run different plans")
        self.assertEqual(job.step(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
