"""doctor and stress."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import aclosing, closing
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_support import in_a_process, invoke

from backends import RunAsync
from patience import PATIENCE, hear
from repertory import __version__
from repertory.cli import doctor
from repertory.cli.commands import write_answer
from repertory.cli.torture import finish
from repertory.errors import RepertoryError
from repertory.llm import AnthropicModel, Text
from repertory.llm.messages import RawBlock
from repertory.service.health import Check, sqlite_check
from repertory.testing import FunctionModel, call, open_messages_server
from repertory.torture.appends import run_appends


def checks_of(home: Path, *words: str, **env: str) -> dict[str, Any]:
    """What the doctor found, by name."""
    result = invoke("doctor", "--json", *words, home=home, env=env)
    assert result.json["ok"] == (result.code == 0)
    return {check["name"]: check for check in result.json["checks"]}


def test_a_fresh_machine_is_well(tmp_path: Path) -> None:
    """Nothing is set and nothing is there yet, which is no problem; and looking makes nothing."""
    checks = checks_of(tmp_path)
    looked_at = ["python", "libraries", "sqlite", "data folder", "database", "key", "server", "model"]
    assert list(checks) == looked_at
    assert all(check["verdict"] != "problem" for check in checks.values())
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_reads_well_for_a_person(made: Path, tmp_path: Path) -> None:
    """One line for each check, the verdict first, without spaces behind it, nor where it is broken into several."""
    result = invoke("doctor", "--llm", "--db", made, home=tmp_path)
    assert result.code == 0
    narrow = invoke("doctor", "--db", made, home=tmp_path, env={"COLUMNS": "50"})
    assert not any(line.endswith(" ") for line in (result.out + narrow.out).split("\n"))
    verdicts = {line[4:].split("  ")[0].strip(): line[:2] for line in result.out.split("\n") if line[:2].strip()}
    assert verdicts["database"] == "ok"
    assert verdicts["model call"] == "ok"
    assert "holds 3 runs" in result.out


def test_what_keeps_a_database_is_looked_at(made: Path, tmp_path: Path) -> None:
    """Room, and the service."""
    checks = checks_of(tmp_path, "--db", str(made))
    assert (checks["disk"]["verdict"], checks["service"]["verdict"]) == ("ok", "ok")


def test_a_service_is_asked_how_it_is(made: Path, tmp_path: Path) -> None:
    """What it warns of is a warning here."""
    command = [sys.executable, "-m", "repertory", "serve", "--db", str(made), "--socket", str(tmp_path / "s")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            hear(service.stderr, "serving")
            assert "the service at unix:" in checks_of(tmp_path, "--db", str(made))["service"]["fact"]
        finally:
            service.kill()
            service.communicate(timeout=PATIENCE)


def test_the_key_is_named_and_never_shown(tmp_path: Path) -> None:
    """Which variable is set, not what it holds; white space around it, a common mistake, is a problem."""
    result = invoke("doctor", "--json", home=tmp_path, env={"ANTHROPIC_API_KEY": "sk-canary"})
    assert "ANTHROPIC_API_KEY is set" in result.out
    assert "sk-canary" not in result.out + result.err
    checks = checks_of(tmp_path, ANTHROPIC_API_KEY="sk-canary\n")
    assert checks["key"]["verdict"] == "problem"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9 cannot be reached"),
        ("nonsense", "must begin with http:// or https:// and a host, got 'nonsense'"),
        ("http://127.0.0.1:999999", "must begin with http:// or https:// and a host"),
        ("http://127.0.0.1:9?key=secret", "has a query or a fragment"),
        ("http://user:secret@127.0.0.1:9", "http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_a_server_that_cannot_be_reached_is_a_problem(address: str, said: str, tmp_path: Path) -> None:
    """The address is tried for real; a password in it is not repeated."""
    found = checks_of(tmp_path, "--model", "offline", ANTHROPIC_BASE_URL=address)["server"]
    assert found["verdict"] == "problem"
    assert said in found["fact"]
    assert "secret" not in found["fact"]


@pytest.mark.parametrize(("path", "state"), [("", "ok"), ("/v1", "warn")])
def test_a_server_that_listens_is_reached(path: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listening socket will do; an address that ends in /v1 would be asked for /v1/v1/messages."""

    async def main() -> Any:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{port}{path}")
            return await doctor._server()

    assert anyio.run(main).state == state


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ((3, 40, 1), "warn"),
        ((3, 44, 6), "ok"),
        ((3, 45, 0), "warn"),
        ((3, 50, 7), "ok"),
        ((3, 51, 2), "warn"),
        ((3, 51, 3), "ok"),
        ((3, 52, 0), "ok"),
    ],
)
def test_the_wal_reset_bug_is_known_by_its_versions(version: tuple[int, int, int], state: str) -> None:
    """Fixed in 3.51.3, and in 3.50.7 and 3.44.6 for those branches."""
    assert sqlite_check(version).state == state


def test_a_folder_or_a_database_open_to_others_is_a_warning(tmp_path: Path) -> None:
    """What agents read and write is nobody else's business; the advice is a command."""
    folder = tmp_path / "data" / "repertory"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    found = checks_of(tmp_path)["data folder"]
    assert (found["verdict"], found["advice"]) == ("warning", f"chmod go= {folder}")


def test_a_folder_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    """A file stands where the folder should be; root may write anywhere else."""
    (tmp_path / "data").write_text("")
    assert doctor._folder(tmp_path / "data").state in ("fail", "warn")
    result = invoke("demo", home=tmp_path)
    assert result.code == 2
    assert "cannot make the folder" in result.err


def test_only_the_folder_of_the_database_is_looked_at(tmp_path: Path) -> None:
    """A home that cannot be written does no harm to a database elsewhere; one below a file or a dead link has no use of
    a good home."""
    (tmp_path / "data").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for folder, verdict in (("new", "ok"), ("data", "problem"), ("link", "problem")):
        found = checks_of(tmp_path, "--db", str(tmp_path / folder / "a.db"))["data folder"]
        assert (found["verdict"], folder) == (verdict, folder)


def test_a_damaged_database_is_a_problem(tmp_path: Path) -> None:
    """The exit code says so too."""
    path = tmp_path / "letter.db"
    path.write_text("Dear reader, " * 100)
    assert checks_of(tmp_path, "--db", str(path))["database"]["verdict"] == "problem"


def test_a_model_that_makes_no_sense_is_a_problem_and_an_unknown_one_a_warning(tmp_path: Path) -> None:
    """Costs cannot be known for a model without prices, which one should know."""
    assert checks_of(tmp_path, "--model", "gpt-4")["model"]["verdict"] == "problem"
    assert checks_of(tmp_path, "--model", "claude-unheard-of")["model"]["verdict"] == "warning"
    failed = checks_of(tmp_path, "--model", "claude-opus-5", "--llm")["model call"]
    assert failed["verdict"] == "problem"
    assert "ModelAuthenticationError" in failed["fact"]


async def ask_for_a_tool(answer: Any) -> Check:
    """What the doctor finds of a model that answers so, over HTTP."""
    async with (
        open_messages_server(FunctionModel(lambda _: answer)) as server,
        aclosing(AnthropicModel("claude-opus-5", base_url=server.url)) as model,
    ):
        return await doctor._call(model)


@pytest.mark.parametrize(
    ("answer", "state", "said"),
    [
        (call("search", query="lighthouse"), "ok", "called search(query='lighthouse') in "),
        ([Text("I look."), call("search", query="lighthouse")], "ok", "called search"),
        (
            "It is 40 m high.",
            "warn",
            "asked to call a tool, but answered 'It is 40 m high.'",
        ),
        (call("search", word="lighthouse"), "warn", "'input': {'word': 'lighthouse'}"),
        (call("search", query=["lighthouse"]), "warn", "not legal"),
        (call("functions.search", query="lighthouse"), "warn", "'name': 'functions.search'"),
        (RawBlock({"type": "tool_use", "id": 7, "name": "search", "input": None}), "warn", "'id': 7"),
        (call("search", call_id="functions.search:0", query="x"), "warn", "'id': 'functions.search:0'"),
    ],
    ids=repr,
)
def test_a_model_that_does_not_call_a_tool_is_a_warning(
    answer: Any, state: str, said: str, run_async: RunAsync
) -> None:
    """What came is quoted, and the advice says that agents need tools."""
    found = run_async(ask_for_a_tool, answer)
    assert (found.name, found.state) == ("model call", state)
    assert said in found.fact
    assert ("agents need tools" in found.advice) is (state == "warn")


def test_a_model_is_asked_only_on_request(tmp_path: Path) -> None:
    """It may cost something; in JSON it is a check like every other."""
    assert checks_of(tmp_path, "--llm")["model call"]["verdict"] == "ok"
    assert "model call" not in checks_of(tmp_path)


def test_versions_are_shown(tmp_path: Path) -> None:
    """The same numbers that the package index would give."""
    assert f"rich {metadata.version('rich')}" in checks_of(tmp_path)["libraries"]["fact"]
    assert invoke("--version", home=tmp_path).out == f"repertory {__version__}\n"


@pytest.mark.parametrize("words", [(), ("--backend", "asyncio"), ("--durable",)], ids=str)
def test_stress_finds_nothing_wrong(words: tuple[str, ...], tmp_path: Path) -> None:
    """Tasks and threads at once; all of it is found again in the file."""
    options = ("--writers", "6", "--appends", "20", "--threads", "2")
    report = invoke("stress", *options, "--json", *words, home=tmp_path).json
    assert report["clean"] is True
    assert (report["acknowledged"], report["lost"], report["threads"]) == (120, 0, 2)
    assert report["snapshots_checked"] > 0


def test_stress_reads_well_and_keeps_the_database_on_request(tmp_path: Path) -> None:
    """With --db the record stays, and is a database like any other."""
    path = tmp_path / "stress.db"
    result = invoke("stress", "--writers", "2", "--appends", "5", "--db", path, home=tmp_path)
    assert result.code == 0
    lines = [line.rsplit(maxsplit=1) for line in result.out.splitlines()]
    assert {("acknowledged", "10"), ("lost", "0"), ("clean", "yes")} <= {(name, value) for name, value in lines}
    assert path.exists()


def test_stress_fails_when_something_is_wrong() -> None:
    """Negative control: one lost append is an error, whatever else is in order."""
    import msgspec

    report = anyio.run(lambda: run_appends(writers=2, appends=3, threads=0))
    write_answer(finish(report), as_json=True)
    with pytest.raises(RepertoryError, match="not every promise was kept"):
        write_answer(finish(msgspec.structs.replace(report, lost=1)), as_json=False)


def test_help_imports_nothing_but_typer(home: Path) -> None:
    """What help costs is what typer costs: no event loop, no rich, no msgspec is loaded for it."""
    import subprocess
    import sys

    code = (
        "import sys\nfrom repertory.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = 'anyio trio asyncio rich msgspec anthropic aiosqlite structlog'.split()\n"
        "print(sorted(set(heavy) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_entry_point_is_installed(home: Path) -> None:
    """``repertory`` and ``python -m repertory`` are the same thing, and both speak of ``repertory``."""
    (script,) = metadata.entry_points(group="console_scripts", name="repertory")
    assert script.value == "repertory.cli:main"
    assert in_a_process("--help", home=home).out.startswith("Usage: repertory ")
    # Which shell it is is found by looking at the parents of the process, which in CI may be none.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    completion = in_a_process("--show-completion", "bash", home=home, env=named)
    assert completion.code == 0
    assert "_REPERTORY_COMPLETE" in completion.out


def test_the_doctor_finds_damage_when_it_looks_deep(made: Path, tmp_path: Path) -> None:
    """A record that was changed behind the journal's back is named; without ``--deep`` it is not looked for."""
    assert "all of it is intact" in checks_of(tmp_path, "--deep", "--db", str(made))["database"]["fact"]
    copy = tmp_path / "damaged.db"
    shutil.copy(made, copy)
    with closing(sqlite3.connect(copy)) as database, database:
        database.execute("UPDATE entries SET content = replace(content, 'e', 'a') WHERE position = 1")
    database.close()
    assert checks_of(tmp_path, "--db", str(copy))["database"]["verdict"] != "problem"
    found = checks_of(tmp_path, "--deep", "--db", str(copy))["database"]
    assert found["verdict"] == "problem"
    assert "in entries (run_id" in found["fact"]


COMPANY = """
[agents.clerk]
file = "clerk.md"
[[webhooks]]
url = "https://example.com/hook"
secret_env = "HOOK"
[[schedules]]
name = "morning"
agent = "clerk"
task = "Sort what came on {date}."
cron = "0 7 * * *"
timezone = "Europe/Berlin"
"""


def test_a_company_file_is_looked_at_without_a_start(tmp_path: Path) -> None:
    """Its agents load, its secrets are there, its schedules have a next time; what is wrong is said with its line."""
    (tmp_path / "clerk.md").write_text("---\nname: clerk\ndescription: Sorts.\n---\nYou sort.\n")
    file = tmp_path / "company.toml"
    file.write_text(COMPANY)
    words = ("doctor", str(file), "--json")
    refused = invoke(*words, home=tmp_path)
    assert refused.code == 1
    assert "line 6: [webhooks] secret_env" in refused.out
    found = invoke(*words, home=tmp_path, env={"HOOK": "whsec_" + "A" * 32}).json
    facts = [check["fact"] for check in found["checks"] if check["name"] in ("company", "schedule", "database")]
    assert "1 agent: clerk; it has the secrets of its webhooks" in facts[0]
    assert facts[1].startswith("morning is due next at 20")
    assert facts[1].endswith(" 07:00 Europe/Berlin")
    assert facts[2] == f"there is no journal at {tmp_path / 'company.db'} yet; repertory up makes one"
    assert not (tmp_path / "company.db").exists()


def test_units_are_written_where_systemd_looks(tmp_path: Path) -> None:
    """What starts the service can be copied as it stands."""
    written = invoke("service", "install", home=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert written.code == 0
    assert "\n  systemctl --user enable --now repertory.service\n" in written.err
    assert "Type=notify" in (tmp_path / "config" / "systemd" / "user" / "repertory.service").read_text()


def test_a_company_whose_model_has_no_key_is_not_brought_up(tmp_path: Path) -> None:
    """The doctor finds it, and ``up`` refuses, rather than that each run fails."""
    agent = "---\nname: clerk\ndescription: Sorts.\nmodel: claude-sonnet-5-5\n---\nYou sort.\n"
    (tmp_path / "clerk.md").write_text(agent)
    file = tmp_path / "company.toml"
    file.write_text('[agents.clerk]\nfile = "clerk.md"\n')
    nothing = {"ANTHROPIC_CONFIG_DIR": str(tmp_path / "none"), "ANTHROPIC_AUTH_TOKEN": "", "HOME": str(tmp_path)}
    found = checks_of(tmp_path, str(file), **nothing)["company"]
    assert (found["verdict"], "set ANTHROPIC_API_KEY" in found["fact"]) == ("problem", True), found
    result = invoke("up", str(file), home=tmp_path, env=nothing)
    assert (result.code, "set ANTHROPIC_API_KEY" in result.err) == (1, True)
    assert checks_of(tmp_path, str(file), **nothing, ANTHROPIC_API_KEY="key")["company"]["verdict"] == "ok"


def test_a_database_that_is_not_there_is_not_moved(tmp_path: Path) -> None:
    """As every other command says of it, and no new one is made."""
    result = invoke("migrate", str(tmp_path / "none.db"), str(tmp_path / "new.db"), home=tmp_path)
    assert (result.code, "no database at" in result.err) == (4, True)
    assert not (tmp_path / "new.db").exists()
