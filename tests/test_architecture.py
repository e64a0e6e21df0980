"""The layering: data flows one way, third parties live behind walls, and help costs no heavy import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from support.machine import patience

SRC = Path(__file__).parents[1] / "src"
TASKS = Path(__file__).parents[1] / "tasks" / "src"
LEARNERS = Path(__file__).parents[1] / "learners" / "src"

# A unit is a room of mjtrain, or a part of one. It imports units below it and no others.
FLOORS = (
    "__main__",
    "cli",
    "__init__",
    "api",
    "tools.doctor",
    "tools.sweep",
    "tools",
    "tools.plotting",
    "training",
    "training.hooks",
    "training.metric_rules",
    "training.preflight",
    "training.reporting",
    "evaluation.export",
    "evaluation.playing",
    "evaluation",
    "learning.rsl_rl",
    "learning",
    "runs",
    "runs.storage",
    "runs.checkpoint",
    "gymnasium",
    "mdp",
    "env.catalog",
    "env.external",
    "env",
    "motion",
    "sim.cameras",
    "sim.drawing",
    "sim.engines",
    "sim.robots",
    "sim",
    "launcher",
    "launcher.multinode",
    "launcher.spawn",
    "launcher.job",
    "launcher.rank",
    "launcher.base",
    "launcher.planning",
    "launcher.faults",
    "launcher.failure",
    "launcher.ipc",
    "deployment",
    "config",
    "runtime",
)
LOOSE_FILES = {"__init__", "__main__", "api"}

WALLS = {
    "tyro": {"cli"},
    "torchrunx": {"launcher/job/torchrunx_adapter.py"},
    "rsl_rl": {"learning/rsl_rl"},
    "tensordict": {"learning/rsl_rl"},
    "gymnasium": {"gymnasium", "env/external/gymnasium_worlds.py", "evaluation/playing/record_dataset.py"},
    "minari": {"evaluation/playing/record_dataset.py"},
    "mjlab": {"env/external/mjlab_task.py"},
    "mujoco": {
        "deployment/simulated_drives.py",
        "deployment/simulated_readings.py",
        "deployment/simulated_robot.py",
        "tools/doctor/slow_checks.py",
        "evaluation/playing/native_viewer.py",
        "motion/report.py",
        "motion/skeleton.py",
        "sim/cameras",
        "sim/drawing/render_worker.py",
        "sim/drawing/scene.py",
        "sim/engines",
        "sim/robots",
    },
    "viser": {"evaluation/playing/web_viewer.py", "evaluation/playing/web_panels.py"},
    "mjviser": {"evaluation/playing/web_viewer.py", "evaluation/playing/web_panels.py"},
    "mujoco_warp": {
        "sim/engines/warp.py",
        "sim/engines/warp_buffers.py",
        "sim/cameras/worlds.py",
        "sim/cameras/renderer.py",
    },
    "warp": {
        "tools/doctor/kernels.py",
        "sim/engines/warp.py",
        "sim/engines/warp_buffers.py",
        "runtime/deferred_imports.py",
        "sim/cameras",
    },
    "trackio": {"training/reporting/writer.py"},
    "wandb": {"training/reporting", "runs/wandb_artifact.py"},
    "rich": {"evaluation/summary_table.py", "training/reporting", "tools/sweep/run_sweep.py"},
    "yaml": {"runs", "tools/sweep/plan.py"},
    "onnx": {"evaluation/export"},
    "av": {"sim/drawing/video.py"},
    "PIL": {"sim/drawing/render_worker.py"},
    "onnxruntime": {"deployment/policy.py", "evaluation/export"},
    "unitree_sdk2py": {"deployment/unitree.py"},
    "matplotlib": {"tools/plotting.py", "tools/scaling.py", "tools/sweep/study.py"},
    "optuna": {"tools/sweep/study.py"},
    "obstore": {"runs/storage/store.py"},
    "safetensors": {"runs/bundle.py"},
    "huggingface_hub": {"runs/bundle_places.py"},
}

SOURCES = sorted((SRC / "mjtrain").rglob("*.py"))


@cache
def imported_modules(path: Path) -> frozenset[str]:
    found = set[str]()
    for node in list_statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def list_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements below a node, without the expressions in them, which are most of a file."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, field, ()):
            yield statement
            yield from list_statements(statement)


def unit_of(module: str) -> str | None:
    """Name the unit that a module of mjtrain, or a name in one, belongs to; None for the package itself."""
    parts = module.split(".")[1:]
    return next((unit for unit in (".".join(parts[:2]), *parts[:1]) if unit in FLOORS), None)


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def test_imports_go_down() -> None:
    for path in SOURCES:
        unit = unit_of(module_of(path))
        assert unit is not None, f"{path}: add its unit to FLOORS"
        for name in imported_modules(path):
            below = unit_of(name) if name.startswith("mjtrain.") else None
            if below is not None:
                assert FLOORS.index(below) >= FLOORS.index(unit), f"{path}: {unit} must not import {name}"


def test_the_launcher_knows_no_training() -> None:
    for path in (SRC / "mjtrain" / "launcher").rglob("*.py"):
        rooms = {name.split(".")[1] for name in imported_modules(path) if name.startswith("mjtrain.")}
        assert rooms <= {"launcher", "config", "runtime"}, f"{path} imports {sorted(rooms)}"


def test_config_and_runtime_know_nobody() -> None:
    for path in (SRC / "mjtrain" / "runtime").rglob("*.py"):
        rooms = {name.split(".")[1] for name in imported_modules(path) if name.startswith("mjtrain.")}
        assert rooms <= {"runtime"}, f"{path} imports {sorted(rooms)}"


def test_every_module_is_in_a_room() -> None:
    assert {path.stem for path in (SRC / "mjtrain").glob("*.py")} == LOOSE_FILES


def test_third_parties_stay_behind_their_walls() -> None:
    for path in SOURCES:
        place = str(path.relative_to(SRC / "mjtrain"))
        for name in imported_modules(path):
            walls = WALLS.get(name.split(".")[0])
            if walls is not None:
                assert any(place == wall or place.startswith(f"{wall}/") for wall in walls), f"{place} imports {name}"


def test_worlds_begin_as_keyframe_home_says() -> None:
    """`mujoco.MjData(model)` has mocap bodies where the file has them, which no later qpos changes."""
    without_a_start = {
        "deployment/simulated_robot.py",  # resets to the keyframe
        "sim/robots/completion/locks.py",  # only places of bodies in their parents
        "sim/robots/start.py",
        "sim/robots/urdf/convert.py",  # a URDF has no keyframes
        "tools/doctor/slow_checks.py",  # its own model
    }
    found = {str(path.relative_to(SRC / "mjtrain")) for path in SOURCES if "mujoco.MjData(" in path.read_text()}
    assert found == without_a_start, "use make_start of sim.robots.start"


def test_no_text_of_a_run_is_taken_for_markup() -> None:
    """A message with brackets, such as gloo's, would end the training, or lose words."""
    found = 0
    for path in (path for path in SOURCES if any(name.startswith("rich.") for name in imported_modules(path))):
        assert not {"rich.print", "rich.markup"} & imported_modules(path), path
        nodes = list(ast.walk(ast.parse(path.read_text())))
        derived = [
            node for node in nodes if isinstance(node, ast.ClassDef) and "Console" in map(ast.unparse, node.bases)
        ]
        starts = [node for node in chain.from_iterable(map(ast.walk, derived)) if isinstance(node, ast.Call)]
        makers = [node for node in starts if ast.unparse(node.func) == "super().__init__"]
        assert len(makers) == len(derived), path
        makers += [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Console"]
        for node in nodes:
            options = [ast.unparse(keyword) for keyword in node.keywords] if isinstance(node, ast.Call) else []
            assert "markup=True" not in options, f"{path}: {ast.unparse(node)}"
            if node in makers:
                found += 1
                assert {"markup=False", "emoji=False"} <= set(options), f"{path}: {ast.unparse(node)}"
    assert found >= 3


def test_config_needs_the_standard_library_only() -> None:
    for path in (SRC / "mjtrain" / "config").rglob("*.py"):
        for name in imported_modules(path):
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or name.startswith("mjtrain.config"), f"{path.name} imports {name}"


def test_tasks_use_the_public_parts_only() -> None:
    for path in TASKS.rglob("*.py"):
        for name in imported_modules(path):
            if name.startswith("mjtrain."):
                public = f"{name}.".startswith("mjtrain.mdp.") or name.removeprefix("mjtrain.")[0].isupper()
                assert public, f"{path} imports {name}"


def test_learners_use_what_is_for_learners() -> None:
    import mjtrain.learning

    public = {"mjtrain.learning", *(f"mjtrain.learning.{name}" for name in mjtrain.learning.__all__)}
    for path in LEARNERS.rglob("*.py"):
        for name in imported_modules(path):
            top = name.partition(".")[0]
            assert top != "mjtrain" or name in public, f"{path} imports {name}"
            assert top != "rl_games" or path.parent.name == "rl_games_agent", f"{path} imports {name}"
            assert top != "skrl" or path.parent.name in ("skrl_on_torch", "skrl_sac", "skrl_on_jax"), (
                f"{path} imports {name}"
            )
            assert top not in ("jax", "flax") or path.parent.name == "skrl_on_jax", f"{path} imports {name}"


COMMANDS = (
    *("main", "train", "play", "list_tasks", "runs", "plot", "export", "deploy", "push", "pull", "scaling", "sweep"),
    *("doctor", "init", "completion"),
)
HEAVY = (
    *("torch", "warp", "mujoco", "mujoco_warp", "rsl_rl", "torchrunx", "wandb", "matplotlib", "obstore", "onnx"),
    *("optuna", "safetensors", "huggingface_hub"),
)


@pytest.fixture(scope="module")
def imported_for_help() -> dict[str, list[str]]:
    """What of HEAVY each command imports for its help, in a fork of a process that has imported what most share."""
    code = (
        "import importlib, os, sys, mjtrain.cli.parsing\n"
        "for command in sys.argv[1:]:\n"
        "    if os.fork() == 0:\n"
        "        try:\n"
        "            sys.argv = ['x', '--help']\n"
        "            try: importlib.import_module(f'mjtrain.cli.{command}').main()\n"
        "            except SystemExit: pass\n"
        f"            print(command, *sorted(set({HEAVY}) & set(sys.modules)), file=sys.stderr, flush=True)\n"
        "        finally:\n"
        "            os._exit(0)\n"
        "    os.wait()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMANDS], capture_output=True, text=True, timeout=patience(120), check=True
    )
    return {command: heavy for command, *heavy in map(str.split, done.stderr.splitlines())}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(command: str, imported_for_help: dict[str, list[str]]) -> None:
    assert imported_for_help.get(command) == []


def test_naming_the_terms_of_a_task_imports_nothing_heavy() -> None:
    code = (
        "import importlib, pkgutil, sys, mjtrain.mdp\n"
        "from mjtrain.env.catalog import list_tasks; from mjtrain.cli.train import main\n"
        "for name in [module.name for module in pkgutil.iter_modules(mjtrain.mdp.__path__)]:\n"
        "    importlib.import_module(f'mjtrain.mdp.{name}')\n"
        "tasks = [entry.load()() for entry in list_tasks()]\n"
        "try: main(['Quadruped-Velocity-Flat', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'warp', 'mujoco', 'mujoco_warp', 'numpy', 'rsl_rl', 'torchrunx', 'wandb'}\n"
        "print(len(tasks) > 10, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stderr.strip() == "True []"


@pytest.mark.process
def test_one_rank_does_not_import_torchrunx() -> None:
    code = (
        "import sys, mjtrain\n"
        "rank = mjtrain.launch(lambda context: context.rank, launch=mjtrain.LaunchConfig(gpu_ids=None))\n"
        "assert rank == 0 and 'torchrunx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=patience(60), check=True)
