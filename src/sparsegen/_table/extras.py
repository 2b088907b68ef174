"""What to install where a package is missing, in one sentence for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def advice(extra: str) -> str:
    """What to type for an extra of this project.

    >>> advice("torch")
    "pip install -e '.[torch]' in a clone of sparsegen"
    """
    return f"pip install -e '.[{extra}]' in a clone of sparsegen"


def missing(what: str, packages: str | None, extra: str) -> ImportError:
    """Make the error that says which extra of this project brings a package.

    Parameters
    ----------
    what : str
        What cannot be done without it.
    packages : str or None
        What could not be imported, such as the name in an ImportError.
    extra : str
        The extra of pyproject.toml that has it.

    Examples
    --------
    >>> print(missing("training", "torch", "torch"))
    sparsegen: training needs torch, which is not installed: pip install -e '.[torch]' in a clone of sparsegen.
    """
    return ImportError(
        f"sparsegen: {what} needs {packages or 'a package'}, which is not installed: {advice(extra)}.",
        name=packages,
    )


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Within it, an import that fails says what to install.

    Examples
    --------
    >>> with needed("flying", "wings"):  # doctest: +ELLIPSIS
    ...     import feathers
    Traceback (most recent call last):
        ...
    ImportError: sparsegen: flying needs feathers, which is not installed: pip install -e '.[wings]' ...
    """
    try:
        yield
    except ImportError as error:
        # It says so already; but where a front end says it of itself, what was asked for is the better word.
        if str(error).startswith("sparsegen:") and not str(error).startswith("sparsegen: sparsegen."):
            raise
        cause: BaseException = error
        while isinstance(cause.__cause__, ImportError):
            cause = cause.__cause__
        raise missing(what, getattr(cause, "name", None), extra) from error
