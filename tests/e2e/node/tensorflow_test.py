"""TensorFlow's own program, in an image that knows nothing of us, under MultiWorkerMirroredStrategy; and one that fails."""
import json
import os
import unittest

from cluster import ROOT, STRICT, kubectl
from table import Refusal

LAST_LINES = 'Look at its last lines with `meshtrain logs`, mend the program or its data, and submit the job again.'


def replica(*command, count=1):
    """Of TensorFlow's image, whose template says all by itself."""
    return {'replicas': count, 'restartPolicy': 'ExitCode', 'template': {'spec': {
        'nodeSelector': {'kubernetes.io/hostname': 'node-1'},  # which alone has the image
        'securityContext': {'runAsNonRoot': True, 'runAsUser': 65532, 'seccompProfile': {'type': 'RuntimeDefault'}},
        'containers': [{'name': 'trainer', 'image': 'localhost/tensorflow:1', 'command': ['python3', *command],
                        'env': [{'name': 'HOME', 'value': '/tmp'}], 'securityContext': STRICT,
                        'volumeMounts': [{'name': 'program', 'mountPath': '/program'}]}],
        'volumes': [{'name': 'program', 'configMap': {'name': 'tensorflow-program'}}]}}}


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
        mirrored = ('/program/train.py', 'mirrored')
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
