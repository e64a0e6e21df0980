"""The command pull."""

from dataclasses import dataclass
from pathlib import Path

from mjtrain.cli.command import command
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import RequestError, count
from mjtrain.runtime.standard_streams import printable


@dataclass(frozen=True, kw_only=True)
class Options:
    """Copy a policy that mjtrain push wrote to a folder, after every file was verified. Nothing in it is run.

    SOURCE is hf://user/repository[@revision][/folder], https://host/folder or a .zip file there, a URL that begins with
    s3://, gs:// or az://, pretrained:TASK, a folder or a .zip file. DIR is a new folder; default: the last part of
    SOURCE. The commands play and deploy take a SOURCE too.
    """


@command("pull")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1 if it failed, or 2 if the request was wrong."""
    words = [word for word in argv if not word.startswith("-")]
    args = [word for word in argv if word.startswith("-")] if words else ["--help"]
    parse(Options, args, prog="pull SOURCE [DIR]", description=Options.__doc__)
    if len(words) > 2:
        raise RequestError(f"{words[2]}: give a source and a folder, as in pull SOURCE [DIR]")
    from mjtrain.runs.bundle_places import is_place, pull_bundle
    from mjtrain.runs.storage.store import hide_query

    source = words[0]
    if not is_place(source):
        raise RequestError(f"{source}: is not a policy bundle; mjtrain push writes one of a run")
    name = hide_query(source).rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".zip")
    folder = words[1] if len(words) > 1 else name.partition("@")[0]
    if not folder:
        raise RequestError(f"{hide_query(source)}: give a folder too, as in pull SOURCE DIR")
    manifest = pull_bundle(source, Path(folder))
    print(printable(f"{hide_query(source)} as {folder}: {manifest.task}, {count(len(manifest.files), 'file')}"))
