"""What is known of a machine: where it is, and what `gcloud` says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from systolic.untrusted import UntrustedError, mapping, shown

# Names that Google Cloud gives out. One is handed back to gcloud as an argument, where --force would be a flag.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?|", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A machine's name, and where it is.

    Attributes:
      name: its name in the project, such as `my-tpu`.
      zone: such as `us-west4-a`; "" for the one that gcloud's configuration names.
      project: of Google Cloud; "" for the one that gcloud's configuration names.
    """

    name: str
    zone: str = ""
    project: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `gcloud`, and of `systolic tpu`, that say where."""
        zone = (f"--zone={self.zone}",) if self.zone else ()
        return (*zone, *((f"--project={self.project}",) if self.project else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that exists.

    Attributes:
      state: as Google Cloud calls it: CREATING, READY, STOPPED, PREEMPTED, DELETING, …
      spot: it may be taken back at any time, and costs less.
      hosts: machines that one TPU slice spans.
      queued_request: the name of the queued resource that it belongs to; "" if it was made at once.
    """

    name: str
    zone: str
    accelerator_type: str
    runtime_version: str
    state: str
    spot: bool
    hosts: int
    created: str
    queued_request: str

    @classmethod
    def of(cls, record: Any) -> Machine:
        """Out of `gcloud compute tpus tpu-vm describe --format=json`: a Node of the Cloud TPU API, version 2.

        Raises:
          UntrustedError: it is none.
        """
        scheduling = _object(mapping(record, "a machine"), "schedulingConfig")
        name, zone = _name_and_zone(record)
        request = _last(_text(record, "queuedResource"))
        if not _NAME.fullmatch(request):
            raise UntrustedError(f"queuedResource={shown(request)} is no name")
        return cls(
            name=name,
            zone=zone,
            accelerator_type=_last(_text(record, "acceleratorType")),
            runtime_version=_text(record, "runtimeVersion"),
            state=_text(record, "state") or "UNKNOWN",
            spot=bool(scheduling.get("spot") or scheduling.get("preemptible")),
            hosts=max(1, len(listed(record.get("networkEndpoints") or []))),
            created=_text(record, "createTime"),
            queued_request=request,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRequest:
    """A request that waits for a machine, or has one.

    Attributes:
      name: of the request.
      state: as Google Cloud calls it: ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE, SUSPENDED, FAILED, …
      machines: names of the machines that it asks for.
    """

    name: str
    zone: str
    accelerator_type: str
    runtime_version: str
    state: str
    spot: bool
    created: str
    machines: tuple[str, ...]

    @classmethod
    def of(cls, record: Any) -> QueuedRequest:
        """Out of `gcloud compute tpus queued-resources describe --format=json`.

        Raises:
          UntrustedError: it is none.
        """
        name, zone = _name_and_zone(mapping(record, "a queued request"))
        asked = [mapping(spec, "nodeSpec") for spec in listed(_object(record, "tpu").get("nodeSpec") or [])]
        node = _object(asked[0], "node") if asked else {}
        return cls(
            name=name,
            zone=zone,
            accelerator_type=_last(_text(node, "acceleratorType")),
            runtime_version=_text(node, "runtimeVersion"),
            state=_text(_object(record, "state"), "state") or "UNKNOWN",
            spot="spot" in record,
            created=_text(record, "createTime"),
            machines=tuple(_text(spec, "nodeId") for spec in asked),
        )


def listed(value: Any) -> list[Any]:
    """The value, if it is a JSON array.

    Raises:
      UntrustedError: it is none.
    """
    if not isinstance(value, list):
        raise UntrustedError(f"{shown(value)} is no list")
    return value


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that may be missing or null."""
    return mapping(record.get(name) or {}, name)


def _text(record: Mapping[str, Any], name: str) -> str:
    """A field that may be missing; it is shown, and so holds nothing that a terminal takes for a command."""
    text = record.get(name, "")
    if not isinstance(text, str) or not text.isprintable():
        raise UntrustedError(f"{name}={shown(text)} is no text of one line")
    return text


def _name_and_zone(record: Mapping[str, Any]) -> tuple[str, str]:
    """Out of a name such as projects/mine/locations/us-west4-a/nodes/my-tpu."""
    parts = _text(record, "name").split("/")
    zones = [zone for before, zone in pairwise(parts) if before == "locations"]
    return parts[-1], zones[0] if zones else ""


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]
