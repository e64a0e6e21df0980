"""One policy in several simulators, with and without what disturbs it in the training."""

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from mjtrain.config import UNTRAINED, EnvConfig, PlayConfig, SimulatorName
from mjtrain.deployment.policy import DeployedPolicy
from mjtrain.deployment.simulated_robot import SteppedRobot
from mjtrain.env.env import Env
from mjtrain.evaluation.episodes import Episode, PolicyPlayer, play_episodes, resolve_run_size
from mjtrain.evaluation.eval_config import UNFINISHED
from mjtrain.evaluation.export.export_policy import export_policy
from mjtrain.evaluation.playing.player import Player
from mjtrain.runs.bundle import ONNX
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.standard_streams import write_to_stderr
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.model import load_model

NUM_OBSERVATIONS = 100
"""On how many the exported policy must act as the policy of the run."""

WORSE, FAILS = 1.5, 0.05
RULE = (
    f"an error of more than {WORSE:g} times that of the first row, a success as much rarer, or {100 * FAILS:g} % more "
    "of the episodes fail"
)
"""When a policy breaks."""


def check(run: TrainedRun, config: PlayConfig) -> None:
    """Raise a RequestError if the flags beside --sim-to-sim, or the run, do not fit it."""
    for name in ("noise", "pushes", "randomization"):
        if getattr(config, name):
            raise RequestError(f"--{name}: --sim-to-sim plays with and without it; leave the flag out")
    if config.engine != "auto":
        raise RequestError(f"--engine {config.engine}: give --sim-to-sim {config.engine}")
    if config.policy in UNTRAINED:
        raise RequestError(f"--policy {config.policy}: --sim-to-sim needs a trained policy")
    _ = run.own_env  # says that other worlds are not ours
    if "plain" in _simulators(config):
        require("export", "export", "onnx", "onnxruntime", "onnxscript")


def _simulators(config: PlayConfig) -> list[SimulatorName]:
    return list(dict.fromkeys(config.sim_to_sim or ("native", "warp", "plain")))


def compare_simulators(context: RankContext, run: TrainedRun, config: PlayConfig) -> dict[str, Any]:
    """Play the same episodes in each simulator and each case; the run's env has noise, pushes and randomization.

    Returns:
        What was played, and `rows`: for each case and simulator the means of return, length in s, errors and successes,
        the fraction of the episodes that failed, the wall time in s, and in `breaks` what is worse than in the first.
    """
    num_envs, per_env = resolve_run_size(config.episodes, config.num_envs)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mjtrain-") as folder:
        makers: dict[str, Callable[[TrainedRun], PolicyPlayer]] = {
            name: partial(Player, context, num_envs=num_envs, engine=name, policy=config.policy)
            for name in _simulators(config)
            if name != "plain"
        }
        if "plain" in _simulators(config):
            file = export_policy(context, run, Path(folder), NUM_OBSERVATIONS).files[ONNX]
            makers["plain"] = partial(PlainPlayer, _load_policy(file, run), num_envs=num_envs, seed=context.seed)
        cases = list_cases(run.own_env)
        for case, env in cases.items():
            for name in _simulators(config):
                write_to_stderr(f"{len(rows) + 1} of {len(cases) * len(_simulators(config))}: {case}, {name}")
                player = makers[name](replace(run, env=env))
                begin = time.monotonic()
                try:
                    episodes = play_episodes(player, per_env)
                finally:
                    player.close()
                row = {"case": case, "simulator": name, **_summarise(episodes, env, player.env.step_dt)}
                row["wall_s"] = round(time.monotonic() - begin, 2)
                rows.append({**row, "breaks": _find_breaks(row, rows[0] if rows else row)})
    units = {
        f"{command}/{name}": error.unit
        for command, term in run.own_env.commands.items()
        for name, error in term.errors.items()
    }
    checkpoint = None if run.checkpoint is None else str(run.checkpoint)
    return {
        "task": run.task,
        "policy": run.place or config.policy,
        "checkpoint": checkpoint,
        "episodes": num_envs * per_env,
        "seed": config.seed,
        "rule": RULE,
        "units": units,
        "rows": rows,
    }


def list_cases(env: EnvConfig) -> dict[str, EnvConfig]:
    """Return the task undisturbed, with each of its disturbances alone, and with all."""
    observed = [term for terms in env.observations.values() for term in terms.values()]
    noises = {
        "sensor noise": any(term.noise or term.shift for term in observed),
        "action noise": any(term.noise for term in env.actions.values()),
    }
    noisy = [name for name, present in noises.items() if present and env.observation_noise]
    always = {name: term for name, term in env.events.items() if term.mode == "reset"}
    calm = replace(env, observation_noise=False, events=always)
    cases = {"undisturbed": calm}
    if noisy:
        cases[" and ".join(noisy)] = replace(calm, observation_noise=True)
    for name in env.events:
        if name not in always:
            kept = {key: value for key, value in env.events.items() if key in always or key == name}
            cases[name] = replace(calm, events=kept)
    return cases | ({"all of them": env} if len(cases) > 2 else {})


class PlainPlayer(PolicyPlayer):
    """Plays in the worlds of a task with an exported policy, which sees readings and sends drives as in `deploy`."""

    def __init__(self, policy: DeployedPolicy, run: TrainedRun, *, num_envs: int, seed: int) -> None:
        config = run.own_env
        engine = PlainEngine(config, policy, num_envs, seed)
        super().__init__(Env(config, engine, seed, is_recorded=run.run_dir is not None), None)
        self._robots = engine.robots

    def act(self) -> torch.Tensor:
        """Return the actions of the exported policy in all worlds. Shape (num_envs, num_actions)."""
        commands = {name: self.env.command(name).double().numpy() for name in self.env.config.commands}
        bias = self.env.encoder_bias.numpy()
        actions = [
            robot.act({name: values[world] for name, values in commands.items()}, bias[world])
            for world, robot in enumerate(self._robots)
        ]
        return torch.from_numpy(np.stack(actions))


class PlainEngine(NativeEngine):
    """Steps worlds one after the other with `mj_step`, each with the drives of its controller instead of controls.

    The native engine keeps their starts and the fields of the model in which they differ.
    """

    def __init__(self, config: EnvConfig, policy: DeployedPolicy, num_envs: int, seed: int) -> None:
        model = load_model(config)
        rng = np.random.default_rng(seed)
        noise = float(config.observation_noise)
        self.robots = [SteppedRobot(model, policy, noise=noise, rng=rng) for _ in range(num_envs)]
        super().__init__(model, num_envs, num_threads=1)

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by the drives of its controller; see `Engine.step`. `state` shows the controls."""
        history = None if self._history is None else self.follow_sensors(num_substeps)
        for world, robot in enumerate(self.robots):
            self.failed[world] = False
            for substep in range(num_substeps):
                self.failed[world] |= not robot.step(1)
                if history is not None:
                    history[world, substep] = torch.as_tensor(robot.data.sensordata)
            for name, tensor in (vars(self.state) | self._followed).items():
                tensor[world] = torch.as_tensor(getattr(robot.data, name))
        self.state.ctrl.copy_(ctrl)

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the masked worlds; see `Engine.reset`."""
        super().reset(mask, qpos, qvel)
        for world in mask.nonzero().flatten().tolist():
            fields = {name: values[world].numpy() for name, values in self._expanded.items()}
            self.robots[world].begin(qpos[world].numpy(), qvel[world].numpy(), fields)

    def set_qvel(self, mask: torch.Tensor, qvel: torch.Tensor) -> None:
        """Overwrite the velocities of the masked worlds; see `Engine.set_qvel`."""
        super().set_qvel(mask, qvel)
        for world in mask.nonzero().flatten().tolist():
            self.robots[world].data.qvel[:] = qvel[world].numpy()

    def set_body_force(self, body: int, wrench: torch.Tensor) -> None:
        """Apply a force and torque to a body; see `Engine.set_body_force`."""
        for world, robot in enumerate(self.robots):
            robot.data.xfrc_applied[body] = wrench[world].numpy()


def _load_policy(file: Path, run: TrainedRun) -> DeployedPolicy:
    """Load an exported policy, and check that the simulated robot reports what it observes."""
    try:
        policy = DeployedPolicy(file)
        SteppedRobot(load_model(run.own_env), policy, rng=np.random.default_rng())
    except RequestError as error:
        reason = str(error).replace(f"{file}:", "the policy", 1)
        raise RequestError(f"--sim-to-sim plain: {reason}; give --sim-to-sim native warp") from error
    return policy


def _summarise(episodes: list[Episode], env: EnvConfig, step_s: float) -> dict[str, Any]:
    ends = {UNFINISHED, *(name for name, term in env.terminations.items() if term.truncates)}
    return {
        "return": fmean(episode.reward for episode in episodes),
        "length_s": step_s * fmean(episode.length for episode in episodes),
        "errors": _mean(episode.errors for episode in episodes),
        "successes": _mean(episode.successes for episode in episodes),
        "failed": fmean(not ends.issuperset(episode.causes) for episode in episodes),
    }


def _mean(values: Iterable[dict[str, float]]) -> dict[str, float]:
    values = list(values)
    names = dict.fromkeys(name for each in values for name in each)
    return {name: fmean(each[name] for each in values if name in each) for name in names}


def _find_breaks(row: dict[str, Any], first: dict[str, Any]) -> list[str]:
    errors = first["errors"]  # a task's own error may have a sign
    worse = [name for name, value in row["errors"].items() if abs(value) > WORSE * abs(errors.get(name, np.inf))]
    worse += [name for name, value in row["successes"].items() if value * WORSE < first["successes"][name]]
    return worse + (["failed"] if row["failed"] > first["failed"] + FAILS else [])
