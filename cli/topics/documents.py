"""Whole topic trees brought in and written out: documents, and the LDAP tree of another system."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from arborcast.cli.common import JsonOption, kafka_of, settings_of
from arborcast.core.errors import ConfigError, DocumentError
from arborcast.core.files import write_output
from arborcast.engine.terminal import ProgressShown, print_document, print_error, print_json, print_line

if TYPE_CHECKING:
    from arborcast.engine.settings.loading import Settings

Form = Literal["ldif", "topicset", "json"]
FormatOption = Annotated[
    Form | None, typer.Option("--format", "-f", help="Of the document; default: by the file's name or content.")
]
BaseOption = Annotated[
    str | None, typer.Option("--base-dn", help="With LDIF: the virtual root (default: directory.base_dn).")
]


def register(topics_app: typer.Typer) -> None:
    topics_app.command("import")(import_topics)
    topics_app.command("export")(export_topics)


def _settings() -> Settings:
    """The settings, with the broker of the engine that runs in this data directory, if one does; see `kafka_of`."""
    return dataclasses.replace(settings_of(), kafka=kafka_of())


def import_topics(
    file: Annotated[
        Path | None, typer.Argument(help="LDIF, TopicSet or TopicNamespace (XML), or JSON; - is standard input.")
    ] = None,
    form: FormatOption = None,
    base_dn: BaseOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Remove the topics that the document lacks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
    from_ldap: Annotated[
        str | None,
        typer.Option("--from-ldap", help="Instead of a file: another system's LDAP server, ldap://…", metavar="URL"),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="There: the entry whose units (ou=…) are the topics.", metavar="DN")
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", help="The topic that the base itself is (default: none).", metavar="TOPIC")
    ] = None,
    bind_dn: Annotated[
        str | None,
        typer.Option(
            "--bind-dn", help="The name to bind with; the password is prompted for (default: anonymous).", metavar="DN"
        ),
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read that password from the first line of standard input.")
    ] = False,
    start_tls: Annotated[bool, typer.Option("--start-tls", help="Upgrade an ldap:// connection first.")] = False,
    ca_file: Annotated[
        str, typer.Option("--ca-file", help="Authorities that sign that server's certificate (PEM).", metavar="FILE")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Import the topics of a document, all or none, or of another system's LDAP tree."""
    if from_ldap is None:
        if file is None or base or root or bind_dn or stdin or start_tls or ca_file:
            raise ConfigError("name the source: a file, or --from-ldap URL and --base DN with their options")
        _import_document(_settings(), file, form, base_dn, replace, dry_run, json)
        return
    if file is not None or form or base_dn or replace:
        raise ConfigError("--from-ldap takes the place of a file: leave out the file, --format, --base-dn, --replace")
    if not base:
        raise ConfigError("--from-ldap needs --base DN, for instance --base ou=all_test,dc=wsn,dc=com")
    from arborcast.cli.topics import units

    where = units.server(from_ldap, base, bind_dn or "", stdin, start_tls, ca_file)
    units.import_units(kafka_of(), where, root, dry_run=dry_run, json=json)


def _import_document(
    settings: Settings, file: Path, form: Form | None, base_dn: str | None, replace: bool, dry_run: bool, json: bool
) -> None:
    from arborcast.admin import topic_documents
    from arborcast.directory.errors import LdifError

    standard_input = str(file) == "-"
    data = sys.stdin.buffer.read() if standard_input else file.read_bytes()
    form = topic_documents.format_of(None if standard_input else file, form, data)
    try:
        records, skipped = topic_documents.read_document(data, form, base_dn or settings.directory.base_dn)
    except (DocumentError, LdifError) as error:
        raise DocumentError(f"{'standard input' if standard_input else file}, read as {form}: {error}") from error
    for line in skipped:
        print_error(f"skipped {line}")
    with ProgressShown() as progress:
        result = topic_documents.import_topics(
            settings.kafka, records, replace=replace, dry_run=dry_run, progress=progress
        )
    counts = {"added": result.added, "changed": result.changed, "removed": result.removed, "skipped": len(skipped)}
    if json:
        print_json(counts)
    else:
        print_line(", ".join(f"{number} {word}" for word, number in counts.items()))


def export_topics(
    file: Annotated[Path | None, typer.Argument(help="Where to write; default: standard output.")] = None,
    form: FormatOption = None,
    base_dn: BaseOption = None,
) -> None:
    """Write all topics as a document. The LDIF format is input for ldapadd."""
    from arborcast.admin import control_log, topic_documents

    form = topic_documents.format_of(file, form)
    settings = _settings()
    tree = control_log.read_tree(settings.kafka)
    data = topic_documents.write_document(tree.records(), form, base_dn or settings.directory.base_dn)
    if file is None:
        print_document(data)
        return
    write_output(file, data)
    print_error(f"{len(tree)} topics written to {file}")
