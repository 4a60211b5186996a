"""Three hosts, each a network namespace, train one job while the network between them is cut, loses packets or is slow.

After each fault: the weights of the undisturbed run, bit for bit. The packets that a fault dropped are counted; a fault
that dropped none fails its test. Needs root, iproute2 and nftables; skipped (77) where namespaces cannot be made.
Usage: network_faults_test.py WORKER FOLDER_OF_IDX_FILES
"""
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from process_job import DEADLINE, Job, killed
from hosts import Hosts, skip_without_namespaces

WORKER, DATA = sys.argv[1:3]
HOSTS = Hosts("mt", "10.77.0", 3)
PORT = 2222
LOSSY_SECONDS = 40  # of a network that may let nothing through; then it is whole again, however far the job came


class NetworkFaultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="network-"))
        cls.references = {}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root, ignore_errors=True)

    def tearDown(self):
        for index in range(3):
            HOSTS.inside(index, "nft", "flush", "ruleset", check=False)
            HOSTS.inside(index, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)

    def job(self, name=None, **options):
        folder = self.root / (name or self.id().rsplit(".", 1)[-1])
        folder.mkdir()
        job = Job(folder, WORKER, DATA, hosts=[f"{HOSTS.address(i)}:{PORT}" for i in range(3)],
                  prefix=HOSTS.prefix, **options)
        self.addCleanup(job.close)
        return job

    def reference(self, **options):
        """The undisturbed run with these options."""
        key = tuple(sorted(options.items()))
        if key not in self.references:
            job = self.job(name=f"reference-{len(self.references)}", **options)
            job.start_all()
            self.assertEqual([job.wait(i) for i in range(3)], [0, 0, 0], job.logs())
            self.references[key] = (job.weights(), [x["loss"] for x in job.losses()])
            job.close()
        return self.references[key]

    def drop(self, index, *rule, spare=None):
        """Drops what `rule` matches of the packets that host `index` sends or receives, and counts it; all but those
        from or to the port `spare`."""
        rules = ["add table inet fault"]
        for hook in ("input", "output"):
            rules.append(f"add chain inet fault {hook} {{ type filter hook {hook} priority 0 ; }}")
            rules += [f"add rule inet fault {hook} tcp {end} {spare} accept" for end in ("sport", "dport") if spare]
        rules += [f"add rule inet fault {hook} {match} counter drop" for hook, match in rule]
        HOSTS.inside(index, "nft", "\n".join(rules))  # at once: training does not wait

    def counted(self, index, family):
        rules = json.loads(HOSTS.inside(index, "nft", "-j", "list", "table", family, "fault").stdout)
        return sum(part["counter"]["packets"] for entry in rules["nftables"] for part in entry.get("rule", {}).get("expr", [])
                   if "counter" in part)

    def heal(self, index):
        """Ends the fault; the packets it dropped."""
        dropped = self.counted(index, "inet")
        HOSTS.inside(index, "nft", "delete", "table", "inet", "fault")
        return dropped

    def finish(self, job, reference, timeout=DEADLINE):
        self.assertEqual([job.wait(i, timeout) for i in range(3)], [0, 0, 0], job.logs())
        self.assertEqual(job.weights(), reference[0])
        self.assertEqual([x["loss"] for x in job.losses()], reference[1])

    def partition(self, index, seconds, hooks, lost):
        reference = self.reference(epochs=16)  # far from its end when it is cut off
        job = self.job(epochs=16)
        job.start_all()
        job.wait_for_step(35)
        self.drop(index, *[(hook, "iifname eth0" if hook == "input" else "oifname eth0") for hook in hooks])
        time.sleep(seconds)
        at = job.step()
        dropped = self.heal(index)
        print(f"cut off for {seconds} s at step {at}: {dropped} packets dropped")
        self.assertGreater(dropped, 0)
        self.assertLess(at, job.steps)
        self.finish(job, reference)
        if lost:
            self.assertIn(f"worker-{index}", job.log((index + 1) % 3))

    def test_worker_cut_off_for_5_seconds(self):
        self.partition(1, 5, ["input", "output"], lost=True)

    def test_chief_cut_off_for_5_seconds(self):
        self.partition(0, 5, ["input", "output"], lost=True)

    def test_worker_cut_off_for_30_seconds(self):
        self.partition(2, 30, ["input", "output"], lost=True)

    def test_worker_hears_nothing_for_5_seconds(self):
        self.partition(1, 5, ["input"], lost=True)

    def test_worker_is_not_heard_for_5_seconds(self):
        self.partition(1, 5, ["output"], lost=True)

    def test_chief_hears_nothing_for_30_seconds(self):
        self.partition(0, 30, ["input"], lost=True)

    def test_chief_is_not_heard_for_30_seconds(self):
        self.partition(0, 30, ["output"], lost=True)

    def lost_while_linking(self, index):
        """Its links to the others are not let through, so that linking lasts; then it is killed, and comes back."""
        reference = self.reference()
        job = self.job()
        self.drop(index, ("input", "iifname eth0 meta l4proto tcp"), ("output", "oifname eth0 meta l4proto tcp"), spare=PORT)
        job.start_all()
        chief, other = 0, 3 - index
        begin = time.monotonic()  # the first packet on its way to a link: all have met
        while not self.counted(index, "inet") and time.monotonic() - begin < DEADLINE:
            time.sleep(0.01)
        self.assertTrue(all(process.poll() is None for process in job.processes.values()), job.logs())
        job.processes[index].kill()
        job.wait(index)
        begin = time.monotonic()
        for survivor in (chief, other):
            job.wait_for_text(survivor, killed(index))
        took = time.monotonic() - begin
        dropped = self.heal(index)
        print(f"worker-{index} killed while linking ({dropped} packets dropped): named after {took:.2f} s")
        self.assertGreater(dropped, 0)
        self.assertEqual(job.step(), 0)
        job.start(index)
        self.finish(job, reference)

    def test_worker_killed_while_linking(self):
        self.lost_while_linking(1)

    def lose(self, percent, share, **options):
        """At least this share of the steps is made while packets are lost; None: perhaps none."""
        reference = self.reference(**options)
        job = self.job(**options)
        job.start_all()
        job.wait_for_step(5)
        before = job.step()
        for index in range(3):
            self.drop(index, ("input", f"iifname eth0 numgen random mod 100 < {percent}"))
        begin = time.monotonic()
        seconds, wanted = (LOSSY_SECONDS, job.steps) if share is None else (DEADLINE, before + share * (job.steps - before))
        while job.step() < wanted and time.monotonic() - begin < seconds:
            if all(p.poll() is not None for p in job.processes.values()):
                break
            time.sleep(0.1)
        made = job.step() - before
        dropped = sum(self.heal(index) for index in range(3))
        print(f"{percent} % lost: {dropped} packets dropped, {made} of {job.steps - before} steps in "
              f"{time.monotonic() - begin:.1f} s")
        self.assertGreater(dropped, 0)
        if share is not None:
            self.assertGreaterEqual(made, share * (job.steps - before))
        self.finish(job, reference)

    def test_1_percent_of_packets_lost(self):
        self.lose(1, 1, epochs=4)

    def test_5_percent_of_packets_lost(self):
        self.lose(5, 0.5, epochs=2)

    def test_20_percent_of_packets_lost(self):
        self.lose(20, None, epochs=1, every=1)

    def test_bytes_changed_on_the_way_are_noticed(self):
        reference = self.reference()
        job = self.job()
        job.start_all()
        for step in (35, 60, 85):
            job.wait_for_step(step)
            HOSTS.inside(1, "nft", "add", "table", "ip", "fault")
            HOSTS.inside(1, "nft", "add chain ip fault output { type filter hook output priority 0 ; }")
            # Two bytes of the first large packet. The receiver's kernel trusts a virtual link and checks nothing.
            HOSTS.inside(1, "nft", "add rule ip fault output oifname eth0 ip length > 1000 limit rate 1/hour burst 1 packets "
                             "counter @th,2400,16 set 0x5aa5")
            begin = time.monotonic()
            while not (changed := self.counted(1, "ip")) and time.monotonic() - begin < DEADLINE:
                time.sleep(0.01)
            self.assertGreater(changed, 0)
            HOSTS.inside(1, "nft", "delete", "table", "ip", "fault")
        self.finish(job, reference)
        said = job.log(0) + job.log(2)
        print("said of it:", [line for line in said.splitlines() if "checksum" in line][:3])
        self.assertIn("checksum", said)

    def test_a_chief_that_was_replaced_and_returns_is_refused(self):
        reference = self.reference(epochs=16)  # goes on while the old one asks to be let in
        job = self.job(epochs=16)
        job.start_all()
        job.wait_for_step(35)
        old = job.processes[0]
        old.send_signal(signal.SIGSTOP)
        # Another host takes the chief's address; the old one keeps its processes, and gets an address of its own.
        HOSTS.add(3, address=False)
        self.addCleanup(self.give_back)
        HOSTS.take(0, HOSTS.address(0))
        HOSTS.give(0, HOSTS.address(100))
        HOSTS.give(3, HOSTS.address(0))
        for index in (1, 2):
            HOSTS.forget_neighbours(index)
        try:
            job.start(0, host=3)
            job.wait_for_step(50)
            old.send_signal(signal.SIGCONT)
            self.finish(job, reference)
            self.assertEqual(old.wait(timeout=DEADLINE), 78, job.logs())
            self.assertIn("stale incarnation", job.log(0))
            self.assertEqual(job.weights(), reference[0])
        finally:
            if old.poll() is None:
                old.kill()
                old.wait()

    def give_back(self):
        """The chief's address to its first host."""
        HOSTS.remove(3)
        HOSTS.take(0, HOSTS.address(100))
        HOSTS.give(0, HOSTS.address(0))
        for index in (1, 2):
            HOSTS.forget_neighbours(index)

    def test_a_slow_link_is_only_slow(self):
        reference = self.reference(epochs=1)
        for index in range(3):
            HOSTS.shape(index, "100mbit", "64kb", "50ms")
        job = self.job(epochs=1)
        job.start_all()
        self.finish(job, reference)
        self.assertNotIn("interrupted", job.log(0))


if __name__ == "__main__":
    skip_without_namespaces("mp")
    with HOSTS:
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
