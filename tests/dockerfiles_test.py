#!/usr/bin/env python3
"""dockerfiles_test.py ROOT [IMAGE...]: deploy/docker/*.Dockerfile, as they stand, are built by buildah from a Debian 12 that
debootstrap makes, under the name of the base that they name. The images are small, run as uid 65532, start with nothing else
of this machine, and have the files that scripts/images gives them without a builder. Needs root, buildah, debootstrap, some
20 GB in TMPDIR (default: /var/tmp), and an hour of two cores the first time: what was compiled is kept in the cache."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
IMAGES = sys.argv[2:] or ['operator', 'worker']
del sys.argv[1:]
BASE = 'docker.io/library/debian:12'
MOST = {'operator': 40e6, 'worker': 120e6}
PROGRAMS = {'operator': ['meshtrain', 'meshtrain-operator'], 'worker': ['meshtrain-worker']}
VERSION = re.search(r'project\([^)]*VERSION ([0-9.]+)', (ROOT / 'CMakeLists.txt').read_text()).group(1)
SKIPPED = 77
CACHE = pathlib.Path(os.environ.get('MESHTRAIN_CACHE') or
                     pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'meshtrain')
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix='meshtrain-dockerfiles.', dir=os.environ.get('TMPDIR', '/var/tmp')))

sys.path.insert(0, str(ROOT / 'tests/e2e/node'))
from figures import note  # noqa: E402


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f'{command[:6]}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-5000:]}'
    return done.stdout


def buildah(*command, driver=None):
    return run('buildah', '--root', FOLDER / 'storage', '--runroot', FOLDER / 'run', '--storage-driver', driver or DRIVER, *command)


def storage_driver():
    """Overlays cannot lie on every file system; copies of all layers can."""
    try:
        buildah('info', driver='overlay')
        return 'overlay'
    except AssertionError:
        shutil.rmtree(FOLDER / 'storage', ignore_errors=True)
        return 'vfs'


def make_base():
    root = FOLDER / 'debian'
    mirror = next((uri for uri in run('apt-get', 'indextargets', '--format', '$(REPO_URI)', 'Created-By: Packages').split()
                   if 'security' not in uri), None)
    run('debootstrap', '--variant=minbase', 'bookworm', root, *([mirror] if mirror else []))
    # As this machine fetches packages.
    (root / 'etc/apt/apt.conf.d/99host').write_text(run('apt-config', 'dump', 'Acquire'))
    archive = FOLDER / 'debian.tar'
    run('tar', '-C', root, '--exclude=./dev/*', '--exclude=./proc/*', '--exclude=./sys/*', '-cf', archive, '.')
    shutil.rmtree(root)
    container = buildah('from', 'scratch').strip()
    buildah('add', container, archive, '/')
    buildah('config', '--cmd', '/bin/bash', container)
    buildah('commit', '--rm', container, BASE)
    archive.unlink()


def compilers_cache():
    folder = CACHE / 'ccache-images'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'ccache.conf').write_text('max_size = 5.0G\n')
    return folder


def files_of(tar):
    """{path: (kind, mode, uid)} of what is in it, folders aside."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as files:
        return {member.name.removeprefix('./'): (member.type, member.mode & 0o7777, member.uid)
                for member in files if not member.isdir()}


class DockerfilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        global DRIVER
        cls.addClassCleanup(shutil.rmtree, FOLDER)
        DRIVER = storage_driver()
        make_base()

    def build(self, image):
        begun = time.monotonic()
        buildah('bud', '--isolation', 'chroot', '--pull-never', '--layers',
                '--volume', f'{compilers_cache()}:/root/.cache/ccache',
                '--file', ROOT / f'deploy/docker/{image}.Dockerfile', '--tag', f'meshtrain-{image}:test', ROOT)
        layout = FOLDER / image
        buildah('push', f'meshtrain-{image}:test', f'oci:{layout}:test')

        def blob(descriptor):
            data = (layout / 'blobs' / descriptor['digest'].replace(':', '/')).read_bytes()
            self.assertEqual('sha256:' + hashlib.sha256(data).hexdigest(), descriptor['digest'])
            return data
        manifest = json.loads(blob(json.loads((layout / 'index.json').read_text())['manifests'][0]))
        layers = [blob(layer) for layer in manifest['layers']]
        self.assertEqual(len(layers), 1, 'one copied folder')
        size = len(layers[0]) + manifest['config']['size']
        note(f'{image}.Dockerfile built in {time.monotonic() - begun:.0f} s: {size / 1e6:.1f} MB')
        self.assertLess(size, MOST[image])
        return json.loads(blob(manifest['config'])), gzip.decompress(layers[0])

    def check(self, image):
        config, tar = self.build(image)
        self.assertEqual(config['config']['User'], '65532:65532')
        self.assertEqual(config['config']['Entrypoint'], [f'/usr/bin/meshtrain-{image}'])
        self.assertEqual(config['config']['WorkingDir'], '/work')
        root = FOLDER / f'{image}-root'
        with tarfile.open(fileobj=io.BytesIO(tar)) as files:
            self.assertEqual(files.getmember('work').uid, 65532)
            files.extractall(root)
        found = files_of(tar)
        self.assertEqual(sorted(name for name in found if name.startswith('usr/bin/')),
                         [f'usr/bin/{program}' for program in PROGRAMS[image]], 'no shell')
        for name, (_, mode, _) in found.items():
            self.assertFalse(mode & 0o6000, f'{name}: setuid')
        for program in PROGRAMS[image]:
            said = run('chroot', '--userspec=65532:65532', root, f'/usr/bin/{program}', '--version')
            self.assertEqual(said.split()[-1], VERSION, program)
        # What scripts/images makes of these very programs, without a builder.
        made = FOLDER / f'{image}-made'
        run(ROOT / 'scripts/images', '--with', 'nothing', '--build', root / 'usr/bin', '--output', made, '--tag', 'test', image)
        with tarfile.open(made / f'meshtrain-{image}-test.tar') as archive:
            layer = archive.extractfile(json.load(archive.extractfile('manifest.json'))[0]['Layers'][0]).read()
        self.assertEqual({name: what[:2] for name, what in files_of(gzip.decompress(layer)).items()},
                         {name: what[:2] for name, what in found.items()})

    @unittest.skipUnless('operator' in IMAGES, 'not asked for')
    def test_operator(self):
        self.check('operator')

    @unittest.skipUnless('worker' in IMAGES, 'not asked for')
    def test_worker(self):
        self.check('worker')


if __name__ == '__main__':
    lacks = [what for what in ('buildah', 'debootstrap') if not shutil.which(what)]
    if os.geteuid() != 0 or lacks:
        FOLDER.rmdir()
        print(f'not run: expected root, buildah and debootstrap (scripts/install-packages --e2e), got: uid {os.geteuid()}, '
              f'without {" and ".join(lacks) or "none of them"}')
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
