"""Content of a specification as plain data: to identify it, and to store it in a file."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping

from bayeslaw.common.errors import LawError
from bayeslaw.common.registry import Registry

type Plain = str | float | bool | list[Plain] | dict[str, Plain] | None
"""What JSON can hold."""


def content(value: object) -> Plain:
    """A value as plain data; dataclasses become mappings of their fields.

    A class that defines `kind` itself is named by it, others by module and name.

    Raises
    ------
    LawError
        If the value, or a part of it, is no dataclass, mapping, sequence, number or text.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): content(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [content(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        kind = cls.__dict__.get("kind") or f"{cls.__module__}.{cls.__qualname__}"
        fields = {f.name: content(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": str(kind), **fields}
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


def classes(value: object) -> Iterator[type]:
    """Classes of all dataclasses in a value: of one name there may be two in a process."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from classes(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from classes(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from classes(getattr(value, field.name))


def restore[T](registry: Registry[T], stored: Plain) -> T:
    """An object of a registered class from its `content`.

    Raises
    ------
    LawError
        If the kind is not registered, or the fields are not those of the class.
    """
    if not isinstance(stored, dict) or "kind" not in stored:
        raise LawError(f"{registry.what}: cannot read {stored!r}.")
    fields = {name: each for name, each in stored.items() if name != "kind"}
    try:
        return registry[str(stored["kind"])](**fields)
    except TypeError as error:
        raise LawError(f"{registry.what} {stored['kind']!r}: {error}.") from None
