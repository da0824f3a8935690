"""The image, built and run without Docker: the instructions of the Dockerfile, carried out in a chroot.

A mount namespace has the machine's /usr read-only, and the Python of these tests at /usr/local, where Python's images
have it. Each stage of the Dockerfile is a root of its own. At the end the entry point runs in a network namespace, as
root and as the image's user, and is asked what people ask containers. Needs root, overlayfs, and pip's index.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "packaging" / "docker" / "Dockerfile"
TIMEOUT_S = 600
PYTHON = Path(sys.base_prefix)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None or not (PYTHON / "bin" / "python").exists(),
        reason="needs root, unshare, and a Python that has a folder of its own",
    ),
]

HEAD = """\
set -eu
mount --make-rprivate /
stage() {
    root=$1
    mkdir -p $root/usr $root/etc $root/proc $root/dev $root/tmp $root/var/lib $root/opt $root.upper $root.work
    for name in bin sbin lib lib64; do ln -s usr/$name $root/$name; done
    chmod 1777 $root/tmp
    mount --rbind --read-only /usr $root/usr
    mount -t overlay overlay -o lowerdir=PYTHON,upperdir=$root.upper,workdir=$root.work $root/usr/local
    mount -t proc proc $root/proc
    mount --rbind /dev $root/dev
    for name in passwd group shadow gshadow login.defs nsswitch.conf hosts resolv.conf ssl ld.so.conf ld.so.conf.d \\
        pip.conf alternatives; do
        [ ! -e /etc/$name ] || cp -aL /etc/$name $root/etc/
    done
    chroot $root ldconfig
    sed -i '/:999:/d;/^rabbitmq:/d' $root/etc/passwd $root/etc/group $root/etc/shadow $root/etc/gshadow
    for name in INDEXES; do mkdir -p $root$name; mount --rbind --read-only $name $root$name; done
}
"""

RUN = """\
cat > $root/tmp/inside <<'END'
set -eu
ip link set lo up
INSIDE
END
exec unshare --net --pid --fork --mount-proc=$root/proc chroot $root /usr/bin/env -i ENVIRONMENT sh /tmp/inside
"""

# What a container is asked, by root and by its own user.
INSIDE = """\
touch /var/lib/rabbitmq/of-root
docker-entrypoint.sh rabbitmq-server > /tmp/log 2>&1 &
node=$!
rabbitmqctl await_startup --timeout 60 || { cat /tmp/log; exit 1; }
echo "user: $(stat -c %U:%u /proc/$node /var/lib/rabbitmq/of-root | tr '\\n' ' ')"
grep -o 'Server startup complete' /tmp/log
rabbitmq-diagnostics -q check_running
setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups rabbitmq-diagnostics -q ping
rabbitmqadmin -u ann -p secret declare queue name=orders
rabbitmq-plugins enable rabbitmq_mqtt > /dev/null
rabbitmq-diagnostics -q listeners | sed -n 's/.*port: \\([0-9]*\\),.*/port: \\1/p'
kill $node && wait $node
# Made anew, with another host name and the same volume.
hostname other
setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups docker-entrypoint.sh rabbitmq-server > /tmp/log 2>&1 &
node=$!
rabbitmqctl await_startup --timeout 60 || { cat /tmp/log; exit 1; }
echo "queues: $(rabbitmqctl -q list_queues name --no-table-headers)"
rabbitmq-diagnostics -q check_port_listener 1883 > /dev/null
kill $node && wait $node
RABBITMQ_DEFAULT_PASS_FILE=x docker-entrypoint.sh rabbitmq-server || echo "refused: $?"
echo "bytes: $(du -s --bytes /opt/leveret | cut -f1)"
"""


def indexes() -> list[str]:
    """Returns folders in which this machine's pip looks for packages, if it has such."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = re.findall(r"(?:file://|(?<=['\s]))(/[^\s']+)", told.stdout)
    folders = {str(Path(one).parent if one.endswith("/simple") else one) for one in found}
    return sorted(one for one in folders if os.path.isdir(one) and not one.startswith(("/usr", "/etc")))


def steps(folder: Path) -> Iterator[str]:
    """Yields lines of a shell script that does what the Dockerfile says."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    environ = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    environ["PATH"] = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin"
    stage, place, stages = "", "/", dict[str, str]()
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stage, place = f"{folder}/stage{len(stages)}", "/"
            stages[rest.partition(" AS ")[2]] = stage
            yield f"stage {stage}"
        elif word == "WORKDIR":
            place = rest
            yield f"mkdir -p {stage}{place}"
        elif word == "COPY":
            yield from copies(rest, stages, stage, place)
        elif word == "ENV":
            pairs = dict(pair.split("=", 1) for pair in shlex.split(rest))
            environ |= {key: value.replace("$PATH", environ["PATH"]) for key, value in pairs.items()}
        elif word == "RUN":
            yield f"chroot {stage} /usr/bin/env -i {shown(environ)} sh -euc {shlex.quote(f'cd {place}; {rest}')}"
        elif word == "VOLUME":
            yield f"mkdir -p {stage}{rest}"
    login = {"RABBITMQ_DEFAULT_USER": "ann", "RABBITMQ_DEFAULT_PASS": "secret"}
    yield RUN.replace("ENVIRONMENT", shown(environ | login)).replace("INSIDE", INSIDE)


def copies(rest: str, stages: dict[str, str], stage: str, place: str) -> Iterator[str]:
    """Yields the lines of a COPY. A folder's content is copied, and a target that ends in a slash is a folder."""
    words = shlex.split(rest)
    options = dict(one[2:].split("=", 1) for one in words if one.startswith("--"))
    *sources, target = [one for one in words if not one.startswith("--")]
    base = stages[options["from"]] if "from" in options else str(ROOT)
    target = stage + os.path.join(place, target)
    for source in sources:
        into = os.path.join(target, os.path.basename(source)) if target.endswith("/") else target
        yield f"mkdir -p {os.path.dirname(into)}"
        yield f"cp -r --preserve=mode,links --no-target-directory {base}/{source.removeprefix('/')} {into}"
    if "chown" in options:
        yield f"chown -R {options['chown']} {target}"


def shown(environ: dict[str, str]) -> str:
    return " ".join(shlex.quote(f"{key}={value}") for key, value in environ.items())


def test_the_image_builds_and_runs(tmp_path: Path) -> None:
    head = HEAD.replace("PYTHON", str(PYTHON)).replace("INDEXES", " ".join(indexes()))
    script = tmp_path / "build.sh"
    script.write_text("\n".join([head, *steps(tmp_path)]))
    # The mounts end with the last process of the namespace.
    done = subprocess.run(
        ["unshare", "--mount", "--uts", "sh", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert "user: rabbitmq:999 rabbitmq:999 " in lines, done.stdout
    assert {"Server startup complete", "queue declared", "refused: 1", "queues: orders"} <= set(lines), done.stdout
    assert {"port: 5672", "port: 15672", "port: 15692", "port: 25672", "port: 1883"} <= set(lines), done.stdout
    (size,) = [int(line.removeprefix("bytes: ")) for line in lines if line.startswith("bytes: ")]
    assert size < 40_000_000, size  # All that the image adds to its base.
