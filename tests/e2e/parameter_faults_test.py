#!/usr/bin/env python3
"""Parameter servers under kill -9, with a process for each role: a worker killed every 2 s, a server once.
parameter_faults_test.py WORKER DATA_FOLDER SECONDS

Shown: the job finishes; every acknowledged push is in it (the count of updates in the last checkpoint is at least the number
of steps, and no more than the steps that ran again explain); its loss is as low as without faults; and a checkpoint that is
damaged costs the job no more than what came after the one before."""
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest

from parameter_job import DIGITS, HEAD, Job
from process_job import DEADLINE

WORKER = sys.argv.pop(1)
DATA = pathlib.Path(sys.argv.pop(1)).resolve()
SECONDS = int(sys.argv.pop(1))
MORE = 300  # steps after the faults, and after the stop: a push that was long under way disturbs some of them


class Faults(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            job.close()
        self._folder.cleanup()

    def manifest(self, folder, steps, every):
        return (HEAD + DIGITS).format(folder=folder, data=DATA, every=every, epochs=1, steps=steps, options="")

    def job(self, name, steps, every=200, **options):
        folder = self.folder / name
        folder.mkdir()
        self.jobs.append(Job(folder, WORKER, self.manifest(folder, steps, every), servers=2, metrics=True, **options))
        return self.jobs[-1]

    def losses(self, job):
        """Means of 20 steps, of the last 600."""
        losses = [line["loss"] for line in job.lines()[-600:]]
        return [sum(losses[i:i + 20]) / 20 for i in range(0, len(losses) - 19, 20)]

    def last_losses(self, job):
        losses = [line["loss"] for line in job.lines()[-100:]]
        return sum(losses) / len(losses)

    def test_killed_workers_and_a_killed_server(self):
        job = self.job("faults", steps=1000000, workers=3)
        job.start_all()
        job.wait_for_step(20)
        kills, servers_killed, before, end = 0, [], 0, time.monotonic() + 10 * SECONDS + DEADLINE
        while kills < SECONDS // 2 or len(servers_killed) < 2:
            self.assertLess(time.monotonic(), end, job.logs())
            time.sleep(2)
            # On a slow machine less often: there must be something to disturb.
            if job.step() == before:
                continue
            before = job.step()
            victim = ("worker", kills % 3)
            job.kill(victim)
            job.start(victim)
            kills += 1
            # Each server once: the weights lie on both, the count of updates on the first.
            if kills >= (SECONDS // 4, SECONDS // 3, SECONDS * 1000)[len(servers_killed)]:
                server = ("ps", 1 - len(servers_killed))
                job.kill(server)
                time.sleep(0.3)
                job.start(server)
                servers_killed.append(server)
        job.wait_for_step(job.step() + MORE)
        reruns = job.metric("meshtrain_parameter_steps_rerun_total")
        lost = job.metric("meshtrain_parameter_workers_lost_total")
        self.assertGreaterEqual(lost, 1, job.logs())
        # It may be back before anybody misses it, so its own log tells.
        for _, index in servers_killed:
            self.assertEqual(job.log(("ps", index)).count(f"parameter server {index} at port"), 2)
        job.processes[job.leader].send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(job.leader), 143, job.logs())
        step = job.step()
        self.assertEqual(job.checkpoint_steps()[-1], step)
        count = job.count_in_checkpoint(step)
        self.assertGreaterEqual(count, step)
        self.assertLessEqual(count, step + reruns)

        # And to its end.
        job.manifest.write_text(self.manifest(job.folder, step + MORE, 200))
        job.start(job.leader)
        job.expect_end()
        self.assertEqual([line["step"] for line in job.lines()], list(range(1, step + MORE + 1)))
        self.assertGreaterEqual(job.count_in_checkpoint(step + MORE), step + MORE)

        calm = self.job("calm", steps=step + MORE, workers=3)
        calm.start_all()
        calm.expect_end(timeout=DEADLINE + 20 * SECONDS)
        self.assertEqual(calm.count_in_checkpoint(step + MORE), step + MORE)
        faulty_loss, calm_loss = self.last_losses(job), self.last_losses(calm)
        print(f"{step + MORE} steps, {kills} workers killed ({lost:.0f} seen, {reruns:.0f} steps run again), 2 servers killed: "
              f"{count} updates after {step} steps; loss {faulty_loss:.4f}, undisturbed {calm_loss:.4f}")
        self.assertLess(faulty_loss, 1.25 * calm_loss + 0.02, [self.losses(job), self.losses(calm)])

    def named(self, job, victim):
        """How others say that it is lost."""
        role, index = victim
        by_chief = {"worker": f"worker is lost.* worker={index} ", "ps": f"parameter server is away.* ps={index} "}
        others = "the chief is lost" if victim == job.leader else f"lost, says the chief.* task={role}-{index}"
        return {t: by_chief[role] if t == job.leader else others for t in job.tasks if t != victim}

    def seconds_until_named(self, job, victim, disturb):
        want = self.named(job, victim)
        before = {t: len(re.findall(pattern, job.log(t))) for t, pattern in want.items()}
        begin = time.monotonic()
        disturb()
        while any(len(re.findall(pattern, job.log(t))) == before[t] for t, pattern in want.items()):
            self.assertLess(time.monotonic(), begin + DEADLINE, job.logs())
            time.sleep(0.01)
        return time.monotonic() - begin

    def test_everyone_names_whoever_stands_still_or_is_killed(self):
        job = self.job("named", steps=1000000, workers=2)
        job.start_all()
        job.wait_for_step(20)
        for victim in (("worker", 1), ("ps", 0), job.leader):
            process = job.processes[victim]
            took = self.seconds_until_named(job, victim, lambda: process.send_signal(signal.SIGSTOP))
            process.send_signal(signal.SIGCONT)
            back, step = time.monotonic(), job.step()
            job.wait_for_step(step + 5)
            print(f"{victim} stood still: named by all after {took:.2f} s, training again {time.monotonic() - back:.2f} s "
                  f"after its return")
            job.wait_for_ready(2)
            time.sleep(0.5)  # everyone hears that it is back
        for victim in (("worker", 1), ("ps", 0)):
            took = self.seconds_until_named(job, victim, lambda: job.kill(victim))
            print(f"{victim} was killed: named by all after {took:.2f} s")
            job.start(victim)
            job.wait_for_step(job.step() + 5)
            job.wait_for_ready(2)
            time.sleep(0.5)

    def leave(self, peer_return, at_least):
        """The others leave, after the chief is gone, with 138 and its name; none says that it waited less than `at_least` s."""
        job = self.job("gone", steps=1000000, peer_return=peer_return)
        job.start_all()
        job.wait_for_step(20)
        begin = time.monotonic()
        job.kill(job.leader)
        for task in job.tasks:
            if task != job.leader:
                self.assertEqual(job.wait(task), 138, job.logs())
                print(f"{task} left {time.monotonic() - begin:.2f} s after the chief was killed, of {peer_return} s")
                said = re.search(rf"chief-0: expected it back within {peer_return} s, got: nothing for (\d+) s", job.log(task))
                self.assertTrue(said, job.log(task))
                self.assertGreaterEqual(int(said[1]), at_least)

    def test_a_chief_that_stays_away_is_waited_for_so_long(self):
        self.leave(4, at_least=4)

    def test_a_chief_that_is_lost_is_not_waited_for_without_a_time(self):
        self.leave(0, at_least=1)

    def test_a_server_that_is_lost_is_not_waited_for_without_a_time(self):
        job = self.job("at_once", steps=1000000, peer_return=0)
        job.start_all()
        job.wait_for_step(20)
        job.kill(("ps", 1))
        self.assertEqual(job.wait(job.leader), 138, job.logs())
        self.assertIn("ps-1: expected it back within 0 s", job.log(job.leader))
        for task in (("ps", 0), ("worker", 0)):
            self.assertEqual(job.wait(task), 138, job.logs())

    def test_a_damaged_checkpoint_costs_what_came_after_the_one_before(self):
        job = self.job("damaged", steps=1000000, every=20)
        job.start_all()
        job.wait_for_step(45)
        job.processes[job.leader].send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(job.leader), 143, job.logs())
        newest, before = job.checkpoint_steps()[-1], job.checkpoint_steps()[-2]
        shard = next((job.folder / "checkpoints" / f"ckpt-{newest:08d}").glob("*.safetensors"))
        data = bytearray(shard.read_bytes())
        data[-5] ^= 0xFF
        shard.write_bytes(data)
        job.manifest.write_text(self.manifest(job.folder, newest + 10, 20))
        job.start(job.leader)
        job.expect_end()
        self.assertIn("checkpoint is damaged", job.log(job.leader))
        self.assertIn(f"at step {before}", job.log(job.leader))
        self.assertEqual(job.count_in_checkpoint(newest + 10), newest + 10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
