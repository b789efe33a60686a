"""Laws read from TOML files: the shipped ones by name, a user's own by path."""

import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bayeslaw.common.errors import LawError, unknown
from bayeslaw.common.files import Document, models_dir, named_file
from bayeslaw.common.formatting import as_tuples
from bayeslaw.laws.departure import Bases, Departure
from bayeslaw.laws.forms import reads_share, taking
from bayeslaw.laws.formula import FORMULA_FUNCTIONS
from bayeslaw.laws.law import Law
from bayeslaw.laws.parameters import prior_bounds
from bayeslaw.laws.priors import (
    FLOOR,
    FLOORS,
    NOISE,
    Prior,
    check_supports,
    one_floor,
    parse_priors,
)
from bayeslaw.laws.step import Step
from bayeslaw.laws.steps import KAPPA, STEPS, Coupling
from bayeslaw.laws.symbols import LETTERS
from bayeslaw.laws.terms import Term
from bayeslaw.tables.covariates import Covariate, declared
from bayeslaw.tables.validation import ALIASES, KNOWN

AUTHORS = {
    "hoffman": "the law of Hoffmann et al. (2022), E + A / N^alpha + B / D^beta, is 'chinchilla'",
    "besiroglu": "Besiroglu et al. (2024) fitted 'chinchilla', E + A / N^alpha + B / D^beta",
    "kaplan": "the law of Kaplan et al. (2020) is not shipped; the one in use since for model size "
    "and tokens, E + A / N^alpha + B / D^beta, is 'chinchilla'",
}
"""What to say of laws that are called by their authors."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_table_of_names(value: object) -> bool:
    return isinstance(value, dict) and _is_list_of_names([*value.values()])


TEXT = "text"
NUMBER = "a number"
FLAG = "true or false"
NAMES = "a list of names"
NAME_BY_COVARIATE = "a table such as { params = 'z_N' }"
_SORTS: dict[str, Callable[[object], bool]] = {
    TEXT: lambda value: isinstance(value, str),
    NUMBER: _is_number,
    FLAG: lambda value: isinstance(value, bool),
    NAMES: _is_list_of_names,
    NAME_BY_COVARIATE: _is_table_of_names,
}
"""What the value of a key may be, in words, and whether a value is that."""


class _Key(NamedTuple):
    """A key of a law file: what its value may be, and whether it has to be there."""

    sort: str
    required: bool = False


_SETTINGS = {
    "title": _Key(TEXT, required=True),
    "reference": _Key(TEXT, required=True),
    "token_unit": _Key(NUMBER),
    "coupled": _Key(NAMES),
}
_TERM = {
    "coefficient": _Key(TEXT, required=True),
    "slope": _Key(TEXT, required=True),
    "log": _Key(TEXT, required=True),
    "along": _Key(TEXT),
    "exponent": _Key(TEXT),
    "gate": _Key(TEXT),
}
_DEPARTURE = {
    "exponent": _Key(TEXT, required=True),
    "fresh": _Key(TEXT, required=True),
    "onset": _Key(TEXT, required=True),
    "along": _Key(NAME_BY_COVARIATE, required=True),
    "share": _Key(TEXT, required=True),
    "base": _Key(TEXT, required=True),
    "rise": _Key(TEXT),
}
_COVARIATE = {"label": _Key(TEXT), "unit": _Key(TEXT), "log": _Key(FLAG)}
_BOUNDS = "bounds"
_PUBLISHED = "paper_bounds"
_TYPICAL = "typical"
_KEYS = (
    *_SETTINGS, "term", "departure", "covariates", "priors",
    _BOUNDS, _PUBLISHED, _TYPICAL,
)  # fmt: skip
"""Keys of a law file: those of `_SETTINGS`, and its tables."""


def load_law(law: "str | Path | Law") -> Law:
    """A law by name (``"form3"``) or from a TOML file by path."""
    if isinstance(law, Law):
        return law
    if not isinstance(law, str | Path):
        raise LawError(
            f"a {type(law).__name__} is no law: give a name, a path or a Law; it comes before the "
            "table, such as bl.fit('chinchilla', table)."
        )
    shipped = {path.stem: path for path in models_dir().glob("*.toml")}
    path = shipped.get(str(law)) or named_file(law)
    if path is None:
        message = _of_publication(str(law)) or unknown("law", str(law), shipped)
        raise LawError(message + " Or give the path of a TOML file.")
    try:
        return parse_law(path.read_text(encoding="utf-8"), path.stem, str(path))
    except UnicodeDecodeError as error:
        raise LawError(f"{path}: not valid TOML: {error}") from error


def _of_publication(name: str) -> str:
    """What a law that is called by its authors is called here, in words; or nothing."""
    for author, words in AUTHORS.items():
        if author in name.lower():
            return f"unknown law {name!r}: {words}."
    return ""


def able_laws(columns: Collection[str]) -> str:
    """Which shipped laws need only these columns of a table, in words."""
    laws = [
        load_law(name)
        for name in sorted(path.stem for path in models_dir().glob("*.toml"))
    ]
    able = [
        law.name
        for law in laws
        if ("role" in columns or not reads_share(law)) and {*law.columns} <= {*columns}
    ]
    return f"Laws that need only columns that are there: {', '.join(able) or 'none'}."


def parse_law(text: str, name: str, where: str = "") -> Law:
    """A law from the text of its TOML file; errors name the file, `where`, the term and the key."""
    where = where or f"law {name}"
    try:
        spec = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LawError(f"{where}: not valid TOML: {error}") from error
    written = spec.get("term")
    if not (
        written
        and isinstance(written, list)
        and all(isinstance(t, dict) for t in written)
    ):
        raise LawError(f"{where}: has no [[term]].")
    _check_names("key", spec, _KEYS, where)
    for key in _SETTINGS:
        if _SETTINGS[key].required and key not in spec:
            raise LawError(f"{where}: has no {key!r}.")
    settings = {key: spec[key] for key in _SETTINGS if key in spec}
    _check_values(settings, _SETTINGS, where)
    if not settings.get("token_unit", 1.0) > 0:
        raise LawError(f"{where}: token_unit must be positive.")
    priors = parse_priors(_table(spec, "priors", where), f"{where}: ")
    own = _declared(_table(spec, "covariates", where), where)
    terms = _terms(written, own, priors, where)
    steps: list[Step] = []
    if coupled := settings.pop("coupled", ()):
        along = {term.coefficient: term.covariates for term in terms}
        _check_names("coefficient", coupled, along, where)
        if len(set(coupled)) == 1:
            raise LawError(f"{where}: coupled needs two coefficients or more.")
        steps.append(Coupling({name: along[name] for name in coupled}))
    if "departure" in spec:
        steps.append(_departure(spec["departure"], f"{where}, [departure]"))
    noise = {n: prior for n, prior in priors.items() if n in NOISE}
    law = Law(
        name=name, terms=tuple(terms), steps=tuple(steps), noise=noise, **settings
    )
    for row in own:
        if row.name not in law.declared:
            raise LawError(
                f"{where}, [covariates.{row.name}]: no term has {row.name!r}."
            )
    _check_symbols(law, where)
    return _with_numbers(law, spec, priors, where)


def _check_names(
    what: str, names: Iterable[str], valid: Collection[str], where: str
) -> None:
    for name in names:
        if name not in valid:
            raise LawError(f"{where}: {unknown(what, name, valid)}")


def _terms(
    written: list[Document],
    own: tuple[Covariate, ...],
    priors: Collection[str],
    where: str,
) -> list[Term]:
    terms = []
    for i, keys in enumerate(written, 1):
        here = f"{where}, term {i}"
        _check_table(keys, _TERM, here)
        try:
            term = Term(**keys, own=own)
        except LawError as error:
            raise LawError(f"{here}: {error}") from error
        stated = f"{term.leading}_ref" in priors  # the prior says what it is of
        if stated and not term.linear:
            raise LawError(
                f"{here}: the local exponent is not linear in {term.leading}, so "
                f"{term.leading}_ref has no prior; give {term.leading} one."
            )
        terms.append(replace(term, stated=stated))
    for term in terms:
        if term.stated and any(term.leading in other.exponents[1:] for other in terms):
            raise LawError(
                f"{where}: {term.leading} stands in several terms and does not lead all of them, "
                f"so {term.leading}_ref has no prior; give {term.leading} one."
            )
    if len({term.epsilon for term in terms} - {None}) > 1:
        raise LawError(f"{where}: log(r + ...) with several numbers; a law has one.")
    return terms


def _departure(written: object, where: str) -> Departure:
    keys = _check_table(written, _DEPARTURE, where)
    _check_names("covariate", keys["along"], LETTERS.values(), f"{where}, along")
    return Departure(**keys)


def _with_numbers(
    law: Law, spec: Document, priors: Mapping[str, Prior], where: str
) -> Law:
    """The law with the priors, bounds and sizes of its parameters."""
    bounds = _ranges(_table(spec, _BOUNDS, where), where)
    published = _ranges(_table(spec, _PUBLISHED, where), where)
    typical = _table(spec, _TYPICAL, where)
    numbers = dict.fromkeys(typical, _Key(NUMBER))
    _check_values(typical, numbers, f"{where}, [typical]")
    _check_names("parameter", (*bounds, *published, *typical), law.parameters, where)
    with_priors = {*law.coordinates[1:]}
    _check_names("prior", priors, {*with_priors, *NOISE, *FLOORS}, where)
    for lacking in sorted(with_priors - priors.keys()):
        hint = ""
        if lacking in law.exponents:
            hint = (
                f"; of covariates {', '.join([*LETTERS, *law.declared])} are known, and a table "
                f"[covariates.{lacking}] declares another"
            )
        raise LawError(f"{where}: no prior for {lacking!r}{hint}.")
    floor = one_floor(priors, f"{where}: ")
    if not floor:
        raise LawError(
            f"{where}: no prior for 'E', or for '{FLOOR}', its share of the loss."
        )
    rows = {
        symbol: replace(
            row,
            prior=priors[floor if symbol == "E" else row.local],
            prior_name=floor if symbol == "E" else "",
            bounds=bounds.get(symbol, row.bounds),
            published=published.get(symbol),
            typical=float(typical.get(symbol, 1.0)),
        )
        for symbol, row in law.by_symbol.items()
    }
    law = replace(law, by_symbol=rows)
    check_supports(priors, prior_bounds(law.by_symbol), f"{where}: ", law.by_symbol)
    return law


def _declared(tables: Document, where: str) -> tuple[Covariate, ...]:
    """The covariates of the tables ``[covariates.<name>]`` of a law file."""
    taken = {
        *LETTERS,
        *FORMULA_FUNCTIONS,
        *KNOWN,
        *ALIASES,
        "role",
        "C",
        "E",
        "L_ref",
    }
    rows = []
    for name, given in tables.items():
        here = f"{where}, [covariates.{name}]"
        if not (name.isidentifier() and name.isascii()):
            raise LawError(
                f"{here}: write the name of a column as one word of letters."
            )
        if name in taken:
            raise LawError(
                f"{here}: {name!r} has a meaning already; name the column otherwise."
            )
        _check_table(given, _COVARIATE, here)
        rows.append(declared(name, **given))
    return tuple(rows)


def _check_table(written: object, keys: Mapping[str, _Key], where: str) -> Document:
    """A table of a law file, all of whose keys and values are as they may be."""
    if not isinstance(written, dict):
        raise LawError(f"{where}: {written!r} is not a table of keys.")
    _check_names("key", written, keys, where)
    _check_values(written, keys, where)
    for key in keys:
        if keys[key].required and key not in written:
            raise LawError(f'{where}: key "{key}" is missing; keys: {", ".join(keys)}.')
    return written


def _check_values(table: Document, keys: Mapping[str, _Key], where: str) -> None:
    for key, value in table.items():
        sort = keys[key].sort
        if not _SORTS[sort](value):
            raise LawError(f"{where}: {key} = {value!r} is not {sort}.")


def _check_symbols(law: Law, where: str) -> None:
    """Raise unless each symbol has one meaning; terms may have an exponent in common."""
    linear = [symbol for term in law.terms for symbol in (term.coefficient, term.slope)]
    taken = ["E", "L_ref", *LETTERS, *law.declared, *NOISE, *linear]
    taken += [KAPPA] if law.step(Coupling) else []
    departure = law.step(Departure)
    exponents = {exponent for term in law.terms for exponent in term.exponents}
    exponents |= {*departure.parameters} if departure else set()
    for symbol in [*linear, *exponents]:
        if taken.count(symbol) + (symbol in exponents) > 1:
            raise LawError(
                f"{where}: {symbol!r} has two meanings; give each coefficient, slope and "
                "exponent a symbol of its own."
            )


def _table(spec: Document, key: str, where: str) -> Document:
    """The table ``[key]`` of a law file; empty if it has none."""
    table = spec.get(key, {})
    if not isinstance(table, dict):
        raise LawError(
            f"{where}: {key} = {table!r} is not a table; write [{key}] above its keys."
        )
    return table


def _ranges(written: Document, where: str) -> dict[str, tuple[float, float]]:
    for name, pair in written.items():
        numbers = isinstance(pair, list) and all(map(_is_number, pair))
        if not (numbers and len(pair) == 2 and pair[0] < pair[1]):
            raise LawError(
                f"{where}: bounds of {name!r} are not [lower, upper]: {pair!r}."
            )
    return {name: (float(low), float(high)) for name, (low, high) in written.items()}


def law_text(law: Law) -> str:
    """The TOML file of a law, without its discrepancy and what the columns of a table add."""
    law = law.without_discrepancy
    added = {n for s in law.steps if s.called_by for n in (*s.parameters, *s.local)}
    coupling = law.step(Coupling)
    departure = law.step(Departure)
    lines = [
        f"{key} = {_toml(getattr(law, key))}"
        for key in ("title", "reference", "token_unit")
    ]
    lines.append(f"coupled = {_toml(tuple(coupling.along) if coupling else ())}")
    for term in law.terms:
        lines += ["[[term]]", *(f"{k} = {_toml(getattr(term, k))}" for k in _TERM)]
    rows = law.by_symbol.values()
    tables: dict[str, dict[str, object]] = {
        _BOUNDS: {row.name: row.bounds for row in rows},
        _PUBLISHED: {row.name: row.published for row in rows if row.published},
        _TYPICAL: {row.name: row.typical for row in rows if row.typical != 1},
        "priors": {name: str(prior) for name, prior in law.priors.items()},
    }
    if departure:
        tables["departure"] = {key: getattr(departure, key) for key in _DEPARTURE}
    for row in law.declared.values():
        tables[f"covariates.{row.name}"] = dict(
            zip(_COVARIATE, (row.label, row.unit, row.logged), strict=True)
        )
    for name, table in tables.items():
        lines += [
            f"[{name}]",
            *(f"{k} = {_toml(v)}" for k, v in table.items() if k not in added),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def stored_law(law: Law) -> Document:
    """The law as written, without discrepancy, as plain data for a file; see `restored_law`."""
    departure = law.step(Departure)
    bases = departure.bases if departure else None
    return {
        "name": law.name,
        "text": law_text(law),
        "role": law.role,
        **{kind.name: law.step(kind) is not None for kind in STEPS if kind.called_by},
        "held": dict(law.held),
        "left_out": list(law.left_out),
        "bases": bases and vars(bases) | {"law": bases.law.name},
    }


def restored_law(stored: Document) -> Law:
    """The law of `stored_law`, also once it was JSON."""
    if stored.get("tuning"):
        raise LawError(
            "saved with a learning-rate step, which this version has not; fit again."
        )
    law = parse_law(stored["text"], stored["name"])
    held = dict(stored.get("held", {}))
    left_out = tuple(stored.get("left_out", ()))
    law = replace(law, held=held, left_out=left_out, role=stored["role"])
    law = taking(
        law, *(kind for kind in STEPS if kind.called_by and stored.get(kind.name))
    )
    departure = law.step(Departure)
    if departure is None or not stored["bases"]:
        return law
    bases = as_tuples(stored["bases"]) | {"law": load_law(stored["bases"]["law"])}
    return law.with_steps(replace(departure, bases=Bases(**bases)))
