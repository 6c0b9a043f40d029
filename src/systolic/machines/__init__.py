"""TPU machines of Google Cloud: made, used and deleted by `gcloud`, whose command lines are pure functions here."""

from systolic.machines.errors import (
    BusyError,
    ConnectionLostError,
    GcloudError,
    GcloudMissingError,
    MachineError,
    MachineNotFoundError,
    MachineUnfitError,
    NameTakenError,
    QuotaError,
    SignInError,
)
from systolic.machines.machine import Address, Machine, QueuedRequest
from systolic.machines.offers import MachineRequestError, Order, order
from systolic.machines.project import ProjectError
from systolic.machines.results import ResultsError

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
