"""Networks that do not fit what the environment observes, and those that just do."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from mjtrain.api import make_train_config
from mjtrain.config import (
    AgentConfig,
    AuxiliaryConfig,
    CnnConfig,
    DistillationConfig,
    LaunchConfig,
    ModelConfig,
    PpoConfig,
    SymmetryConfig,
    to_plain,
)
from mjtrain.learning.rsl_rl.networks import resolve_model
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.config_check import check_config
from mjtrain.training.preflight.network_check import find_network_problems

SHAPES = {"actor": (5,), "image": (3, 32, 32), "even": (1, 8, 8), "small": (1, 4, 4)}


def find(
    model: ModelConfig,
    groups: tuple[str, ...] = ("image",),
    critic: ModelConfig | None = None,
    num_envs: int = 8,
    **algorithm: Any,
) -> list[str]:
    agent = AgentConfig(
        actor=model,
        critic=critic or ModelConfig(),
        algorithm=PpoConfig(**algorithm),
        obs_groups={"actor": groups, "critic": ("actor",)},
    )
    return list(find_network_problems(agent, SHAPES, num_envs))


def cnn(**changes: Any) -> ModelConfig:
    return ModelConfig(class_name="CNNModel", cnn_cfg=CnnConfig(**changes))


def test_a_network_without_groups_is_named_unless_one_has_its_name() -> None:
    agent = AgentConfig(obs_groups={})
    missing = "--agent.obs-groups.critic: is missing; name the groups that this network reads"
    assert list(find_network_problems(agent, {"actor": (5,)}, 8)) == [missing]
    assert list(find_network_problems(agent, {"policy": (5,)}, 8)) == []
    student = AgentConfig(obs_groups={}, algorithm=DistillationConfig())
    missing = "--agent.obs-groups.actor: is missing; name the groups that this network reads"
    assert list(find_network_problems(student, {"actor": (5,)}, 8)) == [missing]
    shared = PpoConfig(share_cnn_encoders=True)
    agent = AgentConfig(obs_groups={"critic": ("image",)}, actor=cnn(), critic=cnn(), algorithm=shared)
    assert next(find_network_problems(agent, {"actor": (5,), "image": (3, 32, 32)}, 8)) == missing
    assert len(list(find_network_problems(agent, {"actor": (5,), "image": (3, 32, 32)}, 8))) == 2


@pytest.mark.parametrize(
    "algorithm",
    [
        PpoConfig(symmetry_cfg=SymmetryConfig(use_mirror_loss=True)),
        DistillationConfig(),
    ],
    ids=["symmetry", "student"],
)
def test_groups_that_mjtrain_reads_are_named(algorithm: Any) -> None:
    task = make_train_config("Cartpole-Balance")
    agent = replace(task.agent, algorithm=algorithm, obs_groups={"critic": ("actor",)})
    missing = r"^--agent\.obs-groups\.actor: is missing; name the groups that this network reads$"
    with pytest.raises(RequestError, match=missing):
        check_config(replace(task, agent=agent), LaunchConfig())


def test_a_warm_start_needs_no_names_of_groups() -> None:
    task = make_train_config("Arm-Reach")
    check_config(replace(task, agent=replace(task.agent, obs_groups={})), LaunchConfig())


PROBLEMS = {
    "--agent.actor.class-name MLPModel: cannot read group image, which has images (3, 32, 32); use CNNModel, or "
    "another group in --agent.obs-groups.actor": (ModelConfig(), ("actor", "image")),
    "--agent.actor.class-name RNNModel: cannot read group image, which has images (3, 32, 32): RSL-RL has no "
    "recurrent network for images; use CNNModel and give the image terms a history, or leave the group out of "
    "--agent.obs-groups.actor": (ModelConfig(class_name="RNNModel"), ("image",)),
    "--agent.actor.class-name CNNModel: reads no images, as actor in --agent.obs-groups.actor is flat; use MLPModel, "
    "or add an image group there": (cnn(), ("actor",)),
    "--agent.obs-groups.actor (none): the network reads nothing; give at least one group": (ModelConfig(), ()),
    "--agent.obs-groups.actor image actor image: image is repeated; give it once": (cnn(), ("image", "actor", "image")),
    "--agent.actor.cnn-cfg.output-channels : give at least 1 for each layer": (cnn(output_channels=()), ("image",)),
    "--agent.actor.cnn-cfg.output-channels 8 0: give at least 1 for each layer": (
        cnn(output_channels=(8, 0)),
        ("image",),
    ),
    "--agent.actor.cnn-cfg.kernel-size 8 4: give one value, or one for each of the 3 layers of output-channels": (
        cnn(kernel_size=(8, 4)),
        ("image",),
    ),
    "--agent.actor.cnn-cfg.max-pool True False: give one value, or one for each of the 3 layers of output-channels": (
        cnn(max_pool=(True, False)),
        ("image",),
    ),
    "--agent.actor.cnn-cfg.stride 0: must be at least 1": (cnn(stride=0), ("image",)),
    "--agent.actor.cnn-cfg.kernel-size 3: layer 2 gets 1 x 1 pixels of group small (1, 4, 4), and leaves none; use "
    "fewer layers, smaller kernels or strides, or padding zeros": (cnn(padding="none"), ("image", "small")),
    "--agent.actor.cnn-cfg.stride 8: layer 1 gets 32 x 32 pixels of group image (3, 32, 32), and kernels of 3 would "
    "skip some; use a smaller stride, or padding none": (cnn(stride=8), ("image",)),
    "--agent.actor.cnn-cfg.padding reflect: layer 1 gets 4 x 4 pixels of group small (1, 4, 4), too few for kernels "
    "that reach 9; use padding zeros": (cnn(padding="reflect", kernel_size=9, stride=1), ("small",)),
}


@pytest.mark.parametrize("line", PROBLEMS)
def test_a_network_that_does_not_fit_is_named_with_its_flag(line: str) -> None:
    assert find(*PROBLEMS[line]) == [line]


def test_encoders_are_shared_by_networks_that_read_the_same_images_only() -> None:
    flag = "--agent.algorithm.share-cnn-encoders"
    assert find(cnn(), share_cnn_encoders=True) == [f"{flag}: --agent.critic.class-name is MLPModel; give CNNModel"]
    lines = find(cnn(), critic=replace(cnn(), class_name="package.module:Other"), share_cnn_encoders=True)
    assert lines == [f"{flag}: the actor image, the critic none; both must read the same image groups"]


def test_a_group_to_predict_is_flat_and_the_actor_sees_images() -> None:
    flag = "--agent.algorithm.auxiliary-cfg.group"

    def find_for(group: str, model: ModelConfig, groups: tuple[str, ...] = ("image",)) -> list[str]:
        return find(model, groups, auxiliary_cfg=AuxiliaryConfig(group=group))

    assert find_for("actor", cnn()) == []
    assert find_for("pose", cnn()) == [f"{flag} pose: the environment observes actor, image, even, small"]
    assert find_for("even", cnn()) == [f"{flag} even: has images (1, 8, 8); give a flat group"]
    (line,) = find_for("actor", ModelConfig(), ("actor",))
    assert line == f"{flag} actor: is predicted from images; --agent.actor.class-name is MLPModel, give CNNModel"


def test_the_head_that_predicts_has_layers_and_its_loss_a_weight() -> None:
    flag = "--agent.algorithm.auxiliary-cfg"

    def find_for(**settings: Any) -> list[str]:
        return find(cnn(), auxiliary_cfg=AuxiliaryConfig(group="actor", **settings))

    assert find_for(coef=0.0, hidden_dims=(8, 4)) == []
    assert find_for(hidden_dims=(8, 0)) == [f"{flag}.hidden-dims 8 0: give at least 1 for each hidden layer"]
    assert find_for(hidden_dims=()) == [f"{flag}.hidden-dims (none): give at least 1 for each hidden layer"]


def test_a_detached_encoder_learns_from_the_group_alone() -> None:
    flag = "--agent.algorithm.auxiliary-cfg"

    def find_for(group: str, shares: bool) -> list[str]:
        settings = AuxiliaryConfig(group=group, detach_encoder=True)
        return find(cnn(), share_cnn_encoders=shares, auxiliary_cfg=settings)

    assert find_for("actor", shares=False) == []
    assert find_for("", shares=False) == [
        f"{flag}.detach-encoder: nothing is left for the convolutions to learn from; give {flag}.group"
    ]
    assert find_for("actor", shares=True)[-1] == (
        f"{flag}.detach-encoder: the critic's loss would reach the convolutions by "
        "--agent.algorithm.share-cnn-encoders; leave out one of them"
    )


def test_a_recurrent_network_needs_an_environment_per_mini_batch() -> None:
    model = ModelConfig(class_name="RNNModel")
    (line,) = find(model, ("actor",), num_envs=3)
    assert line.startswith("--num-envs 3: a mini-batch of an RNNModel has whole environments, and there are 4")
    assert find(model, ("actor",), num_envs=3, num_mini_batches=3) == []
    assert find(ModelConfig(), ("actor",), num_envs=3) == []


def test_networks_that_fit_have_no_problem() -> None:
    assert find(cnn()) == find(cnn(), ("actor", "image", "even")) == find(ModelConfig(), ("actor",)) == []
    assert find(ModelConfig(class_name="package.module:Class")) == []


@pytest.mark.parametrize("padding", ["none", "zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("kernel_size", [3, 5])
@pytest.mark.parametrize(("stride", "max_pool"), [(1, (True, False)), (2, False), (8, False)])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_what_is_let_through_can_be_built_and_what_is_not_cannot(
    padding: Any, kernel_size: int, stride: int, max_pool: Any
) -> None:
    convolutions = CnnConfig(
        output_channels=(2, 2), padding=padding, kernel_size=kernel_size, stride=stride, max_pool=max_pool
    )
    model = ModelConfig(class_name="CNNModel", cnn_cfg=convolutions, hidden_dims=(2,))
    for size in [(4, 4), (5, 9), (16, 12)]:
        agent = AgentConfig(actor=model, obs_groups={"actor": ("image",), "critic": ("actor",)})
        shapes = {"actor": (2,), "image": (1, *size)}
        problems = list(find_network_problems(agent, shapes, 8))
        images = TensorDict({"image": torch.zeros(2, 1, *size)}, batch_size=[2])  # pyright: ignore[reportArgumentType]
        assert bool(problems) is not can_be_built(model, images), problems


def can_be_built(model: ModelConfig, images: TensorDict) -> bool:
    options = resolve_model(to_plain(model))
    make = options.pop("class_name")
    try:
        make(images, {"actor": ["image"]}, "actor", 1, **options)(images)
    except (RuntimeError, ValueError, AssertionError):
        return False
    return True
