"""Where policy bundles come from and go to: folders, .zip files, web servers, object storage, the Hugging Face Hub."""

import contextlib
import hashlib
import io
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from mjtrain.runs.bundle import (
    MANIFEST,
    MAX_BYTES,
    MAX_MANIFEST_BYTES,
    BundleError,
    Manifest,
    Read,
    fetch_bundle,
    parse_manifest,
)
from mjtrain.runs.storage.store import (
    Storage,
    StorageError,
    StorageRefusedError,
    check_url,
    hide_query,
    local_folder,
    split_url,
)
from mjtrain.runtime.errors import OutsideError, RequestError, first_line_of, require, summarise
from mjtrain.runtime.files import filling, read_regular, replacing, saying_where
from mjtrain.runtime.machine import find_entry_points, is_writable

GROUP = "mjtrain.policies"
"""Entry-point group in which a package registers folders with bundles: name of a task -> module:object, the folder. The
bundle is in the folder of the task's name there."""

PRETRAINED = "pretrained"
SCHEMES = ("hf", "https", "http", "s3", "gs", "az", "file")
"""How URLs of places begin."""

_IN_PATH = "/%:@!$&'()*+,;=~"
"""What stays as it is in the path of an address; the rest, such as a space, is escaped."""

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def is_place(text: str) -> bool:
    """Whether a text names a bundle and not a run or a task: by a URL, pretrained:TASK, a .zip file or its folder."""
    known = text.partition("://")[0] in SCHEMES and "://" in text
    return known or text.startswith(f"{PRETRAINED}:") or text.endswith(".zip") or Path(text, MANIFEST).is_file()


def open_bundle(place: str) -> Path:
    """Return a folder that holds exactly the files of a bundle, each verified; files that are there are not fetched.

    The folder is below ~/.cache/mjtrain/policies, or below $XDG_CACHE_HOME, under a name that its content decides.
    """
    read = _make_reader(place)
    place = hide_query(place)
    data = read(MANIFEST, MAX_MANIFEST_BYTES)
    manifest = parse_manifest(data, place)
    folder = cache_dir("policies") / manifest.digest
    try:
        is_there = folder.exists()  # what another process fetches after this must stay
        if not _is_intact(folder, manifest):
            if is_there:
                shutil.rmtree(folder, ignore_errors=True)
            _fetch(manifest, data, read, place, folder)
    except OSError as error:
        raise RequestError(
            f"{place}: cannot be kept in {folder.parent} ({error.strerror}); set XDG_CACHE_HOME"
        ) from error
    return folder


def pull_bundle(place: str, folder: Path) -> Manifest:
    """Copy a bundle to a new folder, verified; errors as those of `open_bundle`."""
    _check_new(folder)
    source = open_bundle(place)
    manifest = parse_manifest((source / MANIFEST).read_bytes(), hide_query(place))
    with saying_where("pull", folder):
        _copy(source, [*manifest.files, MANIFEST], folder)
    return manifest


def push_bundle(folder: Path, destination: str) -> None:
    """Copy a bundle to a place: a URL as `check_destination` allows it, a .zip file or a folder."""
    names = [*parse_manifest((folder / MANIFEST).read_bytes(), str(folder)).files, MANIFEST]  # the list comes last
    scheme = destination.partition("://")[0] if "://" in destination else ""
    if scheme == "hf":
        _push_to_hub(folder, destination)
    elif scheme:
        storage = Storage(check_url("push", destination))
        for name in names:
            with (folder / name).open("rb") as file:
                storage.upload(name, file)
    elif (place := Path(destination)).name.endswith(".zip"):
        with saying_where("push", destination):
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name in names:
                    archive.write(folder / name, name)
    else:
        with saying_where("push", destination):
            _copy(folder, names, place)


def _copy(source: Path, names: Sequence[str], folder: Path) -> None:
    with filling(folder) as partial:
        for name in names:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, partial / name)


def check_destination(destination: str) -> None:
    """Raise an error if nothing can be pushed to a place, before anything is made."""
    scheme = destination.partition("://")[0] if "://" in destination else ""
    if scheme == "hf":
        _check_hub(destination)
    elif scheme in ("http", "https"):
        shown = hide_query(destination)
        raise RequestError(f"push {shown}: mjtrain cannot write to web servers; push to a folder, hf:// or s3://")
    elif scheme:
        url = check_url("push", destination)
        if scheme != "file":
            storage = Storage(url)
            with contextlib.suppress(StorageRefusedError):  # who may write may not be allowed to read
                storage.size(MANIFEST)  # raises if the storage cannot be reached
    elif destination.endswith(".zip") and Path(destination).exists():
        raise RequestError(f"{destination}: exists; give a new file")
    else:
        _check_new(Path(destination))


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder}: exists and is not empty; give a new folder")
    if not is_writable(folder.absolute()):
        raise RequestError(f"{folder}: cannot be written")


def cache_dir(kind: str) -> Path:
    """Return the folder of fetched files of a kind."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (root if root.is_absolute() else Path.home() / ".cache") / "mjtrain" / kind
    except RuntimeError as error:
        raise RequestError(f"this user has no home directory for fetched {kind}; set XDG_CACHE_HOME") from error


def _is_intact(folder: Path, manifest: Manifest) -> bool:
    files = {**manifest.files, MANIFEST: (manifest.digest, MAX_MANIFEST_BYTES)}
    with contextlib.suppress(OSError):
        return all(
            hashlib.sha256(read_regular(folder / name, size + 1)).hexdigest() == digest
            for name, (digest, size) in files.items()
        )
    return False


def _fetch(manifest: Manifest, data: bytes, read: Read, place: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with filling(folder) as partial:
            fetch_bundle(manifest, read, place, partial)
            (partial / MANIFEST).write_bytes(data)
    except OSError:
        if not _is_intact(folder, manifest):  # by another process, meanwhile
            raise


def _make_reader(place: str) -> Read:
    scheme = place.partition("://")[0] if "://" in place else ""
    if scheme == "hf":
        return _read_hub(place)
    if scheme in ("http", "https"):
        return _read_web(place)
    if scheme:
        return _read_storage(place)
    if place.startswith(f"{PRETRAINED}:"):
        folder = _find_pretrained(place.partition(":")[2])
        return _read_folder(folder, str(folder), may_link=True)
    if place.endswith(".zip"):
        return _read_zip(place, place)
    return _read_folder(Path(place), place)


def read_file(url: str, size: int) -> bytes:
    """Return one file at a URL, or at most one byte more than a size; errors as those of `open_bundle`."""
    if split_url(url).scheme in ("http", "https"):
        _check_web(url)
        return _download(url, size)
    folder, _, name = url.rpartition("/")
    try:
        return _make_reader(folder)(unquote(name), size)
    except StorageError as error:
        raise type(error)(f"{url}: {error}") from error


def _read_folder(folder: Path, label: str, *, may_link: bool = False) -> Read:
    """Read a folder; an installer may link the files of a package to its cache."""

    def read(name: str, size: int) -> bytes:
        path = os.path.realpath(folder) + f"/{name}"
        if not may_link and os.path.realpath(path) != path:
            raise BundleError(f"{label}: {name} is a symbolic link")
        try:
            return read_regular(Path(path), size + 1)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(label, name) from error
        except OSError as error:
            raise BundleError(f"{label}: {name} cannot be read ({error.strerror})") from error

    return read


def _missing(place: object, name: str) -> BundleError:
    return BundleError(f"{place}: has no {name}" + "; it is not a policy bundle" * (name == MANIFEST))


def _read_zip(file: str | io.BytesIO, label: str) -> Read:
    try:
        archive = zipfile.ZipFile(file)
    except FileNotFoundError as error:
        raise BundleError(f"{label}: no such file") from error
    except OSError as error:
        raise BundleError(f"{label}: cannot be read ({error.strerror or error})") from error
    except MemoryError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise BundleError(f"{label}: is not a .zip file ({error})") from error

    def read(name: str, size: int) -> bytes:
        if name not in archive.namelist():
            raise _missing(label, name)
        try:
            with archive.open(name) as file:
                return file.read(size + 1)
        except MemoryError:
            raise
        except Exception as error:  # damaged, or encrypted; each compression has separate errors
            raise BundleError(f"{label}: {name} cannot be read ({error})") from error

    return read


def _read_storage(url: str) -> Read:
    url = check_url("read", url)
    if (folder := local_folder(url)) is not None:
        return _read_folder(folder, url, may_link=True)  # `Storage` would make it
    storage = Storage(url)

    def read(name: str, size: int) -> bytes:
        there = storage.size(name)
        if there is None:
            raise _missing(url, name)
        if there > size:
            raise BundleError(f"{url}: {name} is larger than {size} bytes")
        file = io.BytesIO()
        storage.download(name, there, file)
        return file.getvalue()

    return read


def _read_web(url: str) -> Read:
    _check_web(url)
    parts = split_url(url)
    if parts.path.endswith(".zip"):
        data = _download(url, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise BundleError(f"{hide_query(url)}: is larger than {MAX_BYTES >> 20} MiB")
        return _read_zip(io.BytesIO(data), hide_query(url))
    folder = parts.path.rstrip("/")
    return lambda name, size: _download(parts._replace(path=f"{folder}/{quote(name)}").geturl(), size)


def _check_web(url: str) -> None:
    parts = split_url(url)
    if "@" in parts.netloc:
        raise RequestError(f"{parts.scheme}://…: must not carry credentials")
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS):
        raise RequestError(f"{hide_query(url)}: give an https:// address; http:// is for this machine only")


def _download(url: str, size: int) -> bytes:
    """Return at most one byte more than a size."""
    from http.client import HTTPException, IncompleteRead
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, build_opener

    class Redirects(HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
            _check_web(newurl)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    shown, parts = hide_query(url), split_url(url)
    address = parts._replace(path=quote(parts.path, safe=_IN_PATH), query=quote(parts.query, safe=_IN_PATH + "?"))
    try:
        with build_opener(Redirects()).open(address.geturl(), timeout=60) as answer:
            data = answer.read(size + 1)
            if answer.length and len(data) <= size:  # `read` with a size does not say that the connection broke
                raise IncompleteRead(data, answer.length)
            return data
    except RequestError:  # of a redirection
        raise
    except HTTPError as error:
        if error.code in (404, 410):
            raise RequestError(f"{shown}: does not exist (status {error.code})") from error
        raise OutsideError(f"{shown}: answers with status {error.code}") from error
    except (OSError, HTTPException) as error:
        raise OutsideError(f"{shown}: cannot be read ({getattr(error, 'reason', error)})") from error
    except ValueError as error:  # such as a name of a host that is too long
        raise RequestError(f"{shown}: is not a valid URL ({error})") from error


def has_pretrained(task: str) -> bool:
    """Whether an installed package has a bundle of a task."""
    return any(entry.name.lower() == task.lower() for entry in find_entry_points(GROUP))


def _find_pretrained(task: str) -> Path:
    found = {entry.name.lower(): entry for entry in find_entry_points(GROUP)}
    entry = found.get(task.lower())
    if entry is None:
        there = f"installed packages have {', '.join(sorted(e.name for e in found.values()))}" if found else ""
        advice = there or "pip install mjtrain-policies"
        raise RequestError(f"{PRETRAINED}: no pretrained policy of {task}; {advice}")
    return Path(str(entry.load())) / entry.name


def _read_hub(place: str) -> Read:
    repo, folder = _split_hub(place)

    def read(name: str, size: int) -> bytes:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

        path = f"{folder}/{name}" if folder else name
        with _hub_errors(place):
            there = get_hf_file_metadata(hf_hub_url(filename=path, **repo)).size
            if there is None or there > size:
                raise BundleError(f"{place}: {name} is larger than {size} bytes")
            return read_regular(Path(hf_hub_download(filename=path, **repo)), size + 1)

    return read


def _split_hub(place: str) -> tuple[dict[str, Any], str]:
    """Split hf://[datasets/]user/repo[@revision][/folder] into arguments of the library and the decoded folder."""
    path = place.removeprefix("hf://").strip("/")
    kind = "dataset" if path.startswith("datasets/") else None
    repo, _, folder = path.removeprefix("datasets/").partition("/")
    name, _, folder = folder.partition("/")
    name, _, revision = name.partition("@")
    if not repo or not name:
        raise RequestError(f"{place}: give hf://user/repository, or hf://user/repository@revision/folder")
    require(place, "share", "huggingface_hub")
    return {"repo_id": f"{repo}/{name}", "repo_type": kind, "revision": revision or None}, unquote(folder)


@contextlib.contextmanager
def _hub_errors(place: str) -> Iterator[None]:
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        yield
    except RequestError:
        raise
    except RepositoryNotFoundError as error:
        raise RequestError(f"{place}: no such repository, or one that HF_TOKEN does not open") from error
    except EntryNotFoundError as error:
        raise RequestError(f"{place}: has no such file ({first_line_of(error)})") from error
    except HFValidationError as error:
        raise RequestError(f"{place}: {first_line_of(error)}") from error
    except Exception as error:  # the library passes on those of its HTTP client
        raise OutsideError(f"{place}: {summarise(error)}") from error


def _check_hub(place: str) -> None:
    """Raise an error without a token, or with one that the Hub refuses, which it says only a few times in a while."""
    _split_hub(place)
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        raise RequestError(f"push {place}: needs a token that may write; set HF_TOKEN, or run `hf auth login`")
    with _hub_errors(place):
        try:
            HfApi().whoami()
        except HfHubHTTPError as error:
            if error.response.status_code == HTTPStatus.UNAUTHORIZED:
                raise


def _push_to_hub(folder: Path, place: str) -> None:
    """Put all files of a bundle there in one commit; a missing repository is created."""
    repo, below = _split_hub(place)
    with _hub_errors(place):
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(repo["repo_id"], repo_type=repo["repo_type"], exist_ok=True)
        message = "A policy of mjtrain"
        api.upload_folder(folder_path=folder, path_in_repo=below or None, commit_message=message, **repo)
