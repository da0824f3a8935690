"""The package for Debian, built and installed: an overlay of this machine is its machine, in namespaces of its own.

systemd does not run there; the test starts what the unit names, as the unit's user. Needs root, Debian, and pip's
index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 600

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("dpkg-deb", "unshare", "setpriv"))),
        reason="needs root, dpkg-deb and unshare",
    ),
]

OUTSIDE = """\
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs FOLDER
mkdir FOLDER/upper FOLDER/work FOLDER/root
mount -t overlay overlay -o lowerdir=/,upperdir=FOLDER/upper,workdir=FOLDER/work FOLDER/root
mount -t proc proc FOLDER/root/proc
mount --rbind /dev FOLDER/root/dev
mount -t tmpfs tmpfs FOLDER/root/tmp
mount -t tmpfs tmpfs FOLDER/root/run
cp PACKAGE FOLDER/root/tmp/leveret.deb
exec unshare --net chroot FOLDER/root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C sh -eu -c '
INSIDE'
"""

INSIDE = """\
ip link set lo up
dpkg --install /tmp/leveret.deb
stat -c "%n %U:%G %a" /etc/leveret/leveret.conf /var/lib/leveret /var/log/leveret
start() {
    command=$(sed -n s/^ExecStart=//p /usr/lib/systemd/system/leveret.service)
    setpriv --reuid=leveret --regid=leveret --init-groups env HOME=/var/lib/leveret $command > /tmp/log 2>&1 &
    node=$!
    leveretctl await_startup --timeout 60 > /dev/null || { cat /tmp/log; exit 1; }
}
start
leveretctl add_user ann secret > /dev/null
/opt/leveret/bin/rabbitmqadmin declare queue name=orders
test -s /var/log/leveret/leveret.log
echo "compiled: $(find /opt/leveret/lib -name "node.cpython-*.pyc" | wc -l)"
echo "# changed" >> /etc/leveret/leveret.conf
dpkg --install /tmp/leveret.deb
kill $node
wait $node
start
echo "kept: $(tail -1 /etc/leveret/leveret.conf) $(leveretctl -q list_queues name --no-table-headers)"
kill $node
wait $node
dpkg --remove leveret
echo "after removal: $(ls -d /opt/leveret /etc/leveret/* /var/lib/leveret/* 2> /dev/null | tr "\\n" " ")"
dpkg --purge leveret
echo "after purging: $(ls -d /etc/leveret /var/lib/leveret /var/log/leveret /usr/bin/leveret* 2> /dev/null)"
getent passwd leveret || echo "no user"
"""


def test_the_package_installs_runs_and_leaves_nothing(tmp_path: Path) -> None:
    builder = ROOT / "packaging" / "debian" / "build.py"
    subprocess.run([sys.executable, builder, "--folder", tmp_path], check=True, timeout=TIMEOUT_S)
    (package,) = tmp_path.glob("leveret_*.deb")
    assert package.stat().st_size < 10_000_000
    folder = tmp_path / "machine"
    folder.mkdir()
    script = OUTSIDE.replace("INSIDE", INSIDE).replace("FOLDER", str(folder)).replace("PACKAGE", str(package))
    done = subprocess.run(  # Mounts and processes end with the first process of the namespaces.
        ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    lines = set(done.stdout.splitlines())
    assert {
        "/etc/leveret/leveret.conf root:leveret 640",
        "/var/lib/leveret leveret:leveret 750",
        "/var/log/leveret leveret:leveret 750",
        "queue declared",
        "compiled: 1",
        "kept: # changed orders",
        "after removal: /etc/leveret/leveret.conf /var/lib/leveret/leveret@localhost ",
        "after purging: ",
        "no user",
    } <= lines, done.stdout
