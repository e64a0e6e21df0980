import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mjtrain.api import make_train_config
from mjtrain.runs.run_dir import make_run_dir, save_params
from mjtrain.runtime.errors import RequestError


def test_a_run_lives_below_its_experiment(tmp_path: Path) -> None:
    config = make_train_config("Cartpole-Balance", log_root=str(tmp_path), run_name="first")
    run_dir = make_run_dir(config)
    assert run_dir.is_dir()
    assert run_dir.parent == tmp_path / "cartpole_balance"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_first", run_dir.name)


def test_runs_of_the_same_second_do_not_collide(tmp_path: Path) -> None:
    config = make_train_config("Cartpole-Balance", log_root=str(tmp_path))
    assert len({make_run_dir(config) for _ in range(3)}) == 3


def test_the_experiment_can_be_named(tmp_path: Path) -> None:
    config = make_train_config("Cartpole-Balance", log_root=str(tmp_path))
    config = replace(config, agent=replace(config.agent, experiment_name="mine"))
    assert make_run_dir(config).parent == tmp_path / "mine"


@pytest.mark.parametrize("log_root", ["{tmp}/file", "{tmp}/file/below", "/proc/nowhere"])
def test_a_log_root_that_cannot_be_written_is_named(tmp_path: Path, log_root: str) -> None:
    (tmp_path / "file").write_text("")
    config = make_train_config("Cartpole-Balance", log_root=log_root.format(tmp=tmp_path))
    with pytest.raises(RequestError, match=r"--log-root .*cannot be written"):
        make_run_dir(config)


def test_a_run_name_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--run-name a/b"):
        make_run_dir(make_train_config("Cartpole-Balance", log_root=str(tmp_path), run_name="a/b"))


def test_params_are_plain_yaml(tmp_path: Path) -> None:
    save_params(tmp_path, agent={"actor": {"hidden_dims": [64, 64]}, "load": None})
    assert yaml.safe_load((tmp_path / "params" / "agent.yaml").read_text()) == {
        "actor": {"hidden_dims": [64, 64]},
        "load": None,
    }


def test_params_that_are_not_text_are_replaced_and_kept(tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "env.yaml").write_bytes(b"name: b\xfcro\n")
    save_params(tmp_path, env={"name": "office"})
    assert (tmp_path / "params" / "env.yaml").read_text() == "name: office\n"
    (kept,) = tmp_path.glob("params/previous/*/env.yaml")
    assert kept.read_bytes() == b"name: b\xfcro\n"
