"""Failures on the way to a machine, each in one line, told from the words and the exit code of `gcloud`."""

from __future__ import annotations

import re

from systolic.support.call_errors import LackingError, WrongCallError
from systolic.support.printable import printable

# gcloud's own words; others are a remote program's.
_ERROR = re.compile(r"^ERROR: \(gcloud[\w.-]*\) ?(.*)", re.MULTILINE | re.DOTALL)
_SSH_FAILED = 255  # the status of ssh itself; every other one is the remote command's, or gcloud's
_MAX_WORDS = 400  # characters of gcloud's that a message quotes


class TpuCallError(WrongCallError, ValueError):
    """No such machine exists, or the project cannot be copied."""


class MachineError(LackingError, RuntimeError):
    """A machine cannot be made, reached or used; `returncode` is gcloud's, with `ssh` the remote command's."""

    returncode = 1


class RefusedError(MachineError):
    """Google Cloud refused to make the machine: nothing was made."""


class MachineNotFoundError(MachineError):
    """There is no machine of that name in the zone and the project."""


class BusyError(MachineError):
    """Another command still runs on the machine."""


_ANY, _CREATE = ("create", "describe", "delete", "ssh", "scp"), ("create",)
_SIGN_IN = r"gcloud auth login|active account selected|reauthentication|UNAUTHENTICATED|invalid_grant"
_CAPACITY = r"no more capacity|insufficient (?:reserved )?capacity|stockout|enough resources"
_QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas"
# Verbs of gcloud, words that it says, the error that they are, and a fix.
_FAILURES = (
    (_CREATE, _SIGN_IN, RefusedError, "gcloud is not signed in: run gcloud auth login"),
    (_ANY, _SIGN_IN, MachineError, "gcloud is not signed in: run gcloud auth login"),
    (_CREATE, _CAPACITY, RefusedError, "the zone has no such machine left: try another --zone, or later"),
    (_CREATE, "already.exists", RefusedError, "{name} exists already: take another name, or systolic tpu remove it"),
    (
        _CREATE,
        "resource_exhausted|quota",
        RefusedError,
        f"no quota: try --spot or another --zone, or ask {_QUOTA_PAGE}",
    ),
    (("describe", "delete"), "not.found", MachineNotFoundError, "there is no {name} in that zone and project"),
)


def failure(verb: str, name: str, returncode: int, stderr: str) -> MachineError:
    """Return the error of a failed gcloud call: its verb, the machine, the exit code, and the output."""
    match = _ERROR.search(stderr)
    own_words = match[1] if match else ""
    words = printable(" ".join(own_words.split() or stderr.strip().splitlines()[-1:]))[:_MAX_WORDS]
    kind, text = MachineError, f"gcloud {verb} failed with exit code {returncode}"
    if returncode == _SSH_FAILED or "return code [255]" in own_words:
        text = f"the connection to {name} broke or could not be made"
    for verbs, pattern, known_kind, fix in reversed(_FAILURES):
        if verb in verbs and re.search(pattern, own_words, re.IGNORECASE):
            kind, text = known_kind, fix.format(name=name)
    error = kind(f"{text} ({words})" if words else text)
    error.returncode = returncode
    return error
