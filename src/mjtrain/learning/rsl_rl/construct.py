"""RSL-RL's networks and algorithm, built for any device and backend, in the training loop."""

import contextlib
import copy
import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rsl_rl.algorithms import PPO
from rsl_rl.utils import resolve_callable, resolve_nn_activation

from mjtrain.config import (
    AgentConfig,
    DaggerConfig,
    ImitationConfig,
    PpoConfig,
    SymmetryConfig,
    merge_settings,
    to_plain,
)
from mjtrain.env.base import TaskEnv
from mjtrain.env.env import Env
from mjtrain.learning.loop import TrainingLoop
from mjtrain.learning.rsl_rl.algorithm import RslRlAlgorithm
from mjtrain.learning.rsl_rl.distillation import Distillation
from mjtrain.learning.rsl_rl.equivariant import EquivariantModel
from mjtrain.learning.rsl_rl.networks import OWN_MODELS, resolve_model
from mjtrain.learning.rsl_rl.symmetry import MirrorImages
from mjtrain.learning.rsl_rl.vec_env import VecEnvAdapter
from mjtrain.learning.rsl_rl.warm_start import imitate_controller
from mjtrain.runs.checkpoint import is_there
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext


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
            images = MirrorImages(env.env.make_mirror(), groups, env.device)
            _add_symmetry(wanted, config.algorithm.symmetry_cfg, images)
    wanted = merge_settings(wanted, copy.deepcopy(dict(settings)))  # RSL-RL writes into what it is given
    make: Any = resolve_callable(wanted["algorithm"]["class_name"])
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # RSL-RL prints its networks
            algorithm = make.construct_algorithm(env.get_observations(), env, wanted, context.device)
    except TypeError as error:
        if not settings:
            raise
        raise RequestError(f"--learner-config: RSL-RL says {error}") from error
    if isinstance(config.algorithm, DaggerConfig) and config.algorithm.clip_teacher:
        assert isinstance(env.env, Env), "others are refused before"
        algorithm.clip_teacher(*env.env.action_bounds)
    if isinstance(config.algorithm, ImitationConfig) and is_there(Path(config.algorithm.teacher_run)):
        algorithm.load_teacher(Path(config.algorithm.teacher_run))
    return algorithm


def _describe_ppo(plain: dict[str, Any]) -> dict[str, Any]:
    """Return networks and algorithm as RSL-RL's PPO calls them."""
    networks = {name: resolve_model(plain[name]) for name in ("actor", "critic")}
    algorithm = dict(plain["algorithm"])
    auxiliary = algorithm.pop("auxiliary_cfg")
    del algorithm["symmetry_cfg"], algorithm["warm_start"]
    if not algorithm["critic_iterations"]:
        del algorithm["critic_iterations"]  # which RSL-RL's own PPO does not know
    if auxiliary["group"]:
        networks["actor"]["auxiliary_cfg"] = auxiliary
        algorithm["auxiliary_coef"] = auxiliary["coef"]
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
    """Return networks, observation groups and algorithm as RSL-RL's distillation calls them."""
    known_here = ("teacher", "teacher_run", "teacher_task", "clip_teacher", "auxiliary_cfg")
    algorithm = {key: value for key, value in plain["algorithm"].items() if key not in known_here}
    student, groups = resolve_model(plain["actor"]), plain["obs_groups"]
    auxiliary = plain["algorithm"].get("auxiliary_cfg")
    if auxiliary is not None and auxiliary["group"]:
        student["auxiliary_cfg"] = auxiliary
        algorithm["auxiliary_coef"] = auxiliary["coef"]
    return {
        "student": student,
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
    """`learner.Learner` with RSL-RL's networks, storage and algorithm; the loop is that of all learning libraries.

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
