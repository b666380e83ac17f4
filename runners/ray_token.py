"""What to say of a Ray that asks for its token, which is never said itself."""

from __future__ import annotations

import os


def token_sentence(who: str, *, found: bool = True) -> str:
    """A sentence for the user.

    Args:
        who: the cluster, with its address.
        found: whether Ray has found a token here, where it has looked for one.
    """
    where = "in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        mode = os.environ.get("RAY_AUTH_MODE", "not set")
        return (
            f"{who} must be given Ray's token, but RAY_AUTH_MODE is {mode} here and so none was "
            f"sent; set RAY_AUTH_MODE=token, with the token {where}"
        )
    if not found:
        return f"{who} must be given Ray's token, but none was found; give it {where}"
    return f"{who} must be given its own token, got another; give it {where}"
