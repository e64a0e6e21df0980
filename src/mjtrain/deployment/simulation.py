"""Settings of the simulated robot, without MuJoCo."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What differs from the model of the training, and the way to the robot."""

    model: str
    """A compiled model (.mjb) or an MJCF file."""

    delay_s: float = 0.0
    """How much later readings arrive, in seconds."""

    noise: float = 0.0
    """Noise of joints and sensors, as a multiple of that in the training."""

    loss: float = 0.0
    """Fraction of packets that are lost, in each direction."""

    mass: float = 1.0
    """Factor of all masses and inertias."""

    friction: float = 1.0
    """Factor of the sliding friction of all geoms."""

    held: bool = True
    """Joints without a motor stay where they are until the policy acts, as on a gantry."""

    watchdog_s: float = 0.08
    """Time without targets after which the robot damps itself, in seconds."""

    seed: int = 0
    """Seed of noise and losses."""
