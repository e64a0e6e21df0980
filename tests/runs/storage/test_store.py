"""URLs of a storage, where its credentials are, who may replace what, and what is said where it fails."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.cli.train import main
from mjtrain.config import LaunchConfig
from mjtrain.runs.bundle_places import check_destination
from mjtrain.runs.resume import find_or_make_run
from mjtrain.runs.storage.checkpoints import find_stored_iteration
from mjtrain.runs.storage.store import Storage, StorageError, check_url, s3_options, scrub
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.training.open_run import open_run
from mjtrain.training.request import resolve_training
from mjtrain.training.train_rank import train_rank
from support.machine import free_port
from support.storage import Proxy

pytestmark = pytest.mark.xdist_group("moto")  # its first requests import for seconds


@pytest.mark.parametrize(
    "url", ["s3://bucket/a/b", "gs://bucket", "az://container/a", "file:///data/runs/one", "s3://bucket/a/"]
)
def test_urls_of_every_kind(url: str) -> None:
    assert check_url("--checkpoint-url", url) == url.rstrip("/")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("bucket/prefix", "begins with one of s3://, gs://, az://, file://"),
        ("http://host/path", "begins with one of"),
        ("s3:///prefix", "names no bucket"),
        ("file://data/runs", "absolute path"),
        ("file:///", "absolute path"),
        ("s3://AKIAKEY:hush@bucket/prefix", "must not carry credentials"),
        ("az://container/prefix?sig=hush", "must not carry credentials"),
        ("https://me:hush@host/x", "begins with one of"),
    ],
)
def test_wrong_urls_are_refused_without_repeating_a_secret(url: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        check_url("--checkpoint-url", url)
    assert "--checkpoint-url" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_aws_files_fill_in_what_the_environment_leaves_open(tmp_path: Path) -> None:
    aws = tmp_path / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = 1%1\n[lab]\naws_access_key_id = two\n"
    )
    (aws / "config").write_text("[default]\nregion = eu-west-1\n[profile lab]\nendpoint_url = https://s3.lab\n")
    assert s3_options({}, tmp_path) == {"access_key_id": "one", "secret_access_key": "1%1", "region": "eu-west-1"}
    assert s3_options({"AWS_PROFILE": "lab"}, tmp_path) == {"access_key_id": "two", "endpoint": "https://s3.lab"}
    assert s3_options({"AWS_ACCESS_KEY_ID": "x", "AWS_REGION": "us-east-1"}, tmp_path) == {}
    assert s3_options({"AWS_ENDPOINT_URL": "http://x"}, tmp_path / "nobody") == {"endpoint": "http://x"}
    (aws / "config").write_text("[default]\nendpoint_url =\nregion =\n")
    assert s3_options({}, tmp_path) == {"access_key_id": "one", "secret_access_key": "1%1"}
    (aws / "config").write_bytes("[default]\n# Büro\nregion = eu-west-1\n".encode("latin-1"))
    assert s3_options({}, tmp_path) == {"access_key_id": "one", "secret_access_key": "1%1"}


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://localhost:9000",
        "http://[::1]:9000",
        "http://min_io",
        "https://me:p%20w@10.0.0.1:1/a/b",
        "http://s3.lab.",
    ],
)
def test_endpoints_of_every_kind(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert Storage("s3://bucket/one").url == "s3://bucket/one"


def test_messages_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hush-hush-hush")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "quiet-quiet")
    xml = "<?xml?><Id>x</Id><Message>not hush-hush-hush, quiet-quiet</Message>"
    message = f"PUT\nfailed: fromthefile {xml}\n\nDebug source:\nx"
    assert scrub(message, {"secret_access_key": "fromthefile"}) == "PUT failed: *** not ***, ***"


@pytest.mark.parametrize(
    ("url", "variable", "value", "reason"),
    [
        ("s3://bucket/one", "AWS_ENDPOINT_URL", "localhost:9000", "endpoint of S3 'localhost:9000': is not an address"),
        ("s3://bucket/one", "AWS_ENDPOINT_URL_S3", "http://me:hush@host:99999", "'host:99999': is not an address"),
        ("s3://bucket/one", "AWS_ENDPOINT", "http://host:9000\n", r"9000.n': is not an address"),
        ("s3://bucket/one", "AWS_ENDPOINT_URL", "http://1.2.3.999:1", r"1\.2\.3\.999:1': is not an address"),
        ("s3://bucket/one", "AWS_ENDPOINT_URL", "http://h^x", r"h\^x': is not an address"),
        ("s3://bucket/one", "AWS_ENDPOINT_URL", "http://h%20:9000", "h%20:9000': is not an address"),
        ("s3://bucket/one", "AWS_ENDPOINT_URL", "http://[fe80::1%25eth0]:9000", "eth0]:9000': is not an address"),
        ("s3://bucket//one", "AWS_REGION", "us-east-1", "empty path segment"),
        ("az://container/x", "AZURE_STORAGE_ACCOUNT_KEY", "quiet-quiet", "Account must be specified"),
        ("gs://bucket/x", "GOOGLE_APPLICATION_CREDENTIALS", "/no/such.json", "/no/such.json: No such file"),
    ],
)
def test_settings_that_can_never_work_are_refused(
    url: str, variable: str, value: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is trained, as no upload would succeed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    config = make_train_config("Cartpole-Balance", log_root=str(tmp_path), checkpoint_url=url)
    with pytest.raises(RequestError, match=rf"^--checkpoint-url {url}: .*{reason}") as caught:
        find_or_make_run(config)
    assert "hush" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutsideError, match=reason):
        check_destination(url)


def test_rank_0_on_another_host_judges_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher may lack those of Azure that the host of rank 0 has."""
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    config = make_train_config(
        "Cartpole-Balance", num_envs=4, max_iterations=1, log_root=str(tmp_path), checkpoint_url="az://container/x"
    )
    request = resolve_training(config, LaunchConfig(gpu_ids=None))
    with open_run(replace(request, plan=replace(request.plan, mode="hosts")), None) as run:
        assert "az://container/x: not reached yet (" in capsys.readouterr().err
    refused = "^--checkpoint-url az://container/x: .*Account must be specified"
    with pytest.raises(RequestError, match=refused), open_run(request, None):
        pass
    with pytest.raises(RequestError, match=refused):
        mjtrain.launch(lambda context: train_rank(context, config, run), launch=LaunchConfig(gpu_ids=None))


def test_a_storage_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1: what starts the command again may find the storage later."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    flags = ["--gpu-ids", "None", "--log-root", str(tmp_path), "--checkpoint-url", "s3://bucket/one"]
    with pytest.raises(SystemExit) as stop:
        main(["Cartpole-Balance", *flags, "--resume", "auto"])
    assert stop.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train: --checkpoint-url s3://bucket/one: ")
    assert list(tmp_path.iterdir()) == []


def test_a_write_on_an_old_version_is_a_conflict(any_url: str) -> None:
    from mjtrain.runs.storage.store import ConflictError

    storage = Storage(any_url)
    storage.replace("x", b"one", None)
    with pytest.raises(ConflictError):
        storage.replace("x", b"two", None)
    _, version = storage.read("x") or pytest.fail("it is not there")
    storage.replace("x", b"three", version)
    with pytest.raises(ConflictError):
        storage.replace("x", b"four", version)
    assert (storage.read("x") or pytest.fail("it is not there"))[0] == b"three"


def test_what_is_wrong_with_a_storage_is_one_line_without_secrets(url: str, network: Proxy) -> None:
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/x: the bucket does not exist") as caught:
        find_stored_iteration("s3://no-such-bucket/x")
    network.up = False
    with pytest.raises(StorageError) as caught:
        find_stored_iteration(url)
    assert "\n" not in str(caught.value)
