#!/usr/bin/env python3
"""Parameter servers on hosts of their own, each a network namespace, while the network between them or one of them fails.
parameter_network_test.py WORKER FOLDER_OF_IDX_FILES [Faults|LongCuts]

One step at a time, so that a job whose steps ran once each gives the undisturbed losses, bit for bit. One that lost a worker
may have pushed a step twice: its counts say no more than that, and its loss is as low. What a fault dropped or changed is
counted; one that did nothing fails its test. Needs root, iproute2 and nftables; skipped (77) where namespaces cannot be made."""
import json
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from process_job import DEADLINE
from hosts import Hosts, skip_without_namespaces
from parameter_case import ComparedCase
from parameter_job import HTTP_PORT, PORT

WORKER = sys.argv.pop(1)
DATA = pathlib.Path(sys.argv.pop(1)).resolve()
CHIEF, TRAINER, FIRST, SECOND = ("chief", 0), ("worker", 0), ("ps", 0), ("ps", 1)
PLACES = {CHIEF: 0, TRAINER: 1, FIRST: 2, SECOND: 3}
HOSTS = Hosts("mn", "10.78.0", len(PLACES))
MORE = 40  # steps after a fault


class Network(ComparedCase):
    WORKER, DATA, REFERENCE_STEPS = WORKER, DATA, 1500

    def tearDown(self):
        for index in PLACES.values():
            HOSTS.inside(index, "nft", "flush", "ruleset", check=False)

    def job(self, name=None, steps=1000000, every=100, start=True, **options):
        job = self.new_job(name, steps, every, metrics=True, host=lambda task: HOSTS.address(PLACES[task]),
                           prefix=lambda task: HOSTS.prefix(PLACES[task]), **options)
        if start:
            job.start_all()
            job.wait_for_step(20)
        return job

    def metric(self, job, name, task=CHIEF):
        get = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"
        page = HOSTS.inside(PLACES[task], sys.executable, "-c", get, f"http://{HOSTS.address(PLACES[task])}:{HTTP_PORT}/metrics")
        return float(re.search(rf"^{name}{{.*}} (\S+)$", page.stdout, re.M).group(1))

    def check(self, job, once=False):
        """Training goes on; then the chief saves and leaves. Every acknowledged step is there, none more than were run again.
        `once`: the fault cost no step that was under way, so each ran once."""
        job.wait_for_step(job.step() + MORE)
        reruns = self.metric(job, "meshtrain_parameter_steps_rerun_total")
        job.processes[CHIEF].send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(CHIEF), 143, job.logs())
        step = job.step()
        self.assertEqual(job.checkpoint_steps()[-1], step, job.logs())
        count = job.count_in_checkpoint(step)
        self.assertGreaterEqual(count, step)
        self.assertLessEqual(count, step + reruns)
        losses = [line["loss"] for line in job.lines()]
        self.assertEqual(len(losses), step)
        if once:
            self.assertEqual((reruns, count), (0, step), job.logs())
        job.close()  # its ports are the next one's
        want = self.undisturbed()
        last = min(len(losses), len(want))
        same = count == step and not reruns
        if same:
            self.assertEqual(losses[:last], want[:last])
        mean, calm = (sum(series[last - 20:last]) / 20 for series in (losses, want))
        print(f"{self.id().rsplit('.', 1)[-1]}: {step} steps, {reruns:.0f} run again, {count} updates; "
              f"{f'the same {last} losses, bit for bit' if same else 'other losses'}; loss {mean:.4f}, undisturbed {calm:.4f}")
        self.assertLess(mean, 1.5 * calm + 0.1)

    def rule(self, task, *rules):
        """Rules for the packets of one host: (hook, match and verdict)."""
        place = PLACES[task]
        HOSTS.inside(place, "nft", "add", "table", "inet", "fault")
        for hook in ("input", "output"):
            HOSTS.inside(place, "nft", f"add chain inet fault {hook} {{ type filter hook {hook} priority 0 ; }}")
        for hook, text in rules:
            HOSTS.inside(place, "nft", f"add rule inet fault {hook} {text}")

    def counted(self, task):
        rules = json.loads(HOSTS.inside(PLACES[task], "nft", "-j", "list", "table", "inet", "fault").stdout)
        return sum(part["counter"]["packets"] for entry in rules["nftables"] for part in entry.get("rule", {}).get("expr", [])
                   if "counter" in part)

    def heal(self, task):
        """Ends the fault; the packets that it met."""
        met = self.counted(task)
        HOSTS.inside(PLACES[task], "nft", "delete", "table", "inet", "fault")
        self.assertGreater(met, 0)
        return met

    def cut_off(self, task, hooks, seconds=5):
        job = self.job()
        self.rule(task, *[(hook, f"{'iifname' if hook == 'input' else 'oifname'} eth0 counter drop") for hook in hooks])
        time.sleep(seconds)
        if task == CHIEF and hooks == ["input"]:  # what it sends still comes; it is the one that misses the others
            who, said = [CHIEF], "worker is lost|parameter server is away"
        else:
            who = [t for t in job.tasks if t != task]
            said = "the chief is lost" if task == CHIEF else {"worker": "worker is lost", "ps": "parameter server is away"}[task[0]]
        end = time.monotonic() + DEADLINE
        while not any(re.search(said, job.log(t)) for t in who):
            self.assertLess(time.monotonic(), end, f"none of {who} said: {said}; {job.logs()}")
            time.sleep(0.05)
        print(f"{task} cut off for {seconds} s at step {job.step()}: {self.heal(task)} packets dropped")
        self.check(job, once=task[0] == "ps")  # whoever needs a server waits for it


class Faults(Network):
    def test_a_server_cut_off_for_5_seconds(self):
        self.cut_off(SECOND, ["input", "output"])

    def test_a_worker_cut_off_for_5_seconds(self):
        self.cut_off(TRAINER, ["input", "output"])

    def test_the_chief_cut_off_for_5_seconds(self):
        self.cut_off(CHIEF, ["input", "output"])

    def test_the_chief_is_not_heard_for_5_seconds(self):
        self.cut_off(CHIEF, ["output"])

    def test_a_server_that_is_not_heard_for_5_seconds(self):
        self.cut_off(FIRST, ["output"])

    def test_a_worker_that_hears_nothing_for_5_seconds(self):
        self.cut_off(TRAINER, ["input"])

    def lose(self, percent, seconds, once):
        job = self.job()
        for task in PLACES:
            self.rule(task, ("input", f"iifname eth0 numgen random mod 100 < {percent} counter drop"))
        time.sleep(seconds)
        end = time.monotonic() + DEADLINE
        while not all(self.counted(task) for task in PLACES):
            self.assertLess(time.monotonic(), end, f"no packet of some place was lost; {job.logs()}")
            time.sleep(0.1)
        print(f"{percent} % lost for {seconds} s until step {job.step()}: {sum(self.heal(task) for task in PLACES)} packets dropped")
        self.check(job, once)

    def test_1_percent_of_packets_lost(self):
        self.lose(1, 4, once=True)

    def test_5_percent_of_packets_lost(self):
        self.lose(5, 8, once=True)

    def test_20_percent_of_packets_lost(self):
        self.lose(20, 6, once=False)  # the same packet may be lost until its process counts as lost

    def test_bytes_that_change_on_the_way(self):
        job = self.job()
        # Two bytes of a large packet now and then. The receiver's kernel trusts a virtual link and checks nothing.
        self.rule(FIRST, ("output", "oifname eth0 ip length > 1400 limit rate 4/second burst 1 packets "
                                    "counter @th,8000,16 set 0x5aa5"))
        time.sleep(4)
        changed = self.heal(FIRST)
        # In this order: who receives counts, and then who sent is told.
        counted = sum(self.metric(job, "meshtrain_parameter_damaged_frames_total", task) for task in job.tasks)
        said = sum(job.log(task).count('msg="bytes changed') for task in job.tasks)
        print(f"{changed} packets changed, {counted:.0f} damaged frames counted, {said} told")
        self.assertGreater(counted, 0, job.logs())
        self.assertGreaterEqual(said, counted)
        self.check(job, once=True)

    def test_a_worker_with_another_token_is_named(self):
        job = self.job(start=False)
        for task in (CHIEF, FIRST, SECOND):
            job.start(task)
        job.start(TRAINER, token="guess")
        self.assertEqual(job.wait(CHIEF), 78, job.logs())
        self.assertIn("worker-0", job.log(CHIEF))
        self.assertIn("token", job.log(CHIEF))
        # With the right one the same job trains.
        job.kill(TRAINER)
        job.start(TRAINER)
        job.start(CHIEF)
        job.wait_for_step(20)
        self.check(job, once=True)

    def test_a_port_that_is_taken(self):
        job = self.job(start=False)
        hold = ("import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
                f"s.bind(('', {PORT})); s.listen(); print(flush=True); input()")
        holder = subprocess.Popen(HOSTS.prefix(PLACES[FIRST]) + [sys.executable, "-c", hold], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        holder.stdout.readline()
        job.start_all()
        self.assertEqual(job.wait(FIRST), 138, job.logs())
        self.assertIn(str(PORT), job.log(FIRST))
        holder.communicate(b"\n", timeout=DEADLINE)
        job.start(FIRST)
        job.wait_for_step(20)
        self.check(job, once=True)

    def kill_while_saving(self, victim, said, once=False):
        """`said`: by the chief, each time."""
        job = self.job(every=1)
        for kill in range(3):
            job.wait_for_step(job.step() + 10)
            folder = job.kill_in_save(victim)
            print(f"{victim} killed while {folder.name} was written")
            job.start(victim)
            job.wait_for_text(CHIEF, said, kill + 1)
        self.check(job, once)

    def test_the_chief_killed_while_saving(self):
        # What came after the last whole checkpoint is forgotten, and made anew.
        self.kill_while_saving(CHIEF, "resuming from", once=True)

    def test_a_server_killed_while_saving(self):
        # Its copy is lost with it. Whoever is asked for a step meanwhile waits for its return.
        self.kill_while_saving(SECOND, "given up, this checkpoint takes its place", once=True)

    def test_a_worker_killed_while_saving(self):
        self.kill_while_saving(TRAINER, "worker is lost")

    def kill_at_shutdown(self, victim):
        """All are asked to leave. No save can end, since a server stands still: nobody has left when one is killed."""
        job = self.job(grace=5, every=1000000)
        still = SECOND if victim == FIRST else FIRST
        job.processes[still].send_signal(signal.SIGSTOP)
        for task in job.tasks:
            job.processes[task].send_signal(signal.SIGTERM)
        asked = "asked to stop: serving until the chief has saved"
        job.wait_for_text(victim if victim != CHIEF else TRAINER, asked)
        self.assertTrue(all(process.poll() is None for process in job.processes.values()), job.logs())
        job.kill(victim)
        job.processes[still].send_signal(signal.SIGCONT)
        codes = {task: job.wait(task) for task in job.tasks if task != victim}
        print(f"{victim} killed at shutdown: the others left with {codes}")
        self.assertTrue(set(codes.values()) <= {143, 138}, job.logs())
        job.start_all()
        job.wait_for_step(job.step() + 20)
        self.check(job, once=True)

    def test_the_chief_killed_at_shutdown(self):
        self.kill_at_shutdown(CHIEF)

    def test_a_server_killed_at_shutdown(self):
        self.kill_at_shutdown(FIRST)

    def test_a_worker_killed_at_shutdown(self):
        self.kill_at_shutdown(TRAINER)


class LongCuts(Network):
    def test_a_server_cut_off_for_30_seconds(self):
        self.cut_off(FIRST, ["input", "output"], 30)

    def test_a_worker_cut_off_for_30_seconds(self):
        self.cut_off(TRAINER, ["input", "output"], 30)

    def test_the_chief_cut_off_for_30_seconds(self):
        self.cut_off(CHIEF, ["input", "output"], 30)

    def test_the_chief_hears_nothing_for_30_seconds(self):
        self.cut_off(CHIEF, ["input"], 30)

    def test_the_chief_is_not_heard_for_30_seconds(self):
        self.cut_off(CHIEF, ["output"], 30)


if __name__ == "__main__":
    skip_without_namespaces("mq")
    with HOSTS:
        unittest.main(verbosity=2)
