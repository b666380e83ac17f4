"""The URL of a database, and what may be said of it: never its password."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from tuner.errors import UserError

_PACKAGES = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "mysqldb": "mysqlclient",
    "cx_oracle": "oracledb",
}
"""What to install for a driver that is called otherwise."""
_SECRET_WORDS = ("password", "passwd", "secret", "token", "key", "pwd")
_HIDDEN = "***"
EXAMPLE = "postgresql://USER@HOST:5432/DATABASE"


def parsed_url(text: str) -> URL:
    """The URL of a database.

    Raises:
        UserError: it is none, or of a kind of database that is not known here.
    """
    try:
        url = make_url(text)
        dialect = url.get_dialect()
    except NoSuchModuleError as error:
        kind = text.partition("://")[0]
        raise UserError(
            f"--storage must be the URL of a database that SQLAlchemy knows, as {EXAMPLE}, got one "
            f"that begins with {kind}://; {_known(kind)}"
        ) from error
    except (ArgumentError, ValueError) as error:
        # The text is not repeated: it may hold a password where none is expected.
        raise UserError(
            f"--storage must be the URL of a database, as {EXAMPLE}, but what was given is none; "
            "a password with @, : or / in it must be percent-encoded, or be left to PGPASSWORD"
        ) from error
    if dialect.name != "sqlite" and not url.database:
        raise UserError(f"--storage must name a database, as {EXAMPLE}, got {shown(url)}")
    if dialect.name == "sqlite" and _in_memory(url):
        raise UserError(
            "--storage must be a database that outlives the command, but this SQLite one would be "
            f"in memory; name a file, as sqlite:///trials.db, got {shown(url)}"
        )
    return url


def _in_memory(url: URL) -> bool:
    name = url.database or ""
    return not name.removeprefix("file:") or ":memory:" in name or url.query.get("mode") == "memory"


def _known(kind: str) -> str:
    dialect, plus, driver = kind.partition("+")
    if plus and dialect in ("postgresql", "mysql", "mariadb", "sqlite"):
        return f"no driver is called {driver}: leave it out ({dialect}://)"
    return "postgresql, mysql and sqlite are what Optuna is tested with"


def shown(url: URL) -> str:
    """The URL without what is secret in it; nothing of an option that may be."""
    secret = [name for name in url.query if _is_secret(name)]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


def holds_secret(url: URL) -> bool:
    """Whether something of the URL may not be said."""
    return shown(url) != url.render_as_string(hide_password=False)


def driver_package(url: URL) -> str:
    """The package that brings the URL's driver."""
    driver = url.get_driver_name()
    return _PACKAGES.get(driver, driver)


def without_secrets(text: str, url: URL) -> str:
    """A message in which the URL's secrets are blotted out, however they are spelled."""
    secrets = [str(url.password)] if url.password else []
    for name, value in url.query.items():
        if _is_secret(name):
            secrets += [value] if isinstance(value, str) else list(value)
    for secret in secrets:
        for spelled in {secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}:
            text = text.replace(spelled, _HIDDEN)
    return text


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)
