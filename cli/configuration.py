"""`arborcast init`: a settings file with defaults. `arborcast config`: settings in force, with their sources.
`arborcast bundle`: files for a Spark cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from arborcast.cli.common import ENGINE, OPERATING, CommandGroup, JsonOption, settings_of
from arborcast.core.errors import ConfigError
from arborcast.core.files import write_output
from arborcast.engine.terminal import console, print_document, print_json, print_line

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", help="Name a master in the file; without, spark-submit's own --master decides.", metavar="URL"
    ),
]


def register(app: typer.Typer) -> None:
    group = CommandGroup(help="Show the settings.", no_args_is_help=True)
    group.command("show")(show)
    group.command("spark")(spark)
    group.command("schema", cls=TyperCommand)(schema)
    app.command(rich_help_panel=ENGINE, cls=TyperCommand)(init)
    app.add_typer(group, name="config", rich_help_panel=ENGINE)
    app.command(rich_help_panel=OPERATING)(bundle)


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.", metavar="FILE")] = Path("arborcast.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print it instead.")] = False,
) -> None:
    """Write a settings file with the most common settings, commented out."""
    from arborcast.admin.configuration import example

    if stdout:
        print_document(example().encode())
        return
    if file.exists() and not force:
        raise ConfigError(f"{file} exists: --force overwrites it, --stdout only prints")
    write_output(file, example())
    print_line(f"wrote {file}: the most common settings with their defaults, commented out")


def show(json: JsonOption = False) -> None:
    """Print every setting's value and origin. Secrets are hidden."""
    from arborcast.admin.configuration import in_force

    found = in_force(settings_of())
    if json:
        print_json({each.key: {"value": each.value, "origin": each.origin} for each in found})
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for each in found:
        plain = each.origin == "default"
        table.add_row(each.key, escape(str(each.value)), escape(each.origin), style="dim" if plain else "bold")
    console().print(table)


def schema() -> None:
    """Print the JSON Schema of a settings file, for editors."""
    from arborcast.engine.settings.loading import json_schema

    print_json(json_schema())


def spark(master: MasterOption = None) -> None:
    """Print the properties file for spark-submit."""
    from arborcast.admin.bundle import spark_properties

    print_document(spark_properties(settings_of().dispatch, master).encode())


def bundle(
    folder: Annotated[Path, typer.Argument(help="Where to write it.", metavar="FOLDER")],
    master: MasterOption = None,
    python: Annotated[
        str, typer.Option(help="The Python of the cluster's hosts, with Arborcast's packages.", metavar="PATH")
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

    settings = settings_of()
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
    print_line(f"wrote {code}, {script.name}, {file.name}; to run it:")
    if cluster is not None:
        for daemon in ("start-master.sh", "start-worker.sh URL"):
            print_line(f"  {daemon} --properties-file {cluster}")
    chosen = "" if master else "--master URL "
    print_line(f"  spark-submit {chosen}--properties-file {file} {script} --config FILE")
