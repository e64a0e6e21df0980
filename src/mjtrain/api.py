"""What Python programs call: train, make environments, play, export, and load a policy."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from enum import Enum
from functools import partial
from numbers import Number
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.config import (
    AgentConfig,
    AnyEnvConfig,
    EngineName,
    EnvConfig,
    ImitationConfig,
    LaunchConfig,
    PlayConfig,
    RunConfig,
    TaskConfig,
    TrainConfig,
    to_plain,
)
from mjtrain.config.limits import MOST_INT, find_option_problems, is_whole, show, with_article
from mjtrain.env.catalog import CUSTOM, load_task, resolve_task_name, task_file
from mjtrain.launcher import LaunchRequest, NotSavedError, check_thread, launch, rendezvous, run_plan
from mjtrain.runs.bundle import WEIGHTS
from mjtrain.runs.claim import holds_claim
from mjtrain.runs.history import recorded_task
from mjtrain.runs.motion_places import resolve_motions
from mjtrain.runs.resume import find_resumed_here, requeue_when_stopped
from mjtrain.runs.robot import choose_robot, digest_robot
from mjtrain.runs.sources import list_term_code, measure, replace_data, with_digests
from mjtrain.runs.teacher import find_missing_teacher, find_teacher_to_resume, missing_teacher_error
from mjtrain.runs.trained_run import keep_functions
from mjtrain.runs.training_run import TrainingRun
from mjtrain.runs.trust import remember
from mjtrain.runtime.errors import RequestError, refuse
from mjtrain.runtime.event_log import end_recorded
from mjtrain.runtime.machine import count_cores
from mjtrain.runtime.rank import RankContext, check_seed
from mjtrain.runtime.standard_streams import write_to_stderr
from mjtrain.training.open_run import naming_last_checkpoint, open_run, report_restart, saved_iteration, tell
from mjtrain.training.preflight.run_size import default_num_envs
from mjtrain.training.request import TrainRequest, resolve_training, with_options

if TYPE_CHECKING:
    import torch

    from mjtrain.env.env import Env
    from mjtrain.evaluation.export.export_policy import ExportedPolicy
    from mjtrain.evaluation.playing.player import TrainedPolicy
    from mjtrain.gymnasium.vector_env import Autoreset, Output, TaskVectorEnv
    from mjtrain.runs.run import Run
    from mjtrain.runs.trained_run import TrainedRun
    from mjtrain.training.train_rank import TrainResult

    AnyRun = str | Path | Run | TrainResult

_MAY_DIFFER = ("log_root", "run_name", "resume", "load", "teacher", "motion", "learner_config", "logger", "wandb_")
"""Prefixes of settings of a run that may differ between hosts: rank 0's are used, or what they name is compared."""

_RUN_OPTIONS = ("resume", "load", "load_critic", "teacher")
"""Settings of a run that name another run."""


def train(task: str | Path | TaskConfig, *, launch: LaunchConfig | None = None, **options: Any) -> "TrainResult":
    """Train a policy.

    Args:
        task: Name of a task, path of a factory (see `catalog.load_task`), or a task itself.
        launch: Which ranks; by default the first visible GPU, or the CPU.
        **options: `env` and `agent` replace those of the task; anything else is a field of `RunConfig`, such as
            num_envs or max_iterations.

    Returns:
        Where the run lives, its last checkpoint and its last metrics.

    Raises:
        RequestError: The request is invalid; nothing was written.
        Exception: The first exception raised by any rank.
    """
    check_thread()  # before the task is loaded, which may draw random numbers
    return start_training(make_train_config(task, **options), LaunchConfig() if launch is None else launch)


def make_train_config(task: str | Path | TaskConfig, **options: Any) -> TrainConfig:
    """Complete a task to a run; arguments as those of `train`."""
    if isinstance(task, Path):
        task = str(task)
    if not isinstance(task, str | TaskConfig):
        raise RequestError(f"task: is {show(task)}; give the name of a task, the path of a factory or a TaskConfig")
    defaults = load_task(task) if isinstance(task, str) else task
    name = resolve_task_name(task) if isinstance(task, str) else defaults.name or CUSTOM
    agents = None if defaults.agent_gpu is None or "agent" in options else (defaults.agent, defaults.agent_gpu)
    env, agent = options.pop("env", defaults.env), options.pop("agent", defaults.agent)
    _check_env(env)
    _check_kind("agent", agent, AgentConfig)
    return TrainConfig(
        task=name,
        env=env,
        agent=agent,
        task_name=defaults.name,
        run=with_options(RunConfig(max_iterations=defaults.max_iterations), _to_plain_options(options)),
        default_num_envs=defaults.num_envs,
        default_num_envs_gpu=defaults.num_envs_gpu,
        default_agents=agents,
    )


def _check_kind(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise RequestError(f"{name}: is {show(value)}; give {with_article(kind.__name__)}")


def _check_env(env: Any) -> None:
    if not isinstance(env, AnyEnvConfig):
        wanted = "an EnvConfig, a GymnasiumConfig, a VecEnvConfig or an MjlabConfig"
        raise RequestError(f"env: is {show(env)}; give {wanted}")


def start_training(config: TrainConfig, launch: LaunchConfig) -> "TrainResult":
    """Train as configured and return what the main rank returns; raises as `train` does."""
    _check_kind("launch", launch, LaunchConfig)
    request = resolve_training(config, launch)
    if (missing := find_missing_teacher(request.config)) is not None:
        _train_teacher(missing, request)
        request = resolve_training(config, launch)
    group = rendezvous(request.plan, _describe_for_others(request) if request.plan.external else "")
    with requeue_when_stopped(request.requeued_job if group.leads else None), ExitStack() as stack:

        def decide(previous: dict[str, Any] | None) -> dict[str, Any]:
            last = None if previous is None else TrainingRun.from_plain(previous)
            return stack.enter_context(open_run(request, last)).to_plain()

        run = TrainingRun.from_plain(group.agree(decide))
        keep_functions(run.record, request.config.env)
        if group.leads:
            remember(recorded_task(run.record), request.config.env, request.config.agent)
        is_ours = partial(holds_claim, run.run_dir, run.session)
        end = stack.enter_context(end_recorded(run.run_dir, is_ours)) if group.leads else {}
        config, run = _with_copies(request, run)
        plan = request.plan.for_run(run.run_dir, restarts=int(run.restarted))
        with naming_last_checkpoint(run.run_dir):
            launched = LaunchRequest(
                plan=plan,
                fn=_train_rank,
                args=(config, run),
                crash_dir=run.run_dir / "crash",
                preload=("mjtrain.training.train_rank",),
                on_restart=partial(report_restart, run, plan.max_restarts),
                on_not_saved=partial(_record_not_saved, run.run_dir, request.requeued_job) if group.leads else None,
                saved_progress=partial(saved_iteration, run.run_dir),
            )
            result = run_plan(launched, group)
        if result.ended_by is not None:
            end["because"] = result.ended_by
        return result


def _train_teacher(task: str, request: TrainRequest) -> None:
    """Train the task of a student's teacher, or continue a training of it that was interrupted."""
    if request.plan.mode not in ("in_process", "spawn"):
        raise missing_teacher_error(task, request.config.run.log_root, "a job on several hosts")
    write_to_stderr(f"{request.config.task} learns from a run of {task}, which is trained first")
    run = request.config.run
    names = [field.name for field in fields(run) if field.name.startswith("wandb_") and field.name != "wandb_name"]
    options = {name: getattr(run, name) for name in ("log_root", "logger", "engine", *names)}
    train(task, launch=request.launch, resume=find_teacher_to_resume(task, run.log_root), **options)


def _record_not_saved(run_dir: Path, requeued_job: str | None, error: NotSavedError) -> None:
    """Do what `start_training` does where the error leaves it, in a process that is about to end."""
    with suppress(SystemExit), requeue_when_stopped(requeued_job), ExitStack() as stack:
        stack.enter_context(end_recorded(run_dir))
        stack.enter_context(naming_last_checkpoint(run_dir))
        raise error


def _with_copies(request: TrainRequest, run: TrainingRun) -> tuple[TrainConfig, TrainingRun]:
    """Replace the files of robot and motions by the run's copies of them, if there are some to use instead."""
    env, fetched = request.config.env, request.motions
    if not isinstance(env, EnvConfig):
        return request.config, run
    if run.robot is not None:
        env = replace(env, robot=replace(env.robot, file=run.robot))
    # The first host's cache may have another path.
    motions = {name: file if Path(file).is_file() else fetched[name] for name, file in run.motions.items()}
    if motions:
        env = replace_data(env, {fetched[name]: file for name, file in motions.items()})
    return replace(request.config, env=env), replace(run, motions=motions)


def _describe_for_others(request: TrainRequest) -> str:
    """Return, in lines, what must be the same on every node or rank of a job that something else has started."""
    motions = {name: measure(Path(file))[0] for name, file in request.motions.items()}
    agent = request.config.agent
    algorithm = agent.algorithm
    if isinstance(algorithm, ImitationConfig):  # below the log root, or a cache in which it may not be yet
        place = "/".join(Path(algorithm.teacher_run).parts[-2:])
        agent = replace(agent, algorithm=replace(algorithm, teacher_run=place))
    run = {key: value for key, value in to_plain(request.config.run).items() if not key.startswith(_MAY_DIFFER)}
    env, robot = with_digests(request.params["env"]), request.config.env.robot
    resumed = find_resumed_here(request.config)
    if resumed is not None:
        with suppress(RequestError):  # said later, by what opens the run
            robot, _ = choose_robot(resumed, robot)  # the run has a copy, which only some hosts may need
    if robot is not None and (digest := digest_robot(robot)):
        env["robot"]["file"] = f"a robot whose files have the digest {digest[:12]}"
    same = {**request.params, "env": env, "agent": to_plain(agent), "run": run, "motions": motions}
    files = list_term_code(request.config.env, task_file(request.config.task))
    code = [f"the code {label}: {with_digests(path)}" for label, path in sorted(files.items())]
    plan = request.plan
    ranks = f"ranks on {'the CPU' if plan.ranks[0].device == 'cpu' else 'GPUs'}, and --backend {plan.backend}"
    # Learner and devices come first because most of the others follow from them.
    return "\n".join([f"--learner {request.config.learner.name}", ranks, json.dumps(same, indent=1), *code])


def _train_rank(context: RankContext, config: TrainConfig, run: TrainingRun) -> "TrainResult":
    from mjtrain.runtime.worker import same_random_numbers

    # A separate process has imported it before the seed, and rich draws from Python's generator as it is imported.
    with same_random_numbers(context.device):
        from mjtrain.training.train_rank import train_rank  # seconds of imports, which only a rank needs

    return train_rank(context, config, run)


def make_env(
    task: str | Path | TaskConfig,
    *,
    num_envs: int | None = None,
    engine: EngineName = "auto",
    device: "str | torch.device" = "cpu",
    seed: int = 0,
    num_threads: int | None = None,
) -> "Env":
    """Make the environments of a task, as a training would on one rank.

    Args:
        task: Name of a task, path of a factory, or a task itself.
        num_envs: Worlds. Default: the task's number for this device.
        engine: Physics engine. auto: native on the CPU, warp on a GPU.
        device: Torch device of all tensors: "cpu", or such as "cuda:0".
        seed: Seed of everything random in the environments.
        num_threads: CPU threads of the native engine and of the cameras. Default: the usable cores.

    Returns:
        The environments, started. `observe()` returns observations by group, shape (num_envs, size) each;
        `step(action)` takes actions, shape (num_envs, num_actions), and returns observations, rewards, terminated and
        truncated.

    Raises:
        RequestError: The task, the robot or the engine do not fit.
    """
    return _make_worlds(make_train_config(task, engine=engine), num_envs, device, num_threads, seed)


def _make_worlds(
    config: TrainConfig, num_envs: int | None, device: "str | torch.device", num_threads: int | None, seed: int
) -> "Env":
    import torch

    from mjtrain.runtime.worker import torch_defaults
    from mjtrain.training.train_rank import make_env as make_worlds

    device = _read_device(device)
    size = default_num_envs(config, device) if num_envs is None else num_envs
    threads = count_cores() if num_threads is None else num_threads
    for name, number, least in (("num_envs", size, 1), ("num_threads", threads, 1), ("seed", seed, 0)):
        _check_whole(name, number, least)
    if index(size) > MOST_INT:
        raise RequestError(f"num_envs {size}: must be at most {MOST_INT}")
    config = replace(config, env=resolve_motions(config.env)[0], run=replace(config.run, num_envs=index(size)))
    check_seed("seed", seed)
    with torch_defaults(), torch.inference_mode(False):  # worlds that are used outside such a block, too
        return make_worlds(RankContext(device=device, seed=index(seed), num_threads=index(threads)), config)


def _check_whole(name: str, number: Any, least: int) -> None:
    if not is_whole(number) or index(number) < least:
        raise RequestError(f"{name} {number}: must be a whole number, at least {least}")


def _read_device(device: "str | torch.device") -> str:
    import torch

    try:
        found = torch.device(device)
        if found.type not in ("cpu", "cuda"):
            raise RequestError(f'device {device}: is not supported; give "cpu", or an NVIDIA GPU such as "cuda:0"')
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:  # the second where PyTorch was built without CUDA
        raise RequestError(f"device {device}: {str(error).splitlines()[0]}") from error
    return "cpu" if found.type == "cpu" else str(found)  # Warp has no index for the CPU


def make_vec(
    task: str | Path | TaskConfig,
    num_envs: int | None = None,
    *,
    groups: str | Sequence[str] | None = None,
    output: "Output" = "numpy",
    autoreset_mode: "Autoreset" = "SameStep",
    render_mode: str | None = None,
    engine: EngineName = "auto",
    device: "str | torch.device" = "cpu",
    seed: int = 0,
    num_threads: int | None = None,
) -> "TaskVectorEnv":
    """Make the environments of a task as a `gymnasium.vector.VectorEnv`; needs gymnasium.

    Args:
        task: Name of a task, path of a factory, or a task itself.
        num_envs: Worlds. Default: the task's number for this device.
        groups: Observation groups: one by its name, which is observed as an array, or several, as a dictionary.
            Default: those that the task's policy reads.
        output: numpy: arrays on the CPU. torch: tensors on the device.
        autoreset_mode: SameStep: a world whose episode ends is reset in the same step, which tells its last observation
            in infos["final_obs"]. NextStep: in the following one, as wrappers of Gymnasium that change observations
            need it.
        render_mode: rgb_array: `render()` returns a picture of each world.
        engine: Physics engine. auto: native on the CPU, warp on a GPU.
        device: Torch device of the worlds: "cpu", or such as "cuda:0".
        seed: Seed of everything random until `reset(seed=...)`.
        num_threads: CPU threads of the native engine and of the cameras. Default: the usable cores.

    Raises:
        RequestError: gymnasium is missing; or the task, the engine, the groups or a mode do not fit.
    """
    from mjtrain.gymnasium.vector_env import TaskVectorEnv

    config = make_train_config(task, engine=engine)
    read = config.agent.obs_groups.get("actor", ())
    return TaskVectorEnv(
        partial(_make_worlds, config, num_envs, device, num_threads),
        seed,
        groups=groups if groups is not None else read[0] if len(read) == 1 else read,
        output=output,
        autoreset_mode=autoreset_mode,
        render_mode=render_mode,
    )


def play(
    run: "AnyRun | TaskConfig", *, env: EnvConfig | None = None, trust: bool = False, **options: Any
) -> dict[str, Any]:
    """Play whole episodes with a trained policy and measure them, as the command `play` does.

    Args:
        run: What to play: a run (its directory, a `Run`, or what `train` returned); a task by its name or path, for its
            newest run; or a task itself, with policy="zero" or "random", or with a checkpoint.
        env: Environment to play in. Default: that of the run, without noise, pushes and randomization.
        trust: Whether any code that the run names may run; only for a run whose maker you trust.
        **options: Fields of `PlayConfig`, such as episodes, num_envs, seed, policy, noise, pushes, randomization,
            checkpoint or log_root.

    Returns:
        What the command prints, as plain values: task, policy, checkpoint, iteration, num_envs, episodes_per_env, seed,
        engine, noise, pushes, randomization, step_dt_s, episodes; reward, length (env steps), reward_terms, errors and
        estimates as mean, std, min, max and unit; successes likewise, with their measure (end, ever or count);
        terminations as episodes and fraction; where a command follows a motion, by_time. With sim_to_sim, see
        `tools.sim_to_sim.compare_simulators`.

    Raises:
        RequestError: The run or the option does not exist, or the checkpoint does not fit.
    """
    from mjtrain.evaluation.playing import evaluate

    config = _with_play_options({**options, **({"trust_run": True} if _is_trusted(run, trust) else {})})
    if isinstance(run, TaskConfig):
        _check_env(run.env)
        found = evaluate.find_task_to_play(run, config)
    else:
        found = evaluate.find_run_to_play(_place(run), config)
    if env is not None:
        _check_env(env)
        found = evaluate.with_other_env(found, env)
    tell(*found.notices, *evaluate.find_values_beyond(found, config))
    return measure_run(found, config)


def measure_run(run: "TrainedRun", config: PlayConfig) -> dict[str, Any]:
    """Play a run that was found, in this process; returns as `play` does."""
    from mjtrain.runtime.worker import torch_defaults

    if config.sim_to_sim is None:
        from mjtrain.evaluation.playing.evaluate import measure as play_it
    else:
        from mjtrain.tools.sim_to_sim import check
        from mjtrain.tools.sim_to_sim import compare_simulators as play_it

        check(run, config)
    with torch_defaults():
        return launch(play_it, run, config, launch=play_launch(config))


def play_launch(config: PlayConfig) -> LaunchConfig:
    """Return where `play` runs; more than one GPU is refused."""
    if (isinstance(config.gpu_ids, tuple) and len(config.gpu_ids) > 1) or config.gpu_ids == "all":
        words = config.gpu_ids if isinstance(config.gpu_ids, str) else " ".join(map(str, config.gpu_ids))
        raise RequestError(f"--gpu-ids {words}: play uses one GPU, such as --gpu-ids 0, or None")
    return LaunchConfig(gpu_ids=config.gpu_ids, seed=config.seed, num_threads=config.num_threads)


def export(
    run: "AnyRun",
    *,
    checkpoint: str | Path | None = None,
    out: str | Path | None = None,
    observations: int = 1000,
    log_root: str | Path = "logs",
    trust: bool = False,
) -> "ExportedPolicy":
    """Write a trained policy as ONNX and TorchScript, and check that the files give the actions of the policy.

    Args:
        run: A run (its directory, a `Run`, what `train` returned, or the place of a shared policy), or a task by its
            name or path for its newest run.
        checkpoint: File, its name in the run, or "best". Default: the newest valid one.
        out: Folder for the files. Default: export in the run directory; a shared policy needs one.
        observations: Number of recorded observations on which the files must agree with the policy.
        log_root: Folder below which runs live.
        trust: Whether any code that the run names may run; only for a run whose maker you trust.

    Returns:
        The files, and how much the actions differ.

    Raises:
        RequestError: The run does not exist, it cannot be exported, or a library is missing.
        RuntimeError: A file gives other actions than the policy; nothing was written.
    """
    from mjtrain.evaluation.export.export_policy import export_policy, find_run_to_export
    from mjtrain.runtime.worker import torch_defaults

    _check_whole("--observations", observations, 1)
    if not isinstance(out, str | Path | None):
        raise RequestError(f"--out: is {show(out)}; give a folder")
    name = None if checkpoint is None else str(checkpoint)
    found = find_run_to_export(_place(run), name, str(log_root), trust=_is_trusted(run, trust))
    tell(*found.notices)
    assert found.checkpoint is not None
    if out is None and found.checkpoint.name == WEIGHTS:
        raise RequestError("--out: give a folder for the files, because a shared policy is not a run directory")
    folder = found.checkpoint.parent / "export" if out is None else Path(out)
    with torch_defaults():
        return launch(export_policy, found, folder.absolute(), observations, launch=LaunchConfig(gpu_ids=None))


def load_policy(
    run: "AnyRun",
    *,
    checkpoint: str | Path | None = None,
    log_root: str | Path = "logs",
    device: "str | torch.device" = "cpu",
    trust: bool = False,
) -> "TrainedPolicy":
    """Load a trained policy as a function of observations.

    Args:
        run: A run (its directory, a `Run`, what `train` returned, or the place of a shared policy), or a task by its
            name or path for its newest run.
        checkpoint: File, its name in the run, or "best". Default: the newest valid one.
        log_root: Folder below which runs live.
        device: Torch device on which it is evaluated: "cpu", or such as "cuda:0".
        trust: Whether any code that the run names may run; only for a run whose maker you trust.

    Returns:
        policy(observations) -> actions, for tensors of torch and arrays of numpy; see `TrainedPolicy`.

    Raises:
        RequestError: The run or the device does not exist, or the checkpoint does not fit.
    """
    from mjtrain.evaluation.playing.player import TrainedPolicy
    from mjtrain.runs.trained_run import find_trained_run
    from mjtrain.runtime.worker import same_random_numbers, torch_defaults

    name = None if checkpoint is None else str(checkpoint)
    found = find_trained_run(_place(run), checkpoint=name, log_root=str(log_root), trust=_is_trusted(run, trust))
    tell(*found.notices)
    device = _read_device(device)
    with torch_defaults(), same_random_numbers(device):
        return TrainedPolicy(found, device)


def _is_trusted(run: Any, trust: bool) -> bool:
    return trust or bool(getattr(run, "trust", False))


def _place(run: "AnyRun") -> str:
    place = run if isinstance(run, str | Path) else _directory_of(run)
    if place is None:
        raise RequestError(f"run: is {show(run)}; give a run directory, a Run, what train returned, or a task's name")
    return str(place)


def _directory_of(value: Any) -> Path | None:
    """Return the directory of a `Run` or of what `train` returned; None of anything else."""
    return getattr(value, "run_dir", None) or getattr(value, "path", None)


def _with_play_options(options: dict[str, Any]) -> PlayConfig:
    others = {"run", "viewer", "viewer_host", "viewer_port", "follow", "replay", "json", "video", "video_length_s"}
    others |= {"html", "html_episodes", "html_length_s", "record", "record_format"}
    known = [name for name in PlayConfig.__dataclass_fields__ if name not in others]
    for option in options:
        if option not in known:
            raise RequestError(f"play() has no option {option}; available: env, {', '.join(known)}")
    config = PlayConfig(**_to_plain_options(options))
    refuse(find_option_problems(config))
    return config


def _to_plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return paths and runs as strings, and enumerations and numbers of numpy as plain values, which files need."""

    def is_plain(value: Any) -> bool:
        return not isinstance(value, Path | Enum) and not (isinstance(value, Number) and hasattr(value, "tolist"))

    places = {name: _directory_of(options[name]) for name in options.keys() & _RUN_OPTIONS}
    given = options | {name: place for name, place in places.items() if place is not None}
    return {name: value if is_plain(value) else to_plain(value) for name, value in given.items()}
