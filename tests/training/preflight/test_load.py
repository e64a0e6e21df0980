"""A training starts from the weights of a shared policy or of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, PlayConfig
from mjtrain.evaluation.playing.evaluate import find_run_to_play
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.playing.policy_session import PolicySession
from mjtrain.evaluation.playing.replay_page import _describe
from mjtrain.runs.bundle import WEIGHTS, read_networks, read_weights
from mjtrain.runs.bundle_places import open_bundle
from mjtrain.runs.checkpoint import CheckpointError, load_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.load import resolve_load
from mjtrain.training.request import resolve_training
from mjtrain.training.train_rank import TrainResult

pytestmark = pytest.mark.usefixtures("short_trial")

LAYER = "mlp.0.weight"


def train(tmp_path: Path, load: str | None, **options: Any) -> TrainResult:
    where = {"log_root": str(tmp_path), "logger": "none", "launch": mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)}
    return mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=1, load=load, **where, **options)


def first_layer(checkpoint: Path) -> torch.Tensor:
    return load_checkpoint(checkpoint, "cpu")["actor_state_dict"][LAYER]


def test_a_training_starts_from_a_shared_policy_and_from_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = read_weights(open_bundle("pretrained:Cartpole-Balance") / WEIGHTS, "cpu")["actor_state_dict"][LAYER]
    new = train(tmp_path, None)
    assert (first_layer(new.checkpoint) - shared).abs().max() > 0.2
    loaded = train(tmp_path, "pretrained")
    assert "--load pretrained: starts from" in capfd.readouterr().err
    assert (first_layer(loaded.checkpoint) - shared).abs().max() < 0.05  # one iteration away
    again = train(tmp_path, str(loaded.run_dir))
    assert (first_layer(again.checkpoint) - first_layer(loaded.checkpoint)).abs().max() < 0.05
    # A training that is in progress may delete the checkpoint before it is read.
    found = resolve_load(make_train_config("Cartpole-Balance", load=str(again.run_dir))).run.load
    assert found == str(again.checkpoint)
    layer = first_layer(again.checkpoint)
    again.checkpoint.unlink()
    assert torch.equal(read_networks(again.checkpoint, "cpu")["actor_state_dict"][LAYER], layer)


def test_what_does_not_fit_or_is_not_there_is_one_line(tmp_path: Path) -> None:
    agent = make_train_config("Cartpole-Balance").agent
    smaller = replace(agent, actor=replace(agent.actor, hidden_dims=(8,)))
    words = r"--load: checkpoint .*: actor mlp\.0\.weight has shape \(64, 4\) in the checkpoint and \(8, 4\) here"
    with pytest.raises(RequestError, match=rf"^{words}; give --agent\.actor\.hidden-dims 64 64, or another file$"):
        resolve_training(make_train_config("Cartpole-Balance", load="pretrained", agent=smaller), LaunchConfig())
    with pytest.raises(RequestError, match=r"no pretrained policy of Nothing"):
        train(tmp_path, "pretrained:Nothing")
    with pytest.raises(RequestError, match=r"--load .*: is neither a run nor a shared policy"):
        train(tmp_path, str(tmp_path))


@pytest.mark.parametrize(
    ("header", "words"),
    [("[1]", "holds a list"), ("null", "holds a NoneType"), ('{"learner": 7}', "is damaged: learner is of type int")],
)
def test_weights_with_another_header_are_one_line(header: str, words: str, tmp_path: Path) -> None:
    (file := tmp_path / WEIGHTS).write_bytes(save({}, {"mjtrain": header}))
    with pytest.raises(CheckpointError, match=words):
        read_networks(file, "cpu")


def test_a_shared_policy_that_is_played_is_known_by_its_place() -> None:
    """Its weights lie in a cache, under a name that says nothing."""
    place = "pretrained:Cartpole-Balance"
    for task, config in ((place, PlayConfig()), ("Cartpole-Balance", PlayConfig(policy="pretrained"))):
        assert find_run_to_play(task, config).place == place
    for policy, name, subtitle in (("trained", place, f"{place}, iteration "), ("zero", "zero", "policy zero, seed ")):
        run = find_run_to_play(place, PlayConfig(policy=policy))
        with Player(mjtrain.RankContext(), run, policy=policy) as player:
            assert player.policy_name == name
            assert _describe(player, PlayConfig(policy=policy)).startswith(subtitle)
            shown = PolicySession(player).status()[0]
            assert shown.startswith(f"Cartpole-Balance: {place if policy == 'trained' else 'no policy'}")
    untrained = find_run_to_play("Cartpole-Balance", PlayConfig(policy="zero"))
    assert untrained.place is None
