"""The documentation site has every page, and its reference every command, flag, setting and public name.

mkdocs itself checks the links: `.ci/run` builds the site.
"""

import contextlib
import dataclasses
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import mjtrain
import mjtrain.mdp
from mjtrain import config
from mjtrain.cli.main import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_build"))
import reference  # noqa: E402  # pyright: ignore[reportMissingImports]


def list_pages(nav: list[Any]) -> list[str]:
    """Return the pages of a navigation, its sections included."""
    pages = []
    for entry in nav:
        for target in entry.values():
            pages += [target] if isinstance(target, str) else list_pages(target)
    return pages


def section(page: str, heading: str) -> str:
    """Return a page's part under a heading of level 2 or 3, to the next one of that level."""
    level = heading.split()[0]
    return re.split(rf"^{level} ", page.partition(f"{heading} ")[2], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.fixture(scope="module")
def command_line() -> str:
    return reference.make_command_line()


@pytest.fixture(scope="module")
def configuration() -> str:
    return reference.make_configuration()


def test_the_navigation_has_every_page_once() -> None:
    nav = list_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(nav) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("command", reference.list_commands())
def test_the_reference_has_every_flag_of_a_command(
    command: str, command_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    printed = capsys.readouterr().out
    flags = set(re.findall(r"^[│|]? {1,2}(?:-h, )?(--[a-z][a-z-]*)", printed, flags=re.MULTILINE))
    assert "--help" in flags or command in ("completion", "motion")  # which have no flags
    documented = section(command_line, f"## mjtrain {command}")
    assert {flag for flag in flags if f"{{ #{command.replace(' ', '-')}{flag} }}" not in documented} == set()


def test_the_reference_has_the_flags_of_train_that_short_help_leaves_out(command_line: str) -> None:
    train = section(command_line, "## mjtrain train")
    for kind in (mjtrain.LaunchConfig, mjtrain.RunConfig):
        for field in dataclasses.fields(kind):
            assert f"{{ #train--{field.name.replace('_', '-')} }}" in train
    assert "--drift-check-interval INT" in train.partition("### Rarely needed")[2]


def test_a_flag_has_its_values_its_text_and_its_default(command_line: str) -> None:
    flags = section(command_line, "## mjtrain train").split("\n#### ")[1:]
    assert all(re.match(r"`[^`]+` \{ #train--[a-z-]+ \}\n\n\S", flag) for flag in flags)
    text = dict(re.findall(r"`(.+)` \{.*\}\n\n(.*)", "\n".join(flags)))
    assert text["--max-restarts INT"].endswith(" Default: `0`.")
    assert text["--engine {auto,native,warp}"].endswith(" Default: `auto`.")
    assert text["--drift-check-interval INT"].endswith(" Default: `50`.")
    assert text["--num-workers INT"].endswith(" Default: 1.")  # in the flag's own words


def test_the_reference_has_every_field_of_a_setting(configuration: str) -> None:
    for name in config.__all__:
        kind = getattr(config, name)
        if dataclasses.is_dataclass(kind):
            table = section(configuration, f"### {name}")
            for field in dataclasses.fields(kind):
                assert f"| `{field.name}` | `" in table, f"{name}.{field.name}"
    assert '| `engine` | `"auto" | "native" | "warp"` | `"auto"` |' in section(configuration, "### RunConfig")


def test_every_field_of_a_setting_is_described(configuration: str) -> None:
    """Also those that a class inherits."""
    assert not [line for line in configuration.splitlines() if line.endswith("|  |")]


def test_the_python_reference_has_every_public_name() -> None:
    page = (DOCS / "python-api.md").read_text().replace("<!-- generated: settings -->", reference.make_settings())
    missing = [name for name in mjtrain.__all__ if f"::: mjtrain.{name}\n" not in page and f"[`{name}`](" not in page]
    assert missing == []


def test_the_terms_reference_has_every_module_of_terms() -> None:
    page = (DOCS / "terms.md").read_text()
    modules = {module.name for module in pkgutil.iter_modules(mjtrain.mdp.__path__)}
    assert {name for name in modules if f"::: mjtrain.mdp.{name}\n" not in page} == set()
