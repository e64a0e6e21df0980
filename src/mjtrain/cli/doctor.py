"""The command doctor."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.cli.command import command
from mjtrain.cli.parsing import join_repeated, parse
from mjtrain.config import Backend, GpuIds, LaunchConfig
from mjtrain.runtime.files import check_writable, saying_where, write_out
from mjtrain.runtime.standard_streams import printable

if TYPE_CHECKING:
    from mjtrain.tools.doctor.finding import Finding

_ROW = "{:13} {:12} {:11} {}"  # rows are printed as they come: a cell that is too long pushes the others

_HEAD = _ROW.format("check", "host", "result", "figure")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Look whether this machine, or the hosts of a job, can do what a training needs.

    That is GPUs, versions, kernels, rendering, folders, storage, limits, and the network between the ranks. Give the
    launch flags of train, or start it as train is started (torchrun, srun). Nothing is left behind. Status 1: a run
    would fail.
    """

    gpu_ids: GpuIds = "auto"
    """GPUs, one rank each: indices into the visible devices, "all", or None for the CPU. Default: the first visible
    GPU, or the CPU."""

    num_workers: int | None = None
    """Number of CPU ranks. Default: 1."""

    hostnames: tuple[str, ...] = ()
    """Hosts, over SSH; or slurm."""

    num_threads: int | None = None
    """CPU threads of each rank. Default: its share of the cores."""

    log_root: str = "logs"
    """Folder below which runs would live."""

    checkpoint_url: str | None = None
    """Object storage in which an object is written, read and deleted. Left out: none."""

    video: bool = False
    """Whether videos would be recorded: then it is a failure if nothing can be rendered."""

    interface: str | None = None
    """Network interface for the traffic between ranks. Default: as train chooses."""

    backend: Backend = "auto"
    """Library for the collectives between ranks. Default: as train chooses."""

    ssh_config_file: str | None = None
    """SSH configuration for --hostnames. Default: that of ssh."""

    copy_env: tuple[str, ...] = ()
    """Patterns of further environment variables to copy to all --hostnames."""

    no_job_token: bool = False
    """With a launcher on every node: check the ranks without MJTRAIN_JOB_TOKEN."""

    all: bool = False
    """With several hosts: print the rows of all of them that are ok, too, and not only how many there are."""

    skip: tuple[str, ...] = ()
    """Checks to leave out: gpus, log-root, storage, kernels, rendering, ranks."""

    timeout_s: float = 60.0
    """Seconds that each check may take, and that ranks have to find each other."""

    json: str | None = None
    """File to write all findings to, as JSON; of several processes, the first writes it. Left out: none."""


@command("doctor")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1 if a run would fail, or 2 if the request was wrong."""
    for flag in ("--hostnames", "--copy-env", "--skip"):
        argv = join_repeated(argv, flag)
    options = parse(Options, argv, prog="doctor", description=Options.__doc__)
    if options.json is not None:
        check_writable("--json", Path(options.json))
    from mjtrain.tools.doctor.finding import Question
    from mjtrain.tools.doctor.run import has_several_hosts, run_doctor

    found: list[Finding] = []

    def show(finding: "Finding") -> None:
        if not found:
            print(_HEAD)
        found.append(finding)
        if not in_short or not _is_hidden(finding):
            print(format_finding(finding), flush=True)

    given = vars(options)
    launch, others = (
        {f.name: given[f.name] for f in fields(kind) if f.name in given} for kind in (LaunchConfig, Question)
    )
    question = Question(launch=LaunchConfig(**launch), **others)
    in_short = not options.all and has_several_hosts(question.launch)
    try:
        leads = run_doctor(question, show)
    finally:
        if found:  # not by a process whose findings the one that leads has
            print("\n" + "\n".join([*(_count_hidden(found) if in_short else []), *format_advice(found)]))
    if options.json is not None and leads:
        with saying_where("--json", options.json):
            write_out(Path(options.json), json.dumps(to_plain(found), indent=2) + "\n")
    if _would_fail(found):
        sys.exit(1)


def format_finding(finding: "Finding") -> str:
    """Format a finding as a row of the table."""
    return printable(_ROW.format(finding.check, finding.place or "-", finding.result, finding.figure).rstrip())


def format_advice(findings: Sequence["Finding"]) -> list[str]:
    """Return a line of advice for each finding that has one, failures first, and a last line that sums up."""
    lines, counts = [], []
    for kind in ("failure", "warning"):
        found = [finding for finding in findings if finding.result == kind]
        for one in found:
            place = f" on {one.place}" if one.place else ""
            lines.append(printable(f"{kind}: {one.check}{place}: {one.advice}"))
        counts += [f"{len(found)} {kind}{'' if len(found) == 1 else 's'}"] if found else []
    if not counts:
        return ["nothing is wrong"]
    return [*lines, f"{', '.join(counts)}: a run {'would fail' if _would_fail(findings) else 'works'}"]


def _is_hidden(finding: "Finding") -> bool:
    """Return whether a short table has no row for a finding: nothing is wrong with its host."""
    return bool(finding.place) and finding.result in ("ok", "not checked")


def _count_hidden(findings: Sequence["Finding"]) -> list[str]:
    """Return a line for each host that says how much of it a short table has no rows for."""
    hidden = [finding for finding in findings if _is_hidden(finding)]
    lines = []
    for place in dict.fromkeys(finding.place for finding in hidden):
        results = [finding.result for finding in hidden if finding.place == place]
        counts = [f"{results.count(kind)} {kind}" for kind in ("ok", "not checked") if kind in results]
        lines.append(f"{place}: {', '.join(counts)} (--all prints them)")
    return lines


def _would_fail(findings: Sequence["Finding"]) -> bool:
    return any(finding.result == "failure" for finding in findings)


def to_plain(findings: Sequence["Finding"]) -> dict[str, Any]:
    """Return all findings as plain values, with whether a run would fail."""
    return {"would_fail": _would_fail(findings), "findings": [asdict(finding) for finding in findings]}


if __name__ == "__main__":
    main()
