"""TensorFlow's own program, in an image that knows nothing of us, under MultiWorkerMirroredStrategy; and some that fail."""
import json
import os
import unittest

from cluster import ROOT, STRICT, kubectl
from table import Refusal

OURS = {**STRICT, 'runAsUser': 65532}
LAST_LINES = 'Look at its last lines with `meshtrain logs`, mend the program or its data, and submit the job again.'


def replica(*command, count=1, container=None, **pod):
    """Of TensorFlow's image, whose template says all by itself."""
    return {'replicas': count, 'restartPolicy': 'ExitCode', 'template': {'spec': {
        'nodeSelector': {'kubernetes.io/hostname': 'node-1'},  # which alone has the image
        'securityContext': {'runAsNonRoot': True, 'runAsUser': 65532, 'seccompProfile': {'type': 'RuntimeDefault'}},
        'containers': [{'name': 'trainer', 'image': 'localhost/tensorflow:1', 'command': ['python3', *command],
                        'env': [{'name': 'HOME', 'value': '/tmp'}], 'securityContext': STRICT,
                        'volumeMounts': [{'name': 'program', 'mountPath': '/program'}], **(container or {})}],
        'volumes': [{'name': 'program', 'configMap': {'name': 'tensorflow-program'}}], **pod}}}


def tensorflow(name, **replicas):
    return {'apiVersion': 'meshtrain.dev/v1', 'kind': 'TrainingJob', 'metadata': {'name': name}, 'spec': {
        'strategy': 'MultiWorkerMirrored', 'runPolicy': {'backoffLimit': 0}, 'replicaSpecs': replicas}}


@unittest.skipUnless(os.environ.get('MT_TENSORFLOW_IMAGE'), 'no image with TensorFlow: scripts/test --e2e --peers makes it')
class TensorFlow(Refusal):
    def setUp(self):
        program = ROOT / 'tests/integration/tensorflow/train.py'
        kubectl('-n', 'ml', 'create', 'configmap', 'tensorflow-program', f'--from-file={program}')
        self.addCleanup(kubectl, '-n', 'ml', 'delete', 'configmap', 'tensorflow-program')

    def test_multi_worker_mirrored(self):
        mirrored = ('/program/train.py', 'MultiWorkerMirrored')
        job = self.submit(tensorflow('mirrored', chief=replica(*mirrored), worker=replica(*mirrored, count=2)))
        job.until_succeeded()
        said = [json.loads(kubectl('-n', 'ml', 'logs', f'mirrored-{pod}').splitlines()[-1])
                for pod in ('chief-0', 'worker-0', 'worker-1')]
        self.assertEqual([one['replicas'] for one in said], [3, 3, 3])
        self.assertEqual(said[0]['weights'], said[1]['weights'])
        self.assertEqual(said[0]['weights'], said[2]['weights'])
        self.assertLess(said[0]['loss'][-1], said[0]['loss'][0] / 10)

    def test_a_program_that_raises(self):
        job = self.submit(tensorflow('raises', worker=replica('-c', 'raise KeyError("no column: price")')))
        self.told('TensorFlow: a program that raises', job, 'PodFailed', 'raises-worker-0', 'exit code 1', 'no column: price',
                  condition='Failed', do=LAST_LINES)

    def test_an_evaluator_that_finds_no_checkpoint(self):
        evaluates = 'import tensorflow as tf; tf.train.load_checkpoint("/tmp/none")'
        job = self.submit(tensorflow('unjudged', worker=replica('-c', 'import time; time.sleep(600)'), evaluator=replica('-c', evaluates)))
        self.told('TensorFlow: an evaluator that finds no checkpoint', job, 'PodFailed', 'unjudged-evaluator-0', 'exit code 1', '/tmp/none',
                  condition='Failed', do=LAST_LINES)

    def test_memory(self):
        job = self.submit(tensorflow('narrow', worker=replica('-c', 'import tensorflow', container={
            'resources': {'limits': {'memory': '64Mi'}}})))
        self.told('TensorFlow: more memory than the limit', job, 'BackoffLimitExceeded', 'narrow-worker-0', '137', 'OOMKilled',
                  condition='Failed', do="Raise the container's memory limit, or make the batch smaller.")

    def test_a_port_that_is_taken(self):
        listens = {'name': 'listens', 'image': 'localhost/pause:1', 'command': ['/listen', '2222'], 'restartPolicy': 'Always',
                   'securityContext': OURS}
        mirrored = ('/program/train.py', 'MultiWorkerMirrored')
        job = self.submit(tensorflow('held', chief=replica(*mirrored, initContainers=[listens]), worker=replica(*mirrored)))
        self.told('TensorFlow: a port that another container of the pod has', job, 'PodFailed', 'held-chief-0', 'exit code 1',
                  'Could not start gRPC server', condition='Failed', do=LAST_LINES)
