"""Exports as they are: what is guessed of them, and one call from an export to a forecast."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from tests.support import CHINCHILLA, fails, refused, run, saved

SHORT = {"draws": 200, "tune": 200, "chains": 2, "discrepancy": "none"}
QUICK = pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.FitWarning")


def measured() -> pd.DataFrame:
    """Synthetic losses of runs of seven sizes at four points of each, as if they were measured."""
    sizes = [5e7, 1e8, 2e8, 3e8, 4e8, 6e8, 8e8]
    design = bl.grid(params=sizes, tokens=[1e9, 2e9, 4e9, 1.6e10])
    frame = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=1).frame
    return frame.drop(columns="synthetic")


def runs_table() -> pd.DataFrame:
    """The same as a table of a tracker, with names and units of its own."""
    frame = measured()
    return pd.DataFrame(
        {
            "Name": [f"size-{size:.0e}" for size in frame["params"]],
            "State": "finished",
            "n_params_M": frame["params"] / 1e6,
            "tokens_B": frame["tokens"] / 1e9,
            "train/loss": frame["loss"] - 0.05,
            "val/loss": frame["loss"],
        }
    )


def guessed(call, *given, **named) -> tuple[bl.LossTable, str]:
    """The table of a call, and the warning of what was guessed."""
    with pytest.warns(bl.TableWarning) as said:
        table = call(*given, **named)
    return table, " ".join(str(warning.message) for warning in said)


# -- what is guessed ------------------------------------------------------------------------------


@QUICK
def test_a_fit_takes_a_frame_or_a_path_and_says_what_it_guessed(tmp_path):
    frame = runs_table()
    frame.loc[0, "val/loss"] = np.nan
    frame.loc[4:7, "State"] = "crashed"
    frame.to_csv(tmp_path / "runs.csv", index=False)
    fit, said = guessed(bl.fit, "chinchilla", tmp_path / "runs.csv", **SHORT)
    for words in (
        "params = n_params_M * 1e6, tokens = tokens_B * 1e9, run = Name, loss = `val/loss`",
        "broken off are left out (4 crashed)",
        "Validation losses are taken, not train/loss",
        "1 row without a finite loss left out",
        "annealed (6 rows), earlier ones are not (17)",
    ):
        assert words in said
    rows = fit.table.frame
    assert rows["params"].unique().tolist() == [5e7, 2e8, 3e8, 4e8, 6e8, 8e8]
    assert rows["loss"].tolist() == [*measured()["loss"][1:4], *measured()["loss"][8:]]
    assert ((rows["annealed"] == 1) == (rows["tokens"] == 1.6e10)).all()
    split = {"train": "params < 6e8", "laws": ["chinchilla"]}
    scores, same = guessed(bl.compare, frame, **split)
    assert same.partition(": ")[2] in said
    assert scores["rows"].tolist() == [15]


def test_a_table_that_needs_no_guess_is_fitted_as_by_from_frame():
    frame = measured()
    table = bl.from_frame(frame)
    assert bl.fit("chinchilla", frame, **SHORT).table.sha256 == table.sha256
    scores = bl.compare(frame, train="params < 4e8", laws=["chinchilla"])
    same = bl.compare(table, train="params < 4e8", laws=["chinchilla"])
    pd.testing.assert_frame_equal(scores, same)


PLAIN = "`val/loss`"
MISTAKES = [
    # Millions that are taken for billions: a model of 758 billion on 60B tokens.
    (lambda f: f.rename(columns={"n_params_M": "n_params_B"}), {},
     r"n_params_B \* 1e9.*tokens per parameter.*Divide params by 1000"),
    # Steps, with and without a word of the user.
    (lambda f: f.rename(columns={"tokens_B": "_step"}), {},
     r"'tokens'.*steps \(_step\) times the tokens of a step, such as columns={'tokens'"),
    (lambda f: f.assign(_step=f["tokens_B"] * 2e3), {"tokens": "_step"},
     "tokens per parameter.*if they are steps"),
    (lambda f: f.assign(tokens_seen=f["tokens_B"]), {},
     "each of tokens_B, tokens_seen may be 'tokens'"),
    (lambda f: f.rename(columns={"val/loss": "val/bpb", "train/loss": "x"}), {},
     "bits per byte.*loss_unit='bits-per-byte' and bytes_per_token"),
    (lambda f: f.assign(**{"val/loss": np.nan}), {}, "no row has a loss"),
    (lambda f: f.assign(**{"val/loss": "low"}), {}, "'loss' is not a number"),
    (lambda f: f.assign(annealed=[1, None] * 14), {}, "'annealed' is neither 0 or 1"),
    (lambda f: f.drop(columns="n_params_M"), {}, "'params'.*missing; found: Name"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "columns", "says"), MISTAKES)
def test_what_cannot_be_guessed_says_what_to_write(change, columns, says):
    frame = change(runs_table())
    target = "params=4e9 tokens=4e10"
    refused(bl.TableError, says, bl.forecast, frame, target, columns=columns)


def test_bits_are_doubted_and_units_in_names_are_read():
    frame = measured()
    bits = frame.assign(loss=frame["loss"] / np.log(2))
    _, said = guessed(bl.compare, bits, train="params < 4e8", laws=["chinchilla"])
    assert "bits per token would be 1.44 times; if they are bits" in said
    perplexity = frame.assign(val_ppl=np.exp(frame["loss"])).drop(columns="loss")
    fit, said = guessed(bl.fit, "chinchilla", perplexity, **SHORT)
    assert "read as perplexity, by the name" in said
    np.testing.assert_allclose(fit.table.loss, frame["loss"])


# -- one call -------------------------------------------------------------------------------------


@QUICK
def test_one_call_reads_fits_checks_forecasts_and_draws(tmp_path):
    result = bl.forecast(
        runs_table(), "params=1.6e9 tokens=1.6e10", seed=0, **SHORT,
        accepts="unconverged",
    )  # fmt: skip
    text = str(result)
    block = text[: text.index("\n\n")].replace("\n  ", " ")
    assert block.startswith("How it was read and fitted")
    for words in (
        "28 rows of table",
        "params = n_params_M * 1e6",
        "7 rows), earlier ones are not",
        "nats per token: they are 1 times",
        "The law is chinchilla, since",
    ):
        assert words in block, words
    assert "Forecast of 1 row" in text
    assert result.check.verdict[:20] in text
    assert result.check.rows == 1
    truth = bl.simulate("chinchilla", CHINCHILLA, bl.grid(params=1.6e9, tokens=1.6e10))
    low, high = result.forecast.quantile([0.01, 0.99])[:, 0]
    assert low < truth.loss[0] < high
    figure = result.figure()
    assert len(figure.axes) == 3
    plt.close(figure)
    assert "<img" in result._repr_html_()

    result.fit.save(tmp_path / "fit.nc")
    again = bl.forecast(
        tmp_path / "fit.nc", {"params": 1.6e9, "tokens": 1.6e10}, accepts="unconverged"
    )
    assert (again.forecast.samples == result.forecast.samples).all()
    assert "is used as it is" in str(again)


def test_of_a_fit_nothing_is_read():
    fit = saved("plain")
    target = "params=1e9 tokens=1e10"
    for given in ({"law": "chinchilla"}, {"where": "N > 1"}, {"draws": 100}):
        refused(
            bl.TableError, "has no effect on a fit", bl.forecast, fit, target, **given
        )
    table = bl.from_frame(measured())
    says = "is a LossTable, which was read already"
    refused(bl.TableError, says, bl.forecast, table, target, loss_unit="bits")


TARGETS = [
    ("params=1e9", "'tokens'.*missing"),
    (
        "params=1e9 tokens=1e10 replay=.1",
        "has no 'replay', so the forecast is the same",
    ),
    ("params=1e9 tokens", "target: cannot read 'tokens'; write it as"),
    ("params=4e9 tokens=4e17", "tokens = 4e.17 is 2.5e.07 times above the fitted rows"),
    ("params=4e11 tokens=8e12", "from twice that on forecasts are refused"),
]


@pytest.mark.parametrize(("target", "says"), TARGETS)
def test_a_wrong_target_is_refused_before_the_fit(target, says, monkeypatch):
    monkeypatch.setattr("bayeslaw.reporting._forecast.fit", None)
    refused(bl.TableError, says, bl.forecast, measured(), target)


@QUICK
def test_held_columns_stay_as_they_are():
    frame = measured().assign(replay=0.25, ptpp=20.0)
    short = SHORT | {"accepts": "unconverged"}
    result = bl.forecast(frame, "params=1.6e9 tokens=1.6e10 replay=.25", **short)
    assert result.fit.name == "chinchilla"
    says = "chinchilla does not read 'replay', and rows of 0.25 are fitted"
    target = "params=1.6e9 tokens=1.6e10 replay=.5"
    refused(bl.TableError, says, bl.forecast, frame, target, **short)
    says = "replay 0.5, but mixture was fitted to rows of replay 0.25 alone"
    refused(bl.TableError, says, bl.forecast, frame, target, law="mixture", **short)


def test_the_command_forecasts_a_target(tmp_path):
    runs_table().to_csv(tmp_path / "runs.csv", index=False)
    command = [
        "forecast",
        tmp_path / "runs.csv",
        "--target",
        "params=1.6e9 tokens=1.6e10",
    ]
    out = ["--out", tmp_path / "f.csv", "--figure", tmp_path / "f.png"]
    short = "--draws 200 --tune 200 --chains 2 --discrepancy none --accept unconverged"
    text = run(*command, *out, *short.split()).stdout
    assert text.startswith("How it was read and fitted\n  28 rows of")
    assert "--columns annealed=1" in text.replace("\n  ", " ")
    assert pd.read_csv(tmp_path / "f.csv")["median"].between(2.5, 2.65).all()
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert "--train has no effect beside --target" in fails(
        *command, "--train", "N > 1"
    )
    steps = runs_table().rename(columns={"tokens_B": "_step"})
    steps.to_csv(tmp_path / "steps.csv", index=False)
    command[1] = tmp_path / "steps.csv"
    assert '--columns "tokens=_step * 524288"' in fails(*command)
