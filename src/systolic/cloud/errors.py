"""What can go wrong between here and a machine, told from what `gcloud` says and how it ends."""

from __future__ import annotations

import re

from systolic.call_errors import LackingError, WrongCallError

# What gcloud itself says of an end in failure begins so; what stands before may be a remote program's.
_ERROR = re.compile(r"^ERROR: (?:\(gcloud[\w.-]*\) ?)?", re.MULTILINE)
_SIGN_IN = re.compile(r"gcloud auth login|active account selected|[Rr]eauthentication|UNAUTHENTICATED|invalid_grant")
_CAPACITY = re.compile(r"no more capacity|insufficient (?:reserved )?capacity|stockout|enough resources", re.I)
_QUOTA = re.compile(r"RESOURCE_EXHAUSTED|quota", re.I)
_TAKEN = re.compile(r"ALREADY_EXISTS|already exists", re.I)
_NOT_FOUND = re.compile(r"NOT_FOUND|not found", re.I)
_CONNECTION = re.compile(
    r"return code \[255\]|Broken pipe|Connection (?:reset|closed|refused|timed out|to \S+ closed)|"
    r"Network is unreachable|"
    r"Could ?n[o']t (?:reach|connect)|Failed to establish a new connection|Operation timed out|lost connection|"
    r"Name or service not known|Temporary failure in name resolution|client_loop: send disconnect",
    re.I,
)
_SSH_FAILED = 255  # ssh's own failure; every other status is the remote command's, or gcloud's


class ProjectError(WrongCallError, ValueError):
    """The project cannot be copied, or a command would not find on the machine what it names."""


class MachineError(LackingError, RuntimeError):
    """A machine cannot be made, reached or used. Base of all errors here."""


class GcloudMissingError(MachineError):
    """There is no `gcloud` to call."""

    def __init__(self) -> None:
        super().__init__(
            "gcloud is not installed, or not on PATH: it comes with the Google Cloud CLI "
            "(https://cloud.google.com/sdk/docs/install); after that, gcloud init signs in and sets project and zone. "
            "--dry-run shows what would be called"
        )


class GcloudError(MachineError):
    """`gcloud` failed.

    Attributes:
      words: what it said.
      returncode: how it ended; with `ssh`, how the remote command did.
    """

    def __init__(self, message: str, words: str = "", returncode: int = 1) -> None:
        super().__init__(message, words, returncode)
        self.words = words
        self.returncode = returncode

    def __str__(self) -> str:
        return self.args[0]


class SignInError(GcloudError):
    """`gcloud` knows no account, or its sign-in has run out."""


class QuotaError(GcloudError):
    """The project may not have such a machine, or the zone has none left."""


class NameTakenError(GcloudError):
    """There is a machine of that name already."""


class MachineNotFoundError(GcloudError):
    """There is no machine of that name there."""


class ConnectionLostError(GcloudError):
    """The connection to the machine, or to Google Cloud, broke or could not be made."""


class MachineUnfitError(MachineError):
    """The machine is there, but not in a state, or not of a kind, to run a command on."""


class BusyError(MachineError):
    """Another command still runs on the machine, whose TPU only one program can have."""


def gcloud_words(stderr: str) -> str:
    """What gcloud itself said: from its first line of error on, else the last lines of all."""
    found = _ERROR.search(stderr)
    if found:
        return stderr[found.end() :].strip()
    return "\n".join(stderr.strip().splitlines()[-5:])


def classified(what: str, name: str, returncode: int, stderr: str) -> GcloudError:
    """The error that a failure of gcloud is.

    Args:
      what: gcloud's verb: `create`, `describe`, `list`, `delete`, `ssh` or `scp`.
      name: of the machine; "" with `list`.
      returncode: not zero.
      stderr: all that was said, with what a remote program said.
    """
    words = gcloud_words(stderr)
    # Nothing that a remote program says may be taken for gcloud's own words.
    own = words if _ERROR.search(stderr) or what not in ("ssh", "scp") else ""
    kind, message = _kind(what, name, returncode, own)
    return kind(f"{message}\n{words}".rstrip(), words, returncode)


def _kind(what: str, name: str, returncode: int, own: str) -> tuple[type[GcloudError], str]:
    """The class of a failure, and what to do about it."""
    if _SIGN_IN.search(own):
        return SignInError, "gcloud is not signed in: run gcloud auth login, then this again"
    if what == "create":
        if _CAPACITY.search(own):
            return QuotaError, (
                f"the zone has no such machine left for {name}: try another --zone, later, or systolic tpu create "
                "--queued, which waits for one"
            )
        if _TAKEN.search(own):
            return NameTakenError, (
                f"there is a machine or a queued request named {name} already: take another name, or see it with "
                f"systolic tpu list and delete it with systolic tpu delete {name}"
            )
        if _QUOTA.search(own):
            return QuotaError, (
                f"the project's quota does not allow {name}: ask for more of the Cloud TPU API at "
                "https://console.cloud.google.com/iam-admin/quotas, or take another --zone, a smaller "
                "--accelerator-type, or --spot, which has a quota of its own"
            )
    if returncode == _SSH_FAILED or _CONNECTION.search(own):
        reached = f"the connection to {name} broke or could not be made" if name else "Google Cloud cannot be reached"
        return ConnectionLostError, reached
    if what not in ("create", "list") and _NOT_FOUND.search(own):
        return MachineNotFoundError, (
            f"there is no {name} in that zone and project: systolic tpu list shows what there is, with --zone also "
            "elsewhere"
        )
    return GcloudError, f"gcloud {what} failed with exit code {returncode}"
