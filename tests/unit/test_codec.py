"""The envelope: what goes in comes out, and what is no message is refused with the reason."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from schemas.codec import decode, encode, registered, type_of
from schemas.errors import SchemaError, UndecodableError
from schemas.evaluation import EvaluationRequested
from schemas.events import QueriesRecorded
from schemas.trace import SpansRecorded
from tests.golden.examples import EVALUATION, EXAMPLES, REQUEST, TASK, path


@pytest.mark.parametrize(("type_", "version"), sorted(registered()))
def test_every_type_and_version_has_a_golden_message_that_decodes(type_: str, version: int) -> None:
    """A message that was ever sent is understood for ever."""
    golden = path(type_, version)
    assert golden.is_file(), f"run `python tests/golden/examples.py` to write {golden.name}"
    envelope = decode(golden.read_bytes())
    assert (envelope.type, envelope.version, envelope.id) == (type_, version, "golden")
    assert isinstance(envelope.data, registered()[type_, version])


@pytest.mark.parametrize("example", EXAMPLES, ids=type_of)
def test_a_message_comes_out_as_it_went_in(example: BaseModel) -> None:
    """Encoding loses nothing."""
    trace = "00-11111111111111111111111111111111-2222222222222222-01"
    envelope = decode(encode(example, id="x", trace=trace, time_ns=5))
    assert envelope.data == example
    assert (envelope.id, envelope.trace, envelope.time_ns) == ("x", trace, 5)


def test_the_golden_messages_say_what_the_examples_say() -> None:
    """A field that changed its meaning would show here: it needs a new version of the message."""
    for example in EXAMPLES:
        assert decode(path(type_of(example), 1).read_bytes()).data == example


def _with(example: BaseModel, **extra: object) -> bytes:
    raw = msgpack.unpackb(encode(example), strict_map_key=False)
    raw["data"].update(extra)
    return bytes(msgpack.packb(raw))


def test_unknown_fields_of_an_event_are_ignored_also_in_a_request_inside_it() -> None:
    """A newer sender is understood."""
    accepted = next(example for example in EXAMPLES if type_of(example) == "evaluation_accepted")
    raw = msgpack.unpackb(encode(accepted), strict_map_key=False)
    raw["data"]["novelty"] = 1
    raw["data"]["request"]["novelty"] = 1
    raw["data"]["model"]["inputs"][0]["novelty"] = 1
    assert decode(msgpack.packb(raw)).data == accepted


def test_an_unknown_field_of_a_request_is_refused_by_name() -> None:
    """A misspelt wish is not silently dropped."""
    with pytest.raises(UndecodableError, match="batchsize"):
        decode(_with(REQUEST, batchsize=8))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not msgpack"),
        (b"\xc1\xc1", "not msgpack"),
        (b"\x81\xa1", "not msgpack"),
        (msgpack.packb([1, 2]), "map"),
        (msgpack.packb({"type": "nonsense", "version": 1}), "unknown message type 'nonsense'"),
        (msgpack.packb({"type": ["a"], "version": {}}), "unknown message type"),
        (msgpack.packb({"type": "evaluation_requested", "version": 99}), "version 99"),
        (msgpack.packb({"type": "evaluation_requested", "version": 1, "data": {}}), "'id'"),
        (msgpack.packb({"id": "a", "time": 1, "type": "evaluation_requested", "version": 1}), "evaluation_requested"),
        (
            msgpack.packb({"id": "a", "time": 1, "trace": 3, "type": "evaluation_requested", "version": 1, "data": {}}),
            "traceparent",
        ),
    ],
)
def test_what_is_no_message_is_undecodable_with_the_reason(payload: bytes, reason: str) -> None:
    """Poison is told apart from everything else by its type."""
    with pytest.raises(UndecodableError, match=reason):
        decode(payload)


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_else(payload: bytes) -> None:
    """Whatever the bytes, a consumer sees one kind of error."""
    with pytest.raises(UndecodableError):
        decode(payload)


def test_a_bad_range_inside_a_message_is_undecodable_too() -> None:
    """Errors of the version grammar do not escape as another type."""
    with pytest.raises(UndecodableError, match="version"):
        decode(_with(REQUEST, model={"name": "a", "version": "not a range"}))


def test_columns_of_different_length_are_refused() -> None:
    """Half a batch cannot be told apart from a whole one, so it is none."""
    with pytest.raises(ValueError, match="differ in length"):
        QueriesRecorded(
            evaluation_id=EVALUATION,
            task_id=TASK,
            attempt=1,
            query_index=(0, 1),
            warmup=(True,),
            scheduled_ns=(0, 1),
            issued_ns=(0, 1),
            completed_ns=(1, 2),
            items=(1, 1),
        )


def test_columns_of_spans_hold_what_the_spans_held() -> None:
    """The columnar batch is the same spans."""
    batch = next(example for example in EXAMPLES if isinstance(example, SpansRecorded))
    assert (batch.name, batch.parent_id, batch.attributes) == (("predict",), ("",), ({"batch": "8"},))


def test_a_model_that_is_not_registered_is_not_sent() -> None:
    """A defect of the sender shows at the sender."""

    class Stray(BaseModel):
        pass

    with pytest.raises(SchemaError, match="Stray"):
        encode(Stray())


def test_identifiers_are_tokens() -> None:
    """An id that would break a subject or a key is refused where it enters."""
    with pytest.raises(ValueError, match="evaluation_id"):
        EvaluationRequested.model_validate({"evaluation_id": "a.b >", "model": "m", "dataset": "d"})
