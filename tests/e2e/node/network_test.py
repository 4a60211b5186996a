"""Policies for networks, enforced: sigs.k8s.io/kube-network-policies judges the first packet of each connection that a node
forwards. A kernel without nftables' `queue` gets the packets to it by iptables' target, which does the same."""
import os
import subprocess
import unittest
import urllib.parse

from cluster import (NAMESPACE, ROOT, STATE, STRICT, SYSTEM, apply, eventually, get, kubectl, listed, on_node, placed, processes_of, run,
                     small, upgrade)
from table import Refusal

NODES = (1, 2)
TRAINS, TELLS = 2222, 2280  # where the processes of a job meet; where they tell how it goes
RULE = ['FORWARD', '-m', 'conntrack', '--ctstate', 'NEW', '-j', 'NFQUEUE', '--queue-num', '100']
# Where a process of a cluster finds what it needs to speak to the API server.
ACCOUNT = '/run/secrets/kubernetes.io/serviceaccount'
OUTSIDE = '172.30.0.1'  # this test's own address, as a scraper's that is no pod


def prefix():
    return run('bash', '-c', '. "$1" && printf %s "$NETWORK_POLICIES_PREFIX"', '_', ROOT / 'scripts/kubernetes/env.sh')


def reaches(where, pod, port):
    """Whether a connection from there (a pod, or None: from here) to the pod's port comes about."""
    enter = ['nsenter', '--net', '--target', processes_of(where)[0], '--'] if where else []
    return run(*enter, 'timeout', '3', 'bash', '-c', f'</dev/tcp/{pod["status"]["podIP"]}/{port}', check=False).returncode == 0


class Policies(Refusal):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(f'{prefix()}/complete'):
            raise unittest.SkipTest('what enforces policies was not built: scripts/kubernetes/build-peers network-policies')
        kubectl('-n', 'kube-system', 'create', 'serviceaccount', 'network-policies')
        cls.addClassCleanup(kubectl, '-n', 'kube-system', 'delete', 'serviceaccount', 'network-policies')
        kubectl('create', 'clusterrolebinding', 'network-policies', '--clusterrole=view', '--serviceaccount=kube-system:network-policies')
        cls.addClassCleanup(kubectl, 'delete', 'clusterrolebinding', 'network-policies')
        account = STATE / 'account'
        account.mkdir()
        (account / 'token').write_text(kubectl('-n', 'kube-system', 'create', 'token', 'network-policies', '--duration=2h'))
        view = '{.clusters[0].cluster.'
        (account / 'ca.crt').write_bytes(open(kubectl('config', 'view', '-o', f'jsonpath={view}certificate-authority}}'), 'rb').read())
        server = urllib.parse.urlsplit(kubectl('config', 'view', '-o', f'jsonpath={view}server}}'))
        for node in NODES:
            on_node(node, 'mkdir', '-p', ACCOUNT)
            on_node(node, 'cp', account / 'token', account / 'ca.crt', ACCOUNT)
            log = (STATE / f'network-policies-{node}.log').open('w')
            process = subprocess.Popen(
                [ROOT / 'scripts/kubernetes/node', 'on', str(node), 'env', f'KUBERNETES_SERVICE_HOST={server.hostname}',
                 f'KUBERNETES_SERVICE_PORT={server.port}', f'{prefix()}/bin/network-policies', f'--hostname-override=node-{node}',
                 '--metrics-bind-address=127.0.0.1:9080', '--netfilter-bug-1766-fix=false'], stdout=log, stderr=log)
            cls.addClassCleanup(log.close)
            cls.addClassCleanup(process.wait)
            cls.addClassCleanup(process.kill)
            eventually('who judges packets', lambda: on_node(node, 'cat', '/proc/net/netfilter/nfnetlink_queue').strip(),
                       lambda: (STATE / f'network-policies-{node}.log').read_text())
            on_node(node, 'iptables', '-t', 'mangle', '-A', *RULE)
            cls.addClassCleanup(on_node, node, 'iptables', '-t', 'mangle', '-D', *RULE)
        scrapers = f'networkPolicies.scrapers=[{{"ipBlock":{{"cidr":"{OUTSIDE}/32"}}}}]'
        upgrade('--set', 'networkPolicies.enabled=true', '--set-json', scrapers)
        cls.addClassCleanup(upgrade, '--set', 'networkPolicies.enabled=false', '--set-json', 'networkPolicies.scrapers=[]')

    def outsider(self, name, node):
        apply({'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': name, 'namespace': NAMESPACE}, 'spec': {
            'nodeName': node, 'terminationGracePeriodSeconds': 0,
            'containers': [{'name': 'waits', 'image': 'localhost/pause:1', 'imagePullPolicy': 'Never',
                            'securityContext': {**STRICT, 'runAsUser': 65532}}]}})
        self.addCleanup(kubectl, '-n', NAMESPACE, 'delete', 'pod', name)
        return eventually(name, lambda: (pod := get('-n', NAMESPACE, 'pod', name))['status'].get('podIP') and processes_of(pod) and pod)

    def test_a_jobs_ports_are_for_its_own_processes_and_its_pages_for_operator_and_scrapers(self):
        job = self.submit(small('closed', epochs=1000, workers=1, chief=placed('node-1'), worker=placed('node-2')))
        job.until_step(60)  # over both nodes: its processes reach each other
        job.until('what its chief tells the operator', lambda: job.status().get('progress', {}).get('step'))
        chief, worker = job.pod('chief-0'), job.pod('worker-0')
        operator = next(pod for pod in listed('-n', SYSTEM, 'pods', '-l', 'app.kubernetes.io/name=meshtrain') if pod['status'].get('podIP'))
        strangers = [self.outsider(f'outsider-{node}', f'node-{node}') for node in NODES]  # beside the chief, and not
        seen = {(who, port): reaches(where, chief, port) for port in (TRAINS, TELLS) for who, where in (
            ('its own', worker), ('operator', operator), ('scraper', None), ('beside', strangers[0]), ('elsewhere', strangers[1]))}
        self.assertEqual({key for key, came in seen.items() if came},
                         {('its own', TRAINS), ('its own', TELLS), ('operator', TELLS), ('scraper', TELLS)})
        self.assertTrue(reaches(None, operator, 8080))
        self.assertFalse(reaches(strangers[0], operator, 8080))
        # It was the policy that kept them out.
        policy = next(p for p in listed('-n', NAMESPACE, 'networkpolicies') if p['metadata']['name'].startswith('closed-network-'))
        kubectl('-n', NAMESPACE, 'delete', 'networkpolicy', policy['metadata']['name'])
        for stranger in strangers:
            eventually('a way in', lambda: reaches(stranger, chief, TRAINS))

    def test_a_namespace_that_denies_all(self):
        deny = {'apiVersion': 'networking.k8s.io/v1', 'kind': 'NetworkPolicy', 'metadata': {'name': 'deny', 'namespace': NAMESPACE},
                'spec': {'podSelector': {}, 'policyTypes': ['Ingress', 'Egress']}}
        apply(deny)
        self.addCleanup(kubectl, '-n', NAMESPACE, 'delete', 'networkpolicy', 'deny', '--ignore-not-found')
        alone = self.submit(small('alone', workers=0, chief=placed('node-2')))
        job = self.submit(small('apart', workers=1, spec__runPolicy={'progressDeadlineSeconds': 20}))
        self.told('a network policy that denies all', job, 'NoProgress', 'the first step', condition='Stalled',
                  do='`meshtrain logs --all` shows who waits for whom; where nobody is reached, see the namespace')
        for replica in ('chief-0', 'worker-0'):
            self.assertIn('waiting for the other processes of the job', kubectl('-n', NAMESPACE, 'logs', f'apart-{replica}'))
        alone.until_succeeded()  # which needs nobody
        # Let out again, they find each other.
        kubectl('-n', NAMESPACE, 'delete', 'networkpolicy', 'deny')
        job.until_succeeded()
        self.assert_same_figures(job)
