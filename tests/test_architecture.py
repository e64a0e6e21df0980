"""The layering: data flows one way, third parties live behind walls, and help costs no heavy import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from support.machine import patience

SRC = Path(__file__).parents[1] / "src"
TASKS = Path(__file__).parents[1] / "tasks" / "src"
LEARNERS = Path(__file__).parents[1] / "learners" / "src"

# What a unit may import besides itself. A unit is a module or a package of mjtrain, or a room of the launcher.
# Everything may import what is in COMMON, which imports nothing of mjtrain.
COMMON = {"config", "deferred", "deferred_imports", "errors", "heartbeat", "machine", "rank", "standard_streams"}
MAY_IMPORT = {
    "config": set(),
    "deferred": set(),
    "deferred_imports": set(),
    "errors": set(),
    "heartbeat": set(),
    "machine": set(),
    "rank": set(),
    "standard_streams": set(),
    "rotations": set(),
    "run_size": set(),
    "memory_need": {"env"},
    "network_check": set(),
    "symmetry_check": set(),
    "catalog": {"foreign"},
    "warp_start": set(),
    "worker": {"warp_start"},
    "checkpoint_formats": set(),
    "checkpoint": {"checkpoint_formats"},
    "best_checkpoint": {"checkpoint"},
    "storage": {"best_checkpoint", "checkpoint"},
    "runs": {"best_checkpoint", "catalog", "checkpoint", "storage", "engines"},
    "reporting.events": set(),
    "fault_injection": {"checkpoint", "env", "learner", "reporting.events"},
    "launcher.ipc": set(),
    "launcher.failure": {"launcher.ipc"},
    "launcher.planning": {"launcher.ipc", "fault_injection"},
    "launcher.base": {"launcher.planning", "launcher.failure"},
    "launcher.rank": {
        "worker",
        "fault_injection",
        "launcher.base",
        "launcher.planning",
        "launcher.failure",
        "launcher.ipc",
    },
    "launcher.job": {"launcher.rank", "launcher.planning", "launcher.failure", "launcher.ipc"},
    "launcher.spawn": {"launcher.base", "launcher.job", "launcher.planning", "launcher.failure", "launcher.ipc"},
    "launcher.multinode": {
        "launcher.spawn",
        "launcher.base",
        "launcher.job",
        "launcher.planning",
        "launcher.failure",
        "launcher.ipc",
    },
    "launcher.alone": {"launcher.multinode", "launcher.spawn", "launcher.rank", "launcher.base"},
    "launcher": {
        "fault_injection",
        "launcher.alone",
        "launcher.multinode",
        "launcher.rank",
        "launcher.base",
        "launcher.planning",
        "launcher.failure",
        "launcher.ipc",
    },
    "engines": set(),
    "rendering": {"engines", "warp_start"},
    "env": {"rotations", "engines", "rendering"},
    "gymnasium": {"catalog", "env", "engines", "video", "launcher.ipc"},
    "foreign": {"env", "network_check"},
    "mdp": {"rotations", "env", "engines", "rendering"},
    "learner": set(),
    "learning": {"env", "catalog", "checkpoint", "checkpoint_formats", "learner"},
    "rl": {"env", "checkpoint", "learner", "learning"},
    "learners": {"rl", "env", "learner"},
    "video": {"engines", "env", "launcher.ipc"},
    "reporting": {"reporting.events", "video", "runs"},
    "metric_names": {"evaluation"},
    "metric_rules": {"metric_names"},
    "hooks": {
        "best_checkpoint",
        "evaluation",
        "metric_rules",
        "checkpoint",
        "storage",
        "learner",
        "env",
        "engines",
        "video",
        "reporting",
    },
    "training": {
        "run_size",
        "fault_injection",
        "foreign",
        "hooks",
        "learners",
        "learner",
        "checkpoint",
        "env",
        "engines",
        "reporting",
        "runs",
        "storage",
    },
    "evaluation": {"learners", "learner", "env", "engines"},
    "playing": {
        "evaluation",
        "foreign",
        "catalog",
        "runs",
        "video",
        "checkpoint",
        "learners",
        "learner",
        "env",
        "engines",
    },
    "plotting": {"catalog", "runs"},
    "exporting": {"playing", "runs", "learner", "env", "engines"},
    "scaling": {"plotting", "runs"},
    "doctor": {
        "launcher",
        "launcher.failure",
        "launcher.ipc",
        "launcher.multinode",
        "launcher.planning",
        "memory_need",
        "storage",
        "video",
        "warp_start",
    },
    "sweep": {
        "catalog",
        "checkpoint",
        "launcher.failure",
        "launcher.ipc",
        "launcher.job",
        "launcher.planning",
        "launcher.spawn",
        "memory_need",
        "metric_rules",
        "plotting",
        "reporting",
        "request",
        "runs",
    },
    "new_project": set(),
    "project_template": {"mdp"},
    "request": {
        "fault_injection",
        "best_checkpoint",
        "catalog",
        "foreign",
        "launcher",
        "learners",
        "metric_rules",
        "memory_need",
        "network_check",
        "run_size",
        "runs",
        "symmetry_check",
        "engines",
        "env",
        "video",
    },
    "open_run": {
        "catalog",
        "request",
        "launcher.base",
        "launcher.failure",
        "launcher.planning",
        "reporting.events",
        "runs",
        "checkpoint",
    },
    "api": {
        "open_run",
        "request",
        "run_size",
        "launcher",
        "catalog",
        "env",
        "exporting",
        "gymnasium",
        "playing",
        "reporting.events",
        "runs",
        "training",
    },
    "cli": {
        "api",
        "request",
        "catalog",
        "doctor",
        "exporting",
        "launcher",
        "launcher.failure",
        "new_project",
        "playing",
        "plotting",
        "reporting",
        "runs",
        "scaling",
        "sweep",
    },
    "__main__": {"cli"},
    "__init__": {"api", "launcher", "runs"},
}

WALLS = {
    "tyro": {"cli"},
    "torchrunx": {"launcher/job/spawner.py", "launcher/job/torchrunx_agent.py"},
    "rsl_rl": {"rl"},
    "tensordict": {"rl"},
    "gymnasium": {"gymnasium", "foreign/gymnasium_worlds.py"},
    "mjlab": {"foreign/mjlab_task.py", "foreign/mjlab_worlds.py"},
    "mujoco": {
        "doctor/frame.py",
        "engines",
        "gymnasium/frame_worker.py",
        "rendering",
        "playing/native_viewer.py",
        "video/render_worker.py",
    },
    "viser": {"playing/web_viewer.py", "playing/web_panels.py"},
    "mjviser": {"playing/web_viewer.py", "playing/web_panels.py"},
    "mujoco_warp": {
        "engines/warp.py",
        "engines/warp_buffers.py",
        "rendering/worlds.py",
        "rendering/renderer.py",
    },
    "warp": {
        "doctor/kernels.py",
        "engines/warp.py",
        "engines/warp_buffers.py",
        "engines/warp_graphs.py",
        "rendering",
        "warp_start.py",
    },
    "wandb": {"reporting"},
    "rich": {"reporting", "sweep/display.py"},
    "yaml": {"runs", "sweep/space_file.py", "sweep/wandb_sweep.py"},
    "onnx": {"exporting"},
    "av": {"video/encode.py", "video/render_worker.py"},
    "PIL": {"video/render_worker.py"},
    "onnxruntime": {"exporting"},
    "matplotlib": {"plotting", "scaling.py", "sweep/draw.py"},
    "optuna": {"sweep/journal.py", "sweep/space_filling.py", "sweep/study.py", "sweep/tpe.py"},
    "obstore": {"storage/store.py"},
}

SOURCES = sorted((SRC / "mjtrain").rglob("*.py"))


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


def unit_of(module: str) -> str | None:
    """Name the unit that a module of mjtrain, or a name in one, belongs to; None for the package itself."""
    parts = module.split(".")[1:]
    return next((unit for unit in (".".join(parts[:2]), *parts[:1]) if unit in MAY_IMPORT), None)


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def test_imports_follow_the_one_direction() -> None:
    for path in SOURCES:
        unit = unit_of(module_of(path))
        assert unit is not None, f"{path}: add a row for it to MAY_IMPORT"
        units = {unit_of(name) for name in imported_modules(path) if name.startswith("mjtrain.")} - {None}
        allowed = MAY_IMPORT[unit] | {unit} | (COMMON if unit not in COMMON or unit == "config" else set())
        assert units <= allowed, f"{path}: {unit} must not import {sorted(units - allowed)}"


def test_no_two_units_import_each_other() -> None:
    for unit, below in MAY_IMPORT.items():
        for other in below:
            assert unit not in MAY_IMPORT[other], f"{unit} and {other} may import each other"


def test_third_parties_stay_behind_their_walls() -> None:
    for path in SOURCES:
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
                public = f"{name}.".startswith("mjtrain.mdp.") or name.removeprefix("mjtrain.")[0].isupper()
                assert public, f"{path} imports {name}"


def test_learners_use_what_is_for_learners() -> None:
    units = {"checkpoint", "config", "env", "errors", "heartbeat", "learner", "learners", "learning", "rank"}
    for path in LEARNERS.rglob("*.py"):
        for name in imported_modules(path):
            top, _, rest = name.partition(".")
            assert top != "mjtrain" or rest.split(".")[0] in {*units, ""}, f"{path} imports {name}"
            assert top != "rl_games" or path.parent.name == "rl_games_agent", f"{path} imports {name}"
            assert top != "skrl" or path.parent.name in ("skrl_on_torch", "skrl_sac", "skrl_on_jax"), (
                f"{path} imports {name}"
            )
            assert top not in ("jax", "flax") or path.parent.name == "skrl_on_jax", f"{path} imports {name}"


@pytest.mark.parametrize(
    "command",
    [
        "main",
        "train",
        "play",
        "list_tasks",
        "runs",
        "plot",
        "export",
        "scaling",
        "sweep",
        "doctor",
        "init",
        "completion",
    ],
)
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        f"import sys; from mjtrain.cli.{command} import main; sys.argv = ['x', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'warp', 'mujoco', 'mujoco_warp', 'rsl_rl', 'torchrunx', 'wandb', 'matplotlib', 'obstore',"
        " 'onnx', 'optuna'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stderr.strip() == "[]"


def test_naming_the_terms_of_a_task_imports_nothing_heavy() -> None:
    code = (
        "import importlib, pkgutil, sys, mjtrain.mdp\n"
        "from mjtrain.catalog import list_tasks; from mjtrain.cli.train import main\n"
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
