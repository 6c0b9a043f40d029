"""What is known of a machine: where it is, and what `gcloud` says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    def of(cls, record: Mapping[str, Any]) -> Machine:
        """Out of `gcloud compute tpus tpu-vm describe --format=json`: a Node of the Cloud TPU API, version 2."""
        scheduling = record.get("schedulingConfig") or {}
        name, zone = _name_and_zone(record)
        return cls(
            name=name,
            zone=zone,
            accelerator_type=_last(record.get("acceleratorType", "")),
            runtime_version=record.get("runtimeVersion", ""),
            state=record.get("state", "UNKNOWN"),
            spot=bool(scheduling.get("spot") or scheduling.get("preemptible")),
            hosts=max(1, len(record.get("networkEndpoints") or ())),
            created=record.get("createTime", ""),
            queued_request=_last(record.get("queuedResource", "")),
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
    def of(cls, record: Mapping[str, Any]) -> QueuedRequest:
        """Out of `gcloud compute tpus queued-resources describe --format=json`."""
        name, zone = _name_and_zone(record)
        asked = (record.get("tpu") or {}).get("nodeSpec") or []
        node = (asked[0].get("node") or {}) if asked else {}
        return cls(
            name=name,
            zone=zone,
            accelerator_type=_last(node.get("acceleratorType", "")),
            runtime_version=node.get("runtimeVersion", ""),
            state=(record.get("state") or {}).get("state", "UNKNOWN"),
            spot="spot" in record,
            created=record.get("createTime", ""),
            machines=tuple(spec.get("nodeId", "") for spec in asked),
        )


def _name_and_zone(record: Mapping[str, Any]) -> tuple[str, str]:
    """Out of a name such as projects/mine/locations/us-west4-a/nodes/my-tpu."""
    parts = str(record.get("name", "")).split("/")
    return parts[-1], parts[parts.index("locations") + 1] if "locations" in parts else ""


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]
