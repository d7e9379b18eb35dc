"""Apicurio Registry, fetched once per user: a second opinion on what a schema registry answers."""

from __future__ import annotations

import hashlib
import tarfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fanout.errors import SetupError
from fanout.spark.hadoop.session_checks import require_java
from fanout.testing.jars import IVY_MODULE, cache_directory, fill_once, progress, retrieve
from fanout.testing.kafka.server_process import KeptServer
from fanout.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME: Final = "apicurio-registry-app-3.0.9"
_DEPENDENCY: Final = """\
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="3.0.9" conf="default">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>"""
# The archive needs no other one, and its description names a parent that is not published.
_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="maven"/>
  <resolvers><ibiblio name="maven" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_SHA256: Final = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
# It starts within 30 seconds on a busy machine; this passes only if a test fails.
_START_TIMEOUT: Final = 120.0


@contextmanager
def serve_apicurio() -> Iterator[str]:
    """Serve an empty registry.

    Yields:
        Its address.

    Raises:
        SetupError: It cannot be downloaded, or does not start.
    """
    home = fill_once(cache_directory("apicurio") / _NAME, _fetch)
    port, management = free_ports(2)
    settings = ("http.host=127.0.0.1", f"http.port={port}", f"management.port={management}")
    java = (str(require_java()), "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    options = [f"-Dquarkus.{setting}" for setting in settings]
    with KeptServer([*java, *options, "-jar", str(home / f"{_NAME}-runner.jar")]) as server:
        server.start()
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _wait_for(url, server)
        yield url


def _fetch(work: Path) -> Path:
    with progress(f"Downloading Apicurio into {work.parent}, once"):
        (work / "settings.xml").write_text(_SETTINGS)
        otherwise = "Apicurio is not to be had: check the network"
        module = IVY_MODULE.format(_DEPENDENCY)
        retrieve(module, work, "[artifact].[ext]", otherwise, settings="settings.xml")
    archive = work / "apicurio-registry-app.tar.gz"
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _SHA256:
        raise SetupError("Apicurio is not the pinned one: its SHA-256 differs")
    with tarfile.open(archive) as files:
        files.extractall(work / "home", filter="data")
    return work / "home"


def _wait_for(url: str, server: KeptServer) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        try:
            with urllib.request.urlopen(f"{url}/subjects"):  # noqa: S310 - http
                return
        except (urllib.error.URLError, ConnectionError) as error:
            if server.pid is None or time.monotonic() > deadline:
                log = "\n".join(server.log(30))
                raise SetupError(f"Apicurio does not start; its log ends with:\n{log}") from error
        time.sleep(0.1)
