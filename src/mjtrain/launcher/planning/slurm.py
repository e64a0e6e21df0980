"""Slurm's notation for hosts and tasks; pure."""

import re

from mjtrain.errors import RequestError


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expand Slurm's short form of host names.

    Args:
        text: For instance "gpu[01-03,7],login".

    Returns:
        For instance ("gpu01", "gpu02", "gpu03", "gpu7", "login").

    Raises:
        RequestError: The text is not such a list.
    """
    hosts: list[str] = []
    for pattern in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", pattern):
            endings = [literal] if literal else _expand_ranges(ranges, text)
            names = [name + ending for name in names for ending in endings]
        hosts += names
    if not hosts:
        raise RequestError(f"{text!r}: is not a list of Slurm hosts")
    return tuple(hosts)


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers = []
    for part in ranges.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            raise RequestError(f"{text!r}: is not a list of Slurm hosts")
        first, last = found[1], found[2] or found[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def expand_tasks(text: str) -> tuple[int, ...]:
    """Expand Slurm's short form of tasks per node, for instance "2(x3),1" to (2, 2, 2, 1).

    Raises:
        RequestError: The text is not such a list.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise RequestError(f"{text!r}: is not a list of Slurm tasks per node")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)
