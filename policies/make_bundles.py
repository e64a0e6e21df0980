"""Make the bundles of this package again, each from the newest run of its task.

mjtrain train Cartpole-Balance     # and the other tasks of pyproject.toml
python policies/make_bundles.py    # or with --log-root DIR

That of Humanoid-Velocity-Flat is a checkpoint of three quarters of a run with --seed 2 (docs/humanoid.md):

python policies/make_bundles.py Humanoid-Velocity-Flat --run RUN --checkpoint model_600.pt

That of Humanoid-Track was stopped after 320 of its 400 iterations.
The weights of Hand-Reorient-Cube and Cartpole-Balance-Vision come from exported policies of 24 and 22 November 2026. An
export has no standard deviation, so theirs is the task's initial one. The card of each policy has
the command.
"""

import argparse
import shutil
import tomllib
from pathlib import Path

from mjtrain.cli.push import main as push

HERE = Path(__file__).parent


def list_tasks() -> list[str]:
    """Return the tasks whose policies the package registers."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    return list(project["entry-points"]["mjtrain.policies"])


def main() -> None:
    """Replace the bundles of the tasks that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="default: all of the package")
    parser.add_argument("--log-root", default="logs", help="folder below which runs live")
    parser.add_argument("--run", help="run directory of the one task that is named; default: its newest run")
    parser.add_argument("--checkpoint", help="its name in --run; default: the newest")
    options = parser.parse_args()
    if options.run is not None and len(options.tasks) != 1:
        parser.error("--run: name the one task that was trained there")
    if options.checkpoint is not None and options.run is None:
        parser.error("--checkpoint: give --run too")
    chosen = [] if options.checkpoint is None else ["--checkpoint", options.checkpoint]
    for task in options.tasks or list_tasks():
        bundle = HERE / "src" / "mjtrain_policies" / task
        made = bundle.with_name(f"{task}.new")
        shutil.rmtree(made, ignore_errors=True)
        place = options.run or task
        push([place, str(made), "--license", "apache-2.0", "--log-root", options.log_root, *chosen])
        shutil.rmtree(bundle, ignore_errors=True)
        made.rename(bundle)
        print(f"{task}: {sum(file.stat().st_size for file in bundle.rglob('*') if file.is_file()) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
