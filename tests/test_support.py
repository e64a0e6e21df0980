"""docs/support.md claims what the marks of the tests and the figures of the documents give, and nothing else."""

import re
from pathlib import Path

import pytest

from mjtrain import config
from support.claims import FOREIGN, ROOT, Claim, Names, claims_of, list_measured, measured_in
from support.collected import COLLECTED, is_whole
from support.support_page import COMMAND, Tables, list_linked_tests, read_tables


@pytest.fixture
def claims(request: pytest.FixtureRequest) -> list[Claim]:
    """What the collected tests claim, whether they are run or not, and what figures do."""
    return [claim for item in request.config.stash[COLLECTED] for claim in claims_of(item)] + list_measured()


def test_claims_name_what_exists(claims: list[Claim]) -> None:
    assert Names().find_unknown(claims) == []
    assert all(hasattr(config, name) for name in FOREIGN.values())


def test_every_test_on_the_page_exists() -> None:
    """In the quick loop too, which does not collect them all."""
    linked = list_linked_tests()
    assert len(linked) > 10
    for file, name in linked:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {name}"


@pytest.mark.process
def test_the_page_is_what_the_claims_give(claims: list[Claim], request: pytest.FixtureRequest) -> None:
    if not is_whole(request.config):
        pytest.skip("only a run that collects every test knows every mark")
    assert read_tables() == Tables(claims, Names()).write(), f"docs/support.md: {COMMAND} writes it"


@pytest.mark.parametrize(
    ("mark", "line"),
    [
        ({"task": "Cartpole-Balanse"}, "there is no task Cartpole-Balanse"),
        ({"learner": "skrl_torch"}, "there is no learner skrl_torch"),
        ({"engine": "auto"}, "there is no engine auto"),
        ({"start": "by hand"}, "there is no start by hand"),
        ({"device": "tpu"}, "there is no device tpu"),
    ],
)
def test_a_claim_about_nothing_is_found(mark: dict[str, str], line: str) -> None:
    known = {"engine": "native", "learner": "rsl_rl", "device": "cpu", "start": "one process"}
    claim = Claim(subject="training", grade="tested", page="test_x.py", place="test_y", **{**known, **mark})
    assert Names().find_unknown([claim]) == [f"test_x.py, test_y: {line}"]


def test_a_cell_has_the_strongest_claim_and_falls_with_it() -> None:
    known = {"engine": "native", "learner": "rsl_rl", "device": "cpu", "start": "one process"}
    tested = Claim(subject="training", grade="tested", page="tests/test_x.py", place="test_y", task="T", **known)
    measured = Claim(subject="training", grade="benchmarked", page="docs/x.md", place="speed", task="T", **known)
    names = Names(tasks=("T",), engines=("native",), learners=("rsl_rl",), starts=("one process",))
    for claims, cell in (
        ([tested, measured], "[benchmarked][x: speed]"),
        ([tested], "[tested][test_x]"),
        ([], "none"),
    ):
        assert Tables(claims, names).cell("training", task="T") == cell
    assert '[test_x]: ../tests/test_x.py "test_y"' in Tables([tested], names).write()


def test_a_figure_that_is_gone_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.claims.ROOT", tmp_path)
    page = tmp_path / "page.md"
    declared = (
        '# A\n\n## How fast\n\n<!-- measured: training task=T start="one process" -->\n{}\n\n## Other 2\n\n1,000\n'
    )
    page.write_text(declared.format("`play` measured 14.2."))
    (claim,) = measured_in(page)
    assert (claim.grade, claim.place, claim.task, claim.learner) == ("benchmarked", "how-fast", "T", "rsl_rl")
    page.write_text(declared.format("`play 3` measures it."))
    with pytest.raises(ValueError, match=r"page.md: <!-- measured: .* is followed by no figure"):
        list(measured_in(page))
