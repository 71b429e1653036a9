"""The company file: what it makes of a service, and where it says that something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_parts import Gate, open_client

from repertory.errors import ConfigurationError, DefinitionError
from repertory.otel import OpenTelemetry
from repertory.runs import AlertThresholds
from repertory.service.company import EXAMPLE, database_of, read_company, read_service
from repertory.supervisor import Quota

EXAMPLES = Path(__file__).parents[2] / "examples" / "company"
FIRST = '[[schedules]]\nname = "first"\nagent = "clerk"\ntask = "Sort."\ncron = "* * * * *"\n'
SECOND = '[[schedules]]\nname = "second"\nagent = "clerk"\n# its task\ntask = "Sort."\n'
CLERK = "---\nname: clerk\ndescription: Sorts.\n---\nYou sort.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an agent."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "clerk.md").write_text(CLERK)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    """A company file with one good agent before the rest."""
    path = folder / "company.toml"
    path.write_text(f'[agents.clerk]\nfile = "agents/clerk.md"\n{text}')
    return path


def test_the_example_is_a_company() -> None:
    """The one in examples/: agents with their limits, priorities and quotas, and quotas of clients."""
    company = read_company(EXAMPLES / "company.toml")
    clerk, archivist = company.offers["clerk"], company.offers["archivist"]
    assert (company.name, company.service.max_runs, company.database.name) == ("letters", 4, "company.db")
    assert (clerk.priority, clerk.agent.limits.cost, clerk.agent.limits.iterations) == (5, 1.0, 50)
    assert (archivist.agent.limits.iterations, archivist.options["root"]) == (100, str(EXAMPLES))
    assert {tool.name for tool in archivist.agent.own_tools} == {"view_file", "list_files"}
    assert company.quotas.of_agent("archivist") == Quota(runs=1, cost_per_day=5.0)
    assert company.quotas.of_client("web") == Quota(runs=3, queued=50)
    assert company.quotas.of_client("anybody") == Quota(runs=2)
    (morning,) = company.schedules
    assert (morning.agent, morning.rule, morning.missed) == ("archivist", "0 7 * * MON-FRI Europe/Berlin", "once")


def test_no_agent_stands_behind_the_research_team(folder: Path) -> None:
    """With a folder for the team, an agent of its name could not be reached; without one it can."""
    (folder / "agents" / "research.md").write_text(CLERK.replace("clerk", "research"))
    text = '[agents.research]\nfile = "agents/research.md"\n'
    assert "research" in read_company(write(folder, text)).offers
    with pytest.raises(DefinitionError, match=r"line 3: \[agents.research\]: is also the name of the research team"):
        read_company(write(folder, f'{text}[service]\nroot = "agents"\n'))


def test_what_up_shows_where_there_is_no_file_is_a_company(folder: Path) -> None:
    """The short example can be copied as it stands."""
    path = folder / "company.toml"
    path.write_text(EXAMPLE)
    company = read_company(path)
    assert company.offers["clerk"].agent.limits.cost == 2.0
    assert company.name == folder.name


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("priorty = 1", 3, r"\[agents.clerk\] priorty: unknown key; did you mean 'priority'\?"),
        ('priority = "high"', 3, r"\[agents.clerk\] priority: expected `int`, got `str`; got 'high'"),
        ("priority = 101", 3, r"\[agents.clerk\] priority: priority must be a whole number from -100 to 100, got 101"),
        ('labels = [""]', 3, r"\[agents.clerk\] labels: labels must be a list of printable texts that are not empty"),
        ("labels = [1]", 3, r"\[agents.clerk\] labels: expected `str`, got `int`"),
        ('ref = "a:b"', 1, r"\[agents.clerk\]: say where it is defined: either ref"),
        ("[agents.clerk.limits]\ncosts = 1", 4, r"\[agents.clerk.limits\] costs: there is no limit 'costs'"),
        (
            "[agents.clerk.limits]\ncost = 0",
            4,
            r"\[agents.clerk.limits\] cost: limits.cost must be a number above 0 or None, got 0",
        ),
        ("[agents.clerk.quota]\nruns = 0", 3, r"\[agents.clerk.quota\]: quota.runs must be a whole number"),
        ("[agents.clerk.quota]\nper_day = 1", 4, r"\[agents.clerk.quota\] per_day: unknown key"),
        ('[agents.other]\nfile = "agents/none.md"', 4, r"\[agents.other\] file: there is no agent file"),
        (
            '[agents.other]\nfile = "agents/clerk.md"',
            4,
            r"the agent there is called 'clerk'; name the table \[agents.clerk\]",
        ),
        ('[agents.other]\nref = "no_such_module:x"', 4, r"\[agents.other\] ref: no module named 'no_such_module'"),
        ("[agents]\nx = 1", 4, r"\[agents.x\]: expected a table, got 1"),
        ("[limits]\nseconds = -1", 4, r"\[limits\] seconds: limits.seconds must be a number above 0"),
        ("[alerts]\ntokens = -1", 3, r"\[alerts\]: alerts.tokens must be a whole number of at least 0 or None, got -1"),
        ('[alerts]\nwindow = "none"', 4, r"\[alerts\] window: expected `int`, got `str`"),
        ('[models]\nsummaries = "none"', 4, r"\[models\] summaries: expected `array \| null`, got `str`"),
        ("[alerts]\ncost = 1", 4, r"\[alerts\] cost: unknown key; there are tokens"),
        ("[service]\nmax_runs = 0", 4, r"\[service\] max_runs: max_runs must be a whole number of at least 1"),
        (f"[service]\nmax_runs = {2**63}", 4, r"\[service\] max_runs: max_runs must be a whole number"),
        ("[service]\nmax_run = 1", 4, r"\[service\] max_run: unknown key; did you mean 'max_runs'\?"),
        ('[service]\nport = 1\nsocket = "s"', 4, r"\[service\] port: either a socket or a port"),
        (
            "[retention]\nfinished = -1",
            4,
            r"\[retention\] finished: finished must be a number of at least 0 or None, got -1",
        ),
        ("[retention]\nfinished = inf", 4, r"\[retention\] finished: finished must be a number .*, got inf"),
        ("[retention]\nfinished = nan", 4, r"\[retention\] finished: finished must be a number .*, got nan"),
        ('[models]\nsummaries = "one"', 4, r"\[models\] summaries: expected `array \| null`, got `str`"),
        ("[quotas.web]\nruns = true", 4, r"\[quotas.web\] runs: expected `int \| null`, got `bool`"),
        ('[quotas."a b"]\nruns = 1', 3, r"\[quotas.a b\]: client must have at most 100 printable"),
        ("[quotas]\nweb = 1", 4, r"\[quotas.web\]: expected a table, got 1"),
        ("[agnets.x]\n", 3, r"agnets: unknown key; did you mean 'agents'\?"),
        (f"{FIRST}{SECOND}cron = 1", 13, r"\[schedules\] cron: expected `str`, got `int`; got 1"),
        (f'{FIRST}{SECOND}cron = "* * *"', 8, r"\[schedules\]: cron must be minute, hour"),
        (f'{FIRST}{SECOND}cron = "* * * * *"\nagnet = 1', 14, r"\[schedules\] agnet: unknown key"),
        (FIRST + SECOND, 8, r"\[schedules\] cron: is missing"),
        (FIRST + FIRST, 9, r"\[schedules\] name: 'first' is the name of another one already"),
        (
            '[[schedules]]\nname = "a"\nagent = "b"\ntask = "c"\ncron = "* * * * *"',
            5,
            r"\[schedules\] agent: there is no agent 'b'",
        ),
        ("[schedules]\nname = 1", 3, r"\[schedules\]: expected tables, each as \[\[schedules\]\]"),
        ('[[webhooks]]\nurl = "https://example.com"', 3, r"\[webhooks\] secret_env: is missing"),
        (
            '[[webhooks]]\nurl = "https://a.b"\nsecret_env = "S"\non = ["gone"]',
            6,
            r"\[webhooks\] on: expected 'queued' or .*; got \['gone",
        ),
        (
            '[[webhooks]]\nurl = "https://a.b"\nsecret_env = "NOT_SET"',
            5,
            r"\[webhooks\] secret_env: .* the environment has no NOT_SET",
        ),
        ("[service\n", None, "is not valid TOML"),
        (f"[service]\nmax_runs = {'1' * 5000}", None, "is not valid TOML"),
        (f"[limits]\ntokens = {10**400}", 4, r"\[limits\] tokens: limits.tokens must be a whole number"),
        (f"[quotas.web]\nruns = {2**63}", 3, r"\[quotas.web\]: quota.runs must be a whole number"),
        (f'[agents.long]\nfile = "{"a" * 5000}.md"', 4, r"\[agents.long\] file: there is no agent file .*aaa"),
        (f'root = "{"a" * 5000}"', 2, "file tools need a folder, got '/"),
        ('root = "a\\u0000"', 3, r"\[agents.clerk\] root: must have no NUL, got 'a\\x00'"),
        (
            "[service]\nport = 70000",
            4,
            r"\[service\] port: port must be a whole number from 0 to 65535 or None, got 70000",
        ),
        ('[service]\ndb = "mysql://host/name"', 4, r"\[service\] db: .* must be a file's path or postgresql://"),
        ('[service]\nlabels = ["gpu"]', 4, r"\[service\] labels: is for a database that several machines share"),
        ("[service]\nlease = 30", 4, r"\[service\] lease: is for a database that several machines share"),
        ('[service]\ndb = "postgresql://h/n"\nlabels = [""]', 5, r"\[service\] labels: labels must be a list of"),
        ('[service]\ndb = "postgresql://h/n"\nlease = nan', 5, r"\[service\] lease: lease must be a number of"),
    ],
)
def test_what_is_wrong_is_said_with_line_table_and_key(text: str, line: int | None, words: str, folder: Path) -> None:
    """Every kind of mistake: a key that nobody knows, another type, a bound, an agent that is not there."""
    with pytest.raises(DefinitionError, match=words) as caught:
        read_company(write(folder, text))
    if "valid TOML" not in str(caught.value):
        assert caught.value.line == line, str(caught.value)
        assert f"company.toml, line {line}: " in str(caught.value)


@pytest.mark.parametrize("key", ["context", "telemetry"])
def test_an_object_that_is_not_there_is_said_with_its_line(key: str, folder: Path) -> None:
    """When the service is to begin: to look for it may run what makes it."""
    company = read_company(write(folder, f'[service]\n{key} = "no_such_module:x"'))
    with pytest.raises(DefinitionError, match=rf"line 4: \[service\] {key}: no module named 'no_such_module'"):
        company.options()


def test_a_company_has_traces_and_thresholds_of_its_own(folder: Path) -> None:
    """The service gets them; without them it has no traces, and the thresholds of a program."""
    text = '[service]\ntelemetry = "repertory.otel:OpenTelemetry"\n[alerts]\ntokens = 5\n'
    options = read_company(write(folder, text)).options()
    assert isinstance(options.telemetry, OpenTelemetry)
    assert options.alerts == AlertThresholds(tokens=5)
    options = read_company(write(folder, "")).options()
    assert (options.telemetry, options.alerts) == (None, AlertThresholds())


@pytest.mark.parametrize("text", ['telemetry = "os:environ"', 'telemetry = "pathlib:Path"'])
def test_a_telemetry_that_is_none_is_said_with_its_line(text: str, folder: Path) -> None:
    """Before the service opens its database, so that ``doctor`` finds it, too."""
    company = read_company(write(folder, f"[service]\n{text}"))
    with pytest.raises(DefinitionError, match=r"line 4: \[service\] telemetry: .* must be a Telemetry such as"):
        company.options()


def test_none_turns_a_threshold_or_a_limit_off(folder: Path) -> None:
    """TOML has no null; an agent may be without a limit that all others have."""
    text = '[agents.clerk.limits]\ncost = "none"\n[limits]\ncost = 5\n[alerts]\ntokens = "none"\nlimit_share = "none"\n'
    company = read_company(write(folder, text))
    assert company.alerts == AlertThresholds(tokens=None, limit_share=None)
    assert company.offers["clerk"].agent.limits.cost is None


def test_an_editor_may_begin_the_file_with_a_mark(folder: Path) -> None:
    """The one by which some recognize UTF-8, as in agent files; lines keep their numbers."""
    path = write(folder, "")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert [*read_company(path).offers] == ["clerk"]
    path.write_bytes(path.read_bytes() + b"colour = 1\r\n")
    with pytest.raises(DefinitionError, match=r"line 3: \[agents.clerk\] colour: unknown key"):
        read_company(path)


def test_a_company_without_agents_is_none(tmp_path: Path) -> None:
    """Nothing could be started."""
    path = tmp_path / "company.toml"
    path.write_text("[service]\n")
    with pytest.raises(DefinitionError, match=r"\[agents\]: is missing: say what can be started"):
        read_company(path)
    with pytest.raises(DefinitionError, match="cannot be read: No such file"):
        read_company(tmp_path / "none.toml")


def test_where_a_company_keeps_its_record_is_read_without_the_rest(folder: Path) -> None:
    """So that ``down`` works whatever else is wrong with the file."""
    path = write(folder, 'nonsense = 1\n[service]\ndb = "records/a.db"\n')
    assert database_of(path, read_service(path)) == folder / "records" / "a.db"


def test_a_restart_is_asked_for_by_key(folder: Path) -> None:
    """What cannot change while it runs is named; what can is not."""
    was = read_company(write(folder, "[service]\nmax_runs = 1\n"))
    now = read_company(write(folder, '[service]\nmax_runs = 2\nport = 0\n[models]\ndefault = "offline"\n'))
    assert was.kept_until_restart(now) == [
        "[service] port changes with the next `repertory down` and `repertory up`",
        "[models] default changes with the next `repertory down` and `repertory up`",
    ]


async def test_the_research_team_comes_goes_and_is_limited_as_any_agent(folder: Path, short: Path) -> None:
    """Its folder and its limits follow the file, and an agent of its name can take its place."""
    own = '[agents.research]\nfile = "agents/research.md"\n'
    (folder / "agents" / "research.md").write_text(CLERK.replace("clerk", "research"))
    async with open_client(short, "offline") as client:
        read_company(write(folder, '[service]\nroot = "agents"\n[limits]\ncost = 3.0\n')).start(client.control)
        _, team = await client.get("/agents")
        assert (team["name"], team["root"]) == ("research", str(folder / "agents"))
        assert client.control.offers.find("research", None).agent.limits.cost == 3.0
        write(folder, own)
        assert (await client.post("/reload", {}, 200)) == {"notes": []}
        assert [(each["name"], each["root"]) for each in await client.get("/agents")] == [
            ("clerk", None),
            ("research", None),
        ]
        assert client.control.offers.find("research", None).agent.name == "research"
        write(folder, '[service]\nroot = "nowhere"\n')
        refused = await client.post("/reload", {}, 422)
        assert "company.toml, line 4: [service] root: there is no folder" in refused["error"]


async def test_what_is_under_way_keeps_the_definition_it_began_with(folder: Path, short: Path) -> None:
    """Also what waits; a run that is started after the file was read again has the new one."""
    gate, path = Gate(answer_after=0), write(folder, "[service]\nmax_runs = 1\n")
    gate.hold = True
    async with open_client(short, gate.model) as client:
        control = client.control
        with pytest.raises(ConfigurationError, match="no company file"):
            control.reload()
        read_company(path).start(control)
        first, second = await client.start("One."), await client.start("Two.")
        await gate.held.wait()
        (folder / "agents" / "clerk.md").write_text(CLERK.replace("You sort.", "You sort by date."))
        write(folder, f"[service]\nmax_runs = 1\n{FIRST}")
        assert (await client.post("/reload", {}, 200)) == {"notes": []}
        (schedule,) = await client.get("/schedules")
        assert (schedule["name"], schedule["next"] % 60) == ("first", 0)
        third = await client.start("Three.")
        (folder / "agents" / "clerk.md").write_text("no front matter")
        refused = await client.post("/reload", {}, 422)
        assert "company.toml, line 2: [agents.clerk] file: " in refused["error"]
        gate.go.set()
        for run_id in (first, second, third):
            await client.wait_for(run_id, "done")
        journal = control.journal
        requests = [await journal.read_request(run_id, 1) for run_id in (first, second, third)]
    shown = [str(request["system"]) for request in requests]
    assert ["by date" in each for each in shown] == [False, False, True]


def test_how_long_runs_are_kept_is_said_in_days(folder: Path) -> None:
    """It is an option of the service; without it everything is kept."""
    assert read_company(write(folder, "")).options().keep_finished is None
    assert read_company(write(folder, "[retention]\nfinished = 30\n")).options().keep_finished == 30
