"""Search spaces: how they are written, what is wrong with them, and which arguments of train follow."""

from pathlib import Path

import pytest

from mjtrain.runtime.errors import RequestError
from mjtrain.tools.sweep.space import count_grid, list_corners, parse_space, read_space_file, to_words

SPACE = (
    "agent.algorithm.learning-rate log 1e-4 1e-2",
    "env.rewards.slip.weight uniform -1 0",
    "agent.algorithm.num_learning_epochs int 2 5",
    "--agent.algorithm.schedule choice adaptive fixed",
    "agent.algorithm.no-use-clipped-value-loss flag",
)


def parse(*lines: str):
    return parse_space([line.split() for line in lines])


def test_values_become_arguments_of_train() -> None:
    space = parse(*SPACE)
    values = [0.000123456789, -0.25, 3, "fixed", "on"]
    words = to_words(space, dict(zip([parameter.name for parameter in space], values, strict=True)))
    assert " ".join(words) == (
        "--agent.algorithm.learning-rate 0.000123457 --env.rewards.slip.weight -0.25 "
        "--agent.algorithm.num-learning-epochs 3 --agent.algorithm.schedule fixed "
        "--agent.algorithm.no-use-clipped-value-loss"
    )
    assert to_words(space[4:], {space[4].name: "off"}) == []


def test_several_flags_share_a_value_of_several_words() -> None:
    (parameter,) = parse_space([["agent.actor.hidden-dims,agent.critic.hidden_dims", "choice", "64 64", "128"]])
    assert parameter.to_words("64 64") == [
        "--agent.actor.hidden-dims",
        "64",
        "64",
        "--agent.critic.hidden-dims",
        "64",
        "64",
    ]
    assert parameter.describe() == 'agent.actor.hidden-dims,agent.critic.hidden-dims choice "64 64" 128'


def test_corners_have_every_bound_and_every_choice() -> None:
    *corners, last = list_corners(parse("a log 1e-4 1e-2", "b choice x y z", "c int 1 3", "d uniform 2 8"))
    assert corners == [{"a": 1e-4, "b": "x", "c": 1, "d": 2}, {"a": 1e-2, "b": "y", "c": 3, "d": 8}]
    assert (last["b"], last["c"]) == ("z", 3)
    assert 1e-4 < float(last["a"]) < 1e-2
    assert not float(last["d"]).is_integer()


def test_a_grid_has_all_combinations() -> None:
    assert count_grid(parse("a int 2 5", "b choice x y z", "c flag")) == 4 * 3 * 2
    with pytest.raises(RequestError, match=r"--sampler grid: a log has no finite number of values; give choice or int"):
        count_grid(parse("a log 1e-4 1e-2"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a", "--param a: give a flag of train, one of log, uniform, int, choice, flag, and values"),
        ("a lgo 1 2", "--param a lgo 1 2: unknown kind lgo; did you mean log?"),
        ("a 1 2", "--param a 1 2: unknown kind 1; give log LOW HIGH, uniform LOW HIGH, int LOW HIGH"),
        ("a log 1e-2 1e-4", "--param a log 1e-2 1e-4: the lower bound comes first, and both differ; give 1e-4 1e-2"),
        ("a uniform 1 1", "the lower bound comes first, and both differ"),
        ("a log 0 1", "a logarithm needs bounds above 0; give uniform 0 1"),
        ("a log 1e-4", "give two numbers, as in log LOW HIGH"),
        ("a uniform 0 inf", "give two numbers, as in uniform LOW HIGH"),
        ("a int 1 2.5", "give two whole numbers, as in int LOW HIGH"),
        ("a choice x", "give two different values or more"),
        ("a choice x x", "give two different values or more"),
        ("a flag on", "flag takes no values"),
        ("a, log 1 2", "a name is missing"),
    ],
)
def test_what_is_wrong_is_one_line(line: str, words: str) -> None:
    with pytest.raises(RequestError) as error:
        parse(line)
    assert words in str(error.value)


def test_nothing_and_the_same_twice_are_wrong() -> None:
    with pytest.raises(RequestError, match=r"--param: nothing to search; give at least one, as in --param agent\."):
        parse()
    with pytest.raises(RequestError, match=r"--param a-b: is given twice"):
        parse("a-b log 1 2", "c,a_b int 1 2")


def test_a_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "agent.algorithm.learning-rate: log 1e-4 1e-2\n"
        "env.rewards.slip.weight: [uniform, -1, 0]\n"
        "agent.algorithm.num_learning_epochs: int 2 5\n"
        "agent.algorithm.schedule: [choice, adaptive, fixed]\n"
        "agent.algorithm.no-use-clipped-value-loss: flag\n"
        'agent.actor.hidden-dims: choice "64 64" 128\n'
        "agent.critic.hidden-dims: [choice, [64, 64], 128]\n"
        "agent.algorithm.entropy-coef: [choice, 1e-4, 1e-3]\n"
    )
    *same, first, second, third = parse_space(read_space_file(path))
    assert tuple(same) == parse(*SPACE)
    assert first.choices == second.choices == ("64 64", "128")
    assert third.choices == ("1e-4", "1e-3")  # as they are written, which a sweep that is resumed compares


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (No such file"),
        ("- a", "give lines such as"),
        ("a: [", "is not valid YAML"),
        ("a: 'x", "YAML"),
        ("a: log 1 2\nb: flag\na: log 3 4", "is not valid YAML (a is given twice"),
    ],
)
def test_a_file_that_is_none(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RequestError) as error:
        read_space_file(path)
    assert str(error.value).startswith(f"--space {path}: ")
    assert words in str(error.value)
