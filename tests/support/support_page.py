"""The tables of docs/support.md, from claims."""

import re
from collections.abc import Callable, Iterable

from support.claims import FOREIGN, GRADES, ROOT, Claim, Names

RESULTS = "docs/results.md"
DOCUMENT = ROOT / "docs" / "support.md"
BEGIN, END = "<!-- tables of support: begin -->\n", "<!-- tables of support: end -->\n"
COMMAND = "WRITE_SUPPORT_TABLE=1 uv run pytest --collect-only -q"


class Tables:
    """Writes tables whose cells are the strongest of the claims that fit, with a link to its evidence."""

    def __init__(self, claims: Iterable[Claim], names: Names) -> None:
        """Sort the claims, so that the page does not depend on the order of the tests."""
        strength = {grade: -index for index, grade in enumerate(GRADES)}
        self.claims = sorted(
            set(claims), key=lambda claim: (strength[claim.grade], claim.page != RESULTS, claim.page, claim.place)
        )
        self.names = names
        self._linked: dict[str, Claim] = {}

    def cell(self, subject: str, **fields: str) -> str:
        """Return the best grade of the claims about a subject that have these fields."""
        for claim in self.claims:
            if claim.subject == subject and all(getattr(claim, name) == value for name, value in fields.items()):
                return self.link(claim, claim.grade)
        return GRADES[0]

    def link(self, claim: Claim, text: str) -> str:
        """Return a link to the evidence of a claim."""
        self._linked.setdefault(claim.label, claim)
        return f"[{text}][{claim.label}]"

    def write(self) -> str:
        """Return all tables, and where their links lead."""
        parts = [self._tasks(), self._learners(), self._foreign(), self._starts(), self._engines()]
        return "\n".join([*parts, "".join(f"{line}\n" for line in self._references())])

    def _tasks(self) -> str:
        columns: dict[str, Callable[[str], str]] = {
            "native": lambda task: self.cell("invariants", task=task, engine="native"),
            "warp": lambda task: self.cell("invariants", task=task, engine="warp", device="cpu"),
            "warp on CUDA": lambda task: self.cell("invariants", task=task, engine="warp", device="cuda"),
            "warp as native": lambda task: self.cell("parity", task=task, engine="warp"),
            "trained on native": lambda task: self.cell("training", task=task, engine="native", learner="rsl_rl"),
            "trained on warp": lambda task: self.cell("training", task=task, engine="warp"),
            "exported": lambda task: self.cell("export", task=task),
            "without torch": lambda task: self.cell("deployment", task=task),
        }
        return "## Tasks and engines\n\n" + _table("task", self.names.tasks, columns)

    def _learners(self) -> str:
        columns: dict[str, Callable[[str], str]] = {
            "tasks benchmarked": lambda learner: self._trained_tasks(learner, "benchmarked"),
            "tasks tested": lambda learner: self._trained_tasks(learner, "tested"),
            "on CUDA": lambda learner: self.cell("training", learner=learner, device="cuda"),
            "several ranks": lambda learner: self.cell("training", learner=learner, start="several ranks on this host"),
            "resumed": lambda learner: self.cell("resume", learner=learner),
            "played, exported": lambda learner: self.cell("export", learner=learner),
        }
        return "## Tasks and learners\n\n" + _table("learner", self.names.learners, columns)

    def _trained_tasks(self, learner: str, grade: str) -> str:
        """Return links for the tasks whose strongest training with a learner has a grade; a word for all the rest."""
        tasks = [*self.names.tasks, *FOREIGN]
        best = {task: self.cell("training", task=task, learner=learner, device="cpu") for task in tasks}
        found = [
            cell.replace(f"[{grade}]", f"[{task}]", 1) for task, cell in best.items() if cell.startswith(f"[{grade}]")
        ]
        return ", ".join(found) or GRADES[0]

    def _foreign(self) -> str:
        columns: dict[str, Callable[[str], str]] = {
            "trained": lambda task: self.cell("training", task=task),
            "several ranks": lambda task: self.cell("training", task=task, start="several ranks on this host"),
            "played, exported": lambda task: self.cell("export", task=task),
        }
        return "## External environments\n\n" + _table("environment", FOREIGN, columns)

    def _starts(self) -> str:
        columns: dict[str, Callable[[str], str]] = {
            "one host": lambda start: self._started(start, hosts="1"),
            "several hosts": lambda start: self._started(start, hosts="2"),
            "on CUDA": lambda start: self.cell("launch", start=start, device="cuda"),
            **{learner: self._column(learner) for learner in self.names.learners},
        }
        return "## Ways to start\n\n" + _table("way", self.names.starts, columns)

    def _column(self, learner: str) -> Callable[[str], str]:
        return lambda start: self._started(start, learner=learner)

    def _started(self, start: str, **fields: str) -> str:
        trained = self.cell("training", start=start, **fields)
        return trained if trained != GRADES[0] else self.cell("template", start=start, **fields)

    def _engines(self) -> str:
        columns: dict[str, Callable[[str], str]] = {
            "as MuJoCo's loop": lambda engine: self.cell("parity", engine=engine, task="", device="cpu"),
            "the same on CUDA": lambda engine: self.cell("parity", engine=engine, task="", device="cuda"),
            "cameras": lambda engine: self.cell("cameras", engine=engine, device="cpu"),
            "cameras on CUDA": lambda engine: self.cell("cameras", engine=engine, device="cuda"),
        }
        return "## Engines and devices\n\n" + _table("engine", self.names.engines, columns)

    def _references(self) -> list[str]:
        """Return where the links lead, with the names of the tests."""
        lines = []
        for label, claim in sorted(self._linked.items()):
            target = f"../{claim.page}" if claim.grade != "benchmarked" else claim.page.removeprefix("docs/")
            if claim.grade == "benchmarked":
                lines.append(f"[{label}]: {target}{claim.place and f'#{claim.place}'}")
                continue
            tests = sorted({other.place for other in self.claims if other.page == claim.page})
            lines.append(f'[{label}]: {target} "{", ".join(tests)}"')
        return lines


def _table(head: str, rows: Iterable[str], columns: dict[str, Callable[[str], str]]) -> str:
    lines = [f"| {head} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(make(row) for make in columns.values())} |" for row in rows]
    return "".join(f"{line}\n" for line in lines)


def read_tables() -> str:
    """Return what stands between the comments of the page."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


def write_tables(tables: str) -> None:
    """Put the tables between the comments of the page."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + tables + END + rest.partition(END)[2])


def list_linked_tests() -> list[tuple[str, str]]:
    """Return (file from the root, name) of the tests to which the page's links lead."""
    found = re.findall(r'^\[[^]]+\]: \.\./(\S+) "([^"]*)"$', read_tables(), re.MULTILINE)
    return [(file, name) for file, names in found for name in names.split(", ")]
