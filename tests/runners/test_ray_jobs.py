"""An address that paratune cannot submit to is named at once: nobody there, no Ray, a wrong Ray."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
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


def test_a_number_in_an_address_is_not_taken_for_an_answer() -> None:
    assert "is no Ray dashboard" not in refused("http://host-404.invalid:8265")


def test_a_dashboard_that_is_gone_is_said_by_every_request() -> None:
    with scripted() as jobs:
        pass
    for ask in (
        lambda: jobs.running("x"),
        lambda: jobs.state("x"),
        lambda: jobs.study_archive("x"),
    ):
        with pytest.raises(RuntimeError, match=f"{jobs.address} does not answer: Connection"):
            ask()


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


class ScriptedJobs(ThreadingHTTPServer):
    """A dashboard whose one job goes on with every look at its log, then is silent."""

    def __init__(self, looks: Sequence[tuple[str, str]]) -> None:
        self.looks = list(looks)
        super().__init__(("127.0.0.1", 0), ScriptedAnswer)


class ScriptedAnswer(BaseHTTPRequestHandler):
    """Status and log come from the first look that is left; a look at the log uses it up."""

    server: ScriptedJobs

    def do_GET(self) -> None:
        version = {"ray_version": "2.60.0"}
        if self.path == "/api/version":
            self._answer(200, version)
        elif not self.server.looks:
            self._answer(503, {})
        elif self.path.endswith("/logs"):
            self._answer(200, {"logs": self.server.looks.pop(0)[1]})
        else:
            status = self.server.looks[0][0]
            code = {"SUCCEEDED": 0, "FAILED": 1}.get(status)
            job = {"type": "SUBMISSION", "status": status, "entrypoint": "python"}
            self._answer(200, {**job, "driver_exit_code": code})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {"job_id": "x", "submission_id": "x"})

    def _answer(self, status: int, value: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def scripted(*looks: tuple[str, str]) -> Iterator[RayJobs]:
    with ScriptedJobs(looks) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield RayJobs(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "_LOOK_S", 0.01)
    monkeypatch.setattr(ray_jobs, "_SILENCE_LIMIT_S", 0.2)


@pytest.mark.usefixtures("quick")
def test_a_log_is_passed_on_line_by_line_and_once() -> None:
    lines: list[str] = []
    looks = [
        ("PENDING", ""),
        ("RUNNING", "one\ntw"),
        ("RUNNING", "one\ntwo\n"),
        ("FAILED", "one\ntwo\nthree"),
    ]
    with scripted(*looks) as jobs:
        end = jobs.follow("x", lines.append)
    assert lines == ["one", "two", "three"]
    assert (end.status, end.exit_code) == ("FAILED", 1)


@pytest.mark.usefixtures("quick")
def test_a_dashboard_that_falls_silent_is_given_up_after_its_limit() -> None:
    lines: list[str] = []
    with scripted(("RUNNING", "one\n")) as jobs, pytest.raises(RuntimeError) as gave_up:
        jobs.follow("x", lines.append)
    assert "has not answered for 0 s: Request failed with status code 503" in str(gave_up.value)
    assert lines == ["one"]


@pytest.mark.usefixtures("quick")
def test_a_folder_that_was_sent_is_not_lost_where_its_job_cannot_be_deleted() -> None:
    with scripted(("SUCCEEDED", "the folder")) as jobs:
        assert jobs.study_archive("~/mine") == "the folder"
