"""Records of runs that earlier versions of mjtrain wrote, in today's names; pure."""

from collections.abc import Mapping
from typing import Any

from mjtrain.config import RobotConfig, to_plain
from mjtrain.config.renamed import RENAMED_FUNCTIONS, RENAMED_PARAMETERS


def upgrade_params(
    content: Any,
    functions: Mapping[str, str] = RENAMED_FUNCTIONS,
    parameters: Mapping[str, Mapping[str, str]] = RENAMED_PARAMETERS,
) -> Any:
    """Give functions and their parameters the names, and robots the form, that they have today.

    Args:
        content: What a file below params/ holds; plain values, not changed.
        functions: Recorded "module:qualified.name" to the present one.
        parameters: For the present name of a function, recorded names of its parameters to the present ones.

    Returns:
        The same with names that are not in the tables as they are.
    """
    if isinstance(content, str):
        return functions.get(content, content)
    if isinstance(content, list):
        return [upgrade_params(item, functions, parameters) for item in content]
    if not isinstance(content, dict):
        return content
    upgraded = {key: upgrade_params(item, functions, parameters) for key, item in content.items()}
    if isinstance(upgraded.get("robot"), str) and "decimation" in upgraded:  # an environment when a robot was a file
        upgraded["robot"] = to_plain(RobotConfig(file=upgraded["robot"]))
    renamed = parameters.get(upgraded["func"], {}) if isinstance(upgraded.get("func"), str) else {}
    if renamed and isinstance(upgraded.get("params"), dict):
        upgraded["params"] = {renamed.get(name, name): value for name, value in upgraded["params"].items()}
    return upgraded
