"""What is in packaging/: it can be read, and what it calls, sets and names exists.

The tools that these files are for need not be here. What could go wrong without them being wrong in form is checked
against the broker itself: every option, every setting, every command.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from leveret.cli.ctl.base.parse import parse
from leveret.cli.ctl.main import COMMANDS
from leveret.cli.main import build_parser
from leveret.cli.names import PROGRAMS
from leveret.cli.rabbitmq.programs import CTL
from leveret.cli.rabbitmq.server import apply_defaults
from leveret.node.config import plugins
from leveret.node.config.load import PLUGINS, Given, load
from leveret.node.config.settings import Listener, Settings
from leveret.node.system import systemd

PACKAGING = Path(__file__).parents[2] / "packaging"
UNIT = PACKAGING / "systemd" / "leveret.service"
CONF = PACKAGING / "systemd" / "leveret.conf"
DOCKERFILE = PACKAGING / "docker" / "Dockerfile"
COMPOSE = PACKAGING / "docker" / "compose.yaml"
ENTRYPOINT = PACKAGING / "docker" / "docker-entrypoint.sh"
ETC = PACKAGING / "docker" / "etc"
HAPROXY = PACKAGING / "docker" / "haproxy.cfg"
KUBERNETES = PACKAGING / "kubernetes" / "leveret.yaml"
EVERYWHERE = Listener("", 5672)


def check_ctl(words: list[str]) -> None:
    """A line of leveretctl, or of one of RabbitMQ's tools, that would be understood."""
    assert words[0] in CTL and words[0] in PROGRAMS, words
    name, _ = parse(words[1:], COMMANDS)
    assert name in COMMANDS, words


def settings_of(environ: dict[str, str], config: Path | None = None) -> Settings:
    loaded = load([], {"HOME": "/var/lib/leveret", **environ}, None if config is None else str(config))
    assert loaded.warnings == ()
    return loaded.settings


# -- systemd -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True, comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # Names of directives have capitals.
    parser.read(UNIT)
    return parser


def test_the_unit(unit: configparser.ConfigParser) -> None:
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/leveret/bin/leveret"
    parsed = build_parser().parse_args(arguments)
    assert (parsed.command, parsed.config) == ("server", "/etc/leveret/leveret.conf")
    assert service["Type"] == "notify"  # `service_manager` says when.
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["RestartPreventExitStatus"].split() == ["64", "65", "78"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_unit_by_systemd(tmp_path: Path) -> None:
    """With a program that is there: it looks for the one that is started."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/leveret/bin/leveret", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if copy.name in line] == []


def test_the_configuration_of_the_service(unit: configparser.ConfigParser) -> None:
    settings = settings_of({}, CONF)
    service = unit["Service"]
    assert settings.data_dir.startswith(f"/var/lib/{service['StateDirectory']}/")
    assert settings.log_file == f"/var/log/{service['LogsDirectory']}/leveret.log"
    assert settings.log_rotation.count == 7
    suggested = re.findall(r"^# ([a-z_.0-9]+ = .+)$", CONF.read_text(), re.MULTILINE)
    assert len(suggested) == 5


def test_what_the_configuration_suggests_holds_too(tmp_path: Path) -> None:
    cookie = tmp_path / "cookie"
    cookie.write_text("secret")
    text = re.sub(r"^# ([a-z_.0-9]+ = .+)$", r"\1", CONF.read_text(), flags=re.MULTILINE)
    path = tmp_path / "leveret.conf"
    path.write_text(
        text.replace("/var/lib/leveret/cookie", str(cookie)).replace("leveret@localhost", "leveret@one.example.org")
    )
    settings = settings_of({}, path)
    assert settings.discovery is not None and settings.discovery.founders == 3
    assert settings.cluster_host == "one.example.org"


def test_a_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        systemd.tell("READY=1")
        assert manager.recv(100) == b"READY=1"
    os.unlink(path)
    systemd.tell("STOPPING=1")  # Nobody listens; that is told in the log, and the node goes on.
    monkeypatch.delenv("NOTIFY_SOCKET")
    systemd.tell("READY=1")


# -- Docker --------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def image_environment() -> dict[str, str]:
    found: dict[str, str] = {}
    for word, rest in instructions():
        if word == "ENV":
            found |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    return found


def in_the_image(etc: Path, **environ: str) -> Settings:
    """Returns the settings that rabbitmq-server has in the image, with the files of a folder as /etc/rabbitmq."""
    found = {**image_environment(), **environ}
    apply_defaults(found, "b3a1c4", str(etc), "/no/such/folder")
    found.setdefault("RABBITMQ_MNESIA_BASE", "/var/lib/rabbitmq/mnesia")
    loaded = load([Given("listeners.tcp.default", "5672", PLUGINS, "rabbitmq-server")], found)
    assert [one for one in loaded.warnings if "USE_LONGNAME" not in one] == []
    return loaded.settings


def test_the_image() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK",
             "ENTRYPOINT", "CMD", "ARG"}  # fmt: skip
    words = [word for word, _ in instructions()]
    assert set(words) == known and words[:2] == ["ARG", "FROM"]
    # Whoever builds it can name the image by its digest; both stages are of that image.
    assert instructions()[0][1].startswith("PYTHON_IMAGE=python:3.")
    assert {rest.split()[0] for word, rest in instructions() if word == "FROM"} == {"${PYTHON_IMAGE}"}
    by_word = dict(instructions())  # The last of each.
    assert yaml.safe_load(by_word["ENTRYPOINT"]) == [ENTRYPOINT.name] and os.access(ENTRYPOINT, os.X_OK)
    assert yaml.safe_load(by_word["CMD"]) == ["rabbitmq-server"]
    check_ctl(yaml.safe_load(by_word["HEALTHCHECK"].partition("CMD ")[2]))
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            sources = [name for name in rest.split()[:-1] if not name.startswith("--")]
            assert all((PACKAGING.parent / name).exists() for name in sources)
    assert image_environment()["HOME"] == by_word["VOLUME"] == "/var/lib/rabbitmq"
    assert any("--uid 999 --gid rabbitmq" in rest and "--gid 999 rabbitmq" in rest for _, rest in instructions())


def test_the_image_has_rabbitmqs_defaults() -> None:
    settings = in_the_image(ETC)
    assert settings.tcp_listeners == (EVERYWHERE,)
    assert settings.node_name == "rabbit@b3a1c4" and settings.data_dir == "/var/lib/rabbitmq/mnesia/rabbit@b3a1c4"
    assert settings.loopback_users == frozenset() and settings.log_console and settings.log_file is None
    exposed = set(map(int, dict(instructions())["EXPOSE"].split()))
    used = (*settings.management_listeners, *settings.prometheus_listeners, *settings.tcp_listeners)
    assert {one.port for one in used} | {settings.cluster_listener.port} <= exposed
    assert {port.number for port in plugins.PORTS.values()} <= exposed


@pytest.mark.parametrize(
    "name", ["RABBITMQ_DEFAULT_PASS_FILE", "RABBITMQ_SSL_CERTFILE", "RABBITMQ_MANAGEMENT_SSL_KEYFILE"]
)
def test_the_entry_point_refuses_what_rabbitmqs_does(name: str, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "RABBITMQ_DATA_DIR": str(tmp_path), name: "x", "RABBITMQ_CONFIG_FILE": "y"}
    done = subprocess.run([ENTRYPOINT, "echo", "started"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"error: {name} is set but deprecated" in done.stderr and not done.stdout
    del environ[name]
    done = subprocess.run([ENTRYPOINT, "echo", "started"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "started\n"


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """By package: its version, and the hashes of its files."""
    text = (DOCKERFILE.parent / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            requirement, *options = line.split()
            package, version = requirement.split("==")
            found[package] = version, [one.removeprefix("--hash=sha256:") for one in options]
    return found


def test_the_lock_files_have_what_the_package_asks_for() -> None:
    project = tomllib.loads((PACKAGING.parent / "pyproject.toml").read_text())
    for file, wanted in (
        ("requirements.lock", project["project"]["dependencies"]),
        ("build.lock", project["build-system"]["requires"]),
    ):
        found = locked(file)
        for requirement in wanted:
            name, least = requirement.split(">=")
            version = found[name.lower()][0]
            assert [int(part) for part in re.findall(r"\d+", version)] >= [int(part) for part in least.split(".")], name
        for version, hashes in found.values():
            assert re.fullmatch(r"[0-9][0-9a-z.]*", version)
            assert hashes and all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes)
    runs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert any(
        "--require-hashes" in rest and all(one in rest for one in ("requirements.lock", "build.lock")) for rest in runs
    )
    assert all("--no-deps" in rest for rest in runs)  # Nothing comes in that the files do not name.


def test_the_lowest_versions_can_be_named() -> None:
    """`make versions` turns each lower bound into the version to test with."""
    project = tomllib.loads((PACKAGING.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["spark"], *extras["test"]]:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+(\[[a-z-]+\])?>=[0-9.]+", requirement), requirement


def filled(value: str) -> str:
    """What compose puts in for `${NAME:?why}`."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", r"value-of-\1", value)


def test_the_compose_file() -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    services = document["services"]
    balancer = services.pop("balancer")
    assert set(services) == set(document["volumes"]) == set(balancer["depends_on"]) == {"one", "two", "three"}
    for name, service in services.items():
        build = service["build"]
        context = COMPOSE.parent / build["context"]
        assert (context / build["dockerfile"]).resolve() == DOCKERFILE.resolve()
        environ = {key: filled(str(value)) for key, value in service["environment"].items()}
        settings = in_the_image(ETC, **environ)
        assert settings.node_name == f"rabbit@{name}" and settings.cluster_host == service["hostname"] == name
        assert settings.discovery is not None
        assert {node.host for node in settings.discovery.nodes} == set(services)
        assert settings.discovery.founders == 3
        assert settings.log_console_form.json and settings.default_user == "admin"
        assert service["volumes"] == [f"{name}:{dict(instructions())['VOLUME']}"]
        check_ctl(service["healthcheck"]["test"][1:])
    config, *_ = balancer["volumes"][0].split(":")
    assert (COMPOSE.parent / config).resolve() == HAPROXY
    servers = re.findall(r"^ +server (\w+) (\w+):(\d+)$", HAPROXY.read_text(), re.MULTILINE)
    assert {(host, int(port)) for name, host, port in servers if name == host} == {
        (name, port) for name in services for port in (5672, 15672)
    }
    assert sorted(balancer["ports"]) == ["127.0.0.1:15672:15672", "127.0.0.1:5672:5672"]


# -- Kubernetes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    found = [one for one in yaml.safe_load_all(KUBERNETES.read_text()) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def test_the_objects_fit_together(objects: dict[str, dict[str, Any]]) -> None:
    assert set(objects) == {
        "ConfigMap/leveret", "Service/leveret-nodes", "Service/leveret", "PodDisruptionBudget/leveret",
        "StatefulSet/leveret", "NetworkPolicy/leveret",
    }  # fmt: skip
    spec = objects["StatefulSet/leveret"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert objects["PodDisruptionBudget/leveret"]["spec"]["selector"]["matchLabels"] == labels
    headless = objects[f"Service/{spec['serviceName']}"]["spec"]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"] is True
    (container,) = spec["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name in ("leveret", "leveret-nodes"):
        service = objects[f"Service/{name}"]["spec"]
        assert service["selector"] == labels
        assert all(ports[port["name"]] == port["port"] for port in service["ports"])
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert mounts == claims | {volume["name"] for volume in spec["template"]["spec"]["volumes"]}


def test_a_pod_has_no_more_rights_than_it_needs(objects: dict[str, dict[str, Any]]) -> None:
    pod = objects["StatefulSet/leveret"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_who_may_come_to_which_port(objects: dict[str, dict[str, Any]]) -> None:
    spec = objects["StatefulSet/leveret"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    policy = objects["NetworkPolicy/leveret"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels and policy["policyTypes"] == ["Ingress"]
    allowed = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    (container,) = spec["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(allowed) == set(ports.values())
    assert allowed[ports["cluster"]] == [{"podSelector": {"matchLabels": labels}}]
    assert allowed[ports["amqp"]] == allowed[ports["http"]] == [{"podSelector": {}}]


def test_a_pod_finds_the_others(objects: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """As the node reads it: the image's files, that of the ConfigMap, and the container's environment."""
    spec = objects["StatefulSet/leveret"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    etc = tmp_path / "etc"
    shutil.copytree(ETC, etc)
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    file = mounts["config"]["subPath"]
    assert mounts["config"]["mountPath"] == f"/etc/rabbitmq/conf.d/{file}"
    (etc / "conf.d" / file).write_text(objects["ConfigMap/leveret"]["data"][file])
    environ = {}
    for one in container["env"]:
        value = one.get("value", f"value-of-{one['name']}")
        environ[one["name"]] = value.replace("$(POD_NAME)", "leveret-1")
    settings = in_the_image(etc, **environ)
    assert settings.discovery is not None
    assert (settings.discovery.backend, settings.discovery.founders) == ("dns", spec["replicas"])
    assert settings.discovery.hostname == spec["serviceName"]
    assert settings.cluster_host == f"leveret-1.{spec['serviceName']}"
    assert settings.cluster_listener == Listener("", 25_672) and settings.tcp_listeners == (EVERYWHERE,)
    assert settings.data_dir.startswith(f"{mounts['data']['mountPath']}/")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_the_kustomization_renders(objects: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """With an overlay, as its head has it."""
    shutil.copytree(KUBERNETES.parent, tmp_path / "leveret")
    overlay = tmp_path / "mine"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(
        "resources: [../leveret]\nnamespace: burrow\nreplicas: [{name: leveret, count: 5}]\n"
        'images: [{name: leveret, newName: registry.example.org/leveret, digest: "sha256:12"}]\n'
    )
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    rendered = {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(done.stdout)}
    assert set(rendered) == set(objects)
    assert {one["metadata"]["namespace"] for one in rendered.values()} == {"burrow"}
    spec = rendered["StatefulSet/leveret"]["spec"]
    assert spec["replicas"] == 5
    assert spec["template"]["spec"]["containers"][0]["image"] == "registry.example.org/leveret@sha256:12"


def test_what_the_cluster_operator_writes_is_understood(tmp_path: Path) -> None:
    """Its files in conf.d, its list of plugins and its environment, with what the example of a cluster adds."""
    cluster = yaml.safe_load((KUBERNETES.parent / "operator" / "cluster.yaml").read_text())
    assert cluster["kind"] == "RabbitmqCluster"
    etc = tmp_path / "etc"
    shutil.copytree(ETC, etc)
    (etc / "conf.d" / "10-operatorDefaults.conf").write_text(
        "queue_master_locator = min-masters\ndisk_free_limit.absolute = 2GB\n"
        "cluster_partition_handling = pause_minority\n"
        "cluster_formation.peer_discovery_backend = rabbit_peer_discovery_k8s\n"
        "cluster_formation.k8s.host = kubernetes.default\n"
        f"cluster_formation.target_cluster_size_hint = {cluster['spec']['replicas']}\n"
        f"cluster_name = {cluster['metadata']['name']}\n"
    )
    (etc / "conf.d" / "11-default_user.conf").write_text("default_user = default_user_x\ndefault_pass = secret\n")
    (etc / "conf.d" / "90-userDefinedConfiguration.conf").write_text(cluster["spec"]["rabbitmq"]["additionalConfig"])
    enabled = tmp_path / "enabled_plugins"
    always = ["rabbitmq_peer_discovery_k8s", "rabbitmq_prometheus", "rabbitmq_management"]
    enabled.write_text(plugins.as_text([*always, *cluster["spec"]["rabbitmq"]["additionalPlugins"]]))
    settings = in_the_image(
        etc,
        RABBITMQ_ENABLED_PLUGINS_FILE=str(enabled),
        K8S_SERVICE_NAME="hare-nodes",
        RABBITMQ_USE_LONGNAME="true",
        RABBITMQ_NODENAME="rabbit@hare-server-0.hare-nodes.burrow",
        K8S_HOSTNAME_SUFFIX=".hare-nodes.burrow",
    )
    found = settings.discovery
    assert found is not None and found.kubernetes is not None and (found.backend, found.founders) == ("k8s", 3)
    assert (found.kubernetes.host, found.kubernetes.service_name) == ("kubernetes.default", "hare-nodes")
    assert settings.cluster_host == "hare-server-0.hare-nodes.burrow"
    assert settings.mqtt_listeners and settings.management_listeners and settings.prometheus_listeners


def test_the_probes_and_the_farewell(objects: dict[str, dict[str, Any]]) -> None:
    (container,) = objects["StatefulSet/leveret"]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        check_ctl(container[probe]["exec"]["command"])
    shell, option, line = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    *asked, last = [shlex.split(part) for part in line.splitlines()]
    waits = ["await_online_quorum_plus_one", "await_online_synchronized_mirror"]
    assert [words[2] for words in asked] == [*waits, "drain"] and last == ["true"]
    for words in asked:
        check_ctl(words)
