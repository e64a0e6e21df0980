"""The command push."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from mjtrain.cli.command import TrainedRunOptions, command
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Options(TrainedRunOptions):
    """Share a trained policy as a bundle: ONNX, weights, robot, settings and a card. Nothing in it is run.

    RUN is a run directory, a task for its newest run, or a bundle. DESTINATION is a new folder or .zip file,
    hf://user/repository[@revision][/folder], or a URL that begins with s3://, gs:// or az://.
    """

    episodes: int = 100
    """Episodes that play measures for the figures on the card; 0: no figures."""

    observations: int = 1000
    """Recorded observations on which the ONNX file must agree with the policy."""

    license: str | None = None
    """License for the card, as an SPDX identifier such as apache-2.0. Default: none."""


@command("push")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1 if it failed, or 2 if the request was wrong."""
    words, args = (argv[:2], argv[2:]) if not {"-h", "--help"} & set(argv) else (["RUN", "DESTINATION"], ["--help"])
    if len(words) < 2 or any(word.startswith("-") for word in words):
        raise RequestError("the policy and the place come first, as in push RUN DESTINATION [options]")
    place, destination = words
    options = parse(Options, args, prog=f"push {place} {destination}", description=Options.__doc__)
    from mjtrain.runs.bundle_places import check_destination, is_place, open_bundle, push_bundle
    from mjtrain.runs.storage.store import hide_query

    check_destination(destination)
    if is_place(place):
        for field in ("checkpoint", "episodes", "observations", "license"):
            if getattr(options, field) != getattr(Options, field):
                shown = hide_query(place)
                raise RequestError(f"--{field}: is for runs, and {shown} is a bundle, which is copied as it is")
        push_bundle(open_bundle(place), destination)
    else:
        with tempfile.TemporaryDirectory(prefix="mjtrain-") as folder:
            _write(place, options, Path(folder))
            push_bundle(Path(folder), destination)
    print(f"{hide_query(place)} as {destination}")


def _write(place: str, options: Options, folder: Path) -> None:
    from mjtrain.api import play
    from mjtrain.config import LaunchConfig
    from mjtrain.evaluation.export.export_policy import check_run, find_run_to_export, write_bundle
    from mjtrain.launcher import launch
    from mjtrain.training.open_run import tell

    for name, least in (("episodes", 0), ("observations", 1)):
        if getattr(options, name) < least:
            raise RequestError(f"--{name} {getattr(options, name)}: must be at least {least}")
    run = find_run_to_export(place, options.checkpoint, options.log_root, trust=options.trust_run)
    check_run(run)
    tell(*run.notices)
    figures = None
    if options.episodes:
        where = str(run.run_dir)
        figures = play(where, checkpoint=str(run.checkpoint), episodes=options.episodes, trust=options.trust_run)
    launch(write_bundle, run, folder, options.observations, figures, options.license, launch=LaunchConfig(gpu_ids=None))
