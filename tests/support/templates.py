"""Read the templates of deploy/ as those do for whom they are written."""

import re
import shlex
from pathlib import Path
from typing import Any

import jinja2
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


def render_osmo(tokens: dict[str, str], **values: Any) -> dict[str, Any]:
    """Do what OSMO does: its special tokens are left alone by Jinja, and everything else must be defined."""
    text = (DEPLOY / "osmo" / "train.yaml").read_text()
    defaults = yaml.safe_load(text.partition("\ndefault-values:\n")[2])
    for token in ("output", "workflow_id", "host:master"):
        text = text.replace("{{" + token + "}}", tokens.get(token, f"<{token}>"))
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    return yaml.safe_load(environment.from_string(text).render({**defaults, **values}))


def load_container_args() -> dict[str, list[str]]:
    """The commands that the container templates run, as lists."""
    job = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "job.yaml").read_text()))[1]
    container = job["spec"]["template"]["spec"]["containers"][0]
    trainer = yaml.safe_load((DEPLOY / "kubeflow" / "trainjob.yaml").read_text())["spec"]["trainer"]
    return {
        "kubernetes": [*container["command"], *container["args"]],
        "kubeflow": [*trainer["command"], *trainer["args"]],
    }


def find_commands(script: str, variables: dict[str, str]) -> list[list[str]]:
    """Find the commands in a shell script that start a training, with variables filled in."""
    script = script.replace("\\\n", " ")
    filled = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), script)
    lines = [line.strip() for line in filled.splitlines() if not line.strip().startswith("#")]
    return [shlex.split(line) for line in lines if re.search(r"mjtrain\.cli\.train|(^|[ /])train [A-Z]", line)]


def arguments_of_train(command: list[str]) -> list[str]:
    """What follows `train` or `-m mjtrain.cli.train`."""
    names = [index for index, word in enumerate(command) if word == "mjtrain.cli.train" or Path(word).name == "train"]
    return command[names[0] + 1 :]
