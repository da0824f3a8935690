"""Certificates made for a test, with the openssl of the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def issue(folder: Path) -> Path:
    """Makes a CA, and a server and a client certificate signed by it."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=authority",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",  # Without it Python's clients refuse it, from 3.13 on.
            "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.pem")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/O=shop/CN={name}", "-addext",
                "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE", "-CA",
                f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key", "-keyout", f"{folder}/{name}.key",
                "-out", f"{folder}/{name}.pem")  # fmt: skip
    return folder
