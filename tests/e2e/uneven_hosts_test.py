"""Processes of meshtrain-worker whose hosts have different instruction sets.

One machine stands for all hosts: what a process may use is set in its environment. The weights show which set was used,
because v2 has no fused multiply-add and the others have. Standard library only.
Usage: uneven_hosts_test.py WORKER FOLDER_OF_IDX_FILES
"""
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest

from process_job import Job, killed

WORKER, DATA = sys.argv[1:3]
RETRY = 138
INTERNAL = 70
AT_MOST = "MESHTRAIN_INSTRUCTION_SET"
FORCED = "MESHTRAIN_FORCED_INSTRUCTION_SET"


def best_set():
    flags = set()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    if not {"avx2", "fma", "bmi1", "bmi2"} <= flags:
        return "v2"
    return "v4" if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags else "v3"


class UnevenHostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="uneven-"))
        cls.least = cls.weights_of("least", {i: {AT_MOST: "v2"} for i in range(3)})
        cls.best = cls.weights_of("best", {})

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root, ignore_errors=True)

    @classmethod
    def make(cls, name, **options):
        folder = cls.root / name
        folder.mkdir()
        return Job(folder, WORKER, DATA, **{"epochs": 1, **options})

    @classmethod
    def weights_of(cls, name, variables):
        job = cls.make(name)
        try:
            for i in range(3):
                job.start(i, variables=variables.get(i))
            codes = [job.wait(i) for i in range(3)]
            assert codes == [0, 0, 0], (codes, job.logs())
            return job.weights()
        finally:
            job.close()

    def job(self, **options):
        job = self.make(self.id().rsplit(".", 1)[-1], **options)
        self.addCleanup(job.close)
        return job

    def test_all_run_with_the_least_that_all_have(self):
        self.assertNotEqual(self.least, self.best, "the sets round alike: this test shows nothing")
        job = self.job()
        job.start(0)
        job.start(1, variables={AT_MOST: "v2"})
        job.start(2, variables={AT_MOST: "v3"})
        # Each save compares the state that all of them hold, bit for bit.
        self.assertEqual([job.wait(i) for i in range(3)], [0, 0, 0], job.logs())
        self.assertEqual(job.weights(), self.least)
        for i, ours in ((0, best_set()), (2, "v3")):
            self.assertRegex(job.log(i), f"all run with the lesser one.*set=v2.*ours={ours}", job.logs())
        self.assertNotIn("lesser", job.log(1))

    def test_a_process_that_rounds_otherwise_ends_the_run(self):
        job = self.job(every=10)
        job.start(0)
        job.start(1, variables={FORCED: "v2"})
        job.start(2)
        self.assertEqual([job.wait(i) for i in range(3)], [INTERNAL] * 3, job.logs())
        for i in range(3):
            self.assertRegex(
                job.log(i),
                r"step 10: variable `\S+`.*: expected equal copies on all ranks, got hashes: .* on rank .*\(worker-\d\)", job.logs())
            for name in ("rank 0 (worker-0)", "rank 1 (worker-1)", "rank 2 (worker-2)"):
                self.assertIn(name, job.log(i))
        self.assertEqual(list((job.folder / "checkpoints").glob("*/index.json")), [])

    def test_a_replacement_with_a_lesser_set_makes_all_start_again(self):
        job = self.job(epochs=4)
        job.start_all()
        job.wait_for_step(35)
        job.processes[1].send_signal(signal.SIGKILL)
        job.wait(1)
        for survivor in (0, 2):
            job.wait_for_text(survivor, killed(1))
        job.start(1, variables={AT_MOST: "v2"})
        self.assertEqual([job.wait(i) for i in range(3)], [RETRY] * 3, job.logs())
        for i in range(3):
            self.assertRegex(job.log(i), f"worker-0 runs with {best_set()} since it joined.*worker-1 has no better than v2", job.logs())
        # As whoever runs the job starts them again: they go on, all with v2.
        for i in range(3):
            job.start(i, variables={AT_MOST: "v2"} if i == 1 else None)
        self.assertEqual([job.wait(i) for i in range(3)], [0, 0, 0], job.logs())
        self.assertRegex(job.log(0), "resuming from .* at step [1-9]", job.logs())
        self.assertRegex(job.log(0), "all run with the lesser one.*set=v2", job.logs())

    def test_a_replacement_with_a_better_set_takes_that_of_the_others(self):
        job = self.job(every=10)
        for i in range(3):
            job.start(i, variables={AT_MOST: "v2"})
        job.wait_for_step(25)
        process = job.processes[1]
        self.assertIsNone(process.poll(), "the fault came too late")
        process.send_signal(signal.SIGKILL)
        job.wait(1)
        job.start(1)
        self.assertEqual([job.wait(i) for i in range(3)], [0, 0, 0], job.logs())
        self.assertEqual(job.weights(), self.least)
        self.assertRegex(job.log(1), f"all run with the lesser one.*set=v2.*ours={best_set()}", job.logs())


if __name__ == "__main__":
    if best_set() == "v2":
        print("skipped: no device: this processor has one instruction set")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
