"""Every setting of a network is a flag."""

import json
from typing import Any

import pytest

from mjtrain.cli.train import main


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("words", "place", "value"),
    [
        ("--agent.actor.distribution-cfg.init-std 0.5", "actor.distribution_cfg.init_std", 0.5),
        ("--agent.actor.cnn-cfg.output-channels 4 8", "actor.cnn_cfg.output_channels", [4, 8]),
        ("--agent.actor.cnn-cfg.kernel-size 8 4 3", "actor.cnn_cfg.kernel_size", [8, 4, 3]),
        ("--agent.critic.cnn-cfg.stride 1", "critic.cnn_cfg.stride", 1),
        ("--agent.actor.cnn-cfg.max-pool True False True", "actor.cnn_cfg.max_pool", [True, False, True]),
        ("--agent.actor.class-name RNNModel --agent.actor.rnn-type gru", "actor.rnn_type", "gru"),
        ("--agent.algorithm.auxiliary-cfg.coef 0.1", "algorithm.auxiliary_cfg.coef", 0.1),
    ],
)
def test_a_setting_of_a_network_is_a_flag(
    words: str, place: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["Cartpole-Balance", "--gpu-ids", "None", "--dry-run", *words.split()])
    found = json.loads(capsys.readouterr().out)["config"]["agent"]
    for name in place.split("."):
        found = found[name]
    assert found == value
