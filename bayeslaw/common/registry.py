"""Registries of kinds: classes that can be named in a file, by the package or by others."""

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints, entry_points

from bayeslaw.common.errors import LawError, unknown


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
            for point in self._entry_points():
                if point.name == kind:
                    self._load(point)
        if kind not in self._kinds:
            installed = (point.name for point in self._entry_points())
            raise LawError(unknown(self.what, kind, {*self._kinds, *installed}))
        return self._kinds[kind]

    def _entry_points(self) -> EntryPoints:
        return entry_points(group=self.group) if self.group else EntryPoints()

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


def _home(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
