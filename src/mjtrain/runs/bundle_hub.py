"""Policy bundles on the Hugging Face Hub, through its own library."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mjtrain.runs.bundle import BundleError, Read
from mjtrain.runtime.errors import OutsideError, RequestError, require
from mjtrain.runtime.files import read_regular


def split_hub(place: str) -> tuple[str, str | None, str]:
    """Return repository, revision and folder of hf://user/repo[@revision][/folder]."""
    repo, _, folder = place.removeprefix("hf://").strip("/").partition("/")
    name, _, folder = folder.partition("/")
    name, _, revision = name.partition("@")
    if not repo or not name:
        raise RequestError(f"{place}: give hf://user/repository, or hf://user/repository@revision/folder")
    require(place, "share", "huggingface_hub")
    return f"{repo}/{name}", revision or None, folder


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
        raise RequestError(f"{place}: has no such file ({_first_line(error)})") from error
    except HFValidationError as error:
        raise RequestError(f"{place}: {_first_line(error)}") from error
    except Exception as error:  # the library passes on those of its HTTP client
        raise OutsideError(f"{place}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def read_hub(place: str) -> Read:
    """Return what gives the files of a bundle there."""
    repo, revision, folder = split_hub(place)

    def read(name: str, size: int) -> bytes:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

        path = f"{folder}/{name}" if folder else name
        with _hub_errors(place):
            there = get_hf_file_metadata(hf_hub_url(repo, path, revision=revision)).size
            if there is None or there > size:
                raise BundleError(f"{place}: {name} is larger than {size} bytes")
            return read_regular(Path(hf_hub_download(repo, path, revision=revision)), size + 1)

    return read


def push_to_hub(folder: Path, place: str) -> None:
    """Put all files of a bundle there in one commit; a missing repository is created."""
    repo, revision, below = split_hub(place)
    with _hub_errors(place):
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(repo, exist_ok=True)
        message = "A policy of mjtrain"
        api.upload_folder(
            repo_id=repo, folder_path=folder, path_in_repo=below or None, revision=revision, commit_message=message
        )
