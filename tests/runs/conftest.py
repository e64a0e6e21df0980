import functools
import http.server
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.storage import SECRET, Proxy

COUNTER = itertools.count()


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    """The port of a server that speaks S3."""
    from moto.s3.responses import S3Response  # takes a second, which a worker without such tests need not spend
    from moto.server import ThreadedMotoServer

    put, alone = S3Response.put_object, threading.Lock()

    def put_alone(self: S3Response) -> Any:
        """S3 compares an object's version and replaces it in one step; moto does so in two."""
        with alone:
            return put(self)

    S3Response.put_object = put_alone
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()
    S3Response.put_object = put


@pytest.fixture
def network(moto: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands between this process, its children, and S3."""
    proxy = Proxy(moto)
    for name, value in (
        ("AWS_ENDPOINT_URL", proxy.url),
        ("AWS_ACCESS_KEY_ID", "an-access-key-id"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture
def url(network: Proxy) -> str:
    """A separate place in S3."""
    import boto3
    from botocore.config import Config

    bucket = f"bucket-{next(COUNTER)}"
    again = Config(read_timeout=15, retries={"max_attempts": 6, "mode": "standard"})  # a lost request is sent again
    boto3.client("s3", endpoint_url=network.url, config=again).create_bucket(Bucket=bucket)
    return f"s3://{bucket}/some/prefix"


@pytest.fixture(params=["s3", "file"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same on a file system too."""
    return request.getfixturevalue("url") if request.param == "s3" else f"file://{tmp_path}/stored"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the folder of the test, which redirects /away and gives /kept to who has the token.

    A file whose name begins with cut- is sent without its second half.
    """

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/away"):
                self.send_response(302)
                self.send_header("Location", "http://example.invalid/bundle.json")
                self.end_headers()
            elif self.path.startswith("/kept") and not self.path.endswith("?token=word"):
                self.send_error(403)
            elif self.path.startswith("/cut-"):
                content = (tmp_path / self.path[1:]).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2])
            else:
                super().do_GET()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
