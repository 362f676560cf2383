"""A registry on a free port of 127.0.0.1, and a wire to it that counts what goes over.

with Registry(tmp_path / "registry") as registry:
    registry.push(layout, "demo")
    print(registry.sent_bytes)
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

from tests.support.images import command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_CONFIG = """\
version: 0.1
log: {{accesslog: {{disabled: true}}, level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
START_S = 10.0


class Registry:
    """Debian's docker-registry, empty at first."""

    def __init__(self, folder: Path) -> None:
        """Prepare.

        Args:
            folder: Where its files lie.
        """
        self._folder = folder
        self.sent_bytes = 0
        """What clients sent so far."""
        self._wire = socket.create_server(("127.0.0.1", 0))
        self.authority = f"127.0.0.1:{self._wire.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def __enter__(self) -> Registry:  # noqa: PYI034 - as everywhere here
        self._folder.mkdir(parents=True)
        config = self._folder / "config.yml"
        config.write_text(_CONFIG.format(root=self._folder / "blobs", port=self._port))
        self._process = subprocess.Popen(
            ["/usr/bin/env", "docker-registry", "serve", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                break
            threading.Event().wait(START_S / 200)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.close()
        self._process.kill()
        self._process.wait()

    def push(self, layout: Path, tag: str) -> int:
        """Copy an image of a layout to the registry with skopeo.

        Returns:
            How many bytes went over the wire.
        """
        before = self.sent_bytes
        command(
            "skopeo", "copy", "--quiet", "--dest-tls-verify=false", "--preserve-digests",
            f"oci:{layout}:{tag}", f"docker://{self.authority}/demo:{tag}",
        )  # fmt: skip
        return self.sent_bytes - before

    def digest(self, tag: str) -> str:
        """The digest of an image as the registry has it."""
        reference = f"docker://{self.authority}/demo:{tag}"
        return command("skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", reference).strip()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._wire.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            for count in _passed(client, server):
                self.sent_bytes += count
            back.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    for _ in _passed(source, target):
        pass


def _passed(source: socket.socket, target: socket.socket) -> Iterator[int]:
    """Pass bytes on until there are no more, and tell how many."""
    with contextlib.suppress(OSError):
        while raw := source.recv(1 << 18):
            target.sendall(raw)
            yield len(raw)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
