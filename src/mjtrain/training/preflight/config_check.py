"""What can be checked in a request without this machine and without the robot, faults to inject included."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from mjtrain.config import (
    AgentConfig,
    EnvConfig,
    ImitationConfig,
    LaunchConfig,
    ModelConfig,
    PpoConfig,
    SymmetryConfig,
    TrainConfig,
    VecEnvConfig,
)
from mjtrain.config.limits import AT_LEAST_1, find_option_problems, find_type_problems, show
from mjtrain.env.term_check import find_empty_parts, find_idle_settings, find_term_problems, find_unfit_names
from mjtrain.launcher.faults import PLACES, Fault
from mjtrain.runs.resume import is_resumed
from mjtrain.runs.storage.store import hide_query
from mjtrain.runtime.errors import RequestError, count, refuse, suggest

_SYMMETRY = "--agent.algorithm.symmetry-cfg"
_OPTIONAL = ("observations", "rewards", "terminations", "events", "commands", "successes", "curriculum", "controllers")
"""Kinds of terms that --without may name."""

_ONCE = ("start", "build")
"""Phases that a training has before its first iteration."""

_PHASES = (*_ONCE, "rollout", "update", "report", "evaluation", "save")
"""All phases of a training."""


def leave_out(config: TrainConfig) -> TrainConfig:
    """Return the config without the terms of --without, as if the task had never had them."""
    if not config.run.without:
        return config
    if not isinstance(config.env, EnvConfig):
        raise RequestError(f"--without {' '.join(config.run.without)}: {config.task} has no terms of mjtrain")
    terms = {kind: getattr(config.env, kind) for kind in _OPTIONAL}
    for name in config.run.without:
        terms = _drop(terms, name.removeprefix("env.").split("."), name)
    return replace(config, env=replace(config.env, **terms), run=replace(config.run, without=()))


def _drop(terms: Mapping[str, Any], path: list[str], name: str) -> dict[str, Any]:
    """Return nested terms without one; a word of its path may have - where the config has _."""
    known = {key.replace("-", "_"): key for key in terms}
    first, *rest = (word.replace("-", "_") for word in path)
    if first not in known:
        raise RequestError(f"--without {name}: the task has no {path[0]}{suggest(first, terms)}")
    inner = terms[known[first]]
    if not rest and isinstance(inner, Mapping):
        raise RequestError(f"--without {name}: give one of its terms, such as {name}.{next(iter(inner), 'NAME')}")
    if rest and not isinstance(inner, Mapping):
        raise RequestError(f"--without {name}: {path[0]} is a term; give {name.rpartition('.')[0]}")
    left = {key: value for key, value in terms.items() if key != known[first]}
    return {**terms, known[first]: _drop(inner, rest, name)} if rest else left


def check_config(config: TrainConfig, launch: LaunchConfig) -> None:
    """Check what needs neither this machine nor the robot: types, ranges, and names within the config."""
    own = config.env if isinstance(config.env, EnvConfig) else None
    problems = list(_find_unfit_settings(config) if own is None else find_term_problems(own))
    problems += [*find_type_problems(AgentConfig, config.agent, "--agent")]
    problems += find_type_problems(Annotated[int, AT_LEAST_1], config.default_num_envs, "num_envs of the task")
    problems += find_type_problems(
        Annotated[int | None, AT_LEAST_1], config.default_num_envs_gpu, "num_envs_gpu of the task"
    )
    problems += [*find_option_problems(config.run), *find_option_problems(launch)]
    is_requeued = launch.requeue_on_signal and config.run.resume == "auto"  # which loads only at the first start
    if config.run.resume is not None and config.run.load is not None and not is_requeued:
        load = hide_query(str(config.run.load))
        problems += [f"--load {load}: cannot be combined with --resume, which brings its own weights"]
    refuse([*problems, *_find_unused_critic(config)])
    if own is not None:
        names = [*find_empty_parts(own), *_find_unfit_parts(config, own), *_find_unnamed_groups(config.agent)]
        refuse([*names, *find_missing_groups(own.observations, config.agent)])
    refuse([*_find_unfit_networks(config.agent), *_find_missing_controller(config)])
    refuse(_find_symmetry_problems(config.agent))


def _find_unfit_parts(config: TrainConfig, env: EnvConfig) -> list[str]:
    """Return invalid names and idle settings, except those of a run that is resumed, which was trained with them."""
    found = [*find_unfit_names(env), *find_idle_settings(env)]
    return [] if found and is_resumed(config) else found


def _find_unfit_networks(agent: AgentConfig) -> Iterator[str]:
    if agent.actor.distribution_cfg is None and isinstance(agent.algorithm, PpoConfig):
        yield (
            "--agent.actor.distribution-cfg None: the actor draws its actions from a distribution; "
            "give ModelConfig(..., distribution_cfg=DistributionConfig())"
        )


def _find_unused_critic(config: TrainConfig) -> Iterator[str]:
    if (place := config.run.load_critic) is None:
        return
    flag = f"--load-critic {hide_query(str(place))}"
    if config.run.load is None:
        yield f"{flag}: needs --load, which names the policy"
    if not isinstance(config.agent.algorithm, PpoConfig):
        yield f"{flag}: {config.task} learns from a teacher, without a critic; leave it out"


def _find_missing_controller(config: TrainConfig) -> Iterator[str]:
    agent = config.agent
    if not isinstance(agent.algorithm, PpoConfig) or not (name := agent.algorithm.warm_start.controller):
        return
    flag = f"--agent.algorithm.warm-start.controller {name}"
    if name not in config.env.controllers:
        there = suggest(name, config.env.controllers, None if config.env.controllers else "it has none; leave it out")
        yield f"{flag}: the task has no controller of this name{there}"
    if agent.actor.class_name == "RNNModel":
        yield f'{flag}: a recurrent actor cannot imitate a controller; give it as "" to begin with random weights'


def _find_unfit_settings(config: TrainConfig) -> Iterator[str]:
    """Find what only environments with mjtrain's worlds can do."""
    assert not isinstance(config.env, EnvConfig)
    yield from find_type_problems(type(config.env), config.env, "--env")
    if isinstance(config.env, VecEnvConfig) and not hasattr(config.env.make, "__qualname__"):
        yield f"--env.make: is {show(config.env.make)}, which no run could record; give a function made with def"
        return
    label = config.env.label
    if isinstance(config.env, VecEnvConfig):
        try:
            given = {"num_envs": 1, "device": "cpu", "seed": 0, **config.env.kwargs}
            inspect.signature(config.env.make, follow_wrapped=False).bind(**given)
        except TypeError as error:
            yield f"--env.kwargs: {label}: {error}"
        except ValueError:  # a builtin may not tell its parameters
            pass
    if config.run.engine != "auto":
        yield f"--engine {config.run.engine}: {label} brings its own physics"
    if config.run.video:
        yield f"--video: {label} is an environment that mjtrain cannot render"
    if config.run.eval_interval:
        yield f"--eval-interval {config.run.eval_interval}: evaluates in worlds of mjtrain's own; use play for {label}"
    if find_mirrored_groups(config.agent):
        yield f"{_SYMMETRY}: {label} needs an mjtrain robot; this environment has none"
    if isinstance(config.agent.algorithm, ImitationConfig):
        yield f"--agent.algorithm: {label} cannot be distilled in; give PpoConfig"


def _find_unnamed_groups(agent: AgentConfig) -> Iterator[str]:
    """Yield the networks whose groups mjtrain must know, and that the agent leaves to RSL-RL to choose."""
    algorithm = agent.algorithm
    if isinstance(algorithm, ImitationConfig):
        names = ("actor",)
    else:
        names = ("actor", "critic") if algorithm.symmetry_cfg.is_used else ()
    for name in names:
        if name not in agent.obs_groups:
            yield f"--agent.obs-groups.{name}: is missing; name the groups that this network reads"


def find_missing_groups(observed: Collection[str], agent: AgentConfig) -> Iterator[str]:
    """Yield the groups that an agent reads and an environment does not observe."""
    for name, groups in agent.obs_groups.items():
        for group in groups:
            if group not in observed:
                yield f"--agent.obs-groups.{name} {group}: the environment observes {', '.join(observed)}"


def _find_symmetry_problems(agent: AgentConfig) -> Iterator[str]:
    """Yield a line for each setting of a symmetry that contradicts another one, or the networks."""
    algorithm = agent.algorithm
    if not isinstance(algorithm, PpoConfig) or not algorithm.symmetry_cfg.is_used:
        return
    symmetry, networks = algorithm.symmetry_cfg, {"actor": agent.actor, "critic": agent.critic}
    if symmetry.use_mirror_loss and not symmetry.mirror_loss_coeff > 0:
        yield f"{_SYMMETRY}.mirror-loss-coeff {symmetry.mirror_loss_coeff:g}: must be more than 0"
    if algorithm.auxiliary_cfg.group:
        yield (
            f"{_SYMMETRY}: cannot be combined with --agent.algorithm.auxiliary-cfg.group "
            f"{algorithm.auxiliary_cfg.group}, whose loss takes the place of a symmetry's; leave out one of them"
        )
    if symmetry.use_equivariant_networks:
        yield from _find_untied_networks(symmetry, networks)
        return
    for name, model in networks.items():
        if model.class_name == "RNNModel":
            yield (
                f"{_SYMMETRY}: RSL-RL mirrors no recurrent networks; --agent.{name}.class-name is RNNModel, give "
                "MLPModel"
            )


def _find_untied_networks(symmetry: SymmetryConfig, networks: dict[str, ModelConfig]) -> Iterator[str]:
    flag = f"{_SYMMETRY}.use-equivariant-networks"
    if symmetry.mirrors_samples:
        yield f"{flag}: learns nothing more from mirror images; leave out use-data-augmentation and use-mirror-loss"
    for name, model in networks.items():
        if model.class_name != "MLPModel":
            yield (
                f"{flag}: only an MLPModel can be tied so, and --agent.{name}.class-name is {model.class_name}; "
                "give --agent.algorithm.symmetry-cfg.no-use-equivariant-networks"
            )
        if any(width % 2 for width in model.hidden_dims):
            widths = " ".join(map(str, model.hidden_dims))
            yield f"--agent.{name}.hidden-dims {widths}: must be even, as the units of equivariant networks are paired"
        distribution = model.distribution_cfg
        if distribution is not None and distribution.class_name != "GaussianDistribution":
            yield (
                f"{flag}: --agent.{name}.distribution-cfg.class-name is {distribution.class_name}, "
                "and only the means of a GaussianDistribution can be mirrored"
            )


def find_mirrored_groups(agent: AgentConfig) -> tuple[str, ...]:
    """Return the observation groups of which a training needs the mirror images."""
    if not isinstance(agent.algorithm, PpoConfig) or not agent.algorithm.symmetry_cfg.is_used:
        return ()
    return tuple(dict.fromkeys(group for name in ("actor", "critic") for group in agent.obs_groups.get(name, ())))


def find_training_problems(
    faults: tuple[Fault, ...], config: TrainConfig, world_size: int, *, is_counted: bool = True
) -> Iterator[str]:
    """Yield why faults cannot happen to a training; without `is_counted`, its last iteration is not known yet."""
    for fault in faults:
        flag = f"--inject-fault {fault}"
        phases = PLACES.get(fault.kind, _PHASES)
        if fault.phase not in _PHASES:
            yield f"{flag}: a training has no phase {fault.phase}{suggest(fault.phase, _PHASES)}"
        elif fault.phase not in phases:
            yield f"{flag}: kind={fault.kind} happens in phase={' or phase='.join(phases)}"
        elif fault.kind == "disk-full" and fault.rank != 0:
            yield f"{flag}: only rank 0 writes checkpoints; give rank=0"
        elif fault.kind == "nan" and fault.phase == "rollout" and not isinstance(config.env, EnvConfig):
            yield f"{flag}: {config.env.label} has no worlds of mjtrain's; give phase=update"
        elif (fault.iteration or fault.step) and fault.phase in _ONCE:
            yield f"{flag}: phase={fault.phase} comes once, before the first iteration; leave out iteration and step"
        elif problem := (
            _find_step_problem(fault, config, world_size)
            or (_find_iteration_problem(fault, config) if is_counted else "")
        ):
            yield f"{flag}: {problem}"
        elif fault.phase == "evaluation" and not config.run.eval_interval:
            yield f"{flag}: needs evaluations; give --eval-interval too"


def _find_step_problem(fault: Fault, config: TrainConfig, world_size: int) -> str:
    steps = config.agent.num_steps_per_env
    if fault.step is None:
        return ""
    if fault.phase == "rollout" and fault.step > steps:
        return f"a rollout has {count(steps, 'step')} (--agent.num-steps-per-env)"
    if fault.phase == "report" or (fault.phase == "update" and world_size == 1):
        return f"phase={fault.phase} has no steps here; leave out step"
    return ""


def _find_iteration_problem(fault: Fault, config: TrainConfig) -> str:
    run, iteration, last = config.run, fault.iteration, config.run.max_iterations
    if iteration is None:
        return ""
    if iteration > last:
        return f"the run ends with iteration {last}"
    if fault.phase == "save":
        interval, may_be_best = config.agent.save_interval, bool(run.best_metric or run.eval_interval)
        if iteration % interval and iteration != last and not may_be_best:
            due = min(last, (iteration // interval + 1) * interval)
            return f"iteration {iteration} is not saved (--agent.save-interval {interval}); {due} is"
    if fault.phase == "evaluation" and run.eval_interval and iteration % run.eval_interval and iteration != last:
        due = min(last, (iteration // run.eval_interval + 1) * run.eval_interval)
        return f"iteration {iteration} is not evaluated (--eval-interval {run.eval_interval}); {due} is"
    return ""
