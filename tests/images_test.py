#!/usr/bin/env python3
"""images_test.py ROOT BIN [ARCHITECTURE]: scripts/images makes both images without docker from the programs in BIN; their
archives are whole, small and say what Kubernetes must know; as root, the worker trains in its image as uid 65532, and as one
that nobody knows, with nothing else of this machine, on a file system that it cannot write, and its model is in the output
folder; a program of one's own runs in the worker's. Programs of another architecture (arm64) run by QEMU."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT, BIN = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
HERE = {'x86_64': 'amd64', 'aarch64': 'arm64'}[platform.machine()]
EMULATORS = {'arm64': 'qemu-aarch64-static'}
ARCHITECTURE = sys.argv.pop(3) if sys.argv[3:] and sys.argv[3] in EMULATORS else HERE
del sys.argv[1:3]
EMULATOR = None if ARCHITECTURE == HERE else shutil.which(EMULATORS[ARCHITECTURE])
IMAGES = [ROOT / 'scripts/images', '--with', 'nothing', '--platform', f'linux/{ARCHITECTURE}', '--build', BIN, '--tag', 'test']
PYTHON = os.environ.get('MT_TEST_PYTHON')
# What starts in each.
PROGRAMS = {'operator': 'meshtrain-operator', 'worker': 'meshtrain-worker'}
PREFIX = ['/emulator'] if EMULATOR else []
MOST = {'operator': 40e6, 'worker': 120e6}
MANIFEST = {
    'seed': 1,
    'data': {'train': {'idx': {'images': 'data/digits5120-images-idx3-ubyte.gz',
                               'labels': 'data/digits5120-labels-idx1-ubyte.gz'}, 'take': 640},
             'map': [{'scale': 0.00392156862745098}], 'batch': 64},
    'model': ['flatten', {'dense': {'name': 'logits', 'units': 10}}],
    'loss': {'sparse_categorical_crossentropy': {'from_logits': True}},
    'optimizer': {'adam': {'learning_rate': 0.01}}, 'train': {'epochs': 2},
}


def sanitized(program):
    return re.search(rb'__[at]san_init', program.read_bytes()) is not None


class ImagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        # By somebody whose files are not for others: those of an image are.
        run = subprocess.run([*IMAGES, '--output', cls.folder], capture_output=True, text=True, check=False, umask=0o077)
        assert run.returncode == 0, run.stdout + run.stderr
        cls.said = run.stdout
        cls.images = {name: cls.read(cls.archive(name)) for name in MOST}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def archive(cls, image):
        suffix = '' if ARCHITECTURE == HERE else f'-{ARCHITECTURE}'
        return cls.folder / f'meshtrain-{image}-test{suffix}.tar'

    @staticmethod
    def read(path):
        with tarfile.open(path) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar if member.isreg()}

    def blob(self, image, descriptor):
        data = self.images[image]['blobs/' + descriptor['digest'].replace(':', '/')]
        self.assertEqual('sha256:' + hashlib.sha256(data).hexdigest(), descriptor['digest'])
        self.assertEqual(len(data), descriptor['size'])
        return data

    def parts(self, image, name=None):
        """(config, layer as tar bytes, bytes in a registry); `name`: what the image calls itself, if not that"""
        index = json.loads(self.images[image]['index.json'])
        self.assertEqual([m['platform'] for m in index['manifests']], [{'architecture': ARCHITECTURE, 'os': 'linux'}])
        text = self.blob(image, index['manifests'][0])
        manifest = json.loads(text)
        config = self.blob(image, manifest['config'])
        layer = self.blob(image, manifest['layers'][0])
        tar = gzip.decompress(layer)
        self.assertEqual(json.loads(config)['rootfs']['diff_ids'], ['sha256:' + hashlib.sha256(tar).hexdigest()])
        docker = json.loads(self.images[image]['manifest.json'])[0]
        self.assertEqual(docker['RepoTags'], [f'meshtrain-{name or image}:test'])
        for name in [docker['Config'], *docker['Layers']]:
            self.assertIn(name, self.images[image])
        return json.loads(config), tar, len(text) + len(config) + len(layer)

    def test_they_are_whole_small_and_run_as_nobody(self):
        for image, most in MOST.items():
            config, tar, size = self.parts(image)
            print(f'meshtrain-{image}: {size / 1e6:.1f} MB')
            if not sanitized(BIN / PROGRAMS[image]):
                self.assertLess(size, most)
            self.assertIn(f'meshtrain-{image}:test', self.said)
            self.assertEqual(config['architecture'], ARCHITECTURE)
            self.assertEqual(config['config']['User'], '65532:65532')
            self.assertEqual(config['config']['Entrypoint'], [f'/usr/bin/meshtrain-{image}'])
            self.assertEqual(config['config']['WorkingDir'], '/work')
            with tarfile.open(fileobj=io.BytesIO(tar)) as files:
                names = files.getnames()
                self.assertEqual(files.getmember('work').uid, 65532)
                self.assertEqual([n for n in names if n.startswith('usr/bin/')],
                                 ['usr/bin/meshtrain', 'usr/bin/meshtrain-operator'] if image == 'operator'
                                 else ['usr/bin/meshtrain-worker'], 'no shell')
                for member in files:
                    self.assertFalse(member.mode & 0o6000, f'{member.name}: setuid')
                    needed = 0o5 if member.isdir() else 0o4
                    self.assertEqual(member.mode & needed, needed, f'{member.name}: not for uid 65532 to read')
                bill = json.loads(files.extractfile('usr/share/sbom/meshtrain.spdx.json').read())
                packages = {p['name'] for p in bill['packages']}
                self.assertLessEqual({'libc6', 'libssl3', 'ca-certificates'}, packages)
                for package in packages - {PROGRAMS[image]}:
                    self.assertIn(f'usr/share/doc/{package}/copyright', names)
                self.check_bill(files.extractfile('usr/share/sbom/meshtrain.spdx.json').read())

    def check_bill(self, text):
        """By the specification's own library, of the tests' Python."""
        if not PYTHON or not (pathlib.Path(PYTHON).parent / 'pyspdxtools').exists():
            print('spdx-tools are not here: the list of packages is not checked by them')
            return
        path = self.folder / 'image.spdx.json'
        path.write_bytes(text)
        run = subprocess.run([pathlib.Path(PYTHON).parent / 'pyspdxtools', '-i', path], capture_output=True, text=True,
                             check=False)
        self.assertEqual((run.returncode, run.stdout + run.stderr), (0, ''))

    def test_the_same_files_give_the_same_image(self):
        before = hashlib.sha256(self.archive('operator').read_bytes()).hexdigest()
        again = self.folder / 'again'
        subprocess.run([*IMAGES, '--output', again, 'operator'], check=True, capture_output=True)
        self.assertEqual(hashlib.sha256((again / self.archive('operator').name).read_bytes()).hexdigest(), before)

    def test_dockerfiles_say_the_same(self):
        for image in MOST:
            text = (ROOT / f'deploy/docker/{image}.Dockerfile').read_text()
            config, _, _ = self.parts(image)
            self.assertIn(f'USER {config["config"]["User"]}\n', text)
            self.assertIn(f'ENTRYPOINT {json.dumps(config["config"]["Entrypoint"])}\n', text)
            self.assertIn(f'WORKDIR {config["config"]["WorkingDir"]}\n', text)
            self.assertIn('scripts/image-root /image build/release/bin/meshtrain-' + image, text)

    def unpack(self, image, name=None):
        root = self.folder / f'root-{image}'
        if not root.exists():
            _, tar, _ = self.parts(image, name)
            with tarfile.open(fileobj=io.BytesIO(tar)) as files:
                files.extractall(root)
            if EMULATOR:
                shutil.copy(EMULATOR, root / 'emulator')
        return root

    @unittest.skipIf(os.geteuid() != 0, 'needs root, for chroot')
    def test_programs_start_with_nothing_else_of_this_machine(self):
        for image, program in (('operator', 'meshtrain-operator'), ('operator', 'meshtrain'), ('worker', 'meshtrain-worker')):
            if sanitized(BIN / program):
                self.skipTest('sanitizers look into /proc')
            for user in ('65532:65532', '1000660000:0'):
                run = subprocess.run(['chroot', f'--userspec={user}', self.unpack(image), *PREFIX, f'/usr/bin/{program}',
                                      '--version'], capture_output=True, text=True, check=False,
                                     env={'PATH': os.environ['PATH']})
                self.assertEqual(run.returncode, 0, run.stderr)

    @unittest.skipIf(os.geteuid() != 0, 'needs root, for mounts and chroot')
    def test_the_worker_trains_as_nobody_on_a_file_system_it_cannot_write(self):
        self.train(65532, 65532, 65532)

    @unittest.skipIf(os.geteuid() != 0, 'needs root, for mounts and chroot')
    def test_it_trains_as_a_user_that_no_file_knows(self):
        """As OpenShift gives one: a number of the namespace, group 0, and the namespace's group of volumes."""
        self.train(1000660000, 0, 1000660000)

    @unittest.skipIf(os.geteuid() != 0, 'needs root, for chroot')
    def test_a_program_of_ones_own_runs_in_the_workers_image(self):
        program = BIN / 'custom_loop'
        if not program.exists():
            self.skipTest(f'{program} is not there')
        if sanitized(program):
            self.skipTest('sanitizers look into /proc')
        folder = self.folder / 'own'
        subprocess.run([*IMAGES, '--output', folder, '--program', program, 'worker'], check=True, capture_output=True)
        self.images['own'] = self.read(folder / self.archive('worker').name)
        run = subprocess.run(['chroot', '--userspec=65532:65532', self.unpack('own', 'worker'), *PREFIX, '/usr/bin/custom_loop'],
                             capture_output=True, text=True, check=False, env={'PATH': os.environ['PATH']})
        self.assertEqual(run.returncode, 0, run.stderr)
        losses = run.stdout.split()
        self.assertEqual(len(losses), 210)
        self.assertAlmostEqual(float(losses[0]), 0.9024367, places=6)

    def test_a_program_that_no_image_can_take_is_named(self):
        for arguments, status, said in (
                (['--program', BIN / 'none', 'worker'], 1, f'{BIN / "none"}: expected a built program'),
                (['--program', BIN / 'meshtrain-worker'], 64, 'expected programs of different names'),
                (['--program', BIN / 'custom_loop', 'operator'], 64, 'expected the image worker among those to make')):
            run = subprocess.run([*IMAGES, '--output', self.folder / 'none', *arguments], capture_output=True, text=True,
                                 check=False)
            self.assertEqual(run.returncode, status, run.stderr)
            self.assertIn(said, run.stderr)
            self.assertFalse((self.folder / 'none' / self.archive('worker').name).exists())

    def train(self, user, group, volumes):
        root = self.unpack('worker')
        claim = self.folder / f'claim-{user}'
        claim.mkdir()
        os.chown(claim, 0, volumes)
        os.chmod(claim, 0o2770)  # as fsGroup leaves a volume
        script = f'''
set -e
mount --make-rprivate /
mount --bind {root} {root}
mount -o remount,ro,bind {root}
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
mount -t tmpfs -o mode=0777 tmpfs {root}/work
mkdir {root}/work/data {root}/work/output
mount --bind -o ro {ROOT}/tests/testdata/mlp {root}/work/data
mount --bind {claim} {root}/work/output
mount -t proc proc {root}/proc
cd {root}/work
exec chroot --userspec={user}:{group} --groups={volumes} {root} {' '.join(PREFIX)} /bin/meshtrain-worker --metrics-address none
'''
        environment = {'MESHTRAIN_PROGRAM': json.dumps(MANIFEST), 'MESHTRAIN_JOB': 'ml/mnist',
                       'MESHTRAIN_OUTPUT': '/work/output/mnist', 'PATH': os.environ['PATH']}
        # The program's relative paths begin at the working directory, which chroot(1) sets to /.
        environment['MESHTRAIN_PROGRAM'] = environment['MESHTRAIN_PROGRAM'].replace('data/digits', '/work/data/digits')
        run = subprocess.run(['unshare', '--mount', 'bash', '-c', script], capture_output=True, text=True, check=False,
                             env=environment, timeout=120 if EMULATOR is None else 900)
        if run.returncode != 0 and 'mount' in run.stderr and 'permitted' in run.stderr:
            self.skipTest('mounts are not permitted here')
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        for name in ('model.safetensors', 'report.html', 'metrics.jsonl', 'events/train'):
            path = claim / 'mnist' / name
            self.assertTrue(path.exists(), name)
            self.assertEqual((path.stat().st_uid, path.stat().st_gid), (user, volumes), name)


if __name__ == '__main__':
    unittest.main(verbosity=2)
