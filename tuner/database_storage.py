"""A database that many studies share: each study folder has a study of its own name there."""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import create_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from tuner.errors import UserError
from tuner.storage_url import driver_package, parsed_url, shown, without_secrets

CONNECT_LIMIT_S = 10
_DRIVER_ATTR = "paratune_driver"
"""User attribute of a study: which process adds its trials."""
_STORAGE_ERRORS = (SQLAlchemyError, StorageInternalError, OSError)
_logger = logging.getLogger(__name__)


class Database:
    """Keeps finished trials in an Optuna study of a database.

    A database that is away for a while does not hold the trials up: they are in the study folder,
    and are added when it answers again, or by the next run of the study.
    """

    def __init__(self, study: optuna.Study, url: URL) -> None:
        self._study, self._url = study, url
        self._waiting: deque[FrozenTrial] = deque()
        self._driver = f"process {os.getpid()} on {socket.gethostname()}"
        study.set_user_attr(_DRIVER_ATTR, self._driver)

    @classmethod
    def opened(cls, text: str, study_name: str) -> Database:
        """The study of this name, made where it is missing.

        Raises:
            UserError: the URL is wrong, a driver is missing, or the database does not let us in.
        """
        url = parsed_url(text)
        with _said_where_unusable(url):
            return cls(_study(url, study_name), url)

    def read(self) -> list[FrozenTrial]:
        """All trials that ended.

        Raises:
            UserError: the database went away.
        """
        done = (TrialState.COMPLETE, TrialState.PRUNED)
        return self._answer(lambda: self._study.get_trials(deepcopy=False, states=done))

    def add(self, trial: FrozenTrial) -> None:
        """Adds a trial, with those that are still waiting; keeps it waiting where none answers.

        Raises:
            UserError: another driver has taken the study.
        """
        self._waiting.append(trial)
        try:
            self._check_driver()
            while self._waiting:
                self._study.add_trial(self._waiting[0])
                self._waiting.popleft()
        except _STORAGE_ERRORS as error:
            if len(self._waiting) == 1:
                _logger.warning(
                    "--storage %s does not answer (%s); trials are kept in the study folder and "
                    "are added when it does",
                    shown(self._url),
                    _reason(error, self._url),
                )

    def _check_driver(self) -> None:
        found = self._study.user_attrs.get(_DRIVER_ATTR)
        if found != self._driver:
            raise UserError(
                f"the study {self._study.study_name} of --storage must have one driver, but "
                f"{found} has taken it over with a copy of this study folder; go on with one of "
                "the folders only, or without --storage"
            )

    def _answer(self, ask: Callable[[], list[FrozenTrial]]) -> list[FrozenTrial]:
        try:
            return ask()
        except _STORAGE_ERRORS as error:
            raise UserError(
                f"--storage {shown(self._url)} must answer, but {_reason(error, self._url)}"
            ) from error


def check_reachable(text: str) -> None:
    """Connects once, before anything is made for a study.

    Raises:
        UserError: the URL is wrong, a driver is missing, or the database does not let us in.
    """
    url = parsed_url(text)
    with _said_where_unusable(url):
        create_engine(url, **_engine_options(url)).connect().close()


@contextmanager
def _said_where_unusable(url: URL) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"--storage {shown(url)} needs a driver that is not installed; "
            f"pip install '{driver_package(url)}'"
        ) from error
    except (*_STORAGE_ERRORS, RuntimeError, TypeError) as error:
        raise UserError(
            f"--storage {shown(url)} must be a database that this study can use, but "
            f"{_reason(error, url)}; check host, port, user, password (or PGPASSWORD) and "
            "database, or leave --storage out"
        ) from error


def _engine_options(url: URL) -> dict[str, Any]:
    """Of SQLAlchemy's engine.

    A trial ends every minute or so: a connection that is kept meanwhile only takes the place of
    another driver's, and goes stale.
    """
    waits = url.get_backend_name() in ("postgresql", "mysql", "mariadb")
    limits = {"connect_args": {"connect_timeout": CONNECT_LIMIT_S}} if waits else {}
    return {**limits, "poolclass": NullPool}


def _study(url: URL, name: str) -> optuna.Study:
    storage = RDBStorage(
        url.render_as_string(hide_password=False), engine_kwargs=_engine_options(url)
    )
    return optuna.create_study(
        storage=storage, study_name=name, load_if_exists=True, direction="minimize"
    )


def _reason(error: Exception, url: URL) -> str:
    """The innermost cause in a line: SQLAlchemy and Optuna wrap what the driver says."""
    cause: BaseException = error
    while (inner := getattr(cause, "orig", None) or cause.__cause__) is not None:
        cause = inner
    text = " ".join(str(cause).split()) or type(cause).__name__
    return without_secrets(text, url)[:400]
