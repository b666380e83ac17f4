"""An address that paratune cannot submit to is named at once: nobody there, no Ray, a wrong Ray."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runners import ray_jobs
from runners.ray_jobs import RayJobs
from tuner.errors import UserError

Dashboard = Callable[..., str]


@pytest.fixture
def answering() -> Iterator[Dashboard]:
    """Starts servers that answer every request alike, or, without a status, never."""
    ended = threading.Event()
    servers: list[ThreadingHTTPServer] = []

    def start(status: int | None, text: str = "", path: str = "") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if status is None:
                    ended.wait()
                    return
                wrong_path = path and not self.path.startswith(path)
                self.send_response(404 if wrong_path else status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    ended.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def refused(address: str) -> str:
    with pytest.raises(UserError) as found:
        RayJobs(address)
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("head:8265", "got head:8265; try http://head:8265"),
        ("ray://head:10001", "must be http://HOST:PORT of a Ray dashboard, got ray://head:10001"),
        ("http://", "must be http://HOST:PORT"),
        ("http://me:secret@head:8265", "must not hold a password"),
    ],
)
def test_an_address_of_another_kind_is_refused_unasked(address: str, said: str) -> None:
    message = refused(address)
    assert said in message
    assert "secret" not in message


def test_nobody_there_is_said_at_once() -> None:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))  # bound, so that nobody else listens; never listening itself
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        assert f"got {address}: Connection refused;" in refused(address)


def test_a_host_that_has_no_address_is_named() -> None:
    assert "got http://no-such-host.invalid:8265: " in refused("http://no-such-host.invalid:8265")


def test_a_server_that_never_answers_is_given_up(
    answering: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "_REQUEST_LIMIT_S", (0.3, 0.3))
    assert "timed out" in refused(answering(None))


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (200, "<html>Welcome</html>", "what answers there is no Ray dashboard"),
        (200, '{"version": "1"}', "what answers there is no Ray dashboard"),
        (404, "", "what answers there is no Ray dashboard"),
        (502, "", "it answers 502 Bad Gateway"),
    ],
)
def test_a_server_that_is_no_dashboard_is_named(
    answering: Dashboard, status: int, text: str, said: str
) -> None:
    assert said in refused(answering(status, text))


def test_a_wrong_path_on_the_right_server_is_named(answering: Dashboard) -> None:
    address = answering(200, json.dumps({"ray_version": "2.60.0"}), path="/api/")
    assert f"got {address}/dashboard: what answers there is no Ray" in refused(
        f"{address}/dashboard"
    )
    RayJobs(f"{address}/")  # and the right one passes


def test_a_server_that_speaks_no_http_is_named() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"\x00\x00\x12\x04garbage")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert "--address must be" in refused(f"http://127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("version", ["2.9.3", "3.0.0"])
def test_a_ray_that_paratune_does_not_run_on_is_named(answering: Dashboard, version: str) -> None:
    said = refused(answering(200, json.dumps({"ray_version": version})))
    assert f"must run Ray <3,>=2.50 for paratune 0.1.0, but it runs {version}" in said


def test_an_address_of_the_environment_does_not_win(
    answering: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    RayJobs(answering(200, json.dumps({"ray_version": "2.60.0"})))


def test_a_token_that_was_not_sent_is_named(
    answering: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    said = refused(answering(401, "Unauthorized: Missing authentication token"))
    assert "RAY_AUTH_MODE is not set here and so none was sent; set RAY_AUTH_MODE=token" in said
