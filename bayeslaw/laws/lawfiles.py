"""Laws read from TOML files: the shipped ones by name, a user's own by path."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bayeslaw.common.errors import LawError, unknown
from bayeslaw.common.files import models_dir
from bayeslaw.common.registry import Plain, content, field_value, restore, store
from bayeslaw.laws import forgetting_terms, powers  # noqa: F401  # register their terms
from bayeslaw.laws.bases import Bases
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.law import Law
from bayeslaw.laws.parts import KAPPA
from bayeslaw.laws.priors import NOISE, Prior, override
from bayeslaw.laws.terms import COLUMN, TERMS, Term

_SETTINGS = ("title", "reference", "token_unit", "ratio", "epsilon", "coupled")
_BOUNDS = ("bounds", "paper_bounds")
_KEYS = (*_SETTINGS, "term", "departure", "priors", *_BOUNDS)


def load_law(law: "str | Path | Law") -> Law:
    """A law by name (``"form3"``) or from a TOML file by path.

    Raises
    ------
    LawError
        If the name is unknown, or the file is not a valid law.
    """
    if isinstance(law, Law):
        return law
    shipped = {path.stem: path for path in models_dir().glob("*.toml")}
    path = shipped.get(str(law), Path(law))
    if not path.is_file():
        raise LawError(unknown("law", str(law), shipped) + " Or give the path of a TOML file.")
    try:
        return parse_law(path.read_text(encoding="utf-8"), path.stem)
    except UnicodeDecodeError as error:
        raise LawError(f"{path}: not valid TOML: {error}") from error


def parse_law(text: str, name: str) -> Law:
    """A law from the text of its TOML file.

    Raises
    ------
    LawError
        If the text is not a valid law; the message names the key and the valid ones.
    """
    try:
        return _parse(text, name)
    except (TypeError, ValueError, AttributeError) as error:  # a value of the wrong kind
        raise LawError(f"law {name}: malformed: {error}.") from error


def _parse(text: str, name: str) -> Law:
    try:
        spec = tomllib.loads(text)
        terms = tuple(_terms(spec.pop("term")))
    except tomllib.TOMLDecodeError as error:
        raise LawError(f"law {name}: not valid TOML: {error}") from error
    except KeyError:
        raise LawError(f"law {name}: has no [[term]].") from None
    settings: dict[str, Any] = {key: field_value(spec.pop(key)) for key in _SETTINGS if key in spec}
    if "departure" in spec:
        settings["departure"] = Departure(**spec.pop("departure"))
    priors = {n: Prior.parse(p) for n, p in spec.pop("priors", {}).items()}
    given, published = (_intervals(spec.pop(key, {})) for key in _BOUNDS)
    if spec:
        raise LawError(f"law {name}: {unknown('key', next(iter(spec)), _KEYS)}")
    if missing := [key for key in ("title", "reference") if key not in settings]:
        raise LawError(f"law {name}: has no {missing[0]!r}.")
    if settings.get("ratio", "replay") not in ("replay", "own"):
        raise LawError(f"law {name}: ratio is 'replay' or 'own', not {settings['ratio']!r}.")
    if not (settings.get("token_unit", 1.0) > 0 and settings.get("epsilon", 1.0) >= 0):
        raise LawError(f"law {name}: token_unit must be positive, epsilon not negative.")
    law = Law(name=name, terms=terms, priors=priors, bounds={}, **settings)
    for coupled in law.coupled:
        if coupled not in law.coefficients:
            raise LawError(f"law {name}: {unknown('coefficient', coupled, law.coefficients)}")
    if len(set(law.coupled)) == 1:
        raise LawError(f"law {name}: coupled needs two coefficients or more.")
    own = [symbol for term in terms for symbol in (term.coefficient, term.slope)]
    taken = ["E", "L_ref", *NOISE, *([KAPPA] if law.coupled else []), *own]
    others = {exponent for term in terms for exponent in term.exponents}
    others |= {*(law.departure.own if law.departure else ())}
    for symbol in [*own, *others]:
        if taken.count(symbol) + (symbol in others) > 1:
            raise LawError(
                f"law {name}: {symbol!r} has two meanings; give each coefficient, slope and "
                "exponent a symbol of its own."
            )
    for bounded, (low, high) in (*given.items(), *published.items()):
        if bounded not in law.parameters:
            raise LawError(f"law {name}: {unknown('parameter', bounded, law.parameters)}")
        if not low < high:
            raise LawError(f"law {name}: bounds of {bounded!r} are not [lower, upper].")
    bounds = dict.fromkeys(law.parameters, (0.0, math.inf)) | given
    law = replace(law, bounds=bounds, paper_bounds=published)
    wanted = {"E", *law.coordinates[1:], *NOISE}
    for extra in priors.keys() - wanted:
        raise LawError(f"law {name}: {unknown('prior', extra, wanted)}")
    for lacking in sorted(wanted - NOISE.keys() - law.priors.keys()):
        raise LawError(f"law {name}: no prior for {lacking!r}.")
    override(law.priors, priors, law.prior_bounds)  # a prior must not leave its bounds
    return law


def stored_law(law: Law) -> dict[str, Plain]:
    """The law as written, without discrepancy, as plain data for a file; see `restored_law`.

    Raises
    ------
    LawError
        If a file cannot name a term's class, or hold one of its fields.
    """
    plain = law.plain
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
    priors = {
        name: Prior(kind, [(key, float(value)) for key, value in arguments])
        for name, (kind, arguments) in stored["priors"].items()
    }
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


def _terms(specs: list[dict[str, Plain]]) -> Iterator[Term]:
    for spec in specs:
        fields = {key: field_value(value) for key, value in spec.items()}
        name = fields.pop("kind", "power")
        if not isinstance(name, str):
            raise TypeError(f"kind = {name!r} is not a name")
        kind = TERMS[name]
        try:
            term = kind(**fields)
        except TypeError as error:
            raise LawError(f"term {spec}: {error}") from None
        for covariate in term.covariates:
            if covariate not in COLUMN:
                raise LawError(unknown("covariate", covariate, COLUMN))
        yield term
