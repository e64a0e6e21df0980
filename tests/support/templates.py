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


def load_kind(path: str, kind: str) -> dict[str, Any]:
    """The object of a kind in a file of several."""
    (found,) = [one for one in yaml.safe_load_all((DEPLOY / path).read_text()) if one["kind"] == kind]
    return found


def load_job_specs() -> dict[str, dict[str, Any]]:
    """The specification of the Job of each template for Kubernetes."""
    (job,) = load_kind("kubeflow/trainjob.yaml", "TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]
    return {"kubernetes": load_kind("kubernetes/job.yaml", "Job")["spec"], "kubeflow": job["template"]["spec"]}


def load_container_args() -> dict[str, list[str]]:
    """The commands that the container templates run, as lists."""
    container = load_kind("kubernetes/job.yaml", "Job")["spec"]["template"]["spec"]["containers"][0]
    trainer = load_kind("kubeflow/trainjob.yaml", "TrainJob")["spec"]["trainer"]
    return {
        "kubernetes": [*container["command"], *container["args"]],
        "kubeflow": [*trainer["command"], *trainer["args"]],
    }


def find_commands(script: str, variables: dict[str, str]) -> list[list[str]]:
    """Find the commands in a shell script that start a training, with variables filled in."""
    script = script.replace("\\\n", " ")
    filled = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), script)
    lines = [line.strip() for line in filled.splitlines() if not line.strip().startswith("#")]
    return [
        shlex.split(line.removesuffix("&"))
        for line in lines
        if re.search(r'mjtrain\.cli\.train|(^|[ /])train "?[A-Z]', line)
    ]


def arguments_of_train(command: list[str]) -> list[str]:
    """What follows `train` or `-m mjtrain.cli.train`."""
    names = [index for index, word in enumerate(command) if word == "mjtrain.cli.train" or Path(word).name == "train"]
    return command[names[0] + 1 :]
