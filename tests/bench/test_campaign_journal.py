"""The campaign's journals: nothing that an agent was told is missed, and an answer counts for what was asked."""

import time
from pathlib import Path

import pytest

from bench.campaign.deployment.journal import Journal, JournalReader

pytestmark = pytest.mark.thorough


def test_an_answer_to_what_was_sent_before_the_kill_does_not_say_that_it_is_back(
    tmp_path: Path,
) -> None:
    journal, reader = (
        Journal(tmp_path / "journal"),
        JournalReader(path=tmp_path / "journal"),
    )
    killed_s = time.monotonic()
    journal.write("acknowledged", boot="b", sequence=1, sent_s=killed_s - 1.0)
    assert reader.first_answer_s(asked_after_s=killed_s) is None
    for sequence in (2, 3):
        journal.write(
            "acknowledged", boot="b", sequence=sequence, sent_s=time.monotonic()
        )
    first = next(entry for entry in reader.read() if entry.sequence == 2)
    assert reader.first_answer_s(asked_after_s=killed_s) == first.at_s
