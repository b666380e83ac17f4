"""Templates, style and scripts put into one page that needs nothing else; everything is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import plotly.io
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

_UNSAFE_IN_SCRIPT = re.compile("[<>&\u2028\u2029]")
"""A JSON text could end its script element, or open a comment, with these."""


def rendered(template: str, **values: Any) -> str:
    """The page of a template; every value is escaped unless the template's author said not to."""
    environment = Environment(
        loader=PackageLoader("reports.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        style=Markup(_asset("report.css")), script=Markup(_asset("report.js")), **values
    )


def plotly_source() -> Markup:
    """plotly.js whole, so that the page opens offline."""
    return Markup(get_plotlyjs())


def figures_json(figures: Mapping[str, Any]) -> Markup:
    """Figures by the id of their element, fit to stand in a script element."""
    members = (
        f"{json.dumps(name)}:{plotly.io.to_json(figure, validate=False)}"
        for name, figure in figures.items()
    )
    return script_json("{" + ",".join(members) + "}")


def script_json(text: str) -> Markup:
    """JSON that cannot end the script element that it stands in."""
    return Markup(_UNSAFE_IN_SCRIPT.sub(lambda m: f"\\u{ord(m.group()):04x}", text))


def page_bytes(page: str) -> bytes:
    """UTF-8, with a question mark for what a file name or log holds that is no character."""
    return page.encode("utf-8", errors="replace")


def _asset(name: str) -> str:
    return files("reports.html").joinpath("templates", name).read_text(encoding="utf-8")
