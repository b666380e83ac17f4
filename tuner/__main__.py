"""``python -m tuner`` is ``paratune``."""

from __future__ import annotations

import sys

from tuner.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
