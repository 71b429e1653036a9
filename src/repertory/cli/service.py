"""``repertory service``: writes the systemd units that keep a service running."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from repertory.cli import output
from repertory.cli.options import argument, option
from repertory.errors import ConfigurationError

service = typer.Typer(help="Write the systemd units of a service that your user runs.")

_WORDS = argument("COMMAND...", "What the unit runs: serve or up, with their options. Default: serve --resume.", ())
_NAME = option("--name NAME", "The name of the unit, without .service.", "repertory")
_ACTIVATED = option(
    "--socket-activation",
    "Let systemd hold the socket: clients wait while the service starts, and the first of them starts it.",
    False,
)
# Options after the name of the command belong to that command: serve has options that print has not.
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@service.command("print", context_settings=_PASSED_ON)
def print_units(words: list[str] = _WORDS, *, name: str = _NAME, socket_activation: bool = _ACTIVATED) -> None:
    """Show the units.

    Options of the unit come before the command, the command's own after it, as in
    service print --name clerks serve --agent my_agents:clerk --resume.
    """
    for file, text in _units(words, name, activated=socket_activation).items():
        output.write(f"# {file}\n{text}")


@service.command(context_settings=_PASSED_ON)
def install(
    words: list[str] = _WORDS,
    *,
    name: str = _NAME,
    socket_activation: bool = _ACTIVATED,
    force: bool = option("--force", "Replace existing units that differ.", False),
) -> None:
    """Write the units into your systemd folder.

    They are for your own user and run in this folder. Nothing is started.
    """
    folder = unit_folder()
    units = {folder / file: text for file, text in _units(words, name, activated=socket_activation).items()}
    for path, text in units.items():
        if not force and path.exists() and path.read_text(encoding="utf-8") != text:
            raise ConfigurationError(f"{path} exists and differs; --force replaces it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in units.items():
            beside = path.with_name(f".{path.name}.new")
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
            output.say(f"wrote {path}")
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}") from error
    started = f"{name}.socket" if socket_activation else f"{name}.service"
    output.say("start it, and keep it running while you are logged out, with:")
    # To be copied: without a prefix.
    output.remark(
        f"  systemctl --user daemon-reload\n  systemctl --user enable --now {started}\n  loginctl enable-linger"
    )


def _units(words: list[str], name: str, *, activated: bool) -> dict[str, str]:
    from repertory.service.systemd import SOCKET_UNIT, service_unit

    words = list(words) or ["serve", "--resume"]
    if words[0] not in ("serve", "up"):
        raise ConfigurationError(f"a unit runs serve or up, not {words[0]!r}; as in: service print serve --resume")
    if "--detach" in words:
        raise ConfigurationError("systemd itself keeps the service in the background; leave --detach out")
    if not name or not all(letter.isalnum() or letter in "-_.@" for letter in name):
        raise ConfigurationError(f"a unit's name has letters, digits and any of -_.@, got {name!r}")
    command = [sys.executable, "-m", "repertory", *words]
    units = {f"{name}.service": service_unit(command, folder=os.getcwd(), name=name, activated=activated)}
    return units | ({f"{name}.socket": SOCKET_UNIT} if activated else {})


def unit_folder() -> Path:
    """The folder of the user's own units; see systemd.unit(5)."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".config") / "systemd" / "user"
