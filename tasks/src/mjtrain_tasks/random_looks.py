"""Random looks of the tasks whose policies act from cameras."""

from mjtrain import EventTerm
from mjtrain.mdp import appearance, reset_event


def random_looks(*, ground: str, bodies: tuple[str, ...]) -> dict[str, EventTerm]:
    """Return events that give each episode its own colours, light and camera poses.

    The object keeps its colours: they show which one it is, or how it lies.

    Args:
        ground: Geom that gets a random colour.
        bodies: Regular expressions over bodies of the robot, whose geoms get random colours.
    """
    return {
        "ground_color": _color(geoms=(ground,)),
        "robot_color": _color(bodies=bodies),
        "light_place": reset_event(appearance.light_position, offset_m=(-0.5, 0.5)),
        "light": reset_event(appearance.light_intensity, factor=(0.2, 1.2)),
        "camera_place": reset_event(appearance.camera_position, offset_m=(-0.005, 0.005)),
        "camera_turn": reset_event(appearance.camera_orientation, angle_rad=(-0.03, 0.03)),
    }


def _color(*, geoms: tuple[str, ...] = (), bodies: tuple[str, ...] = ()) -> EventTerm:
    """Return the event that gives these geoms any colour that is not nearly black."""
    channel = (0.2, 1.0)
    return reset_event(appearance.geom_color, geoms=geoms, bodies=bodies, red=channel, green=channel, blue=channel)
