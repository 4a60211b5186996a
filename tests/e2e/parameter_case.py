"""Tests of jobs with parameter servers that are compared with one undisturbed job. Standard library only."""
import pathlib
import sys
import tempfile
import unittest

from parameter_job import DIGITS, HEAD, Job


class ComparedCase(unittest.TestCase):
    """The jobs of a class lie in one folder. They train on digits, one step at a time, so that one whose steps ran once each
    has the losses of the undisturbed one, bit for bit. A subclass says WORKER, DATA, REFERENCE_STEPS (the undisturbed job's)
    and job(name, steps)."""

    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix=pathlib.Path(sys.argv[0]).stem + "-")
        cls.root = pathlib.Path(cls._folder.name)
        cls.reference = None

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    def new_job(self, name, steps, every, **options):
        """Not started yet. Without a name it has the test's."""
        folder = self.root / (name or self.id().rsplit(".", 1)[-1])
        folder.mkdir()
        text = (HEAD + DIGITS).format(folder=folder, data=self.DATA, every=every, epochs=1, steps=steps,
                                      options=", steps_in_flight: 1")
        job = Job(folder, self.WORKER, text, servers=2, **options)
        self.addCleanup(job.close)
        return job

    def undisturbed(self):
        """Its losses."""
        if type(self).reference is None:
            job = self.job("reference", steps=self.REFERENCE_STEPS)
            if not job.processes:
                job.start_all()
            job.expect_end()
            type(self).reference = [line["loss"] for line in job.lines()]
        return type(self).reference
