"""Real servers for caches, on free ports of 127.0.0.1: nginx with WebDAV, docker-registry, moto's S3, the same for Google's clients, Azurite.

    with Nginx(folder) as nginx:
        nginx.url                       # `http://127.0.0.1:<port>`
        nginx.power_off()               # every connection breaks

A test that misses its program is skipped and says so.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

START_LIMIT_S = 30.0
REGISTRY_USER = ("jane", "s3cr3t-of-jane")
_HTPASSWD = "jane:$2b$05$abcdefghijklmnopqrstuu9FJc3CzCzIAGKyd9aQrkNpLCSf2CuvS"


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class CacheServer:
    """A program that serves; use it as a context manager."""

    program = ""

    def __init__(self, folder: Path) -> None:
        """Prepare.

        Args:
            folder: Of its own: configuration, log and data.
        """
        self.folder = folder
        self.address = "127.0.0.1"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def authority(self) -> str:
        """Host and port."""
        return f"{self.address}:{self.port}"

    def argv(self) -> list[str]:
        """What is started; writes its configuration."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self.program and shutil.which(self.program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{self.program} is not installed")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.power_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.power_off()

    def power_on(self) -> None:
        """Start, and wait until it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), timeout=1):
                return
            time.sleep(0.02)
        pytest.fail(f"{type(self).__name__} does not start: {(self.folder / 'log').read_text()[-2000:]}")

    def power_off(self) -> None:
        """Kill it."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class Nginx(CacheServer):
    """nginx over a folder, which takes uploads and shows what is in it unless it is told not to."""

    program = "nginx"

    def __init__(
        self,
        folder: Path,
        *,
        root: Path | None = None,
        takes_uploads: bool = True,
        lists: Literal["json", "html", ""] = "json",
        address: str = "127.0.0.1",
    ) -> None:
        super().__init__(folder)
        self.address = address
        self.root = root or folder / "root"
        self.takes_uploads = takes_uploads
        self.lists = lists

    @property
    def url(self) -> str:
        """Of its root."""
        return f"http://{self.authority}"

    def argv(self) -> list[str]:
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = "".join(
            f"{kind}_temp_path {self.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        dav = "dav_methods PUT DELETE; create_full_put_path on;" if self.takes_uploads else ""
        index = f"autoindex on; autoindex_format {self.lists};" if self.lists else ""
        user = "user root;" if os.geteuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(
            f"""
            daemon off; worker_processes 1; pid {self.folder}/pid; error_log stderr; {user}
            events {{ worker_connections 256; }}
            http {{
                access_log {self.folder}/access.log; client_max_body_size 0; sendfile on; {temporary}
                server {{ listen {self.authority}; root {self.root}; location / {{ {dav} {index} }} }}
            }}
            """
        )
        return ["/usr/sbin/nginx", "-c", str(self.folder / "nginx.conf"), "-p", str(self.folder)]

    def requests(self) -> list[str]:
        """Method and path of each request so far."""
        lines = (self.folder / "access.log").read_text().splitlines()
        return [" ".join(line.split('"')[1].split()[:2]) for line in lines]


class DockerRegistry(CacheServer):
    """Debian's docker-registry, which deletes what it is told to."""

    program = "docker-registry"

    def __init__(self, folder: Path, *, login: bool = False) -> None:
        super().__init__(folder)
        self.login = login

    @property
    def url(self) -> str:
        """Of a repository in it."""
        return f"oci://{self.authority}/envs/demo"

    def argv(self) -> list[str]:
        (self.folder / "htpasswd").write_text(_HTPASSWD + "\n")
        login = f"auth:\n  htpasswd:\n    realm: test\n    path: {self.folder}/htpasswd\n" if self.login else ""
        (self.folder / "config.yml").write_text(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  delete:\n    enabled: true\n"
            f"  filesystem:\n    rootdirectory: {self.folder}/data\nhttp:\n  addr: {self.authority}\n{login}"
        )
        return ["/usr/bin/docker-registry", "serve", str(self.folder / "config.yml")]


class MotoS3(CacheServer):
    """The S3 of moto."""

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return f"http://{self.authority}"

    @property
    def environ(self) -> dict[str, str]:
        """What a user of it has in the environment."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "s3cr3t-of-jane",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        import httpx  # noqa: PLC0415 - beside its only use

        httpx.put(f"{self.endpoint}/{name}", timeout=30).raise_for_status()


class MotoGcs(MotoS3):
    """The S3 of moto for clients of Google Cloud Storage (tests/support/gcs_like.py)."""

    @property
    def environ(self) -> dict[str, str]:
        """The key of an account, as Google gives it out."""
        key = self.folder / "account.json"
        if not key.exists():
            key.write_text(
                json.dumps(
                    {
                        "type": "service_account",
                        "client_id": "1",
                        "client_email": "jane@example.com",
                        "private_key": _new_private_key(),
                        "private_key_id": "s3cr3t-of-jane",
                    }
                )
            )
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}

    def argv(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("gcs_like.py")), str(self.port)]


class Azurite(CacheServer):
    """Microsoft's emulator of Azure's storage, an npm package: `AZURITE_BLOB` names its program, if it is not in PATH."""

    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    """The one that it has everywhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program = os.environ.get("AZURITE_BLOB", "azurite-blob")

    @property
    def endpoint(self) -> str:
        """URL of the account."""
        return f"http://{self.authority}/{self.ACCOUNT}"

    @property
    def environ(self) -> dict[str, str]:
        """What a user of it has in the environment."""
        return {"AZURE_STORAGE_ACCOUNT_NAME": self.ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": self.KEY}

    def argv(self) -> list[str]:
        place = ("--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder))
        return [self.program, *place, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]

    def make_bucket(self, name: str) -> None:
        """Make an empty container, unless it is there."""
        import httpx  # noqa: PLC0415 - beside its only use

        date = email.utils.formatdate(usegmt=True)
        version = "2021-08-06"
        resource = f"/{self.ACCOUNT}/{self.ACCOUNT}/{name}\nrestype:container"
        text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.KEY), text.encode(), "sha256")).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {self.ACCOUNT}:{signature}",
        }
        made = httpx.put(f"{self.endpoint}/{name}?restype=container", headers=headers, timeout=30)
        assert made.status_code in {201, 409}, made.text


def _new_private_key() -> str:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as the next one: moto brings it
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    return (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )
