"""Make the bundles of this package again, each from the newest run of its task.

mjtrain train Cartpole-Balance     # and the other tasks of pyproject.toml
python policies/make_bundles.py    # or with --log-root DIR
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
    options = parser.parse_args()
    for task in options.tasks or list_tasks():
        bundle = HERE / "src" / "mjtrain_policies" / task
        made = bundle.with_name(f"{task}.new")
        shutil.rmtree(made, ignore_errors=True)
        push([task, str(made), "--license", "apache-2.0", "--log-root", options.log_root])
        shutil.rmtree(bundle, ignore_errors=True)
        made.rename(bundle)
        print(f"{task}: {sum(file.stat().st_size for file in bundle.rglob('*') if file.is_file()) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
