"""The notebook of the examples in a real kernel, and a run of a notebook in another place and another process."""

import html
import shutil
from dataclasses import replace
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import mjtrain
from mjtrain.env.catalog import load_task
from support.machine import patience

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_notebook(notebook: nbformat.NotebookNode, folder: Path) -> list[str]:
    """Run a notebook in a folder, and return the text below each of its cells."""
    NotebookClient(notebook, timeout=int(patience(60)), resources={"metadata": {"path": str(folder)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def read_notebook(name: str) -> nbformat.NotebookNode:
    return nbformat.read(EXAMPLES / name, as_version=4)


def test_notebooks_are_kept_without_outputs() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        cells = [cell for cell in read_notebook(path.name).cells if cell.cell_type == "code"]
        assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


def test_the_first_steps_run(tmp_path: Path) -> None:
    *_, training, metrics, playing, stepping, copying = run_notebook(read_notebook("first_steps.ipynb"), tmp_path)
    assert "env.rewards.still.func is __main__:stillness, which other processes cannot import" in training
    assert "still_pole: 2 ranks on cpu" in training
    progress = [line for line in training.splitlines() if line.startswith("iteration ")]
    assert len(progress) == 30, "the status of the ranks appears in the cell, a line for each iteration"
    assert "\x1b" not in training
    assert metrics.count("env steps per episode") == 5 + 1
    assert "checkpoints: model_30.pt" in metrics
    trained, untrained = (float(line.split("return ")[1].split(",")[0]) for line in playing.splitlines()[-2:])
    assert trained > untrained
    assert "observations: {'actor': (4,)} actions: 1" in stepping
    assert copying.splitlines()[-1] == "True model.mjb policy.json policy.onnx policy.pt"
    assert (tmp_path / "elsewhere" / "export" / "policy.onnx").is_file()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["still_pole"]


def test_a_robot_is_trained_and_shown(tmp_path: Path) -> None:
    notebook = read_notebook("walk.ipynb")
    (training,) = (cell for cell in notebook.cells if "mjtrain.train(" in cell.source)
    training.source = training.source.replace(
        "mjtrain.train(TASK,", "mjtrain.train(TASK, num_envs=8, max_iterations=2,"
    )
    *_, progress, table, _ = run_notebook(notebook, tmp_path)
    assert "iteration 2/2" in progress
    assert "of 32 episodes" in table
    *_, shown = notebook.cells[-2].outputs
    assert not [output for output in notebook.cells[-2].outputs if "UserWarning" in output.get("text", "")]
    shown = shown.data["text/html"]
    page = (tmp_path / "walk.html").read_text()
    assert shown.startswith("<div><iframe srcdoc=")
    assert html.unescape(shown.split('"')[1]) == page


TRAINING = """
from dataclasses import replace
import mjtrain
from mjtrain.env.catalog import load_task

task = load_task("Cartpole-Balance")
task = replace(task, env=replace(task.env, episode_length_s=2.0))
launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
mjtrain.train(task, num_envs=8, max_iterations=2, logger="none", launch=launch)
"""


def test_a_run_of_a_notebook_is_played_and_exported_in_another_folder_and_process(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(TRAINING)])
    (text,) = run_notebook(notebook, tmp_path)
    assert "iteration 2/2" in text
    assert "cannot import" not in text
    (run_dir,) = (tmp_path / "logs" / "custom").iterdir()
    elsewhere = Path(shutil.move(run_dir, tmp_path / "elsewhere"))
    table = mjtrain.play(elsewhere, episodes=3, num_threads=1)
    assert (table["task"], table["iteration"]) == ("custom", 2)
    assert table["length"]["max"] <= 200
    assert mjtrain.export(elsewhere, observations=10).files["policy.onnx"].is_file()
    assert mjtrain.load_policy(elsewhere).inputs == {"actor": (4,)}
    original = load_task("Cartpole-Balance").env
    recorded = mjtrain.Run(elsewhere).config.env
    assert recorded == replace(original, episode_length_s=2.0, robot=recorded.robot)
