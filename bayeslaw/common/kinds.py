"""Kinds of likelihood and discrepancy by name, and objects of theirs as plain data for a file."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pkgutil import resolve_name
from typing import Any, cast

from bayeslaw.common.errors import LawError, unknown


def kind_of[T](base: type, known: Mapping[str, type[T]], name: str) -> type[T]:
    """The class that is `known` by a name, or the user's own ``"package.module:Class"``."""
    if name in known:
        return known[name]
    what = base.__name__.lower()
    try:
        cls = resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise LawError(f"{what} {name!r}: cannot import it: {error}.") from error
    if isinstance(cls, type) and issubclass(cls, base):
        return cast("type[T]", cls)
    raise LawError(
        unknown(what, name, known)
        + f" A class of your own, derived from {base.__name__}, is named 'package.module:Class'."
    )


def stated[T](base: type, known: Mapping[str, type[T]], value: T) -> dict[str, Any]:
    """The kind and the fields of a dataclass as JSON has them; `made` makes an equal object.

    Raises
    ------
    LawError
        If the class cannot be imported by its name, or a field would come back as another value.
    """
    cls, what = type(value), base.__name__.lower()
    full_name = f"{cls.__module__}:{cls.__qualname__}"
    name = next((kind for kind, each in known.items() if each is cls), full_name)
    if "<locals>" in name or kind_of(base, known, name) is not cls:
        raise LawError(
            f"{what} {cls.__qualname__}: a file cannot name it; define the class at the top level "
            "of a module."
        )
    contents = {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]  # kinds are dataclasses
    for field, content in contents.items():
        try:
            same = _tuples(json.loads(json.dumps(content))) == content
        except (TypeError, ValueError):
            same = False
        if not same:
            raise LawError(
                f"{what} {name!r}: a file cannot hold its field {field!r}, {content!r}; use "
                "numbers, text, tuples, and dicts with text keys."
            )
    return {"kind": name, **contents}


def made[T](base: type, known: Mapping[str, type[T]], stated: Mapping[str, Any]) -> T:
    """The object that was `stated`; `LawError` if there is no such class, or no such field."""
    values = {name: _tuples(value) for name, value in stated.items() if name != "kind"}
    try:
        return kind_of(base, known, stated["kind"])(**values)
    except TypeError as error:
        raise LawError(f"{base.__name__.lower()} {stated['kind']!r}: {error}.") from None


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples, which a frozen dataclass can hold."""
    if isinstance(value, list | tuple):
        return tuple(map(_tuples, value))
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value
