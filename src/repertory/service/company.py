"""A company: the configuration of a service, from one file that may be reloaded while the service runs."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from repertory._choices import check_labels, check_number, check_type
from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.agents.loading import check_limits, load_object
from repertory.machines.machine import check_lease
from repertory.runs import Telemetry
from repertory.runs.alerts import AlertThresholds
from repertory.runs.models import check_keys, open_models
from repertory.service.company_file import TomlFile, number_or_none
from repertory.service.control import Control
from repertory.service.offers import RESEARCH, Offer, look_into, make_offer, research_offer
from repertory.service.places import anchor_of
from repertory.service.process import Options
from repertory.service.schedules import Schedule
from repertory.service.webhooks import Webhook
from repertory.supervisor import Quota, Quotas
from repertory.supervisor.quotas import check_client

EXAMPLE: Final = """\
[agents.clerk]
file = "agents/clerk.md"      # or ref = "my_agents:clerk"

[limits]
cost = 2.0                    # US dollars of each run
"""


class ServiceTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[service]``, as docs/company.md describes it. All but ``max_runs`` and ``root`` need a restart."""

    name: str = ""
    db: str = ""
    socket: str | None = None
    port: int | None = None
    log: str | None = None
    max_runs: int | None = None
    context: str | None = None
    telemetry: str | None = None
    root: str | None = None
    redact: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    lease: float | None = None


class AgentTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[agents.NAME]``: an agent that runs can be started with."""

    ref: str | None = None
    file: str | None = None
    root: str | None = None
    priority: int = 0
    labels: tuple[str, ...] = ()
    limits: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    quota: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class ModelsTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[models]``, which need a restart to change; None for what the environment offers."""

    default: str | None = None
    summaries: tuple[str, ...] | None = None


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[retention]``, in days, which needs a restart to change; None keeps all runs."""

    finished: float | None = None


_LAST_PORT: Final = 65_535
_TABLES: Final = ("service", "agents", "alerts", "limits", "models", "quotas", "retention", "schedules", "webhooks")


class Company(msgspec.Struct, frozen=True, kw_only=True):
    """A checked company file: everything that it names exists.

    Attributes:
        path: The file.
        name: The company's name; by default its folder's.
        offers: Its agents, loaded, and the research team.
    """

    path: Path
    name: str
    service: ServiceTable
    models: ModelsTable
    retention: RetentionTable
    alerts: AlertThresholds
    webhooks: tuple[Webhook, ...]
    offers: dict[str, Offer]
    quotas: Quotas
    schedules: tuple[Schedule, ...]

    @property
    def database(self) -> Path | PostgresAddress:
        """The journal's file, or its address."""
        return database_of(self.path, self.service)

    @property
    def anchor(self) -> Path:
        """The path whose lock its service holds."""
        return anchor_of_company(self.path, self.service)

    @property
    def is_shared(self) -> bool:
        """Whether several machines may share its database."""
        return isinstance(self.database, PostgresAddress)

    def start(self, control: Control) -> None:
        """Configure a service from this company, and let it read the file again when asked to."""
        self.apply(control)
        control.on_reload = partial(self._reload, control)

    def apply(self, control: Control) -> None:
        """Configure a service from this company. Runs under way continue as they began."""
        control.deliveries.set_webhooks(self.webhooks)  # first, because it may refuse; then nothing has changed
        control.offers.replace(self.offers)
        control.scheduler.plan(self.schedules, company=self.name)
        control.supervisor.change_bounds(max_runs=self.service.max_runs, quotas=self.quotas)

    async def check_keys(self) -> None:
        """Check that the models of its agents have the keys that they need. Nothing is sent.

        Raises:
            ModelAuthenticationError: A model has no key.
            ConfigurationError: A model is invalid.
        """
        async with open_models(self.models.default, ()) as models:
            for offer in self.offers.values():
                await check_keys(offer.agent, models)

    def options(self) -> Options:
        """The options of its service, with which the file can be reloaded while it runs."""
        at, service = self.path.parent, self.service
        return Options(
            database=self.database,
            socket=None if service.socket is None else at / service.socket,
            port=service.port,
            log=None if service.log is None else at / service.log,
            context=self._object("context"),
            telemetry=self._object("telemetry", Telemetry, "a Telemetry such as OpenTelemetry()"),
            alerts=self.alerts,
            redact=service.redact,
            name=f"{service.name}@{socket.gethostname()}" if service.name and self.is_shared else None,
            labels=service.labels,
            lease=service.lease,
            company=self.path,
            model=self.models.default,
            summaries=self.models.summaries,
            keep_finished=self.retention.finished,
            resume=True,
            on_start=self.start,
        )

    def _object(self, key: str, kind: Any = None, words: str = "") -> Any:
        reference: str | None = getattr(self.service, key)
        if reference is None:
            return None
        with TomlFile(self.path).refusing("service", key):
            found = load_object(reference, key)
            if kind is not None:
                check_type(reference, found, kind, words)
            return found

    def _reload(self, control: Control) -> Sequence[str]:
        new = read_company(self.path)
        new.apply(control)
        return self.kept_until_restart(new)

    def kept_until_restart(self, new: Company) -> list[str]:
        """The differences of a newer version of the file that need a restart, one line each."""
        return [
            f"[{table}] {key} changes with the next `repertory down` and `repertory up`"
            for table in ("service", "models", "retention", "alerts")
            for was, now in [(getattr(self, table), getattr(new, table))]
            for key in was.__struct_fields__
            if key not in ("max_runs", "root") and getattr(was, key) != getattr(now, key)
        ]


def database_of(path: Path, service: ServiceTable) -> Path | PostgresAddress:
    """The database of a company, from its file and ``[service]``."""
    return postgres_address(service.db) or (path.parent / service.db if service.db else path.with_suffix(".db"))


def anchor_of_company(path: Path, service: ServiceTable) -> Path:
    """The path whose lock a company's service holds: its database, or a stand-in for one on a server."""
    database = database_of(path, service)
    return anchor_of(path) if isinstance(database, PostgresAddress) else database


def read_service(path: Path) -> ServiceTable:
    """Read only ``[service]`` of a file, to find the service of a company whose file is wrong elsewhere.

    Raises:
        DefinitionError: The file cannot be read, or ``[service]`` is wrong.
    """
    return _service_of(TomlFile(path))


def _service_of(file: TomlFile) -> ServiceTable:
    service = file.table(ServiceTable, file.content.get("service", {}), "service")
    with file.refusing("service", "db"):
        is_shared = postgres_address(service.db) is not None
    for key, given in (("labels", service.labels), ("lease", service.lease)):
        if not is_shared and given not in ((), None):
            file.refuse("service", key, 'is for a database that several machines share: db = "postgresql://…"')
    with file.refusing("service", "labels"):
        check_labels("labels", service.labels)
    with file.refusing("service", "lease"):
        if service.lease is not None:
            check_lease(service.lease)
    with file.refusing("service", "port"):
        check_number("port", service.port, int, least=0, most=_LAST_PORT, none=True)
    with file.refusing("service", "max_runs"):
        check_number("max_runs", service.max_runs, int, least=1, none=True)
    if not service.name.isprintable():
        file.refuse("service", "name", f"must be printable, got {service.name!r:.100}")
    return service


def read_company(path: Path) -> Company:
    """Read a company file, and load everything that it names.

    Files of agents are read again on each call; Python modules stay as they were first imported.

    Raises:
        DefinitionError: The file is wrong; the message names the line, the table and the key.
    """
    path = path.absolute()
    file = TomlFile(path)
    file.check_keys(file.content, dict.fromkeys(_TABLES), "")
    look_into(str(path.parent))
    service = _service_of(file)
    if service.socket is not None and service.port is not None:
        file.refuse("service", "port", "either a socket or a port can be served at, not both")
    retention = file.table(RetentionTable, file.content.get("retention", {}), "retention")
    with file.refusing("retention", "finished"):
        check_number("finished", retention.finished, int | float, least=0, none=True)
    general = _checked_limits(file, "limits", file.content.get("limits", {}))
    tables = file.content.get("agents", {})
    if not isinstance(tables, dict):
        file.refuse("agents", "", "expected tables, as [agents.clerk]")
    agents = {name: file.table(AgentTable, given, f"agents.{name}") for name, given in tables.items()}
    offers = {name: _offer(file, name, table, general) for name, table in agents.items()}
    if service.root is not None:
        if RESEARCH in offers:
            file.refuse(f"agents.{RESEARCH}", "", "is also the name of the research team, which [service] root offers")
        with file.refusing("service", "root"):
            offers[RESEARCH] = research_offer(path.parent / service.root, limits=general)
    if not offers:
        file.refuse(
            "agents", "", 'is missing: say what can be started, as [agents.clerk] with file = "agents/clerk.md"'
        )
    return Company(
        path=path,
        name=service.name or path.parent.name,
        service=service,
        models=file.table(ModelsTable, file.content.get("models", {}), "models"),
        retention=retention,
        alerts=file.table(AlertThresholds, file.content.get("alerts", {}), "alerts"),
        webhooks=tuple(_webhook(file, each, number) for number, each in enumerate(_several(file, "webhooks"))),
        offers=offers,
        quotas=Quotas(
            agents={name: file.table(Quota, table.quota, f"agents.{name}.quota") for name, table in agents.items()},
            clients=_client_quotas(file),
        ),
        schedules=_schedules(file, offers),
    )


def _offer(file: TomlFile, name: str, table: AgentTable, general: dict[str, Any]) -> Offer:
    where, at = f"agents.{name}", file.path.parent
    if (table.ref is None) == (table.file is None):
        file.refuse(where, "", 'say where it is defined: either ref = "module:name" or file = "agents/clerk.md"')
    with file.refusing(where, "priority"):
        check_number("priority", table.priority, int, least=-100, most=100)
    with file.refusing(where, "labels"):
        check_labels("labels", table.labels)
    own = _checked_limits(file, f"{where}.limits", table.limits)
    key = "ref" if table.ref is not None else "file"
    with file.refusing(where, key):
        offer = make_offer(
            table.ref or str(at / str(table.file)),
            limits=general | own,
            root=None if table.root is None else str(at / table.root),
            priority=table.priority,
            labels=table.labels,
        )
    if offer.agent.name != name:
        file.refuse(
            where, key, f"the agent there is called {offer.agent.name!r}; name the table [agents.{offer.agent.name}]"
        )
    return offer


def _checked_limits(file: TomlFile, table: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        file.refuse(table, "", f"expected a table, got {given!r:.100}")
    limits = {key: number_or_none(value) for key, value in given.items()}
    for key, value in limits.items():
        with file.refusing(table, key):
            check_limits({key: value})
    return limits


def _client_quotas(file: TomlFile) -> dict[str, Quota]:
    given = file.content.get("quotas", {})
    if not isinstance(given, dict):
        file.refuse("quotas", "", "expected tables, as [quotas.web]")
    for name in given:
        with file.refusing(f"quotas.{name}"):
            check_client(name)
    return {name: file.table(Quota, table, f"quotas.{name}") for name, table in given.items()}


def _several(file: TomlFile, table: str) -> list[object]:
    given = file.content.get(table, [])
    if not isinstance(given, list):
        file.refuse(table, "", f"expected tables, each as [[{table}]]")
    return given


def _webhook(file: TomlFile, given: object, number: int) -> Webhook:
    webhook = file.table(Webhook, given, "webhooks", number=number)
    with file.refusing("webhooks", "secret_env", number=number):
        webhook.read_secret()
    return webhook


def _schedules(file: TomlFile, agents: Collection[str]) -> tuple[Schedule, ...]:
    found, names = list[Schedule](), set[str]()
    for number, each in enumerate(_several(file, "schedules")):
        schedule = file.table(Schedule, each, "schedules", number=number)
        if schedule.name in names:
            file.refuse("schedules", "name", f"{schedule.name!r} is the name of another one already", number=number)
        if schedule.agent not in agents:
            there = ", ".join(sorted(agents))
            file.refuse(
                "schedules", "agent", f"there is no agent {schedule.agent!r:.100}; there are {there}", number=number
            )
        names.add(schedule.name)
        found.append(schedule)
    return tuple(found)
