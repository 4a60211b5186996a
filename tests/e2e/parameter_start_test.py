#!/usr/bin/env python3
"""Parameter servers before their job has begun: processes that are killed while others are waited for, ports full of
connections that say nothing, certificates.
parameter_start_test.py WORKER DATA_FOLDER"""
import contextlib
import errno
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

from parameter_case import ComparedCase
from process_job import DEADLINE
from process_table import connected

WORKER = sys.argv.pop(1)
DATA = pathlib.Path(sys.argv.pop(1)).resolve()
CHIEF, TRAINER, FIRST, SECOND = ("chief", 0), ("worker", 0), ("ps", 0), ("ps", 1)
STEPS = 60
IDLE = 1000


class Case(ComparedCase):
    WORKER, DATA, REFERENCE_STEPS = WORKER, DATA, STEPS

    def job(self, name=None, steps=STEPS, **options):
        return self.new_job(name, steps, every=20, **options)

    def check(self, job):
        """The job ends as if nothing had been: each step ran once."""
        job.expect_end()
        self.assertEqual([line["loss"] for line in job.lines()], self.undisturbed())
        self.assertEqual(job.count_in_checkpoint(STEPS), STEPS)


class Start(Case):
    def wait_for_connection(self, job, task, to):
        port = int(job.hosts[to].split(":")[1])
        end = time.monotonic() + DEADLINE
        while not connected(job.processes[task].pid, port):
            self.assertLess(time.monotonic(), end, job.logs())
            time.sleep(0.005)

    def killed_while_others_are_waited_for(self, victim, missing):
        """The chief and the victim have met, `missing` has not come yet."""
        job = self.job()
        for task in job.tasks:
            if task != missing:
                job.start(task)
        self.wait_for_connection(job, CHIEF, FIRST)
        if missing != SECOND:
            self.wait_for_connection(job, CHIEF, SECOND)
        if victim == TRAINER and missing != SECOND:
            job.wait_for_text(CHIEF, "worker is ready")
        time.sleep(0.2)
        job.kill(victim)
        self.assertEqual(job.step(), 0)
        time.sleep(0.2)
        job.start(victim)
        job.start(missing)
        self.check(job)

    def test_a_server_killed_while_the_other_one_is_waited_for(self):
        self.killed_while_others_are_waited_for(FIRST, SECOND)

    def test_a_worker_killed_while_a_server_is_waited_for(self):
        self.killed_while_others_are_waited_for(TRAINER, SECOND)

    def test_a_server_killed_while_the_worker_is_waited_for(self):
        self.killed_while_others_are_waited_for(SECOND, TRAINER)

    def test_the_chief_killed_while_a_server_is_waited_for(self):
        self.killed_while_others_are_waited_for(CHIEF, SECOND)

    def test_the_chief_killed_while_the_worker_is_waited_for(self):
        self.killed_while_others_are_waited_for(CHIEF, TRAINER)

    def fill(self, job, stack, address):
        """So many connections to a port that say nothing, until the stack is left; each is let in before the next."""
        host, port = address.split(":")
        end = time.monotonic() + DEADLINE
        opened = 0
        while opened < IDLE:
            connection = stack.enter_context(socket.socket())
            connection.settimeout(DEADLINE)
            error = connection.connect_ex((host, int(port)))
            self.assertLess(time.monotonic(), end, f"{opened} connections to {address}; {job.logs()}")
            if error == 0:
                opened += 1
            else:  # nobody listens yet
                self.assertEqual((opened, error), (0, errno.ECONNREFUSED), address)
                time.sleep(0.01)

    def test_a_thousand_idle_connections_to_each_port_disturb_nobody(self):
        job = self.job(metrics=True, steps=1000000)
        with contextlib.ExitStack() as stack:
            for task in (CHIEF, TRAINER, FIRST):
                job.start(task)
            for task in (TRAINER, FIRST):
                self.fill(job, stack, job.hosts[task])
            self.assertEqual(job.step(), 0)
            job.start(SECOND)
            job.wait_for_step(5)
            for task in (TRAINER, FIRST):
                self.fill(job, stack, job.hosts[task])  # those of before may have been closed
            for task in (CHIEF, TRAINER, FIRST):  # a chief listens here alone
                self.fill(job, stack, job.addresses[task])
                for path in ("healthz", "metrics"):  # which answer all the same, on a busy machine as well
                    with urllib.request.urlopen(f"http://{job.addresses[task]}/{path}", timeout=DEADLINE) as answer:
                        self.assertEqual(answer.status, 200)
            first = job.step()
            job.wait_for_step(first + 100)
            print(f"{IDLE} idle connections to each port at step {first}, trained until step {job.step()}")
        for task in job.tasks:
            self.assertEqual(job.metric("meshtrain_parameter_damaged_frames_total", task), 0)
        for who in ("workers", "servers"):
            self.assertEqual(job.metric(f"meshtrain_parameter_{who}_lost_total"), 0, job.logs())
        job.processes[CHIEF].send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(CHIEF), 143, job.logs())
        self.assertEqual(job.count_in_checkpoint(job.step()), job.step())
        self.assertEqual([line["loss"] for line in job.lines()][:STEPS], self.undisturbed())


def certificates(folder, hosts=("127.0.0.1", "localhost")):
    """An authority and a certificate of it for these hosts, as files; the variables that name them."""
    folder.mkdir()
    authority = ["-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=test authority"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ",".join(("IP:" if host[0].isdigit() else "DNS:") + host for host in hosts)
    (folder / "names").write_text(f"subjectAltName={names}\n")
    for command in (["req", "-x509", *curve, *authority],
                    ["req", *curve, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=member"],
                    ["x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
                     "-days", "2", "-extfile", "names", "-out", "cert.pem"]):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True, timeout=DEADLINE)
    return {f"MESHTRAIN_TLS_{name}": str(folder / f"{file}.pem") for name, file in
            (("CA", "ca"), ("CERT", "cert"), ("KEY", "key"))}


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Certificates(Case):
    def start_all(self, job, variables, without=()):
        for task in job.tasks:
            if task not in without:
                job.start(task, **variables)

    def test_with_certificates_all_roles_train(self):
        ours = certificates(self.root / "ours")
        job = self.job()
        self.start_all(job, ours)
        self.check(job)

    def said(self, job, who, why):
        job.wait_for_text(CHIEF, f"{who}.*{why}")
        print(re.search(f".*{who}.*{why}.*", job.log(CHIEF))[0])

    def test_who_has_another_certificate_or_none_is_named_and_let_in_with_the_right_one(self):
        ours, theirs = certificates(self.root / "ours-too"), certificates(self.root / "theirs")
        job = self.job(workers=2, steps=1000000)
        second = ("worker", 1)
        self.start_all(job, ours, without=[SECOND, TRAINER, second])
        job.start(SECOND, **theirs)
        job.start(TRAINER, **theirs)
        job.start(second)
        self.said(job, "parameter server does not answer.* ps=1 ", "certificate verify failed")
        job.kill(SECOND)
        job.start(SECOND, **ours)
        self.said(job, "worker does not answer.* worker=0 ", "certificate verify failed")
        self.said(job, "worker does not answer.* worker=1 ", "Ssl handshake failed")
        self.assertEqual(job.step(), 0)
        for task in (TRAINER, second):
            job.kill(task)
            job.start(task, **ours)
            job.wait_for_text(CHIEF, f"worker is ready.* worker={task[1]} ")
        job.wait_for_step(job.step() + STEPS)
        job.processes[CHIEF].send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(CHIEF), 143, job.logs())


if __name__ == "__main__":
    unittest.main(verbosity=2)
