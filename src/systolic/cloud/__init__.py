"""TPU machines of Google Cloud: made, used and deleted by `gcloud`, whose command lines are pure functions here."""

from systolic.cloud.errors import (
    BusyError,
    ConnectionLostError,
    GcloudError,
    GcloudMissingError,
    MachineError,
    MachineNotFoundError,
    MachineUnfitError,
    NameTakenError,
    ProjectError,
    QuotaError,
    SignInError,
)
from systolic.cloud.machine import Address, Machine, QueuedRequest
from systolic.cloud.offers import MachineRequestError, Order, order
from systolic.cloud.results import ResultsError

__all__ = [
    "Address",
    "BusyError",
    "ConnectionLostError",
    "GcloudError",
    "GcloudMissingError",
    "Machine",
    "MachineError",
    "MachineNotFoundError",
    "MachineRequestError",
    "MachineUnfitError",
    "NameTakenError",
    "Order",
    "ProjectError",
    "QueuedRequest",
    "QuotaError",
    "ResultsError",
    "SignInError",
    "order",
]
