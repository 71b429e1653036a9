"""The service: a long-lived process with a supervisor, an HTTP interface to it, and a web page to watch it.

It needs the extra: ``pip install "repertory[service]"``.

::

    import repertory as rp
    from repertory.service import Options, run_service

    rp.run(run_service, Options(database="runs.db", agents=["my_agents:clerk"]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repertory.errors import ConfigurationError

if TYPE_CHECKING:
    from repertory.service.access import Access
    from repertory.service.app import create_app
    from repertory.service.company import Company, read_company
    from repertory.service.control import Control
    from repertory.service.offers import Offers
    from repertory.service.process import Options, run_service
    from repertory.service.server import serve_http
    from repertory.service.webhooks import Webhook

_HOMES = {
    "Access": "access",
    "Company": "company",
    "Control": "control",
    "Offers": "offers",
    "Options": "process",
    "Webhook": "webhooks",
    "create_app": "app",
    "read_company": "company",
    "run_service": "process",
    "serve_http": "server",
}

__all__ = [
    "Access",
    "Company",
    "Control",
    "Offers",
    "Options",
    "Webhook",
    "create_app",
    "read_company",
    "run_service",
    "serve_http",
]


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name):
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{__name__}.{home}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("repertory"):
                raise
            raise ConfigurationError(f'{error.name} is not installed; pip install "repertory[service]"') from error
