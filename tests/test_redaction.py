"""What redaction hides, and what it leaves readable."""

from __future__ import annotations

import pytest

from rayorch_flows.redaction import as_cause, redacted


@pytest.mark.parametrize(
    ("secret", "text", "result"),
    [
        ({"key": "AKIA1234"}, "access key AKIA1234 is unknown", "access key *** is unknown"),
        ({"client_kwargs": {"headers": {"Authorization": "Bearer abcdefghij"}}}, "token abcdefghij", "token ***"),
        ({"key": "a/b+c=d"}, "?sig=a%2Fb%2Bc%3Dd", "?sig=***"),
        ({"keys": ["first-key", b"second-key"]}, "first-key, second-key", "***, ***"),
        ({"key": "line\nbreak"}, repr({"key": "line\nbreak"}), "{'key': '***'}"),
        ({"a": "pass", "b": "password"}, "password", "***"),
        ({"url": "https://me:word@host/"}, "GET https://me:word@host/", "GET ***"),
        ({"endpoint_url": "http://minio:9000"}, "no answer from http://minio:9000", "no answer from http://minio:9000"),
        ({"anon": "true", "retries": 5, "x": "", "y": None}, "true 5", "true 5"),
        ({}, "as it is", "as it is"),
    ],
)
def test_redacted(secret: object, text: str, result: str) -> None:
    assert redacted(text, secret) == result


def test_an_error_that_may_quote_a_secret_is_no_cause() -> None:
    error = ValueError("x")
    assert as_cause(error, {}) is error
    assert as_cause(error, {"key": "value"}) is None
