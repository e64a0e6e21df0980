import json

import numpy as np
import pytest
import torch
import yaml

from mjtrain.api import make_train_config
from mjtrain.config import RewardTerm, to_plain


def test_a_whole_config_becomes_yaml_and_json() -> None:
    plain = to_plain(make_train_config("Cartpole-Balance"))
    assert yaml.safe_load(yaml.safe_dump(plain)) == json.loads(json.dumps(plain)) == plain
    assert plain["env"]["terminations"]["time_out"]["func"] == "mjtrain.env.terminations:time_out"


def test_numbers_of_numpy_and_torch_become_numbers() -> None:
    params = {"limit": np.deg2rad(30), "count": np.int64(3), "range": np.array([0.0, 1.0]), "gain": torch.tensor(2.0)}
    plain = to_plain(RewardTerm(func=len, weight=1.0, params=params))["params"]
    assert plain == {"limit": float(np.deg2rad(30)), "count": 3, "range": [0.0, 1.0], "gain": 2.0}
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain


def test_anything_else_is_named() -> None:
    with pytest.raises(TypeError, match="of type set"):
        to_plain({"a": {1, 2}})
