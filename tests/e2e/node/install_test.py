"""The chart installs with its defaults; `helm test` passes."""
import os
import re
import shutil
import time

from cluster import NAMESPACE, ROOT, SYSTEM, VERSION, Case, apply, claim, get, helm, kubectl, run
from figures import note

INSTALLED = {}  # what others measure from, and what uninstalling leaves


def objects():
    """All that the API server holds, but what it and its controllers write for themselves."""
    kinds = run('kubectl', 'api-resources', '--verbs=list', '-o', 'name').split()
    own = {'events', 'events.events.k8s.io', 'endpointslices.discovery.k8s.io', 'endpoints',
           'componentstatuses', 'ipaddresses.networking.k8s.io', 'nodes', 'csinodes.storage.k8s.io'}
    listed = run('kubectl', 'get', ','.join(sorted(set(kinds) - own)), '-A', '--no-headers', '--ignore-not-found', '-o',
                 'custom-columns=K:.kind,NS:.metadata.namespace,N:.metadata.name')
    found = {' '.join(line.split()) for line in listed.splitlines()}
    return {each for each in found if not re.match(r'Lease kube-', each)}


class Install(Case):
    def test_1_the_chart_installs(self):
        INSTALLED['before'] = objects()
        INSTALLED['at'] = time.monotonic()
        # As the README says. The operator is kept off the node that faults befall.
        helm('install', 'meshtrain', ROOT / 'helm/meshtrain', '--create-namespace', '--wait', '--timeout', '120s',
             '--set', f'workerImage=meshtrain-worker:{VERSION}', '--set', r'nodeSelector.kubernetes\.io/hostname=node-1')
        note(f'operator ready {time.monotonic() - INSTALLED["at"]:.1f} s after helm install began')
        deployment = get('-n', SYSTEM, 'deployment', 'meshtrain')
        self.assertEqual(deployment['status'].get('readyReplicas'), 1)
        self.assertEqual(deployment['spec']['template']['spec']['containers'][0]['image'], f'meshtrain-operator:{VERSION}')

    def test_2_a_strict_namespace_with_data(self):
        apply({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': NAMESPACE, 'labels': {
            'pod-security.kubernetes.io/enforce': 'restricted'}}})
        data = claim('mnist-data')
        for file in os.listdir(os.environ['MT_DATA']):
            shutil.copy(os.path.join(os.environ['MT_DATA'], file), data)
        claim('mnist-runs')

    def test_3_helm_test_passes(self):
        self.assertRegex(helm('test', 'meshtrain', '--timeout', '120s'), r'Phase:\s+Succeeded')
