"""The one error that is the user's to mend."""

from __future__ import annotations


class UserError(Exception):
    """The user's input is wrong: caught once, in the command line, printed without a traceback.

    The message says what must hold, what was got and what to do.
    """
