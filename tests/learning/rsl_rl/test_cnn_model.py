"""Networks that read images."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from mjtrain.config import CnnConfig, DistributionConfig, ModelConfig, to_plain
from mjtrain.learning.rsl_rl.networks import resolve_model

NUM_ENVS = 5


def observe(**shapes: tuple[int, ...]) -> TensorDict:
    """Draw bytes for each image group, and numbers for each flat one."""
    generator = torch.Generator().manual_seed(3)
    groups = {
        name: torch.randint(0, 256, (NUM_ENVS, *shape), dtype=torch.uint8, generator=generator)
        if len(shape) == 3
        else torch.randn(NUM_ENVS, *shape, generator=generator)
        for name, shape in shapes.items()
    }
    return TensorDict(groups, batch_size=[NUM_ENVS])  # pyright: ignore[reportArgumentType]


def make(observations: TensorDict, groups: list[str], config: ModelConfig, **more: Any) -> Any:
    options = resolve_model(to_plain(config))
    make_model = options.pop("class_name")
    torch.manual_seed(0)
    return make_model(observations, {"actor": groups}, "actor", 2, **options, **more)


CONFIG = ModelConfig(
    class_name="CNNModel",
    hidden_dims=(16,),
    cnn_cfg=CnnConfig(output_channels=(4, 8)),
    distribution_cfg=DistributionConfig(),
)


def test_images_in_bytes_mean_value_over_255() -> None:
    observations = observe(image=(3, 16, 12), state=(4,))
    model = make(observations, ["image", "state"], CONFIG)
    as_floats = observations.clone()
    as_floats["image"] = observations["image"].float() / 255
    assert torch.equal(model(observations), model(as_floats))
    as_floats["image"] = observations["image"].float()
    assert not torch.equal(model(observations), model(as_floats))


def test_a_model_depends_on_every_image_group_and_every_flat_group() -> None:
    observations = observe(front=(3, 16, 16), back=(1, 8, 8), state=(4,), more=(2,))
    model = make(observations, ["front", "state", "back", "more"], CONFIG)
    assert model.cnn_latent_dim == 8 * (4 * 4 + 2 * 2)
    before = model(observations)
    for group in observations.keys():  # noqa: SIM118 (the keys of a TensorDict)
        changed = observations.clone()
        changed[group] = 255 - changed[group] if changed[group].ndim == 4 else changed[group] + 1
        assert not torch.allclose(before, model(changed)), group


@pytest.mark.parametrize("normalises", [True, False])
def test_a_model_reads_images_only(normalises: bool) -> None:
    observations = observe(image=(3, 16, 16))
    model = make(observations, ["image"], replace(CONFIG, obs_normalization=normalises))
    assert model(observations).shape == (NUM_ENVS, 2)
    model.update_normalization(observations)
    assert not any("normalizer" in name for name in model.state_dict())


def test_only_flat_groups_are_normalised() -> None:
    observations = observe(image=(3, 16, 16), state=(4,))
    model = make(observations, ["image", "state"], CONFIG)
    model.update_normalization(observations)
    assert model.obs_normalizer.mean.shape == (4,)
    assert torch.allclose(model.obs_normalizer.mean, observations["state"].mean(0), atol=1e-6)


def test_steps_of_a_rollout_are_encoded_at_once() -> None:
    observations = observe(image=(3, 16, 16), state=(4,))
    model = make(observations, ["image", "state"], replace(CONFIG, obs_normalization=False))
    rollout = torch.stack([observations, observations.clone()])  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert torch.allclose(model(rollout), model(observations).expand(2, -1, -1), atol=1e-6)


def test_borrowed_encoders_are_parameters_of_their_owner_alone() -> None:
    observations = observe(image=(3, 16, 16))
    owner = make(observations, ["image"], CONFIG)
    borrower = make(observations, ["image"], replace(CONFIG, distribution_cfg=None), cnns=owner.cnns)
    assert not any(name.startswith("cnns") for name in borrower.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of parameters that are there twice
        torch.optim.Adam([*owner.parameters(), *borrower.parameters()])
    borrower(observations).sum().backward()
    assert owner.cnns["image"][0].weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="the encoders are of image, and this model reads"):
        make(observe(other=(3, 16, 16)), ["other"], CONFIG, cnns=owner.cnns)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 8 * 4 * 4),
        ({"padding": "none", "kernel_size": (5, 3), "stride": (2, 1)}, 8 * 4 * 4),
        ({"stride": 1, "max_pool": (False, True)}, 8 * 8 * 8),
        ({"norm": "layer", "activation": "relu"}, 8 * 4 * 4),
        ({"global_pool": "avg", "dilation": 2}, 8),
        ({"global_pool": "max", "padding": "replicate"}, 8),
        ({"global_pool": "spatial_softmax"}, 2 * 8),
    ],
)
def test_every_option_of_the_convolutions_counts(changes: dict[str, Any], size: int) -> None:
    observations = observe(image=(3, 16, 16))
    config = replace(CONFIG, cnn_cfg=replace(CONFIG.cnn_cfg, **changes))
    model = make(observations, ["image"], config)
    assert model.cnn_latent_dim == size
    assert model(observations).shape == (NUM_ENVS, 2)
