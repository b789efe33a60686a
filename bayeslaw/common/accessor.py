"""Members of a class that a package above it defines, as xarray registers accessors."""

from pkgutil import resolve_name
from typing import Any, ClassVar


class Accessor:
    """A member such as ``fit.plot``: what `sources` names, made of the instance on each use.

    The class imports nothing from above; `bayeslaw/__init__.py` names the sources, and each is
    imported on first use, so that ``import bayeslaw`` stays fast.
    """

    sources: ClassVar[dict[str, str]] = {}

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else resolve_name(self.sources[self.name])(instance)
