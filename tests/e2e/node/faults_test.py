"""What befalls processes and nodes, and what becomes of the job: a process killed, a node drained, a node cut off. The
operator stays on node-1; faults befall node-2."""
from cluster import Case, eventually, get, kubectl, placed, run, small
from table import Refusal


def ready(node):
    return any(c['type'] == 'Ready' and c['status'] == 'True' for c in get('node', node)['status']['conditions'])


class Killed(Case):
    def test_a_worker_that_is_killed_comes_back_and_the_numbers_are_those_of_an_undisturbed_run(self):
        job = self.submit(small('hurt'))
        job.until_step(60)
        before = {pod['metadata']['name']: pod['metadata']['uid'] for pod in job.pods()}
        job.kill('worker-1')
        job.until('a restart', lambda: job.status().get('restarts', 0) >= 1)
        job.until_succeeded()
        self.assertEqual(job.status()['restarts'], 1)
        self.assertIn('137', ' '.join(message for _, _, message in job.events()), job.told())
        after = {pod['metadata']['name']: pod['metadata']['uid'] for pod in job.pods()}
        self.assertEqual({name for name, uid in after.items() if before[name] != uid}, {'hurt-worker-1'})
        self.assert_same_figures(job)


class Drained(Case):
    def tearDown(self):
        kubectl('uncordon', 'node-2')

    def test_a_node_is_drained_and_the_job_goes_on_on_the_other(self):
        job = self.submit(small('moves'))
        job.until_step(60)
        there = [pod['metadata']['name'] for pod in job.pods() if pod['spec']['nodeName'] == 'node-2']
        self.assertTrue(there, 'expected a pod on node-2')
        kubectl('drain', 'node-2', '--ignore-daemonsets', '--delete-emptydir-data', '--timeout=240s')
        job.until_succeeded()
        self.assertEqual({pod['spec']['nodeName'] for pod in job.pods()}, {'node-1'})
        # Nobody's fault: it counts against no limit.
        self.assertGreaterEqual(job.status()['recovery']['disruptions'], 1, job.told())
        self.assertEqual({one['counted'] for one in job.status()['recovery']['recent']}, {False}, job.told())
        self.assertTrue({'PodDisrupted', 'PodLost'} & {reason for _, reason, _ in job.events()}, job.told())
        self.assert_same_figures(job)


class CutOff(Refusal):
    def tearDown(self):
        run('ip', 'link', 'set', 'node-2', 'up')
        eventually('node-2', lambda: ready('node-2'))

    def cut(self):
        run('ip', 'link', 'set', 'node-2', 'down')
        eventually('the silence of node-2', lambda: not ready('node-2'))

    def test_the_job_waits_for_a_node_that_may_be_alive_and_goes_on_when_it_is_back(self):
        job = self.submit(small('patient', chief=placed('node-1'), worker=placed('node-2'), workers=1))
        job.until_step(60)
        uid = job.pod('worker-0')['metadata']['uid']
        self.cut()
        self.told('a node that does not answer', job, 'NodeNotReady', 'patient-worker-0', 'node-2',
                  do='Bring the node back; if it is off for good, delete its Node or taint it')
        self.assertEqual(job.pod('worker-0')['metadata']['uid'], uid, 'no second process while the first may live')
        run('ip', 'link', 'set', 'node-2', 'up')
        job.until_succeeded()
        self.assert_same_figures(job)

    def test_a_process_on_it_is_replaced_after_the_time_that_the_user_says(self):
        # A worker, which writes nothing that another would write too.
        job = self.submit(small('impatient', workers=1, chief=placed('node-1'), spec__runPolicy={'deadNodeSeconds': 5}, worker={'template': {
            'spec': {'containers': [{'name': 'trainer'}], 'affinity': {'nodeAffinity': {
                'preferredDuringSchedulingIgnoredDuringExecution': [{'weight': 100, 'preference': {'matchExpressions': [
                    {'key': 'kubernetes.io/hostname', 'operator': 'In', 'values': ['node-2']}]}}]}}}}}))
        job.until_step(60)
        before = job.pod('worker-0')
        self.assertEqual(before['spec']['nodeName'], 'node-2')
        self.cut()
        job.until('another worker', lambda: job.pod('worker-0') and
                  job.pod('worker-0')['metadata']['uid'] != before['metadata']['uid'])
        job.until_succeeded()
        self.assertEqual(job.pod('worker-0')['spec']['nodeName'], 'node-1')
        self.assert_same_figures(job)
