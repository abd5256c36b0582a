"""The contract of a back end for requests that want a vector, run by the scripted one's tests and by the
embedder's. As in `check_backend.py`, each check takes a function that makes an empty back end."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from scheduler.engine.backend import Backend
from scheduler.shared.messages import Submit
from tests.contracts.check_backend import CHUNK, MakeBackend
from tests.contracts.journal import Journal, answers, kv_bytes, prompt_of, request

LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 3)


def wanting(request_id: int, tokens: int, dimensions: int = 0) -> Submit:
    asked = request(request_id, prompt_of(tokens, request_id), 1)
    return msgspec.structs.replace(asked, dimensions=dimensions)


def vector_of(journal: Journal, request_id: int) -> list[float]:
    """Check that it ended with a vector and nothing else."""
    course = journal.courses[request_id]
    assert course.retired is not None
    assert (course.retired.reason, course.tokens) == ("pooled", [])
    assert course.prefilled[-1] == len(course.submit.prompt), "its progress does not reach its end"
    return array("f", course.retired.vector).tolist()


def alone(backend: Backend, submit: Submit) -> list[float]:
    journal = Journal(backend)
    journal.admit(submit)
    journal.finish()
    return vector_of(journal, submit.request_id)


def check_every_text_ends_with_its_vector_once(make: MakeBackend) -> None:
    """Texts of every length around a chunk are read together; nothing is held afterwards."""
    submits = [wanting(number, length) for number, length in enumerate(LENGTHS, 1)]
    vectors = {}
    for number, course in answers(make(), submits).items():
        assert course.retired is not None
        vectors[number] = course.retired.vector
    assert len(set(vectors.values())) == len(LENGTHS)
    assert len({len(vector) for vector in vectors.values()}) == 1


def check_company_changes_no_vector(make: MakeBackend) -> None:
    """Whenever others join and leave."""
    backend = make()
    text, guest = wanting(1, 5 * CHUNK), wanting(2, 3 * CHUNK)
    expected = pytest.approx(alone(backend, text), abs=1e-6)
    for joins in range(4):
        journal = Journal(backend)
        journal.admit(text)
        for step in range(joins + 2):
            if step == joins and journal.live:
                journal.admit(guest)
            journal.step()
        if 2 in journal.live:
            journal.remove(2)
        journal.finish()
        assert vector_of(journal, 1) == expected


def check_removal_in_every_stage(make: MakeBackend) -> None:
    """A text just admitted, or read up to any chunk, is gone at once with all that it held."""
    backend = make()
    for lived in range(5):
        journal = Journal(backend)
        journal.admit(wanting(1, 6 * CHUNK))
        for _ in range(lived):
            journal.step()
        journal.remove(1)
        assert kv_bytes(backend) == 0
        journal.finish()


def check_fewer_dimensions(make: MakeBackend) -> None:
    """As many numbers as are asked for."""
    for dimensions in (1, 4, 16):
        assert len(alone(make(), wanting(1, 9, dimensions))) == dimensions


VECTOR_CHECKS = (
    check_every_text_ends_with_its_vector_once,
    check_company_changes_no_vector,
    check_removal_in_every_stage,
    check_fewer_dimensions,
)
