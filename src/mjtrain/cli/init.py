"""The command init, and the project that it writes."""

import importlib.util
import json
import keyword
import re
import shlex
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from mjtrain.cli.command import command, take_first
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import filling

TEMPLATE = Path(__file__).parents[1] / "tools" / "project_template"
"""The project as it is written, under the name my-robots."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a project to begin with.

    It has a package with a robot, a small task that list-tasks knows once the package is installed, a test and a
    README.
    """

    folder: str = "."
    """Folder in which the project's own folder is made."""


@command("init")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the request was wrong."""
    name, args = take_first(argv, "NAME", "the name comes first, as in mjtrain init my_robots")
    options = parse(Options, args, prog=f"mjtrain init {name}", description=Options.__doc__)
    folder, task = write_project(name, Path(options.folder))
    print(f"{folder} is a project with the task {task}; its README.md says more. With uv:\n")
    print(f"  cd {shlex.quote(str(folder))}\n  uv run train {task}")


def write_project(name: str, parent: Path) -> tuple[Path, str]:
    """Write a project with a package and a task that are named after it; return its folder and the task's name."""
    package = name.lower().replace("-", "_")
    if re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", package) is None or keyword.iskeyword(package):
        raise RequestError(
            f"{name}: give a name of letters, digits, - and _ that begins with a letter and ends with a letter or "
            "a digit, like my_robots"
        )
    found = importlib.util.find_spec(package)
    if package == "mjtrain_tasks" or (found is not None and found.origin is not None):  # not a mere folder
        raise RequestError(f"{name}: is the name of another package, which Python may import instead; give another")
    folder = parent.absolute() / name
    if folder.exists():
        raise RequestError(f"{name}: {folder} exists already")
    title = "-".join(part.capitalize() for part in package.split("_") if part)
    names = {"my_robots": package, "my-robots": package.replace("_", "-"), "My-Robots": title}
    try:
        with filling(folder) as partial:
            for source in sorted(TEMPLATE.rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    place = str(source.relative_to(TEMPLATE))
                    target = partial / _rename(".gitignore" if place == "gitignore" else place, names)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(_rename(source.read_text(), names))
            with (partial / "pyproject.toml").open("a") as file:
                file.write(_uv_source())
    except OSError as error:
        raise RequestError(f"{name}: {folder} cannot be written ({error.strerror})") from error
    return folder, f"{title}-Pendulum"


def _rename(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def _uv_source() -> str:
    """Say where uv finds mjtrain, if it was not installed from an index."""
    record = json.loads(distribution("mjtrain").read_text("direct_url.json") or "{}")
    url = record.get("url", "")
    if url.startswith("file:") and "dir_info" in record:
        path = json.dumps(url2pathname(urlparse(url).path))
        source = f"{{ path = {path}, editable = {json.dumps(record['dir_info'].get('editable', False))} }}"
    elif "vcs_info" in record:
        source = f"{{ git = {json.dumps(url)}, rev = {json.dumps(record['vcs_info']['commit_id'])} }}"
    else:
        return ""
    return f"\n[tool.uv.sources]\nmjtrain = {source}\n"
