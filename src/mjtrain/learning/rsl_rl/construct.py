"""RSL-RL's networks and algorithm, built for any device and backend, in the training loop.

An actor may imitate a controller before PPO begins.
"""

import contextlib
import copy
import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.utils import resolve_callable, resolve_nn_activation
from tensordict import TensorDict

from mjtrain.config import (
    AgentConfig,
    DaggerConfig,
    ImitationConfig,
    PpoConfig,
    SymmetryConfig,
    WarmStartConfig,
    merge_settings,
    to_plain,
)
from mjtrain.env.base import TaskEnv
from mjtrain.env.env import Env
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.loop import TrainingLoop
from mjtrain.learning.rsl_rl.algorithm import RslRlAlgorithm
from mjtrain.learning.rsl_rl.distillation import Distillation
from mjtrain.learning.rsl_rl.networks import OWN_MODELS, list_groups, pack, resolve_model
from mjtrain.learning.rsl_rl.symmetry import EquivariantModel, MirrorImages
from mjtrain.runs.checkpoint import is_there
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext

_BATCH_SIZE = 1024
"""Samples of a mini-batch on each rank."""


class VecEnvAdapter(VecEnv):
    """Shows an environment to RSL-RL: groups as a TensorDict, terminated or truncated as dones and time_outs."""

    def __init__(self, env: TaskEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.num_actions = env.num_actions
        self.max_episode_length = env.max_episode_steps
        self.device = env.device
        self.cfg = {}
        self.step_dt = env.step_dt or 1.0  # RSL-RL multiplies RND rewards by it: where it is not known, by 1
        self.unwrapped = self  # RSL-RL asks it for step_dt

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Env steps since each episode began. Shape (num_envs,)."""
        return self.env.episode_step

    def get_observations(self) -> TensorDict:
        """Return the observation groups."""
        return pack(self.env.observe())

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Advance by one env step with actions of shape (num_envs, num_actions); rewards and dones: (num_envs,)."""
        observations, rewards, terminated, truncated = self.env.step(actions)
        return pack(observations), rewards, terminated | truncated, {"time_outs": truncated}


def make_algorithm(
    context: RankContext, env: VecEnvAdapter, config: AgentConfig, settings: Mapping[str, Any]
) -> PPO | Distillation:
    """Build networks, storage and algorithm as RSL-RL's own runner does.

    RSL-RL's runner insists on CUDA, NCCL and making the process group itself; here the context says who the ranks are.
    """
    _check_names(config)
    plain = to_plain(config)
    wanted: dict[str, Any] = {
        key: plain[key] for key in ("num_steps_per_env", "algorithm", "obs_groups", "torch_compile_mode")
    }
    ranks = {"global_rank": context.rank, "local_rank": context.local_rank, "world_size": context.world_size}
    wanted["multi_gpu"] = ranks if context.is_distributed else None
    if isinstance(config.algorithm, ImitationConfig):
        wanted |= _describe_distillation(plain)
    else:
        wanted |= _describe_ppo(plain)
        if config.algorithm.symmetry_cfg.is_used:
            groups = {group for name in ("actor", "critic") for group in config.obs_groups[name]}
            assert isinstance(env.env, Env), "others are refused before"
            others = config.obs_groups.get("rnd_state", ())  # RND does not learn from mirror images
            images = MirrorImages(env.env.make_mirror(), groups, env.device, others)
            _add_symmetry(wanted, config.algorithm.symmetry_cfg, images)
    auxiliary = plain["algorithm"].get("auxiliary_cfg")
    if auxiliary is not None and auxiliary["group"]:
        wanted["student" if isinstance(config.algorithm, ImitationConfig) else "actor"]["auxiliary_cfg"] = auxiliary
        wanted["algorithm"]["auxiliary_coef"] = auxiliary["coef"]
    wanted = merge_settings(wanted, copy.deepcopy(dict(settings)))  # RSL-RL writes into what it is given
    make: Any = resolve_callable(wanted["algorithm"]["class_name"])
    with contextlib.redirect_stdout(io.StringIO()):  # RSL-RL prints its networks
        algorithm = make.construct_algorithm(env.get_observations(), env, wanted, context.device)
    if isinstance(config.algorithm, DaggerConfig) and config.algorithm.clip_teacher:
        assert isinstance(env.env, Env), "others are refused before"
        algorithm.clip_teacher(*env.env.action_bounds)
    if isinstance(config.algorithm, ImitationConfig) and is_there(Path(config.algorithm.teacher_run)):
        algorithm.load_teacher(Path(config.algorithm.teacher_run))
    return algorithm


def _describe_ppo(plain: dict[str, Any]) -> dict[str, Any]:
    networks = {name: resolve_model(plain[name]) for name in ("actor", "critic")}
    algorithm = dict(plain["algorithm"])
    del algorithm["auxiliary_cfg"], algorithm["symmetry_cfg"], algorithm["warm_start"]
    if not algorithm["critic_iterations"]:
        del algorithm["critic_iterations"]  # which RSL-RL's own PPO does not know
    return {**networks, "algorithm": algorithm}


def _add_symmetry(wanted: dict[str, Any], symmetry: SymmetryConfig, images: MirrorImages) -> None:
    """Have PPO mirror samples, or actor and critic be their own mirror images."""
    if symmetry.use_equivariant_networks:
        for name in ("actor", "critic"):
            wanted[name] |= {"class_name": EquivariantModel, "mirror": images}
    if symmetry.mirrors_samples:
        wanted["algorithm"]["symmetry_cfg"] = {
            "use_data_augmentation": symmetry.use_data_augmentation,
            "use_mirror_loss": symmetry.use_mirror_loss,
            "mirror_loss_coeff": symmetry.mirror_loss_coeff,
            "data_augmentation_func": images,
        }


def _describe_distillation(plain: dict[str, Any]) -> dict[str, Any]:
    known_here = ("teacher", "teacher_run", "teacher_task", "clip_teacher", "auxiliary_cfg")
    algorithm = {key: value for key, value in plain["algorithm"].items() if key not in known_here}
    groups = plain["obs_groups"]
    return {
        "student": resolve_model(plain["actor"]),
        "teacher": resolve_model(plain["algorithm"]["teacher"]),
        "obs_groups": {"student": groups["actor"], "teacher": groups["teacher"]},
        "algorithm": algorithm,
    }


def _check_names(config: AgentConfig) -> None:
    named: list[tuple[str, str, Callable[[str], Any]]] = [
        ("algorithm.class-name", config.algorithm.class_name, resolve_callable)
    ]
    networks = {"actor": config.actor}
    if isinstance(config.algorithm, ImitationConfig):
        assert config.algorithm.teacher is not None, "runs.teacher.resolve_teacher fills it in"
        networks["algorithm.teacher"] = config.algorithm.teacher
    else:
        networks["critic"] = config.critic
    for name, model in networks.items():
        if model.class_name not in OWN_MODELS:
            named.append((f"{name}.class-name", model.class_name, resolve_callable))
        named.append((f"{name}.activation", model.activation, resolve_nn_activation))
        named.append((f"{name}.cnn-cfg.activation", model.cnn_cfg.activation, resolve_nn_activation))
        if model.distribution_cfg is not None:
            place = f"{name}.distribution-cfg.class-name"
            named.append((place, model.distribution_cfg.class_name, resolve_callable))
    for flag, value, resolve in named:
        try:
            resolve(value)
        except (ValueError, ImportError, AttributeError) as error:
            raise RequestError(f"--agent.{flag} {value}: {error}") from error


class Runner(TrainingLoop):
    """The training loop of all learning libraries, with RSL-RL's networks, storage and algorithm.

    With several ranks, the process group must be up.
    """

    def __init__(
        self,
        context: RankContext,
        env: TaskEnv,
        config: AgentConfig,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.env = VecEnvAdapter(env)
        """The environments as RSL-RL sees them."""
        self.alg = make_algorithm(context, self.env, config, settings)
        imitate = None
        if isinstance(config.algorithm, PpoConfig) and config.algorithm.warm_start.controller:
            assert isinstance(env, Env), "others are refused before"
            assert isinstance(self.alg, PPO)
            imitate = partial(imitate_controller, self.alg, env, config.algorithm.warm_start, context)
        algorithm = RslRlAlgorithm(context, self.alg, imitate)
        self.networks = algorithm.networks
        """Its networks by name, not compiled: actor, and critic or teacher."""
        super().__init__(context, env, algorithm, config.num_steps_per_env, "rsl_rl")


def imitate_controller(
    algorithm: PPO, env: Env, config: WarmStartConfig, context: RankContext, collectives: Collectives
) -> None:
    """Fit the actor's mean to the actions of a controller; every rank must call it.

    The worlds are stepped by the controller, and afterwards are as before. Gradients are averaged over ranks, so that
    all keep the same actor. Raises a FloatingPointError if an action, or what the actor sees, is not finite.
    """
    actor: Any = algorithm.get_policy()
    if actor.is_recurrent:
        raise RequestError(
            f"--agent.algorithm.warm-start.controller {config.controller}: a recurrent actor cannot imitate it; "
            "leave the controller out to begin with random weights"
        )
    heartbeat.beat("rollout", warming_up=True)
    before = env.state_dict()
    seen, wanted = [], []
    read = list_groups(actor)
    groups = [name for name, values in env.observe().items() if values.ndim == 2 or name in read]
    with torch.no_grad():
        for _ in range(config.num_steps):
            actions = env.controller(config.controller)
            seen.append(pack({name: env.observe()[name] for name in groups}).clone())
            wanted.append(actions)
            env.step(actions + config.noise * torch.randn_like(actions))
            heartbeat.beat()
    env.load_state_dict(before)
    env.forget_failures()
    observations: Any = torch.cat(seen)
    targets = torch.cat(wanted)
    del seen, wanted
    if not all(values.isfinite().all() for values in (targets, *observations.values())):
        raise FloatingPointError(f"--env.controllers.{config.controller}: its actions or observations are not finite")
    actor.update_normalization(observations)
    heartbeat.beat("update", warming_up=True)
    optimizer = torch.optim.Adam(actor.parameters(), lr=config.learning_rate)
    for _ in range(config.num_batches):
        batch = torch.randint(len(targets), (min(_BATCH_SIZE, len(targets)),), device=targets.device)
        optimizer.zero_grad()
        (actor(observations[batch]) - targets[batch]).square().mean().backward()
        if context.is_distributed:
            collectives.average_gradients(actor.parameters(), context.world_size)
        optimizer.step()
        heartbeat.beat()
