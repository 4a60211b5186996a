"""Jobs train on real nodes, and are seen."""
import http.client
import json
import os
import re
import subprocess
import time

import monitor
from cluster import ROOT, Case, Job, eventually, example, kubectl, mlp, small
from figures import note
from install_test import INSTALLED


class Mlp(Case):
    """The MLP, a chief and two workers on two nodes."""

    def test_it_succeeds_with_its_loss_in_kubectl_get(self):
        job = self.submit(mlp('mnist-mlp'))
        seen = job.until('a loss', lambda: job.status().get('progress', {}).get('loss'))
        at = INSTALLED.pop('at', None)
        if at:
            note(f'{time.monotonic() - at:.1f} s from the beginning of helm install to the first loss, {seen}')
            if 'MT_BEGAN' in os.environ:
                note(f'{(time.time() - float(os.environ["MT_BEGAN"])) / 60:.1f} min from the beginning of scripts/test to it')
        job.until_succeeded()
        header, row = kubectl('-n', job.namespace, 'get', 'tj', job.name).splitlines()
        shown = {word: row[match.start():].split()[0] for match in re.finditer(r'\S+', header) for word in [match.group()]}
        self.assertEqual({name: shown[name] for name in ('NAME', 'PHASE', 'READY', 'STEP', 'PROGRESS', 'RESTARTS')},
                         {'NAME': 'mnist-mlp', 'PHASE': 'Succeeded', 'READY': '3/3', 'STEP': '120', 'PROGRESS': '100%',
                          'RESTARTS': '0'})
        figures = job.figures()
        # The last that kubectl shows is the last that the chief wrote.
        self.assertAlmostEqual(float(shown['LOSS']), figures[120, 'loss'], places=3)
        self.assertGreater(figures[120, 'val_accuracy'], 0.9)
        pods = job.pods()
        self.assertEqual({pod['spec']['nodeName'] for pod in pods}, {'node-1', 'node-2'})
        for pod in pods:
            context = pod['spec']['containers'][0]['securityContext']
            self.assertTrue(context['readOnlyRootFilesystem'] and not context['allowPrivilegeEscalation'])
        self.assertIn('sealed', kubectl('-n', job.namespace, 'logs', 'mnist-mlp-chief-0'))
        for name in ('model.safetensors', 'report.html', 'metrics.jsonl', 'plan.txt', 'events/train', 'checkpoints'):
            self.assertTrue((job.output() / name).exists(), name)
        self.assertEqual((job.output() / 'model.safetensors').stat().st_uid, 65532)
        self.assert_same_figures(job)

    def test_prometheus_scrapes_it(self):
        self.assertTrue(monitor.program().exists(), 'expected Prometheus (scripts/install-prometheus), got: none')
        with monitor.Prometheus() as prometheus:
            job = self.submit(small('scraped'))
            eventually('the loss that the operator tells', lambda: prometheus.ask(
                'meshtrain_job_loss{namespace="ml", job="scraped"}'), prometheus.told)
            # Over the hour, since the job may have ended before it is asked.
            steps = 'max_over_time(meshtrain_step_seconds_count{training_job="scraped"}[1h])'
            rows = eventually('the steps that processes tell', lambda: prometheus.ask(
                f'sum by (namespace, training_job, replica_type) ({steps}) > 0'), prometheus.told)
            self.assertIn({'namespace': 'ml', 'training_job': 'scraped', 'replica_type': 'chief'},
                          [labels for labels, _ in rows])
            job.until_succeeded()
            last = job.figures()[1200, 'loss']
            eventually('the last loss', lambda: any(abs(value - last) <= 1e-4 * last for _, value in prometheus.ask(
                'meshtrain_job_loss{namespace="ml", job="scraped"}')), prometheus.told)
            restarts = prometheus.ask('meshtrain_job_restarts{namespace="ml", job="scraped"}')
            self.assertEqual([value for _, value in restarts], [0])


class Quickstart(Case):
    def test_its_manifest_trains_beside_a_claim_with_the_data_and_what_it_leaves_outlives_the_pod(self):
        """As the README has it: the file itself, applied."""
        job = Job(example('mnist-mlp'))
        self.addCleanup(job.delete)
        kubectl('-n', job.namespace, 'apply', '-f', ROOT / 'deploy/examples/mnist-mlp.yaml')
        job.until_succeeded()
        self.assertEqual([pod['metadata']['name'] for pod in job.pods()], ['mnist-mlp-worker-0'])
        kubectl('-n', job.namespace, 'delete', 'tj', job.name)
        eventually('the end of its pods', lambda: not job.pods(), job.told)
        for name in ('model.safetensors', 'report.html', 'run.json', 'metrics.jsonl', 'plan.txt'):
            self.assertGreater((job.output() / name).stat().st_size, 0, name)
        for folder in ('events/train', 'events/test', 'checkpoints'):
            self.assertTrue(any((job.output() / folder).iterdir()), folder)
        self.assert_same_figures(job)
        self.assertGreater(job.figures()[120, 'val_accuracy'], 0.9)


class OwnProgram(Case):
    def test_it_trains_in_the_workers_image(self):
        """deploy/examples/custom-loop.yaml as it stands: three processes find each other by TF_CONFIG."""
        job = self.submit(example('custom-loop'))
        job.until_succeeded()
        self.assertEqual(len(job.pods()), 3)
        said = kubectl('-n', job.namespace, 'logs', 'custom-loop-worker-0').splitlines()
        losses = [float(line) for line in said if not line.startswith('time=')]  # beside what is logged
        self.assertEqual(len(losses), 210)
        # Those of the guide to distributed training.
        for loss, guide in zip(losses, (0.9024367, 0.8953863, 0.8884038)):
            self.assertAlmostEqual(loss, guide, places=6)


class Page(Case):
    def test_a_port_forward_shows_it(self):
        """Its own names are localhost's: a page of another site that was made to lead here gets nothing."""
        job = self.submit(small('shown', epochs=1000))
        job.until_step(60)
        forward = subprocess.Popen(['kubectl', '-n', job.namespace, 'port-forward', 'shown-chief-0', ':meshtrain-http'],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(forward.stdout.close)
        self.addCleanup(forward.wait)
        self.addCleanup(forward.kill)
        port = int(re.search(r'127\.0\.0\.1:(\d+) ->', forward.stdout.readline()).group(1))

        def ask(path, host):
            connection = http.client.HTTPConnection('127.0.0.1', port, timeout=30)
            self.addCleanup(connection.close)
            connection.request('GET', path, headers={'Host': host})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        for name in ('localhost', '127.0.0.1'):
            status, page = ask('/', f'{name}:{port}')
            self.assertEqual(status, 200)
            self.assertIn('shown', page)
        progress = json.loads(ask('/progress', f'localhost:{port}')[1])
        self.assertGreaterEqual(progress['step'], 60)
        self.assertEqual(ask('/', 'rebound.example')[0], 421)


class Parameter(Case):
    def test_parameter_servers_with_an_evaluator(self):
        """deploy/examples/parameter-server.yaml as it stands: a chief, three workers, two servers, an evaluator."""
        job = self.submit(example('parameter-server'))
        job.until_succeeded()
        pods = {pod['metadata']['name']: pod for pod in job.pods()}
        self.assertEqual(pods['digits-ps-evaluator-0']['status']['phase'], 'Succeeded')
        evaluated = [json.loads(line) for line in (job.output() / 'evaluator-0/metrics.jsonl').read_text().splitlines()]
        self.assertEqual([line['step'] for line in evaluated], [40, 80, 120])
        # Of the weights that the chief validated last.
        self.assertAlmostEqual(evaluated[-1]['loss'], job.figures()[120, 'val_loss'], delta=1e-4)
        self.assertGreater(evaluated[-1]['accuracy'], 0.8)


class Suspended(Case):
    def test_suspended_and_resumed(self):
        job = self.submit(small('rests'))
        job.until_step(60)
        kubectl('-n', job.namespace, 'patch', 'tj', job.name, '--type=merge', '-p', '{"spec":{"runPolicy":{"suspend":true}}}')
        job.until('its rest', lambda: job.status()['phase'] == 'Suspended')
        eventually('the end of its pods', lambda: not job.pods(), job.told)
        saved = max(int(path.name.split('-')[1]) for path in (job.output() / 'checkpoints').glob('ckpt-*'))
        self.assertGreaterEqual(saved, 40)
        kubectl('-n', job.namespace, 'patch', 'tj', job.name, '--type=merge', '-p', '{"spec":{"runPolicy":{"suspend":false}}}')
        job.until_succeeded()
        self.assertIn('JobResumed', [reason for _, reason, _ in job.events()])
        self.assertIn(f'step {saved}', kubectl('-n', job.namespace, 'logs', 'rests-chief-0'), 'goes on from what it saved')
        self.assertEqual(job.status().get('restarts', 0), 0)
        self.assert_same_figures(job)
