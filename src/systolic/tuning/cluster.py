"""Run the trials of a search on a Dask cluster, which outlives its workers.

Dask sends functions: whoever reaches a scheduler can run code on its machine, its workers' and its clients'. With
`tls://`, only holders of a certificate of the same authority reach it.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from systolic.compiler import WorkerPool
from systolic.support.bugs import runs_user_code
from systolic.support.call_errors import WrongCallError
from systolic.support.extras import install_command
from systolic.support.regular_file import read_regular
from systolic.timing import Measurement
from systolic.timing.experiment import Experiment
from systolic.timing.runner import Runner, Submit
from systolic.tuning.search import COMPILE_LIMIT_S

if TYPE_CHECKING:
    from distributed import Security

_CONNECT_S = 20
_TLS = "tls://"


class ClusterError(WrongCallError, RuntimeError):
    """There is no Dask scheduler at that address, it does not take these certificates, or Dask is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Files in PEM format that let this machine into a cluster, and prove the cluster's identity to it."""

    # The certificate that signed the scheduler's, the workers' and this machine's certificates.
    authority: Path
    certificate: Path  # this machine's
    key: Path  # this machine's, without a passphrase


@contextmanager
def cluster(
    address: str,
    certificates: Certificates | None = None,
    *,
    time_limit_s: float = COMPILE_LIMIT_S,
    memory_limit_bytes: int | None = None,
) -> Iterator[tuple[Submit, int]]:
    """Yield the function that sends `tune` its trials, and how many run at once: one for each thread of a Dask worker.

    A Dask worker compiles in a process of its own, as a search on one machine does: a crash of the compiler is a trial
    that failed, and not the worker's. Workers need `systolic[tpu]`; nothing is written there but the cache of programs.

    Args:
      address: such as "tcp://host:8786" or "tls://host:8786".
      certificates: for `tls://`; None: the ones in Dask's own configuration.
      time_limit_s: seconds of CPU time for one trial.
      memory_limit_bytes: of one trial; None: what the machine that compiles it has free.

    Raises:
      ClusterError: no scheduler answers there, the certificates are not taken, or there are no workers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError(f"a scheduler needs Dask: {install_command('cluster')}") from error
    security = _security(address, certificates)
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError) as error:
        encrypted = address.startswith(_TLS)
        doubt = "; it may take no certificate of this authority, or speak tcp://" if encrypted else ""
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}{doubt}") from error
    with client:
        threads: Any = client.nthreads()  # a coroutine only of an asynchronous client
        at_once = sum(threads.values())
        if at_once < 1:
            raise ClusterError(
                f"the Dask scheduler at {address} has no workers; start some with `dask worker {address}`"
            )
        # Not pure: the same trial sent twice is run twice, as here. The scheduler gives what a dead worker had to
        # another one, as often as its `allowed-failures` says: three times by default.
        executor = client.get_executor(pure=False)
        alone = functools.partial(simulated_alone, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes)

        @runs_user_code  # any error of Dask is the cluster's
        def submit(experiment: Experiment) -> Future[Measurement]:
            return executor.submit(alone, experiment)

        yield submit, at_once
        executor.shutdown(wait=False)


def _security(address: str, certificates: Certificates | None) -> Security | None:
    """Return Dask's security settings, None for its own configuration; raise ClusterError for wrong certificates."""
    from dask import config
    from distributed import Security

    if certificates is None:
        named = Security().tls_client_cert or config.get("distributed.client.security-loader", None)
        if address.startswith(_TLS) and named is None:
            raise ClusterError(
                f"{address} takes certificates: give --tls-ca, --tls-cert and --tls-key, or name them in Dask's "
                "configuration"
            )
        return None
    if not address.startswith(_TLS):
        raise ClusterError(f"certificates go with an address such as tls://host:8786, and {address} is none")
    _check(certificates)
    return Security(
        require_encryption=True,
        tls_ca_file=str(certificates.authority),
        tls_client_cert=str(certificates.certificate),
        tls_client_key=str(certificates.key),
    )


def _check(certificates: Certificates) -> None:
    """Check that the files exist and fit each other: Dask would fail later, or ask for a passphrase."""
    files = (certificates.authority, certificates.certificate, certificates.key)
    for file in files:
        try:
            read_regular(file)
        except OSError as error:
            raise ClusterError(f"cannot read {file}: {error.strerror}") from error
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    try:
        context.load_verify_locations(certificates.authority)
    except ssl.SSLError as error:
        raise ClusterError(f"{certificates.authority} holds no certificate: {error}") from error
    try:
        context.load_cert_chain(certificates.certificate, certificates.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ClusterError(
            f"{certificates.certificate} and {certificates.key} are not a certificate and its key, or the key has a "
            f"passphrase: {error}"
        ) from error


def simulated_alone(
    experiment: Experiment, *, time_limit_s: float = COMPILE_LIMIT_S, memory_limit_bytes: int | None = None
) -> Measurement:
    """Compile and simulate in a process of its own, on the machine where this is called."""
    with WorkerPool(max_workers=1, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return Runner(pool).start(experiment).job.result()
