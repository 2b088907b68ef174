"""What to install where a package is missing, in one sentence for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


def advice(extra: str) -> str:
    """What to type for an extra of this project; pip then adds what is missing, to a wheel and to a clone alike.

    >>> advice("torch")
    "pip install 'sparsegen[torch]'"
    """
    return f"pip install 'sparsegen[{extra}]'"


class FrontEndMissing(ImportError):
    """A front end cannot be imported: whoever asked for it has the better word."""


def missing(what: str, packages: str | None, extra: str, kind: type[ImportError] = ImportError) -> ImportError:
    """Make the error that says which extra of this project brings a package.

    Parameters
    ----------
    what : str
        What cannot be done without it.
    packages : str or None
        What could not be imported, such as the name in an ImportError.
    extra : str
        The extra of pyproject.toml that has it.
    kind : type
        Of the error.

    Examples
    --------
    >>> print(missing("training", "torch", "torch"))
    sparsegen: training needs torch, which is not installed: pip install 'sparsegen[torch]'.
    """
    return kind(
        f"sparsegen: {what} needs {packages or 'a package'}, which is not installed: {advice(extra)}.",
        name=packages,
    )


@contextmanager
def needed(what: str, extra: str, kind: type[ImportError] = ImportError) -> Iterator[None]:
    """Within it, an import that fails says what to install.

    Examples
    --------
    >>> with needed("flying", "wings"):
    ...     import feathers
    Traceback (most recent call last):
        ...
    ImportError: sparsegen: flying needs feathers, which is not installed: pip install 'sparsegen[wings]'.
    """
    try:
        yield
    except ImportError as error:
        if str(error).startswith("sparsegen:") and not isinstance(error, FrontEndMissing):  # it says so already
            raise
        cause: BaseException = error
        while isinstance(cause.__cause__, ImportError):
            cause = cause.__cause__
        raise missing(what, getattr(cause, "name", None), extra, kind) from error


def front_end(extra: str) -> AbstractContextManager[None]:
    """Within it, the package that a front end of this name stands on is imported."""
    return needed(f"sparsegen.{extra}", extra, FrontEndMissing)
