"""Registries of kinds: classes that can be named in a file, by the package or by others."""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points

from bayeslaw.common.errors import LawError, unknown


class Registry[T](Mapping[str, type[T]]):
    """Classes of one sort by their `kind`, in the order of registration.

    A name that is not registered is looked for among the installed entry points of `group`; what an
    entry point loads must register itself.

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
            If another class has that kind. The same class defined again takes its own place.
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
        if kind not in self._kinds and self.group:
            for point in entry_points(group=self.group, name=kind):
                point.load()
        try:
            return self._kinds[kind]
        except KeyError:
            raise LawError(unknown(self.what, kind, self._kinds)) from None

    def __contains__(self, kind: object) -> bool:
        try:
            return isinstance(kind, str) and self[kind] is not None
        except LawError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def _home(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
