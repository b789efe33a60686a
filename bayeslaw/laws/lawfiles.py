"""Laws read from TOML files: the shipped ones by name, a user's own by path."""

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path

from bayeslaw.common.errors import LawError, unknown
from bayeslaw.common.files import Document, models_dir, named_file
from bayeslaw.common.formatting import as_tuples
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import (
    FLOOR,
    FLOORS,
    NOISE,
    Prior,
    check_supports,
    one_floor,
    parse_priors,
)
from bayeslaw.laws.steps import KAPPA, STEPS, Bases, Coupling, Departure, Step
from bayeslaw.laws.terms import FORMULA_FUNCTIONS, LETTERS, Term
from bayeslaw.tables.covariates import Covariate, declared
from bayeslaw.tables.validation import ALIASES, KNOWN

AUTHORS = {
    "hoffman": "the law of Hoffmann et al. (2022), E + A / N^alpha + B / D^beta, is 'chinchilla'",
    "besiroglu": "Besiroglu et al. (2024) fitted 'chinchilla', E + A / N^alpha + B / D^beta",
    "kaplan": "the law of Kaplan et al. (2020) is not shipped; the one in use since for model size "
    "and tokens, E + A / N^alpha + B / D^beta, is 'chinchilla'",
}
"""What to say of laws that are called by their authors."""
_SETTINGS = ("title", "reference", "token_unit", "coupled")
_NUMBERS = ("bounds", "paper_bounds", "typical")
_KEYS = (*_SETTINGS, "term", "departure", "covariates", "priors", *_NUMBERS)
_OF_TERM = ("coefficient", "slope", "log", "along", "exponent", "gate")
_OF_DEPARTURE = ("exponent", "fresh", "onset", "along", "share", "base", "rise")
_OF_COVARIATE = ("label", "unit", "log")
_SORTS = {
    "token_unit": "a number",
    "coupled": "a list of names",
    "log": "true or false",
}
"""What the value of a key is, in words, where it is not text."""


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
        known = _of_publication(str(law)) or unknown("law", str(law), shipped)
        raise LawError(known + " Or give the path of a TOML file.")
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
        if ("role" in columns or not law.reads_own) and {*law.columns} <= {*columns}
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
    for key in ("title", "reference"):
        if key not in spec:
            raise LawError(f"{where}: has no {key!r}.")
    settings = {key: spec[key] for key in _SETTINGS if key in spec}
    for key, value in settings.items():
        _check_sort(value, key, _SORTS.get(key, "text"), where)
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
        here = f"{where}, [departure]"
        steps.append(_built(Departure, spec["departure"], _OF_DEPARTURE, here))
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
        term = _built(Term, keys, _OF_TERM, f"{where}, term {i}", own=own)
        stated = f"{term.leading}_ref" in priors  # the prior says what it is of
        if stated and not term.linear:
            raise LawError(
                f"{where}, term {i}: the local exponent is not linear in {term.leading}, so "
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


def _with_numbers(
    law: Law, spec: Document, priors: Mapping[str, Prior], where: str
) -> Law:
    """The law with the priors, bounds and sizes of its parameters."""
    bounds, published = (
        _ranges(_table(spec, key, where), where) for key in _NUMBERS[:2]
    )
    typical = _table(spec, "typical", where)
    for parameter, number in typical.items():
        _check_sort(number, parameter, "a number", f"{where}, [typical]")
    _check_names("parameter", (*bounds, *published, *typical), law.parameters, where)
    with_priors = {*law.coordinates[1:]}
    _check_names("prior", priors, {*with_priors, *NOISE, *FLOORS}, where)
    for lacking in sorted(with_priors - priors.keys()):
        says = f"; of covariates {', '.join([*LETTERS, *law.declared])} are known, and a table "
        says += f"[covariates.{lacking}] declares another"
        raise LawError(
            f"{where}: no prior for {lacking!r}{says * (lacking in law.exponents)}."
        )
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
    check_supports(priors, law.prior_bounds, f"{where}: ", law.by_symbol)
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
        "flops",
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
        _check_keys(given, _OF_COVARIATE, here)
        for key, value in given.items():
            _check_sort(value, key, "true or false" if key == "log" else "text", here)
        rows.append(declared(name, **given))
    return tuple(rows)


def _check_keys(given: object, keys: Collection[str], where: str) -> None:
    if not isinstance(given, dict):
        raise LawError(f"{where}: {given!r} is not a table of keys.")
    _check_names("key", given, keys, where)


def _check_sort(value: object, key: str, sort: str, where: str) -> None:
    """Raise unless the value of a key is of the sort that the words say."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    table = isinstance(value, dict) and all(
        isinstance(name, str) for name in value.values()
    )
    fits = {
        "text": isinstance(value, str),
        "a number": number,
        "true or false": isinstance(value, bool),
        "a list of names": names,
        "a table such as { params = 'z_N' }": table,
    }
    if not fits[sort]:
        raise LawError(f"{where}: {key} = {value!r} is not {sort}.")


def _check_symbols(law: Law, where: str) -> None:
    """Raise unless each symbol has one meaning; terms may have an exponent in common."""
    linear = [symbol for term in law.terms for symbol in (term.coefficient, term.slope)]
    taken = ["E", "L_ref", *LETTERS, *law.declared, *NOISE, *linear]
    taken += [KAPPA] if law.step(Coupling) else []
    departure = law.step(Departure)
    others = {exponent for term in law.terms for exponent in term.exponents}
    others |= {*departure.parameters} if departure else set()
    for symbol in [*linear, *others]:
        if taken.count(symbol) + (symbol in others) > 1:
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


def _ranges(given: Document, where: str) -> dict[str, tuple[float, float]]:
    for name, pair in given.items():
        numbers = isinstance(pair, list) and all(
            type(bound) in (int, float) for bound in pair
        )
        if not (numbers and len(pair) == 2 and pair[0] < pair[1]):
            raise LawError(
                f"{where}: bounds of {name!r} are not [lower, upper]: {pair!r}."
            )
    return {name: (float(low), float(high)) for name, (low, high) in given.items()}


def _built[T](
    cls: type[T], given: Document, keys: Sequence[str], where: str, **more: object
) -> T:
    """A term or a departure from the keys of a table, and what the file states elsewhere."""
    _check_keys(given, keys, where)
    for key, value in given.items():
        mapping = keys is _OF_DEPARTURE and key == "along"
        _check_sort(
            value,
            key,
            "a table such as { params = 'z_N' }" if mapping else "text",
            where,
        )
        _check_names(
            "covariate", value if mapping else (), LETTERS.values(), f"{where}, along"
        )
    optional = {field.name for field in fields(cls) if field.default is not MISSING}  # type: ignore[arg-type]
    for key in keys:
        if key not in given and key not in optional:
            raise LawError(f'{where}: key "{key}" is missing; keys: {", ".join(keys)}.')
    try:
        return cls(**given, **more)
    except LawError as error:
        raise LawError(f"{where}: {error}") from error


def law_text(law: Law) -> str:
    """The TOML file of a law, without its discrepancy and what the columns of a table add."""
    law = law.without_discrepancy
    added = {n for s in law.steps if s.called_by for n in (*s.parameters, *s.local)}
    coupling, departure = law.step(Coupling), law.step(Departure)
    lines = [f"{key} = {_toml(getattr(law, key))}" for key in _SETTINGS[:-1]]
    lines.append(f"coupled = {_toml(tuple(coupling.along) if coupling else ())}")
    for term in law.terms:
        lines += ["[[term]]", *(f"{k} = {_toml(getattr(term, k))}" for k in _OF_TERM)]
    rows = law.by_symbol.values()
    tables: dict[str, dict[str, object]] = {
        "bounds": {row.name: row.bounds for row in rows},
        "paper_bounds": {row.name: row.published for row in rows if row.published},
        "typical": {row.name: row.typical for row in rows if row.typical != 1},
        "priors": {name: str(prior) for name, prior in law.priors.items()},
    }
    if departure:
        tables["departure"] = {key: getattr(departure, key) for key in _OF_DEPARTURE}
    for row in law.declared.values():
        tables[f"covariates.{row.name}"] = dict(
            zip(_OF_COVARIATE, (row.label, row.unit, row.logged), strict=True)
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
    law = parse_law(stored["text"], stored["name"])
    held, left_out = dict(stored.get("held", {})), tuple(stored.get("left_out", ()))
    law = replace(law, held=held, left_out=left_out, role=stored["role"])
    law = law.taking(
        *(kind for kind in STEPS if kind.called_by and stored.get(kind.name))
    )
    departure = law.step(Departure)
    if departure is None or not stored["bases"]:
        return law
    bases = as_tuples(stored["bases"]) | {"law": load_law(stored["bases"]["law"])}
    return law.with_steps(replace(departure, bases=Bases(**bases)))
