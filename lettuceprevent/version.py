"""The version, in a file of its own so that packaging tools can read it without importing torch."""

from __future__ import annotations

VERSION = "0.1.0"
