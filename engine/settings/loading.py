"""The only place that reads settings: a TOML file, `ARBORCAST_…` variables, options.

In order of precedence: command line option, environment variable, file, default. Every value has its origin, for
`arborcast config show` and for errors. An unknown key is an error that names the nearest known one: an ignored
misspelling would be found too late.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from arborcast.core.errors import ConfigError
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.core.printable import as_json, is_utf8
from arborcast.core.reasons import reason_of
from arborcast.core.security.ip_addresses import connect_host, in_url, is_loopback
from arborcast.core.security.outbound import OutboundSettings
from arborcast.core.settings import KafkaSettings, SecretSettings, SettingInfo
from arborcast.core.telemetry.tracing import TracingSettings
from arborcast.directory.settings import DirectorySettings
from arborcast.dispatch.settings import DispatchSettings, PushSettings, RetrySettings, SloSettings, TableSettings
from arborcast.engine.settings.stack import ConsoleSettings, LoggingSettings, MetricsSettings, StackSettings
from arborcast.ingest.access.settings import AccessSettings, LimitSettings, TlsSettings
from arborcast.ingest.federation.settings import FederationSettings
from arborcast.ingest.settings import FragmentSettings, FramedSettings, GatewaySettings, TopicSettings, ZmqSettings

ENV_PREFIX = "ARBORCAST_"

DEFAULT_HOME = ".arborcast"

DEFAULT_FILE = "arborcast.toml"

# Variables with the prefix that are not settings: locations on this machine.
RESERVED_ENV = frozenset({"HOME", "CONFIG", "CACHE", "JAVA", "LOG_FORM", "READY_FILE"})

# Settings of files and folders, beside those with a name that ends in _file.
_PATHS = frozenset(
    {
        "directory.file",
        "push.tls_client_certificate",
        "push.tls_client_key",
        "secrets.client_certificates",
        "tables.path",
    }
)

# Of these, the engine creates those that are missing; by default in the data directory, with these names.
OWN_FILES: Mapping[str, str] = {
    "tables.path": "tables",
    "directory.file": "topics.ldif",
    "access.users_file": "users.toml",
    "secrets.key_file": "secrets.keys",
}

Scalar = str | int | float | bool

SectionT = TypeVar("SectionT")


@dataclass(frozen=True)
class Settings:
    """All settings of one engine, with their origins (`kafka.prefix` -> "arborcast.toml")."""

    home: Path
    kafka: KafkaSettings
    topics: TopicSettings
    directory: DirectorySettings
    gateway: GatewaySettings
    fragments: FragmentSettings
    framed: FramedSettings
    zmq: ZmqSettings
    mqtt: MqttSettings
    federation: FederationSettings
    tls: TlsSettings
    access: AccessSettings
    limits: LimitSettings
    dispatch: DispatchSettings
    push: PushSettings
    retry: RetrySettings
    outbound: OutboundSettings
    tables: TableSettings
    slo: SloSettings
    secrets: SecretSettings
    stack: StackSettings
    metrics: MetricsSettings
    console: ConsoleSettings
    logging: LoggingSettings
    tracing: TracingSettings
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def gateway_url(self) -> str:
        """The address of the gateway for clients on its machine."""
        scheme = "https" if self.tls.certificate_file else "http"
        return f"{scheme}://{in_url(connect_host(self.gateway.host))}:{self.gateway.port}"

    @property
    def framed_url(self) -> str:
        """The address of the framed edge for clients on its machine; empty without the edge."""
        scheme, port = "framed+tls" if self.tls.certificate_file else "framed", self.framed.port
        return f"{scheme}://{in_url(connect_host(self.gateway.host))}:{port}" if port else ""

    @property
    def console_url(self) -> str:
        """The address of the console for clients on its machine; empty without a console. On loopback without TLS:
        browsers would not trust the certificate."""
        host, port = self.console.host, self.console.port
        scheme = "https" if self.tls.certificate_file and not is_loopback(host) else "http"
        return f"{scheme}://{in_url(connect_host(host))}:{port}" if port else ""

    @property
    def job_metrics_url(self) -> str:
        """The address of the dispatch job's metrics for clients on its machine; empty if its port is not known."""
        host, port = in_url(connect_host(self.metrics.host)), self.metrics.job_port
        return f"http://{host}:{port}" if port else ""


SECTIONS: Mapping[str, type] = {
    name: cls for name, cls in typing.get_type_hints(Settings).items() if name not in ("home", "origins")
}


@dataclass(frozen=True)
class Declaration:
    section: str
    name: str
    type: Any
    default: Scalar
    info: SettingInfo

    @property
    def key(self) -> str:
        """`section.name`, as in messages and documents."""
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return (ENV_PREFIX + self.key.replace(".", "_")).upper()

    @property
    def is_path(self) -> bool:
        return self.name.endswith("_file") or self.key in _PATHS

    @property
    def annotated(self) -> Any:
        """The type with its range and description."""
        return Annotated[
            self.type, msgspec.Meta(ge=self.info.minimum, le=self.info.maximum, description=self.info.help)
        ]

    def allowed(self) -> str:
        """The allowed values, as text."""
        if typing.get_origin(self.type) is Literal:
            return "one of " + ", ".join(repr(choice) for choice in typing.get_args(self.type))
        text = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[self.type]
        low, high = self.info.minimum, self.info.maximum
        if low is not None and high is not None:
            text += f" from {low:g} to {high:g}" if isinstance(low, float) else f" from {low} to {high}"
        elif low is not None:
            text += f", at least {low}"
        elif high is not None:
            text += f", at most {high}"
        return text + (f" ({self.info.unit})" if self.info.unit else "")


def declarations() -> list[Declaration]:
    """All settings, in the order of the reference page."""
    return [
        Declaration(section, each.name, hints[each.name], typing.cast(Scalar, each.default), each.metadata["setting"])
        for section, cls in SECTIONS.items()
        for hints in [typing.get_type_hints(cls)]
        for each in dataclasses.fields(cls)
    ]


def load_settings(
    config: Path | None = None,
    home: Path | None = None,
    overrides: Mapping[str, Scalar] | None = None,
    environ: Mapping[str, str] = types.MappingProxyType(os.environ),
) -> Settings:
    """Read, check and assemble the settings.

    `config` is the TOML file (else $ARBORCAST_CONFIG, else arborcast.toml in the current folder if it exists);
    `overrides` maps `section.name` to a value of the command line. Raises ConfigError.
    """
    file = _config_file(config, environ)
    known = {declaration.key: declaration for declaration in declarations()}
    values: dict[str, Scalar] = {key: declaration.default for key, declaration in known.items()}
    origins = dict.fromkeys(values, "default")

    document = _read_file(file) if file else {}
    folder = file.parent if file else Path()
    home_path, origins["home"] = _home(home, environ, document.pop("home", None), file)
    by_variable = {declaration.env: declaration for declaration in known.values()}
    wrong: list[str] = []

    def take(declaration: Declaration, value: object, where: str, origin: str, *, strict: bool = True) -> None:
        try:
            checked = _checked(declaration, value, where, strict=strict)
            if isinstance(checked, str) and declaration.is_path:
                checked = _placed(checked, folder if origin == str(file) else Path())
            values[declaration.key] = checked
            origins[declaration.key] = origin
        except ConfigError as error:
            wrong.append(str(error))

    for key, value in _flatten(document, file, wrong):
        if key in known:
            take(known[key], value, str(file), str(file))
        else:
            wrong.append(_no_setting(key, known, str(file)))
    for variable, text in _our_variables(environ):
        if declaration := by_variable.get(variable):
            take(declaration, text, f"${variable}", f"${variable}", strict=False)
        else:
            wrong.append(_no_setting(variable, by_variable, "the environment"))
    for key, value in (overrides or {}).items():
        if key in known:
            take(known[key], value, "the command line", "command line")
        else:
            wrong.append(_no_setting(key, known, "the command line"))
    if wrong:
        # All errors: a file with three mistakes is corrected in one step.
        raise ConfigError("\n".join(wrong))

    _fill_from_home(home_path, values, origins)
    for key, value in {"home": str(home_path), **values}.items():
        if isinstance(value, str) and not is_utf8(value):
            raise ConfigError(f"{origins[key]}: {key} is not UTF-8: write the value in UTF-8, or rename the folder")

    sections: dict[str, Any] = {name: _build(cls, name, values) for name, cls in SECTIONS.items()}
    return Settings(home=home_path, origins=origins, **sections)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a settings file, for editors."""
    sections: list[tuple[str, type, Any]] = []
    for name in SECTIONS:
        fields = [(each.name, each.annotated, each.default) for each in declarations() if each.section == name]
        section = msgspec.defstruct(name, fields, forbid_unknown_fields=True)
        sections.append((name, section, msgspec.field(default_factory=section)))
    home = ("home", Annotated[str, msgspec.Meta(description="The data directory, relative to the file.")], DEFAULT_HOME)
    return msgspec.json.schema(msgspec.defstruct("arborcast", [home, *sections], forbid_unknown_fields=True))


def level_of(settings: Settings) -> int:
    """The level of logging in the numbers of the standard library."""
    return logging.getLevelNamesMapping()[settings.logging.level.upper()]


def dump(settings: Settings) -> str:
    """The effective settings as TOML, which `load_settings` reads without a change. Contains secrets: restrict the file
    mode."""
    lines = [f"home = {toml(str(settings.home))}"]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        values = getattr(settings, section)
        lines += [f"{field.name} = {toml(getattr(values, field.name))}" for field in dataclasses.fields(values)]
    return "\n".join(lines) + "\n"


def _config_file(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    if config is not None:
        return config.expanduser().absolute()
    if environ.get(ENV_PREFIX + "CONFIG"):
        return Path(environ[ENV_PREFIX + "CONFIG"]).expanduser().absolute()
    default_file = Path(DEFAULT_FILE).absolute()
    return default_file if default_file.exists() else None


def _home(chosen: Path | None, environ: Mapping[str, str], written: object, file: Path | None) -> tuple[Path, str]:
    """The data directory, and its origin; `written` is that of the file."""
    path, origin = Path(DEFAULT_HOME), "default"
    if file is not None and written is not None:
        if not isinstance(written, str) or not written:
            raise ConfigError(f"{file}: home = {written!r} must be the path of the data directory")
        # Relative to the file, so that the data directory does not depend on the current folder.
        path, origin = file.parent / written, str(file)
    if variable := environ.get(ENV_PREFIX + "HOME"):
        path, origin = Path(variable), f"${ENV_PREFIX}HOME"
    if chosen is not None:
        path, origin = chosen, "command line"
    return path.expanduser().absolute(), origin


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))  # Windows' editors write a mark
    except FileNotFoundError as error:
        raise ConfigError(f"the settings file {file} does not exist: `arborcast init {file}` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {file} cannot be read: {reason_of(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the settings file {file} is not valid TOML: {error}") from error


def _flatten(document: Mapping[str, Any], file: Path | None, wrong: list[str]) -> list[tuple[str, Any]]:
    flat = []
    for section, content in document.items():
        if section not in SECTIONS:
            wrong.append(_no_setting(section, SECTIONS, str(file)))
        elif not isinstance(content, dict):
            wrong.append(f"{file}: {section} must be a table, written [{section}]")
        else:
            for name, value in content.items():
                if name in SECTIONS and isinstance(value, dict):
                    key = f"{name}.{next(iter(value), '')}"
                    wrong.append(f"{file}: {key} is below [{section}]: write it above all tables, or below [{name}]")
                else:
                    flat.append((f"{section}.{name}", value))
    return flat


def _our_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, value in sorted(environ.items())
        if name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX) not in RESERVED_ENV
    ]


def _no_setting(key: str, known: Mapping[str, object], where: str) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; `arborcast config show` lists them all"
    return f"{where}: there is no setting {key}{hint}"


def _checked(declaration: Declaration, value: object, where: str, *, strict: bool = True) -> Scalar:
    """The value in the type of its setting; without `strict`, read from the text of a variable."""
    try:
        if not strict and declaration.type is bool:
            value = {"yes": True, "no": False}.get(str(value).lower(), value)
        checked = msgspec.convert(value, declaration.annotated, strict=strict)
        if not isinstance(checked, float) or math.isfinite(checked):  # TOML has inf and nan
            return typing.cast(Scalar, checked)
    except msgspec.ValidationError:
        pass
    shown = "(hidden)" if declaration.info.secret else repr(value)
    raise ConfigError(f"{where}: {declaration.key} = {shown} is not allowed; it must be {declaration.allowed()}")


def _placed(path: str, folder: Path) -> str:
    """The absolute path: commands and the parts of an engine have different current folders, and that of the job is
    emptied at its start. URLs are unchanged."""
    return path if not path or "://" in path else str((folder / path).absolute())


def _fill_from_home(home: Path, values: dict[str, Scalar], origins: dict[str, str]) -> None:
    for key, name in OWN_FILES.items():
        if values[key] == "":
            values[key] = str(home / name)
            origins[key] = "data directory"


def _build(cls: type[SectionT], section: str, values: Mapping[str, Scalar]) -> SectionT:
    own = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(section + ".")}
    return cls(**own)


def toml(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # TOML's basic strings accept JSON's escapes.
    return as_json(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
