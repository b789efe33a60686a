"""Laws read from TOML files: the shipped ones by name, a user's own by path."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from bayeslaw.common.errors import LawError, unknown
from bayeslaw.common.files import models_dir, named_file
from bayeslaw.common.registry import Plain, content, field_value, restore, store
from bayeslaw.laws import forgetting_terms, powers  # noqa: F401  # register their terms
from bayeslaw.laws.bases import Bases
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.law import Law
from bayeslaw.laws.parts import KAPPA
from bayeslaw.laws.priors import (
    FLOOR,
    FLOORS,
    NOISE,
    Prior,
    check_supports,
    one_floor,
    parse_priors,
)
from bayeslaw.laws.terms import COLUMN, TERMS, Term

_SETTINGS = ("title", "reference", "token_unit", "ratio", "epsilon", "coupled")
_BOUNDS = ("bounds", "paper_bounds")
_KEYS = (*_SETTINGS, "term", "departure", "priors", *_BOUNDS)
COVARIATES = ("params", "tokens", "ptpp", "replay", "barrier")
"""Covariates that a law file may name."""
_ALONG = ("down", "up", "along")
"""Keys that map covariates to exponents."""
_WORDS = {
    str: "text",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "a list of names",
    Mapping[str, str]: 'a table such as { params = "alpha" }',
}
"""Types of the values in a law file, in words."""


def load_law(law: "str | Path | Law") -> Law:
    """A law by name (``"form3"``) or from a TOML file by path.

    Raises
    ------
    LawError
        If the name is unknown, or the file is not a valid law.
    FileError
        If there is no such file.
    """
    if isinstance(law, Law):
        return law
    shipped = {path.stem: path for path in models_dir().glob("*.toml")}
    path = shipped.get(str(law)) or named_file(law)
    if path is None:
        raise LawError(unknown("law", str(law), shipped) + " Or give the path of a TOML file.")
    try:
        return parse_law(path.read_text(encoding="utf-8"), path.stem, str(path))
    except UnicodeDecodeError as error:
        raise LawError(f"{path}: not valid TOML: {error}") from error


def parse_law(text: str, name: str, where: str = "") -> Law:
    """A law from the text of its TOML file.

    Parameters
    ----------
    text : str
    name : str
        Of the law.
    where : str, optional
        The file, for errors.

    Raises
    ------
    LawError
        If the text is not a valid law; the message names the term, the key and the valid ones.
    """
    where = where or f"law {name}"
    try:
        spec = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LawError(f"{where}: not valid TOML: {error}") from error
    written = spec.get("term")
    if not (written and isinstance(written, list) and all(isinstance(t, dict) for t in written)):
        raise LawError(f"{where}: has no [[term]].")
    for key in spec:
        if key not in _KEYS:
            raise LawError(f"{where}: {unknown('key', key, _KEYS)}")
    for key in ("title", "reference"):
        if key not in spec:
            raise LawError(f"{where}: has no {key!r}.")
    terms = tuple(_term(fields, f"{where}, term {i}") for i, fields in enumerate(written, 1))
    settings: dict[str, Any] = {key: field_value(spec[key]) for key in _SETTINGS if key in spec}
    _check_values(Law, settings, where)
    if "departure" in spec:
        settings["departure"] = _built(Departure, spec["departure"], f"{where}, [departure]", "it")
    priors = parse_priors(_table(spec, "priors", where), where)
    given, published = (_ranges(_table(spec, key, where), where) for key in _BOUNDS)
    if settings.get("ratio", "replay") not in ("replay", "own"):
        raise LawError(f"{where}: ratio is 'replay' or 'own', not {settings['ratio']!r}.")
    if not (settings.get("token_unit", 1.0) > 0 and settings.get("epsilon", 1.0) >= 0):
        raise LawError(f"{where}: token_unit must be positive, epsilon not negative.")
    law = Law(name=name, terms=terms, priors=priors, bounds={}, **settings)
    for coupled in law.coupled:
        if coupled not in law.coefficients:
            raise LawError(f"{where}: {unknown('coefficient', coupled, law.coefficients)}")
    if len(set(law.coupled)) == 1:
        raise LawError(f"{where}: coupled needs two coefficients or more.")
    own = [symbol for term in terms for symbol in (term.coefficient, term.slope)]
    taken = ["E", "L_ref", *NOISE, *([KAPPA] if law.coupled else []), *own]
    others = {exponent for term in terms for exponent in term.exponents}
    others |= {*(law.departure.parameters if law.departure else ())}
    for symbol in [*own, *others]:
        if taken.count(symbol) + (symbol in others) > 1:
            raise LawError(
                f"{where}: {symbol!r} has two meanings; give each coefficient, slope and "
                "exponent a symbol of its own."
            )
    for bounded in (*given, *published):
        if bounded not in law.parameters:
            raise LawError(f"{where}: {unknown('parameter', bounded, law.parameters)}")
    bounds = dict.fromkeys(law.parameters, (0.0, math.inf)) | given
    law = replace(law, bounds=bounds, paper_bounds=published)
    others = {*law.coordinates[1:], *NOISE}
    for extra in priors.keys() - others - {*FLOORS}:
        raise LawError(f"{where}: {unknown('prior', extra, {*others, *FLOORS})}")
    for lacking in sorted(others - NOISE.keys() - law.priors.keys()):
        raise LawError(f"{where}: no prior for {lacking!r}.")
    if not one_floor(priors, where):
        raise LawError(f"{where}: no prior for 'E', or for '{FLOOR}', its share of the loss.")
    check_supports(priors, law.prior_bounds, where)
    return law


def _table(spec: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """The table ``[key]`` of a law file; empty if it has none."""
    table = spec.get(key, {})
    if not isinstance(table, dict):
        raise LawError(f"{where}: {key} = {table!r} is not a table; write [{key}] above its keys.")
    return table


def _ranges(given: Mapping[str, Any], where: str) -> dict[str, tuple[float, float]]:
    for name, pair in given.items():
        numbers = isinstance(pair, list) and all(_is(each, float) for each in pair)
        if not (numbers and len(pair) == 2 and pair[0] < pair[1]):
            raise LawError(f"{where}: bounds of {name!r} are not [lower, upper]: {pair!r}.")
    return _intervals(given)


def _term(given: Mapping[str, Plain], where: str) -> Term:
    values = {key: field_value(value) for key, value in given.items()}
    kind = values.pop("kind", "power")
    if not isinstance(kind, str):
        raise LawError(f"{where}: kind = {kind!r} is not text.")
    try:
        cls = TERMS[kind]
    except LawError as error:
        raise LawError(f"{where}: {error}") from error
    term = _built(cls, values, f'{where} (kind "{kind}")', kind)
    for covariate in term.covariates:
        if covariate not in COLUMN:
            raise LawError(f"{where}: {unknown('covariate', covariate, COLUMN)}")
    return term


def _built[T](cls: type[T], given: Any, where: str, kind: str) -> T:
    """An object of a dataclass from the keys of a table."""
    if not isinstance(given, dict):
        raise LawError(f"{where}: {given!r} is not a table of keys.")
    keys = {f.name: f for f in fields(cls) if f.name != "modifier"}  # type: ignore[arg-type]
    for key in given:
        if key not in keys:
            raise LawError(f"{where}: {unknown('key', key, keys)}")
    for key, of in keys.items():
        if key not in given and of.default is MISSING and of.default_factory is MISSING:
            every = ", ".join(keys)
            raise LawError(f'{where}: key "{key}" is missing; keys of {kind}: {every}.')
    _check_values(cls, given, where)
    for key in _ALONG & given.keys():
        for covariate in given[key]:
            if covariate not in COVARIATES:
                raise LawError(f"{where}, {key}: {unknown('covariate', covariate, COVARIATES)}")
    return cls(**given)


def _check_values(cls: type, given: Mapping[str, Any], where: str) -> None:
    """Raise unless the values are of the types of a dataclass's fields."""
    hints = get_type_hints(cls)
    for key, value in given.items():
        if not _is(value, hints[key]):
            raise LawError(f"{where}: {key} = {value!r} is not {_WORDS[hints[key]]}.")


def _is(value: object, hint: Any) -> bool:
    """Whether a value of a TOML file has a type; those that are not in `_WORDS` are not checked."""
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint == tuple[str, ...]:
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    if hint == Mapping[str, str]:
        return isinstance(value, dict) and bool(value) and all(_is(e, str) for e in value.values())
    return hint not in _WORDS or isinstance(value, hint)


def stored_law(law: Law) -> dict[str, Plain]:
    """The law as written, without discrepancy, as plain data for a file; see `restored_law`.

    Raises
    ------
    LawError
        If a file cannot name a term's class, or hold one of its fields.
    """
    plain = law.without_discrepancy
    settings = {key: content(getattr(plain, key)) for key in ("name", *_SETTINGS)}
    parts: dict[str, Plain] = {"terms": [store(TERMS, term) for term in plain.terms]}
    parts |= {key: content(getattr(plain, key)) for key in _BOUNDS}
    parts["departure"] = content(plain.departure)
    parts |= {"repetition": content(plain.repetition), "offset": content(plain.offset)}
    if plain.bases:
        bases = {f.name: getattr(plain.bases, f.name) for f in fields(plain.bases)}
        parts["bases"] = content(bases | {"law": plain.bases.law.name})
    priors = {name: [prior.name, content(prior.arguments)] for name, prior in plain.priors.items()}
    return {**settings, **parts, "priors": dict(priors)}


def restored_law(stored: Mapping[str, Any]) -> Law:
    """The law of `stored_law`.

    Raises
    ------
    LawError
        If a term's class cannot be imported.
    """
    priors = {name: Prior(*prior) for name, prior in stored["priors"].items()}
    if priors.pop("noise_slope", None):  # of an earlier version, which wrote unstated priors too
        priors = {name: prior for name, prior in priors.items() if prior != NOISE.get(name)}
    kept: dict[str, Any] = {
        key: field_value(stored[key]) for key in ("name", *_SETTINGS) if key in stored
    }
    if stored.get("bases"):
        bases: dict[str, Any] = {k: field_value(value) for k, value in stored["bases"].items()}
        kept["bases"] = Bases(**bases | {"law": load_law(bases["law"])})
    kept |= {key: field_value(stored.get(key)) for key in ("departure", "repetition", "offset")}
    return Law(
        **kept,
        terms=tuple(restore(TERMS, term) for term in stored["terms"]),
        bounds=_intervals(stored["bounds"]),
        paper_bounds=_intervals(stored.get("paper_bounds", {})),
        priors=priors,
    )


def _intervals(given: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (float(low), float(high)) for name, (low, high) in given.items()}
