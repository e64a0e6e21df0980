"""Whether a fault can happen in a training, before anything is started; pure."""

from collections.abc import Iterator

from mjtrain.config import EnvConfig, TrainConfig
from mjtrain.launcher.faults import PLACES, Fault
from mjtrain.runtime.errors import count, suggest

ONCE = ("start", "build")
"""Phases that a training has before its first iteration."""

IN_EACH_ITERATION = ("rollout", "update", "report")

NOW_AND_THEN = ("evaluation", "save")


def find_training_problems(faults: tuple[Fault, ...], config: TrainConfig, world_size: int) -> Iterator[str]:
    """Yield why faults cannot happen to a training."""
    known = (*ONCE, *IN_EACH_ITERATION, *NOW_AND_THEN)
    for fault in faults:
        flag = f"--inject-fault {fault}"
        phases = PLACES.get(fault.kind, known)
        if fault.phase not in known:
            yield f"{flag}: a training has no phase {fault.phase}{suggest(fault.phase, known)}"
        elif fault.phase not in phases:
            yield f"{flag}: kind={fault.kind} happens in phase={' or phase='.join(phases)}"
        elif fault.kind == "disk-full" and fault.rank != 0:
            yield f"{flag}: only rank 0 writes checkpoints; give rank=0"
        elif fault.kind == "nan" and fault.phase == "rollout" and not isinstance(config.env, EnvConfig):
            yield f"{flag}: {config.env.label} has no worlds of mjtrain's; give phase=update"
        elif (fault.iteration or fault.step) and fault.phase in ONCE:
            yield f"{flag}: phase={fault.phase} comes once, before the first iteration; leave out iteration and step"
        elif problem := _find_step_problem(fault, config, world_size) or _find_iteration_problem(fault, config):
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
