"""Data for the tests of sessions, and sessions without timing and drawing."""

from kit.session_fixtures import quick, sums, text

__all__ = ["quick", "sums", "text"]
