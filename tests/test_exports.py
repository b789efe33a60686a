"""Exports as they are: what is guessed of them, and one call from an export to a forecast."""

import json
import warnings

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
    (lambda f: f.assign(State="crashed"), {}, "all runs were broken off"),
    (lambda f: f.iloc[:0], {}, "no rows"),
    (lambda f: pd.concat([f, f], axis=1), {}, "column 'Name' is there twice"),
    (lambda f: f.assign(N=1e8, params=1e8), {}, "column 'params' is there twice"),
    (lambda f: f.assign(**{"val/loss": "low"}), {}, "'loss' is not a number"),
    (lambda f: f.assign(annealed=[1, None] * 14), {}, "'annealed' is neither 0 or 1"),
    (lambda f: f.drop(columns="n_params_M"), {}, "'params'.*missing; found: Name"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "columns", "says"), MISTAKES)
def test_what_cannot_be_guessed_says_what_to_write(change, columns, says):
    frame = change(runs_table())
    target = "params=4e9 tokens=4e10"
    refused(bl.TableError, says, bl.forecast, frame, target, columns=columns)


def test_aliases_lists_and_unknown_states_are_read():
    frame = measured().rename(columns={"params": "N", "tokens": "D"})
    frame = frame.assign(tags=[["a"], ["b"]] * 14, State="done")
    split = {"train": "N < 6e8", "laws": ["chinchilla"]}
    scores, said = guessed(bl.compare, frame, **split)
    assert scores["rows"].tolist() == [20]
    assert "The column of states is not read: done is none of finished" in said


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


# -- domains in columns ---------------------------------------------------------------------------


def wide(names=("loss_math", "loss_web")) -> pd.DataFrame:
    """Synthetic continual pre-training of three bases, with a row for each base at tokens = 0."""
    design = bl.grid(params=[1e8, 3e8, 1e9], replay=[0.1, 0.5], tokens=[0, 1e9, 4e9])
    design = design.assign(
        base=[f"base-{size:g}" for size in design["params"]],
        pretrain_tokens_B=[20 if size < 1e9 else 60 for size in design["params"]],
    )
    bases = design["tokens"] == 0
    design = design[~bases | (design["replay"] == 0.1)].reset_index(drop=True)
    fall = 0.05 * np.log1p(design["tokens"] / 1e8)
    level = 20 / design["params"] ** 0.3
    design[names[0]] = 1.6 + 30 * level / 20 - fall
    design[names[1]] = 2.6 + 30 * level / 20 + 0.02 * fall
    return design


@pytest.mark.parametrize(
    "names",
    [
        ("loss_math", "loss_web"),
        ("loss math", "loss web"),
        ("loss/math", "loss/web"),
        ("eval_math_loss", "eval_web_loss"),
        ("val/loss/math", "val/loss/web"),
    ],
)
def test_one_reader_makes_both_roles_of_a_wide_table(names, tmp_path):
    frame = wide(names).assign(**{"train/loss": 1.0})
    frame.to_csv(tmp_path / "cpt.csv", index=False)
    tables, said = guessed(bl.read_domains, tmp_path / "cpt.csv", source="web")
    assert "ptpp = pretrain_tokens_B * 1e9 / params" in said
    assert f"2 domains: math ({names[0]}), web ({names[1]})" in said
    assert [(d, t.role, len(t), len(t.baselines)) for d, t in tables.items()] == [
        ("math", "target", 12, 3),
        ("web", "source", 12, 3),
    ]
    math, web = tables.values()
    assert math.frame["ptpp"].tolist() == [200.0] * 4 + [200 / 3] * 4 + [60.0] * 4
    trained = frame[frame["tokens"] > 0]
    assert math.loss.tolist() == trained[names[0]].tolist()
    assert web.loss.tolist() == trained[names[1]].tolist()
    # Both have the losses of their bases, on both domains, which `transfer` starts from.
    bases = frame[frame["tokens"] == 0].set_index("base")
    for column, name in (("start_loss", names[0]), ("base_loss", names[1])):
        expected = bases[name].loc[math.frame["base"]].tolist()
        assert math.frame[column].tolist() == expected


def test_domains_that_cannot_be_read_say_what_to_write():
    frame = wide().drop(columns="pretrain_tokens_B")
    _, said = guessed(bl.read_domains, frame)
    assert "'ptpp', pre-training tokens / params" in said
    assert "columns={'ptpp': '15e12 / params'}" in said
    says = "unknown domain 'wbe'; did you mean 'web'"
    refused(bl.TableError, says, bl.read_domains, frame, source="wbe")
    one = frame.drop(columns="loss_web")
    refused(bl.TableError, "losses of several domains", bl.read_domains, one)
    mean = frame.rename(
        columns={"loss_web": "mean/loss", "loss_math": "mean/loss/math"}
    )
    refused(bl.TableError, "each of .* may be the losses", bl.read_domains, mean)
    says = r"several domains \(math, web\); fit one, such as where=\"domain == 'math'\""
    refused(
        bl.TableError, says, bl.forecast, frame, "params=3e9 tokens=4e9", law="dcpt"
    )


def test_of_several_domains_one_is_forecast():
    frame = measured().rename(columns={"loss": "loss_math"})
    frame["loss_web"] = frame["loss_math"] + 0.3
    short = SHORT | {"accepts": "unconverged"}
    target = "params=1.6e9 tokens=1.6e10"
    forecasts = []
    for domain in ("math", "web"):
        where = f"domain == {domain!r}"
        with warnings.catch_warnings(action="ignore", category=bl.FitWarning):
            result = bl.forecast(frame, target, where=where, **short)
        assert len(result.fit.table) == 28
        forecasts.append(result.forecast.median[0])
    assert 0.25 < forecasts[1] - forecasts[0] < 0.35


# -- logs of tools --------------------------------------------------------------------------------


def histories() -> dict[str, pd.DataFrame]:
    """Histories of runs as W&B's client gives them: a row for each call of its log."""
    made = {}
    for size, rows in measured().groupby("params"):
        evaluated = pd.DataFrame(
            {
                "_step": (rows["tokens"] / 5e5).astype(int),
                "_runtime": 3600.0,
                "_timestamp": 1.7e9,
                "val/loss": rows["loss"],
            }
        )
        trained = evaluated.drop(columns="val/loss").assign(**{"train/loss": 3.0})
        trained["_step"] -= 1
        history = pd.concat([trained, evaluated]).sort_values("_step")
        made[f"size-{size:.0e}"] = history.reset_index(drop=True)
    return made


SIZES = {f"size-{size:.0e}": size for size in measured()["params"].unique()}
TOKENS = {"tokens": "_step * 5e5"}


def same_as_measured(table: bl.LossTable) -> None:
    """Assert that a table has the rows of `measured`, of which ends of runs are annealed."""
    rows = table.frame.sort_values(["params", "tokens"], ignore_index=True)
    columns = ["params", "tokens", "loss"]
    pd.testing.assert_frame_equal(
        rows[columns], measured()[columns], check_exact=False, rtol=1e-12
    )
    assert ((rows["annealed"] == 1) == (rows["tokens"] == 1.6e10)).all()
    assert rows["run"].tolist() == [f"size-{size:.0e}" for size in rows["params"]]


def test_the_table_of_runs_of_wandb(tmp_path):
    ends = runs_table().groupby("Name", sort=False).tail(1)
    ends = ends.assign(ID=[f"id{i}" for i in range(len(ends))], Runtime=3600, lr=3e-4)
    ends = ends.astype({"val/loss": object})
    ends.iloc[1, ends.columns.get_loc("State")] = "crashed"
    ends.iloc[2, ends.columns.get_loc("State")] = "running"
    ends.iloc[3, ends.columns.get_loc("val/loss")] = "NaN"
    ends.iloc[4, ends.columns.get_loc("val/loss")] = "Infinity"
    ends.iloc[5, ends.columns.get_loc("Name")] = ends["Name"].iloc[6]
    path = tmp_path / "wandb_export.csv"
    ends.to_csv(path, index=False)
    table, said = guessed(bl.read_wandb, path)
    assert "1 crashed" in said
    assert "2 rows without a finite loss" in said
    assert "annealed (3 rows), earlier ones are not (1)" in said
    assert table.frame["params"].tolist() == [5e7, 2e8, 6e8, 8e8]
    assert table.frame["annealed"].tolist() == [1, 0, 1, 1]
    # Runs of one name are told apart.
    names = table.frame["run"].tolist()
    assert names[2:] == ["size-8e+08 (id5)", "size-8e+08 (id6)"]


@pytest.mark.parametrize("kind", ["frames", "parquet", "csv"])
def test_histories_of_wandb(kind, tmp_path):
    source = histories()
    if kind == "parquet":
        for run_name, history in source.items():
            history.to_parquet(tmp_path / f"{run_name}.parquet", index=False)
        source = tmp_path
    if kind == "csv":
        for run_name, history in source.items():
            history.to_csv(tmp_path / f"{run_name}.csv", index=False)
        source = {path.stem: path for path in tmp_path.glob("*.csv")}
    table, said = guessed(bl.read_wandb, source, SIZES, columns=TOKENS)
    same_as_measured(table)
    assert "28 rows without a finite loss" in said
    assert "Validation losses are taken, not train/loss" in said
    says = "'tokens'.*_step.* times the tokens of a step"
    refused(bl.TableError, says, bl.read_wandb, source, SIZES)
    refused(bl.TableError, "'params'", bl.read_wandb, source, columns=TOKENS)


def test_a_chart_of_wandb_joins_the_table_of_its_runs(tmp_path):
    series = {}
    for run_name, history in histories().items():
        losses = history.set_index("_step")["val/loss"].dropna()
        for end in ("", "__MIN", "__MAX"):
            series[f"{run_name} - _step{end}"] = pd.Series(losses.index, losses.index)
            series[f"{run_name} - val/loss{end}"] = losses
    chart = pd.DataFrame(series).rename_axis("Step").reset_index()
    chart.to_csv(tmp_path / "chart.csv", index=False)
    runs = runs_table().groupby("Name", sort=False).tail(1)
    runs = runs.assign(tokens_per_step=5e5)
    runs.to_csv(tmp_path / "runs.csv", index=False)
    tokens = {"tokens": "Step * tokens_per_step"}
    paths = tmp_path / "chart.csv", tmp_path / "runs.csv"
    table, said = guessed(bl.read_wandb, *paths, columns=tokens)
    same_as_measured(table)
    assert "params = n_params_M * 1e6, loss = `val/loss`" in said
    # The final tokens of a run are not those of its rows.
    refused(bl.TableError, "'tokens'.*is missing", bl.read_wandb, *paths)
    crashed = runs.assign(State=["crashed", *runs["State"][1:]])
    table, said = guessed(bl.read_wandb, paths[0], crashed, columns=tokens)
    assert "4 crashed" in said
    assert len(table) == 24
    absent = {name: size for name, size in SIZES.items() if size > 1e8}
    says = "nothing is said of size-1e.08, size-5e.07"
    refused(bl.TableError, says, bl.read_wandb, paths[0], absent, columns=tokens)
    target = "params=1e9 tokens=1e10"
    refused(bl.TableError, "bl.read_wandb", bl.forecast, paths[0], target)


def test_scalars_that_tensorboard_downloads(tmp_path):
    for run_name, history in histories().items():
        for tag, column in (("eval_loss", "val/loss"), ("train_loss", "train/loss")):
            rows = history.dropna(subset=column)
            values = [rows["_timestamp"], rows["_step"], rows[column]]
            scalars = pd.concat(values, axis=1).set_axis(
                ["Wall time", "Step", "Value"], axis=1
            )
            scalars.to_csv(tmp_path / f"run-{run_name}-tag-{tag}.csv", index=False)
    tokens = {"tokens": "step * 5e5"}
    table, said = guessed(bl.read_tensorboard, tmp_path, SIZES, columns=tokens)
    same_as_measured(table)
    assert "not train_loss" in said
    one = next(tmp_path.glob("*eval*"))
    target = "params=1e9 tokens=1e10"
    refused(bl.TableError, "bl.read_tensorboard", bl.forecast, one, target)
    measured().to_csv(tmp_path / "other.csv")
    refused(
        bl.TableError, "no scalars of TensorBoard", bl.read_tensorboard, tmp_path, SIZES
    )


def test_logs_of_the_trainer(tmp_path):
    for run_name, history in histories().items():
        logs = []
        for row in history.to_dict("records"):
            log = {"epoch": 1.0, "step": row["_step"]}
            if row["val/loss"] == row["val/loss"]:
                log |= {"eval_loss": row["val/loss"], "eval_runtime": 1.0}
                log |= {"num_input_tokens_seen": row["_step"] * 500_000}
            else:
                log |= {"loss": 3.0, "learning_rate": 1e-4}
            logs.append(log)
        # Checkpoints have all logs up to their own step; the last is read.
        for until in (len(logs) // 2, len(logs)):
            last = logs[until - 1]["step"]
            state = {
                "global_step": last,
                "max_steps": 32000,
                "log_history": logs[:until],
            }
            folder = tmp_path / run_name / f"checkpoint-{last}"
            folder.mkdir(parents=True)
            (folder / "trainer_state.json").write_text(json.dumps(state))
    table, said = guessed(bl.read_trainer, tmp_path, SIZES)
    same_as_measured(table)
    assert "tokens = num_input_tokens_seen, loss = eval_loss" in said
    file = tmp_path / "size-1e+08" / "checkpoint-32000" / "trainer_state.json"
    state = json.loads(file.read_text())
    going_on = state | {"max_steps": 64000}
    file.write_text(json.dumps(going_on))
    table, _ = guessed(bl.read_trainer, tmp_path, SIZES)
    assert table.frame.groupby("run")["annealed"].sum()["size-1e+08"] == 0
    file.write_text(json.dumps(state | {"log_history": state["log_history"][:1]}))
    refused(bl.TableError, "no evaluation", bl.read_trainer, file, SIZES)
    file.write_text("{")
    refused(
        bl.TableError, "no trainer_state.json that can be read", bl.read_trainer, file
    )
    (tmp_path / "x").mkdir()
    refused(
        bl.TableError, "no file trainer_state.json", bl.read_trainer, tmp_path / "x"
    )
