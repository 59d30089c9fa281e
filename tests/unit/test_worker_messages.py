"""The frames between an agent and its worker."""

import asyncio
import socket

import pytest

from predictors.errors import WorkerCrashedError
from predictors.worker.messages import (
    MAX_FRAME_BYTES,
    Channel,
    Failed,
    Job,
    Message,
    Progress,
    Ready,
    Rows,
    pack,
    receive_frame,
    unpack,
)
from schemas.failure import Failure

MESSAGES: list[Message] = [
    Ready(version="1.2.3", build={"blas": "mkl"}, formats=("onnx",), unavailable=None),
    Job(task=b"\x00\xff", files={"a" * 64: "/x"}, trusted=False, max_pixels=1, scratch="/tmp/x"),
    Progress(phase="prepare", done=1, total=2, message="half"),
    Rows(of="queries", columns={"query_index": [0, 1], "warmup": [True, False]}),
    Failed(failure=Failure(code="model_refused", message="no", hint="other", detail="because")),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    """Every kind of message survives the channel, in both directions."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(message)
        assert Channel(theirs).receive() == message


def test_a_closed_channel_is_an_end_and_no_error() -> None:
    """Whoever reads a channel whose other end was closed, even within a frame, is told that it is over."""
    for sent in (b"", b"\x00\x00", pack(MESSAGES[0])[:-1]):
        ours, theirs = socket.socketpair()
        with theirs:
            ours.sendall(sent)
            ours.close()
            assert Channel(theirs).receive() is None


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", b"\x81\xa4kind\xa3odd", b"\x81\xa4kind\xa4rows"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    """Bytes that a broken worker may send raise ValueError and nothing else."""
    with pytest.raises(ValueError, match="not a message"):
        unpack(body)


@pytest.mark.parametrize("frame", [b"\x00\x00\x00\x01\xc1", (MAX_FRAME_BYTES + 1).to_bytes(4, "big")])
async def test_a_worker_that_talks_nonsense_counts_as_crashed(frame: bytes) -> None:
    """The agent neither allocates what a broken length says nor believes a broken body."""
    reader = asyncio.StreamReader()
    reader.feed_data(frame)
    with pytest.raises(WorkerCrashedError):
        await receive_frame(reader)
