"""The command import-robot."""

from pathlib import Path

from mjtrain.cli.command import command, take_first
from mjtrain.cli.parsing import parse
from mjtrain.config.robot import ImportConfig


@command("import-robot")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the request was wrong."""
    file, args = take_first(argv, "FILE", "the file comes first, as in mjtrain import-robot robot.urdf [options]")
    config = parse(
        ImportConfig,
        args,
        prog=f"mjtrain import-robot {file}",
        description="Write a URDF as MJCF with a free joint, position actuators, a home pose on the ground and "
        "sensors, and its meshes beside it. What the URDF does not say is assumed, and printed. The result is checked "
        "as by check-robot.",
    )
    from mjtrain.sim.robots.urdf.convert import import_urdf
    from mjtrain.tools.check_robot import check_robot

    robot, notes = import_urdf(Path(file), config)
    print(robot)
    for line in [*notes, *check_robot(robot)]:
        print(f"  {line}")
