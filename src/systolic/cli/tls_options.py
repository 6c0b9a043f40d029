"""Options of commands that send work to a Dask cluster over TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from systolic.tuning import Certificates

_F = TypeVar("_F", bound=Callable[..., Any])


def tls_options(command: _F) -> _F:
    """Add `--tls-ca`, `--tls-cert` and `--tls-key`, each also read from the environment."""
    for name, what in (
        ("key", "Key of that certificate, without a passphrase."),
        ("cert", "Certificate of this machine, signed by that authority."),
        ("ca", "Certificate of the authority that signs a tls:// cluster's."),
    ):
        command = click.option(
            f"--tls-{name}",
            type=click.Path(path_type=Path),
            envvar=f"SYSTOLIC_TLS_{name.upper()}",
            show_envvar=True,
            metavar="FILE",
            help=what,
        )(command)
    return command


def certificates_of(
    scheduler: str | None, authority: Path | None, certificate: Path | None, key: Path | None
) -> Certificates | None:
    """Return the three together, or None without them or without a scheduler; one without another is a `UsageError`."""
    present = [file is not None for file in (authority, certificate, key)]
    if not any(present) or scheduler is None:
        return None
    if authority is None or certificate is None or key is None:
        raise click.UsageError("--tls-ca, --tls-cert and --tls-key go together: give all three")
    return Certificates(authority=authority, certificate=certificate, key=key)
