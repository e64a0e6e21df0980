import json
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from mjtrain.api import make_train_config
from mjtrain.config import AgentConfig, EnvConfig, RewardTerm, from_plain, to_plain
from mjtrain.env.catalog import list_tasks
from mjtrain.mdp import rewards


def test_a_whole_config_becomes_yaml_and_json() -> None:
    plain = to_plain(make_train_config("Cartpole-Balance"))
    assert yaml.safe_load(yaml.safe_dump(plain)) == json.loads(json.dumps(plain)) == plain
    assert plain["env"]["terminations"]["time_out"]["func"] == "mjtrain.mdp.terminations:time_out"


def test_numbers_of_numpy_and_torch_and_enumerations_become_plain() -> None:
    params = {"limit": np.deg2rad(30), "count": np.int64(3), "range": np.array([0.0, 1.0]), "gain": torch.tensor(2.0)}
    params["side"] = Enum("Side", {"LEFT": "left"})["LEFT"]
    plain = to_plain(RewardTerm(func=len, weight=1.0, params=params))["params"]
    assert plain == {"limit": float(np.deg2rad(30)), "count": 3, "range": [0.0, 1.0], "gain": 2.0, "side": "left"}
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain


def test_anything_else_is_named() -> None:
    with pytest.raises(TypeError, match="of type set"):
        to_plain({"a": {1, 2}})


@pytest.mark.parametrize("task", [entry.name for entry in list_tasks()])
def test_a_config_comes_back_from_yaml_as_it_was(task: str) -> None:
    config = make_train_config(task)
    for kind, original in ((EnvConfig, config.env), (AgentConfig, config.agent)):
        assert from_plain(kind, yaml.safe_load(yaml.safe_dump(to_plain(original)))) == original


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"func": "mjtrain.mdp.rewards:gone"}, "func is mjtrain.mdp.rewards:gone, which cannot be imported"),
        ({"func": "no_such_package:alive"}, "func is no_such_package:alive, which cannot be imported"),
        ({"wieght": 2.0}, "RewardTerm has wieght, which this version of mjtrain does not know"),
    ],
)
def test_what_does_not_fit_a_config_is_named(change: dict[str, Any], message: str) -> None:
    plain = to_plain(RewardTerm(func=rewards.is_alive, weight=1.0))
    with pytest.raises(ValueError, match=message):
        from_plain(RewardTerm, {**plain, **change})
    with pytest.raises(ValueError, match="weight"):
        from_plain(RewardTerm, {"func": plain["func"]})
