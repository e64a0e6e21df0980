"""The layering: data flows one way, third parties live behind walls, and help costs no heavy import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
TASKS = Path(__file__).parents[1] / "tasks" / "src"

# A unit may import itself and what stands here for it. Everything may import config, errors, pulse and rank.
COMMON = {"config", "errors", "pulse", "rank"}
MAY_IMPORT = {
    "config": set(),
    "errors": set(),
    "pulse": set(),
    "rank": set(),
    "amounts": set(),
    "catalog": set(),
    "git_state": set(),
    "worker": set(),
    "checkpoint": set(),
    "run_dir": {"checkpoint"},
    "requeue": set(),
    "storage": {"checkpoint"},
    "resume": {"checkpoint", "run_dir", "storage"},
    "launcher": {"worker"},
    "engines": set(),
    "env": {"engines"},
    "rl": {"env", "checkpoint"},
    "reporting": {"rendering", "run_dir"},
    "training": {"checkpoint", "rl", "env", "engines", "reporting", "rendering", "storage"},
    "play": {"catalog", "rendering", "checkpoint", "run_dir", "rl", "env", "engines"},
    "plotting": {"run_dir"},
    "rendering": {"engines", "env", "launcher"},
    "export": {"play", "run_dir", "rl", "env", "engines"},
    "scaling": {"plotting"},
    "api": {
        "amounts",
        "catalog",
        "checkpoint",
        "engines",
        "git_state",
        "launcher",
        "rendering",
        "reporting",
        "requeue",
        "resume",
        "run_dir",
        "training",
    },
    "cli": {"api", "catalog", "export", "launcher", "play", "plotting", "reporting", "scaling"},
    "__init__": {"api", "launcher"},
}

WALLS = {
    "tyro": {"cli"},
    "torchrunx": {"launcher/starter.py", "launcher/agent.py"},
    "rsl_rl": {"rl"},
    "tensordict": {"rl"},
    "mujoco": {"engines", "play/native_viewer.py", "rendering/artist.py"},
    "viser": {"play/web_viewer.py", "play/web_panels.py"},
    "mjviser": {"play/web_viewer.py", "play/web_panels.py"},
    "mujoco_warp": {"engines/warp.py"},
    "warp": {"engines/warp.py", "worker.py"},
    "wandb": {"reporting"},
    "rich": {"reporting"},
    "yaml": {"run_dir.py"},
    "onnx": {"export"},
    "av": {"rendering/artist.py"},
    "PIL": {"rendering/artist.py"},
    "onnxruntime": {"export"},
    "matplotlib": {"plotting", "scaling.py"},
    "obstore": {"storage/store.py"},
}


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def unit_of(path: Path) -> str:
    return path.relative_to(SRC / "mjtrain").parts[0].removesuffix(".py")


SOURCES = sorted((SRC / "mjtrain").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_follow_the_one_direction(path: Path) -> None:
    unit = unit_of(path)
    units = {name.split(".")[1] for name in imported_modules(path) if name.startswith("mjtrain.")}
    modules = {name for name in units if name in MAY_IMPORT}
    allowed = MAY_IMPORT[unit] | {unit} | (COMMON if unit not in COMMON or unit == "config" else set())
    assert modules <= allowed, f"{unit} must not import {sorted(modules - allowed)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_third_parties_stay_behind_their_walls(path: Path) -> None:
    place = str(path.relative_to(SRC / "mjtrain"))
    for name in imported_modules(path):
        walls = WALLS.get(name.split(".")[0])
        if walls is not None:
            assert any(place == wall or place.startswith(f"{wall}/") for wall in walls), f"{place} imports {name}"


def test_config_needs_the_standard_library_only() -> None:
    for path in (SRC / "mjtrain" / "config").rglob("*.py"):
        for name in imported_modules(path):
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or name.startswith("mjtrain.config"), f"{path.name} imports {name}"


def test_tasks_use_the_public_parts_only() -> None:
    for path in TASKS.rglob("*.py"):
        for name in imported_modules(path):
            if name.startswith("mjtrain."):
                public = f"{name}.".startswith("mjtrain.env.") or name.removeprefix("mjtrain.")[0].isupper()
                assert public, f"{path} imports {name}"


@pytest.mark.parametrize("command", ["train", "play", "list_tasks", "plot", "export"])
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        f"import sys; from mjtrain.cli.{command} import main; sys.argv = ['x', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'warp', 'mujoco', 'mujoco_warp', 'rsl_rl', 'torchrunx', 'wandb', 'matplotlib', 'obstore',"
        " 'onnx'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"


def test_one_rank_does_not_import_torchrunx() -> None:
    code = (
        "import sys, mjtrain\n"
        "rank = mjtrain.launch(lambda context: context.rank, launch=mjtrain.LaunchConfig(gpu_ids=None))\n"
        "assert rank == 0 and 'torchrunx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


def test_the_table_of_terms_is_complete() -> None:
    page = (Path(__file__).parents[1] / "docs" / "environment.md").read_text()
    subjects = ("observations", "rewards", "terminations", "events", "velocity", "gait", "reach", "randomization")
    helpers = {"uniform", "moving", "swing"}
    for subject in subjects:
        tree = ast.parse((SRC / "mjtrain" / "env" / f"{subject}.py").read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} - helpers
        for name in functions:
            assert name.startswith("_") or f"`{name}`" in page, f"{subject}.{name} is not in docs/environment.md"
