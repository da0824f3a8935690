"""What `leveretctl` suggests to whoever gets no answer."""

from __future__ import annotations

import pytest

from leveret.cli.ctl.base.connect import Target
from leveret.cli.ctl.base.session import _suggestion
from leveret.links import link
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.system.local_registry import Entry

PLAIN = Target("127.0.0.1", 25672, None, b"cookie", "a file")
WITH_TLS = PLAIN._replace(tls=("cert", "key", "ca"))


@pytest.mark.parametrize(
    ("error", "target", "suggested"),
    [
        (CallFailed("unreachable", "Connection refused"), PLAIN, "nothing listens there"),
        (CallFailed("unreachable", "[SSL: CERTIFICATE_VERIFY_FAILED] …"), WITH_TLS, "--tls-ca-cert-file must contain"),
        (CallFailed("closed", "the connection was closed"), WITH_TLS, "if the certificate was refused"),
        (CallFailed("closed", "the connection was closed"), PLAIN, "is this a cluster port"),
    ],
)
def test_suggestions(error: CallFailed, target: Target, suggested: str) -> None:
    assert _suggestion(error, target).startswith(f"suggestion: {suggested}")


def test_a_cookie_file_that_was_changed_under_a_running_node() -> None:
    """To name that file with --cookie-file, as for a cookie from elsewhere, would not help."""
    entry = Entry("one@host", 4711, "127.0.0.1", 25672, "/data")
    own = PLAIN._replace(entry=entry, cookie_from="/data/cookie")
    error = CallFailed(link.COOKIE, "the cookie differs")
    told = _suggestion(error, own)
    assert "/data/cookie was changed after the node was started" in told and "kill 4711" in told
    assert "--cookie-file" not in told
    assert "--cookie-file" in _suggestion(error, own._replace(cookie_from="/tmp/another"))
