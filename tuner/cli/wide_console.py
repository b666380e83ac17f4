"""The console of tables: what is piped or kept in a file is not cut to a terminal's 80 columns."""

from __future__ import annotations

import os

from rich.console import Console

_PIPED_COLUMNS = 200


def wide_console() -> Console:
    """As wide as the terminal; wide where there is none and ``COLUMNS`` says nothing."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_COLUMNS
    return console
