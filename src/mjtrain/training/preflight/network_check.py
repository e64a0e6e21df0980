"""Whether the networks of an agent fit what the environment observes, also for external environments."""

import math
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mjtrain.config import (
    AgentConfig,
    CnnConfig,
    DaggerConfig,
    EnvConfig,
    ForeignConfig,
    GymnasiumConfig,
    ImitationConfig,
    MjlabConfig,
    ModelConfig,
    PpoConfig,
)
from mjtrain.runtime.errors import OutsideError, RequestError, refuse, spaced, summarise
from mjtrain.training.preflight.config_check import find_missing_groups

if TYPE_CHECKING:
    from mjtrain.env.external.env import ForeignEnv

Shape = tuple[int, ...]

_LIBRARY_MODELS = ("MLPModel", "CNNModel", "RNNModel")
_LIBRARY_DISTRIBUTIONS = ("GaussianDistribution", "HeteroscedasticGaussianDistribution", "BetaDistribution")
_LIBRARY_ALGORITHMS = ("PPO", "Distillation")
_LIBRARY_PPO = ("PPO", "rsl_rl.algorithms:PPO")
_PER_LAYER = ("kernel_size", "stride", "dilation", "max_pool")
_OWN = Path(__file__).parents[2]
"""Folder of mjtrain's own modules."""


def find_network_problems(agent: AgentConfig, shapes: Mapping[str, Shape], num_envs: int) -> Iterator[str]:
    """Compare networks with the observation groups that they read.

    Networks of classes that RSL-RL does not have are not looked into.

    Args:
        shapes: What one environment observes, by group: (size,), or (channels, height, width) of images.
    """
    algorithm = agent.algorithm
    if isinstance(algorithm, ImitationConfig):
        networks = {"actor": agent.actor, **({} if algorithm.teacher is None else {"teacher": algorithm.teacher})}
        num_batches, shares = 1, False
    else:
        networks = {"actor": agent.actor, "critic": agent.critic}
        num_batches, shares = algorithm.num_mini_batches, algorithm.share_cnn_encoders
    if any(model.class_name == "RNNModel" for model in networks.values()) and num_envs < num_batches:
        yield (
            f"--num-envs {num_envs}: a mini-batch of an RNNModel has whole environments, and there are {num_batches} "
            "mini-batches (--agent.algorithm.num-mini-batches)"
        )
    yield from _find_unknown_classes(agent, networks)
    for name, model in networks.items():
        if model.class_name not in _LIBRARY_MODELS:
            continue
        groups = {group: shapes[group] for group in agent.obs_groups.get(name, ()) if group in shapes}
        # Which RSL-RL takes where it learns by PPO. Encoders are shared by name.
        fallbacks = {name, "policy"} & shapes.keys() if isinstance(algorithm, PpoConfig) and not shares else set()
        if name not in agent.obs_groups and not fallbacks:
            yield f"--agent.obs-groups.{name}: is missing; name the groups that this network reads"
            continue
        problem = _find_list_problem(name, agent.obs_groups.get(name), groups)
        problem = problem or _find_class_problem(name, model, groups)
        if problem is not None:
            yield problem
        elif model.class_name == "CNNModel" and not (name == "critic" and shares):
            yield from _find_cnn_problems(name, model.cnn_cfg, groups)
    if shares:
        yield from _find_sharing_problems(agent, shapes)
    if isinstance(algorithm, DaggerConfig) and agent.actor.class_name == "RNNModel":
        yield (
            "--agent.actor.class-name RNNModel: samples of a buffer have no past; give another class and a history to "
            "its observations, or use DistillationConfig"
        )
    if isinstance(algorithm, DaggerConfig) and algorithm.random_shift:
        yield from _find_shift_problems(agent, algorithm.random_shift, shapes)
    if isinstance(algorithm, PpoConfig) and algorithm.critic_iterations and algorithm.class_name in _LIBRARY_PPO:
        yield (
            f"--agent.algorithm.critic-iterations {algorithm.critic_iterations}: RSL-RL's own PPO trains both networks "
            "from the start; leave out --agent.algorithm.class-name"
        )
    if isinstance(algorithm, PpoConfig | DaggerConfig):
        if algorithm.auxiliary_cfg.group:
            yield from _find_auxiliary_problems(agent.actor, algorithm, shapes)
        if algorithm.auxiliary_cfg.detach_encoder:
            yield from _find_detachment_problems(algorithm)


def find_unread_groups(agent: AgentConfig, env: EnvConfig) -> Iterator[str]:
    """Yield a line for each observation group that nothing reads; estimates are read by play."""
    read = {group for groups in agent.obs_groups.values() for group in groups}
    read.add(agent.supervised_group)
    for name, terms in env.observations.items():
        if name not in read and all(term.estimate_error is None for term in terms.values()):
            yield f"--env.observations.{name}: no network reads this group; name it in --agent.obs-groups, or remove it"


def check_agent(env: "ForeignEnv", agent: AgentConfig, num_envs: int) -> None:
    """Check that an agent reads what the environments observe, with networks that fit."""
    seen = env.observe()
    refuse(find_missing_groups(seen, agent))
    shapes = {group: tuple(values.shape[1:]) for group, values in seen.items()}
    refuse(find_network_problems(agent, shapes, num_envs))


def check_before_training(config: ForeignConfig, agent: AgentConfig, num_envs: int) -> None:
    """Step two environments of Gymnasium once, before anything is written; of mjlab, check what is changed.

    What a function makes may be a simulator of which a process can have only one, so it is checked by the ranks. So are
    environments of mjlab, which take long to make.
    """
    if isinstance(config, MjlabConfig):
        from mjtrain.env.external.mjlab_task import read_env_config

        read_env_config(config)
    if not isinstance(config, GymnasiumConfig):
        return
    import torch

    from mjtrain.env.external.env import closing_on_error, make_foreign_env

    try:
        env = make_foreign_env(replace(config, vectorization="sync"), 2, "cpu", seed=0)
        with closing_on_error(env):
            check_agent(env, agent, num_envs)
            env.step(torch.zeros(env.num_envs, env.num_actions))
        env.close()
    except (RequestError, OutsideError, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if Path(frames[-1].filename).is_relative_to(_OWN):
            raise  # a mistake in mjtrain
        outside = (_OWN, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
        theirs = [frame for frame in frames if not any(map(Path(frame.filename).is_relative_to, outside))]
        frame = (theirs or frames)[-1]  # of the environment's own code, which a library may have refused
        place = f"{Path(frame.filename).name}, line {frame.lineno}" + (f": {frame.line}" if frame.line else "")
        raise RequestError(f"{config.label}: {' '.join(summarise(error).split())} ({place})") from error


def _find_shift_problems(agent: AgentConfig, shift: int, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Check that the student sees images, and that something is left of each."""
    images = _images({group: shapes[group] for group in agent.obs_groups.get("actor", ()) if group in shapes})
    flag = f"--agent.algorithm.random-shift {shift}"
    if not images:
        yield f"{flag}: the actor reads no images; leave it out"
    for group, (_, height, width) in images.items():
        if shift >= min(height, width):
            yield f"{flag}: the images of {group} are {width} x {height} pixels; give fewer pixels"


def _find_unknown_classes(agent: AgentConfig, networks: Mapping[str, ModelConfig]) -> Iterator[str]:
    """Find names without a package that RSL-RL does not have."""
    named: list[tuple[str, str, Sequence[str]]] = [
        ("algorithm.class-name", agent.algorithm.class_name, _LIBRARY_ALGORITHMS)
    ]
    for name, model in networks.items():
        named.append((f"{name}.class-name", model.class_name, _LIBRARY_MODELS))
        if (distribution := model.distribution_cfg) is not None:
            named.append((f"{name}.distribution-cfg.class-name", distribution.class_name, _LIBRARY_DISTRIBUTIONS))
    for flag, value, known in named:
        if value not in known and "." not in value and ":" not in value:
            yield f"--agent.{flag} {value}: choose from {', '.join(known)}, or give package.module:Class"


def _find_list_problem(name: str, listed: Sequence[str] | None, groups: Mapping[str, Shape]) -> str | None:
    """Check that a network reads something, and images once: it has one encoder for each group of them."""
    flag = f"--agent.obs-groups.{name}"
    if listed is not None and not listed:
        return f"{flag} (none): the network reads nothing; give at least one group"
    if groups and not any(math.prod(shape) for shape in groups.values()):
        return f"{flag} {' '.join(groups)}: the network reads nothing, as these are empty; give one with columns"
    repeated = [group for group in _images(groups) if listed is not None and listed.count(group) > 1]
    return f"{flag} {' '.join(listed or ())}: {repeated[0]} is repeated; give it once" if repeated else None


def _find_class_problem(name: str, model: ModelConfig, groups: Mapping[str, Shape]) -> str | None:
    flag = f"--agent.{name}.class-name {model.class_name}"
    images = _images(groups)
    if (model.class_name == "CNNModel") == bool(images):
        return None
    if not images:
        flat = ", ".join(groups) or "nothing"
        return (
            f"{flag}: reads no images, as {flat} in --agent.obs-groups.{name} is flat; use MLPModel, or add an image "
            "group there"
        )
    group, shape = next(iter(images.items()))
    unread = f"{flag}: cannot read group {group}, which has images {shape}"
    if model.class_name == "RNNModel":
        return (
            f"{unread}: RSL-RL has no recurrent network for images; use CNNModel and give the image terms a history, "
            f"or leave the group out of --agent.obs-groups.{name}"
        )
    return f"{unread}; use CNNModel, or another group in --agent.obs-groups.{name}"


def _images(groups: Mapping[str, Shape]) -> dict[str, Shape]:
    return {group: shape for group, shape in groups.items() if len(shape) == 3}


def _find_sharing_problems(agent: AgentConfig, shapes: Mapping[str, Shape]) -> Iterator[str]:
    flag = "--agent.algorithm.share-cnn-encoders"
    for name, model in (("actor", agent.actor), ("critic", agent.critic)):
        if model.class_name in _LIBRARY_MODELS and model.class_name != "CNNModel":
            yield f"{flag}: --agent.{name}.class-name is {model.class_name}; give CNNModel"
            return
    groups = {
        name: set(_images({group: shapes[group] for group in agent.obs_groups.get(name, ())}))
        for name in ("actor", "critic")
    }
    if groups["actor"] != groups["critic"]:
        read = [f"the {name} {' and '.join(sorted(there)) or 'none'}" for name, there in groups.items()]
        yield f"{flag}: {', '.join(read)}; both must read the same image groups"


def _find_auxiliary_problems(
    actor: ModelConfig, algorithm: PpoConfig | DaggerConfig, shapes: Mapping[str, Shape]
) -> Iterator[str]:
    group = algorithm.auxiliary_cfg.group
    flag = f"--agent.algorithm.auxiliary-cfg.group {group}"
    if group not in shapes:
        yield f"{flag}: the environment observes {', '.join(shapes)}"
    elif len(shapes[group]) == 3:
        yield f"{flag}: has images {shapes[group]}; give a flat group"
    elif actor.class_name in ("MLPModel", "RNNModel"):
        yield f"{flag}: is predicted from images; --agent.actor.class-name is {actor.class_name}, give CNNModel"
    elif algorithm.class_name in _LIBRARY_PPO:
        yield f"{flag}: RSL-RL's own PPO has no such loss; leave out --agent.algorithm.class-name"
    widths = algorithm.auxiliary_cfg.hidden_dims
    if not widths or min(widths) < 1:
        flag = f"--agent.algorithm.auxiliary-cfg.hidden-dims {spaced(widths) or '(none)'}"
        yield f"{flag}: give at least 1 for each hidden layer"


def _find_detachment_problems(algorithm: PpoConfig | DaggerConfig) -> Iterator[str]:
    flag = "--agent.algorithm.auxiliary-cfg"
    if not algorithm.auxiliary_cfg.group:
        yield f"{flag}.detach-encoder: nothing is left for the convolutions to learn from; give {flag}.group"
    if isinstance(algorithm, PpoConfig) and algorithm.share_cnn_encoders:
        yield (
            f"{flag}.detach-encoder: the critic's loss would reach the convolutions by "
            "--agent.algorithm.share-cnn-encoders; leave out one of them"
        )


def _find_cnn_problems(name: str, config: CnnConfig, groups: Mapping[str, Shape]) -> Iterator[str]:
    """Check the numbers of convolutions, and that they leave something of every image."""
    flag = f"--agent.{name}.cnn-cfg"
    if not config.output_channels or min(config.output_channels) < 1:
        yield f"{flag}.output-channels {spaced(config.output_channels)}: give at least 1 for each layer"
        return
    num_layers = len(config.output_channels)
    for field in _PER_LAYER:
        value = getattr(config, field)
        values = value if isinstance(value, tuple) else (value,)
        flagged = f"{flag}.{field.replace('_', '-')} {spaced(value)}"
        if isinstance(value, tuple) and len(value) != num_layers:
            yield f"{flagged}: give one value, or one for each of the {num_layers} layers of output-channels"
            return
        if field != "max_pool" and min(values) < 1:
            yield f"{flagged}: must be at least 1"
            return
    for group, shape in _images(groups).items():
        problem = _find_lost_image(flag, config, group, shape)
        if problem is not None:
            yield problem
            return


def _find_lost_image(flag: str, config: CnnConfig, group: str, shape: Shape) -> str | None:
    """Follow an image through the layers, as RSL-RL's CNN sizes them."""
    size = shape[1:]
    for layer in range(len(config.output_channels)):
        given = (getattr(config, field) for field in _PER_LAYER)
        kernel, stride, dilation, max_pool = (item[layer] if isinstance(item, tuple) else item for item in given)
        reach = dilation * (kernel - 1) + 1
        pads = [0, 0]
        if config.padding != "none":
            pads = [math.ceil((stride * (width // stride) - width - stride + reach) / 2) for width in size]
        where = f"layer {layer + 1} gets {size[0]} x {size[1]} pixels of group {group} {shape}"
        if min(pads) < 0 and config.padding == "zeros":
            return (
                f"{flag}.stride {stride}: {where}, and kernels of {kernel} would skip some; "
                "use a smaller stride, or padding none"
            )
        limit = {"reflect": 1, "circular": 0}.get(config.padding)
        if limit is not None and any(pad > width - limit for pad, width in zip(pads, size, strict=True)):
            few = f"too few for kernels that reach {reach}"
            return f"{flag}.padding {config.padding}: {where}, {few}; use padding zeros"
        size = tuple((width + 2 * pad - reach) // stride + 1 for width, pad in zip(size, pads, strict=True))
        if min(size) < 1:
            return (
                f"{flag}.kernel-size {spaced(config.kernel_size)}: {where}, and leaves none; "
                "use fewer layers, smaller kernels or strides, or padding zeros"
            )
        if max_pool:
            size = tuple(math.ceil(width / 2) for width in size)
    return None
