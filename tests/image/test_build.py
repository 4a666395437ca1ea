"""The images, built again: the same bytes, and no more of them than is promised."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.image.pods import IMAGES, missing, run
from tests.support.gateway_process import ROOT

pytestmark = [pytest.mark.image, pytest.mark.long, pytest.mark.timeout(5400)]

PARTS = ("gateway", "job")


@pytest.fixture(scope="module", autouse=True)
def _images() -> None:
    if lacks := missing():
        pytest.skip(lacks)
    if not (IMAGES / "digests").exists():
        pytest.skip("there are no images: make image")


def test_the_gateway_is_small() -> None:
    (line,) = (each for each in (IMAGES / "digests").read_text().splitlines() if "gateway" in each)
    size, unit = line.split()[-2:]
    assert unit == "MB"
    assert float(size) < 250


@pytest.mark.parametrize("part", PARTS)
def test_an_sbom_names_the_contents_of_the_image(part: str) -> None:
    components = json.loads((IMAGES / f"{part}.cdx.json").read_text())["components"]
    urls = {each["purl"].partition("@")[0] for each in components}
    assert {"pkg:deb/debian/libc6", "pkg:deb/debian/tini", "pkg:pypi/arborcast", "pkg:pypi/lxml"} <= urls
    of_spark = {"pkg:pypi/pyspark", "pkg:deb/debian/openjdk-21-jre-headless", "pkg:generic/delta-storage"}
    assert of_spark <= urls if part == "job" else not of_spark & urls


def test_built_again_they_have_the_same_digests(tmp_path: Path) -> None:
    again = tmp_path / "again"
    version = (IMAGES / "digests").read_text().split()[0].rpartition(":")[2]
    tools = {"PYTHON": sys.executable, "SBOM_PYTHON": str(ROOT / ".venv" / "tools" / "bin" / "python")}
    run(ROOT / "deploy" / "build-image", again, version, env=os.environ | tools)
    try:
        for name in ("digests", *(f"{part}.cdx.json" for part in PARTS)):
            assert (again / name).read_text() == (IMAGES / name).read_text(), name
    finally:
        shutil.rmtree(again)
