"""What results show, as text and as HTML."""

import numpy as np
import pandas as pd

from bayeslaw.common.shown import Note, Shown, Table

FRAME = pd.DataFrame({"loss": [2.5, np.nan], "band": ["2.4–2.6 in", "1.0–1.1 out"], "far": [0, 1]})


def test_text_and_html_say_the_same():
    table = Table(FRAME, "Losses: in nats", {"loss": ".2f"}, optional=["far", "band"])
    note = Note("NOT CONVERGED: R-hat 1.2 <b>", "refuse")
    shown = Shown("Forecast", ["A sentence.", "", note, ["an item"], table], {"a": 1}, ["pit"])
    text, html = shown.text(), shown.html()
    assert text.splitlines()[:6] == [
        "Forecast", "A sentence.", "", "NOT CONVERGED: R-hat 1.2 <b>", "  an item", ""
    ]  # fmt: skip
    assert text.endswith("\n2.50   2.4–2.6 in    0\n      1.0–1.1 out    1")
    for words in ("A sentence.", "R-hat 1.2 &lt;b&gt;", "<li>an item", "2.50", "bl.plots.pit"):
        assert words in html
    assert "\033[1;31mNOT CONVERGED\033[0m: R-hat" in shown.text(color=True)
    assert "far" not in shown.text(20)
    assert "band" not in shown.text(12)
    assert "loss" in shown.text(2)


def test_sections_and_rows_beyond_the_first():
    index = pd.MultiIndex.from_product([["french", "english"], range(40)], names=["domain", "law"])
    table = Table(pd.DataFrame({"x": np.arange(80.0)}, index))
    shown = Shown(blocks=[table])
    lines = shown.text().splitlines()
    assert lines[2:4] == ["french", "  0   0.000"]
    assert lines[-1] == "... and 20 more rows"
    assert "20 more rows" in shown.html()
    assert table.cells(most=None)[2] == ""


def test_a_sum_has_the_fields_of_both():
    whole = Shown("Fit", ["one"], {"law": "x"}) + Shown("Forecast", ["two"], {"rows": []})
    assert whole.text() == "Fit\none\n\nForecast\ntwo"
    assert whole.adding(out=None).document == {"law": "x", "rows": [], "out": None}
