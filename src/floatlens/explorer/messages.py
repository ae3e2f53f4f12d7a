"""The messages that a page may send, validated before anything else sees them, and the limits of its requests: enough for
any prompt that a person types, too little to exhaust the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from floatlens.errors import FloatLensError

QUESTION = 4_000  # characters
PASSAGES = 64
PASSAGE = 8_000  # characters of one passage
CHARACTERS = 64_000  # of question and passages together
NEW_TOKENS = 512
STEPS = 512
INTERVENTIONS = 8
SPEC = 300  # characters of one intervention


@dataclass(frozen=True)
class Limits:
    """Limits on the work of the server."""

    message_bytes: int = 256 * 1024  # longest message that is parsed; a four times longer one closes the connection
    waiting: int = 32  # queued runs, over all pages
    waiting_each: int = 8  # queued or running runs per page
    connections: int = 32  # connected pages
    unsent: int = 4_096  # messages queued for a page that does not read them, before it is disconnected
    idle_seconds: float = 1_800.0  # without requests or runs before a page is disconnected; it reconnects when needed
    kept_bytes: int = 512 << 20  # of the attention and the traces of recent runs


def shown_limits() -> dict[str, int]:
    """Return the limits that the page checks before it sends a request."""
    return {
        "question": QUESTION,
        "passages": PASSAGES,
        "passage": PASSAGE,
        "characters": CHARACTERS,
        "max_new_tokens": NEW_TOKENS,
        "steps": STEPS,
        "interventions": INTERVENTIONS,
    }


Id = Annotated[int, Field(ge=0, le=2**53)]  # what a number of JavaScript holds exactly
Spec = Annotated[str, Field(min_length=1, max_length=SPEC)]


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GivenPassage(Message):
    """A passage as the page sends it."""

    title: str = Field("", max_length=PASSAGE)
    text: str = Field(max_length=PASSAGE)
    gold: bool = False


class RunRequest(Message):
    """Answer a question and send each step."""

    type: Literal["run"]
    id: Id
    model: str = Field(max_length=500)
    question: str = Field(max_length=QUESTION)
    passages: list[GivenPassage] = Field(default_factory=list, max_length=PASSAGES)
    max_new_tokens: int = Field(32, ge=1, le=NEW_TOKENS)
    steps: int | None = Field(None, ge=1, le=STEPS)
    block_length: int | None = Field(None, ge=1, le=NEW_TOKENS)
    seed: int = Field(0, ge=0, lt=2**32)
    interventions: list[Spec] = Field(default_factory=list, max_length=INTERVENTIONS)

    @model_validator(mode="after")
    def something_to_read(self) -> RunRequest:
        if not self.question.strip():
            raise ValueError("the question is empty; type one")
        length = len(self.question) + sum(len(p.title) + len(p.text) for p in self.passages)
        if length > CHARACTERS:
            raise ValueError(
                f"question and passages have {length:,} characters together; the maximum is {CHARACTERS:,}"
            )
        return self


class StopRequest(Message):
    """Stop a run before its next step."""

    type: Literal["stop"]
    id: Id


class AttentionRequest(Message):
    """The attention of one token at one step: the row `from` it or the column `to` it, averaged over layers by default."""

    type: Literal["attention"]
    id: Id
    step: int = Field(ge=0, le=STEPS)
    layer: int | None = Field(None, ge=0, le=10_000)
    position: int = Field(ge=0, le=10_000_000)
    direction: Literal["from", "to"] = "from"


AnyMessage = RunRequest | StopRequest | AttentionRequest
_ANY: TypeAdapter[AnyMessage] = TypeAdapter(
    Annotated[AnyMessage, Field(discriminator="type")], config=ConfigDict(hide_input_in_errors=True)
)


def read(text: str, longest: int) -> AnyMessage:
    """Parse a message; raise an error with the reason if it is invalid.

    >>> read('{"type": "stop", "id": 3}', 100)
    StopRequest(type='stop', id=3)
    >>> read('{"type": "stop"}', 100)
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: the message is invalid: stop.id: Field required
    """
    if len(text.encode("utf-8", "surrogatepass")) > longest:
        raise FloatLensError(f"a message of {len(text):,} characters is too long; the maximum is {longest:,} bytes")
    try:
        return _ANY.validate_json(text.encode("utf-8", "replace"))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "value_error":  # a sentence of ours
            raise FloatLensError(first["msg"].removeprefix("Value error, ")) from None
        place = ".".join(str(part) for part in first["loc"])
        raise FloatLensError(f"the message is invalid: {place}{place and ': '}{first['msg']}") from None


def id_of(text: str) -> int | None:
    """Return the id of a message that could not be parsed, so that its sender can match the error."""
    try:
        found = TypeAdapter(dict[str, Any]).validate_json(text.encode("utf-8", "replace")).get("id")
    except ValidationError:
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
