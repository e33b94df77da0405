"""Mistakes a user of the command can mend."""

from __future__ import annotations


class UserError(Exception):
    """One or two sentences for the person at the terminal; printed without a traceback, exit status 1."""
