"""The command export."""

import sys
from dataclasses import dataclass

from mjtrain.cli.command import TrainedRunOptions, command, take_first
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import count


@dataclass(frozen=True, kw_only=True)
class Options(TrainedRunOptions):
    """Write a trained policy as ONNX and TorchScript, with its normaliser and a description of inputs and outputs.

    It is checked that the files give the same actions as the policy. RUN is a run directory, or a task for its newest
    run.
    """

    out: str | None = None
    """Folder for the files. Default: export in the run directory."""

    observations: int = 1000
    """Recorded observations on which the files must agree with the policy."""


@command("export")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1 if a file was found wrong, or 2 if the request was wrong."""
    place, args = take_first(argv, "RUN", "the run comes first, as in export RUN [options]")
    options = parse(Options, args, prog=f"export {place}", description=Options.__doc__)
    from mjtrain.api import export

    try:
        exported = export(
            place,
            checkpoint=options.checkpoint,
            out=options.out,
            observations=options.observations,
            log_root=options.log_root,
            trust=options.trust_run,
        )
    except RuntimeError as error:  # a file was found wrong
        print(f"export: {error}", file=sys.stderr)
        sys.exit(1)
    print(f"{exported.checkpoint} as {exported.folder}, verified on {count(options.observations, 'observation')}:")
    for name, difference in exported.differences.items():
        print(f"  {name}: off by at most {difference:.1e}")
