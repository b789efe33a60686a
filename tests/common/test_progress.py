"""The progress bar."""

from bayeslaw.common.progress import bar


def test_progress_says_how_far_it_is(capsys):
    with bar(True, "refits", total=4, done=1) as tick:
        tick()
    with bar(False, "refits", total=4) as tick:
        tick()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("refits") == 1
    assert "2/4" in err
