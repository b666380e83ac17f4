"""A warm process that imports nothing and forks nothing; FAKE_WARM says what it answers."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from runners.bench.process import die_with_supervisor

if __name__ == "__main__":
    die_with_supervisor()
    control = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1]))
    answer = os.environ["FAKE_WARM"]
    with_framework = "--backend" in sys.argv
    if answer == "hang":
        time.sleep(600)
    if answer == "die" or (answer == "die with the framework" and with_framework):
        sys.exit(1)
    refuses = answer == "refuse" or (answer == "refuse the framework" and with_framework)
    control.send(json.dumps({"unusable": "it has threads" if refuses else None}).encode())
    control.recv(1)
