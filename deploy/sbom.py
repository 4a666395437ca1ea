"""Writes the SBOM of an image in CycloneDX's JSON: its packages of Debian and of Python, and its jars.

    python deploy/sbom.py ROOT NAME:VERSION    ROOT is the mount point of the image

Run by deploy/build-image, with cyclonedx-python-lib. The list is read from the image itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL


def debian(root: Path) -> Iterator[Component]:
    """The installed packages of Debian."""
    for entry in (root / "var/lib/dpkg/status").read_text(encoding="utf-8").strip().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", entry, re.MULTILINE))
        if fields["Status"] == "install ok installed":
            yield _component(PackageURL("deb", "debian", fields["Package"], fields["Version"]))


def python(root: Path) -> Iterator[Component]:
    """The distributions in the virtual environment."""
    for each in distributions(path=[str(path) for path in root.glob("opt/arborcast/lib/python*/site-packages")]):
        yield _component(PackageURL("pypi", None, re.sub(r"[-_.]+", "-", each.name).lower(), each.version))


def jars(root: Path) -> Iterator[Component]:
    """The jars, each with the digest of its file; Spark's own are in PySpark."""
    for file in root.glob("opt/arborcast/**/*.jar"):
        name, _, version = file.stem.rpartition("-")
        digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(file.read_bytes()).hexdigest())
        yield _component(PackageURL("generic", None, name or file.stem, version), digest)


def _component(url: PackageURL, *digests: HashType) -> Component:
    return Component(
        name=url.name, version=url.version, purl=url, bom_ref=str(url), type=ComponentType.LIBRARY, hashes=digests
    )


def main(root: Path, image: str) -> None:
    """Write it to the standard output."""
    name, _, version = image.rpartition("/")[2].partition(":")
    # Two jars of one name and content may be in two folders.
    components = {each.bom_ref.value: each for each in (*debian(root), *python(root), *jars(root))}
    whole = Component(name=name, version=version, bom_ref=image, type=ComponentType.CONTAINER)
    bom = Bom(
        components=components.values(),
        metadata=BomMetaData(
            component=whole,
            timestamp=datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC),
        ),
        serial_number=uuid5(NAMESPACE_URL, "\n".join([image, *sorted(components)])),
    )
    bom.register_dependency(whole, components.values())
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"not CycloneDX: {error}")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
