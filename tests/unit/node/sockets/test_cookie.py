"""Where the cookie comes from, and which files are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from leveret.node.sockets.cookie import BYTES_MAX, BadCookie, find_cookie, inherited, read_cookie, weakness


def private(path: Path, content: bytes, mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_made_once_for_its_owner_only(tmp_path: Path) -> None:
    cookie = find_cookie(str(tmp_path))
    assert len(cookie) >= 40 and cookie == cookie.strip()
    assert stat.S_IMODE((tmp_path / "cookie").stat().st_mode) == 0o600
    assert find_cookie(str(tmp_path)) == cookie
    assert os.listdir(tmp_path) == ["cookie"]
    other = tmp_path / "other"
    other.mkdir()
    assert find_cookie(str(other)) != cookie


def test_named_file_before_given_value_before_own_file(tmp_path: Path) -> None:
    named = private(tmp_path / "named", b"from the file\n")
    assert find_cookie(str(tmp_path), named, "from the environment") == b"from the file"
    assert find_cookie(str(tmp_path), None, "from the environment") == b"from the environment"
    assert not (tmp_path / "cookie").exists()


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_private_files(tmp_path: Path, mode: int) -> None:
    assert read_cookie(private(tmp_path / "c", b" secret \n", mode)) == b"secret"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_files_open_to_others_are_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "c", b"secret", mode)
    with pytest.raises(BadCookie) as refused:
        read_cookie(path)
    assert str(refused.value) == (
        f"the cookie file {path} is open to others (mode {mode:04o}); close it with: chmod 600 {path}"
    )


def test_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(BadCookie, match=r"cannot read the cookie file .*nowhere: No such file"):
        find_cookie(str(tmp_path), str(tmp_path / "nowhere"))


@pytest.mark.parametrize("content", [b"", b" \n", b"secret" * BYTES_MAX])
def test_what_is_no_cookie(tmp_path: Path, content: bytes) -> None:
    path = private(tmp_path / "c", content)
    with pytest.raises(BadCookie) as refused:
        read_cookie(path)
    assert "secret" not in str(refused.value)
    with pytest.raises(BadCookie):
        find_cookie(str(tmp_path), None, content.decode())


def test_what_a_node_that_died_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "cookie.new").write_bytes(b"half")
    cookie = find_cookie(str(tmp_path))
    assert cookie != b"half" and os.listdir(tmp_path) == ["cookie"]


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadCookie, match="cannot make the cookie file"):
        find_cookie(str(tmp_path / "missing"))


def test_a_node_without_a_cookie_takes_that_of_the_user(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    data.mkdir()
    assert inherited(str(data), str(home)) is None
    path = private(home / ".erlang.cookie", b"ERLANG")
    assert inherited(str(data), str(home)) == path
    private(data / "cookie", b"its own")
    assert inherited(str(data), str(home)) is None


def test_what_can_be_guessed_is_told_and_still_works(tmp_path: Path) -> None:
    assert find_cookie(str(tmp_path), value="x") == b"x"
    told = weakness(b"x" * 15)
    assert told is not None and "15 characters" in told and "x" * 15 not in told
    assert weakness(b"x" * 16) is None
    assert weakness(find_cookie(str(tmp_path))) is None  # The one that a node makes.
