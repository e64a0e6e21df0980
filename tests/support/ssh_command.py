"""What sshd runs on a node: ask the warm parent for the agent that ssh is to execute, wait for it, and end as it did.

Run as `python ssh_command.py ADDRESS FOLDER`, with the address of the warm parent and the node's folder. With a file
`execute` there the agent is executed, as any other command is.
"""

import json
import os
import re
import shlex
import socket
import sys
from pathlib import Path

AGENT = r"cd (.+) 2>/dev/null \|\| exit \d+; test -x .+ \|\| exit \d+; exec (\S+ -P -m \S+)"
"""The program that the launcher has a shell run on a host."""


def main() -> int:
    """Return the status of the command."""
    address, folder = sys.argv[1:]
    command = os.environ["SSH_ORIGINAL_COMMAND"]
    found = re.fullmatch(AGENT, shlex.split(command)[-1])
    cwd = "" if found is None else shlex.split(found[1])[0]
    if found is None or not Path(cwd).is_dir() or Path(folder, "execute").exists():
        os.execv("/bin/sh", ["sh", "-c", command])
    words = shlex.split(found[2])
    request = {
        "adopted": False,
        "program": words[2:],
        "options": ["-P"],
        "words": words,
        "numbers": [0, 1, 2],
        "cwd": cwd,
        "environ": {name: value for name, value in os.environ.items() if name != "SSH_ORIGINAL_COMMAND"},
        "ignored": [],
        "host": os.getpid(),
    }
    read, write = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2, write])
    for descriptor in (0, 1, 2, write):
        os.close(descriptor)  # that the agent has closed them must be seen
    with os.fdopen(read) as report:
        _, status = (int(line) for line in report)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    os._exit(main())
