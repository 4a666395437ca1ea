"""`arborcast init`: a settings file to begin with. `arborcast config`: what is in force, and where it came from.
`arborcast bundle`: what a Spark cluster gets of it."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.cli.common import ENGINE, OPERATING, ConfigOption, HomeOption, JsonOption, settings_of
from arborcast.core.errors import ConfigError
from arborcast.core.reasons import reason_of
from arborcast.engine.terminal import console, print_document, print_json, say

if TYPE_CHECKING:
    from arborcast.engine.settings.loading import Declaration

HIDDEN = "********"

# A proxy or a collector may want a name and a password in its URL.
_PASSWORD = re.compile(r"(?<=://)[^/?#\s]*@")

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", help="Name a master in the file; without, spark-submit's own --master decides.", metavar="URL"
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at the settings.", no_args_is_help=True)
    group.command("show")(show)
    group.command("spark")(spark)
    app.command(rich_help_panel=ENGINE)(init)
    app.add_typer(group, name="config", rich_help_panel=ENGINE)
    app.command(rich_help_panel=OPERATING)(bundle)


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.", metavar="FILE")] = Path("arborcast.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file that is there.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print it instead.")] = False,
) -> None:
    """Write a settings file with what is changed most often, commented out, as it is by default."""
    if stdout:
        print_document(render().encode())
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(render())
    except FileExistsError:
        raise ConfigError(f"{file} is there already: --force overwrites it, --stdout only prints") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {reason_of(error)}") from error
    say(f"wrote {file}: all of it has its default, and a # in front")


def show(config: ConfigOption = None, home: HomeOption = None, json: JsonOption = False) -> None:
    """Print every setting's value and origin. Secrets are hidden."""
    from arborcast.engine.settings.loading import declarations

    settings = settings_of(config, home)
    rows = [("home", str(settings.home), settings.origins["home"])]
    for declaration in declarations():
        value = getattr(getattr(settings, declaration.section), declaration.name)
        shown = HIDDEN if declaration.info.secret and value else value
        if isinstance(shown, str):
            shown = _PASSWORD.sub(f"{HIDDEN}@", shown)
        rows.append((declaration.key, shown, settings.origins[declaration.key]))
    if json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for key, value, origin in rows:
        plain = origin == "default"
        table.add_row(key, escape(str(value)), escape(origin), style="dim" if plain else "bold")
    console().print(table)


def spark(
    config: ConfigOption = None,
    home: HomeOption = None,
    master: MasterOption = None,
) -> None:
    """Print the properties file for spark-submit: the tuned settings, and the jars."""
    from arborcast.dispatch.spark.properties import as_text, needs_secret, properties
    from arborcast.engine.install import jars

    settings = settings_of(config, home)
    if master and needs_secret(settings.dispatch, master):
        raise ConfigError(
            "dispatch.spark_secret is not set: give it the spark.authenticate.secret of the cluster's master and "
            "workers (arborcast bundle makes one, with a file to start them with), or set dispatch.spark_authenticate "
            "= false for a cluster that was started without"
        )
    print_document(as_text(properties(settings.dispatch, jars=jars.jar_paths("spark"), master=master)).encode())


def bundle(
    folder: Annotated[Path, typer.Argument(help="Where to write it.", metavar="FOLDER")],
    config: ConfigOption = None,
    home: HomeOption = None,
    master: MasterOption = None,
    python: Annotated[
        str, typer.Option(help="The Python of the cluster's hosts that has the packages we need.", metavar="PATH")
    ] = "python3",
    driver_python: Annotated[
        str | None,
        typer.Option(
            "--driver-python", help="The same where spark-submit is run.", metavar="PATH", show_default="this one"
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write the streaming job for a Spark cluster: code, script and properties for spark-submit."""
    from arborcast.admin.bundle import write_bundle
    from arborcast.engine.install import jars

    settings = settings_of(config, home)
    code, script, file, cluster = write_bundle(
        folder,
        settings.dispatch,
        jars.jar_paths("spark"),
        master=master,
        python=python,
        driver_python=driver_python or sys.executable,
    )
    if json:
        print_json({"code": code, "script": script, "properties": file, "cluster_properties": cluster})
        return
    say(f"wrote {code}, {script.name}, {file.name}; to run it:")
    if cluster is not None:
        for daemon in ("start-master.sh", "start-worker.sh URL"):
            say(f"  {daemon} --properties-file {cluster}")
    chosen = "" if master else "--master URL "
    say(f"  spark-submit {chosen}--properties-file {file} {script} --config FILE")


INTRODUCTION = """\
# Settings of Arborcast. Commands read this file where it is in the current folder, or as --config FILE names it.
#
# Everything here is commented out and has its default: remove the # in front of what you change.
# docs/settings.md has all settings; arborcast config show says what is in force, and where it came from.
# A variable such as ARBORCAST_KAFKA_PREFIX is stronger than this file.

# The data directory, relative to this file. Without this line it is .arborcast in the current folder.
"""

# Of sections that are not here all of it is written.
_MOST_USED: Mapping[str, tuple[str, ...]] = {
    "kafka": (
        "bootstrap_servers",
        "prefix",
        "partitions",
        "replication",
        "retention_hours",
        "security_protocol",
        "ssl_ca_file",
        "sasl_mechanism",
        "sasl_username",
    ),
    "directory": ("kind", "file", "url", "base_dn", "start_tls", "bind", "bind_dn"),
    "gateway": ("host", "port", "public_url", "trusted_proxies", "workers", "max_body_bytes", "default_termination_s"),
    "tls": ("certificate_file", "key_file", "client_ca_file"),
    "access": ("methods", "open_network", "users", "users_file", "policy_file", "jwks_file", "jwt_issuer"),
    "limits": ("requests_per_s", "bytes_per_s", "deliveries_per_minute", "connections_per_client"),
    "dispatch": ("task_slots", "driver_memory_mb", "max_rows_per_batch", "starting_offsets"),
    "push": ("connect_timeout_s", "total_timeout_s", "max_notify_messages", "max_in_flight_per_endpoint", "proxy"),
    "retry": ("retransmissions", "first_wait_s", "factor", "longest_wait_s", "lifespan_s", "suspend_after_s"),
    "tables": ("path", "interval_s", "archive", "notifications_days", "attempts_days", "deliveries_days"),
    "secrets": ("key_file", "overlap_s", "client_certificates"),
    "stack": ("broker", "job", "home_access", "kafka_port", "kafka_heap_mb", "kafka_fsync", "min_free_disk_mb"),
}

_WIDTH = 110


def render() -> str:
    """The whole file that `init` writes."""
    from arborcast.engine.settings.loading import DEFAULT_HOME, SECTIONS, declarations, toml

    everything = declarations()
    lines = [INTRODUCTION + f"#home = {toml(DEFAULT_HOME)}"]
    for section, cls in SECTIONS.items():
        own = [each for each in everything if each.section == section]
        chosen = [each for each in own if each.name in _MOST_USED.get(section, (each.name,))]
        lines += ["", "", *_comment((cls.__doc__ or "").strip()), f"[{section}]"]
        for each in chosen:
            lines += ["", *_comment(_words(each)), f"#{each.name} = {toml(each.default)}"]
        if others := len(own) - len(chosen):
            lines += ["", f"# {others} more: docs/settings.md"]
    return "\n".join(lines) + "\n"


def _words(each: Declaration) -> str:
    return f"{each.info.help} ({each.info.unit})" if each.info.unit else each.info.help


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
