"""Registries of kinds, classes that a file can name, and objects of theirs as plain data."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints, entry_points

from bayeslaw.common.errors import LawError, unknown

type Plain = str | float | bool | list[Plain] | dict[str, Plain] | None
"""Values that Python's JSON can hold, infinity included."""

_VALUES: dict[str, type] = {}
"""Classes that a field may hold, by module and name."""


class Registry[T](Mapping[str, type[T]]):
    """Classes of one sort by their `kind`, in the order of registration.

    A name that is not registered is looked for among the installed entry points of `group`, which
    is imported then and must register a class of that name.

    Parameters
    ----------
    what : str
        What the classes are, as an error message calls them.
    group : str, optional
        Group of entry points, such as ``"bayeslaw.terms"``.
    """

    def __init__(self, what: str, group: str = "") -> None:
        self.what, self.group = what, group
        self._kinds: dict[str, type[T]] = {}

    def register[C: type](self, cls: C) -> C:
        """Class decorator: register a class under its attribute `kind`.

        Raises
        ------
        LawError
            If another class has that kind. The same class, defined again, replaces itself.
        """
        kind = str(getattr(cls, "kind", ""))
        if not kind:
            raise LawError(f"{self.what} {cls.__qualname__}: give the class a name in `kind`.")
        there = self._kinds.get(kind)
        if there is not None and _home(there) != _home(cls):
            raise LawError(
                f"{self.what} {kind!r} is registered by {_home(there)}; give {_home(cls)} another."
            )
        self._kinds[kind] = cls
        return cls

    def __getitem__(self, kind: str) -> type[T]:
        if kind not in self._kinds:
            installed = entry_points(group=self.group) if self.group else EntryPoints()
            for point in installed.select(name=kind):
                self._load(point)
            if kind not in self._kinds:
                raise LawError(unknown(self.what, kind, {*self._kinds, *installed.names}))
        return self._kinds[kind]

    def _load(self, point: EntryPoint) -> None:
        """Import the object that an entry point names."""
        package = point.dist.name if point.dist else point.value
        try:
            point.load()
        except Exception as error:
            raise LawError(
                f"{self.what} {point.name!r}: the package {package} cannot be loaded: "
                f"{type(error).__name__}: {error}. Repair it or uninstall it."
            ) from error
        if point.name not in self._kinds:
            raise LawError(
                f"{self.what} {point.name!r}: the package {package} names it as the entry point "
                f"{point.value!r}, which registers no class of that kind."
            )

    def __contains__(self, kind: object) -> bool:
        try:
            return isinstance(kind, str) and self[kind] is not None
        except LawError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def storable[C: type](cls: C) -> C:
    """Class decorator: lets fields of registered classes hold this dataclass in a file."""
    _VALUES[_home(cls)] = cls
    return cls


def content(value: object) -> Plain:
    """A value as plain data; dataclasses become mappings of their fields.

    A class that defines `kind` itself is named by it, others by module and name.

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
        kind = type(value).__dict__.get("kind") or _home(type(value))
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
    """Classes of all dataclasses in a value; a process may define two of the same name."""
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


def store[T](registry: Registry[T], value: T) -> Plain:
    """The `content` of an object of a registered class, from which `restore` makes an equal one.

    Raises
    ------
    LawError
        If the class is not registered, or a field would come back as another value.
    """
    kind = str(getattr(value, "kind", ""))
    if kind not in registry or registry[kind] is not type(value):
        raise LawError(
            f"{registry.what} {type(value).__qualname__} is not registered; decorate the class "
            "with its registry's `register` so that a file can name it."
        )
    plain = content(value)
    again = restore(registry, plain)
    for name in plain if isinstance(plain, dict) else ():
        if getattr(again, name) != (own := getattr(value, name)):
            raise LawError(
                f"{registry.what} {kind!r}: a file cannot hold its field {name!r}, {own!r}; use "
                "numbers, text, tuples, dicts with text keys, and priors."
            )
    return plain


def restore[T](registry: Registry[T], stored: Plain) -> T:
    """An object of a registered class from its `content`; sequences become tuples.

    Raises
    ------
    LawError
        If the kind is not registered, or the fields are not those of the class.
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
