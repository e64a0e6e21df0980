"""What users and their programs rely on, one line per entry: public names, flags, files and keys.

Contracts are flat: the name of an entry and one line about it. `tests/contracts.json` has those that are agreed.
"""

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

import mjtrain.mdp
from mjtrain.cli.main import COMMANDS, main

FILE = Path(__file__).parents[1] / "contracts.json"
"""The agreed contracts; WRITE_CONTRACTS=1 writes the parts that ran."""

MODULES = ("mjtrain.config", "mjtrain", "mjtrain.mdp")
"""Where public names are. A name that is the same object in an earlier module refers to it."""

DEFERRED = ("mjtrain.mdp.torch",)
"""Modules that are imported by their first use, and are objects of another type until then."""

TASKS = ("Cartpole-Balance", "Quadruped-Velocity-Flat")
"""Tasks whose settings are pinned as flags."""

OPEN_MAPPINGS = ("packages", "plan.environ", "git")
"""Mappings of params/launch.yaml whose keys depend on the machine."""

WIDE = 4000
"""Columns of a terminal on which short help is not wrapped."""

ONE_BOX = 120
"""Columns of a terminal on which long help is not put into several boxes side by side."""

Contracts = dict[str, str]


def list_names() -> Contracts:
    """Return the public names: functions with parameters and defaults, classes with fields and methods."""
    contracts: Contracts = {}
    known: dict[int, str] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value, path = getattr(module, name), f"{module_name}.{name}"
            first = known.setdefault(id(value), path)
            contracts |= {path: f"the same as {first}"} if first != path else describe(path, value)
    for entry in pkgutil.iter_modules(mjtrain.mdp.__path__, "mjtrain.mdp."):
        contracts |= describe(entry.name, importlib.import_module(entry.name))
    return contracts


def describe(path: str, value: Any) -> Contracts:
    """Return the entries of a public name."""
    if inspect.isclass(value):
        return {path: "class"} | {f"{path}.{name}": text for name, text in describe_class(value)}
    if inspect.isfunction(value):
        return {path: describe_parameters(value)}
    if isinstance(value, types.ModuleType):
        return {path: "module"} | {f"{path}.{name}": text for name, text in describe_module(value)}
    return {path: "module" if path in DEFERRED else show(value)}


def describe_module(module: types.ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the public functions that a module defines."""
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name, describe_parameters(value)


def describe_class(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass and all public attributes that mjtrain defines."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    for field in fields:
        if field.default is not dataclasses.MISSING:
            yield field.name, f"= {show(field.default)}"
        elif field.default_factory is not dataclasses.MISSING:
            yield field.name, f"= {show(field.default_factory())}"
        else:
            yield field.name, "required"
    seen = {field.name for field in fields}
    for base in kind.__mro__:
        for name, value in vars(base).items() if base.__module__.startswith("mjtrain") else ():
            if name in seen or name.startswith("_"):
                continue
            seen.add(name)
            if isinstance(value, staticmethod | classmethod):
                yield name, f"{type(value).__name__} {describe_parameters(value.__func__)}"
            elif inspect.isfunction(value):
                yield name, describe_parameters(value)
            else:
                yield name, "property"


def describe_parameters(function: Any) -> str:
    """Return the names and defaults of a function's parameters, as they are written in Python."""
    parameters = inspect.signature(function).parameters.values()
    texts, has_star = [], False
    for parameter in parameters:
        has_star |= parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            texts.append("*")
            has_star = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={show(parameter.default)}"
        texts.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(texts)})"


def show(value: Any) -> str:
    """Return a value as text that depends neither on addresses nor on the module of a class or function."""
    text = re.sub(r"<function (?:[\w<>]+\.)*(\w+) at 0x[0-9a-f]+>", r"\1", repr(value))
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    return re.sub(r"\bmjtrain(?:\.\w+)*\.(\w+)", r"\1", text)


def list_flags() -> Contracts:
    """Return the commands and their flags; of `train` and `play` also the settings of some tasks."""
    contracts: Contracts = {}
    for command in COMMANDS:
        contracts[command] = "command"
        contracts |= {f"{command} {flag}": text for flag, text in read_flags([command, "--help"], WIDE)}
    for command, *args in (("train", "--help-all"), ("play", "--policy", "zero", "--help-all")):
        for task in TASKS:
            for flag, text in read_flags([command, task, *args], ONE_BOX):
                if contracts.get(f"{command} {flag}") != text:
                    contracts[f"{command} {task} {flag}"] = text
    return contracts


def read_flags(args: list[str], columns: int) -> Iterator[tuple[str, str]]:
    """Yield the flags of a help page with their values and defaults; explanations are not part of a contract."""
    flags: list[list[str]] = []
    in_flag = False
    for line in print_help(args, columns).splitlines():
        row = line.strip("│").rstrip()
        if line.startswith("│ -"):
            flag, _, text = row.strip().partition("  ")
            flags.append([flag, text.strip()])
            in_flag = True
        elif line.startswith("│") and in_flag:
            flags[-1][1] += f" {row.strip()}"
        else:  # the end of a box
            in_flag = False
    for flag, text in flags:
        names, _, value = flag.replace("-h, ", "-h,").partition(" ")
        default = re.search(r"\(default: (.*?)\)$", text)
        shown = [f"= {show_default(default[1])}".rstrip()] if default else []
        yield names, " ".join([value or "switch", *shown])


def show_default(text: str) -> str:
    """Return the default of a flag without folders and modules, which are not part of a contract."""
    if text.startswith("/"):
        return Path(text.replace(" ", "")).name  # a long path may be wrapped
    return re.sub(r"\bmjtrain(?:\.\w+)*\.(\w+)", r"\1", text)


def print_help(args: list[str], columns: int) -> str:
    """Return what a command prints on a terminal with this many columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # without an encoding, boxes are drawn in ASCII
    try:
        with contextlib.redirect_stdout(out):
            main(args)
    except SystemExit as stop:
        assert stop.code in (0, None), f"{' '.join(args)} ended with status {stop.code}"  # noqa: PT017
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    out.seek(0)
    return out.read()


def list_run(run_dir: Path) -> Contracts:
    """Return the files of a run directory, and the keys of those that programs read."""
    contracts = {f"file {normalize(path.relative_to(run_dir))}": "" for path in run_dir.rglob("*") if path.is_file()}
    (last,) = run_dir.glob(f"model_{len(read_rows(run_dir, 'iteration'))}.pt")
    checkpoint = torch.load(last, weights_only=True)
    contracts |= {f"checkpoint {key}": type(value).__name__ for key, value in checkpoint.items()}
    contracts |= {f"best.json {key}": "" for key in json.loads((run_dir / "best.json").read_text())}
    for path in (run_dir / "params").glob("*.yaml"):
        keys = list_keys(yaml.safe_load(path.read_text()))
        contracts |= {f"params/{path.name} {key}": "" for key in keys}
    contracts |= {f"metrics.jsonl {key}": kind for key, kind in list_kinds(read_rows(run_dir, "iteration")).items()}
    for row in read_rows(run_dir, "event"):
        contracts |= {f"metrics.jsonl event {row['event']}: {key}": kind for key, kind in list_kinds([row]).items()}
    return contracts


def normalize(path: Path) -> str:
    """Return the name of a file of a run without times, host and process."""
    name = re.sub(r"events\.out\.tfevents\..*", "events.out.tfevents.*", path.as_posix())
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+", "{time}", name)


def list_keys(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all keys of nested mappings and lists, except below mappings that depend on the machine."""
    if isinstance(value, dict) and prefix not in OPEN_MAPPINGS:
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield path
            yield from list_keys(item, path)
    elif isinstance(value, list):
        for item in value:
            yield from list_keys(item, f"{prefix}[]")


def read_rows(run_dir: Path, key: str) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that have a key."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if key in row]


def list_kinds(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the keys of rows with the kind of their values; a value that was always None has the kind null."""
    kinds: dict[str, str] = {}
    for row in rows:
        for key, value in row.items():
            kind = {str: "text", list: "list", dict: "object", type(None): "null"}.get(type(value), "number")
            if kinds.get(key, "null") == "null":
                kinds[key] = kind
    return kinds


def check(part: str, now: Contracts) -> None:
    """Fail if a part of the contracts is not as agreed; with WRITE_CONTRACTS=1, agree to what it is now.

    Raises:
        AssertionError: Entries are missing, different or new; the message has a line for each.
    """
    agreed: dict[str, Contracts] = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("WRITE_CONTRACTS") == "1":
        agreed[part] = now
        FILE.write_text(json.dumps(agreed, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        return
    differences = list(find_differences(agreed.get(part, {}), now))
    hint = "If this is intended: WRITE_CONTRACTS=1 uv run pytest -n 0 tests/test_contracts.py"
    assert not differences, "\n".join([f"{part}: not as in tests/contracts.json", *differences, hint])


def find_differences(agreed: Contracts, now: Contracts) -> Iterator[str]:
    """Yield a line for each entry that is missing, different or new."""
    for name in sorted(agreed.keys() | now.keys()):
        old, new = agreed.get(name), now.get(name)
        if new is None:
            yield f"- {name}: {old}".rstrip(": ") + "   (missing)"
        elif old is None:
            yield f"+ {name}: {new}".rstrip(": ") + "   (new: add it with WRITE_CONTRACTS=1)"
        elif old != new:
            yield f"! {name}: was {old}, is {new}"
