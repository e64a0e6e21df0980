"""Policy bundles and motions on the Hugging Face Hub, through its own library."""

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from mjtrain.runs.bundle import BundleError, Read
from mjtrain.runtime.errors import OutsideError, RequestError, first_line_of, require, summarise
from mjtrain.runtime.files import read_regular


def split_hub(place: str) -> tuple[dict[str, Any], str]:
    """Split hf://[datasets/]user/repo[@revision][/folder] into arguments of the library and the folder."""
    path = place.removeprefix("hf://").strip("/")
    kind = "dataset" if path.startswith("datasets/") else None
    repo, _, folder = path.removeprefix("datasets/").partition("/")
    name, _, folder = folder.partition("/")
    name, _, revision = name.partition("@")
    if not repo or not name:
        raise RequestError(f"{place}: give hf://user/repository, or hf://user/repository@revision/folder")
    require(place, "share", "huggingface_hub")
    return {"repo_id": f"{repo}/{name}", "repo_type": kind, "revision": revision or None}, folder


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


def read_hub(place: str) -> Read:
    """Return what gives the files of a folder there."""
    repo, folder = split_hub(place)

    def read(name: str, size: int) -> bytes:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

        path = f"{folder}/{name}" if folder else name
        with _hub_errors(place):
            there = get_hf_file_metadata(hf_hub_url(filename=path, **repo)).size
            if there is None or there > size:
                raise BundleError(f"{place}: {name} is larger than {size} bytes")
            return read_regular(Path(hf_hub_download(filename=path, **repo)), size + 1)

    return read


def check_hub(place: str) -> None:
    """Raise an error if nothing can be pushed there: without a token, or with one that the Hub refuses.

    The Hub answers this question only a few times in a while; then the push itself shows whether it may.
    """
    split_hub(place)
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


def push_to_hub(folder: Path, place: str) -> None:
    """Put all files of a bundle there in one commit; a missing repository is created."""
    repo, below = split_hub(place)
    with _hub_errors(place):
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(repo["repo_id"], repo_type=repo["repo_type"], exist_ok=True)
        message = "A policy of mjtrain"
        api.upload_folder(folder_path=folder, path_in_repo=below or None, commit_message=message, **repo)
