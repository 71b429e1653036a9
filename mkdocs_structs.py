"""Shows msgspec structs with a signature in the reference: an extension of Griffe, named in ``mkdocs.yml``."""

from __future__ import annotations

from typing import Any

import griffe


class Structs(griffe.Extension):
    """Gives each struct the ``__init__`` that msgspec makes, out of its fields and those of its bases."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look through the whole package once it is loaded."""
        self._visit(pkg)

    def _visit(self, place: griffe.Module | griffe.Class) -> None:
        for member in list(place.members.values()):
            if member.is_alias:
                continue
            if member.is_class and "__init__" not in member.members and _is_struct(member):
                member.set_member("__init__", _init_of(member))
            if member.is_module or member.is_class:
                self._visit(member)


def _bases(found: griffe.Class) -> list[griffe.Class]:
    return list(reversed(found.mro())) if found.bases else []


def _is_struct(found: griffe.Class) -> bool:
    named = [str(base) for one in [*_bases(found), found] for base in one.bases]
    return any(name in ("Struct", "msgspec.Struct") or name.startswith("Request[") for name in named)


def _init_of(found: griffe.Class) -> griffe.Function:
    order = [*_bases(found), found]
    keyword_only = any("kw_only" in one.keywords for one in order)
    kind = griffe.ParameterKind.keyword_only if keyword_only else griffe.ParameterKind.positional_or_keyword
    fields: dict[str, griffe.Parameter] = {}
    for one in order:
        for name, field in one.attributes.items():
            if field.annotation is None or "property" in field.labels or "ClassVar" in str(field.annotation):
                continue
            fields[name] = griffe.Parameter(name, annotation=field.annotation, kind=kind, default=_default(field.value))
    parameters = griffe.Parameters(griffe.Parameter("self"), *fields.values())
    return griffe.Function("__init__", parameters=parameters, parent=found, lineno=found.lineno, endlineno=found.lineno)


def _default(value: Any) -> Any:
    """The default; what a ``default_factory`` makes is written as a call."""
    if value is None or not str(value).startswith("msgspec.field(default_factory="):
        return value
    return f"{str(value).removeprefix('msgspec.field(default_factory=').removesuffix(')')}()"
