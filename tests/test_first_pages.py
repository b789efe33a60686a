"""The README is short, and pages and notebooks show what their commands print."""

import re
from pathlib import Path

import pytest

from tests.transcripts import ROOT, agree, transcript

README = ROOT / "README.md"
PATH = ROOT / "docs" / "from-csv-to-decision.md"
STATUS = {"error": 2, "REFUSE": 1}
"""Exit codes by the first word of what a command prints."""


def words(page: Path) -> int:
    """Words without code blocks, tables, pictures and the targets of links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    prose = [line for line in text.splitlines() if not line.startswith(("    ", "|", "!["))]
    return len(re.sub(r"\]\([^)]*\)", "]", "\n".join(prose)).split())


def test_they_are_short():
    assert words(README) <= 600
    assert words(PATH) <= 1500


def test_all_pages_together_are_short():
    """Words, with those of tables, but without code, comments and what is generated."""
    found = 0
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/howto").glob("*.md")]:
        text = re.sub(r"<!-- \[\[\[cog.*?\[\[\[end\]\]\] -->", "", page.read_text(), flags=re.S)
        text = re.sub(r"^ *```.*?^ *```$|^    .*?$", "", text, flags=re.M | re.S)
        found += len(text.split())
    assert found <= 18_000


def test_outputs_agree_up_to_small_differences():
    line = "converged: R-hat 1.004, ESS 460, no divergences"
    assert agree("converged: R-hat 1.006, ESS 900, no\n  divergences\n", line)
    assert not agree("converged: R-hat 1.204, ESS 900, no divergences", line)
    assert not agree("did not converge: R-hat 1.004", line)
    assert not agree(f"{line} one more word", line)
    assert agree("plan  11.3  36.1 %  1.67M  1.45e+12", "plan 11.1  36.4 %   1.64M  1.45e+12")
    assert not agree("plan  15.3  36.1 %  1.67M  1.45e+12", "plan 11.1  36.4 %   1.64M  1.45e+12")
    assert not agree("0  1.0718  3.1e-07", "0  1.0218  3.1e-07")


@pytest.mark.release
def test_every_command_prints_what_the_page_shows(tmp_path):
    ran = list(transcript(PATH, tmp_path))
    assert sum(block[1] == "bash" for block, _, _ in ran) == 10
    for block, printed, status in ran:
        shown = block[3]
        first = re.match(r"\w*", shown or "")
        expected = 0 if " | " in block[2] else STATUS.get(first[0] if first else "", 0)
        assert status == expected, printed
        if shown is not None and block[2].startswith("bayeslaw check"):
            printed, shown = (text.partition("\n")[0] for text in (printed, shown))
        assert shown is None or agree(printed, shown), f"{block[2]}{printed}"
