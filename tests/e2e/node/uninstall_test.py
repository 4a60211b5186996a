"""Uninstalling leaves the CRD and jobs; when jobs and namespaces are gone, the CRD alone."""
from cluster import NAMESPACE, SYSTEM, Case, eventually, helm, kubectl, small
from install_test import INSTALLED, objects


class Uninstall(Case):
    def test_what_is_left(self):
        job = self.submit(small('stays', epochs=1000))
        job.until_step(60)
        helm('uninstall', 'meshtrain', '--wait', '--timeout', '120s')
        # Of the chart's namespace nothing stays but the jobs of `helm test`, until somebody deletes them.
        kubectl('-n', SYSTEM, 'delete', 'tj', '--all', '--timeout=60s')
        own = {f'ConfigMap {SYSTEM} kube-root-ca.crt', f'ServiceAccount {SYSTEM} default'}
        system = lambda: {each for each in objects() if each.split()[1] == SYSTEM} - own
        eventually('the end of what the chart made', lambda: not system(), lambda: '\n'.join(sorted(system())))
        step = job.step()
        job.until('steps without an operator', lambda: job.step() > step + 40)
        kubectl('-n', NAMESPACE, 'delete', 'tj', 'stays', '--timeout=240s')
        job.gone()
        kubectl('delete', 'namespace', NAMESPACE, SYSTEM, '--timeout=240s')
        kubectl('delete', 'pv', '--all', '--timeout=240s')
        wanted = {'CustomResourceDefinition <none> trainingjobs.meshtrain.dev'}
        # The API server's own object of a CRD's group.
        served = {'APIService <none> v1.meshtrain.dev'}
        eventually('the end of all else', lambda: objects() - INSTALLED['before'] - served == wanted,
                   lambda: '\n'.join(sorted(objects() - INSTALLED['before'])))
        self.assertEqual(INSTALLED['before'] - objects(), set())
