"""Every command where it was never meant to be: one clear line, a documented code, bounded work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import RUN, Result, invoke, settings

from patience import PATIENCE
from repertory._postgres_address import postgres_address
from repertory.cli.databases import at_option, company_database
from repertory.cli.options import At
from repertory.service.places import Place, anchor_of, announce_service, holding

CODES = {0, 1, 2, 4, 75, 78}
READING = ("ps -a", "stats", "stats --tree", "inspect", "ledger", "doctor", "resume")
KEEPING = ("memory ls", "content ls", "payload show", "backup nowhere.db", "vacuum", "rm run-x")
WRITING = ("run x --model offline", "demo x --model offline", "stress --writers 1 --appends 1", "serve")


def place(kind: str, folder: Path, made: Path) -> Path:
    """A path that is no journal, in one of the ways in which that can be."""
    path = folder / "odd"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            return Path("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "letter":
            path.write_text("Dear reader,\n" * 500)
        case "noise":
            path.write_bytes(bytes(range(256)) * 64)
        case "half":
            path.write_bytes(made.read_bytes()[:5000])
        case "below a file":
            path.write_text("x")
            return path / "runs.db"
        case "long":
            return folder / ("x" * 300)
        case "no text":
            return folder / os.fsdecode(b"\xff\xfe.db")
        case "locked away":
            shutil.copy(made, path)
            path.chmod(0)
    return path


KINDS = ("folder", "pipe", "device", "loop", "letter", "noise", "half", "below a file", "long", "no text")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_journal_is_one_line_for_every_command(kind: str, made: Path, tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes to, a device without end, noise: nothing hangs, and nothing is left there."""
    path = place(kind, tmp_path, made)
    before = sorted(os.listdir(path.parent)) if path.parent.is_dir() and path.parent != Path("/dev") else []
    for command in (*READING, *KEEPING, *WRITING):
        if kind == "no text" and command in WRITING:
            continue  # a name that is no text is a name all the same
        result = invoke(*command.split(), "--db", path, home=tmp_path)
        wrong = (command, kind, result)
        if command == "doctor" and result.code == 0:  # what is not there yet is no problem
            continue
        assert result.code in CODES - {0}, wrong
        assert len(result.err.splitlines()) == 1, wrong
        assert "unexpected" not in result.err, wrong
        assert result.out == "" or command.startswith(("doctor", "demo")), wrong
    if before:
        of_sqlite = {"odd.lock", *(("odd-wal", "odd-shm") if kind == "half" else ())}  # its header is a journal's
        assert sorted(set(os.listdir(path.parent)) - {"data", *of_sqlite}) == before


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_neither_restored_nor_moved(kind: str, made: Path, tmp_path: Path) -> None:
    """Nothing waits for a pipe that nobody writes to, and nothing is made."""
    path, new = place(kind, tmp_path, made), tmp_path / "new.db"
    for result in (
        invoke("restore", path, "--db", new, home=tmp_path),
        invoke("migrate", path, new, home=tmp_path),
        invoke("migrate", made, path, home=tmp_path),
    ):
        assert (result.code, result.out, len(result.err.splitlines())) == (78, "", 1), result
        assert "name a file in its place" in result.err
    assert not new.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_what_may_not_be_read_is_one_line(made: Path, tmp_path: Path) -> None:
    """And the code for it."""
    path = place("locked away", tmp_path, made)
    for command in READING[:-2]:
        result = invoke(*command.split(), "--db", path, home=tmp_path)
        assert (result.code, result.out, len(result.err.splitlines())) == (78, "", 1)


@pytest.mark.parametrize(
    "env",
    [
        *({"COLUMNS": columns} for columns in ("0", "1", "-1", "abc", "٣", "20", "99999999999", "9" * 5000)),
        {"LINES": "0", "COLUMNS": ""},
        {"TERM": "dumb"},
        {"LANG": "C", "LC_ALL": "C"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1", "COLUMNS": "30"},
        {"REPERTORY_DB": ""},
    ],
    ids=lambda env: ",".join(f"{name}={value[:12]}" for name, value in env.items()),
)
def test_no_terminal_is_too_odd_to_write_to(env: dict[str, str], made: Path, tmp_path: Path) -> None:
    """Every reading command answers at any width that the environment may claim, within reason of size."""
    for command in READING[:-1]:
        words = [*command.split(), *([RUN] if command.split()[0] in ("stats", "inspect", "ledger") else [])]
        result = invoke(*words, "--db", made, home=tmp_path, env=env)
        assert result.code == 0, (command, result)
        assert len(result.out) < 100_000
        assert all("the run failed" in line for line in result.err.splitlines())
    assert invoke(home=tmp_path, env=env).code == 0


@pytest.mark.parametrize(
    "words",
    [
        "stress --writers 100000000",
        "stress --writers 0",
        "stress --writers 10000 --appends 1000000",
        "stress --appends -1",
        "stress --threads 1000000",
        f"stress --writers {'9' * 5000}",
        "stress --writers 1e9",
        f"inspect {RUN} --iteration 0",
        f"inspect {RUN} --iteration -7",
        f"inspect {RUN} --iteration abc",
        "serve --port 65536",
        "serve --port -1",
        "run x --backend twisted",
    ],
    ids=lambda words: words[:40],
)
def test_an_absurd_number_is_refused_before_any_work(words: str, tmp_path: Path) -> None:
    """Wrong usage, in one line that names what was given; nothing is made."""
    result = invoke(*words.split(), home=tmp_path)
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1), result
    assert not list(tmp_path.iterdir())


def test_an_iteration_that_was_never_made_is_not_found(made: Path, tmp_path: Path) -> None:
    """However large its number is."""
    result = invoke("inspect", RUN, "--iteration", "9" * 30, "--db", made, home=tmp_path)
    assert (result.code, len(result.err.splitlines())) == (4, 1)


AGENTS = {
    "nothing": "",
    "noise": bytes(range(256)) * 10,
    "broken": "def of(:\n",
    "raises": "raise OSError('no such luck')\n",
    "exits": "import sys\nsys.exit(3)\n",
    "makes": "def agent(**options):\n    return 1 / 0\n",
    "number": "agent = 7\n",
}


@pytest.mark.parametrize("name", [*AGENTS, "folder", ".relative", "a b", "x" * 300, "nul\0"], ids=lambda n: n[:9])
def test_a_module_that_holds_no_agent_is_wrong_usage(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever importing it does, it is one line that names the module, and no database is made."""
    (tmp_path / "folder.py").mkdir()
    for module, text in AGENTS.items():
        (tmp_path / f"odd_{module}.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.syspath_prepend(tmp_path)
    reference = f"{'odd_' if name in AGENTS else ''}{name}:agent"
    for command in (["run", "x"], ["serve"], ["mcp"]):
        result = invoke(*command, "--agent", reference, "--db", tmp_path / "r.db", home=tmp_path)
        assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1), result
        assert not (tmp_path / "r.db").exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 1000, bytes(range(256)) * 20, b"\x1f\x8bxx", b"[" * 100_000, b"{}"])
def test_what_is_no_recording_is_one_line_each(content: bytes, tmp_path: Path) -> None:
    """Empty, zeros, noise, half a gzip, too deep, no messages; and a device, a folder, nothing at all."""
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    result = invoke("replay", path, home=tmp_path)
    assert (result.code, result.out, len(result.err.splitlines())) == (1, "", 1), result


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/nowhere/at/all", "x" * 300])
def test_what_is_no_file_is_no_recording(path: str, tmp_path: Path) -> None:
    """A device is not read: it may have no end."""
    result = invoke("replay", path, home=tmp_path)
    assert (result.code, result.out, len(result.err.splitlines())) == (1, "", 1), result


@pytest.mark.parametrize("path", ["/dev/zero", "/", "x" * 300])
def test_what_is_no_file_is_no_company(path: str, tmp_path: Path) -> None:
    """A device is not read: it may have no end."""
    for command in ("up", "down", "reload"):
        result = invoke(command, path, home=tmp_path)
        assert (result.code, result.out) == (2, ""), result
        assert "unexpected" not in result.err
    assert invoke("doctor", path, home=tmp_path).code == 1


def test_what_is_attached_is_not_read_for_ever(tmp_path: Path) -> None:
    """A device may have no end, and a file may be larger than the memory; nothing is started with either."""
    for path in ("/dev/zero", tmp_path / "large.pdf"):
        if path != "/dev/zero":
            Path(path).write_bytes(b"%PDF-1.4\n")
            os.truncate(path, 2**36)  # it takes no room
        result = invoke("run", "Look.", "--attach", path, "--db", tmp_path / "a.db", home=tmp_path)
        assert result.code == 2, result
        assert result.err == f"repertory: --attach {path}: it is too large: at most 18,874,368 bytes can be sent\n"
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize("words", ["webhooks ls --limit 99999999999999999999", "run x --agent="])
def test_what_makes_no_sense_is_wrong_usage(words: str, made: Path, tmp_path: Path) -> None:
    """A number that the database cannot take; an agent without a name, of a variable that is not set, say."""
    result = invoke(*words.split(), "--db", made, home=tmp_path)
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1), result


def test_a_data_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    """And doctor says so before a run does."""
    (tmp_path / "data").write_text("x")
    found = {each["name"]: each for each in invoke("doctor", "--json", home=tmp_path).json["checks"]}
    assert found["data folder"]["verdict"] == "problem"


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (At(), ""),
        (At(db="my runs.db"), " --db 'my runs.db'"),
        (At(port=8000), " --port 8000"),
        (At(db="a.db", socket=Path("s")), " --socket s"),
    ],
)
def test_a_suggested_command_looks_where_this_one_does(at: At, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere there is no such run."""
    monkeypatch.delenv("REPERTORY_DB", raising=False)
    assert at_option(at) == words


# --- what only a real process can be given -----------------------------------------------------------------


def shell(line: str, *, home: Path) -> Result:
    """Run a line in a shell, where ``repertory`` is the command line."""
    script = f'repertory() {{ "{sys.executable}" -m repertory "$@"; }}\n{line}\nexit $?'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        env=settings(home),
        cwd=home,
        timeout=PATIENCE,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("repertory ps -a --db $DB >&-", 1, "cannot write to standard output: it is closed"),
        ("repertory ps -a --db $DB >/dev/full", 1, "cannot write to standard output: No space left"),
        ("repertory ledger --json --db $DB >/dev/full", 1, "cannot write to standard output: No space left"),
        ("repertory --help >/dev/full", 1, "cannot write to standard output: No space left"),
        ("repertory ps -a --db $DB 2>&- >/dev/null", 0, ""),
        ("repertory ps --db nowhere.db 2>&-", 4, ""),
        ("repertory ps --db nowhere.db 2>/dev/full", 4, ""),
        ("repertory run x --model offline --root . --db new.db 2>/dev/full >/dev/null", 0, ""),
        ("repertory run x --model offline --root . --db new.db <&- 2>&- >/dev/null", 0, ""),
        ("repertory ps --db nowhere.db --debug 2>/dev/null", 4, ""),
        ("repertory run $'\\xff\\xfe' --model offline --root . --db new.db --json 2>&1 | tail -c 1 >/dev/null", 0, ""),
        ("printf '\\xff' | PYTHONIOENCODING=utf-8 repertory send x - --db $DB", 1, "no service runs for"),
        ("repertory inspect $'\\xff' --db $DB", 4, "there is no run '\\udcff'"),
        ("mkdir x && cd x && rmdir ../x && repertory run x --model offline", 2, "the current folder is gone"),
        ("mkdir x && cd x && rmdir ../x && repertory ps --db r.db", 4, "no database at r.db"),
    ],
    ids=lambda value: str(value)[:44],
)
def test_streams_and_words_of_every_kind_end_with_a_documented_code(
    line: str, code: int, said: str, made: Path, tmp_path: Path
) -> None:
    """Closed, full, without a reader, not in UTF-8; standard error holds one line at most."""
    result = shell(line.replace("$DB", str(made)), home=tmp_path)
    assert (result.code, result.out) == (code, ""), result
    assert said in result.err
    assert len(result.err.splitlines()) <= 1, result


BARE = """
import sys
for extra in "starlette h11 prometheus_client yaml mcp genai_prices opentelemetry resvg_py uvloop psycopg".split():
    sys.modules[extra] = None
from typer.testing import CliRunner
from repertory.cli.app import app
for words in "run Look.||ps -a|approvals|stats --tree|inspect|ledger|doctor|memory ls".split("|"):
    done = CliRunner().invoke(app, words.split())
    print(words, done.exit_code, repr(done.exception) if done.exit_code else "")
"""


def test_commands_need_no_extra(home: Path, tmp_path: Path) -> None:
    """What is installed without extras runs agents and looks at what they did."""
    environment = {**settings(home), "REPERTORY_MODEL": "offline", "REPERTORY_DB": str(tmp_path / "a.db")}
    done = subprocess.run(
        [sys.executable, "-c", BARE], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [line for line in done.stdout.splitlines() if not line.rstrip().endswith(" 0")] == []
    assert done.stdout.count("\n") == 9


def test_the_password_in_a_company_file_is_kept_beside_its_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads the database itself needs it, and the service does not tell it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file, address = tmp_path / "company.toml", "postgresql://me:secret@db.example/agents"
    file.write_text(f'name = "desk"\n[service]\ndb = "{address}"\n')
    with holding(anchor := anchor_of(file)):
        announce_service(anchor, Place(socket="s", server=str(postgres_address(address))))
        assert getattr(company_database(file), "uri", None) == address
