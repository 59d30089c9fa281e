"""Subjects, consumer names and keys: what is built from people's words stays legal, distinct and reversible."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import subjects
from bus.keys import manifest_key, quote, unquote
from schemas.agents import Stack
from schemas.evaluation import CancellationRequested
from schemas.events import ManifestRemoved

STACK = Stack(architecture="amd64", device="cpu", framework="PyTorch", version="2.13.0+cpu")
TOKEN = re.compile(r"[^\s.*>]+")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2.13.0", "2-13-0"), ("2.13.0+cpu", "2-13-0-cpu"), ("PyTorch", "pytorch"), ("a b*>c", "a-b--c"), ("", "-")],
)
def test_words_become_lower_case_tokens_without_dots(text: str, expected: str) -> None:
    """A version or a framework's name becomes one token, whatever is in it."""
    assert subjects.token(text) == expected


@given(st.text())
def test_any_text_becomes_exactly_one_token(text: str) -> None:
    """No text opens a new level in a subject or becomes a wildcard, and a token is its own token."""
    token = subjects.token(text)
    assert TOKEN.fullmatch(token)
    assert subjects.token(token) == token


def test_task_subjects_are_as_the_protocol_says() -> None:
    """A task for anybody of a stack and a task for one agent differ in the last token alone."""
    assert subjects.task(STACK) == "mlms.v1.task.amd64.cpu.pytorch.2-13-0-cpu.any"
    assert subjects.task(STACK, "Agent_7") == "mlms.v1.task.amd64.cpu.pytorch.2-13-0-cpu.Agent_7"


def test_no_agent_is_called_any() -> None:
    """An agent named like the wildcard would take its whole stack's tasks, and overlap its filter."""
    with pytest.raises(ValueError, match="any"):
        subjects.task(STACK, "any")


def test_event_subjects_carry_type_and_evaluation() -> None:
    """An event of an evaluation is under its id as it is; one of none is under a dash."""
    assert subjects.event_of(CancellationRequested(evaluation_id="AbC-1")) == (
        "mlms.v1.event.cancellation_requested.AbC-1"
    )
    removed = ManifestRemoved(kind="model", name="m", version="1.0.0", time_ns=1)
    assert subjects.event_of(removed) == "mlms.v1.event.manifest_removed.-"
    assert subjects.events_of("AbC-1") == "mlms.v1.event.*.AbC-1"


def test_dead_letters_are_sorted_by_their_stream() -> None:
    """The subject of a dead letter names its stream in lower case."""
    assert subjects.dead("EVENTS") == "mlms.v1.dead.events"


def test_consumer_names_of_different_stacks_differ() -> None:
    """Dashes in a framework's name or a version never make two stacks share a consumer."""
    first = Stack(architecture="amd64", device="cpu", framework="a-b", version="1")
    second = Stack(architecture="amd64", device="cpu", framework="a", version="b-1")
    assert subjects.stack_consumer(first) != subjects.stack_consumer(second)
    assert not subjects.is_agent_consumer(subjects.stack_consumer(first))
    assert subjects.is_agent_consumer(subjects.agent_consumer("a1"))


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_keys_are_legal_and_reversible(text: str) -> None:
    """Whatever a name or a version holds, its key is legal in a NATS bucket and gives the text back."""
    key = quote(text)
    assert re.fullmatch(r"[-/_=a-zA-Z0-9]+", key)
    assert unquote(key) == text


def test_manifest_keys_keep_name_and_version_apart() -> None:
    """Dots and plus signs of a version stay inside its token."""
    assert manifest_key("mobilenet-v1-0.25", "1.0.0+q.8") == "mobilenet-v1-0=2E25.1=2E0=2E0=2Bq=2E8"


def test_an_empty_key_is_refused() -> None:
    """An empty token would make an illegal key."""
    with pytest.raises(ValueError, match="empty"):
        quote("")
