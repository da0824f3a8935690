"""What `leveretctl` suggests to whoever gets no answer."""

from __future__ import annotations

import pytest

from leveret.cli.ctl.session import _suggestion
from leveret.cli.ctl.target import Target
from leveret.node.wire import CallFailed

PLAIN = Target("127.0.0.1", 25672, None, b"cookie", "a file")
WITH_TLS = PLAIN._replace(tls=("cert", "key", "ca"))


@pytest.mark.parametrize(
    ("error", "target", "suggested"),
    [
        (CallFailed("unreachable", "Connection refused"), PLAIN, "nobody listens there"),
        (CallFailed("unreachable", "[SSL: CERTIFICATE_VERIFY_FAILED] …"), WITH_TLS, "--tls-ca-cert-file must have"),
        (CallFailed("closed", "the connection was closed"), WITH_TLS, "the log of that node says why"),
        (CallFailed("closed", "the connection was closed"), PLAIN, "is that a cluster port?"),
    ],
)
def test_suggestions(error: CallFailed, target: Target, suggested: str) -> None:
    assert _suggestion(error, target).startswith(f"suggestion: {suggested}")
