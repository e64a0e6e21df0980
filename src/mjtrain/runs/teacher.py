"""The teacher of a student: its network and groups come from its run, its weights from a checkpoint there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mjtrain.config import DEFAULT_LEARNER, AgentConfig, EnvConfig, ImitationConfig, RunConfig, TrainConfig, to_plain
from mjtrain.env.catalog import load_task, resolve_task_name
from mjtrain.runs.bundle import WEIGHTS
from mjtrain.runs.bundle_places import PRETRAINED, has_pretrained, is_place, open_bundle
from mjtrain.runs.checkpoint import find_valid_checkpoint, hold_checkpoint, require_checkpoint
from mjtrain.runs.history import RunSearch, find_runs, summarise_run
from mjtrain.runs.motion_places import name_place
from mjtrain.runs.resume import find_resumed_here, is_of_learner, is_resumed
from mjtrain.runs.run_dir import load_params, parse_agent, read_learner, read_params, read_recorded
from mjtrain.runs.storage.store import hide_query
from mjtrain.runs.trained_run import is_run
from mjtrain.runs.trust import check_teacher
from mjtrain.runtime.errors import RequestError, require

_FLAG = "--agent.algorithm.teacher-run"

_UNITS = ("scale", "history", "offset", "from_home", "relative")
"""Fields of terms. The meaning of the numbers that a teacher reads and gives depends on them."""

AUTO = "auto"
"""As the teacher's run: the newest finished run of the teacher's task."""


def resolve_teacher(config: TrainConfig) -> TrainConfig:
    """Fill in what a student needs to know of its teacher; other configs stay as they are.

    Returns:
        The same with the teacher's checkpoint, network and observation groups. A run that is resumed has the weights in
        its own checkpoint, and takes the rest from what it recorded where the teacher's run is gone. If the teacher is
        to be found and its task has no finished run, its run stays "auto"; `find_missing_teacher` names the task.
    """
    agent, algorithm = config.agent, config.agent.algorithm
    asked = config.run.teacher
    if not isinstance(algorithm, ImitationConfig):
        if asked is not None:
            raise RequestError(
                f"--teacher {hide_query(asked)}: {config.task} does not learn from a teacher; leave it out"
            )
        return config
    if asked is not None:
        algorithm = replace(algorithm, teacher_run=asked)
        config = replace(config, agent=(agent := replace(agent, algorithm=algorithm)))
    place = Path(algorithm.teacher_run).absolute()
    is_shared = algorithm.teacher_run == PRETRAINED or (algorithm.teacher_run != "" and is_place(algorithm.teacher_run))
    is_gone = algorithm.teacher_run in ("", AUTO) or is_shared or not place.exists()
    resumed = find_resumed_here(config)
    if is_gone and (recorded := _read_recorded(config, resumed)) is not None:
        asked_before = None if resumed is None else read_recorded(resumed, "run").get("teacher")
        if asked is not None and asked != AUTO and asked_before not in (asked, name_place(asked)):
            _check_same(asked, _open_shared(algorithm) if is_shared else place, recorded)
        groups = _groups_of(recorded, "teacher", resumed)
        return replace(config, agent=_with_teacher(agent, recorded.algorithm, groups))
    if algorithm.teacher_run == AUTO:
        run_dir = _find_finished_run(algorithm.teacher_task, config.run.log_root)
        if run_dir is None:
            return _with_untrained_teacher(config, algorithm)
        algorithm = replace(algorithm, teacher_run=str(run_dir))
        config = replace(config, agent=(agent := replace(agent, algorithm=algorithm)))
        place = run_dir
    elif is_shared:
        place = _open_shared(algorithm)
    given = hide_query(algorithm.teacher_run)
    checkpoint = _find_checkpoint(given, place)
    if checkpoint.name != WEIGHTS:
        hold_checkpoint(checkpoint)  # a training that still writes there may delete it before it is read
    if asked is not None and (recorded := _read_recorded(config, resumed)) is not None:
        _check_same(asked, checkpoint, recorded)
    theirs = load_params(checkpoint.parent, "env")
    if (learner := read_learner(checkpoint.parent).name) != DEFAULT_LEARNER:
        raise RequestError(f"{_FLAG} {given}: was learned with {learner}; give a run of rsl_rl")
    try:
        taught = parse_agent(load_params(checkpoint.parent, "agent"))
    except ValueError as error:
        raise RequestError(f"{_FLAG} {given}: {error}") from error
    if algorithm.teacher is None:
        check_teacher(checkpoint.parent, taught.actor)
    known = replace(algorithm, teacher_run=str(checkpoint), teacher=algorithm.teacher or taught.actor)
    agent = _with_teacher(agent, known, _groups_of(taught, "actor", given))
    _check_terms(config, agent, theirs, taught)
    return replace(config, agent=agent)


def find_missing_teacher(config: TrainConfig) -> str | None:
    """Return the task that must be trained before a student can learn; None if there is a teacher, or none needed.

    A run that is resumed has the teacher's weights in its checkpoint.
    """
    algorithm = config.agent.algorithm
    if not isinstance(algorithm, ImitationConfig) or algorithm.teacher_run != AUTO:
        return None
    return algorithm.teacher_task if config.run.resume in (None, "auto") else None


def name_teacher(config: TrainConfig, tool: str) -> list[str]:
    """Return the flag of `train` that names the teacher which a config is to find, for trainings below other log roots.

    A tool that starts them does not train a teacher: without a finished one, a RequestError names the command.
    """
    algorithm = config.agent.algorithm
    if not isinstance(algorithm, ImitationConfig) or (config.run.teacher or algorithm.teacher_run) != AUTO:
        return []
    run_dir = _find_finished_run(algorithm.teacher_task, config.run.log_root)
    if run_dir is None:
        raise missing_teacher_error(algorithm.teacher_task, config.run.log_root, tool)
    return ["--teacher", str(run_dir)]


def missing_teacher_error(task: str, log_root: str, who: str) -> RequestError:
    """Return the error for a student whose teacher is missing, where `who` does not train the teacher."""
    other = f", or give --teacher {PRETRAINED}" if has_pretrained(task) else ""
    return RequestError(
        f"--teacher {AUTO}: no run of {task} below {log_root} is finished, and {who} does not train it; "
        f"run `mjtrain train {task}` first{other}"
    )


def find_teacher_to_resume(task: str, log_root: str) -> str | None:
    """Return what the training of a teacher resumes: auto, or None where auto finds runs of other learners only."""
    defaults, run = load_task(task), RunConfig(log_root=log_root, resume=AUTO)
    name, env, agent = resolve_task_name(task), defaults.env, defaults.agent
    found = find_resumed_here(TrainConfig(task=name, env=env, agent=agent, run=run, task_name=defaults.name))
    return AUTO if found is None or is_of_learner(found, DEFAULT_LEARNER) else None


def _find_finished_run(task: str, log_root: str) -> Path | None:
    """Return the newest run of a task that has all its iterations, and that can teach."""
    if not task:
        raise RequestError(f"{_FLAG} {AUTO}: the task names no task of its teacher; give a run, or teacher_task")
    search = RunSearch.for_task(resolve_task_name(task), log_root)
    return next((run_dir for run_dir in find_runs(search) if _can_teach(run_dir)), None)


def _can_teach(run_dir: Path) -> bool:
    """Whether a run is finished, has a valid checkpoint and was learned with RSL-RL."""
    try:
        is_done = summarise_run(run_dir).state == "done"
    except ValueError:  # its record is damaged, which RequestError is too
        return False
    return is_done and is_of_learner(run_dir, DEFAULT_LEARNER) and find_valid_checkpoint(run_dir)[0] is not None


def _with_untrained_teacher(config: TrainConfig, algorithm: ImitationConfig) -> TrainConfig:
    task = load_task(algorithm.teacher_task)
    known = replace(algorithm, teacher=algorithm.teacher or task.agent.actor)
    agent = _with_teacher(config.agent, known, _groups_of(task.agent, "actor", algorithm.teacher_task))
    _check_terms(config, agent, to_plain(task.env), task.agent)
    return replace(config, agent=agent)


def _groups_of(agent: AgentConfig, network: str, place: object) -> tuple[str, ...]:
    """Return the groups that a network of a teacher's task or run reads, or of the student's recorded run."""
    if network not in agent.obs_groups:
        raise RequestError(f"{_FLAG} {place}: obs_groups of its agent has no {network}; add it")
    return agent.obs_groups[network]


def _with_teacher(agent: AgentConfig, known: Any, groups: tuple[str, ...]) -> AgentConfig:
    """Set the teacher of an agent; groups that are given count more than those of its run."""
    assert isinstance(agent.algorithm, ImitationConfig)
    teacher = agent.algorithm.teacher or known.teacher
    algorithm = replace(agent.algorithm, teacher_run=known.teacher_run, teacher=teacher)
    return replace(agent, algorithm=algorithm, obs_groups={"teacher": groups, **agent.obs_groups})


def _read_recorded(config: TrainConfig, resumed: Path | None) -> AgentConfig | None:
    """Return what the run that is resumed recorded, if it is here and of a distillation."""
    if resumed is None:
        return None
    content = read_params(resumed, "agent")
    try:
        recorded = parse_agent(content) if content else None
    except ValueError:
        return None
    if recorded is None or not isinstance(recorded.algorithm, ImitationConfig):
        return None
    assert isinstance(config.agent.algorithm, ImitationConfig)
    if config.agent.algorithm.teacher is None:
        check_teacher(resumed, recorded.algorithm.teacher)
    return recorded


def _check_same(asked: str, found: Path, recorded: AgentConfig) -> None:
    """Refuse a teacher other than that of the run that is resumed: a run directory or a file in one, perhaps gone."""
    assert isinstance(recorded.algorithm, ImitationConfig)
    learned_from = Path(recorded.algorithm.teacher_run).parent
    # A shared policy lies in a folder named after its content, of which another host has a copy.
    is_copy = found.name == WEIGHTS and found.parent.name == learned_from.name
    if not is_copy and learned_from.resolve() not in (found.resolve(), found.parent.resolve()):
        raise RequestError(
            f"--teacher {hide_query(asked)}: the resumed run learns from {learned_from}, whose weights are in its "
            "checkpoints; leave --teacher out, or begin a new run"
        )


def _open_shared(algorithm: ImitationConfig) -> Path:
    """Return the weights of a shared policy, in a folder with what its run recorded."""
    given = algorithm.teacher_run
    require(f"{_FLAG} {hide_query(given)}", "share", "safetensors")
    if given == PRETRAINED and not algorithm.teacher_task:
        raise RequestError(f"{_FLAG} {given}: the task names no task of its teacher; give {PRETRAINED}:TASK")
    return open_bundle(f"{PRETRAINED}:{algorithm.teacher_task}" if given == PRETRAINED else given) / WEIGHTS


def _find_checkpoint(given: str, place: Path) -> Path:
    if not given:
        raise RequestError(f"{_FLAG}: give the run directory of a teacher, or a checkpoint in one")
    if not place.exists():
        raise RequestError(f"{_FLAG} {given}: no such run directory or checkpoint")
    if place.is_file():
        if not is_run(place.parent):
            raise RequestError(f"{_FLAG} {given}: is not in a run directory, whose params/ say what network it is of")
        return place
    if not is_run(place):
        raise RequestError(f"{_FLAG} {given}: is not a run directory")
    return require_checkpoint(place, f"{_FLAG} {given}")[0]


def _check_terms(config: TrainConfig, agent: AgentConfig, theirs: Any, taught: AgentConfig) -> None:
    """Compare what the teacher read and did with what this task has for it: the names of terms, and their units."""
    assert isinstance(config.env, EnvConfig), "the request was refused"
    place = hide_query(config.agent.algorithm.teacher_run)  # pyright: ignore[reportAttributeAccessIssue]
    if not {"observations", "actions"} <= theirs.keys():
        raise RequestError(f"{_FLAG} {place}: was trained in an environment of another kind")
    here = config.env.observations
    missing = [group for group in agent.obs_groups["teacher"] if group not in here]
    if missing:
        raise RequestError(f"--agent.obs-groups.teacher {missing[0]}: the environment observes {', '.join(here)}")
    for group in taught.obs_groups["actor"]:
        if group not in theirs["observations"]:
            raise RequestError(f"{_FLAG} {place}: its policy reads {group}, which its run's params/env.yaml lacks")
    read = [item for group in taught.obs_groups["actor"] for item in theirs["observations"][group].items()]
    reads = [item for group in agent.obs_groups["teacher"] for item in here[group].items()]
    then, now = (", ".join(name for name, _ in terms) for terms in (read, reads))
    if then != now:
        groups = " ".join(agent.obs_groups["teacher"])
        raise RequestError(f"--agent.obs-groups.teacher {groups}: has {now}, and the teacher was trained with {then}")
    did, does = theirs["actions"], config.env.actions
    if list(did) != list(does):
        raise RequestError(f"{_FLAG} {place}: acts by {', '.join(did)}, and this task by {', '.join(does)}")
    for (name, before), (_, term) in zip([*read, *did.items()], [*reads, *does.items()], strict=True):
        now = to_plain(term)
        other = [field for field in _UNITS if field in now and _differs(before.get(field, now[field]), now[field])]
        if other and before.get("func") == now.get("func") and not is_resumed(config):
            raise RequestError(
                f"{_FLAG} {place}: was trained with {other[0]} {before[other[0]]} of {name}, and this task has "
                f"{now[other[0]]}; give the same, or another teacher"
            )


def _differs(before: Any, now: Any) -> bool:
    """Compare two settings; by what different expressions scale which actuator is not known here."""
    expressions = [value.keys() if isinstance(value, dict) else None for value in (before, now)]
    return expressions[0] == expressions[1] and before != now
