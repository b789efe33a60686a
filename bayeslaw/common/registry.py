"""Registries: classes that a file can name, and objects of theirs as plain data."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import cast

from bayeslaw.common.errors import LawError, unknown

type Plain = str | float | bool | list[Plain] | dict[str, Plain] | None
"""Values that Python's JSON can hold, infinity included."""

_KINDS: dict[type, str] = {}
"""Kind of each registered class."""
_VALUES: dict[str, type] = {}
"""Classes that a field may hold, by module and name."""


class Registry[T](dict[str, type[T]]):
    """The package's classes of one sort, by their `kind`.

    Any other class is named by where it can be imported from: ``"package.module:Class"``.

    Parameters
    ----------
    what : str
        What the classes are, as an error message calls them.
    base : type
        Class that they derive from.
    """

    def __init__(self, what: str, base: type) -> None:
        super().__init__()
        self.what, self.base = what, base

    def register[C: type](self, cls: C) -> C:
        """Class decorator: name a class by its attribute `kind`."""
        kind = str(cls.kind)  # type: ignore[attr-defined]
        self[kind] = cls
        _KINDS[cls] = kind
        return cls

    def __missing__(self, name: str) -> type[T]:
        try:
            found = resolve_name(name) if ":" in name else None
        except (ImportError, AttributeError, ValueError) as error:
            raise LawError(f"{self.what} {name!r}: cannot import it: {error}.") from error
        if isinstance(found, type) and issubclass(found, self.base):
            return cast("type[T]", found)
        raise LawError(
            unknown(self.what, name, self)
            + f" A class of your own, derived from {self.base.__name__}, is named "
            "'package.module:Class'."
        )


def storable[C: type](cls: C) -> C:
    """Class decorator: lets fields of registered classes hold this dataclass in a file."""
    _VALUES[_home(cls)] = cls
    return cls


def content(value: object) -> Plain:
    """A value as plain data; dataclasses become mappings of their fields.

    A registered class is named by its kind, others by module and name.

    Raises
    ------
    LawError
        If the value, or a part of it, is no dataclass, mapping, sequence, number or text.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): content(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [content(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = _KINDS.get(type(value)) or _home(type(value))
        fields = {f.name: content(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": kind, **fields}
    raise LawError(
        f"{type(value).__qualname__} {value!r} has no content to identify it by; make it a frozen "
        "dataclass of numbers, text, mappings and sequences."
    )


def identity(value: object) -> str:
    """SHA-256 of a value's `content`: equal for equal content, in every process.

    The order of a mapping counts: the first covariate of a term leads.
    """
    text = json.dumps(content(value), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def store[T](registry: Registry[T], value: T) -> dict[str, Plain]:
    """The `content` of an object of a registered class, from which `restore` makes an equal one.

    Raises
    ------
    LawError
        If the class cannot be imported by its name, or a field would come back as another value.
    """
    cls, plain = type(value), content(value)
    name = _KINDS.get(cls) or f"{cls.__module__}:{cls.__qualname__}"
    if "<locals>" in name or registry[name] is not cls:
        raise LawError(
            f"{registry.what} {cls.__qualname__}: a file cannot name it; define the class at the "
            "top level of a module."
        )
    assert isinstance(plain, dict)  # of a dataclass
    plain["kind"] = name
    again = restore(registry, plain)
    for field in plain.keys() - {"kind"}:
        if getattr(again, field) != (own := getattr(value, field)):
            raise LawError(
                f"{registry.what} {name!r}: a file cannot hold its field {field!r}, {own!r}; use "
                "numbers, text, tuples, dicts with text keys, and priors."
            )
    return plain


def restore[T](registry: Registry[T], stored: Plain) -> T:
    """An object of a registered class from its `content`; sequences become tuples.

    Raises
    ------
    LawError
        If there is no such class, or the fields are not those of the class.
    """
    if not isinstance(stored, dict) or "kind" not in stored:
        raise LawError(f"{registry.what}: cannot read {stored!r}.")
    try:
        fields = {name: field_value(each) for name, each in stored.items() if name != "kind"}
        return registry[str(stored["kind"])](**fields)
    except TypeError as error:
        raise LawError(f"{registry.what} {stored['kind']!r}: {error}.") from None


def field_value(stored: Plain) -> object:
    """A field's value from its `content`."""
    if isinstance(stored, list):
        return tuple(field_value(each) for each in stored)
    if not isinstance(stored, dict):
        return stored
    fields = {name: field_value(each) for name, each in stored.items()}
    cls = _VALUES.get(str(stored.get("kind")))
    return cls(**{n: each for n, each in fields.items() if n != "kind"}) if cls else fields


def _home(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
