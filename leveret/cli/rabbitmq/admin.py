"""`rabbitmqadmin`: a client of the HTTP API, with the command line of RabbitMQ 3's.

    rabbitmqadmin -u ann -p secret declare queue name=orders durable=true arguments='{"x-max-length": 1000}'
    rabbitmqadmin list queues name messages --format=tsv

Options may come before and after the subcommand. `~/.rabbitmqadmin.conf`, an ini file, has defaults of the options in
its section `[default]`, or in the one that --node names. The exit code is 1 if the broker refuses, or is not there.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from leveret import __version__
from leveret.base.exit_codes import OK
from leveret.cli.guard import guarded
from leveret.client.tls import default_context

FAILED: Final = 1
FORMATS: Final = ("table", "tsv", "raw_json", "pretty_json", "long", "kvp", "bash")

# What can be listed: the columns that are shown unless others are named, and whether there is a list for each vhost.
LISTS: Final[Mapping[str, tuple[tuple[str, ...], bool]]] = {
    "connections": (("name", "user", "channels"), False),
    "channels": (("name", "user"), False),
    "consumers": (("consumer_tag", "queue.name", "ack_required"), True),
    "exchanges": (("name", "type"), True),
    "queues": (("name", "messages"), True),
    "bindings": (("source", "destination", "routing_key"), True),
    "users": (("name", "tags"), False),
    "vhosts": (("name",), False),
    "permissions": (("vhost", "user", "configure", "write", "read"), False),
    "nodes": (("name", "type", "mem_used"), False),
    "parameters": (("component", "name", "vhost", "value"), False),
    "policies": (("name", "vhost", "pattern", "definition", "priority"), True),
    "operator_policies": (("name", "vhost", "pattern", "definition", "priority"), True),
    "vhost_limits": (("vhost", "value"), False),
}
_PATHS: Final = {"operator_policies": "operator-policies", "vhost_limits": "vhost-limits"}
_OVERVIEW: Final = ("rabbitmq_version", "cluster_name", "object_totals.queues", "queue_totals.messages")


class Kind(NamedTuple):
    """Something that can be declared and deleted."""

    path: str  # {vhost} is the vhost, {name} and others are what is given.
    needs: tuple[str, ...]
    defaults: Mapping[str, Any] = {}
    json: tuple[str, ...] = ()  # Values that are JSON, not text.
    optional: tuple[str, ...] = ()


_ARGUMENTS: Final = ("arguments", "auto_delete", "durable", "internal")
KINDS: Final[Mapping[str, Kind]] = {
    "exchange": Kind(
        "exchanges/{vhost}/{name}",
        ("name", "type"),
        {"auto_delete": False, "durable": True, "internal": False, "arguments": {}},
        _ARGUMENTS,
    ),
    "queue": Kind(
        "queues/{vhost}/{name}",
        ("name",),
        {"auto_delete": False, "durable": True, "arguments": {}},
        _ARGUMENTS,
        ("node", "queue_type"),
    ),
    "binding": Kind(
        "bindings/{vhost}/e/{source}/{destination_char}/{destination}",
        ("source", "destination"),
        {"destination_type": "queue", "routing_key": "", "arguments": {}},
        ("arguments",),
    ),
    "vhost": Kind("vhosts/{name}", ("name",), {}, ("tracing",), ("tracing",)),
    "user": Kind("users/{name}", ("name", "tags"), {}, (), ("password", "password_hash", "hashing_algorithm")),
    "permission": Kind("permissions/{vhost}/{user}", ("vhost", "user", "configure", "write", "read")),
    "parameter": Kind("parameters/{component}/{vhost}/{name}", ("component", "name", "value"), {}, ("value",)),
    "policy": Kind(
        "policies/{vhost}/{name}",
        ("name", "pattern", "definition"),
        {"priority": 0, "apply-to": "all"},
        ("definition", "priority"),
    ),
    "operator_policy": Kind(
        "operator-policies/{vhost}/{name}",
        ("name", "pattern", "definition"),
        {"priority": 0, "apply-to": "queues"},
        ("definition", "priority"),
    ),
    "vhost_limit": Kind("vhost-limits/{vhost}/{name}", ("vhost", "name", "value"), {}, ("value",)),
}

SUBCOMMANDS: Final = f"""\
subcommands:
  list {{{"|".join(LISTS)}}} [COLUMN ...]
  show overview [COLUMN ...]
  declare exchange name=... type=... [auto_delete=... durable=... internal=... arguments=...]
  declare queue name=... [auto_delete=... durable=... arguments=... node=... queue_type=...]
  declare binding source=... destination=... [destination_type=... routing_key=... arguments=...]
  declare vhost name=... [tracing=...]
  declare user name=... password=... tags=...         or password_hash=... [hashing_algorithm=...]
  declare permission vhost=... user=... configure=... write=... read=...
  declare parameter component=... name=... value=...
  declare policy name=... pattern=... definition=... [priority=... apply-to=...]
  declare operator_policy name=... pattern=... definition=... [priority=... apply-to=...]
  declare vhost_limit vhost=... name=... value=...
  delete KIND name=...    close connection name=...    purge queue name=...
  export FILE    import FILE
  publish routing_key=... [payload=... properties=... exchange=... payload_encoding=...]
  get queue=... [count=... ackmode=... payload_file=... encoding=...]
"""


class Refused(Exception):
    """The command ends with exit code 1; the text says why."""


def admin(words: Sequence[str]) -> int:
    return guarded("rabbitmqadmin", lambda: _run(list(words)))


def _run(words: list[str]) -> int:
    parser = _parser()
    options, rest = parser.parse_known_intermixed_args(words)
    try:
        if rest:
            raise Refused(f"{rest[0]}: no such option")
        given: list[str] = options.words
        if not given or given[0] == "help":
            parser.print_help()
            return OK if given else FAILED
        Admin(_configured(options)).run(given)
        return OK
    except Refused as refused:
        print(f"*** {refused}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rabbitmqadmin",
        usage="rabbitmqadmin [options] subcommand",
        epilog=SUBCOMMANDS,
        add_help=False,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("words", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--help", "-h", action="help")
    parser.add_argument("--version", action="version", version=f"rabbitmqadmin of leveret {__version__}")
    parser.add_argument("--config", "-c", help="file with defaults of options (~/.rabbitmqadmin.conf)")
    parser.add_argument("--node", "-N", help="section of that file (default)")
    parser.add_argument("--host", "-H", "--hostname", help="(localhost)")
    parser.add_argument("--port", "-P", help="(15672)")
    parser.add_argument("--path-prefix")
    parser.add_argument("--vhost", "-V", help="(all for list, else /)")
    parser.add_argument("--username", "-u", help="(guest)")
    parser.add_argument("--password", "-p", help="(guest)")
    parser.add_argument("--base-uri", "-U", help="http://HOST:PORT")
    parser.add_argument("--quiet", "-q", action="store_true", help="print no status messages")
    parser.add_argument("--ssl", "-s", action="store_true")
    parser.add_argument("--ssl-key-file")
    parser.add_argument("--ssl-cert-file")
    parser.add_argument("--ssl-ca-cert-file")
    parser.add_argument("--ssl-disable-hostname-verification", action="store_true")
    parser.add_argument("--ssl-insecure", "-k", action="store_true")
    parser.add_argument("--request-timeout", "-t", help="seconds (120)")
    parser.add_argument("--format", "-f", choices=FORMATS, help="(table)")
    parser.add_argument("--sort", "-S", metavar="COLUMN")
    parser.add_argument("--sort-reverse", "-R", action="store_true")
    parser.add_argument("--depth", "-d", help="has no effect: columns name what they want, as in a.b")
    return parser


def _configured(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options, and what the configuration file has of others."""
    given = {name: value for name, value in vars(options).items() if name != "words"}
    path = given.get("config") or os.path.expanduser("~/.rabbitmqadmin.conf")
    section = given.get("node", "default")
    reader = configparser.ConfigParser(interpolation=None)
    try:
        found = reader.read(path)
    except configparser.Error as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    if not found and "config" in given:
        raise Refused(f"Could not read config file '{path}'")
    if not reader.has_section(section):
        if "node" in given:
            raise Refused(f"Could not read section '{section}' in config file '{path}'")
        return given
    flags = ("ssl", "quiet", "ssl_insecure", "ssl_disable_hostname_verification", "sort_reverse")
    for name, value in reader.items(section):
        key = {"hostname": "host", "declare_vhost": "vhost"}.get(name, name)
        given.setdefault(key, value.lower() == "true" if key in flags else value)
    return given


class Admin:
    """Carries out one subcommand."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.format: str = options.get("format", "table")

    def run(self, words: list[str]) -> None:
        verb, rest = words[0], words[1:]
        known: dict[str, Callable[[list[str]], None]] = {
            "list": self._list,
            "show": self._show,
            "declare": self._declare,
            "delete": self._delete,
            "close": self._close,
            "purge": self._purge,
            "export": self._export,
            "import": self._import,
            "publish": self._publish,
            "get": self._get,
        }
        if verb not in known:
            raise Refused(f"Action {verb} not understood; see rabbitmqadmin help subcommands")
        known[verb](rest)

    # -- HTTP ----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """Returns the body of the answer. Raises Refused."""
        options = self.options
        host, port, tls = options.get("host", "localhost"), options.get("port"), bool(options.get("ssl"))
        if "base_uri" in options:
            parts = urlsplit(options["base_uri"])
            host, port, tls = parts.hostname or host, parts.port, parts.scheme == "https"
        timeout_s = float(options.get("request_timeout", 120))
        number = int(port or (15_671 if tls else 15_672))
        if tls:
            connection: HTTPConnection = HTTPSConnection(host, number, timeout=timeout_s, context=self._tls())
        else:
            connection = HTTPConnection(host, number, timeout=timeout_s)
        user, password = options.get("username", "guest"), options.get("password", "guest")
        headers = {"Authorization": _basic(user, password), "Content-Type": "application/json"}
        where = f"{options.get('path_prefix', '')}/api/{path}"
        try:
            connection.request(method, where, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            raise Refused(f"Could not connect: {error}") from None
        finally:
            connection.close()
        if answer.status == 401:
            raise Refused(f"Access refused: {where}")
        if answer.status == 404:
            raise Refused(f"Not found: {where}")
        if not 200 <= answer.status < 300:
            raise Refused(f"{_reason(content)} ({answer.status}): {where}")
        return content

    def _tls(self) -> ssl.SSLContext:
        context = default_context(self.options.get("ssl_ca_cert_file"))
        insecure = bool(self.options.get("ssl_insecure"))
        if insecure or self.options.get("ssl_disable_hostname_verification"):
            context.check_hostname = False
        if insecure:
            context.verify_mode = ssl.CERT_NONE
        if self.options.get("ssl_cert_file"):
            context.load_cert_chain(self.options["ssl_cert_file"], self.options.get("ssl_key_file"))
        return context

    def say(self, text: str) -> None:
        if not self.options.get("quiet"):
            print(text)

    # -- Lists ---------------------------------------------------------------------------------------------------

    def _list(self, words: list[str]) -> None:
        if not words or words[0] not in LISTS:
            raise Refused(f"list needs one of {', '.join(LISTS)}")
        what, columns = words[0], words[1:]
        usual, by_vhost = LISTS[what]
        path = _PATHS.get(what, what)
        if by_vhost and "vhost" in self.options:
            path += f"/{quote(self.options['vhost'], safe='')}"
        rows = json.loads(self.ask("GET", path))
        if "sort" in self.options:
            # Numbers before texts: a column may have both, and None.
            key = self.options["sort"]
            rows.sort(key=lambda row: _sortable(_value(row, key)), reverse=bool(self.options.get("sort_reverse")))
        self._print(rows, columns or list(usual))

    def _show(self, words: list[str]) -> None:
        if words[:1] != ["overview"]:
            raise Refused("show needs overview")
        self._print([json.loads(self.ask("GET", "overview"))], words[1:] or list(_OVERVIEW))

    def _print(self, rows: list[Mapping[str, Any]], columns: list[str]) -> None:
        columns = [name for word in columns for name in word.split(",") if name]
        if self.format in ("raw_json", "pretty_json"):
            shown = [{name: _value(row, name) for name in columns} for row in rows]
            print(json.dumps(shown, indent=2 if self.format == "pretty_json" else None))
            return
        table = [[_text(_value(row, name)) for name in columns] for row in rows]
        if self.format == "tsv":
            for line in (columns, *table):
                print("\t".join(line))
        elif self.format == "bash":
            print(" ".join(line[0] for line in table))
        elif self.format == "kvp":
            for line in table:
                print(" ".join(f'{name}="{value}"' for name, value in zip(columns, line, strict=True)))
        elif self.format == "long":
            width = max(map(len, columns))
            for line in table:
                print("-" * 80)
                print("\n".join(f"{name:>{width}}: {value}" for name, value in zip(columns, line, strict=True)))
            print("-" * 80)
        elif not table:
            print("No items")
        else:
            _print_table(columns, table)

    # -- Changes -------------------------------------------------------------------------------------------------

    def _kind(self, words: list[str]) -> tuple[str, Kind, dict[str, str]]:
        if not words or words[0] not in KINDS:
            raise Refused(f"needs one of {', '.join(KINDS)}")
        return words[0], KINDS[words[0]], _pairs(words[1:])

    def _path(self, kind: Kind, values: Mapping[str, Any]) -> str:
        words = {"vhost": self.options.get("vhost", "/"), **values}
        words["destination_char"] = str(words.get("destination_type", "queue"))[:1]
        try:
            return kind.path.format_map({name: quote(str(value), safe="") for name, value in words.items()})
        except KeyError as missing:
            raise Refused(f"mandatory argument {missing.args[0]} required") from None

    def _declare(self, words: list[str]) -> None:
        name, kind, given = self._kind(words)
        for needed in kind.needs:
            if needed not in given:
                raise Refused(f'mandatory argument "{needed}" required')
        known = {*kind.needs, *kind.defaults, *kind.optional, "vhost"}
        if strange := sorted(given.keys() - known):
            raise Refused(f'argument "{strange[0]}" not recognised')
        body = {**kind.defaults, **{key: _parsed(key, value, kind.json) for key, value in given.items()}}
        body["vhost"] = given.get("vhost", self.options.get("vhost", "/"))
        if "queue_type" in body:
            body["arguments"] = {**body["arguments"], "x-queue-type": body.pop("queue_type")}
        path = self._path(kind, body)
        if name in ("vhost", "user"):
            del body["vhost"]
        self.ask("POST" if name == "binding" else "PUT", path, body)
        self.say(f"{name} declared")

    def _delete(self, words: list[str]) -> None:
        name, kind, given = self._kind(words)
        path = self._path(kind, given)
        if name == "binding":
            path += f"/{quote(given.get('properties_key', '~') or '~', safe='')}"
        self.ask("DELETE", path)
        self.say(f"{name} deleted")

    def _close(self, words: list[str]) -> None:
        if words[:1] != ["connection"]:
            raise Refused("close needs connection name=...")
        self.ask("DELETE", f"connections/{quote(_needed(_pairs(words[1:]), 'name'), safe='')}")
        self.say("connection closed")

    def _purge(self, words: list[str]) -> None:
        if words[:1] != ["queue"]:
            raise Refused("purge needs queue name=...")
        name = quote(_needed(_pairs(words[1:]), "name"), safe="")
        self.ask("DELETE", f"queues/{quote(self.options.get('vhost', '/'), safe='')}/{name}/contents")
        self.say("queue purged")

    # -- Definitions ---------------------------------------------------------------------------------------------

    def _definitions(self) -> str:
        vhost = self.options.get("vhost")
        return "definitions" if vhost is None else f"definitions/{quote(vhost, safe='')}"

    def _export(self, words: list[str]) -> None:
        path = _only(words, "export")
        content = self.ask("GET", self._definitions())
        try:
            with open(path, "wb") as file:
                file.write(content)
        except OSError as error:
            raise Refused(f"Could not write to {path}: {error.strerror or error}") from None
        self.say(f'Exported definitions for {self.options.get("host", "localhost")} to "{path}"')

    def _import(self, words: list[str]) -> None:
        path = _only(words, "import")
        try:
            with open(path, "rb") as file:
                body = json.load(file)
        except (OSError, ValueError) as error:
            raise Refused(f"Could not read {path}: {error}") from None
        self.ask("POST", self._definitions(), body)
        self.say(f'Uploaded definitions from "{path}" to {self.options.get("host", "localhost")}.')

    # -- Messages ------------------------------------------------------------------------------------------------

    def _publish(self, words: list[str]) -> None:
        given = _pairs(words)
        exchange = given.get("exchange", "amq.default")
        payload = given["payload"] if "payload" in given else sys.stdin.read()
        body = {
            "routing_key": _needed(given, "routing_key"),
            "payload": payload,
            "payload_encoding": given.get("payload_encoding", "string"),
            "properties": _parsed("properties", given.get("properties", "{}"), ("properties",)),
        }
        vhost = quote(self.options.get("vhost", "/"), safe="")
        path = f"exchanges/{vhost}/{quote(exchange or 'amq.default', safe='')}/publish"
        routed = json.loads(self.ask("POST", path, body))["routed"]
        self.say("Message published" if routed else "Message published but NOT routed")

    def _get(self, words: list[str]) -> None:
        given = _pairs(words)
        body = {
            "count": int(given.get("count", "1")),
            "ackmode": given.get("ackmode", "ack_requeue_true"),
            "encoding": given.get("encoding", "auto"),
        }
        path = f"queues/{quote(self.options.get('vhost', '/'), safe='')}/{quote(_needed(given, 'queue'), safe='')}/get"
        found = json.loads(self.ask("POST", path, body))
        if "payload_file" not in given:
            columns = ["routing_key", "exchange", "message_count", "payload", "payload_bytes", "payload_encoding"]
            self._print(found, [*columns, "properties", "redelivered"])
            return
        if not found:
            raise Refused("Queue is empty")
        import base64

        text = found[0]["payload"]
        content = base64.b64decode(text) if found[0]["payload_encoding"] == "base64" else text.encode()
        try:
            with open(given["payload_file"], "wb") as file:
                file.write(content)
        except OSError as error:
            raise Refused(f"Could not write to {given['payload_file']}: {error.strerror or error}") from None
        self.say(f'{len(content)} bytes written to "{given["payload_file"]}"')


def _basic(user: str, password: str) -> str:
    import base64

    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["reason"])
    except (ValueError, KeyError, TypeError):
        return "Refused"


def _pairs(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise Refused(f'argument "{word}" not in the form name=value')
        found[name] = value
    return found


def _needed(given: Mapping[str, str], name: str) -> str:
    if name not in given:
        raise Refused(f'mandatory argument "{name}" required')
    return given[name]


def _only(words: list[str], verb: str) -> str:
    if len(words) != 1:
        raise Refused(f"{verb} needs the name of a file")
    return words[0]


def _parsed(name: str, value: str, as_json: tuple[str, ...]) -> Any:
    if name not in as_json:
        return value
    text = value.lower() if value.lower() in ("true", "false") else value
    try:
        return json.loads(text) if text else {}
    except ValueError:
        raise Refused(f'Could not parse JSON: "{value}" of argument "{name}"') from None


def _value(row: Mapping[str, Any], column: str) -> Any:
    """Returns the value of a column; `a.b` is b of a."""
    found: Any = row
    for word in column.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _sortable(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0, "" if is_number else _text(value)


def _print_table(columns: list[str], table: list[list[str]]) -> None:
    widths = [max(len(cell) for cell in cells) for cells in zip(columns, *table, strict=True)]
    line = "+-" + "-+-".join("-" * width for width in widths) + "-+"
    print(line)
    print("| " + " | ".join(f"{name:^{width}}" for name, width in zip(columns, widths, strict=True)) + " |")
    print(line)
    for cells in table:
        print("| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)) + " |")
    print(line)
