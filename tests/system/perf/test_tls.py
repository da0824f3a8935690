"""`leveret perf` over TLS."""

from __future__ import annotations

import json
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.main import main
from leveret.client import tls
from tests.support.certificates import issue
from tests.support.servers import Server
from tests.system.conftest import Start

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(start: Start, certificates: Path) -> Server:
    """Clients have to show a certificate."""
    return start(f"""
        listeners.ssl.1 = 127.0.0.1:0
        ssl_options.certfile = {certificates}/server.pem
        ssl_options.keyfile = {certificates}/server.key
        ssl_options.cacertfile = {certificates}/ca.pem
        ssl_options.verify = verify_peer
        ssl_options.fail_if_no_peer_cert = true
    """)


def perf(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    code = main(["perf", "--json", "--quiet", "-C", "500", *words])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def test_over_tls(server: Server, certificates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages of many records, in both directions; as whom the certificate shows, and as nobody in particular."""
    uri = ["--uri", f"amqps://guest:guest@127.0.0.1:{server.tls_port}"]
    shown = ["--cert", f"{certificates}/client.pem", "--key", f"{certificates}/client.key"]
    trusted = ["--cacert", f"{certificates}/ca.pem"]
    code, found, _ = perf(capsys, *uri, *shown, *trusted, "-s", "50000", "-c", "50")
    assert (code, found["errors"]) == (0, [])
    summary = found["summary"]
    assert (summary["sent"], summary["confirmed"], summary["received"]) == (500, 500, 500)
    code, found, _ = perf(capsys, *uri, *shown, "--insecure", "-x", "2", "-y", "2", "-q", "10")
    assert (code, found["summary"]["received"]) == (0, 1_000)
    both = [*uri, "--uri", f"amqp://127.0.0.1:{server.port}", *shown, *trusted, "-x", "2", "-y", "2"]
    code, found, _ = perf(capsys, *both)
    assert (code, found["summary"]["received"]) == (0, 1_000)

    code, _, said = perf(capsys, *uri, *shown)
    assert (code, "Use --cacert to name a CA" in said) == (1, True)
    code, _, said = perf(capsys, "--uri", f"amqps://127.0.0.1:{server.port}", *trusted)
    assert (code, "the server does not use TLS there" in said) == (1, True)
    code, _, said = perf(capsys, *uri, *trusted)  # Nothing to show.
    assert code == 1 and "certificate" in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--cacert ca", "--cacert is for TLS"),
        ("--insecure --uri amqp://x", "--insecure is for TLS"),
        ("--key k --uri amqps://x", "--key needs a --cert"),
        ("--insecure --cacert ca --uri amqps://x", "use either --insecure or --cacert"),
        ("--cacert /nowhere/ca --uri amqps://x", "/nowhere/ca: No such file or directory"),
    ],
)
def test_what_does_not_go_together(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", *words.split()]) == 64
    assert text in capsys.readouterr().err


def test_a_file_that_is_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca").write_text("nothing of the kind")
    assert main(["perf", "--uri", "amqps://x", "--cacert", f"{tmp_path}/ca"]) == 64
    assert f"{tmp_path}/ca: TLS: no certificate or crl found" in capsys.readouterr().err


def test_what_went_wrong_without_a_reason() -> None:
    assert tls.problem(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert "odd" in tls.problem(ssl.SSLError("odd"))
