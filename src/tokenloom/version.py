"""The version, where everyone can read it without importing the package's face."""

VERSION = "0.1.0.dev0"
