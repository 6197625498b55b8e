"""Stands in for the Python that pytest-xdist starts: a process that has the imports (`forks`) forks, and its fork runs the given code.

pytest-xdist starts `python forked_python.py ADDRESS -u -c CODE`. The fork gets the standard streams and the environment of this process.
"""

import json
import os
import signal
import socket
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # pytest-xdist tells what was interrupted
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fork:
    try:
        fork.connect(f"\0{sys.argv[1]}")
        socket.send_fds(fork, [json.dumps({"code": sys.argv[-1], "env": dict(os.environ)}).encode()], [0, 1, 2])
        pid = int(fork.recv(16))
    except (OSError, ValueError):  # an import or a fork failed: the tests show which
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))  # the terminal's keys do not reach the fork
    for stream in (0, 1):  # the other side of a pipe must see that the fork ended
        os.close(stream)
    fork.recv(1)  # until it has ended
