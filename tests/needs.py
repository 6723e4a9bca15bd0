"""What to do in a test whose needs are not there."""

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """A test that cannot have its data: a failure where everything must be at hand, skipped elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
