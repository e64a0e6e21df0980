"""What recorded environments have that new ones may not: a run that was trained with it must keep loading."""

from dataclasses import replace

from mjtrain.config import ActuatorConfig, EnvConfig, EventTerm, SensorConfig, TerminationTerm, to_plain
from mjtrain.env.term_check import find_term_problems
from mjtrain.runs.run_dir import list_differences


def adapt_recorded(env: EnvConfig) -> tuple[EnvConfig, list[str]]:
    """Return a recorded environment without what `drop_unused` removes.

    There is a line for that, and for each number that a new training would refuse.
    """
    if find_term_problems(env, limits=False):
        return env, []  # no environment can be made of it, and that is said where it is tried
    used, lines = drop_unused(env)
    return used, [*lines, *(f"recorded {line}" for line in find_term_problems(used))]


def drop_unused(env: EnvConfig) -> tuple[EnvConfig, list[str]]:
    """Remove settings that had no effect when the run was trained and are refused today, with a line for each."""
    robot = replace(
        env.robot,
        sensors={name: _read_sensor(sensor) for name, sensor in env.robot.sensors.items()},
        actuators={name: _read_actuator(actuator) for name, actuator in env.robot.actuators.items()},
    )
    used = replace(
        env,
        robot=robot,
        terminations={name: _read_termination(term) for name, term in env.terminations.items()},
        events={name: term for name, term in env.events.items() if not _is_idle(term)},
    )
    lines = [] if used == env else list_differences("env", to_plain(env), to_plain(used))
    return used, [f"{line}, which makes no difference" for line in lines]


def _read_sensor(sensor: SensorConfig) -> SensorConfig:
    if sensor.type != "contact":
        unused = ("data", "reduce", "num")
        return replace(sensor, **{name: getattr(SensorConfig, name) for name in unused})
    from mjtrain.sim.robots.layout import CONTACT_WIDTHS  # imports torch

    if not set(sensor.data) <= set(CONTACT_WIDTHS):
        return sensor
    return replace(sensor, data=tuple(word for word in CONTACT_WIDTHS if word in sensor.data))


def _read_actuator(actuator: ActuatorConfig) -> ActuatorConfig:
    from mjtrain.sim.robots.completion.actuators import UNUSED  # imports MuJoCo

    return replace(actuator, **dict.fromkeys(UNUSED.get(actuator.type, ()), 0.0))


def _read_termination(term: TerminationTerm) -> TerminationTerm:
    if to_plain(term.func) != "mjtrain.mdp.terminations:joint_out_of_range" or term.params.get("limit") is None:
        return term
    return replace(term, params={name: value for name, value in term.params.items() if name not in ("low", "high")})


def _is_idle(term: EventTerm) -> bool:
    """Whether an event pushes where an episode begins, which ends pushes."""
    return to_plain(term.func) == "mjtrain.mdp.events:apply_body_impulse" and term.mode != "interval"
