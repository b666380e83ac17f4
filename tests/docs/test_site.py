"""The documentation site: it builds without a warning, fetches nothing, and can be searched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.reports.html.browser import AXE, Browser, headless_chromium

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_LOADED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?(https?:|//)[^\"> ]*", re.I
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served, for its search."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless_chromium() as started:
        yield started


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of the requests."""


def test_the_site_builds_strictly_with_a_page_for_every_text(site: Path) -> None:
    pages = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in DOCS.glob("*.md")} <= pages


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    found = {
        path.name: [match[0] for match in _LOADED.finditer(path.read_text())]
        for path in site.glob("*.html")
    }
    # The address of the site itself, where one is set, is no loading.
    assert {name: tags for name, tags in found.items() if tags} == {}
    assert "fonts.googleapis" not in "".join(p.read_text() for p in site.glob("*.html"))


@pytest.mark.slow
def test_a_reader_finds_a_key_by_the_search_and_nothing_leaves_the_site(
    browser: Browser, address: str
) -> None:
    _open(browser, f"{address}/index.html")
    browser.run("document.querySelector('#__search').checked = true")
    browser.press(".md-search__input", "micro_batch")
    browser.wait("document.querySelectorAll('.md-search-result__item').length > 0")
    found = browser.value(
        "[...document.querySelectorAll('.md-search-result__link')].map((a) => a.href)"
    )
    assert any("job-file.html" in link for link in found)
    assert [url for url in browser.requests() if not url.startswith(address)] == []
    assert browser.errors() == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["quick-start", "job-file"])
def test_axe_finds_no_serious_fault_in_a_page(
    browser: Browser, address: str, page: str, scheme: str
) -> None:
    browser.media(prefers_color_scheme=scheme)
    _open(browser, f"{address}/{page}.html")
    browser.run(AXE.read_text())
    found = browser.driver.execute_async_script(
        "const done = arguments[0];"
        # Chromium lets the keyboard scroll what overflows, whether or not it holds a link.
        "axe.run('.md-content', {rules: {'scrollable-region-focusable': {enabled: false}}})"
        ".then((r) => done(r.violations"
        ".filter((v) => ['serious', 'critical'].includes(v.impact))"
        ".map((v) => [v.id, v.nodes.length, v.nodes[0].html, v.nodes[0].any[0]?.message])))"
    )
    assert found == []


def _open(browser: Browser, url: str) -> None:
    browser.driver.get_log("browser")
    browser.driver.get_log("performance")
    browser.driver.get(url)
    browser.wait("document.readyState === 'complete'")


def test_every_link_of_the_readme_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text())
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
