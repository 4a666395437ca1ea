"""`arborcast topics import --from-ldap`: the organizational units of another system's LDAP server as topics."""

from __future__ import annotations

from urllib.parse import urlsplit

from arborcast.admin import topic_units, topics
from arborcast.cli.users import read_password
from arborcast.core.errors import ConfigError
from arborcast.core.printable import one_line
from arborcast.core.settings import KafkaSettings
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.mapping import EntryProblem
from arborcast.directory.errors import DirectoryError, DnError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.ldap_connection import NoSuchEntry
from arborcast.engine.monitoring.figures import many
from arborcast.engine.terminal import ProgressShown, print_error, print_json, print_line

# Number of skipped entries that are named; beyond it only the count is shown.
_MAX_NAMED = 50


def server(url: str, base: str, bind_dn: str, stdin: bool, start_tls: bool, ca_file: str) -> DirectorySettings:
    """Connection settings of the other system's server; prompts for the password. Raises ConfigError."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError("--from-ldap: no user in the address; use --bind-dn, with the password at the prompt")
    if parts.scheme not in ("ldap", "ldaps", "ldapi") or not parts.netloc:
        raise ConfigError(f"--from-ldap {url}: ldap://HOST, ldaps://HOST or ldapi://SOCKET is needed")
    if parts.path.strip("/") or parts.query:
        raise ConfigError(f"--from-ldap {url}: only the server; what to read is --base")
    try:
        dn = parse_dn(base)
        parse_dn(bind_dn)
    except DnError as error:
        raise ConfigError(f"--base or --bind-dn: {error}") from error
    if not dn:
        raise ConfigError("--base is empty: name the entry whose units are the topics, for instance ou=topics,dc=old")
    if start_tls and parts.scheme == "ldaps":
        raise ConfigError("--start-tls is for ldap:// addresses; with ldaps:// the connection is secured already")
    if stdin and not bind_dn:
        raise ConfigError("--stdin is the password of --bind-dn: name it, too")
    prompt = f"Password of {one_line(bind_dn)}"
    return DirectorySettings(
        kind="ldap",
        url=url,
        base_dn=base,
        start_tls=start_tls,
        ca_file=ca_file,
        bind="simple" if bind_dn else "anonymous",
        bind_dn=bind_dn,
        password=read_password(stdin, confirm=False, prompt=prompt) if bind_dn else "",
    )


def import_units(
    kafka: KafkaSettings, where: DirectorySettings, root: str | None, *, dry_run: bool, json: bool
) -> None:
    """Add the missing topics; the counts. Raises ConfigError, TopicError, DirectoryError,
    InfrastructureError."""
    top = topics.one_topic(root, {}) if root else None
    try:
        with ProgressShown() as progress:
            found = topic_units.import_units(kafka, where, top, dry_run=dry_run, progress=progress)
    except NoSuchEntry as error:
        who = f"{where.bind_dn} may read it" if where.bind_dn else "anonymous clients may read it, or give --bind-dn"
        raise ConfigError(f"{where.url} has no entry {where.base_dn}: check --base, and that {who}") from error
    except DirectoryError as error:
        text = str(error)
        for setting, option in _OPTIONS.items():
            text = text.replace(setting, option)
        raise DirectoryError(text, error.retry_after) from error
    _print_problems(found.problems)
    counts = {"added": len(found.topics), "unchanged": found.unchanged, "skipped": len(found.problems)}
    if json:
        more = {"other_entries": found.others, "left_out": dict(found.left_out)}
        print_json({**counts, **more, "topics": [each.path for each in found.topics]})
        return
    for each in found.topics if dry_run else ():
        print_line(one_line(f"would add {each.path} {each.code}".rstrip()))
    print_line(", ".join(f"{number} {word}" for word, number in counts.items()))
    if found.others:
        print_error(f"{found.others} entries are no organizational units, or lie below such")
    for name, number in sorted(found.left_out.items()):
        print_error(one_line(f"left out: the attribute {name} of {many(number, 'topic')}"))


# Messages of connections name settings of our own directory; here these are options.
_OPTIONS = {
    "directory.bind, directory.bind_dn and directory.password": "--bind-dn and its password",
    "directory.ca_file, directory.certificate_file or directory.key_file": "--ca-file",
    "directory.password is empty": "the password is empty",
    "directory.ca_file": "--ca-file",
    "directory.url": "--from-ldap",
}


def _print_problems(problems: tuple[EntryProblem, ...]) -> None:
    for problem in problems[:_MAX_NAMED]:
        print_error(one_line(f"skipped {problem}"))
    if len(problems) > _MAX_NAMED:
        print_error(f"skipped {len(problems) - _MAX_NAMED} more")
