"""What a person writes, and what the node makes of it or says to it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from leveret.node.config import schema
from leveret.node.config.load import ConfigError, load
from leveret.node.config.settings import Discovery, Listener, LogForm, Rotation, Settings, TlsOptions, log_levels
from tests.support.rabbitmq import KEYS
from tests.unit.node.config.configuration import HOME, Configuration


@pytest.fixture
def conf(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path)


# The form of the file


def test_defaults() -> None:
    loaded = load([], HOME)
    assert loaded.settings == Settings(
        data_dir="/home/ann/.leveret/leveret@localhost",
        management_listeners=(Listener("127.0.0.1", 15672),),
        prometheus_listeners=(Listener("127.0.0.1", 15692),),
    )
    assert loaded.settings.tcp_listeners == (Listener("127.0.0.1", 5672),)
    assert loaded.warnings == ()


def test_comments_blanks_and_spaces(conf: Configuration) -> None:
    text = "\ufeff# a comment\n\n   heartbeat=30   # seconds\r\n\tchannel_max\t=\t7\n## heartbeat = 9\n"
    settings = conf.settings(text)
    assert (settings.heartbeat_s, settings.channel_max) == (30, 7)


def test_hash_ends_a_value_as_in_rabbitmq_and_is_warned_about(conf: Configuration) -> None:
    loaded = conf.load("default_pass = se#cret")
    assert loaded.settings.default_pass == "se"
    assert len(loaded.warnings) == 1
    assert "cret" not in loaded.warnings[0]


def test_single_quotes_keep_a_hash(conf: Configuration) -> None:
    loaded = conf.load("default_pass = 'se#cret = x' # comment")
    assert loaded.settings.default_pass == "se#cret = x"
    assert loaded.warnings == ()


def test_of_a_key_given_twice_the_last_holds(conf: Configuration) -> None:
    loaded = conf.load("heartbeat = 10\nheartbeat = 20\n")
    assert loaded.settings.heartbeat_s == 20
    assert [warning.split(": ", 1)[1] for warning in loaded.warnings] == ["heartbeat is given again; this one holds"]


def test_all_problems_are_reported_together(conf: Configuration) -> None:
    text = "hartbeat = 30\nheartbeat = soon\n\njust words\nstream.listeners.tcp.default = 5552\nchannel_max =\n"
    assert sorted(conf.problems(text)) == [
        "broker.conf, line 1: hartbeat = 30: unknown key; did you mean heartbeat?",
        "broker.conf, line 2: heartbeat = soon: not allowed; allowed: a number of seconds from 0 to 65535",
        "broker.conf, line 4: 'just words' is not of the form key = value",
        "broker.conf, line 5: stream.listeners.tcp.default = 5552: not supported by this version (the stream protocol)",
        "broker.conf, line 6: channel_max has no value",
    ]


def test_a_problem_counts_although_the_value_is_overridden(conf: Configuration) -> None:
    assert len(conf.problems("port = many", port="5673")) == 1


def test_a_problem_does_not_show_a_password(conf: Configuration) -> None:
    (problem,) = conf.problems("default_pass = " + "x" * 300)
    assert "xxx" not in problem


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"# " + b"x" * (1 << 20)])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broker.conf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broker\.conf: "):
        load([], HOME, str(path))


# Values


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("128KB", 131072),  # RabbitMQ's schema counts these in 1024s,
        ("128kib", 131072),
        ("1M", 1 << 20),
        ("1 MiB", 1 << 20),
    ],
)
def test_sizes(conf: Configuration, text: str, number: int) -> None:
    assert conf.settings(f"frame_max = {text}").frame_max == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("50MB", 50_000_000), ("2GB", 2_000_000_000), ("2GiB", 2 << 30), ("2G", 2 << 30), ("0", 0)],  # and these in 1000s.
)
def test_limits(conf: Configuration, text: str, number: int) -> None:
    settings = conf.settings(f"disk_free_limit.absolute = {text}")
    assert settings.disk_limit_bytes(total_bytes=10**12) == number


@pytest.mark.parametrize(("text", "number"), [("500", 500), ("500ms", 500), ("10s", 10_000), ("5m", 300_000)])
def test_durations(conf: Configuration, text: str, number: int) -> None:
    assert conf.settings(f"handshake_timeout = {text}").handshake_timeout_ms == number


def test_infinity_is_no_limit(conf: Configuration) -> None:
    settings = conf.settings("connection_max = infinity\nhandshake_timeout = infinity\nconsumer_timeout = infinity")
    assert (settings.connection_max, settings.handshake_timeout_ms, settings.consumer_timeout_ms) == (None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "frame_max = 0",
        "frame_max = 4095",
        "frame_max = 1XB",
        "frame_max = -4096",
        "initial_frame_max = 1MB\nframe_max = 64KB",
        "heartbeat = 65536",
        "heartbeat = -1",
        "heartbeat = 1.5",
        "heartbeat = ٣",
        "heartbeat = infinity",
        "connection_max = many",
        "handshake_timeout = 0",
        "handshake_timeout = 10d",
        "vm_memory_high_watermark.relative = 0",
        "vm_memory_high_watermark.relative = 1.5",
        "vm_memory_high_watermark.relative = nan",
        "disk_free_limit.relative = -1",
        "tcp_listen_options.nodelay = yes",
        "fsync = sometimes",
        "segment_bytes = 1",
        "unauthenticated_connections_max = 0",
        "listeners.tcp = 5672",
        "listeners.tcp.default = 127.0.0.1",
        "listeners.tcp.default = 127.0.0.1:65536",
        "listeners.tcp.default = :5672",
        "listeners.tcp.default = 5672, 5673",
        "port = -1",
        "host = 127.0.0.1/8",
        "node_name = a/b@c",
        "node_name = ../x",
        "node_name = a@b@c",
        "default_user = ''",
        "default_permissions.read = (",
        "log.default.level = loud",
        "log.file = true",
        "data_dir = /dev/null",
        "ssl_options.certfile = /no/such/file",
        "loopback_users = guest",
        "loopback_users.guest = no",
        "proxy_protocol = maybe",
        "cluster.port = x",
        "cluster.listener = none",
        "cluster.priority = 256",
        "cluster.operation_timeout = 1",
        "net_ticktime = 0",
        "net_ticktime = 1d",
        "join = host:0",
        "join = host:70000",
        "join = a:1,,b:1",
        "cluster_formation.peer_discovery_backend = rabbit_peer_discovery",
        "cluster_formation.classic_config.nodes.1 = one",
        "cluster_formation.classic_config.nodes.1 = rabbit@",
        "cluster_formation.classic_config.nodes.1 = rabbit@one:0",
        "cluster_formation.classic_config.nodes.1 = rabbit@[::1]",
        "cluster_formation.discovery_retry_limit = 0",
        "cluster_formation.target_cluster_size_hint = 0",
        "cluster_formation.node_type = disk",
    ],
)
def test_values_that_are_not_allowed(conf: Configuration, line: str) -> None:
    assert len(conf.problems(line)) == 1


def test_relative_and_absolute_limits(conf: Configuration) -> None:
    text = "vm_memory_high_watermark.{}\ntotal_memory_available_override_value = 1000"
    assert conf.settings(text.format("relative = 0.5")).memory_limit_bytes(10**9) == 500
    assert conf.settings(text.format("absolute = 600")).memory_limit_bytes(10**9) == 600
    both = conf.load("vm_memory_high_watermark.absolute = 600\nvm_memory_high_watermark.relative = 0.5\n")
    assert both.settings.memory_limit_bytes(1000) == 500
    assert both.settings.memory_watermark_absolute is None
    assert both.warnings == ("vm_memory_high_watermark: both relative and absolute are given; relative holds",)
    assert conf.settings("disk_free_limit.relative = 1.5").disk_limit_bytes(1000) == 1500


def test_a_stronger_absolute_limit_replaces_a_relative_one(conf: Configuration) -> None:
    loaded = conf.load("vm_memory_high_watermark.relative = 0.5", {"LEVERET_VM_MEMORY_HIGH_WATERMARK_ABSOLUTE": "1GiB"})
    assert loaded.settings.memory_limit_bytes(10**12) == 1 << 30
    assert loaded.warnings == ()


# Listeners


@pytest.mark.parametrize(
    ("text", "options", "listeners"),
    [
        ("", {}, ["127.0.0.1:5672"]),
        ("", {"port": "0"}, ["127.0.0.1:0"]),
        ("", {"host": "::1"}, ["[::1]:5672"]),
        ("port = 1", {"host": "0.0.0.0"}, ["0.0.0.0:1"]),
        ("listeners.tcp.default = 1", {}, ["1"]),
        ("listeners.tcp.default = 1", {"host": "127.0.0.1"}, ["127.0.0.1:1"]),
        ("listeners.tcp.default = 1", {"port": "2"}, ["127.0.0.1:2"]),
        ("listeners.tcp.1 = 127.0.0.1:1", {"host": "127.0.0.2"}, ["127.0.0.2:1"]),
        ("listeners.tcp.1 = 127.0.0.1:1\nlisteners.tcp.2 = 2\nhost = ::1", {}, ["127.0.0.1:1", "[::1]:2"]),
        ("listeners.tcp.10 = 10\nlisteners.tcp.2 = 2\nlisteners.tcp.other = [::]:3", {}, ["2", "10", "[::]:3"]),
        ("listeners.tcp.local = ::1:5672", {}, ["[::1]:5672"]),
        ("listeners.tcp = none", {"port": "5"}, ["127.0.0.1:5"]),
    ],
)
def test_listeners(conf: Configuration, text: str, options: dict[str, str], listeners: list[str]) -> None:
    assert [str(one) for one in conf.settings(text, None, **options).tcp_listeners] == listeners


def test_port_beside_listeners_of_the_same_source_is_a_contradiction(conf: Configuration) -> None:
    (problem,) = conf.problems("listeners.tcp.default = 5672\nport = 5673")
    assert problem.endswith("give either port or listeners.tcp, not both")


def test_a_node_without_a_listener_does_not_start(conf: Configuration) -> None:
    (problem,) = conf.problems("listeners.tcp = none")
    assert problem.startswith("no listener is left")


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "any.pem"
    path.write_text("-")
    return str(path)


def test_tls(conf: Configuration, pem: str) -> None:
    settings = conf.settings(
        "listeners.tcp = none\nlisteners.ssl.default = 5671\n"
        f"ssl_options.certfile = {pem}\nssl_options.keyfile = {pem}\n"
        f"ssl_options.cacertfile = {pem}\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n"
        "ssl_options.versions.1 = tlsv1.3\nssl_options.password = secret"
    )
    assert (settings.tcp_listeners, settings.ssl_listeners) == ((), (Listener("", 5671),))
    tls = settings.tls
    assert tls is not None
    assert (tls.certfile, tls.verify_peer, tls.fail_if_no_peer_cert) == (pem, True, True)
    assert tls.versions == ("tlsv1.3",)
    assert tls.password == "secret"
    assert "secret" not in repr(settings)


def test_tls_needs_a_certificate(conf: Configuration) -> None:
    (problem,) = conf.problems("listeners.ssl.default = 5671")
    assert problem == "listeners.ssl needs ssl_options.certfile and ssl_options.keyfile"


def test_demanding_a_certificate_without_verifying_it_is_a_contradiction(conf: Configuration, pem: str) -> None:
    text = f"listeners.ssl.default = 5671\nssl_options.certfile = {pem}\nssl_options.keyfile = {pem}\n"
    (problem,) = conf.problems(text + "ssl_options.fail_if_no_peer_cert = true")
    assert "verify_peer" in problem
    (problem,) = conf.problems(text + "ssl_options.verify = verify_peer")
    assert "cacertfile" in problem


def test_old_versions_of_tls_are_not_supported(conf: Configuration) -> None:
    (problem,) = conf.problems("ssl_options.versions.1 = tlsv1.1")
    assert "not supported by this version" in problem


# Users


def test_loopback_users(conf: Configuration) -> None:
    assert conf.settings("").loopback_users == {"guest"}
    assert conf.settings("loopback_users = none").loopback_users == set()
    assert conf.settings("loopback_users.guest = false").loopback_users == set()
    assert conf.settings("loopback_users = none\nloopback_users.guest = true").loopback_users == set()
    assert conf.settings("loopback_users.john\\.doe = true").loopback_users == {"john.doe"}


def test_default_user(conf: Configuration) -> None:
    settings = conf.settings(
        "default_user = ann\ndefault_pass = secret\ndefault_vhost = work\ndefault_user_tags.monitoring = true\n"
        "default_user_tags.administrator = false\ndefault_permissions.configure = ^a\ndefault_permissions.write = ^b\n"
        "default_permissions.read = ^c\n"
    )
    assert (settings.default_user, settings.default_pass, settings.default_vhost) == ("ann", "secret", "work")
    assert settings.default_user_tags == ("monitoring",)
    assert (settings.default_configure, settings.default_write, settings.default_read) == ("^a", "^b", "^c")


def test_mechanisms_stand_in_the_order_of_their_numbers(conf: Configuration) -> None:
    assert conf.settings("auth_mechanisms.2 = PLAIN\nauth_mechanisms.1 = AMQPLAIN").auth_mechanisms == (
        "AMQPLAIN",
        "PLAIN",
    )
    (problem,) = conf.problems("auth_mechanisms.1 = ANONYMOUS")
    assert "not supported by this version (here: PLAIN, AMQPLAIN, EXTERNAL)" in problem


# Names and folders


def test_a_short_name_does_not_follow_the_machine(conf: Configuration) -> None:
    settings = conf.settings("", node_name="rabbit")
    assert settings.node_name == settings.cluster_name == "rabbit@localhost"
    assert settings.data_dir == "/home/ann/.leveret/rabbit@localhost"


def test_log_files(conf: Configuration) -> None:
    assert conf.settings("log.file = a.log\ndata_dir = /data").log_file == "/data/logs/a.log"
    assert conf.settings("log.file = a.log\nlog.dir = /logs").log_file == "/logs/a.log"
    assert conf.settings("log.file = /else/a.log\nlog.dir = /logs").log_file == "/else/a.log"
    assert conf.settings("log.dir = /logs").log_file == "/logs/leveret@localhost.log"
    assert conf.settings("log.dir = /logs\nlog.file = false").log_file is None


def test_log_levels(conf: Configuration) -> None:
    settings = conf.settings("log.connection.level = debug\nlog.default.level = warning\nlog.console.level = error")
    assert settings.log_levels["connection"] == "debug"
    assert {level for category, level in settings.log_levels.items() if category != "connection"} == {"warning"}
    assert {"default", "channel", "queue", "mirroring", "cluster"} < set(settings.log_levels)
    assert (settings.log_console_level, settings.log_file_level) == ("error", "debug")
    assert set(conf.settings("").log_levels.values()) == {"info"}


def test_the_form_of_log_lines(conf: Configuration) -> None:
    assert conf.settings("").log_console_form == LogForm()
    settings = conf.settings(
        "log.console.formatter = json\nlog.console.formatter.time_format = epoch_usecs\nlog.console.stdio = stdout\n"
        "log.file = a.log\nlog.file.formatter.level_format = uc4\nlog.file.formatter.single_line = on"
    )
    assert settings.log_console_form == LogForm(json=True, time="epoch_usecs")
    assert settings.log_file_form == LogForm(level="uc4", single_line=True)
    assert settings.log_console_stdio == "stdout"


def test_rotation_of_log_files(conf: Configuration) -> None:
    lines = "log.file = a\nlog.file.rotation.date = $W0D23\nlog.file.rotation.size = 10MB\n"
    lines += "log.file.rotation.count = 3\nlog.file.rotation.compress = true"
    assert conf.settings(lines).log_rotation == Rotation("$W0D23", 10 << 20, 3, True)
    for wrong in ("$D24", "daily", "$W7", "$M0D1", "$"):
        (problem,) = conf.problems(f"log.file = a\nlog.file.rotation.date = {wrong}")
        assert "not allowed; allowed: $H" in problem


def test_the_files_that_were_read_are_known(conf: Configuration) -> None:
    assert [Path(file).name for file in conf.settings("heartbeat = 5").config_files] == ["broker.conf"]


# Precedence


def test_the_stronger_source_holds(conf: Configuration) -> None:
    file = "node_name = file@host"
    rabbitmq = {"RABBITMQ_NODENAME": "rabbitmq@host"}
    leveret = {"LEVERET_NODE_NAME": "leveret@host"}
    assert conf.settings(file).node_name == "file@host"
    assert conf.settings(file, rabbitmq).node_name == "rabbitmq@host"
    assert conf.settings(file, rabbitmq | leveret).node_name == "leveret@host"
    assert conf.settings(file, rabbitmq | leveret, node_name="option@host").node_name == "option@host"


def test_the_source_is_remembered(conf: Configuration) -> None:
    sources = conf.load("heartbeat = 1\nchannel_max = 5", {"LEVERET_HEARTBEAT": "2"}, port="3").sources
    assert sources == {"heartbeat": "LEVERET_HEARTBEAT", "channel_max": f"{conf.path}, line 2", "port": "--port"}


def test_a_list_is_never_mixed_from_two_sources(conf: Configuration) -> None:
    file = "listeners.tcp.1 = 127.0.0.1:1\nlisteners.tcp.2 = 127.0.0.1:2\nauth_mechanisms.2 = AMQPLAIN"
    settings = conf.settings(file, {"LEVERET_LISTENERS_TCP_1": "127.0.0.1:9", "LEVERET_AUTH_MECHANISMS_1": "PLAIN"})
    assert settings.tcp_listeners == (Listener("127.0.0.1", 9),)
    assert settings.auth_mechanisms == ("PLAIN",)


def test_every_used_key_has_a_variable() -> None:
    environ = {"LEVERET_" + key.replace(".", "_").replace("$", "X").upper(): "\0" for key in schema.USED}
    with pytest.raises(ConfigError) as raised:
        load([], HOME | environ)
    assert not [problem for problem in raised.value.problems if "no such setting" in problem or "unknown" in problem]


def test_variables_with_a_free_word(conf: Configuration) -> None:
    settings = conf.settings("", {"LEVERET_LOOPBACK_USERS_GUEST": "false", "LEVERET_LOOPBACK_USERS_Bob": "true"})
    assert settings.loopback_users == {"Bob"}


def test_an_unknown_variable_stops_the_start(conf: Configuration) -> None:
    assert conf.problems("", {"LEVERET_PROT": "1"}) == ["LEVERET_PROT = 1: no such setting; did you mean LEVERET_PORT?"]


def test_where_nodes_leave_word_for_leveretctl_is_no_setting(conf: Configuration) -> None:
    assert conf.warnings("", {"LEVERET_RUNTIME_DIR": "/a"}) == []


def test_the_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.conf", tmp_path / "theirs.conf"
    ours.write_text("heartbeat = 1")
    theirs.write_text("heartbeat = 2\nchannel_max = 2")
    rabbitmq = HOME | {"RABBITMQ_CONFIG_FILE": str(tmp_path / "theirs")}
    assert load([], rabbitmq).settings.heartbeat_s == 2
    assert load([], rabbitmq | {"LEVERET_CONFIG": str(ours)}).settings.heartbeat_s == 1
    assert load([], rabbitmq | {"LEVERET_CONFIG": str(ours)}, str(theirs)).settings.heartbeat_s == 2


def test_several_files_the_last_one_is_the_strongest(tmp_path: Path) -> None:
    (tmp_path / "10.conf").write_text("heartbeat = 1\nchannel_max = 1")
    (tmp_path / "20.conf").write_text("heartbeat = 2")
    for named in str(tmp_path), str(tmp_path / "*.conf"):
        settings = load([], HOME | {"RABBITMQ_CONFIG_FILES": named}).settings
        assert (settings.heartbeat_s, settings.channel_max) == (2, 1)


# RabbitMQ's variables


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"NODE_PORT": "1"}, "tcp_listeners", (Listener("", 1),)),
        ({"NODE_IP_ADDRESS": "127.0.0.1"}, "tcp_listeners", (Listener("127.0.0.1", 5672),)),
        ({"NODE_IP_ADDRESS": "::1", "NODE_PORT": "1"}, "tcp_listeners", (Listener("::1", 1),)),
        ({"NODE_IP_ADDRESS": "auto", "NODE_PORT": "1"}, "tcp_listeners", (Listener("", 1),)),
        ({"MNESIA_DIR": "/a/b"}, "data_dir", "/a/b"),
        ({"MNESIA_BASE": "/a", "NODENAME": "r@h"}, "data_dir", "/a/r@h"),
        ({"MNESIA_BASE": "/a", "MNESIA_DIR": "/b"}, "data_dir", "/b"),
        ({"DEFAULT_USER": "ann"}, "default_user", "ann"),
        ({"DEFAULT_PASS": "secret"}, "default_pass", "secret"),
        ({"DEFAULT_VHOST": "work"}, "default_vhost", "work"),
        ({"LOGS": "-"}, "log_file", None),
        ({"LOGS": "/a/b.log"}, "log_file", "/a/b.log"),
        ({"LOG": "debug"}, "log_levels", log_levels({"default": "debug"})),
        ({"LOG": "connection=debug,queue=error"}, "log_levels", log_levels({"connection": "debug", "queue": "error"})),
        ({"LOG_BASE": "/a"}, "log_file", "/a/leveret@localhost.log"),
        ({"NODENAME": ""}, "node_name", "leveret@localhost"),
        ({"URL": "amqp://somebody.else"}, "node_name", "leveret@localhost"),
    ],
)
def test_rabbitmq_variables(environ: dict[str, str], field: str, value: object) -> None:
    loaded = load([], HOME | {f"RABBITMQ_{name}": text for name, text in environ.items()})
    assert getattr(loaded.settings, field) == value
    assert loaded.warnings == ()


def test_a_file_that_moves_the_data_is_weaker_than_rabbitmqs_base_folder(conf: Configuration) -> None:
    assert conf.settings("data_dir = /file", {"RABBITMQ_MNESIA_BASE": "/base"}).data_dir == "/base/leveret@localhost"
    assert conf.settings("", {"RABBITMQ_MNESIA_BASE": "/base"}, data_dir="/option").data_dir == "/option"


def test_rabbitmq_variables_without_meaning_are_warned_about(conf: Configuration) -> None:
    environ = {"RABBITMQ_USE_LONGNAME": "true", "RABBITMQ_PID_FILE": "/a", "RABBITMQ_LOG": "+color"}
    assert len(conf.warnings("", environ)) == 3
    assert len(conf.problems("", {"RABBITMQ_ADVANCED_CONFIG_FILE": "/a"})) == 1


# Keys that this version does not use


@pytest.mark.parametrize(
    "line",
    [
        "num_acceptors.tcp = 10",
        "raft.wal_max_size_bytes = 64000000",
        "background_gc_enabled = true",
        "queue_index_embed_msgs_below = 4096",
        "tcp_listen_options.exit_on_close = false",
        "collect_statistics = coarse",
        "management.sample_retention_policies.global.minute = 5",
        "log.federation.level = info",
        "fsync_interval = 10",
        "cluster_keepalive_interval = 10000",
        "cluster_formation.randomized_startup_delay_range.min = 5",
        "cluster_formation.lock_retry_limit = 5",
        "cluster_formation.discovery_retry_limit = 5",
        "cluster_formation.discovery_retry_interval = 5s",
        "cluster_formation.target_cluster_size_hint = 3",
        "cluster_formation.dns.hostname = nodes.example",
        "log.file.level = debug",
        "tcp_listen_options.linger.timeout = 3",
    ],
)
def test_what_has_no_effect_is_warned_about(conf: Configuration, line: str) -> None:
    (warning,) = conf.warnings(line)
    assert warning.startswith(f"broker.conf, line 1: {line}: has no effect: ")


@pytest.mark.parametrize(
    "line",
    [
        "cluster_formation.peer_discovery_backend = rabbit_peer_discovery_aws",
        "cluster_formation.peer_discovery_backend = etcd",
        "cluster_formation.consul.host = consul",
        "cluster_formation.node_type = ram",
        "cluster_nodes.ram_copies = a",
        "distribution.listener.interface = 10.0.0.1",
        "management.rates_mode = detailed",
        "management.http_log_dir = /tmp",
        "prometheus.path = /figures",
        "definitions.import_backend = https",
        "mqtt.tcp_listen_options.backlog = 10",
        "mqtt.sparkplug = true",
        "web_mqtt.max_connections = 10",
        "web_mqtt.ws_opts.compress = true",
        "auth_backends.1 = ldap",
        "auth_backends.1.authn = internal",
        "ssl_options.depth = 2",
        "reverse_dns_lookups = true",
        "log.exchange = true",
        "log.connection.rotation.size = 10",
        "log.file.formatter.json.field_map = time",
        "log.connection.file = c.log",
        "deprecated_features.permit.transient_nonexcl_queues = false",
    ],
)
def test_what_somebody_counts_on_stops_the_start(conf: Configuration, line: str) -> None:
    (problem,) = conf.problems(line)
    assert problem.startswith(f"broker.conf, line 1: {line}: not supported by this version")


ANYWAY = [
    "mqtt.sparkplug = false",
    "mqtt.max_connections = infinity",
    "auth_backends.1 = internal",
    "log.journald = false",
]


@pytest.mark.parametrize("line", ANYWAY)
def test_what_the_broker_does_anyway_is_accepted(conf: Configuration, line: str) -> None:
    assert conf.warnings(line) == []


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("listeners.tpc.default = 1", "listeners.tcp"),
        ("vm_memory_high_watermak.relative = 0.4", "vm_memory_high_watermark.relative"),
        ("ssl_options.certfle = x", "ssl_options.certfile"),
        ("log.conection.level = info", "log.connection.level"),
        ("heartbeat. = 1", "heartbeat"),
    ],
)
def test_the_nearest_name_is_offered(conf: Configuration, line: str, near: str) -> None:
    (problem,) = conf.problems(line)
    assert near in problem.partition(line)[2]


def test_both_names_of_the_session_expiry(conf: Configuration) -> None:
    newer = "mqtt.max_session_expiry_interval_seconds"
    for text, ttl_ms in (
        ("", 86_400_000),
        ("mqtt.subscription_ttl = 5000", 5_000),
        ("mqtt.subscription_ttl = undefined", None),
        (f"{newer} = 7", 7_000),
        (f"{newer} = infinity\nmqtt.subscription_ttl = 5000", None),
    ):
        assert conf.settings(text).mqtt_subscription_ttl_ms == ttl_ms
    assert conf.problems(f"{newer} = 0")
    assert conf.settings("mqtt.server_keepalive = 30").mqtt_server_keepalive_s == 30


def test_every_key_of_rabbitmq_is_known() -> None:
    """All keys in the schemas of RabbitMQ 3.10 and its plugins, with `$` for a free word."""
    keys = KEYS.read_text().split()
    assert len(keys) > 700
    assert [key for key in keys if schema.find(key.replace("$", "any")) is None] == []


def test_every_setting_is_read() -> None:
    """A setting that nothing reads would be accepted and ignored."""
    leveret = Path(schema.__file__).parents[2]
    assert (leveret / "node" / "server.py").exists()
    read = {
        node.attr
        for file in leveret.rglob("*.py")
        if file.parent.name != "cli" and file.name not in ("settings.py", "load.py", "schema.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    if "memory_limit_bytes" in read:
        read |= {"memory_watermark_relative", "memory_watermark_absolute", "total_memory_override"}
    if "disk_limit_bytes" in read:
        read |= {"disk_free_relative", "disk_free_absolute"}
    fields = Settings.__dataclass_fields__.keys() | TlsOptions.__dataclass_fields__.keys()
    fields |= Discovery.__dataclass_fields__.keys()
    assert sorted(fields - read) == []


def test_every_setting_can_be_given() -> None:
    gathered = {
        "tcp_listeners",
        "ssl_listeners",
        "tls",
        "mqtt_listeners",
        "mqtt_tls_listeners",
        "web_mqtt_listeners",
        "stomp_listeners",
        "stomp_tls_listeners",
        "web_stomp_listeners",
        "web_stomp_tls_listeners",
        "web_stomp_tls",
        "web_mqtt_tls_listeners",
        "web_mqtt_tls",
        "management_listeners",
        "management_origins",
        "management_tls_listeners",
        "management_tls",
        "prometheus_listeners",
        "prometheus_is_wanted",
        "cluster_listener",
        "cluster_host",
        "cluster_tls",
        "discovery",
        "mirroring",
        "partition_handling",
        "rebalance",
        "node_labels",
        "linger_s",
        "auth_mechanisms",
        "loopback_users",
        "default_user_tags",
        "memory_watermark_relative",
        "memory_watermark_absolute",
        "disk_free_relative",
        "disk_free_absolute",
        "config_files",
        "log_console_form",
        "log_file",
        "log_file_form",
        "log_levels",
        "log_rotation",
    }
    given_by_one_key = {rule.field for rule in schema.USED.values() if rule.field}
    assert given_by_one_key | gathered == set(Settings.__dataclass_fields__)
    assert not given_by_one_key & gathered


def test_definitions_to_load_at_a_start(conf: Configuration, tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_text("{}")
    assert conf.settings(f"load_definitions = {path}").load_definitions == str(path)
    assert conf.settings(f"load_definitions = {tmp_path}").load_definitions == str(tmp_path)
    assert conf.settings("").load_definitions is None
    (problem,) = conf.problems(f"load_definitions = {path}.not")
    assert problem.endswith("not allowed; allowed: the path of a file or a folder that this user may read")


def test_pages_of_other_origins(conf: Configuration) -> None:
    text = "management.cors.allow_origins.1 = https://a.example\nmanagement.cors.allow_origins.2 = http://b.example:80"
    settings = conf.settings(f"{text}\nmanagement.cors.max_age = 60")
    assert settings.management_origins == ("https://a.example", "http://b.example:80")
    assert settings.management_cors_s == 60
    assert conf.settings("management.cors.allow_origins.1 = *").management_origins == ("*",)
    assert conf.settings("").management_origins == ()
    for bad in ("example.com", "https://a.example/", "https://a.example/path", "null"):
        (problem,) = conf.problems(f"management.cors.allow_origins.1 = {bad}")
        assert "an origin without a path" in problem


def test_how_often_counters_are_sampled(conf: Configuration) -> None:
    assert conf.settings("").statistics_interval_ms == 5_000
    assert conf.settings("collect_statistics_interval = 30000").statistics_interval_ms == 30_000
    assert len(conf.problems("collect_statistics_interval = 0")) == 1


def test_where_metrics_are(conf: Configuration) -> None:
    """Without credentials, so that it can be shut, or kept to this machine."""
    host = "listeners.tcp.1 = 192.0.2.1:5672"
    assert conf.settings(host).prometheus_listeners == (Listener("192.0.2.1", 15692),)
    only_here = conf.settings(f"{host}\nprometheus.tcp.ip = 127.0.0.1")
    assert only_here.prometheus_listeners == (Listener("127.0.0.1", 15692),)
    assert conf.settings("prometheus.tcp.port = 9100").prometheus_listeners == (Listener("", 9100),)
    assert conf.settings("prometheus.tcp.port = none").prometheus_listeners == ()


def test_mqtt_over_websocket(conf: Configuration) -> None:
    assert conf.settings("").web_mqtt_listeners == ()
    settings = conf.settings("web_mqtt.tcp.port = 15675")
    assert settings.web_mqtt_listeners == (Listener("", 15675),)
    assert (settings.web_mqtt_path, settings.web_mqtt_message_max) == ("/ws", None)
    settings = conf.settings(
        "web_mqtt.tcp.ip = 127.0.0.1\nweb_mqtt.tcp.port = 1\n"
        "web_mqtt.ws_path = /mqtt\nweb_mqtt.ws_opts.max_frame_size = 1MB"
    )
    assert settings.web_mqtt_listeners == (Listener("127.0.0.1", 1),)
    assert (settings.web_mqtt_path, settings.web_mqtt_message_max) == ("/mqtt", 1 << 20)
    assert conf.settings("web_mqtt.tcp.listener = [::1]:2").web_mqtt_listeners == (Listener("::1", 2),)
    assert conf.settings("web_mqtt.tcp.listener = none").web_mqtt_listeners == ()
    (problem,) = conf.problems("web_mqtt.tcp.listener = 1\nweb_mqtt.tcp.port = 2")
    assert "not both" in problem
    (problem,) = conf.problems("web_mqtt.ssl.port = 15676")
    assert "web_mqtt.ssl.certfile" in problem
