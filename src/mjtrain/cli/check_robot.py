"""The command check-robot."""

import re
from dataclasses import dataclass
from pathlib import Path

from mjtrain.cli.command import command, take_first
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compile an MJCF file, or a URDF as import-robot would write it, and hold its default pose for two seconds.

    Printed is what a training would meet: poses in the ground or in the air, gains that do not fit, actuators that move
    nothing.
    """

    keyframe: str = ""
    """Keyframe of the default pose. Default: home if there is one, else the reference pose."""


@command("check-robot")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the robot cannot be used."""
    file, args = take_first(argv, "FILE", "the file comes first, as in mjtrain check-robot robot.xml")
    options = parse(Options, args, prog=f"mjtrain check-robot {file}", description=Options.__doc__)
    from mjtrain.tools.check_robot import check_robot, check_urdf, is_urdf

    check = check_urdf if is_urdf(Path(file)) else check_robot
    try:
        lines = check(Path(file), keyframe=options.keyframe)
    except RequestError as error:
        # The flag of a training in the place of this command's.
        raise RequestError(re.sub(r"^--env\.robot\.keyframe ", "--keyframe ", str(error))) from error
    print(file)
    for line in lines:
        print(f"  {line}")
