"""From what was asked for to what will be done: all that can be checked before anything is written."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mjtrain.config import (
    DEFAULT_LEARNER,
    EnvConfig,
    ImitationConfig,
    LaunchConfig,
    LoggerName,
    PpoConfig,
    RunConfig,
    TrainConfig,
    to_plain,
)
from mjtrain.config.limits import find_option_problems
from mjtrain.config.plain import collect_functions, is_importable
from mjtrain.env.catalog import load_task, resolve_task_name
from mjtrain.launcher import LaunchPlan, find_hosts, make_plan
from mjtrain.learning.library import check_learner, find_library
from mjtrain.runs.bundle import WEIGHTS
from mjtrain.runs.bundle_places import PRETRAINED, has_pretrained
from mjtrain.runs.history import summarise_run
from mjtrain.runs.motion_places import list_places, name_place, resolve_motions, use_motion, with_place_names
from mjtrain.runs.resume import (
    FoundRun,
    check_urls,
    find_resumed_here,
    is_resumed,
    preview_run,
    resolve_learner,
    resolve_requeue,
)
from mjtrain.runs.robot import check_robot_file
from mjtrain.runs.run_dir import check_readable, name_run_dir
from mjtrain.runs.sources import find_copies
from mjtrain.runs.teacher import AUTO, find_missing_teacher, resolve_teacher
from mjtrain.runs.trained_run import drop_unused
from mjtrain.runtime.errors import RequestError, count, refuse, require
from mjtrain.runtime.files import find_file_problem
from mjtrain.runtime.machine import (
    available_memory,
    count_cores,
    count_gpus,
    free_gpu_memory,
    installed_packages,
    is_writable,
)
from mjtrain.sim.drawing.backend import drawing_environ
from mjtrain.sim.engines import resolve_engine
from mjtrain.training.metric_rules import find_rule_problems
from mjtrain.training.preflight.config_check import (
    check_config,
    find_mirrored_groups,
    find_training_problems,
    leave_out,
)
from mjtrain.training.preflight.load import check_actor, note_load, resolve_load
from mjtrain.training.preflight.network_check import check_before_training, find_network_problems, find_unread_groups
from mjtrain.training.preflight.run_size import (
    MemoryNeed,
    check_image_sizes,
    check_memory,
    choose_agent,
    default_num_envs,
    find_imitated,
    find_last_iteration,
    find_memory_need,
    find_uneven_batches,
    fit_to_ranks,
    resolve_run_size,
)

if TYPE_CHECKING:
    from mjtrain.training.preflight.dry_step import TaskSize


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A training that was checked against this machine; nothing is written yet."""

    config: TrainConfig
    """What to train, with totals resolved to what one rank does."""

    launch: LaunchConfig
    """Which processes, as asked for."""

    plan: LaunchPlan
    """Which processes, resolved; without the log folder, which depends on the run directory."""

    params: dict[str, Any] = field(default_factory=dict)
    """The MDP, the agent and the learner as plain values, by the file below params/ that records them."""

    motions: dict[str, str] = field(default_factory=dict)
    """Files of motions that are named by a place, by its name; see `runs.motion_places`."""

    requeued_job: str | None = None
    """Number of the Slurm job to queue again when it is stopped; None for none."""

    notices: tuple[str, ...] = ()
    """Lines that the user should see: what was chosen for them."""

    memory: MemoryNeed | None = None
    """What each rank needs; None where the robot is known only to the run that is resumed."""

    def fit_to_run(self, found: FoundRun) -> "TrainRequest":
        """Return the same with the iteration with which a run that is resumed ends, if it was asked for env steps.

        Raises:
            RequestError: A fault cannot happen in its iterations.
        """
        config, world_size = self.config, self.plan.world_size
        if config.run.total_env_steps is None or found.checkpoint is None:
            return self
        last = find_last_iteration(config, world_size, found.iteration, found.env_steps)
        config = replace(config, run=replace(config.run, max_iterations=last))
        refuse(find_training_problems(self.plan.faults, config, world_size))
        return replace(self, config=config)

    def describe(self, iterations_done: int | None = 0) -> str:
        """Say in a line what will run; None leaves out how much is left."""
        config, world_size = self.config, self.plan.world_size
        num_envs, num_steps = config.num_envs, config.agent.num_steps_per_env
        engine, learner = f"{resolve_engine(config.run.engine, self.plan.device)} engine", config.learner.name
        if not isinstance(config.env, EnvConfig):
            engine = config.env.label
        with_learner = "" if learner == DEFAULT_LEARNER else f", learner {learner}"
        per_iteration = world_size * num_envs * num_steps
        device = self.plan.device if world_size == 1 else self.plan.device.partition(":")[0]
        ranks = f"{count(world_size, 'rank')} on {device}"
        rollout = f"{count(num_envs, 'env')} x {count(num_steps, 'step')}"
        line = (
            f"{config.task}: {ranks} ({engine}{with_learner}) x {rollout} = "
            f"{count(per_iteration, 'env step')} per iteration"
        )
        if iterations_done is None:
            return line
        to_come = max(0, config.run.max_iterations - iterations_done)
        return f"{line}; {count(to_come, 'iteration')} left, {count(per_iteration * to_come, 'env step')} in total"

    def describe_learning(self, iterations_done: int = 0) -> str:
        """Say in a line with what each rank learns: what a task may choose by the kind of device."""
        agent, rank = self.config.agent, self.plan.ranks[0]
        words = [count(rank.num_threads, "thread")]
        if isinstance(agent.algorithm, PpoConfig) and self.config.learner.name == DEFAULT_LEARNER:
            epochs, batches = agent.algorithm.num_learning_epochs, agent.algorithm.num_mini_batches
            samples = self.config.num_envs * agent.num_steps_per_env // batches
            parts = f"{count(batches, 'mini-batch', 'mini-batches')} of {count(samples, 'sample')}"
            words.append(f"{count(epochs, 'epoch')} x {parts}")
            if (controller := find_imitated(self.config)) and not iterations_done:
                words.append(f"after imitating the controller {controller}")
        models = {"actor": agent.actor, "critic": agent.critic}
        if not isinstance(agent.algorithm, PpoConfig):
            del models["critic"]  # a teacher is in its place
        words += [f"{name} {'-'.join(map(str, model.hidden_dims))}" for name, model in models.items()]
        return f"each rank: {', '.join(words)}"


def resolve_training(config: TrainConfig, launch: LaunchConfig) -> TrainRequest:
    """Resolve a training against this machine without starting it. Only motions are fetched into the user's cache."""
    config = leave_out(use_motion(config))
    check_config(config, launch)
    config, job = _complete(config, launch)
    plan = _plan(config, launch)
    fitted = _fit_to_plan(TrainRequest(config=config, launch=launch, plan=plan, requeued_job=job))
    request = _check_task(_fetch_motions(_check_run(fitted)))
    recorded = {"env": with_place_names(fitted.config.env), "agent": request.config.agent}
    params = to_plain({**recorded, "learner": request.config.learner})
    for name, content in params.items():
        check_readable(name, content)
    # The run is recorded without keys in URLs; what they name was found before.
    asked = {field: getattr(request.config.run, field) for field in ("load", "load_critic", "teacher")}
    named = {field: name_place(place) for field, place in asked.items() if place is not None}
    return replace(request, config=replace(request.config, run=replace(request.config.run, **named)), params=params)


def _complete(config: TrainConfig, launch: LaunchConfig) -> tuple[TrainConfig, str | None]:
    """Fill in what other runs and the scheduler decide, and return the Slurm job to queue again if there is one."""
    config = resolve_learner(config)
    find_library(config.learner.name)  # raises if it is not installed
    refuse(find_rule_problems(config))  # which losses there are depends on the learner
    config, job = resolve_requeue(config, launch, os.environ)  # first, because it decides which run is resumed
    return resolve_teacher(config), job


def _plan(config: TrainConfig, launch: LaunchConfig) -> LaunchPlan:
    plan = make_plan(launch, hosts=find_hosts(launch, Path(config.run.log_root).absolute()))
    if isinstance(config.env, EnvConfig):
        return plan
    return replace(plan, heartbeat_floor_s=None)  # it may wait for something outside, such as a robot and its operator


def _fit_to_plan(request: TrainRequest) -> TrainRequest:
    config, plan, device = request.config, request.plan, request.plan.device
    if (chosen := choose_agent(config, device)) is not config:
        check_config(chosen, request.launch)
        config = chosen
    config, unused = _drop_unused(config)
    fitted = resolve_load(resolve_run_size(check_urls(config), plan.world_size, device))
    notices = (*plan.notices, *_note_teacher(fitted), *_note_num_envs(config, device), *_note_functions(fitted))
    return replace(request, config=fitted, notices=(*notices, *unused, *note_load(config, fitted)))


def _drop_unused(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """Remove what had no effect when the run that is resumed was started, and is refused today."""
    if config.run.resume is None or not isinstance(config.env, EnvConfig):
        return config, []
    env, lines = drop_unused(config.env)
    return (replace(config, env=env), lines) if lines and is_resumed(config) else (config, [])


def _check_run(request: TrainRequest) -> TrainRequest:
    config, plan, run = request.config, request.plan, request.config.run
    is_counted = not plan.faults or run.total_env_steps is None or not is_resumed(config)  # else by `fit_to_run`
    refuse(find_training_problems(plan.faults, config, plan.world_size, is_counted=is_counted))
    resolve_engine(run.engine, plan.device)
    name_run_dir(config)  # checks --run-name
    if run.logger not in get_args(LoggerName):
        from mjtrain.training.reporting.writer import load_log_writer

        load_log_writer(run.logger)
    if run.logger == "trackio":
        require("--logger trackio", "trackio", "trackio")
    if run.video:
        drawing_environ("cpu", os.environ)  # raises if something is missing
    if run.resume is None:  # a run that is resumed has its own copy
        check_robot_file(config.env.robot)
    uneven = list(find_uneven_batches(config, plan.world_size))
    problems = [] if uneven and is_resumed(config) else uneven  # it continues with what it has
    if run.profile is not None and run.max_iterations <= 2 * run.profile:
        steps = run.total_env_steps
        given = "--max-iterations is" if steps is None else f"--total-env-steps {steps} gives"
        wanted = f"{1 + 2 * run.profile} iterations"
        problems.append(f"--profile {run.profile}: needs {wanted}, and {given} {run.max_iterations}")
    refuse(problems)
    return _add_notices(request, check_learner(config, plan.world_size, plan.device))


def _fetch_motions(request: TrainRequest) -> TrainRequest:
    """Fetch what a run that is resumed has no copy of; a new run asks again for what was fetched before."""
    config = request.config
    if not any(list_places(config.env)):
        return request
    resumed = find_resumed_here(config)
    is_restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    kept = {} if resumed is None else find_copies(resumed)
    env, motions = resolve_motions(config.env, kept, again=not (is_restart or is_resumed(config)))
    lines = [f"motion {name}: read from {file}" for name, file in motions.items()]
    return _add_notices(request, lines, config=replace(config, env=env), motions=motions)


def _check_task(request: TrainRequest) -> TrainRequest:
    """Make two worlds of the task, and compare networks and memory with what they return."""
    config, plan = request.config, request.plan
    if not isinstance(config.env, EnvConfig):
        check_before_training(config.env, config.agent, config.num_envs)
        return request
    robot = config.env.robot
    if config.run.resume is not None and robot.spec is None and find_file_problem(Path(robot.file)):
        return request  # only the run has the robot
    from mjtrain.training.preflight.dry_step import NUM_ENVS, check_task  # imports MuJoCo

    check_image_sizes(config.env, NUM_ENVS, available_memory())
    mirrored = find_mirrored_groups(config.agent) if config.learner.name == DEFAULT_LEARNER else ()
    size = check_task(config.env, mirrored)
    doubts = (*size.warnings, *_find_odd_rollouts(config, size), *find_unread_groups(config.agent, config.env))
    refuse(find_network_problems(config.agent, size.shapes, config.num_envs))
    check_actor(config, size.shapes, size.num_actions)
    memory = find_memory_need(config, size, _find_available_memory(plan))
    check_memory(memory, config, plan.world_size)
    _check_memory_of_fewest(config, size, plan)
    return _add_notices(request, [f"warning: {doubt}" for doubt in doubts], memory=memory)


def _add_notices(request: TrainRequest, lines: Iterable[str], **changes: Any) -> TrainRequest:
    return replace(request, notices=(*request.notices, *lines), **changes)


def _check_memory_of_fewest(config: TrainConfig, size: "TaskSize", plan: LaunchPlan) -> None:
    """Check the ranks that failures may leave, which divide --num-envs-total among them."""
    fewest, total = plan.least_world_size, config.run.num_envs_total
    if total is None or fewest == plan.world_size:
        return
    config = fit_to_ranks(config, fewest, plan.device)[0]
    local_world_size = min(fewest, plan.ranks[0].local_world_size)
    need = find_memory_need(config, size, _find_available_memory(plan, local_world_size))
    check_memory(need, config, fewest, after_failures=True)


def _find_available_memory(plan: LaunchPlan, local_world_size: int | None = None) -> int | None:
    """Return the free bytes of the ranks' devices, for each rank; None where they cannot be asked from here."""
    if plan.hosts:
        return None
    first = plan.ranks[0]
    if first.device == "cpu":
        return available_memory() // (local_world_size or first.local_world_size)
    free = [free_gpu_memory(gpu) for gpu in plan.local_gpus(os.environ)]
    return min((count for count in free if count is not None), default=None)


def _find_odd_rollouts(config: TrainConfig, size: "TaskSize") -> Iterable[str]:
    """Yield a line if episodes are shorter than a rollout, and if mini-batches leave out samples."""
    agent = config.agent
    if size.episode_steps < agent.num_steps_per_env:
        steps = count(size.episode_steps, "env step")
        yield (
            f"--env.episode-length-s {config.env.episode_length_s:g}: an episode has {steps}, "
            f"fewer than a rollout (--agent.num-steps-per-env {agent.num_steps_per_env})"
        )
    samples = config.num_envs * agent.num_steps_per_env
    if isinstance(agent.algorithm, PpoConfig) and (left := samples % agent.algorithm.num_mini_batches):
        yield (
            f"--agent.algorithm.num-mini-batches {agent.algorithm.num_mini_batches}: does not divide the {samples:,} "
            f"samples of a rollout, so that each epoch leaves out {left}"
        )


def _note_teacher(config: TrainConfig) -> list[str]:
    """Say who teaches, where that was not chosen by the user."""
    algorithm = config.agent.algorithm
    if not isinstance(algorithm, ImitationConfig) or config.run.teacher not in (None, AUTO):
        return []
    missing = find_missing_teacher(config)
    if missing is not None:
        other = f"; --teacher {PRETRAINED} takes the pretrained policy instead" if has_pretrained(missing) else ""
        return [f"teacher: no run of {missing} below {config.run.log_root} is finished, so it is trained first{other}"]
    if algorithm.teacher_run == AUTO:
        return []
    return [f"teacher: {algorithm.teacher_run}{_tell_short_training(algorithm)}"]


def _tell_short_training(algorithm: ImitationConfig) -> str:
    """Say that a teacher was trained for fewer iterations than its task is by default; empty where it was not."""
    checkpoint = Path(algorithm.teacher_run)
    if checkpoint.name == WEIGHTS:  # a shared policy, which was chosen by its makers
        return ""
    number = checkpoint.stem.removeprefix("model_")
    try:
        is_of_task = summarise_run(checkpoint.parent).task == resolve_task_name(algorithm.teacher_task)
        usual = load_task(algorithm.teacher_task).max_iterations
    except (RequestError, OSError):  # the task, or its run, is gone; the weights are in the checkpoint that is resumed
        return ""
    is_short = is_of_task and number.isdigit() and int(number) < usual
    return f" (iteration {number}; {algorithm.teacher_task} trains for {usual} by default)" if is_short else ""


def _note_functions(config: TrainConfig) -> list[str]:
    """Say that a run needs functions that only this process has, and what follows from that."""
    functions = {path: func for path, func in collect_functions(config.env).items() if not is_importable(func)}
    if functions:
        with suppress(RequestError):  # of a task made in Python; other tasks get their functions when loaded
            theirs = to_plain(collect_functions(load_task(config.task).env))
            functions = {path: func for path, func in functions.items() if to_plain(func) != theirs.get(path)}
    if not functions:
        return []
    (path, func), *others = functions.items()
    more = f" and {len(others)} more" if others else ""
    return [
        f"env.{path} is {to_plain(func)}{more}, which other processes cannot import: only this process can play and "
        "export the run (functions at the top level of a module or of a task file can be imported everywhere)"
    ]


def _note_num_envs(asked: TrainConfig, device: str) -> list[str]:
    """Say that a GPU gets another default than the CPU."""
    run, here, on_cpu = asked.run, default_num_envs(asked, device), default_num_envs(asked, "cpu")
    if run.num_envs is not None or run.num_envs_total is not None or here == on_cpu:
        return []
    return [f"--num-envs is not given: {here:,} environments per GPU, this task's default ({on_cpu:,} on the CPU)"]


def preview(request: TrainRequest) -> dict[str, Any]:
    """Return a request as plain values, with the run directory that it would get now, and what this machine is like.

    Raises:
        RequestError: The run cannot be resumed, or no run can be made there, as when the training is started.
        StorageError: The storage cannot be reached, and what is there decides.
    """
    found = preview_run(request.config, has_rank_0=request.plan.mode != "hosts")
    request = request.fit_to_run(found)
    run, log_root = request.config.run, Path(request.config.run.log_root).absolute()
    is_uncounted = run.total_env_steps is not None and found.stored > 0  # how many env steps it has was not fetched
    return {
        "summary": [
            request.describe(None if is_uncounted else found.iteration),
            request.describe_learning(found.iteration),
        ],
        "notices": [*request.notices, *found.notices],
        "config": to_plain(request.config),
        "plan": to_plain(request.plan.for_run(found.run_dir)),
        "memory": None if request.memory is None else request.memory.to_plain(),
        "preflight": {
            "num_cores": count_cores(),
            "num_visible_gpus": count_gpus(),
            "log_root": str(log_root),
            "log_root_writable": is_writable(log_root),
            "packages": installed_packages(),
        },
    }


def with_options(run: RunConfig, options: dict[str, Any]) -> RunConfig:
    """Replace fields of a run by options that were given from Python."""
    known = list(RunConfig.__dataclass_fields__)
    for option in options:
        if option in LaunchConfig.__dataclass_fields__:
            raise RequestError(f"train() takes {option} in launch, as in train(…, launch=LaunchConfig({option}=…))")
        if option not in known:
            raise RequestError(f"train() has no option {option}; available: launch, env, agent, {', '.join(known)}")
    run = replace(run, **options)
    refuse(find_option_problems(run))
    return run
