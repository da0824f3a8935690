"""Reads `Settings` from the command line, the environment and configuration files.

    command line  >  LEVERET_*  >  RABBITMQ_*  >  configuration file  >  enabled plugins  >  default

Every source is first turned into `Given`s, one for each value, which remember where they were written. Then all are
checked by `schema`, also those that a stronger source overrides: a mistake in a file must not stay hidden until a
variable is unset. All problems are collected and reported together, so that a file is repaired in one go.

The file has RabbitMQ's form, read as RabbitMQ reads it: `key = value` a line, `#` begins a comment (within a value too,
unless the value stands in single quotes), and of a key given twice the last one holds. The last two have lost people a
password or an hour, so there are warnings for both.

An address that RabbitMQ's names give without a host (`listeners.tcp.default = 5672`, RABBITMQ_NODE_PORT) means every
interface, as there. Our own names (`--port`, `port`, or no setting at all) mean 127.0.0.1: a broker that someone just
tries out is not open to the network. The cluster port is at the same host as that for clients, 20000 ports further on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from leveret.base.json_values import Json
from leveret.metadata.rules import partition_handling
from leveret.metadata.rules.ha_policy import EVERYWHERE, Defaults
from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.metadata.rules.policy_validation import policy_error
from leveret.node.config import plugins, schema
from leveret.node.config.management_settings import read_management
from leveret.node.config.rebalance_settings import read_rebalance
from leveret.node.config.schema import Fixed, Ignored, NotAllowed, NotSupported, Unsupported, Used
from leveret.node.config.settings import (
    CLUSTER_PORT_OFFSET,
    DEFAULT_HOST,
    DEFAULT_NODE_NAME,
    DEFAULT_PORT,
    LOG_CATEGORIES,
    TICK_MS,
    Discovery,
    KubernetesService,
    ListedNode,
    Listener,
    LogForm,
    Rotation,
    Settings,
    TlsOptions,
    log_levels,
)
from leveret.node.config.web_settings import read_web

T = TypeVar("T")

# How strong a source is.
DEFAULT, PLUGINS, FILE, RABBITMQ, LEVERET, COMMAND = range(6)

CONFIG_BYTES_MAX = 1 << 20
DEFAULT_SERVICE = "rabbitmq"  # RabbitMQ's default of cluster_formation.k8s.service_name.


class Given(NamedTuple):
    key: str
    value: str
    rank: int
    where: str  # for people: "broker.conf, line 3", "LEVERET_PORT", "--port"


class ConfigError(Exception):
    """The configuration is wrong; `problems` has a line for each reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    warnings: tuple[str, ...]
    sources: Mapping[str, str]  # by key: where the value that holds was given


def load(given: Iterable[Given], environ: Mapping[str, str], config_file: str | None = None) -> Loaded:
    """Returns the settings from the command line's `given`, the environment, and the file that either names.

    Raises ConfigError with all problems.
    """
    reading = _Reading()
    environ = reading.with_env_file(environ)
    reading.service_name = environ.get("K8S_SERVICE_NAME", "")  # As RabbitMQ's plugin and operator call it.
    gathered = list(given)
    gathered += reading.leveret_environment(environ)
    gathered += reading.rabbitmq_environment(environ)
    reading.files = reading.config_files(config_file, environ)
    for path in reading.files:
        gathered += reading.file(path)
    gathered += reading.plugins(environ)
    reading.judge(gathered)
    reading.stop_if_wrong()
    settings = reading.settings(environ.get("HOME") or os.path.expanduser("~"))
    reading.stop_if_wrong()
    sources = {key: found.given.where for key, found in reading.chosen.items()}
    return Loaded(settings, tuple(reading.warnings), sources)


class _Chosen(NamedTuple):
    value: Any
    given: Given


class _Reading:
    """One reading of all sources: collects problems, warnings and values."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.chosen: dict[str, _Chosen] = {}
        self.files: list[str] = []
        self.service_name = ""  # In Kubernetes, if the environment says it.

    def stop_if_wrong(self) -> None:
        if self.problems:
            raise ConfigError(self.problems)

    # Sources

    def file(self, path: str) -> list[Given]:
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read(CONFIG_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
            return []
        if len(text) > CONFIG_BYTES_MAX:
            self.problems.append(f"{path}: larger than {CONFIG_BYTES_MAX} bytes, so hardly a configuration")
            return []
        if text.lstrip()[:1] in ("[", "%"):
            from leveret.node.config import classic_config  # Few have such a file.

            if classic_config.is_classic(text):
                self.problems.append(_of_terms(path, text))
                return []
        lines = (self._line(line, f"{path}, line {number}") for number, line in enumerate(text.split("\n"), 1))
        last: dict[str, Given] = {}
        for given in filter(None, lines):
            if given.key in last:
                self.warnings.append(f"{given.where}: {given.key} is given again; this one holds")
            last[given.key] = given
        return list(last.values())

    def _line(self, line: str, where: str) -> Given | None:
        line = line.strip()
        if not line or line.startswith("#"):
            return None
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key or "#" in key:
            self.problems.append(f"{where}: {line!r} is not of the form key = value")
            return None
        quoted = re.fullmatch(r"'([^']*)'\s*(#.*)?", value)
        if quoted is not None:
            return Given(key, quoted[1], FILE, where)
        bare, hash_mark, _ = value.partition("#")
        if hash_mark and bare and not bare[-1].isspace():
            self.warnings.append(
                f"{where}: the value of {key} ends before '#', which begins a comment; if it belongs to the value, put"
                " the whole value in single quotes"
            )
        if not bare.strip() and key not in schema.MAY_BE_EMPTY:
            self.problems.append(f"{where}: {key} has no value")
            return None
        return Given(key, bare.strip(), FILE, where)

    def config_files(self, named: str | None, environ: Mapping[str, str]) -> list[str]:
        """Returns the files to read, the strongest last; only one place that names files counts."""
        if named is not None:
            return [named]
        if environ.get("LEVERET_CONFIG"):
            return [environ["LEVERET_CONFIG"]]
        files = []
        one, several = environ.get("RABBITMQ_CONFIG_FILE", ""), environ.get("RABBITMQ_CONFIG_FILES", "")
        if one:
            # RabbitMQ takes the name with and without its ending.
            files.append(one if os.path.exists(one) or not os.path.exists(one + ".conf") else one + ".conf")
        if several:
            import glob  # Rarely needed, and a start pays for each module.

            files += sorted(glob.glob(os.path.join(several, "*.conf") if os.path.isdir(several) else several))
        return files

    def with_env_file(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the environment, with what RabbitMQ's `rabbitmq-env.conf` adds to it. RabbitMQ has a shell read that
        file; here it may only give values to names."""
        path = environ.get("RABBITMQ_CONF_ENV_FILE")
        if not path or not os.path.exists(path):  # RabbitMQ does without it, too.
            return environ
        import shlex  # Few have such a file.

        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(CONFIG_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
            return environ
        found: dict[str, str] = {}
        for number, line in enumerate(text.split("\n"), 1):
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                words = [""]
            words = words[1:] if words[:1] == ["export"] else words
            for word in words:
                name, equals, value = word.partition("=")
                if not equals or not re.fullmatch(r"[A-Z_]+", name) or "$" in value or "`" in value:
                    self.problems.append(f"{path}, line {number}: only NAME=value is read here, not other shell code")
                    break
                found[f"RABBITMQ_{name.removeprefix('RABBITMQ_')}"] = value
        return {**found, **environ}

    def plugins(self, environ: Mapping[str, str]) -> list[Given]:
        """Returns what the list of enabled plugins says about ports, if there is such a list."""
        where = plugins.LIST_VARIABLE
        names: tuple[str, ...] | None = tuple(filter(None, re.split(r"[,\s]+", environ.get(where, "")))) or None
        if names is None and (path := environ.get(plugins.FILE_VARIABLE)):
            where = path
            try:
                names = plugins.read(path)
            except (OSError, plugins.BadList) as error:
                self.problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
        if names is None:
            return []
        for name in names:
            if name not in plugins.KNOWN:
                self.warnings.append(f"{where}: {name} has no effect: this broker does not have what it does")
        return [Given(key, value, PLUGINS, where) for key, value in plugins.ports(names).items()]

    def leveret_environment(self, environ: Mapping[str, str]) -> list[Given]:
        found = []
        for name in sorted(environ):
            if not name.startswith("LEVERET_") or name in _OTHER_VARIABLES:
                continue
            key = _key_of_variable(name)
            if key is None:
                near = _nearest(name, (*_OTHER_VARIABLES, *_VARIABLES))
                self.problems.append(f"{name} = {environ[name]}: no such setting{near}")
            else:
                found.append(Given(key, environ[name].strip(), LEVERET, name))
        return found

    def rabbitmq_environment(self, environ: Mapping[str, str]) -> list[Given]:
        def given(key: str, value: str, name: str) -> Given:
            return Given(key, value, RABBITMQ, f"RABBITMQ_{name}")

        values = {name[9:]: value.strip() for name, value in environ.items() if name.startswith("RABBITMQ_")}
        found = [given(key, values[name], name) for name, key in _RABBITMQ_KEYS.items() if values.get(name)]
        address, port = values.get("NODE_IP_ADDRESS", ""), values.get("NODE_PORT", "")
        if address or port:
            address = "" if address in ("", "auto") else f"[{address}]:" if ":" in address else f"{address}:"
            name = "NODE_PORT" if port else "NODE_IP_ADDRESS"
            found.append(given("listeners.tcp.default", f"{address}{port or DEFAULT_PORT}", name))
        if values.get("LOGS") == "-":
            found += [given("log.console", "true", "LOGS"), given("log.file", "false", "LOGS")]
        elif values.get("LOGS"):
            found.append(given("log.file", values["LOGS"], "LOGS"))
        for part in filter(None, re.split(r"[,\s]+", values.get("LOG", ""))):
            category, equals, level = part.partition("=")
            if part[0] in "+-":
                self.warnings.append(f"RABBITMQ_LOG: {part} has no effect: this broker's log has one form")
            else:
                found.append(given(f"log.{category}.level" if equals else "log.default.level", level or part, "LOG"))
        for name in sorted(values.keys() & _RABBITMQ_IGNORED):
            if values[name]:
                self.warnings.append(f"RABBITMQ_{name} has no effect: this broker has no use for it")
        if values.get("ADVANCED_CONFIG_FILE"):
            path = values["ADVANCED_CONFIG_FILE"]
            self.problems.append(f"RABBITMQ_ADVANCED_CONFIG_FILE = {path}: not supported: it holds Erlang terms")
        return found

    # Checking values

    def judge(self, gathered: Sequence[Given]) -> None:
        """Finds the rule for each value, reads it, and keeps the strongest."""
        groups: dict[str, int] = {}
        read: list[tuple[Given, str, object]] = []
        for given in gathered:
            given = given._replace(key=schema.ALIASES.get(given.key, given.key))
            if given.key == _DATA_BASE:
                read.append((given, "", given.value))
                continue
            found = schema.find(given.key)
            if found is None:
                self.problems.append(f"{_shown(given)}: unknown key{_nearest(given.key, _KEYS)}")
                continue
            try:
                value = self._read(given, found.rule)
            except NotAllowed as error:
                self.problems.append(f"{_shown(given)}: not allowed; allowed: {error}")
            except NotSupported as error:
                self.problems.append(f"{_shown(given)}: not supported by this version ({error})")
            else:
                if isinstance(found.rule, Used):
                    read.append((given, found.rule.group, value))
                    groups[found.rule.group] = max(groups.get(found.rule.group, DEFAULT), given.rank)
        for given, group, value in read:
            if group and given.rank < groups[group]:
                continue
            # Files come in the order of their strength; of equal ranks the later one holds.
            if given.key not in self.chosen or given.rank >= self.chosen[given.key].given.rank:
                self.chosen[given.key] = _Chosen(value, given)

    def _read(self, given: Given, rule: schema.Rule) -> object:
        match rule:
            case Used(parse=parse):
                return parse(given.value)
            case Fixed(holds=holds, known=known):
                if given.value not in holds:
                    error = NotAllowed if known and given.value not in known else NotSupported
                    raise error("here: " + ", ".join(holds))
            case Ignored(reason=reason, parse=check):
                if check is not None:
                    check(given.value)
                self.warnings.append(f"{_shown(given)}: has no effect: {reason}")
            case Unsupported(what=what):
                raise NotSupported(what)
        return None

    # Putting together

    def value(self, key: str, default: T) -> T:
        return self.chosen[key].value if key in self.chosen else default

    def rank(self, key: str) -> int:
        return self.chosen[key].given.rank if key in self.chosen else DEFAULT

    def below(self, group: str) -> list[tuple[str, Any, int]]:
        """Returns for each key of a group the word in place of `$`, the value, and its rank, in the order of the words
        (2 before 10)."""
        prefix = group + "."
        found = [
            (key[len(prefix) :].replace("\\.", "."), chosen.value, chosen.given.rank)
            for key, chosen in self.chosen.items()
            if key.startswith(prefix)
        ]
        return sorted(found, key=lambda item: (not item[0].isdecimal(), len(item[0]) * item[0].isdecimal(), item[0]))

    def settings(self, home: str) -> Settings:
        fields: dict[str, Any] = {
            rule.field: self.chosen[key].value for key, rule in schema.USED.items() if rule.field and key in self.chosen
        }
        name = fields.setdefault("node_name", DEFAULT_NODE_NAME)
        fields.setdefault("cluster_name", name)
        fields["data_dir"] = self._data_dir(name, home)
        fields["config_files"] = tuple(os.path.abspath(path) for path in self.files)
        fields["tcp_listeners"] = self._tcp_listeners()
        fields["ssl_listeners"] = tuple(one for _, one, _ in self.below("listeners.ssl") if one is not None)
        for protocol in ("mqtt", "stomp"):
            for field, kind in ((f"{protocol}_listeners", "tcp"), (f"{protocol}_tls_listeners", "ssl")):
                group = f"{protocol}.listeners.{kind}"
                fields[field] = tuple(one for _, one, _ in self.below(group) if one is not None)
        session_expiry = self.chosen.get("mqtt.max_session_expiry_interval_seconds")
        if session_expiry is not None:  # It counts more than the older name.
            fields["mqtt_subscription_ttl_ms"] = session_expiry.value
        fields["tls"] = self._tls(
            needed=bool(fields["ssl_listeners"] or fields["mqtt_tls_listeners"] or fields["stomp_tls_listeners"])
        )
        fields |= read_management(self, fields)
        fields |= read_web(self, "web_mqtt") | read_web(self, "web_stomp")
        fields["cluster_listener"] = self._cluster_listener((*fields["tcp_listeners"], *fields["ssl_listeners"]))
        fields["cluster_tls"] = self._cluster_tls()
        fields["discovery"] = self._discovery()
        fields["cluster_host"] = self._cluster_host(name, fields)
        fields["mirroring"] = self._mirroring()
        fields |= read_rebalance(self)
        fields["partition_handling"] = self._partition_handling()
        fields["log_file"] = self._log_file(name, fields["data_dir"])
        fields["log_levels"] = self._log_levels()
        fields["log_console_form"], fields["log_file_form"] = self._log_form("console"), self._log_form("file")
        fields["log_rotation"] = Rotation(
            *(self.value(f"log.file.rotation.{name}", getattr(Rotation, name)) for name in Rotation.__match_args__)
        )
        if self.value("tcp_listen_options.linger.on", False):
            fields["linger_s"] = self.value("tcp_listen_options.linger.timeout", 0)
        self._access(fields)
        self._limits(fields)
        self._warn_of_idle(fields)
        return Settings(**fields)

    def _data_dir(self, name: str, home: str) -> str:
        if self.rank(_DATA_BASE) > self.rank("data_dir"):
            return os.path.join(os.path.abspath(self.chosen[_DATA_BASE].value), name)
        return self.value("data_dir", os.path.join(home, ".leveret", name))

    def _tcp_listeners(self) -> tuple[Listener, ...]:
        rank = max((rank for _, _, rank in self.below("listeners.tcp")), default=self.rank("listeners.tcp"))
        host: str | None = self.value("host", None)
        if "port" in self.chosen and self.rank("port") == rank:
            self.problems.append(f"{_shown(self.chosen['port'].given)}: give either port or listeners.tcp, not both")
        if self.rank("port") > rank or rank == DEFAULT:
            return (Listener(host or DEFAULT_HOST, self.value("port", DEFAULT_PORT)),)
        listeners: list[Listener] = [one for _, one, _ in self.below("listeners.tcp") if one is not None]
        if host is not None:
            stronger = self.rank("host") > rank
            listeners = [one._replace(host=host) if stronger or not one.host else one for one in listeners]
        return tuple(dict.fromkeys(listeners))

    def _tls(self, needed: bool) -> TlsOptions | None:
        certfile: str | None = self.value("ssl_options.certfile", None)
        keyfile: str | None = self.value("ssl_options.keyfile", None)
        if certfile is None or keyfile is None:
            if needed:
                self.problems.append("listeners.ssl needs ssl_options.certfile and ssl_options.keyfile")
            return None
        options = TlsOptions(
            certfile=certfile,
            keyfile=keyfile,
            cacertfile=self.value("ssl_options.cacertfile", None),
            password=self.value("ssl_options.password", None),
            verify_peer=self.value("ssl_options.verify", "verify_none") == "verify_peer",
            fail_if_no_peer_cert=self.value("ssl_options.fail_if_no_peer_cert", False),
            versions=tuple(version for _, version, _ in self.below("ssl_options.versions")) or TlsOptions.versions,
        )
        if options.verify_peer and options.cacertfile is None:
            self.problems.append("ssl_options.verify = verify_peer needs ssl_options.cacertfile")
        if options.fail_if_no_peer_cert and not options.verify_peer:
            self.problems.append("ssl_options.fail_if_no_peer_cert = true needs ssl_options.verify = verify_peer")
        return options

    # The cluster

    def _cluster_listener(self, clients: Sequence[Listener]) -> Listener:
        if "cluster.listener" in self.chosen:
            if "cluster.port" in self.chosen:
                self.problems.append("give either cluster.listener or cluster.port, not both")
            chosen: Listener = self.chosen["cluster.listener"].value
            return chosen
        host, port = clients[0] if clients else (DEFAULT_HOST, DEFAULT_PORT)
        own: int | None = self.value("cluster.port", None)
        if own is None and port and port + CLUSTER_PORT_OFFSET > 65_535:
            self.warnings.append(
                f"the port for other nodes would be {port} + {CLUSTER_PORT_OFFSET}, which is none; any free one is"
                " taken, another at each start; choose one with --cluster-port"
            )
            return Listener(host, 0)
        return Listener(host, own if own is not None else port and port + CLUSTER_PORT_OFFSET)

    def _cluster_host(self, name: str, fields: Mapping[str, Any]) -> str:
        """Returns the host at which other nodes reach this one. If it listens at every interface, that is the host in
        its name, as in RabbitMQ."""
        advertised: str | None = self.value("cluster.advertised_host", None)
        listens: str = advertised or fields["cluster_listener"].host
        if listens not in ("", "0.0.0.0", "::"):
            return listens
        host = name.partition("@")[2]
        if host == "localhost" and (fields.get("join") or fields["discovery"]):
            self.warnings.append(
                f"{name} will tell other nodes that it is at localhost, so none on another machine can reach it; call"
                " it NAME@HOST, or give cluster.advertised_host"
            )
        return host

    def _cluster_tls(self) -> TlsOptions | None:
        """Returns the TLS options of links. Both ends of a link show a certificate, so all three files are needed."""
        prefix = "cluster.ssl_options."
        if not any(key.startswith(prefix) for key in self.chosen):
            return None
        files = {name: self.value(prefix + name, "") for name in ("certfile", "keyfile", "cacertfile")}
        if missing := [prefix + name for name, path in files.items() if not path]:
            self.problems.append(f"cluster.ssl_options: TLS between nodes also needs {' and '.join(missing)}")
            return None
        return TlsOptions(
            **files,
            password=self.value(prefix + "password", None),
            verify_peer=True,
            fail_if_no_peer_cert=True,
            versions=tuple(version for _, version, _ in self.below(prefix + "versions")) or TlsOptions.versions,
        )

    def _discovery(self) -> Discovery | None:
        prefix = "cluster_formation."
        backend = self.value(prefix + "peer_discovery_backend", "classic_config")
        nodes: list[ListedNode] = [node for _, node, _ in self.below(prefix + "classic_config.nodes")]
        hostname: str = self.value(prefix + "dns.hostname", "")
        hint: int | None = self.value(prefix + "target_cluster_size_hint", None)
        if backend != "classic_config":
            if backend == "dns" and not hostname:
                self.problems.append("peer_discovery_backend = dns needs cluster_formation.dns.hostname")
            if hint is None:
                where = "DNS" if backend == "dns" else "Kubernetes"
                self.problems.append(
                    f"peer_discovery_backend = {backend} needs cluster_formation.target_cluster_size_hint, the number"
                    f" of nodes that are to found the cluster: two that find only themselves in {where} would found two"
                    " clusters"
                )
            if backend == "dns":
                return Discovery(backend="dns", hostname=hostname, founders=hint or 1)
            service = self._kubernetes()
            return Discovery(backend="k8s", hostname=service.service_name, kubernetes=service, founders=hint or 1)
        if not nodes:
            return None
        for what in ("name", "address"):
            values = [node.name if what == "name" else f"{node.host}:{node.port}" for node in dict.fromkeys(nodes)]
            for twice in sorted({value for value in values if values.count(value) > 1}):
                self.problems.append(f"cluster_formation.classic_config.nodes: two nodes have the {what} {twice}")
        if hint is not None and hint > len(set(nodes)):
            self.problems.append(
                f"cluster_formation.target_cluster_size_hint = {hint}, but {len(set(nodes))} nodes are listed"
            )
        return Discovery(backend="classic_config", nodes=tuple(dict.fromkeys(nodes)), founders=hint or len(set(nodes)))

    def _kubernetes(self) -> KubernetesService:
        prefix = "cluster_formation.k8s."
        service = KubernetesService(self.service_name or DEFAULT_SERVICE)
        return service._replace(
            **{name: self.value(prefix + name, getattr(service, name)) for name in KubernetesService._fields}
        )

    def _partition_handling(self) -> PartitionHandling:
        key = partition_handling.PARAMETER
        nodes = [name for _, name, _ in self.below(f"{key}.pause_if_all_down.nodes")]
        recover: str | None = self.value(f"{key}.pause_if_all_down.recover", None)
        strategy: str = self.value(key, partition_handling.DEFAULT.strategy.value)
        if strategy != Strategy.PAUSE_IF_ALL_DOWN.value and (nodes or recover):  # RabbitMQ says nothing of it.
            self.warnings.append(f"{key}.pause_if_all_down: has no effect: the strategy is {strategy}")
            nodes, recover = [], None
        try:
            return partition_handling.parse(strategy, nodes, recover)
        except partition_handling.BadHandling as error:
            self.problems.append(f"{key}: {error}")
            return partition_handling.DEFAULT

    def _mirroring(self) -> Defaults:
        """Returns the defaults for queues without a policy of their own, which can be configured in four ways."""
        prefix = "mirroring.default_policy"
        definition: dict[str, Json] = {}
        for word, text, _ in self.below(prefix):
            name = word.replace("_", "-")  # As it has to be in the environment.
            try:
                definition[name] = schema.default_policy(name, text)
            except NotAllowed as error:
                self.problems.append(f"{prefix}.{word} = {text}: not allowed; allowed: {error}")
        unknown = sorted(name for name in definition if not name.startswith("ha-"))
        problem = f"only keys that begin with ha-, not {', '.join(unknown)}" if unknown else None
        if definition and problem is None:
            problem = policy_error("", "queues", definition)
        if problem is not None:
            self.problems.append(f"{prefix}: {problem}")
        copies: tuple[str, ...] | None = self.value("cluster_nodes.disc_copies", None)
        mirrors: int | None = self.value("num_mirrors", None)
        named = copies is not None and bool(copies) and "@" in copies[0]
        if len([one for one in (definition.get("ha-mode"), mirrors, named or None) if one is not None]) > 1:
            self.problems.append(
                f"{prefix}.ha-mode, num_mirrors and nodes in cluster_nodes.disc_copies each say who mirrors: give one"
            )
        if mirrors:
            definition |= {"ha-mode": "exactly", "ha-params": mirrors + 1, "ha-sync-mode": "automatic"}
        elif named and copies is not None:
            definition |= {"ha-mode": "nodes", "ha-params": list(copies), "ha-sync-mode": "automatic"}
        elif copies and "ha-mode" not in definition:
            definition |= EVERYWHERE
        throughput: int = self.value("mirroring_sync_max_throughput", 0)
        return Defaults(
            definition=definition,
            queues=None if copies is None or named else frozenset(copies),
            locator=self.value("queue_master_locator", Defaults.locator),
            spread=self.value("mirroring.spread", Defaults.spread),
            leader_locator=self.value("queue_leader_locator", Defaults.leader_locator),
            forbid_copying=self.value("mirroring.forbid_copying", False),
            fill_bytes_per_tick=-(-throughput * TICK_MS // 1000),
            fill_messages=self.value("mirroring_sync_batch_size", 0),
        )

    def _log_file(self, name: str, data_dir: str) -> str | None:
        # RabbitMQ always has a log file; whoever says where it is to lie wants one.
        file: str | None = self.value("log.file", f"{name}.log" if "log.dir" in self.chosen else None)
        return file and os.path.join(self.value("log.dir", os.path.join(data_dir, "logs")), file)

    def _log_levels(self) -> Mapping[str, str]:
        keys = {category: f"log.{category}.level" for category in LOG_CATEGORIES}
        return log_levels({category: self.chosen[key].value for category, key in keys.items() if key in self.chosen})

    def _log_form(self, output: str) -> LogForm:
        key = f"log.{output}.formatter"
        return LogForm(
            self.value(key, "plaintext") == "json",
            self.value(f"{key}.time_format", LogForm().time),
            self.value(f"{key}.level_format", LogForm().level),
            self.value(f"{key}.single_line", False),
        )

    def _access(self, fields: dict[str, Any]) -> None:
        if mechanisms := self.below("auth_mechanisms"):
            fields["auth_mechanisms"] = tuple(dict.fromkeys(name for _, name, _ in mechanisms))
            tls: TlsOptions | None = fields["tls"]
            if "EXTERNAL" in fields["auth_mechanisms"] and (tls is None or not tls.verify_peer):
                self.warnings.append(
                    "auth_mechanisms: EXTERNAL lets nobody in, as certificates of clients are checked only with "
                    "listeners.ssl and ssl_options.verify = verify_peer"
                )
        users = self.below("loopback_users")
        if users or "loopback_users" in self.chosen:
            # As RabbitMQ reads it: `none` wins, and a list without guest frees guest.
            none = "loopback_users" in self.chosen
            fields["loopback_users"] = frozenset(user for user, only, _ in users if only and not none)
        if tags := self.below("default_user_tags"):
            fields["default_user_tags"] = tuple(tag for tag, has, _ in tags if has)

    def _limits(self, fields: dict[str, Any]) -> None:
        for group, field in ("vm_memory_high_watermark", "memory_watermark"), ("disk_free_limit", "disk_free"):
            relative, absolute = f"{group}.relative" in self.chosen, f"{group}.absolute" in self.chosen
            if relative and absolute:
                self.warnings.append(f"{group}: both relative and absolute are given; relative holds")
            if relative or absolute:
                fields[f"{field}_relative"] = self.value(f"{group}.relative", None)
                fields[f"{field}_absolute"] = None if relative else self.value(f"{group}.absolute", None)
        if fields.get("initial_frame_max", 0) > fields.get("frame_max", Settings.frame_max):
            self.problems.append("initial_frame_max is larger than frame_max")

    def _warn_of_idle(self, fields: Mapping[str, Any]) -> None:
        """Warns of values that another value makes pointless."""
        found: Discovery | None = fields["discovery"]
        joins = bool(fields.get("join"))
        nobody = found is None and not joins and "no other node is named"
        idle: dict[str, str | bool] = {
            "cluster_formation.dns.hostname": (not found or found.backend != "dns") and "the backend is not dns",
            **{
                key: (not found or found.backend != "k8s") and "the backend is not k8s"
                for key in schema.USED
                if key.startswith("cluster_formation.k8s.")
            },
            "cluster_formation.target_cluster_size_hint": found is None and "no other node is named",
            "cluster_formation.discovery_retry_limit": nobody,
            "cluster_formation.discovery_retry_interval": nobody,
            "fsync_interval": fields.get("fsync", "always") != "interval" and "fsync is not interval",
            **{key: not fields["log_file"] and "log.file names no file" for key in schema.USED if _of_log_file(key)},
            "log.console.level": not fields.get("log_console", True) and "log.console is false",
            "ssl_options.certfile": not (
                fields["ssl_listeners"]
                or fields["mqtt_tls_listeners"]
                or fields["web_mqtt_tls_listeners"]
                or fields["stomp_tls_listeners"]
                or fields["web_stomp_tls_listeners"]
            )
            and "no listeners.ssl is given",
            "tcp_listen_options.linger.timeout": "linger_s" not in fields and "linger.on is not true",
        }
        for key, reason in idle.items():
            if reason and key in self.chosen:
                self.warnings.append(f"{_shown(self.chosen[key].given)}: has no effect: {reason}")
        if joins and found is not None:
            says = _shown(self.chosen["join"].given)
            self.warnings.append(f"cluster_formation: has no effect: {says} says whom to join")
        if "cookie" in self.chosen and "cookie_file" in self.chosen:
            self.problems.append("give either a cookie or a cookie_file, not both")
        if not fields["tcp_listeners"] and not fields["ssl_listeners"]:
            self.problems.append("no listener is left: listeners.tcp = none, and no listeners.ssl")


def _of_terms(path: str, text: str) -> str:
    """Returns the problem for a file of Erlang terms, with what to write instead."""
    from leveret.node.config import classic_config

    told = f"{path}: holds Erlang terms, the classic format, which is not read; rabbitmq.conf has lines of key = value"
    try:
        lines, unknown = classic_config.translated(text)
    except classic_config.BadTerms as error:
        return f"{told}. It cannot be told what they would be, for it is damaged: {error}"
    shown = "\n".join(f"    {line}" for line in lines)
    told += f". Write instead:\n{shown}" if lines else ""
    return f"{told}\n  Without a line there: {', '.join(unknown)}" if unknown else told


def _of_log_file(key: str) -> bool:
    return key.startswith("log.file.")


# Stands for a folder in which the node's own is to be made; only RABBITMQ_MNESIA_BASE gives it.
_DATA_BASE = "(folder of all nodes)"

_RABBITMQ_KEYS = {
    "NODENAME": "node_name",
    "DIST_PORT": "cluster.port",
    "ERLANG_COOKIE": "cookie",
    "MNESIA_BASE": _DATA_BASE,
    "MNESIA_DIR": "data_dir",
    "LOG_BASE": "log.dir",
    "DEFAULT_USER": "default_user",
    "DEFAULT_PASS": "default_pass",
    "DEFAULT_VHOST": "default_vhost",
}
# RabbitMQ's own variables without a meaning here. Others that begin with RABBITMQ_ are somebody else's.
_RABBITMQ_IGNORED = frozenset(
    {
        "CONSOLE_LOG",
        "CTL_ERL_ARGS",
        "FEATURE_FLAGS",
        "FEATURE_FLAGS_FILE",
        "NAME_TYPE",
        "PID_FILE",
        "PLUGINS_DIR",
        "PRODUCT_NAME",
        "PRODUCT_VERSION",
        "QUORUM_DIR",
        "SERVER_ADDITIONAL_ERL_ARGS",
        "SERVER_ERL_ARGS",
        "SERVER_START_ARGS",
        "STREAM_DIR",
        "USE_LONGNAME",
    }
)

_SETTABLE = (*schema.USED, *schema.FIXED)
_VARIABLES = {"LEVERET_" + re.sub(r"[.-]", "_", key).upper(): key for key in _SETTABLE}
PROCESS: Final = "LEVERET_PROCESS"  # Tells a node which of its machine's processes it is: `leveret.cli.processes`.
# Those that give no setting: which file to read, where running nodes leave word for leveretctl, and `PROCESS`.
_OTHER_VARIABLES = ("LEVERET_CONFIG", "LEVERET_RUNTIME_DIR", PROCESS)
_KEYS = tuple(key.replace("$", "NAME") for key in schema.RULES)


def _key_of_variable(name: str) -> str | None:
    """Returns the key for LEVERET_<KEY>; the free word of `listeners.tcp.$` keeps its case unless it is all upper."""
    if name in _VARIABLES and not name.endswith("$"):
        return _VARIABLES[name]
    for variable, key in _VARIABLES.items():
        if variable.endswith("$") and name.startswith(variable[:-1]) and len(name) >= len(variable):
            rest = name[len(variable) - 1 :]
            rest = rest.lower() if rest.isupper() else rest
            return key[:-1] + rest.replace(".", "\\.")
    return None


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib  # Only a mistake costs the time to load it.

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(given: Given) -> str:
    value = "********" if "pass" in given.key or given.key == "cookie" else given.value
    if given.rank == FILE:
        return f"{given.where}: {given.key} = {value}"
    return f"{given.where} ({given.key} = {value})"
