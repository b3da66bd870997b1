"""A small part of the campaign against the command line: no traceback, nothing forgotten, nothing right refused."""

from fuzz_cli import campaign


def test_sixty_command_lines():
    tally = campaign(60, 60.0, 3)
    assert tally.total == 60 and not tally.failures, tally.found
    assert tally.counts["ok"] >= 10 and tally.counts["refused"] >= 10


def test_what_is_forgotten_is_seen(monkeypatch):
    """With the parser as it comes, and a reader of values: both keep the last of two."""
    from paracond.cli import given, main

    monkeypatch.setattr(main, "_once", lambda words, settings: words)
    monkeypatch.setattr(given, "_both", lambda name, first, second: second)
    assert campaign(60, 60.0, 3).counts["silent"] > 0
