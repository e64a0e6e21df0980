"""What works with what, as claimed by the marks of tests and by figures in the documents; each claim has its evidence.

A test says what it proves: `@pytest.mark.supports("training", task="Cartpole-Balance", learner="skrl")`. A value may be
a tuple of names, or have a parameter of the test in braces, such as `task="{task}"`. A figure that was measured is
declared in front of it, by a comment in the page: `<!-- measured: training task=Cartpole-Balance learner=skrl -->`.
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

ROOT = Path(__file__).parents[2]
GRADES = ("none", "untested", "tried", "tested", "benchmarked")
"""From the weakest to the strongest."""

SUBJECTS = {
    "invariants": "seeds, resets, ends of episodes, and a state taken and given back",
    "parity": "moves as MuJoCo's own loop; of a task on warp: as on native",
    "cameras": "pictures",
    "launch": "ranks were started on their devices",
    "training": "a training ran",
    "resume": "a resumed training is the uninterrupted one, bit for bit",
    "export": "played or exported, with the actions of the trained policy",
    "deployment": "an exported policy acts in MuJoCo without torch",
    "template": "files and commands for it were checked, but it was not available",
}
"""What is claimed."""

FOREIGN = {"gymnasium:ID": "GymnasiumConfig", "mjlab:ID": "MjlabConfig", "VecEnvConfig": "VecEnvConfig"}
"""Kinds of external environments, and their configs."""

DEFAULTS = {"engine": "native", "learner": "rsl_rl", "device": "cpu", "start": "one process"}
"""What a mark need not say."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that works with another."""

    subject: str
    grade: str
    page: str
    """File of the test, or page with the figure, from the root of the repository."""

    place: str
    """Name of the test, or anchor in the page."""

    task: str = ""
    engine: str = ""
    learner: str = ""
    device: str = ""
    start: str = ""
    hosts: str = "1"

    @property
    def label(self) -> str:
        """How links of the page call the evidence."""
        stem = Path(self.page).stem
        return f"{stem}: {self.place}" if self.grade == "benchmarked" and self.place else stem


FIELDS = ("task", "engine", "learner", "device", "start", "hosts")


def expand(subject: str, values: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the fields of all claims of a mark or a figure, defaults included.

    Raises:
        ValueError: There is no such subject or field.
    """
    unknown = [name for name in values if name not in FIELDS] + [subject] * (subject not in SUBJECTS)
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: choose from {', '.join((*SUBJECTS, *FIELDS))}")
    values = {**DEFAULTS, **values}
    choices = [value if isinstance(value, tuple) else (value,) for value in values.values()]
    for combination in itertools.product(*choices):
        yield dict(zip(values, map(str, combination), strict=True))


def claims_of(item: pytest.Item) -> Iterator[Claim]:
    """Yield what a test claims. One that needs a GPU has run where docs/gpu.md says; one that needs two has not."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    name = getattr(item, "originalname", item.name)
    on_gpu = item.get_closest_marker("gpu") is not None
    for mark in item.iter_markers("supports"):
        (subject,) = mark.args
        values = {key: _fill(value, parameters) for key, value in mark.kwargs.items()}
        grade = "untested" if subject == "template" or _needs_two_gpus(item) else "tried" if on_gpu else "tested"
        for fields in expand(subject, {"device": "cuda" if on_gpu else "cpu", **values}):
            page = item.path.relative_to(ROOT).as_posix()
            yield Claim(subject=subject, grade=grade, page=page, place=name, **fields)


def _needs_two_gpus(item: pytest.Item) -> bool:
    return any("two GPUs" in str(mark.kwargs.get("reason")) for mark in item.iter_markers("skipif"))


def _fill(value: Any, parameters: dict[str, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_fill(part, parameters) for part in value)
    return value.format(**parameters) if isinstance(value, str) else value


MEASURED = re.compile(r"^<!-- measured: (\w+) (.*) -->$")
LEARNED = re.compile(r"^<!-- learning (\S+): begin -->$")
END = re.compile(r"^(#|<!-- learning \S+: end)")


def measured_in(page: Path) -> Iterator[Claim]:
    """Yield what the figures of a page claim.

    Raises:
        ValueError: A declaration is followed by no figure in its section, or names a field that there is not.
    """
    lines, chapter, anchor = page.read_text().splitlines(), "", ""
    for number, line in enumerate(lines):
        if line.startswith("##"):
            anchor = re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            chapter = anchor if line.startswith("## ") else chapter
        learned, measured = LEARNED.match(line), MEASURED.match(line)
        if not learned and not measured:
            continue
        subject, words = measured.groups() if measured else ("training", f"task={learned[1]}" if learned else "")
        section = itertools.takewhile(lambda line: not END.match(line), itertools.dropwhile(_is_head, lines[number:]))
        if not any(re.search(r"\d", re.sub(r"`[^`]*`|<!--.*-->", "", line)) for line in section):
            raise ValueError(f"{page.name}: {line} is followed by no figure")
        for fields in expand(subject, dict(word.split("=", 1) for word in shlex.split(words))):
            path = page.relative_to(ROOT).as_posix()
            yield Claim(subject=subject, grade="benchmarked", page=path, place=chapter if learned else anchor, **fields)


def _is_head(line: str) -> bool:
    return not line or line[0] in "<#"


def list_measured() -> list[Claim]:
    """Return what figures in the documents claim."""
    return [claim for page in sorted((ROOT / "docs").rglob("*.md")) for claim in measured_in(page)]


@dataclass(frozen=True)
class Names:
    """Everything that a claim may name, from where it is defined."""

    tasks: tuple[str, ...] = field(default_factory=lambda: _tasks())
    engines: tuple[str, ...] = field(default_factory=lambda: _engines())
    learners: tuple[str, ...] = field(default_factory=lambda: _learners())
    starts: tuple[str, ...] = field(default_factory=lambda: _starts())

    def find_unknown(self, claims: Iterable[Claim]) -> list[str]:
        """Return a line for each claim that names what does not exist."""
        allowed = {
            "task": ("", *self.tasks, *FOREIGN),
            "engine": self.engines,
            "learner": self.learners,
            "device": ("cpu", "cuda"),
            "start": self.starts,
            "hosts": ("1", "2"),
        }
        return [
            f"{claim.page}, {claim.place}: there is no {name} {getattr(claim, name)}"
            for claim in claims
            for name, values in allowed.items()
            if getattr(claim, name) not in values
        ]


def _tasks() -> tuple[str, ...]:
    from mjtrain.env.catalog import list_tasks

    return tuple(entry.name for entry in list_tasks())


def _engines() -> tuple[str, ...]:
    from mjtrain.config.train import EngineName

    return tuple(name for name in get_args(EngineName) if name != "auto")


def _learners() -> tuple[str, ...]:
    from mjtrain.learning.library import list_learners

    return tuple(entry.name for entry in list_learners())


def _starts() -> tuple[str, ...]:
    """Return the first column of the table of docs/ways-to-start.md."""
    lines = (ROOT / "docs" / "ways-to-start.md").read_text().splitlines()
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index("|---|---|---|---|") + 1 :])
    return tuple(row.split("|")[1].strip() for row in rows)
