"""Two jobs in a queue of Kueue itself that has room for one: the second, of a higher class, takes the first's place, and the first
goes on from its checkpoint. The figures of both are those of an undisturbed run."""
import subprocess
import unittest

from cluster import NAMESPACE, ROOT, STATE, Case, apply, eventually, kubectl, listed, run, small, template, upgrade

KUEUE = ROOT / 'scripts/kubernetes/kueue'


def kueue(kind, name, namespace=None, **fields):
    return {'apiVersion': 'kueue.x-k8s.io/v1beta2', 'kind': kind,
            'metadata': {'name': name, **({'namespace': namespace} if namespace else {})}, **fields}


class Queues(Case):
    @classmethod
    def setUpClass(cls):
        folder = STATE / 'kueue'
        said = (STATE / 'kueue.log').open('w')
        process = subprocess.Popen([KUEUE, folder], stdout=said, stderr=said)
        cls.addClassCleanup(said.close)
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.kill)

        def ready():
            if process.poll() is not None:
                why = (STATE / 'kueue.log').read_text()
                if process.returncode == 69:
                    raise unittest.SkipTest(why)
                raise AssertionError(f'Kueue has ended: {process.returncode}\n{why}')
            return (folder / 'ready').exists()
        eventually('Kueue', ready)
        cls.addClassCleanup(run, KUEUE, '--remove')
        upgrade('--set', 'queue=kueue')
        cls.addClassCleanup(upgrade, '--set', 'queue=none')
        for node in ('node-1', 'node-2'):
            kubectl('label', 'node', node, 'pool=small')
            cls.addClassCleanup(kubectl, 'label', 'node', node, 'pool-')
        apply(kueue('ResourceFlavor', 'small', spec={'nodeLabels': {'pool': 'small'}}),
              kueue('WorkloadPriorityClass', 'urgent', value=100),
              kueue('ClusterQueue', 'team', spec={
                  'namespaceSelector': {}, 'preemption': {'withinClusterQueue': 'LowerPriority'},
                  'resourceGroups': [{'coveredResources': ['cpu'], 'flavors': [
                      {'name': 'small', 'resources': [{'name': 'cpu', 'nominalQuota': '200m'}]}]}]}),
              kueue('LocalQueue', 'research', NAMESPACE, spec={'clusterQueue': 'team'}))
        cls.addClassCleanup(kubectl, 'delete', 'resourceflavor/small', 'workloadpriorityclass/urgent')
        cls.addClassCleanup(kubectl, 'delete', 'clusterqueue/team')
        cls.addClassCleanup(kubectl, '-n', NAMESPACE, 'delete', 'localqueue/research')

    def queued(self, name, epochs, **labels):
        """A job of a chief and a worker that ask for all that the queue has."""
        asks = template({'resources': {'requests': {'cpu': '100m'}}})
        manifest = small(name, workers=1, epochs=epochs, chief=asks, worker=asks)
        manifest['metadata']['labels'] = {'kueue.x-k8s.io/queue-name': 'research', **labels}
        return self.submit(manifest)

    def test_queued_admitted_preempted_and_resumed(self):
        first = self.queued('first', 30)
        first.until_step(60)
        self.assertEqual({pod['spec']['nodeSelector']['pool'] for pod in first.pods()}, {'small'})
        urgent = self.queued('urgent', 5, **{'kueue.x-k8s.io/priority-class': 'urgent'})
        first.until('its place in the queue', lambda: first.status().get('phase') == 'Queued')
        self.assertIn('queue research: ', first.condition('Suspended')['message'])
        urgent.until_step(1)
        self.assertEqual(first.pods(), [], 'there is room for one')
        saved = max(int(path.name.split('-')[1]) for path in (first.output() / 'checkpoints').glob('ckpt-*'))
        self.assertGreaterEqual(saved, 40)
        urgent.until_succeeded()
        first.until_succeeded()
        self.assertIn(f'step {saved}', kubectl('-n', NAMESPACE, 'logs', 'first-chief-0'), 'goes on from what it saved')
        for job in (first, urgent):
            self.assertEqual(job.status().get('restarts', 0), 0)
            self.assertTrue({'Queued', 'Admitted'} <= {reason for _, reason, _ in job.events()}, job.told())
            self.assert_same_figures(job)
        finished = {c['type'] for w in listed('-n', NAMESPACE, 'workloads') for c in w['status']['conditions'] if c['status'] == 'True'}
        self.assertIn('Finished', finished)
